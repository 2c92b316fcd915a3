/* loop: a transport for ranks that are threads of one process. It is the reference of the contract, and tests code
 * against it: with a seed it delays, splits and reorders puts as far as the contract allows, and reads src as late
 * as allowed.
 *
 * Delayed operations lie in the receiver's inbox, a list in call order under one lock. A step delivers one
 * operation, or a part of a put. The seed chooses among the operations that may go: any put, but a signal or an
 * event only if no earlier operation of its lane is left. The receiver's waits and a sender's flush run the steps.
 * The lock orders each step before the next, and a signal's release store comes after all data delivered before it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/objects.h"
#include "transport/ring.h"

enum { MOST_HELD = 64 };

typedef enum { PUT, SIGNAL, EVENT } operation_kind;

typedef struct operation {
    struct operation *next;
    operation_kind kind;
    const hpc_lane *lane; /* the sender's lane: compared, never followed */
    hpc_memory *memory;   /* keeps dst mapped */
    char *dst;            /* target: a put's address, a signal's word, or an event's ring */
    const char *src;
    size_t nbytes;
    uint64_t value;
} operation;

typedef struct inbox {
    pthread_mutex_t lock;
    operation *first;
    int held;
    uint64_t random;
    _Atomic int references;
} inbox;

/* The sender's end of a lane to one peer. */
typedef struct route {
    inbox *inbox;
    hpc_ring *ring;
    uint64_t tail; /* the ring's tail, counting events that are still held back */
} route;

typedef struct loop_blob {
    hpc_memory *memory; /* with a reference */
    inbox *inbox;       /* with a reference; lanes only */
} loop_blob;

static int reaches(const hpc_address *self, const hpc_address *peer, const char **why) {
    *why = "another process";
    return self->host[0] == peer->host[0] && self->control.pid == peer->control.pid &&
           self->control.pid_namespace == peer->control.pid_namespace;
}

/* ---- the inbox ---- */

static inbox *own_inbox(hpc_context *c) {
    inbox *box = c->held;
    if (box != NULL) return box;
    box = calloc(1, sizeof *box);
    if (box == NULL) return NULL;
    pthread_mutex_init(&box->lock, NULL);
    box->random = (c->loop_seed + (uint64_t)c->group.rank) * 2654435761u + 1;
    atomic_init(&box->references, 1);
    c->held = box;
    return box;
}

static void drop_inbox(inbox *box) {
    if (box == NULL || atomic_fetch_sub_explicit(&box->references, 1, memory_order_acq_rel) != 1) return;
    for (operation *o = box->first, *next; o != NULL; o = next) {
        next = o->next;
        hpc_memory_release(o->memory);
        free(o);
    }
    pthread_mutex_destroy(&box->lock);
    free(box);
}

static uint64_t next_random(inbox *box) { /* xorshift */
    uint64_t x = box->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return box->random = x;
}

static int may_go(const inbox *box, const operation *o) {
    if (o->kind == PUT) return 1;
    for (const operation *before = box->first; before != o; before = before->next)
        if (before->lane == o->lane) return 0;
    return 1;
}

static void deliver(inbox *box, operation *o) {
    size_t part = o->nbytes;
    if (o->kind == PUT && part > 1 && next_random(box) % 2) part = 1 + next_random(box) % (part - 1);
    switch (o->kind) {
    case PUT:
        if (part > 0) memcpy(o->dst, o->src, part);
        o->dst += part;
        o->src += part;
        o->nbytes -= part;
        if (o->nbytes > 0) return;
        break;
    case SIGNAL:
        hpc_raise_signal((_Atomic uint64_t *)(void *)o->dst, o->value);
        break;
    case EVENT: {
        hpc_ring *ring = (hpc_ring *)(void *)o->dst;
        hpc_ring_push(ring, atomic_load_explicit(&ring->tail, memory_order_relaxed), (uint32_t)o->value, o->nbytes);
        break;
    }
    }
    for (operation **at = &box->first;; at = &(*at)->next)
        if (*at == o) {
            *at = o->next;
            break;
        }
    box->held--;
    hpc_memory_release(o->memory);
    free(o);
}

/* Delivers one operation, of this lane only unless lane is NULL. Returns how many such operations are left. */
static int step(inbox *box, const hpc_lane *lane) {
    operation *chosen = NULL;
    int candidates = 0, left = 0;
    pthread_mutex_lock(&box->lock);
    for (operation *o = box->first; o != NULL; o = o->next) {
        if (lane != NULL && o->lane != lane) continue;
        left++;
        if (may_go(box, o) && next_random(box) % (uint64_t)++candidates == 0) chosen = o;
    }
    if (chosen != NULL) {
        int before = box->held;
        deliver(box, chosen);
        left -= before - box->held;
    }
    pthread_mutex_unlock(&box->lock);
    return left;
}

static int progress(hpc_context *c) {
    inbox *box = c->held;
    uint64_t dice;
    int left;
    if (box == NULL) return 0;
    pthread_mutex_lock(&box->lock);
    dice = next_random(box);
    left = box->held;
    pthread_mutex_unlock(&box->lock);
    if (left > 0 && dice % 2 == 0) left = step(box, NULL);
    return left > 0 ? HPC_LEFT : 0;
}

static void release(hpc_context *c) {
    drop_inbox(c->held);
    c->held = NULL;
}

static int hold_back(hpc_lane *lane, int peer, operation_kind kind, hpc_memory *memory, void *dst, const void *src,
                     size_t nbytes, uint64_t value) {
    const route *to = atomic_load(&lane->peers[peer].out);
    operation *o = malloc(sizeof *o), **at;
    if (o == NULL)
        return hpc_fail_transport("put", "loop", peer, "put: no memory to hold an operation for rank %d", peer);
    *o = (operation){NULL, kind, lane, hpc_memory_retain(memory), dst, src, nbytes, value};
    pthread_mutex_lock(&to->inbox->lock);
    for (at = &to->inbox->first; *at != NULL; at = &(*at)->next) {
    }
    *at = o;
    to->inbox->held++;
    pthread_mutex_unlock(&to->inbox->lock);
    while (step(to->inbox, NULL) > MOST_HELD) {
    }                                                              /* delayed, but not endlessly */
    hpc_bell_ring(hpc_control_bell(lane->context->control, peer)); /* the peer's waits run the other steps */
    return HPC_OK;
}

/* ---- windows and lanes: pointers with references ---- */

static int export_memory(hpc_memory *memory, inbox *box, hpc_blob *blob) {
    loop_blob b = {hpc_memory_retain(memory), box};
    if (box != NULL) atomic_fetch_add_explicit(&box->references, 1, memory_order_relaxed);
    memcpy(blob->bytes, &b, sizeof b);
    return HPC_OK;
}

static int window_export(hpc_window *w, int peer, hpc_blob *blob) {
    (void)peer;
    return export_memory(w->memory, NULL, blob);
}

static int window_attach(hpc_window *w, int peer, const hpc_blob *blob) {
    loop_blob b;
    memcpy(&b, blob->bytes, sizeof b);
    atomic_store_explicit(&w->parts[peer].memory, b.memory, memory_order_release);
    return HPC_OK;
}

static void window_detach(hpc_window *w, int peer) {
    (void)w, (void)peer; /* the core drops the memory */
}

static int lane_export(hpc_lane *lane, int peer, hpc_blob *blob) {
    inbox *box = own_inbox(lane->context);
    hpc_lane_peer *p = &lane->peers[peer];
    if (box == NULL) return hpc_fail(HPC_ERR_MEMORY, "lane", "lane: no memory for an inbox");
    if (p->in_memory != NULL) return hpc_fail(HPC_ERR_INVALID, "lane", "rank %d has the lane's ring already", peer);
    int status = hpc_memory_create(sizeof(hpc_ring), "lane", &p->in_memory);
    if (status != HPC_OK) return status;
    hpc_memory_close_descriptor(p->in_memory);
    atomic_store_explicit(&p->in, hpc_memory_data(p->in_memory), memory_order_release);
    return export_memory(p->in_memory, box, blob);
}

static void discard(const hpc_blob *blob) {
    loop_blob b;
    memcpy(&b, blob->bytes, sizeof b);
    hpc_memory_release(b.memory);
    drop_inbox(b.inbox);
}

static int lane_attach(hpc_lane *lane, int peer, const hpc_blob *blob) {
    route *to = calloc(1, sizeof *to);
    loop_blob b;
    memcpy(&b, blob->bytes, sizeof b);
    if (to == NULL) {
        discard(blob);
        return hpc_fail(HPC_ERR_MEMORY, "lane", "lane: no memory for a route");
    }
    to->inbox = b.inbox;
    to->ring = hpc_memory_data(b.memory);
    lane->peers[peer].memory = b.memory;
    atomic_store_explicit(&lane->peers[peer].out, to, memory_order_release);
    return HPC_OK;
}

static void lane_detach(hpc_lane *lane, int peer) {
    route *to = atomic_load(&lane->peers[peer].out);
    if (to == NULL) return;
    while (step(to->inbox, lane) > 0) {
    } /* freeing a lane loses nothing */
    drop_inbox(to->inbox);
    free(to);
    atomic_store(&lane->peers[peer].out, NULL);
}

/* ---- data ---- */

static int put(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset) {
    if (nbytes == 0) return HPC_OK;
    hpc_memory *memory = hpc_part_memory(&w->parts[peer]);
    char *dst = (char *)hpc_memory_data(memory) + offset;
    if (w->context->loop_seed != 0 && atomic_load(&lane->peers[peer].out) == NULL) return HPC_IN_PROGRESS;
    if (w->context->loop_seed != 0) return hold_back(lane, peer, PUT, memory, dst, src, nbytes, 0);
    memcpy(dst, src, nbytes);
    return HPC_OK;
}

static int put_signal(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      int signal, uint64_t value) {
    hpc_part *part = &w->parts[peer];
    if (w->context->loop_seed != 0 && atomic_load(&lane->peers[peer].out) == NULL) return HPC_IN_PROGRESS;
    int status = put(lane, w, peer, src, nbytes, offset);
    if (status != HPC_OK) return status;
    if (w->context->loop_seed != 0)
        return hold_back(lane, peer, SIGNAL, hpc_part_memory(part), (void *)hpc_signal_at(part, signal), NULL, 0,
                         value);
    atomic_store_explicit(hpc_signal_at(part, signal), value, memory_order_release);
    hpc_bell_ring(hpc_control_bell(w->context->control, peer));
    return HPC_OK;
}

static int put_notify(hpc_lane *lane, hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset,
                      uint32_t imm) {
    hpc_lane_peer *p = &lane->peers[peer];
    route *to = atomic_load_explicit(&p->out, memory_order_acquire);
    if (to == NULL || hpc_ring_is_full(to->ring, to->tail)) return HPC_IN_PROGRESS;
    int status = put(lane, w, peer, src, nbytes, offset);
    if (status != HPC_OK) return status;
    to->tail++;
    if (w->context->loop_seed != 0) return hold_back(lane, peer, EVENT, p->memory, to->ring, NULL, nbytes, imm);
    hpc_ring_push(to->ring, to->tail - 1, imm, nbytes);
    hpc_bell_ring(hpc_control_bell(w->context->control, peer));
    return HPC_OK;
}

static int poll_ring(hpc_lane *lane, int peer, hpc_event *event) {
    int status = hpc_ring_pop(atomic_load_explicit(&lane->peers[peer].in, memory_order_relaxed), event);
    if (status == HPC_OK) hpc_bell_ring(hpc_control_bell(lane->context->control, peer)); /* it may wait for room */
    return status;
}

static int flush(hpc_lane *lane, int peer) {
    const route *to = atomic_load(&lane->peers[peer].out);
    if (to == NULL) return HPC_OK;
    while (step(to->inbox, lane) > 0) {
    }
    hpc_bell_ring(hpc_control_bell(lane->context->control, peer));
    return HPC_OK;
}

static int keeps_order(const hpc_context *c, char why[HPC_ORDER_BYTES]) {
    snprintf(why, HPC_ORDER_BYTES, "loop_seed is %llu, make it 0", (unsigned long long)c->loop_seed);
    return c->loop_seed == 0;
}

const hpc_transport hpc_transport_loop = {
    .name = "loop",
    .caps = HPC_CAP_ONE_HOST | HPC_CAP_ONE_PROCESS,
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
    .progress = progress,
    .release = release,
};
