/* Pieces, and asks for pieces, that are wrong: each is told by one sentence on every rank. A refused exchange has sent
 * nothing, and a wrong piece has changed no parameter. */
#include <math.h>

#include "codec/piece.h"
#include "engine/args.h"
#include "engine/bytes.h"
#include "inside.h"
#include "engine/pieces.h"
#include "engine/worker/send.h"
#include "graph_jobs.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* ---- configurations that are refused ------------------------------------------------------------------------------
 */

static int64_t encode_half(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    (void)state, (void)args, (void)cap;
    memcpy(out, x, (size_t)n * sizeof *x);
    return n * (int64_t)sizeof *x;
}

static int decode_none(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    (void)acc, (void)n, (void)in, (void)nbytes, (void)weight, (void)args;
    return 0;
}

static int fold_none(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    return decode_none(acc, n, in, nbytes, weight, args);
}

static int apply_none(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)param, (void)acc, (void)count, (void)state, (void)args, (void)n;
    return 0;
}

typedef enum place { HUB, GRAPH, HOSTS } place;

/* The arguments that ranks ask for; rank 1 may ask for others. */
typedef struct asked {
    hpc_codec_config codec, other;
    int wire, differs, no_codecs, consistency, staleness, quorum, place, in_place, own_fold;
    const char *rule;
} asked;

static const char *ask_values(asked *a, int n);

/* The sentence that is due for ask number n; NULL: there are no more. */
static const char *ask(asked *a, int n) {
    *a = (asked){.wire = HPC_THRESHOLD, .rule = "sgd"};
    hpc_codec_config_init(&a->codec);
    a->codec.delta = 1;
    switch (n) {
    case 0:
        a->rule = "average";
        return "an average is of models";
    case 1:
        a->own_fold = 1;
        return "the fold of rule none reads arrays, and key k0 goes as threshold";
    case 2:
        a->no_codecs = 1;
        return "key k0 goes as threshold by the plan, but codecs has no configuration of it";
    case 3:
        a->place = GRAPH, a->consistency = HPC_ASYNC;
        return "codec threshold does not go with BARRIER or ASYNC on a graph: a fold may find an update half written";
    case 4:
        a->place = GRAPH, a->consistency = HPC_BARRIER;
        return "a fold may find an update half written";
    case 5:
        a->place = GRAPH, a->consistency = HPC_NOTIFY_ACK, a->quorum = 1;
        return "an update that one neighbour leaves out and another takes cannot go back";
    default:
        return ask_values(a, n - 6);
    }
}

/* Numbers that are out of range, then numbers that are not the same on all ranks. */
static const char *ask_values(asked *a, int n) {
    const int differs_from = 18;
    hpc_codec_config *c = &a->codec;
    if (n == 0) return c->delta = -1, "the codec of key k0, threshold: delta must be a finite number, 0 or more";
    if (n == 1) return c->delta = NAN, "delta must be a finite number";
    if (n == 2) return c->delta = INFINITY, "delta must be a finite number";
    if (n == 3) return c->values = HPC_THRESHOLD, "values must be 0 (float32)";
    if (n == 4) return c->compress = 5, "compress must be 0 (none)";
    if (n == 5) return c->compress = -1, "compress must be 0 (none)";
    if (n == 6) return c->size = 8, "call hpc_codec_config_init first";
    if (n == 7) return c->state_slots = 1, "state_slots must be 0";
    if (n <= 10) {
        const double fractions[] = {0, 1.5, NAN};
        a->wire = HPC_TOPK, c->fraction = fractions[n - 8];
        return "fraction must be above 0 and at most 1";
    }
    if (n <= 12) {
        a->wire = HPC_ONEBIT, c->unit = n == 11 ? 0 : (1u << 30);
        return "unit must be 1 to 2^29";
    }
    if (n == 13) return a->wire = HPC_ONEBIT, c->unit = 48, "which cuts a unit of 48 elements apart";
    if (n <= 17) {
        a->wire = HPC_OWN_CODEC, c->name = "half", c->encode = encode_half, c->decode_add = decode_none;
        if (n == 14) return c->encode = NULL, "encode and decode_add must not be NULL";
        if (n == 15) return c->decode_add = NULL, "encode and decode_add must not be NULL";
        if (n == 16) return c->state_slots = HPC_OWN_CODEC_SLOTS + 1, "state_slots must be 0 to 8";
        return c->args[3] = NAN, "args must be finite";
    }
    n -= differs_from;
    a->differs = 1, a->other = *c;
    hpc_codec_config *o = &a->other;
    if (n == 0) return o->delta = 0.5, "the codec of key k0 has delta 0.5 on rank 1 and 1 on rank 0";
    if (n == 1) return o->decays = 1, "decays 1 on rank 1 and 0 on rank 0";
    if (n == 2) return o->values = HPC_BF16, "values 3 on rank 1 and 0 on rank 0";
    if (n == 3) return o->paper = 1, "paper 1 on rank 1 and 0 on rank 0";
    if (n == 4) return o->no_feedback = 1, "no_feedback 1 on rank 1 and 0 on rank 0";
    if (n == 5) return a->wire = HPC_TOPK, c->fraction = 1, o->fraction = 0.25, "fraction 0.25 on rank 1";
    if (n == 6) return a->wire = HPC_ONEBIT, c->unit = 32, o->unit = 64, "unit 64 on rank 1 and 32 on rank 0";
    if (n > 9) return NULL;
    a->wire = HPC_OWN_CODEC, c->name = o->name = "half", c->encode = o->encode = encode_half;
    c->decode_add = o->decode_add = decode_none;
    if (n == 7) return o->name = "quarter", "the codec of key k0 is quarter on rank 1 and half on rank 0";
    if (n == 8) return o->state_slots = 2, "state_slots 2 on rank 1 and 0 on rank 0";
    return o->args[7] = 3, "an argument 3 on rank 1 and 0 on rank 0";
}

static hpc_plan *plan_of(const asked *a, job *j, graph_job *g, const rank *r) {
    int groups[RANKS_MAX];
    hpc_plan *plan = NULL;
    hpc_hub hub;
    hpc_hosts hosts;
    if (a->place == GRAPH) {
        graph_job_init(g, r);
        graph_job_shape(g, COMPLETE);
        g->graph.keys = j->keys, g->graph.n_keys = j->n_keys, g->graph.weights = g->weights;
        g->graph.wire = a->wire, g->graph.depth = 1;
        CHECK_OK(hpc_plan_make("graph", &g->graph, &plan));
    } else if (a->place == HOSTS) {
        for (int who = 0; who < r->size; who++) groups[who] = who / 2;
        hpc_plan_args_init("hosts", &hosts, sizeof hosts);
        hosts.keys = j->keys, hosts.n_keys = j->n_keys, hosts.workers = j->workers, hosts.n_workers = j->n_workers;
        hosts.groups = groups, hosts.n_levels = 1, hosts.wire = a->wire, hosts.sum = 1, hosts.apart = a->quorum > 0;
        CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
    } else {
        hpc_plan_args_init("hub", &hub, sizeof hub);
        hub.keys = j->keys, hub.n_keys = j->n_keys, hub.workers = j->workers, hub.n_workers = j->n_workers;
        hub.servers = j->servers, hub.n_servers = j->n_servers, hub.wire = a->wire, hub.sum = 1, hub.chunk = 1024;
        CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    }
    return plan;
}

static int create(const rank *r, const asked *a, job *j, const hpc_plan *plan, const hpc_graph *graph,
                  hpc_exchange **e) {
    const hpc_rule own_fold = {.name = "none", .apply = apply_none, .fold = fold_none};
    const hpc_codec_config *list[JOB_KEYS];
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    for (int key = 0; key < j->n_keys; key++) list[key] = a->differs && r->rank == 1 ? &a->other : &a->codec;
    c.codecs = a->no_codecs ? NULL : list;
    c.consistency = a->consistency, c.staleness = a->staleness, c.quorum = a->quorum, c.graph = graph;
    if (a->own_fold) c.rule = &own_fold;
    j->rule = a->rule, j->plan = plan;
    return job_create_with(r, j, &c, -1, e);
}

static void trains(rank *r, hpc_exchange *e, const job *j) {
    float *zero = calloc(5000, sizeof *zero);
    for (int key = 0; key < j->n_keys; key++) CHECK_OK(hpc_exchange_push_pull(e, key, zero, -1));
    free(zero);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    (void)r;
}

/* Every rank reads the same sentence, and the next exchange is as if nothing had been. */
static void refusals(rank *r) {
    int n = 0;
    asked a;
    for (const char *text; (text = ask(&a, n)) != NULL; n++) {
        job j;
        static _Thread_local graph_job g;
        hpc_exchange *e = NULL;
        job_init(&j, r);
        hpc_plan *plan = plan_of(&a, &j, &g, r);
        const int status = create(r, &a, &j, plan, a.place == GRAPH ? &g.graph : NULL, &e);
        if (status == HPC_OK || !strstr(hpc_last_error()->message, text))
            fprintf(stderr, "ask %d: due is \"%s\"\n", n, text);
        CHECK(status != HPC_OK && e == NULL);
        CHECK_MESSAGE(text);
        hpc_plan_free(plan);
    }
    CHECK_EQ(n, 6 + 18 + 10);
    job j;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    ask(&a, 0);
    a.rule = "sgd";
    hpc_plan *plan = plan_of(&a, &j, NULL, r);
    CHECK_OK(create(r, &a, &j, plan, NULL, &e));
    hpc_plan_free(plan);
    trains(r, e, &j);
}

/* Two ranks apply each update to a copy of their own. Rows that have the same elements have one encoding; rows that
 * overlap are refused. */
static void overlap(rank *r) {
    for (int cut = 0; cut < 2; cut++) {
        asked a;
        job j;
        hpc_edge pushes[2] = {{0, -1, 1}, {1, -1, 1}}, to[2] = {{0, -1, 1}, {1, -1, 1}};
        hpc_row rows[4];
        int n = 0;
        hpc_exchange *e = NULL;
        job_init(&j, r);
        j.n_keys = 1;
        ask(&a, 0);
        a.rule = "sgd";
        for (uint64_t from = 0; from < 1001; from += 512)
            for (int owner = 0; owner < 2; owner++) {
                if (!cut && owner == 0 && from > 0) continue;
                rows[n++] = (hpc_row){.owner = owner,
                                      .action = HPC_APPLY,
                                      .offset = from,
                                      .depth = 1,
                                      .count = !cut && owner == 0 ? 1001
                                               : from > 0         ? 489
                                                                  : 512,
                                      .codec_in = HPC_THRESHOLD,
                                      .codec_out = HPC_F32,
                                      .n_in = 2,
                                      .in = pushes,
                                      .quorum = 2,
                                      .n_out = 1,
                                      .out = &to[owner]};
            }
        const hpc_plan plan = {.n_keys = 1, .keys = j.keys, .n_rows = n, .rows = rows};
        CHECK_OK(hpc_plan_check(&plan, 2));
        const int status = create(r, &a, &j, &plan, NULL, &e);
        if (cut) {
            CHECK_OK(status);
            trains(r, e, &j);
            continue;
        }
        CHECK(status != HPC_OK && e == NULL);
        CHECK_MESSAGE("rows of key k0 take elements 0 to 511 and 0 to 1000, which overlap");
    }
}

/* A quorum of hosts, by a plan in which another rank of the host relays parameters than encodes updates. */
static void deaf(rank *r) {
    asked a;
    job j;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    ask(&a, 0);
    a.rule = "sgd", a.place = HOSTS, a.quorum = 1;
    hpc_plan *plan = plan_of(&a, &j, NULL, r);
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_row *row = (hpc_row *)(uintptr_t)&plan->rows[i];
        if (row->action == HPC_RELAY) row->owner ^= 1;
        for (int o = 0; o < row->n_out && row->action == HPC_APPLY; o++)
            if (row->out[o].row >= 0) ((hpc_edge *)(uintptr_t)&row->out[o])->rank ^= 1;
    }
    CHECK_OK(hpc_plan_check(plan, r->size));
    CHECK_STATUS(create(r, &a, &j, plan, NULL, &e), HPC_ERR_UNSUPPORTED);
    CHECK_MESSAGE("codec threshold does not go with a quorum of groups: by the plan a rank that sends a group's update "
                  "does not get the group's parameters");
    hpc_plan_free(plan);
}

/* Parameters are no update: planners and exchanges refuse them as pieces. */
static void parameters(rank *r) {
    job j;
    hpc_hub hub;
    hpc_plan *plan = NULL;
    job_init(&j, r);
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j.keys, hub.n_keys = j.n_keys, hub.workers = j.workers, hub.n_workers = j.n_workers;
    hub.servers = j.servers, hub.n_servers = j.n_servers, hub.wire = HPC_THRESHOLD, hub.sum = 1;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    for (int i = 0; i < plan->n_rows; i++) ((hpc_row *)(uintptr_t)plan->rows)[i].codec_out = HPC_THRESHOLD;
    CHECK(hpc_plan_check(plan, r->size) != HPC_OK);
    CHECK_MESSAGE("row 0 has codec_out 8; must be 0 (float32)");
    hpc_plan_free(plan);
    hub.codec_out = HPC_THRESHOLD;
    CHECK(hpc_plan_make("hub", &hub, &plan) != HPC_OK);
    CHECK_MESSAGE("codec_out is 8");
}

/* ---- wrong pieces ------------------------------------------------------------------------------------------------
 */

enum { LIAR, VICTIM, WITNESS, KEY = 0 };

typedef enum lie {
    BEYOND,   /* a length that no slot has */
    TOO_LONG, /* a length that the form does not have */
    HEADLESS, /* a length without room for a head */
    FORM,
    FORMAT,
    ELEMENTS, /* of another row */
    ENTRIES,  /* more values than are kept */
    INDEX,    /* a gap that leads out of the row */
    PACKED,   /* where nothing is packed */
    REFUSED,  /* a codec of one's own says no */
    EVENT,    /* over a wire, the event brings less than the piece says */
    NOTHING,  /* over a wire, the event brings nothing; else it is of a row that is not told so */
    LIES
} lie;

static int decode_even(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args) {
    const unsigned char *from = in;
    if (nbytes != n * (int64_t)sizeof(float) || from[0] == 99) return 1;
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, from + 4 * i, sizeof value);
        acc[i] += (float)weight * value;
    }
    (void)args;
    return 0;
}

static void corrupt(char *piece, lie what) {
    hpc_piece_head head;
    memcpy(&head, piece, sizeof head);
    if (what == BEYOND) head.nbytes = 1u << 20;
    if (what == TOO_LONG) head.nbytes += 4;
    if (what == HEADLESS) head.nbytes = 12;
    if (what == FORM) head.form = HPC_PIECE_FORMS;
    if (what == FORMAT) head.values = HPC_ONEBIT;
    if (what == ELEMENTS) head.n++;
    if (what == ENTRIES) head.entries--, head.nbytes -= 4;
    if (what == PACKED) head.packed = 77;
    if (what == INDEX) {
        CHECK_EQ(head.form, HPC_PIECE_GAPS8);
        piece[head.nbytes - 1] = (char)0xfe;
    }
    if (what == REFUSED) piece[sizeof head] = 99;
    memcpy(piece, &head, sizeof head);
}

/* Does as start, but puts the liar's piece in place between encoding and sending. */
static void push_lie(hpc_exchange *e, const float *src, lie what) {
    const int in_place = hpc_reads_in_place(inside(e), VICTIM, LIAR);
    char *slot = hpc_push_slot(inside(e), KEY);
    CHECK_EQ(hpc_pieces_encode(inside(e), KEY, src, slot), 0);
    for (int i = 0; i < inside(e)->plan->n_rows; i++) {
        const hpc_row *row = &inside(e)->plan->rows[i];
        char *piece = slot + hpc_row_from(inside(e), row);
        if (row->key != KEY) continue;
        corrupt(piece, what);
        size_t nbytes = in_place ? 0 : hpc_piece_bytes(piece) < 4096 ? hpc_piece_bytes(piece) : 64;
        if (what == EVENT) nbytes = in_place ? 8 : nbytes - 4;
        if (what == NOTHING) nbytes = in_place ? 16 : 0;
        const size_t at =
            in_place ? hpc_args_at(inside(e), &inside(e)->layout.shares[inside(e)->layout.share_of[i]], LIAR, 0)
                     : inside(e)->push_slot[i];
        const uint32_t imm =
            in_place ? hpc_imm(HPC_OP_SHARE, 0, inside(e)->layout.share_of[i]) : hpc_imm(HPC_OP_ROW, 0, i);
        CHECK_OK(hpc_put_notify(inside(e)->in_lanes[row->core], inside(e)->window, VICTIM, piece, nbytes, at, imm, -1));
        const int flushed =
            hpc_flush(inside(e)->in_lanes[row->core], inside(e)->window, VICTIM, -1); /* it may have ended already */
        CHECK(flushed == HPC_OK || flushed == HPC_ERR_PEER);
    }
}

static void wait_for_the_end(rank *r, hpc_exchange *e, const float *before, uint64_t count, const char *text) {
    char key[16];
    int status = HPC_OK;
    const float *src = before;
    uint64_t ticket = 0;
    snprintf(key, sizeof key, "key %s", inside(e)->plan->keys[KEY].name);
    if (r->rank == LIAR)
        status = hpc_barrier(r->context, -1);
    else
        status = hpc_exchange_start(e, KEY, BOTH, src, -1, &ticket);
    if (status == HPC_OK) status = hpc_exchange_wait(e, KEY, ticket, -1);
    CHECK_STATUS(status, r->rank == VICTIM ? HPC_ERR_TRANSPORT : HPC_ERR_PEER);
    CHECK(r->rank == VICTIM || ranks_error_names(VICTIM));
    CHECK_MESSAGE("rank 0");
    CHECK_MESSAGE(key);
    CHECK_MESSAGE(text);
    CHECK(strstr(hpc_last_error()->message, "step") == NULL || strstr(hpc_last_error()->message, "step 1:") != NULL);
    CHECK(same_floats(hpc_exchange_params(e, KEY), before, count, "parameters", r->rank, KEY));
}

/* arg: what is wrong, and 32: the piece is folded by threads. */
static void lies(rank *r) {
    static const char *const texts[LIES] = {
        [BEYOND] = "",
        [TOO_LONG] = "it keeps another number of elements",
        [HEADLESS] = "",
        [FORM] = "its head names a form",
        [FORMAT] = "its head names a form",
        [ELEMENTS] = "its head names a form",
        [ENTRIES] = "it keeps another number of elements",
        [INDEX] = "it has an element behind the last one",
        [PACKED] = "",
        [REFUSED] = "its decoder refuses it",
        [EVENT] = "",
        [NOTHING] = "",
    };
    const lie what = (lie)(r->arg % 32);
    job j;
    asked a;
    hpc_hub hub;
    hpc_plan *plan = NULL;
    hpc_exchange *e = NULL;
    hpc_exchange_config c;
    const hpc_codec_config *list[1] = {&a.codec};
    float src[1001] = {0}, before[1001];
    job_init(&j, r);
    j.n_keys = 1;
    ask(&a, 0);
    if (what == REFUSED)
        a.wire = HPC_OWN_CODEC, a.codec.name = "even", a.codec.encode = encode_half, a.codec.decode_add = decode_even;
    const int server = VICTIM;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j.keys, hub.n_keys = 1, hub.workers = j.workers, hub.n_workers = j.n_workers, hub.servers = &server;
    hub.n_servers = 1, hub.wire = a.wire, hub.sum = 1, hub.chunk = 8192;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    j.plan = plan;
    hpc_exchange_config_init(&c);
    c.codecs = list;
    c.progress = r->arg >= 32 ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    CHECK_OK(job_create_with(r, &j, &c, -1, &e));
    rank_meet(r); /* else a lie may come to a rank that still creates its exchange, which fails then */
    for (int i = 0; i < 1001; i += 100) src[i] = 9;
    src[990] = 9; /* the last gap is short */
    for (uint64_t i = 0; i < 1001; i++) before[i] = job_initial(&j, KEY, i);
    if (r->rank == LIAR) push_lie(e, src, what), rank_set(r, 0, 1);
    if (r->rank != LIAR) rank_await(r, 0, 1);
    wait_for_the_end(r, e, before, 1001, texts[what]);
    rank_set(r, 1 + r->rank, 1);
    for (int who = 0; who < r->size; who++) rank_await(r, 1 + who, 1);
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

/* ---- codecs and ranks that fail ------------------------------------------------------------------------------------
 */

enum { FAILS = 1, LAST_GOOD = 2 };

static _Atomic int which_fails; /* processes have one each; threads share it, and all but the first are told of it */

static int64_t encode_on_one(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap) {
    if (args[0] > LAST_GOOD && atomic_load(&which_fails)) return args[2] > 0 ? cap + 1 : -1;
    return encode_half(x, n, state, args, out, cap);
}

/* arg: 1: hosts of two, whose leaders encode; 2: the encoder writes more than it may. An encoder that fails ends the
 * exchange: every rank reads its name and its key. */
static void encoder_fails(rank *r) {
    job j;
    asked a;
    int status = HPC_OK;
    hpc_exchange *e = NULL;
    static _Thread_local graph_job g;
    job_init(&j, r);
    ask(&a, 0);
    a.rule = "sgd", a.wire = HPC_OWN_CODEC, a.place = r->arg % 2 ? HOSTS : HUB;
    a.codec.name = "breaks", a.codec.encode = encode_on_one, a.codec.decode_add = decode_even;
    a.codec.args[2] = r->arg / 2;
    hpc_plan *plan = plan_of(&a, &j, &g, r);
    CHECK_OK(create(r, &a, &j, plan, NULL, &e));
    if (r->rank == FAILS) atomic_store(&which_fails, 1);
    float *src = calloc(5000, sizeof *src);
    for (int step = 0; step <= LAST_GOOD; step++) {
        if (step == LAST_GOOD && status == HPC_OK) status = hpc_barrier(r->context, -1);
        for (int key = 0; key < j.n_keys && status == HPC_OK; key++) status = hpc_exchange_push_pull(e, key, src, -1);
        if (step < LAST_GOOD - 1) CHECK_OK(status); /* of the step after it one that is slower may hear too early */
    }
    CHECK(status == HPC_ERR_INVALID || status == HPC_ERR_PEER);
    CHECK_MESSAGE("codec breaks cannot encode key k");
    CHECK_MESSAGE("its encoder failed");
    rank_set(r, r->rank, 1);
    for (int who = 0; who < r->size; who++) rank_await(r, who, 1);
    free(src);
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

/* A rank dies when its piece has been pushed and the fold waits for others: they are told, and what they hold back can
 * be saved for the exchange of those who are left. */
static void dies(rank *r) {
    enum { DIES = 1 };
    job j;
    asked a;
    hpc_exchange *e = NULL;
    uint64_t ticket, made = 0;
    float *src = calloc(5000, sizeof *src), *values = calloc(10000, sizeof *values);
    job_init(&j, r);
    ask(&a, 0);
    a.rule = "sgd", a.codec.delta = 100;
    hpc_plan *plan = plan_of(&a, &j, NULL, r);
    CHECK_OK(create(r, &a, &j, plan, NULL, &e));
    for (int i = 0; i < 5000; i++) src[i] = (float)(i % 7);
    CHECK_OK(hpc_exchange_push_pull(e, KEY, src, -1));
    rank_meet(r); /* a barrier of the context would fail on a rank that is still in it when DIES is gone */
    if (r->rank == DIES) {
        CHECK_OK(hpc_exchange_start(e, KEY, BOTH, src, -1, &ticket));
        rank_set(r, 0, 1);
        rank_die(r);
    } else {
        rank_await(r, 0, 1);
        int status = r->rank == 0 ? HPC_OK : hpc_exchange_start(e, KEY, BOTH, src, -1, &ticket);
        if (r->rank == 0) status = hpc_barrier(r->context, -1);
        if (status == HPC_OK) status = hpc_exchange_wait(e, KEY, ticket, -1);
        CHECK_STATUS(status, HPC_ERR_PEER);
        CHECK(ranks_error_names(DIES));
        CHECK_OK(hpc_exchange_get_encoder(e, KEY, -1, &made, values));
        CHECK(made >= 1);
        for (uint64_t i = 0; i < j.keys[KEY].count; i++) CHECK(values[i] == (float)made * (float)(i % 7));
        rank_set(r, 1 + r->rank, 1);
        for (int who = 0; who < r->size; who++)
            if (who != DIES) rank_await(r, 1 + who, 1);
    }
    free(src), free(values);
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

/* Rows of a key that send pieces of two codecs: one of them would have no configuration. */
static void two_codecs(rank *r) {
    asked a;
    job j;
    hpc_plan *plan = NULL;
    hpc_exchange *e = NULL;
    hpc_hub hub;
    job_init(&j, r);
    ask(&a, 0);
    a.rule = "sgd";
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = j.keys, hub.n_keys = j.n_keys, hub.workers = j.workers, hub.n_workers = j.n_workers;
    hub.servers = j.servers, hub.n_servers = j.n_servers, hub.wire = a.wire, hub.sum = 1, hub.chunk = 1024;
    hub.apply_at = HPC_AT_RECEIVERS;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    for (int turn = 0; turn < 2; turn++) {
        const int codec = turn == 0 ? HPC_TOPK : HPC_OWN_CODEC;
        for (int i = plan->n_rows - 1, found = 0; i >= 0 && !found; i--)
            if (plan->rows[i].action == HPC_FORWARD) ((hpc_row *)(uintptr_t)plan->rows)[i].codec_out = codec, found = 1;
        CHECK_OK(hpc_plan_check(plan, r->size));
        CHECK_STATUS(create(r, &a, &j, plan, NULL, &e), HPC_ERR_CONFIG);
        CHECK_MESSAGE(turn == 0 ? "sends pieces of topk, and pieces of key k2 come or go as threshold"
                                : "sends pieces of own, and pieces of key k2 come or go as threshold");
    }
    hpc_plan_free(plan);
}

int main(int argc, char **argv) {
    static const char *const names[LIES] = {"beyond",  "too_long", "headless", "form",    "format", "elements",
                                            "entries", "index",    "packed",   "refused", "event",  "nothing"};
    static char threads[LIES][32];
    ranks_case cases[2 * LIES + 16] = {{0}};
    int n = 0;
    cases[n++] = (ranks_case){.name = "refusals", .size = 4, .run = refusals, .where = RANKS_UNSEEDED};
    cases[n++] = (ranks_case){.name = "overlap", .size = 2, .run = overlap};
    cases[n++] = (ranks_case){.name = "deaf", .size = 4, .run = deaf, .where = RANKS_UNSEEDED};
    cases[n++] = (ranks_case){.name = "two_codecs", .size = 3, .run = two_codecs, .where = RANKS_UNSEEDED};
    cases[n++] = (ranks_case){.name = "parameters", .size = 2, .run = parameters, .where = RANKS_UNSEEDED};
    for (int i = 0; i < LIES; i++) {
        snprintf(threads[i], sizeof threads[i], "%s_threads", names[i]);
        cases[n++] = (ranks_case){.name = names[i], .size = 3, .run = lies, .arg = i, .apart = true};
        cases[n++] = (ranks_case){.name = threads[i], .size = 3, .run = lies, .arg = i + 32, .apart = true};
    }
    cases[n++] = (ranks_case){.name = "encoder_fails", .size = 3, .run = encoder_fails, .apart = true};
    cases[n++] = (ranks_case){.name = "leader_fails", .size = 4, .run = encoder_fails, .arg = 1, .apart = true};
    cases[n++] = (ranks_case){.name = "encoder_writes_more", .size = 3, .run = encoder_fails, .arg = 2, .apart = true};
    cases[n++] = (ranks_case){.name = "dies", .size = 3, .run = dies, .victims = 1 << 1, .where = RANKS_PROCESSES};
    return ranks_main(argc, argv, cases);
}
