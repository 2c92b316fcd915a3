/* Tells all ranks the news: that a rank has departed (GONE), that the context is revoked (REVOKE), what a
 * rank says about an object (SAY), that a rank shall call another one (CALL), and that a rank was dropped (DROPPED).
 * Each rank passes a frame on to its neighbours (hpc_link.edge), except the one from which it came, when it learns the
 * news. So each edge carries a frame once or twice, whatever the shape of the graph of neighbours.
 *
 * A rank learns of a departure from the kernel, by silence, by the last word of the rank, from a transport or by a
 * GONE. It need not know which: hpc_spread_go_on compares the states of the group with the news that it has passed on.
 * A doubted departure (edges.c) is not passed on.
 *
 * A rank keeps the last SAYs of each rank, and the departures that it has passed on. A new neighbour is told all of
 * them, as it may have lost its neighbours while they were on their way. Serials show which SAYs are known.
 *
 * A rank may have a link to a rank that a GONE names. Before it believes that the rank failed it reads the link, which
 * may have the rank's own last word. It does not believe that the rank left: the rank's BYE comes on the link, after
 * all that the rank has sent. To a rank that failed it sends a DROP, because that rank may live, cut off from others.
 *
 * Threads: queues belong to the service thread. Other threads append to to_say, under the lock. */
#include "control/channel.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"

enum { MOST_KEPT = 16 }; /* SAYs of a rank */

static const char cannot_be[] = "it told of a rank that does not exist";

/* ---- queues ---- */

static hpc_saying *make(hpc_mesh_type type, uint64_t sequence, const void *data, size_t nbytes) {
    hpc_saying *s = malloc(sizeof *s + nbytes);
    if (s == NULL) return NULL;
    *s = (hpc_saying){.refs = 1, .type = type, .sequence = sequence, .nbytes = nbytes};
    if (nbytes > 0) memcpy(s->data, data, nbytes);
    return s;
}

static void release(hpc_saying *s) {
    if (s != NULL && --s->refs == 0) free(s);
}

/* Appends; without memory the frame is lost. */
static int append(hpc_outbox *box, hpc_saying *s) {
    hpc_queued *q = malloc(sizeof *q);
    if (q == NULL) return 0;
    *q = (hpc_queued){.saying = s};
    if (box->last == NULL) box->last = &box->first;
    *box->last = q;
    box->last = &q->next;
    s->refs++;
    return 1;
}

static void drop_first(hpc_outbox *box) {
    hpc_queued *q = box->first;
    box->first = q->next;
    if (box->first == NULL) box->last = &box->first;
    release(q->saying);
    free(q);
}

static void clear(hpc_outbox *box) {
    while (box->first != NULL) drop_first(box);
}

static int can_tell(const hpc_control *c, int rank) {
    const hpc_link *l = &c->links[rank];
    return atomic_load(&l->edge) && hpc_link_is_up(l) && !l->ended;
}

/* Queues a frame for all neighbours except the one that told it, and the one that it is about; -1: none. */
static void queue_for_all(hpc_control *c, hpc_saying *s, int teller, int subject) {
    const int n = atomic_load_explicit(&c->n_edges, memory_order_acquire);
    for (int i = 0; i < n && s != NULL; i++) {
        const int r = c->edges[i];
        if (r != teller && r != subject && can_tell(c, r)) append(&c->links[r].queue, s);
    }
}

/* Sends what fits. Returns 1 if something is left. */
static int send_queue(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    if (l->queue.first == NULL && !l->unfinished) return 0;
    if (!can_tell(c, rank)) clear(&l->queue);
    while (l->queue.first != NULL) {
        const hpc_saying *s = l->queue.first->saying;
        const int status = hpc_link_tell_part(c, rank, s->type, s->sequence, s->data, s->nbytes, 0, s->nbytes);
        if (status == HPC_ERR_TIMEOUT) return 1;
        l->unfinished = status == HPC_IN_PROGRESS;
        if (status == HPC_ERR_PEER)
            clear(&l->queue);
        else
            drop_first(&l->queue);
    }
    if (l->unfinished) l->unfinished = hpc_link_finish(c, rank) == HPC_ERR_TIMEOUT;
    return l->unfinished;
}

/* Keeps a SAY of this rank for new neighbours. */
static void keep(hpc_control *c, int rank, hpc_saying *s) {
    hpc_link *l = &c->links[rank];
    if (s == NULL || !append(&l->said, s)) return;
    if (++l->n_said <= MOST_KEPT) return;
    drop_first(&l->said);
    l->n_said--;
}

void hpc_spread_to(hpc_control *c, int rank, hpc_mesh_type type) {
    hpc_saying *s = make(type, 0, NULL, 0);
    if (s != NULL) append(&c->links[rank].queue, s);
    release(s);
}

/* ---- departures ---- */

static hpc_saying *make_gone(const hpc_control *c, int rank) {
    const hpc_link *l = &c->links[rank];
    hpc_gone gone;
    memset(&gone, 0, sizeof gone);
    gone.rank = rank;
    gone.state = l->end_state != 0 ? l->end_state : atomic_load(&c->group->states[rank]);
    gone.served = atomic_load(&l->served);
    if (l->last != NULL) {
        gone.word = *l->last;
    } else {
        memcpy(gone.word.why, c->group->reasons[rank], sizeof gone.word.why);
        gone.word.said = UINT32_MAX; /* nobody knows how many SAYs it has sent (hpc_control_missed) */
    }
    return make(HPC_MESH_GONE, 0, &gone, sizeof gone);
}

/* Passes on the departures that are new. */
static void pass_departures(hpc_control *c) {
    const int departures = atomic_load_explicit(&c->group->departures, memory_order_acquire);
    if (departures == c->departed) return;
    c->departed = departures;
    for (int r = 0; r < c->group->size; r++) {
        hpc_link *l = &c->links[r];
        const int doubt = atomic_load(&l->doubted);
        if (l->drops && !l->drops_told) {
            hpc_saying *s = make(HPC_MESH_DROPPED, (uint64_t)r, NULL, 0);
            l->drops_told = 1;
            queue_for_all(c, s, -1, r);
            release(s);
        }
        if (l->spread || !hpc_group_has_departed(c->group, r)) continue;
        if (doubt == HPC_DOUBT_SILENT || doubt == HPC_DOUBT_LOCAL) continue;
        l->spread = 1;
        hpc_saying *s = make_gone(c, r);
        queue_for_all(c, s, l->gone_by, r);
        release(s);
    }
}

/* Handles a GONE of a neighbour. */
static void learn(hpc_control *c, int from, const hpc_gone *gone) {
    hpc_group *g = c->group;
    const int rank = gone->rank, failed = gone->state == HPC_PEER_FAILED;
    hpc_link *l = &c->links[rank];
    if (atomic_load(&c->links[from].dropped)) return; /* after that it is on the other side */
    if (rank == g->rank) {                            /* others count this rank as failed, or soon will */
        if (failed) hpc_link_dropped(c, from);
        return;
    }
    if (!hpc_group_has_departed(g, rank) && hpc_link_is_up(l) && !l->ended) {
        if (!failed) {
            if (l->last == NULL && (l->last = malloc(sizeof *l->last)) != NULL) *l->last = gone->word;
            l->has_left = 1;
            return;
        }
        if (atomic_load(&l->kind) == HPC_LINK_UNIX) hpc_link_read(c, rank, SIZE_MAX);
        if (!hpc_group_has_departed(g, rank)) hpc_link_drop(c, rank);
    }
    if (!hpc_group_has_departed(g, rank)) {
        l->gone_by = from;
        if (l->last == NULL && (l->last = malloc(sizeof *l->last)) != NULL) *l->last = gone->word;
        if (gone->served > atomic_load(&l->served)) atomic_store(&l->served, gone->served); /* before the state */
    }
    if (!failed && !hpc_group_has_departed(g, rank)) {
        hpc_link_leaves(c, rank);
        return;
    }
    hpc_link_settle(c, rank, gone->state);
    if (!hpc_group_has_departed(g, rank)) hpc_group_depart_saying(g, rank, gone->state, &gone->word);
    if (failed && hpc_link_is_up(l)) hpc_link_end(c, rank, g->reasons[rank]);
}

/* A later one may come from a link that is read for an earlier one. */
static void learn_all(hpc_control *c) {
    while (c->gone != NULL) {
        hpc_message *m = c->gone, **at = &c->gone;
        while (m->next != NULL) { /* the oldest */
            at = &m->next;
            m = m->next;
        }
        *at = NULL;
        hpc_gone gone;
        memcpy(&gone, m->data, sizeof gone);
        learn(c, (int)m->sequence, &gone);
        hpc_message_free(m);
    }
}

/* ---- messages about an object ---- */

enum { PART = sizeof(hpc_shown_rank) }; /* most bytes of a frame's payload */

static size_t set_bytes(const hpc_control *c) {
    return ((size_t)c->group->size + 63) / 64 * sizeof(uint64_t);
}

int hpc_control_say(hpc_control *c, uint64_t number, const char *told, const void *data, size_t nbytes,
                    uint64_t value) {
    const size_t set = set_bytes(c), most = PART - sizeof(hpc_said_head) - set;
    char frame[PART];
    if (sizeof(hpc_said_head) + set >= PART)
        return hpc_fail(HPC_ERR_UNSUPPORTED, "say", "say: %d ranks are too many", c->group->size);
    memset(frame, 0, sizeof(hpc_said_head) + set);
    for (int r = 0; r < c->group->size; r++)
        if (told[r]) frame[sizeof(hpc_said_head) + (size_t)r / 8] |= (char)(1 << r % 8);
    for (size_t done = 0;; done += most) {
        const size_t n = nbytes - done < most ? nbytes - done : most;
        hpc_said_head head = {.rank = c->group->rank, .number = number, .offset = done};
        if (done + n == nbytes) head.value = value;
        memcpy(frame, &head, sizeof head);
        if (n > 0) memcpy(frame + sizeof head + set, (const char *)data + done, n);
        const int status = hpc_spread_say(c, HPC_MESH_SAY, 0, frame, sizeof head + set + n);
        if (status != HPC_OK || done + n == nbytes) return status;
    }
}

static const char *hear(hpc_control *c, int from, const hpc_message *m) {
    hpc_said_head head;
    const size_t set = set_bytes(c);
    if (m->total < sizeof head + set || m->total > PART) return hpc_link_garbled;
    memcpy(&head, m->data, sizeof head);
    if (head.rank < 0 || head.rank >= c->group->size) return cannot_be;
    hpc_link *l = &c->links[head.rank];
    if (head.rank == c->group->rank || head.serial <= l->serial) return NULL; /* it is known */
    l->serial = head.serial;
    hpc_saying *s = make(HPC_MESH_SAY, 0, m->data, m->total);
    queue_for_all(c, s, from, -1);
    keep(c, head.rank, s);
    release(s);
    const char *told = m->data + sizeof head;
    const int me = c->group->rank;
    if (!(told[me / 8] >> me % 8 & 1) && c->giver != NULL)
        c->giver->hear(c->giver_arg, head.rank, head.number, told + set, m->total - sizeof head - set, head.offset,
                       head.value);
    return NULL;
}

/* ---- calls ---- */

static const char *pass_call(hpc_control *c, int from, const hpc_message *m) {
    const int caller = (int)(m->sequence >> 32), called = (int)(m->sequence & 0xffffffff);
    if (caller < 0 || caller >= c->group->size || called < 0 || called >= c->group->size || caller == called)
        return cannot_be;
    if (!atomic_load(&c->joined)) return NULL; /* no rank calls before all are there */
    if (called == c->group->rank) {
        hpc_mesh_seek(c, caller, HPC_SEEKS);
    } else if (c->group->rank != caller && hpc_rank_tree_next(&c->tree, from, called) == c->group->rank) {
        hpc_saying *s = make(HPC_MESH_CALL, m->sequence, NULL, 0);
        const int next = hpc_rank_tree_next(&c->tree, c->group->rank, called);
        if (s != NULL && can_tell(c, next)) append(&c->links[next].queue, s);
        release(s);
    }
    return NULL;
}

/* ---- the service thread ---- */

const char *hpc_spread_take(hpc_control *c, int rank, hpc_message *m) {
    const char *fault = NULL;
    hpc_gone gone;
    if (hpc_link_is_gone(c, rank)) { /* the others do not believe it either */
        hpc_message_free(m);
        return NULL;
    }
    if (m->type == HPC_MESH_GONE) {
        memcpy(&gone, m->data, sizeof gone);
        if (gone.rank < 0 || gone.rank >= c->group->size ||
            (gone.state != HPC_PEER_LEFT && gone.state != HPC_PEER_FAILED)) {
            fault = cannot_be;
        } else {
            m->sequence = (uint64_t)rank;
            m->next = c->gone;
            c->gone = m;
            return NULL;
        }
    } else if (m->type == HPC_MESH_SAY) {
        fault = hear(c, rank, m);
    } else {
        fault = pass_call(c, rank, m);
    }
    hpc_message_free(m);
    return fault;
}

/* Queues what other threads say. */
static void take_said(hpc_control *c) {
    pthread_mutex_lock(&c->lock);
    hpc_outbox said = c->to_say;
    c->to_say = (hpc_outbox){NULL, NULL};
    pthread_mutex_unlock(&c->lock);
    for (; said.first != NULL; drop_first(&said)) {
        queue_for_all(c, said.first->saying, -1, -1);
        if (said.first->saying->type == HPC_MESH_SAY) keep(c, c->group->rank, said.first->saying);
    }
}

/* Learns, and queues all that is new. */
static void gather(hpc_control *c) {
    learn_all(c);
    pass_departures(c);
    take_said(c);
    if (!c->revoke_spread && atomic_load(&c->group->revoked)) {
        hpc_saying *s = make(HPC_MESH_REVOKE, 0, NULL, 0);
        c->revoke_spread = 1;
        queue_for_all(c, s, c->revoked_by, -1);
        release(s);
    }
}

/* Tells a new neighbour the news from before. */
static void join(hpc_control *c, int rank) {
    hpc_outbox *box = &c->links[rank].queue;
    c->links[rank].is_told = 1;
    for (int r = 0; r < c->group->size; r++) /* before the word that it has left */
        for (hpc_queued *q = c->links[r].said.first; q != NULL && r != rank; q = q->next) append(box, q->saying);
    for (int r = 0; r < c->group->size; r++) {
        if (!c->links[r].spread || r == rank) continue;
        hpc_saying *s = make_gone(c, r);
        if (s != NULL) append(box, s);
        release(s);
    }
    if (c->revoke_spread) hpc_spread_to(c, rank, HPC_MESH_REVOKE);
}

static void join_all(hpc_control *c) {
    const int n = atomic_load_explicit(&c->n_edges, memory_order_acquire);
    for (int i = 0; i < n; i++)
        if (!c->links[c->edges[i]].is_told && can_tell(c, c->edges[i])) join(c, c->edges[i]);
}

int hpc_spread_go_on(hpc_control *c) {
    const int n = atomic_load_explicit(&c->n_edges, memory_order_acquire);
    int left = 0;
    join_all(c);
    gather(c);
    for (int i = 0; i < n; i++) left |= send_queue(c, c->edges[i]);
    return left;
}

/* ---- other threads ---- */

int hpc_spread_say(hpc_control *c, hpc_mesh_type type, uint64_t sequence, const void *data, size_t nbytes) {
    hpc_saying *s = make(type, sequence, data, nbytes);
    if (s == NULL) return HPC_ERR_MEMORY;
    pthread_mutex_lock(&c->lock);
    if (type == HPC_MESH_SAY) { /* in the order in which they are sent */
        const uint64_t serial = ++c->said;
        memcpy(s->data + offsetof(hpc_said_head, serial), &serial, sizeof serial);
    }
    const int kept = append(&c->to_say, s);
    release(s);
    pthread_mutex_unlock(&c->lock);
    hpc_mesh_poke(c);
    return kept ? HPC_OK : HPC_ERR_MEMORY;
}

void hpc_spread_end(hpc_control *c, double deadline) {
    join_all(c);
    gather(c);
    for (int r = 0; r < c->group->size; r++) {
        hpc_outbox *box = &c->links[r].queue;
        if (!can_tell(c, r)) clear(box);
        for (; box->first != NULL; drop_first(box)) {
            const hpc_saying *s = box->first->saying;
            hpc_link_send(c, r, s->type, s->sequence, "close", s->data, s->nbytes, -1, deadline);
        }
    }
}

void hpc_spread_free(hpc_control *c) {
    for (int r = 0; r < c->group->size; r++) {
        clear(&c->links[r].queue);
        clear(&c->links[r].said);
        free(c->links[r].last);
    }
    clear(&c->to_say);
    for (hpc_message *m = c->gone, *next; m != NULL; m = next) {
        next = m->next;
        hpc_message_free(m);
    }
}
