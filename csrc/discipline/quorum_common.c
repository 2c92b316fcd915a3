/* Steps that a quorum of ranks and one of groups share: what is asked for, the state of both sides, the steps of a
 * worker of servers, and pushes that end. */
#include <stdio.h>
#include <stdlib.h>

#include "discipline/discipline.h"
#include "discipline/quorum.h"

static const double FIRST = 1; /* second of grace, before enough has been measured (RFC 6298, section 2.1) */

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

size_t hpc_quorum_part(const hpc_exchange *ex, int rank) {
    size_t numbers = (size_t)ex->layout.places[rank].shares * (size_t)ex->context->group.size, told = 0;
    for (int i = 0; i < ex->plan->n_rows && hpc_quorum_of(ex)->passed_at != NULL; i++)
        told += ex->plan->rows[i].action == HPC_RELAY && ex->plan->rows[i].owner == rank;
    told += (size_t)ex->layout.n_shares;
    return told * sizeof(hpc_told) + numbers * (size_t)ex->layout.depth * sizeof(uint64_t);
}

int hpc_quorum_prepare(hpc_exchange *ex, const hpc_exchange_config *f, const char *op) {
    int status = hpc_graph_prepare(ex, f, op);
    if (status != HPC_OK) return status;
    hpc_quorum *q = ex->own = calloc(1, sizeof *q);
    if (q != NULL) {
        q->keys = calloc((size_t)ex->plan->n_keys, sizeof *q->keys);
        q->given_up = calloc((size_t)ex->context->group.size, 1);
    }
    ex->asked.quorum = f->quorum;
    return q != NULL && q->keys != NULL && q->given_up != NULL
               ? HPC_OK
               : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a quorum of %d", op, f->quorum);
}

int hpc_quorum_open_share(const hpc_exchange *ex, hpc_share *share, int owns, int sends, const char *op) {
    size_t size = (size_t)ex->context->group.size;
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
    atomic_init(&in->grace, ex->asked.grace < 0 ? FIRST : ex->asked.grace);
    if (in->senders == NULL || in->takes == NULL || in->from == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a share", op);
    return HPC_OK;
}

int hpc_quorum_open(hpc_exchange *ex, const char *op) {
    size_t size = (size_t)ex->context->group.size;
    for (int c = 0; c < ex->n_own_cores; c++) {
        hpc_quorum_watch *its = ex->cores[c].own = calloc(1, sizeof *its);
        if (its != NULL) {
            its->shares = malloc((size_t)ex->layout.n_shares * sizeof(hpc_share *));
            its->absent = calloc(size, 1);
            its->closes = calloc(size, 1);
            its->gone = calloc(size, 1);
        }
        if (its == NULL || its->shares == NULL || its->absent == NULL || its->closes == NULL || its->gone == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a core", op);
    }
    hpc_intake_open(ex);
    return hpc_share_open_counts(ex, hpc_own_leads(ex), op);
}

void hpc_quorum_free(hpc_exchange *ex) {
    hpc_quorum *q = ex->own;
    for (int s = 0; s < ex->layout.n_shares; s++) {
        hpc_quorum_share *its = ex->layout.shares[s].own;
        if (its == NULL) continue;
        free(its->intake.senders);
        free(its->intake.takes);
        free(its->intake.from);
        free(its);
        ex->layout.shares[s].own = NULL;
    }
    for (int c = 0; ex->cores != NULL && c < ex->n_own_cores; c++) {
        hpc_quorum_watch *its = ex->cores[c].own;
        if (its == NULL) continue;
        free(its->shares);
        free(its->absent);
        free(its->closes);
        free(its->gone);
        free(its);
        ex->cores[c].own = NULL;
    }
    if (q != NULL) {
        free(q->keys);
        free(q->given_up);
        free(q->group_of);
        free(q->passed_at);
    }
    free(q);
    ex->own = NULL;
    hpc_graph_free(ex);
}

/* ---- the worker's pushes ---- */

/* The first key, if any, that is not pushed for the present version, or not answered; else -1. */
static int unfinished(const hpc_exchange *ex) {
    const hpc_quorum *q = hpc_quorum_of(ex);
    for (int i = 0; i < ex->plan->n_keys; i++) {
        const hpc_pushed *k = &ex->keys[i];
        if (k->n_shares == 0) continue;
        if (k->sending != 0 || q->keys[i].number != q->number || !hpc_ticket_is_done(ex, i, 2 * k->pushes)) return i;
    }
    return -1;
}

/* Refuses a second push of a key before all keys have been pushed and answered. */
int hpc_quorum_may_push(hpc_exchange *ex, int key, const char *op) {
    const hpc_quorum *q = hpc_quorum_of(ex);
    int status = hpc_push_after(ex, key, 2 * ex->keys[key].pushes, op);
    if (status != HPC_OK) return status;
    int other = q->keys[key].number < q->number ? -1 : unfinished(ex);
    if (other < 0) return HPC_OK;
    if (op == NULL) return HPC_IN_PROGRESS;
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: rank %d has pushed key %s for version %llu already, and key %s not, or not to its end: with a "
                    "quorum each key is pushed once for a version, and pulled before the next",
                    op, hpc_me(ex), ex->plan->keys[key].name, (unsigned long long)q->number,
                    ex->plan->keys[other].name);
}

void hpc_quorum_choose_version(hpc_exchange *ex, int key) {
    hpc_quorum *q = hpc_quorum_of(ex);
    hpc_key_versions *of = hpc_versions_of(ex, key);
    if (of->number == q->number) q->number = hpc_outlet_next_version(ex);
    of->number = q->number;
    of->numbers[ex->keys[key].pushes % (uint64_t)ex->layout.depth] = of->number;
}

/* ---- pushes that end ---- */

/* HPC_ERR_PEER when so many workers have closed that the last push of key has found no quorum. */
int hpc_quorum_ended(hpc_exchange *ex, int key, const char *op) {
    uint64_t number = hpc_versions_of(ex, key)->number;
    if (number <= hpc_outlet_version(ex, key)) return HPC_OK;
    int *closed = malloc((size_t)ex->context->group.size * sizeof *closed), n = 0;
    for (int r = 0; r < ex->context->group.size && closed != NULL; r++)
        if (ex->layout.places[r].worker && hpc_closed_signal(ex, r) != 0) closed[n++] = r;
    char who[96] = "too many workers have closed the exchange, as its owner says"; /* their own word is still to come */
    if (n > 0) snprintf(who, sizeof who, "%d workers have closed the exchange, rank %d among them", n, closed[0]);
    int status = hpc_group_fail_closed(&ex->context->group, op, closed, n,
                                       "version %llu of key %s finds no quorum of %d any more: %s",
                                       (unsigned long long)number, ex->plan->keys[key].name, ex->asked.quorum, who);
    free(closed);
    return status;
}

/* Makes a note of how many last pushes have found no quorum. Pushes that a pull has waited for do not count: the pull
 * has reported them. */
void hpc_quorum_closing(hpc_exchange *ex) {
    const hpc_quorum *q = hpc_quorum_of(ex);
    int n = 0, first = -1;
    for (int i = ex->plan->n_keys - 1; i >= 0; i--) {
        if (ex->keys[i].since == 0 || q->keys[i].number <= hpc_outlet_version(ex, i)) continue;
        first = i;
        n++;
    }
    if (n > 0)
        hpc_group_note(&ex->context->group, HPC_NOTE_LOST,
                       "lost the last push of %d key%s of rank %d, %.64s first: version %llu found no quorum of %d", n,
                       n == 1 ? "" : "s", ex->context->group.rank, ex->plan->keys[first].name,
                       (unsigned long long)q->keys[first].number, ex->asked.quorum);
}

/* ---- facts ---- */

void hpc_quorum_count(const hpc_exchange *ex, hpc_exchange_stats *stats) {
    stats->dropped = hpc_outlet_dropped(ex, -1, &stats->dropped_at);
}

void hpc_quorum_count_peer(const hpc_exchange *ex, int rank, hpc_exchange_peer *peer) {
    uint64_t at;
    peer->dropped = hpc_outlet_dropped(ex, rank, &at);
}
