/* Collectives. Messages are numbered, because a rank that is one collective ahead may fill the inboxes of ranks that
 * are still in the one before.
 *
 * With up to HPC_DIRECT ranks each rank sends its data to every other rank. More ranks use the tree:
 * a rank awaits the batches of its children, sends its subtree's batch to its parent, awaits the batch of all ranks,
 * and passes it on (relay.c). Each edge carries one message up and one down.
 *
 * Departures in the tree. A rank that has all data returns, and may leave or die while the data is still on its way to
 * ranks further down. So a departure does not end the others' waits at once. A rank that leaves says up to which
 * collective it owes nothing (hpc_control.served). If a rank failed, or left owing a part, the others wait on for
 * LINGER_SECONDS, or until they know that the data cannot come: some rank has not come to the collective (roll.c), or a
 * neighbour whose batch they await has departed or said OVER. A rank that fails in a collective tells its neighbours
 * OVER. They wait for SETTLE_SECONDS at least, in which they learn which ranks have come. */
#define _GNU_SOURCE
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/overdue.h"
#include "control/channel.h"

static const double ASK_SECONDS = 25e-3;    /* of waiting, after which a rank asks which ranks have come (roll.c) */
static const double SETTLE_SECONDS = 50e-3; /* until the answers have come */
static const double LINGER_SECONDS = 1;

/* A collective in which this rank waits. */
typedef struct collective {
    hpc_control *control;
    uint64_t sequence;
    double deadline;
    const hpc_relay *relay; /* NULL: each rank sends to every other */
    double asked;           /* when this rank asked which ranks have come; 0: it has not */
    int lost;               /* some rank has departed that this rank still needs, or may need */
    const int *from;        /* the ranks whose messages it awaits now */
    int n_from;
} collective;

/* ---- waiting ---- */

static int has_come(const collective *g, int rank) {
    hpc_control *c = g->control;
    return rank == c->group->rank || hpc_message_find(c->links[rank].inbox, g->sequence) != NULL;
}

static int all_came(void *arg) {
    const collective *g = arg;
    int all = 1;
    pthread_mutex_lock(&g->control->lock);
    for (int i = 0; i < g->n_from && all; i++) all = has_come(g, g->from[i]);
    pthread_mutex_unlock(&g->control->lock);
    return all;
}

/* Returns whether some rank failed, or left and can no longer do its part. */
static int has_lost_any(const collective *of) {
    const hpc_control *c = of->control;
    const hpc_group *g = c->group;
    if (atomic_load_explicit(&g->departures, memory_order_acquire) == 0) return 0;
    for (int r = 0; r < g->size; r++)
        if (hpc_group_has_lost(g, r) || (hpc_group_has_departed(g, r) && hpc_link_owes(c, r, of->sequence))) return 1;
    return 0;
}

static int came_or_lost(void *arg) {
    collective *g = arg;
    if (all_came(arg)) return 1;
    if (!g->lost) g->lost = has_lost_any(g);
    return g->lost;
}

/* Returns whether this rank cannot complete a collective in which a rank is lost: some rank has not come to it, or a
 * batch that it awaits cannot come any more. Loads what ends a link first: the batch came before that. */
static int is_hopeless(const collective *g) {
    hpc_control *c = g->control;
    if (hpc_roll_lacks(c, g->sequence)) return 1;
    for (int i = 0; i < g->n_from; i++) {
        const int rank = g->from[i];
        const int gone = hpc_group_has_departed(c->group, rank) || atomic_load(&c->links[rank].over) >= g->sequence;
        pthread_mutex_lock(&c->lock);
        const int came = has_come(g, rank);
        pthread_mutex_unlock(&c->lock);
        if (gone && !came) return 1;
    }
    return 0;
}

/* Returns whether the ranks have had the time to tell each other which ranks have come. */
static int has_settled(const collective *g) {
    return g->asked > 0 && hpc_now() - g->asked >= SETTLE_SECONDS;
}

static int came_or_hopeless(void *arg) {
    const collective *g = arg;
    return all_came(arg) || (has_settled(g) && is_hopeless(g)) || atomic_load(&g->control->group->closed);
}

static int list_awaited(const collective *g, int *ranks) {
    int n = 0;
    pthread_mutex_lock(&g->control->lock);
    for (int i = 0; i < g->n_from; i++)
        if (!has_come(g, g->from[i])) ranks[n++] = g->from[i];
    pthread_mutex_unlock(&g->control->lock);
    return n;
}

/* Lists the ranks that have not come. In the tree this rank must ask for them first. A wait that is still short lists
 * the neighbours whose batches it awaits; so does a wait to which all ranks have come. */
static int who_is_missing(void *arg, int *ranks) {
    const collective *g = arg;
    if (g->relay == NULL) return list_awaited(g, ranks);
    const int ends = g->lost || hpc_now() >= g->deadline, settled = has_settled(g);
    const int n = ends || settled ? hpc_roll_missing(g->control, g->sequence, settled, ranks) : 0;
    return n > 0 ? n : list_awaited(g, ranks);
}

/* Returns the seconds until the answers have come. Then the wait shows other ranks. */
static double ask(void *arg) {
    collective *g = arg;
    const double now = hpc_now();
    if (g->asked == 0) {
        g->asked = now;
        hpc_roll_ask(g->control, g->sequence);
        hpc_mesh_poke(g->control);
    }
    return has_settled(g) ? INFINITY : g->asked + SETTLE_SECONDS - now;
}

/* A rank is lost: waits on while the batches may still come. */
static void linger(collective *g, const char *op) {
    const double left = hpc_left(g->deadline);
    const hpc_wait wait = {.op = op,
                           .ready = came_or_hopeless,
                           .waiting_for = who_is_missing,
                           .arg = g,
                           .every = 1,
                           .later = ask, /* the wait looks at its condition after this call */
                           .after = ask(g)};
    hpc_group *calm = hpc_group_calm(g->control->group);
    const int muted = hpc_mute_errors(1);
    if (calm != NULL) hpc_wait_for(calm, &wait, left < LINGER_SECONDS ? left : LINGER_SECONDS);
    hpc_mute_errors(muted);
    free(calm);
}

static int await(collective *g, const char *op) {
    hpc_group *group = g->control->group;
    const hpc_wait plain = {op, all_came, who_is_missing, g, .every = 1};
    if (g->relay == NULL) return hpc_wait_for(group, &plain, hpc_left(g->deadline));
    hpc_wait wait = plain;
    wait.ready = came_or_lost;
    wait.later = ask;
    wait.after = ASK_SECONDS;
    const int status = hpc_wait_for(group, &wait, hpc_left(g->deadline));
    if (!g->lost || status != HPC_OK) return status;
    if (!all_came(g)) linger(g, op);
    return hpc_wait_for(group, &plain, 0); /* fails, naming the lost rank, unless all has come */
}

/* ---- with every other rank ---- */

/* Moves a message's data into a reply and frees the message. With m NULL the reply gets a copy of this rank's own
 * data. */
static int take_data(hpc_reply *reply, hpc_message *m, const void *data, size_t nbytes) {
    reply->nbytes = m != NULL ? m->total : nbytes;
    if (m != NULL) {
        reply->data = m->data;
        m->data = NULL;
    } else if ((reply->data = malloc(nbytes + 1)) != NULL && nbytes > 0) {
        memcpy(reply->data, data, nbytes);
    }
    reply->memory = reply->data;
    hpc_message_free(m);
    return reply->data != NULL;
}

/* Returns the first rank that did not read this rank's data in time, or -1. */
static int send_to_all(hpc_control *c, const char *op, const void *data, size_t nbytes, double deadline) {
    hpc_group *g = c->group;
    int blocked = -1;
    for (int i = 1; i < g->size; i++) { /* each rank begins with its successor, so no rank is the first target of all */
        int r = (g->rank + i) % g->size;
        if (hpc_link_send(c, r, HPC_MESH_GATHER, c->sequence, op, data, nbytes, -1, deadline) == HPC_ERR_TIMEOUT &&
            blocked < 0)
            blocked = r;
    }
    return blocked;
}

static int fail_blocked(const collective *g, const char *op, int rank, double start) {
    return hpc_group_fail_timeout(g->control->group, op, &rank, 1, hpc_now() - start,
                                  "rank %d did not read its socket in time", rank);
}

static int fail_memory(const char *op, size_t nbytes) {
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %zu bytes", op, nbytes);
}

/* Fills in replies, and names with the names of all ranks. */
static int run_direct(collective *g, const char *op, const void *data, size_t nbytes, hpc_reply *replies,
                      hpc_said *names) {
    hpc_control *c = g->control;
    const int size = c->group->size;
    int *all = malloc((size_t)size * sizeof *all), status;
    if (all == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    for (int r = 0; r < size; r++) all[r] = r;
    g->from = all;
    g->n_from = size;
    const double start = hpc_now();
    const int blocked = send_to_all(c, op, data, nbytes, g->deadline);
    atomic_store(&c->served, g->sequence);
    status = await(g, op);
    free(all);
    if (status == HPC_OK && blocked >= 0) /* the blocked rank lacks some of this rank's data, so it cannot go on */
        status = fail_blocked(g, op, blocked, start);
    for (int r = 0; r < size && status == HPC_OK; r++) {
        hpc_message *m = r == c->group->rank ? NULL : hpc_message_take(c, r, g->sequence);
        snprintf(names[r].op, sizeof names[r].op, "%s", m != NULL ? m->op : op);
        snprintf(names[r].call, sizeof names[r].call, "%s", m != NULL ? m->call : hpc_doing_of("", 0).op);
        if (!take_data(&replies[r], m, data, nbytes)) status = fail_memory(op, nbytes);
    }
    return status;
}

/* ---- in the tree ---- */

/* Awaits the batches that relay lacks, and takes them. */
static int take_batches(collective *g, hpc_relay *relay, const char *op, hpc_record *records) {
    hpc_control *c = g->control;
    int from[HPC_TREE_CHILDREN], culprit;
    g->from = from;
    g->n_from = hpc_relay_awaits(relay, from);
    int status = await(g, op);
    if (status != HPC_OK) return status;
    status = hpc_relay_take(c, relay, records, &culprit);
    if (status == HPC_ERR_MEMORY) return fail_memory(op, relay->own.nbytes * (size_t)c->tree.count[c->group->rank]);
    return status == HPC_ERR_PEER ? hpc_group_peer_present(c->group, culprit, op) : status;
}

/* Sends the batch to a neighbour; HPC_OK too if that one is gone, which the next wait finds. */
static int send_batch(const collective *g, const hpc_relay *relay, const char *op, int rank) {
    const double start = hpc_now();
    const int status =
        hpc_link_send(g->control, rank, HPC_MESH_BATCH, g->sequence, op, relay->bytes, relay->nbytes, -1, g->deadline);
    return status == HPC_ERR_TIMEOUT ? fail_blocked(g, op, rank, start) : HPC_OK;
}

/* Takes all the steps of relay.c. */
static int run_relay(collective *g, hpc_relay *relay, const char *op, hpc_record *records) {
    hpc_control *c = g->control;
    int status = take_batches(g, relay, op, records);
    if (status != HPC_OK) return status;
    hpc_roll_join(c, g->sequence);
    if (relay->stage == HPC_RELAY_UP) {
        status = send_batch(g, relay, op, relay->parent);
        if (status != HPC_OK) return status;
        if (relay->n_children == 0) atomic_store(&c->served, g->sequence);
        free(relay->bytes);
        relay->bytes = NULL;
        relay->stage = HPC_RELAY_AWAIT;
        status = take_batches(g, relay, op, records);
    }
    for (; relay->next < relay->n_children && status == HPC_OK; relay->next++)
        status = send_batch(g, relay, op, relay->children[relay->next]);
    return status;
}

/* This rank has failed. After its deadline the service thread passes on what comes, because the others may have time;
 * otherwise the neighbours learn that nothing will come. */
static void give_up(collective *g, hpc_relay *relay, int status) {
    hpc_control *c = g->control;
    if (status == HPC_ERR_TIMEOUT) {
        if (atomic_load(&c->served) < g->sequence) hpc_relay_hand_over(c, relay);
        return;
    }
    for (int i = 0; i < relay->n_children; i++) hpc_link_tell_number(c, relay->children[i], HPC_MESH_OVER, g->sequence);
    if (relay->parent >= 0) hpc_link_tell_number(c, relay->parent, HPC_MESH_OVER, g->sequence);
    free(relay->bytes);
}

/* Fills in replies, and names with the names of all ranks. */
static int run_tree(collective *g, const char *op, const void *data, size_t nbytes, hpc_reply *replies,
                    hpc_said *names) {
    hpc_control *c = g->control;
    const int size = c->group->size;
    hpc_record *records = malloc((size_t)size * sizeof *records);
    hpc_relay relay;
    if (records == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    hpc_relay_begin(c, &relay, g->sequence, op, data, nbytes);
    g->relay = &relay;
    const int status = run_relay(g, &relay, op, records);
    if (status != HPC_OK) {
        give_up(g, &relay, status);
    } else {
        atomic_store(&c->served, g->sequence);
        for (int i = 0; i < size; i++) {
            const int r = c->tree.order[i];
            replies[r].data = records[i].data;
            replies[r].nbytes = records[i].nbytes;
            names[r] = *records[i].said;
        }
        replies[0].memory = relay.bytes;
    }
    free(records);
    return status;
}

/* ---- the call ---- */

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

static int fail_names(const char *op, const hpc_said *of_0, int rank, const hpc_said *of_rank) {
    const int calls = strcmp(of_0->call, of_rank->call) != 0;
    return hpc_fail(HPC_ERR_CONFIG, op,
                    "rank 0 calls %s while rank %d calls %s; every rank must make the same collective calls in the "
                    "same order",
                    calls && of_0->call[0] != 0 ? of_0->call : of_0->op, rank,
                    calls && of_rank->call[0] != 0 ? of_rank->call : of_rank->op);
}

/* Returns whether this rank may begin a collective. */
static int check_usable(hpc_control *c, const char *op) {
    hpc_group *g = c->group;
    int status = hpc_group_usable(g, op);
    for (int r = 0; r < g->size && c->broken == HPC_ERR_PEER && status == HPC_OK; r++)
        status = hpc_group_peer_present(g, r, op);
    if (c->broken != HPC_OK && status == HPC_OK)
        status = hpc_fail(HPC_ERR_CONFIG, op,
                          "rank %d: %s: an earlier collective failed (%s), so the ranks no longer agree on the "
                          "next; close the context",
                          g->rank, op, hpc_status_text(c->broken));
    return status;
}

int hpc_control_exchange(hpc_control *c, const char *op, const void *data, size_t nbytes, hpc_sizes sizes,
                         hpc_reply *replies, double deadline) {
    hpc_group *g = c->group;
    HPC_SPAN(g->timeline, op, NULL);
    hpc_said *names = calloc((size_t)g->size, sizeof *names);
    int status = names == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op) : take_turn(c, op, deadline);
    for (int r = 0; r < g->size; r++) replies[r] = (hpc_reply){.nbytes = 0};
    if (status != HPC_OK) {
        free(names);
        return status;
    }
    status = check_usable(c, op);
    if (status != HPC_OK) goto out;
    collective of = {.control = c, .sequence = ++c->sequence, .deadline = deadline};
    const int rolls = g->size > HPC_DIRECT;
    if (rolls && hpc_roll_enter(c, of.sequence)) hpc_mesh_poke(c);
    status = (rolls ? run_tree : run_direct)(&of, op, data, nbytes, replies, names);
    if (rolls && status == HPC_OK) hpc_roll_leave(c, of.sequence);
    c->broken = status;
    for (int r = 1; r < g->size && status == HPC_OK; r++)
        if (strcmp(names[r].op, names[0].op) != 0)
            status = fail_names(op, &names[0], r, &names[r]);
        else if (sizes == HPC_EQUAL_SIZES && replies[r].nbytes != replies[0].nbytes)
            status = hpc_fail(HPC_ERR_CONFIG, op, "%s: rank %d gives %zu bytes and rank 0 gives %zu", op, r,
                              replies[r].nbytes, replies[0].nbytes);
out:
    if (status != HPC_OK) hpc_control_free_replies(c, replies);
    pthread_mutex_unlock(&c->collective_lock);
    free(names);
    return status;
}

uint64_t hpc_control_collectives(const hpc_control *c) {
    return c->sequence;
}

void hpc_control_free_replies(hpc_control *c, hpc_reply *replies) {
    for (int r = 0; r < c->group->size; r++) {
        free(replies[r].memory);
        replies[r] = (hpc_reply){.nbytes = 0};
    }
}
