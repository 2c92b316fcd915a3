/* Registered memory. A window is registered once with every NIC, as one region, so that a put into it or from it
 * needs only an address and a key.
 *
 * Each rank frees a window on its own, but a write into a freed region would break the queue pair. So a rank that
 * frees its handle waits for its own puts to complete and then tells the owner that it will write nothing more. The
 * owner frees the region when all ranks have said so and no completion still in a queue can name it. */
#include "transport/verbs/parts.h"

#if defined(HPC_HAVE_VERBS)

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { OURS = 1, ITS = 2 }; /* holders for a peer */

typedef struct window_blob {
    uint64_t address;
    uint32_t number;
    uint32_t keys[HPC_RAILS];
} window_blob;

_Static_assert(sizeof(window_blob) <= HPC_BLOB_BYTES, "a blob holds it");

/* Returns a number for a window. Numbers that fit into an immediate are used in rotation, so that a late completion
 * does not name a newer window; when all are taken, larger numbers are used. */
static uint32_t free_number(hpc_verbs *v) {
    for (uint32_t i = 1; i < VERBS_IMM_WINDOWS; i++) {
        uint32_t number = 1 + (v->last_number + i - 1) % (VERBS_IMM_WINDOWS - 1);
        if (atomic_load_explicit(&v->windows[number], memory_order_relaxed) == NULL) return v->last_number = number;
    }
    for (uint32_t number = VERBS_IMM_WINDOWS; number < VERBS_WINDOWS; number++)
        if (atomic_load_explicit(&v->windows[number], memory_order_relaxed) == NULL) {
            v->many_windows = 1;
            return number;
        }
    return 0;
}

static int register_window(hpc_verbs *v, hpc_window *w) {
    const hpc_part *part = &w->parts[v->context->group.rank];
    verbs_window *r = calloc(1, sizeof *r + (size_t)v->context->group.size);
    if (r == NULL) return hpc_fail(HPC_ERR_MEMORY, "window", "window: no memory to register it");
    *r = (verbs_window){.nbytes = part->nbytes,
                        .signals_offset = part->signals_offset,
                        .signals = part->signals,
                        .memory = hpc_memory_retain(w->memory)};
    pthread_mutex_init(&r->storing, NULL);
    r->writers = calloc((size_t)part->signals + 1, sizeof *r->writers);
    if (r->writers == NULL) {
        verbs_window_free(v, r);
        return hpc_fail(HPC_ERR_MEMORY, "window", "window: no memory to register it");
    }
    for (int i = 0; i < v->nics->n; i++) { /* no relaxed ordering, see keeps_order */
        r->regions[i] = v->library->reg_mr(v->nics->nics[i].pd, w->memory->data, w->memory->nbytes,
                                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (r->regions[i] != NULL) continue;
        int error = errno;
        verbs_window_free(v, r);
        return hpc_fail_transport("window", "verbs", -1, "rank %d: window: %s cannot register %zu bytes: %s%s",
                                  v->context->group.rank, v->nics->nics[i].name, w->memory->nbytes, strerror(error),
                                  error == ENOMEM || error == EPERM || error == EAGAIN
                                      ? "; raise the limit of locked memory (ulimit -l unlimited)"
                                      : "");
    }
    pthread_mutex_lock(&v->lock);
    r->number = free_number(v);
    if (r->number != 0) atomic_store_explicit(&v->windows[r->number], r, memory_order_release);
    pthread_mutex_unlock(&v->lock);
    if (r->number == 0) {
        verbs_window_free(v, r);
        return hpc_fail(HPC_ERR_TRANSPORT, "window", "window: there are %d windows already; free some",
                        VERBS_WINDOWS - 1);
    }
    w->registered = r;
    return HPC_OK;
}

void verbs_window_free(hpc_verbs *v, verbs_window *r) {
    for (int i = 0; i < v->nics->n; i++)
        if (r->regions[i] != NULL) v->library->dereg_mr(r->regions[i]);
    hpc_memory_release(r->memory);
    pthread_mutex_destroy(&r->storing);
    free(r->writers);
    free(r);
}

int verbs_window_export(hpc_verbs *v, hpc_window *w, int peer, hpc_blob *blob) {
    int status = w->registered != NULL ? HPC_OK : register_window(v, w);
    if (status != HPC_OK) return status;
    verbs_window *r = w->registered;
    window_blob b = {.address = (uint64_t)(uintptr_t)r->memory->data, .number = r->number};
    for (int i = 0; i < v->nics->n; i++) b.keys[i] = r->regions[i]->rkey;
    memcpy(blob->bytes, &b, sizeof b);
    pthread_mutex_lock(&v->lock);
    r->known[peer] = OURS | ITS;
    r->holders += 2;
    pthread_mutex_unlock(&v->lock);
    return HPC_OK;
}

int verbs_window_attach(hpc_window *w, int peer, const hpc_blob *blob) {
    size_t signals = (size_t)w->parts[peer].signals;
    verbs_remote *remote = calloc(1, sizeof *remote);
    window_blob b;
    memcpy(&b, blob->bytes, sizeof b);
    /* The kernel adds pages only as they are used. */
    if (remote != NULL) remote->sent = calloc(signals + 1, sizeof *remote->sent);
    if (remote == NULL || remote->sent == NULL) {
        free(remote);
        return hpc_fail(HPC_ERR_MEMORY, "window", "window: no memory for rank %d's part", peer);
    }
    remote->address = b.address;
    remote->number = b.number;
    memcpy(remote->keys, b.keys, sizeof b.keys);
    w->parts[peer].remote = remote;
    return HPC_OK;
}

/* Drops one of a window's two holders for a peer. After the last holder the window is freed once no completion can
 * name it; until then its number stays taken. */
static void drop_holder(hpc_verbs *v, verbs_window *r, int peer, int which) {
    if (!(r->known[peer] & which)) return;
    r->known[peer] &= (unsigned char)~which;
    if (--r->holders > 0) return;
    r->next = v->going;
    v->going = r;
    atomic_fetch_add(&v->n_going, 1);
}

void verbs_window_leave(hpc_verbs *v, uint32_t number, int peer) {
    pthread_mutex_lock(&v->lock);
    verbs_window *r = number < VERBS_WINDOWS ? atomic_load_explicit(&v->windows[number], memory_order_relaxed) : NULL;
    if (r != NULL) drop_holder(v, r, peer, ITS);
    pthread_mutex_unlock(&v->lock);
}

void verbs_window_forget(hpc_verbs *v) {
    const hpc_group *g = &v->context->group;
    pthread_mutex_lock(&v->lock);
    v->departures = atomic_load_explicit(&g->departures, memory_order_acquire);
    for (uint32_t i = 1; i < VERBS_WINDOWS; i++) {
        verbs_window *r = atomic_load_explicit(&v->windows[i], memory_order_relaxed);
        for (int p = 0; r != NULL && p < g->size; p++)
            if (atomic_load_explicit(&g->states[p], memory_order_acquire) != HPC_PEER_ALIVE) drop_holder(v, r, p, ITS);
    }
    pthread_mutex_unlock(&v->lock);
}

void verbs_window_detach(hpc_verbs *v, hpc_window *w, int peer) {
    verbs_remote *remote = w->parts[peer].remote;
    if (remote != NULL) {
        free(remote->sent);
        free(remote);
        w->parts[peer].remote = NULL;
    }
    if (w->registered == NULL) return;
    pthread_mutex_lock(&v->lock);
    drop_holder(v, w->registered, peer, OURS);
    pthread_mutex_unlock(&v->lock);
}

static struct ibv_mr *covers(const verbs_window *r, int nic, const void *src, size_t nbytes) {
    if (r == NULL) return NULL;
    uintptr_t start = (uintptr_t)r->memory->data, at = (uintptr_t)src;
    return at >= start && at - start <= r->memory->nbytes && nbytes <= r->memory->nbytes - (at - start)
               ? r->regions[nic]
               : NULL;
}

struct ibv_mr *verbs_region_of(hpc_verbs *v, const hpc_window *w, int nic, const void *src, size_t nbytes) {
    struct ibv_mr *region = covers(w->registered, nic, src, nbytes);
    if (region != NULL) return region;
    pthread_mutex_lock(&v->lock);
    for (uint32_t i = 1; i < VERBS_WINDOWS && region == NULL; i++) {
        if (i == VERBS_IMM_WINDOWS && !v->many_windows) break;
        region = covers(atomic_load_explicit(&v->windows[i], memory_order_relaxed), nic, src, nbytes);
    }
    pthread_mutex_unlock(&v->lock);
    return region;
}

#endif
