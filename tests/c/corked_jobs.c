#include "corked_jobs.h"

int corked_has_come(const rank *r, hpc_lane *lane, hpc_event *event) {
    int status = hpc_poll(r->context, lane, event);
    CHECK(status == HPC_OK || status == HPC_IN_PROGRESS);
    return status == HPC_OK;
}

void corked_dies(rank *r) {
    hpc_window *w;
    hpc_lane *lane;
    hpc_event e;
    char src[CORKED_SMALL] = {1};
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, sizeof src, 0, NULL, -1, &w));
    if (r->rank == CORKED_TAKER) {
        for (uint32_t k = 0; k < 3; k++) {
            CHECK_OK(hpc_wait_event(r->context, lane, &e, -1));
            CHECK_EQ(e.imm, k);
        }
        rank_set(r, 1, 1);
        CHECK_STATUS(hpc_wait_event(r->context, lane, &e, -1), HPC_ERR_PEER);
        CHECK(ranks_error_names(CORKED_SENDER));
        hpc_window_free(w);
        hpc_lane_free(lane);
        return;
    }
    for (uint32_t k = 0; k < 6; k++) {
        if (k == 3) hpc_lane_cork(lane);
        CHECK_OK(hpc_put_notify(lane, w, CORKED_TAKER, src, sizeof src, 0, k, -1));
    }
    rank_await(r, 1, 1);
    rank_die(r);
}
