/* Functions that the files of this folder share: schemes.c makes and leaves an exchange, which is its schemes;
 * keys.c finds the scheme of a key; check.c checks a configuration, check_codecs.c its codecs; apply.c, factors.c,
 * state.c and stats.c are the calls of a key or a row, which engine/ carries out; follow.c lets thresholds follow the
 * network.
 *
 * An exchange has one scheme for each of its configurations: some keys, with their consistency, on a graph or with
 * servers. A key belongs to one scheme for life: calls of a key go to its scheme, and calls of the whole exchange to
 * all schemes, one after the other. Each scheme has its own window, lanes, rows and discipline; the waits of one work
 * for all of them, and threads of cores of the same number are one thread (engine/owner/core.c). Keys and rows are
 * numbered scheme by scheme. */
#ifndef HPC_EXCHANGE_H
#define HPC_EXCHANGE_H

#include "base/calls.h"
#include "engine/owner/core.h"
#include "engine/discipline.h"
#include "engine/worker/held.h"
#include "engine/layout/layout.h"
#include "engine/scheme.h"
#include "engine/worker/ticket.h"
#include "engine/worker/worker.h"

/* The place of a key: its scheme, and its number there. */
typedef struct hpc_key_at {
    hpc_scheme *scheme;
    int key;
} hpc_key_at;

struct hpc_exchange {
    hpc_scheme **schemes; /* by first key, rising */
    int n_schemes, n_keys, n_rows;
    hpc_key_at *keys;
    struct hpc_follower *follower; /* NULL: no delta follows the network */
    uint64_t calls[HPC_CALLS];     /* of this process, before the exchange was made */
};

/* The scheme of a key, whose number becomes that of the scheme; NULL: there is no such key. The second one records that
 * as an error. */
static inline hpc_scheme *hpc_scheme_at(const hpc_exchange *ex, int *key) {
    if (ex == NULL || *key < 0 || *key >= ex->n_keys) return NULL;
    const hpc_key_at *at = &ex->keys[*key];
    *key = at->key;
    return at->scheme;
}

int hpc_fail_key(const hpc_exchange *ex, int key, const char *op);

static inline hpc_scheme *hpc_scheme_of(const hpc_exchange *ex, int *key, const char *op) {
    hpc_scheme *sc = hpc_scheme_at(ex, key);
    if (sc == NULL) hpc_fail_key(ex, *key, op);
    return sc;
}

/* The same for a row. */
hpc_scheme *hpc_scheme_of_row(const hpc_exchange *ex, int *row, const char *op);

/* A span of the timeline: from here on the caller is in op, of a key. */
#define HPC_IN_CALL(sc, key, op)                                                                                       \
    HPC_SPAN((sc) == NULL ? NULL : (sc)->context->group.timeline, op, (sc) == NULL ? NULL : (sc)->plan->keys[key].name)

/* ---- a scheme ---- */

/* Takes note of the owners' answers for a key. */
static inline int hpc_scheme_hear(hpc_scheme *sc, int key) {
    return hpc_scheme_works(sc) ? hpc_note(sc, key, HPC_ON_HEAR, NULL, "exchange") : HPC_OK;
}

static inline void hpc_scheme_hear_all(hpc_scheme *sc) {
    for (int k = 0; k < sc->plan->n_keys; k++) hpc_scheme_hear(sc, k);
}

/* state.c: the same as hpc_worker_under_way, unless nothing will ever end as a rank is lost. */
int hpc_scheme_under_way(hpc_scheme *sc);
int hpc_scheme_folded(hpc_scheme *sc, int rank, uint64_t *pushes); /* raises *pushes */

/* check.c. HPC_OK if this rank accepts the configuration; and, collectively, whether
 * all ranks gave the same. */
int hpc_scheme_check_config(const hpc_context *context, const hpc_exchange_config *config);
int hpc_scheme_agree(hpc_scheme *sc, const hpc_exchange_config *config, const hpc_exchange *of, double deadline);

/* check_codecs.c: the same for codecs of pieces, by key. describe writes the values that all ranks must share; compare
 * fails if two keys differ in it. */
typedef struct hpc_codec_description {
    char name[64];
    double delta, fraction, args[HPC_CODEC_ARGS], up, at_least;
    uint64_t unit, rows, columns;
    int32_t number, decays, values, paper, compress, no_feedback, state_slots, pairs, follow, unused;
} hpc_codec_description;
int hpc_codecs_check(const hpc_exchange_config *config);
void hpc_codec_describe(const hpc_scheme *sc, int key, hpc_codec_description *description);
int hpc_codecs_compare(int rank, const char *key, const hpc_codec_description *its, const hpc_codec_description *first);

/* follow.c. The last step of a creation on this rank, and the first one of its end; the ranks' exchanges are made in
 * one order. */
int hpc_follows(const hpc_exchange *ex); /* whether some threshold does; on all ranks alike */
int hpc_follow_open(hpc_exchange *ex, const char *op);
void hpc_follow_stop(hpc_exchange *ex);

#endif
