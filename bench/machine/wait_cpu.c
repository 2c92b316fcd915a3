/* wait_cpu.c - the share of a core that a rank uses while it waits for a signal. */
#define _GNU_SOURCE
#include "c_ranks.h"

#include <sys/resource.h>

BENCH_API double bench_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Waits for value. *cpu gets the processor seconds of the whole process meanwhile. Returns the wrong words. */
BENCH_API int64_t bench_wait(hpc_window *window, int peer, uint64_t value, double timeout, double *seconds,
                             double *cpu) {
    uint64_t got = 0;
    double start = bench_now(), before = bench_cpu_seconds();
    int status = hpc_wait_signal(window, 0, value, peer, timeout, &got);
    *cpu = bench_cpu_seconds() - before;
    *seconds = bench_now() - start;
    return status != HPC_OK ? status : got != value;
}

BENCH_API int bench_raise(hpc_window *window, int peer, uint64_t value) {
    return hpc_put_signal(NULL, window, peer, NULL, 0, 0, 0, value);
}

#ifndef BENCH_LIBRARY
static int run(bench_rank *r) {
    hpc_window *window = NULL;
    double seconds = 0, cpu = 0;
    int64_t wrong = 0;
    int status = hpc_window_create(r->context, 0, 1, "wait_cpu", -1, &window);
    if (status >= 0) status = bench_meet(r);
    if (status >= 0 && r->rank == 0) {
        struct timespec pause = {r->options.iters, 0};
        nanosleep(&pause, NULL);
        status = bench_raise(window, 1, 1);
    } else if (status >= 0 && r->rank == 1) {
        wrong = bench_wait(window, 0, 1, r->options.iters + r->options.timeout, &seconds, &cpu);
        if (wrong < 0) status = (int)wrong;
        printf(r->options.json
                   ? "{\"name\": \"hpcomm C\", \"seconds\": %.3f, \"core_percent\": %.3f, \"wrong\": %lld}\n"
                   : "# waited %.3f s, took %.3f%% of a core, #wrong %lld\n",
               seconds, 100 * cpu / seconds, (long long)wrong);
        fflush(stdout);
    }
    if (status >= 0) status = bench_meet(r);
    hpc_window_free(window);
    return status;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 8,
                              .maxbytes = 8,
                              .stepfactor = 8,
                              .iters = 10,
                              .warmup_iters = 1,
                              .agg_iters = 1,
                              .run_cycles = 1,
                              .ranks = 2,
                              .timeout = 30};
    return bench_main(argc, argv, "wait_cpu", defaults, run);
}
#endif
