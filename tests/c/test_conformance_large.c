/* One window over 4 GiB: no offset, length or size is cut to 32 bits. */
#include "ranks.h"

#define GIB ((size_t)1 << 30)
#define PAGE ((size_t)4096)
#define NBYTES (4 * GIB + PAGE)

static void over_4_gib(rank *r) {
    if (hpc_memory_available() < 2 * NBYTES + 2 * GIB) ranks_skip("two windows of 4 GiB need 10 GiB of free memory");
    int peer = 1 - r->rank;
    hpc_window *w;
    rank_meet(r);
    CHECK_OK(hpc_window_create(r->context, NBYTES, 2, NULL, 60, &w));
    CHECK_EQ(hpc_window_nbytes(w), NBYTES);
    unsigned char src[PAGE], *mine = hpc_window_data(w);

    static const size_t offsets[] = {0, 2 * GIB - 8, 4 * GIB - 24, 4 * GIB + 512, NBYTES - 64};
    for (int i = 0; i < 5; i++) {
        ranks_fill(src, 64, (uint64_t)(i + 10 * r->rank));
        CHECK_OK(hpc_put_signal(NULL, w, peer, src, 64, offsets[i], 0, (uint64_t)i + 1));
        CHECK_OK(hpc_flush(NULL, w, peer, -1));
        CHECK_OK(hpc_wait_signal(w, 0, (uint64_t)i + 1, peer, -1, NULL));
        CHECK_EQ(ranks_first_wrong(mine + offsets[i], 64, (uint64_t)(i + 10 * peer)), 64);
    }
    CHECK_STATUS(hpc_put(NULL, w, peer, src, 1, NBYTES), HPC_ERR_INVALID);
    CHECK_MESSAGE("4294971392");
    CHECK_STATUS(hpc_put(NULL, w, peer, src, PAGE + 1, 4 * GIB), HPC_ERR_INVALID);
    CHECK_OK(hpc_barrier(r->context, -1));

    /* One put that is itself longer than 4 GiB, from one window into the other. */
    if (r->rank == 0) {
        for (size_t at = 0; at < NBYTES; at += GIB / 4) ranks_fill(mine + at, PAGE, at);
        CHECK_OK(hpc_put_notify(NULL, w, 1, mine, NBYTES, 0, 5, 60));
        CHECK_OK(hpc_flush(NULL, w, 1, 60));
    } else {
        hpc_event e;
        CHECK_OK(hpc_wait_event(r->context, NULL, &e, 60));
        CHECK_EQ(e.nbytes, NBYTES);
        for (size_t at = 0; at < NBYTES; at += GIB / 4) CHECK_EQ(ranks_first_wrong(mine + at, PAGE, at), PAGE);
    }
    CHECK_OK(hpc_barrier(r->context, 60));
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        /* one mode of each transport is enough for so many bytes, and TSan would need four times as many */
        {.name = "over_4_gib", .size = 2, .run = over_4_gib, .where = RANKS_PROCESSES | RANKS_NOT_TSAN},
        {.name = "over_4_gib", .size = 2, .run = over_4_gib, .where = RANKS_LOOP | RANKS_UNSEEDED | RANKS_NOT_TSAN},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
