/* The byte stream of a lane's TCP connections: the frames, and the reader that puts their payload into windows.
 *
 * The reader does no input itself. It tells its caller where the next bytes go: the rest of a payload goes straight
 * into the window, headers go into a small staging block. The caller then tells it how many bytes came. The reader
 * trusts no byte from the network: it checks every frame, and asks the sink whether and where a payload may be
 * written.
 *
 * A link has up to HPC_TCP_STREAMS streams. Stream 0 carries every frame whose order matters. Large puts are cut
 * into stripes, one for each stream. A frame of stream 0 that must come after the stripes before it carries a fence
 * for each other stream: the number of stripes that the sender had put on it. The reader holds stream 0 until that
 * many have landed. */
#ifndef HPC_FRAME_H
#define HPC_FRAME_H

#include <stdint.h>
#include <sys/uio.h>

#include "base/memory.h"

/* Bytes of staging. Behind the rest of a large payload only HPC_STAGING_BESIDE are read at once: the next payload
 * may be large too, and staged bytes cost a copy. */
enum { HPC_STAGING = 16384, HPC_STAGING_BESIDE = 2048 };

typedef enum hpc_frame_type {
    HPC_FRAME_PUT = 1,     /* writes nbytes at offset of window; its flag may add a signal or an event */
    HPC_FRAME_FLUSH = 2,   /* answer FLUSHED with the same value */
    HPC_FRAME_FLUSHED = 3, /* all frames before the FLUSH with this value are in place */
    HPC_FRAME_CREDIT = 4,  /* value: the number of events taken from the ring since the beginning */
    HPC_FRAME_WANT = 5,    /* the sender found the ring full: send CREDIT when an event is taken */
    HPC_FRAME_CLOSE = 6    /* the sender's lane is freed; its end of the connection still answers */
} hpc_frame_type;

enum { HPC_FRAME_SIGNAL = 1, HPC_FRAME_EVENT = 2 }; /* flags of a PUT: at most one, on stream 0 only */

typedef struct hpc_frame {
    uint16_t magic; /* HPC_FRAME_MAGIC */
    uint8_t type, flags;
    uint32_t window; /* the receiver's number for the window */
    uint64_t offset; /* bytes, in the window's data */
    uint64_t nbytes; /* payload bytes, which follow the header and the fences */
    uint64_t value;  /* the signal's value; for an event, the bytes of the whole put */
    uint32_t word;   /* the signal's index, or the event's immediate */
    uint16_t fences; /* uint64_t fences between header and payload: streams - 1 or 0, on stream 0 only */
    uint16_t behind; /* bytes queued behind this frame on its stream when it was sent, in units of HPC_BEHIND */
} hpc_frame;

enum { HPC_FRAME_MAGIC = 0x7068, HPC_BEHIND = 4096 };
_Static_assert(sizeof(hpc_frame) == 40, "a frame's header has no holes");

/* Callbacks of a reader. A negative status ends the connection, and *why gets a few words (static). */
typedef struct hpc_sink {
    /* Called once for each PUT, even without payload, after its header and fences came and the fences were met.
     * Checks window, bounds and signal. On HPC_OK, *at is where frame->nbytes may be written, and *memory a
     * reference that keeps the window mapped until the reader releases it. Both are NULL before the call. If *at
     * stays NULL, the window is freed and the payload is dropped. */
    int (*place)(void *arg, const hpc_frame *frame, char **at, hpc_memory **memory, const char **why);
    /* Called for every frame when its payload is in place or dropped and its fences were met. memory is the
     * reference from place, and stays valid until done returns. */
    int (*done)(void *arg, int stream, const hpc_frame *frame, hpc_memory *memory, const char **why);
    void *arg;
} hpc_sink;

/* The reader of one stream. */
typedef struct hpc_reader {
    int stream, streams;
    int state;           /* a state of frame.c */
    size_t staged, used; /* bytes in staging; used: how many of them have been handled, 0 between calls */
    hpc_frame frame;
    uint64_t fences[HPC_TCP_STREAMS - 1];
    char *at; /* where the rest of the payload goes; NULL: it is dropped */
    uint64_t left;
    hpc_memory *memory;
    unsigned char *staging; /* HPC_STAGING bytes */
} hpc_reader;

/* Returns HPC_OK, or HPC_ERR_MEMORY without recording it. */
int hpc_reader_init(hpc_reader *reader, int stream, int streams);
void hpc_reader_free(hpc_reader *reader);

/* Fills one or two parts, none of them empty, with the places for the next bytes, and returns their number. Returns
 * 0 while a fence holds the stream and staging is full. */
int hpc_reader_want(hpc_reader *reader, struct iovec parts[2]);

/* Handles nbytes that came into the parts of the last hpc_reader_want; 0 if no bytes came but a fence may be met
 * now. landed[k] is the number of stripes of stream k that are in place; [0] is unused. The reader loads it again
 * for each frame. Handles whole frames in order. Returns HPC_OK to read more; HPC_IN_PROGRESS while a fence holds
 * the stream; or a negative status: the sink's, or HPC_ERR_TRANSPORT with *why for an invalid frame. After an error
 * the reader can only be freed. */
int hpc_reader_got(hpc_reader *reader, size_t nbytes, const uint64_t *landed, const hpc_sink *sink, const char **why);

/* Returns whether an unmet fence holds the stream. */
int hpc_reader_is_held(const hpc_reader *reader);

/* Return the bytes that are sure to come: the rest of the current payload, and the bytes that were queued behind its
 * frame. Both are 0 between payloads. */
uint64_t hpc_reader_left(const hpc_reader *reader);
uint64_t hpc_reader_behind(const hpc_reader *reader);

/* Returns whether the stream may end here: it is between two frames, and staging is empty. */
int hpc_reader_is_idle(const hpc_reader *reader);

#endif
