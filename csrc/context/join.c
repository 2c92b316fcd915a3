/* Reaches what is reached when a window or a lane is made: this rank's own part, and the parts of eager transports. */
#include <stdlib.h>
#include <string.h>

#include "context/context.h"

/* The part of this rank is reached like the part of any rank of this process. */
static int join_self(const hpc_context *c, hpc_object *o) {
    const int me = c->group.rank;
    const hpc_transport *t = c->transports[me];
    hpc_blob blob = {.fd = -1};
    int status = o->joint->export_to(t, o, me, &blob);
    if (status != HPC_OK) return status;
    status = o->joint->attach(t, o, me, &blob);
    if (status == HPC_OK) hpc_reach_mark(o, me);
    return status;
}

static int is_eager(const hpc_context *c, int rank) {
    return rank != c->group.rank && (c->transports[rank]->caps & HPC_CAP_EAGER) != 0;
}

/* Exports blobs to the peers whose transport is eager, and attaches theirs. Each rank gives all ranks a blob each.
 * status: of this rank so far. */
static int join_eager(hpc_context *c, const char *op, hpc_object *o, int status, double deadline) {
    size_t size = (size_t)c->group.size, me = (size_t)c->group.rank;
    hpc_blob *blobs = calloc(size, sizeof *blobs);
    hpc_reply *replies = calloc(size, sizeof *replies);
    if (blobs == NULL || replies == NULL) {
        free(blobs);
        free(replies);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    }
    /* A rank that has left since the call began takes no blob, and no rank would take a blob exported after that. */
    for (size_t r = 0; r < size && status == HPC_OK; r++) status = hpc_group_peer_present(&c->group, (int)r, op);
    for (size_t r = 0; r < size && status == HPC_OK; r++)
        if (is_eager(c, (int)r)) status = o->joint->export_to(c->transports[r], o, (int)r, &blobs[r]);
    /* A rank that failed writes its status into its blob for itself; the others then take none of its blobs. */
    memcpy(blobs[me].bytes, &status, sizeof status);
    int exchanged =
        hpc_control_exchange(c->control, op, blobs, size * sizeof *blobs, HPC_EQUAL_SIZES, replies, deadline);
    if (exchanged != HPC_OK) status = exchanged;
    for (size_t r = 0; r < size && exchanged == HPC_OK; r++) {
        hpc_blob blob;
        int exported, attached;
        memcpy(&exported, ((hpc_blob *)replies[r].data + r)->bytes, sizeof exported);
        if (!is_eager(c, (int)r) || exported != HPC_OK) continue;
        memcpy(&blob, (hpc_blob *)replies[r].data + me, sizeof blob);
        blob.fd = -1;
        /* Attach all blobs, also after a failure: a blob may hold a reference that only attach takes over. */
        attached = o->joint->attach(c->transports[r], o, (int)r, &blob);
        if (attached == HPC_OK) hpc_reach_mark(o, (int)r);
        if (status == HPC_OK) status = attached;
    }
    if (exchanged == HPC_OK) hpc_control_free_replies(c->control, replies);
    free(blobs);
    free(replies);
    return status;
}

int hpc_object_join_alone(hpc_context *c, const char *op, hpc_object *o, int status, double deadline) {
    if (c->has_eager) return hpc_object_join(c, op, o, status, deadline);
    return status == HPC_OK ? join_self(c, o) : status;
}

int hpc_object_join(hpc_context *c, const char *op, hpc_object *o, int status, double deadline) {
    if (c->has_eager) status = hpc_context_agree(c, op, status, deadline);
    if (c->has_eager && status != HPC_OK) return status;
    for (int r = 0; r < c->group.size; r++) { /* a rank may have left after its part of the call */
        const int there = hpc_group_peer_present(&c->group, r, op);
        if (there != HPC_OK) return there;
    }
    if (status == HPC_OK) status = join_self(c, o);
    if (c->has_eager) status = join_eager(c, op, o, status, deadline);
    return hpc_context_agree(c, op, status, deadline);
}
