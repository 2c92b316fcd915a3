/* The reader of frames, on one stream of a link. The input: how many streams, which of them, how much of the end is
 * missing, how the bytes are cut, then headers as they travel, each with a byte for every fence; payloads are made up
 * here, so that small inputs have large ones. What the reader does is held against what the headers say. */
#include "fuzz.h"

#include "transport/frame.h"

enum {
    CONTROL = 8, /* bytes before the first header */
    INPUT = 2048,
    FRAMES = INPUT / sizeof(hpc_frame) + 1,
    WINDOW = 12 << 10,
    PAYLOAD = WINDOW + 100, /* bytes at most that are made up for one frame */
    NEVER = 255             /* a fence that is never met */
};

/* Windows by their number; any other one is unknown. */
enum { GOOD = 0, GONE = 1, FAILS_DONE = 2 };

static struct {
    int stream, streams;
    unsigned char bytes[INPUT * sizeof(uint64_t) + FRAMES * PAYLOAD];
    size_t nbytes;
    struct {
        hpc_frame frame;
        uint64_t fences[HPC_TCP_STREAMS];
        size_t payload, end; /* in bytes */
    } frames[FRAMES];        /* good ones, the last one perhaps not whole */
    int n, whole;            /* how many, and how many of them are whole */
    int is_wrong;            /* what comes behind them */
    int placed, done;        /* by the reader */
    int failed;              /* what the sink said, if that ends the stream */
    uint64_t landed[HPC_TCP_STREAMS];
    char *window;
    unsigned char expected[WINDOW];
} job;

static hpc_memory memory = {.fd = -1, .references = 1};

/* ---- what the input says -------------------------------------------------------------------------------------------
 */

static int is_good(const hpc_frame *f) {
    if (f->magic != HPC_FRAME_MAGIC || f->type < 1 || f->type > 6 || f->flags > 2) return 0;
    if (f->type != HPC_FRAME_PUT && (f->flags || f->nbytes)) return 0;
    if (job.stream > 0) return f->type == HPC_FRAME_PUT && f->flags == 0 && f->fences == 0;
    return f->fences == 0 || f->fences == (uint32_t)job.streams - 1;
}

static void put(const void *data, size_t nbytes) {
    memcpy(job.bytes + job.nbytes, data, nbytes);
    job.nbytes += nbytes;
}

static void write_payload(uint64_t nbytes) {
    for (uint64_t i = 0; i < nbytes; i++)
        job.bytes[job.nbytes++] = (unsigned char)(i * 31 + (i >> 8) + (uint64_t)job.n);
}

static void write_stream(const uint8_t *data, size_t size) {
    while (size >= sizeof(hpc_frame)) {
        hpc_frame *f = &job.frames[job.n].frame;
        memcpy(f, data, sizeof *f);
        put(f, sizeof *f);
        data += sizeof *f;
        size -= sizeof *f;
        job.is_wrong = !is_good(f);
        if (job.is_wrong) break;
        if (size < f->fences) return;
        for (uint32_t i = 0; i < f->fences; i++) job.frames[job.n].fences[i] = data[i] == NEVER ? UINT64_MAX : data[i];
        put(job.frames[job.n].fences, f->fences * sizeof(uint64_t));
        data += f->fences;
        size -= f->fences;
        job.frames[job.n].payload = job.nbytes;
        write_payload(f->nbytes < PAYLOAD ? f->nbytes : PAYLOAD);
        job.n++;
        if (f->nbytes > PAYLOAD) return;
        job.frames[job.whole++].end = job.nbytes;
    }
    put(data, size);
}

static void cut_end(size_t nbytes) {
    size_t wrong = job.whole > 0 ? job.frames[job.whole - 1].end + sizeof(hpc_frame) : sizeof(hpc_frame);
    job.nbytes -= nbytes < job.nbytes ? nbytes : job.nbytes;
    job.is_wrong = job.is_wrong && wrong <= job.nbytes;
    while (job.n > 0 && job.frames[job.n - 1].payload > job.nbytes) job.n--;
    while (job.whole > 0 && job.frames[job.whole - 1].end > job.nbytes) job.whole--;
}

/* ---- the sink ------------------------------------------------------------------------------------------------------
 */

static void check(const hpc_frame *frame, int n) {
    REQUIRE(n < job.n && job.failed == HPC_OK);
    REQUIRE(memcmp(frame, &job.frames[n].frame, sizeof *frame) == 0);
    for (uint32_t i = 0; i < frame->fences; i++) REQUIRE(job.landed[i + 1] >= job.frames[n].fences[i]);
}

static int place(void *arg, const hpc_frame *frame, char **at, hpc_memory **kept, const char **why) {
    (void)arg;
    REQUIRE(frame->type == HPC_FRAME_PUT && job.placed == job.done);
    check(frame, job.placed++);
    *why = "refused";
    if (frame->window == GONE) return HPC_OK;
    if (frame->window > FAILS_DONE || frame->offset > WINDOW || frame->nbytes > WINDOW - frame->offset)
        return job.failed = HPC_ERR_INVALID;
    *at = job.window + frame->offset;
    *kept = hpc_memory_retain(&memory);
    return HPC_OK;
}

static int done(void *arg, int stream, const hpc_frame *frame, hpc_memory *kept, const char **why) {
    int is_kept = frame->type == HPC_FRAME_PUT && frame->window != GONE;
    (void)arg;
    REQUIRE(stream == job.stream && job.done < job.whole);
    if (frame->type != HPC_FRAME_PUT) job.placed++;
    check(frame, job.done);
    REQUIRE(kept == (is_kept ? &memory : NULL));
    if (is_kept) {
        memcpy(job.expected + frame->offset, job.bytes + job.frames[job.done].payload, frame->nbytes);
        REQUIRE(memcmp(job.window, job.expected, WINDOW) == 0);
    }
    job.done++;
    REQUIRE(job.placed == job.done);
    *why = "fails";
    return job.failed = is_kept && frame->window == FAILS_DONE ? HPC_ERR_PEER : HPC_OK;
}

/* ---- the stream ----------------------------------------------------------------------------------------------------
 */

static void check_part(const hpc_reader *reader, const struct iovec *part) {
    const char *from = part->iov_base, *to = from + part->iov_len, *staging = (const char *)reader->staging;
    REQUIRE(part->iov_len > 0);
    REQUIRE((from >= staging && to <= staging + HPC_STAGING) || (from >= job.window && to <= job.window + WINDOW));
}

static size_t receive(hpc_reader *reader, size_t *given, size_t most) {
    struct iovec parts[2];
    size_t got = 0;
    int n = hpc_reader_want(reader, parts);
    REQUIRE(n >= 0 && n <= 2);
    if (most > job.nbytes - *given) most = job.nbytes - *given;
    for (int i = 0; i < n; i++) {
        size_t part = parts[i].iov_len < most - got ? parts[i].iov_len : most - got;
        check_part(reader, &parts[i]);
        memcpy(parts[i].iov_base, job.bytes + *given + got, part);
        got += part;
    }
    *given += got;
    return got;
}

/* Until all is read, the reader refuses it, or a fence is never met. */
static int read_stream(hpc_reader *reader, const uint8_t *cuts, const char **why) {
    size_t given = 0;
    uint64_t waited = 0;
    int status = HPC_OK, was_held;
    for (size_t turn = 0; given < job.nbytes || status == HPC_IN_PROGRESS; turn++) {
        size_t got = receive(reader, &given, fuzz_cut(cuts, CONTROL - 3, turn));
        was_held = status == HPC_IN_PROGRESS;
        status = hpc_reader_got(reader, got, job.landed, &(hpc_sink){place, done, NULL}, why);
        if (status < 0) return status;
        REQUIRE(got > 0 || was_held);
        if (status == HPC_OK || got > 0) continue;
        if (waited >= NEVER) return status;
        job.landed[1 + waited % 7] += turn % 3 ? 40 : 1;
        waited++;
    }
    return status;
}

static int is_fenced(void) {
    const hpc_frame *f = &job.frames[job.done].frame;
    if (job.done == job.n) return 0;
    for (uint32_t i = 0; i < f->fences; i++)
        if (job.landed[i + 1] < job.frames[job.done].fences[i]) return 1;
    return 0;
}

static void check_end(const hpc_reader *reader, int status, const char *why) {
    REQUIRE(status >= 0 || why != NULL);
    REQUIRE(status < 0 || hpc_reader_is_held(reader) == (status == HPC_IN_PROGRESS));
    REQUIRE(status < 0 || (hpc_reader_left(reader) > 0) == (job.placed > job.done));
    if (job.failed != HPC_OK) {
        REQUIRE(status == job.failed);
    } else if (status == HPC_OK) {
        REQUIRE(!job.is_wrong && job.done == job.whole);
        REQUIRE(hpc_reader_is_idle(reader) == (job.nbytes == (job.done > 0 ? job.frames[job.done - 1].end : 0)));
    } else if (status == HPC_IN_PROGRESS) {
        REQUIRE(is_fenced() && job.placed == job.done);
    } else {
        REQUIRE(status == HPC_ERR_TRANSPORT && job.is_wrong && job.done == job.n);
    }
    if (reader->memory != NULL) { /* a payload that is still coming may lie where its frame says */
        const hpc_frame *f = &job.frames[job.done].frame;
        REQUIRE(status == HPC_OK && job.placed == job.done + 1);
        memcpy(job.expected + f->offset, job.window + f->offset, f->nbytes);
    }
    REQUIRE(memcmp(job.window, job.expected, WINDOW) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hpc_reader reader;
    const char *why = NULL;
    if (size < CONTROL || size > INPUT) return 0;
    job.streams = 1 + data[0] % HPC_TCP_STREAMS;
    job.stream = data[1] % job.streams;
    job.nbytes = 0;
    job.n = job.whole = job.is_wrong = job.placed = job.done = job.failed = 0;
    memset(job.landed, 0, sizeof job.landed);
    memset(job.expected, 0x5a, WINDOW);
    job.window = malloc(WINDOW); /* each time, so that ASan guards its ends */
    REQUIRE(job.window != NULL && hpc_reader_init(&reader, job.stream, job.streams) == HPC_OK);
    memset(job.window, 0x5a, WINDOW);
    write_stream(data + CONTROL, size - CONTROL);
    cut_end(32u * data[2]);

    int status = read_stream(&reader, data + 3, &why);
    check_end(&reader, status, why);
    hpc_reader_free(&reader);
    REQUIRE(memory.references == 1);
    free(job.window);
    return 0;
}
