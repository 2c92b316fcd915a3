/* put_bw.c - bandwidth of put, beside memcpy between shared mappings by one thread, or a stream over bare sockets. */
#define _GNU_SOURCE
#include "c_ranks.h"
#include "sockets.h"

#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Maps a whole file as shared memory, with all pages present: huge ones if asked for and available. NULL on failure. */
BENCH_API void *bench_map(int fd, size_t nbytes, int huge) {
    const size_t page = 2u << 20;
    char *room = mmap(NULL, nbytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return NULL;
    char *start = (char *)(((uintptr_t)room + page - 1) & ~(uintptr_t)(page - 1)), *end = start + nbytes;
    if (start > room) munmap(room, (size_t)(start - room));
    if (room + nbytes + page > end) munmap(end, (size_t)(room + nbytes + page - end));
    if (mmap(start, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) return NULL;
    madvise(start, nbytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (size_t at = 0; at < nbytes; at += 4096) *(volatile char *)(start + at);
    if (huge) madvise(start, nbytes, MADV_COLLAPSE); /* needed where shared memory gets no huge pages by default */
    return start;
}

BENCH_API void bench_unmap(void *data, size_t nbytes) {
    if (data != NULL) munmap(data, nbytes);
}

BENCH_API void bench_fill(uint64_t *to, size_t count) {
    bench_fill_words(to, count);
}

BENCH_API uint64_t bench_wrong(const uint64_t *got, const uint64_t *expected, size_t count) {
    return bench_wrong_words(got, expected, count);
}

/* Takes one sample: m copies of nbytes, the i-th at slot i % slots on both sides. Returns seconds per copy. */
BENCH_API double bench_memcpy(void *to, const void *from, size_t nbytes, int slots, int m) {
    double start = bench_now();
    for (int i = 0; i < m; i++) {
        size_t at = (size_t)(i % slots) * nbytes;
        memcpy((char *)to + at, (const char *)from + at, nbytes);
    }
    atomic_thread_fence(memory_order_seq_cst); /* also completes memcpy's non-temporal stores */
    return (bench_now() - start) / m;
}

BENCH_API int bench_put_bw(hpc_window *window, int peer, const void *from, size_t nbytes, int slots, int m,
                           double timeout, double *seconds) {
    double start = bench_now();
    for (int i = 0; i < m; i++) {
        size_t at = (size_t)(i % slots) * nbytes;
        int status = hpc_put(NULL, window, peer, (const char *)from + at, nbytes, at);
        if (status != HPC_OK) return status;
    }
    int status = hpc_flush(NULL, window, peer, timeout);
    *seconds = (bench_now() - start) / m;
    return status;
}

/* The same on a connected socket: m sends, then the receiver's word that it has read everything, like a flush.
 * Returns a negative errno on failure. */
BENCH_API int bench_stream_send(int fd, const void *from, size_t nbytes, int slots, int m, double *seconds) {
    double start = bench_now();
    char done;
    for (int i = 0; i < m; i++) {
        const char *at = (const char *)from + (size_t)(i % slots) * nbytes;
        if (bench_send_all(fd, at, nbytes, 0) != 0) return -errno;
    }
    if (bench_recv_all(fd, &done, 1, 0) != 0) return -errno;
    *seconds = (bench_now() - start) / m;
    return 0;
}

BENCH_API int bench_stream_recv(int fd, void *to, size_t nbytes, int slots, int m) {
    for (int i = 0; i < m; i++)
        if (bench_recv_all(fd, (char *)to + (size_t)(i % slots) * nbytes, nbytes, 0) != 0) return -errno;
    return bench_send_all(fd, "", 1, 0) != 0 ? -errno : 0;
}

#ifndef BENCH_LIBRARY
enum { RING_BYTES = 64 << 20 };

typedef struct stream {
    bench_rank *r;
    hpc_window *window;
    char *copy;    /* target in rank 1's memory; over sockets the place into which rank 1 reads */
    int fd;        /* the connection if no memory is shared, otherwise -1 */
    uint64_t done; /* the value for which rank 1 waits in that case */
} stream;

/* Takes one sample of the bound on ranks 0 and 1. */
static int bound(stream *s, const void *source, size_t size, int slots, int m, double *seconds) {
    int status = 0;
    if (s->fd < 0 && s->r->rank == 0) *seconds = bench_memcpy(s->copy, source, size, slots, m);
    if (s->fd >= 0 && s->r->rank == 0) status = bench_stream_send(s->fd, source, size, slots, m, seconds);
    if (s->fd >= 0 && s->r->rank == 1) status = bench_stream_recv(s->fd, s->copy, size, slots, m);
    if (status < 0) fprintf(stderr, "rank %d: socket stream: %s\n", s->r->rank, strerror(-status));
    return status;
}

static int put(stream *s, const void *source, size_t size, int slots, int m, double *seconds) {
    double timeout = s->r->options.timeout;
    int status = HPC_OK;
    s->done++;
    if (s->r->rank == 0) status = bench_put_bw(s->window, 1, source, size, slots, m, timeout, seconds);
    if (s->fd < 0 || status != HPC_OK) return status;
    if (s->r->rank == 0) return hpc_put_signal(NULL, s->window, 1, NULL, 0, 0, 0, s->done);
    return s->r->rank == 1 ? hpc_wait_signal(s->window, 0, s->done, 0, timeout, NULL) : HPC_OK;
}

static int run(bench_rank *r) {
    const bench_options *options = &r->options;
    size_t ring = options->maxbytes > RING_BYTES ? options->maxbytes : RING_BYTES, page = 2u << 20;
    size_t length = (ring + BENCH_SHIFTS * BENCH_PAGE_WORDS * sizeof(uint64_t) + page - 1) / page * page;
    int wire = bench_over_wire(r), status = HPC_ERR_MEMORY, fd = memfd_create("bench", MFD_CLOEXEC);
    stream s = {.r = r, .fd = -1};
    uint64_t *words = fd < 0 || ftruncate(fd, (off_t)length) != 0 ? NULL : bench_map(fd, length, 1), sample = 0;
    if (words == NULL) goto out;
    bench_fill_words(words, length / sizeof *words);
    status = hpc_window_create(r->context, 2 * ring, 1, "put_bw", -1, &s.window);
    if (status < 0) goto out;
    /* The bound uses mappings of the same kind: the second half of the peer's window. */
    s.copy = !wire && r->rank == 0 ? hpc_window_peer_view(s.window, 1) : hpc_window_data(s.window);
    s.copy += ring;
    if (wire && r->rank < 2) s.fd = bench_connect_pair(r->rank == 1, &r->board[0].word, options->timeout);
    if (wire && r->rank < 2 && s.fd < 0) {
        fprintf(stderr, "rank %d: no loopback connection: %s\n", r->rank, strerror(errno));
        status = HPC_ERR_TRANSPORT;
    }
    for (size_t size = options->minbytes; status >= 0 && size <= options->maxbytes;
         size *= (size_t)options->stepfactor) {
        int slots = (int)(ring / size), m = slots > options->agg_iters ? slots : options->agg_iters;
        const char *arrived = hpc_window_data(s.window);
        for (int c = -1; status >= 0 && c < options->run_cycles; c++) {
            for (int i = 0; status >= 0 && i < 2; i++) {
                int n = c < 0 ? options->warmup_iters : options->iters;
                int64_t wrong = 0;
                for (int b = 0; status >= 0 && b < n; b++) {
                    const uint64_t *source = words + bench_shift(++sample, 0) * BENCH_PAGE_WORDS;
                    status = bench_meet(r);
                    if (status < 0) break;
                    status = (i == 0 ? bound : put)(&s, source, size, slots, m, &r->seconds[b]);
                    if (status >= 0) status = bench_meet(r);
                    if (r->rank == 1)
                        wrong += (int64_t)bench_wrong_words((const uint64_t *)(arrived + (i == 0 ? ring : 0)), source,
                                                            (size_t)slots * size / sizeof *source);
                }
                bench_add(r, i,
                          i == 1 ? "hpcomm C"
                          : wire ? "socket stream (bound)"
                                 : "memcpy (bound)",
                          size, c, n, wrong, r->seconds);
            }
        }
        if (status >= 0) bench_report(r, size, 2);
    }
out:
    if (fd >= 0) close(fd);
    if (s.fd >= 0) close(s.fd);
    hpc_window_free(s.window);
    bench_unmap(words, length);
    return status;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 64 << 10,
                              .maxbytes = 256 << 20,
                              .stepfactor = 4,
                              .iters = 3,
                              .warmup_iters = 1,
                              .agg_iters = 1,
                              .run_cycles = 7,
                              .ranks = 2,
                              .timeout = 30};
    return bench_main(argc, argv, "put_bw", defaults, run);
}
#endif
