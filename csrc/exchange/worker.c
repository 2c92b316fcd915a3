/* The trainer's side of an exchange: a gradient goes out, parameters come back. What it waits for is in ticket.c. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/* ---- gradient ---- */

/* The ticket whose end frees the slot of the next push, or where models rotate the one that its fold writes; 0 when it
 * has not been used. */
static uint64_t slot_ticket(const hpc_exchange *ex, int key) {
    uint64_t pushes = ex->keys[key].pushes, depth = (uint64_t)(ex->depth - ex->rotates);
    return pushes < depth ? 0 : 2 * (pushes - depth + 1);
}

static char *slot_at(const hpc_exchange *ex, int key) {
    return hpc_own_part(ex) + ex->places[ex->context->group.rank].gradients + ex->keys[key].gradient +
           ex->keys[key].pushes % (uint64_t)ex->depth * ex->gradient_bytes;
}

/* A deadline that costs a look at the clock only when something has to wait. */
typedef struct limit {
    double timeout, deadline; /* deadline 0: not needed yet */
} limit;

static double time_left(const hpc_exchange *ex, limit *l) {
    if (l->deadline == 0) l->deadline = hpc_deadline(&ex->context->group, l->timeout);
    return hpc_left(l->deadline);
}

/* HPC_ERR_PEER of a neighbour that has closed is none: it folds nothing any more. */
static int unless_left(const hpc_exchange *ex, int rank, int status) {
    if (status != HPC_ERR_PEER) return status;
    if (atomic_load_explicit(&ex->context->group.states[rank], memory_order_acquire) != HPC_PEER_LEFT) return status;
    hpc_blame_settle(&ex->context->group.blame, NULL, 0);
    return HPC_OK;
}

/* What a neighbour may overwrite unread has no ACK: the last update has left when the transport says so. */
static int flush_last(hpc_exchange *ex, int key, limit *l) {
    const hpc_pushed *k = &ex->keys[key];
    int status = HPC_OK;
    for (int i = 0; i < k->n_shares && k->pushes > 0 && status == HPC_OK; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (share->owner == ex->context->group.rank) continue;
        status = unless_left(ex, share->owner,
                             hpc_flush(ex->in_lanes[share->core], ex->window, share->owner, time_left(ex, l)));
    }
    return status;
}

/* Waits until the last push is folded: its average is the model that is trained next. */
static int wait_model(hpc_exchange *ex, int key, limit *l, const char *op) {
    uint64_t last = 2 * ex->keys[key].pushes;
    return hpc_ticket_is_done(ex, key, last) ? HPC_OK : hpc_ticket_wait(ex, key, last, time_left(ex, l), op);
}

/* Waits until a push has been folded here, and for neighbours who have not taken it as long as they are given, which
 * may be longer than this call has. */
static int wait_taken(hpc_exchange *ex, int key, uint64_t ticket, limit *l, const char *op) {
    hpc_pushed *k = &ex->keys[key];
    int status = hpc_graph_send(ex);
    hpc_graph_drop(ex, key, ticket / 2, 0);
    if (status == HPC_OK && !hpc_ticket_is_done(ex, key, ticket))
        status = hpc_ticket_wait(ex, key, ticket, time_left(ex, l), op);
    if (status == HPC_OK && !hpc_ticket_is_free(ex, key, ticket)) {
        double now = hpc_now(), left = time_left(ex, l);
        if (k->waits_since == 0) k->waits_since = now;
        double given = k->waits_since + hpc_graph_patience(ex, key) - now;
        int before = hpc_slice_waits(given < left);
        status = hpc_ticket_wait_slot(ex, key, ticket, given < left ? given > 0 ? given : 0 : left, op);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && given <= left) {
            hpc_graph_drop(ex, key, ticket / 2, 1);
            status = HPC_OK;
        }
    }
    if (status == HPC_OK) k->waits_since = 0;
    return status;
}

/* Waits until what the next push writes, or its fold, may be written. */
static int wait_slot(hpc_exchange *ex, int key, limit *l, const char *op) {
    uint64_t ticket = slot_ticket(ex, key);
    if (hpc_leaves_out(ex)) return wait_taken(ex, key, ticket, l, op);
    int status = ex->in_place ? wait_model(ex, key, l, op) : HPC_OK;
    if (status == HPC_OK && !hpc_ticket_is_free(ex, key, ticket))
        status = hpc_ticket_wait_slot(ex, key, ticket, time_left(ex, l), op);
    return status == HPC_OK && hpc_is_stamped(ex) ? flush_last(ex, key, l) : status;
}

int hpc_exchange_gradient(hpc_exchange *ex, int key, double timeout, void **gradient) {
    static const char op[] = "gradient";
    HPC_IN_CALL(ex, key, op);
    int status = hpc_worker_check_call(ex, key, op);
    if (status != HPC_OK) return status;
    if (gradient == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: gradient is NULL", op);
    if (ex->keys[key].sending & HPC_PUSH)
        return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED, "%s: key %s of rank %d is sent in part; start it again first",
                               op, ex->plan->keys[key].name, ex->context->group.rank);
    limit l = {timeout, 0};
    status = ex->in_place ? wait_model(ex, key, &l, op) : wait_slot(ex, key, &l, op);
    if (status == HPC_OK) *gradient = ex->in_place ? (char *)hpc_exchange_params(ex, key) : slot_at(ex, key);
    return status;
}

float *hpc_exchange_params(const hpc_exchange *ex, int key) {
    if (ex == NULL || key < 0 || key >= ex->plan->n_keys || ex->holder < 0) return NULL;
    char *part = hpc_window_peer_view(ex->window, ex->holder);
    return (float *)(void *)(part + hpc_params_at(ex, ex->holder, key, ex->keys[key].pushes));
}

/* ---- start ---- */

/* The ticket that must end before the next push of key. */
static uint64_t blocking_ticket(const hpc_exchange *ex, int key) {
    return ex->consistency == HPC_BSP ? 2 * ex->keys[key].pushes : slot_ticket(ex, key);
}

int hpc_exchange_ready(hpc_exchange *ex, int key) {
    static const char op[] = "ready";
    int status = hpc_worker_check_call(ex, key, op);
    if (status != HPC_OK) return status;
    if (ex->keys[key].sending != 0) return HPC_IN_PROGRESS;
    if (ex->n_phases > 0) return HPC_OK; /* start waits */
    uint64_t last = blocking_ticket(ex, key);
    int other;
    if (!hpc_ticket_is_done(ex, key, last)) hpc_group_progress(&ex->context->group);
    if (!hpc_ticket_is_done(ex, key, last)) return HPC_IN_PROGRESS;
    return !hpc_has_quorum(ex) || hpc_quorum_ready(ex, key, &other) ? HPC_OK : HPC_IN_PROGRESS;
}

static int check_start(hpc_exchange *ex, int key, int flags, uint64_t *ticket, const char *op) {
    if (flags < HPC_PUSH || flags > (HPC_PUSH | HPC_PULL))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: flags are %d, not HPC_PUSH, HPC_PULL or both", op, flags);
    if (ticket == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: ticket is NULL", op);
    if (!(flags & HPC_PUSH) || ex->n_phases > 0) return HPC_OK;
    uint64_t last = blocking_ticket(ex, key);
    if (!hpc_ticket_is_done(ex, key, last) &&
        (hpc_group_progress(&ex->context->group), !hpc_ticket_is_done(ex, key, last)))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: key %s is under way since push %llu of rank %d; wait for it before the next one", op,
                        ex->plan->keys[key].name, (unsigned long long)(last / 2), ex->context->group.rank);
    int other;
    if (hpc_has_quorum(ex) && !hpc_quorum_ready(ex, key, &other))
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: rank %d has pushed key %s for version %llu already, and key %s not, or not to its end: "
                        "with a quorum each key is pushed once for a version, and pulled before the next",
                        op, ex->context->group.rank, ex->plan->keys[key].name, (unsigned long long)ex->number,
                        ex->plan->keys[other].name);
    return HPC_OK;
}

/* src into the slot, in the wire format; NULL: it is there, or it is the model. */
static void fill_slot(hpc_exchange *ex, int key, const float *src) {
    if (src == NULL && ex->in_place) src = hpc_exchange_params(ex, key);
    if (src == NULL || (const char *)src == slot_at(ex, key)) return;
    size_t count = (size_t)ex->plan->keys[key].count;
    int codec = ex->keys[key].codec;
    if (codec == HPC_F32)
        ex->kernels->copy(slot_at(ex, key), src, count * sizeof(float), 0);
    else
        ex->kernels->encode(slot_at(ex, key), src, count, codec);
}

/* As it goes out: a float32 may be too large for a narrow wire. */
static int check_finite(const hpc_exchange *ex, int key, const char *op) {
    if (ex->kernels->all_finite(slot_at(ex, key), (size_t)ex->plan->keys[key].count, ex->keys[key].codec))
        return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the gradient of key %s on rank %d has a NaN or an Inf%s", op,
                    ex->plan->keys[key].name, ex->context->group.rank,
                    ex->keys[key].codec == HPC_F32 ? "" : ", or a value too large for its wire format");
}

static int has_input(const hpc_row *row, int rank) {
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].rank == rank && row->in[e].row < 0) return 1;
    return 0;
}

/* A trainer's own kernels may have written the gradient past the caches, outside of the order that a release makes. */
static void end_gradient(void) {
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#else
    atomic_thread_fence(memory_order_release);
#endif
}

static int notify(hpc_exchange *ex, int core, int owner, const void *src, size_t nbytes, size_t offset, uint32_t imm,
                  limit *l) {
    hpc_lane *lane = ex->in_lanes[core];
    int status = hpc_lane_try_notify(lane, ex->window, owner, src, nbytes, offset, imm);
    if (status != HPC_IN_PROGRESS) return status;
    /* On a graph the owner may close meanwhile, and then takes no event any more. */
    static const double often = 0.05;
    while (ex->n_phases == 0 || hpc_closed_signal(ex, owner) == 0) {
        double left = time_left(ex, l), slice = ex->n_phases > 0 && left > often ? often : left;
        int before = hpc_slice_waits(slice < left);
        status = hpc_put_notify(lane, ex->window, owner, src, nbytes, offset, imm, slice);
        hpc_slice_waits(before);
        if (status != HPC_ERR_TIMEOUT || slice == left) return status;
    }
    return HPC_OK;
}

/* A push of a share, which its owner may read where it is. */
static void count_sent(hpc_exchange *ex, const hpc_share *share) {
    hpc_count_bytes(ex, ex->peer_sent, share->owner, share->pushed);
}

/* Into the neighbour's slots, read or not: mark, data, mark, which no transport puts in another order. */
static int overwrite_share(hpc_exchange *ex, const hpc_share *share) {
    const hpc_pushed *k = &ex->keys[share->key];
    int me = ex->context->group.rank, status = HPC_OK, owner = share->owner;
    hpc_lane *lane = ex->in_lanes[share->core];
    hpc_mark *mark = &ex->marks[share->key];
    const char *slot = slot_at(ex, share->key);
    if (atomic_load_explicit(&ex->context->group.states[owner], memory_order_acquire) == HPC_PEER_LEFT) return HPC_OK;
    for (int i = 0; i < share->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &ex->plan->rows[share->rows[i]];
        if (!has_input(row, me)) return HPC_OK;
        size_t item = hpc_codec_bytes(k->codec), at = ex->push_slot[share->rows[i]];
        size_t data = at + sizeof *mark, last = data + hpc_row_bytes(row);
        status = hpc_put(lane, ex->window, owner, &mark->version, sizeof mark->version, at);
        end_gradient(); /* the data could overtake the mark */
        if (status == HPC_OK)
            status = hpc_put(lane, ex->window, owner, slot + row->offset * item, (size_t)row->count * item, data);
        end_gradient(); /* and the last mark the data */
        if (status == HPC_OK) status = hpc_put(lane, ex->window, owner, &mark->version, sizeof mark->version, last);
    }
    if (status == HPC_OK) count_sent(ex, share);
    return unless_left(ex, owner, status);
}

/* BARRIER: tells every rank that this one has sent, by a lane that bulk does not keep waiting. The signals are those of
 * this rank's own shares. */
static int say_sent(hpc_exchange *ex, int key) {
    const hpc_pushed *k = &ex->keys[key];
    int me = ex->context->group.rank, size = ex->context->group.size, status = HPC_OK;
    for (int i = 0; i < k->n_shares * size && status == HPC_OK; i++) {
        int s = k->shares[i / size], r = i % size;
        if (ex->shares[s].owner != me || r == me) continue;
        status = unless_left(
            ex, r,
            hpc_put_signal(ex->context->acks, ex->window, r, NULL, 0, 0, hpc_signal_applied(ex, s), k->pushes + 1));
    }
    return status;
}

/* To an owner that reads the gradient where it is, one event; to another one, every row with its data. Goes on from
 * k->at_row, where a full ring stopped it. */
static int push_share(hpc_exchange *ex, int s, int slot, limit *l) {
    const hpc_share *share = &ex->shares[s];
    hpc_pushed *k = &ex->keys[share->key];
    size_t item = hpc_codec_bytes(k->codec);
    int me = ex->context->group.rank, status = HPC_OK;
    if (ex->n_phases > 0 && !hpc_sends(ex, share->key, k->pushes + 1, share->owner, me)) return HPC_OK;
    /* Who has closed folds nothing any more; who has freed takes no event out of its ring. */
    if (ex->n_phases > 0 && hpc_closed_signal(ex, share->owner) != 0) return HPC_OK;
    if (hpc_is_stamped(ex) && share->owner != me) return overwrite_share(ex, share);
    if (share->outlet != NULL) return HPC_OK; /* sent when its slot is free */
    for (; k->at_row < share->n_rows && status == HPC_OK; k->at_row++) {
        int index = share->rows[k->at_row];
        const hpc_row *row = &ex->plan->rows[index];
        if (!has_input(row, me)) continue;
        if (hpc_reads_in_place(ex, share->owner, me)) {
            status = notify(ex, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_SHARE, slot, s), l);
            break;
        }
        status = notify(ex, share->core, share->owner, slot_at(ex, share->key) + row->offset * item,
                        (size_t)row->count * item, ex->push_slot[index] + (size_t)slot * hpc_slot_stride(ex, row),
                        hpc_imm(HPC_OP_ROW, slot, index), l);
        if (status != HPC_OK) break;
    }
    if (ex->n_phases > 0) status = unless_left(ex, share->owner, status);
    if (status == HPC_OK) count_sent(ex, share);
    return status;
}

/* With a quorum a share goes as a whole, and says for which version it is. Its data comes before its event. */
static int push_numbered(hpc_exchange *ex, int s, int slot, limit *l) {
    const hpc_share *share = &ex->shares[s];
    hpc_pushed *k = &ex->keys[share->key];
    size_t item = hpc_codec_bytes(k->codec), size = (size_t)ex->context->group.size;
    int me = ex->context->group.rank, status = HPC_OK;
    for (; k->at_row < share->n_rows && !hpc_reads_in_place(ex, share->owner, me); k->at_row++) {
        int index = share->rows[k->at_row];
        const hpc_row *row = &ex->plan->rows[index];
        status =
            hpc_put(ex->in_lanes[share->core], ex->window, share->owner, slot_at(ex, share->key) + row->offset * item,
                    (size_t)row->count * item, ex->push_slot[index] + (size_t)slot * hpc_slot_stride(ex, row));
        if (status != HPC_OK) return status;
    }
    size_t at = ((size_t)share->at * size + (size_t)me) * sizeof k->number;
    status = notify(ex, share->core, share->owner, &k->number, sizeof k->number, ex->places[share->owner].numbers + at,
                    hpc_imm(HPC_OP_SHARE, slot, s), l);
    if (status == HPC_OK) count_sent(ex, share);
    return status;
}

/* Counted before it is sent: a rank that is named as missing has really not pushed. */
static void publish_count(hpc_exchange *ex, int key) {
    _Atomic uint64_t *counts =
        (_Atomic uint64_t *)(void *)(hpc_own_part(ex) + ex->places[ex->context->group.rank].pushed);
    atomic_store_explicit(&counts[key], ex->keys[key].pushes + 1, memory_order_relaxed);
}

static int send_push(hpc_exchange *ex, int key, limit *l) {
    hpc_pushed *k = &ex->keys[key];
    int slot = (int)(k->pushes % (uint64_t)ex->depth);
    for (; k->at_share < k->n_shares; k->at_share++, k->at_row = 0) {
        int s = k->shares[k->at_share];
        int status = hpc_has_quorum(ex) ? push_numbered(ex, s, slot, l) : push_share(ex, s, slot, l);
        if (status != HPC_OK) return status;
    }
    int status = ex->consistency == HPC_BARRIER ? say_sent(ex, key) : HPC_OK;
    if (status != HPC_OK) return status;
    k->pushes++;
    ex->stats.pushes++;
    hpc_watch_step(&ex->context->group.watch, k->pushes);
    return hpc_leaves_out(ex) ? hpc_graph_send_key(ex, key) : HPC_OK;
}

/* ASYNC with servers: elsewhere a push is answered when it is applied, and a pull waits for that. */
static int pulls_by_itself(const hpc_exchange *ex) {
    return ex->consistency == HPC_ASYNC && ex->n_phases == 0;
}

static int send_pull(hpc_exchange *ex, int key, limit *l) {
    hpc_pushed *k = &ex->keys[key];
    for (; k->at_share < k->n_shares && pulls_by_itself(ex); k->at_share++) {
        const hpc_share *share = &ex->shares[k->shares[k->at_share]];
        int answered = hpc_ticket_is_done(ex, key, 2 * k->pulls + HPC_PULL_TICKET) ? HPC_ANSWERED : 0;
        int status = notify(ex, share->core, share->owner, NULL, 0, 0,
                            hpc_imm(HPC_OP_PULL, answered, k->shares[k->at_share]), l);
        if (status != HPC_OK) return status;
    }
    k->pulls++;
    ex->stats.pulls++;
    return HPC_OK;
}

/* What k->sending says is left. After a timeout the next start goes on where this one stopped. A dead owner is told of
 * by every later call anyway; any other failure has left half of an update with the owners and ends the exchange. */
static int send_left(hpc_exchange *ex, int key, limit *l, const char *op) {
    hpc_pushed *k = &ex->keys[key];
    int status = HPC_OK;
    while (k->sending != 0 && status == HPC_OK) {
        int part = k->sending & HPC_PUSH ? HPC_PUSH : HPC_PULL;
        status = part == HPC_PUSH ? send_push(ex, key, l) : send_pull(ex, key, l);
        if (status != HPC_OK) break;
        k->sending &= ~part;
        k->at_share = k->at_row = 0;
    }
    if (status == HPC_ERR_TIMEOUT) {
        int freed = hpc_ticket_freed(ex, key, UINT64_MAX - 1);
        if (freed >= 0) return hpc_fail_freed(ex, freed, key, op);
    } else if (status != HPC_OK && status != HPC_ERR_PEER) {
        hpc_exchange_fail(ex, status, hpc_last_error()->message);
    }
    return status;
}

/* A key that is pushed again begins a step, after a look at what has come meanwhile. */
static void choose_version(hpc_exchange *ex, hpc_pushed *k) {
    hpc_group_progress(&ex->context->group);
    if (k->number == ex->number) ex->number = hpc_graph_next_version(ex);
    k->number = ex->number;
    k->numbers[k->pushes % (uint64_t)ex->depth] = k->number;
}

static int start(hpc_exchange *ex, int key, int flags, const float *src, limit *l, uint64_t *ticket, const char *op) {
    int status = hpc_worker_check_call(ex, key, op);
    if (status != HPC_OK) return status;
    hpc_pushed *k = &ex->keys[key];
    if (k->sending == 0) {
        status = check_start(ex, key, flags, ticket, op);
        if (status != HPC_OK) return status;
        if (flags & HPC_PUSH && ex->n_phases > 0) status = wait_slot(ex, key, l, op);
        if (status != HPC_OK) return status;
        if (flags & HPC_PUSH) {
            fill_slot(ex, key, src);
            if (ex->check_finite && (status = check_finite(ex, key, op)) != HPC_OK) return status;
            publish_count(ex, key);
            if (hpc_has_quorum(ex)) hpc_quorum_begin(ex, key);
            if (ex->n_phases > 0) k->phases[k->pushes % (uint64_t)ex->depth] = hpc_phase(ex, key, k->pushes + 1);
            if (hpc_is_stamped(ex)) atomic_store_explicit(&ex->marks[key].version, k->pushes + 1, memory_order_relaxed);
            if (hpc_leaves_out(ex)) choose_version(ex, k);
            end_gradient();
        }
        if (flags & HPC_PUSH) k->since = hpc_now();
        k->sending = k->started = flags;
    } else if (k->started != flags || ticket == NULL) {
        return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                               "%s: key %s of rank %d is sent in part; start it again with flags %d", op,
                               ex->plan->keys[key].name, ex->context->group.rank, k->started);
    }
    status = send_left(ex, key, l, op);
    if (status == HPC_OK)
        *ticket = flags & HPC_PULL && pulls_by_itself(ex) ? 2 * k->pulls + HPC_PULL_TICKET : 2 * k->pushes;
    return status;
}

int hpc_exchange_start(hpc_exchange *ex, int key, int flags, const float *src, double timeout, uint64_t *ticket) {
    HPC_IN_CALL(ex, key, flags == HPC_PULL ? "pull" : flags == HPC_PUSH ? "push" : "push_pull");
    limit l = {timeout, 0};
    return start(ex, key, flags, src, &l, ticket, "push");
}

int hpc_exchange_push_pull(hpc_exchange *ex, int key, const float *src, double timeout) {
    static const char op[] = "push_pull";
    HPC_IN_CALL(ex, key, op);
    limit l = {timeout, 0};
    uint64_t ticket = 0;
    int status = start(ex, key, HPC_PUSH | HPC_PULL, src, &l, &ticket, op);
    if (status != HPC_OK) return status;
    if (!hpc_ticket_is_done(ex, key, ticket))
        status = hpc_ticket_wait(ex, key, ticket, l.deadline == 0 ? timeout : time_left(ex, &l), op);
    return status == HPC_OK ? hpc_ticket_end(ex, key, ticket, op) : status;
}

int hpc_worker_under_way(const hpc_exchange *ex) {
    for (int k = 0; k < ex->plan->n_keys && ex->places[ex->context->group.rank].worker; k++) {
        const hpc_pushed *key = &ex->keys[k];
        if (key->sending != 0 || !hpc_ticket_is_done(ex, k, 2 * key->pushes)) return k;
        if (pulls_by_itself(ex) && !hpc_ticket_is_done(ex, k, 2 * key->pulls + HPC_PULL_TICKET)) return k;
    }
    return -1;
}

int hpc_worker_check_idle(const hpc_exchange *ex, const char *op) {
    int key = hpc_worker_under_way(ex);
    if (key < 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s is under way on rank %d; wait for it first", op,
                    ex->plan->keys[key].name, ex->context->group.rank);
}

/* The neighbours have taken the last push, and it has arrived; or they were given the time. */
static int finish_taken(hpc_exchange *ex, int key, limit *l, const char *op) {
    const hpc_pushed *k = &ex->keys[key];
    int status = wait_taken(ex, key, 2 * k->pushes, l, op);
    for (int i = 0; i < k->n_shares && status == HPC_OK; i++) {
        const hpc_share *share = &ex->shares[k->shares[i]];
        if (share->outlet == NULL) continue;
        double left = time_left(ex, l), patience = hpc_graph_patience(ex, key);
        int before = hpc_slice_waits(patience < left);
        status = hpc_flush(ex->in_lanes[share->core], ex->window, share->owner, patience < left ? patience : left);
        hpc_slice_waits(before);
        if (status == HPC_ERR_TIMEOUT && patience < left) status = HPC_OK;
        status = unless_left(ex, share->owner, status);
    }
    return status;
}

/* On a graph, when everything is folded here: the neighbours have read what was sent, or it has at least left. Under
 * SSP they may read the last update until they close themselves. */
static int finish_sends(hpc_exchange *ex, int key, limit *l, const char *op) {
    uint64_t pushes = ex->keys[key].pushes, depth = (uint64_t)ex->depth;
    int status = HPC_OK;
    if (hpc_leaves_out(ex)) return finish_taken(ex, key, l, op);
    if (hpc_takes_what_is_there(ex)) return flush_last(ex, key, l);
    /* Each by itself: on a graph that changes, who read the last one may not have been sent the one before. */
    for (uint64_t n = pushes < depth ? 1 : pushes - depth + 1; n <= pushes && status == HPC_OK; n++)
        status = hpc_ticket_wait_slot(ex, key, 2 * n, time_left(ex, l), op);
    return status;
}

int hpc_worker_finish(hpc_exchange *ex, const char *op, double deadline) {
    int status = HPC_OK;
    for (int k = 0; k < ex->plan->n_keys && status == HPC_OK; k++) {
        limit l = {0, deadline};
        if (ex->keys[k].n_shares == 0) continue;
        status = send_left(ex, k, &l, op);
        if (status == HPC_OK) status = hpc_ticket_wait(ex, k, 2 * ex->keys[k].pushes, hpc_left(deadline), op);
        if (status == HPC_OK && ex->n_phases > 0) status = finish_sends(ex, k, &l, op);
    }
    return status;
}

int hpc_exchange_progress(hpc_exchange *ex) {
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, "progress", "progress: exchange is NULL");
    int status = hpc_exchange_check(ex, "progress");
    if (status == HPC_OK) hpc_group_progress(&ex->context->group);
    if (status == HPC_OK && hpc_leaves_out(ex)) status = hpc_graph_send(ex);
    return status == HPC_OK ? hpc_exchange_check(ex, "progress") : status;
}

/* ---- args ---- */

static int args_answered(const hpc_exchange *ex, int rank) {
    for (int c = 0; c < ex->places[rank].cores; c++)
        if (atomic_load_explicit(hpc_own_signal(ex->window, hpc_signal_args(ex, rank, c)), memory_order_acquire) <
            ex->args_sent)
            return 0;
    return 1;
}

/* Whether this rank's own cores have what rank sends: they must answer all before this rank may go elsewhere. */
static int have_args_of(const hpc_exchange *ex, int rank) {
    for (int c = 0; c < ex->n_own_cores && ex->places[rank].worker; c++)
        if (atomic_load_explicit(&ex->cores[c].args_set[rank], memory_order_acquire) < ex->args_sent) return 0;
    return 1;
}

/* A rank that has closed while its answer or its args are still missing; else -1. */
static int closed_without_args(const hpc_exchange *ex) {
    for (int r = 0; r < ex->context->group.size; r++)
        if (!have_args_of(ex, r) ? hpc_closed_signal(ex, r) != 0
                                 : hpc_closed_signal(ex, r) == HPC_FREED && !args_answered(ex, r))
            return r;
    return -1;
}

static int all_have_args(void *arg) {
    const hpc_exchange *ex = arg;
    if (ex->inline_progress) hpc_context_work(ex->context);
    if (atomic_load_explicit(&ex->failed, memory_order_relaxed) != HPC_OK || closed_without_args(ex) >= 0) return 1;
    for (int r = 0; r < ex->context->group.size; r++)
        if (!args_answered(ex, r) || !have_args_of(ex, r)) return 0;
    return 1;
}

static int ranks_without_args(void *arg, int *ranks) {
    const hpc_exchange *ex = arg;
    int n = 0;
    for (int r = 0; r < ex->context->group.size; r++)
        if (!args_answered(ex, r) || !have_args_of(ex, r)) ranks[n++] = r;
    return n;
}

/* To every core of every rank, from the one on where a full ring stopped it. */
static int send_args(hpc_exchange *ex, double deadline) {
    int rank = ex->context->group.rank, size = ex->context->group.size, n = 0;
    for (int r = 0; r < size; r++)
        for (int c = 0; c < ex->places[r].cores; c++, n++) {
            if (n < ex->args_at) continue;
            size_t at = ((size_t)c * (size_t)size + (size_t)rank) * sizeof ex->rule.args;
            int status = hpc_put_notify(ex->in_lanes[c], ex->window, r, ex->rule.args, sizeof ex->rule.args,
                                        ex->places[r].args + at, hpc_imm(HPC_OP_ARGS, 0, 0), hpc_left(deadline));
            if (status != HPC_OK) return status;
            ex->args_at = n + 1;
        }
    return HPC_OK;
}

int hpc_exchange_set_args(hpc_exchange *ex, const double *args, double timeout) {
    static const char op[] = "set_args";
    HPC_IN_CALL(ex, -1, op);
    int status = hpc_worker_check_call(ex, 0, op);
    if (status != HPC_OK) return status;
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: args is NULL", op);
    hpc_rule rule = ex->rule;
    memcpy(rule.args + 1, args + 1, (HPC_RULE_ARGS - 1) * sizeof *args);
    status = hpc_rule_check(&rule, op);
    if (status == HPC_OK && ex->setting && memcmp(rule.args, ex->rule.args, sizeof rule.args) != 0)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: the last call timed out; call it again with the same args", op);
    if (status == HPC_OK) status = hpc_worker_check_idle(ex, op);
    if (status != HPC_OK) return status;
    double deadline = hpc_deadline(&ex->context->group, timeout);
    if (!ex->setting) { /* else the last call timed out: this one goes on with its args */
        memcpy(ex->rule.args, rule.args, sizeof rule.args); /* the cores have copies of their own */
        ex->args_sent++;
        ex->args_at = 0;
        ex->setting = 1;
    }
    status = send_args(ex, deadline);
    if (status != HPC_OK) return status;
    const hpc_wait wait = {op, all_have_args, ranks_without_args, ex};
    status = hpc_wait_for(&ex->context->group, &wait, hpc_left(deadline));
    if (status == HPC_OK) status = hpc_exchange_check(ex, op);
    if (status != HPC_OK) return status;
    int closed = closed_without_args(ex);
    if (closed >= 0)
        return hpc_group_fail_closed(&ex->context->group, op, &closed, 1,
                                     "rank %d has closed the exchange without setting args", closed);
    ex->setting = 0;
    return HPC_OK;
}

int hpc_exchange_get_args(hpc_exchange *ex, double *args) {
    static const char op[] = "get_args";
    if (ex == NULL || args == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: %s is NULL", op, ex == NULL ? "exchange" : "args");
    hpc_core *core = ex->n_own_cores > 0 ? &ex->cores[0] : NULL;
    memcpy(args, ex->rule.args, sizeof ex->rule.args);
    if (!ex->places[ex->context->group.rank].worker && core != NULL) {
        hpc_engine_pause(core);
        memcpy(args, core->args[ex->lowest], sizeof ex->rule.args);
        hpc_engine_resume(core);
    }
    args[0] = 0;
    return HPC_OK;
}
