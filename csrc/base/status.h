/* Failures: a status to return and, for the calling thread, the sentence behind it. */
#ifndef HPC_STATUS_H
#define HPC_STATUS_H

#include "hpcomm/hpcomm.h"

/* Records the failure for hpc_last_error and returns status. op is a string literal. */
int hpc_fail(int status, const char *op, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same for HPC_ERR_PEER and HPC_ERR_TIMEOUT; ranks and waiting_for are copied and may be NULL when their count is
 * 0. */
int hpc_fail_ranks(int status, const char *op, const int *ranks, int n_ranks, const int *waiting_for, int n_waiting,
                   const char *format, ...) __attribute__((format(printf, 7, 8)));

/* The ranks of a failure; all are copied, and each list may be NULL when its count is 0. */
typedef struct hpc_fault {
    const int *ranks, *left, *waiting_for;
    const hpc_culprit *culprits;
    int n_ranks, n_left, n_waiting, n_culprits;
} hpc_fault;
int hpc_fail_fault(int status, const char *op, const hpc_fault *fault, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Gives the failure that was recorded last a detail. */
void hpc_error_set_detail(int detail);

/* HPC_ERR_INVALID with a detail (hpc_error_detail). */
int hpc_fail_detail(const char *op, int detail, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Grows with every failure that this thread records. */
unsigned long hpc_failures(void);

/* The same for HPC_ERR_TRANSPORT. */
int hpc_fail_transport(const char *op, const char *transport, int peer, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* While mute is set, failures of this thread are returned but not recorded: freeing a handle, which a garbage collector
 * may do at any time, leaves the last error alone. Returns the value before. */
int hpc_mute_errors(int mute);

#endif
