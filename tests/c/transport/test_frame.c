/* The reader of frames: any frames, cut anywhere, over several streams whose fences are met in any order, against what
 * was sent; every check that a frame can fail; and that nothing is written but where the sink said. */
#include "check.h"
#include "transport/frame.h"
#include "ranks.h"

#include <stdatomic.h>

enum {
    WINDOW = 3 << 20,
    GONE = 7, /* the number of a window that is no more */
    HERE = 2,
    GUARD = 64, /* bytes before each payload, and behind the last */
    FRAMES = 300,
    MOST = 200 << 10, /* bytes of a payload */
    HEADER = sizeof(hpc_frame),
    FILL = 0x5a
};

static uint64_t below(uint64_t n) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

typedef struct sent {
    hpc_frame frame;
    uint64_t fences[HPC_TCP_STREAMS];
    size_t end; /* in the stream's bytes */
} sent;

/* One stream: what its sender wrote, and how far the reader is. */
typedef struct stream {
    unsigned char *bytes;
    size_t nbytes, room, given, calls;
    sent frames[FRAMES];
    int n, placed, done;
    hpc_reader reader;
} stream;

typedef struct job {
    int n;
    stream streams[HPC_TCP_STREAMS];
    uint64_t landed[HPC_TCP_STREAMS];
    hpc_memory *window;
    unsigned char *expected; /* the window at the end */
    uint64_t end;            /* of the last payload in it */
    int place_status, done_status;
    const char *why;
} job;

/* ---- the sender ----------------------------------------------------------------------------------------------------
 */

static void append(stream *s, const void *data, size_t nbytes) {
    if (nbytes == 0) return;
    if (s->nbytes + nbytes > s->room) {
        s->room = 2 * (s->nbytes + nbytes);
        s->bytes = realloc(s->bytes, s->room);
        CHECK(s->bytes != NULL);
    }
    memcpy(s->bytes + s->nbytes, data, nbytes);
    s->nbytes += nbytes;
}

static void send_frame(job *j, int k, hpc_frame frame, const uint64_t *fences) {
    static unsigned char payload[MOST];
    stream *s = &j->streams[k];
    CHECK(s->n < FRAMES);
    sent *what = &s->frames[s->n++];
    what->frame = frame;
    append(s, &frame, sizeof frame);
    if (frame.fences > 0) {
        memcpy(what->fences, fences, frame.fences * sizeof *fences);
        append(s, fences, frame.fences * sizeof *fences);
    }
    for (size_t i = 0; i < frame.nbytes; i++) payload[i] = (unsigned char)below(256);
    append(s, payload, frame.nbytes);
    what->end = s->nbytes;
    if (frame.window == HERE) memcpy(j->expected + frame.offset, payload, frame.nbytes);
}

/* A put of nbytes behind all others, or of fewer where the window ends. */
static hpc_frame put_of(job *j, uint64_t nbytes) {
    uint64_t left = WINDOW - GUARD - (j->end + GUARD);
    if (nbytes > left) nbytes = left;
    hpc_frame frame = {.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT, .window = HERE, .nbytes = nbytes};
    frame.offset = j->end + GUARD;
    frame.value = below(1000);
    frame.word = (uint32_t)below(1000);
    if (nbytes > 0) j->end = frame.offset + nbytes;
    return frame;
}

static uint64_t any_size(uint64_t most) {
    switch (below(12)) {
    case 0:
    case 1:
        return 0;
    case 2:
    case 3:
    case 4:
        return 8;
    case 5:
        return below(most + 1);
    case 6:
        return HPC_STAGING - HEADER - 60 + below(120);
    case 7:
        return HPC_STAGING - 60 + below(120);
    default:
        return below(300);
    }
}

/* The sender puts pieces on any stream; what goes by stream 0 is ordered behind some of the others' pieces by fences.
 */
static void send_any(job *j, uint64_t most) {
    int k = (int)below((uint64_t)j->n);
    uint64_t fences[HPC_TCP_STREAMS] = {0};
    hpc_frame frame;
    if (j->streams[k].n == FRAMES || j->end + 2 * GUARD >= WINDOW) return;
    if (k == 0 && below(4) == 0) {
        frame =
            (hpc_frame){.magic = HPC_FRAME_MAGIC, .type = (uint8_t)(HPC_FRAME_FLUSH + below(5)), .value = below(99)};
    } else {
        frame = put_of(j, any_size(most));
        if (k == 0) frame.flags = (uint8_t)below(3);
        if (below(10) == 0) frame.window = GONE;
    }
    if (k == 0 && j->n > 1 && below(2)) {
        frame.fences = (uint16_t)(j->n - 1);
        for (int i = 1; i < j->n; i++) fences[i - 1] = below(2) ? (uint64_t)j->streams[i].n : 0;
    }
    send_frame(j, k, frame, fences);
}

/* ---- the sink ------------------------------------------------------------------------------------------------------
 */

static job *of_reader(void *arg, int *k) {
    stream *s = arg;
    *k = s->reader.stream;
    return (job *)(void *)((char *)(s - *k) - offsetof(job, streams));
}

static void check_frame(const job *j, const hpc_frame *frame, const sent *what) {
    CHECK(memcmp(frame, &what->frame, sizeof *frame) == 0);
    for (uint32_t i = 0; i < frame->fences; i++) CHECK(j->landed[i + 1] >= what->fences[i]);
}

static int place(void *arg, const hpc_frame *frame, char **at, hpc_memory **memory, const char **why) {
    int k;
    job *j = of_reader(arg, &k);
    stream *s = &j->streams[k];
    CHECK(*at == NULL && *memory == NULL);
    CHECK_EQ(frame->type, HPC_FRAME_PUT);
    CHECK(s->placed == s->done && s->placed < s->n);
    check_frame(j, frame, &s->frames[s->placed]);
    if (j->place_status != HPC_OK) {
        *why = "place fails";
        return j->place_status;
    }
    s->placed++;
    if (frame->window == GONE) return HPC_OK;
    *at = (char *)hpc_memory_data(j->window) + frame->offset;
    *memory = hpc_memory_retain(j->window);
    return HPC_OK;
}

static int done(void *arg, int k_, const hpc_frame *frame, hpc_memory *memory, const char **why) {
    int k;
    job *j = of_reader(arg, &k);
    stream *s = &j->streams[k];
    const char *data = hpc_memory_data(j->window);
    CHECK_EQ(k_, k);
    CHECK(s->done < s->n);
    check_frame(j, frame, &s->frames[s->done++]);
    if (frame->type != HPC_FRAME_PUT) s->placed++;
    CHECK_EQ(s->placed, s->done);
    if (frame->window == HERE) {
        CHECK(memory == j->window && atomic_load(&memory->references) > 1);
        CHECK(memcmp(data + frame->offset, j->expected + frame->offset, frame->nbytes) == 0);
    } else {
        CHECK(memory == NULL);
    }
    j->landed[k]++;
    if (j->done_status != HPC_OK) *why = "done fails";
    return j->done_status;
}

/* ---- the receiver --------------------------------------------------------------------------------------------------
 */

static job *start(int n) {
    job *j = calloc(1, sizeof *j);
    CHECK(j != NULL);
    j->n = n;
    j->expected = malloc(WINDOW);
    CHECK(j->expected != NULL);
    CHECK_OK(hpc_memory_create(WINDOW, "test", &j->window));
    memset(hpc_memory_data(j->window), FILL, WINDOW);
    memset(j->expected, FILL, WINDOW);
    for (int k = 0; k < n; k++) CHECK_OK(hpc_reader_init(&j->streams[k].reader, k, n));
    return j;
}

/* Gives a stream's next bytes, most of them at the most, as readv would. */
static int feed(job *j, int k, size_t most) {
    stream *s = &j->streams[k];
    struct iovec parts[2];
    size_t got = 0, left = s->nbytes - s->given;
    int n = hpc_reader_want(&s->reader, parts);
    CHECK(n >= 0 && n <= 2);
    if (left > most) left = most;
    for (int i = 0; i < n; i++) {
        size_t part = parts[i].iov_len < left ? parts[i].iov_len : left;
        CHECK(parts[i].iov_len > 0);
        if (part > 0) memcpy(parts[i].iov_base, s->bytes + s->given, part);
        s->given += part;
        got += part;
        left -= part;
    }
    s->calls++;
    j->why = NULL;
    return hpc_reader_got(&s->reader, got, j->landed, &(hpc_sink){place, done, s}, &j->why);
}

static void check_window(const job *j) {
    CHECK(memcmp(hpc_memory_data(j->window), j->expected, WINDOW) == 0);
}

static void finish(job *j) {
    for (int k = 0; k < j->n; k++) {
        hpc_reader_free(&j->streams[k].reader);
        free(j->streams[k].bytes);
    }
    CHECK_EQ(atomic_load(&j->window->references), 1);
    hpc_memory_release(j->window);
    free(j->expected);
    free(j);
}

/* ---- tests ---------------------------------------------------------------------------------------------------------
 */

static size_t any_cut(int mode) {
    static const size_t most[] = {1, 50, 5000, 70000};
    return mode < 4 ? 1 + below(most[mode]) : SIZE_MAX;
}

static void test_any_frames(int n, int mode) {
    job *j = start(n);
    for (uint64_t i = 1 + below(FRAMES); i > 0; i--) send_any(j, mode == 0 ? MOST / 40 : MOST);
    for (int left = n; left > 0;) {
        int k = (int)below((uint64_t)n);
        stream *s = &j->streams[k];
        int status = feed(j, k, any_cut(mode));
        CHECK(status == HPC_OK || (status == HPC_IN_PROGRESS && s->done < s->n));
        CHECK_EQ(hpc_reader_is_held(&s->reader), status == HPC_IN_PROGRESS);
        CHECK_EQ(hpc_reader_is_idle(&s->reader), s->given == (s->done > 0 ? s->frames[s->done - 1].end : 0));
        left = 0;
        for (int i = 0; i < n; i++) left += j->streams[i].done < j->streams[i].n;
    }
    for (int k = 0; k < n; k++) {
        CHECK_EQ(j->streams[k].given, j->streams[k].nbytes);
        CHECK(hpc_reader_is_idle(&j->streams[k].reader));
    }
    check_window(j);
    finish(j);
}

/* A payload of any size takes the call that brings its header and one more; small frames go by as many as there are. */
static void test_few_calls(void) {
    job *j = start(1);
    stream *s = &j->streams[0];
    struct iovec parts[2];
    char *data = hpc_memory_data(j->window);
    hpc_frame frame = put_of(j, MOST);
    frame.behind = 3; /* so much more is sure to come */
    send_frame(j, 0, frame, NULL);
    CHECK_OK(feed(j, 0, HEADER + 5));
    CHECK_EQ(hpc_reader_want(&s->reader, parts), 2);
    CHECK(parts[0].iov_base == data + frame.offset + 5 && parts[0].iov_len == MOST - 5);
    const size_t beside = MOST - 5 < HPC_STAGING ? HPC_STAGING : HPC_STAGING_BESIDE;
    CHECK(parts[1].iov_base == s->reader.staging && parts[1].iov_len == beside);
    CHECK_EQ(hpc_reader_left(&s->reader), MOST - 5);
    CHECK_EQ(hpc_reader_behind(&s->reader), 3 * HPC_BEHIND);
    for (int i = 0; i < 20; i++) send_frame(j, 0, put_of(j, 8), NULL);
    CHECK_OK(feed(j, 0, SIZE_MAX));
    CHECK_EQ(s->calls, 2);
    CHECK_EQ(s->done, 21);
    CHECK_EQ(hpc_reader_left(&s->reader), 0);
    CHECK_EQ(hpc_reader_want(&s->reader, parts), 1);
    CHECK(parts[0].iov_base == s->reader.staging && parts[0].iov_len == HPC_STAGING);
    check_window(j);
    finish(j);
}

/* A header cut in two leaves the whole rest of staging free. */
static void test_partial_header(void) {
    job *j = start(8);
    stream *s = &j->streams[0];
    struct iovec parts[2];
    uint64_t fences[7] = {0};
    hpc_frame frame;
    for (int i = 0; i < 80; i++) send_frame(j, 0, put_of(j, 8), NULL);
    frame = put_of(j, 100);
    frame.fences = 7;
    send_frame(j, 0, frame, fences);
    CHECK_OK(feed(j, 0, 80 * (HEADER + 8) + HEADER + 55));
    CHECK_EQ(s->done, 80);
    CHECK_EQ(s->placed, 80);
    CHECK_EQ(hpc_reader_want(&s->reader, parts), 1);
    CHECK_EQ(parts[0].iov_len, HPC_STAGING - HEADER - 55);
    CHECK_OK(feed(j, 0, 1));
    CHECK_EQ(s->placed, 81);
    CHECK_OK(feed(j, 0, SIZE_MAX));
    check_window(j);
    finish(j);
}

/* Each fence alone holds the stream, before place; the rest waits in staging until that is full. */
static void test_fences(void) {
    job *j = start(4);
    stream *s = &j->streams[0];
    struct iovec parts[2];
    const uint64_t fences[] = {3, 0, 2};
    hpc_frame frame = put_of(j, MOST);
    frame.fences = 3;
    send_frame(j, 0, frame, fences);
    CHECK_STATUS(feed(j, 0, HEADER + 24), HPC_IN_PROGRESS);
    CHECK_EQ(hpc_reader_want(&s->reader, parts), 1);
    CHECK_EQ(parts[0].iov_len, HPC_STAGING);
    CHECK(!hpc_reader_is_idle(&s->reader));
    CHECK_STATUS(feed(j, 0, SIZE_MAX), HPC_IN_PROGRESS);
    CHECK_EQ(hpc_reader_want(&s->reader, parts), 0);
    j->landed[1] = 3, j->landed[2] = 9, j->landed[3] = 1;
    CHECK_STATUS(feed(j, 0, 0), HPC_IN_PROGRESS);
    j->landed[1] = 2, j->landed[3] = 2;
    CHECK_STATUS(feed(j, 0, 0), HPC_IN_PROGRESS);
    CHECK_EQ(s->placed, 0);
    CHECK_EQ(hpc_reader_left(&s->reader), 0);
    j->landed[1] = 3;
    CHECK_OK(feed(j, 0, 0));
    CHECK_EQ(s->placed, 1);
    CHECK_EQ(hpc_reader_want(&s->reader, parts), 2);
    CHECK_OK(feed(j, 0, SIZE_MAX));
    CHECK_EQ(s->done, 1);
    check_window(j);
    finish(j);
}

/* Its payload goes nowhere, what follows goes on. */
static void test_gone_window(void) {
    job *j = start(1);
    stream *s = &j->streams[0];
    struct iovec parts[2];
    hpc_frame frame = put_of(j, MOST);
    frame.window = GONE;
    frame.offset = UINT64_MAX;
    send_frame(j, 0, frame, NULL);
    send_frame(j, 0, put_of(j, 100), NULL);
    CHECK_OK(feed(j, 0, HEADER));
    CHECK_EQ(s->placed, 1);
    while (s->given < s->nbytes) {
        CHECK_EQ(hpc_reader_want(&s->reader, parts), 1);
        CHECK(parts[0].iov_base == s->reader.staging && parts[0].iov_len == HPC_STAGING);
        CHECK_EQ(atomic_load(&j->window->references), 1);
        CHECK_OK(feed(j, 0, SIZE_MAX));
    }
    CHECK_EQ(s->done, 2);
    check_window(j);
    finish(j);
}

/* The sink's refusals come back as they are, and a reader freed in the middle of a payload gives its reference back. */
static void test_failing_sink(void) {
    for (int at_done = 0; at_done < 2; at_done++) {
        job *j = start(1);
        send_frame(j, 0, put_of(j, 100), NULL);
        CHECK_OK(feed(j, 0, HEADER - 1));
        j->place_status = at_done ? HPC_OK : HPC_ERR_INVALID;
        j->done_status = HPC_ERR_PEER;
        CHECK_STATUS(feed(j, 0, SIZE_MAX), at_done ? HPC_ERR_PEER : HPC_ERR_INVALID);
        CHECK(strcmp(j->why, at_done ? "done fails" : "place fails") == 0);
        CHECK_EQ(j->streams[0].done, at_done);
        if (at_done) check_window(j);
        finish(j);
    }
    job *j = start(1);
    send_frame(j, 0, put_of(j, 100), NULL);
    CHECK_OK(feed(j, 0, HEADER + 99));
    CHECK_EQ(atomic_load(&j->window->references), 2);
    CHECK_EQ(j->streams[0].done, 0);
    finish(j);
}

static const struct violation {
    hpc_frame frame; /* whose magic is what the right one is changed by */
    int stream;
    const char *why;
} violations[] = {
    {{.magic = 0x100, .type = HPC_FRAME_PUT}, 0, "not the head of a frame"},
    {{.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT}, 1, "not the head of a frame"},
    {{.type = 0}, 0, "unknown type"},
    {{.type = HPC_FRAME_CLOSE + 1}, 0, "unknown type"},
    {{.type = 255}, 1, "unknown type"},
    {{.type = HPC_FRAME_PUT, .flags = HPC_FRAME_SIGNAL | HPC_FRAME_EVENT}, 0, "unknown flags"},
    {{.type = HPC_FRAME_PUT, .flags = 4}, 0, "unknown flags"},
    {{.type = HPC_FRAME_PUT, .flags = 128 | HPC_FRAME_SIGNAL}, 0, "unknown flags"},
    {{.type = HPC_FRAME_FLUSH, .flags = HPC_FRAME_SIGNAL}, 0, "flags on a frame"},
    {{.type = HPC_FRAME_CLOSE, .flags = HPC_FRAME_EVENT}, 0, "flags on a frame"},
    {{.type = HPC_FRAME_FLUSH, .nbytes = 1}, 0, "payload on a frame"},
    {{.type = HPC_FRAME_FLUSHED, .nbytes = UINT64_MAX}, 0, "payload on a frame"},
    {{.type = HPC_FRAME_CREDIT, .nbytes = 8}, 0, "payload on a frame"},
    {{.type = HPC_FRAME_WANT, .nbytes = 8}, 0, "payload on a frame"},
    {{.type = HPC_FRAME_CLOSE, .nbytes = 8}, 0, "payload on a frame"},
    {{.type = HPC_FRAME_PUT, .fences = 1}, 0, "number of fences"},
    {{.type = HPC_FRAME_PUT, .fences = 4}, 0, "number of fences"},
    {{.type = HPC_FRAME_FLUSH, .fences = UINT16_MAX}, 0, "number of fences"},
    {{.type = HPC_FRAME_FLUSH}, 1, "a frame of stream 0"},
    {{.type = HPC_FRAME_CREDIT}, 2, "a frame of stream 0"},
    {{.type = HPC_FRAME_PUT, .flags = HPC_FRAME_SIGNAL}, 1, "a frame of stream 0"},
    {{.type = HPC_FRAME_PUT, .flags = HPC_FRAME_EVENT}, 2, "a frame of stream 0"},
    {{.type = HPC_FRAME_PUT, .fences = 2}, 1, "fences on a stream other"},
};

/* Found with the header's last byte, not before; the frames before it count, it and what follows does not. */
static void test_violation(const struct violation *v, size_t cut) {
    job *j = start(3);
    stream *s = &j->streams[v->stream];
    hpc_frame frame = v->frame;
    const unsigned char behind[1000] = {0};
    int status = HPC_OK;
    size_t end;
    frame.magic ^= HPC_FRAME_MAGIC;
    frame.window = HERE;
    for (int i = 0; i < 3; i++) send_frame(j, v->stream, put_of(j, 30), NULL);
    append(s, &frame, sizeof frame);
    end = s->nbytes;
    append(s, behind, sizeof behind);
    while (status == HPC_OK && s->given < s->nbytes) status = feed(j, v->stream, cut);
    CHECK_STATUS(status, HPC_ERR_TRANSPORT);
    CHECK(s->given >= end && s->given < end + cut);
    CHECK(j->why != NULL && strstr(j->why, v->why) != NULL);
    CHECK_EQ(s->placed, 3);
    CHECK_EQ(s->done, 3);
    check_window(j);
    finish(j);
}

int main(void) {
    enum { N = sizeof violations / sizeof *violations };
    int rounds = ranks_rounds(5);
    test_few_calls();
    test_partial_header();
    test_fences();
    test_gone_window();
    test_failing_sink();
    for (int i = 0; i < N; i++) {
        test_violation(&violations[i], 1);
        test_violation(&violations[i], 41);
        test_violation(&violations[i], HPC_STAGING);
    }
    for (int round = 0; round < rounds; round++)
        for (int n = 1; n <= HPC_TCP_STREAMS; n++)
            for (int mode = 0; mode < 5; mode++) test_any_frames(n, mode);
    return 0;
}
