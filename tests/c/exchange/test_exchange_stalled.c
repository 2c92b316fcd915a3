/* Under ASYNC a worker that stands still while parameters are on their way to it delays nobody else. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "exchange_plans.h"

/* No socket's buffers hold so many values. */
enum { COUNT = 2 << 20, STEPS = 2, STALLED = 2, FIRST_WORD = 8 };

enum { HAS_STOPPED = FIRST_WORD, IS_SENT, OTHERS_DONE };

static void await_stop(pid_t pid) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    while (state != 'T') {
        FILE *f = fopen(path, "r");
        CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
        fclose(f);
        sched_yield();
    }
}

/* Rank 0 serves only, and sends rank 2 what it pulls while that is stopped. */
static void serve(rank *r, hpc_exchange *e) {
    hpc_exchange_stats stats = {0};
    await_stop((pid_t)rank_await(r, HAS_STOPPED, 1));
    while (stats.bytes_written == 0) {
        CHECK_OK(hpc_exchange_progress(e));
        CHECK_OK(hpc_exchange_get_stats(e, &stats));
    }
    rank_set(r, IS_SENT, 1);
    progress_until(r, e, OTHERS_DONE, 1);
    CHECK_EQ(kill((pid_t)rank_await(r, HAS_STOPPED, 1), SIGCONT), 0);
    CHECK_OK(hpc_exchange_serve(e, -1));
}

/* The parameters after so many steps of rank 1, who alone pushes; each element is of them. */
static void check_after(const rank *r, const job *j, hpc_exchange *e, int steps) {
    reference ref;
    double *sum = malloc(COUNT * sizeof *sum);
    reference_init(&ref, j);
    for (int step = 0; step < steps; step++) {
        for (uint64_t i = 0; i < COUNT; i++) sum[i] = (double)job_gradient(j, 1, step, 0, i);
        reference_apply(&ref, 0, sum);
    }
    reference_check(&ref, r, e, 0);
    reference_free(&ref);
    free(sum);
}

/* arg: progress + 8 * how many pulls rank 2 has under way. The second one is answered when the first has come. */
static void one_stands_still(rank *r) {
    uint64_t ticket = 0;
    job j;
    job_init(&j, r);
    j.each = 1, j.n_servers = 1, j.progress = r->arg % 8, j.chunk = COUNT * sizeof(float);
    j.n_keys = 1, j.keys[0].count = COUNT;
    j.n_workers = 2, j.workers[0] = 1, j.workers[1] = STALLED;
    hpc_exchange *e = job_open(r, &j);
    if (r->rank == 0) {
        serve(r, e);
    } else if (r->rank == STALLED) {
        for (int i = 0; i < r->arg / 8; i++) CHECK_OK(hpc_exchange_start(e, 0, HPC_PULL, NULL, -1, &ticket));
        rank_set(r, HAS_STOPPED, (uint64_t)getpid());
        raise(SIGSTOP);
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        check_after(r, &j, e, r->arg / 8 == 1 ? 0 : STEPS);
        CHECK_OK(hpc_exchange_start(e, 0, HPC_PULL, NULL, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(e, 0, ticket, -1));
        check_after(r, &j, e, STEPS);
        CHECK_OK(hpc_exchange_close(e, -1));
    } else {
        rank_await(r, IS_SENT, 1);
        for (int step = 0; step < STEPS; step++) job_push_pull(r, &j, e, 0, step);
        rank_set(r, OTHERS_DONE, 1);
        check_after(r, &j, e, STEPS);
        CHECK_OK(hpc_exchange_close(e, -1));
    }
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    enum { INLINE = HPC_PROGRESS_INLINE, THREAD = HPC_PROGRESS_THREAD };
    static const ranks_case cases[] = {
        {.name = "one_stands_still",
         .size = 3,
         .run = one_stands_still,
         .arg = INLINE + 8,
         .where = RANKS_TCP | RANKS_PROCESSES},
        {.name = "one_stands_still_2",
         .size = 3,
         .run = one_stands_still,
         .arg = INLINE + 16,
         .where = RANKS_TCP | RANKS_PROCESSES},
        {.name = "one_stands_still_thread",
         .size = 3,
         .run = one_stands_still,
         .arg = THREAD + 16,
         .where = RANKS_TCP | RANKS_PROCESSES},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
