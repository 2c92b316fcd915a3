/* A peer that is killed or frozen while it writes: what its signals tell of is whole, and every wait for more ends. */
#define _GNU_SOURCE
#include <signal.h>

#include "ranks.h"

enum { VICTIM = 1, SLOTS = 4, NBYTES = 256 << 10, SECONDS = 10 };

/* Never ends by itself. Value v goes into slot v mod SLOTS, always the same bytes. */
static void write_on(hpc_window *w) {
    static unsigned char src[SLOTS][NBYTES];
    for (uint64_t i = 0; i < SLOTS; i++) ranks_fill(src[i], NBYTES, i);
    for (uint64_t value = 1;; value++) {
        for (int peer = 0; peer < 3; peer += 2) {
            CHECK_OK(hpc_put_signal(NULL, w, peer, src[value % SLOTS], NBYTES, value % SLOTS * NBYTES, 0, value));
        }
        if (value % SLOTS == 0) CHECK_OK(hpc_flush(NULL, w, -1, -1));
    }
}

/* arg: the signal that rank 0 sends to rank 1 as soon as something of it is there. */
static void falls(rank *r) {
    hpc_window *w;
    uint64_t value = 0;
    hpc_peer p;
    CHECK_OK(hpc_window_create(r->context, (size_t)SLOTS * NBYTES, 1, NULL, -1, &w));
    CHECK_OK(hpc_context_peer(r->context, VICTIM, &p));
    rank_meet(r);
    if (r->rank == VICTIM) write_on(w);

    CHECK_OK(hpc_wait_signal(w, 0, 2 * SLOTS, VICTIM, -1, &value));
    rank_set(r, r->rank, 1);
    rank_await(r, 2 - r->rank, 1);
    if (r->rank == 0) CHECK_EQ(kill((pid_t)p.pid, r->arg), 0);

    double timeout = r->arg == SIGKILL ? -1 : 1, start = ranks_now();
    int status;
    while ((status = hpc_wait_signal(w, 0, value + 1, VICTIM, timeout, &value)) == HPC_OK) start = ranks_now();
    CHECK_STATUS(status, r->arg == SIGKILL ? HPC_ERR_PEER : HPC_ERR_TIMEOUT);
    CHECK(r->arg == SIGKILL ? ranks_error_names(VICTIM) : ranks_error_waits_for(VICTIM));
    CHECK(ranks_now() - start < SECONDS / 2);
    for (uint64_t slot = 0; slot < SLOTS; slot++) {
        CHECK_EQ(ranks_first_wrong((char *)hpc_window_data(w) + slot * NBYTES, NBYTES, slot), NBYTES);
    }
    rank_set(r, r->rank, 2);
    rank_await(r, 2 - r->rank, 2);
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "killed",
         .size = 3,
         .run = falls,
         .arg = SIGKILL,
         .where = RANKS_PROCESSES,
         .victims = 1 << VICTIM,
         .timeout = SECONDS},
        {.name = "frozen",
         .size = 3,
         .run = falls,
         .arg = SIGSTOP,
         .where = RANKS_PROCESSES,
         .victims = 1 << VICTIM,
         .timeout = SECONDS},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
