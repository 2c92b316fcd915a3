/* A worker or a server that dies, leaves, stops or closes, at any moment: every call of every other rank ends, and says
 * who it was. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "exchange_plans.h"

enum { VICTIM = 1, SECONDS = 10, BOTH = HPC_PUSH | HPC_PULL };

/* The calls of the survivors (0 and 2). Each needs rank 1 to go on. */
typedef enum wait_kind {
    WAIT,      /* for the victim's push */
    PUSH_PULL, /* the same in one call */
    OWNER,     /* all have pushed; the victim owns the rows */
    PULL,      /* ASYNC, from the victim */
    GRADIENT,  /* ASYNC, a slot that the victim has not read */
    START,     /* ASYNC, more events than the victim looks at */
    SERVE,     /* rank 0 serves, the victim has not closed */
    PUBLISH,   /* a collective */
    CLOSE,     /* ASYNC: they serve the victim until it has closed */
    RELAY,     /* a plan in which the victim hands on what it gets */
    CREATE,    /* another exchange */
    WAIT_KINDS
} wait_kind;

static void job_of(job *j, const rank *r, wait_kind kind, int progress) {
    static _Thread_local hand_plan relay;
    job_init(j, r);
    if (kind == RELAY) {
        hand_relay(&relay, j, r->size, 1024);
        j->plan = &relay.plan;
    }
    j->progress = progress;
    if (kind == OWNER || kind == PULL || kind == GRADIENT || kind == START) j->servers[0] = VICTIM, j->n_servers = 1;
    j->each = kind == PULL || kind == GRADIENT || kind == START || kind == CLOSE;
    if (kind == SERVE) {
        j->n_servers = 1;
        j->n_workers = r->size - 1;
        for (int i = 0; i < j->n_workers; i++) j->workers[i] = i + 1;
    }
}

/* A step of all keys, so that everything has run once. Then nobody is in any call. */
static hpc_exchange *open_and_step(rank *r, const job *j) {
    hpc_exchange *e = job_open(r, j);
    for (int key = 0; key < j->n_keys && job_works(j, r->rank); key++) job_push_pull(r, j, e, key, 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    rank_meet(r);
    return e;
}

static int push_and_wait(rank *r, hpc_exchange *e, int flags, double timeout) {
    static const float src[5000];
    uint64_t ticket;
    (void)r;
    int status = hpc_exchange_start(e, 2, flags, flags & HPC_PUSH ? src : NULL, timeout, &ticket);
    return status ? status : hpc_exchange_wait(e, 2, ticket, timeout);
}

/* Waits for the victim. Of what comes before the wait, any call may be the first to fail. */
static int wait_once(rank *r, const job *j, hpc_exchange *e, wait_kind kind, double timeout) {
    static const float src[5000];
    uint64_t ticket;
    void *gradient;
    hpc_exchange *other = NULL;
    int status = HPC_OK;
    switch (kind) {
    case WAIT:
        return push_and_wait(r, e, BOTH, timeout);
    case PUSH_PULL:
    case OWNER:
    case RELAY:
        return hpc_exchange_push_pull(e, 2, src, timeout);
    case PULL:
        return push_and_wait(r, e, HPC_PULL, timeout);
    case GRADIENT:
        status = hpc_exchange_start(e, 2, HPC_PUSH, src, timeout, &ticket);
        return status ? status : hpc_exchange_gradient(e, 2, timeout, &gradient);
    case START:
        for (int i = 0; i <= HPC_NOTIFY_DEPTH && status == HPC_OK; i++)
            status = hpc_exchange_start(e, i % 3, HPC_PULL, NULL, timeout, &ticket);
        return status;
    case SERVE:
        return r->rank == 0 ? hpc_exchange_serve(e, timeout) : push_and_wait(r, e, BOTH, timeout);
    case PUBLISH:
        return hpc_exchange_publish(e, timeout);
    case CLOSE:
        return hpc_exchange_close(e, timeout);
    default:
        return job_create(r, j, timeout, &other);
    }
}

/* The victim's threads may serve until it is dead. */
static int wait_for_victim(rank *r, const job *j, hpc_exchange *e, wait_kind kind, double timeout) {
    double end = ranks_now() + SECONDS;
    int status;
    do status = wait_once(r, j, e, kind, timeout);
    while (status == HPC_OK && j->progress == HPC_PROGRESS_THREAD && ranks_now() < end);
    return status;
}

static void check_names_victim(int status, double begin) {
    const hpc_error *e = hpc_last_error();
    CHECK_STATUS(status, HPC_ERR_PEER);
    if (!ranks_error_names(VICTIM)) fprintf(stderr, "not named: %s\n", e->message);
    CHECK(ranks_error_names(VICTIM));
    CHECK(strchr(e->message, '0' + VICTIM));
    CHECK(e->op[0]);
    CHECK(ranks_now() - begin < SECONDS / 2); /* long before the timeout */
}

static void survivors_meet(rank *r, uint64_t word) {
    rank_set(r, r->rank, word);
    for (int i = 0; i < r->size; i++) {
        if (i != VICTIM) rank_await(r, i, word);
    }
}

static void free_in_time(hpc_exchange *e) {
    double begin = ranks_now();
    hpc_exchange_free(e);
    CHECK(ranks_now() - begin < SECONDS / 2);
}

/* arg: kind + 16 * progress. Killed, or aborts, while the others wait or before they do. */
static void dies(rank *r) {
    wait_kind kind = r->arg % 16;
    job j;
    job_of(&j, r, kind, r->arg / 16);
    hpc_exchange *e = open_and_step(r, &j);
    if (r->rank == VICTIM) {
        rank_die(r);
        hpc_exchange_free(e);
        return;
    }
    double begin = ranks_now();
    check_names_victim(wait_for_victim(r, &j, e, kind, -1), begin);
    survivors_meet(r, 1); /* nobody leaves before the other has seen who died */
    begin = ranks_now();
    int status = kind == START ? wait_once(r, &j, e, kind, -1) /* and now that it is known */
                               : hpc_exchange_push_pull(e, 1, hpc_exchange_params(e, 1), -1);
    CHECK(status < 0);
    if (job_works(&j, r->rank) && kind != CLOSE) check_names_victim(status, begin);
    survivors_meet(r, 2);
    free_in_time(e);
}

/* Closes its context properly: whoever waits for it is told. */
static void leaves(rank *r) {
    wait_kind kind = r->arg % 16;
    job j;
    job_of(&j, r, kind, r->arg / 16);
    hpc_exchange *e = open_and_step(r, &j);
    if (r->rank == VICTIM) {
        CHECK_OK(hpc_context_close(r->context));
        hpc_exchange_free(e);
        return;
    }
    double begin = ranks_now();
    check_names_victim(wait_for_victim(r, &j, e, kind, -1), begin);
    survivors_meet(r, 1);
    free_in_time(e);
}

/* Stops: nobody died, nobody moves. */
static void stops(rank *r) {
    wait_kind kind = r->arg % 16;
    job j;
    job_of(&j, r, kind, r->arg / 16);
    hpc_exchange *e = open_and_step(r, &j);
    if (r->rank == VICTIM) raise(SIGSTOP);
    double begin = ranks_now();
    CHECK_STATUS(wait_for_victim(r, &j, e, kind, 0.5), HPC_ERR_TIMEOUT);
    bool mapped =
        strcmp(r->mode->transports, "shm") == 0; /* else an owner that waits itself may be all that is known */
    CHECK(ranks_error_waits_for(VICTIM) || (!mapped && (kind == RELAY || (kind == SERVE && r->rank != 0))));
    if (mapped) CHECK_EQ(hpc_last_error()->n_waiting, kind == SERVE && r->rank == 0 ? 2 : 1); /* no worker has closed */
    CHECK(hpc_last_error()->n_waiting > 0);
    CHECK(hpc_last_error()->op[0]);
    CHECK(ranks_now() - begin > 0.4 && ranks_now() - begin < 5);
    survivors_meet(r, 1);
    _exit(0); /* a free would wait for the one that stopped */
}

/* ---- moments ------------------------------------------------------------------------------------------------------
 */

/* Steps until one fails; the sentence names the victim. Returns whole steps. */
static int step_until_it_fails(rank *r, const job *j, hpc_exchange *e) {
    double begin = ranks_now();
    for (int step = 0;; step++) {
        for (int i = 0; i < j->n_keys; i++) {
            int key = (i + r->rank) % j->n_keys, status;
            float *src = malloc(j->keys[key].count * sizeof *src);
            uint64_t ticket;
            job_fill(j, r->rank, step, key, src);
            status = hpc_exchange_start(e, key, BOTH, src, -1, &ticket);
            free(src);
            if (status == HPC_OK && i % 2) status = hpc_exchange_test(e, key, ticket);
            if (status >= 0 && i == j->n_keys - 1) {
                for (int k = 0; k < j->n_keys && status >= 0; k++) {
                    status = hpc_exchange_start(e, k, HPC_PULL, NULL, -1, &ticket);
                    if (status == HPC_OK) status = hpc_exchange_wait(e, k, ticket, -1);
                }
            }
            if (status >= 0) continue;
            CHECK_EQ(status, HPC_ERR_PEER);
            CHECK(ranks_error_names(VICTIM));
            CHECK(ranks_now() - begin < SECONDS);
            return step;
        }
    }
}

/* After its push, which may still be applied: the step after it surely fails. */
static void dies_after_push(rank *r) {
    job j;
    job_of(&j, r, r->arg % 16, r->arg / 16);
    hpc_exchange *e = open_and_step(r, &j);
    if (r->rank == VICTIM) {
        for (int key = 0; key < j.n_keys; key++) job_start(r, &j, e, key, 1, BOTH, key % 2);
        rank_die(r);
        hpc_exchange_free(e);
        return;
    }
    CHECK(step_until_it_fails(r, &j, e) < 2);
    survivors_meet(r, 1);
    free_in_time(e);
}

typedef struct killer {
    rank *r;
    int after; /* steps of rank 0 */
} killer;

static void *kill_later(void *arg) {
    killer *k = arg;
    rank_await(k->r, 10, (uint64_t)k->after);
    rank_die(k->r);
    return NULL;
}

/* arg: kind + 16 * progress + 64 * steps. By another thread, while it waits or serves, with everything under way. */
static void dies_under_way(rank *r) {
    job j;
    job_of(&j, r, r->arg % 16, r->arg / 16 % 4);
    hpc_exchange *e = job_open(r, &j);
    rank_meet(r);
    if (r->rank == VICTIM) {
        killer k = {r, r->arg / 64 + 1};
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, kill_later, &k), 0);
        if (!job_works(&j, r->rank))
            CHECK(hpc_exchange_serve(e, -1) < 0);
        else {
            static const float src[5000];
            for (int i = 0, status = HPC_OK; status == HPC_OK; i++) status = hpc_exchange_push_pull(e, i % 3, src, -1);
        }
        CHECK_EQ(pthread_join(thread, NULL), 0);
        hpc_exchange_free(e);
        return;
    }
    double begin = ranks_now();
    static const float src[5000];
    int status = HPC_OK;
    if (!job_works(&j, r->rank)) status = hpc_exchange_serve(e, -1);
    for (int i = 0; status == HPC_OK; i++) {
        status = hpc_exchange_push_pull(e, i % 3, src, -1);
        if (status == HPC_OK) atomic_fetch_add(&r->board[10], 1);
    }
    CHECK_EQ(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    CHECK(ranks_now() - begin < SECONDS);
    survivors_meet(r, 1);
    free_in_time(e);
}

/* The only one that waits is the one that is killed; the others are told in the next thing they do. */
static void dies_waiting(rank *r) {
    job j;
    job_init(&j, r);
    j.progress = r->arg;
    hpc_exchange *e = open_and_step(r, &j);
    if (r->rank == VICTIM) {
        killer k = {r, 1};
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, kill_later, &k), 0);
        uint64_t ticket = job_start(r, &j, e, 2, 1, BOTH, true);
        rank_set(r, 11, 1);
        CHECK(hpc_exchange_wait(e, 2, ticket, -1) < 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        hpc_exchange_free(e);
        return;
    }
    progress_until(r, e, 11, 1);
    rank_set(r, 10, 1);
    double begin = ranks_now();
    CHECK_STATUS(hpc_barrier(r->context, -1), HPC_ERR_PEER);
    check_names_victim(wait_for_victim(r, &j, e, r->rank ? WAIT : PUSH_PULL, -1), begin);
    survivors_meet(r, 1);
    free_in_time(e);
}

/* ---- closed -------------------------------------------------------------------------------------------------------
 */

/* arg: progress. What the victim pushed before it closed counts; what it did not push never comes, and that is said.
 * The group goes on. */
static void closes(rank *r) {
    job j;
    reference ref;
    job_init(&j, r);
    j.progress = r->arg;
    j.servers[0] = 0, j.servers[1] = 2, j.n_servers = 2;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    uint64_t ticket = job_start(r, &j, e, 0, 0, BOTH, false);
    if (r->rank == VICTIM) {
        CHECK_OK(hpc_exchange_close(e, -1));
        rank_set(r, 10, 1);
    } else {
        progress_until(r, e, 10, 1);
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        reference_step(&ref, 0);
        reference_check(&ref, r, e, 0);
        for (int i = 0; i < 2; i++) {
            double begin = ranks_now();
            ticket = 0;
            int status = hpc_exchange_start(e, 2, BOTH, ref.params[2], -1, &ticket);
            if (status == HPC_OK) status = hpc_exchange_wait(e, 2, ticket, -1);
            CHECK(status == HPC_ERR_PEER || (i && status == HPC_ERR_INVALID)); /* the second push of the key */
            if (!i) {
                check_names_victim(status, begin);
                CHECK_MESSAGE("closed");
                CHECK_MESSAGE("k2");
            }
        }
        reference_check(&ref, r, e, 2); /* nothing of it was applied */
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    reference_free(&ref);
    hpc_exchange_free(e);
}

/* arg: 1: ASYNC. Rank 1 only serves, and frees its exchange instead: who needs its rows is told, the group goes on. */
static void frees(rank *r) {
    job j;
    job_init(&j, r);
    j.each = r->arg;
    j.servers[0] = VICTIM, j.n_servers = 1;
    j.workers[1] = 2, j.n_workers = 2;
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == VICTIM)
        hpc_exchange_free(e);
    else {
        static const float src[5000];
        double begin = ranks_now();
        check_names_victim(hpc_exchange_push_pull(e, 2, src, -1), begin);
        CHECK_MESSAGE("freed");
        CHECK_MESSAGE("k2");
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank != VICTIM) free_in_time(e);
}

int main(int argc, char **argv) {
    enum { INLINE = 16 * HPC_PROGRESS_INLINE, THREAD = 16 * HPC_PROGRESS_THREAD, STEPS = 64 };
    static const char *const kinds[WAIT_KINDS] = {"wait",  "push_pull", "owner", "pull",  "gradient", "start",
                                                  "serve", "publish",   "close", "relay", "create"};
    static ranks_case cases[4 * WAIT_KINDS + 24];
    static char names[4 * WAIT_KINDS][40];
    const ranks_case any = {.size = 3, .victims = 1 << VICTIM, .timeout = SECONDS};
    int n = 0;
    for (int kind = 0; kind < WAIT_KINDS; kind++) {
        for (int i = 0; i < 4; i++) {
            static const char *const how[] = {"dies", "dies_thread", "leaves", "stops"};
            snprintf(names[n], sizeof names[n], "%s_%s", how[i], kinds[kind]);
            cases[n] = any;
            cases[n].name = names[n];
            cases[n].run = i == 3 ? stops : i == 2 ? leaves : dies;
            cases[n].arg = kind + (i == 1 ? THREAD : INLINE);
            if (i == 3) cases[n].where = RANKS_PROCESSES;
            if (i == 2) cases[n].victims = 0, cases[n].apart = true;
            n++;
        }
    }
    const ranks_case more[] = {
        {.name = "dies_after_push", .run = dies_after_push, .arg = WAIT + INLINE},
        {.name = "dies_after_push_thread", .run = dies_after_push, .arg = WAIT + THREAD},
        {.name = "dies_after_push_owner", .run = dies_after_push, .arg = OWNER + INLINE},
        {.name = "dies_under_way_0", .run = dies_under_way, .arg = WAIT + INLINE},
        {.name = "dies_under_way_40", .run = dies_under_way, .arg = WAIT + INLINE + 40 * STEPS},
        {.name = "dies_under_way_51_thread", .run = dies_under_way, .arg = WAIT + THREAD + 51 * STEPS},
        {.name = "dies_under_way_owner", .run = dies_under_way, .arg = OWNER + INLINE + 33 * STEPS},
        {.name = "dies_under_way_served", .run = dies_under_way, .arg = SERVE + INLINE + 7 * STEPS},
        {.name = "dies_under_way_pull", .run = dies_under_way, .arg = PULL + INLINE + 60 * STEPS},
        {.name = "dies_waiting", .run = dies_waiting, .arg = HPC_PROGRESS_INLINE},
        {.name = "dies_waiting_thread", .run = dies_waiting, .arg = HPC_PROGRESS_THREAD},
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++, n++) {
        cases[n] = any;
        cases[n].name = more[i].name, cases[n].run = more[i].run, cases[n].arg = more[i].arg;
    }
    cases[n++] = (ranks_case){.name = "frees", .size = 3, .run = frees};
    cases[n++] = (ranks_case){.name = "frees_async", .size = 3, .run = frees, .arg = 1};
    cases[n++] = (ranks_case){.name = "closes", .size = 3, .run = closes, .arg = HPC_PROGRESS_INLINE};
    cases[n++] = (ranks_case){.name = "closes_thread", .size = 3, .run = closes, .arg = HPC_PROGRESS_THREAD};
    return ranks_main(argc, argv, cases);
}
