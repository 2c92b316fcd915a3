/* The usual duration of something, as in RFC 6298, section 2: an exponential mean and mean deviation. */
#ifndef HPC_USUAL_H
#define HPC_USUAL_H

#include <stdint.h>

enum { HPC_USUAL_ENOUGH = 8 }; /* measurements before the duration counts as known */

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

/* Returns a high estimate, which a measurement rarely exceeds; 0 if too little is known. */
static inline double hpc_usual_limit(const hpc_usual *u) {
    return u->measured < HPC_USUAL_ENOUGH ? 0 : u->mean + 4 * u->deviation;
}

#endif
