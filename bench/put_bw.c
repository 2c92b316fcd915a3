/* put_bw.c - bandwidth of put, beside memcpy between shared mappings by one thread. */
#define _GNU_SOURCE
#include "c_ranks.h"

#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* Maps a whole file for all to see, present on return: by huge pages if asked for and the system has them. NULL: it
 * cannot. */
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
    if (huge) madvise(start, nbytes, MADV_COLLAPSE); /* also where shared memory gets no huge pages by itself */
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

/* One sample of each: m copies of nbytes, the i-th at slot i % slots of both sides; seconds for one of them. */
BENCH_API double bench_memcpy(void *to, const void *from, size_t nbytes, int slots, int m) {
    double start = bench_now();
    for (int i = 0; i < m; i++) {
        size_t at = (size_t)(i % slots) * nbytes;
        memcpy((char *)to + at, (const char *)from + at, nbytes);
    }
    atomic_thread_fence(memory_order_seq_cst); /* non-temporal stores of memcpy are in place too */
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

#ifndef BENCH_LIBRARY
enum { RING_BYTES = 64 << 20 };

static int run(bench_rank *r) {
    const bench_options *options = &r->options;
    size_t ring = options->maxbytes > RING_BYTES ? options->maxbytes : RING_BYTES, page = 2u << 20;
    size_t length = (ring + BENCH_SHIFTS * BENCH_PAGE_WORDS * sizeof(uint64_t) + page - 1) / page * page;
    int sender = r->rank == 0, status = HPC_ERR_MEMORY, fd = memfd_create("bench", MFD_CLOEXEC);
    hpc_window *window = NULL;
    uint64_t *words = fd < 0 || ftruncate(fd, (off_t)length) != 0 ? NULL : bench_map(fd, length, 1), sample = 0;
    uint64_t *copy = NULL;
    if (words == NULL) goto out;
    bench_fill_words(words, length / sizeof *words);
    status = hpc_window_create(r->context, 2 * ring, 0, "put_bw", -1, &window);
    if (status < 0) goto out;
    /* The bound copies between the same kind of mappings: into the second half of the peer's window. */
    copy = sender ? (uint64_t *)((char *)hpc_window_peer_view(window, 1) + ring) : NULL;
    for (size_t size = options->minbytes; status >= 0 && size <= options->maxbytes;
         size *= (size_t)options->stepfactor) {
        int slots = (int)(ring / size), m = slots > options->agg_iters ? slots : options->agg_iters;
        const uint64_t *arrived = hpc_window_data(window);
        for (int c = -1; status >= 0 && c < options->run_cycles; c++) {
            for (int i = 0; status >= 0 && i < 2; i++) {
                int n = c < 0 ? options->warmup_iters : options->iters;
                int64_t wrong = 0;
                for (int b = 0; status >= 0 && b < n; b++) {
                    const uint64_t *source = words + bench_shift(++sample, 0) * BENCH_PAGE_WORDS;
                    status = bench_meet(r);
                    if (status >= 0 && sender && i == 0) r->seconds[b] = bench_memcpy(copy, source, size, slots, m);
                    if (status >= 0 && sender && i == 1)
                        status = bench_put_bw(window, 1, source, size, slots, m, options->timeout, &r->seconds[b]);
                    if (status >= 0) status = bench_meet(r);
                    if (r->rank == 1)
                        wrong += (int64_t)bench_wrong_words(arrived + (i == 0 ? ring / sizeof *arrived : 0), source,
                                                            (size_t)slots * size / sizeof *source);
                }
                bench_add(r, i, i == 0 ? "memcpy (bound)" : "hpcomm C", size, c, n, wrong, r->seconds);
            }
        }
        if (status >= 0) bench_report(r, size, 2);
    }
out:
    if (fd >= 0) close(fd);
    hpc_window_free(window);
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
