/* Functions that the files of this folder share. schemes.c makes an exchange with its schemes, and closes it. keys.c
 * finds the scheme of a key. check.c checks a configuration, and check_codecs.c its codecs. apply.c, factors.c, state.c
 * and stats.c have the public calls for a key or a row, which call engine/. follow.c adapts codecs' thresholds to the
 * network.
 *
 * An exchange has one scheme for each of its configurations. A scheme is a set of keys with one consistency and one
 * kind of topology: servers, a graph or peers. A key never changes its scheme. Calls for a key go to the key's scheme;
 * calls for the whole exchange go to all schemes, one after the other. Each scheme has its own window, lanes, rows and
 * discipline. The engine's threads and this rank's waits work for the cores of all schemes (base/engine.h). Keys and
 * rows of an exchange are numbered scheme by scheme. */
#ifndef HPC_EXCHANGE_H
#define HPC_EXCHANGE_H

#include "base/calls.h"
#include "engine/owner/core.h"
#include "engine/discipline.h"
#include "engine/worker/held.h"
#include "engine/layout/layout.h"
#include "engine/scheme.h"
#include "engine/worker/waits.h"
#include "engine/worker/worker.h"

/* The place of a key: its scheme, and its number in that scheme. */
typedef struct hpc_key_at {
    hpc_scheme *scheme;
    int key;
} hpc_key_at;

struct hpc_exchange {
    hpc_scheme **schemes; /* in the order of their first keys */
    int n_schemes, n_keys, n_rows;
    hpc_key_at *keys;
    struct hpc_follower *follower; /* NULL: no threshold follows the network */
    uint64_t calls[HPC_CALLS];     /* the process's counts of calls at the time when the exchange was made */
};

/* Return the scheme of a key, and change *key to the key's number in that scheme; return NULL if the exchange has no
 * such key. hpc_scheme_of also records that as an error. */
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

/* Does the same for a row. */
hpc_scheme *hpc_scheme_of_row(const hpc_exchange *ex, int *row, const char *op);

/* Records in the timeline that the caller is in the call op, for a key, until the end of the C block. */
#define HPC_IN_CALL(sc, key, op)                                                                                       \
    HPC_SPAN((sc) == NULL ? NULL : (sc)->context->group.timeline, op, (sc) == NULL ? NULL : (sc)->plan->keys[key].name)

/* ---- a scheme ---- */

/* Brings counts and versions of a key up to date with the owners' answers (HPC_ON_HEAR). */
static inline int hpc_scheme_hear(hpc_scheme *sc, int key) {
    return hpc_scheme_works(sc) ? hpc_note(sc, key, HPC_ON_HEAR, NULL, "exchange") : HPC_OK;
}

static inline void hpc_scheme_hear_all(hpc_scheme *sc) {
    for (int k = 0; k < sc->plan->n_keys; k++) hpc_scheme_hear(sc, k);
}

/* Returns what hpc_worker_under_way returns; but -1 if a rank is lost, since pending calls then never end. In
 * state.c. */
int hpc_scheme_under_way(hpc_scheme *sc);
int hpc_scheme_folded(hpc_scheme *sc, int rank, uint64_t *pushes); /* raises *pushes */

/* hpc_scheme_check_config returns HPC_OK if this rank accepts the configuration. hpc_scheme_agree is collective and
 * returns HPC_OK if all ranks gave the same configuration. Both are in check.c. */
int hpc_scheme_check_config(const hpc_context *context, const hpc_exchange_config *config);
int hpc_scheme_agree(hpc_scheme *sc, const hpc_exchange_config *config, const hpc_exchange *of, double deadline);

/* The same checks for codecs of pieces, in check_codecs.c. describe writes the values of a key's codec that must be
 * equal on all ranks; compare returns an error if the descriptions its and first differ. */
typedef struct hpc_codec_description {
    char name[64];
    double delta, fraction, args[HPC_CODEC_ARGS], up, at_least;
    uint64_t unit, rows, columns;
    int32_t number, decays, values, paper, compress, no_feedback, state_slots, pairs, follow, unused;
} hpc_codec_description;
int hpc_codecs_check(const hpc_exchange_config *config);
void hpc_codec_describe(const hpc_scheme *sc, int key, hpc_codec_description *description);
int hpc_codecs_compare(int rank, const char *key, const hpc_codec_description *its, const hpc_codec_description *first);

/* Thresholds that follow the network, in follow.c. hpc_follow_open is the last step when an exchange is created,
 * hpc_follow_stop the first when it is closed. All ranks must create their exchanges in the same order. */
int hpc_follows(const hpc_exchange *ex); /* whether any threshold follows the network; the same on all ranks */
int hpc_follow_open(hpc_exchange *ex, const char *op);
void hpc_follow_stop(hpc_exchange *ex);

#endif
