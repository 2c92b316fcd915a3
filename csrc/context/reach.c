/* Reaches a peer's part of a window or a lane, at its first use.
 *
 * The asking thread sends a question on the control channel (control/handles.c). The peer's control thread finds the
 * object by its number and exports a blob. This rank's control thread keeps the answer, and rings the bell. Then a
 * thread that uses the object attaches the blob, and marks the way as near.
 *
 * Who writes what. A way goes from FAR to ASKED to HANDED under the context's `reach`. A thread takes the handle by
 * changing HANDED to TAKEN; then it alone works on the peer's part, and its release store of NEAR or HANDED publishes
 * that. A dead end is stored once, and stays. `reach` also guards the table of objects: while it is held, no
 * object that is in the table is freed. No thread maps a peer's memory, or waits, while it holds `reach`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/overdue.h"
#include "context/reach.h"

typedef struct hpc_dead_end {
    int status;
    char why[192];
} dead_end;

/* ---- the table of objects ---- */

/* Returns the place of the first object in the table whose number is at least this one. */
static int place_of(const hpc_context *c, uint64_t number) {
    int from = 0, to = c->n_objects;
    while (from < to) {
        const int middle = from + (to - from) / 2;
        if (c->objects[middle]->number < number)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

hpc_object *hpc_object_find(const hpc_context *c, uint64_t number) {
    const int at = place_of(c, number);
    return at < c->n_objects && c->objects[at]->number == number ? c->objects[at] : NULL;
}

int hpc_object_open_as(hpc_context *c, hpc_object *o, const hpc_joint *joint, uint64_t number, const char *op) {
    hpc_approach *ways = calloc((size_t)c->group.size, sizeof *ways);
    pthread_mutex_lock(&c->reach);
    hpc_object **objects = realloc(c->objects, ((size_t)c->n_objects + 1) * sizeof *objects);
    if (objects != NULL) c->objects = objects;
    const int has_room = ways != NULL && objects != NULL;
    if (has_room) {
        const int at = place_of(c, number);
        memmove(objects + at + 1, objects + at, (size_t)(c->n_objects - at) * sizeof *objects);
        *o = (hpc_object){joint, number, ways};
        objects[at] = o;
        c->n_objects++;
        if (number < HPC_MAIL_WINDOW) c->last_object = number;
    }
    pthread_mutex_unlock(&c->reach);
    if (has_room) return HPC_OK;
    free(ways);
    return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a handle", op);
}

/* The number of collectives so far is the same on all ranks, also after calls that failed on some of them. */
int hpc_object_open(hpc_context *c, hpc_object *o, const hpc_joint *joint, const char *op) {
    return hpc_object_open_as(c, o, joint, hpc_control_collectives(c->control), op);
}

static void set(hpc_approach *way, int distance) {
    atomic_store_explicit(&way->distance, distance, memory_order_release);
}

static int distance_of(const hpc_approach *way) {
    return atomic_load_explicit(&way->distance, memory_order_acquire);
}

/* Frees what the blob holds. */
static void discard(const hpc_context *c, int rank, hpc_blob *blob) {
    const hpc_transport *t = c->transports[rank];
    if (t != NULL && t->discard != NULL) t->discard(blob);
    if (blob->fd >= 0) close(blob->fd);
    blob->fd = -1;
}

void hpc_object_close(hpc_context *c, hpc_object *o) {
    pthread_mutex_lock(&c->reach);
    const int at = o->joint == NULL ? c->n_objects : place_of(c, o->number);
    if (at < c->n_objects) {
        memmove(c->objects + at, c->objects + at + 1, (size_t)(c->n_objects - at - 1) * sizeof *c->objects);
        c->n_objects--;
    }
    pthread_mutex_unlock(&c->reach);
    for (int r = 0; o->joint != NULL && r < c->group.size; r++) {
        hpc_blob *left = o->ways[r].answer;
        if (left != NULL && distance_of(&o->ways[r]) == HPC_HANDED) discard(c, r, left);
        free(left);
        free(atomic_load(&o->ways[r].dead_end));
    }
    free(o->ways);
    *o = (hpc_object){NULL, 0, NULL};
}

/* ---- the control channel's thread ---- */

static int give(void *arg, int rank, uint64_t number, hpc_blob *blob) {
    hpc_context *c = arg;
    const hpc_transport *t = c->transports == NULL ? NULL : c->transports[rank];
    int status = c->asked == NULL ? HPC_OK : c->asked(c, number);
    if (status < 0) return status;
    pthread_mutex_lock(&c->reach);
    hpc_object *o = hpc_object_find(c, number);
    if (o != NULL && t != NULL && !(t->caps & HPC_CAP_EAGER))
        status = o->joint->export_to(t, o, rank, blob);
    else
        status = number > c->last_object && number < HPC_MAIL_WINDOW
                     ? hpc_fail(HPC_ERR_INVALID, "reach", "it was never made")
                     : HPC_GONE;
    pthread_mutex_unlock(&c->reach);
    return status;
}

static void refuse(hpc_approach *way, int status, const char *why) {
    dead_end *fresh = malloc(sizeof *fresh), *none = NULL;
    if (fresh == NULL) return; /* the wait ends at its timeout */
    fresh->status = status;
    snprintf(fresh->why, sizeof fresh->why, "%s", why);
    if (!atomic_compare_exchange_strong(&way->dead_end, &none, fresh)) free(fresh);
}

/* A socket that was full may bring a question, and so its answer, twice: the second answer is not awaited. Only a
 * connection may still fail after the answer. */
static void take(void *arg, int rank, uint64_t number, int status, const char *why, hpc_blob *blob) {
    hpc_context *c = arg;
    hpc_blob *fresh = status == HPC_OK ? malloc(sizeof *fresh) : NULL;
    pthread_mutex_lock(&c->reach);
    hpc_object *o = hpc_object_find(c, number);
    hpc_approach *way = o == NULL ? NULL : &o->ways[rank];
    const int awaited = way != NULL && distance_of(way) == HPC_ASKED, kept = fresh != NULL && awaited;
    if (awaited && status == HPC_GONE) {
        set(way, HPC_FREED_THERE);
    } else if (kept) {
        *fresh = *blob;
        way->answer = fresh;
        set(way, HPC_HANDED);
    } else if (awaited || (way != NULL && status < 0 && c->transports[rank]->accept_lane != NULL)) {
        refuse(way, status, status == HPC_OK ? "this rank has no memory for its handle" : why);
    }
    pthread_mutex_unlock(&c->reach);
    if (!kept && status == HPC_OK) discard(c, rank, blob);
    if (!kept) free(fresh);
    hpc_bell_ring(c->group.bell);
}

static void drop(void *arg, int rank, hpc_blob *blob) {
    const hpc_transport *t = ((hpc_context *)arg)->transports[rank];
    if (t != NULL && t->discard != NULL) t->discard(blob);
}

static int put(void *arg, uint64_t number, const void *data, size_t nbytes, uint64_t offset, int signal,
               uint64_t value) {
    hpc_context *c = arg;
    int status = HPC_OK;
    pthread_mutex_lock(&c->reach);
    hpc_object *o = hpc_object_find(c, number);
    if (o != NULL && o->joint->put != NULL)
        status = o->joint->put(o, data, nbytes, offset, signal, value);
    else if (o != NULL || number > c->last_object)
        status = HPC_ERR_INVALID;
    pthread_mutex_unlock(&c->reach);
    hpc_bell_ring(c->group.bell);
    return status;
}

static void hear(void *arg, int rank, uint64_t number, const void *data, size_t nbytes, uint64_t offset,
                 uint64_t value) {
    hpc_context *c = arg;
    pthread_mutex_lock(&c->reach);
    hpc_object *o = hpc_object_find(c, number);
    if (o != NULL && o->joint->hear != NULL) o->joint->hear(o, rank, data, nbytes, offset, value);
    pthread_mutex_unlock(&c->reach);
    hpc_bell_ring(c->group.bell);
}

const hpc_giver hpc_reach_giver = {give, take, drop, put, hear};

/* ---- threads that use an object ---- */

void hpc_reach_mark(hpc_object *o, int rank) {
    o->joint->come_near(o, rank);
    set(&o->ways[rank], HPC_NEAR);
}

/* Attaches the answer, which only this thread holds. */
static int attach(const hpc_context *c, hpc_object *o, int peer) {
    hpc_approach *way = &o->ways[peer];
    hpc_blob blob = *way->answer;
    way->answer->fd = -1;
    int status = o->joint->attach(c->transports[peer], o, peer, &blob);
    if (status == HPC_OK) hpc_reach_mark(o, peer);
    if (status < 0) refuse(way, status, hpc_last_error()->message);
    if (status == HPC_IN_PROGRESS) set(way, HPC_HANDED);
    return status;
}

static void ask(hpc_context *c, hpc_object *o, int peer) {
    hpc_approach *way = &o->ways[peer];
    pthread_mutex_lock(&c->reach);
    /* If the question cannot be sent now, the caller tries again. */
    if (distance_of(way) == HPC_FAR && hpc_control_want(c->control, peer, o->number) == HPC_OK) set(way, HPC_ASKED);
    pthread_mutex_unlock(&c->reach);
}

int hpc_reach_try(hpc_context *c, hpc_object *o, int peer, const char *op) {
    hpc_approach *way = &o->ways[peer];
    int answered = HPC_HANDED;
    if (distance_of(way) == HPC_NEAR) return HPC_OK;
    if (distance_of(way) == HPC_FREED_THERE) return HPC_GONE;
    int status = hpc_group_peer_present(&c->group, peer, op);
    if (status != HPC_OK) return status;
    const dead_end *no = atomic_load(&way->dead_end);
    if (no != NULL && no->status == HPC_ERR_TIMEOUT)
        return hpc_fail_ranks(HPC_ERR_TIMEOUT, op, NULL, 0, &peer, 1, "rank %d: %s: cannot reach rank %d's %s: %s",
                              c->group.rank, op, peer, o->joint->name, no->why);
    if (no != NULL)
        return hpc_fail_transport(op, c->transports[peer]->name, peer, "rank %d: %s: cannot reach rank %d's %s: %s",
                                  c->group.rank, op, peer, o->joint->name, no->why);
    if (distance_of(way) == HPC_FAR && o->joint->is_met(c->transports[peer], o, peer)) {
        hpc_reach_mark(o, peer);
        return HPC_OK;
    }
    if (distance_of(way) == HPC_FAR) ask(c, o, peer);
    if (!atomic_compare_exchange_strong(&way->distance, &answered, HPC_TAKEN)) return HPC_IN_PROGRESS;
    return attach(c, o, peer);
}

struct reaching {
    hpc_context *context;
    hpc_object *object;
    int peer, status;
    const char *op;
};

static int is_near(void *arg) {
    struct reaching *r = arg;
    r->status = hpc_group_usable(&r->context->group, r->op); /* this rank may be aborted meanwhile */
    if (r->status == HPC_OK) r->status = hpc_reach_try(r->context, r->object, r->peer, r->op);
    return r->status != HPC_IN_PROGRESS;
}

static int whom(void *arg, int *ranks) {
    ranks[0] = ((struct reaching *)arg)->peer;
    return 1;
}

/* A task may call this, so the wait works for no task. The peer's control thread answers it, and that one waits for
 * nothing. */
int hpc_reach(hpc_context *c, hpc_object *o, int peer, const char *op) {
    struct reaching r = {c, o, peer, HPC_IN_PROGRESS, op};
    const hpc_wait wait = {op, is_near, whom, &r, .every = 0};
    const double start = hpc_now();
    if (is_near(&r)) return r.status;
    hpc_group *calm = hpc_group_calm(&c->group);
    if (calm == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    double since = start;
    const int shown = hpc_watch_wait(&c->group.watch, -1, hpc_doing_of(op, 0), &peer, 1, &since);
    const int status = hpc_wait_for(calm, &wait, c->group.init_timeout);
    hpc_watch_end(&c->group.watch, shown, 0, hpc_now());
    free(calm);
    if (status == HPC_OK) return r.status;
    return hpc_group_fail_timeout(&c->group, op, &peer, 1, hpc_now() - start,
                                  "rank %d has not answered how this rank reaches its %s", peer, o->joint->name);
}

struct goals {
    hpc_context *context;
    hpc_goal *goals;
    int n, status;
    const char *op;
};

/* Asks all peers before it waits for any. Goals that are reached leave the list. */
static int are_near(void *arg) {
    struct goals *g = arg;
    for (int i = 0; i < g->n;) {
        const int status = hpc_reach_try(g->context, g->goals[i].object, g->goals[i].peer, g->op);
        if (status < 0) {
            g->status = status;
            return 1;
        }
        if (status == HPC_IN_PROGRESS)
            i++;
        else
            g->goals[i] = g->goals[--g->n];
    }
    return g->n == 0;
}

static int who_is_far(void *arg, int *ranks) {
    const struct goals *g = arg;
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        int known = 0;
        for (int k = 0; k < n && !known; k++) known = ranks[k] == g->goals[i].peer;
        if (!known) ranks[n++] = g->goals[i].peer;
    }
    return n;
}

int hpc_reach_all(hpc_context *c, hpc_goal *goals, int n, const char *op, double deadline) {
    struct goals g = {c, goals, n, HPC_OK, op};
    const hpc_wait wait = {op, are_near, who_is_far, &g, .every = 1};
    const int status = hpc_wait_for(&c->group, &wait, hpc_left(deadline));
    return status != HPC_OK ? status : g.status;
}
