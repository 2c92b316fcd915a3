/* fuzz.h - what a fuzzer's target needs: one function that takes any bytes, and a check that ends the run.
 *
 * Each fuzz_*.c is linked with clang's libFuzzer by run.py, and with replay.c by ctest. */
#ifndef HPC_FUZZ_H
#define HPC_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(cond)                                                                                                  \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s: REQUIRE(%s)\n", __FILE__, __LINE__, __func__, #cond);                          \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* How many bytes come at once: each time the next of the cuts, small ones exactly, large ones by 64. */
static inline size_t fuzz_cut(const uint8_t *cuts, size_t n, size_t turn) {
    uint8_t cut = cuts[turn % n];
    return cut < 128 ? cut + 1u : (cut - 126u) * 64u;
}

#endif
