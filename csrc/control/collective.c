/* Collectives: each rank sends its data to every other rank and waits for theirs. Messages are numbered, because a
 * rank that is one collective ahead may fill the inboxes of ranks that are still in the one before. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/overdue.h"
#include "control/channel.h"

/* A collective in which this rank waits for replies. */
struct collective {
    hpc_control *control;
    uint64_t sequence;
};

static int has_reply(struct collective *g, int rank) {
    hpc_control *c = g->control;
    if (rank == c->group->rank) return 1;
    for (const hpc_message *m = c->links[rank].inbox; m != NULL && m->sequence <= g->sequence; m = m->next)
        if (m->sequence == g->sequence) return 1;
    return 0;
}

static int who_is_missing(void *arg, int *ranks) {
    struct collective *g = arg;
    int n = 0;
    pthread_mutex_lock(&g->control->lock);
    for (int r = 0; r < g->control->group->size; r++)
        if (!has_reply(g, r)) ranks[n++] = r;
    pthread_mutex_unlock(&g->control->lock);
    return n;
}

static int all_replied(void *arg) {
    struct collective *g = arg;
    int all = 1;
    pthread_mutex_lock(&g->control->lock);
    for (int r = 0; r < g->control->group->size && all; r++) all = has_reply(g, r);
    pthread_mutex_unlock(&g->control->lock);
    return all;
}

/* Takes rank's reply out of its inbox. Drops older messages, which an abandoned collective left there. */
static hpc_message *take_reply(hpc_control *c, int rank, uint64_t sequence) {
    hpc_message *m;
    pthread_mutex_lock(&c->lock);
    while ((m = c->links[rank].inbox) != NULL && m->sequence < sequence) {
        c->links[rank].inbox = m->next;
        hpc_message_free(m);
    }
    if (m != NULL) c->links[rank].inbox = m->next;
    pthread_mutex_unlock(&c->lock);
    return m;
}

/* Moves a message's data into a reply and frees the message. With m NULL the reply gets a copy of this rank's own
 * data. */
static int take_data(hpc_reply *reply, hpc_message *m, const void *data, size_t nbytes) {
    reply->nbytes = m != NULL ? m->total : nbytes;
    if (m != NULL) {
        reply->data = m->data;
        reply->fd = m->fd;
        m->data = NULL;
        m->fd = -1;
    } else if ((reply->data = malloc(nbytes + 1)) != NULL && nbytes > 0) {
        memcpy(reply->data, data, nbytes);
    }
    hpc_message_free(m);
    return reply->data != NULL;
}

/* Returns the first rank that did not read this rank's data in time, or -1. */
static int send_to_all(hpc_control *c, const char *op, const void *data, size_t nbytes, int fd, double deadline) {
    hpc_group *g = c->group;
    int blocked = -1;
    for (int i = 1; i < g->size; i++) { /* each rank begins with its successor, so no rank is the first target of all */
        int r = (g->rank + i) % g->size;
        if (hpc_link_send(c, r, HPC_MESH_GATHER, c->sequence, op, data, nbytes, fd, deadline) == HPC_ERR_TIMEOUT &&
            blocked < 0)
            blocked = r;
    }
    return blocked;
}

/* Waits for this thread's turn until the deadline; only one collective runs at a time. */
static int take_turn(hpc_control *c, const char *op, double deadline) {
    while (pthread_mutex_trylock(&c->collective_lock) != 0) { /* no timed lock: its clock may be set back */
        if (hpc_now() >= deadline)
            return hpc_fail_ranks(HPC_ERR_TIMEOUT, op, NULL, 0, NULL, 0,
                                  "rank %d: %s: another thread's collective did not end in time; call "
                                  "collectives from one thread",
                                  c->group->rank, op);
        poll(NULL, 0, 1);
    }
    return HPC_OK;
}

/* The names of a rank's collective and of the call that it belongs to; call "": none. */
typedef struct names {
    char op[HPC_OP_BYTES], call[HPC_CALLING_BYTES + 4];
} names;

static int fail_names(const char *op, const names *of_0, int rank, const names *of_rank) {
    const int calls = strcmp(of_0->call, of_rank->call) != 0;
    return hpc_fail(HPC_ERR_CONFIG, op,
                    "rank 0 calls %s while rank %d calls %s; every rank must make the same collective calls in the "
                    "same order",
                    calls && of_0->call[0] != 0 ? of_0->call : of_0->op, rank,
                    calls && of_rank->call[0] != 0 ? of_rank->call : of_rank->op);
}

int hpc_control_exchange(hpc_control *c, const char *op, const void *data, size_t nbytes, int fd, hpc_sizes sizes,
                         hpc_reply *replies, double deadline) {
    hpc_group *g = c->group;
    struct collective collective = {c, 0};
    HPC_SPAN(g->timeline, op, NULL);
    const hpc_wait wait = {op, all_replied, who_is_missing, &collective, .every = 1};
    names *ops = calloc((size_t)g->size, sizeof *ops);
    int status = ops == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op) : take_turn(c, op, deadline);
    for (int r = 0; r < g->size; r++) replies[r] = (hpc_reply){.fd = -1};
    if (status != HPC_OK) {
        free(ops);
        return status;
    }
    status = hpc_group_usable(g, op);
    if (status != HPC_OK) goto out;
    for (int r = 0; r < g->size && c->broken == HPC_ERR_PEER && status == HPC_OK; r++)
        status = hpc_group_peer_present(g, r, op);
    if (c->broken != HPC_OK) {
        if (status == HPC_OK)
            status = hpc_fail(HPC_ERR_CONFIG, op,
                              "rank %d: %s: an earlier collective failed (%s), so the ranks no longer agree on the "
                              "next; close the context",
                              g->rank, op, hpc_status_text(c->broken));
        goto out;
    }
    double start = hpc_now();
    collective.sequence = ++c->sequence;
    int blocked = send_to_all(c, op, data, nbytes, fd, deadline);
    status = hpc_wait_for(g, &wait, hpc_left(deadline));
    if (status == HPC_OK && blocked >= 0) /* the blocked rank lacks some of this rank's data, so it cannot go on */
        status = hpc_group_fail_timeout(g, op, &blocked, 1, hpc_now() - start,
                                        "rank %d did not read its socket in time", blocked);
    if (status != HPC_OK) {
        c->broken = status;
        goto out;
    }
    for (int r = 0; r < g->size; r++) {
        hpc_message *m = r == g->rank ? NULL : take_reply(c, r, c->sequence);
        snprintf(ops[r].op, sizeof ops[r].op, "%s", m != NULL ? m->op : op);
        snprintf(ops[r].call, sizeof ops[r].call, "%s", m != NULL ? m->call : hpc_doing_of("", 0).op);
        if (!take_data(&replies[r], m, data, nbytes))
            c->broken = status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %zu bytes", op, nbytes);
    }
    for (int r = 1; r < g->size && status == HPC_OK; r++)
        if (strcmp(ops[r].op, ops[0].op) != 0)
            status = fail_names(op, &ops[0], r, &ops[r]);
        else if (sizes == HPC_EQUAL_SIZES && replies[r].nbytes != replies[0].nbytes)
            status = hpc_fail(HPC_ERR_CONFIG, op, "%s: rank %d gives %zu bytes and rank 0 gives %zu", op, r,
                              replies[r].nbytes, replies[0].nbytes);
out:
    if (status != HPC_OK) hpc_control_free_replies(c, replies);
    pthread_mutex_unlock(&c->collective_lock);
    free(ops);
    return status;
}

uint64_t hpc_control_collectives(const hpc_control *c) {
    return c->sequence;
}

void hpc_control_free_replies(hpc_control *c, hpc_reply *replies) {
    for (int r = 0; r < c->group->size; r++) {
        free(replies[r].data);
        hpc_close(&replies[r].fd);
        replies[r] = (hpc_reply){.fd = -1};
    }
}
