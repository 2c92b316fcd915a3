/* hpc_probes_bandwidth: measures the bandwidth that is left on the paths to peers.
 *
 * Each path first gets a train: packets sent as fast as possible. The rate R0 at which its end arrives bounds the
 * search. Bytes that arrived faster passed a token bucket, which shaped links have. If the path has the rate A left, a
 * bucket of b bytes would hide a stream at rate R that is shorter than b R / (R - A) bytes. So each stream begins with
 * packets that empty the bucket, sent at once. The rest, which is judged, then meets a queue that grows if R is above A
 * and shrinks if R is below.
 *
 * Then come fleets of streams, each fleet at one rate (trend.h). The paths of a call take turns, one stream at a time.
 * A path's next stream is due when the last one, averaged over the time since its start, is down to the rate's allowed
 * fraction (options.share). Streams of other paths fill the pauses.
 *
 * The job's own traffic must not be measured as foreign traffic. A stream waits for a pause in this rank's traffic. A
 * stream is discarded if it still met much of the job's traffic, on this rank or at the peer; a little of that traffic
 * is counted as part of the stream. If no pause comes, the throughput of this rank's traffic is the result, because TCP
 * with a backlog fills a path.
 *
 * If options.at_least is above 0, streams are sent amid that traffic if no pause comes soon. A stream without a trend
 * has found room beside the traffic. A rising stream shows that too little is left if stream and traffic together
 * arrived at less than at_least; otherwise it is discarded. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "probe/probe.h"
#include "probe/trend.h"

enum {
    FIRST_TRAIN = 64,
    MOST_TRAIN = 576,
    TRAINS = 3,
    TRAIN_GROWTH = 3,
    MOST_DEAF = 2,
    LEAST_BUCKET = 3,
    MOST_BUSY = 2,
    MOST_CROWDED = 3,
    MOST_THIN = 4
};
enum { LEAST_PACKETS = 25, MOST_PACKETS = 400, MOST_STREAMS = 100, LEAST_PACKET = 200, LEAST_PART = 36 };

static const char op[] = "bandwidth";
static const double PERIOD = 2e-3;    /* seconds between packets at slow rates; their packets are smaller */
static const double MOST_LOSS = 0.1;  /* fraction of packets; a stream that loses more was above the free bandwidth */
static const double LOSS_AMID = 0.03; /* the same for a stream amid the job's traffic */
static const double WHOLE = 0.9;      /* fraction of its rate above which a stream arrived as it was sent */
static const double CONFIRMED = 0.5;  /* fraction of a guessed bucket that a train must find to confirm it */
static const double MOST_OWN = 0.1;   /* fraction of a stream's bytes that the job's own traffic may have */
static const double DISCARDS = 8;     /* streams that may be discarded, per stream of a fleet */
static const double LOOK = 1e-3;      /* seconds between two looks at this rank's own traffic */
static const double AMID = 0.1;       /* seconds to wait for a pause before a stream that may go without one */
static const double LEAST_BUSY = 0.3; /* seconds of own traffic after which its throughput is known */
static const double BACKLOG = 0.9;    /* traffic that waited at more than this fraction of looks fills the path */
static const double MOST_CALL = 5;    /* seconds for the TCP call of a probe */
static const double CREDIT = 1.5;  /* most seconds of waiting for a pause that a path makes up for by later streams */
static const double BEYOND = 1.25; /* times the rate of trains: the most that can be left on a path */
static const double REFILL = 0.06; /* seconds that a bucket takes to fill again after a train */
static const double SPARE = 1.15;  /* times the estimated bucket: bytes that are sent to empty it */

typedef struct job {
    hpc_probe_path path;
    hpc_search search;
    hpc_fleet fleet;
    hpc_bandwidth *result;
    int is_done, is_trained, is_limited;
    int train, trains; /* train: packets of the next train; trains: number of trains with a result */
    int is_guessed;    /* 1: the bucket is a guess, which the first train checks */
    int deaf, busy;
    int crowded, thin; /* crowded: trains that met the job's own traffic; thin: trains of which few packets arrived */
    int discarded;     /* streams of this fleet that were discarded */
    double slopes;     /* sum over this fleet's rising streams */
    double bucket, due;
    double own, judged; /* own: bytes of the job during streams that counted; judged: seconds of these streams */
    double busy_bytes, busy_seconds; /* this rank's own traffic to the peer while streams waited for a pause */
} job;

typedef struct probe_round {
    hpc_context *context;
    const hpc_bandwidth_options *options;
    job *jobs;
    int n;
    double start, deadline;
    hpc_probe_stream *stream;
} probe_round;

void hpc_bandwidth_options_init(hpc_bandwidth_options *options) {
    *options = (hpc_bandwidth_options){.size = sizeof *options,
                                       .timeout = 60,
                                       .resolution = 0.2,
                                       .share = 0.1,
                                       .patience = 1,
                                       .streams = 12,
                                       .packets = 100};
}

/* ---- this rank's own traffic ---- */

/* Waits for a pause in this rank's own traffic. Returns HPC_OK in a pause, or if streams may be sent without one.
 * Returns HPC_IN_PROGRESS if no pause came, or if the traffic to the path's peer alone reached options.at_least. *rate
 * is then that traffic's throughput, and *backlog the fraction of looks at which some of it waited. */
static int await_pause(const probe_round *c, job *j, double *rate, double *backlog) {
    const int to = j->path.rank;
    hpc_carried before = hpc_probes_carried(c->context, to), first = before, now;
    double start = hpc_now(), last = start, until = start + c->options->patience;
    if (j->path.goes_amid) until = start + AMID;
    int looks = 0, waiting = 0;
    if (until > c->deadline) until = c->deadline;
    for (;;) {
        int status = hpc_probe_sleep(&j->path, LOOK, c->deadline);
        if (status != HPC_OK) return status;
        now = hpc_probes_carried(c->context, to);
        if (now.waiting == 0 && now.sent == before.sent) return HPC_OK;
        looks++;
        waiting += (c->options->at_least > 0 ? now.waiting_to : now.waiting) > 0;
        double gone = hpc_now() - last;
        last += gone;
        if (now.sent_to > before.sent_to) j->busy_bytes += (double)(now.sent_to - before.sent_to);
        j->busy_seconds += gone; /* also between two bursts, while some of it waits or is not acknowledged */
        before = now;
        if (c->options->at_least > 0 && j->busy_seconds >= LEAST_BUSY) {
            *rate = j->busy_bytes / j->busy_seconds;
            j->busy_bytes = j->busy_seconds = 0;
            if (*rate >= c->options->at_least) {
                j->busy = MOST_BUSY;
                *backlog = 0;
                return HPC_IN_PROGRESS;
            }
        }
        if (hpc_now() >= until) break;
    }
    if (j->path.goes_amid) return HPC_OK;
    *rate = now.sent > first.sent ? (double)(now.sent - first.sent) / (hpc_now() - start) : 0;
    *backlog = (double)waiting / looks;
    return HPC_IN_PROGRESS;
}

/* ---- ends ---- */

static void finish(const probe_round *c, job *j) {
    const hpc_search *s = &j->search;
    hpc_bandwidth *r = j->result;
    double own = j->judged > 0 ? j->own / j->judged : 0;
    j->is_done = 1;
    r->seconds = hpc_now() - c->start;
    r->nbytes = j->path.nbytes;
    r->fleets = s->fleets;
    if (!r->answered || r->by_own) return;
    r->own = own;
    r->low = s->low > 0 ? s->low + own : 0;
    r->high = s->high > 0 ? s->high + own : INFINITY;
    if (s->at_least > 0 && s->greys > 0 && s->low == 0 && s->high == 0) r->low = r->high = s->at_least + own;
}

/* Ends a path, with the rate of this rank's own traffic as the result. */
static void finish_busy(const probe_round *c, job *j, double rate, double backlog) {
    hpc_bandwidth *r = j->result;
    r->by_own = 1;
    r->own = rate;
    r->low = rate;
    r->high = backlog >= BACKLOG ? rate : INFINITY;
    if (c->options->at_least > 0) r->sufficient = rate >= c->options->at_least;
    finish(c, j);
}

static void finish_deaf(const probe_round *c, job *j) {
    j->result->answered = 0;
    if (hpc_probes_first_note(c->context, j->path.rank))
        hpc_group_note(&c->context->group, HPC_NOTE_DEGRADED,
                       "no bandwidth probe has reached rank %d (%s): let UDP pass between the hosts, and TCP to the "
                       "ephemeral ports; until then the bandwidth is not known",
                       j->path.rank, c->context->addresses[j->path.rank].hostname);
    finish(c, j);
}

/* ---- trains ---- */

static void begin_search(const probe_round *c, job *j, int is_limited) {
    const double capacity = j->result->capacity;
    j->is_trained = 1;
    j->is_limited = is_limited;
    j->bucket = j->result->bucket;
    j->busy = 0;
    j->path.goes_amid = c->options->at_least > 0;
    const int is_crowded = j->crowded > MOST_CROWDED; /* then the path may have room for more than arrived */
    const double most = is_limited || is_crowded ? 0 : capacity;
    hpc_search_begin(&j->search, c->options->at_least, c->options->resolution, capacity, most);
    if (!is_crowded && c->options->at_least > BEYOND * capacity) { /* a train arrives no faster than the path allows */
        j->search.high = capacity;
        j->search.is_done = 1;
    }
    if (!j->search.is_done) return;
    j->result->sufficient = 0;
    finish(c, j);
}

static void take_train(const probe_round *c, job *j) {
    const hpc_probe_stream *s = c->stream;
    double each = j->path.each;
    hpc_train train;
    if (s->n == 0 || (s->own > MOST_OWN * s->n * each && ++j->crowded <= MOST_CROWDED)) return;
    if (s->lost == s->n) {
        if (++j->deaf >= MOST_DEAF) finish_deaf(c, j);
        return;
    }
    j->deaf = 0;
    j->result->answered = 1;
    if (!hpc_train_of(s->sent, s->came, s->n, each, &train)) {
        if (++j->thin < MOST_THIN) return;
        if (c->options->at_least > 0) j->result->sufficient = 0; /* almost nothing arrives */
        finish(c, j);
        return;
    }
    if (!train.is_limited && j->train < MOST_TRAIN) {
        j->train *= TRAIN_GROWTH;
        return;
    }
    if (j->is_guessed) {
        const double found = train.is_limited ? train.bucket : 0;
        j->is_guessed = 0;
        if (found >= CONFIRMED * j->bucket && BEYOND * train.rate >= c->options->at_least)
            j->trains = TRAINS - 1;
        else
            j->bucket = 0;
    }
    /* Other traffic may have emptied the bucket just before a train, so the largest of several results counts. */
    j->is_limited |= train.is_limited;
    if (train.is_limited && train.bucket >= LEAST_BUCKET * each) j->bucket = fmax(j->bucket, train.bucket);
    j->result->capacity = fmax(j->result->capacity, train.rate);
    j->result->bucket = j->bucket;
    if (++j->trains < TRAINS && train.is_limited) return;
    begin_search(c, j, j->is_limited);
}

static int send_train(const probe_round *c, job *j) {
    double start = hpc_now();
    int status = hpc_probe_send(&j->path, j->train, 0, j->path.each, 0, c->deadline, c->stream);
    if (status != HPC_OK) return status;
    take_train(c, j);
    double rate = j->result->capacity > 0 ? j->result->capacity : c->options->at_least;
    double length = rate > 0 ? c->stream->n * (double)j->path.each / rate : 0;
    j->due = start + fmax(REFILL, length / c->options->share);
    return HPC_OK;
}

/* ---- fleets ---- */

static void take_verdict(const probe_round *c, job *j, hpc_fleet_says says) {
    const hpc_fleet fresh = {.streams = c->options->streams};
    double slope = j->fleet.rising > 0 ? j->slopes / j->fleet.rising : 0;
    double guess = slope > 0 ? fmax(0, j->search.rate - slope * j->result->capacity) : 0;
    if (says == HPC_FLEET_OPEN) return;
    if (c->options->at_least > 0)
        j->result->sufficient = says == HPC_FLEET_GREY ? j->fleet.level > j->fleet.rising : says == HPC_FLEET_BELOW;
    hpc_search_take(&j->search, says, guess);
    j->fleet = fresh;
    j->slopes = 0;
    j->discarded = 0;
    if (j->search.is_done) finish(c, j);
}

static void discard(const probe_round *c, job *j) {
    j->result->discarded++;
    if (++j->discarded > DISCARDS * c->options->streams) finish(c, j);
}

/* Returns the trend of the packets from `first` on; HPC_TREND_UNCLEAR if too few arrived. *came gets the number of
 * packets that arrived per second. */
static hpc_trend trend_of(job *j, const hpc_probe_stream *s, int first, double *came) {
    double sent[HPC_PROBE_MOST_PACKETS], delays[HPC_PROBE_MOST_PACKETS];
    int n = 0, begin = -1, end = -1;
    for (int i = first; i < s->n; i++) {
        if (s->came[i] < 0) continue;
        sent[n] = s->sent[i];
        delays[n++] = s->came[i] - s->sent[i];
        begin = begin < 0 ? i : begin;
        end = i;
    }
    const double span = n > 1 ? s->came[end] - s->came[begin] : 0;
    *came = (n - 1) / fmax(span, n < LEAST_PACKETS ? s->seconds : 1e-6);
    if (s->lost > MOST_LOSS * s->n || s->is_blocked) return HPC_TREND_RISING;
    const hpc_trend trend = hpc_trend_of(delays, n);
    if (trend == HPC_TREND_RISING && n >= LEAST_PACKETS) j->slopes += hpc_trend_slope(sent, delays, n);
    return trend;
}

/* Returns whether a stream amid the job's own traffic has a result. The stream found room if its delays do not grow, it
 * arrived as fast as it was sent, and it lost almost nothing; a queue that is always full would drop packets. The
 * stream shows that too little is left on the path only if stream and traffic together arrived at less than
 * options.at_least. */
static int tells_amid(const probe_round *c, const hpc_probe_stream *s, hpc_trend trend, double came) {
    if (trend == HPC_TREND_NONE) return s->lost <= LOSS_AMID * s->n && came >= WHOLE * c->options->at_least;
    return trend == HPC_TREND_RISING && came + s->own_rate < c->options->at_least;
}

static void take_stream(const probe_round *c, job *j, int first, int nbytes) {
    const hpc_probe_stream *s = c->stream;
    double came;
    if (s->n > 0 && s->lost == s->n) {
        if (++j->deaf > MOST_DEAF) finish_deaf(c, j);
        return;
    }
    j->deaf = 0;
    j->result->answered |= s->n > 0;
    /* If a packet was sent late, only the packets before it are judged (pathload, MIN_STREAM_LEN). */
    int is_short = s->n - first < (s->is_late ? LEAST_PART : 1) || s->overflowed;
    int is_amid = s->own > MOST_OWN * s->n * nbytes;
    if (is_short || (is_amid && c->options->at_least == 0)) {
        discard(c, j);
        return;
    }
    hpc_trend trend = trend_of(j, s, first, &came);
    if (is_amid && !tells_amid(c, s, trend, came * nbytes)) {
        discard(c, j);
        return;
    }
    j->result->streams++;
    if (!is_amid && s->lost > MOST_LOSS * s->n) {
        take_verdict(c, j, HPC_FLEET_ABOVE);
        return;
    }
    j->fleet.rising += trend == HPC_TREND_RISING;
    j->fleet.level += trend == HPC_TREND_NONE;
    j->fleet.unclear += trend == HPC_TREND_UNCLEAR;
    j->own += is_amid ? 0 : s->own;
    j->judged += is_amid ? 0 : s->seconds;
    take_verdict(c, j, hpc_fleet_judge(&j->fleet));
}

static int send_stream(const probe_round *c, job *j) {
    double rate = j->search.rate, start = hpc_now();
    int nbytes = rate * PERIOD < LEAST_PACKET ? LEAST_PACKET : (int)fmin(rate * PERIOD, j->path.each);
    int rest = c->options->packets, first = j->bucket > 0 ? (int)ceil(SPARE * j->bucket / nbytes) + 2 : 0;
    if (first + rest > HPC_PROBE_MOST_PACKETS) first = HPC_PROBE_MOST_PACKETS - rest;
    int status = hpc_probe_send(&j->path, first, rest, nbytes, rate, c->deadline, c->stream);
    if (status != HPC_OK) return status;
    j->due = fmax(j->due, start - CREDIT) + c->stream->n * (double)nbytes / (rate * c->options->share);
    take_stream(c, j, first, nbytes);
    return HPC_OK;
}

/* ---- the call ---- */

static job *next_of(const probe_round *c) {
    job *next = NULL;
    for (int i = 0; i < c->n; i++)
        if (!c->jobs[i].is_done && (next == NULL || c->jobs[i].due < next->due)) next = &c->jobs[i];
    return next;
}

static int step(const probe_round *c, job *j) {
    double rate = 0, backlog = 0;
    int status = hpc_probe_sleep(&j->path, j->due - hpc_now(), c->deadline);
    if (status == HPC_OK) status = await_pause(c, j, &rate, &backlog);
    if (status == HPC_IN_PROGRESS) {
        if (++j->busy < MOST_BUSY) return HPC_OK;
        if (c->options->at_least > 0 && rate < c->options->at_least && backlog < BACKLOG) { /* undecided yet */
            j->path.goes_amid = 1;
            return HPC_OK;
        }
        j->result->answered = 1;
        finish_busy(c, j, rate, backlog);
        return HPC_OK;
    }
    if (status != HPC_OK) return status;
    j->busy = 0;
    return j->is_trained ? send_stream(c, j) : send_train(c, j);
}

/* Opens the path. A peer that is alive but cannot be called is behind a firewall. The exchange may work even so,
 * because data connections go from the higher rank to the lower one. */
static int connect_to(const probe_round *c, job *j) {
    double limit = hpc_now() + MOST_CALL;
    int peer = j->result->peer, muted = hpc_mute_errors(1);
    int status = hpc_probe_connect(c->context, peer, c->options->stop, fmin(limit, c->deadline), &j->path);
    hpc_mute_errors(muted);
    if (status == HPC_OK) return HPC_OK;
    int goes_on = hpc_probe_goes_on(&j->path);
    if (goes_on != HPC_OK) return goes_on;
    if (status != HPC_ERR_TIMEOUT && status != HPC_ERR_TRANSPORT && status != HPC_ERR_AUTH)
        return hpc_fail(status, op, "%s: rank %d cannot open a probe to rank %d: %s", op, c->context->group.rank, peer,
                        hpc_status_text(status));
    finish_deaf(c, j);
    return HPC_OK;
}

static int run(probe_round *c) {
    job *j;
    int status = HPC_OK;
    for (int i = 0; i < c->n && status == HPC_OK; i++) {
        j = &c->jobs[i];
        j->train = FIRST_TRAIN;
        j->fleet.streams = c->options->streams;
        j->due = c->start;
        if (c->options->again && j->result->capacity > 0) begin_search(c, j, j->result->bucket > 0);
        if (!j->is_trained && j->result->bucket > 0) { /* the bucket is a guess */
            j->bucket = j->result->bucket;
            j->is_guessed = 1;
        }
        if (!j->is_done) status = connect_to(c, j);
    }
    while (status == HPC_OK && (j = next_of(c)) != NULL) {
        if (hpc_now() >= c->deadline) break;
        status = step(c, j);
    }
    for (int i = 0; i < c->n; i++) {
        if (status == HPC_OK && !c->jobs[i].is_done) finish(c, &c->jobs[i]);
        hpc_probe_close(&c->jobs[i].path);
    }
    return status;
}

static int check_peers(const hpc_context *c, const int *peers, int n) {
    if (peers == NULL || n < 1) return hpc_fail(HPC_ERR_INVALID, op, "%s: it needs one peer or more", op);
    for (int i = 0; i < n; i++) {
        int status = hpc_group_check_rank(&c->group, peers[i], "peer", op);
        if (status != HPC_OK) return status;
        if (peers[i] == c->group.rank)
            return hpc_fail(HPC_ERR_INVALID, op,
                            "%s: rank %d asks for the bandwidth to itself; name a rank of another host", op, peers[i]);
        if (hpc_same_host(&c->self, &c->addresses[peers[i]]))
            return hpc_fail(
                HPC_ERR_INVALID, op,
                "%s: rank %d is on this rank's host (%s), where memory is shared and no link can be short of "
                "bandwidth; name a rank of another host",
                op, peers[i], c->self.hostname);
        for (int k = 0; k < i; k++)
            if (peers[k] == peers[i])
                return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is named twice; name each peer once", op, peers[i]);
    }
    return HPC_OK;
}

static int check_options(const hpc_bandwidth_options *o) {
    if (o->size != sizeof *o)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: options->size is %zu, not %zu: call hpc_bandwidth_options_init first",
                        op, o->size, sizeof *o);
    if (!(o->at_least >= 0) || isinf(o->at_least))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: at_least is %g bytes/s; it must be more than 0, or 0 for a range", op,
                        o->at_least);
    if (!(o->timeout > 0))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: timeout is %g s; it must be more than 0", op, o->timeout);
    if (!(o->resolution > 0 && o->resolution <= 1) || !(o->share > 0 && o->share <= 1) || !(o->patience > 0))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: resolution is %g, share %g and patience %g s; the first two must be in (0, 1], patience "
                        "more than 0",
                        op, o->resolution, o->share, o->patience);
    if (o->streams < 1 || o->streams > MOST_STREAMS || o->packets < LEAST_PACKETS || o->packets > MOST_PACKETS)
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: %d streams of %d packets; a fleet has 1 to %d streams, a stream %d to %d packets", op,
                        o->streams, o->packets, MOST_STREAMS, LEAST_PACKETS, MOST_PACKETS);
    return HPC_OK;
}

int hpc_probes_bandwidth(hpc_context *context, const int *peers, int n, const hpc_bandwidth_options *options,
                         hpc_bandwidth *results) {
    hpc_bandwidth_options defaults;
    hpc_bandwidth_options_init(&defaults);
    if (options == NULL) options = &defaults;
    if (results == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: results is NULL", op);
    int status = check_options(options);
    if (status == HPC_OK) status = check_peers(context, peers, n);
    if (status != HPC_OK) return status;

    probe_round c = {.context = context, .options = options, .n = n, .start = hpc_now()};
    c.deadline = c.start + options->timeout;
    c.jobs = calloc((size_t)n, sizeof *c.jobs);
    c.stream = malloc(sizeof *c.stream);
    if (c.jobs == NULL || c.stream == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d peers", op, n);
        goto err;
    }
    for (int i = 0; i < n; i++) {
        const int again = options->again && results[i].peer == peers[i];
        results[i] = (hpc_bandwidth){.peer = peers[i],
                                     .sufficient = -1,
                                     .high = INFINITY,
                                     .capacity = again ? results[i].capacity : 0,
                                     .bucket = again ? results[i].bucket : 0};
        c.jobs[i].result = &results[i];
        c.jobs[i].path.tcp = c.jobs[i].path.udp = -1;
    }
    status = hpc_probes_begin(context, options->stop, c.deadline, op);
    if (status == HPC_OK) {
        status = run(&c);
        hpc_probes_end(context);
    }
err:
    free(c.jobs);
    free(c.stream);
    return status;
}
