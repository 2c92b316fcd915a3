/* put_lat.c - one-way latency of put_signal -> wait_signal, beside a bare token on which two processes spin, and a
 * bare pair of sockets. */
#define _GNU_SOURCE
#include "c_ranks.h"
#include "sockets.h"

/* Passes one word there and back; rank `first` starts. Each direction has its own line with one writer. seconds[b]
 * is half a round trip, averaged over the m trips of sample b. Returns how many words were wrong. */
BENCH_API int64_t bench_token(bench_line *mine, bench_line *theirs, int first, int m, int n, uint64_t *value,
                              double *seconds) {
    uint64_t v = *value, got;
    int64_t wrong = 0;
    for (int b = 0; b < n; b++) {
        double start = 0;
        for (int i = -1; i < m; i++) { /* round -1 is untimed; when it ends, both ranks are here */
            v++;
            if (i == 0) start = bench_now();
            if (first) atomic_store_explicit(&theirs->word, v, memory_order_release);
            while ((got = atomic_load_explicit(&mine->word, memory_order_acquire)) < v) {
            }
            wrong += got != v;
            if (!first) atomic_store_explicit(&theirs->word, v, memory_order_release);
        }
        seconds[b] = (bench_now() - start) / (2.0 * m);
    }
    *value = v;
    return wrong;
}

/* Does the same with put_signal and wait_signal. Operation i of a sample writes count words at word i * count of the
 * peer's window. All words are compared after the clock has stopped, so that the comparison moves no cache lines;
 * each signal's value is compared in the loop. words: the predictable ones, m * count + BENCH_SHIFTS lines. state:
 * the last value, the samples so far. trips: gets n * m single trips, or NULL. */
BENCH_API int64_t bench_put_lat(hpc_window *window, int rank, int peer, int first, const uint64_t *words, size_t count,
                                int m, int n, double timeout, uint64_t state[2], double *seconds, double *trips) {
    const uint64_t *arrived = hpc_window_data(window);
    size_t nbytes = count * sizeof *words;
    uint64_t v = state[0], got = 0;
    int64_t wrong = 0;
    int status = HPC_OK;
    for (int b = 0; b < n; b++, state[1]++) {
        const uint64_t *source = words + bench_shift(state[1], rank) * BENCH_LINE_WORDS;
        const uint64_t *expected = words + bench_shift(state[1], peer) * BENCH_LINE_WORDS;
        double start = 0, elapsed;
        uint64_t before = 0;
        for (int i = -1; i < m; i++) {
            size_t size = i < 0 ? 0 : nbytes, at = i < 0 ? 0 : (size_t)i;
            v++;
            if (i == 0) {
                start = bench_now();
                before = bench_ticks();
            }
            if (first) status = hpc_put_signal(NULL, window, peer, source + at * count, size, at * nbytes, 0, v);
            if (status == HPC_OK) status = hpc_wait_signal(window, 0, v, peer, timeout, &got);
            wrong += got != v;
            if (!first && status == HPC_OK)
                status = hpc_put_signal(NULL, window, peer, source + at * count, size, at * nbytes, 0, v);
            if (status != HPC_OK) return status;
            if (i < 0 || trips == NULL) continue;
            uint64_t now = bench_ticks();
            trips[(size_t)b * (size_t)m + (size_t)i] = (double)(now - before);
            before = now;
        }
        elapsed = bench_now() - start;
        seconds[b] = elapsed / (2.0 * m);
        if (trips != NULL) bench_trips(&trips[(size_t)b * (size_t)m], m, elapsed);
        wrong += (int64_t)bench_wrong_words(arrived, expected, (size_t)m * count);
    }
    state[0] = v;
    return wrong;
}

/* Does the same by send and recv on a connected socket, spinning or blocking. state: the samples so far. Returns a
 * negative errno on failure. */
BENCH_API int64_t bench_socket_pair(int fd, int spin, uint64_t *arrived, int rank, int peer, int first,
                                    const uint64_t *words, size_t count, int m, int n, uint64_t *state,
                                    double *seconds) {
    size_t nbytes = count * sizeof *words;
    int64_t wrong = 0;
    for (int b = 0; b < n; b++, (*state)++) {
        const uint64_t *source = words + bench_shift(*state, rank) * BENCH_LINE_WORDS;
        const uint64_t *expected = words + bench_shift(*state, peer) * BENCH_LINE_WORDS;
        double start = 0;
        for (int i = -1; i < m; i++) { /* round -1 is untimed, and its bytes are overwritten */
            size_t at = i < 0 ? 0 : (size_t)i * count;
            if (i == 0) start = bench_now();
            if (first && bench_send_all(fd, source + at, nbytes, spin) != 0) return -errno;
            if (bench_recv_all(fd, arrived + at, nbytes, spin) != 0) return -errno;
            if (!first && bench_send_all(fd, source + at, nbytes, spin) != 0) return -errno;
        }
        seconds[b] = (bench_now() - start) / (2.0 * m);
        wrong += (int64_t)bench_wrong_words(arrived, expected, (size_t)m * count);
    }
    return wrong;
}

#ifndef BENCH_LIBRARY
enum { SAMPLE_BYTES = 256 << 10 };

/* Returns the operations of one sample: few enough that their bytes stay in the cache. */
static int operations(const bench_options *options, size_t size) {
    int m = (int)(SAMPLE_BYTES / size);
    return m < 8 ? 8 : m > options->agg_iters ? options->agg_iters : m;
}

/* Takes n samples of contender i; returns wrong answers or a negative status. The bound is the token over shared
 * memory, otherwise a pair of sockets; each has a contender that spins and one that sleeps. */
typedef struct pair {
    bench_rank *r;
    hpc_window *window;
    uint64_t *words, *arrived, token, sent, state[2];
    int peer, first, fd;
} pair;

static int64_t measure(pair *p, int i, size_t count, int m, int n) {
    bench_rank *r = p->r;
    if (i == 1)
        return bench_put_lat(p->window, r->rank, p->peer, p->first, p->words, count, m, n, r->options.timeout, p->state,
                             r->seconds, NULL);
    if (p->fd < 0) return bench_token(&r->board[r->rank], &r->board[p->peer], p->first, m, n, &p->token, r->seconds);
    int64_t wrong = bench_socket_pair(p->fd, i == 0, p->arrived, r->rank, p->peer, p->first, p->words, count, m, n,
                                      &p->sent, r->seconds);
    if (wrong < 0) fprintf(stderr, "rank %d: socket pair: %s\n", r->rank, strerror((int)-wrong));
    return wrong;
}

static int run(bench_rank *r) {
    static const char *const names[2][3] = {{"token (bound)", "hpcomm C", NULL},
                                            {"socket pair, spinning (bound)", "hpcomm C", "socket pair, blocking"}};
    const bench_options *options = &r->options;
    int wire = bench_over_wire(r), contenders = wire ? 3 : 2, status = HPC_ERR_MEMORY;
    size_t room = (size_t)options->agg_iters * sizeof(uint64_t) + SAMPLE_BYTES + 8 * options->maxbytes;
    pair p = {.r = r, .peer = r->rank ^ 1, .first = !(r->rank & 1), .fd = -1};
    p.words = malloc(room + BENCH_SHIFTS * BENCH_LINE);
    p.arrived = malloc(room);
    if (p.words == NULL || p.arrived == NULL) goto out;
    bench_fill_words(p.words, room / sizeof *p.words + BENCH_SHIFTS * BENCH_LINE_WORDS);
    if (wire) {
        p.fd = bench_connect_pair(p.first, &r->board[p.first ? r->rank : p.peer].word, options->timeout);
        if (p.fd < 0) fprintf(stderr, "rank %d: no loopback connection: %s\n", r->rank, strerror(errno));
        if (p.fd < 0) goto out;
    }
    status = hpc_window_create(r->context, room, 1, "put_lat", -1, &p.window);
    for (size_t size = options->minbytes; status >= 0 && size <= options->maxbytes;
         size *= (size_t)options->stepfactor) {
        int m = operations(options, size);
        for (int c = -1; status >= 0 && c < options->run_cycles; c++) { /* cycle -1 warms up */
            int n = c < 0 ? options->warmup_iters : options->iters;
            for (int i = 0; status >= 0 && i < contenders; i++) {
                status = bench_meet(r);
                if (status < 0) break;
                int64_t wrong = measure(&p, i, size / sizeof *p.words, m, n);
                bench_add(r, i, names[wire][i], wire || i > 0 ? size : sizeof(uint64_t), c, n, wrong, r->seconds);
                if (wrong < 0) status = (int)wrong;
            }
        }
        if (status >= 0) bench_report(r, size, contenders);
    }
out:
    if (p.fd >= 0) close(p.fd);
    hpc_window_free(p.window);
    free(p.words);
    free(p.arrived);
    return status;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 8,
                              .maxbytes = 8,
                              .stepfactor = 8,
                              .iters = 50,
                              .warmup_iters = 5,
                              .agg_iters = 200,
                              .run_cycles = 7,
                              .ranks = 2,
                              .timeout = 30};
    return bench_main(argc, argv, "put_lat", defaults, run);
}
#endif
