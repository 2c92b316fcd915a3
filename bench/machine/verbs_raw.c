/* verbs_raw.c - plain libibverbs: ways to send a signal behind its data, and a stream of writes.
 *
 * The ways to signal, each timed as half a ping-pong:
 *   write                 one RDMA write; its last word is polled in memory (as ib_write_lat does)
 *   write + write         the data, and behind it an inline write of a word, on one queue pair by one call
 *   write with immediate  one write; the receiver polls its completion queue and refills its shared receive queue
 *   write + send          the data, and behind it an inline send of the value by the same call; the receiver as before
 */
#define _GNU_SOURCE
#include "c_ranks.h"
#include "nic.h"

#include <poll.h>

enum { RAW_WRITE, RAW_WORD, RAW_IMMEDIATE, RAW_SEND, RAW_WAYS };
enum { RAW_PUSHED = 1, RAW_LAST };
enum { RAW_SIGNALLED = 32, RAW_LOOKS = 1 << 16 }; /* work requests per completion; polls per look at the clock */

/* One side of a ping-pong or a stream. The other side writes its memory, except the sources:
 *   room bytes of data | the word of write + write, and one more | a line for each receive | room bytes of sources */
typedef struct bench_raw {
    bench_port port;
    bench_end end;
    char *memory, *sources;
    size_t room;
    /* Numbers of work requests: posted; up to the last with a completion; completed. */
    uint64_t posted, signalled, done;
    uint64_t value, samples;
    double timeout;
    char why[BENCH_WHY];
} bench_raw;

static size_t raw_line(const bench_raw *w, int receive) {
    return w->room + (size_t)(1 + receive) * BENCH_LINE;
}

static int raw_receive(bench_raw *w, int i) {
    struct ibv_sge sge = {(uint64_t)(uintptr_t)(w->memory + raw_line(w, i)), BENCH_LINE, w->end.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_srq_recv(w->end.srq, &wr, &bad) == 0 ? 0 : bench_fail(w->why, "%s takes no receive", w->port.name);
}

BENCH_API void bench_raw_close(bench_raw *w) {
    if (w == NULL) return;
    bench_end_close(&w->end);
    bench_port_close(&w->port);
    free(w->memory);
    free(w);
}

BENCH_API size_t bench_address_size(void) {
    return sizeof(bench_address);
}

/* Opens a port of a device (NULL: the first usable one), and room bytes that the other side writes, a multiple of a
 * line. *here is for the other side's bench_raw_connect. Returns NULL with a sentence in why on failure. */
BENCH_API bench_raw *bench_raw_open(const char *device, size_t room, double timeout, bench_address *here, char *why) {
    size_t shared = (room + (BENCH_RECEIVES + 1) * (size_t)BENCH_LINE + 4095) & ~(size_t)4095;
    size_t nbytes = shared + ((room + 4095) & ~(size_t)4095);
    bench_raw *w = calloc(1, sizeof *w);
    if (w != NULL) w->memory = aligned_alloc(4096, nbytes);
    if (w == NULL || w->memory == NULL) {
        bench_fail(why, "no %zu bytes of memory", nbytes);
        goto err;
    }
    memset(w->memory, 0, nbytes);
    w->sources = w->memory + shared;
    w->room = room;
    w->timeout = timeout;
    if (bench_ports_open(device, &w->port, 1, why) < 0) goto err;
    if (bench_end_open(&w->port, w->memory, nbytes, 1, &w->end, here, why) != 0) goto err;
    for (int i = 0; i < BENCH_RECEIVES; i++)
        if (raw_receive(w, i) != 0) {
            memcpy(why, w->why, BENCH_WHY);
            goto err;
        }
    return w;
err:
    bench_raw_close(w);
    return NULL;
}

BENCH_API int bench_raw_connect(bench_raw *w, const bench_address *there) {
    return bench_end_connect(&w->end, there, w->why);
}

BENCH_API const char *bench_raw_why(const bench_raw *w) {
    return w->why;
}

/* Return the memory that the other side writes, and the sources that this side sends. */
BENCH_API void *bench_raw_memory(bench_raw *w) {
    return w->memory;
}

BENCH_API void *bench_raw_sources(bench_raw *w) {
    return w->sources;
}

/* Returns the name of the port's device; fills in its number, GID index and, for RoCE, GID. */
BENCH_API const char *bench_raw_port(const bench_raw *w, int *number, int *gid_index, unsigned char gid[16]) {
    *number = w->port.number;
    *gid_index = w->port.global ? w->port.gid_index : -1;
    memcpy(gid, w->port.gid.raw, 16);
    return w->port.name;
}

/* Takes completions of sends; returns how many there were. */
static int raw_sent(bench_raw *w) {
    struct ibv_wc done[16];
    int n = bench_completed(&w->end, w->end.sent, done, 16, w->why);
    if (n > 0) w->done = done[n - 1].wr_id;
    return n;
}

/* Waits until at most `most` work requests are pending. */
static int raw_drain(bench_raw *w, uint64_t most) {
    double deadline = bench_now() + w->timeout;
    for (int looks = 1; w->posted - w->done > most; looks++) {
        int n = raw_sent(w);
        if (n < 0) return -1;
        if (n == 0 && looks % RAW_LOOKS == 0 && bench_now() > deadline)
            return bench_fail(w->why, "%s: writes are not done after %g s", w->port.name, w->timeout);
    }
    return 0;
}

/* Posts a chain of n work requests that ends at *last. complete: the last must have a completion. */
static int raw_post(bench_raw *w, struct ibv_send_wr *first, struct ibv_send_wr *last, uint64_t n, int complete) {
    struct ibv_send_wr *bad;
    if (raw_drain(w, BENCH_DEPTH - n) != 0) return -1;
    w->posted += n;
    last->wr_id = w->posted;
    if (complete || w->posted - w->signalled >= RAW_SIGNALLED) {
        last->send_flags |= IBV_SEND_SIGNALED;
        w->signalled = w->posted;
    }
    return ibv_post_send(w->end.qp[0], first, &bad) == 0 ? 0 : bench_fail(w->why, "%s takes no write", w->port.name);
}

/* Writes data at byte `from` of the sources to byte `at` of the other's memory, and sends the signal behind it. */
static int raw_put(bench_raw *w, int way, size_t from, size_t nbytes, size_t at) {
    struct ibv_send_wr wr[2];
    struct ibv_sge sge[2];
    bench_write(&w->end, &wr[0], &sge[0], w->sources + from, nbytes, at);
    if (way == RAW_IMMEDIATE) {
        wr[0].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr[0].imm_data = (uint32_t)w->value;
    }
    if (way == RAW_WRITE || way == RAW_IMMEDIATE) return raw_post(w, wr, wr, 1, 0);
    bench_write(&w->end, &wr[1], &sge[1], &w->value, sizeof w->value, w->room);
    if (way == RAW_SEND) wr[1].opcode = IBV_WR_SEND;
    wr[0].next = &wr[1];
    return raw_post(w, &wr[0], &wr[1], 2, 0);
}

/* Polls until byte `at` of the memory has the value. */
static int raw_poll(bench_raw *w, size_t at) {
    const _Atomic uint64_t *word = (const void *)(w->memory + at);
    double deadline = bench_now() + w->timeout;
    for (int looks = 1; atomic_load_explicit(word, memory_order_acquire) != w->value; looks++)
        if (looks % RAW_LOOKS == 0 && bench_now() > deadline)
            return bench_fail(w->why, "%s: no word after %g s", w->port.name, w->timeout);
    return 0;
}

/* Sleeps on the completion channel, unless something has come since it was armed. */
static int raw_sleep(bench_raw *w, struct ibv_wc *wc) {
    struct pollfd ready = {.fd = w->end.channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;
    if (ibv_req_notify_cq(w->end.arrived, 0) != 0) return bench_fail(w->why, "%s has no events", w->port.name);
    int n = bench_completed(&w->end, w->end.arrived, wc, 1, w->why);
    if (n != 0) return n;
    if (poll(&ready, 1, (int)(1e3 * w->timeout)) != 1 || ibv_get_cq_event(w->end.channel, &cq, &context) != 0)
        return bench_fail(w->why, "%s: no event after %g s", w->port.name, w->timeout);
    ibv_ack_cq_events(cq, 1);
    return 0;
}

/* Waits until a completion brings the value; counts in *wrong if it brings another one. */
static int raw_complete(bench_raw *w, int way, int sleeps, int64_t *wrong) {
    double deadline = bench_now() + w->timeout;
    struct ibv_wc wc;
    for (int looks = 1;; looks++) {
        int n = bench_completed(&w->end, w->end.arrived, &wc, 1, w->why);
        if (n == 0 && sleeps) n = raw_sleep(w, &wc);
        if (n < 0) return -1;
        if (n > 0) break;
        if (looks % RAW_LOOKS == 0 && bench_now() > deadline)
            return bench_fail(w->why, "%s: no completion after %g s", w->port.name, w->timeout);
    }
    uint64_t got = wc.imm_data, expected = (uint32_t)w->value;
    if (way == RAW_SEND) {
        memcpy(&got, w->memory + raw_line(w, (int)wc.wr_id), sizeof got);
        expected = w->value;
    }
    *wrong += got != expected;
    return raw_receive(w, (int)wc.wr_id);
}

/* Like bench_put_lat, with m * count words of room. If data is polled, its last word is the value. sleeps: waits on
 * the completion channel, for the ways with a completion. trips: gets n * m single trips, or NULL. Returns the wrong
 * answers, or -1 with a sentence. */
BENCH_API int64_t bench_raw_lat(bench_raw *w, int way, int sleeps, int rank, int first, const uint64_t *words,
                                size_t count, int m, int n, double *seconds, double *trips) {
    size_t nbytes = count * sizeof *words, compared = count - (way == RAW_WRITE);
    const uint64_t *arrived = (const uint64_t *)w->memory;
    uint64_t *sources = (uint64_t *)w->sources;
    int64_t wrong = 0;
    for (int b = 0; b < n; b++, w->samples++) {
        const uint64_t *expected = words + bench_shift(w->samples, rank ^ 1) * BENCH_LINE_WORDS;
        double start = 0, elapsed;
        uint64_t before = 0;
        memcpy(sources, words + bench_shift(w->samples, rank) * BENCH_LINE_WORDS, (size_t)m * nbytes);
        for (int i = 0; i < m && way == RAW_WRITE; i++)
            sources[(size_t)(i + 1) * count - 1] = w->value + 2 + (uint64_t)i;
        /* Round -1 sends one word untimed: afterwards both sides have finished comparing. */
        for (int i = -1; i < m; i++) {
            size_t from = i < 0 ? 0 : (size_t)i * nbytes, at = i < 0 ? w->room + sizeof *words : from;
            size_t size = i < 0 ? sizeof *words : nbytes, last = at + size - sizeof *words;
            uint64_t kept = sources[0];
            int status = 0;
            w->value++;
            if (i < 0) sources[0] = w->value; /* inline: already sent when the call returns */
            if (i == 0) {
                start = bench_now();
                before = bench_ticks();
            }
            if (first) status = raw_put(w, way, from, size, at);
            if (status == 0 && (way == RAW_WRITE || way == RAW_WORD))
                status = raw_poll(w, way == RAW_WRITE ? last : w->room);
            else if (status == 0)
                status = raw_complete(w, way, sleeps, &wrong);
            if (status == 0 && !first) status = raw_put(w, way, from, size, at);
            if (status != 0) return -1;
            if (i < 0) sources[0] = kept;
            if (i < 0 || trips == NULL) continue;
            uint64_t now = bench_ticks();
            trips[(size_t)b * (size_t)m + (size_t)i] = (double)(now - before);
            before = now;
        }
        elapsed = bench_now() - start;
        seconds[b] = elapsed / (2.0 * m);
        if (trips != NULL) bench_trips(&trips[(size_t)b * (size_t)m], m, elapsed);
        for (int i = 0; i < m; i++)
            wrong += (int64_t)bench_wrong_words(&arrived[(size_t)i * count], &expected[(size_t)i * count], compared);
    }
    return wrong;
}

/* Like bench_put_bw: m writes of the sources, up to depth of them pending, until the last is acknowledged. */
BENCH_API int bench_raw_stream(bench_raw *w, size_t nbytes, int slots, int m, int depth, double *seconds) {
    double start = bench_now();
    for (int i = 0; i < m; i++) {
        struct ibv_send_wr wr;
        struct ibv_sge sge;
        size_t at = (size_t)(i % slots) * nbytes;
        bench_write(&w->end, &wr, &sge, w->sources + at, nbytes, at);
        if (raw_drain(w, (uint64_t)depth - 1) != 0 ||
            raw_post(w, &wr, &wr, 1, depth < 2 * RAW_SIGNALLED || i == m - 1) != 0)
            return -1;
    }
    if (raw_drain(w, 0) != 0) return -1;
    *seconds = (bench_now() - start) / m;
    return 0;
}

static int raw_piece(bench_raw *w, size_t nbytes, int slot, uint32_t imm, int complete) {
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    size_t at = (size_t)slot * nbytes;
    bench_write(&w->end, &wr, &sge, w->sources + at, nbytes, at);
    if (imm != 0) {
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = imm;
    }
    return raw_post(w, &wr, &wr, 1, complete);
}

/* Sends the messages of push_pull without folding. Both sides push `pieces` pieces at once, each with an immediate,
 * and write one back for each that has come, the last with an immediate too. It ends when the other side's last
 * answer is here and this side's are acknowledged. Each side has a receive for every piece. */
BENCH_API int bench_raw_exchange(bench_raw *w, size_t nbytes, int slots, int pieces, double *seconds) {
    double start = bench_now(), deadline = start + w->timeout;
    int pushed = 0, came = 0, answered = 0, ended = 0;
    if (pieces < 1 || pieces >= BENCH_RECEIVES)
        return bench_fail(w->why, "%d pieces: 1 to %d are possible", pieces, BENCH_RECEIVES - 1);
    for (int looks = 1; answered < pieces || !ended || w->posted > w->done; looks++) {
        struct ibv_wc done[16];
        for (; pushed < pieces && w->posted - w->done < BENCH_DEPTH; pushed++)
            if (raw_piece(w, nbytes, pushed % slots, RAW_PUSHED, 0) != 0) return -1;
        for (; answered < came && w->posted - w->done < BENCH_DEPTH; answered++) {
            int last = answered == pieces - 1;
            if (raw_piece(w, nbytes, (pieces + answered) % slots, last ? RAW_LAST : 0, last) != 0) return -1;
        }
        int n = bench_completed(&w->end, w->end.arrived, done, 16, w->why);
        for (int i = 0; i < n; i++) {
            came += done[i].imm_data == RAW_PUSHED;
            ended |= done[i].imm_data == RAW_LAST;
            if (raw_receive(w, (int)done[i].wr_id) != 0) return -1;
        }
        if (n < 0 || raw_sent(w) < 0) return -1;
        if (looks % RAW_LOOKS == 0 && bench_now() > deadline)
            return bench_fail(w->why, "%s: %d of %d pieces were answered in %g s", w->port.name, answered, pieces,
                              w->timeout);
    }
    *seconds = bench_now() - start;
    return 0;
}

#ifndef BENCH_LIBRARY
enum { SAMPLE_BYTES = 256 << 10, STREAM_BYTES = 4 << 20 };

static int ways(bench_rank *r, bench_raw *w, const uint64_t *words, size_t size) {
    static const char *const names[RAW_WAYS] = {"write", "write + write", "write with immediate", "write + send"};
    const bench_options *options = &r->options;
    int m = (int)(SAMPLE_BYTES / size);
    m = m < 8 ? 8 : m > options->agg_iters ? options->agg_iters : m;
    for (int c = -1; c < options->run_cycles; c++) { /* cycle -1 warms up */
        int n = c < 0 ? options->warmup_iters : options->iters;
        for (int way = 0; way < RAW_WAYS; way++) {
            int status = bench_meet(r);
            if (status < 0) return status;
            int64_t wrong =
                bench_raw_lat(w, way, 0, r->rank, r->rank == 0, words, size / sizeof *words, m, n, r->seconds, NULL);
            if (wrong < 0) return 1;
            bench_add(r, way, names[way], size, c, n, wrong, r->seconds);
        }
    }
    bench_report(r, size, RAW_WAYS);
    return HPC_OK;
}

static int stream(bench_rank *r, bench_raw *w, const uint64_t *words, size_t size) {
    const bench_options *options = &r->options;
    int slots = (int)(STREAM_BYTES / size), status = HPC_OK;
    slots = slots < 1 ? 1 : slots > BENCH_DEPTH ? BENCH_DEPTH : slots;
    for (int c = -1; c < options->run_cycles; c++) {
        size_t length = (size_t)slots * size;
        double seconds = 0;
        int64_t wrong = 0;
        memcpy(w->sources, words + bench_shift((uint64_t)c + 1, 0) * BENCH_LINE_WORDS, length);
        status = bench_meet(r);
        if (status == HPC_OK && r->rank == 0 && bench_raw_stream(w, size, slots, slots, BENCH_DEPTH, &seconds) != 0)
            return 1;
        if (status == HPC_OK) status = bench_meet(r);
        if (status < 0) return status;
        if (r->rank == 1) wrong = (int64_t)bench_wrong_words((uint64_t *)w->memory, (uint64_t *)w->sources, length / 8);
        bench_add(r, 0, "stream of writes", size, c, 1, wrong, &seconds);
    }
    bench_report(r, size, 1);
    return HPC_OK;
}

static int run(bench_rank *r) {
    const bench_options *options = &r->options;
    size_t room = 8 * options->maxbytes > STREAM_BYTES ? 8 * options->maxbytes : STREAM_BYTES;
    size_t count = room / sizeof(uint64_t) + BENCH_SHIFTS * BENCH_LINE_WORDS;
    bench_address addresses[BENCH_RANKS_MAX], here;
    char why[BENCH_WHY] = "";
    uint64_t *words = malloc(count * sizeof *words);
    bench_raw *w = words == NULL ? NULL : bench_raw_open(NULL, room, options->timeout, &here, why);
    int status = w == NULL ? 1 : hpc_allgather(r->context, &here, addresses, sizeof here, options->timeout);
    if (status == HPC_OK) {
        bench_fill_words(words, count);
        status = bench_raw_connect(w, &addresses[r->rank ^ 1]) != 0;
    }
    for (size_t size = options->minbytes; status == HPC_OK && size <= options->maxbytes;
         size *= (size_t)options->stepfactor) {
        status = ways(r, w, words, size);
        if (status == HPC_OK) status = stream(r, w, words, size);
    }
    if (status > 0) fprintf(stderr, "rank %d: %s\n", r->rank, w == NULL ? why : w->why);
    bench_raw_close(w);
    free(words);
    return status == HPC_OK ? HPC_OK : HPC_ERR_TRANSPORT;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 8,
                              .maxbytes = 32 << 10,
                              .stepfactor = 8,
                              .iters = 10,
                              .warmup_iters = 2,
                              .agg_iters = 50,
                              .run_cycles = 7,
                              .ranks = 2,
                              .timeout = 30};
    return bench_main(argc, argv, "verbs_raw", defaults, run);
}
#endif
