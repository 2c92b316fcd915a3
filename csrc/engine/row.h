/* A row at work: its inputs are counted, folded, applied and written, and whoever waits for it is answered. By whoever
 * works for its core, which never waits. */
#ifndef HPC_ENGINE_ROW_H
#define HPC_ENGINE_ROW_H

#include "engine/layout.h"

/* A row's inputs: where each begins, its weight, and the format of all. */
typedef struct hpc_inputs {
    const char *const *bases;
    const double *weights;
    int n;
    const hpc_codec *codec;
    int args_of;       /* the rank by whose arguments of the rule they are applied */
    int silent;        /* nobody is sent the parameters */
    int summed;        /* they have been added up as they came */
    const char *takes; /* by rank: who is; NULL: all */
    uint64_t slot;     /* that they are of: whose forward it is; where models rotate, what the average follows */
} hpc_inputs;

/* All inputs of a row in a slot, or one of them (only; -1: all), with the plan's weights. */
hpc_inputs hpc_row_inputs(hpc_core *core, const hpc_work *w, int slot, int only);

/* The input that rank pushes, or that a row of rank forwards; -1: none. There is one of each at most. */
int hpc_row_input_of(const hpc_work *w, int rank, int forwarded);

/* Counts an input that has come in a slot. 1: all are there, and are counted from 0 again; the row's inputs are missed
 * again after hpc_row_took. 0: not all, or the exchange has failed. */
int hpc_row_count(hpc_core *core, hpc_work *w, int slot, int input);
void hpc_row_took(hpc_work *w, int slot);
/* Whether rank has sent more of an input than it has slots for, most of which can be unfolded: the exchange fails. */
int hpc_row_has_too_many(hpc_core *core, const hpc_work *w, const _Atomic char *came, int most, int from);

/* Folds inputs of a row and applies the rule, as step w->step + 1; then sends the parameters, or forwards. Nonzero when
 * a user's kernel has failed. */
int hpc_row_work(hpc_core *core, hpc_work *w, const hpc_inputs *inputs);

/* A row's parameters to one rank, or to all. */
enum { HPC_EVERYBODY = -1 };
void hpc_row_send(hpc_core *core, const hpc_work *w, int to);

/* Bytes of the row's inputs (or the one, only) count as received. Elsewhere shares are counted, by the next two. */
void hpc_row_count_received(const hpc_core *core, const hpc_work *w, int only);
void hpc_share_count_received(const hpc_exchange *ex, const hpc_share *share, int rank);
/* Counts a fold of a share whose n inputs of others were all whole. */
void hpc_share_count_fold(hpc_core *core, int n);
/* Makes room for such counts, of as many inputs as the rows of this rank have; less: inputs that do not count. */
int hpc_share_open_counts(hpc_exchange *ex, int less, const char *op);

/* A signal to rank: what it waits for has come so far. */
void hpc_share_answer(hpc_core *core, int rank, int signal, uint64_t value);
/* The same behind bytes that are written into rank's part. */
void hpc_share_answer_with(hpc_core *core, int rank, const void *src, size_t nbytes, size_t offset, int signal,
                           uint64_t value);

/* Ends the exchange where a put has failed. A worker that is gone needs no answer: whoever waits for it finds out by
 * itself. */
void hpc_core_check_put(hpc_core *core, int status);

/* What a row has folded in a slot goes on by its edges (forward.c); and what found no room before. */
void hpc_forward_row(hpc_core *core, hpc_work *w, int slot);
void hpc_forward_retry(hpc_core *core);

#endif
