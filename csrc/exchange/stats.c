/* Facts of an exchange: its counts, and the places of its memory. */
#include "exchange/exchange.h"

#include <stdio.h>
#include <string.h>

#include "engine/pieces.h"
#include "engine/progress.h"
#include "engine/ticket.h"

static void add(hpc_scheme *sc, hpc_exchange_stats *stats) {
    hpc_scheme_hear_all(sc);
    stats->pushes += sc->stats.pushes;
    stats->pulls += sc->stats.pulls;
    stats->wait += sc->stats.wait;
    stats->threads += sc->stats.threads;
    if (sc->stats.dropped_at > stats->dropped_at) stats->dropped_at = sc->stats.dropped_at;
    for (int c = 0; c < sc->n_own_cores; c++) {
        const hpc_core *core = &sc->cores[c];
        stats->events += atomic_load_explicit(&core->tally.events, memory_order_relaxed);
        stats->applied += atomic_load_explicit(&core->tally.applied, memory_order_relaxed);
        stats->bytes_folded += atomic_load_explicit(&core->tally.bytes_folded, memory_order_relaxed);
        stats->bytes_written += atomic_load_explicit(&core->tally.bytes_written, memory_order_relaxed);
        stats->reduces += atomic_load_explicit(&core->tally.reduces, memory_order_relaxed);
        stats->whole += atomic_load_explicit(&core->tally.whole, memory_order_relaxed);
        stats->torn += atomic_load_explicit(&core->tally.torn, memory_order_relaxed);
        stats->stale += atomic_load_explicit(&core->tally.stale, memory_order_relaxed);
        stats->missing += atomic_load_explicit(&core->tally.missing, memory_order_relaxed);
        stats->busy += atomic_load_explicit(&core->tally.busy, memory_order_relaxed);
    }
    const double usual = hpc_usual_limit(&sc->usual);
    if (usual > stats->usual) stats->usual = usual;
    for (int r = 0; r < sc->context->group.size; r++) {
        stats->bytes_sent += hpc_sent_to_rows(sc, r);
        stats->dropped += sc->peers.dropped[r];
    }
}

/* Calls of the whole process since the exchange was made. */
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
    for (int i = 0; i < ex->n_schemes; i++) add(ex->schemes[i], stats);
    for (int i = 0; i < ex->n_schemes; i++) {
        const double timeout = hpc_learned_timeout(ex->schemes[i], stats->usual);
        if (timeout > stats->timeout) stats->timeout = timeout;
    }
    add_calls(ex, stats);
    return HPC_OK;
}

/* Schemes that have chosen alike are told once. */
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

static int add_inputs(const hpc_scheme *sc, uint64_t *counts, int cap) {
    const hpc_peers *peers = &sc->peers;
    if (peers->inputs_whole == NULL) return 0;
    for (int k = 0; k < cap && k <= peers->most_inputs; k++)
        counts[k] += atomic_load_explicit(&peers->inputs_whole[k], memory_order_relaxed);
    return peers->most_inputs;
}

static int add_staleness(hpc_scheme *sc, uint64_t *counts, int cap) {
    if (sc->begun == NULL) return 0;
    hpc_scheme_hear_all(sc);
    for (int k = 0; k < cap && k <= sc->asked.staleness; k++) counts[k] += sc->begun[k];
    return sc->asked.staleness;
}

int hpc_exchange_get_histogram(const hpc_exchange *ex, int histogram, uint64_t *counts, int cap) {
    int most = 0;
    if (ex == NULL || cap < 0 || (counts == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or counts is NULL, or cap is negative");
    if (histogram != HPC_FOLDS_BY_INPUTS && histogram != HPC_STEPS_BY_STALENESS)
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: histogram is %d, not 0 or 1", histogram);
    for (int k = 0; k < cap; k++) counts[k] = 0;
    for (int i = 0; i < ex->n_schemes; i++) {
        const int own = histogram == HPC_FOLDS_BY_INPUTS ? add_inputs(ex->schemes[i], counts, cap)
                                                         : add_staleness(ex->schemes[i], counts, cap);
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
    for (int i = 0; i < ex->n_schemes; i++) {
        hpc_scheme *sc = ex->schemes[i];
        hpc_scheme_hear_all(sc);
        peer->bytes_sent += hpc_sent_to_rows(sc, rank);
        peer->bytes_received += atomic_load_explicit(&sc->peers.received[rank], memory_order_relaxed);
        peer->wait += sc->peers.wait[rank];
        peer->late += atomic_load_explicit(&sc->peers.late[rank], memory_order_relaxed);
        peer->dropped += sc->peers.dropped[rank];
    }
    return HPC_OK;
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

static uint64_t newest_version(const hpc_exchange *ex) {
    uint64_t newest = 0;
    for (int k = 0; ex != NULL && k < ex->n_keys; k++) {
        const uint64_t version = outcome_of(ex->keys[k].scheme, ex->keys[k].key).version;
        if (version > newest) newest = version;
    }
    return newest;
}

uint64_t hpc_exchange_version(const hpc_exchange *ex, int key) {
    if (key < 0) return newest_version(ex);
    hpc_scheme *sc = hpc_scheme_at(ex, &key);
    uint64_t newest = 0;
    for (int k = 0; sc != NULL && k < sc->plan->n_keys; k++) {
        const uint64_t version = k == key || sc->outcomes != NULL ? outcome_of(sc, k).version : 0;
        if (version > newest) newest = version;
    }
    return newest;
}
