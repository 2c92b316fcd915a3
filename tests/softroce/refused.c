/* Verbs where they cannot be: every rank is told why, in a sentence that has $HPC_REFUSAL, and the other transports do
 * as they do everywhere. */
#include "ranks.h"

static void refused(rank *r) {
    const char *reason = getenv("HPC_REFUSAL");
    CHECK(reason != NULL);
    r->config.transports = "verbs";
    CHECK(hpc_init(&r->oob, &r->config, &r->context) != HPC_OK);
    CHECK(r->context == NULL);
    printf("rank %d: %s\n", r->rank, hpc_last_error()->message);
    CHECK_MESSAGE("verbs");
    CHECK_MESSAGE(reason);
    CHECK_MESSAGE("apt-get install");
}

static void others(rank *r) {
    r->config.transports = NULL;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    hpc_window *w;
    hpc_peer peer;
    int next = (r->rank + 1) % r->size;
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    CHECK_OK(hpc_put_signal(NULL, w, next, "by another way", 15, 0, 0, 1));
    CHECK_OK(hpc_wait_signal(w, 0, 1, -1, -1, NULL));
    CHECK_EQ(strcmp(hpc_window_data(w), "by another way"), 0);
    CHECK_OK(hpc_context_peer(r->context, next, &peer));
    CHECK_EQ(strcmp(peer.transport, "shm"), 0);
    hpc_window_free(w);
    CHECK_OK(hpc_barrier(r->context, -1));
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "refused", .size = 3, .run = refused, .where = RANKS_PROCESSES | RANKS_SHM, .bare = true},
        {.name = "others", .size = 3, .run = others, .where = RANKS_PROCESSES | RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
