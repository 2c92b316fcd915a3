/* The ranks to blame: ranks that failed by themselves, as other ranks report in their last words, and ranks at the end
 * of a chain of waits that timed out here.
 *
 * Entries told by other ranks are never removed. Entries that a wait of this rank found at its timeout are removed if a
 * later try of that wait succeeds (hpc_blame_settle). Any thread may write and read. The field busy is a spin lock that
 * is held while a few hundred bytes are copied. */
#ifndef HPC_BLAME_H
#define HPC_BLAME_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "hpcomm/hpcomm.h"

enum { HPC_REASON_BYTES = 160, HPC_BLAMED = 16 };

/* The message by which a leaving rank says why it leaves: a payload of the control channel, so it has no padding. */
typedef struct hpc_last_word {
    uint32_t n_culprits; /* 0: no other rank makes it leave */
    uint32_t said;       /* BYE: how often it spoke to all ranks before (control/spread.c) */
    hpc_culprit culprits[HPC_SHOWN_CULPRITS];
    char why[HPC_REASON_BYTES]; /* the reason why the rank leaves, or why culprits[0] failed; "": no reason is known */
} hpc_last_word;
_Static_assert(sizeof(hpc_culprit) == 64, "a culprit has no holes");
_Static_assert(sizeof(hpc_last_word) == 8 + 64 * HPC_SHOWN_CULPRITS + HPC_REASON_BYTES, "a last word has no holes");

typedef struct hpc_blamed {
    hpc_culprit culprit;
    char why[HPC_REASON_BYTES];
    int by_wait; /* 1: found by a wait here; 0: told by another rank */
} hpc_blamed;

typedef struct hpc_blame {
    _Atomic int busy;
    _Atomic int waits; /* number of entries found by a wait; while it is 0, the list need not be read */
    int n;
    hpc_blamed list[HPC_BLAMED];
    const char *op; /* op: the wait that found the entries with by_wait 1; step: the trainer's step at that time */
    uint64_t step;
} hpc_blame;

/* Records the culprits in another rank's last word, if it names any. It first bounds the numbers and terminates the
 * texts. */
void hpc_blame_tell(hpc_blame *b, const hpc_last_word *word, int size);

/* Records the culprits of a wait in op that has timed out. */
void hpc_blame_wait(hpc_blame *b, const char *op, uint64_t step, const hpc_culprit *culprits, int n);

/* Removes the entries that an earlier wait in op found, because a wait in op has succeeded or the trainer has reached a
 * later step. op NULL: entries of waits in any operation. */
void hpc_blame_settle_slow(hpc_blame *b, const char *op, uint64_t step);
static inline void hpc_blame_settle(hpc_blame *b, const char *op, uint64_t step) {
    if (atomic_load_explicit(&b->waits, memory_order_relaxed) != 0) hpc_blame_settle_slow(b, op, step);
}

/* Makes all entries permanent, because this rank is leaving: no later wait removes them. */
void hpc_blame_freeze(hpc_blame *b);

/* Copies the entries into blamed[HPC_BLAMED]; with by_wait 0 only entries told by other ranks. Returns how many it
 * copied. */
int hpc_blame_read(hpc_blame *b, int by_wait, hpc_blamed *blamed);

/* Removes invalid entries from a peer's list of n culprits, and bounds the values of the others. Returns how many
 * culprits remain, at most cap. */
int hpc_culprits_check(hpc_culprit *culprits, int n, int cap, int size);

/* Inserts culprit into the list in order of rank, unless its rank is already there; returns the list's new length. */
int hpc_culprits_add(hpc_culprit *list, int n, int cap, const hpc_culprit *culprit);

/* Chains of waits. They begin with waits for the ranks in the field start; these waits have lasted `seconds`. The field
 * ranks holds the known state of each rank that was asked; other ranks are skipped. */
typedef struct hpc_chain {
    const hpc_shown_rank *ranks;
    int n, size;
    const int *start;
    int n_start;
    double seconds;
} hpc_chain;

/* Writes the culprits at the ends of the chains into culprits, in ascending order, the first cap of them. Returns how
 * many it wrote. */
int hpc_chain_ends(const hpc_chain *chain, hpc_culprit *culprits, int cap);

/* Writes the chain from a rank of chain->start to culprit into text and returns text: "rank 2 waits for rank 3". The
 * text is "" if culprit is in chain->start, or in a circle. */
const char *hpc_chain_way(const hpc_chain *chain, int culprit, char *text, size_t cap);

/* Writes a sentence about culprits ("rank 3 is stopped") into text, always 0-terminated; returns text. */
const char *hpc_culprits_text(const hpc_culprit *culprits, int n, char *text, size_t cap);

/* Returns whether there are culprits and all are in a circle, that is a deadlock, in which no rank has failed. */
int hpc_culprits_are_circle(const hpc_culprit *culprits, int n);

/* Writes a list such as "1, 4 and 7" into text and returns text. */
const char *hpc_ranks_text(const int *ranks, int n, char *text, size_t cap);

#endif
