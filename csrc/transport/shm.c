/* shm: a transport for ranks of one host. They map each other's memory, and a put is a copy.
 *
 * Order: a put's data stores come before the store of the signal or the ring's tail, because that store is a
 * release. x86's non-temporal stores, which memcpy uses for large blocks, ignore a release, so an sfence follows
 * them. The waiter loads the word with acquire. Ranks that are threads of one process share the owner's mapping
 * instead of mapping windows twice, so that race detectors see one address. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "transport/objects.h"
#include "transport/ring.h"

typedef struct shm_blob {
    hpc_memory *memory; /* a reference, if the peer is in this process; otherwise NULL */
    uint64_t nbytes;
} shm_blob;

static int reaches(const hpc_address *self, const hpc_address *peer, const char **why) {
    static _Thread_local char told[192];
    if (hpc_can_share(self, peer)) return 1;
    *why = "another host or network namespace";
    if (!hpc_same_host(self, peer)) return 0;
    snprintf(told, sizeof told,
             "rank %d runs as user %u and rank %d as user %u: ranks of two users share memory at a hub alone, if the "
             "namespace lists the workers' user (users in hub.toml)",
             self->rank, self->control.users.own, peer->rank, peer->control.users.own);
    *why = told;
    return 0;
}

/* Each blob has a descriptor of its own. */
static int export_memory(hpc_context *c, hpc_memory *memory, int peer, const char *op, hpc_blob *blob) {
    const int same = hpc_same_process(c, peer);
    shm_blob b = {NULL, memory->nbytes};
    blob->fd = same ? -1 : fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
    if (!same && blob->fd < 0) {
        char hint[HPC_FILES_HINT];
        const int error = errno;
        return hpc_fail(HPC_ERR_MEMORY, op, "rank %d: %s: no descriptor for rank %d: %s%s", c->group.rank, op, peer,
                        strerror(error), hpc_files_hint(error, hint));
    }
    if (same) b.memory = hpc_memory_retain(memory);
    memcpy(blob->bytes, &b, sizeof b);
    return HPC_OK;
}

static void discard(const hpc_blob *blob) {
    shm_blob b;
    memcpy(&b, blob->bytes, sizeof b);
    hpc_memory_release(b.memory);
}

static int attach_memory(hpc_context *c, int peer, const hpc_blob *blob, size_t at_least, const char *op,
                         hpc_memory **memory) {
    shm_blob b;
    memcpy(&b, blob->bytes, sizeof b);
    if (hpc_same_process(c, peer)) {
        *memory = b.memory;
        if (blob->fd >= 0) close(blob->fd);
        return HPC_OK;
    }
    if (blob->fd < 0) { /* the kernel silently drops a descriptor when this process has too many open */
        char hint[HPC_FILES_HINT];
        return hpc_fail_transport(op, "shm", peer, "%s: no descriptor came from rank %d%s", op, peer,
                                  hpc_files_hint(EMFILE, hint));
    }
    if (b.nbytes < at_least) {
        close(blob->fd);
        return hpc_fail_transport(op, "shm", peer, "%s: rank %d gave too little memory", op, peer);
    }
    return hpc_memory_attach(blob->fd, (size_t)b.nbytes, op, memory);
}

static int window_export(hpc_window *w, int peer, hpc_blob *blob) {
    return export_memory(w->context, w->memory, peer, "window", blob);
}

static int window_attach(hpc_window *w, int peer, const hpc_blob *blob) {
    hpc_part *part = &w->parts[peer];
    hpc_memory *memory = NULL;
    int status = attach_memory(w->context, peer, blob, part->signals_offset + (size_t)part->signals * HPC_SIGNAL_STRIDE,
                               "window", &memory);
    if (status == HPC_OK) atomic_store_explicit(&part->memory, memory, memory_order_release);
    return status;
}

/* Returns where the ring of rank begins in its memory. If all began at the start of a page, the words that a thread
 * polls would share one set of its cache. */
static size_t ring_offset(int rank) {
    enum { STEP = 128, STEPS = 30 };
    return (size_t)(rank % STEPS) * STEP;
}

/* Makes the ring of the peer's events. Its descriptor is closed once the blob has its own. */
static int lane_export(hpc_lane *lane, int peer, hpc_blob *blob) {
    hpc_lane_peer *p = &lane->peers[peer];
    if (p->in_memory != NULL) return hpc_fail(HPC_ERR_INVALID, "lane", "rank %d has the lane's ring already", peer);
    int status = hpc_memory_create(ring_offset(peer) + sizeof(hpc_ring), "lane", &p->in_memory);
    if (status == HPC_OK) status = export_memory(lane->context, p->in_memory, peer, "lane", blob);
    if (status != HPC_OK) return status;
    hpc_memory_close_descriptor(p->in_memory);
    atomic_store_explicit(&p->in, (char *)hpc_memory_data(p->in_memory) + ring_offset(peer), memory_order_release);
    return HPC_OK;
}

static int lane_attach(hpc_lane *lane, int peer, const hpc_blob *blob) {
    hpc_lane_peer *p = &lane->peers[peer];
    const size_t at = ring_offset(lane->context->group.rank);
    int status = attach_memory(lane->context, peer, blob, at + sizeof(hpc_ring), "lane", &p->memory);
    if (status == HPC_OK) atomic_store_explicit(&p->out, (char *)hpc_memory_data(p->memory) + at, memory_order_release);
    return status;
}

static void window_detach(hpc_window *w, int peer) {
    (void)w, (void)peer; /* the core drops the memory */
}

static void lane_detach(hpc_lane *lane, int peer) {
    atomic_store(&lane->peers[peer].out, NULL);
}

static inline void store_fence(size_t nbytes) {
#if defined(__x86_64__)
    if (nbytes >= 1024) __builtin_ia32_sfence(); /* smaller memcpys never stream */
#else
    (void)nbytes;
#endif
}

static int put(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset) {
    (void)lane;
    if (nbytes > 0) memcpy((char *)hpc_memory_data(hpc_part_memory(&w->parts[peer])) + offset, src, nbytes);
    store_fence(nbytes);
    return HPC_OK;
}

static int put_signal(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      int signal, uint64_t value) {
    _Atomic uint64_t *word = hpc_signal_at(&w->parts[peer], signal);
    __builtin_prefetch((const void *)word,
                       1); /* fetch the word's line early: fetches may overlap, stores go in order */
    put(lane, w, peer, src, nbytes, offset);
    atomic_store_explicit(word, value, memory_order_release);
    hpc_bell_ring(hpc_control_bell(w->context->control, peer));
    return HPC_OK;
}

static int put_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      uint32_t imm) {
    hpc_ring *ring = atomic_load_explicit(&lane->peers[peer].out, memory_order_acquire);
    if (ring == NULL) return HPC_IN_PROGRESS;
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* only this lane writes it */
    if (hpc_ring_is_full(ring, tail)) return HPC_IN_PROGRESS;
    put(lane, w, peer, src, nbytes, offset);
    hpc_ring_push(ring, tail, imm, nbytes);
    hpc_bell_ring(hpc_control_bell(w->context->control, peer));
    return HPC_OK;
}

static int poll_ring(hpc_lane *lane, int peer, hpc_event *event) {
    int status = hpc_ring_pop(atomic_load_explicit(&lane->peers[peer].in, memory_order_relaxed), event);
    /* A sender may be asleep until the ring has room. */
    if (status == HPC_OK) hpc_bell_ring(hpc_control_bell(lane->context->control, peer));
    return status;
}

static int flush(hpc_lane *lane, int peer) {
    (void)lane, (void)peer;
    return HPC_OK; /* a put is in place when it returns */
}

/* True: put fences each large memcpy, whose stores may bypass the caches; engine/worker/send.h fences a trainer's. */
static int keeps_order(const hpc_context *c, char why[HPC_ORDER_BYTES]) {
    (void)c, (void)why;
    return 1;
}

const hpc_transport hpc_transport_shm = {
    .name = "shm",
    .caps = HPC_CAP_PEER_VIEW | HPC_CAP_ONE_HOST,
    .reaches = reaches,
    .window_export = window_export,
    .window_attach = window_attach,
    .window_detach = window_detach,
    .lane_export = lane_export,
    .lane_attach = lane_attach,
    .lane_detach = lane_detach,
    .discard = discard,
    .put = put,
    .put_signal = put_signal,
    .put_notify = put_notify,
    .poll = poll_ring,
    .flush = flush,
    .keeps_order = keeps_order,
    .progress = NULL,
    .release = NULL,
};
