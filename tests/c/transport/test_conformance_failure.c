/* A peer that dies, leaves or stops: every wait ends, and says who it was and who is still waited for. */
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>

#include "ranks.h"

enum { VICTIM = 1, SECONDS = 10 };

/* The calls of the survivors (0 and 2) when rank 1 dies. Each needs rank 1 to go on. */
typedef enum wait_kind {
    WAIT_SIGNAL,
    WAIT_SIGNAL_OF_ANYBODY,
    WAIT_EVENT,
    PUT_NOTIFY,
    BARRIER,
    ALLGATHER,
    WINDOW_CREATE,
    QUEUE_CREATE,
    LANE_CREATE,
    RECV,
    SEND,
    ACQUIRE,
    REDUCE,
    WAIT_KINDS,
    REDUCE_AGAIN /* the other survivor's update is there already */
} wait_kind;

typedef struct fixture {
    hpc_window *w;
    hpc_queue *plain, *registered;
} fixture;

static hpc_queue *complete(rank *r, int buffers) {
    int peers[RANKS_MAX], n = 0;
    for (int i = 0; i < r->size; i++) {
        if (i != r->rank) peers[n++] = i;
    }
    hpc_queue_config c;
    hpc_queue *q;
    hpc_queue_config_init(&c);
    c.in_peers = c.out_peers = peers;
    c.n_in = c.n_out = n;
    c.nbytes = 64, c.depth = 1, c.buffers = buffers;
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &q));
    return q;
}

static fixture set_up(rank *r) {
    fixture f;
    CHECK_OK(hpc_window_create(r->context, 4096, 3, NULL, -1, &f.w));
    f.plain = complete(r, 0);
    f.registered = complete(r, 1);
    CHECK_OK(hpc_barrier(r->context, -1));
    rank_meet(r); /* nobody dies while another one is still on its way out of the barrier */
    return f;
}

static void tear_down(fixture f) {
    hpc_queue_free(f.plain);
    hpc_queue_free(f.registered);
    hpc_window_free(f.w);
}

/* Waits for rank 1 until that fails. Filling a slot or a ring first may already fail: that is the same answer. */
static int wait_for_victim(rank *r, fixture f, int kind, double timeout) {
    static _Thread_local char data[64 * RANKS_MAX];
    double ones[RANKS_MAX] = {1, 1, 1, 1};
    const void *update;
    hpc_window *w = NULL;
    hpc_queue *q = NULL;
    hpc_lane *lane = NULL;
    hpc_queue_config c;
    hpc_event e;
    int status = HPC_OK;
    switch (kind) {
    case WAIT_SIGNAL:
        return hpc_wait_signal(f.w, 0, 1, VICTIM, timeout, NULL);
    case WAIT_SIGNAL_OF_ANYBODY:
        return hpc_wait_signal(f.w, 0, 1, -1, timeout, NULL);
    case WAIT_EVENT:
        return hpc_wait_event(r->context, NULL, &e, timeout);
    case PUT_NOTIFY:
        for (int i = 0; i <= HPC_NOTIFY_DEPTH && status == HPC_OK; i++) {
            status = hpc_put_notify(NULL, f.w, VICTIM, NULL, 0, 0, 0, timeout);
        }
        return status;
    case BARRIER:
        return hpc_barrier(r->context, timeout);
    case ALLGATHER:
        return hpc_allgather(r->context, data, data, 16, timeout);
    case WINDOW_CREATE:
        return hpc_window_create(r->context, 64, 1, NULL, timeout, &w);
    case QUEUE_CREATE:
        hpc_queue_config_init(&c);
        c.nbytes = 64;
        return hpc_queue_create(r->context, &c, timeout, &q);
    case LANE_CREATE:
        return hpc_lane_create(r->context, timeout, &lane);
    case RECV:
        return hpc_queue_recv(f.plain, VICTIM, &update, timeout);
    case SEND:
        status = hpc_queue_send(f.plain, VICTIM, data, 64, timeout);
        return status ? status : hpc_queue_send(f.plain, VICTIM, data, 64, timeout);
    case ACQUIRE:
        status = hpc_queue_send(f.registered, VICTIM, hpc_queue_buffer(f.registered, 0), 64, timeout);
        return status ? status : hpc_queue_acquire(f.registered, 0, timeout);
    case REDUCE:
        status = hpc_queue_send(f.plain, r->rank == 0 ? 2 : 0, data, 64, timeout);
        if (status) return status;
        __attribute__((fallthrough));
    default:
        return hpc_queue_reduce(f.plain, data, data, 1, ones, HPC_F32, timeout);
    }
}

static void check_names_victim(double start) {
    const hpc_error *e = hpc_last_error();
    CHECK_EQ(e->status, HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    CHECK(strchr(e->message, '0' + VICTIM));
    CHECK(e->op[0]);
    CHECK(ranks_now() - start < SECONDS / 2); /* long before the timeout */
}

/* Rank 1 is killed, or aborts, while the others wait or before they do. */
static void peer_dies(rank *r) {
    fixture f = set_up(r);
    if (r->rank == VICTIM) {
        rank_die(r);
        tear_down(f);
        return;
    }
    double start = ranks_now();
    CHECK_STATUS(wait_for_victim(r, f, r->arg, -1), HPC_ERR_PEER);
    check_names_victim(start);
    rank_set(r, r->rank, 1);
    rank_await(r, 2 - r->rank, 1); /* nobody leaves before the other has seen who died */

    hpc_peer p;
    CHECK_OK(hpc_context_peer(r->context, VICTIM, &p));
    CHECK_EQ(p.state, HPC_PEER_FAILED);
    CHECK_OK(hpc_context_peer(r->context, 2 - r->rank, &p));
    CHECK_EQ(p.state, HPC_PEER_ALIVE);
    start = ranks_now(); /* and once more, now that it is known */
    CHECK_STATUS(wait_for_victim(r, f, r->arg == REDUCE ? REDUCE_AGAIN : r->arg, -1), HPC_ERR_PEER);
    check_names_victim(start);
    rank_set(r, r->rank, 2);
    rank_await(r, 2 - r->rank, 2);
    tear_down(f);
}

/* Rank 1 closes its context properly: whoever still waits for it is told. */
static void peer_leaves(rank *r) {
    fixture f = set_up(r);
    if (r->rank == VICTIM) {
        CHECK_OK(hpc_context_close(r->context));
        tear_down(f);
        return;
    }
    if (r->arg != WAIT_SIGNAL_OF_ANYBODY && r->arg != WAIT_EVENT) { /* those may still come from the other survivor */
        double start = ranks_now();
        CHECK_STATUS(wait_for_victim(r, f, r->arg, -1), HPC_ERR_PEER);
        check_names_victim(start);
        hpc_peer p;
        CHECK_OK(hpc_context_peer(r->context, VICTIM, &p));
        CHECK_EQ(p.state, HPC_PEER_LEFT);
    }
    rank_set(r, r->rank, 1);
    rank_await(r, 2 - r->rank, 1);
    tear_down(f);
}

/* Rank 1 stops: nobody died, nobody moves. */
static void peer_stops(rank *r) {
    fixture f = set_up(r);
    if (r->rank == VICTIM) raise(SIGSTOP);
    for (int kind = 0; kind < WAIT_KINDS; kind++) {
        if (kind >= BARRIER && kind <= LANE_CREATE) continue; /* collectives: in peer_stops_collectives */
        double start = ranks_now();
        CHECK_STATUS(wait_for_victim(r, f, kind, 0.2), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(VICTIM));
        CHECK(hpc_last_error()->op[0]);
        CHECK(ranks_now() - start > 0.15 && ranks_now() - start < 3);
    }
    hpc_peer p;
    CHECK_OK(hpc_context_peer(r->context, VICTIM, &p));
    CHECK_EQ(p.state, HPC_PEER_ALIVE);
    rank_set(r, r->rank, 1);
    rank_await(r, 2 - r->rank, 1);
    tear_down(f);
}

static void peer_stops_collectives(rank *r) {
    fixture f = set_up(r);
    if (r->rank == VICTIM) raise(SIGSTOP);
    double start = ranks_now();
    CHECK_STATUS(wait_for_victim(r, f, r->arg, 0.5), HPC_ERR_TIMEOUT);
    CHECK(ranks_error_waits_for(VICTIM));
    CHECK_EQ(hpc_last_error()->n_waiting, 1);
    CHECK(ranks_now() - start > 0.4 && ranks_now() - start < 4);
    rank_set(r, r->rank, 1);
    rank_await(r, 2 - r->rank, 1);
    tear_down(f);
}

/* A signal that a rank wrote before it died is there: to wait for it is no failure. */
static void last_words(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 4096, 1, NULL, -1, &w));
    rank_meet(r);
    if (r->rank == VICTIM) {
        for (int i = 0; i < 3; i += 2) CHECK_OK(hpc_put_signal(NULL, w, i, "last words", 11, 0, 0, 1));
        CHECK_OK(hpc_flush(NULL, w, -1, -1));
        rank_die(r);
        hpc_window_free(w);
        return;
    }
    CHECK_STATUS(hpc_wait_signal(w, 0, 2, VICTIM, -1, NULL), HPC_ERR_PEER);
    CHECK_OK(hpc_wait_signal(w, 0, 1, VICTIM, -1, NULL));
    CHECK(strcmp(hpc_window_data(w), "last words") == 0);
    hpc_window_free(w);
}

/* A rank that dies while everybody writes into it: no crash, and every rank's next wait for it fails. */
static void dies_under_writers(rank *r) {
    hpc_window *w;
    static char src[1 << 16];
    CHECK_OK(hpc_window_create(r->context, sizeof src * (size_t)r->size, r->size, NULL, -1, &w));
    rank_meet(r);
    if (r->rank == VICTIM) {
        CHECK_OK(hpc_wait_signal(w, 0, 20, 0, -1, NULL));
        rank_die(r);
        hpc_window_free(w);
        return;
    }
    int status = HPC_OK;
    for (uint64_t i = 1; i <= 3000 && status == HPC_OK; i++) {
        status = hpc_put_signal(NULL, w, VICTIM, src, sizeof src, sizeof src * (size_t)r->rank, r->rank, i);
    }
    CHECK(status == HPC_OK || status == HPC_ERR_PEER);
    CHECK_STATUS(hpc_wait_signal(w, VICTIM, 1, VICTIM, -1, NULL), HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    rank_set(r, r->rank, 1);
    for (int i = 0; i < r->size; i++) {
        if (i != VICTIM) rank_await(r, i, 1);
    }
    hpc_window_free(w);
}

/* A rank that dies on its way into hpc_init. */
static void dies_in_init(rank *r) {
    if (r->rank == VICTIM) {
        unsigned char *address = malloc(hpc_address_size()), *all = malloc(hpc_address_size() * (size_t)r->size);
        void *request;
        CHECK_OK(hpc_context_create(r->rank, r->size, &r->config, &r->context));
        CHECK_OK(hpc_context_address(r->context, address));
        CHECK_OK(r->oob.allgather(address, all, hpc_address_size(), r->oob.arg, &request));
        while (r->oob.test(request) == HPC_IN_PROGRESS) continue;
        CHECK_OK(r->oob.free(request));
        free(address);
        free(all);
        rank_die(r);
        return;
    }
    double start = ranks_now();
    int status = hpc_init(&r->oob, &r->config, &r->context);
    CHECK(status == HPC_ERR_PEER || status == HPC_ERR_TIMEOUT);
    CHECK(ranks_error_names(VICTIM) || ranks_error_waits_for(VICTIM));
    CHECK(ranks_now() - start < r->config.timeout + 1);
    CHECK(r->context == NULL);
    rank_set(r, r->rank, 1);
    rank_await(r, 2 - r->rank, 1);
}

/* It gave up on the others, who had not come: they are the cause, and it left because of them. */
static bool says_left(int who) {
    const hpc_error *e = hpc_last_error();
    for (int i = 0; i < e->n_left; i++)
        if (e->left[i] == who) return true;
    return false;
}

/* The last rank has connected, began the next step and left when the others connect: they end there, and keep nothing
 * that they would have given each other after that (which is looked at when the case ends). */
static void leaves_before_others(rank *r) {
    size_t n = hpc_address_size();
    unsigned char *address = malloc(n), *all = malloc(n * (size_t)r->size);
    void *request;
    CHECK_OK(hpc_context_create(r->rank, r->size, &r->config, &r->context));
    CHECK_OK(hpc_context_address(r->context, address));
    CHECK_OK(r->oob.allgather(address, all, n, r->oob.arg, &request));
    while (r->oob.test(request) == HPC_IN_PROGRESS) continue;
    CHECK_OK(r->oob.free(request));
    if (r->rank == r->size - 1) {
        CHECK_STATUS(hpc_context_connect(r->context, all, 0.2), HPC_ERR_TIMEOUT);
        CHECK_OK(hpc_context_close(r->context));
        rank_meet(r);
    } else {
        hpc_peer last = {.state = HPC_PEER_ALIVE};
        rank_meet(r);
        while (last.state != HPC_PEER_LEFT) CHECK_OK(hpc_context_peer(r->context, r->size - 1, &last));
        CHECK_STATUS(hpc_context_connect(r->context, all, -1), HPC_ERR_PEER);
        CHECK(says_left(r->size - 1));
    }
    rank_meet(r); /* none leaves before the others have found out by themselves */
    hpc_context_free(r->context);
    r->context = NULL;
    free(address);
    free(all);
}

/* The same where a lane is created. */
static void leaves_before_lane(rank *r) {
    hpc_lane *lane;
    if (r->rank == r->size - 1) {
        CHECK_STATUS(hpc_lane_create(r->context, 0.2, &lane), HPC_ERR_TIMEOUT);
        CHECK_OK(hpc_context_close(r->context));
        return;
    }
    hpc_peer last = {.state = HPC_PEER_ALIVE};
    while (last.state != HPC_PEER_LEFT) CHECK_OK(hpc_context_peer(r->context, r->size - 1, &last));
    CHECK_STATUS(hpc_lane_create(r->context, -1, &lane), HPC_ERR_PEER);
    CHECK(says_left(r->size - 1));
    rank_set(r, r->rank, 1);
    for (int i = 0; i < r->size - 1; i++) rank_await(r, i, 1);
}

int main(int argc, char **argv) {
    static const char *const kinds[WAIT_KINDS] = {
        "wait_signal",  "wait_signal_any", "wait_event", "put_notify", "barrier", "allgather", "window_create",
        "queue_create", "lane_create",     "recv",       "send",       "acquire", "reduce"};
    static ranks_case cases[3 * WAIT_KINDS + 8];
    static char names[3 * WAIT_KINDS][40];
    int n = 0;
    for (int kind = 0; kind < WAIT_KINDS; kind++) {
        snprintf(names[n], sizeof names[n], "dies_%s", kinds[kind]);
        cases[n] = (ranks_case){
            .name = names[n], .size = 3, .run = peer_dies, .arg = kind, .victims = 1 << VICTIM, .timeout = SECONDS};
        n++;
        snprintf(names[n], sizeof names[n], "leaves_%s", kinds[kind]);
        cases[n] = (ranks_case){
            .name = names[n], .size = 3, .run = peer_leaves, .arg = kind, .apart = true, .timeout = SECONDS};
        n++;
        if (kind < BARRIER || kind > LANE_CREATE) continue;
        snprintf(names[n], sizeof names[n], "stops_%s", kinds[kind]);
        cases[n] = (ranks_case){.name = names[n],
                                .size = 3,
                                .run = peer_stops_collectives,
                                .arg = kind,
                                .where = RANKS_PROCESSES,
                                .victims = 1 << VICTIM,
                                .timeout = SECONDS};
        n++;
    }
    cases[n++] =
        (ranks_case){.name = "stops", .size = 3, .run = peer_stops, .where = RANKS_PROCESSES, .victims = 1 << VICTIM};
    cases[n++] =
        (ranks_case){.name = "last_words", .size = 3, .run = last_words, .victims = 1 << VICTIM, .timeout = SECONDS};
    cases[n++] = (ranks_case){
        .name = "dies_under_writers", .size = 4, .run = dies_under_writers, .victims = 1 << VICTIM, .timeout = SECONDS};
    cases[n++] = (ranks_case){
        .name = "dies_in_init", .size = 3, .run = dies_in_init, .victims = 1 << VICTIM, .timeout = 2, .bare = true};
    for (int loop = 0; loop < 2; loop++) /* over TCP nobody connects before the others do */
        cases[n++] = (ranks_case){.name = loop ? "leaves_before_others_loop" : "leaves_before_others",
                                  .size = 3,
                                  .run = leaves_before_others,
                                  .where = loop ? RANKS_LOOP : RANKS_SHM,
                                  .timeout = SECONDS,
                                  .bare = true};
    cases[n++] = (ranks_case){
        .name = "leaves_before_lane", .size = 3, .run = leaves_before_lane, .apart = true, .timeout = SECONDS};
    return ranks_main(argc, argv, cases);
}
