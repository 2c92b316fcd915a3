/* The way of a collective's data through one rank of the tree.
 *
 *   JOIN    await the batches of all children, and join them with this rank's own data
 *   UP      send that batch to the parent (rank 0 has all data now, and goes on with DOWN)
 *   AWAIT   await the batch of all ranks from the parent
 *   DOWN    send it to all children
 *
 * The thread that runs the collective makes these steps, and waits in them. If its deadline passes, it hands the relay
 * over to the service thread, which goes on: other ranks may have later deadlines, and the rank for which this one
 * waited may come. Only the collective fails on this rank, and every later one, so no other relay follows.
 *
 * The service thread must not wait. It sends small frames while the socket takes them, and tries again after a
 * while. Whole messages begin at offset 0, so it may begin with one that the other thread has sent in part. */
#include "control/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"

void hpc_relay_begin(hpc_control *c, hpc_relay *relay, uint64_t sequence, const char *op, const void *data,
                     size_t nbytes) {
    const int rank = c->group->rank;
    memset(relay, 0, sizeof *relay);
    relay->sequence = sequence;
    relay->stage = HPC_RELAY_JOIN;
    relay->parent = c->tree.parent[rank];
    relay->n_children = hpc_rank_tree_children(&c->tree, rank, relay->children);
    snprintf(relay->said.op, sizeof relay->said.op, "%s", op);
    snprintf(relay->said.call, sizeof relay->said.call, "%s", hpc_doing_of("", 0).op);
    relay->own = (hpc_record){.said = &relay->said, .data = (void *)(uintptr_t)data, .nbytes = nbytes};
}

int hpc_relay_awaits(const hpc_relay *relay, int *ranks) {
    if (relay->stage == HPC_RELAY_JOIN) memcpy(ranks, relay->children, (size_t)relay->n_children * sizeof *ranks);
    if (relay->stage == HPC_RELAY_JOIN) return relay->n_children;
    ranks[0] = relay->parent;
    return relay->stage == HPC_RELAY_AWAIT;
}

static int read_batch(const hpc_control *c, const hpc_message *m, hpc_record *records, int n) {
    return m->type == HPC_MESH_BATCH && hpc_batch_read(m->data, m->total, c->tree.digest, records, n);
}

/* Counts rank as failed, because its batch is garbled. The service thread tells heirs about it. */
static int lose(hpc_control *c, int rank, int *culprit) {
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, hpc_link_garbled);
    hpc_mesh_poke(c);
    *culprit = rank;
    return HPC_ERR_PEER;
}

/* Writes the batch of this rank's subtree. records has room for the subtree. */
static int join(hpc_control *c, hpc_relay *relay, hpc_record *records, int *culprit) {
    hpc_message *taken[HPC_TREE_CHILDREN];
    int n = 0, at = 1, status = HPC_OK;
    records[0] = relay->own;
    for (; n < relay->n_children && status == HPC_OK; n++) {
        const int child = relay->children[n], count = c->tree.count[child];
        taken[n] = hpc_message_take(c, child, relay->sequence);
        if (taken[n] == NULL || !read_batch(c, taken[n], records + at, count)) status = lose(c, child, culprit);
        at += count;
    }
    if (status == HPC_OK && (relay->bytes = hpc_batch_write(c->tree.digest, records, at, &relay->nbytes)) == NULL)
        status = HPC_ERR_MEMORY;
    for (int i = 0; i < n; i++) hpc_message_free(taken[i]);
    return status;
}

int hpc_relay_take(hpc_control *c, hpc_relay *relay, hpc_record *records, int *culprit) {
    const int all = c->group->size;
    if (relay->stage == HPC_RELAY_JOIN) {
        const int status = join(c, relay, records, culprit);
        if (status != HPC_OK) return status;
        if (relay->parent < 0) hpc_batch_read(relay->bytes, relay->nbytes, c->tree.digest, records, all);
        relay->stage = relay->parent < 0 ? HPC_RELAY_DOWN : HPC_RELAY_UP;
        return HPC_OK;
    }
    hpc_message *m = hpc_message_take(c, relay->parent, relay->sequence);
    if (m == NULL || !read_batch(c, m, records, all)) {
        hpc_message_free(m);
        return lose(c, relay->parent, culprit);
    }
    free(relay->bytes);
    relay->bytes = m->data;
    relay->nbytes = m->total;
    m->data = NULL;
    hpc_message_free(m);
    relay->stage = HPC_RELAY_DOWN;
    return HPC_OK;
}

/* ---- after the deadline ---- */

void hpc_relay_free(hpc_relay *relay) {
    if (relay == NULL) return;
    free(relay->own.data);
    free(relay->bytes);
    free(relay);
}

void hpc_relay_hand_over(hpc_control *c, hpc_relay *relay) {
    hpc_relay *r = malloc(sizeof *r);
    void *own = relay->stage == HPC_RELAY_JOIN ? malloc(relay->own.nbytes + 1) : NULL;
    if (r == NULL || (own == NULL && relay->stage == HPC_RELAY_JOIN)) { /* no memory: the others wait in vain */
        free(r);
        free(own);
        free(relay->bytes);
        relay->bytes = NULL;
        return;
    }
    *r = *relay;
    relay->bytes = NULL;
    if (own != NULL && r->own.nbytes > 0) memcpy(own, r->own.data, r->own.nbytes);
    r->own.data = own;
    r->own.said = &r->said;
    atomic_store_explicit(&c->relay, r, memory_order_release);
    hpc_mesh_poke(c);
}

/* Sends rank what it lacks of the batch. HPC_IN_PROGRESS: its socket has no room, or it is other links' turn. */
static int send_some(hpc_control *c, hpc_relay *r, int rank) {
    enum { PART = sizeof(hpc_shown_rank), TURN_BYTES = 1 << 20 };
    for (size_t begin = r->sent; r->sent < r->nbytes;) {
        if (r->sent - begin >= TURN_BYTES) return HPC_IN_PROGRESS;
        const size_t left = r->nbytes - r->sent, n = left < PART ? left : PART;
        const int status =
            hpc_link_tell_part(c, rank, HPC_MESH_BATCH, r->sequence, r->bytes + r->sent, n, r->sent, r->nbytes);
        if (status == HPC_ERR_PEER) return HPC_ERR_PEER;
        if (status == HPC_ERR_TIMEOUT) return HPC_IN_PROGRESS;
        r->sent += n;
    }
    const int status = hpc_link_finish(c, rank);
    if (status == HPC_ERR_TIMEOUT) return HPC_IN_PROGRESS;
    r->sent = 0;
    return status;
}

static int have_all_come(hpc_control *c, const hpc_relay *r) {
    int ranks[HPC_TREE_CHILDREN], all = 1;
    const int n = hpc_relay_awaits(r, ranks);
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < n && all; i++) all = hpc_message_find(c->links[ranks[i]].inbox, r->sequence) != NULL;
    pthread_mutex_unlock(&c->lock);
    return all;
}

/* Takes batches that have come. Returns HPC_OK to go on, HPC_IN_PROGRESS if some have not come. */
static int take_next(hpc_control *c, hpc_relay *r) {
    int culprit;
    if (!have_all_come(c, r)) return HPC_IN_PROGRESS;
    hpc_record *records = malloc((size_t)c->group->size * sizeof *records);
    if (records == NULL) return HPC_ERR_MEMORY;
    const int joins = r->stage == HPC_RELAY_JOIN, status = hpc_relay_take(c, r, records, &culprit);
    free(records);
    if (joins && status == HPC_OK) hpc_roll_join(c, r->sequence);
    return status;
}

/* Makes the next step. Returns HPC_OK if it is made, HPC_IN_PROGRESS if something must come first, and HPC_ERR_TIMEOUT
 * if room in a socket must. */
static int step(hpc_control *c, hpc_relay *r) {
    int status;
    if (r->stage == HPC_RELAY_JOIN || r->stage == HPC_RELAY_AWAIT) return take_next(c, r);
    if (r->stage == HPC_RELAY_UP) {
        status = send_some(c, r, r->parent);
        if (status == HPC_OK) r->stage = HPC_RELAY_AWAIT;
        return status == HPC_IN_PROGRESS ? HPC_ERR_TIMEOUT : status;
    }
    status = send_some(c, r, r->children[r->next]);
    if (status == HPC_IN_PROGRESS) return HPC_ERR_TIMEOUT;
    r->sent = 0; /* to the next child, even if this one is gone */
    r->next++;
    return HPC_OK;
}

int hpc_relay_go_on(hpc_control *c) {
    hpc_relay *r = atomic_load_explicit(&c->relay, memory_order_acquire);
    int status = HPC_OK;
    if (r == NULL) return 0;
    while (status == HPC_OK && !(r->stage == HPC_RELAY_DOWN && r->next == r->n_children)) {
        status = step(c, r);
        if (r->n_children == 0 && r->stage == HPC_RELAY_AWAIT) atomic_store(&c->served, r->sequence);
    }
    if (status == HPC_IN_PROGRESS || status == HPC_ERR_TIMEOUT) return status == HPC_ERR_TIMEOUT;
    if (status == HPC_OK) atomic_store(&c->served, r->sequence);
    atomic_store(&c->relay, NULL);
    hpc_relay_free(r);
    return 0;
}
