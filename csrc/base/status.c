#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024, RANKS_KEPT = 1024, CULPRITS_KEPT = 64 };

/* One block per thread, in thread-local storage, so that a failure can be recorded without allocating memory. */
static _Thread_local struct {
    hpc_error error;
    char message[MESSAGE_BYTES];
    int ranks[RANKS_KEPT];
    int waiting_for[RANKS_KEPT];
    int left[RANKS_KEPT];
    hpc_culprit culprits[CULPRITS_KEPT];
    unsigned long failures;
} last = {.error = {.status = HPC_OK, .message = "", .op = "", .transport = "", .peer = -1}};

const hpc_error *hpc_last_error(void) {
    last.error.message = last.message;
    last.error.ranks = last.ranks;
    last.error.waiting_for = last.waiting_for;
    last.error.left = last.left;
    last.error.culprits = last.culprits;
    return &last.error;
}

const char *hpc_status_text(int status) {
    switch (status) {
    case HPC_OK:
        return "ok";
    case HPC_IN_PROGRESS:
        return "in progress";
    case HPC_ERR_INVALID:
        return "invalid argument";
    case HPC_ERR_CONFIG:
        return "configuration error";
    case HPC_ERR_UNSUPPORTED:
        return "not supported";
    case HPC_ERR_TRANSPORT:
        return "transport error";
    case HPC_ERR_PEER:
        return "peer failed";
    case HPC_ERR_TIMEOUT:
        return "timed out";
    case HPC_ERR_AUTH:
        return "authentication failed";
    case HPC_ERR_MEMORY:
        return "out of memory";
    default:
        return "unknown status";
    }
}

static int keep(int *to, const int *from, int n) {
    if (n > RANKS_KEPT) n = RANKS_KEPT;
    if (n > 0) memcpy(to, from, (size_t)n * sizeof *to);
    return n;
}

static _Thread_local int muted;

int hpc_mute_errors(int mute) {
    int before = muted;
    muted = mute;
    return before;
}

static int record(int status, const char *op, const char *format, va_list args) {
    if (muted) return status;
    vsnprintf(last.message, sizeof last.message, format, args);
    last.error.status = status;
    last.error.op = op;
    last.error.transport = "";
    last.error.peer = -1;
    last.error.n_ranks = last.error.n_waiting = last.error.n_left = last.error.n_culprits = 0;
    last.error.detail = HPC_DETAIL_NONE;
    last.failures++;
    return status;
}

unsigned long hpc_failures(void) {
    return last.failures;
}

int hpc_fail(int status, const char *op, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(status, op, format, args);
    va_end(args);
    return status;
}

static void keep_fault(const hpc_fault *f) {
    last.error.n_ranks = keep(last.ranks, f->ranks, f->n_ranks);
    last.error.n_left = keep(last.left, f->left, f->n_left);
    last.error.n_waiting = keep(last.waiting_for, f->waiting_for, f->n_waiting);
    last.error.n_culprits = f->n_culprits < CULPRITS_KEPT ? f->n_culprits : CULPRITS_KEPT;
    if (f->n_culprits > 0) memcpy(last.culprits, f->culprits, (size_t)last.error.n_culprits * sizeof *f->culprits);
}

int hpc_fail_fault(int status, const char *op, const hpc_fault *fault, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(status, op, format, args);
    va_end(args);
    if (!muted) keep_fault(fault);
    return status;
}

int hpc_fail_ranks(int status, const char *op, const int *ranks, int n_ranks, const int *waiting_for, int n_waiting,
                   const char *format, ...) {
    const hpc_fault fault = {.ranks = ranks, .waiting_for = waiting_for, .n_ranks = n_ranks, .n_waiting = n_waiting};
    va_list args;
    va_start(args, format);
    record(status, op, format, args);
    va_end(args);
    if (!muted) keep_fault(&fault);
    return status;
}

int hpc_fail_detail(const char *op, int detail, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(HPC_ERR_INVALID, op, format, args);
    va_end(args);
    if (!muted) last.error.detail = detail;
    return HPC_ERR_INVALID;
}

void hpc_error_set_detail(int detail) {
    if (!muted) last.error.detail = detail;
}

int hpc_fail_transport(const char *op, const char *transport, int peer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(HPC_ERR_TRANSPORT, op, format, args);
    va_end(args);
    if (muted) return HPC_ERR_TRANSPORT;
    last.error.transport = transport;
    last.error.peer = peer;
    return HPC_ERR_TRANSPORT;
}
