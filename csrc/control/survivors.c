/* Agreement among the ranks that are left after others died or left: on the set of these ranks, and on data from
 * each. It runs on the links that are still up, in its own rounds, so an earlier failed collective does not matter.
 *
 * A round: each rank sends one ballot to every other rank, and waits until each has sent its ballot of this round or
 * has departed. A ballot says which ranks its sender counts as gone. Votes alone are the flood-set algorithm. A rank
 * has decided when every rank that it does not count as gone has sent the same set as its own. Otherwise it adds the
 * sets of the ballots and the departures that it saw, and votes again. Sets only grow, so a round after which some
 * rank has not decided has made some set larger; hence rounds end. A rank that has decided gives: it takes part in
 * one more round, whose ballots carry data, and which must bring the same set from every rank again.
 *
 * Rounds have one numbering, and every rank goes through all of them. A rank that has decided gives in the next
 * round; one that has not decided votes in it. Each sees from the other's ballot that not all have decided, and both
 * vote again. So any failure, even one after this file's part, leads to a next round, where all meet again.
 *
 * A rank that dies while it sends reaches some ranks and not others. Ranks that have its ballot may count it as
 * living and decide; ranks that lack the ballot vote again without it. No protocol can prevent this, as the last
 * ballot may always be the lost one. It does no harm, because a decision is only a proposal. Only the new context
 * counts: every member must join it and pass a barrier in it. A dead member does not join, and a member that votes
 * again has given up the proposal. hpc_survivors_look tells this to the ranks that are connecting, which then give
 * it up and vote again too. The barrier has the same gap: a rank may die in it after it told some ranks and not
 * others. Ranks that passed it go on in a context with a dead member and aborted ones. Their next call reports that,
 * and they shrink this context, which makes them vote in the round in which the others already wait for them. No
 * rank computes meanwhile: a collective or an exchange needs every member.
 *
 * For this reason rounds run on the links of the first context, which stay until the last of its heirs is closed,
 * and a context made by a shrink is itself shrunk by the links and ranks of the first one.
 *
 * A living rank that others count as gone (because it was silent over TCP) must not go on alone. Either it finds
 * itself in the set of a ballot; that ends its part, and of two ranks that accuse each other the lower one is
 * believed. Or it got a DROP, the last frame on a link that a peer gave up; that ends its part unless more ranks
 * have voted with it than may have dropped it, as otherwise one odd rank could end all others. Ballots make the links
 * that they need, and a rank turns down the call of a rank that it counts as gone, by a DROP. If a network splits for
 * good, each part goes on: no rank can tell a split from deaths.
 *
 * A deadline leaves a round unfinished; the next call finishes it before it begins another. A ballot is one frame,
 * so it is sent whole or not at all; cast records to which ranks. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/channel.h"

static const char op[] = "shrink";

enum { VOTE = 1, GIVE = 2 };

/* A ballot; given data follows gone. */
typedef struct ballot {
    uint32_t kind, size;
    char gone[]; /* by rank */
} ballot;

typedef struct round {
    hpc_control *control;
    const hpc_survivors *s;
    hpc_message **got; /* by rank; this rank's too */
} round;

static int name_of(const hpc_survivors *s, int rank) {
    return s->names == NULL ? rank : s->names[rank];
}

/* ---- who is left out ---- */

static int fail_dropped(const hpc_control *c, const hpc_survivors *s, int by) {
    return hpc_fail_transport(op, hpc_link_name(c->links[by].kind), name_of(s, by),
                              "rank %d: shrink: rank %d counts this rank as failed and the others go on without it, "
                              "probably because nothing was heard from it for too long; end this process",
                              name_of(s, c->group->rank), name_of(s, by));
}

/* Fails if a rank has dropped this one, and at least as many ranks may stand with it as are left with this rank: those
 * ranks are then the job. Any rank may that failed without proof. Of each pair only one rank gets the other's DROP, so
 * two halves do not both fail. Ignores a rank without a name in the caller's context: its drop was settled when that
 * context was made. */
static int check_dropped(const hpc_control *c, const hpc_survivors *s) {
    int by = -1, others = 0, left = 0;
    for (int r = c->group->size - 1; r >= 0; r--) {
        const int failed = atomic_load(&c->group->states[r]) == HPC_PEER_FAILED;
        left += !s->gone[r];
        if (name_of(s, r) < 0) continue;
        if (atomic_load(&c->links[r].dropped)) by = r;
        others += failed && (atomic_load(&c->links[r].dropped) || !atomic_load(&c->links[r].proven));
    }
    return by >= 0 && others >= left ? fail_dropped(c, s, by) : HPC_OK;
}

/* ---- one round ---- */

static int begin_round(hpc_control *c, const hpc_survivors *s, uint32_t kind, const void *data, size_t nbytes) {
    size_t size = (size_t)c->group->size, total = sizeof(ballot) + size + nbytes;
    if (c->ballot != NULL) return HPC_OK; /* the last round is unfinished */
    if (total > HPC_FRAME_BYTES)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "shrink: %zu ranks are too many to agree in one message", size);
    hpc_message *m = malloc(sizeof *m);
    ballot *b = malloc(total);
    if (c->cast == NULL) c->cast = malloc(size);
    if (m == NULL || b == NULL || c->cast == NULL) {
        free(m);
        free(b);
        return hpc_fail(HPC_ERR_MEMORY, op, "shrink: no memory for a message");
    }
    *b = (ballot){kind, (uint32_t)size};
    memcpy(b->gone, s->gone, size);
    if (nbytes > 0) memcpy(b->gone + size, data, nbytes);
    *m = (hpc_message){.sequence = ++c->round, .total = total, .got = total, .fd = -1, .data = (char *)b};
    memset(c->cast, 0, size);
    c->ballot = m;
    return HPC_OK;
}

/* Sends the ballot to all ranks. A gone rank gets it only if it reads at once. */
static void cast_to_all(hpc_control *c, const hpc_survivors *s, double deadline) {
    const hpc_message *m = c->ballot;
    for (int i = 1; i < c->group->size; i++) {
        int r = (c->group->rank + i) % c->group->size;
        if (c->cast[r]) continue;
        if (!hpc_link_is_up(&c->links[r]) && !s->gone[r] && !hpc_group_has_departed(c->group, r)) {
            hpc_mesh_seek(c, r, HPC_SEEKS | HPC_MUST_REACH); /* the wait for ballots sends it (is_over) */
            continue;
        }
        c->cast[r] = hpc_link_send(c, r, HPC_MESH_BALLOT, m->sequence, op, m->data, m->total, -1,
                                   s->gone[r] ? 0 : deadline) != HPC_ERR_TIMEOUT;
    }
}

static int has_ballot(const hpc_control *c, int rank) {
    for (const hpc_message *m = c->links[rank].ballots; m != NULL && m->sequence <= c->round; m = m->next)
        if (m->sequence == c->round) return 1;
    return 0;
}

/* Returns whether to wait for rank's ballot. Does not wait for a gone rank; its state is loaded first, so that
 * ballots which it sent before it departed are there. */
static int is_missing(const round *r, int rank) {
    hpc_control *c = r->control;
    if (rank == c->group->rank || r->s->gone[rank] || hpc_group_has_departed(c->group, rank)) return 0;
    pthread_mutex_lock(&c->lock);
    int missing = !has_ballot(c, rank);
    pthread_mutex_unlock(&c->lock);
    return missing;
}

static int is_over(void *arg) {
    const round *r = arg;
    const hpc_control *c = r->control;
    if (atomic_load(&c->stopping) || atomic_load(&r->s->caller->closed)) return 1;
    for (int rank = 0; rank < c->group->size; rank++)
        if (is_missing(r, rank)) {
            cast_to_all(r->control, r->s, 0);
            return 0;
        }
    return 1;
}

static int who_is_missing(void *arg, int *ranks) {
    const round *r = arg;
    int n = 0;
    for (int rank = 0; rank < r->control->group->size; rank++)
        if (is_missing(r, rank)) ranks[n++] = name_of(r->s, rank);
    return n;
}

/* Waits for the ballots. is_over handles departures, so the wait uses a group without any. */
static int await_ballots(round *r) {
    hpc_control *c = r->control;
    hpc_group *others = hpc_group_calm(c->group);
    const hpc_wait wait = {op, is_over, who_is_missing, r, .every = 1};
    if (others == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "shrink: no memory");
    others->rank = r->s->caller->rank;
    if (r->s->names == NULL) { /* otherwise the inquiry would use other rank numbers than the errors */
        others->follow = c->group->follow;
        others->follow_arg = c->group->follow_arg;
    }
    int status = hpc_wait_for(others, &wait, hpc_left(r->s->deadline));
    free(others);
    return status;
}

/* Takes rank's ballot of this round and drops its earlier ones. */
static hpc_message *take_ballot(hpc_control *c, int rank, uint64_t sequence) {
    hpc_link *l = &c->links[rank];
    hpc_message *m;
    pthread_mutex_lock(&c->lock);
    while ((m = l->ballots) != NULL && m->sequence < sequence) {
        l->ballots = m->next;
        hpc_message_free(m);
    }
    if (m != NULL && m->sequence == sequence)
        l->ballots = m->next;
    else
        m = NULL;
    pthread_mutex_unlock(&c->lock);
    if (m == NULL) return NULL;
    const ballot *b = (const ballot *)(const void *)m->data;
    if (m->total >= sizeof *b + (size_t)c->group->size && b->size == (uint32_t)c->group->size) return m;
    hpc_message_free(m);
    return NULL;
}

static void free_round(round *r) {
    for (int rank = 0; r->got != NULL && rank < r->control->group->size; rank++) hpc_message_free(r->got[rank]);
    free(r->got);
}

/* Runs one round. On HPC_OK, r->got has the ballots that came and this rank's own. If a deadline left a round
 * unfinished, this finishes it instead, and r->got has its ballots. */
static int run_round(round *r, uint32_t kind, const void *data, size_t nbytes) {
    hpc_control *c = r->control;
    int size = c->group->size, status = begin_round(c, r->s, kind, data, nbytes), blocked[1], n = 0;
    if (status != HPC_OK) return status;
    cast_to_all(c, r->s, 0); /* first without waiting, so that no rank waits behind one that does not read */
    cast_to_all(c, r->s, r->s->deadline);
    status = await_ballots(r);
    if (status == HPC_OK) cast_to_all(c, r->s, 0);
    if (status != HPC_OK) return status;
    status = hpc_group_usable(r->s->caller, op);
    if (status == HPC_OK && atomic_load(&c->stopping))
        status = hpc_fail(HPC_ERR_INVALID, op, "shrink: the first context has been aborted");
    for (int rank = 0; rank < size && n == 0; rank++)
        if (rank != c->group->rank && !c->cast[rank] && !r->s->gone[rank] && !hpc_group_has_departed(c->group, rank))
            blocked[n++] = name_of(r->s, rank);
    if (status == HPC_OK && n > 0)
        status =
            hpc_fail_ranks(HPC_ERR_TIMEOUT, op, NULL, 0, blocked, n,
                           "rank %d: shrink: rank %d did not read its socket in time", r->s->caller->rank, blocked[0]);
    if (status != HPC_OK) return status;
    if ((r->got = calloc((size_t)size, sizeof(hpc_message *))) == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "shrink: no memory for %d ranks", size);
    for (int rank = 0; rank < size; rank++)
        if (rank != c->group->rank) r->got[rank] = take_ballot(c, rank, c->round);
    r->got[c->group->rank] = c->ballot;
    c->ballot = NULL;
    return HPC_OK;
}

/* Adds to gone the ranks that ballots name, and the ranks that departed here. Returns HPC_OK if all ballots are of
 * this kind and name the same ranks, and no others are gone; HPC_IN_PROGRESS if not; HPC_ERR_TRANSPORT if a ballot
 * names this rank. */
static int judge(const round *r, hpc_survivors *s, uint32_t kind) {
    const hpc_control *c = r->control;
    size_t size = (size_t)c->group->size;
    const char *mine = ((const ballot *)(const void *)r->got[c->group->rank]->data)->gone;
    int alike = 1;
    for (size_t rank = 0; rank < size; rank++)
        if (hpc_group_has_departed(c->group, (int)rank)) s->gone[rank] = 1;
    /* Rising, so that of two that accuse each other the lower one is believed. */
    for (size_t rank = 0; rank < size; rank++) {
        const ballot *b = r->got[rank] == NULL ? NULL : (const ballot *)(const void *)r->got[rank]->data;
        if (s->gone[rank]) continue;
        if (b == NULL) s->gone[rank] = 1; /* it departed just now, or its ballot was invalid */
        if (b == NULL) continue;
        if (b->gone[c->group->rank]) return fail_dropped(c, s, (int)rank);
        alike &= b->kind == kind && memcmp(b->gone, mine, size) == 0;
        for (size_t other = 0; other < size; other++) s->gone[other] |= b->gone[other] != 0;
    }
    return alike && memcmp(s->gone, mine, size) == 0 ? HPC_OK : HPC_IN_PROGRESS;
}

/* ---- votes and data ---- */

static int take_turn(hpc_control *c) {
    if (pthread_mutex_trylock(&c->round_lock) == 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op,
                    "shrink: another thread is shrinking this context, or one with the same first context");
}

int hpc_control_vote(hpc_control *c, hpc_survivors *s) {
    int status = take_turn(c);
    if (status != HPC_OK) return status;
    do {
        round r = {.control = c, .s = s};
        status = run_round(&r, VOTE, NULL, 0);
        if (status == HPC_OK) status = judge(&r, s, VOTE);
        if (status == HPC_OK) status = check_dropped(c, s);
        free_round(&r);
    } while (status == HPC_IN_PROGRESS);
    pthread_mutex_unlock(&c->round_lock);
    return status;
}

int hpc_control_give(hpc_control *c, hpc_survivors *s, const void *data, size_t nbytes, hpc_reply *replies) {
    size_t start = sizeof(ballot) + (size_t)c->group->size;
    round r = {.control = c, .s = s};
    int status = take_turn(c);
    for (int rank = 0; rank < c->group->size; rank++) replies[rank] = (hpc_reply){.nbytes = 0};
    if (status != HPC_OK) return status;
    status = run_round(&r, GIVE, data, nbytes);
    if (status == HPC_OK) status = judge(&r, s, GIVE);
    for (int rank = 0; rank < c->group->size && status == HPC_OK; rank++)
        atomic_store_explicit(&c->gave[rank], !s->gone[rank], memory_order_relaxed);
    for (int rank = 0; rank < c->group->size && status == HPC_OK; rank++) {
        hpc_message *m = r.got[rank];
        if (m == NULL || s->gone[rank]) continue;
        if (m->total - start != nbytes) {
            status = hpc_fail(HPC_ERR_CONFIG, op, "shrink: rank %d gives %zu bytes and this rank %zu", name_of(s, rank),
                              m->total - start, nbytes);
            break;
        }
        memmove(m->data, m->data + start, nbytes);
        replies[rank] = (hpc_reply){.data = m->data, .nbytes = nbytes, .memory = m->data};
        m->data = NULL;
    }
    free_round(&r);
    if (status != HPC_OK) hpc_control_free_replies(c, replies);
    pthread_mutex_unlock(&c->round_lock);
    return status;
}

int hpc_control_gave(const hpc_control *c, int rank) {
    return atomic_load_explicit(&c->gave[rank], memory_order_relaxed);
}

void hpc_control_settle(hpc_control *c) {
    for (int rank = 0; rank < c->group->size; rank++) atomic_store_explicit(&c->gave[rank], 0, memory_order_relaxed);
}

/* ---- while the new group connects ---- */

/* Returns why rank i of the heir will not join, or NULL. A rank that has already linked to the heir shows its
 * departure there; ballots that it sent here may be for the next shrink. */
static const char *why_not(const hpc_control *c, int i) {
    int rank = c->heir_ranks[i];
    if (atomic_load_explicit(&c->heir->states[i], memory_order_acquire) != HPC_PEER_JOINING) return NULL;
    if (hpc_group_has_departed(c->group, rank)) return c->group->reasons[rank];
    for (const hpc_message *m = c->links[rank].ballots; m != NULL; m = m->next)
        if (m->sequence > c->heir_round) return "it could not join the new context and votes again";
    return NULL;
}

void hpc_survivors_look(hpc_control *c) {
    pthread_mutex_lock(&c->lock);
    for (int i = 0; c->heir != NULL && i < c->heir->size; i++) {
        const char *why = i == c->heir->rank ? NULL : why_not(c, i);
        if (why != NULL) hpc_group_depart(c->heir, i, HPC_PEER_FAILED, why);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Only this rank's connection may have failed, so it does not tell the others. */
void hpc_control_lose(hpc_control *c, int rank, const char *why) {
    int none = HPC_NO_DOUBT;
    if (!hpc_group_has_departed(c->group, rank))
        atomic_compare_exchange_strong(&c->links[rank].doubted, &none, HPC_DOUBT_LOCAL);
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, why);
    hpc_survivors_look(c); /* the service thread may be asleep for long */
}

void hpc_control_watch(hpc_control *c, hpc_group *heir, const int *ranks) {
    pthread_mutex_lock(&c->lock);
    c->heir = heir;
    c->heir_ranks = ranks;
    c->heir_round = c->round;
    pthread_mutex_unlock(&c->lock);
    hpc_survivors_look(c); /* reports departures and votes from before */
}
