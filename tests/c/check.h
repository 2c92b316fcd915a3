/* check.h - the C tests' only tool: a test program exits 0, or names the first check that failed and exits 1. A failure
 * that no second run may excuse (wrong bytes, a crash, a hang, something left behind, a sanitizer's report) exits with
 * CHECK_RED and says "RED: why"; tests/again.py reads that line. */
#ifndef HPC_CHECK_H
#define HPC_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hpcomm/hpcomm.h"

enum { CHECK_FAILED = 1, CHECK_RED = 3, CHECK_SANITIZED = 66 /* a sanitizer's own exit status */ };

/* How the test runs, for the log of its failure: seed of transport loop, ranks (1: a program without any). */
typedef struct check_conditions {
    unsigned long long seed;
    int ranks;
    bool told; /* somebody else prints them */
} check_conditions;

extern check_conditions check_now;

void check_tell_conditions(const check_conditions *c); /* one line on stderr: seed=... load=... ranks=... */

/* Ends the process after its message. text is the condition that failed: one that compares bytes makes it red. */
void check_fail(const char *text) __attribute__((noreturn));
void check_fail_red(const char *why) __attribute__((noreturn));

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s: CHECK(%s)\n", __FILE__, __LINE__, __func__, #cond);                            \
            check_fail(#cond);                                                                                         \
        }                                                                                                              \
    } while (0)

/* The same for two integers, showing both. */
#define CHECK_EQ(a, b) check_eq((long long)(a), (long long)(b), #a, #b, __FILE__, __LINE__, __func__)

/* A library call that must succeed, or must fail with this status; shows the library's sentence if it does not. */
#define CHECK_OK(call) check_status((call), HPC_OK, #call, __FILE__, __LINE__, __func__)
#define CHECK_STATUS(call, expected) check_status((call), (expected), #call, __FILE__, __LINE__, __func__)

/* The last error's sentence must hold this text. */
#define CHECK_MESSAGE(text) check_message((text), __FILE__, __LINE__, __func__)

static inline void check_eq(long long a, long long b, const char *a_text, const char *b_text, const char *file,
                            int line, const char *func) {
    if (a == b) return;
    fprintf(stderr, "%s:%d: %s: %s is %lld, %s is %lld\n", file, line, func, a_text, a, b_text, b);
    check_fail(a_text);
}

static inline void check_status(int got, int expected, const char *text, const char *file, int line, const char *func) {
    if (got == expected) return;
    fprintf(stderr, "%s:%d: %s: %s gave %d (%s), not %d (%s); last error: %s\n", file, line, func, text, got,
            hpc_status_text(got), expected, hpc_status_text(expected), hpc_last_error()->message);
    check_fail(text);
}

static inline void check_message(const char *text, const char *file, int line, const char *func) {
    if (strstr(hpc_last_error()->message, text)) return;
    fprintf(stderr, "%s:%d: %s: \"%s\" is not in the last error: %s\n", file, line, func, text,
            hpc_last_error()->message);
    check_fail(text);
}

#endif
