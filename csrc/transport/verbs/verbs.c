/* verbs: a transport for ranks with RDMA NICs, InfiniBand or RoCE. For a put the NIC writes into the peer's window
 * without the peer's CPU. Signals and events are immediates of these writes (parts.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/verbs/parts.h"

static int reaches(const hpc_address *self, const hpc_address *peer, const char **why) {
    static _Thread_local char told[160];
    const hpc_address *lacking = self->devices.state != HPC_VERBS_READY ? self : peer;
    hpc_rail rails[HPC_RAILS];
    if (lacking->devices.state != HPC_VERBS_READY) {
        snprintf(told, sizeof told, "rank %d %s", lacking->rank, hpc_no_verbs_text(lacking->devices.state));
        *why = told;
        return 0;
    }
    if (!hpc_can_share(self, peer) && !hpc_both_listen(self, peer)) {
        *why = "one of them listens on no interface, and the control channel between hosts and users is TCP";
        return 0;
    }
    return hpc_transport_rails(self, peer, rails, why) > 0;
}

#if defined(HPC_HAVE_VERBS)

/* ---- lanes ---- */

_Static_assert(sizeof(verbs_greeting) <= HPC_BLOB_BYTES, "a blob holds it");

/* Returns the lane's rail among the rails of the two ranks: by the lane's own rail number, or by the pair of ranks. */
static const hpc_rail *rail_of(const hpc_verbs *v, const hpc_lane *lane, int peer) {
    const verbs_peer *p = &v->peers[peer];
    int n = lane->rail == HPC_RAIL_BY_WORKER ? v->context->group.rank + peer : lane->rail;
    return &p->rails[n % p->n_rails];
}

static int lane_export(hpc_lane *lane, int peer, hpc_blob *blob) {
    hpc_verbs *v = verbs_of(lane->context);
    verbs_lane *own = lane->verbs;
    verbs_link *link;
    if (v == NULL) return hpc_last_error()->status;
    if (own == NULL) {
        own = calloc(1, sizeof *own);
        if (own == NULL) return hpc_fail(HPC_ERR_MEMORY, "lane", "lane: no memory for its queues");
        own->number = ++v->lanes;
        lane->verbs = own;
    }
    const hpc_rail *rail = rail_of(v, lane, peer);
    own->links++; /* detach is called for each peer, even after a failure */
    if (own->ifaces[rail->here] == NULL)
        own->ifaces[rail->here] = verbs_iface_open(v, rail->here, lane->memory, "lane");
    if (own->ifaces[rail->here] == NULL) return hpc_last_error()->status;
    int status = verbs_link_open(v, own->ifaces[rail->here], lane, peer, rail, &link);
    if (status != HPC_OK) return status;
    lane->peers[peer].out = link;
    verbs_greeting greeting;
    verbs_link_greet(link, &greeting);
    memcpy(blob->bytes, &greeting, sizeof greeting);
    return HPC_OK;
}

static int lane_attach(hpc_lane *lane, int peer, const hpc_blob *blob) {
    verbs_greeting greeting;
    memcpy(&greeting, blob->bytes, sizeof greeting);
    if (lane->peers[peer].out == NULL) return HPC_OK; /* this rank's own failure is known */
    return verbs_link_connect(lane->peers[peer].out, &greeting);
}

/* Closes this end. The queue pair stays until the peer frees its lane too, because the peer may still put on it. */
static void lane_detach(hpc_lane *lane, int peer) {
    verbs_link *link = lane->peers[peer].out;
    verbs_lane *own = lane->verbs;
    if (own == NULL) return;
    lane->peers[peer].out = NULL;
    if (link != NULL) {
        verbs_iface *iface = own->ifaces[link->iface->nic];
        verbs_link_close(link);
        verbs_iface_visit(iface); /* this may be the second end to close */
    }
    if (--own->links > 0) return;
    for (int i = 0; i < HPC_RAILS; i++)
        if (own->ifaces[i] != NULL) verbs_iface_release(own->ifaces[i]);
    free(own);
    lane->verbs = NULL;
}

/* ---- windows ---- */

static int window_export(hpc_window *w, int peer, hpc_blob *blob) {
    hpc_verbs *v = verbs_of(w->context);
    return v == NULL ? hpc_last_error()->status : verbs_window_export(v, w, peer, blob);
}

static int window_attach(hpc_window *w, int peer, const hpc_blob *blob) {
    return verbs_window_attach(w, peer, blob);
}

/* Waits until this rank's puts to the peer, on all lanes, are complete. */
static void let_puts_end(hpc_verbs *v, int peer) {
    hpc_group *g = &v->context->group;
    double deadline = hpc_deadline(g, -1);
    while (!atomic_load(&g->closed) && verbs_settle(v, peer) != 0 && hpc_now() < deadline) {
        if (atomic_load_explicit(&g->states[peer], memory_order_acquire) != HPC_PEER_ALIVE) return;
        verbs_progress(v->context);
        sched_yield();
    }
}

/* Detaches a window: tells its rank, after all puts into it, that this rank will write nothing more. */
static void window_detach(hpc_window *w, int peer) {
    hpc_verbs *v = w->context->verbs;
    const verbs_remote *remote = w->parts[peer].remote;
    const hpc_lane *lane = w->context->lane;
    if (remote != NULL) let_puts_end(v, peer);
    if (remote != NULL && !atomic_load(&w->context->group.closed) && lane != NULL && lane->peers[peer].out != NULL)
        verbs_link_say(lane->peers[peer].out, &(verbs_message){.kind = VERBS_DETACH, .number = remote->number});
    verbs_window_detach(v, w, peer);
}

/* ---- data ---- */

static uint64_t address_in(const hpc_window *w, int peer, size_t offset) {
    return ((const verbs_remote *)w->parts[peer].remote)->address + offset;
}

/* Puts, and now and then polls for completed sends: at every eighth put, or at each while many puts wait for room. */
static int put_order(verbs_link *link, const hpc_window *w, verbs_order *order, int is_event, const char *op) {
    int look_due, status = verbs_link_put(link, w, order, is_event, op, &look_due);
    if (look_due) verbs_iface_visit(link->iface); /* completed sends make room for more */
    return status;
}

static int put(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset) {
    verbs_order order = {.src = src, .nbytes = nbytes, .to = address_in(w, peer, offset), .corked = lane->corked};
    return nbytes == 0 ? HPC_OK : put_order(lane->peers[peer].out, w, &order, 0, "put");
}

/* Returns whether the low bits suffice for the receiver: the last value came on the same lane and is near this one. */
static int fits_imm(const verbs_remote *remote, const verbs_link *link, int signal, uint64_t value) {
    const struct verbs_sent *last = &remote->sent[signal];
    return remote->number < VERBS_IMM_WINDOWS && signal < 1 << VERBS_SIGNAL_BITS &&
           (last->lane == link->lane || last->lane == 0) && value - last->value < 1u << VERBS_VALUE_BITS;
}

static int put_signal(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      int signal, uint64_t value) {
    verbs_link *link = lane->peers[peer].out;
    verbs_remote *remote = w->parts[peer].remote;
    verbs_order order = {.src = src, .nbytes = nbytes, .to = address_in(w, peer, offset), .corked = lane->corked};
    if (fits_imm(remote, link, signal, value)) {
        order.with_imm = 1;
        order.imm = verbs_imm_signal(remote->number, signal, value);
    } else {
        order.written = nbytes == 0;
        order.message =
            (verbs_message){.kind = VERBS_SIGNAL, .number = remote->number, .word = (uint32_t)signal, .value = value};
    }
    int status = put_order(link, w, &order, 0, "put_signal");
    /* A value that is not greater changes nothing at the peer, so it does not make this lane the word's writer. */
    if (status == HPC_OK && value > remote->sent[signal].value)
        remote->sent[signal] = (struct verbs_sent){value, link->lane};
    return status;
}

static int put_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      uint32_t imm) {
    verbs_link *link = lane->peers[peer].out;
    verbs_order order = {.src = src, .nbytes = nbytes, .to = address_in(w, peer, offset), .corked = lane->corked};
    if (!verbs_imm_is_signal(imm) && nbytes <= verbs_link_most(link)) {
        order.with_imm = 1;
        order.imm = imm;
    } else {
        order.written = nbytes == 0;
        order.message = (verbs_message){.kind = VERBS_EVENT, .word = imm, .value = nbytes};
    }
    return put_order(link, w, &order, 1, "put_notify");
}

/* Polls the lane's queues once per round over the peers. Tells a peer its credit when half of the ring was taken, or
 * if the peer waits for it. This load of wanted and the peer's WANT are in one order with the ring's head, so one of
 * the two threads sees the other's store. */
static int poll_ring(hpc_lane *lane, int peer, hpc_event *event) {
    hpc_ring *ring = lane->peers[peer].in;
    verbs_link *link = lane->peers[peer].out;
    const verbs_lane *own = lane->verbs;
    const hpc_verbs *v = lane->context->verbs;
    for (int i = 0; i < HPC_RAILS && peer == v->first_peer; i++)
        if (own->ifaces[i] != NULL && (verbs_iface_visit(own->ifaces[i]) & VERBS_CAME)) hpc_reactor_loops(v->reactor);
    int status = hpc_ring_pop(ring, event);
    if (status != HPC_OK) return status;
    int wanted = atomic_fetch_add(&link->wanted, 0); /* a barrier, too */
    uint64_t owed = atomic_load_explicit(&ring->head, memory_order_relaxed) -
                    atomic_load_explicit(&link->told_taken, memory_order_relaxed);
    if (wanted) wanted = atomic_exchange(&link->wanted, 0);
    if (owed >= HPC_NOTIFY_DEPTH / 2 || wanted) verbs_link_tell(link, wanted);
    return HPC_OK;
}

static void uncork(hpc_lane *lane, int peer) {
    if (lane->peers[peer].out != NULL) verbs_link_uncork(lane->peers[peer].out);
}

static int flush(hpc_lane *lane, int peer) {
    verbs_link *link = lane->peers[peer].out;
    int status = verbs_link_flush(link, "flush");
    if (status != HPC_IN_PROGRESS) return status;
    verbs_iface_visit(link->iface);
    return verbs_link_flush(link, "flush");
}

static const char *path(const hpc_context *c, int peer) {
    return c->verbs == NULL ? "" : c->verbs->peers[peer].path;
}

static int settle(hpc_context *c) {
    return verbs_settle(c->verbs, -1);
}

/* True: a lane has one queue pair to a peer, and the NIC places its writes in the order of their posts. No window is
 * registered with IBV_ACCESS_RELAXED_ORDERING, which would let writes overtake each other on the PCIe bus. */
static int keeps_order(const hpc_context *c, char why[HPC_ORDER_BYTES]) {
    (void)c, (void)why;
    return 1;
}

static void release(hpc_context *c) {
    if (c->verbs != NULL) verbs_close(c->verbs);
    c->verbs = NULL;
}

const hpc_transport hpc_transport_verbs = {
    .name = "verbs",
    .caps = HPC_CAP_NICS | HPC_CAP_EAGER,
    .reaches = reaches,
    .window_export = window_export,
    .window_attach = window_attach,
    .window_detach = window_detach,
    .lane_export = lane_export,
    .lane_attach = lane_attach,
    .lane_detach = lane_detach,
    .put = put,
    .put_signal = put_signal,
    .put_notify = put_notify,
    .poll = poll_ring,
    .uncork = uncork,
    .flush = flush,
    .keeps_order = keeps_order,
    .settle = settle,
    .path = path,
    .progress = verbs_progress,
    .release = release,
    .nics_open = verbs_nics_open,
    .nics_close = verbs_nics_close,
    .nics_node = verbs_nics_node,
};

#else

/* A build without rdma-core's headers: the transport connects no peers, and says why. */
const hpc_transport hpc_transport_verbs = {.name = "verbs", .caps = HPC_CAP_NICS | HPC_CAP_EAGER, .reaches = reaches};

#endif
