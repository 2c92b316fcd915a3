/* Arrivals and completed sends of a lane's queues at one NIC.
 *
 * One thread at a time polls a completion queue, and holds the iface's `reading` meanwhile: a waiting thread, the
 * lane's own poll, or the reactor's thread when no thread waits. */
#include "transport/verbs/parts.h"

#if defined(HPC_HAVE_VERBS)

#include <arpa/inet.h>

enum {
    BATCH = VERBS_BATCH,
    ROUNDS = 64 /* most batches of one visit */
};

static verbs_link *link_of(const verbs_iface *f, uint32_t qp) {
    int slot = f->numbers[verbs_place_of(f, qp)].slot;
    return slot < 0 ? NULL : f->links[slot];
}

static void ring(verbs_iface *f) {
    hpc_bell_ring(f->verbs->context->group.bell);
}

/* Stores a signal unless the word has a greater value: a later value may have come first on another lane. An
 * immediate has only the low bits of the value, counted from the link's last value. If another link has raised the
 * word since, the immediate's value is older, and nothing is stored. */
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
    if (hpc_ring_is_full(l->ring, tail)) /* cannot happen with a valid peer: credits prevent it */
        verbs_link_break(l, "more events than this rank has granted", "the peer runs another version?", 0);
    else
        hpc_ring_push(l->ring, tail, imm, nbytes);
}

/* Order: either the thread that takes the next event sees wanted, or this thread sees the head that it stored. */
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
    default: /* VERBS_CREDIT only says that the words are written */
        break;
    }
}

static void take_receive(verbs_iface *f, verbs_link *l, const struct ibv_wc *wc) {
    if (wc->opcode == IBV_WC_RECV) {
        if (wc->byte_len == sizeof(verbs_message))
            take_message(l, &f->rooms[verbs_room_of(wc->wr_id)].message);
        else
            verbs_link_break(l, "a message of the wrong length", "the peer runs another version?", 0);
        return;
    }
    uint32_t imm = ntohl(wc->imm_data);
    if (verbs_imm_is_signal(imm))
        store_signal(l, verbs_imm_window(imm), verbs_imm_signal_of(imm), 1, imm);
    else
        push_event(l, imm, wc->byte_len);
}

/* Returns the link of a completion; NULL if the link is freed. */
static verbs_link *take(verbs_iface *f, const struct ibv_wc *wc, int *comes) {
    verbs_link *l;
    if (verbs_is_receive(wc->wr_id)) {
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
    hpc_watch_move(&f->verbs->context->group.watch);
    return l;
}

/* Breaks all links after the queues themselves have failed. */
static void break_all(verbs_iface *f, const char *what) {
    for (int i = 0; i < f->n_links; i++)
        if (f->links[i] != NULL) verbs_link_break(f->links[i], what, "see dmesg", 0);
}

/* Tells the peer its new credit when half of the link's receives, or of its ring, is used up. */
static void tell_if_due(verbs_link *l) {
    uint64_t granted = (uint64_t)l->iface->credits + atomic_load_explicit(&l->consumed, memory_order_relaxed);
    if (granted - atomic_load_explicit(&l->told_granted, memory_order_relaxed) >= (uint64_t)l->iface->credits / 2)
        verbs_link_tell(l, 0);
}

/* Posts used receives again. A receive counts as returned only once it is posted. */
static void give_back(verbs_iface *f) {
    int n = f->n_free, error = 0;
    f->n_free = 0;
    for (int i = 0; i < n && error == 0; i += BATCH)
        error = verbs_iface_post(f, f->rooms_free + i, n - i < BATCH ? n - i : BATCH);
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

/* Handles one batch of completions; returns how many there were. */
static int take_batch(verbs_iface *f) {
    struct ibv_wc wcs[BATCH];
    verbs_link *links[BATCH];
    int n_links = 0, comes = 0;
    int n = ibv_poll_cq(f->cq, BATCH, wcs);
    for (int i = 0; i < n; i++) {
        verbs_link *l = take(f, &wcs[i], &comes);
        if (verbs_is_receive(wcs[i].wr_id)) f->rooms_free[f->n_free++] = verbs_room_of(wcs[i].wr_id);
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

/* Continues links whose orders wait for credit: credit arrives without a completion. */
static void go_on(verbs_iface *f) {
    for (int i = 0; i < f->n_links; i++)
        if (f->links[i] != NULL) verbs_link_go_on(f->links[i]);
}

/* Removes the links that both ends have closed; the caller holds `reading`. Returns how many references to the iface
 * the caller must release for them. */
static int remove_closed(verbs_iface *f) {
    int gone = 0;
    atomic_store(&f->closing, 0);
    for (int i = 0; i < f->n_links; i++) {
        verbs_link *l = f->links[i];
        if (l == NULL || !atomic_load(&l->closed_here)) continue;
        if (!verbs_link_can_go(l)) continue;
        verbs_iface_remove(f, i);
        verbs_link_free(l);
        gone++;
    }
    return gone;
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
    verbs_leave_reading(f);
    while (gone-- > 0) verbs_iface_release(f); /* not the last reference: the caller has one */
    return result;
}

#endif
