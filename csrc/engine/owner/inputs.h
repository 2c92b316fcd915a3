/* The inputs of a fold, as a discipline hands them to a row. */
#ifndef HPC_INPUTS_H
#define HPC_INPUTS_H

#include "engine/work.h"

/* Which workers get a row's parameters. */
typedef enum hpc_whom {
    HPC_TO_ALL,
    HPC_TO_NOBODY,
    HPC_TO_RANK,
    HPC_TO_GROUP, /* the workers served by the group whose lowest rank is rank */
    HPC_TO_TAKERS /* the workers with takes[rank] set */
} hpc_whom;
typedef struct hpc_receivers {
    hpc_whom whom;
    int rank;
    const char *takes;
} hpc_receivers;

/* A row's inputs: their addresses, weights and origins. codec is the format of all inputs, unless some are pieces. */
typedef struct hpc_inputs {
    const char *const *bases;
    const double *weights;
    const hpc_input *const *from; /* NULL: the only input is a mean */
    int n;
    const hpc_codec *codec;
    const double *args; /* arguments of the rule */
    hpc_receivers to;   /* which workers get the parameters */
    int n_updates;      /* how many updates are in the fold; the rule gets this number */
    /* The slot of the inputs and of their forward. If models rotate, the fold is written into the next slot. */
    uint64_t slot;
} hpc_inputs;

#endif
