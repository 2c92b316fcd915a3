/* Functions that the files of this folder share: exchange.c creates and closes an exchange, check.c checks its
 * configuration, check_codecs.c its codecs, worker.c pushes and pulls, apply.c folds and applies in two calls, args.c
 * sets the arguments of the rule, traffic.c tells what was sent, encoders.c what was encoded. */
#ifndef HPC_EXCHANGE_H
#define HPC_EXCHANGE_H

#include "engine/core.h"
#include "engine/ticket.h"

const char *hpc_key_name(const hpc_exchange *ex, int key); /* NULL for none */

/* From here on the caller is in op, of a key: for the timeline. */
#define HPC_IN_CALL(ex, key, op)                                                                                       \
    HPC_SPAN((ex) == NULL ? NULL : (ex)->context->group.timeline, op, hpc_key_name(ex, key))

/* worker.c: hpc_exchange_start, for apply.c too. empty: the push has no gradient. */
int hpc_worker_start(hpc_exchange *ex, int key, int flags, int empty, const void *src, hpc_limit *l, uint64_t *ticket,
                     const char *op);
/* A key of which a push or a pull of this rank is under way; -1: none. HPC_ERR_INVALID if there is one. */
int hpc_worker_under_way(const hpc_exchange *ex);
int hpc_worker_check_idle(const hpc_exchange *ex, const char *op);
/* Sends the rest of what is sent in part, and waits for all that is under way. */
int hpc_worker_finish(hpc_exchange *ex, const char *op, double deadline);

/* check.c. HPC_OK if this rank accepts the configuration; a property that follows from it; and, collectively, whether
 * all ranks gave the same. */
int hpc_exchange_check_config(const hpc_context *context, const hpc_exchange_config *config);
int hpc_models_rotate(const hpc_exchange_config *config);
int hpc_exchange_agree(hpc_exchange *ex, const hpc_exchange_config *config, double deadline);

/* check_codecs.c: the same for codecs of pieces, by key. describe writes what all ranks must give alike; compare fails
 * if two keys differ in it. */
typedef struct hpc_codec_description {
    char name[64];
    double delta, fraction, args[HPC_CODEC_ARGS];
    uint64_t unit;
    int32_t number, decays, values, paper, compress, no_feedback, state_slots, unused;
} hpc_codec_description;
int hpc_codecs_check(const hpc_exchange_config *config);
void hpc_codec_describe(const hpc_exchange *ex, int key, hpc_codec_description *description);
int hpc_codecs_compare(int rank, const char *key, const hpc_codec_description *its, const hpc_codec_description *first);

/* traffic.c: bytes that this rank has sent to another one (0 to itself), in a stage or to its rows. forget: what has
 * been sent and received so far counts for nothing. */
uint64_t hpc_sent_to(const hpc_exchange *ex, int rank, hpc_traffic_stage stage);
uint64_t hpc_sent_to_rows(const hpc_exchange *ex, int rank);
void hpc_forget_traffic(hpc_exchange *ex);

#endif
