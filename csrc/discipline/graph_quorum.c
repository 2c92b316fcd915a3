/* NOTIFY-ACK that goes on without stragglers: a fold on a graph is made when a quorum of the in-neighbours' updates is
 * there and the others have had their time.
 *
 * Under NOTIFY-ACK neighbours read an update where its rank has it, so one who never reads stops all. Here each
 * in-neighbour has one slot at the owner: a version, then the update. It is written by the sender alone, between an
 * answer and the next signal that something is in it, and read by the owner's core alone, between that signal and its
 * answer. So nothing is overwritten while it is read, nothing is torn, and who stands still keeps one slot of his own
 * memory to himself and nothing else.
 *
 * Pushes have *versions*, which grow by one as long as nobody is late: the fold of a rank's push of version n takes of
 * each in-neighbour an update of version n or newer. An older one comes too late: it is answered at once, left out, and
 * counted at both ends. The answer says how many updates of this sender were used, and which version was folded last.
 * So the sender knows what became of each of its pushes:
 *   sent       when its slot there was free: used, or too late
 *   not sent   the slot was not free until the push's own memory was needed for the next one, or the answer has said
 *              that its version has been folded: dropped, and nothing travels for it
 *
 * Who is late. When a fold has its quorum it waits for those of the rest who are expected: they are a version or two
 * behind, so that they may bring this one soon, and have not let a fold wait in vain since they last brought anything.
 * It waits for as long as they usually take (RFC 6298: the mean and four mean deviations), or as the user says. A fold
 * that goes on without one counts as if it had come just then: from time to time that costs nothing, but if more than a
 * third of all folds are cut short the time grows until fewer are. In the same way a push that needs the memory of an
 * earlier one waits for neighbours who have not taken that, twice as long, as they may be waiting for others
 * themselves, and not for one who let a push wait in vain and has answered none since.
 *
 * A straggler catches up: its next version is the newest that a quorum of its in-neighbours has pushed, in any key.
 * They may have folded that already, and then it is late once more; but it never waits for what they may not push. Who
 * has no in-neighbours goes one past what its out-neighbours have folded. A version is of all keys and cores, and
 * chosen when a key is pushed again.
 *
 * When a state is loaded all go on from the version of the furthest, beyond which nobody has pushed. So all that was
 * sent before comes too late, be it in a slot or on its way. Its senders wait for the answer: else their next push
 * would have to wait for their next call.
 *
 * A fold of version n may be made when a quorum of the in-neighbours has brought n or newer, be it to an earlier fold.
 * Who has closed is left out, and the quorum is one of the rest: a straggler may end its steps alone, after all others.
 *
 * Nobody waits in a circle, if all ranks push all keys in the same order, or before they wait. Of all ranks that wait
 * look at one that is the least far: in version n, and there in the first key. A quorum of its in-neighbours has pushed
 * the key before, or one from which it has chosen n, for n or newer. They push all keys of a version before they go to
 * another, so they push this one too; they are not less far, so they have. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

static const double LEAST = 0.01; /* seconds of grace, when it is learned: a scheduler's slice */
static const double FIRST = 1;    /* before enough has been measured (RFC 6298, section 2.1) */
enum { NEAR = 2 };                /* versions behind: who comes back finds an old update in his slot */

static int me(const hpc_exchange *ex) {
    return ex->context->group.rank;
}

static void add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Updates that rank has sent to this rank's share. What they wrote is behind the signal. */
static uint64_t sent_by(const hpc_exchange *ex, const hpc_share *share, int rank) {
    int signal = hpc_signal_sent(ex, share->siblings[rank]);
    return atomic_load_explicit(hpc_own_signal(ex->window, signal), memory_order_acquire);
}

int hpc_graph_has(const hpc_exchange *ex, const hpc_share *share, int rank) {
    return sent_by(ex, share, rank) > atomic_load_explicit(&share->intake->taken[rank], memory_order_acquire);
}

/* ---- the owner: answers ---- */

static uint64_t taken_of(const hpc_intake *in, int rank) {
    return atomic_load_explicit(&in->taken[rank], memory_order_relaxed);
}

static size_t told_at(const hpc_exchange *ex, int rank, int share) {
    return ex->places[rank].told + (size_t)share * sizeof(hpc_told);
}

/* To rank, of its update that is in the slot: after this it may write the next one. */
static void answer(hpc_core *core, const hpc_share *share, int rank, uint64_t folded) {
    hpc_exchange *ex = core->exchange;
    hpc_told *told = &share->intake->told[rank];
    int s = (int)(share - ex->shares);
    *told = (hpc_told){folded, share->used[rank]};
    hpc_engine_answer_with(core, rank, told, sizeof *told, told_at(ex, rank, s), hpc_signal_applied(ex, s),
                           taken_of(share->intake, rank) + 1);
}

static void count_taken(hpc_intake *in, int rank) {
    atomic_store_explicit(&in->taken[rank], taken_of(in, rank) + 1, memory_order_release);
}

/* ---- the owner: what is there ---- */

static int is_pushed(const hpc_share *share) {
    return atomic_load_explicit(&share->clock[share->owner], memory_order_relaxed) > share->version;
}

/* Of the next fold, when its push is there: the worker wrote it before the event. */
static uint64_t next_version(const hpc_exchange *ex, const hpc_share *share) {
    return ex->keys[share->key].numbers[share->version % (uint64_t)ex->depth];
}

static uint64_t newest_of(const hpc_share *share, int rank) {
    return atomic_load_explicit(&share->clock[rank], memory_order_relaxed);
}

/* How far a quorum of the in-neighbours is, for the worker's choice of its next version. */
static void publish_progress(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(ex, share);
    int needs = ex->quorum < w->row->n_in - 1 ? ex->quorum : w->row->n_in - 1;
    uint64_t reached = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        uint64_t version = newest_of(share, w->inputs[e].rank);
        int as_far = 0;
        if (w->inputs[e].rank == share->owner || version <= reached) continue;
        for (int i = 0; i < w->row->n_in; i++)
            as_far += w->inputs[i].rank != share->owner && newest_of(share, w->inputs[i].rank) >= version;
        if (as_far >= needs) reached = version;
    }
    atomic_store_explicit(&share->intake->reached, reached, memory_order_relaxed);
}

/* In-neighbours: who has brought the version or a newer one; who may still bring it, and who is expected to soon. */
typedef struct survey {
    int brought, open, expected;
} survey;

/* Of those who have not closed. */
static int quorum_of(const hpc_exchange *ex, const survey *found) {
    int most = found->brought + found->open;
    return ex->quorum < most ? ex->quorum : most;
}

/* Whether rank's update is in its slot. There is room for one. */
static int is_present(hpc_exchange *ex, const hpc_share *share, int rank) {
    uint64_t sent = sent_by(ex, share, rank), taken = taken_of(share->intake, rank);
    if (sent - taken <= 1) return sent != taken;
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why, "rank %d: rank %d says that it has sent %llu updates of key %.64s; %llu were answered",
             me(ex), rank, (unsigned long long)sent, ex->plan->keys[share->key].name, (unsigned long long)taken);
    hpc_exchange_fail(ex, HPC_ERR_TRANSPORT, why);
    return 0;
}

/* Looks at every in-neighbour's slot, and answers what is too late for a fold of version least. */
static survey look(hpc_core *core, hpc_share *share, uint64_t least) {
    hpc_exchange *ex = core->exchange;
    hpc_intake *in = share->intake;
    const hpc_work *w = hpc_first_work(ex, share);
    survey found = {0, 0, 0};
    int news = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        int r = w->inputs[e].rank;
        if (r == share->owner) continue;
        int closed = hpc_closed_signal(ex, r) != 0; /* first: what it sent before has come */
        in->present[r] = (char)is_present(ex, share, r);
        if (in->present[r]) {
            const hpc_mark *mark = (const void *)w->inputs[e].slots;
            uint64_t version = atomic_load_explicit(&mark->version, memory_order_relaxed);
            news |= version > newest_of(share, r);
            atomic_store_explicit(&share->clock[r], version, memory_order_relaxed);
            core->absent[r] = 0;
            if (version < least) {
                add(&ex->peer_late[r], 1);
                answer(core, share, r, least - 1);
                count_taken(in, r);
                in->present[r] = 0;
            }
        }
        int brought = newest_of(share, r) >= least;
        found.brought += brought;
        found.open += !brought && !closed;
        found.expected += !brought && !closed && !core->absent[r] && newest_of(share, r) + NEAR >= least;
    }
    if (news) publish_progress(ex, share);
    return found;
}

/* ---- the owner: when ---- */

/* How long the rest took, or was given, after the quorum. */
static void learn(hpc_intake *in, double took) {
    hpc_usual_learn(&in->lag, took);
    double usual = hpc_usual_limit(&in->lag);
    if (in->lag.measured >= HPC_USUAL_ENOUGH)
        atomic_store_explicit(&in->grace, usual > LEAST ? usual : LEAST, memory_order_relaxed);
}

static int is_time(hpc_core *core, hpc_share *share) {
    const hpc_exchange *ex = core->exchange;
    hpc_intake *in = share->intake;
    if (!is_pushed(share)) {
        look(core, share, in->folded + 1);
        return 0;
    }
    uint64_t version = next_version(ex, share);
    survey found = look(core, share, version);
    if (found.brought < quorum_of(ex, &found)) return 0;
    int complete = found.open == 0;
    if (!complete && found.expected == 0) return 1; /* which says nothing of how long it takes */
    if (complete && in->since == 0) {
        if (ex->grace < 0) learn(in, 0);
        return 1;
    }
    double now = hpc_now();
    if (in->since == 0) {
        in->since = now;
        hpc_bell_ring(ex->context->group.bell); /* whoever is about to sleep must not sleep for longer */
    }
    double took = now - in->since, due = in->since + atomic_load_explicit(&in->grace, memory_order_relaxed);
    if (!complete && now < due) {
        if (due < core->due) core->due = due;
        return 0;
    }
    if (ex->grace < 0) learn(in, took);
    for (int r = 0; r < ex->context->group.size && !complete; r++) core->absent[r] |= newest_of(share, r) < version;
    return 1;
}

/* ---- the owner: folds ---- */

static hpc_inputs inputs_of(hpc_core *core, const hpc_share *share, const hpc_work *w) {
    const hpc_exchange *ex = core->exchange;
    double all = 0, present = 0;
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        all += w->weights[e];
        if (in->rank == share->owner)
            core->bases[n] = in->slots + (size_t)(share->version % (uint64_t)ex->depth) * in->stride;
        else if (share->intake->present[in->rank])
            core->bases[n] = in->slots + sizeof(hpc_mark);
        else
            continue;
        present += w->weights[e];
        core->base_weights[n++] = w->weights[e];
    }
    for (int i = 0; i < n && present != all; i++) core->base_weights[i] *= all / present;
    return (hpc_inputs){core->bases, core->base_weights, n, w->row->codec_in};
}

/* Oneself last: who has its own answer may close and leave, and then answers nobody any more. What was taken is counted
 * after that: whoever sees neither the answer nor an input knows that none comes. */
static void end_fold(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    hpc_intake *in = share->intake;
    const hpc_work *w = hpc_first_work(ex, share);
    int whole = 0, missing = 0;
    in->since = 0;
    in->folded = next_version(ex, share);
    for (int e = 0; e < w->row->n_in; e++) {
        int r = w->inputs[e].rank;
        if (r == share->owner) continue;
        missing += !in->present[r];
        if (!in->present[r]) continue;
        whole++;
        share->used[r]++;
        hpc_graph_count_received(ex, share, r);
        answer(core, share, r, in->folded);
    }
    hpc_graph_count(core, whole);
    atomic_fetch_add_explicit(&core->missing, (uint64_t)missing, memory_order_relaxed);
    share->version++;
    hpc_engine_answer(core, share->owner, hpc_signal_applied(ex, (int)(share - ex->shares)), share->version);
    for (int e = 0; e < w->row->n_in; e++)
        if (w->inputs[e].rank != share->owner && in->present[w->inputs[e].rank]) count_taken(in, w->inputs[e].rank);
}

/* A row's step is its version: a straggler that has caught up is where the others are. */
static int fold(hpc_core *core, hpc_share *share) {
    const hpc_exchange *ex = core->exchange;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const hpc_inputs inputs = inputs_of(core, share, w);
        w->step = (uint64_t)((int64_t)next_version(ex, share) - 1 + ex->keys[share->key].ahead);
        int failed = hpc_engine_fold(core, w, &inputs);
        if (failed) return failed;
    }
    end_fold(core, share);
    return 0;
}

int hpc_graph_quorum_work(hpc_core *core, hpc_share *share) {
    int n = 0, waited = share->intake->since > 0;
    while (is_time(core, share) && fold(core, share) == 0) n++;
    return n + (!waited && share->intake->since > 0); /* a wait for nothing but events has ended */
}

/* ---- the worker: what became of pushes ---- */

/* What the owner of a share has told so far, if it is news. */
static const hpc_told *news_of(const hpc_exchange *ex, int s, uint64_t *answered) {
    *answered = atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_applied(ex, s)), memory_order_acquire);
    if (*answered == ex->shares[s].outlet->answered) return NULL;
    return (const void *)(hpc_own_part(ex) + told_at(ex, me(ex), s));
}

/* The newest push to a share that was left out, when its owner has told that the one on its way is. */
static uint64_t lost_with(const hpc_outlet *out) {
    return out->under_way > out->lost ? out->under_way : out->lost; /* later ones may have been given up before */
}

/* One update at most is on its way, so there is one answer at most, and it counts at most one as used. */
static int refuse_answer(hpc_exchange *ex, int s, uint64_t answered, uint64_t used) {
    const hpc_share *share = &ex->shares[s];
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why,
             "rank %d: rank %d says that it has answered %llu updates of key %.64s and used %llu; %llu were sent, and "
             "%llu used before",
             me(ex), share->owner, (unsigned long long)answered, ex->plan->keys[share->key].name,
             (unsigned long long)used, (unsigned long long)share->outlet->sent,
             (unsigned long long)share->outlet->used);
    hpc_exchange_fail(ex, HPC_ERR_TRANSPORT, why);
    return hpc_exchange_check(ex, "push");
}

static int hear(hpc_exchange *ex, int s) {
    hpc_outlet *out = ex->shares[s].outlet;
    uint64_t answered;
    const hpc_told *told = news_of(ex, s, &answered);
    if (told == NULL) return HPC_OK;
    if (answered != out->sent || told->used - out->used > 1) return refuse_answer(ex, s, answered, told->used);
    if (told->used == out->used) {
        out->dropped++;
        out->lost = lost_with(out);
    }
    out->used = told->used;
    out->told = told->folded;
    out->answered = answered;
    ex->given_up[ex->shares[s].owner] = 0;
    return HPC_OK;
}

uint64_t hpc_graph_dropped(const hpc_exchange *ex, int rank, uint64_t *at) {
    uint64_t dropped = 0, answered;
    *at = 0;
    for (int s = 0; s < ex->n_shares && hpc_leaves_out(ex); s++) {
        const hpc_outlet *out = ex->shares[s].outlet;
        if (out == NULL || (rank >= 0 && ex->shares[s].owner != rank)) continue;
        const hpc_told *told = news_of(ex, s, &answered);
        uint64_t here = out->dropped + (told != NULL && told->used == out->used);
        uint64_t folded = told != NULL ? told->folded : out->told;
        dropped += here;
        if (here > 0 && folded > *at) *at = folded;
    }
    return dropped;
}

/* ---- the worker: sends ---- */

/* HPC_ERR_PEER is told by every wait, or the neighbour has left, and folds nothing any more. */
static int unless_gone(hpc_group *group, int status) {
    if (status != HPC_ERR_PEER) return status;
    hpc_blame_settle(&group->blame, NULL, 0);
    return HPC_OK;
}

/* Push number n into the slot at the share's owner. What travels is copied: its memory is free at once, however slowly
 * the neighbour takes it. */
static int send_update(hpc_exchange *ex, hpc_share *share, uint64_t n) {
    const hpc_pushed *k = &ex->keys[share->key];
    hpc_outlet *out = share->outlet;
    hpc_lane *lane = ex->in_lanes[share->core];
    int status = HPC_OK, owner = share->owner;
    size_t item = hpc_codec_bytes(k->codec), staged = out->staged, header = ex->push_slot[share->rows[0]];
    const char *slot = hpc_own_part(ex) + ex->places[me(ex)].gradients + k->gradient +
                       (n - 1) % (uint64_t)ex->depth * ex->gradient_bytes;
    for (int i = 0; i < share->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &ex->plan->rows[share->rows[i]];
        const char *src = slot + row->offset * item;
        size_t nbytes = (size_t)row->count * item;
        if (staged != HPC_NOWHERE) {
            src = memcpy(hpc_own_part(ex) + staged, src, nbytes);
            staged += hpc_row_bytes(row);
        }
        status = hpc_put(lane, ex->window, owner, src, nbytes, ex->push_slot[share->rows[i]] + sizeof(hpc_mark));
    }
    out->version = k->numbers[(n - 1) % (uint64_t)ex->depth];
    if (status == HPC_OK)
        status = hpc_put_signal(lane, ex->window, owner, &out->version, sizeof out->version, header,
                                hpc_signal_sent(ex, out->mine), out->sent + 1);
    if (status != HPC_OK) return unless_gone(&ex->context->group, status);
    out->sent++;
    out->under_way = n;
    hpc_count_bytes(ex, ex->peer_sent, owner, share->pushed);
    return HPC_OK;
}

static void note_pending(hpc_exchange *ex, const hpc_share *share) {
    hpc_outlet *out = share->outlet;
    int pending = out->decided < ex->keys[share->key].pushes;
    ex->n_pending += pending - out->pending;
    out->pending = pending;
}

/* Pushes that may still be in time, oldest first. */
static int send_pending(hpc_exchange *ex, int s) {
    hpc_share *share = &ex->shares[s];
    hpc_outlet *out = share->outlet;
    const hpc_pushed *k = &ex->keys[share->key];
    int status = hear(ex, s);
    if (hpc_closed_signal(ex, share->owner) != 0) {
        out->dropped += k->pushes - out->decided;
        out->decided = k->pushes;
    }
    while (out->decided < k->pushes && out->sent == out->answered && status == HPC_OK) {
        uint64_t n = out->decided + 1;
        if (k->numbers[(n - 1) % (uint64_t)ex->depth] <= out->told) {
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

int hpc_graph_send_key(hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++)
        if (ex->shares[k->shares[i]].outlet != NULL) status = send_pending(ex, k->shares[i]);
    return status;
}

int hpc_graph_send(hpc_exchange *ex) {
    int status = HPC_OK;
    for (int key = 0; key < ex->plan->n_keys && ex->n_pending > 0 && status == HPC_OK; key++)
        status = hpc_graph_send_key(ex, key);
    return status;
}

static void drop_until(hpc_exchange *ex, const hpc_share *share, uint64_t n) {
    hpc_outlet *out = share->outlet;
    if (out->decided >= n) return;
    out->dropped += n - out->decided;
    out->decided = out->lost = n;
    note_pending(ex, share);
}

void hpc_graph_drop(hpc_exchange *ex, int key, uint64_t n, int all) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (share->outlet == NULL || share->outlet->decided >= n || !(all || ex->given_up[share->owner])) continue;
        drop_until(ex, share, n);
        ex->given_up[share->owner] = 1;
    }
}

/* ---- a state is loaded ---- */

static void level(hpc_exchange *ex, uint64_t newest) {
    for (int key = 0; key < ex->plan->n_keys; key++) {
        hpc_pushed *k = &ex->keys[key];
        k->ahead -= (int64_t)(newest - ex->number);
        k->number = newest;
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &ex->shares[k->shares[i]];
            if (share->intake != NULL) atomic_store_explicit(&share->intake->folded, newest, memory_order_release);
            if (share->outlet != NULL) drop_until(ex, share, k->pushes);
        }
    }
    ex->number = newest;
    hpc_bell_ring(ex->context->group.bell); /* its cores answer what is too late now */
}

static int is_unanswered(const hpc_exchange *ex, int s) {
    uint64_t answered;
    const hpc_outlet *out = ex->shares[s].outlet;
    return out != NULL && out->sent != out->answered && news_of(ex, s, &answered) == NULL;
}

static int all_answered(void *arg) {
    const hpc_exchange *ex = arg;
    if (ex->inline_progress) hpc_context_work(ex->context);
    for (int s = 0; s < ex->n_shares; s++)
        if (is_unanswered(ex, s)) return atomic_load_explicit(&ex->failed, memory_order_relaxed) != HPC_OK;
    return 1;
}

static int who_answers(void *arg, int *ranks) {
    const hpc_exchange *ex = arg;
    int n = 0;
    for (int r = 0; r < ex->context->group.size; r++) {
        int awaited = 0;
        for (int s = 0; s < ex->n_shares; s++) awaited |= ex->shares[s].owner == r && is_unanswered(ex, s);
        if (awaited) ranks[n++] = r;
    }
    return n;
}

int hpc_graph_level(hpc_exchange *ex, const char *op, double deadline) {
    int size = ex->context->group.size;
    uint64_t *numbers = malloc((size_t)size * sizeof *numbers), newest = 0;
    int status = numbers == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size) : HPC_OK;
    status = hpc_context_agree(ex->context, op, status, deadline);
    if (status == HPC_OK)
        status = hpc_allgather(ex->context, &ex->number, numbers, sizeof *numbers, hpc_left(deadline));
    for (int r = 0; r < size && status == HPC_OK; r++)
        if (numbers[r] > newest) newest = numbers[r];
    free(numbers);
    if (status != HPC_OK) return status;
    level(ex, newest);
    const hpc_wait wait = {op, all_answered, who_answers, ex};
    return hpc_wait_for(&ex->context->group, &wait, hpc_left(deadline));
}

/* ---- the worker: when ---- */

/* Of a key's out-neighbours: the newest version that any of them has folded. */
static uint64_t told_of(const hpc_exchange *ex, const hpc_pushed *k) {
    uint64_t told = 0, answered;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_outlet *out = ex->shares[k->shares[i]].outlet;
        if (out == NULL) continue;
        const hpc_told *news = news_of(ex, k->shares[i], &answered);
        uint64_t folded = news != NULL ? news->folded : out->told;
        if (folded > told) told = folded;
    }
    return told;
}

uint64_t hpc_graph_next_version(const hpc_exchange *ex) {
    uint64_t version = ex->number + 1;
    for (int key = 0; key < ex->plan->n_keys; key++) {
        const hpc_pushed *k = &ex->keys[key];
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &ex->shares[k->shares[i]];
            if (share->intake == NULL) continue;
            uint64_t reached = atomic_load_explicit(&share->intake->reached, memory_order_relaxed);
            if (hpc_first_work(ex, share)->row->n_in == 1) reached = told_of(ex, k) + 1;
            if (reached > version) version = reached;
        }
    }
    return version;
}

int hpc_graph_late(const hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    uint64_t answered;
    int n = 0;
    for (int i = 0; i < k->n_shares && hpc_leaves_out(ex); i++) {
        const hpc_outlet *out = ex->shares[k->shares[i]].outlet;
        if (out == NULL) continue;
        const hpc_told *news = news_of(ex, k->shares[i], &answered);
        uint64_t lost = news != NULL && news->used == out->used ? lost_with(out) : out->lost;
        n += k->pushes > 0 && lost == k->pushes;
    }
    return n;
}

/* Of this rank's own shares of a key: the newest version that is folded, and the longest grace. */
typedef struct extremes {
    uint64_t folded;
    double grace;
} extremes;

static extremes extremes_of(const hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    extremes most = {0, 0};
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_intake *in = ex->shares[k->shares[i]].intake;
        if (in == NULL) continue;
        uint64_t folded = atomic_load_explicit(&in->folded, memory_order_relaxed);
        double grace = atomic_load_explicit(&in->grace, memory_order_relaxed);
        if (folded > most.folded) most.folded = folded;
        if (grace > most.grace) most.grace = grace;
    }
    return most;
}

uint64_t hpc_graph_folded(const hpc_exchange *ex, int key) {
    return extremes_of(ex, key).folded;
}

double hpc_graph_patience(const hpc_exchange *ex, int key) {
    return 2 * extremes_of(ex, key).grace;
}

/* ---- open ---- */

int hpc_graph_quorum_of(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++)
        if (f->quorum < f->plan->rows[i].n_in - 1) return f->quorum;
    return 0;
}

static int open_intake(hpc_exchange *ex, hpc_share *share) {
    size_t size = (size_t)ex->context->group.size;
    hpc_intake *in = share->intake = calloc(1, sizeof *in);
    if (in == NULL) return HPC_ERR_MEMORY;
    in->taken = calloc(size, sizeof *in->taken);
    in->present = calloc(size, 1);
    in->told = calloc(size, sizeof *in->told);
    atomic_init(&in->grace, ex->grace < 0 ? FIRST : ex->grace);
    return in->taken == NULL || in->present == NULL || in->told == NULL ? HPC_ERR_MEMORY : HPC_OK;
}

/* The share of the same key and core that this rank owns. */
static int own_sibling(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_pushed *k = &ex->keys[share->key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *other = &ex->shares[k->shares[i]];
        if (other->owner == me(ex) && other->core == share->core) return k->shares[i];
    }
    return -1;
}

int hpc_graph_quorum_open(hpc_exchange *ex, const char *op) {
    ex->given_up = calloc((size_t)ex->context->group.size, 1);
    if (ex->given_up == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for ranks", op);
    for (int s = 0; s < ex->n_shares && hpc_leaves_out(ex); s++) {
        hpc_share *share = &ex->shares[s];
        int status = HPC_OK;
        if (share->owner == me(ex)) {
            status = open_intake(ex, share);
        } else if (hpc_feeds_share(ex, share, me(ex))) {
            share->outlet = calloc(1, sizeof *share->outlet);
            if (share->outlet == NULL)
                status = HPC_ERR_MEMORY;
            else
                *share->outlet = (hpc_outlet){.mine = own_sibling(ex, share), .staged = HPC_NOWHERE};
        }
        if (status != HPC_OK) return hpc_fail(status, op, "%s: no memory for a share", op);
    }
    return HPC_OK;
}

void hpc_graph_quorum_free(hpc_share *share) {
    if (share->intake != NULL) {
        free(share->intake->taken);
        free(share->intake->present);
        free(share->intake->told);
    }
    free(share->intake);
    free(share->outlet);
}
