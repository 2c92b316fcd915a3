
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/overdue.h"
#include "context/context.h"

enum { TYPE_BYTES = 128 };

/* The values that all ranks must agree on before anything is allocated. */
struct window_description {
    uint64_t nbytes;
    int32_t signals;
    char type[TYPE_BYTES];
};

static int check_agreement(hpc_context *c, const char *op, const struct window_description *mine, double deadline) {
    hpc_reply *replies = calloc((size_t)c->group.size, sizeof *replies);
    int status;
    if (replies == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    status = hpc_control_exchange(c->control, op, mine, sizeof *mine, HPC_EQUAL_SIZES, replies, deadline);
    if (status == HPC_OK) {
        const struct window_description *first = replies[0].data;
        for (int r = 1; r < c->group.size && status == HPC_OK; r++) {
            const struct window_description *d = replies[r].data;
            if (d->nbytes != first->nbytes)
                status = hpc_fail(HPC_ERR_CONFIG, op, "%s: rank %d asks for %llu bytes and rank 0 for %llu", op, r,
                                  (unsigned long long)d->nbytes, (unsigned long long)first->nbytes);
            else if (d->signals != first->signals)
                status = hpc_fail(HPC_ERR_CONFIG, op, "%s: rank %d asks for %d signals and rank 0 for %d", op, r,
                                  d->signals, first->signals);
            else if (strncmp(d->type, first->type, TYPE_BYTES) != 0)
                status = hpc_fail(HPC_ERR_CONFIG, op, "%s: rank %d has type \"%.*s\" and rank 0 has \"%.*s\"", op, r,
                                  TYPE_BYTES - 1, d->type, TYPE_BYTES - 1, first->type);
        }
        hpc_control_free_replies(c->control, replies);
    }
    free(replies);
    return status;
}

int hpc_window_create(hpc_context *c, size_t nbytes, int signals, const char *type, double timeout,
                      hpc_window **window) {
    static const char op[] = "window";
    struct window_description mine = {.nbytes = nbytes, .signals = signals};
    double deadline;
    int status = hpc_context_ready(c, op);
    if (status != HPC_OK) return status;
    deadline = hpc_deadline(&c->group, timeout);
    if (window == NULL)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: window is NULL", op);
    else if (signals < 0 || signals > HPC_MOST_SIGNALS)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: %d signals; 0 to %d are possible", op, signals, HPC_MOST_SIGNALS);
    else if (type != NULL && strlen(type) >= TYPE_BYTES)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: type has %zu characters; at most %d are possible", op, strlen(type),
                          TYPE_BYTES - 1);
    /* A rank with wrong arguments tells the other ranks, which would otherwise wait for it. */
    status = hpc_context_agree(c, op, status, deadline);
    if (window != NULL) *window = NULL;
    if (status != HPC_OK) return status;
    snprintf(mine.type, sizeof mine.type, "%s", type != NULL ? type : "");
    status = check_agreement(c, op, &mine, deadline);
    if (status == HPC_OK) status = hpc_window_create_parts(c, op, nbytes, signals, NULL, 0, deadline, window);
    return status;
}

/* ---- parts ---- */

static size_t signals_offset(size_t nbytes) {
    return (nbytes + HPC_SIGNAL_STRIDE - 1) / HPC_SIGNAL_STRIDE * HPC_SIGNAL_STRIDE;
}

/* A rank's description of its part; the ranks exchange it before their blobs. */
struct extent {
    uint64_t nbytes;
    int32_t signals;
};

static int learn_extents(hpc_window *w, const char *op, double deadline) {
    hpc_context *c = w->context;
    hpc_part *mine = &w->parts[c->group.rank];
    struct extent extent = {mine->nbytes, mine->signals};
    hpc_reply *replies = calloc((size_t)c->group.size, sizeof *replies);
    int status;
    if (replies == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    status = hpc_control_exchange(c->control, op, &extent, sizeof extent, HPC_EQUAL_SIZES, replies, deadline);
    if (status == HPC_OK) {
        for (int r = 0; r < c->group.size; r++) {
            memcpy(&extent, replies[r].data, sizeof extent);
            if (extent.signals < 0 || extent.signals > HPC_MOST_SIGNALS || extent.nbytes > SIZE_MAX / 2)
                status = hpc_fail(HPC_ERR_CONFIG, op,
                                  "%s: rank %d announced a part of %llu bytes and %d signals, which is impossible", op,
                                  r, (unsigned long long)extent.nbytes, extent.signals);
            w->parts[r].nbytes = (size_t)extent.nbytes;
            w->parts[r].signals = extent.signals;
            w->parts[r].signals_offset = signals_offset((size_t)extent.nbytes);
        }
        hpc_control_free_replies(c->control, replies);
    }
    free(replies);
    return status;
}

static int export_to(const hpc_transport *transport, hpc_object *object, int peer, hpc_blob *blob) {
    return transport->window_export((hpc_window *)object, peer, blob);
}

static int attach(const hpc_transport *transport, hpc_object *object, int peer, const hpc_blob *blob) {
    return transport->window_attach((hpc_window *)object, peer, blob);
}

/* Opens the peer's part to puts. release: they see the part's memory. */
static void come_near(hpc_object *object, int peer) {
    hpc_part *part = &((hpc_window *)object)->parts[peer];
    atomic_store_explicit(&part->open_signals, part->signals, memory_order_release);
    atomic_store_explicit(&part->open_bytes, part->nbytes, memory_order_release);
}

static int is_met(const hpc_transport *transport, hpc_object *object, int peer) {
    (void)object, (void)peer;
    return transport->window_attach == NULL;
}

static int put(hpc_object *object, const void *data, size_t nbytes, uint64_t offset, int signal, uint64_t value) {
    const hpc_window *w = (hpc_window *)object;
    const hpc_part *part = &w->parts[w->context->group.rank];
    if (offset > part->nbytes || nbytes > part->nbytes - offset || signal < 0 || signal >= part->signals)
        return HPC_ERR_INVALID;
    if (nbytes > 0) memcpy((char *)hpc_memory_data(w->memory) + offset, data, nbytes);
    hpc_raise_signal(hpc_own_signal(w, signal), value);
    return HPC_OK;
}

static void hear(hpc_object *object, int rank, const void *data, size_t nbytes, uint64_t offset, uint64_t value) {
    const hpc_window *w = (hpc_window *)object;
    const hpc_part *part = &w->parts[w->context->group.rank];
    if (offset > w->said_stride || nbytes > w->said_stride - offset || rank >= part->signals) return;
    if (nbytes > 0)
        memcpy((char *)hpc_memory_data(w->memory) + w->said_at + (size_t)rank * w->said_stride + offset, data, nbytes);
    if (value != 0) hpc_raise_signal(hpc_own_signal(w, rank), value);
}

static const hpc_joint joint = {"window", is_met, export_to, attach, come_near, put, hear};

/* Lets every transport know the window. */
static int open_everywhere(hpc_window *w) {
    const hpc_context *c = w->context;
    int status = HPC_OK;
    for (int i = 0; c->used[i] != NULL && status == HPC_OK; i++)
        if (c->used[i]->window_open != NULL) status = c->used[i]->window_open(w);
    return status;
}

int hpc_window_node(const hpc_context *c) {
    for (int r = 0; r < c->group.size; r++)
        if (c->transports[r]->caps & HPC_CAP_NICS) return hpc_nics_node(c->nics);
    return -1;
}

/* Returns the bytes of a part with its signals. An empty window still has an address. */
static size_t total_of(size_t nbytes, int signals) {
    const size_t extra = HPC_SIGNAL_STRIDE * ((size_t)signals + 1);
    if (nbytes > SIZE_MAX - extra) return SIZE_MAX;
    const size_t total = signals_offset(nbytes) + (size_t)signals * HPC_SIGNAL_STRIDE;
    return total == 0 ? 1 : total;
}

static void lay_out(hpc_part *part, size_t nbytes, int signals) {
    part->nbytes = nbytes;
    part->signals = signals;
    part->signals_offset = signals_offset(nbytes);
}

static int make(hpc_context *c, const char *op, size_t nbytes, int signals, hpc_window **window) {
    hpc_window *w = calloc(1, sizeof *w);
    hpc_part *parts = calloc((size_t)c->group.size, sizeof *parts);
    if (w == NULL || parts == NULL) {
        free(w);
        free(parts);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a handle", op);
    }
    w->context = hpc_context_retain(c);
    w->parts = parts;
    lay_out(&parts[c->group.rank], nbytes, signals);
    *window = w;
    return HPC_OK;
}

int hpc_window_create_parts(hpc_context *c, const char *op, size_t nbytes, int signals, const hpc_placement *places,
                            int n_places, double deadline, hpc_window **window) {
    hpc_window *w = NULL;
    const size_t total = total_of(nbytes, signals);
    int status = make(c, op, nbytes, signals, &w);
    if (status != HPC_OK) return status;
    status = hpc_context_check_memory(c, op, nbytes, total, deadline);
    if (status == HPC_OK) {
        const hpc_placement whole = {0, total, hpc_window_node(c)};
        status = hpc_memory_create_placed(total, n_places > 0 ? places : &whole, n_places > 0 ? n_places : 1, op,
                                          &w->memory);
        if (status == HPC_OK) status = hpc_object_open(c, &w->object, &joint, op);
        if (status == HPC_OK) status = open_everywhere(w);
        status = hpc_context_agree(c, op, status, deadline);
    }
    if (status == HPC_OK) status = learn_extents(w, op, deadline);
    if (status == HPC_OK) status = hpc_object_join(c, op, &w->object, HPC_OK, deadline);
    if (status == HPC_OK && c->all_remote) hpc_memory_close_descriptor(w->memory); /* no rank maps it */
    if (status != HPC_OK) {
        hpc_window_free(w);
        return status;
    }
    *window = w;
    return HPC_OK;
}

int hpc_window_create_alike(hpc_context *c, const char *op, uint64_t number, size_t nbytes, int signals,
                            double deadline, hpc_window **window) {
    hpc_window *w = NULL;
    int status = make(c, op, nbytes, signals, &w);
    if (status != HPC_OK) return status;
    for (int r = 0; r < c->group.size; r++) lay_out(&w->parts[r], nbytes, signals);
    status =
        hpc_memory_create_placed(total_of(nbytes, signals),
                                 &(hpc_placement){0, total_of(nbytes, signals), hpc_window_node(c)}, 1, op, &w->memory);
    if (status == HPC_OK) status = hpc_object_open_as(c, &w->object, &joint, number, op);
    if (status == HPC_OK) status = open_everywhere(w);
    status = hpc_object_join_alone(c, op, &w->object, status, deadline);
    if (status == HPC_OK && c->all_remote) hpc_memory_close_descriptor(w->memory);
    if (status != HPC_OK) {
        hpc_window_free(w);
        return status;
    }
    *window = w;
    return HPC_OK;
}

int hpc_window_tell(hpc_window *w, int peer, const void *src, size_t nbytes, size_t offset, int signal,
                    uint64_t value) {
    static const char op[] = "put_signal";
    hpc_context *c = w->context;
    int status = hpc_group_usable(&c->group, op);
    if (status == HPC_OK) status = hpc_group_peer_present(&c->group, peer, op);
    if (status != HPC_OK) return status;
    const double start = hpc_now(), deadline = start + c->group.init_timeout;
    status = hpc_control_put(c->control, peer, w->object.number, src, nbytes, offset, signal, value, deadline);
    if (status == HPC_ERR_TIMEOUT)
        return hpc_group_fail_timeout(&c->group, op, &peer, 1, hpc_now() - start, "rank %d does not read its socket",
                                      peer);
    return status == HPC_OK ? HPC_OK : hpc_group_peer_present(&c->group, peer, op);
}

int hpc_window_say(hpc_window *w, const char *told, const void *src, size_t nbytes, uint64_t value) {
    return hpc_control_say(w->context->control, w->object.number, told, src, nbytes, value);
}

void hpc_window_hear(hpc_window *w, size_t at, size_t stride) {
    w->said_at = at;
    w->said_stride = stride;
}

void hpc_window_free(hpc_window *w) {
    if (w == NULL || !hpc_group_is_mine(&w->context->group)) return;
    hpc_object_close(w->context, &w->object);
    if (w->memory != NULL) hpc_memory_close_descriptor(w->memory); /* an array may hold the memory for longer */
    for (int r = 0; r < w->context->group.size; r++) {
        if (r != w->context->group.rank) w->context->transports[r]->window_detach(w, r);
        hpc_memory_release(hpc_part_memory(&w->parts[r]));
    }
    hpc_memory_release(w->memory);
    hpc_context_release(w->context);
    free(w->parts);
    free(w);
}

/* ---- facts ---- */

void *hpc_window_data(const hpc_window *w) {
    return hpc_memory_data(w->memory);
}

static int own_signals(const hpc_window *w) {
    return w->parts[w->context->group.rank].signals;
}

/* Returns the memory of a part that is, or can be, mapped here; NULL: it cannot. */
static hpc_memory *view(const hpc_window *w, int rank) {
    hpc_context *c = w->context;
    hpc_window *window = (hpc_window *)(uintptr_t)w;
    if (rank < 0 || rank >= c->group.size) return NULL;
    if (rank != c->group.rank && !(c->transports[rank]->caps & HPC_CAP_PEER_VIEW)) return NULL;
    if (hpc_part_memory(&w->parts[rank]) == NULL && hpc_reach(c, &window->object, rank, "window") != HPC_OK)
        return NULL;
    return hpc_part_memory(&w->parts[rank]);
}

void *hpc_window_peer_view(const hpc_window *w, int peer) {
    hpc_memory *memory = view(w, peer);
    return memory == NULL ? NULL : hpc_memory_data(memory);
}

hpc_memory *hpc_window_memory(const hpc_window *w, int rank) {
    hpc_memory *memory = view(w, rank);
    return memory == NULL ? NULL : hpc_memory_retain(memory);
}

/* ---- signals ---- */

static int check_signal(const hpc_window *w, int signal, const char *op) {
    if (w == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: window is NULL", op);
    int status = hpc_group_usable(&w->context->group, op);
    if (status != HPC_OK) return status;
    if (signal < 0 || signal >= own_signals(w))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: signal %d is out of range; the window has %d", op, signal,
                        own_signals(w));
    return HPC_OK;
}

struct awaited {
    const hpc_window *window;
    _Atomic uint64_t *word;
    uint64_t at_least;
    int peer;
};

/* acquire: once the signal is visible, so is the data that was put before it. */
static int has_come(void *arg) {
    const struct awaited *a = arg;
    return atomic_load_explicit(a->word, memory_order_acquire) >= a->at_least;
}

/* Lists the ranks that may write the signal: peer, or if that is -1 any other rank that is present. */
static int expected_from(void *arg, int *ranks) {
    const struct awaited *a = arg;
    const hpc_group *g = &a->window->context->group;
    if (a->peer >= 0) {
        ranks[0] = a->peer;
        return 1;
    }
    return hpc_group_others(g, ranks);
}

int hpc_test_signal(hpc_window *w, int signal, uint64_t at_least, uint64_t *value) {
    int status = check_signal(w, signal, "test_signal");
    if (status != HPC_OK) return status;
    hpc_group *g = &w->context->group;
    hpc_group_progress(g);
    uint64_t now = atomic_load_explicit(hpc_own_signal(w, signal), memory_order_acquire);
    if (value != NULL) *value = now;
    return now >= at_least ? HPC_OK : HPC_IN_PROGRESS;
}

int hpc_wait_signal(hpc_window *w, int signal, uint64_t at_least, int peer, double timeout, uint64_t *value) {
    static const char op[] = "wait_signal";
    HPC_SPAN(w == NULL ? NULL : w->context->group.timeline, op, NULL);
    int status = check_signal(w, signal, op);
    if (status == HPC_OK && peer != -1) status = hpc_group_check_rank(&w->context->group, peer, "peer", op);
    if (status != HPC_OK) return status;
    struct awaited awaited = {w, hpc_own_signal(w, signal), at_least, peer};
    const hpc_wait wait = {op, has_come, expected_from, &awaited, .every = 0};
    status = hpc_wait_for(&w->context->group, &wait, timeout);
    if (value != NULL) *value = atomic_load_explicit(awaited.word, memory_order_acquire);
    return status;
}
