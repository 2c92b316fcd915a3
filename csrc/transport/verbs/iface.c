/* A lane's queues at one NIC: what has come, and what is done.
 *
 * One thread at a time polls a completion queue: a wait of any thread, the lane's own poll, or the reactor's thread
 * when nobody waits. A wait that goes to sleep arms the queues first (the next completion is then an event of the NIC's
 * channel, which lies in the reactor's set) and looks once more: a completion came before that look, or is an event. */
#define _GNU_SOURCE
#include "transport/verbs/verbs.h"

#if defined(HPC_HAVE_VERBS)

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    BATCH = VERBS_BATCH,
    ROUNDS = 64,   /* batches of one visit */
    HOT_MOST = 16, /* looks at one iface alone, of a wait */
    ASYNC = 256    /* tag of a NIC's other events */
};

static const uint64_t RECEIVE = (uint64_t)1 << 63; /* wr_id of a receive: this and its room */
static const double GRACE = 1;                     /* a broken queue pair's peer may be about to say that it leaves */

/* The next completion is an event. */
static int arm_one(verbs_iface *f) {
    if (!atomic_exchange(&f->armed, 1)) ibv_req_notify_cq(f->cq, 0);
    return 0;
}

/* ---- life of an iface ---- */

static uint32_t place_of(const verbs_iface *f, uint32_t qp) {
    uint32_t i = qp * 2654435761u >> 7 & f->mask;
    while (f->numbers[i].slot != -1 && f->numbers[i].qp != qp) i = (i + 1) & f->mask;
    return i;
}

static int post_receives(verbs_iface *f, const int *rooms, int n) {
    struct ibv_recv_wr receives[BATCH], *bad;
    struct ibv_sge parts[BATCH];
    for (int i = 0; i < n; i++) {
        parts[i] = (struct ibv_sge){(uint64_t)(uintptr_t)&f->rooms[rooms[i]], sizeof f->rooms[0], f->region->lkey};
        receives[i] = (struct ibv_recv_wr){.wr_id = RECEIVE | (uint64_t)rooms[i],
                                           .next = i + 1 < n ? &receives[i + 1] : NULL,
                                           .sg_list = &parts[i],
                                           .num_sge = 1};
    }
    return n == 0 ? 0 : ibv_post_srq_recv(f->srq, receives, &bad);
}

static int fill(verbs_iface *f) {
    int rooms[BATCH], error = 0;
    for (int at = 0; at < f->receives && error == 0; at += BATCH) {
        int n = 0;
        while (n < BATCH && at + n < f->receives) {
            rooms[n] = at + n;
            n++;
        }
        error = post_receives(f, rooms, n);
    }
    return error;
}

static void destroy(verbs_iface *f) {
    const verbs_library *library = f->verbs->library;
    if (f->srq != NULL) library->destroy_srq(f->srq);
    if (f->cq != NULL) library->destroy_cq(f->cq);
    if (f->region != NULL) library->dereg_mr(f->region);
    hpc_private_free(f->block, f->block_bytes);
    hpc_memory_release(f->ring_memory);
    free(f->links);
    free(f->numbers);
    free(f);
}

static int at_most(int n, int most) {
    return n < most ? n : most;
}

static int at_least(int n, int least) {
    return n > least ? n : least;
}

/* How much of each queue: every link may have all its credits out and all its sends unread. */
static void choose_sizes(verbs_iface *f, const verbs_nic *nic) {
    int links = f->n_slots, receives = at_most(VERBS_RECEIVES, at_most(nic->most_srq, nic->most_cqe / 2));
    /* More than may lie unposted, and half of them. */
    f->credits = at_least(at_most(VERBS_CREDITS, receives / links), 2 * VERBS_REPOST);
    f->receives = f->credits * links;
    f->depth = at_most(links > 32 ? VERBS_DEPTH / 4 : VERBS_DEPTH,
                       at_most(nic->most_sends, (nic->most_cqe - f->receives) / links));
    f->depth = at_least(f->depth, 8);
}

static int create(verbs_iface *f, const verbs_nic *nic, struct ibv_comp_channel *channel) {
    const verbs_library *library = f->verbs->library;
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = (uint32_t)f->receives, .max_sge = 1}};
    f->region = library->reg_mr(nic->pd, f->block, f->block_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (f->region == NULL) return errno;
    /* The lanes' interrupts go to several cores. */
    int vector = (int)(f->verbs->lanes % (uint64_t)at_least(nic->context->num_comp_vectors, 1));
    f->cq = library->create_cq(nic->context, f->receives + f->depth * f->n_slots, f, channel, vector);
    if (f->cq == NULL) return errno;
    f->srq = library->create_srq(nic->pd, &srq);
    if (f->srq == NULL) return errno;
    return fill(f);
}

verbs_iface *verbs_iface_open(hpc_verbs *v, int i, hpc_memory *ring_memory, const char *op) {
    const verbs_nic *nic = &v->nics->nics[i];
    verbs_iface *f = calloc(1, sizeof *f);
    int error = ENOMEM;
    if (f == NULL) goto failed;
    f->verbs = v;
    f->nic = i;
    f->n_slots = v->n_peers;
    atomic_init(&f->references, 1);
    f->ring_memory = hpc_memory_retain(ring_memory);
    choose_sizes(f, nic);
    for (f->mask = 4; f->mask < 2 * (uint32_t)f->n_slots; f->mask *= 2) {
    }
    f->numbers = malloc(f->mask * sizeof *f->numbers);
    f->links = calloc((size_t)f->n_slots, sizeof(verbs_link *));
    f->block_bytes = (size_t)f->n_slots * sizeof *f->credit + (size_t)f->receives * sizeof *f->rooms;
    f->block = hpc_private_alloc(f->block_bytes, nic->node);
    if (f->numbers == NULL || f->links == NULL || f->block == NULL) goto failed;
    madvise(f->block, f->block_bytes, MADV_DONTFORK); /* no copy on write between the NIC and this process */
    for (uint32_t n = 0; n < f->mask; n++) f->numbers[n].slot = -1;
    f->mask--;
    f->credit = f->block;
    f->rooms = (verbs_message_room *)(void *)((char *)f->block + (size_t)f->n_slots * sizeof *f->credit);
    error = create(f, nic, v->channels[i]);
    if (error != 0) goto failed;
    pthread_mutex_lock(&v->lock);
    if (v->n_ifaces == v->room) {
        int room = v->room == 0 ? 16 : 2 * v->room;
        verbs_iface **ifaces = realloc(v->ifaces, (size_t)room * sizeof *ifaces);
        if (ifaces != NULL) {
            v->ifaces = ifaces;
            v->room = room;
        } else {
            error = ENOMEM;
        }
    }
    if (error == 0) v->ifaces[v->n_ifaces++] = f;
    pthread_mutex_unlock(&v->lock);
    if (error == 0) {
        arm_one(f); /* a thread that sleeps already does not know of it */
        return f;
    }

failed:
    hpc_fail_transport(op, "verbs", -1, "rank %d: %s: %s cannot make queues: %s%s", v->context->group.rank, op,
                       nic->name, strerror(error),
                       error == ENOMEM || error == EPERM ? "; raise the limit of locked memory (ulimit -l unlimited)"
                                                         : "");
    if (f != NULL) destroy(f);
    return NULL;
}

/* Unless it is on its way out already. */
static int retain(verbs_iface *f) {
    int n = atomic_load_explicit(&f->references, memory_order_relaxed);
    while (n > 0)
        if (atomic_compare_exchange_weak_explicit(&f->references, &n, n + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return 1;
    return 0;
}

void verbs_iface_release(verbs_iface *f) {
    hpc_verbs *v = f->verbs;
    if (atomic_fetch_sub_explicit(&f->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        if (v->ifaces[i] == f) v->ifaces[i] = v->ifaces[--v->n_ifaces];
    pthread_mutex_unlock(&v->lock);
    destroy(f);
}

int verbs_iface_slot(verbs_iface *f) {
    for (int i = 0; i < f->n_slots; i++)
        if (f->links[i] == NULL) return i;
    return -1;
}

/* ---- links, of it ---- */

static void take_reading(verbs_iface *f) {
    while (atomic_exchange_explicit(&f->reading, 1, memory_order_acquire)) sched_yield();
}

static void leave_reading(verbs_iface *f) {
    atomic_store_explicit(&f->reading, 0, memory_order_release);
}

void verbs_iface_add(verbs_iface *f, verbs_link *l) {
    take_reading(f);
    pthread_mutex_lock(&f->verbs->lock);
    f->links[l->slot] = l;
    if (l->slot >= f->n_links) f->n_links = l->slot + 1;
    uint32_t i = place_of(f, l->qp->qp_num);
    f->numbers[i].qp = l->qp->qp_num;
    f->numbers[i].slot = l->slot;
    pthread_mutex_unlock(&f->verbs->lock);
    leave_reading(f);
    atomic_fetch_add_explicit(&f->references, 1, memory_order_relaxed);
}

/* The table is made anew without it: there are few links, and they go once. */
static void remove_link(verbs_iface *f, int slot) {
    pthread_mutex_lock(&f->verbs->lock);
    f->links[slot] = NULL;
    for (uint32_t n = 0; n <= f->mask; n++) f->numbers[n].slot = -1;
    for (int i = 0; i < f->n_links; i++) {
        if (f->links[i] == NULL) continue;
        uint32_t n = place_of(f, f->links[i]->qp->qp_num);
        f->numbers[n].qp = f->links[i]->qp->qp_num;
        f->numbers[n].slot = i;
    }
    pthread_mutex_unlock(&f->verbs->lock);
}

/* By the holder of reading: links that both ends have closed. How many references to the iface went with them. */
static int remove_closed(verbs_iface *f) {
    int gone = 0;
    atomic_store(&f->closing, 0);
    for (int i = 0; i < f->n_links; i++) {
        verbs_link *l = f->links[i];
        if (l == NULL || !atomic_load(&l->closed_here)) continue;
        if (!verbs_link_can_go(l)) continue;
        remove_link(f, i);
        verbs_link_free(l);
        gone++;
    }
    return gone;
}

static verbs_link *link_of(const verbs_iface *f, uint32_t qp) {
    int slot = f->numbers[place_of(f, qp)].slot;
    return slot < 0 ? NULL : f->links[slot];
}

/* ---- what comes; all of it by the holder of reading ---- */

static void ring(verbs_iface *f) {
    hpc_bell_ring(f->verbs->context->group.bell);
}

/* Stores a signal, unless a greater value is there: one that was put by another lane may have overtaken it. An
 * immediate counts from the last value of its own link, which is the word's; where another link has brought the word on
 * since, the immediate is older than that. */
static void store_signal(verbs_link *l, uint32_t number, uint32_t signal, int is_imm, uint64_t value) {
    hpc_verbs *v = l->iface->verbs;
    verbs_window *w = number < VERBS_WINDOWS ? atomic_load_explicit(&v->windows[number], memory_order_acquire) : NULL;
    if (w == NULL || signal >= (uint32_t)w->signals) return; /* freed meanwhile */
    char *words = (char *)w->memory->data + w->signals_offset;
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(words + (size_t)signal * HPC_SIGNAL_STRIDE);
    pthread_mutex_lock(&w->storing);
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed);
    if (is_imm) {
        int is_next = w->writers[signal] == 0 || w->writers[signal] == l->number;
        value = is_next ? verbs_imm_value((uint32_t)value, now) : 0;
    }
    if (value > now) {
        w->writers[signal] = l->number;
        atomic_store_explicit(word, value, memory_order_release);
    }
    pthread_mutex_unlock(&w->storing);
}

static void push_event(verbs_link *l, uint32_t imm, uint64_t nbytes) {
    uint64_t tail = atomic_load_explicit(&l->ring->tail, memory_order_relaxed);
    if (hpc_ring_is_full(l->ring, tail)) /* credits rule it out */
        verbs_link_break(l, "an event too many", "the peer runs another version?", 0);
    else
        hpc_ring_push(l->ring, tail, imm, nbytes);
}

/* Either the taker of the next event sees wanted, or its head is seen here. */
static void answer_want(verbs_link *l, uint64_t known) {
    atomic_exchange(&l->wanted, 1);
    if (atomic_load_explicit(&l->ring->head, memory_order_acquire) > known && atomic_exchange(&l->wanted, 0))
        verbs_link_tell(l, 1);
}

static void take_message(verbs_link *l, const verbs_message *m) {
    hpc_verbs *v = l->iface->verbs;
    switch (m->kind) {
    case VERBS_SIGNAL:
        store_signal(l, m->number, m->word, 0, m->value);
        break;
    case VERBS_EVENT:
        push_event(l, m->word, m->value);
        break;
    case VERBS_WANT:
        answer_want(l, m->value);
        break;
    case VERBS_DETACH:
        verbs_window_leave(v, m->number, l->peer);
        break;
    case VERBS_CLOSE:
        atomic_store(&l->closed_there, 1);
        atomic_store(&l->iface->closing, 1);
        break;
    default: /* VERBS_CREDIT: the words are there */
        break;
    }
}

static void take_receive(verbs_iface *f, verbs_link *l, const struct ibv_wc *wc) {
    if (wc->opcode == IBV_WC_RECV) {
        if (wc->byte_len == sizeof(verbs_message))
            take_message(l, &f->rooms[wc->wr_id & ~RECEIVE].message);
        else
            verbs_link_break(l, "a message of another length", "the peer runs another version?", 0);
        return;
    }
    uint32_t imm = ntohl(wc->imm_data);
    if (verbs_imm_is_signal(imm))
        store_signal(l, verbs_imm_window(imm), verbs_imm_signal_of(imm), 1, imm);
    else
        push_event(l, imm, wc->byte_len);
}

/* The link that a completion is of; NULL if it has gone. */
static verbs_link *take(verbs_iface *f, const struct ibv_wc *wc, int *comes) {
    verbs_link *l;
    if (wc->wr_id & RECEIVE) {
        l = link_of(f, wc->qp_num);
        if (l == NULL) return NULL;
        *comes = 1;
        l->received++;
        if (wc->status == IBV_WC_SUCCESS) take_receive(f, l, wc);
    } else {
        int slot = (int)(wc->wr_id >> VERBS_COUNT_BITS);
        l = slot < f->n_links ? f->links[slot] : NULL;
        if (l == NULL) return NULL;
        l->reaped = wc->wr_id & (((uint64_t)1 << VERBS_COUNT_BITS) - 1);
        if (wc->status == IBV_WC_SUCCESS) atomic_store(&l->done, l->reaped);
        if (atomic_load_explicit(&l->closed_here, memory_order_relaxed)) atomic_store(&f->closing, 1);
    }
    if (wc->status != IBV_WC_SUCCESS) verbs_link_fail(l, wc->status);
    return l;
}

/* The queues themselves have failed. */
static void break_all(verbs_iface *f, const char *what) {
    for (int i = 0; i < f->n_links; i++)
        if (f->links[i] != NULL) verbs_link_break(f->links[i], what, "see dmesg", 0);
}

/* Half of a link's receives, or of its ring, is used up: the peer hears that it has them again. */
static void tell_if_due(verbs_link *l) {
    uint64_t granted = (uint64_t)l->iface->credits + atomic_load_explicit(&l->consumed, memory_order_relaxed);
    if (granted - atomic_load_explicit(&l->told_granted, memory_order_relaxed) >= (uint64_t)l->iface->credits / 2)
        verbs_link_tell(l, 0);
}

/* A receive counts as given back when it is posted, not before. */
static void give_back(verbs_iface *f) {
    int n = f->n_free, error = 0;
    f->n_free = 0;
    for (int i = 0; i < n && error == 0; i += BATCH) error = post_receives(f, f->rooms_free + i, at_most(BATCH, n - i));
    if (error != 0) {
        break_all(f, "receives were refused");
        return;
    }
    for (int i = 0; i < f->n_links; i++) {
        verbs_link *l = f->links[i];
        if (l == NULL || l->received == atomic_load_explicit(&l->consumed, memory_order_relaxed)) continue;
        atomic_store_explicit(&l->consumed, l->received, memory_order_release);
        tell_if_due(l);
    }
}

/* One batch; how many there were. */
static int take_batch(verbs_iface *f) {
    struct ibv_wc wcs[BATCH];
    verbs_link *links[BATCH];
    int n_links = 0, comes = 0;
    int n = ibv_poll_cq(f->cq, BATCH, wcs);
    for (int i = 0; i < n; i++) {
        verbs_link *l = take(f, &wcs[i], &comes);
        if (wcs[i].wr_id & RECEIVE) f->rooms_free[f->n_free++] = (int)(wcs[i].wr_id & ~RECEIVE);
        int known = l == NULL;
        for (int k = 0; k < n_links && !known; k++) known = links[k] == l;
        if (!known) links[n_links++] = l;
    }
    if (n < 0) break_all(f, "its completion queue failed");
    if (n <= 0) return 0;
    if (f->n_free >= VERBS_REPOST) give_back(f);
    for (int k = 0; k < n_links; k++) {
        if (atomic_load(&links[k]->busy)) verbs_link_go_on(links[k]);
    }
    if (comes) atomic_store_explicit(&f->verbs->hot, f, memory_order_relaxed);
    ring(f);
    return n;
}

/* Links whose orders wait for credit, which comes without a completion. */
static void go_on(verbs_iface *f) {
    for (int i = 0; i < f->n_links; i++)
        if (f->links[i] != NULL) verbs_link_go_on(f->links[i]);
}

int verbs_iface_visit(verbs_iface *f) {
    int result = 0, gone = 0, n;
    if (atomic_load_explicit(&f->reading, memory_order_relaxed) ||
        atomic_exchange_explicit(&f->reading, 1, memory_order_acquire))
        return VERBS_LEFT;
    for (int round = 0; (n = take_batch(f)) > 0; round++) {
        result = VERBS_CAME;
        if (n < BATCH) break;
        if (round == ROUNDS) {
            result |= VERBS_LEFT;
            break;
        }
    }
    if (atomic_load_explicit(&f->starved, memory_order_relaxed) != 0) go_on(f);
    if (atomic_load_explicit(&f->closing, memory_order_relaxed)) gone = remove_closed(f);
    leave_reading(f);
    while (gone-- > 0) verbs_iface_release(f); /* the caller has one */
    return result;
}

/* ---- all of them ---- */

enum { MOST_AT_ONCE = 32 };

/* Some of the ifaces from *at on, each with a reference; *at moves on. They are taken from the last one down: the place
 * of one that goes meanwhile is taken by the last one. *at starts at INT_MAX. */
static int take_some(hpc_verbs *v, int *at, verbs_iface *some[MOST_AT_ONCE]) {
    int n = 0;
    pthread_mutex_lock(&v->lock);
    if (*at > v->n_ifaces) *at = v->n_ifaces;
    while (*at > 0 && n < MOST_AT_ONCE)
        if (retain(v->ifaces[--*at])) some[n++] = v->ifaces[*at];
    pthread_mutex_unlock(&v->lock);
    return n;
}

/* Visits every iface; VERBS_LEFT, VERBS_CAME. */
static int visit_all(hpc_verbs *v) {
    verbs_iface *some[MOST_AT_ONCE];
    int at = INT_MAX, n, result = 0;
    while ((n = take_some(v, &at, some)) > 0)
        for (int i = 0; i < n; i++) {
            result |= verbs_iface_visit(some[i]);
            verbs_iface_release(some[i]);
        }
    return result;
}

/* Windows without a holder go when every queue has been seen empty since: no completion names them then. */
static int visit_and_free(hpc_verbs *v) {
    verbs_window *going;
    pthread_mutex_lock(&v->lock);
    going = v->going;
    v->going = NULL;
    pthread_mutex_unlock(&v->lock);
    int result = visit_all(v);
    for (verbs_window *w = going, *next; w != NULL; w = next) {
        next = w->next;
        if (!(result & VERBS_LEFT)) {
            atomic_store_explicit(&v->windows[w->number], NULL, memory_order_release);
            verbs_window_free(v, w);
            atomic_fetch_sub(&v->n_going, 1);
            continue;
        }
        pthread_mutex_lock(&v->lock);
        w->next = v->going;
        v->going = w;
        pthread_mutex_unlock(&v->lock);
    }
    return result;
}

static int look_at_all(hpc_verbs *v) {
    if (atomic_load_explicit(&v->n_going, memory_order_relaxed) != 0) return visit_and_free(v);
    return visit_all(v);
}

/* The credit that orders want is no event. */
static int left_over(hpc_verbs *v, int visited) {
    return (visited & VERBS_LEFT ? HPC_LEFT : 0) | (atomic_load(&v->starved) > 0 ? HPC_AWAITED : 0);
}

/* The iface where something came last, with a reference, or NULL; whether it is the only one. */
static verbs_iface *take_hot(hpc_verbs *v, int *alone) {
    pthread_mutex_lock(&v->lock);
    verbs_iface *hot = atomic_load_explicit(&v->hot, memory_order_relaxed);
    int i = 0;
    while (i < v->n_ifaces && v->ifaces[i] != hot) i++;
    if (i == v->n_ifaces || !retain(hot)) hot = NULL;
    *alone = v->n_ifaces == 1;
    pthread_mutex_unlock(&v->lock);
    return hot;
}

/* Mostly the lane that spoke last speaks next: with something there the others are left to the next look, a few times.
 */
int verbs_progress(hpc_context *c) {
    hpc_verbs *v = c->verbs;
    int alone, result = 0;
    if (v == NULL) return 0;
    hpc_reactor_looked(v->reactor);
    verbs_iface *hot = take_hot(v, &alone);
    if (hot != NULL) {
        result = verbs_iface_visit(hot);
        verbs_iface_release(hot);
        if ((result & VERBS_CAME) && atomic_fetch_add_explicit(&v->hot_in_a_row, 1, memory_order_relaxed) < HOT_MOST)
            return HPC_LEFT;
        atomic_store_explicit(&v->hot_in_a_row, 0, memory_order_relaxed);
    }
    if (atomic_load_explicit(&c->group.departures, memory_order_relaxed) != atomic_load(&v->departures))
        verbs_window_forget(v);
    if (hot == NULL || !alone || atomic_load_explicit(&v->n_going, memory_order_relaxed) != 0) result = look_at_all(v);
    return left_over(v, result);
}

/* What this look has made free goes with the next one. */
static int look(void *arg) {
    hpc_verbs *v = arg;
    return left_over(v, look_at_all(v)) != 0 || atomic_load(&v->n_going) > 0;
}

static void arm(void *arg) {
    verbs_iface *some[MOST_AT_ONCE];
    int at = INT_MAX, n;
    while ((n = take_some(arg, &at, some)) > 0)
        for (int i = 0; i < n; i++) {
            arm_one(some[i]);
            verbs_iface_release(some[i]);
        }
}

int verbs_settle(hpc_verbs *v, int peer) {
    const hpc_group *g = &v->context->group;
    int left = 0;
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        for (int k = 0; k < v->ifaces[i]->n_links; k++) {
            verbs_link *l = v->ifaces[i]->links[k];
            if (l == NULL || atomic_load(&l->closed_here) || atomic_load(&l->silent) ||
                (peer >= 0 && l->peer != peer) ||
                atomic_load_explicit(&g->states[l->peer], memory_order_acquire) != HPC_PEER_ALIVE)
                continue;
            left += verbs_link_flush(l, "close") == HPC_IN_PROGRESS;
        }
    pthread_mutex_unlock(&v->lock);
    return left;
}

/* ---- the reactor's ---- */

/* An iface may be on its way out: its completion queue stays until the event is acknowledged, but no longer. */
static int take_channel(hpc_verbs *v, int nic) {
    struct ibv_cq *cq;
    void *arg;
    int left = 0;
    while (v->library->get_cq_event(v->channels[nic], &cq, &arg) == 0) {
        verbs_iface *f = arg;
        pthread_mutex_lock(&v->lock); /* what its opener wrote: that the kernel orders it C does not know */
        int here = retain(f);
        pthread_mutex_unlock(&v->lock);
        if (here) atomic_store(&f->armed, 0);
        v->library->ack_cq_events(cq, 1);
        if (!here) continue;
        left |= verbs_iface_visit(f) & VERBS_LEFT;
        verbs_iface_release(f);
    }
    return left;
}

static int concerns(const verbs_link *l, const struct ibv_async_event *event) {
    switch (event->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
        return 1;
    case IBV_EVENT_CQ_ERR:
        return l->iface->cq == event->element.cq;
    default:
        return l->qp == event->element.qp;
    }
}

/* What completions do not tell: a queue pair that only receives, or a device that does nothing any more. */
static void take_fatal(hpc_verbs *v, int nic, const struct ibv_async_event *event) {
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        for (int k = 0; k < v->ifaces[i]->n_links; k++) {
            verbs_link *l = v->ifaces[i]->links[k];
            if (l == NULL || v->nics->nics[v->ifaces[i]->nic].context != v->nics->nics[nic].context) continue;
            if (concerns(l, event)) verbs_link_break(l, v->library->event_type_str(event->event_type), "see dmesg", 0);
        }
    pthread_mutex_unlock(&v->lock);
}

static void take_async(hpc_verbs *v, int nic) {
    const verbs_nic *n = &v->nics->nics[nic];
    struct ibv_async_event event;
    while (v->library->get_async_event(n->context, &event) == 0) {
        switch (event.event_type) {
        case IBV_EVENT_DEVICE_FATAL:
        case IBV_EVENT_CQ_ERR:
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
            take_fatal(v, nic, &event);
            break;
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_PORT_ACTIVE:
            hpc_group_note(&v->context->group, HPC_NOTE_DEGRADED, "%s: %s", n->name,
                           v->library->event_type_str(event.event_type));
            break;
        default:
            break;
        }
        v->library->ack_async_event(&event);
    }
}

static int handle(void *arg, uint64_t tag, uint32_t events, size_t budget) {
    (void)events, (void)budget;
    if (tag < ASYNC) return take_channel(arg, (int)tag);
    take_async(arg, (int)tag - ASYNC);
    return 0;
}

static int report(void *arg) {
    hpc_verbs *v = arg;
    hpc_group *g = &v->context->group;
    double now = hpc_now();
    int left = 0;
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        for (int k = 0; k < v->ifaces[i]->n_links; k++) {
            verbs_link *l = v->ifaces[i]->links[k];
            if (l == NULL || !atomic_load_explicit(&l->silent, memory_order_acquire)) continue;
            if (atomic_load(&l->closed_here) || atomic_load(&l->closed_there) ||
                atomic_load_explicit(&g->states[l->peer], memory_order_acquire) != HPC_PEER_ALIVE)
                continue;
            if (now - l->broken_at < GRACE)
                left = 1;
            else if (!atomic_load(&g->closed))
                hpc_control_lose(v->context->control, l->peer, l->why);
        }
    pthread_mutex_unlock(&v->lock);
    return left;
}

/* ---- life of the transport ---- */

static int listen_to(hpc_verbs *v, int nic) {
    struct ibv_context *device = v->nics->nics[nic].context;
    int channel, first = 1;
    for (int i = 0; i < nic; i++) first &= v->nics->nics[i].context != device;
    v->channels[nic] = v->library->create_comp_channel(device);
    if (v->channels[nic] == NULL) return errno;
    channel = v->channels[nic]->fd;
    if (fcntl(channel, F_SETFL, fcntl(channel, F_GETFL) | O_NONBLOCK) != 0 ||
        hpc_reactor_watch(v->reactor, v->source, channel, EPOLLIN | EPOLLET, (uint64_t)nic, 0) != 0)
        return errno;
    if (!first) return 0; /* two ports of one device */
    if (fcntl(device->async_fd, F_SETFL, fcntl(device->async_fd, F_GETFL) | O_NONBLOCK) != 0 ||
        hpc_reactor_watch(v->reactor, v->source, device->async_fd, EPOLLIN | EPOLLET, (uint64_t)nic + ASYNC, 0) != 0)
        return errno;
    return 0;
}

/* Where the rails lead: the peer's addresses, and by which port of this rank. */
static void write_path(hpc_verbs *v, int peer) {
    verbs_peer *p = &v->peers[peer];
    size_t used = 0, cap = sizeof p->path;
    for (int i = 0; i < p->n_rails && used < cap; i++) {
        const hpc_port_address *to = &v->context->addresses[peer].devices.ports[p->rails[i].there];
        char address[INET6_ADDRSTRLEN] = "";
        if (to->fabric == HPC_FABRIC_INFINIBAND)
            snprintf(address, sizeof address, "LID %d", to->lid);
        else
            inet_ntop(AF_INET6, to->gid, address, sizeof address);
        used += (size_t)snprintf(p->path + used, cap - used, "%s%s by %s", i > 0 ? ", " : "",
                                 strncmp(address, "::ffff:", 7) == 0 ? address + 7 : address,
                                 v->nics->nics[p->rails[i].here].name);
    }
}

static int find_peers(hpc_verbs *v) {
    hpc_context *c = v->context;
    const char *why;
    v->peers = calloc((size_t)c->group.size, sizeof *v->peers);
    if (v->peers == NULL) return HPC_ERR_MEMORY;
    v->first_peer = -1;
    for (int r = 0; r < c->group.size; r++) {
        if (!(c->transports[r]->caps & HPC_CAP_NICS)) continue;
        if (v->first_peer < 0) v->first_peer = r;
        v->peers[r].n_rails = hpc_transport_rails(&c->self, &c->addresses[r], v->peers[r].rails, &why);
        write_path(v, r);
        v->n_peers++;
    }
    return HPC_OK;
}

hpc_verbs *verbs_of(hpc_context *c) {
    hpc_verbs *v = c->verbs;
    int error = 0;
    if (v != NULL) return v;
    v = calloc(1, sizeof *v);
    if (v == NULL) {
        hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for the verbs transport");
        return NULL;
    }
    v->context = c;
    v->nics = c->nics;
    v->library = c->nics->library;
    v->source = -1;
    pthread_mutex_init(&v->lock, NULL);
    v->reactor = hpc_transport_reactor(c);
    if (v->reactor == NULL) {
        verbs_close(v);
        return NULL;
    }
    v->source = hpc_reactor_add(v->reactor, &(hpc_source){v, handle, arm, look, report, .patient = 1});
    error = find_peers(v) == HPC_OK ? 0 : ENOMEM;
    for (int i = 0; i < v->nics->n && error == 0; i++) error = listen_to(v, i);
    if (error != 0) {
        verbs_close(v);
        hpc_fail_transport("init", "verbs", -1, "rank %d: init: cannot open the verbs transport: %s", c->group.rank,
                           strerror(error));
        return NULL;
    }
    return c->verbs = v;
}

/* No thread is in it any more. */
static void close_iface(verbs_iface *f) {
    for (int i = 0; i < f->n_links; i++)
        if (f->links[i] != NULL) verbs_link_free(f->links[i]);
    destroy(f);
}

void verbs_close(hpc_verbs *v) {
    if (v->source >= 0) hpc_reactor_remove(v->reactor, v->source);
    for (int i = 0; i < v->n_ifaces; i++) close_iface(v->ifaces[i]);
    for (uint32_t i = 0; i < VERBS_WINDOWS; i++) {
        verbs_window *w = atomic_load(&v->windows[i]);
        if (w != NULL) verbs_window_free(v, w);
    }
    for (int i = 0; v->nics != NULL && i < v->nics->n; i++)
        if (v->channels[i] != NULL) v->library->destroy_comp_channel(v->channels[i]);
    pthread_mutex_destroy(&v->lock);
    free(v->ifaces);
    free(v->peers);
    free(v);
}

#endif
