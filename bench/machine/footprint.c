/* footprint.c - a rank's memory for its peers, besides its windows: the growth of /proc/self/smaps_rollup from
 * before the context until the context is connected, until a window exists, and until something was put to every
 * peer. */
#define _GNU_SOURCE
#include "c_ranks.h"

#ifndef BENCH_LIBRARY
enum { WINDOW_BYTES = 1 << 20, SLOT_BYTES = 64 };

/* Reports the growth. windows: memory of the windows, which is subtracted; NULL: there are no windows. */
static int report(bench_rank *r, const char *name, const bench_memory *windows) {
    struct {
        int64_t private_dirty, pss, kernel;
    } own, all[BENCH_RANKS_MAX], most = {0, 0, 0};
    bench_memory now, none = {0, 0, 0};
    int status = hpc_barrier(r->context, r->options.timeout); /* all ranks have reached this stage */
    if (status != HPC_OK) return status;
    bench_measure_memory(&now);
    if (windows == NULL) windows = &none;
    own.private_dirty = (int64_t)(now.private_dirty - r->before.private_dirty - windows->private_dirty);
    own.pss = (int64_t)(now.pss - r->before.pss - windows->pss);
    own.kernel = (int64_t)(now.kernel - r->before.kernel) / r->size;
    status = hpc_allgather(r->context, &own, all, sizeof own, r->options.timeout);
    if (status != HPC_OK) return status;
    for (int p = 0; p < r->size; p++) {
        if (all[p].private_dirty > most.private_dirty) most.private_dirty = all[p].private_dirty;
        if (all[p].pss > most.pss) most.pss = all[p].pss;
        if (all[p].kernel > most.kernel) most.kernel = all[p].kernel;
    }
    if (r->rank == 0)
        printf(r->options.json ? "{\"name\": \"%s\", \"private_dirty\": %lld, \"pss\": %lld, \"kernel\": %lld}\n"
                               : "%-28s %14lld %14lld %14lld\n",
               name, (long long)most.private_dirty, (long long)most.pss, (long long)most.kernel);
    return fflush(stdout);
}

/* Measures the memory of windows: this rank's and, if mapped, a part of each peer's. They are the mappings with the
 * same length as the one that holds data. */
static void measure_windows(const void *data, bench_memory *m) {
    unsigned long long first, last, length = 0, kib;
    char line[256];
    for (int pass = 0; pass < 2; pass++) {
        FILE *file = fopen("/proc/self/smaps", "re");
        int counted = 0;
        while (file != NULL && fgets(line, sizeof line, file) != NULL) {
            if (sscanf(line, "%llx-%llx ", &first, &last) == 2) {
                if (pass == 0 && (uintptr_t)data >= first && (uintptr_t)data < last) length = last - first;
                counted = pass == 1 && last - first == length;
            }
            if (counted && sscanf(line, "Pss: %llu", &kib) == 1) m->pss += kib << 10;
            if (counted && sscanf(line, "Private_Dirty: %llu", &kib) == 1) m->private_dirty += kib << 10;
        }
        if (file != NULL) fclose(file);
    }
    if (m->pss > WINDOW_BYTES) m->pss = WINDOW_BYTES; /* signals and the like are hpcomm's */
    if (m->private_dirty > WINDOW_BYTES) m->private_dirty = WINDOW_BYTES;
}

/* Puts a word and a signal to every peer; returns when all have arrived and all sources may be reused. */
static int put_to_all(bench_rank *r, hpc_window *window) {
    double timeout = r->options.timeout;
    uint64_t value = bench_word((uint64_t)r->rank), wrong = 0;
    const char *data = hpc_window_data(window);
    int status = HPC_OK;
    for (int p = 0; status == HPC_OK && p < r->size; p++)
        status = hpc_put_signal(NULL, window, p, &value, sizeof value, (size_t)r->rank * SLOT_BYTES, r->rank, 1);
    if (status == HPC_OK) status = hpc_flush(NULL, window, -1, timeout);
    for (int p = 0; status == HPC_OK && p < r->size; p++) {
        status = hpc_wait_signal(window, p, 1, p, timeout, NULL);
        memcpy(&value, data + (size_t)p * SLOT_BYTES, sizeof value);
        wrong += value != bench_word((uint64_t)p);
    }
    if (status == HPC_OK && wrong > 0) {
        fprintf(stderr, "rank %d: %llu words are not what was put\n", r->rank, (unsigned long long)wrong);
        return HPC_ERR_TRANSPORT;
    }
    return status;
}

static int run(bench_rank *r) {
    bench_memory windows = {0, 0, 0};
    hpc_window *window = NULL;
    int status = report(r, "after init", NULL);
    if (status == HPC_OK) status = hpc_window_create(r->context, WINDOW_BYTES, r->size, "footprint", -1, &window);
    if (status == HPC_OK) {
        memset(hpc_window_data(window), 1, WINDOW_BYTES); /* all of it is there */
        measure_windows(hpc_window_data(window), &windows);
        status = report(r, "with a window", &windows);
    }
    if (status == HPC_OK) status = put_to_all(r, window);
    if (status == HPC_OK) status = report(r, "after a put to every peer", &windows);
    hpc_window_free(window);
    return status;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 8,
                              .maxbytes = 8,
                              .stepfactor = 2,
                              .iters = 1,
                              .warmup_iters = 1,
                              .agg_iters = 1,
                              .run_cycles = 1,
                              .ranks = 64,
                              .timeout = 60,
                              .heading = "the most of all ranks, bytes beyond windows\n"
                                         "# when                        private dirty            PSS   kernel's part"};
    return bench_main(argc, argv, "footprint", defaults, run);
}
#endif
