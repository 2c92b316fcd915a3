/* An iface: a lane's queues at one NIC. Opens and closes it, and keeps the table of its links. */
#define _GNU_SOURCE
#include "transport/verbs/parts.h"

#if defined(HPC_HAVE_VERBS)

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BATCH = VERBS_BATCH };

void verbs_iface_arm(verbs_iface *f) {
    if (!atomic_exchange(&f->armed, 1)) ibv_req_notify_cq(f->cq, 0);
}

/* ---- life ---- */

int verbs_iface_post(verbs_iface *f, const int *rooms, int n) {
    struct ibv_recv_wr receives[BATCH], *bad;
    struct ibv_sge parts[BATCH];
    for (int i = 0; i < n; i++) {
        parts[i] = (struct ibv_sge){(uint64_t)(uintptr_t)&f->rooms[rooms[i]], sizeof f->rooms[0], f->region->lkey};
        receives[i] = (struct ibv_recv_wr){.wr_id = verbs_receive_id(rooms[i]),
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
        error = verbs_iface_post(f, rooms, n);
    }
    return error;
}

void verbs_iface_destroy(verbs_iface *f) {
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

/* Chooses the sizes of the queues, enough for the case that every link has used all its credits and all its sends
 * are unread. */
static void choose_sizes(verbs_iface *f, const verbs_nic *nic) {
    int links = f->n_slots, receives = at_most(VERBS_RECEIVES, at_most(nic->most_srq, nic->most_cqe / 2));
    /* At least twice the number of receives that may wait to be posted again. */
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
    /* Spreads the lanes' interrupts over several CPUs. */
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
    /* A fork must not move these pages away from the NIC by copy on write. */
    madvise(f->block, f->block_bytes, MADV_DONTFORK);
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
        verbs_iface_arm(f); /* a thread that already sleeps did not arm this iface */
        return f;
    }

failed:
    hpc_fail_transport(op, "verbs", -1, "rank %d: %s: %s cannot make queues: %s%s", v->context->group.rank, op,
                       nic->name, strerror(error),
                       error == ENOMEM || error == EPERM ? "; raise the limit of locked memory (ulimit -l unlimited)"
                                                         : "");
    if (f != NULL) verbs_iface_destroy(f);
    return NULL;
}

void verbs_iface_release(verbs_iface *f) {
    hpc_verbs *v = f->verbs;
    if (atomic_fetch_sub_explicit(&f->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_lock(&v->lock);
    for (int i = 0; i < v->n_ifaces; i++)
        if (v->ifaces[i] == f) v->ifaces[i] = v->ifaces[--v->n_ifaces];
    pthread_mutex_unlock(&v->lock);
    verbs_iface_destroy(f);
}

/* ---- its links ---- */

int verbs_iface_slot(verbs_iface *f) {
    for (int i = 0; i < f->n_slots; i++)
        if (f->links[i] == NULL) return i;
    return -1;
}

void verbs_iface_add(verbs_iface *f, verbs_link *l) {
    verbs_take_reading(f);
    pthread_mutex_lock(&f->verbs->lock);
    f->links[l->slot] = l;
    if (l->slot >= f->n_links) f->n_links = l->slot + 1;
    uint32_t i = verbs_place_of(f, l->qp->qp_num);
    f->numbers[i].qp = l->qp->qp_num;
    f->numbers[i].slot = l->slot;
    pthread_mutex_unlock(&f->verbs->lock);
    verbs_leave_reading(f);
    atomic_fetch_add_explicit(&f->references, 1, memory_order_relaxed);
}

/* Removes a link by rebuilding the table: links are few, and each is removed once. */
void verbs_iface_remove(verbs_iface *f, int slot) {
    pthread_mutex_lock(&f->verbs->lock);
    f->links[slot] = NULL;
    for (uint32_t n = 0; n <= f->mask; n++) f->numbers[n].slot = -1;
    for (int i = 0; i < f->n_links; i++) {
        if (f->links[i] == NULL) continue;
        uint32_t n = verbs_place_of(f, f->links[i]->qp->qp_num);
        f->numbers[n].qp = f->links[i]->qp->qp_num;
        f->numbers[n].slot = i;
    }
    pthread_mutex_unlock(&f->verbs->lock);
}

#endif
