/* Failures: a status, which functions return, and a sentence, which is recorded for the calling thread. */
#ifndef HPC_STATUS_H
#define HPC_STATUS_H

#include "hpcomm/hpcomm.h"

/* Records a failure for hpc_last_error and returns status. op must be a string literal. */
int hpc_fail(int status, const char *op, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Does the same for HPC_ERR_PEER and HPC_ERR_TIMEOUT. The lists ranks and waiting_for are copied; a list may be NULL if
 * its count is 0. */
int hpc_fail_ranks(int status, const char *op, const int *ranks, int n_ranks, const int *waiting_for, int n_waiting,
                   const char *format, ...) __attribute__((format(printf, 7, 8)));

/* The ranks of a failure. All are copied; a list may be NULL if its count is 0. */
typedef struct hpc_fault {
    const int *ranks, *left, *waiting_for;
    const hpc_culprit *culprits;
    int n_ranks, n_left, n_waiting, n_culprits;
} hpc_fault;
int hpc_fail_fault(int status, const char *op, const hpc_fault *fault, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Adds a detail (hpc_error_detail) to the failure that was recorded last. */
void hpc_error_set_detail(int detail);

/* Records HPC_ERR_INVALID with a detail (hpc_error_detail) and returns it. */
int hpc_fail_detail(const char *op, int detail, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns a number that grows with every failure that this thread records. */
unsigned long hpc_failures(void);

/* Does what hpc_fail does, for HPC_ERR_TRANSPORT. */
int hpc_fail_transport(const char *op, const char *transport, int peer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* While mute is set, failures of this thread are returned but not recorded. A garbage collector may free a handle at
 * any time, and that must not change the last error. Returns the previous value. */
int hpc_mute_errors(int mute);

#endif
