/* The inputs of a fold, as a discipline hands them to a row. */
#ifndef HPC_INPUTS_H
#define HPC_INPUTS_H

#include "engine/work.h"

/* The workers that are sent a row's parameters. */
typedef enum hpc_whom {
    HPC_TO_ALL,
    HPC_TO_NOBODY,
    HPC_TO_RANK,
    HPC_TO_GROUP, /* workers that get parameters by way of the group whose lowest rank is rank */
    HPC_TO_TAKERS /* workers with takes[rank] */
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

#endif
