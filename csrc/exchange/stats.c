/* Facts of an exchange: what it has counted, and where its memory lies. */
#include "exchange/exchange.h"

#include <stdio.h>
#include <string.h>

#include "engine/pieces.h"
#include "engine/progress.h"

static void add(hpc_engine *en, hpc_exchange_stats *stats) {
    hpc_engine_hear_all(en);
    stats->pushes += en->stats.pushes;
    stats->pulls += en->stats.pulls;
    stats->wait += en->stats.wait;
    stats->threads += en->stats.threads;
    if (en->stats.dropped_at > stats->dropped_at) stats->dropped_at = en->stats.dropped_at;
    for (int c = 0; c < en->n_own_cores; c++) {
        const hpc_core *core = &en->cores[c];
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
    const double usual = hpc_usual_limit(&en->usual);
    if (usual > stats->usual) stats->usual = usual;
    for (int r = 0; r < en->context->group.size; r++) {
        stats->bytes_sent += hpc_sent_to_rows(en, r);
        stats->dropped += en->peers.dropped[r];
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
    for (int i = 0; i < ex->n_engines; i++) add(ex->engines[i], stats);
    add_calls(ex, stats);
    return HPC_OK;
}

/* Engines that have chosen alike are told once. */
int hpc_exchange_get_progress(const hpc_exchange *ex, char *text, size_t nbytes) {
    char own[512];
    if (ex == NULL || text == NULL || nbytes == 0)
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or text is NULL, or nbytes is 0");
    text[0] = 0;
    for (int i = 0; i < ex->n_engines; i++) {
        const size_t n = strlen(text);
        own[0] = 0;
        hpc_progress_tell(ex->engines[i], own, sizeof own);
        if (own[0] == 0 || strstr(text, own) != NULL) continue;
        snprintf(text + n, nbytes - n, "%s%s", n > 0 ? "; " : "", own);
    }
    return HPC_OK;
}

int hpc_exchange_get_inputs(const hpc_exchange *ex, uint64_t *counts, int cap) {
    int most = 0;
    if (ex == NULL || (counts == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or counts is NULL");
    for (int k = 0; k < cap; k++) counts[k] = 0;
    for (int i = 0; i < ex->n_engines; i++) {
        const hpc_peers *peers = &ex->engines[i]->peers;
        if (peers->inputs_whole == NULL) continue;
        for (int k = 0; k < cap && k <= peers->most_inputs; k++)
            counts[k] += atomic_load_explicit(&peers->inputs_whole[k], memory_order_relaxed);
        if (peers->most_inputs > most) most = peers->most_inputs;
    }
    return most;
}

int hpc_exchange_get_staleness(const hpc_exchange *ex, uint64_t *counts, int cap) {
    int most = 0;
    if (ex == NULL || cap < 0 || (counts == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "stats", "stats: exchange or counts is NULL, or cap is negative");
    for (int k = 0; k < cap; k++) counts[k] = 0;
    for (int i = 0; i < ex->n_engines; i++) {
        hpc_engine *en = ex->engines[i];
        if (en->begun == NULL) continue;
        hpc_engine_hear_all(en);
        for (int k = 0; k < cap && k <= en->asked.staleness; k++) counts[k] += en->begun[k];
        if (en->asked.staleness > most) most = en->asked.staleness;
    }
    return most;
}

int hpc_exchange_get_peer(const hpc_exchange *ex, int rank, hpc_exchange_peer *peer) {
    static const char op[] = "stats";
    if (ex == NULL || peer == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or peer is NULL", op);
    const int size = ex->engines[0]->context->group.size;
    if (rank < 0 || rank >= size)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is out of range; there are %d", op, rank, size);
    *peer = (hpc_exchange_peer){0};
    for (int i = 0; i < ex->n_engines; i++) {
        hpc_engine *en = ex->engines[i];
        hpc_engine_hear_all(en);
        peer->bytes_sent += hpc_sent_to_rows(en, rank);
        peer->bytes_received += atomic_load_explicit(&en->peers.received[rank], memory_order_relaxed);
        peer->wait += en->peers.wait[rank];
        peer->late += atomic_load_explicit(&en->peers.late[rank], memory_order_relaxed);
        peer->dropped += en->peers.dropped[rank];
    }
    return HPC_OK;
}

/* ---- memory ---- */

hpc_memory *hpc_exchange_memory(const hpc_exchange *ex, int key, int rank) {
    const hpc_engine *en = hpc_engine_at(ex, &key);
    return en == NULL ? NULL : hpc_window_memory(en->window, rank);
}

hpc_memory *hpc_exchange_gradient_memory(const hpc_exchange *ex, int key) {
    const hpc_engine *en = hpc_engine_at(ex, &key);
    if (en == NULL) return NULL;
    if (en->pieces != NULL && en->pieces[key].source != NULL) return hpc_memory_retain(en->pieces[key].source);
    return hpc_window_memory(en->window, en->context->group.rank);
}

int hpc_exchange_params_rank(const hpc_exchange *ex, int key) {
    const hpc_engine *en = hpc_engine_at(ex, &key);
    return en == NULL ? -1 : en->layout.holder;
}

int hpc_exchange_takes_writes(const hpc_exchange *ex, int key) {
    const hpc_engine *en = hpc_engine_at(ex, &key);
    return en != NULL && !en->keys[key].encoded.apart;
}

/* ---- versions ---- */

static hpc_outcome outcome_of(hpc_engine *en, int key) {
    if (!hpc_engine_works(en)) return (hpc_outcome){0};
    hpc_engine_hear(en, key);
    return en->outcomes != NULL ? en->outcomes[key] : (hpc_outcome){.version = en->keys[key].pushes};
}

int hpc_exchange_late(const hpc_exchange *ex, int key) {
    int n = 0;
    for (int k = 0; ex != NULL && k < ex->n_keys; k++)
        if (key < 0 || k == key) n += outcome_of(ex->keys[k].engine, ex->keys[k].key).late;
    return n;
}

uint64_t hpc_exchange_version(const hpc_exchange *ex) {
    uint64_t newest = 0;
    for (int k = 0; ex != NULL && k < ex->n_keys; k++) {
        const uint64_t version = outcome_of(ex->keys[k].engine, ex->keys[k].key).version;
        if (version > newest) newest = version;
    }
    return newest;
}

uint64_t hpc_exchange_version_of(const hpc_exchange *ex, int key) {
    hpc_engine *en = hpc_engine_at(ex, &key);
    uint64_t newest = 0;
    for (int k = 0; en != NULL && k < en->plan->n_keys; k++) {
        const uint64_t version = k == key || en->outcomes != NULL ? outcome_of(en, k).version : 0;
        if (version > newest) newest = version;
    }
    return newest;
}
