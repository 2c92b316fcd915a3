/* The roll call of a collective: which ranks have come to it. In a tree a rank gets one batch from each child and one
 * from its parent, so it doesn't see which ranks elsewhere hold it up. Errors and hpcomm status need their names.
 *
 * A rank that has waited for some time (collective.c) asks: it sends its neighbours in the tree a HERE, with the set of
 * ranks that it knows to have come, and the set of ranks that are awake, which have asked or told. A rank that gets a
 * HERE adds the sets to its own, and from then on tells its neighbours too, also before it has come itself. A neighbour
 * is told only if a set has a rank that the neighbour neither told nor was told, and PAUSE_SECONDS after the last time.
 * So in a collective that ends soon no HERE is sent, and in a wait that lasts for hours each edge carries a few. Each
 * rank has its list at any time, for hpcomm status, and at its deadline. If a rank asked only then, the answer would
 * come too late.
 *
 * A rank that has completed the collective answers a HERE with the set of all ranks.
 *
 * A rank that is dead or stopped tells nothing, and ranks behind it in the tree cannot be heard. So a rank that has not
 * come is listed if it is awake, or if it is the first on its path that is not.
 *
 * Threads. The threads that run collectives enter, join, leave, ask and list; the service thread hears and tells. lock
 * guards sequence, entered, joined, left, here and awake. peers and copy belong to the service thread. Collectives are
 * numbered, and the roll is about the newest that this rank knows. A rank in collective n has completed n - 1, so all
 * ranks have come to n - 1. A HERE may thus be one collective ahead of this rank, but not more. */
#include "control/channel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"

static const double PAUSE_SECONDS = 5e-3; /* between two HEREs on a link */
static const double RETRY_SECONDS = 2e-3; /* until a neighbour whose socket was full is told again */

/* ---- sets of ranks ---- */

static int has(const uint64_t *set, int place) {
    return (int)(set[place / 64] >> place % 64 & 1);
}

static void add(uint64_t *set, int place) {
    set[place / 64] |= (uint64_t)1 << place % 64;
}

static void add_subtree(const hpc_rank_tree *t, uint64_t *set, int top) {
    for (int i = 0; i < t->count[top]; i++) add(set, t->place[top] + i);
}

/* ---- open ---- */

int hpc_roll_open(hpc_control *c) {
    hpc_roll *roll = &c->roll;
    int ranks[HPC_TREE_CHILDREN + 1], n = hpc_rank_tree_children(&c->tree, c->group->rank, ranks);
    if (c->group->rank > 0) ranks[n++] = c->tree.parent[c->group->rank];
    const size_t words = ((size_t)c->group->size + 63) / 64;
    uint64_t *sets = calloc(((size_t)n + 2) * 2 * words, sizeof *sets);
    if (sets == NULL) return HPC_ERR_MEMORY;
    roll->here = sets;
    roll->awake = sets + words;
    roll->copy = sets + 2 * words;
    for (int i = 0; i < n; i++)
        roll->peers[i] = (hpc_roll_peer){.rank = ranks[i], .knows = sets + ((size_t)i + 2) * 2 * words};
    roll->n_words = (int)words;
    roll->n_peers = n;
    atomic_store_explicit(&roll->open, 1, memory_order_release); /* the service thread may have a HERE already */
    return HPC_OK;
}

void hpc_roll_free(hpc_control *c) {
    free(c->roll.here);
}

/* ---- what this rank knows ---- */

/* The words of both sets. */
static size_t sets_bytes(const hpc_roll *roll) {
    return 2 * (size_t)roll->n_words * sizeof(uint64_t);
}

/* Makes the roll one of a newer collective. Call it with the lock. */
static void turn_to(hpc_roll *roll, uint64_t sequence) {
    if (roll->sequence >= sequence) return;
    roll->sequence = sequence;
    memset(roll->here, 0, sets_bytes(roll));
    atomic_store_explicit(&roll->asked, 0, memory_order_relaxed);
}

/* Adds the ranks whose data has come here. Call it with the lock. */
static void add_batches(hpc_control *c) {
    hpc_roll *roll = &c->roll;
    const int me = c->group->rank;
    if (roll->joined >= roll->sequence) add_subtree(&c->tree, roll->here, me);
    if (roll->entered >= roll->sequence) add(roll->here, c->tree.place[me]);
    for (int i = 0; i < roll->n_peers; i++) {
        const int rank = roll->peers[i].rank;
        if (rank != c->tree.parent[me] && hpc_message_find(c->links[rank].inbox, roll->sequence) != NULL)
            add_subtree(&c->tree, roll->here, rank);
    }
}

int hpc_roll_enter(hpc_control *c, uint64_t sequence) {
    hpc_roll *roll = &c->roll;
    pthread_mutex_lock(&c->lock);
    turn_to(roll, sequence);
    roll->entered = sequence;
    const int asked = atomic_load_explicit(&roll->asked, memory_order_relaxed);
    pthread_mutex_unlock(&c->lock);
    return asked;
}

void hpc_roll_join(hpc_control *c, uint64_t sequence) {
    pthread_mutex_lock(&c->lock);
    c->roll.joined = sequence;
    pthread_mutex_unlock(&c->lock);
}

void hpc_roll_leave(hpc_control *c, uint64_t sequence) {
    hpc_roll *roll = &c->roll;
    pthread_mutex_lock(&c->lock);
    roll->left = sequence;
    if (roll->sequence == sequence) atomic_store_explicit(&roll->asked, 0, memory_order_relaxed);
    pthread_mutex_unlock(&c->lock);
}

void hpc_roll_ask(hpc_control *c, uint64_t sequence) {
    hpc_roll *roll = &c->roll;
    pthread_mutex_lock(&c->lock);
    if (roll->sequence == sequence) atomic_store_explicit(&roll->asked, 1, memory_order_relaxed);
    pthread_mutex_unlock(&c->lock);
}

/* Returns whether a rank that has not come is listed: it is awake, or the first on the path from here that is not. */
static int is_listed(const hpc_control *c, int rank) {
    const hpc_rank_tree *t = &c->tree;
    const int before = hpc_rank_tree_next(t, rank, c->group->rank);
    return has(c->roll.awake, t->place[rank]) || before == c->group->rank || has(c->roll.awake, t->place[before]);
}

int hpc_roll_missing(hpc_control *c, uint64_t sequence, int settled, int *ranks) {
    hpc_roll *roll = &c->roll;
    int n = 0;
    pthread_mutex_lock(&c->lock);
    const int all = roll->sequence > sequence; /* some rank is in a later collective */
    if (!all) add_batches(c);
    for (int r = 0; r < c->group->size; r++) {
        if (r == c->group->rank) continue;
        /* A rank that left owing nothing has come. */
        const int left = atomic_load_explicit(&c->group->states[r], memory_order_acquire) == HPC_PEER_LEFT;
        if (left ? hpc_link_owes(c, r, sequence)
                 : !all && !has(roll->here, c->tree.place[r]) && (!settled || is_listed(c, r)))
            ranks[n++] = r;
    }
    pthread_mutex_unlock(&c->lock);
    return n;
}

int hpc_roll_lacks(hpc_control *c, uint64_t sequence) {
    const hpc_roll *roll = &c->roll;
    const hpc_rank_tree *t = &c->tree;
    int lacks = 0;
    pthread_mutex_lock(&c->lock);
    if (roll->sequence == sequence) add_batches(c);
    for (int r = 0; r < t->size && roll->sequence == sequence && !lacks; r++)
        lacks = !has(roll->here, t->place[r]) &&
                (has(roll->awake, t->place[r]) || (r > 0 && has(roll->awake, t->place[t->parent[r]])));
    pthread_mutex_unlock(&c->lock);
    return lacks;
}

/* ---- the service thread ---- */

/* Makes the peers' members about this collective. */
static void turn_peers_to(hpc_roll *roll, uint64_t sequence) {
    if (roll->told == sequence) return;
    roll->told = sequence;
    for (int i = 0; i < roll->n_peers; i++) {
        memset(roll->peers[i].knows, 0, sets_bytes(roll));
        roll->peers[i].due = 0;
    }
}

/* Returns whether all ranks are in the set. */
static int is_full(const uint64_t *set, int size) {
    for (int i = 0; i < size; i++)
        if (!has(set, i)) return 0;
    return 1;
}

/* Tells a peer that all ranks have come to a collective that this rank has completed. Without room in the socket it
 * tells nothing: the peer will get the data. */
static void tell_all_came(hpc_control *c, const hpc_roll_peer *peer, uint64_t sequence) {
    hpc_roll *roll = &c->roll;
    const size_t nbytes = sets_bytes(roll);
    if (nbytes > sizeof(hpc_shown_rank)) return;
    memset(roll->copy, 0xff, nbytes / 2);
    memset(roll->copy + roll->n_words, 0, nbytes / 2);
    hpc_link_tell_part(c, peer->rank, HPC_MESH_HERE, sequence, roll->copy, nbytes, 0, nbytes);
}

/* Adds the sets of a HERE. Returns 0 if the sender cannot be believed. */
static int take_sets(hpc_control *c, hpc_roll_peer *peer, const hpc_message *m) {
    hpc_roll *roll = &c->roll;
    const uint64_t *sets = (const void *)m->data;
    if (m->got != sets_bytes(roll)) return 0;
    pthread_mutex_lock(&c->lock);
    const int sound = m->sequence <= roll->entered + 1, old = m->sequence <= roll->left;
    if (sound && !old) turn_to(roll, m->sequence);
    const int use = sound && !old && m->sequence == roll->sequence;
    if (use) atomic_store_explicit(&roll->asked, 1, memory_order_relaxed);
    for (int i = 0; i < 2 * roll->n_words && use; i++) roll->here[i] |= sets[i]; /* awake lies behind here */
    pthread_mutex_unlock(&c->lock);
    if (use) turn_peers_to(roll, m->sequence);
    for (int i = 0; i < 2 * roll->n_words && use; i++) peer->knows[i] |= sets[i];
    if (old && !is_full(sets, c->group->size)) tell_all_came(c, peer, m->sequence);
    return sound;
}

int hpc_roll_hear(hpc_control *c) {
    hpc_roll *roll = &c->roll;
    if (!atomic_load_explicit(&roll->open, memory_order_acquire)) return -1; /* they are read later */
    for (int i = 0; i < roll->n_peers; i++) {
        hpc_link *l = &c->links[roll->peers[i].rank];
        if (l->here == NULL) continue;
        const int sound = take_sets(c, &roll->peers[i], l->here);
        hpc_message_free(l->here);
        l->here = NULL;
        if (!sound) return roll->peers[i].rank;
        hpc_bell_ring(c->group->bell); /* a wait may show other ranks now */
    }
    return -1;
}

/* Returns whether the peer knows less than copy. */
static int is_news(const hpc_roll *roll, const hpc_roll_peer *peer) {
    for (int i = 0; i < 2 * roll->n_words; i++)
        if (roll->copy[i] & ~peer->knows[i]) return 1;
    return 0;
}

double hpc_roll_tell(hpc_control *c, double now) {
    hpc_roll *roll = &c->roll;
    double next = INFINITY;
    if (!atomic_load_explicit(&roll->open, memory_order_acquire)) return INFINITY;
    const size_t nbytes = sets_bytes(roll);
    if (!atomic_load_explicit(&roll->asked, memory_order_relaxed) || nbytes > sizeof(hpc_shown_rank)) return INFINITY;
    pthread_mutex_lock(&c->lock);
    const uint64_t sequence = roll->sequence;
    const int asked = atomic_load_explicit(&roll->asked, memory_order_relaxed);
    add_batches(c);
    if (asked) add(roll->awake, c->tree.place[c->group->rank]);
    memcpy(roll->copy, roll->here, nbytes);
    pthread_mutex_unlock(&c->lock);
    turn_peers_to(roll, sequence);
    for (int i = 0; i < roll->n_peers && asked; i++) {
        hpc_roll_peer *peer = &roll->peers[i];
        if (!is_news(roll, peer) || hpc_group_has_departed(c->group, peer->rank)) continue;
        if (peer->due <= now) {
            const int status =
                hpc_link_tell_part(c, peer->rank, HPC_MESH_HERE, sequence, roll->copy, nbytes, 0, nbytes);
            if (status == HPC_ERR_PEER) continue;
            peer->due = now + (status == HPC_OK ? PAUSE_SECONDS : RETRY_SECONDS);
            if (status == HPC_OK)
                for (int k = 0; k < 2 * roll->n_words; k++) peer->knows[k] |= roll->copy[k];
            if (status == HPC_OK) continue;
        }
        if (peer->due < next) next = peer->due;
    }
    return next;
}
