/* A row at work: its inputs are counted, folded, applied and written, and the ranks that wait for it are answered. The
 * thread that works for the row's core calls these functions; none of them waits. */
#ifndef HPC_ENGINE_ROW_H
#define HPC_ENGINE_ROW_H

#include <string.h>

#include "engine/layout.h"

/* The workers that are sent a row's parameters. */
typedef enum hpc_whom {
    HPC_TO_ALL,
    HPC_TO_NOBODY,
    HPC_TO_RANK,
    HPC_TO_GROUP, /* those that get parameters by way of the group of which rank is the lowest */
    HPC_TO_TAKERS /* those with takes[rank] */
} hpc_whom;
typedef struct hpc_receivers {
    hpc_whom whom;
    int rank;
    const char *takes;
} hpc_receivers;

/* A row's inputs: where each begins, its weight, which it is, and the format of all, unless some are pieces. */
typedef struct hpc_inputs {
    const char *const *bases;
    const double *weights;
    const hpc_input *const *from; /* NULL: they are no inputs, but a mean */
    int n;
    const hpc_codec *codec;
    const double *args; /* of the rule */
    hpc_receivers to;   /* of the parameters */
    int n_updates;      /* in the fold, as the rule is told */
    uint64_t slot;      /* of the inputs, and of their forward; where models rotate the fold goes into the next slot */
} hpc_inputs;

/* All inputs of a row in a slot, or one of them (only; -1: all), with the plan's weights. */
hpc_inputs hpc_row_inputs(hpc_core *core, const hpc_work *w, int slot, int only);

/* The inputs that a discipline chooses, one by one: of an input the updates in n slots, from push or slot number first
 * on. With HPC_SCALE_ALL the weights of what is there grow until they add up to those of all inputs; with
 * HPC_SCALE_MEANS only those that add up to 1 do. Scaling is for at most one slot of an input. */
typedef struct hpc_taken {
    int n;
    uint64_t first;
} hpc_taken;
typedef hpc_taken hpc_taking(const hpc_core *core, const hpc_work *w, const hpc_input *in);
typedef enum hpc_scaling { HPC_SCALE_NONE, HPC_SCALE_MEANS, HPC_SCALE_ALL } hpc_scaling;
hpc_inputs hpc_row_take(hpc_core *core, const hpc_work *w, hpc_taking *taking, hpc_scaling scaling);

/* The number of the input that rank pushes, or (forwarded) that a row of rank forwards; -1: none. */
int hpc_row_input_of(const hpc_work *w, int rank, int forwarded);

/* Counts an input that has come in a slot. Returns 1 when all inputs are there; the count then begins again at 0, and
 * hpc_row_took marks the inputs as missing again. Returns 0 when some are missing, or when the exchange has failed. */
int hpc_row_count(hpc_core *core, hpc_work *w, int slot, int input);
void hpc_row_took(hpc_work *w, int slot);
/* Adds an input to the row's accumulator, or begins it with that. Nonzero when the exchange has failed. */
int hpc_row_add(hpc_core *core, hpc_work *w, int slot, int input, int begins);
/* Whether rank from has sent more inputs than the most that may wait unfolded; if so the exchange fails. */
int hpc_row_has_too_many(hpc_core *core, const hpc_work *w, const _Atomic char *came, int most, int from);

/* Does the row's work on inputs, as its kind has it. Nonzero when a user's kernel has failed, or an input is refused.
 */
int hpc_row_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);
/* The same of a relay, and what has come to it in a slot. */
int hpc_row_pass_on(hpc_core *core, hpc_work *w, int slot);

/* The arguments of the rule, with the number of the next step. */
static inline void hpc_row_next_args(const hpc_work *w, const hpc_inputs *inputs, double *args) {
    memcpy(args, inputs->args, HPC_ARGS_BYTES);
    args[0] = (double)(w->step + 1);
}

/* mean.c: fold and apply in two calls. fold keeps the mean of inputs, one or more, and adds its sum of squares to
 * *squares if that is not NULL. apply runs the rule on it: args[0] is a factor of the mean, and the others are the
 * rule's. */
int hpc_row_fold(hpc_core *core, hpc_work *w, const hpc_inputs *inputs, double *squares);
int hpc_row_apply(hpc_core *core, hpc_work *w, const double *args);
double hpc_row_squares(const hpc_core *core, const hpc_work *w); /* of the mean */
/* Sends the mean, or zeros, as float32 to all workers of the row (hpc_gathered_at). */
void hpc_row_gather(hpc_core *core, hpc_work *w, int zero);

/* write.c: sends a row's parameters to one rank, or to all workers. */
enum { HPC_EVERYBODY = -1 };
void hpc_row_send(hpc_core *core, hpc_work *w, int rank);
/* To all, relays included, which take them without an event, in slot 0. A forward has none to send. */
void hpc_row_publish(hpc_core *core, hpc_work *w);
/* To the ranks of one group alone, by relays too, in reply to its update in a slot. group: its lowest rank. */
void hpc_row_reply(hpc_core *core, hpc_work *w, int group, int slot);

/* Counts the bytes of the row's inputs (or of one, only) as received. The next two count by shares instead. */
void hpc_row_count_received(const hpc_core *core, const hpc_work *w, int only);
void hpc_share_count_received(const hpc_engine *en, const hpc_share *share, int rank);
/* Counts a fold of a share whose n inputs of others were all whole. */
void hpc_share_count_fold(hpc_core *core, int n);
/* Makes room for these counts, for as many inputs as the rows of this rank have, less those that do not count. */
int hpc_share_open_counts(hpc_engine *en, int less, const char *op);

/* Answers rank: stores value in its signal. */
void hpc_share_answer(hpc_core *core, int rank, int signal, uint64_t value);
/* The same behind bytes that are written into rank's part. */
void hpc_share_answer_with(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset, int signal,
                           uint64_t value);

/* Ends the exchange if status says that a put has failed. A worker that is gone needs no answer: ranks that wait for it
 * find out by themselves. */
void hpc_core_check_put(hpc_core *core, int status);

/* forward.c: sends what leaves a row after the work on a slot on to rows: to all, or to those of a group
 * (hpc_row_reply). retry sends what found no room before. */
void hpc_forward_row(hpc_core *core, hpc_work *w, int slot, int group);
void hpc_forward_empty(hpc_core *core, hpc_work *w); /* tells them that nothing comes this time */
void hpc_forward_retry(hpc_core *core);

#endif
