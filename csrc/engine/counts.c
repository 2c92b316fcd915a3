#include "engine/counts.h"
#include "engine/bytes.h"

uint64_t hpc_sent_to(const hpc_scheme *sc, int rank, hpc_traffic_stage stage) {
    uint64_t bytes = 0;
    if (rank == sc->context->group.rank) return 0;
    if (stage == HPC_TRAFFIC_PUSH) return atomic_load_explicit(&sc->peers.pushed[rank], memory_order_relaxed);
    for (int c = 0; c < sc->n_own_cores; c++)
        bytes += atomic_load_explicit(hpc_core_sent(&sc->cores[c], rank, stage), memory_order_relaxed);
    return bytes;
}

uint64_t hpc_sent_to_rows(const hpc_scheme *sc, int rank) {
    return hpc_sent_to(sc, rank, HPC_TRAFFIC_PUSH) + hpc_sent_to(sc, rank, HPC_TRAFFIC_FORWARD) +
           hpc_sent_to(sc, rank, HPC_TRAFFIC_RELAY);
}

void hpc_counts_forget(hpc_scheme *sc) {
    for (int r = 0; r < sc->context->group.size; r++) {
        atomic_store_explicit(&sc->peers.received[r], 0, memory_order_relaxed);
        for (int c = 0; c < sc->n_own_cores; c++)
            for (int s = 0; s < HPC_TRAFFIC_STAGES; s++)
                atomic_store_explicit(hpc_core_sent(&sc->cores[c], r, (hpc_traffic_stage)s), 0, memory_order_relaxed);
    }
    for (int c = 0; c < sc->n_own_cores; c++)
        for (int k = 0; k < sc->plan->n_keys; k++)
            atomic_store_explicit(&sc->cores[c].sent_of_key[k], 0, memory_order_relaxed);
}

uint64_t hpc_sent_of_key(const hpc_scheme *sc, int key) {
    uint64_t bytes = atomic_load_explicit(&sc->peers.pushed_of_key[key], memory_order_relaxed);
    for (int c = 0; c < sc->n_own_cores; c++)
        bytes += atomic_load_explicit(&sc->cores[c].sent_of_key[key], memory_order_relaxed);
    return bytes;
}

int hpc_counts_open(hpc_scheme *sc, const char *op) {
    const size_t size = (size_t)sc->context->group.size;
    hpc_peers *p = &sc->peers;
    p->pushed = hpc_scheme_take(sc, size, sizeof *p->pushed, op);
    p->pushed_of_key = hpc_scheme_take(sc, (size_t)sc->plan->n_keys, sizeof *p->pushed_of_key, op);
    p->received = hpc_scheme_take(sc, size, sizeof *p->received, op);
    p->late = hpc_scheme_take(sc, size, sizeof *p->late, op);
    p->dropped = hpc_scheme_take(sc, size, sizeof *p->dropped, op);
    p->wait = hpc_scheme_take(sc, size, sizeof *p->wait, op);
    p->awaited = hpc_scheme_take(sc, size, sizeof *p->awaited, op);
    sc->threads = hpc_scheme_take(sc, size, sizeof *sc->threads, op);
    const int all = p->pushed && p->pushed_of_key && p->received && p->late && p->dropped && p->wait && p->awaited;
    return all && sc->threads ? HPC_OK : HPC_ERR_MEMORY;
}

void hpc_counts_add(const hpc_scheme *sc, hpc_exchange_stats *stats) {
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

void hpc_counts_add_peer(const hpc_scheme *sc, int rank, hpc_exchange_peer *peer) {
    peer->bytes_sent += hpc_sent_to_rows(sc, rank);
    peer->bytes_received += atomic_load_explicit(&sc->peers.received[rank], memory_order_relaxed);
    peer->wait += sc->peers.wait[rank];
    peer->late += atomic_load_explicit(&sc->peers.late[rank], memory_order_relaxed);
    peer->dropped += sc->peers.dropped[rank];
}

int hpc_counts_add_inputs(const hpc_scheme *sc, uint64_t *counts, int cap) {
    const hpc_peers *peers = &sc->peers;
    if (peers->inputs_whole == NULL) return 0;
    for (int k = 0; k < cap && k <= peers->most_inputs; k++)
        counts[k] += atomic_load_explicit(&peers->inputs_whole[k], memory_order_relaxed);
    return peers->most_inputs;
}

int hpc_counts_add_staleness(const hpc_scheme *sc, uint64_t *counts, int cap) {
    if (sc->begun == NULL) return 0;
    for (int k = 0; k < cap && k <= sc->asked.staleness; k++) counts[k] += sc->begun[k];
    return sc->asked.staleness;
}

int hpc_open_begun(hpc_scheme *sc, const char *op) {
    sc->begun = hpc_scheme_take(sc, (size_t)sc->asked.staleness + 1, sizeof *sc->begun, op);
    return sc->begun != NULL ? HPC_OK : HPC_ERR_MEMORY;
}

/* ---- encoders ---- */

int hpc_has_delta(const hpc_scheme *sc, int key) {
    return hpc_key_has_pieces(sc, key) && sc->pieces[key].codec->number == HPC_THRESHOLD;
}

void hpc_scheme_set_delta(hpc_scheme *sc, int key, int of, double delta) {
    if (of & HPC_DELTA_OF_PUSHES) atomic_store_explicit(&sc->pieces[key].encoder.delta, delta, memory_order_relaxed);
    for (int i = 0; i < sc->n_work && of & HPC_DELTA_OF_FOLDS; i++)
        if (sc->work[i].row->key == key && sc->work[i].encoder != NULL)
            atomic_store_explicit(&sc->work[i].encoder->delta, delta, memory_order_relaxed);
}

int hpc_check_delta(const hpc_scheme *sc, int key, const char *op) {
    const char *name = sc->plan->keys[key].name;
    if (!hpc_has_delta(sc, key))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s of rank %d goes as %s, which has no delta", op, name,
                        sc->context->group.rank,
                        hpc_key_has_pieces(sc, key) ? sc->pieces[key].name : sc->keys[key].codec->name);
    if (sc->pieces[key].config.follow == HPC_FOLLOW_NOTHING) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the delta of key %s follows the network, between %.9g and %.9g", op, name,
                    sc->pieces[key].config.delta, sc->pieces[key].config.up);
}

static double delta_of(const hpc_scheme *sc, int key, int of) {
    if (!hpc_has_delta(sc, key)) return -1;
    if (of == HPC_DELTA_OF_PUSHES)
        return sc->pieces[key].encoder.codec == NULL
                   ? -1
                   : atomic_load_explicit(&sc->pieces[key].encoder.delta, memory_order_relaxed);
    for (int i = 0; i < sc->n_work; i++)
        if (sc->work[i].row->key == key && sc->work[i].encoder != NULL)
            return atomic_load_explicit(&sc->work[i].encoder->delta, memory_order_relaxed);
    return -1;
}

static void add_encoder(hpc_key_stats *stats, const hpc_encoder *encoder) {
    stats->pieces += atomic_load_explicit(&encoder->pieces, memory_order_relaxed);
    stats->elements += atomic_load_explicit(&encoder->elements, memory_order_relaxed);
    stats->kept += atomic_load_explicit(&encoder->kept, memory_order_relaxed);
    stats->bytes += atomic_load_explicit(&encoder->bytes, memory_order_relaxed);
    stats->returned += atomic_load_explicit(&encoder->returned, memory_order_relaxed);
    stats->encode += atomic_load_explicit(&encoder->seconds, memory_order_relaxed);
}

void hpc_counts_of_key(const hpc_scheme *sc, int key, hpc_key_stats *stats) {
    *stats = (hpc_key_stats){.sent = hpc_sent_of_key(sc, key),
                             .delta_of_pushes = delta_of(sc, key, HPC_DELTA_OF_PUSHES),
                             .delta_of_folds = delta_of(sc, key, HPC_DELTA_OF_FOLDS)};
    if (!hpc_key_has_pieces(sc, key)) return;
    add_encoder(stats, &sc->pieces[key].encoder);
    for (int i = 0; i < sc->n_work; i++) {
        const hpc_work *w = &sc->work[i];
        if (w->row->key != key) continue;
        if (w->encoder != NULL) add_encoder(stats, w->encoder);
        stats->decoded += atomic_load_explicit(&w->decoded, memory_order_relaxed);
        stats->decode += atomic_load_explicit(&w->decode_seconds, memory_order_relaxed);
    }
    stats->bytes_before = stats->elements * sizeof(float);
}
