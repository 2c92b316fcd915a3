/* One window over 4 GiB: no offset, length or size is cut to 32 bits. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "ranks.h"
#include "context/context.h"

#define GIB ((size_t)1 << 30)
#define PAGE ((size_t)4096)
#define NBYTES (4 * GIB + PAGE)
#define PERIOD (GIB / 4 + 17 * PAGE)

/* As long a source in little memory: the same pages again and again, shared, so that registering them copies none.
 * Those that are GIB / 4 apart are not the same. */
static unsigned char *long_source(void) {
    unsigned char *from = mmap(NULL, NBYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int fd = memfd_create("source", MFD_CLOEXEC);
    CHECK(from != MAP_FAILED && fd >= 0 && ftruncate(fd, (off_t)PERIOD) == 0);
    for (size_t at = 0; at < NBYTES; at += PERIOD) {
        size_t n = NBYTES - at < PERIOD ? NBYTES - at : PERIOD;
        CHECK(mmap(from + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED);
    }
    CHECK_EQ(close(fd), 0);
    return from;
}

enum { LONG_PUT = 1 };

/* Rank 1's part is that large; and a LONG_PUT is itself longer than 4 GiB. */
static void over_4_gib(rank *r) {
    if (hpc_memory_available() < NBYTES + 2 * GIB) ranks_skip("a window of 4 GiB needs 6 GiB of free memory");
    hpc_window *w;
    size_t nbytes = r->rank == 1 ? NBYTES : PAGE;
    rank_meet(r);
    CHECK_OK(hpc_window_create_parts(r->context, "window", nbytes, 2, NULL, 0, hpc_now() + ranks_patience(60), &w));
    unsigned char src[PAGE], *mine = hpc_window_data(w);

    static const size_t offsets[] = {0, 2 * GIB - 8, 4 * GIB - 24, 4 * GIB + 512, NBYTES - 64};
    for (uint64_t i = 0; i < 5; i++) {
        if (r->rank == 0) {
            ranks_fill(src, 64, i);
            CHECK_OK(hpc_put_signal(NULL, w, 1, src, 64, offsets[i], 0, i + 1));
            CHECK_OK(hpc_flush(NULL, w, 1, -1));
        } else {
            CHECK_OK(hpc_wait_signal(w, 0, i + 1, 0, -1, NULL));
            CHECK_EQ(ranks_first_wrong(mine + offsets[i], 64, i), 64);
        }
    }
    CHECK_STATUS(hpc_put(NULL, w, 1, src, 1, NBYTES), HPC_ERR_INVALID);
    CHECK_MESSAGE("4294971392");
    CHECK_STATUS(hpc_put(NULL, w, 1, src, PAGE + 1, 4 * GIB), HPC_ERR_INVALID);
    CHECK_OK(hpc_barrier(r->context, -1));

    if (r->arg != LONG_PUT) {
        hpc_window_free(w);
        return;
    }
    if (r->rank == 0) {
        unsigned char *from = long_source();
        for (size_t at = 0; at < NBYTES; at += GIB / 4) ranks_fill(from + at, PAGE, at);
        CHECK_OK(hpc_put_notify(NULL, w, 1, from, NBYTES, 0, 5, ranks_patience(60)));
        CHECK_OK(hpc_flush(NULL, w, 1, ranks_patience(60)));
        CHECK_EQ(munmap(from, NBYTES), 0);
    } else {
        hpc_event e;
        CHECK_OK(hpc_wait_event(r->context, NULL, &e, ranks_patience(60)));
        CHECK_EQ(e.nbytes, NBYTES);
        for (size_t at = 0; at < NBYTES; at += GIB / 4) CHECK_EQ(ranks_first_wrong(mine + at, PAGE, at), PAGE);
    }
    CHECK_OK(hpc_barrier(r->context, ranks_patience(60)));
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        /* one mode of each transport is enough for so many bytes, and TSan would need four times as many */
        {.name = "over_4_gib",
         .size = 2,
         .run = over_4_gib,
         .arg = LONG_PUT,
         .where = RANKS_PROCESSES | RANKS_NOT_TSAN},
        {.name = "over_4_gib",
         .size = 2,
         .run = over_4_gib,
         .arg = LONG_PUT,
         .where = RANKS_LOOP | RANKS_UNSEEDED | RANKS_NOT_TSAN},
        /* softRoCE takes a minute and more for the long put */
        {.name = "window_over_4_gib", .size = 2, .run = over_4_gib, .where = RANKS_PROCESSES | RANKS_VERBS},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
