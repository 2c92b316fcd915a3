#include "transport/frame.h"

#include <stdlib.h>
#include <string.h>

/* The reader's states. Between two calls staging is empty inside a payload; between frames it begins with a header. */
enum { AT_HEADER = 0, AT_FENCE, AT_PAYLOAD };

int hpc_reader_init(hpc_reader *reader, int stream, int streams) {
    *reader = (hpc_reader){.stream = stream, .streams = streams, .state = AT_HEADER};
    reader->staging = malloc(HPC_STAGING);
    return reader->staging ? HPC_OK : HPC_ERR_MEMORY;
}

void hpc_reader_free(hpc_reader *reader) {
    hpc_memory_release(reader->memory);
    reader->memory = NULL;
    free(reader->staging);
    reader->staging = NULL;
}

int hpc_reader_is_idle(const hpc_reader *reader) {
    return reader->state == AT_HEADER && reader->staged == 0;
}

int hpc_reader_is_held(const hpc_reader *reader) {
    return reader->state == AT_FENCE;
}

uint64_t hpc_reader_left(const hpc_reader *reader) {
    return reader->state == AT_PAYLOAD ? reader->left : 0;
}

uint64_t hpc_reader_behind(const hpc_reader *reader) {
    return reader->state == AT_PAYLOAD ? (uint64_t)reader->frame.behind * HPC_BEHIND : 0;
}

/* Returns how many bytes of payload are still to be read straight into the window. */
static uint64_t direct(const hpc_reader *reader) {
    return reader->state == AT_PAYLOAD && reader->at != NULL ? reader->left : 0;
}

int hpc_reader_want(hpc_reader *reader, struct iovec parts[2]) {
    int n = 0;
    uint64_t payload = direct(reader);
    size_t room = HPC_STAGING - reader->staged;
    if (payload > 0) parts[n++] = (struct iovec){reader->at, (size_t)payload};
    if (payload >= HPC_STAGING && room > HPC_STAGING_BESIDE) room = HPC_STAGING_BESIDE;
    if (room > 0) parts[n++] = (struct iovec){reader->staging + reader->staged, room};
    return n;
}

static const char *violation(const hpc_reader *reader) {
    const hpc_frame *f = &reader->frame;
    if (f->magic != HPC_FRAME_MAGIC) return "bytes that are not the head of a frame";
    if (f->type < HPC_FRAME_PUT || f->type > HPC_FRAME_CLOSE) return "a frame of an unknown type";
    if (f->flags != 0 && f->flags != HPC_FRAME_SIGNAL && f->flags != HPC_FRAME_EVENT)
        return "a frame with unknown flags";
    if (f->type != HPC_FRAME_PUT && f->flags != 0) return "flags on a frame other than a put";
    if (f->type != HPC_FRAME_PUT && f->nbytes != 0) return "a payload on a frame other than a put";
    if (reader->stream == 0) {
        if (f->fences != 0 && (int)f->fences != reader->streams - 1) return "a frame with a wrong number of fences";
    } else {
        if (f->type != HPC_FRAME_PUT || f->flags != 0) return "a frame of stream 0 on another stream";
        if (f->fences != 0) return "fences on a stream other than 0";
    }
    return NULL;
}

/* Takes a header and its fences out of staging. Returns HPC_IN_PROGRESS until all their bytes are there. */
static int take_header(hpc_reader *reader, const char **why) {
    size_t there = reader->staged - reader->used, fences;
    const unsigned char *from = reader->staging + reader->used;
    if (there < sizeof reader->frame) return HPC_IN_PROGRESS;
    memcpy(&reader->frame, from, sizeof reader->frame);
    *why = violation(reader);
    if (*why != NULL) return HPC_ERR_TRANSPORT;
    fences = reader->frame.fences * sizeof *reader->fences;
    if (there - sizeof reader->frame < fences) return HPC_IN_PROGRESS;
    memcpy(reader->fences, from + sizeof reader->frame, fences);
    reader->used += sizeof reader->frame + fences;
    return HPC_OK;
}

static int is_fenced(const hpc_reader *reader, const uint64_t *landed) {
    for (uint32_t i = 0; i < reader->frame.fences; i++)
        if (landed[i + 1] < reader->fences[i]) return 1;
    return 0;
}

static int place(hpc_reader *reader, const hpc_sink *sink, const char **why) {
    char *at = NULL;
    hpc_memory *memory = NULL;
    if (reader->frame.type == HPC_FRAME_PUT) {
        int status = sink->place(sink->arg, &reader->frame, &at, &memory, why);
        if (status != HPC_OK) return status;
    }
    reader->at = at;
    reader->memory = memory;
    reader->left = reader->frame.nbytes;
    return HPC_OK;
}

/* Takes payload that was staged behind its header. */
static void unstage(hpc_reader *reader) {
    size_t nbytes = reader->staged - reader->used;
    if (nbytes > reader->left) nbytes = (size_t)reader->left;
    if (nbytes == 0) return;
    if (reader->at != NULL) {
        memcpy(reader->at, reader->staging + reader->used, nbytes);
        reader->at += nbytes;
    }
    reader->used += nbytes;
    reader->left -= nbytes;
}

static int finish(hpc_reader *reader, const hpc_sink *sink, const char **why) {
    hpc_memory *memory = reader->memory;
    int status = sink->done(sink->arg, reader->stream, &reader->frame, memory, why);
    reader->memory = NULL;
    hpc_memory_release(memory);
    return status;
}

/* Handles all staged bytes that can be handled now. Returns HPC_OK when it needs more bytes, HPC_IN_PROGRESS at an
 * unmet fence. */
static int work_off(hpc_reader *reader, const uint64_t *landed, const hpc_sink *sink, const char **why) {
    for (;;) {
        int status;
        switch (reader->state) {
        case AT_HEADER:
            status = take_header(reader, why);
            if (status != HPC_OK) return status == HPC_IN_PROGRESS ? HPC_OK : status;
            reader->state = AT_FENCE;
            break;
        case AT_FENCE:
            if (is_fenced(reader, landed)) return HPC_IN_PROGRESS;
            status = place(reader, sink, why);
            if (status != HPC_OK) return status;
            reader->state = AT_PAYLOAD;
            break;
        default:
            unstage(reader);
            if (reader->left > 0) return HPC_OK;
            status = finish(reader, sink, why);
            if (status != HPC_OK) return status;
            reader->state = AT_HEADER;
        }
    }
}

int hpc_reader_got(hpc_reader *reader, size_t nbytes, const uint64_t *landed, const hpc_sink *sink, const char **why) {
    uint64_t payload = direct(reader);
    if (payload > nbytes) payload = nbytes;
    if (payload > 0) {
        reader->at += payload;
        reader->left -= payload;
    }
    reader->staged += nbytes - (size_t)payload;

    int status = work_off(reader, landed, sink, why);
    /* Moves the unused bytes to the front: less than a header with its fences, or bytes behind an unmet fence. Such
     * bytes are moved only once. */
    if (reader->used > 0) {
        reader->staged -= reader->used;
        memmove(reader->staging, reader->staging + reader->used, reader->staged);
        reader->used = 0;
    }
    return status;
}
