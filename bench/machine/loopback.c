/* loopback.c - NICs copy between two regions of this process's memory (PHub, section 4.7), which tests only their
 * path to memory, without wire or second process. One thread works for each NIC; its queue pairs lead back to the
 * same port. */
#define _GNU_SOURCE
#include "bench.h"
#include "nic.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

enum { LOOP_NICS = 8, LOOP_LOOKS = 1 << 16 };

typedef struct loop_nic {
    bench_port port;
    bench_end from, to;
} loop_nic;

typedef struct bench_loop {
    loop_nic nics[LOOP_NICS];
    int n, qps;
    uint64_t *source; /* predictable words: the ring, and room to move its start */
    char *target;     /* the ring */
    size_t ring;
    uint64_t samples;
    double timeout;
    pthread_barrier_t start;
    char why[BENCH_WHY];
} bench_loop;

/* The work of one NIC's thread in one sample. */
typedef struct loop_work {
    bench_loop *loop;
    loop_nic *nic;
    const char *source;
    size_t nbytes;
    int slots, first, step, m, qps, depth; /* messages first, first + step, ... below m */
    int status;
    double seconds;
    char why[BENCH_WHY];
    pthread_t thread;
} loop_work;

BENCH_API void bench_loop_close(bench_loop *loop) {
    if (loop == NULL) return;
    for (int i = 0; i < loop->n; i++) {
        bench_end_close(&loop->nics[i].from);
        bench_end_close(&loop->nics[i].to);
        bench_port_close(&loop->nics[i].port);
    }
    free(loop->source);
    free(loop->target);
    free(loop);
}

/* Opens the ports of these devices (NULL: all), each with up to qps queue pairs and a ring of `ring` bytes. Returns
 * NULL with a sentence in why on failure. */
BENCH_API bench_loop *bench_loop_open(const char *devices, size_t ring, int qps, double timeout, char *why) {
    size_t moves = BENCH_SHIFTS * BENCH_PAGE_WORDS * sizeof(uint64_t), length = (ring + 4095) & ~(size_t)4095;
    bench_port ports[LOOP_NICS];
    bench_loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL || qps < 1 || qps > BENCH_QPS) {
        bench_fail(why, "%d queue pairs: 1 to %d are possible", qps, BENCH_QPS);
        goto err;
    }
    loop->source = aligned_alloc(4096, length + moves);
    loop->target = aligned_alloc(4096, length);
    loop->ring = ring;
    loop->qps = qps;
    loop->timeout = timeout;
    if (loop->source == NULL || loop->target == NULL) {
        bench_fail(why, "no %zu bytes of memory", 2 * length + moves);
        goto err;
    }
    bench_fill_words(loop->source, (length + moves) / sizeof *loop->source);
    memset(loop->target, 0, length);
    int n = bench_ports_open(devices, ports, LOOP_NICS, why);
    if (n < 0) goto err;
    for (int i = 0; i < n; i++) loop->nics[i].port = ports[i];
    for (loop->n = n; n-- > 0;) {
        loop_nic *nic = &loop->nics[n];
        bench_address from, to;
        if (bench_end_open(&nic->port, loop->source, length + moves, qps, &nic->from, &from, why) != 0 ||
            bench_end_open(&nic->port, loop->target, length, qps, &nic->to, &to, why) != 0 ||
            bench_end_connect(&nic->from, &to, why) != 0 || bench_end_connect(&nic->to, &from, why) != 0)
            goto err;
    }
    return loop;
err:
    bench_loop_close(loop);
    return NULL;
}

BENCH_API int bench_loop_nics(const bench_loop *loop) {
    return loop->n;
}

BENCH_API const char *bench_loop_nic(const bench_loop *loop, int i) {
    return loop->nics[i].port.name;
}

BENCH_API const char *bench_loop_why(const bench_loop *loop) {
    return loop->why;
}

/* Copies the messages over the queue pairs in turn. Each has up to depth pending messages, all with a completion. */
static int loop_copy(loop_work *w) {
    bench_end *e = &w->nic->from;
    int under_way[BENCH_QPS] = {0}, total = 0, next = 0, looks = 0;
    double deadline = bench_now() + w->loop->timeout;
    for (int i = w->first; i < w->m || total > 0;) {
        struct ibv_wc done[16];
        while (i < w->m && under_way[next] < w->depth) {
            struct ibv_send_wr wr, *bad;
            struct ibv_sge sge;
            size_t at = (size_t)(i % w->slots) * w->nbytes;
            bench_write(e, &wr, &sge, w->source + at, w->nbytes, at);
            wr.wr_id = (uint64_t)next;
            wr.send_flags |= IBV_SEND_SIGNALED;
            if (ibv_post_send(e->qp[next], &wr, &bad) != 0)
                return bench_fail(w->why, "%s takes no write: %s", e->port->name, strerror(errno));
            under_way[next]++;
            total++;
            i += w->step;
            next = (next + 1) % w->qps;
        }
        int n = bench_completed(e, e->sent, done, 16, w->why);
        if (n < 0) return -1;
        for (int k = 0; k < n; k++) under_way[done[k].wr_id]--;
        total -= n;
        if (n == 0 && ++looks % LOOP_LOOKS == 0 && bench_now() > deadline)
            return bench_fail(w->why, "%s: copies are not done after %g s", e->port->name, w->loop->timeout);
    }
    return 0;
}

/* Pins this thread to the i-th core of the process. A software device works on the core of the posting thread, so
 * two threads must not share one. */
static void loop_pin(int i) {
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof all, &all) != 0) return;
    for (int core = 0, left = i % CPU_COUNT(&all); core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all) && left-- == 0) CPU_SET(core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static void *loop_thread(void *arg) {
    loop_work *w = arg;
    if (w->step > 1) loop_pin(w->first);
    pthread_barrier_wait(&w->loop->start);
    double start = bench_now();
    w->status = loop_copy(w);
    w->seconds = bench_now() - start;
    return NULL;
}

/* Runs one sample: the first `nics` NICs share m messages of nbytes, over the first `qps` queue pairs of each.
 * *seconds is per message. Returns the number of wrong words, or -1 with a sentence. */
BENCH_API int64_t bench_loop_copy(bench_loop *loop, int nics, int qps, size_t nbytes, int m, int depth,
                                  double *seconds) {
    loop_work work[LOOP_NICS];
    const uint64_t *source = loop->source + bench_shift(loop->samples++, 0) * BENCH_PAGE_WORDS;
    int slots = (int)(loop->ring / nbytes), started = 0, failed = 0;
    size_t words = (size_t)(slots < m ? slots : m) * nbytes / sizeof *source;
    if (nics < 1 || nics > loop->n || qps < 1 || qps > loop->qps || slots < 1)
        return bench_fail(loop->why, "%d NICs of %d, %d queue pairs of %d, %zu bytes of a ring of %zu: too many", nics,
                          loop->n, qps, loop->qps, nbytes, loop->ring);
    pthread_barrier_init(&loop->start, NULL, (unsigned)nics);
    for (; started < nics; started++) {
        work[started] = (loop_work){.loop = loop,
                                    .nic = &loop->nics[started],
                                    .source = (const char *)source,
                                    .nbytes = nbytes,
                                    .slots = slots,
                                    .first = started,
                                    .step = nics,
                                    .m = m,
                                    .qps = qps,
                                    .depth = depth < BENCH_DEPTH ? depth : BENCH_DEPTH};
        if (pthread_create(&work[started].thread, NULL, loop_thread, &work[started]) != 0) abort();
    }
    *seconds = 0;
    for (int i = 0; i < nics; i++) {
        pthread_join(work[i].thread, NULL);
        if (work[i].seconds > *seconds) *seconds = work[i].seconds;
        if (work[i].status != 0 && !failed++) memcpy(loop->why, work[i].why, BENCH_WHY);
    }
    pthread_barrier_destroy(&loop->start);
    *seconds /= m;
    return failed ? -1 : (int64_t)bench_wrong_words((const uint64_t *)loop->target, source, words);
}

#ifndef BENCH_LIBRARY
#include <getopt.h>

enum { RING_BYTES = 8 << 20, CYCLES = 7 };

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    const char *devices = NULL;
    size_t ring = RING_BYTES;
    int64_t wrong = 0, all = 0;
    char why[BENCH_WHY] = "";
    for (int c; (c = getopt(argc, argv, "d:R:h")) != -1;) {
        if (c == 'd') devices = optarg;
        if (c == 'R') ring = (size_t)atof(optarg) << 20;
        if (c == 'h' || c == '?') {
            fprintf(stderr, "usage: %s [-d devices] [-R MiB of the ring, 4 or more]\nsee bench/README.md\n", argv[0]);
            return c == 'h' ? 0 : 2;
        }
    }
    if (ring < 4u << 20) ring = 4u << 20;
    bench_loop *loop = bench_loop_open(devices, ring, 8, 30, why);
    if (loop == NULL) {
        fprintf(stderr, "loopback: %s\n", why);
        return 77; /* not here, as CTest has it */
    }
    printf("# loopback, medians of %d\n#   size (B) NICs  QPs    GB/s  #wrong\n", CYCLES);
    for (size_t size = 4096; size <= 4u << 20 && wrong >= 0; size *= 4)
        for (int nics = 1; nics <= loop->n && wrong >= 0; nics++)
            for (int qps = 1; qps <= 8 && wrong >= 0; qps *= 2) {
                double seconds[CYCLES];
                int m = (int)(ring / size);
                all = 0;
                for (int c = -1; c < CYCLES && wrong >= 0; c++) { /* the first one warms up */
                    wrong = bench_loop_copy(loop, nics, qps, size, m, BENCH_DEPTH, &seconds[c < 0 ? 0 : c]);
                    all += wrong;
                }
                qsort(seconds, CYCLES, sizeof *seconds, by_size);
                if (wrong >= 0)
                    printf("%12zu %4d %4d %7.3f %7lld\n", size, nics, qps, (double)size / seconds[CYCLES / 2] / 1e9,
                           (long long)all);
            }
    if (wrong < 0) fprintf(stderr, "loopback: %s\n", loop->why);
    bench_loop_close(loop);
    return wrong != 0;
}
#endif
