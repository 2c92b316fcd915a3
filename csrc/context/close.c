/* The end of a context: a rank leaves it. */
#include <string.h>

#include "context/lane.h"
#include "probe/probe.h"

int hpc_context_revoke(hpc_context *c) {
    int status = hpc_context_ready(c, "revoke");
    if (status != HPC_OK) return status;
    hpc_group_revoke(&c->group);
    hpc_control_revoke(c->control);
    return HPC_OK;
}

/* Whether nothing has to be sent any more; after a revoke the others take nothing. */
static int is_settled(void *arg) {
    hpc_context *c = arg;
    int left = 0;
    if (atomic_load(&c->group.revoked)) return 1;
    for (int i = 0; c->used[i] != NULL; i++)
        if (c->used[i]->settle != NULL) left += c->used[i]->settle(c);
    return left == 0;
}

static int anybody(void *arg, int *ranks) {
    return hpc_group_others(&((hpc_context *)arg)->group, ranks);
}

static void end_timeline(hpc_context *c) {
    int error = c->group.timeline == NULL ? 0 : hpc_timeline_close(c->group.timeline);
    if (error != 0) hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "the timeline is incomplete: %s", strerror(error));
}

static int leave(hpc_context *c, const char *why) {
    if (c == NULL || !hpc_group_is_mine(&c->group)) return HPC_OK;
    hpc_span span = hpc_span_begin(c->group.timeline, why == NULL ? "close" : "abort", NULL);
    hpc_blame_freeze(&c->group.blame);
    /* Puts are delivered before the others hear that this rank is gone; a failed rank does not wait for it. */
    if (c->connected && !atomic_load(&c->group.closed)) {
        const hpc_wait wait = {"close", is_settled, anybody, c, 0};
        double deadline = hpc_deadline(&c->group, why == NULL ? c->group.timeout : 0);
        int muted = hpc_mute_errors(1);
        atomic_store_explicit(&c->leaving, 1, memory_order_relaxed);
        hpc_lane_flush(c->lane, hpc_left(deadline));
        hpc_wait_for(&c->group, &wait, hpc_left(deadline));
        hpc_mute_errors(muted);
    }
    if (atomic_exchange(&c->group.closed, 1)) return HPC_OK;
    hpc_bell_ring(c->group.bell); /* this rank's own waits end too */
    hpc_probes_stop(c);
    hpc_family_leave(c, why);
    hpc_span_end(&span);
    end_timeline(c);
    return HPC_OK;
}

int hpc_context_close(hpc_context *context) {
    return leave(context, NULL);
}

int hpc_context_abort(hpc_context *context, const char *why) {
    return leave(context, why != NULL && why[0] != 0 ? why : "it gave up");
}

void hpc_context_free(hpc_context *context) {
    if (context == NULL) return;
    hpc_context_close(context);
    hpc_context_release(context);
}
