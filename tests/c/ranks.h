/* ranks.h - brings up the ranks of a test, as forked processes or as threads of one, in bounded time.
 *
 * A test program lists its cases and calls ranks_main. Every case runs once on each transport (the list of modes is in
 * ranks.c), verbs where there is an RDMA port, each time in a fresh process group that is killed as a whole when it
 * ends or its time is over. When a case ends, its processes must have as many files, threads and shared mappings as
 * before it. Ranks are processes; under TSan, and for cases of RANKS_THREADS, they are threads. Transport loop runs
 * plain and with the seed HPC_TEST_SEED (1). HPC_TEST_MODES=all is for every mode and three seeds, half for every other
 * mode of a case, third for every third one, sixth for half of these under each of ASan and TSan. A case that is one of
 * many alike runs in half as many modes then, perhaps in none: another seed chooses others.
 *
 *     test_program [mode [case[,case...]]]     both may be "all"
 *
 * exits with 0, with 1 or CHECK_RED if a case failed (check.h), or with 77 when nothing could run here.
 */
#ifndef HPC_RANKS_H
#define HPC_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"

#define RANKS_MAX 16  /* of cases that use hpcomm's data */
#define RANKS_MOST 64 /* of all cases */
#define RANKS_BOARD 4096

#if defined(__SANITIZE_THREAD__)
#define RANKS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RANKS_TSAN 1
#endif
#endif
#ifndef RANKS_TSAN
#define RANKS_TSAN 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define RANKS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RANKS_ASAN 1
#endif
#endif
#ifndef RANKS_ASAN
#define RANKS_ASAN 0
#endif

typedef struct ranks_mode {
    const char *name;
    const char *transports;
    bool threads;
    uint64_t seed;
} ranks_mode;

typedef struct ranks_shared ranks_shared;

/* The argument of a rank's function. board is zeroed memory that all ranks share outside hpcomm. */
typedef struct rank {
    hpc_context *context;
    int rank, size;
    int arg, per_host;
    const ranks_mode *mode;
    hpc_oob oob;
    hpc_config config;
    _Atomic uint64_t *board;
    ranks_shared *shared;
    uint64_t exchanged, met;
} rank;

/* The places where a case can run. */
enum {
    RANKS_ANY = 0,
    RANKS_PROCESSES = 1,
    RANKS_THREADS = 2,
    RANKS_SHM = 4,
    RANKS_LOOP = 8,
    RANKS_UNSEEDED = 16,
    RANKS_NOT_TSAN = 32,
    RANKS_TCP = 64,
    RANKS_VERBS = 128
};

typedef struct ranks_case {
    const char *name;
    int size;
    void (*run)(rank *r);
    int arg;
    unsigned where;   /* RANKS_ANY or some of the above */
    unsigned victims; /* bit i: rank i may end as it likes */
    double timeout;   /* of the context; 0: 20 s */
    bool sleepy;      /* waits neither spin nor yield, so that every wait is a sleep and a wake */
    bool shares_core; /* waits yield and do not spin, so ranks lend from 128 KiB on (context/mail.h) */
    bool apart;       /* no barrier at the end: the ranks leave as they come */
    bool bare;        /* run gets no context */
    bool many;        /* one of many alike */
    int per_host;     /* so many ranks take each other for one host, and the others for other hosts: shm inside, tcp
                         between. Runs by shm's modes. 0: all are on one host */
} ranks_case;

int ranks_main(int argc, char **argv, const ranks_case *cases);

void ranks_skip(const char *why) __attribute__((noreturn)); /* this machine cannot run the case */
int ranks_rounds(int n);               /* n, fewer under a sanitizer or by HPC_TEST_SCALE (percent) */
int ranks_entries(const char *folder); /* how many entries a folder has, . and .. included */
double ranks_now(void);                /* seconds */
double ranks_patience(double seconds); /* so many, or more on an emulated machine, by HPC_TEST_PATIENCE (a factor) */

void rank_meet(rank *r);                          /* a barrier outside hpcomm */
void rank_set(rank *r, int word, uint64_t value); /* the board */
uint64_t rank_await(const rank *r, int word, uint64_t at_least);
void rank_die(rank *r); /* as a process: SIGKILL; as a thread: abort of the context; returns for a thread */

/* Bytes that depend on seed alone. first_wrong gives the first byte that differs, or n. */
uint64_t ranks_random(uint64_t *state);
void ranks_fill(void *to, size_t n, uint64_t seed);
size_t ranks_first_wrong(const void *at, size_t n, uint64_t seed);

/* The last error names this rank among the dead or among those waited for. */
bool ranks_error_names(int who);
bool ranks_error_waits_for(int who);

/* A collective of int64 values: a sum where it reduces. */
static inline hpc_collective_call call_of(int what, const void *send, void *recv, uint64_t count) {
    return (hpc_collective_call){.size = sizeof(hpc_collective_call),
                                 .what = what,
                                 .type = HPC_I64,
                                 .op = HPC_SUM,
                                 .send = send,
                                 .recv = recv,
                                 .count = count};
}

#endif
