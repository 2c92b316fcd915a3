/* Functions that the files of this folder share: schemes.c makes and leaves an exchange, which is its schemes;
 * create.c opens a scheme and close.c leaves it, keys.c finds the scheme of a key, check.c checks a configuration,
 * check_codecs.c its codecs, worker.c pushes and pulls, apply.c starts that, and folds and applies in two calls, held.c
 * does so where each update is applied by itself, args.c sets the arguments of the rule, rows.c reads and writes rows,
 * stats.c and traffic.c return counts, encoders.c the state and counts of encoders; follow.c lets thresholds follow the
 * network.
 *
 * An exchange has one scheme for each of its configurations: some keys, with their consistency, on a graph or with
 * servers. A key belongs to one scheme for life: calls of a key go to its scheme, and calls of the whole exchange to
 * all schemes, one after the other. Each scheme has its own window, lanes, rows and discipline; the waits of one work
 * for all of them, and threads of cores of the same number are one thread (engine/core.c). Keys and rows are numbered
 * scheme by scheme. */
#ifndef HPC_EXCHANGE_H
#define HPC_EXCHANGE_H

#include "base/calls.h"
#include "engine/core.h"
#include "engine/discipline.h"
#include "engine/scheme.h"
#include "engine/ticket.h"

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

/* keys.c */
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

static inline int hpc_scheme_works(const hpc_scheme *sc) {
    return sc->layout.places[sc->context->group.rank].worker;
}

/* Takes note of the owners' answers for a key. */
static inline int hpc_scheme_hear(hpc_scheme *sc, int key) {
    return hpc_scheme_works(sc) ? hpc_note(sc, key, HPC_ON_HEAR, NULL, "exchange") : HPC_OK;
}

static inline void hpc_scheme_hear_all(hpc_scheme *sc) {
    for (int k = 0; k < sc->plan->n_keys; k++) hpc_scheme_hear(sc, k);
}

/* create.c. The handle of a scheme, which holds a copy of the plan and nothing else yet; then collectively all of it.
 * of: the exchange, whose number of schemes all ranks have to share. */
hpc_scheme *hpc_scheme_new(hpc_context *c, const hpc_exchange_config *config, const char *op);
int hpc_scheme_open(hpc_scheme *sc, const hpc_exchange_config *config, const hpc_exchange *of, double deadline);
int hpc_scheme_send_params(hpc_scheme *sc, const char *op, double deadline); /* collective: every row's, to workers */

/* close.c. leave ends all pending calls, and tells the other ranks; serve waits until they have left. */
int hpc_scheme_leave(hpc_scheme *sc, const char *op, double deadline);
int hpc_scheme_serve(hpc_scheme *sc, const char *op, double timeout);
void hpc_scheme_free(hpc_scheme *sc);

/* worker.c: hpc_exchange_start, for apply.c and held.c too. what: HPC_PUSH_EMPTY, HPC_PUSH_HELD, or 0. */
int hpc_worker_start(hpc_scheme *sc, int key, int flags, int what, const void *src, hpc_limit *l, uint64_t *ticket,
                     const char *op);
/* Its first steps: waits until a push may begin, and its slot be written; then puts an array there, in the wire's
 * format, unless it is there already (src NULL). checks: HPC_ERR_INVALID if that has a NaN or an Inf. */
int hpc_worker_take_slot(hpc_scheme *sc, int key, const uint64_t *ticket, hpc_limit *l, const char *op);
int hpc_worker_fill_slot(hpc_scheme *sc, int key, const void *src, int checks, const char *op);
int hpc_worker_refuse_infinite(const hpc_scheme *sc, int key, const char *why, const char *op);
/* A key with a pending push or pull of this rank; -1: none. check_idle: HPC_ERR_INVALID if there is one. */
int hpc_worker_under_way(const hpc_scheme *sc);
int hpc_worker_check_idle(const hpc_scheme *sc, const char *op);
/* Sends the rest of pushes and pulls that were sent in part, and waits for all that are pending. */
int hpc_worker_finish(hpc_scheme *sc, const char *op, double deadline);
int hpc_worker_settle(hpc_scheme *sc, double deadline, const char *op);
float *hpc_worker_params(const hpc_scheme *sc, int key);

/* held.c: the calls of a scheme whose updates are held (hpc_scheme.held): fold (empty: the worker has no gradient), its
 * use, and hpc_exchange_start. sent_nothing: whether that push had no update. */
int hpc_held_open(hpc_scheme *sc, const char *op);
int hpc_held_fold(hpc_scheme *sc, int key, int empty, const void *src, hpc_limit *l, uint64_t *ticket, const char *op);
int hpc_held_use(hpc_scheme *sc, int key, hpc_use use, double scale, hpc_limit *l, uint64_t *ticket, const char *op);
int hpc_held_start(hpc_scheme *sc, int key, int flags, const void *src, hpc_limit *l, uint64_t *ticket, const char *op);
double hpc_held_squares(const hpc_scheme *sc, int key);
const float *hpc_held_gathered(const hpc_scheme *sc, int key);
int hpc_held_sent_nothing(const hpc_scheme *sc, int key, uint64_t push);

/* rows.c: the same as hpc_worker_under_way, unless nothing will ever end as a rank is lost. */
int hpc_scheme_under_way(hpc_scheme *sc);
int hpc_scheme_folded(hpc_scheme *sc, int rank, uint64_t *pushes); /* raises *pushes */

/* check.c. HPC_OK if this rank accepts the configuration; a property that follows from it; and, collectively, whether
 * all ranks gave the same. */
int hpc_scheme_check_config(const hpc_context *context, const hpc_exchange_config *config);
int hpc_models_rotate(const hpc_exchange_config *config);
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

/* encoders.c: sets the delta of all encoders of a scheme's key, of (hpc_exchange_set_delta). */
void hpc_scheme_set_delta(hpc_scheme *sc, int key, int of, double delta);

/* follow.c. The last step of a creation on this rank, and the first one of its end; the ranks' exchanges are made in
 * one order. */
int hpc_follows(const hpc_exchange *ex); /* whether some threshold does; on all ranks alike */
int hpc_follow_open(hpc_exchange *ex, const char *op);
void hpc_follow_stop(hpc_exchange *ex);

/* traffic.c: bytes that this rank has sent to another one (0 to itself), in a stage or to its rows. forget: sets the
 * counts of received bytes, and of the cores' sent bytes, to 0. */
uint64_t hpc_sent_to(const hpc_scheme *sc, int rank, hpc_traffic_stage stage);
uint64_t hpc_sent_to_rows(const hpc_scheme *sc, int rank);
uint64_t hpc_sent_of_key(const hpc_scheme *sc, int key); /* in all stages */
void hpc_forget_traffic(hpc_scheme *sc);

#endif
