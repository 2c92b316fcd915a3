/* Rows are read and written between two updates, whichever thread works for their core; parameters are published while
 * nothing is under way anywhere. */
#include <pthread.h>
#include <sched.h>

#include "exchange_plans.h"

enum { BOTH = HPC_PUSH | HPC_PULL };

/* ---- between two updates ---------------------------------------------------------------------------------------- */

enum { COUNT = 2000, STEPS = 3 };

/* How far an update of rank 0's only row has come, and what its trainer does meanwhile. */
typedef struct gate {
    _Atomic int inside, asked, answered;
} gate;
static gate gates[STEPS];

/* Adds 1 to one half, gives the trainer time to look at the row or to write it, and adds 1 to the other half. A trainer
 * that is held until the row is whole does not answer before its time is over. */
static int add_by_halves(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    gate *at = &gates[(int)args[0] % STEPS];
    (void)count, (void)state;
    for (int64_t i = 0; i < n / 2; i++) param[i] += acc[i];
    atomic_store(&at->inside, 1);
    while (!atomic_load(&at->asked)) sched_yield();
    for (double end = ranks_now() + 0.05; !atomic_load(&at->answered) && ranks_now() < end;) sched_yield();
    for (int64_t i = n / 2; i < n; i++) param[i] += acc[i];
    return 0;
}

static void *wait_for_end(void *arg) {
    CHECK_OK(hpc_wait_signal(arg, 0, 1, 0, -1, NULL));
    return NULL;
}

static void ask(gate *at) {
    while (!atomic_load(&at->inside)) sched_yield();
    atomic_store(&at->asked, 1);
}

static void check_all(const float *row, float expected) {
    for (int i = 0; i < COUNT; i++) CHECK(row[i] == expected);
}

/* arg: progress. Inline, a wait of another thread of rank 0 works for the row, and that for something else. */
static void another_thread(rank *r) {
    float *row = calloc(COUNT, sizeof *row);
    const hpc_rule rule = {.name = "add by halves", .apply = add_by_halves};
    hpc_exchange_config c;
    hpc_exchange *e = NULL;
    hpc_window *w;
    uint64_t step, folded;
    job j;
    job_init(&j, r);
    j.each = 1, j.n_servers = 1, j.workers[0] = 1, j.n_workers = 1, j.chunk = COUNT * sizeof(float);
    j.n_keys = 1, j.keys[0].count = COUNT;
    hpc_exchange_config_init(&c);
    c.consistency = HPC_ASYNC, c.progress = r->arg, c.rule = &rule;
    if (r->rank == 0) memset(gates, 0, sizeof gates);
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    CHECK_OK(job_create_with(r, &j, &c, -1, &e));
    if (r->rank == 1) {
        for (int i = 0; i < COUNT; i++) row[i] = 1;
        rank_await(r, 0, 1);
        for (int n = 0; n < STEPS; n++) CHECK_OK(hpc_exchange_push_pull(e, 0, row, -1));
        check_all(hpc_exchange_params(e, 0), 52);
        CHECK_OK(hpc_put_signal(NULL, w, 0, NULL, 0, 0, 0, 1));
        CHECK_OK(hpc_exchange_close(e, -1));
    } else {
        pthread_t thread;
        CHECK_OK(hpc_exchange_set_row(e, 0, 0, row, NULL));
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_end, w), 0);
        rank_set(r, 0, 1);
        ask(&gates[1]);
        CHECK_OK(hpc_exchange_get_row(e, 0, &step, row, NULL));
        atomic_store(&gates[1].answered, 1);
        CHECK_EQ(step, 1);
        check_all(row, 1);
        ask(&gates[2]);
        for (int i = 0; i < COUNT; i++) row[i] = 51;
        CHECK_OK(hpc_exchange_set_row(e, 0, 2, row, NULL));
        atomic_store(&gates[2].answered, 1);
        ask(&gates[3 % STEPS]);
        CHECK_OK(hpc_exchange_get_folded(e, 1, &folded));
        atomic_store(&gates[3 % STEPS].answered, 1);
        CHECK_EQ(folded, 3);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_OK(hpc_exchange_get_row(e, 0, &step, row, NULL));
        CHECK_EQ(step, 3);
        check_all(row, 52);
        CHECK_OK(hpc_exchange_serve(e, -1));
    }
    hpc_exchange_free(e);
    hpc_window_free(w);
    free(row);
}

/* ---- publish ---------------------------------------------------------------------------------------------------- */

/* arg: progress. Publish is refused on every rank while a push of one is under way. */
static void nothing_under_way(rank *r) {
    const double args[HPC_RULE_ARGS] = {0, 0.25};
    reference ref;
    uint64_t ticket = 0;
    job j;
    job_init(&j, r);
    j.progress = r->arg, j.n_servers = 1;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    if (r->rank == 1) ticket = job_start(r, &j, e, 0, 0, BOTH, false);
    CHECK_STATUS(hpc_exchange_publish(e, -1), HPC_ERR_INVALID);
    CHECK_MESSAGE("key k0 is under way on rank 1");
    if (r->rank != 1) ticket = job_start(r, &j, e, 0, 0, BOTH, false);
    CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
    CHECK_OK(hpc_exchange_publish(e, -1));
    reference_step(&ref, 0);
    for (int key = 0; key < j.n_keys; key++) reference_check(&ref, r, e, key);

    CHECK_OK(hpc_exchange_set_args(e, -1, args)); /* nothing is under way for it */
    CHECK_OK(hpc_exchange_publish(e, -1));
    j.args[1] = args[1];
    job_push_pull(r, &j, e, 0, 1);
    reference_step(&ref, 0);
    for (int key = 0; key < j.n_keys; key++) reference_check(&ref, r, e, key);
    reference_free(&ref);
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "another_thread", .size = 2, .run = another_thread, .arg = INLINE},
        {.name = "another_thread_core", .size = 2, .run = another_thread, .arg = THREAD},
        {.name = "nothing_under_way", .size = 3, .run = nothing_under_way, .arg = INLINE},
        {.name = "nothing_under_way_core", .size = 3, .run = nothing_under_way, .arg = THREAD},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
