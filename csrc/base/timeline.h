/* A record of a rank's threads over time, in a file that chrome://tracing and Perfetto read: a JSON array of trace
 * events, with the rank as pid and the thread as tid.
 *
 * Each thread writes its spans into its own track, without a lock: a ring of events with one producer. Its events are
 * written to the file, as text, when the ring is full, once a second, when the thread is about to sleep, when it ends,
 * and at close. The thread that writes a track holds its "writing" flag, which is contended only at close. Each write
 * appends whole lines to the file, so tracks need no order among each other, and the file of a killed rank ends after a
 * whole line. The format needs no closing bracket.
 *
 * The track of a thread that ended is used again by the next new thread of the same name, because Python makes a thread
 * for each collective.
 *
 * Without a timeline (NULL) a span costs one branch at its start and one at its end. */
#ifndef HPC_TIMELINE_H
#define HPC_TIMELINE_H

#include <stddef.h>
#include <stdint.h>

#include "base/host.h"

typedef struct hpc_timeline hpc_timeline;

enum { HPC_SPAN_RANKS = 8, HPC_LABEL_BYTES = 48 };

typedef enum hpc_span_kind {
    HPC_SPAN_CALL, /* a call of the library */
    HPC_SPAN_WAIT, /* a wait in op `name`, for ranks */
    HPC_SPAN_FOLD, /* rows of a key being folded, applied and written */
    HPC_SPAN_USER  /* a trainer's own span, named by label */
} hpc_span_kind;

/* A span, which is recorded when it ends. */
typedef struct hpc_span {
    hpc_timeline *timeline; /* NULL: nothing is recorded */
    double start;
    const char *name;  /* a string literal */
    const char *label; /* copied when the span ends, at most HPC_LABEL_BYTES - 1 bytes; NULL: none */
    hpc_span_kind kind;
    int n_ranks; /* number of all ranks; the first HPC_SPAN_RANKS are written */
    const int *ranks;
    uint64_t rows, bytes;
} hpc_span;

/* Opens a timeline file. In path every %r is replaced by number; without %r, ".rankN" is put before the suffix. A
 * second timeline of this process at the same path gets "-2" after that, and so on. number is this rank's number in the
 * first context, also after shrinks, so no other process of the job has the same. Returns HPC_ERR_CONFIG if the file
 * cannot be made. */
int hpc_timeline_open(const char *path, int number, int rank, int size, const char *host, hpc_timeline **timeline);

/* Writes the job's name, which only the timelines of this context's ranks share, once it is known. */
void hpc_timeline_name_job(hpc_timeline *timeline, const char *job);

/* Writes the records of all threads and ends the file; spans that end later are dropped. Returns 0, or the errno of the
 * first write that failed. */
int hpc_timeline_close(hpc_timeline *timeline);
void hpc_timeline_free(hpc_timeline *timeline); /* also closes, if needed; does nothing in a forked child */

void hpc_timeline_record(const hpc_span *span, double end);

/* Writes the calling thread's records to the file if the last write is long ago; called before the thread sleeps. */
void hpc_timeline_rest(hpc_timeline *timeline, double now);

/* Returns the time at which a span of the calling thread begins. Rows before that time are not joined with later rows
 * of the same key. */
double hpc_timeline_enter(hpc_timeline *timeline);

static inline hpc_span hpc_span_begin(hpc_timeline *timeline, const char *name, const char *label) {
    hpc_span span = {.timeline = timeline};
    if (__builtin_expect(timeline != NULL, 0)) {
        span.start = hpc_timeline_enter(timeline);
        span.name = name;
        span.label = label;
    }
    return span;
}

static inline hpc_span hpc_span_of_row(hpc_timeline *timeline, const char *key, uint64_t bytes) {
    hpc_span span = {.timeline = timeline};
    if (__builtin_expect(timeline != NULL, 0)) {
        span.start = hpc_now();
        span.label = key;
        span.kind = HPC_SPAN_FOLD;
        span.rows = 1;
        span.bytes = bytes;
    }
    return span;
}

static inline void hpc_span_end(hpc_span *span) {
    if (__builtin_expect(span->timeline != NULL, 0)) hpc_timeline_record(span, hpc_now());
}

/* Records a span from here to the end of the block, also when the block is left early. */
#define HPC_SPAN(timeline, name, label)                                                                                \
    __attribute__((cleanup(hpc_span_end))) hpc_span span_of_block = hpc_span_begin(timeline, name, label)

/* Records the work on a row, from here to the end of the block. Consecutive rows of a key become one span. */
#define HPC_SPAN_OF_ROW(timeline, key, bytes)                                                                          \
    __attribute__((cleanup(hpc_span_end))) hpc_span span_of_block = hpc_span_of_row(timeline, key, bytes)

#endif
