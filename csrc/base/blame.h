/* The ranks to blame: those that failed by themselves, as the last words of other ranks tell, and those at the end of a
 * chain of waits that ran out of time here.
 *
 * What others told stays. What a wait of this rank found out when its time was over is forgotten once that wait has
 * succeeded after all (hpc_blame_settle). Any thread may write and read; busy is a spin lock that is held for a copy of
 * a few hundred bytes. */
#ifndef HPC_BLAME_H
#define HPC_BLAME_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "hpcomm/hpcomm.h"

enum { HPC_REASON_BYTES = 160, HPC_BLAMED = 16 };

/* What a rank says when it goes: a payload of the control channel, without holes. */
typedef struct hpc_last_word {
    uint32_t n_culprits, unused; /* 0: it goes for a reason of its own */
    hpc_culprit culprits[HPC_SHOWN_CULPRITS];
    char why[HPC_REASON_BYTES]; /* it goes, or culprits[0] failed; "" for nothing more to say */
} hpc_last_word;
_Static_assert(sizeof(hpc_culprit) == 48, "a culprit has no holes");
_Static_assert(sizeof(hpc_last_word) == 8 + 48 * HPC_SHOWN_CULPRITS + HPC_REASON_BYTES, "a last word has no holes");

typedef struct hpc_blamed {
    hpc_culprit culprit;
    char why[HPC_REASON_BYTES];
    int by_wait; /* found out by a wait here, not told */
} hpc_blamed;

typedef struct hpc_blame {
    _Atomic int busy;
    _Atomic int waits; /* entries by a wait: 0 spares the look at them */
    int n;
    hpc_blamed list[HPC_BLAMED];
    const char *op; /* of that wait, and the trainer's step then */
    uint64_t step;
} hpc_blame;

/* What rank from said; nothing where it names nobody. Numbers are bounded and texts ended first. */
void hpc_blame_tell(hpc_blame *b, const hpc_last_word *word, int size);

/* The wait in op has run out of time because of these. */
void hpc_blame_wait(hpc_blame *b, const char *op, uint64_t step, const hpc_culprit *culprits, int n);

/* A wait in op (NULL: in what the trainer does) has succeeded, or the trainer has come to a later step: what a wait in
 * op before had found out is over. */
void hpc_blame_settle_slow(hpc_blame *b, const char *op, uint64_t step);
static inline void hpc_blame_settle(hpc_blame *b, const char *op, uint64_t step) {
    if (atomic_load_explicit(&b->waits, memory_order_relaxed) != 0) hpc_blame_settle_slow(b, op, step);
}

/* Nothing is forgotten any more: what this rank does from now on belongs to its leaving. */
void hpc_blame_freeze(hpc_blame *b);

/* Copies all of them, told ones alone if not by_wait, into blamed[HPC_BLAMED]; how many. */
int hpc_blame_read(hpc_blame *b, int by_wait, hpc_blamed *blamed);

/* Bounds what a peer wrote; how many of n are left, of at most cap. */
int hpc_culprits_check(hpc_culprit *culprits, int n, int cap, int size);

/* Puts culprit into the list in order of ranks, unless its rank is there; the number then. */
int hpc_culprits_add(hpc_culprit *list, int n, int cap, const hpc_culprit *culprit);

/* Chains of waits that begin with waits for the ranks in start, which have lasted for seconds. ranks holds what is
 * known of each rank that was asked; a rank that is not in it is passed over. */
typedef struct hpc_chain {
    const hpc_shown_rank *ranks;
    int n, size;
    const int *start;
    int n_start;
    double seconds;
} hpc_chain;

/* The culprits at the ends of the chains, in rising order: the first cap of them; how many of these there are. */
int hpc_chain_ends(const hpc_chain *chain, hpc_culprit *culprits, int cap);

/* The way from start to culprit, without both ends, in text, which is returned: "rank 2 waits for rank 3"; "" where it
 * is waited for directly, or in a circle. */
const char *hpc_chain_way(const hpc_chain *chain, int culprit, char *text, size_t cap);

/* "1, 4 and 7", in text, which is returned. */
const char *hpc_ranks_text(const int *ranks, int n, char *text, size_t cap);

#endif
