/* Steps that all quorums share: they open and free the state of owners and workers, choose versions, and end pushes.
 * The quorums on servers, of ranks and of groups, also share refusals and the order of pushes. */
#include <stdio.h>
#include <stdlib.h>

#include "discipline/discipline.h"
#include "discipline/quorum_intake.h"
#include "engine/answer.h"

static const double FIRST = 1; /* seconds of grace until enough folds have been measured (RFC 6298, section 2.1) */

/* ---- what is asked for ---- */

int hpc_quorum_check_servers(const hpc_exchange_config *f) {
    static const char op[] = "exchange";
    if (!hpc_config_is_bsp(f))
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: a quorum of servers does not go with consistency %s", op,
                        hpc_consistency_name(f->consistency));
    if (f->shared_params || f->eager)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: a quorum of servers does not go with %s", op,
                        f->shared_params ? "shared_params" : "eager folds (deterministic=False)");
    if (hpc_config_own_fold(f) != NULL)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                        "%s: rule %s has a fold of its own; with a quorum some inputs may be missing from it", op,
                        hpc_config_own_fold(f)->name);
    return HPC_OK;
}

/* ---- open ---- */

size_t hpc_quorum_part(const hpc_engine *en, int rank) {
    size_t numbers = (size_t)en->layout.places[rank].shares * (size_t)en->context->group.size, told = 0;
    for (int i = 0; i < en->plan->n_rows && hpc_quorum_of(en)->passed_at != NULL; i++)
        told += en->plan->rows[i].action == HPC_RELAY && en->plan->rows[i].owner == rank;
    told += (size_t)en->layout.n_shares;
    return told * sizeof(hpc_told) + numbers * (size_t)en->layout.depth * sizeof(uint64_t);
}

int hpc_quorum_prepare(hpc_engine *en, const hpc_exchange_config *f, const char *op) {
    hpc_quorum *q = en->own = calloc(1, sizeof *q);
    if (q != NULL) {
        q->keys = calloc((size_t)en->plan->n_keys, sizeof *q->keys);
        q->given_up = calloc((size_t)en->context->group.size, 1);
    }
    en->asked.quorum = f->quorum;
    return q != NULL && q->keys != NULL && q->given_up != NULL
               ? HPC_OK
               : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a quorum of %d", op, f->quorum);
}

int hpc_quorum_open_share(const hpc_engine *en, hpc_share *share, int owns, int sends, const char *op) {
    size_t size = (size_t)en->context->group.size;
    hpc_quorum_share *its = share->own = calloc(1, sizeof *its);
    if (its == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    its->owns = owns;
    its->sends = sends;
    its->outlet.staged = HPC_NOWHERE;
    if (!owns) return HPC_OK;
    hpc_intake *in = &its->intake;
    in->senders = calloc(size, sizeof *in->senders);
    in->takes = calloc(size, 1);
    in->from = malloc(size * sizeof *in->from);
    atomic_init(&in->grace, en->asked.grace < 0 ? FIRST : en->asked.grace);
    if (in->senders == NULL || in->takes == NULL || in->from == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    return HPC_OK;
}

int hpc_quorum_open_cores(hpc_engine *en, int less, const char *op) {
    size_t size = (size_t)en->context->group.size;
    for (int c = 0; c < en->n_own_cores; c++) {
        hpc_quorum_watch *its = en->cores[c].own = calloc(1, sizeof *its);
        if (its != NULL) {
            its->shares = malloc((size_t)en->layout.n_shares * sizeof(hpc_share *));
            its->absent = calloc(size, 1);
            its->closes = calloc(size, 1);
            its->gone = calloc(size, 1);
        }
        if (its == NULL || its->shares == NULL || its->absent == NULL || its->closes == NULL || its->gone == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    }
    hpc_intake_open(en);
    return hpc_share_open_counts(en, less, op);
}

void hpc_quorum_free(hpc_engine *en) {
    hpc_quorum *q = en->own;
    for (int s = 0; s < en->layout.n_shares; s++) {
        hpc_quorum_share *its = en->layout.shares[s].own;
        if (its == NULL) continue;
        free(its->intake.senders);
        free(its->intake.takes);
        free(its->intake.from);
        free(its);
        en->layout.shares[s].own = NULL;
    }
    for (int c = 0; en->cores != NULL && c < en->n_own_cores; c++) {
        hpc_quorum_watch *its = en->cores[c].own;
        if (its == NULL) continue;
        free(its->shares);
        free(its->absent);
        free(its->closes);
        free(its->gone);
        free(its);
        en->cores[c].own = NULL;
    }
    if (q != NULL) {
        free(q->keys);
        free(q->given_up);
        free(q->passed_at);
    }
    free(q);
    en->own = NULL;
}

/* ---- the worker's pushes ---- */

/* The first key, if any, that is not pushed for the present version, or not answered; else -1. */
static int unfinished(const hpc_engine *en) {
    const hpc_quorum *q = hpc_quorum_of(en);
    for (int i = 0; i < en->plan->n_keys; i++) {
        const hpc_pushed *k = &en->keys[i];
        if (k->n_shares == 0) continue;
        if (k->sending != 0 || q->keys[i].number != q->number || !hpc_ticket_is_done(en, i, 2 * k->pushes)) return i;
    }
    return -1;
}

/* Refuses a second push of a key before all keys have been pushed and answered. */
int hpc_quorum_may_push(hpc_engine *en, int key, const char *op) {
    const hpc_quorum *q = hpc_quorum_of(en);
    int status = hpc_push_after(en, key, 2 * en->keys[key].pushes, op);
    if (status != HPC_OK) return status;
    int other = q->keys[key].number < q->number ? -1 : unfinished(en);
    if (other < 0) return HPC_OK;
    if (op == NULL) return HPC_IN_PROGRESS;
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: rank %d has pushed key %s for version %llu already, and key %s not, or not to its end: with a "
                    "quorum each key is pushed once for a version, and pulled before the next",
                    op, hpc_me(en), en->plan->keys[key].name, (unsigned long long)q->number,
                    en->plan->keys[other].name);
}

void hpc_quorum_choose_version(hpc_engine *en, int key, uint64_t (*next)(const hpc_engine *en)) {
    hpc_quorum *q = hpc_quorum_of(en);
    hpc_key_versions *of = hpc_versions_of(en, key);
    if (of->number == q->number) q->number = next(en);
    of->number = q->number;
    of->numbers[en->keys[key].pushes % (uint64_t)en->layout.depth] = of->number;
}

/* ---- pushes that end ---- */

/* Returns HPC_ERR_PEER when so many workers have closed that the last push of key has found no quorum. */
int hpc_quorum_ended(hpc_engine *en, int key, const char *op) {
    uint64_t number = hpc_versions_of(en, key)->number;
    if (number <= en->discipline->facts->version(en, key)) return HPC_OK;
    int *closed = malloc((size_t)en->context->group.size * sizeof *closed), n = 0;
    for (int r = 0; r < en->context->group.size && closed != NULL; r++)
        if (en->layout.places[r].worker && hpc_closed_signal(en, r) != 0) closed[n++] = r;
    char who[96] = "too many workers have closed the exchange, as its owner says"; /* if none has told this rank yet */
    if (n > 0) snprintf(who, sizeof who, "%d workers have closed the exchange, rank %d among them", n, closed[0]);
    int status = hpc_group_fail_closed(&en->context->group, op, closed, n,
                                       "version %llu of key %s finds no quorum of %d any more: %s",
                                       (unsigned long long)number, en->plan->keys[key].name, en->asked.quorum, who);
    free(closed);
    return status;
}

/* Makes a note of how many last pushes have found no quorum. Pushes that a pull has waited for do not count: the pull
 * has reported them. */
void hpc_quorum_closing(hpc_engine *en) {
    const hpc_quorum *q = hpc_quorum_of(en);
    int n = 0, first = -1;
    for (int i = en->plan->n_keys - 1; i >= 0; i--) {
        if (en->keys[i].since == 0 || q->keys[i].number <= en->discipline->facts->version(en, i)) continue;
        first = i;
        n++;
    }
    if (n > 0)
        hpc_group_note(&en->context->group, HPC_NOTE_LOST,
                       "lost the last push of %d key%s of rank %d, %.64s first: version %llu found no quorum of %d", n,
                       n == 1 ? "" : "s", en->context->group.rank, en->plan->keys[first].name,
                       (unsigned long long)q->keys[first].number, en->asked.quorum);
}
