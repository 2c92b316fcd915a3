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

#include "discipline/discipline.h"
#include "discipline/graph.h"

static const double LEAST = 0.01; /* seconds of grace, when it is learned: a scheduler's slice */
static const double FIRST = 1;    /* before enough has been measured (RFC 6298, section 2.1) */
enum { NEAR = 2 };                /* versions behind: who comes back finds an old update in his slot */

static int me(const hpc_exchange *ex) {
    return ex->context->group.rank;
}

/* Before an update in its slot: which version it is of. */
typedef struct slot_head {
    _Alignas(64) _Atomic uint64_t version;
} slot_head;

/* What the owner of a share answers to who has sent it an update; where that is has told_at. */
typedef struct told {
    uint64_t folded, used; /* the version that was folded last; how many of the sender's updates were */
} told;

/* Of this rank's own shares: what folds wait for. The core's, but for what is atomic. */
typedef struct intake {
    hpc_clocks clocks;        /* clock: the newest version that came, or of this rank itself its pushes */
    _Atomic uint64_t folded;  /* the version that was folded last */
    _Atomic uint64_t *taken;  /* by rank: updates that were folded, or dropped, and answered */
    char *present;            /* by rank: its update is there and in time */
    told *told;               /* by rank: the last answer, which a put may still read */
    double since;             /* when the next fold had its quorum; 0: it has not */
    hpc_usual lag;            /* from then until the others are there */
    _Atomic double grace;     /* how long they are waited for */
    _Atomic uint64_t reached; /* the newest that a quorum has brought */
} intake;

/* Of an out-neighbour's share: what this rank has sent there. The worker's. */
typedef struct outlet {
    int mine;                     /* this rank's own share of the same key and core */
    uint64_t decided;             /* pushes up to this one were sent, or dropped */
    uint64_t sent, answered;      /* how many of them; one at most is on its way */
    uint64_t used, dropped, told; /* folded there; left out; the version that was folded there last */
    uint64_t under_way, lost;     /* the push that was sent last; the one that was left out last */
    uint64_t version;             /* of what was sent last; a put may still read it */
    size_t staged;                /* where that lies in this rank's part, if it travels; else HPC_NOWHERE */
    int pending;                  /* decided is behind */
} outlet;

/* Of a key. */
typedef struct versions_of_key {
    uint64_t number;                  /* the version that its last push is for */
    uint64_t numbers[HPC_PLAN_DEPTH]; /* those of the pushes in the slots */
    double waits_since;               /* when neighbours began to be waited for to take a push; 0: not */
} versions_of_key;

/* The exchange's own. */
typedef struct graph_quorum {
    versions_of_key *keys;
    uint64_t number; /* the version that keys are pushed for */
    char *given_up;  /* by rank: it let a push wait in vain, and has answered none since */
    int n_pending;   /* outlets that are */
} graph_quorum;

/* A core's own. */
typedef struct watch {
    hpc_own_shares own;
    char *absent; /* by rank: it let a fold wait in vain, and has sent nothing since */
} watch;

static graph_quorum *quorum_of(const hpc_exchange *ex) {
    return ex->own;
}

static versions_of_key *key_of(const hpc_exchange *ex, int key) {
    return &quorum_of(ex)->keys[key];
}

/* NULL for a share of another rank. */
static intake *intake_of(const hpc_exchange *ex, const hpc_share *share) {
    return share->owner == me(ex) ? share->own : NULL;
}

/* NULL for a share of this rank's own, and for one that it does not push. */
static outlet *outlet_of(const hpc_exchange *ex, const hpc_share *share) {
    return share->owner == me(ex) ? NULL : share->own;
}

/* Updates that rank has sent to this rank's share. What they wrote is behind the signal. */
static uint64_t sent_by(const hpc_exchange *ex, const hpc_share *share, int rank) {
    const intake *in = share->own;
    int signal = hpc_signal_second(ex, in->clocks.siblings[rank]);
    return atomic_load_explicit(hpc_own_signal(ex->window, signal), memory_order_acquire);
}

static int has_sent(const hpc_exchange *ex, const hpc_share *share, int rank) {
    const intake *in = share->own;
    return sent_by(ex, share, rank) > atomic_load_explicit(&in->taken[rank], memory_order_acquire);
}

/* ---- the owner: answers ---- */

static uint64_t taken_of(const intake *in, int rank) {
    return atomic_load_explicit(&in->taken[rank], memory_order_relaxed);
}

static size_t told_at(const hpc_exchange *ex, int rank, int share) {
    return ex->layout.places[rank].own + (size_t)share * sizeof(told);
}

/* To rank, of its update that is in the slot: after this it may write the next one. */
static void answer(hpc_core *core, const hpc_share *share, int rank, uint64_t folded) {
    hpc_exchange *ex = core->exchange;
    intake *in = share->own;
    told *said = &in->told[rank];
    int s = (int)(share - ex->layout.shares);
    *said = (told){folded, in->clocks.used[rank]};
    hpc_share_answer_with(core, rank, said, sizeof *said, told_at(ex, rank, s), hpc_signal_applied(ex, s),
                          taken_of(in, rank) + 1);
}

static void count_taken(intake *in, int rank) {
    atomic_store_explicit(&in->taken[rank], taken_of(in, rank) + 1, memory_order_release);
}

/* ---- the owner: what is there ---- */

static int is_pushed(const hpc_share *share) {
    const intake *in = share->own;
    return hpc_clock_of(&in->clocks, share->owner) > share->version;
}

/* Of the next fold, when its push is there: the worker wrote it before the event. */
static uint64_t next_version(const hpc_exchange *ex, const hpc_share *share) {
    return key_of(ex, share->key)->numbers[share->version % (uint64_t)ex->layout.depth];
}

static uint64_t newest_of(const hpc_share *share, int rank) {
    const intake *in = share->own;
    return hpc_clock_of(&in->clocks, rank);
}

/* How far a quorum of the in-neighbours is, for the worker's choice of its next version. */
static void publish_progress(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_work *w = hpc_first_work(ex, share);
    intake *in = share->own;
    int needs = ex->asked.quorum < w->row->n_in - 1 ? ex->asked.quorum : w->row->n_in - 1;
    uint64_t reached = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        uint64_t version = newest_of(share, w->inputs[e].rank);
        int as_far = 0;
        if (w->inputs[e].rank == share->owner || version <= reached) continue;
        for (int i = 0; i < w->row->n_in; i++)
            as_far += w->inputs[i].rank != share->owner && newest_of(share, w->inputs[i].rank) >= version;
        if (as_far >= needs) reached = version;
    }
    atomic_store_explicit(&in->reached, reached, memory_order_relaxed);
}

/* In-neighbours: who has brought the version or a newer one; who may still bring it, and who is expected to soon. */
typedef struct survey {
    int brought, open, expected;
} survey;

/* Of those who have not closed. */
static int needed_of(const hpc_exchange *ex, const survey *found) {
    int most = found->brought + found->open;
    return ex->asked.quorum < most ? ex->asked.quorum : most;
}

/* Whether rank's update is in its slot. There is room for one. */
static int is_present(hpc_exchange *ex, const hpc_share *share, int rank) {
    uint64_t sent = sent_by(ex, share, rank), taken = taken_of(share->own, rank);
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
    intake *in = share->own;
    const hpc_work *w = hpc_first_work(ex, share);
    survey found = {0, 0, 0};
    char *absent = ((watch *)core->own)->absent;
    int news = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        int r = w->inputs[e].rank;
        if (r == share->owner) continue;
        int closed = hpc_closed_signal(ex, r) != 0; /* first: what it sent before has come */
        in->present[r] = (char)is_present(ex, share, r);
        if (in->present[r]) {
            const slot_head *its = (const void *)w->inputs[e].slots;
            uint64_t version = atomic_load_explicit(&its->version, memory_order_relaxed);
            news |= version > newest_of(share, r);
            atomic_store_explicit(&in->clocks.clock[r], version, memory_order_relaxed);
            absent[r] = 0;
            if (version < least) {
                atomic_fetch_add_explicit(&ex->peers.late[r], 1, memory_order_relaxed);
                answer(core, share, r, least - 1);
                count_taken(in, r);
                in->present[r] = 0;
            }
        }
        int brought = newest_of(share, r) >= least;
        found.brought += brought;
        found.open += !brought && !closed;
        found.expected += !brought && !closed && !absent[r] && newest_of(share, r) + NEAR >= least;
    }
    if (news) publish_progress(ex, share);
    return found;
}

/* ---- the owner: when ---- */

/* How long the rest took, or was given, after the quorum. */
static void learn(intake *in, double took) {
    hpc_usual_learn(&in->lag, took);
    double usual = hpc_usual_limit(&in->lag);
    if (in->lag.measured >= HPC_USUAL_ENOUGH)
        atomic_store_explicit(&in->grace, usual > LEAST ? usual : LEAST, memory_order_relaxed);
}

static int is_time(hpc_core *core, hpc_share *share) {
    const hpc_exchange *ex = core->exchange;
    intake *in = share->own;
    if (!is_pushed(share)) {
        look(core, share, in->folded + 1);
        return 0;
    }
    uint64_t version = next_version(ex, share);
    survey found = look(core, share, version);
    if (found.brought < needed_of(ex, &found)) return 0;
    int complete = found.open == 0;
    if (!complete && found.expected == 0) return 1; /* which says nothing of how long it takes */
    if (complete && in->since == 0) {
        if (ex->asked.grace < 0) learn(in, 0);
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
    if (ex->asked.grace < 0) learn(in, took);
    char *absent = ((watch *)core->own)->absent;
    for (int r = 0; r < ex->context->group.size && !complete; r++) absent[r] |= newest_of(share, r) < version;
    return 1;
}

/* ---- the owner: folds ---- */

static hpc_inputs inputs_of(hpc_core *core, const hpc_share *share, const hpc_work *w) {
    const hpc_exchange *ex = core->exchange;
    const intake *its = share->own;
    double all = 0, present = 0;
    int n = 0;
    for (int e = 0; e < w->row->n_in; e++) {
        const hpc_input *in = &w->inputs[e];
        all += w->weights[e];
        if (in->rank == share->owner)
            core->bases[n] = in->slots + (size_t)(share->version % (uint64_t)ex->layout.depth) * in->stride;
        else if (its->present[in->rank])
            core->bases[n] = in->slots + sizeof(slot_head);
        else
            continue;
        present += w->weights[e];
        core->base_weights[n++] = w->weights[e];
    }
    for (int i = 0; i < n && present != all; i++) core->base_weights[i] *= all / present;
    return (hpc_inputs){.bases = core->bases,
                        .weights = core->base_weights,
                        .n = n,
                        .codec = w->codec,
                        .args_of = ex->args_of,
                        .slot = share->version};
}

/* Oneself last: who has its own answer may close and leave, and then answers nobody any more. What was taken is counted
 * after that: whoever sees neither the answer nor an input knows that none comes. */
static void end_fold(hpc_core *core, hpc_share *share) {
    hpc_exchange *ex = core->exchange;
    intake *in = share->own;
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
        in->clocks.used[r]++;
        hpc_share_count_received(ex, share, r);
        answer(core, share, r, in->folded);
    }
    hpc_share_count_fold(core, whole);
    hpc_tally_add(&core->tally.missing, (uint64_t)missing);
    share->version++;
    hpc_share_answer(core, share->owner, hpc_signal_applied(ex, (int)(share - ex->layout.shares)), share->version);
    for (int e = 0; e < w->row->n_in; e++)
        if (w->inputs[e].rank != share->owner && in->present[w->inputs[e].rank]) count_taken(in, w->inputs[e].rank);
}

/* A row's step is its version: a straggler that has caught up is where the others are. */
static int fold(hpc_core *core, hpc_share *share) {
    const hpc_exchange *ex = core->exchange;
    for (int i = 0; i < share->n_rows; i++) {
        hpc_work *w = &ex->work[ex->work_of[share->rows[i]]];
        const hpc_inputs inputs = inputs_of(core, share, w);
        w->step = (uint64_t)((int64_t)next_version(ex, share) - 1 + hpc_phases_of(ex)->keys[share->key].ahead);
        int failed = hpc_row_work(core, w, &inputs);
        if (failed) return failed;
    }
    end_fold(core, share);
    return 0;
}

static int work_for(hpc_core *core, hpc_share *share) {
    const intake *in = share->own;
    int n = 0, waited = in->since > 0;
    while (is_time(core, share) && fold(core, share) == 0) n++;
    return n + (!waited && in->since > 0); /* a wait for nothing but events has ended */
}

static int work(hpc_core *core) {
    const watch *its = core->own;
    int n = 0;
    core->due = INFINITY;
    for (int i = 0; i < its->own.n; i++) n += work_for(core, its->own.shares[i]);
    return n;
}

/* This rank's own push; neighbours' come by signals. */
static int share_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    intake *in = share->own;
    (void)slot;
    return rank == share->owner && hpc_clocks_share_came(core->exchange, share, &in->clocks, rank);
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    intake *in = w->share->own;
    int rank = w->inputs[input].rank;
    (void)slot;
    return rank == w->share->owner && hpc_clocks_row_came(core->exchange, w->share, &in->clocks, rank);
}

/* ---- the worker: what became of pushes ---- */

/* What the owner of a share has told so far, if it is news. */
static const told *news_of(const hpc_exchange *ex, int s, uint64_t *answered) {
    *answered = atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_applied(ex, s)), memory_order_acquire);
    if (*answered == outlet_of(ex, &ex->layout.shares[s])->answered) return NULL;
    return (const void *)(hpc_own_part(ex) + told_at(ex, me(ex), s));
}

/* The newest push to a share that was left out, when its owner has told that the one on its way is. */
static uint64_t lost_with(const outlet *out) {
    return out->under_way > out->lost ? out->under_way : out->lost; /* later ones may have been given up before */
}

/* One update at most is on its way, so there is one answer at most, and it counts at most one as used. */
static int refuse_answer(hpc_exchange *ex, int s, uint64_t answered, uint64_t used) {
    const hpc_share *share = &ex->layout.shares[s];
    char why[HPC_FAILURE_BYTES];
    snprintf(why, sizeof why,
             "rank %d: rank %d says that it has answered %llu updates of key %.64s and used %llu; %llu were sent, and "
             "%llu used before",
             me(ex), share->owner, (unsigned long long)answered, ex->plan->keys[share->key].name,
             (unsigned long long)used, (unsigned long long)outlet_of(ex, share)->sent,
             (unsigned long long)outlet_of(ex, share)->used);
    hpc_exchange_fail(ex, HPC_ERR_TRANSPORT, why);
    return hpc_exchange_check(ex, "push");
}

static int hear(hpc_exchange *ex, int s) {
    outlet *out = outlet_of(ex, &ex->layout.shares[s]);
    uint64_t answered;
    const told *news = news_of(ex, s, &answered);
    if (news == NULL) return HPC_OK;
    if (answered != out->sent || news->used - out->used > 1) return refuse_answer(ex, s, answered, news->used);
    if (news->used == out->used) {
        out->dropped++;
        out->lost = lost_with(out);
    }
    out->used = news->used;
    out->told = news->folded;
    out->answered = answered;
    quorum_of(ex)->given_up[ex->layout.shares[s].owner] = 0;
    return HPC_OK;
}

static uint64_t dropped_by(const hpc_exchange *ex, int rank, uint64_t *at) {
    uint64_t dropped = 0, answered;
    *at = 0;
    for (int s = 0; s < ex->layout.n_shares; s++) {
        const outlet *out = outlet_of(ex, &ex->layout.shares[s]);
        if (out == NULL || (rank >= 0 && ex->layout.shares[s].owner != rank)) continue;
        const told *news = news_of(ex, s, &answered);
        uint64_t here = out->dropped + (news != NULL && news->used == out->used);
        uint64_t folded = news != NULL ? news->folded : out->told;
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
    outlet *out = outlet_of(ex, share);
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
        status = hpc_put(lane, ex->window, owner, src, nbytes, ex->push_slot[share->rows[i]] + sizeof(slot_head));
    }
    out->version = key_of(ex, share->key)->numbers[(n - 1) % (uint64_t)ex->layout.depth];
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
    outlet *out = outlet_of(ex, share);
    int pending = out->decided < ex->keys[share->key].pushes;
    quorum_of(ex)->n_pending += pending - out->pending;
    out->pending = pending;
}

/* Pushes that may still be in time, oldest first. */
static int send_pending(hpc_exchange *ex, int s) {
    hpc_share *share = &ex->layout.shares[s];
    outlet *out = outlet_of(ex, share);
    const hpc_pushed *k = &ex->keys[share->key];
    int status = hear(ex, s);
    if (hpc_closed_signal(ex, share->owner) != 0) {
        out->dropped += k->pushes - out->decided;
        out->decided = k->pushes;
    }
    while (out->decided < k->pushes && out->sent == out->answered && status == HPC_OK) {
        uint64_t n = out->decided + 1;
        if (key_of(ex, share->key)->numbers[(n - 1) % (uint64_t)ex->layout.depth] <= out->told) {
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

static int send_key(hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++)
        if (outlet_of(ex, &ex->layout.shares[k->shares[i]]) != NULL) status = send_pending(ex, k->shares[i]);
    return status;
}

static int send_all(hpc_exchange *ex) {
    int status = HPC_OK;
    for (int key = 0; key < ex->plan->n_keys && quorum_of(ex)->n_pending > 0 && status == HPC_OK; key++)
        status = send_key(ex, key);
    return status;
}

static void drop_until(hpc_exchange *ex, const hpc_share *share, uint64_t n) {
    outlet *out = outlet_of(ex, share);
    if (out->decided >= n) return;
    out->dropped += n - out->decided;
    out->decided = out->lost = n;
    note_pending(ex, share);
}

static void give_up_on(hpc_exchange *ex, int key, uint64_t n, int all) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &ex->layout.shares[k->shares[i]];
        if (outlet_of(ex, share) == NULL || outlet_of(ex, share)->decided >= n ||
            !(all || quorum_of(ex)->given_up[share->owner]))
            continue;
        drop_until(ex, share, n);
        quorum_of(ex)->given_up[share->owner] = 1;
    }
}

/* ---- a state is loaded ---- */

static void level(hpc_exchange *ex, uint64_t newest) {
    hpc_phases *g = ex->graph;
    for (int key = 0; key < ex->plan->n_keys; key++) {
        const hpc_pushed *k = &ex->keys[key];
        g->keys[key].ahead -= (int64_t)(newest - quorum_of(ex)->number);
        key_of(ex, key)->number = newest;
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &ex->layout.shares[k->shares[i]];
            intake *in = intake_of(ex, share);
            if (in != NULL) atomic_store_explicit(&in->folded, newest, memory_order_release);
            if (outlet_of(ex, share) != NULL) drop_until(ex, share, k->pushes);
        }
    }
    quorum_of(ex)->number = newest;
    hpc_bell_ring(ex->context->group.bell); /* its cores answer what is too late now */
}

static int is_unanswered(const hpc_exchange *ex, int s) {
    uint64_t answered;
    const outlet *out = outlet_of(ex, &ex->layout.shares[s]);
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

static int level_all(hpc_exchange *ex, const char *op, double deadline) {
    int size = ex->context->group.size;
    uint64_t *numbers = malloc((size_t)size * sizeof *numbers), newest = 0;
    int status = numbers == NULL ? hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size) : HPC_OK;
    status = hpc_context_agree(ex->context, op, status, deadline);
    if (status == HPC_OK)
        status = hpc_allgather(ex->context, &quorum_of(ex)->number, numbers, sizeof *numbers, hpc_left(deadline));
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
static uint64_t newest_told(const hpc_exchange *ex, const hpc_pushed *k) {
    uint64_t most = 0, answered;
    for (int i = 0; i < k->n_shares; i++) {
        const outlet *out = outlet_of(ex, &ex->layout.shares[k->shares[i]]);
        if (out == NULL) continue;
        const told *news = news_of(ex, k->shares[i], &answered);
        uint64_t folded = news != NULL ? news->folded : out->told;
        if (folded > most) most = folded;
    }
    return most;
}

static uint64_t choose_next(const hpc_exchange *ex) {
    uint64_t version = quorum_of(ex)->number + 1;
    for (int key = 0; key < ex->plan->n_keys; key++) {
        const hpc_pushed *k = &ex->keys[key];
        for (int i = 0; i < k->n_shares; i++) {
            const hpc_share *share = &ex->layout.shares[k->shares[i]];
            const intake *in = intake_of(ex, share);
            if (in == NULL) continue;
            uint64_t reached = atomic_load_explicit(&in->reached, memory_order_relaxed);
            if (hpc_first_work(ex, share)->row->n_in == 1) reached = newest_told(ex, k) + 1;
            if (reached > version) version = reached;
        }
    }
    return version;
}

static int late(const hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    uint64_t answered;
    int n = 0;
    for (int i = 0; i < k->n_shares; i++) {
        const outlet *out = outlet_of(ex, &ex->layout.shares[k->shares[i]]);
        if (out == NULL) continue;
        const told *news = news_of(ex, k->shares[i], &answered);
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
        const intake *in = intake_of(ex, &ex->layout.shares[k->shares[i]]);
        if (in == NULL) continue;
        uint64_t folded = atomic_load_explicit(&in->folded, memory_order_relaxed);
        double grace = atomic_load_explicit(&in->grace, memory_order_relaxed);
        if (folded > most.folded) most.folded = folded;
        if (grace > most.grace) most.grace = grace;
    }
    return most;
}

static uint64_t version(const hpc_exchange *ex, int key) {
    return extremes_of(ex, key).folded;
}

static double patience_of(const hpc_exchange *ex, int key) {
    return 2 * extremes_of(ex, key).grace;
}

/* ---- open ---- */

static int open_intake(const hpc_exchange *ex, hpc_share *share, const char *op) {
    size_t size = (size_t)ex->context->group.size;
    intake *in = share->own;
    in->taken = calloc(size, sizeof *in->taken);
    in->present = calloc(size, 1);
    in->told = calloc(size, sizeof *in->told);
    atomic_init(&in->grace, ex->asked.grace < 0 ? FIRST : ex->asked.grace);
    if (in->taken == NULL || in->present == NULL || in->told == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    return hpc_clocks_open(ex, share, op, &in->clocks);
}

/* The share of the same key and core that this rank owns. */
static int own_sibling(const hpc_exchange *ex, const hpc_share *share) {
    const hpc_pushed *k = &ex->keys[share->key];
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *other = &ex->layout.shares[k->shares[i]];
        if (other->owner == me(ex) && other->core == share->core) return k->shares[i];
    }
    return -1;
}

/* What travels is copied first: as much of this rank's part as all rows of the share take. */
static void open_outlet(hpc_exchange *ex, const hpc_share *share, outlet *out) {
    size_t nbytes = 0;
    *out = (outlet){.mine = own_sibling(ex, share), .staged = HPC_NOWHERE};
    for (int i = 0; i < share->n_rows; i++) nbytes += hpc_row_bytes(&ex->plan->rows[share->rows[i]]);
    if (!hpc_is_mapped(ex, share->owner)) out->staged = hpc_layout_take(&ex->layout.places[me(ex)], nbytes);
}

static int open_shares(hpc_exchange *ex, const char *op) {
    for (int s = 0; s < ex->layout.n_shares; s++) {
        hpc_share *share = &ex->layout.shares[s];
        int owns = share->owner == me(ex), status = HPC_OK;
        if (!owns && !hpc_feeds_share(ex, share, me(ex))) continue;
        share->own = calloc(1, owns ? sizeof(intake) : sizeof(outlet));
        if (share->own == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
        if (owns)
            status = open_intake(ex, share, op);
        else
            open_outlet(ex, share, share->own);
        if (status != HPC_OK) return status;
    }
    return HPC_OK;
}

static int open_all(hpc_exchange *ex, const char *op) {
    for (int c = 0; c < ex->n_own_cores; c++) {
        watch *its = ex->cores[c].own = calloc(1, sizeof *its);
        if (its != NULL) {
            its->own.shares = hpc_own_shares_of(ex, &ex->cores[c], &its->own.n);
            its->absent = calloc((size_t)ex->context->group.size, 1);
        }
        if (its == NULL || its->own.shares == NULL || its->absent == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    }
    return hpc_share_open_counts(ex, 1, op);
}

static int prepare(hpc_exchange *ex, const hpc_exchange_config *f, const char *op) {
    int status = hpc_graph_prepare(ex, f, op);
    if (status != HPC_OK) return status;
    graph_quorum *q = ex->own = calloc(1, sizeof *q);
    if (q != NULL) {
        q->keys = calloc((size_t)ex->plan->n_keys, sizeof *q->keys);
        q->given_up = calloc((size_t)ex->context->group.size, 1);
    }
    ex->asked.quorum = f->quorum;
    return q != NULL && q->keys != NULL && q->given_up != NULL
               ? HPC_OK
               : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a quorum of %d", op, f->quorum);
}

static void free_share(const hpc_exchange *ex, hpc_share *share) {
    intake *in = intake_of(ex, share);
    if (in != NULL) {
        hpc_clocks_free(&in->clocks);
        free(in->taken);
        free(in->present);
        free(in->told);
    }
    free(share->own);
    share->own = NULL;
}

static void free_all(hpc_exchange *ex) {
    graph_quorum *q = ex->own;
    for (int s = 0; s < ex->layout.n_shares; s++) free_share(ex, &ex->layout.shares[s]);
    for (int c = 0; ex->cores != NULL && c < ex->n_own_cores; c++) {
        watch *its = ex->cores[c].own;
        if (its == NULL) continue;
        free(its->own.shares);
        free(its->absent);
        free(its);
        ex->cores[c].own = NULL;
    }
    if (q != NULL) {
        free(q->keys);
        free(q->given_up);
    }
    free(q);
    ex->own = NULL;
    hpc_graph_free(ex);
}

static size_t part(const hpc_exchange *ex, int rank) {
    (void)rank;
    return (size_t)ex->layout.n_shares * sizeof(told);
}

/* ---- what is asked for ---- */

/* A quorum of all in-neighbours is none. */
static int suits(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows && f->quorum > 0 && f->graph != NULL; i++)
        if (f->quorum < f->plan->rows[i].n_in - 1) return 1;
    return 0;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    if (f->consistency != HPC_NOTIFY_ACK || f->late != HPC_LATE_DROP || f->graph->n_phases > 1)
        return hpc_fail(HPC_ERR_UNSUPPORTED, "exchange",
                        "exchange: quorum is %d under %s with late %d, on a graph of %d phases; on a graph a "
                        "quorum needs NOTIFY_ACK, late 1 (drop) and one phase",
                        f->quorum, hpc_consistency_name(f->consistency), f->late, f->graph->n_phases);
    return hpc_graph_check_partial(f, "NOTIFY_ACK with a quorum", "exchange");
}

/* ---- the worker's waits ---- */

/* Until a push has been folded here, and for neighbours who have not taken it as long as they are given, which may be
 * longer than this call has. */
static int wait_taken(hpc_exchange *ex, int key, uint64_t ticket, hpc_limit *l, const char *op) {
    versions_of_key *of = key_of(ex, key);
    int status = send_all(ex);
    give_up_on(ex, key, ticket / 2, 0);
    if (status == HPC_OK && !hpc_ticket_is_done(ex, key, ticket))
        status = hpc_ticket_wait(ex, key, ticket, hpc_limit_left(ex, l), op);
    if (status == HPC_OK && !hpc_ticket_is_free(ex, key, ticket)) {
        double now = hpc_now(), left = hpc_limit_left(ex, l);
        if (of->waits_since == 0) of->waits_since = now;
        double given = of->waits_since + patience_of(ex, key) - now;
        int before = hpc_slice_waits(given < left);
        status = hpc_ticket_wait_slot(ex, key, ticket, given < left ? given > 0 ? given : 0 : left, op);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given <= left) {
            give_up_on(ex, key, ticket / 2, 1);
            status = HPC_OK;
        }
    }
    if (status == HPC_OK) of->waits_since = 0;
    return status;
}

static int wait_slot(hpc_exchange *ex, int key, hpc_limit *l, const char *op) {
    return wait_taken(ex, key, hpc_slot_ticket(ex, key), l, op);
}

/* The neighbours have taken the last push, and it has arrived; or they were given the time. */
static int finish(hpc_exchange *ex, int key, hpc_limit *l, const char *op) {
    const hpc_pushed *k = &ex->keys[key];
    int status = wait_taken(ex, key, 2 * k->pushes, l, op);
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) {
        const hpc_share *share = &ex->layout.shares[k->shares[i]];
        if (outlet_of(ex, share) == NULL) continue;
        double left = hpc_limit_left(ex, l), patience = patience_of(ex, key);
        int before = hpc_slice_waits(patience < left);
        status = hpc_flush(ex->in_lanes[share->core], ex->window, share->owner, patience < left ? patience : left);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && patience < left) status = HPC_OK;
        status = hpc_unless_left(ex, share->owner, status);
    }
    return status;
}

/* A key that is pushed again begins a step, after a look at what has come meanwhile. */
static void begin_push(hpc_exchange *ex, int key) {
    graph_quorum *q = quorum_of(ex);
    versions_of_key *of = key_of(ex, key);
    hpc_graph_begin_push(ex, key);
    hpc_group_progress(&ex->context->group);
    if (of->number == q->number) q->number = choose_next(ex);
    of->number = q->number;
    of->numbers[ex->keys[key].pushes % (uint64_t)ex->layout.depth] = of->number;
}

/* This rank's own; a neighbour's is sent when its slot is free. */
static int send_share(hpc_exchange *ex, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &ex->layout.shares[s];
    return outlet_of(ex, share) != NULL ? HPC_OK : hpc_graph_send_share(ex, s, slot, l);
}

static int has_read(const hpc_exchange *ex, int s, uint64_t ticket) {
    const hpc_share *share = &ex->layout.shares[s];
    const outlet *out = outlet_of(ex, share);
    if (share->owner == me(ex)) return hpc_share_has_answered(ex, s, ticket);
    return out == NULL || out->decided >= ticket / 2 || hpc_closed_signal(ex, share->owner) != 0;
}

static int is_free(const hpc_exchange *ex, int key, uint64_t ticket) {
    const hpc_pushed *k = &ex->keys[key];
    for (int i = 0; i < k->n_shares; i++)
        if (!has_read(ex, k->shares[i], ticket)) return 0;
    return 1;
}

static int missing(const hpc_exchange *ex, int s, uint64_t n, int *ranks, int found) {
    const hpc_share *share = &ex->layout.shares[s];
    (void)n;
    for (int r = 0; r < ex->context->group.size; r++)
        if (r != share->owner && hpc_feeds_share(ex, share, r) && hpc_closed_signal(ex, r) == 0 &&
            !has_sent(ex, share, r))
            found = hpc_add_rank(ranks, found, r);
    return found;
}

static int awaited(const hpc_exchange *ex, int key, uint64_t ticket, int for_slot, int *ranks) {
    return hpc_graph_awaited(ex, key, ticket, for_slot, ranks, has_read, missing);
}

static void restored(hpc_exchange *ex, const hpc_work *w, uint64_t step) {
    hpc_phases *g = ex->graph;
    g->keys[w->row->key].ahead = (int64_t)(step - quorum_of(ex)->number);
}

static void count(const hpc_exchange *ex, hpc_exchange_stats *stats) {
    stats->dropped = dropped_by(ex, -1, &stats->dropped_at);
}

static void count_peer(const hpc_exchange *ex, int rank, hpc_exchange_peer *peer) {
    uint64_t at;
    peer->dropped = dropped_by(ex, rank, &at);
}

const hpc_discipline hpc_discipline_graph_quorum = {
    .name = "a quorum on a graph",
    .suits = suits,
    .check = check,
    .puts = 1,
    .one_slot = 1,
    .head = sizeof(slot_head),
    .signals = 2,
    .part = part,
    .makes_params = hpc_graph_makes_params,
    .prepare = prepare,
    .open_shares = open_shares,
    .open = open_all,
    .free = free_all,
    .share_came = share_came,
    .row_came = row_came,
    .work = work,
    .wait_slot = wait_slot,
    .begin_push = begin_push,
    .send_share = send_share,
    .pushed = send_key,
    .is_free = is_free,
    .awaited = awaited,
    .progress = send_all,
    .finish = finish,
    .restored = restored,
    .before_publish = level_all,
    .late = late,
    .version = version,
    .count = count,
    .count_peer = count_peer,
};
