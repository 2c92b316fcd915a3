/* Exchanges on graphs that end badly: a rank that closes early, dies or stands still holds up its neighbours alone, who
 * are told whom they wait for; and what cannot be is refused, with one sentence on every rank. */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "base/host.h"
#include "engine/owner/signals.h"
#include "engine/bytes.h"
#include "inside.h"
#include "graph_jobs.h"

enum { VICTIM = 1, LONG = 700 };

static int push_pull(const graph_job *g, hpc_exchange *e, int key, double timeout) {
    float *src = calloc(g->j.keys[key].count, sizeof *src);
    int status = hpc_exchange_push_pull(e, key, src, timeout);
    free(src);
    return status;
}

static void check_peer(int status, int who) {
    CHECK_STATUS(status, HPC_ERR_PEER);
    if (!ranks_error_names(who)) fprintf(stderr, "does not name %d: %s\n", who, hpc_last_error()->message);
    CHECK(ranks_error_names(who));
}

/* ---- who closes early ------------------------------------------------------------------------------------------- */

/* arg: consistency + 16 * depth + 256 when it frees the exchange too. In a chain the victim stops after two steps. Who
 * is fed by it gets to know, and so on down the chain; who feeds it goes on, for longer than any ring is. */
static void closes_early(rank *r) {
    graph_job g;
    int consistency = r->arg % 16, step = 0, status = HPC_OK;
    graph_job_init(&g, r);
    graph_job_shape(&g, CHAIN);
    g.consistency = consistency;
    g.j.depth = r->arg / 16 % 16;
    g.staleness = consistency == HPC_SSP ? 1 : 0;
    hpc_exchange *e = graph_open(r, &g);
    int steps = r->rank == VICTIM ? 2 : LONG;
    for (; step < steps && status == HPC_OK; step++)
        for (int key = 0; key < g.j.n_keys && status == HPC_OK; key++) status = push_pull(&g, e, key, -1);
    if (r->rank > VICTIM && consistency != HPC_ASYNC) {
        check_peer(status, VICTIM); /* each closes in its turn, and tells because of whom */
        CHECK_EQ(hpc_last_error()->n_ranks, 1);
        CHECK_EQ(hpc_last_error()->n_left, r->rank > VICTIM + 1);
        CHECK_MESSAGE("has closed the exchange after");
        CHECK(step < 2 + 2 * r->size);
    } else {
        CHECK_OK(status);
        CHECK_EQ(step, steps);
    }
    status = hpc_exchange_close(e, -1);
    CHECK(status == HPC_OK || (status == HPC_ERR_PEER && r->rank > VICTIM));
    if (r->rank == VICTIM && r->arg >= 256) hpc_exchange_free(e);
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank != VICTIM || r->arg < 256) hpc_exchange_free(e);
}

/* ---- who stands still ------------------------------------------------------------------------------------------- */

/* The victim is stopped before the first step, so nobody has put to it yet. Under BSP all ranks wait for it, and name
 * it; answers to it hold nobody up. */
static void stopped_at_once(rank *r) {
    enum { PID = 8, ENDED };
    graph_job g;
    graph_job_init(&g, r);
    graph_job_shape(&g, RING);
    g.consistency = HPC_BSP;
    g.j.progress = HPC_PROGRESS_INLINE;
    hpc_exchange *e = graph_open(r, &g);
    rank_meet(r);
    if (r->rank == VICTIM) {
        rank_set(r, PID, (uint64_t)getpid());
        raise(SIGSTOP);
    } else {
        const pid_t victim = (pid_t)rank_await(r, PID, 1);
        while (!hpc_host_is_stopped("", victim)) sched_yield();
        const double start = ranks_now();
        CHECK_STATUS(push_pull(&g, e, 0, ranks_patience(1)), HPC_ERR_TIMEOUT);
        CHECK_EQ(hpc_last_error()->n_culprits, 1);
        CHECK_EQ(hpc_last_error()->culprits[0].rank, VICTIM);
        CHECK_EQ(hpc_last_error()->culprits[0].state, HPC_CULPRIT_STOPPED);
        CHECK(ranks_now() - start < ranks_patience(3));
        atomic_fetch_add(&r->board[ENDED], 1);
        rank_await(r, ENDED, (uint64_t)r->size - 1);
        if (r->rank == 0) CHECK_EQ(kill(victim, SIGCONT), 0);
    }
    hpc_context_abort(r->context, "the test says so");
    hpc_exchange_free(e);
}

/* A rank says that it has pushed more often than it has slots, and so would overwrite what is not folded yet. arg:
 * shape.
 */
static void pushes_too_often(rank *r) {
    graph_job g;
    graph_job_init(&g, r);
    graph_job_shape(&g, (shape)r->arg);
    g.j.depth = r->arg == DEGREES ? 3 : 1;
    hpc_exchange *e = graph_open(r, &g);
    if (r->rank == VICTIM) {
        int index = 0, in_place = hpc_reads_in_place(inside(e), 0, VICTIM);
        while (inside(e)->plan->rows[index].owner != 0) index++;
        const hpc_row *row = &inside(e)->plan->rows[index];
        size_t nbytes = in_place ? 0 : hpc_input_bytes(inside(e), row);
        uint32_t imm =
            in_place ? hpc_imm(HPC_OP_SHARE, 0, inside(e)->layout.share_of[index]) : hpc_imm(HPC_OP_ROW, 0, index);
        for (int i = 0; i <= g.j.depth; i++)
            CHECK_OK(hpc_put_notify(inside(e)->in_lanes[row->core], inside(e)->window, 0,
                                    hpc_window_data(inside(e)->window), nbytes,
                                    in_place ? 0 : inside(e)->push_slot[index], imm, -1));
        check_peer(hpc_barrier(r->context, -1), 0);
    } else {
        int status = HPC_OK;
        while (status == HPC_OK) status = hpc_exchange_progress(e);
        CHECK_STATUS(status, HPC_ERR_TRANSPORT);
        CHECK_MESSAGE("rank 0: rank 1 pushed key");
    }
    hpc_exchange_free(e);
}

/* With a quorum: a rank says that it has answered what it was not sent, used more than that, or sent what it cannot
 * have sent. arg: which of the three. */
static void counts_ahead(rank *r) {
    enum { ANSWERS, USES, SENDS };
    static const char *const texts[] = {"has answered 2 updates of key", "and used 2; 1 were sent",
                                        "before its last one was answered"};
    graph_job g;
    uint64_t ticket;
    int s = 0, status = HPC_OK;
    graph_job_init(&g, r);
    graph_job_shape(&g, COMPLETE);
    g.quorum = 1, g.j.depth = 2;
    hpc_exchange *e = graph_open(r, &g);
    rank_meet(r);
    while (inside(e)->layout.shares[s].owner != VICTIM) s++;
    int key = inside(e)->layout.shares[s].key;
    if (r->rank == VICTIM && r->arg == SENDS) {
        static const uint64_t version = 1; /* a put may read it later */
        int mine = 0;
        while (inside(e)->layout.shares[mine].owner != 0) mine++;
        const hpc_share *share = &inside(e)->layout.shares[mine];
        size_t at = inside(e)->layout.places[0].own + (size_t)inside(e)->layout.n_shares * 2 * sizeof(uint64_t) +
                    ((size_t)share->at * (size_t)r->size + VICTIM) * (size_t)g.j.depth * sizeof version;
        for (int i = 0; i < 2; i++)
            CHECK_OK(hpc_put_notify(inside(e)->in_lanes[share->core], inside(e)->window, 0, &version, sizeof version,
                                    at + (size_t)i * sizeof version, /* not over what is read */
                                    hpc_imm(HPC_OP_SHARE, 0, mine), -1));
    } else if (r->rank == VICTIM) {
        const uint64_t told[] = {1, r->arg == USES ? 2 : 1}; /* folded, used */
        rank_await(r, 0, 1);
        CHECK_OK(hpc_put_signal(inside(e)->in_lanes[0], inside(e)->window, 0, told, sizeof told,
                                inside(e)->layout.places[0].own + (size_t)s * sizeof told,
                                hpc_signal_applied(inside(e), s), r->arg == USES ? 1 : 2));
        CHECK_OK(hpc_flush(inside(e)->in_lanes[0], inside(e)->window, 0, -1));
        rank_set(r, 1, 1);
    }
    if (r->rank == 0) {
        if (r->arg == SENDS) {
            while (status == HPC_OK) status = hpc_exchange_progress(e);
        } else {
            CHECK_OK(hpc_exchange_start(e, key, HPC_PUSH, hpc_exchange_params(e, key), -1, &ticket));
            rank_set(r, 0, 1);
            rank_await(r, 1, 1);
            status = hpc_exchange_start(e, key, HPC_PUSH, hpc_exchange_params(e, key), -1, &ticket);
        }
        CHECK_STATUS(status, HPC_ERR_TRANSPORT);
        CHECK_MESSAGE("rank 0: rank 1 ");
        CHECK_MESSAGE(texts[r->arg]);
    } else {
        check_peer(hpc_barrier(r->context, -1), 0);
    }
    hpc_exchange_free(e);
}

/* More events than the victim's ring holds are on their way to it when it frees its exchange. */
static void frees_with_full_ring(rank *r) {
    graph_job g;
    uint64_t random = 1;
    graph_job_init(&g, r);
    graph_job_shape(&g, CHAIN);
    g.j.chunk = 64;
    g.j.keys[2].count = 40001;
    hpc_exchange *e = graph_open(r, &g);
    if (r->rank == 0) {
        rank_set(r, 0, 1);
        CHECK_OK(push_pull(&g, e, 2, -1));
        CHECK_OK(push_pull(&g, e, 2, -1));
        CHECK_OK(hpc_exchange_close(e, -1));
    } else {
        rank_await(r, 0, 1);
        for (int i = 0; i < 200; i++) graph_dawdle(&random);
        CHECK_OK(hpc_exchange_close(e, -1));
        hpc_exchange_free(e);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) hpc_exchange_free(e);
}

/* Pushes that nobody has waited for: the next one waits for a slot, and is told all the same. arg: depth. */
static void closes_before_slot(rank *r) {
    graph_job g;
    graph_job_init(&g, r);
    graph_job_shape(&g, CHAIN);
    g.j.depth = r->arg;
    hpc_exchange *e = graph_open(r, &g);
    if (r->rank == VICTIM) CHECK_OK(hpc_exchange_close(e, -1));
    if (r->rank == VICTIM + 1) {
        int status = HPC_OK, pushes = 0;
        uint64_t ticket;
        for (; pushes < 40 && status == HPC_OK; pushes++)
            status = hpc_exchange_start(e, 0, HPC_PUSH, hpc_exchange_params(e, 0), -1, &ticket);
        check_peer(status, VICTIM);
        CHECK_EQ(pushes, r->arg + 1);
        check_peer(hpc_exchange_close(e, -1), VICTIM);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* Two phases: rank 0 feeds rank 1 in the first alone. What it closed without is waited for by all later steps too; and
 * it does not close before rank 1 has read the update of the first. arg: its second try to close has nothing to wait
 * for, and what the first one found out about rank 1 is no cause any more. */
static void closes_between_phases(rank *r) {
    graph_job g;
    uint64_t ticket = 0;
    graph_job_init(&g, r);
    g.graph.n_phases = 2;
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < r->size; i++) graph_job_edge(&g, p, i, i, 0.5);
    graph_job_edge(&g, 0, 1, 0, 0.5);
    g.j.depth = 4;
    hpc_exchange *e = graph_open(r, &g);
    if (r->rank == 0) {
        for (int step = 0; step < 2; step++) CHECK_OK(push_pull(&g, e, 0, -1));
        CHECK_STATUS(hpc_exchange_close(e, 0.1), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1));
        rank_set(r, 0, 1);
        if (r->arg) rank_await(r, 1, 1);
        CHECK_OK(hpc_exchange_close(e, -1));
    }
    if (r->rank == 1) {
        rank_await(r, 0, 1);
        for (int step = 0; step < 2; step++) CHECK_OK(push_pull(&g, e, 0, -1));
        rank_set(r, 1, 1);
        for (int step = 2; step < 4; step++)
            CHECK_OK(hpc_exchange_start(e, 0, HPC_PUSH, hpc_exchange_params(e, 0), -1, &ticket));
        check_peer(hpc_exchange_wait(e, 0, ticket, -1), 0);
        check_peer(hpc_exchange_close(e, -1), 0);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* Two phases: rank 0 feeds rank 1 in the first alone. Rank 0 loads a state of the other phase, and still does not close
 * before rank 1 has read the update of the first. */
static void closes_after_load(rank *r) {
    graph_job g;
    graph_job_init(&g, r);
    g.graph.n_phases = 2;
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < r->size; i++) graph_job_edge(&g, p, i, i, 0.5);
    graph_job_edge(&g, 0, 1, 0, 0.5);
    g.j.depth = 4;
    hpc_exchange *e = graph_open(r, &g);
    const hpc_plan *plan = inside(e)->plan;
    if (r->rank == 0) {
        CHECK_OK(push_pull(&g, e, 0, -1));
        for (int i = 0; i < plan->n_rows; i++)
            if (plan->rows[i].owner == 0 && plan->rows[i].key == 0) CHECK_OK(hpc_exchange_set_row(e, i, 2, NULL, NULL));
        CHECK_STATUS(hpc_exchange_close(e, 0.1), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1));
        rank_set(r, 0, 1);
    }
    if (r->rank == 1) {
        rank_await(r, 0, 1);
        CHECK_OK(push_pull(&g, e, 0, -1));
    }
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* ---- what is refused --------------------------------------------------------------------------------------------- */

static void refused(rank *r, graph_job *g, int status, const char *text) {
    hpc_exchange *e = NULL;
    CHECK_STATUS(graph_create(r, g, -1, &e), status);
    CHECK_MESSAGE(text);
    CHECK(!strchr(hpc_last_error()->message, '\n'));
    CHECK(!e);
}

static void good(graph_job *g, const rank *r) {
    graph_job_init(g, r);
    graph_job_shape(g, COMPLETE);
}

static void refusals(rank *r) {
    graph_job g;
    hpc_plan *other = NULL;
    bool last = r->rank == r->size - 1;
    good(&g, r);
    if (last) g.weights[1] = 2;
    refused(r, &g, HPC_ERR_CONFIG, "weights");
    good(&g, r);
    if (last) graph_job_shape(&g, ONE_PEER);
    refused(r, &g, HPC_ERR_CONFIG, "phases");
    good(&g, r);
    graph_job_shape(&g, ONE_PEER);
    if (last) graph_job_edge(&g, 1, 0, 1, 4); /* not of the first phase */
    refused(r, &g, HPC_ERR_CONFIG, "weights");
    good(&g, r);
    g.j.cores = last ? 2 : 1;
    refused(r, &g, HPC_ERR_CONFIG, "cores");
    for (int i = 0; i < 3; i++) { /* by one rank, and told to all */
        static const double wrong[] = {NAN, INFINITY, 0};
        good(&g, r);
        if (last) g.weights[i == 2 ? 0 : 1] = wrong[i];
        if (last && g.j.plan == NULL) { /* the plan refuses it too */
            hpc_plan *none = NULL;
            hpc_graph bad = g.graph;
            bad.keys = g.j.keys, bad.n_keys = g.j.n_keys, bad.weights = g.weights;
            CHECK_STATUS(hpc_plan_make("graph", &bad, &none), HPC_ERR_INVALID);
            CHECK_MESSAGE("weights must be finite, and that of a rank's own update must not be 0");
        }
    }
    for (int i = 0; i < 2; i++) { /* a plan of another graph: other edges, other weights */
        good(&g, r);
        hpc_graph graph = g.graph;
        graph.keys = g.j.keys, graph.n_keys = g.j.n_keys, graph.chunk = g.j.chunk, graph.weights = g.weights;
        if (i == 0) graph_job_shape(&g, RING);
        if (i == 1) g.weights[1] = 8;
        CHECK_OK(hpc_plan_make("graph", &graph, &other));
        good(&g, r);
        g.j.plan = last ? other : NULL;
        refused(r, &g, HPC_ERR_CONFIG, "is not of the graph");
        hpc_plan_free(other);
    }
    good(&g, r);
    g.j.in_place = 1;
    refused(r, &g, HPC_ERR_CONFIG, "depth 2 or more");
    g.j.depth = 4, g.consistency = HPC_SSP, g.staleness = 2;
    refused(r, &g, HPC_ERR_CONFIG, "SSP(2) on a graph with in_place needs 5 or more");
    g.j.mixed = 1, g.j.seed = 3; /* the first key is float32 and others are not: no slot is the model */
    CHECK(job_wire(&g.j, 0) == HPC_F32 && !job_is_float32(&g.j));
    hpc_exchange *accepted = graph_open(r, &g);
    CHECK_OK(hpc_exchange_close(accepted, -1));
    hpc_exchange_free(accepted);
    good(&g, r);
    g.j.in_place = 1, g.j.rule = "sgd";
    refused(r, &g, HPC_ERR_CONFIG, "here are a graph and rule sgd");
    good(&g, r);
    g.j.in_place = last, g.j.depth = 2;
    refused(r, &g, HPC_ERR_CONFIG, "in_place 1 and rank 0 has 0");
    good(&g, r);
    g.graph.ranks = r->size - 1;
    g.weights[r->size - 1] = 0.5; /* a row is shorter: make its own weights sound */
    for (int i = 0; i < (r->size - 1) * (r->size - 1); i++) g.weights[i] = 0.5;
    refused(r, &g, HPC_ERR_INVALID, "the graph has");
    for (int consistency = HPC_ASYNC; consistency <= HPC_BARRIER; consistency++) {
        if (consistency == HPC_NOTIFY_ACK) continue;
        good(&g, r);
        g.user = true, g.consistency = consistency, g.j.depth = 3, g.staleness = consistency == HPC_SSP;
        refused(r, &g, HPC_ERR_UNSUPPORTED, "fold of its own");
    }
    for (int consistency = HPC_BSP; consistency <= HPC_BARRIER; consistency++) {
        if (consistency == HPC_NOTIFY_ACK || consistency == HPC_SSP) continue;
        good(&g, r);
        g.quorum = 1, g.consistency = consistency;
        refused(r, &g, HPC_ERR_UNSUPPORTED, "on a graph a quorum needs NOTIFY_ACK or SSP(s)");
    }
    good(&g, r);
    g.quorum = 1, g.user = true;
    refused(r, &g, HPC_ERR_UNSUPPORTED, "under a quorum");
    g.user = false, g.weights[1] = -1;
    refused(r, &g, HPC_ERR_CONFIG, "a quorum scales");
    good(&g, r);
    g.consistency = HPC_ASYNC;
    if (r->mode->seed) refused(r, &g, HPC_ERR_UNSUPPORTED, "loop_seed");
    good(&g, r); /* the group goes on */
    hpc_exchange *e = graph_open(r, &g);
    CHECK_OK(push_pull(&g, e, 0, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Over tcp BARRIER and ASYNC refuse two streams, as they need the order of a single one. The case brings up a context
 * by itself. */
static void two_streams(rank *r) {
    graph_job g;
    int refuses = strcmp(r->mode->transports, "tcp") == 0;
    r->config.tcp_streams = 2;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    for (int i = 0; i < 2 && refuses; i++) {
        good(&g, r);
        g.consistency = i ? HPC_ASYNC : HPC_BARRIER;
        refused(r, &g, HPC_ERR_UNSUPPORTED, "over tcp do not: tcp_streams is 2, make it 1");
    }
    good(&g, r);
    if (!refuses) g.consistency = HPC_ASYNC;
    hpc_exchange *e = graph_open(r, &g);
    CHECK_OK(push_pull(&g, e, 0, -1));
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { FREES = 256 };
    static const ranks_case cases[] = {
        {.name = "closes_early", .size = 4, .run = closes_early, .arg = HPC_NOTIFY_ACK + 16},
        {.name = "closes_early_2", .size = 4, .run = closes_early, .arg = HPC_NOTIFY_ACK + 32 + FREES},
        {.name = "closes_early_ssp", .size = 4, .run = closes_early, .arg = HPC_SSP + 48 + FREES},
        {.name = "closes_early_async", .size = 3, .run = closes_early, .arg = HPC_ASYNC + 16, .where = RANKS_UNSEEDED},
        {.name = "frees_early_async",
         .size = 3,
         .run = closes_early,
         .arg = HPC_ASYNC + 16 + FREES,
         .where = RANKS_UNSEEDED},
        {.name = "stopped_at_once",
         .size = 5,
         .run = stopped_at_once,
         .where = RANKS_TCP | RANKS_PROCESSES,
         .apart = true},
        {.name = "pushes_too_often", .size = 2, .run = pushes_too_often, .arg = COMPLETE, .apart = true},
        {.name = "pushes_too_often_phases", .size = 2, .run = pushes_too_often, .arg = DEGREES, .apart = true},
        {.name = "answers_too_often", .size = 3, .run = counts_ahead, .arg = 0, .apart = true},
        {.name = "uses_too_often", .size = 3, .run = counts_ahead, .arg = 1, .apart = true},
        {.name = "sends_too_often", .size = 3, .run = counts_ahead, .arg = 2, .apart = true},
        {.name = "frees_with_full_ring", .size = 2, .run = frees_with_full_ring},
        {.name = "closes_before_slot", .size = 3, .run = closes_before_slot, .arg = 1},
        {.name = "closes_before_slot_3", .size = 3, .run = closes_before_slot, .arg = 3},
        {.name = "closes_between_phases", .size = 2, .run = closes_between_phases},
        {.name = "closes_at_second_try", .size = 2, .run = closes_between_phases, .arg = 1},
        {.name = "closes_after_load", .size = 2, .run = closes_after_load},
        {.name = "refusals", .size = 3, .run = refusals},
        {.name = "two_streams", .size = 2, .run = two_streams, .where = RANKS_PROCESSES, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
