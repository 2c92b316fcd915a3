/* Facts of an exchange: its counts, its versions, and the memory objects that hold its arrays. */
#include "exchange/exchange.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#include "engine/counts.h"
#include "engine/pieces.h"
#include "engine/layout/progress.h"
#include "engine/worker/waits.h"

static void hear_all(const hpc_exchange *ex) {
    for (int i = 0; i < ex->n_schemes; i++) hpc_scheme_hear_all(ex->schemes[i]);
}

/* Adds the calls of the whole process since the exchange was made. */
static void add_calls(const hpc_exchange *ex, hpc_exchange_stats *stats) {
    uint64_t now[HPC_CALLS];
    hpc_calls_read(now);
    for (int i = 0; i < HPC_CALLS; i++) now[i] -= ex->calls[i];
    stats->sends = now[HPC_CALL_SEND];
    stats->receives = now[HPC_CALL_RECEIVE];
    stats->empty = now[HPC_CALL_EMPTY];
    stats->polls = now[HPC_CALL_POLL];
    stats->futexes = now[HPC_CALL_FUTEX];
    stats->alarms = now[HPC_CALL_ALARM];
    stats->yields = now[HPC_CALL_YIELD];
    stats->wakeups = now[HPC_CALL_WAKEUP];
}

int hpc_exchange_get_stats(const hpc_exchange *ex, hpc_exchange_stats *stats) {
    if (ex == NULL || stats == NULL) return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or stats is NULL");
    *stats = (hpc_exchange_stats){0};
    hear_all(ex);
    for (int i = 0; i < ex->n_schemes; i++) hpc_counts_add(ex->schemes[i], stats);
    for (int i = 0; i < ex->n_schemes; i++) {
        const double timeout = hpc_learned_timeout(ex->schemes[i], stats->usual);
        if (timeout > stats->timeout) stats->timeout = timeout;
    }
    add_calls(ex, stats);
    return HPC_OK;
}

/* Schemes with the same choice are told once. */
int hpc_exchange_get_progress(const hpc_exchange *ex, char *text, size_t nbytes) {
    char own[512];
    if (ex == NULL || text == NULL || nbytes == 0)
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or text is NULL, or nbytes is 0");
    text[0] = 0;
    for (int i = 0; i < ex->n_schemes; i++) {
        const size_t n = strlen(text);
        own[0] = 0;
        hpc_progress_tell(ex->schemes[i], own, sizeof own);
        if (own[0] == 0 || strstr(text, own) != NULL) continue;
        snprintf(text + n, nbytes - n, "%s%s", n > 0 ? "; " : "", own);
    }
    return HPC_OK;
}

int hpc_exchange_get_histogram(const hpc_exchange *ex, int histogram, uint64_t *counts, int cap) {
    int most = 0;
    if (ex == NULL || cap < 0 || (counts == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or counts is NULL, or cap is negative");
    if (histogram != HPC_FOLDS_BY_INPUTS && histogram != HPC_STEPS_BY_STALENESS)
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: histogram is %d, not 0 or 1", histogram);
    for (int k = 0; k < cap; k++) counts[k] = 0;
    if (histogram == HPC_STEPS_BY_STALENESS) hear_all(ex);
    for (int i = 0; i < ex->n_schemes; i++) {
        const int own = histogram == HPC_FOLDS_BY_INPUTS ? hpc_counts_add_inputs(ex->schemes[i], counts, cap)
                                                         : hpc_counts_add_staleness(ex->schemes[i], counts, cap);
        if (own > most) most = own;
    }
    return most;
}

int hpc_exchange_get_peer(const hpc_exchange *ex, int rank, hpc_exchange_peer *peer) {
    static const char op[] = "stats";
    if (ex == NULL || peer == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or peer is NULL", op);
    const int size = ex->schemes[0]->context->group.size;
    if (rank < 0 || rank >= size)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is out of range; there are %d", op, rank, size);
    *peer = (hpc_exchange_peer){0};
    hear_all(ex);
    for (int i = 0; i < ex->n_schemes; i++) hpc_counts_add_peer(ex->schemes[i], rank, peer);
    return HPC_OK;
}

int hpc_exchange_get_traffic(const hpc_exchange *ex, hpc_traffic *traffic, int cap) {
    int n = 0;
    if (ex == NULL || cap < 0 || (traffic == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or traffic is NULL, or cap is negative");
    const hpc_context *c = ex->schemes[0]->context;
    for (int r = 0; r < c->group.size; r++)
        for (int s = 0; s < HPC_TRAFFIC_STAGES; s++) {
            uint64_t bytes = 0;
            for (int i = 0; i < ex->n_schemes; i++) bytes += hpc_sent_to(ex->schemes[i], r, (hpc_traffic_stage)s);
            if (bytes == 0) continue;
            if (n < cap) traffic[n] = (hpc_traffic){r, (hpc_traffic_stage)s, c->transports[r]->name, bytes};
            n++;
        }
    return n;
}

int hpc_exchange_get_key_stats(const hpc_exchange *ex, int key, hpc_key_stats *stats) {
    const hpc_scheme *sc = hpc_scheme_of(ex, &key, "stats");
    if (sc == NULL) return HPC_ERR_INVALID;
    if (stats == NULL) return hpc_fail(HPC_ERR_INVALID, "stats", "stats: stats is NULL");
    hpc_counts_of_key(sc, key, stats);
    return HPC_OK;
}

/* ---- thresholds ---- */

int hpc_exchange_set_delta(hpc_exchange *ex, int key, int of, double delta) {
    static const char op[] = "set_delta";
    enum { BOTH = HPC_DELTA_OF_PUSHES | HPC_DELTA_OF_FOLDS };
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    if (!(delta >= 0 && delta <= DBL_MAX))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: delta is %.9g; must be a finite number, 0 or more", op, delta);
    if ((of & ~BOTH) != 0 || of == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: of is %d; must be %d (pushes), %d (folds) or %d (both)", op, of,
                        HPC_DELTA_OF_PUSHES, HPC_DELTA_OF_FOLDS, BOTH);
    if (key >= ex->n_keys) return hpc_fail_key(ex, key, op);
    int n = 0;
    for (int i = 0; i < 2 * ex->n_keys; i++) { /* if any key follows the network, none is set */
        const int k = i % ex->n_keys, sets = i >= ex->n_keys;
        const hpc_key_at *at = &ex->keys[k];
        if (key < 0 ? !hpc_has_delta(at->scheme, at->key) : k != key) continue;
        const int status = hpc_check_delta(at->scheme, at->key, op);
        if (status != HPC_OK) return status;
        if (sets) hpc_scheme_set_delta(at->scheme, at->key, of, delta);
        n++;
    }
    if (n > 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: no key goes by a threshold", op);
}

/* ---- memory ---- */

static int holds(const hpc_memory *memory, const void *at) {
    return memory != NULL && (const char *)at >= (const char *)memory->data &&
           (const char *)at < (const char *)memory->data + memory->nbytes;
}

hpc_memory *hpc_exchange_memory(const hpc_exchange *ex, int key, const void *at) {
    const hpc_scheme *sc = hpc_scheme_at(ex, &key);
    if (sc == NULL) return NULL;
    hpc_memory *source = sc->pieces != NULL ? sc->pieces[key].source : NULL;
    if (holds(source, at)) return hpc_memory_retain(source);
    hpc_memory *held = sc->layout.holder >= 0 ? hpc_window_memory(sc->window, sc->layout.holder) : NULL;
    if (holds(held, at)) return held;
    hpc_memory_release(held);
    return hpc_window_memory(sc->window, sc->context->group.rank);
}

/* ---- versions ---- */

static hpc_outcome outcome_of(hpc_scheme *sc, int key) {
    if (!hpc_scheme_works(sc)) return (hpc_outcome){0};
    hpc_scheme_hear(sc, key);
    return sc->outcomes != NULL ? sc->outcomes[key] : (hpc_outcome){.version = sc->keys[key].pushes};
}

int hpc_exchange_late(const hpc_exchange *ex, int key) {
    int n = 0;
    for (int k = 0; ex != NULL && k < ex->n_keys; k++)
        if (key < 0 || k == key) n += outcome_of(ex->keys[k].scheme, ex->keys[k].key).late;
    return n;
}

/* With a quorum one version counts for all keys of a scheme. */
uint64_t hpc_exchange_version(const hpc_exchange *ex, int key) {
    const int all = key < 0;
    const hpc_scheme *sc = hpc_scheme_at(ex, &key);
    uint64_t newest = 0;
    for (int k = 0; ex != NULL && k < ex->n_keys; k++) {
        const hpc_key_at *at = &ex->keys[k];
        if (!all && (at->scheme != sc || (at->key != key && sc->outcomes == NULL))) continue;
        const uint64_t version = outcome_of(at->scheme, at->key).version;
        if (version > newest) newest = version;
    }
    return newest;
}
