/* NOTIFY-ACK (ASAP, sections 4 and 5): receive queues, one for each sender, over a window and its signals.
 *
 * An edge i -> j has `depth` slots and a notify word in j's part of the window, and an ack word in i's part:
 *   slot      header (version, place of the update) | update | footer (version)
 *             only the header, if j reads the update in i's own buffer, which has a header and a footer too
 *   notify    number of updates sent;      only i writes it, j reads it
 *   ack       number of updates consumed;  only j writes it, i reads it
 * i writes slot (sent % depth) only while sent - ack < depth, so it never writes a slot that j may read. i stores
 * notify after the slot (the signal follows its data), so j never reads a slot that i may write. j stores ack after its
 * last read of the slot: x86 and the release store of a signal both keep earlier loads before that store. By the same
 * argument a registered buffer is written again only after every peer to which it was sent has acknowledged it. There
 * is no lock, and no barrier over all ranks: each rank waits only for its neighbours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context/context.h"

static const char op_create[] = "queue";

/* ---- structs ---- */

/* Every update has a stamp before it, its header, and one after it, its footer. If both versions are equal, the update
 * is whole. */
typedef struct hpc_stamp {
    _Alignas(64) _Atomic uint64_t version;
    uint64_t stamp; /* in a slot: the version of the sender's buffer that holds the update */
    int32_t buffer; /* number of that buffer; -1: the update is in the slot itself */
} hpc_stamp;

typedef struct in_edge {
    int rank, in_place, ack_signal; /* in_place: 1: updates are read in the sender's buffers */
    _Atomic uint64_t *notify;
    uint64_t received, acked;
    size_t slots_offset, slot_stride; /* in this rank's part */
    const char *peer_buffers;         /* the sender's buffers, mapped here */
    const hpc_stamp *header, *footer; /* of the last update received */
    const void *update;
} in_edge;

typedef struct out_edge {
    int rank, in_place, notify_signal;
    _Atomic uint64_t *ack;
    uint64_t sent;
    const void *flushing;             /* source of the last update while the transport may still read it, else NULL */
    size_t slots_offset, slot_stride; /* in the peer's part */
    hpc_stamp *stamps;                /* header and footer of each slot, as sent */
    uint64_t *sent_from;              /* by buffer: the version with which the buffer was last sent */
} out_edge;

struct hpc_queue {
    hpc_context *context;
    hpc_window *window;
    size_t nbytes, buffers_offset, buffer_stride;
    int depth, buffers, n_in, n_out;
    in_edge *in;
    out_edge *out;
    uint64_t stamp; /* the newest version of any buffer */
    char *sent;     /* by buffer: 1 if the buffer was sent since it was acquired */
    const void **inputs;
    double *weights;
    hpc_queue_stats stats;
};

/* ---- helpers ---- */

static out_edge *find_out(const hpc_queue *q, int peer, const char *op) {
    for (int i = 0; i < q->n_out; i++)
        if (q->out[i].rank == peer) return &q->out[i];
    hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is not among the %d out-peers of rank %d", op, peer, q->n_out,
             q->context->group.rank);
    return NULL;
}

static in_edge *find_in(const hpc_queue *q, int peer, const char *op) {
    for (int i = 0; i < q->n_in; i++)
        if (q->in[i].rank == peer) return &q->in[i];
    hpc_fail(HPC_ERR_INVALID, op, "%s: rank %d is not among the %d in-peers of rank %d", op, peer, q->n_in,
             q->context->group.rank);
    return NULL;
}

static int usable(const hpc_queue *q, const char *op) {
    if (q == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: queue is NULL", op);
    return hpc_group_usable(&q->context->group, op);
}

static hpc_timeline *timeline_of(const hpc_queue *q) {
    return q == NULL ? NULL : q->context->group.timeline;
}

static char *own_part(const hpc_queue *q) {
    return hpc_memory_data(q->window->memory);
}

static hpc_stamp *buffer_header(const hpc_queue *q, int i) {
    return (hpc_stamp *)(void *)(own_part(q) + q->buffers_offset + (size_t)i * q->buffer_stride);
}

static hpc_stamp *buffer_footer(const hpc_queue *q, int i) {
    return (hpc_stamp *)(void *)((char *)buffer_header(q, i) + q->buffer_stride - sizeof(hpc_stamp));
}

void *hpc_queue_buffer(const hpc_queue *q, int i) {
    return q != NULL && i >= 0 && i < q->buffers ? (char *)buffer_header(q, i) + sizeof(hpc_stamp) : NULL;
}

/* A version is written and read as one atomic word, because a reader without synchronization may look at it too. */
static void set_version(hpc_stamp *stamp, uint64_t version) {
    atomic_store_explicit(&stamp->version, version, memory_order_release);
}

static uint64_t version_of(const hpc_stamp *stamp) {
    return atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)&stamp->version, memory_order_acquire);
}

/* Waits unless the condition already holds, and adds the seconds of the wait to *waited. */
static int wait_timed(hpc_queue *q, const hpc_wait *wait, double timeout, double *waited) {
    if (wait->ready(wait->arg)) return HPC_OK;
    double start = hpc_now();
    int status = hpc_wait_for(&q->context->group, wait, timeout);
    *waited += hpc_now() - start;
    return status;
}

/* ---- send ---- */

struct slot_wait {
    const out_edge *edge;
    uint64_t acked; /* the wait ends when the ack word is at least this */
};

/* acquire: the peer read the slot before it stored the ack, so this rank's writes of the next update come after those
 * reads. */
static int slot_is_free(void *arg) {
    const struct slot_wait *s = arg;
    return atomic_load_explicit(s->edge->ack, memory_order_acquire) >= s->acked;
}

static int slot_owner(void *arg, int *ranks) {
    ranks[0] = ((const struct slot_wait *)arg)->edge->rank;
    return 1;
}

int hpc_queue_acquire(hpc_queue *q, int i, double timeout) {
    static const char op[] = "acquire";
    HPC_SPAN(timeline_of(q), op, NULL);
    int status = usable(q, op);
    if (status != HPC_OK) return status;
    if (i < 0 || i >= q->buffers)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: buffer %d is out of range; the queue has %d", op, i, q->buffers);
    double deadline = hpc_deadline(&q->context->group, timeout);
    for (int e = 0; e < q->n_out; e++) {
        struct slot_wait free_slot = {&q->out[e], q->out[e].sent_from[i]};
        const hpc_wait wait = {op, slot_is_free, slot_owner, &free_slot, .every = 0};
        if (slot_is_free(&free_slot)) continue;
        double left = deadline - hpc_now();
        status = wait_timed(q, &wait, left > 0 ? left : 0, &q->stats.wait_send);
        if (status != HPC_OK) return status;
    }
    q->sent[i] = 0;
    set_version(buffer_header(q, i), ++q->stamp); /* header ahead of footer: being written */
    atomic_thread_fence(memory_order_release);    /* release: the header is visible before later writes */
    return HPC_OK;
}

static int registered_buffer(const hpc_queue *q, const void *src) {
    for (int i = 0; i < q->buffers; i++)
        if (hpc_queue_buffer(q, i) == src) return i;
    return -1;
}

/* Marks a buffer as whole at its first send since acquire; returns its version. */
static uint64_t seal_buffer(hpc_queue *q, int i) {
    if (!q->sent[i]) {
#if defined(__x86_64__)
        __builtin_ia32_sfence(); /* the trainer may have used streaming stores */
#endif
        uint64_t version = version_of(buffer_header(q, i));
        if (version == version_of(buffer_footer(q, i))) set_version(buffer_header(q, i), version = ++q->stamp);
        set_version(buffer_footer(q, i), version);
        q->sent[i] = 1;
    }
    return version_of(buffer_footer(q, i));
}

/* Waits until the caller may reuse src. */
static int end_send(hpc_queue *q, out_edge *e, double timeout) {
    int status = hpc_flush(NULL, q->window, e->rank, timeout);
    if (status != HPC_ERR_TIMEOUT) e->flushing = NULL;
    return status;
}

int hpc_queue_send(hpc_queue *q, int peer, const void *src, size_t nbytes, double timeout) {
    static const char op[] = "send";
    HPC_SPAN(timeline_of(q), op, NULL);
    int buffer = -1, status = usable(q, op);
    if (status != HPC_OK) return status;
    out_edge *e = find_out(q, peer, op);
    if (e == NULL) return HPC_ERR_INVALID;
    if (nbytes != q->nbytes)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %zu bytes given; an update of this queue has %zu", op, nbytes,
                        q->nbytes);
    if (src == NULL && nbytes > 0) return hpc_fail(HPC_ERR_INVALID, op, "%s: src is NULL", op);
    if (q->buffers > 0 && (buffer = registered_buffer(q, src)) < 0)
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: src is not one of the queue's %d registered buffers; write the update into one of them",
                        op, q->buffers);

    if (e->flushing != NULL && e->flushing != src)
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: update %llu to rank %d is not sent in full; send that one again first", op,
                        (unsigned long long)e->sent, peer);
    if (e->flushing != NULL) return end_send(q, e, timeout);

    struct slot_wait free_slot = {e, e->sent + 1 > (uint64_t)q->depth ? e->sent + 1 - (uint64_t)q->depth : 0};
    const hpc_wait wait = {op, slot_is_free, slot_owner, &free_slot, .every = 0};
    double deadline = hpc_deadline(&q->context->group, timeout);
    status = wait_timed(q, &wait, timeout, &q->stats.wait_send);
    if (status != HPC_OK) return status;

    uint64_t version = e->sent + 1, slot = e->sent % (uint64_t)q->depth;
    size_t at = e->slots_offset + slot * e->slot_stride;
    /* The stamps belong to the edge, because a transport may read them until the ACK. */
    hpc_stamp *header = &e->stamps[2 * slot], *footer = header + 1;
    *header = (hpc_stamp){.buffer = e->in_place ? buffer : -1, .stamp = buffer >= 0 ? seal_buffer(q, buffer) : 0};
    set_version(header, version);
    set_version(footer, version);
    if (e->in_place) {
        status = hpc_put_signal(NULL, q->window, peer, header, sizeof *header, at, e->notify_signal, version);
    } else {
        status = hpc_put(NULL, q->window, peer, header, sizeof *header, at);
        if (status == HPC_OK) status = hpc_put(NULL, q->window, peer, src, nbytes, at + sizeof *header);
        if (status == HPC_OK)
            status = hpc_put_signal(NULL, q->window, peer, footer, sizeof *footer, at + e->slot_stride - sizeof *footer,
                                    e->notify_signal, version);
    }
    if (status != HPC_OK) return status;
    e->sent = version;
    hpc_watch_step(&q->context->group.watch, version);
    if (buffer >= 0) e->sent_from[buffer] = version;
    q->stats.sent++;
    q->stats.bytes_sent += nbytes;
    if (e->in_place || buffer >= 0) return HPC_OK;
    e->flushing = src;
    return end_send(q, e, hpc_left(deadline));
}

/* ---- recv and ack ---- */

static int has_come(void *arg) {
    const in_edge *e = arg;
    return atomic_load_explicit(e->notify, memory_order_acquire) > e->received;
}

static int sender(void *arg, int *ranks) {
    ranks[0] = ((const in_edge *)arg)->rank;
    return 1;
}

static int check_room(const hpc_queue *q, const in_edge *e, const char *op) {
    if (e->received - e->acked < (uint64_t)q->depth) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op,
                    "%s: %d updates of rank %d are held, as many as the queue is deep; ack one first", op, q->depth,
                    e->rank);
}

/* Opens the slot that the notify word announced: finds the update and checks that it is whole. */
static int open_slot(hpc_queue *q, in_edge *e, const char *op) {
    uint64_t version = e->received + 1;
    char *slot = own_part(q) + e->slots_offset + (e->received % (uint64_t)q->depth) * e->slot_stride;
    const hpc_stamp *header = (const hpc_stamp *)(const void *)slot, *footer;
    uint64_t expected = version;
    if (version_of(header) != version)
        return hpc_fail_transport(op, "queue", e->rank,
                                  "%s: rank %d's update has version %llu in its header; %llu was announced", op,
                                  e->rank, (unsigned long long)version_of(header), (unsigned long long)version);
    if (e->in_place) {
        int buffer = header->buffer;
        if (buffer < 0 || buffer >= q->buffers)
            return hpc_fail_transport(op, "queue", e->rank, "%s: rank %d's update names buffer %d of %d", op, e->rank,
                                      buffer, q->buffers);
        expected = header->stamp;
        header = (const hpc_stamp *)(const void *)(e->peer_buffers + (size_t)buffer * q->buffer_stride);
        footer = (const hpc_stamp *)(const void *)((const char *)header + q->buffer_stride - sizeof *footer);
    } else {
        footer = (const hpc_stamp *)(const void *)(slot + e->slot_stride - sizeof *footer);
    }
    e->header = header;
    e->footer = footer;
    e->update = header + 1;
    if (version_of(header) != expected || version_of(footer) != expected)
        return hpc_fail_transport(
            op, "queue", e->rank, "%s: rank %d's update is torn: version %llu in its header, %llu in its footer", op,
            e->rank, (unsigned long long)version_of(header), (unsigned long long)version_of(footer));
    e->received = version;
    q->stats.received++;
    q->stats.bytes_received += q->nbytes;
    return HPC_OK;
}

int hpc_queue_recv(hpc_queue *q, int peer, const void **update, double timeout) {
    static const char op[] = "recv";
    HPC_SPAN(timeline_of(q), op, NULL);
    int status = usable(q, op);
    if (status != HPC_OK) return status;
    if (update == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: update is NULL", op);
    in_edge *e = find_in(q, peer, op);
    if (e == NULL) return HPC_ERR_INVALID;
    status = check_room(q, e, op);
    const hpc_wait wait = {op, has_come, sender, e, .every = 0};
    if (status == HPC_OK) status = wait_timed(q, &wait, timeout, &q->stats.wait_recv);
    if (status == HPC_OK) status = open_slot(q, e, op);
    if (status == HPC_OK) *update = e->update;
    return status;
}

static int send_ack(hpc_queue *q, in_edge *e) {
    hpc_group *g = &q->context->group;
    e->acked++;
    /* A sender that left needs no ACK. */
    if (atomic_load_explicit(&g->states[e->rank], memory_order_acquire) == HPC_PEER_LEFT) return HPC_OK;
    int status = hpc_put_signal(q->context->acks, q->window, e->rank, NULL, 0, 0, e->ack_signal, e->acked);
    if (status != HPC_ERR_PEER || atomic_load_explicit(&g->states[e->rank], memory_order_acquire) != HPC_PEER_LEFT)
        return status;
    hpc_blame_settle(&g->blame, NULL, 0);
    return HPC_OK;
}

int hpc_queue_ack(hpc_queue *q, int peer) {
    static const char op[] = "ack";
    int status = usable(q, op);
    if (status != HPC_OK) return status;
    in_edge *e = find_in(q, peer, op);
    if (e == NULL) return HPC_ERR_INVALID;
    if (e->acked == e->received)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: no update of rank %d is held; recv one first", op, peer);
    return send_ack(q, e);
}

/* ---- reduce ---- */

static int all_have_come(void *arg) {
    const hpc_queue *q = arg;
    for (int i = 0; i < q->n_in; i++)
        if (!has_come(&q->in[i])) return 0;
    return 1;
}

static int missing_senders(void *arg, int *ranks) {
    const hpc_queue *q = arg;
    int n = 0;
    for (int i = 0; i < q->n_in; i++)
        if (!has_come(&q->in[i])) ranks[n++] = q->in[i].rank;
    return n;
}

int hpc_queue_reduce(hpc_queue *q, void *out, const void *own, double weight_own, const double *weights, int dtype,
                     double timeout) {
    static const char op[] = "reduce";
    HPC_SPAN(timeline_of(q), op, NULL);
    int status = usable(q, op);
    if (status != HPC_OK) return status;
    if ((out == NULL || own == NULL) && q->nbytes > 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: out or own is NULL", op);
    if (weights == NULL && q->n_in > 0) return hpc_fail(HPC_ERR_INVALID, op, "%s: weights is NULL", op);
    size_t item = dtype == HPC_F32 ? 4 : 8;
    if (dtype != HPC_F32 && dtype != HPC_F64)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: dtype is %d, not 0 (f32) or 1 (f64)", op, dtype);
    if (q->nbytes % item != 0)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: an update of %zu bytes is not a whole number of %zu-byte values", op,
                        q->nbytes, item);
    for (int i = 0; i < q->n_in && status == HPC_OK; i++) {
        status = check_room(q, &q->in[i], op);
        if (status == HPC_OK && q->in[i].received != q->in[i].acked)
            status = hpc_fail(HPC_ERR_INVALID, op, "%s: an update of rank %d is held; ack it first", op, q->in[i].rank);
    }
    const hpc_wait wait = {op, all_have_come, missing_senders, q, .every = 0};
    if (status == HPC_OK) status = wait_timed(q, &wait, timeout, &q->stats.wait_recv);
    for (int i = 0; i < q->n_in && status == HPC_OK; i++) {
        status = open_slot(q, &q->in[i], op);
        q->inputs[i + 1] = q->in[i].update;
        q->weights[i + 1] = weights[i];
    }
    if (status != HPC_OK) return status;
    q->inputs[0] = own;
    q->weights[0] = weight_own;
    status = hpc_fold(out, q->inputs, q->weights, q->n_in + 1, q->nbytes / item, dtype, HPC_ISA_BEST);
    for (int i = 0; i < q->n_in; i++) { /* acknowledge also if the fold was refused, which is not the senders' fault */
        int acked = send_ack(q, &q->in[i]);
        if (status == HPC_OK) status = acked;
    }
    return status;
}

/* ---- facts ---- */

int hpc_queue_versions(const hpc_queue *q, int peer, uint64_t *header, uint64_t *footer) {
    static const char op[] = "versions";
    int status = usable(q, op);
    if (status != HPC_OK) return status;
    const in_edge *e = find_in(q, peer, op);
    if (e == NULL) return HPC_ERR_INVALID;
    if (header == NULL || footer == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: header or footer is NULL", op);
    atomic_thread_fence(memory_order_acquire); /* acquire: reads of the update come before reads of its versions */
    *header = e->header == NULL ? 0 : version_of(e->header);
    *footer = e->footer == NULL ? 0 : version_of(e->footer);
    return HPC_OK;
}

int hpc_queue_get_stats(const hpc_queue *q, hpc_queue_stats *stats) {
    if (q == NULL || stats == NULL) return hpc_fail(HPC_ERR_INVALID, "stats", "stats: queue or stats is NULL");
    *stats = q->stats;
    return HPC_OK;
}

hpc_memory *hpc_queue_memory(const hpc_queue *q, int rank) {
    return hpc_window_memory(q->window, rank);
}

/* ---- create: the edges ---- */

void hpc_queue_config_init(hpc_queue_config *config) {
    *config = (hpc_queue_config){.size = sizeof *config, .depth = 1};
}

/* A rank's description of its queue. peers has its n_in in-peers, then its n_out out-peers. */
struct queue_description {
    uint64_t nbytes;
    int32_t depth, buffers, n_in, n_out;
    char type[128];
    int32_t peers[];
};

static int check_peers(const hpc_context *c, const int *peers, int n, const char *which) {
    if (n < 0 || (n > 0 && peers == NULL) || n > c->group.size)
        return hpc_fail(HPC_ERR_INVALID, op_create, "queue: %d %s_peers; 0 to %d are possible", n, which,
                        c->group.size - 1);
    for (int i = 0; i < n; i++) {
        int status = hpc_group_check_rank(&c->group, peers[i], which[0] == 'i' ? "in_peers: rank" : "out_peers: rank",
                                          op_create);
        if (status != HPC_OK) return status;
        if (peers[i] == c->group.rank)
            return hpc_fail(HPC_ERR_INVALID, op_create, "queue: rank %d has itself in %s_peers; leave it out", peers[i],
                            which);
        for (int j = 0; j < i; j++)
            if (peers[j] == peers[i])
                return hpc_fail(HPC_ERR_INVALID, op_create, "queue: rank %d is given twice in %s_peers; give it once",
                                peers[i], which);
    }
    return HPC_OK;
}

static int check_config(const hpc_context *c, const hpc_queue_config *f) {
    int status;
    if (f->size != sizeof *f)
        return hpc_fail(HPC_ERR_INVALID, op_create,
                        "queue: config->size is %zu, not %zu: call hpc_queue_config_init first", f->size, sizeof *f);
    if (f->depth < 1 || f->depth > 1 << 16)
        return hpc_fail(HPC_ERR_INVALID, op_create, "queue: depth is %d; 1 to %d are possible", f->depth, 1 << 16);
    if (f->buffers < 0 || f->buffers > 64)
        return hpc_fail(HPC_ERR_INVALID, op_create, "queue: buffers is %d; 0 to 64 are possible", f->buffers);
    size_t slots = (size_t)f->depth * (size_t)c->group.size + (size_t)f->buffers,
           most = SIZE_MAX / slots - 4 * sizeof(hpc_stamp);
    if (f->nbytes > most)
        return hpc_fail(HPC_ERR_INVALID, op_create, "queue: an update has %zu bytes; at most %zu are possible",
                        f->nbytes, most);
    if (f->type != NULL && strlen(f->type) >= sizeof((struct queue_description *)0)->type)
        return hpc_fail(HPC_ERR_INVALID, op_create, "queue: type has %zu characters; at most %zu are possible",
                        strlen(f->type), sizeof((struct queue_description *)0)->type - 1);
    status = check_peers(c, f->in_peers, f->n_in, "in");
    return status != HPC_OK ? status : check_peers(c, f->out_peers, f->n_out, "out");
}

static int names(const int32_t *peers, int n, int rank) {
    for (int i = 0; i < n; i++)
        if (peers[i] == rank) return 1;
    return 0;
}

/* Returns whether a rank's description is well-formed: both lists are complete and have only ranks of the context. */
static int is_sound(const hpc_context *c, const hpc_reply *reply) {
    const struct queue_description *d = reply->data;
    int size = c->group.size;
    if (reply->nbytes < sizeof *d || d->n_in < 0 || d->n_in > size || d->n_out < 0 || d->n_out > size) return 0;
    size_t peers = (size_t)d->n_in + (size_t)d->n_out;
    if (reply->nbytes != sizeof *d + peers * sizeof(int32_t) || memchr(d->type, 0, sizeof d->type) == NULL) return 0;
    for (size_t i = 0; i < peers; i++)
        if (d->peers[i] < 0 || d->peers[i] >= size) return 0;
    return 1;
}

static int compare(const hpc_context *c, const hpc_reply *replies) {
    const struct queue_description *first = replies[0].data;
    for (int r = 0; r < c->group.size; r++)
        if (!is_sound(c, &replies[r]))
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "queue: rank %d sent a description of its queue that cannot be read", r);
    for (int r = 0; r < c->group.size; r++) {
        const struct queue_description *d = replies[r].data;
        if (d->nbytes != first->nbytes)
            return hpc_fail(HPC_ERR_CONFIG, op_create, "queue: rank %d's update has %llu bytes and rank 0's has %llu",
                            r, (unsigned long long)d->nbytes, (unsigned long long)first->nbytes);
        if (strcmp(d->type, first->type) != 0)
            return hpc_fail(HPC_ERR_CONFIG, op_create, "queue: rank %d has type \"%s\" and rank 0 has \"%s\"", r,
                            d->type, first->type);
        if (d->depth != first->depth)
            return hpc_fail(HPC_ERR_CONFIG, op_create, "queue: rank %d has depth %d and rank 0 has %d", r, d->depth,
                            first->depth);
        if (d->buffers != first->buffers)
            return hpc_fail(HPC_ERR_CONFIG, op_create, "queue: rank %d has %d buffers and rank 0 has %d", r, d->buffers,
                            first->buffers);
    }
    for (int r = 0; r < c->group.size; r++) {
        const struct queue_description *d = replies[r].data;
        for (int i = 0; i < d->n_out; i++) {
            const struct queue_description *to = replies[d->peers[d->n_in + i]].data;
            if (!names(to->peers, to->n_in, r))
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "queue: rank %d has out-peer %d, but rank %d has no in-peer %d", r,
                                d->peers[d->n_in + i], d->peers[d->n_in + i], r);
        }
        for (int i = 0; i < d->n_in; i++) {
            const struct queue_description *from = replies[d->peers[i]].data;
            if (!names(from->peers + from->n_in, from->n_out, r))
                return hpc_fail(HPC_ERR_CONFIG, op_create,
                                "queue: rank %d has in-peer %d, but rank %d has no out-peer %d", r, d->peers[i],
                                d->peers[i], r);
        }
    }
    return HPC_OK;
}

static int check_agreement(hpc_context *c, const hpc_queue_config *f, double deadline) {
    size_t peers = (size_t)(f->n_in + f->n_out), nbytes = sizeof(struct queue_description) + peers * sizeof(int32_t);
    struct queue_description *mine = calloc(1, nbytes);
    hpc_reply *replies = calloc((size_t)c->group.size, sizeof *replies);
    int status = HPC_OK;
    if (mine == NULL || replies == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "queue: no memory");
        goto out;
    }
    mine->nbytes = f->nbytes;
    mine->depth = f->depth;
    mine->buffers = f->buffers;
    mine->n_in = f->n_in;
    mine->n_out = f->n_out;
    snprintf(mine->type, sizeof mine->type, "%s", f->type != NULL ? f->type : "");
    for (int i = 0; i < f->n_in; i++) mine->peers[i] = f->in_peers[i];
    for (int i = 0; i < f->n_out; i++) mine->peers[f->n_in + i] = f->out_peers[i];
    status = hpc_control_exchange(c->control, op_create, mine, nbytes, HPC_OWN_SIZES, replies, deadline);
    if (status == HPC_OK) {
        status = compare(c, replies);
        hpc_control_free_replies(c->control, replies);
    }
out:
    free(replies);
    free(mine);
    return status;
}

/* ---- create: the layout ---- */

/* The places in this rank's part of the window that another rank r uses: the edge from r, the edge to r, and the
 * buffers. */
struct places {
    uint64_t slots_offset, slot_stride, buffers_offset;
    int32_t notify_signal, ack_signal;
};

static size_t round_up(size_t n) {
    return (n + sizeof(hpc_stamp) - 1) / sizeof(hpc_stamp) * sizeof(hpc_stamp);
}

/* Returns whether the receiver reads updates in the sender's own buffers, so that a slot is only a header: the queue
 * has buffers, and the transport between the two ranks maps the peer's memory. */
static int is_in_place(const hpc_queue *q, int peer) {
    return q->buffers > 0 && (q->context->transports[peer]->caps & HPC_CAP_PEER_VIEW);
}

static size_t lay_out(hpc_queue *q, struct places *places) {
    size_t offset = 0;
    for (int i = 0; i < q->n_in; i++) {
        in_edge *e = &q->in[i];
        e->in_place = is_in_place(q, e->rank);
        e->slots_offset = offset;
        e->slot_stride = e->in_place ? sizeof(hpc_stamp) : 2 * sizeof(hpc_stamp) + round_up(q->nbytes);
        offset += (size_t)q->depth * e->slot_stride;
        places[e->rank].slots_offset = e->slots_offset;
        places[e->rank].slot_stride = e->slot_stride;
        places[e->rank].notify_signal = i;
    }
    for (int i = 0; i < q->n_out; i++) places[q->out[i].rank].ack_signal = q->n_in + i;
    q->buffers_offset = offset;
    q->buffer_stride = 2 * sizeof(hpc_stamp) + round_up(q->nbytes);
    for (int r = 0; r < q->context->group.size; r++) places[r].buffers_offset = offset;
    return offset + (size_t)q->buffers * q->buffer_stride;
}

static int learn_places(hpc_queue *q, const struct places *mine, double deadline) {
    hpc_context *c = q->context;
    size_t size = (size_t)c->group.size;
    hpc_reply *replies = calloc(size, sizeof *replies);
    int status = replies == NULL ? hpc_fail(HPC_ERR_MEMORY, op_create, "queue: no memory") : HPC_OK;
    if (status == HPC_OK)
        status =
            hpc_control_exchange(c->control, op_create, mine, size * sizeof *mine, HPC_EQUAL_SIZES, replies, deadline);
    if (status == HPC_OK) {
        for (int i = 0; i < q->n_out; i++) {
            out_edge *e = &q->out[i];
            const struct places *p = (const struct places *)replies[e->rank].data + c->group.rank;
            e->slots_offset = (size_t)p->slots_offset;
            e->slot_stride = (size_t)p->slot_stride;
            e->notify_signal = p->notify_signal;
            e->in_place = is_in_place(q, e->rank);
            e->ack = hpc_own_signal(q->window, q->n_in + i);
        }
        for (int i = 0; i < q->n_in; i++) {
            in_edge *e = &q->in[i];
            const struct places *p = (const struct places *)replies[e->rank].data + c->group.rank;
            e->ack_signal = p->ack_signal;
            e->notify = hpc_own_signal(q->window, i);
            size_t need = (size_t)q->buffers * q->buffer_stride, have = q->window->parts[e->rank].nbytes;
            if (e->in_place && (need > have || p->buffers_offset > have - need))
                status = hpc_fail(HPC_ERR_CONFIG, op_create,
                                  "queue: rank %d announced buffers that lie outside of its window", e->rank);
            else if (e->in_place)
                e->peer_buffers = (const char *)hpc_window_peer_view(q->window, e->rank) + p->buffers_offset;
        }
        hpc_control_free_replies(c->control, replies);
    }
    free(replies);
    return status;
}

static int allocate(hpc_queue *q, const hpc_queue_config *f) {
    q->in = calloc((size_t)f->n_in + 1, sizeof *q->in);
    q->out = calloc((size_t)f->n_out + 1, sizeof *q->out);
    q->sent = calloc((size_t)f->buffers + 1, sizeof *q->sent);
    q->inputs = calloc((size_t)f->n_in + 1, sizeof *q->inputs);
    q->weights = calloc((size_t)f->n_in + 1, sizeof *q->weights);
    if (!q->in || !q->out || !q->sent || !q->inputs || !q->weights) return HPC_ERR_MEMORY;
    q->nbytes = f->nbytes;
    q->depth = f->depth;
    q->buffers = f->buffers;
    q->n_in = f->n_in;
    q->n_out = f->n_out;
    for (int i = 0; i < f->n_in; i++) q->in[i].rank = f->in_peers[i];
    for (int i = 0; i < f->n_out; i++) {
        out_edge *e = &q->out[i];
        e->rank = f->out_peers[i];
        e->stamps = aligned_alloc(sizeof(hpc_stamp), 2 * (size_t)f->depth * sizeof(hpc_stamp));
        e->sent_from = calloc((size_t)f->buffers + 1, sizeof *e->sent_from);
        if (!e->stamps || !e->sent_from) return HPC_ERR_MEMORY;
        memset(e->stamps, 0, 2 * (size_t)f->depth * sizeof(hpc_stamp));
    }
    return HPC_OK;
}

/* Reaches the peers to which this rank will send or acknowledge, so that no send waits for that. */
static int reach_peers(hpc_queue *q, double deadline) {
    hpc_context *c = q->context;
    hpc_goal *goals = malloc(2 * ((size_t)q->n_in + (size_t)q->n_out + 1) * sizeof *goals);
    int n = 0;
    if (goals == NULL) return hpc_fail(HPC_ERR_MEMORY, op_create, "queue: no memory for %d peers", q->n_in + q->n_out);
    for (int i = 0; i < q->n_out; i++) {
        goals[n++] = (hpc_goal){&q->window->object, q->out[i].rank};
        goals[n++] = (hpc_goal){&c->lane->object, q->out[i].rank};
    }
    for (int i = 0; i < q->n_in; i++) {
        goals[n++] = (hpc_goal){&q->window->object, q->in[i].rank};
        goals[n++] = (hpc_goal){&c->acks->object, q->in[i].rank};
    }
    int status = hpc_reach_all(c, goals, n, op_create, deadline);
    free(goals);
    return status;
}

int hpc_queue_create(hpc_context *c, const hpc_queue_config *config, double timeout, hpc_queue **queue) {
    hpc_queue *q = NULL;
    struct places *places = NULL;
    double deadline;
    int status = hpc_context_ready(c, op_create);
    if (status != HPC_OK) return status;
    deadline = hpc_deadline(&c->group, timeout);
    /* A rank with wrong arguments tells the other ranks, since they would otherwise wait for it. */
    status = config == NULL || queue == NULL ? hpc_fail(HPC_ERR_INVALID, op_create, "queue: config or queue is NULL")
                                             : check_config(c, config);
    status = hpc_context_agree(c, op_create, status, deadline);
    if (queue != NULL) *queue = NULL;
    if (status == HPC_OK) status = check_agreement(c, config, deadline);
    if (status != HPC_OK) return status;

    q = calloc(1, sizeof *q);
    places = calloc((size_t)c->group.size, sizeof *places);
    status = HPC_OK;
    if (q != NULL) q->context = hpc_context_retain(c);
    if (q == NULL || places == NULL || allocate(q, config) != HPC_OK)
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "queue: no memory for a handle");
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status == HPC_OK)
        status = hpc_window_create_parts(c, op_create, lay_out(q, places), q->n_in + q->n_out, NULL, 0, deadline,
                                         &q->window);
    if (status == HPC_OK) status = learn_places(q, places, deadline);
    if (status == HPC_OK) status = hpc_context_agree(c, op_create, reach_peers(q, deadline), deadline);
    free(places);
    if (status != HPC_OK) {
        hpc_queue_free(q);
        return status;
    }
    *queue = q;
    return HPC_OK;
}

void hpc_queue_free(hpc_queue *q) {
    if (q == NULL || !hpc_group_is_mine(&q->context->group)) return;
    if (q->window != NULL && !atomic_load(&q->context->group.closed))
        hpc_lane_flush(q->context->lane,
                       q->context->group.timeout); /* a put may still read the stamps and the buffers */
    hpc_window_free(q->window);
    for (int i = 0; q->out != NULL && i < q->n_out; i++) {
        free(q->out[i].stamps);
        free(q->out[i].sent_from);
    }
    hpc_context_release(q->context);
    free(q->in);
    free(q->out);
    free(q->sent);
    free(q->inputs);
    free(q->weights);
    free(q);
}
