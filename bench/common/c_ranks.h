/* c_ranks.h - runs a C benchmark over forked ranks and prints its table. Only the programs include it. */
#ifndef BENCH_C_RANKS_H
#define BENCH_C_RANKS_H

#include "bench.h"

#ifndef BENCH_LIBRARY
#include <getopt.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    BENCH_RANKS_MAX = 256,
    BENCH_CONTENDERS = 4,
    BENCH_SAMPLES = 1 << 16,
    BENCH_CYCLES_MAX = 1000,
    BENCH_DEGREE_MAX = 16,
    BENCH_ADDRESS_BYTES = 4096,
    BENCH_PERIOD = 4093 /* of bench_fill_whole */
};

/* nccl-tests' names. */
typedef struct bench_options {
    size_t minbytes, maxbytes;
    int stepfactor, iters, warmup_iters, agg_iters, run_cycles, ranks, json;
    int power_of_two;                      /* the number of ranks must be a power of two */
    int deaths;                            /* ranks that may end by SIGKILL, because the benchmark kills them */
    int degree, offsets[BENCH_DEGREE_MAX]; /* of the graph; see queue.c */
    double timeout;
    const char *transport; /* NULL: what reaches the peer best */
    const char *heading;   /* heading of a table that does not show times */
} bench_options;

typedef struct bench_series {
    const char *name;
    size_t size;
    int64_t wrong;
    int n, cycles;
    double samples[BENCH_SAMPLES], medians[BENCH_CYCLES_MAX];
} bench_series;

/* This process's own memory, and the kernel's memory for objects and sockets of all processes. */
typedef struct bench_memory {
    uint64_t private_dirty, pss, rss, kernel; /* rss counts pages that this process shares with others in full */
} bench_memory;

typedef struct bench_board {
    _Atomic int started, arrived; /* of bench_arrive */
    unsigned char addresses[BENCH_RANKS_MAX][BENCH_ADDRESS_BYTES];
    bench_line lines[BENCH_RANKS_MAX];
} bench_board;

typedef struct bench_rank {
    hpc_context *context;
    int rank, size;
    bench_memory before;     /* the context was made */
    double begun, connected; /* times of before the context was made and after it was connected */
    double cpu_begun;        /* processor time of this process at begun */
    bench_line *board;       /* one bench_line per rank, shared by all */
    bench_options options;
    double seconds[BENCH_SAMPLES];
    bench_series series[BENCH_CONTENDERS];
} bench_rank;

/* Returns the processor time of all threads of this process. */
static inline double bench_cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns a whole number from 1 to 8, or its negative. Sums of such updates are exact. rank -1: the parameter at
 * first. */
static inline float bench_whole(int rank, uint64_t j) {
    const uint64_t word = bench_word((uint64_t)(rank + 1) * BENCH_PERIOD + j % BENCH_PERIOD);
    return (word & 8 ? -1.0F : 1.0F) * (float)(word % 8 + 1);
}

static inline void bench_fill_whole(float *to, int rank, uint64_t count) {
    for (uint64_t j = 0; j < count && j < BENCH_PERIOD; j++) to[j] = bench_whole(rank, j);
    for (uint64_t j = BENCH_PERIOD; j < count; j++) to[j] = to[j - BENCH_PERIOD];
}

/* Returns the number after name in a file of /proc, times 1024; 0 if there is no such line. */
static inline uint64_t bench_kib(const char *path, const char *name) {
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), " %llu", &kib) == 1) break;
    fclose(file);
    return (uint64_t)kib << 10;
}

static inline void bench_measure_memory(bench_memory *m) {
    static const char *const names[] = {"Rss:", "Pss:", "Private_Dirty:"}; /* in the file's order */
    unsigned long long pages = 0, kib[3] = {0, 0, 0};
    char line[256];
    FILE *file = fopen("/proc/self/smaps_rollup", "re"); /* read once: the kernel walks all pages for it */
    for (int i = 0; file != NULL && i < 3 && fgets(line, sizeof line, file) != NULL;) {
        if (strncmp(line, names[i], strlen(names[i])) != 0) continue;
        sscanf(line + strlen(names[i]), " %llu", &kib[i]);
        i++;
    }
    if (file != NULL) fclose(file);
    m->rss = kib[0] << 10;
    m->pss = kib[1] << 10;
    m->private_dirty = kib[2] << 10;
    file = fopen("/proc/net/sockstat", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *mem = strncmp(line, "TCP:", 4) == 0 ? strstr(line, " mem ") : NULL;
        if (mem != NULL) sscanf(mem, " mem %llu", &pages);
    }
    if (file != NULL) fclose(file);
    m->kernel = bench_kib("/proc/meminfo", "Slab:") + (pages << 12);
}

/* Returns when n ranks have called it equally often with one counter of shared memory, which begins at 0. A rank that
 * waits sleeps: it takes no CPU from those that work. Each call is a barrier. */
static inline void bench_arrive(_Atomic int *counter, int n) {
    const int before = atomic_fetch_add(counter, 1), all = (before / n + 1) * n;
    if (before + 1 == all) syscall(SYS_futex, counter, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    for (int now; (now = atomic_load(counter)) < all;) syscall(SYS_futex, counter, FUTEX_WAIT, now, NULL, NULL, 0);
}

/* Returns whether the ranks share no memory, so that the bound uses sockets. */
static inline int bench_over_wire(const bench_rank *r) {
    hpc_peer peer;
    return hpc_context_peer(r->context, r->rank == 0 ? 1 : 0, &peer) == HPC_OK && strcmp(peer.transport, "shm") != 0;
}

static inline int bench_meet(bench_rank *r) {
    return hpc_barrier(r->context, r->options.timeout);
}

static int bench_ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bench_percentile(double *samples, int n, double percent) {
    if (n == 0) return 0;
    qsort(samples, (size_t)n, sizeof *samples, bench_ascending);
    return samples[(int)(percent / 100 * (n - 1) + 0.5)];
}

/* Adds the n samples of one cycle of contender i. Cycle -1 warms up: only its wrong answers count. */
static inline void bench_add(bench_rank *r, int i, const char *name, size_t size, int cycle, int n, int64_t wrong,
                             double *seconds) {
    bench_series *s = &r->series[i];
    s->name = name;
    s->size = size;
    s->wrong += wrong > 0 ? wrong : 0;
    if (cycle < 0) return;
    if (n > BENCH_SAMPLES - s->n) n = BENCH_SAMPLES - s->n;
    memcpy(s->samples + s->n, seconds, (size_t)n * sizeof *seconds);
    s->n += n;
    s->medians[s->cycles++] = bench_percentile(seconds, n, 50);
}

/* Prints rank 0's times and the wrong answers of all ranks. From the second contender on, it adds the ratio of
 * medians to the first contender, and the smallest and largest ratio of a cycle. Then it empties all series. */
static inline void bench_report(bench_rank *r, size_t size, int contenders) {
    int64_t wrong[BENCH_RANKS_MAX], total = 0;
    bench_series *bound = &r->series[0];
    double bound_time = bench_percentile(bound->samples, bound->n, 50);
    for (int i = 0; i < contenders; i++) {
        bench_series *s = &r->series[i];
        double p50 = bench_percentile(s->samples, s->n, 50) * 1e6, low = 1e30, high = 0;
        double p90 = bench_percentile(s->samples, s->n, 90) * 1e6, p99 = bench_percentile(s->samples, s->n, 99) * 1e6;
        double algbw = p50 > 0 ? (double)s->size / p50 * 1e-3 : 0;
        total = 0;
        if (hpc_allgather(r->context, &s->wrong, wrong, sizeof *wrong, -1) == HPC_OK)
            for (int p = 0; p < r->size; p++) total += wrong[p];
        if (r->rank != 0) continue;
        for (int c = 0; c < s->cycles; c++) {
            double ratio = i > 0 ? s->medians[c] / bound->medians[c] : 1;
            low = ratio < low ? ratio : low;
            high = ratio > high ? ratio : high;
        }
        printf(r->options.json
                   ? "{\"size\": %zu, \"name\": \"%s\", \"time_us\": %.4f, \"algbw\": %.4f, \"wrong\": %lld, "
                     "\"p90_us\": %.4f, \"p99_us\": %.4f, \"ratio\": [%.4f, %.4f, %.4f]}\n"
                   : "%12zu  %-22s %12.3f %9.2f %7lld %12.3f %12.3f   %.3f [%.3f, %.3f]\n",
               size, s->name, p50, algbw, (long long)total, p90, p99, bound_time > 0 ? p50 * 1e-6 / bound_time : 0, low,
               high);
    }
    fflush(stdout);
    memset(r->series, 0, sizeof r->series);
}

/* Returns the bytes of this core's last-level cache; 32 MiB if the system does not report them. */
static inline size_t bench_last_cache(void) {
    size_t last = 0;
    for (int i = 0; i < 8; i++) {
        char path[64];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *file = fopen(path, "re");
        unsigned long kib = 0;
        if (file == NULL) continue;
        if (fscanf(file, "%luK", &kib) == 1 && (size_t)kib << 10 > last) last = (size_t)kib << 10;
        fclose(file);
    }
    return last > 0 ? last : (size_t)32 << 20;
}

static size_t bench_bytes(const char *text) {
    char *end;
    double value = strtod(text, &end);
    int power = *end == 'K' || *end == 'k' ? 10 : *end == 'M' || *end == 'm' ? 20 : *end == 'G' || *end == 'g' ? 30 : 0;
    return (size_t)(value * (double)(1ull << power));
}

static int bench_parse(int argc, char **argv, const char *name, bench_options *o) {
    static const struct option names[] = {{"minbytes", 1, NULL, 'b'},     {"maxbytes", 1, NULL, 'e'},
                                          {"stepfactor", 1, NULL, 'f'},   {"iters", 1, NULL, 'n'},
                                          {"warmup_iters", 1, NULL, 'w'}, {"agg_iters", 1, NULL, 'm'},
                                          {"run_cycles", 1, NULL, 'N'},   {"ranks", 1, NULL, 't'},
                                          {"timeout", 1, NULL, 'T'},      {"json", 0, NULL, 'j'},
                                          {"graph", 1, NULL, 'g'},        {"transport", 1, NULL, 'x'},
                                          {"help", 0, NULL, 'h'},         {NULL, 0, NULL, 0}};
    for (int c; (c = getopt_long(argc, argv, "b:e:f:n:w:m:N:t:T:g:jh", names, NULL)) != -1;) {
        switch (c) {
        case 'b':
            o->minbytes = bench_bytes(optarg);
            break;
        case 'e':
            o->maxbytes = bench_bytes(optarg);
            break;
        case 'f':
            o->stepfactor = atoi(optarg);
            break;
        case 'n':
            o->iters = atoi(optarg);
            break;
        case 'w':
            o->warmup_iters = atoi(optarg);
            break;
        case 'm':
            o->agg_iters = atoi(optarg);
            break;
        case 'N':
            o->run_cycles = atoi(optarg);
            break;
        case 't':
            o->ranks = atoi(optarg);
            break;
        case 'T':
            o->timeout = atof(optarg);
            break;
        case 'g':
            o->degree = 0;
            for (char *at = optarg; *at && o->degree < BENCH_DEGREE_MAX; at += *at == ',')
                o->offsets[o->degree++] = (int)strtol(at, &at, 10);
            break;
        case 'x':
            o->transport = optarg;
            break;
        case 'j':
            o->json = 1;
            break;
        default:
            fprintf(
                c == 'h' ? stdout : stderr,
                "usage: %s [-b minbytes] [-e maxbytes] [-f stepfactor] [-n iters] [-w warmup_iters] [-m agg_iters]\n"
                "       [-N run_cycles] [-t ranks] [-T timeout] [-g offsets] [--transport shm|verbs|tcp] [--json]\n"
                "see bench/README.md\n",
                name);
            return c == 'h' ? 0 : 2;
        }
    }
    o->minbytes &= ~(size_t)7; /* whole words, as nccl-tests rounds to whole elements */
    o->maxbytes &= ~(size_t)7;
    if (o->minbytes < 8 || o->maxbytes < o->minbytes || o->stepfactor < 2 || o->iters < 1 || o->warmup_iters < 1 ||
        o->agg_iters < 1 || o->run_cycles < 1 || o->run_cycles > BENCH_CYCLES_MAX || o->ranks < 2 || o->ranks % 2 ||
        o->ranks > BENCH_RANKS_MAX) {
        fprintf(stderr, "%s: sizes are 8 bytes or more, counts 1 or more, ranks an even number up to %d\n", name,
                BENCH_RANKS_MAX);
        return 2;
    }
    if (o->power_of_two && (o->ranks & (o->ranks - 1)) != 0) {
        fprintf(stderr, "%s: %d ranks: answers are exact for 2, 4, 8 ... ranks only\n", name, o->ranks);
        return 2;
    }
    return -1;
}

/* Runs one rank: makes its context, runs the benchmark, returns its exit status. */
static int bench_live(int rank, const bench_options *options, bench_board *board, int (*run)(bench_rank *)) {
    bench_rank *r = calloc(1, sizeof *r);
    size_t nbytes = hpc_address_size();
    unsigned char *addresses = malloc(nbytes * (size_t)options->ranks);
    hpc_config config;
    int status = HPC_ERR_MEMORY;
    if (nbytes > BENCH_ADDRESS_BYTES)
        fprintf(stderr, "rank %d: addresses of %zu bytes: BENCH_ADDRESS_BYTES is %d\n", rank, nbytes,
                BENCH_ADDRESS_BYTES);
    if (r == NULL || addresses == NULL || nbytes > BENCH_ADDRESS_BYTES) goto out;
    r->rank = rank;
    r->size = options->ranks;
    r->options = *options;
    r->board = board->lines;
    bench_measure_memory(&r->before);       /* first call: it costs memory itself */
    bench_arrive(&board->started, r->size); /* wait for all forks, which share pages with this process */
    bench_measure_memory(&r->before);
    hpc_config_init(&config);
    config.transports = options->transport;
    bench_arrive(&board->started, r->size);
    r->begun = bench_now();
    r->cpu_begun = bench_cpu_now();
    status = hpc_context_create(rank, r->size, &config, &r->context);
    if (status < 0) goto out;
    hpc_context_address(r->context, board->addresses[rank]);
    bench_arrive(&board->arrived, r->size);
    for (int p = 0; p < r->size; p++) memcpy(addresses + (size_t)p * nbytes, board->addresses[p], nbytes);
    status = hpc_context_connect(r->context, addresses, -1);
    r->connected = bench_now();
    if (status >= 0) status = run(r);
out:
    if (status < 0 && hpc_last_error()->message[0] != '\0')
        fprintf(stderr, "rank %d: %s\n", rank, hpc_last_error()->message);
    if (r != NULL) hpc_context_free(r->context);
    free(addresses);
    free(r);
    return status < 0;
}

static int bench_main(int argc, char **argv, const char *name, bench_options options, int (*run)(bench_rank *)) {
    int failed = 0, parsed = bench_parse(argc, argv, name, &options), left;
    pid_t ranks[BENCH_RANKS_MAX];
    if (parsed >= 0) return parsed;
    bench_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    if (!options.json)
        printf("# %s, hpcomm %s, %d ranks, %s\n", name, hpc_version(), options.ranks,
               options.heading != NULL
                   ? options.heading
                   : "times are medians of rank 0, ratios are to the first row of a size\n"
                     "#   size (B)  name                    time (us) GB/s algbw #wrong     p90 (us)     p99 (us)   "
                     "ratio [min, max]");
    fflush(stdout);
    for (int p = 0; p < options.ranks; p++) {
        ranks[p] = fork();
        if (ranks[p] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(bench_live(p, &options, board, run));
        }
        if (ranks[p] < 0) failed = 1;
    }
    for (left = options.ranks; left > 0; left--) {
        int status = 0;
        pid_t ended = wait(&status);
        if (ended < 0) break;
        for (int p = 0; p < options.ranks; p++)
            if (ranks[p] == ended) ranks[p] = -1;
        if (status == 0 || failed) continue;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && options.deaths-- > 0) continue;
        failed = 1; /* the bounds have no deadline */
        for (int p = 0; p < options.ranks; p++)
            if (ranks[p] > 0) kill(ranks[p], SIGKILL);
    }
    return failed;
}
#endif
#endif
