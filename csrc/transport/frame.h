/* The stream of a lane's TCP connections: frames, and the reader that puts their payload where it belongs.
 *
 * The reader does no input itself: it says where the next bytes are to go (the rest of a payload straight into the
 * window, then a small staging block for the headers behind it), and is told how many came. Nothing from the wire is
 * believed: every frame is checked, and the sink says whether and where its payload may be written.
 *
 * A link has up to HPC_TCP_STREAMS streams. Stream 0 carries everything that has an order; large puts are cut into
 * stripes over all of them. A frame of stream 0 that must not be seen before stripes of the other streams carries, in
 * as many fences, how many stripes the sender had put on each of these streams; the reader holds stream 0 until they
 * have landed. */
#ifndef HPC_FRAME_H
#define HPC_FRAME_H

#include <stdint.h>
#include <sys/uio.h>

#include "base/memory.h"

/* Bytes of staging. Beside the rest of a large payload only HPC_STAGING_BESIDE are read: the next payload may be as
 * large, and staged bytes are copied once more. */
enum { HPC_STAGING = 16384, HPC_STAGING_BESIDE = 2048 };

typedef enum hpc_frame_type {
    HPC_FRAME_PUT = 1,     /* nbytes at offset of window; then, by its flags, a signal or an event */
    HPC_FRAME_FLUSH = 2,   /* answer FLUSHED with the same value */
    HPC_FRAME_FLUSHED = 3, /* everything sent before the FLUSH of that value is in place */
    HPC_FRAME_CREDIT = 4,  /* value: how many events have been taken from the ring, ever */
    HPC_FRAME_WANT = 5,    /* the ring is full: send CREDIT at the next take */
    HPC_FRAME_CLOSE = 6    /* the sender's lane is gone; its end of the connection still answers */
} hpc_frame_type;

enum { HPC_FRAME_SIGNAL = 1, HPC_FRAME_EVENT = 2 }; /* flags of a PUT, one of them at most; only on stream 0 */

typedef struct hpc_frame {
    uint16_t magic; /* HPC_FRAME_MAGIC */
    uint8_t type, flags;
    uint32_t window; /* the receiver's number of it */
    uint64_t offset; /* bytes, in the window's data */
    uint64_t nbytes; /* of the payload, which follows header and fences */
    uint64_t value;  /* of the signal; of an event the bytes of the whole put */
    uint32_t word;   /* the signal's index, or the event's immediate */
    uint16_t fences; /* uint64_t each, between header and payload; stream 0 only, 0 or streams - 1 */
    uint16_t behind; /* units of HPC_BEHIND bytes that were queued behind it on its stream when it was sent */
} hpc_frame;

enum { HPC_FRAME_MAGIC = 0x7068, HPC_BEHIND = 4096 };
_Static_assert(sizeof(hpc_frame) == 40, "a frame's header has no holes");

/* Listeners of a reader. Negative statuses end the connection; why gets a few words (static). */
typedef struct hpc_sink {
    /* Once for each PUT, when header and fences are there and met, also with no payload: checks window, bounds and
     * signal. HPC_OK with *at, where frame->nbytes may be written, and in *memory a reference that keeps it mapped,
     * which the reader gives back; both come as NULL. *at left NULL: the window is gone, the payload is dropped. */
    int (*place)(void *arg, const hpc_frame *frame, char **at, hpc_memory **memory, const char **why);
    /* For every frame: its payload, if any, is in place or dropped, and every fence has been met. memory is what place
     * gave, and lives until done returns. */
    int (*done)(void *arg, int stream, const hpc_frame *frame, hpc_memory *memory, const char **why);
    void *arg;
} hpc_sink;

/* One stream's. */
typedef struct hpc_reader {
    int stream, streams;
    int state;           /* of frame.c */
    size_t staged, used; /* bytes in staging, and how many of them are worked off; used is 0 between calls */
    hpc_frame frame;
    uint64_t fences[HPC_TCP_STREAMS - 1];
    char *at; /* where the rest of the payload goes; NULL: dropped */
    uint64_t left;
    hpc_memory *memory;
    unsigned char *staging; /* HPC_STAGING bytes */
} hpc_reader;

/* HPC_OK or HPC_ERR_MEMORY (not recorded). */
int hpc_reader_init(hpc_reader *reader, int stream, int streams);
void hpc_reader_free(hpc_reader *reader);

/* Finds the place for the next bytes: fills one or two parts and returns how many; 0 while a fence holds the stream and
 * staging is full. A part is never empty. */
int hpc_reader_want(hpc_reader *reader, struct iovec parts[2]);

/* nbytes came into the parts of the last want (0: nothing came, but a fence may be met now). landed: stripes in place
 * by stream (of streams entries, [0] unused), looked at again for each frame. Works off whole frames in order. HPC_OK:
 * go on reading; HPC_IN_PROGRESS: a fence holds it; negative: a violation, why gets a few words, or the sink's status,
 * and the reader can only be freed. */
int hpc_reader_got(hpc_reader *reader, size_t nbytes, const uint64_t *landed, const hpc_sink *sink, const char **why);

/* Whether a fence, not yet met, holds the stream. */
int hpc_reader_is_held(const hpc_reader *reader);

/* Bytes that are sure to come: the rest of the payload at hand, and the bytes that were queued behind its frame. Both
 * are 0 between payloads. */
uint64_t hpc_reader_left(const hpc_reader *reader);
uint64_t hpc_reader_behind(const hpc_reader *reader);

/* Whether the stream may end here: between two frames, nothing staged. */
int hpc_reader_is_idle(const hpc_reader *reader);

#endif
