/* Thresholds that follow the network (Parameter Flow, section 3.3.3). A thread of the exchange observes the paths from
 * this rank to other hosts while the trainer trains, and sets the thresholds (deltas) of this rank's encoders.
 *
 * By probes: the thread repeatedly measures whether a path has the rate at_least, in bytes a second, available
 * (hpc_context_bandwidth). While any of its paths has less, this rank's pushes use the larger delta, `up`. Its forwards
 * as an owner use `up` while a path of their tree has less. A tree's paths may begin at other ranks, which pass the
 * owner's folds on; each such rank probes its own paths and tells the owner by a word of the control channel. A path
 * whose probes are not answered counts as sufficient, and a note records that.
 *
 * The paths take turns. A path is *poor* if it has less than at_least available. While a path is known to be poor,
 * other paths whose result would change no delta are skipped. By another word, a hint, each rank names the peer to
 * which its path is poor. Other ranks' paths to that peer may share the link, so those ranks probe them next, and once
 * more when the hint is taken back.
 *
 * Smoothly: the thread measures the throughput of this rank's connections to other hosts while bytes wait to be sent.
 * Other traffic lowers this throughput, so no probes are needed.
 *
 * Threads and order: only this thread writes the follower, except stop. Deltas are atomic; an encoder reads its delta
 * when it begins. Words belong to the control channel. Each word carries the number of the exchange, which is the same
 * on all ranks, so words of an earlier exchange are ignored. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/host.h"
#include "context/context.h"
#include "probe/probe.h"
#include "engine/bytes.h"
#include "engine/layout/stages.h"
#include "engine/counts.h"
#include "exchange/exchange.h"

/* Fleets (groups of probe trains) are smaller than pathload's, so results come sooner and more often. */
enum { STREAMS = 4, PACKETS = 60 };

/* Indices of control-channel words, chosen by the number of the exchange: the first PLACES words are for verdicts (is a
 * path poor), the others for hints (which name a peer). */
enum { PLACES = HPC_WORDS / 2, HINT_BITS = 16, NO_HINT = 0 };

typedef struct hpc_follower {
    hpc_exchange *ex;
    hpc_context *context;
    pthread_t thread;
    int running, stop;
    int how;   /* hpc_follow_how */
    int crowd; /* how many ranks may probe over the same link at once */
    double at_least;
    uint32_t number; /* number of this exchange among exchanges that follow */
    int *peers, n;   /* the n ranks on other hosts to which this rank sends. "By peer" means indexed like this array */
    int last, turn;  /* indices of peers: last is the path that was probed last, turn the path whose turn was last */
    char *poor;      /* by peer: the path has too little left */
    char *own;       /* by peer: set if the path is in the tree of this rank's own folds */
    char *passes;    /* by owner and peer: set if this rank passes the owner's folds on to the peer */
    uint32_t *told;  /* by owner: the last verdict that it was told */
    uint32_t *hints; /* by rank: the last hint that it was told */
    hpc_bandwidth *results;
} hpc_follower;

static const double PAUSE = 0.5;      /* seconds to wait after a probe that failed or was not answered */
static const double LOOK = 0.1;       /* seconds between looks at words */
static const double SHARE = 0.05;     /* the part of this host's link that the probes of all paths may take */
static const double LAST_WORDS = 1;   /* seconds to take words back when an exchange stops following */
static const double LEFT = 0.5;       /* fraction of at_least that a poor path is assumed to have available */
static const double LIMIT = 30;       /* timeout of a probe, in seconds */
static const double SLICE = 0.02;     /* SMOOTHLY: seconds between looks at the connections */
static const double WINDOW = 0.5;     /* SMOOTHLY: seconds between two settings of the deltas */
static const double LEAST_BUSY = 0.1; /* SMOOTHLY: fraction of a window in which bytes must have waited */
static const double PRESENT = 0.5;    /* SMOOTHLY: the weight of the newest window in the mean */

static int stops(const hpc_follower *f) {
    return __atomic_load_n(&f->stop, __ATOMIC_ACQUIRE) || atomic_load(&f->context->group.closed);
}

static void sleep_for(double seconds) {
    const struct timespec t = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&t, NULL);
}

/* ---- the paths ---- */

static const hpc_codec_config *follows(const hpc_scheme *sc, int key) {
    if (!hpc_key_has_pieces(sc, key) || sc->pieces[key].codec->number != HPC_THRESHOLD) return NULL;
    return sc->pieces[key].config.follow ? &sc->pieces[key].config : NULL;
}

/* Returns the row that encoded a row's output: the row itself, or the row whose output it passes on without
 * decoding. */
static const hpc_row *encodes(const hpc_plan *plan, const hpc_row *row) {
    while (row->n_in == 1 && row->in[0].row >= 0 && plan->rows[row->in[0].row].codec_out == row->codec_out)
        row = &plan->rows[row->in[0].row];
    return row;
}

/* Returns the index of a rank in the array peers, and adds the rank if it is new; returns -1 if the rank is on this
 * host. */
static int place_of(hpc_follower *f, int rank) {
    const hpc_context *c = f->context;
    if (hpc_same_host(&c->addresses[rank], &c->addresses[c->group.rank])) return -1;
    for (int i = 0; i < f->n; i++)
        if (f->peers[i] == rank) return i;
    f->peers[f->n] = rank;
    return f->n++;
}

static void find_paths(hpc_follower *f, const hpc_scheme *sc) {
    const int me = f->context->group.rank;
    const size_t size = (size_t)f->context->group.size;
    for (int i = 0; i < sc->plan->n_rows; i++) {
        const hpc_row *row = &sc->plan->rows[i];
        if (follows(sc, row->key) == NULL) continue;
        if (row->owner != me && hpc_row_has_input(row, me)) place_of(f, row->owner);
        for (int e = 0; e < row->n_out && row->owner == me && row->action == HPC_FORWARD; e++) {
            const int at = row->out[e].row < 0 ? -1 : place_of(f, row->out[e].rank);
            const int owner = encodes(sc->plan, row)->owner;
            if (at < 0) continue;
            if (owner == me)
                f->own[at] = 1;
            else
                f->passes[(size_t)owner * size + (size_t)at] = 1;
        }
    }
}

/* Returns how many ranks may probe a link at once. The ranks of this host share its link. If many ranks send to few
 * ranks, they share the links of those few. */
static int crowd_of(const hpc_follower *f) {
    const hpc_context *c = f->context;
    int here = 0, each = f->n > 0 ? (c->group.size - 1) / f->n : 1;
    for (int r = 0; r < c->group.size; r++) here += hpc_same_host(&c->addresses[r], &c->addresses[c->group.rank]);
    return here > each ? here : each;
}

/* ---- deltas ---- */

static void set_deltas(const hpc_follower *f, int of, double part) {
    for (int i = 0; i < f->ex->n_schemes; i++) {
        hpc_scheme *sc = f->ex->schemes[i];
        for (int k = 0; k < sc->plan->n_keys; k++) {
            const hpc_codec_config *its = follows(sc, k);
            if (its != NULL) hpc_scheme_set_delta(sc, k, of, its->delta + part * (its->up - its->delta));
        }
    }
}

static uint32_t word(const hpc_follower *f, int poor) {
    return f->number << 1 | (uint32_t)poor;
}

static uint32_t hint_of(const hpc_follower *f, int peer) {
    return f->number << HINT_BITS | ((uint32_t)(peer + 1) & ((1U << HINT_BITS) - 1));
}

static int is_here(const hpc_follower *f, int rank) {
    return rank != f->context->group.rank && atomic_load(&f->context->group.states[rank]) == HPC_PEER_ALIVE;
}

static int verdicts(const hpc_follower *f) {
    return (int)(f->number % PLACES);
}

static int hints(const hpc_follower *f) {
    return PLACES + verdicts(f);
}

/* Tells each owner whether a path on which this rank passes its folds on is poor. Words that cannot be sent now are
 * sent at the next call. Returns whether all words were sent. */
static int tell_owners(hpc_follower *f) {
    const hpc_group *g = &f->context->group;
    int all = 1;
    for (int owner = 0; owner < g->size; owner++) {
        int some = 0, poor = 0;
        for (int i = 0; i < f->n; i++) {
            some |= f->passes[(size_t)owner * (size_t)g->size + (size_t)i];
            poor |= f->passes[(size_t)owner * (size_t)g->size + (size_t)i] & f->poor[i];
        }
        if (!some || f->told[owner] == word(f, poor)) continue;
        if (hpc_control_tell(f->context->control, owner, verdicts(f), word(f, poor)) == HPC_OK)
            f->told[owner] = word(f, poor);
        else
            all &= !is_here(f, owner);
    }
    return all;
}

/* Tells all ranks the peer to which this rank's path is poor, as their paths to that peer may share the link. Returns
 * whether all words were sent. */
static int tell_hint(hpc_follower *f) {
    const hpc_group *g = &f->context->group;
    int all = 1;
    uint32_t hint = NO_HINT;
    for (int i = 0; i < f->n; i++)
        if (f->poor[i]) hint = hint_of(f, f->peers[i]);
    for (int r = 0; r < g->size; r++) {
        if (!is_here(f, r) || f->hints[r] == hint) continue;
        if (hpc_control_tell(f->context->control, r, hints(f), hint) == HPC_OK)
            f->hints[r] = hint;
        else
            all = 0;
    }
    return all;
}

static void apply_verdicts(const hpc_follower *f) {
    const hpc_group *g = &f->context->group;
    int pushes = 0, folds = 0;
    for (int i = 0; i < f->n; i++) {
        pushes |= f->poor[i];
        folds |= f->poor[i] & f->own[i];
    }
    for (int r = 0; r < g->size; r++)
        folds |= is_here(f, r) && hpc_control_told(f->context->control, r, verdicts(f)) == word(f, 1);
    set_deltas(f, HPC_DELTA_OF_PUSHES, pushes);
    set_deltas(f, HPC_DELTA_OF_FOLDS, folds);
}

/* ---- the thread ---- */

/* Returns whether the result of a path's probe could change a delta. It could not if everything sent by this path also
 * goes by another path that is known to be poor. */
static int matters(const hpc_follower *f, int at) {
    const size_t size = (size_t)f->context->group.size;
    int any = 0, own = 0, of_passed = 0;
    if (f->poor[at]) return 1;
    for (int i = 0; i < f->n; i++) {
        any |= f->poor[i];
        own |= f->poor[i] & f->own[i];
    }
    for (size_t owner = 0; owner < size; owner++) {
        int passed = 0;
        for (int i = 0; i < f->n; i++) passed |= f->poor[i] & f->passes[owner * size + (size_t)i];
        of_passed |= f->passes[owner * size + (size_t)at] & !passed;
    }
    return !any || (f->own[at] && !own) || of_passed;
}

/* Returns how many other ranks have a poor path to this path's peer. */
static int hinting(const hpc_follower *f, int at) {
    int n = 0;
    for (int r = 0; r < f->context->group.size; r++)
        n += is_here(f, r) && hpc_control_told(f->context->control, r, hints(f)) == hint_of(f, f->peers[at]);
    return n;
}

/* Returns the path to probe next. Paths that matter (matters) take turns. Every second time a path to a peer that
 * another rank has named in a hint is chosen, if there is one. */
static int next_path(hpc_follower *f) {
    const int was_turn = f->last == f->turn;
    for (int k = 1; was_turn && k <= f->n; k++) {
        const int at = (f->last + k) % f->n;
        if (at != f->turn && matters(f, at) && hinting(f, at) > 0) return f->last = at;
    }
    do f->turn = (f->turn + 1) % f->n;
    while (!matters(f, f->turn));
    return f->last = f->turn;
}

/* Begins a path's first probe with the largest token bucket found on other paths, which one train then has to confirm,
 * since most buckets limit the whole host. */
static void guess_bucket(const hpc_follower *f, hpc_bandwidth *result, int peer) {
    if (result->capacity >= f->at_least) return;
    *result = (hpc_bandwidth){.peer = peer, .bucket = result->bucket};
    for (int i = 0; i < f->n; i++)
        if (f->results[i].bucket > result->bucket) result->bucket = f->results[i].bucket;
}

/* Probes a path and returns when the next probe may begin, so that probes take no more than SHARE of the link. Ranks
 * that probe the same link divide this share. If the path is poor, the share is a fraction of the bandwidth that is
 * available. A probe that fails gives no result; if a peer is gone, the trainer's own calls report it. */
static double probe(hpc_follower *f, int at) {
    const double begin = hpc_now();
    hpc_bandwidth_options options;
    hpc_bandwidth *result = &f->results[at];
    guess_bucket(f, result, f->peers[at]);
    hpc_bandwidth_options_init(&options);
    options.at_least = f->at_least, options.timeout = LIMIT, options.stop = &f->stop;
    options.streams = STREAMS, options.packets = PACKETS, options.again = 1;
    options.share = fmin(1, SHARE * fmax(1, result->capacity / f->at_least) / f->crowd);
    int status = hpc_context_bandwidth(f->context, &f->peers[at], 1, &options, result);
    if (status == HPC_ERR_PEER || (status == HPC_OK && !result->answered)) f->poor[at] = 0;
    if (status != HPC_OK || !result->answered)
        return fmax(hpc_now() + PAUSE, begin + (double)result->nbytes / (SHARE * f->at_least));
    if (result->sufficient >= 0) f->poor[at] = !result->sufficient;
    double left = fmax(result->capacity, f->at_least) / f->crowd;
    if (f->poor[at]) {
        left = LEFT * f->at_least;
        if (result->capacity > 0) left = fmin(left, result->capacity);
        left /= 1 + hinting(f, at);
    }
    return begin + (double)result->nbytes / (SHARE * left);
}

/* Probes, tells verdicts and sets deltas until the exchange stops. A rank that sends to no other host only reads other
 * ranks' words. If another rank takes back its hint about the peer that this rank probed last, this rank's path may
 * have enough again, so it is probed soon. */
static void follow_by_probes(hpc_follower *f) {
    double due = hpc_now(), soon = due;
    int before = 0, is_again = 0;
    while (!stops(f)) {
        const int now = f->n > 0 && f->poor[f->last] ? hinting(f, f->last) : 0;
        if (now < before && soon < due) {
            due = soon;
            is_again = 1;
        }
        before = now;
        if (f->n > 0 && hpc_now() >= due) {
            due = probe(f, is_again ? f->last : next_path(f));
            soon = hpc_now() + PAUSE;
            is_again = 0;
            before = f->poor[f->last] ? hinting(f, f->last) : 0;
        }
        tell_owners(f);
        tell_hint(f);
        apply_verdicts(f);
        sleep_for(LOOK);
    }
}

/* Returns, for a throughput, a number from 0 to 1: 0 chooses delta, 1 chooses up, and numbers between interpolate. */
static double part_of(const hpc_follower *f, double throughput) {
    const double part = 2 - throughput / f->at_least;
    return part < 0 ? 0 : part > 1 ? 1 : part;
}

static void follow_smoothly(const hpc_follower *f) {
    double smooth = 0; /* mean throughput in bytes a second; 0 before the first window */
    double busy = 0, bytes = 0, end = hpc_now() + WINDOW, before = hpc_now();
    hpc_carried last = hpc_probes_carried(f->context, -1);
    while (!stops(f)) {
        sleep_for(SLICE);
        const hpc_carried now = hpc_probes_carried(f->context, -1);
        const double at = hpc_now();
        if (last.waiting > 0 && now.waiting > 0) {
            busy += at - before;
            /* The count falls when connections close. */
            bytes += now.sent > last.sent ? (double)(now.sent - last.sent) : 0;
        }
        last = now, before = at;
        if (at < end) continue;
        if (busy >= LEAST_BUSY * WINDOW && bytes > 0) {
            smooth = smooth > 0 ? (1 - PRESENT) * smooth + PRESENT * bytes / busy : bytes / busy;
            set_deltas(f, HPC_DELTA_OF_PUSHES | HPC_DELTA_OF_FOLDS, part_of(f, smooth));
        }
        busy = bytes = 0, end = at + WINDOW;
    }
}

static void *follow(void *arg) {
    hpc_follower *f = arg;
    hpc_mute_errors(1); /* errors of this thread do not overwrite the trainer's */
    if (f->how == HPC_FOLLOW_SMOOTHLY)
        follow_smoothly(f);
    else
        follow_by_probes(f);
    return NULL;
}

/* ---- its life ---- */

static void free_follower(hpc_follower *f) {
    free(f->peers);
    free(f->poor);
    free(f->own);
    free(f->passes);
    free(f->told);
    free(f->hints);
    free(f->results);
    free(f);
}

static int open_follower(hpc_exchange *ex, const hpc_codec_config *config, const char *op) {
    hpc_context *c = ex->schemes[0]->context;
    const size_t size = (size_t)c->group.size;
    sigset_t all, before;
    hpc_follower *f = ex->follower = calloc(1, sizeof *f);
    if (f != NULL) {
        *f = (hpc_follower){.ex = ex, .context = c, .how = config->follow, .at_least = config->at_least};
        f->number = ++c->followers;
        f->peers = calloc(size, sizeof *f->peers);
        f->poor = calloc(size, 1);
        f->own = calloc(size, 1);
        f->passes = calloc(size * size, 1);
        f->told = calloc(size, sizeof *f->told);
        f->hints = calloc(size, sizeof *f->hints);
        f->results = calloc(size, sizeof *f->results);
    }
    if (f == NULL || f->peers == NULL || f->poor == NULL || f->own == NULL || f->passes == NULL || f->told == NULL ||
        f->hints == NULL || f->results == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory to follow the network", op);
    for (int i = 0; i < ex->n_schemes; i++) find_paths(f, ex->schemes[i]);
    f->crowd = crowd_of(f);
    sigfillset(&all); /* signals are left to the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    f->running = pthread_create(&f->thread, NULL, follow, f) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!f->running) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no thread to follow the network", op);
    pthread_setname_np(f->thread, "hpcomm-follow");
    return HPC_OK;
}

int hpc_follows(const hpc_exchange *ex) {
    for (int i = 0; i < ex->n_schemes; i++)
        for (int k = 0; k < ex->schemes[i]->plan->n_keys; k++)
            if (follows(ex->schemes[i], k) != NULL) return 1;
    return 0;
}

int hpc_follow_open(hpc_exchange *ex, const char *op) {
    const hpc_codec_config *first = NULL;
    for (int i = 0; i < ex->n_schemes; i++)
        for (int k = 0; k < ex->schemes[i]->plan->n_keys; k++) {
            const hpc_codec_config *its = follows(ex->schemes[i], k);
            if (its == NULL) continue;
            if (first == NULL) first = its;
            if (its->follow == first->follow && its->at_least == first->at_least) continue;
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: the delta of key %s follows %.9g bytes a second by way %d, and another key's %.9g by "
                            "way %d; an exchange follows one",
                            op, ex->schemes[i]->plan->keys[k].name, its->at_least, its->follow, first->at_least,
                            first->follow);
        }
    return open_follower(ex, first, op);
}

void hpc_follow_stop(hpc_exchange *ex) {
    hpc_follower *f = ex->follower;
    if (f == NULL) return;
    __atomic_store_n(&f->stop, 1, __ATOMIC_RELEASE);
    if (f->running) pthread_join(f->thread, NULL);
    /* The other owners, whose exchanges may go on, are told that no path from this rank is poor. */
    for (int i = 0; f->running && i < f->n; i++) f->poor[i] = 0;
    for (double until = hpc_now() + LAST_WORDS; f->running && !atomic_load(&f->context->group.closed);) {
        const int all = tell_owners(f) & tell_hint(f);
        if (all || hpc_now() >= until) break;
        sleep_for(SLICE);
    }
    free_follower(f);
    ex->follower = NULL;
}
