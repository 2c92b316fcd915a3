/* check.h - the C tests' only tool: a test program exits 0, or names the first check that failed and exits 1. */
#ifndef HPC_CHECK_H
#define HPC_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hpcomm/hpcomm.h"

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s: CHECK(%s)\n", __FILE__, __LINE__, __func__, #cond);                            \
            exit(1);                                                                                                   \
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
    exit(1);
}

static inline void check_status(int got, int expected, const char *text, const char *file, int line, const char *func) {
    if (got == expected) return;
    fprintf(stderr, "%s:%d: %s: %s gave %d (%s), not %d (%s); last error: %s\n", file, line, func, text, got,
            hpc_status_text(got), expected, hpc_status_text(expected), hpc_last_error()->message);
    exit(1);
}

static inline void check_message(const char *text, const char *file, int line, const char *func) {
    if (strstr(hpc_last_error()->message, text)) return;
    fprintf(stderr, "%s:%d: %s: \"%s\" is not in the last error: %s\n", file, line, func, text,
            hpc_last_error()->message);
    exit(1);
}

#endif
