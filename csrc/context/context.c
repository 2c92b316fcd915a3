/* The handle of a context: its holders, facts about it, and its end with the last holder. */
#include "context/context.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/overdue.h"
#include "probe/probe.h"

/* ---- holders ---- */

hpc_context *hpc_context_retain(hpc_context *context) {
    atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
    return context;
}

void hpc_context_drop_lane(hpc_lane *l) {
    if (l == NULL) return;
    hpc_context *c = l->context;
    hpc_object_close(c, &l->object);
    for (int r = 0; l->peers != NULL && r < c->group.size; r++) {
        c->transports[r]->lane_detach(l, r);
        hpc_memory_release(l->peers[r].in_memory);
        hpc_memory_release(l->peers[r].memory);
    }
    hpc_memory_release(l->memory);
    free(l->senders);
    free(l->peers);
    free(l);
}

void hpc_context_release(hpc_context *c) {
    if (c->group.owner != NULL && !hpc_group_is_mine(&c->group)) return; /* a forked child frees nothing */
    if (atomic_fetch_sub_explicit(&c->references, 1, memory_order_acq_rel) != 1) return;
    hpc_engine_leave(c->member);
    hpc_engine_release(c->engine);
    hpc_group_leave(&c->group);
    hpc_probes_free(c);
    hpc_context_drop_lane(c->lane);
    hpc_context_drop_lane(c->acks);
    for (int r = 0; c->transports != NULL && r < c->group.size; r++)
        if (c->transports[r] != NULL && c->transports[r]->release != NULL) c->transports[r]->release(c);
    hpc_reactor_close(c->reactor);
    hpc_nics_close(c->nics);
    hpc_control_free(c->control);
    hpc_timeline_free(c->group.timeline);
    hpc_memory_release(c->bell_memory);
    hpc_owner_page_free(c->group.owner);
    free(c->transports);
    free(c->objects);
    pthread_mutex_destroy(&c->reach);
    free(c->addresses);
    free(c->leads);
    free(c->group.departing);
    free(c->group.reasons);
    free(c->group.states);
    free(c->first);
    pthread_mutex_destroy(&c->family);
    hpc_context *root = c->root;
    free(c);
    if (root != c) hpc_context_release(root);
}

/* ---- facts ---- */

int hpc_context_address(const hpc_context *context, void *address) {
    if (context == NULL || address == NULL)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: context or address is NULL");
    memcpy(address, &context->self, sizeof context->self);
    return HPC_OK;
}

int hpc_context_rank(const hpc_context *context) {
    return context->group.rank;
}

int hpc_context_size(const hpc_context *context) {
    return context->group.size;
}

/* Returns the lowest rank on the host of rank; -1 before the context is connected. */
static int lowest_on_host(const hpc_context *c, int rank) {
    if (!c->connected) return -1;
    for (int r = 0; r < rank; r++)
        if (hpc_same_host(&c->addresses[r], &c->addresses[rank])) return r;
    return rank;
}

int hpc_context_peer(const hpc_context *c, int rank, hpc_peer *peer) {
    if (c == NULL || peer == NULL) return hpc_fail(HPC_ERR_INVALID, "peer", "peer: context or peer is NULL");
    int status = hpc_group_check_rank(&c->group, rank, "rank", "peer");
    if (status != HPC_OK) return status;
    peer->state = atomic_load_explicit(&c->group.states[rank], memory_order_acquire);
    peer->transport = c->transports[rank] == NULL ? "" : rank == c->group.rank ? "self" : c->transports[rank]->name;
    peer->host = c->addresses[rank].hostname;
    peer->pid = c->addresses[rank].control.pid;
    const hpc_transport *t = c->transports[rank];
    peer->maps = t != NULL && (t->caps & HPC_CAP_PEER_VIEW);
    peer->lowest = lowest_on_host(c, rank);
    peer->first_rank = hpc_context_first_rank(c, rank);
    peer->path = t != NULL && t->path != NULL ? t->path(c, rank) : hpc_control_path(c->control, rank);
    return HPC_OK;
}

int hpc_context_first_rank(const hpc_context *c, int rank) {
    if (c == NULL) return hpc_fail(HPC_ERR_INVALID, "first_rank", "first_rank: context is NULL");
    int status = hpc_group_check_rank(&c->group, rank, "rank", "first_rank");
    if (status != HPC_OK) return status;
    return c->first == NULL ? rank : c->first[rank];
}

static int goes_by_sockets(const hpc_context *c, int a, int b) {
    char why[64];
    const hpc_transport *t =
        hpc_transport_choose(hpc_transport_names(&c->self), &c->addresses[a], &c->addresses[b], why, sizeof why);
    return a != b && t != NULL && !(t->caps & (HPC_CAP_ONE_HOST | HPC_CAP_NICS));
}

int hpc_over_sockets(const hpc_context *c, const int *ranks, int n) {
    if (c == NULL || !c->connected || ranks == NULL) return 0;
    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= c->group.size) return 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (goes_by_sockets(c, ranks[i], ranks[j])) return 1;
    return 0;
}

/* Returns how many rails connect two ranks; 0 if no NIC carries their traffic. The addresses contain each rank's NICs,
 * so all ranks get the same result for any pair. */
static int rails_between(const hpc_context *c, int a, int b) {
    const hpc_address *self = &c->addresses[a], *peer = &c->addresses[b];
    const char *no_rail;
    char why[64];
    hpc_rail rails[HPC_RAILS];
    const hpc_transport *t = hpc_transport_choose(hpc_transport_names(&c->self), self, peer, why, sizeof why);
    if (t == NULL || !(t->caps & HPC_CAP_NICS)) return 0;
    return hpc_transport_rails(self, peer, rails, &no_rail);
}

int hpc_context_uses_nics(const hpc_context *c, int rank) {
    for (int r = 0; r < c->group.size; r++)
        if (r != rank && rails_between(c, rank, r) > 0) return 1;
    return 0;
}

int hpc_interfaces(const hpc_context *c, const int *servers, int n_servers) {
    int least = n_servers > 0 ? HPC_RAILS : 1;
    if (c == NULL || !c->connected || servers == NULL) return 1;
    for (int s = 0; s < n_servers; s++) {
        int most = 1;
        if (servers[s] < 0 || servers[s] >= c->group.size) return 1;
        for (int r = 0; r < c->group.size; r++) {
            int rails = r != servers[s] ? rails_between(c, servers[s], r) : 0;
            if (rails > most) most = rails;
        }
        if (most < least) least = most;
    }
    return least;
}

const char *hpc_context_note(const hpc_context *c, int i, int *kind) {
    const char *note = c == NULL ? NULL : hpc_group_note_at(&c->group, i);
    if (note != NULL && kind != NULL) *kind = c->group.note_kinds[i];
    return note;
}

int hpc_context_ready(const hpc_context *c, const char *op) {
    if (c == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: context is NULL", op);
    int status = hpc_group_usable(&c->group, op);
    if (status == HPC_OK && !c->connected)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: the context is not connected yet", op);
    return status;
}

hpc_lane *hpc_context_lane(hpc_context *c, hpc_lane *lane) {
    return lane != NULL ? lane : c->lane;
}

int hpc_context_span(hpc_context *c, const char *name, double start) {
    static const char op[] = "span";
    if (c == NULL || name == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: context or name is NULL", op);
    int status = hpc_group_usable(&c->group, op);
    if (status != HPC_OK || c->group.timeline == NULL) return status;
    double now = hpc_now();
    if (!(start >= 0 && start <= now)) /* also if it is a NaN */
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: start is %g s; it must be from 0 to CLOCK_MONOTONIC, which is %g s now", op, start, now);
    const hpc_span span = {.timeline = c->group.timeline, .start = start, .label = name, .kind = HPC_SPAN_USER};
    hpc_timeline_record(&span, now);
    return HPC_OK;
}

int hpc_context_set_title(hpc_context *c, const char *title) {
    static const char op[] = "set_title";
    if (c == NULL || title == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: context or title is NULL", op);
    int status = hpc_group_usable(&c->group, op);
    if (status == HPC_OK) hpc_control_entitle(c->control, title);
    return status;
}

int hpc_context_bandwidth(hpc_context *c, const int *peers, int n, const hpc_bandwidth_options *options,
                          hpc_bandwidth *results) {
    int status = hpc_context_ready(c, "bandwidth");
    if (status != HPC_OK) return status;
    hpc_context_retain(c);
    status = hpc_probes_bandwidth(c, peers, n, options, results);
    hpc_context_release(c);
    return status;
}
