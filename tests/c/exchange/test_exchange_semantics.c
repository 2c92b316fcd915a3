/* When an update is applied and who sees it: BSP, ASYNC, slots, and waits of other kinds that serve the peers. */
#include <sched.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL, LATE = 2 };

/* The server is rank 0 alone, which also works unless it is dedicated. */
static void central(job *j, bool dedicated) {
    j->servers[0] = 0;
    j->n_servers = 1;
    if (dedicated) {
        for (int i = 1; i < j->n_workers; i++) j->workers[i - 1] = j->workers[i];
        j->n_workers--;
    }
}

/* ---- BSP ------------------------------------------------------------------------------------------------------- */

/* Nothing of a key is applied before every worker has pushed it; whoever waits is told for whom; nothing is lost. */
static void bsp_waits_for_all(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.progress = r->arg;
    j.depth = r->arg == HPC_PROGRESS_THREAD ? 2 : 1; /* which makes no difference */
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    uint64_t ticket = 0, other;
    if (r->rank != LATE) {
        ticket = job_start(r, &j, e, 2, 0, BOTH, r->rank % 2);
        rank_set(r, r->rank, 1);
        progress_until(r, e, 1 - r->rank, 1);
        for (int i = 0; i < 2; i++) {
            double begin = ranks_now();
            CHECK_STATUS(hpc_exchange_wait(e, 2, ticket, i ? 0.1 : 0), HPC_ERR_TIMEOUT);
            CHECK(ranks_error_waits_for(LATE));
            CHECK(!i || !ranks_error_waits_for(r->rank)); /* at first its own push may be on its way to itself */
            if (strcmp(r->mode->transports, "shm") == 0) CHECK_EQ(hpc_last_error()->n_waiting, 1);
            CHECK(ranks_now() - begin < 5);
        }
        CHECK_EQ(hpc_exchange_test(e, 2, ticket), HPC_IN_PROGRESS);
        CHECK_EQ(hpc_exchange_ready(e, 1), HPC_OK);
        CHECK_EQ(hpc_exchange_ready(e, 2), HPC_IN_PROGRESS);
        CHECK_EQ(hpc_exchange_under_way(e), 2);
        CHECK_STATUS(hpc_exchange_get_row(e, r->rank, NULL, NULL, NULL), HPC_ERR_INVALID); /* whoever owns it */
        CHECK_STATUS(hpc_exchange_start(e, 2, BOTH, NULL, -1, &other), HPC_ERR_INVALID);   /* a second push */
        CHECK_MESSAGE("k2");
        CHECK_STATUS(hpc_exchange_start(e, 2, HPC_PUSH, hpc_exchange_params(e, 0), -1, &other), HPC_ERR_INVALID);
        rank_set(r, r->rank, 2);
    }
    for (int who = 0; who < r->size; who++) {
        if (who != LATE) progress_until(r, e, who, 2);
    }
    if (r->rank == LATE) { /* its own parameters stayed, and it may still pull them */
        reference_check(&ref, r, e, 2);
        CHECK_OK(hpc_exchange_start(e, 2, HPC_PULL, NULL, 0, &other));
        CHECK_OK(hpc_exchange_wait(e, 2, other, 0));
        reference_check(&ref, r, e, 2);
        rank_set(r, LATE, 1);
    }
    progress_until(r, e, LATE, 1);
    job_push_pull(r, &j, e, 1, 0); /* other keys go on meanwhile */
    reference_step(&ref, 1);
    reference_check(&ref, r, e, 1);
    if (r->rank == LATE) {
        reference_check(&ref, r, e, 2);
        ticket = job_start(r, &j, e, 2, 0, BOTH, false);
    }
    CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
    CHECK_EQ(hpc_exchange_test(e, 2, ticket), HPC_OK);
    CHECK_EQ(hpc_exchange_ready(e, 2), HPC_OK);
    CHECK_EQ(hpc_exchange_under_way(e), -1);
    reference_step(&ref, 2);
    reference_check(&ref, r, e, 2);
    for (int step = 1; step < 4; step++) { /* the refused push left nothing behind */
        job_push_pull(r, &j, e, 2, step);
        reference_step(&ref, 2);
        reference_check(&ref, r, e, 2);
    }
    reference_free(&ref);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_exchange_free(e);
}

/* A pull of what was not pushed returns at once, before the first push and after any. */
static void bsp_pull_alone(rank *r) {
    job j;
    reference ref;
    uint64_t ticket;
    job_init(&j, r);
    j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 5; step++) {
        for (int key = 0; key < j.n_keys; key++) {
            CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, 0, &ticket));
            CHECK_OK(hpc_exchange_wait(e, key, ticket, 0));
            reference_check(&ref, r, e, key);
            ticket = job_start(r, &j, e, key, step, HPC_PUSH, step % 2); /* pushed now, pulled later */
            while (step % 3 == 2 && hpc_exchange_test(e, key, ticket) == HPC_IN_PROGRESS) sched_yield();
        }
        for (int key = 0; key < j.n_keys; key++) {
            CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &ticket));
            CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* A rank that is inside another wait of the context serves its rows from there. Rank 0 owns all rows; its peers let it
 * out of that wait only once they have their parameters. */
enum { IN_BARRIER, IN_ALLGATHER, IN_CREATE, IN_EXCHANGE, IN_WAIT_SIGNAL, IN_WAIT_EVENT, IN_RECV };

typedef struct elsewhere {
    hpc_window *w;
    hpc_queue *q;
} elsewhere;

static void meet_in(rank *r, const job *j) {
    char bytes[RANKS_MAX];
    hpc_window *w = NULL;
    if (r->arg == IN_BARRIER) CHECK_OK(hpc_barrier(r->context, -1));
    if (r->arg == IN_ALLGATHER) CHECK_OK(hpc_allgather(r->context, "x", bytes, 1, -1));
    if (r->arg == IN_CREATE) CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    if (r->arg == IN_EXCHANGE) hpc_exchange_free(job_open(r, j));
    hpc_window_free(w);
}

static void give_word(rank *r, elsewhere at, uint64_t round) {
    if (r->arg == IN_WAIT_SIGNAL) CHECK_OK(hpc_put_signal(NULL, at.w, 0, NULL, 0, 0, 0, round));
    if (r->arg == IN_WAIT_EVENT) CHECK_OK(hpc_put_notify(NULL, at.w, 0, NULL, 0, 0, (uint32_t)round, -1));
    if (r->arg == IN_RECV) CHECK_OK(hpc_queue_send(at.q, 0, &round, sizeof round, -1));
}

static void take_word(rank *r, elsewhere at, uint64_t round) {
    hpc_event event;
    const void *update;
    if (r->arg == IN_WAIT_SIGNAL) CHECK_OK(hpc_wait_signal(at.w, 0, round, 1, -1, NULL));
    if (r->arg == IN_WAIT_EVENT) {
        CHECK_OK(hpc_wait_event(r->context, NULL, &event, -1));
        CHECK_EQ(event.imm, round);
    }
    if (r->arg == IN_RECV) {
        CHECK_OK(hpc_queue_recv(at.q, 1, &update, -1));
        CHECK_EQ(*(const uint64_t *)update, round);
        CHECK_OK(hpc_queue_ack(at.q, 1));
    }
}

static void served_from_elsewhere(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    central(&j, false);
    hpc_exchange *e = job_open(r, &j);
    elsewhere at;
    hpc_queue_config c;
    int zero = 0, one = 1;
    reference_init(&ref, &j);
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &at.w));
    hpc_queue_config_init(&c);
    c.nbytes = 8, c.in_peers = &one, c.out_peers = &zero;
    c.n_in = r->rank == 0, c.n_out = r->rank == 1;
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &at.q));
    uint64_t rounds = (uint64_t)ranks_rounds(20);
    for (uint64_t round = 1; round <= rounds; round++) {
        uint64_t ticket = job_start(r, &j, e, 2, (int)round - 1, BOTH, round % 2);
        if (r->rank) CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
        meet_in(r, &j);
        if (r->rank == 0) take_word(r, at, round);
        if (r->rank == 1) give_word(r, at, round);
        if (r->rank == 0) CHECK_OK(hpc_exchange_wait(e, 2, ticket, -1));
        reference_step(&ref, 2);
        reference_check(&ref, r, e, 2);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    reference_free(&ref);
    hpc_queue_free(at.q);
    hpc_window_free(at.w);
    hpc_exchange_free(e);
}

/* arg: progress. Far more keys under way than a ring holds events: a push that finds a ring full works for its own rows
 * meanwhile, so that all get on. */
static void many_keys(rank *r) {
    job j;
    reference ref;
    uint64_t tickets[JOB_KEYS];
    job_init(&j, r);
    j.progress = r->arg, j.cores = 2;
    j.n_keys = JOB_KEYS;
    CHECK(j.n_keys > 2 * HPC_NOTIFY_DEPTH);
    for (int key = 0; key < j.n_keys; key++)
        j.keys[key] = (hpc_key){job_key_name(key), 1 + (uint64_t)key * 37 % 301, 0};
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < j.n_keys; i++) {
            int key = r->rank % 2 ? i : j.n_keys - 1 - i;
            tickets[key] = job_start(r, &j, e, key, step, BOTH, (step + i) % 2);
        }
        for (int key = 0; key < j.n_keys; key++) {
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    }
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* ---- ASYNC ----------------------------------------------------------------------------------------------------- */

/* arg: depth + 4 * dedicated + 8 * threads. With sgd the order does not matter: in the end all updates are in. */
static void async_totals(rank *r) {
    enum { PUSHES = 6 };
    job j;
    job_init(&j, r);
    j.each = 1, j.depth = r->arg % 4, j.cores = 2;
    j.progress = r->arg & 8 ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (r->arg & 4) central(&j, true);
    hpc_exchange *e = job_open(r, &j);
    if (!job_works(&j, r->rank)) {
        CHECK_OK(hpc_exchange_serve(e, -1));
        hpc_exchange_free(e);
        return;
    }
    uint64_t random = (uint64_t)r->rank, tickets[JOB_KEYS] = {0};
    int pushed[JOB_KEYS] = {0};
    for (int left = PUSHES * j.n_keys; left;) {
        int key = (int)(ranks_random(&random) % (uint64_t)j.n_keys);
        if (pushed[key] == PUSHES) continue;
        bool pull = ranks_random(&random) % 2;
        tickets[key] = job_start(r, &j, e, key, pushed[key]++, pull ? BOTH : HPC_PUSH, true);
        if (pull) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
        left--;
    }
    for (int key = 0; key < j.n_keys; key++) {
        CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &tickets[key]));
        CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
    }
    rank_set(r, r->rank, 1);
    for (int i = 0; i < j.n_workers; i++) progress_until(r, e, j.workers[i], 1);
    reference ref;
    reference_init(&ref, &j);
    for (int key = 0; key < j.n_keys; key++) {
        for (int i = 0; i < PUSHES; i++) reference_step(&ref, key);
        CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &tickets[key]));
        CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
        reference_check(&ref, r, e, key);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1)); /* serves the others until they have closed too */
    hpc_exchange_free(e);
}

/* An update is in the next pull of its own worker, and in nobody else's parameters before they pull. */
static void async_own_pull(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.each = 1, j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    int rounds = ranks_rounds(10);
    for (int step = 0; step < rounds; step++) {
        int turn = step % r->size;
        if (r->rank == turn) {
            for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, step);
            rank_set(r, 0, (uint64_t)step + 1);
        } else {
            progress_until(r, e, 0, (uint64_t)step + 1);
            for (int key = 0; key < j.n_keys; key++) reference_check(&ref, r, e, key); /* as at its last pull */
            CHECK_OK(hpc_exchange_progress(e));
        }
        CHECK_OK(hpc_barrier(r->context, -1));
        for (int key = 0; key < j.n_keys; key++) {
            uint64_t ticket;
            if (r->rank != turn) {
                reference_check(&ref, r, e, key);
                CHECK_OK(hpc_exchange_start(e, key, HPC_PULL, NULL, -1, &ticket));
                CHECK_OK(hpc_exchange_wait(e, key, ticket, -1));
            }
            double *sum = malloc(j.keys[key].count * sizeof *sum);
            for (uint64_t i = 0; i < j.keys[key].count; i++) sum[i] = (double)job_gradient(&j, turn, step, key, i);
            reference_apply(&ref, key, sum);
            free(sum);
            reference_check(&ref, r, e, key);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Rank 0 owns a key in one row and the others push ones to it as fast as they go: every pull gives a whole version, in
 * which each element has seen the same number of updates. */
static void async_whole(rank *r) {
    job j;
    job_init(&j, r);
    central(&j, true);
    j.each = 1, j.chunk = 65536, j.args[1] = 1, j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 0) {
        CHECK_OK(hpc_exchange_serve(e, -1));
        hpc_exchange_free(e);
        return;
    }
    uint64_t count = j.keys[2].count;
    float *ones = malloc(count * sizeof *ones), last = 0;
    for (uint64_t i = 0; i < count; i++) ones[i] = 1;
    int rounds = ranks_rounds(100);
    for (int round = 1; round <= rounds; round++) {
        CHECK_OK(hpc_exchange_push_pull(e, 2, ones, -1));
        const float *params = hpc_exchange_params(e, 2);
        float updates = job_initial(&j, 2, 0) - params[0];
        CHECK(updates > last && updates >= (float)round);
        for (uint64_t i = 0; i < count; i++) CHECK(job_initial(&j, 2, i) - params[i] == updates);
        last = updates;
    }
    free(ones);
    hpc_exchange_free(e);
}

/* arg: depth. As many updates of a key may be under way; their slots take turns, and come free once they are applied.
 * The server looks at nothing until the slots have been counted. */
static void async_slots(rank *r) {
    job j;
    void *slots[4], *slot;
    uint64_t tickets[4], ticket;
    job_init(&j, r);
    central(&j, true);
    j.each = 1, j.depth = r->arg;
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 0) {
        for (int who = 1; who < r->size; who++) rank_await(r, who, 1);
        CHECK_OK(hpc_exchange_serve(e, -1));
        hpc_exchange_free(e);
        return;
    }
    for (int i = 0; i < j.depth; i++) {
        CHECK_OK(hpc_exchange_gradient(e, 0, 0, &slots[i]));
        CHECK_OK(hpc_exchange_gradient(e, 0, 0, &slot)); /* the same until it is pushed */
        CHECK(slot == slots[i]);
        for (int k = 0; k < i; k++) CHECK(slots[k] != slot);
        job_fill(&j, r->rank, i, 0, slot);
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PUSH, NULL, 0, &tickets[i]));
    }
    CHECK_STATUS(hpc_exchange_start(e, 0, HPC_PUSH, hpc_exchange_params(e, 0), -1, &ticket), HPC_ERR_INVALID);
    CHECK_MESSAGE("k0");
    CHECK_STATUS(hpc_exchange_gradient(e, 0, 0.05, &slot), HPC_ERR_TIMEOUT);
    CHECK(ranks_error_waits_for(0));
    CHECK_OK(hpc_exchange_gradient(e, 1, 0, &slot)); /* another key has slots of its own */
    rank_set(r, r->rank, 1);
    CHECK_OK(hpc_exchange_gradient(e, 0, -1, &slot));
    CHECK(slot == slots[0]);
    for (int i = 0; i < j.depth; i++) CHECK_OK(hpc_exchange_wait(e, 0, tickets[i], -1));
    job_push_pull(r, &j, e, 0, j.depth);
    hpc_exchange_free(e);
}

/* More than the server's ring holds while it does not look: start says so in time, and the same call goes on where it
 * stopped. On loop that is in the middle of a push of 257 rows. */
static void start_goes_on(rank *r) {
    job j;
    reference ref;
    void *gradient;
    uint64_t pushed, pulled, ticket;
    job_init(&j, r);
    central(&j, true);
    j.each = 1, j.chunk = 64;
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 0) {
        rank_await(r, 1, 1);
        CHECK_OK(hpc_exchange_serve(e, -1));
        hpc_exchange_free(e);
        return;
    }
    bool mapped = strcmp(r->mode->transports, "shm") == 0;
    reference_init(&ref, &j);
    float *src = malloc(j.keys[2].count * sizeof *src);
    job_fill(&j, 1, 0, 2, src);
    int status = hpc_exchange_start(e, 2, BOTH, src, 0.02, &pushed), pulls = 0, first = status;
    CHECK_EQ(first, mapped ? HPC_OK : HPC_ERR_TIMEOUT);
    if (first) {
        CHECK(ranks_error_waits_for(0));
        CHECK_STATUS(hpc_exchange_start(e, 2, HPC_PULL, NULL, 0, &ticket), HPC_ERR_INVALID); /* another call */
        CHECK_STATUS(hpc_exchange_gradient(e, 2, 0, &gradient), HPC_ERR_INVALID);
        memset(src, 0xcc, j.keys[2].count * sizeof *src); /* it was copied */
    }
    do status = hpc_exchange_start(e, 1, HPC_PULL, NULL, 0.02, &pulled);
    while (status == HPC_OK && ++pulls <= HPC_NOTIFY_DEPTH);
    CHECK_STATUS(status, HPC_ERR_TIMEOUT);
    CHECK(ranks_error_waits_for(0));
    rank_set(r, 1, 1);
    CHECK_OK(hpc_exchange_start(e, 1, HPC_PULL, NULL, -1, &pulled));
    if (first) CHECK_OK(hpc_exchange_start(e, 2, BOTH, src, -1, &pushed));
    CHECK_OK(hpc_exchange_wait(e, 1, pulled, -1));
    CHECK_OK(hpc_exchange_wait(e, 2, pushed, -1));
    reference_check(&ref, r, e, 1);
    reference_step(&ref, 2);
    reference_check(&ref, r, e, 2);
    for (int step = 1; step < 4; step++) {
        job_push_pull(r, &j, e, 2, step);
        reference_step(&ref, 2);
        reference_check(&ref, r, e, 2);
    }
    free(src);
    reference_free(&ref);
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD, DEDICATED = 4, THREADS = 8 };
    static const ranks_case cases[] = {
        {.name = "bsp_waits_for_all", .size = 3, .run = bsp_waits_for_all, .arg = INLINE},
        {.name = "bsp_waits_for_all_thread", .size = 3, .run = bsp_waits_for_all, .arg = THREAD},
        {.name = "bsp_pull_alone", .size = 3, .run = bsp_pull_alone, .arg = INLINE},
        {.name = "bsp_pull_alone_thread", .size = 2, .run = bsp_pull_alone, .arg = THREAD},
        {.name = "many_keys", .size = 3, .run = many_keys, .arg = INLINE},
        {.name = "many_keys_sleepy", .size = 4, .run = many_keys, .arg = INLINE, .sleepy = true},
        {.name = "many_keys_thread", .size = 2, .run = many_keys, .arg = THREAD},
        {.name = "served_from_barrier", .size = 3, .run = served_from_elsewhere, .arg = IN_BARRIER},
        {.name = "served_from_wait_signal", .size = 3, .run = served_from_elsewhere, .arg = IN_WAIT_SIGNAL},
        {.name = "served_from_wait_event", .size = 3, .run = served_from_elsewhere, .arg = IN_WAIT_EVENT},
        {.name = "served_from_recv", .size = 3, .run = served_from_elsewhere, .arg = IN_RECV, .sleepy = true},
        {.name = "served_from_allgather", .size = 3, .run = served_from_elsewhere, .arg = IN_ALLGATHER},
        {.name = "served_from_create", .size = 3, .run = served_from_elsewhere, .arg = IN_CREATE},
        {.name = "served_from_exchange_create", .size = 3, .run = served_from_elsewhere, .arg = IN_EXCHANGE},
        {.name = "async_totals", .size = 3, .run = async_totals, .arg = 1},
        {.name = "async_totals_2_thread", .size = 3, .run = async_totals, .arg = 2 + THREADS},
        {.name = "async_totals_2_dedicated", .size = 4, .run = async_totals, .arg = 2 + DEDICATED},
        {.name = "async_totals_3_dedicated_thread", .size = 3, .run = async_totals, .arg = 3 + DEDICATED + THREADS},
        {.name = "async_own_pull", .size = 3, .run = async_own_pull, .arg = INLINE},
        {.name = "async_own_pull_thread", .size = 3, .run = async_own_pull, .arg = THREAD},
        {.name = "async_whole", .size = 4, .run = async_whole, .arg = INLINE},
        {.name = "async_whole_thread", .size = 3, .run = async_whole, .arg = THREAD},
        {.name = "async_slots_1", .size = 2, .run = async_slots, .arg = 1},
        {.name = "async_slots_2", .size = 3, .run = async_slots, .arg = 2},
        {.name = "start_goes_on", .size = 2, .run = start_goes_on},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
