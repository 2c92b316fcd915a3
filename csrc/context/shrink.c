/* Makes a new context of the surviving ranks of another one. survivors.c finds these ranks and carries their addresses.
 * The new context is used once every member has connected and passed a barrier in it; otherwise the members vote
 * again. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context/context.h"

static const char op[] = "shrink";

/* A rank's message to the other members: its address, or the error that left it without one. */
typedef struct letter {
    int32_t status;
    char why[256];
    hpc_address address;
} letter;

typedef struct shrinking {
    hpc_context *old, *root;
    const hpc_config *config;
    hpc_survivors survivors;
    int *names; /* rank in old, by rank in root; -1: not a rank of old */
    int *first; /* rank in root, by rank in the new context */
    int size, rank;
} shrinking;

static void list_members(shrinking *s) {
    s->size = 0;
    for (int r = 0; r < s->root->group.size; r++) {
        if (s->survivors.gone[r]) continue;
        if (r == s->root->group.rank) s->rank = s->size;
        s->first[s->size++] = r;
    }
}

/* Gives *addresses the address of every member; the caller frees it. If a member has no address, the call fails on all
 * members alike. */
static int exchange_addresses(shrinking *s, int status, const hpc_context *c, hpc_address **addresses) {
    size_t size = (size_t)s->root->group.size;
    hpc_reply *replies = calloc(size, sizeof *replies);
    letter *mine = calloc(1, sizeof *mine);
    *addresses = calloc((size_t)s->size, sizeof **addresses);
    if (replies == NULL || mine == NULL || *addresses == NULL) {
        free(replies);
        free(mine);
        return hpc_fail(HPC_ERR_MEMORY, op, "shrink: no memory for %d addresses", s->size);
    }
    mine->status = status;
    if (status == HPC_OK)
        mine->address = c->self;
    else
        snprintf(mine->why, sizeof mine->why, "%s", hpc_last_error()->message);
    status = hpc_control_give(s->root->control, &s->survivors, mine, sizeof *mine, replies);
    for (int i = 0; i < s->size && status == HPC_OK; i++) {
        letter *l = replies[s->first[i]].data;
        l->why[sizeof l->why - 1] = 0;
        (*addresses)[i] = l->address;
        if (l->status < 0)
            status =
                hpc_fail(l->status, op, "shrink: rank %d cannot make a new context: %s", s->names[s->first[i]], l->why);
    }
    hpc_control_free_replies(s->root->control, replies);
    free(replies);
    free(mine);
    return status;
}

static int connect_all(shrinking *s, hpc_context *c, const hpc_address *addresses) {
    /* Connecting may take half of the remaining time, and at most half of init_timeout: a host may die silently, and
     * the next vote needs time too. */
    const double left = hpc_left(s->survivors.deadline), most = c->group.init_timeout;
    double deadline = hpc_now() + (left < most ? left : most) / 2;
    hpc_control_watch(s->root->control, &c->group, s->first);
    int status = hpc_context_connect(c, addresses, hpc_left(deadline));
    if (status == HPC_OK) status = hpc_barrier(c, hpc_left(deadline));
    hpc_control_watch(s->root->control, NULL, NULL);
    return status;
}

/* Handles a failed try. Returns HPC_IN_PROGRESS to vote again, if time is left and a member is gone, did not come in
 * time, or its place was taken by another process; the vote finds out which. Otherwise records and returns an error.
 * The message of connect has rank numbers of the new context, so this error says so and lists their ranks in old. */
static int after_failure(const shrinking *s, int status) {
    const hpc_error *e = hpc_last_error();
    int absent = status == HPC_ERR_PEER || status == HPC_ERR_TIMEOUT || status == HPC_ERR_TRANSPORT;
    if ((absent || status == HPC_ERR_AUTH) && hpc_left(s->survivors.deadline) > 0) return HPC_IN_PROGRESS;
    size_t n = (size_t)e->n_waiting;
    int *waiting = malloc((n + (size_t)s->size) * sizeof *waiting);
    char why[512], who[256];
    if (waiting == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "shrink: no memory for %d ranks", s->size);
    int *left = waiting + n;
    snprintf(why, sizeof why, "%s", e->message);
    for (size_t i = 0; i < n; i++) waiting[i] = s->names[s->first[e->waiting_for[i]]];
    for (int i = 0; i < s->size; i++) left[i] = s->names[s->first[i]];
    status = hpc_fail_ranks(absent ? HPC_ERR_TIMEOUT : status, op, NULL, 0, waiting, (int)n,
                            "rank %d: shrink: ranks %s are left and %s; as ranks 0 to %d of the new context: %s",
                            s->old->group.rank, hpc_ranks_text(left, s->size, who, sizeof who),
                            absent ? "could not connect in time" : "cannot connect", s->size - 1, why);
    free(waiting);
    return status;
}

static int adopt(shrinking *s, hpc_context *c) {
    int status = hpc_family_adopt(s->old, c, s->first, op);
    if (status != HPC_OK) return status;
    s->first = NULL;
    hpc_control_settle(s->root->control);
    return HPC_OK;
}

/* Tries to make the context of the ranks that are not gone. Returns HPC_IN_PROGRESS if the members must vote again. */
static int try_once(shrinking *s, hpc_context **fresh) {
    hpc_context *c = NULL;
    hpc_address *addresses = NULL;
    list_members(s);
    int status = hpc_context_create_named(s->rank, s->size, s->root->group.rank, s->config, &c);
    if (status == HPC_OK && c->engine == NULL) c->engine = hpc_engine_retain(s->old->member->engine);
    status = exchange_addresses(s, status, c, &addresses);
    if (status == HPC_OK) {
        status = connect_all(s, c, addresses);
        status = status == HPC_OK ? adopt(s, c) : after_failure(s, status);
    }
    if (status == HPC_OK) *fresh = c;
    free(addresses);
    if (status != HPC_OK && c != NULL) {
        int muted = hpc_mute_errors(1);
        hpc_context_abort(c, "it could not join the new context");
        hpc_context_free(c);
        hpc_mute_errors(muted);
    }
    return status;
}

/* Marks as gone the ranks outside old, and the ranks that have left old but not yet the family; the root itself finds
 * the ranks that died. If this rank repeats a shrink that failed only on this rank, other ranks may have completed it,
 * continued in the new context and closed old. These ranks gave their letters in that shrink, and are not marked. */
static void list_gone(shrinking *s) {
    for (int r = 0; r < s->root->group.size; r++) {
        s->names[r] = -1;
        s->survivors.gone[r] = 1;
    }
    for (int r = 0; r < s->old->group.size; r++) {
        int first = hpc_context_first_rank(s->old, r);
        int state = atomic_load_explicit(&s->old->group.states[r], memory_order_acquire);
        s->names[first] = r;
        s->survivors.gone[first] = state == HPC_PEER_LEFT && !hpc_control_gave(s->root->control, first);
    }
}

int hpc_context_shrink(hpc_context *old, const hpc_config *config, double timeout, hpc_context **fresh) {
    int status = hpc_context_ready(old, op);
    if (status != HPC_OK) return status;
    if (fresh == NULL) return hpc_fail(HPC_ERR_INVALID, op, "shrink: fresh is NULL");
    *fresh = NULL;
    size_t size = (size_t)old->root->group.size;
    shrinking s = {.old = old, .root = old->root, .config = config};
    s.names = malloc(size * sizeof *s.names);
    s.first = malloc(size * sizeof *s.first);
    s.survivors = (hpc_survivors){&old->group, s.names, malloc(size), hpc_deadline(&old->group, timeout)};
    if (s.names == NULL || s.first == NULL || s.survivors.gone == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op, "shrink: no memory for %zu ranks", size);
    else
        list_gone(&s);
    for (int again = status == HPC_OK; again; again = status == HPC_IN_PROGRESS) {
        status = hpc_control_vote(s.root->control, &s.survivors);
        if (status == HPC_OK) status = try_once(&s, fresh);
    }
    free(s.names);
    free(s.first);
    free(s.survivors.gone);
    return status;
}
