/* How long something usually takes, by RFC 6298 (section 2): a mean and a mean deviation that forget. */
#ifndef HPC_USUAL_H
#define HPC_USUAL_H

#include <stdint.h>

enum { HPC_USUAL_ENOUGH = 8 }; /* measurements, before which nothing is usual */

typedef struct hpc_usual {
    double mean, deviation;
    uint64_t measured;
} hpc_usual;

static inline void hpc_usual_learn(hpc_usual *u, double took) {
    double off = took - u->mean;
    if (u->measured++ == 0) {
        u->mean = took;
        u->deviation = took / 2;
        return;
    }
    u->deviation += ((off < 0 ? -off : off) - u->deviation) / 4;
    u->mean += off / 8;
}

/* A high estimate: it hardly ever takes longer. 0 before enough is known. */
static inline double hpc_usual_limit(const hpc_usual *u) {
    return u->measured < HPC_USUAL_ENOUGH ? 0 : u->mean + 4 * u->deviation;
}

#endif
