/* The worker's side of a quorum on a graph: what it has sent to its neighbours and what became of it (see
 * graph_quorum.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discipline/graph_quorum.h"

/* ---- the worker: what became of pushes ---- */

/* The last answer of the owner of a share; NULL if it is not new. */
static const hpc_told *news_of(const hpc_exchange *ex, int s, uint64_t *answered) {
    *answered = atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_applied(ex, s)), memory_order_acquire);
    if (*answered == hpc_outlet_of(ex, &ex->layout.shares[s])->answered) return NULL;
    return (const void *)(hpc_own_part(ex) + hpc_told_at(ex, hpc_me(ex), s));
}

/* The newest push to a share that was left out, given that its owner left out the one on its way. */
static uint64_t lost_with(const hpc_outlet *out) {
    return out->under_way > out->lost ? out->under_way : out->lost; /* later ones may have been given up before */
}

/* One update at most is on its way, so there is one answer at most, and it counts at most one as used. */
static int refuse_answer(hpc_exchange *ex, int s, uint64_t answered, uint64_t used) {
    const hpc_share *share = &ex->layout.shares[s];
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why,
             "rank %d: rank %d says that it has answered %llu updates of key %.64s and used %llu; %llu were sent, and "
             "%llu used before",
             hpc_me(ex), share->owner, (unsigned long long)answered, ex->plan->keys[share->key].name,
             (unsigned long long)used, (unsigned long long)hpc_outlet_of(ex, share)->sent,
             (unsigned long long)hpc_outlet_of(ex, share)->used);
    hpc_exchange_fail(ex, HPC_ERR_TRANSPORT, why);
    return hpc_exchange_check(ex, "push");
}

static int hear(hpc_exchange *ex, int s) {
    hpc_outlet *out = hpc_outlet_of(ex, &ex->layout.shares[s]);
    uint64_t answered;
    const hpc_told *news = news_of(ex, s, &answered);
    if (news == NULL) return HPC_OK;
    if (answered != out->sent || news->used - out->used > 1) return refuse_answer(ex, s, answered, news->used);
    if (news->used == out->used) {
        out->dropped++;
        out->lost = lost_with(out);
    }
    out->used = news->used;
    out->told = news->folded;
    out->answered = answered;
    hpc_quorum_of(ex)->given_up[ex->layout.shares[s].owner] = 0;
    return HPC_OK;
}

uint64_t hpc_outlet_dropped(const hpc_exchange *ex, int rank, uint64_t *at) {
    uint64_t dropped = 0, answered;
    *at = 0;
    for (int s = 0; s < ex->layout.n_shares; s++) {
        const hpc_outlet *out = hpc_outlet_of(ex, &ex->layout.shares[s]);
        if (out == NULL || (rank >= 0 && ex->layout.shares[s].owner != rank)) continue;
        const hpc_told *news = news_of(ex, s, &answered);
        uint64_t here = out->dropped + (news != NULL && news->used == out->used);
        uint64_t folded = news != NULL ? news->folded : out->told;
        dropped += here;
        if (here > 0 && folded > *at) *at = folded;
    }
    return dropped;
}

/* ---- the worker: sends ---- */

/* Ignore HPC_ERR_PEER: every wait reports a dead neighbour, and one that has left folds nothing more. */
static int unless_gone(hpc_group *group, int status) {
    if (status != HPC_ERR_PEER) return status;
    hpc_blame_settle(&group->blame, NULL, 0);
    return HPC_OK;
}

/* Sends push number n into the slot at the share's owner. An update that travels is copied first, so the push's memory
 * is free at once, however slowly the neighbour takes the update. */
static int send_update(hpc_exchange *ex, hpc_share *share, uint64_t n) {
    hpc_outlet *out = hpc_outlet_of(ex, share);
    hpc_lane *lane = ex->in_lanes[share->core];
    int status = HPC_OK, owner = share->owner;
    size_t staged = out->staged, header = ex->push_slot[share->rows[0]];
    const char *slot = hpc_slot_of_push(ex, share->key, n);
    for (int i = 0; i < share->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &ex->plan->rows[share->rows[i]];
        const char *src = slot + hpc_row_from(ex, row);
        size_t nbytes = hpc_input_bytes(row);
        if (staged != HPC_NOWHERE) {
            src = memcpy(hpc_own_part(ex) + staged, src, nbytes);
            staged += hpc_row_bytes(row);
        }
        status = hpc_put(lane, ex->window, owner, src, nbytes, ex->push_slot[share->rows[i]] + sizeof(hpc_slot_head));
    }
    out->version = hpc_versions_of(ex, share->key)->numbers[(n - 1) % (uint64_t)ex->layout.depth];
    if (status == HPC_OK)
        status = hpc_put_signal(lane, ex->window, owner, &out->version, sizeof out->version, header,
                                hpc_signal_second(ex, out->mine), out->sent + 1);
    if (status != HPC_OK) return unless_gone(&ex->context->group, status);
    out->sent++;
    out->under_way = n;
    hpc_count_bytes(ex, ex->peers.sent, owner, share->pushed);
    return HPC_OK;
}

static void note_pending(hpc_exchange *ex, const hpc_share *share) {
    hpc_outlet *out = hpc_outlet_of(ex, share);
    int pending = out->decided < ex->keys[share->key].pushes;
    hpc_quorum_of(ex)->n_pending += pending - out->pending;
    out->pending = pending;
}

/* Pushes that may still be in time, oldest first. */
static int send_pending(hpc_exchange *ex, int s) {
    hpc_share *share = &ex->layout.shares[s];
    hpc_outlet *out = hpc_outlet_of(ex, share);
    const hpc_pushed *k = &ex->keys[share->key];
    int status = hear(ex, s);
    if (hpc_closed_signal(ex, share->owner) != 0) {
        out->dropped += k->pushes - out->decided;
        out->decided = k->pushes;
    }
    while (out->decided < k->pushes && out->sent == out->answered && status == HPC_OK) {
        uint64_t n = out->decided + 1;
        if (hpc_versions_of(ex, share->key)->numbers[(n - 1) % (uint64_t)ex->layout.depth] <= out->told) {
            out->dropped++;
            out->lost = n;
        } else {
            status = send_update(ex, share, n);
        }
        out->decided = n;
    }
    note_pending(ex, share);
    return status;
}

int hpc_outlet_send_key(hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++)
        if (hpc_outlet_of(ex, &ex->layout.shares[k->shares[i]]) != NULL) status = send_pending(ex, k->shares[i]);
    return status;
}

int hpc_outlet_send_all(hpc_exchange *ex) {
    int status = HPC_OK;
    for (int key = 0; key < ex->plan->n_keys && hpc_quorum_of(ex)->n_pending > 0 && status == HPC_OK; key++)
        status = hpc_outlet_send_key(ex, key);
    return status;
}

static void drop_until(hpc_exchange *ex, const hpc_share *share, uint64_t n) {
    hpc_outlet *out = hpc_outlet_of(ex, share);
    if (out->decided >= n) return;
    out->dropped += n - out->decided;
    out->decided = out->lost = n;
    note_pending(ex, share);
}

void hpc_outlet_give_up(hpc_exchange *ex, int key, uint64_t n, int all) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->layout.shares[k->shares[i]];
        if (hpc_outlet_of(ex, share) == NULL || hpc_outlet_of(ex, share)->decided >= n ||
            !(all || hpc_quorum_of(ex)->given_up[share->owner]))
            continue;
        drop_until(ex, share, n);
        hpc_quorum_of(ex)->given_up[share->owner] = 1;
    }
}

/* ---- a state is loaded ---- */

static void level(hpc_exchange *ex, uint64_t newest) {
    hpc_phases *g = ex->graph;
    for (int key = 0; key < ex->plan->n_keys; key++) {
        const hpc_pushed *k = &ex->keys[key];
        g->keys[key].ahead -= (int64_t)(newest - hpc_quorum_of(ex)->number);
        hpc_versions_of(ex, key)->number = newest;
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &ex->layout.shares[k->shares[i]];
            hpc_intake *in = hpc_intake_of(ex, share);
            if (in != NULL) atomic_store_explicit(&in->folded, newest, memory_order_release);
            if (hpc_outlet_of(ex, share) != NULL) drop_until(ex, share, k->pushes);
        }
    }
    hpc_quorum_of(ex)->number = newest;
    hpc_bell_ring(ex->context->group.bell); /* its cores answer the updates that are late now */
}

static int is_unanswered(const hpc_exchange *ex, int s) {
    uint64_t answered;
    const hpc_outlet *out = hpc_outlet_of(ex, &ex->layout.shares[s]);
    return out != NULL && out->sent != out->answered && news_of(ex, s, &answered) == NULL;
}

static int all_answered(void *arg) {
    const hpc_exchange *ex = arg;
    if (ex->inline_progress) hpc_context_work(ex->context);
    for (int s = 0; s < ex->layout.n_shares; s++)
        if (is_unanswered(ex, s)) return atomic_load_explicit(&ex->fault.failed, memory_order_relaxed) != HPC_OK;
    return 1;
}

static int who_answers(void *arg, int *ranks) {
    const hpc_exchange *ex = arg;
    int n = 0;
    for (int r = 0; r < ex->context->group.size; r++) {
        int awaited = 0;
        for (int s = 0; s < ex->layout.n_shares; s++)
            awaited |= ex->layout.shares[s].owner == r && is_unanswered(ex, s);
        if (awaited) ranks[n++] = r;
    }
    return n;
}

int hpc_outlet_level(hpc_exchange *ex, const char *op, double deadline) {
    int size = ex->context->group.size;
    uint64_t *numbers = malloc((size_t)size * sizeof *numbers), newest = 0;
    int status = numbers == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size) : HPC_OK;
    status = hpc_context_agree(ex->context, op, status, deadline);
    if (status == HPC_OK)
        status = hpc_allgather(ex->context, &hpc_quorum_of(ex)->number, numbers, sizeof *numbers, hpc_left(deadline));
    for (int r = 0; r < size && status == HPC_OK; r++)
        if (numbers[r] > newest) newest = numbers[r];
    free(numbers);
    if (status != HPC_OK) return status;
    level(ex, newest);
    const hpc_wait wait = {op, all_answered, who_answers, ex};
    return hpc_wait_for(&ex->context->group, &wait, hpc_left(deadline));
}

/* ---- the worker: when ---- */

/* The newest version of a key that any out-neighbour has folded. */
static uint64_t newest_told(const hpc_exchange *ex, const hpc_pushed *k) {
    uint64_t most = 0, answered;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_outlet *out = hpc_outlet_of(ex, &ex->layout.shares[k->shares[i]]);
        if (out == NULL) continue;
        const hpc_told *news = news_of(ex, k->shares[i], &answered);
        uint64_t folded = news != NULL ? news->folded : out->told;
        if (folded > most) most = folded;
    }
    return most;
}

uint64_t hpc_outlet_next_version(const hpc_exchange *ex) {
    uint64_t version = hpc_quorum_of(ex)->number + 1;
    for (int key = 0; key < ex->plan->n_keys; key++) {
        const hpc_pushed *k = &ex->keys[key];
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &ex->layout.shares[k->shares[i]];
            const hpc_intake *in = hpc_intake_of(ex, share);
            if (in == NULL) continue;
            uint64_t reached = atomic_load_explicit(&in->reached, memory_order_relaxed);
            if (hpc_first_work(ex, share)->row->n_in == 1) reached = newest_told(ex, k) + 1;
            if (reached > version) version = reached;
        }
    }
    return version;
}

int hpc_outlet_late(const hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    uint64_t answered;
    int n = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_outlet *out = hpc_outlet_of(ex, &ex->layout.shares[k->shares[i]]);
        if (out == NULL) continue;
        const hpc_told *news = news_of(ex, k->shares[i], &answered);
        uint64_t lost = news != NULL && news->used == out->used ? lost_with(out) : out->lost;
        n += k->pushes > 0 && lost == k->pushes;
    }
    return n;
}

/* The newest version that this rank's own shares of a key have folded, and their longest grace. */
typedef struct extremes {
    uint64_t folded;
    double grace;
} extremes;

static extremes extremes_of(const hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    extremes most = {0, 0};
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_intake *in = hpc_intake_of(ex, &ex->layout.shares[k->shares[i]]);
        if (in == NULL) continue;
        uint64_t folded = atomic_load_explicit(&in->folded, memory_order_relaxed);
        double grace = atomic_load_explicit(&in->grace, memory_order_relaxed);
        if (folded > most.folded) most.folded = folded;
        if (grace > most.grace) most.grace = grace;
    }
    return most;
}

uint64_t hpc_outlet_version(const hpc_exchange *ex, int key) {
    return extremes_of(ex, key).folded;
}

double hpc_outlet_patience(const hpc_exchange *ex, int key) {
    return 2 * extremes_of(ex, key).grace;
}
