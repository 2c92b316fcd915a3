#include "engine/args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/owner/signals.h"
#include "engine/discipline.h"
#include "engine/worker/send.h"
#include "engine/layout/stages.h"
#include "engine/worker/waits.h"
#include "kernel/rule.h"

static double *place_of(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    return (double *)(void *)(hpc_own_part(sc) + hpc_args_at(sc, share, rank, slot));
}

int hpc_args_open(hpc_scheme *sc, const char *op) {
    size_t depth = (size_t)sc->layout.depth;
    int ranks = sc->own_args ? 1 : sc->context->group.size;
    for (int k = 0; k < sc->plan->n_keys; k++) {
        hpc_key_rule *its = &sc->rules[k];
        its->out = calloc(depth, sizeof *its->out);
        if (its->out == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
    }
    for (int s = 0; s < sc->layout.n_shares; s++) {
        const hpc_share *share = &sc->layout.shares[s];
        if (share->owner != sc->context->group.rank) continue;
        for (int r = 0; r < ranks; r++)
            for (int slot = 0; slot < sc->layout.depth; slot++)
                memcpy(place_of(sc, share, r, slot), sc->rules[share->key].rule.args, HPC_ARGS_BYTES);
    }
    sc->args_asked = calloc((size_t)sc->layout.n_cores + 1, sizeof *sc->args_asked);
    return sc->args_asked != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for cores", op);
}

void hpc_args_free(hpc_scheme *sc) {
    for (int k = 0; sc->rules != NULL && k < sc->plan->n_keys; k++) free(sc->rules[k].out);
    free(sc->rules);
    free(sc->args_asked);
}

double *hpc_args_fill_pull(const hpc_scheme *sc, int key, double factor) {
    double *args = memcpy(hpc_args_of_pull(sc, key), sc->rules[key].rule.args, HPC_ARGS_BYTES);
    args[0] = factor;
    return args;
}

/* ---- the core ---- */

/* Returns the signal that an owner's core sets when it has seen new arguments. */
static int signal_of(const hpc_scheme *sc, const hpc_share *share) {
    return sc->context->group.size + sc->layout.places[share->owner].first_core + share->core;
}

int hpc_args_came(hpc_core *core, hpc_share *share, int rank, int slot) {
    hpc_scheme *sc = core->scheme;
    if (sc->own_args || !hpc_feeds_share(sc, share, rank)) return 0;
    share->args_came = 1;
    hpc_args_note(share, rank, slot);
    if (hpc_feeds_share_by_stages(sc, share, rank))
        hpc_share_answer(core, rank, signal_of(sc, share), ++core->args_came[rank]);
    return 1;
}

const double *hpc_args_of(const hpc_scheme *sc, const hpc_share *share, int rank, int slot) {
    return place_of(sc, share, rank, slot);
}

/* Compares two arrays of arguments. Returns i + 1 for the first i where a[i] and b[i] differ; 0 if all are equal. */
static int first_other(const double *a, const double *b) {
    for (int i = 1; i < HPC_RULE_ARGS; i++)
        if (a[i] != b[i]) return i;
    return 0;
}

/* Returns whether pushes of rank reach a row through the input whose number is the argument only; if only is -1,
 * through any input. */
static int is_in(const hpc_scheme *sc, const hpc_work *w, int only, int rank) {
    if (only < 0) return hpc_row_is_fed_by(sc, w->index, rank);
    const hpc_input *in = &w->inputs[only];
    return in->forwarded < 0 ? in->rank == rank : hpc_row_is_fed_by(sc, in->forwarded, rank);
}

void hpc_args_differ(hpc_scheme *sc, const hpc_work *w, int arg, uint64_t push, const int ranks[2],
                     const double values[2]) {
    char name[HPC_ARG_NAME_BYTES], why[2 * HPC_FAILURE_BYTES]; /* a long rule name may cut the end off */
    hpc_rule_arg_name(w->rule->arg_names, arg, name, sizeof name);
    snprintf(
        why, sizeof why,
        "%s is %.9g on rank %d and %.9g on rank %d, for push %llu of key %.64s by rule %s: give the same %s on every "
        "rank",
        name, values[0], ranks[0], values[1], ranks[1], (unsigned long long)push, sc->plan->keys[w->row->key].name,
        w->rule->name, name);
    hpc_scheme_fail(sc, HPC_ERR_CONFIG, why);
}

int hpc_args_agree(hpc_core *core, const hpc_work *w, int slot, int only, uint64_t push) {
    hpc_scheme *sc = core->scheme;
    const int lowest = only < 0 ? w->args_of : w->inputs[only].lowest;
    const double *first = place_of(sc, w->share, lowest, slot);
    for (int r = 0; r < sc->context->group.size; r++) {
        if (!is_in(sc, w, only, r)) continue;
        const double *theirs = place_of(sc, w->share, r, slot);
        int a = first_other(theirs, first);
        if (a == 0) continue;
        hpc_args_differ(sc, w, a, push, (const int[]){r, lowest}, (const double[]){theirs[a], first[a]});
        return 0;
    }
    return 1;
}

/* ---- the worker ---- */

void hpc_args_begin_push(hpc_scheme *sc, int key, int slot) {
    hpc_key_rule *its = &sc->rules[key];
    hpc_pushed *k = &sc->keys[key];
    memcpy(its->out[slot], its->rule.args, HPC_ARGS_BYTES);
    k->brings = 1;
    k->at_args = 0;
    for (int i = 0; i < k->n_shares && sc->own_args; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        if (share->owner == sc->context->group.rank)
            memcpy(place_of(sc, share, share->owner, slot), its->out[slot], HPC_ARGS_BYTES);
    }
}

/* A wait until the owner of a share has seen this rank's new arguments. */
typedef struct seeing {
    hpc_scheme *sc;
    int signal, owner;
    uint64_t asked;
} seeing;

static int is_seen(void *arg) {
    const seeing *s = arg;
    hpc_worker_progress(s->sc);
    hpc_scheme_work(s->sc);
    return atomic_load_explicit(hpc_own_signal(s->sc->window, s->signal), memory_order_acquire) >= s->asked ||
           hpc_scheme_has_failed(s->sc) || hpc_closed_signal(s->sc, s->owner) == HPC_FREED;
}

static int who_sees(void *arg, int *ranks) {
    ranks[0] = ((const seeing *)arg)->owner;
    return 1;
}

/* Returns whether a share takes arguments from this rank. Relays take no arguments. Forwards take arguments only for a
 * user's own fold function. With HPC_SUMS only forwards take arguments, and send them on with their sums. */
static int takes_args(const hpc_scheme *sc, const hpc_share *share) {
    const int action = sc->plan->rows[share->rows[0]].action;
    if (sc->discipline->traits & HPC_SUMS)
        return action == HPC_FORWARD && hpc_feeds_share(sc, share, sc->context->group.rank);
    if (action == HPC_RELAY || (action == HPC_FORWARD && sc->rules[share->key].rule.fold == NULL)) return 0;
    return hpc_feeds_share(sc, share, sc->context->group.rank);
}

/* If owners answer all workers (HPC_ANSWERS_ALL), every answer shows that the old arguments' place is free. */
int hpc_args_check_change(const hpc_scheme *sc, int key, const char *op) {
    const hpc_pushed *k = &sc->keys[key];
    int me = sc->context->group.rank;
    if (!sc->layout.stages.many || sc->layout.depth > 1 || sc->discipline->traits & HPC_ANSWERS_ALL) return HPC_OK;
    for (int i = 0; i < k->n_shares; i++) {
        const hpc_share *share = &sc->layout.shares[k->shares[i]];
        for (int r = 0; r < share->n_rows && takes_args(sc, share); r++) {
            int row = share->rows[r];
            if (!hpc_row_is_fed_by(sc, row, me) || hpc_row_reaches(sc, row, me)) continue;
            if (hpc_row_has_input(&sc->plan->rows[row], me)) continue; /* the row answers this rank */
            return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                            "%s: row %d of key %s applies the updates of rank %d, which gets nothing of it, so new "
                            "arguments need a plan of depth 2; this one has 1",
                            op, row, sc->plan->keys[key].name, me);
        }
    }
    return HPC_OK;
}

static int core_of(const hpc_scheme *sc, const hpc_share *share) {
    return sc->layout.places[share->owner].first_core + share->core;
}

/* Sends the arguments for a push in slot to the owner of one share. */
static int send_args(hpc_scheme *sc, int s, int slot, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    int me = sc->context->group.rank;
    int status = hpc_send_event(sc, share->core, share->owner, sc->rules[share->key].out[slot], HPC_ARGS_BYTES,
                                hpc_args_at(sc, share, me, slot), hpc_imm(HPC_OP_ARGS, slot, s), l);
    if (status == HPC_OK && hpc_feeds_share_by_stages(sc, share, me)) sc->args_asked[core_of(sc, share)]++;
    return status;
}

/* Waits until the owner has seen the arguments, if this rank's updates reach the owner through other rows, since such
 * an update could arrive before its arguments. */
static int await_args(hpc_scheme *sc, int s, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    if (!hpc_feeds_share_by_stages(sc, share, sc->context->group.rank)) return HPC_OK;
    seeing waits = {sc, signal_of(sc, share), share->owner, sc->args_asked[core_of(sc, share)]};
    if (is_seen(&waits)) return hpc_scheme_check(sc, "push");
    const hpc_wait wait = {"push", is_seen, who_sees, &waits, 0, .attend = hpc_scheme_attend, .attended = sc};
    int status = hpc_wait_for(&sc->context->group, &wait, hpc_limit_left(sc, l));
    return status == HPC_OK ? hpc_scheme_check(sc, "push") : status;
}

/* Sends to all owners before it waits for any, so all waits together take one round trip. */
int hpc_args_bring(hpc_scheme *sc, int key, int slot, hpc_limit *l) {
    hpc_pushed *k = &sc->keys[key];
    const int n = sc->own_args ? 0 : k->n_shares;
    for (; k->at_args < 2 * n; k->at_args++) {
        int s = k->shares[k->at_args % n];
        if (!takes_args(sc, &sc->layout.shares[s])) continue;
        int status = k->at_args < n ? send_args(sc, s, slot, l) : await_args(sc, s, l);
        if (status != HPC_OK) return status;
    }
    return HPC_OK;
}
