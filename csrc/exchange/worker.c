/* The trainer's side of an exchange: a gradient goes out, parameters come back. */
#include "exchange/exchange.h"

#include <string.h>

#include "engine/answer.h"
#include "engine/args.h"
#include "engine/graph.h"
#include "engine/params.h"
#include "engine/pieces.h"
#include "engine/send.h"

/* ---- gradient ---- */

static int wait_slot(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    return en->pace->wait_slot == NULL ? hpc_push_wait_slot(en, key, l, op) : en->pace->wait_slot(en, key, l, op);
}

static int check_start(hpc_engine *en, int key, int flags, const uint64_t *ticket, const char *op) {
    if (flags < HPC_PUSH || flags > (HPC_PUSH | HPC_PULL))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: flags are %d, not HPC_PUSH, HPC_PULL or both", op, flags);
    if (ticket == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: ticket is NULL", op);
    if (!(flags & HPC_PUSH) || en->pace->may_push == NULL) return HPC_OK;
    return en->pace->may_push(en, key, op);
}

int hpc_worker_take_slot(hpc_engine *en, int key, const uint64_t *ticket, hpc_limit *l, const char *op) {
    const int status = check_start(en, key, HPC_PUSH, ticket, op);
    return status == HPC_OK ? wait_slot(en, key, l, op) : status;
}

int hpc_exchange_gradient(hpc_exchange *ex, int key, double timeout, void **gradient) {
    static const char op[] = "gradient";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(en, key, op);
    int status = hpc_worker_check_call(en, key, op);
    if (status != HPC_OK) return status;
    if (gradient == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: gradient is NULL", op);
    if (!en->layout.places[en->context->group.rank].gives)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: by its plan rank %d gives no updates, and only gets parameters",
                        op, en->context->group.rank);
    if (en->keys[key].sending & HPC_PUSH)
        return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                               "%s: the last call on key %s of rank %d was cut short; make it again first", op,
                               en->plan->keys[key].name, en->context->group.rank);
    hpc_limit l = {timeout, 0};
    status = en->asked.in_place ? hpc_push_wait_done(en, key, &l, op) : wait_slot(en, key, &l, op);
    if (status == HPC_OK && hpc_key_pushes_pieces(en, key)) return hpc_pieces_source(en, key, op, gradient);
    if (status == HPC_OK) *gradient = en->asked.in_place ? (char *)hpc_worker_params(en, key) : hpc_push_slot(en, key);
    return status;
}

float *hpc_exchange_params(const hpc_exchange *ex, int key) {
    const hpc_engine *en = hpc_engine_at(ex, &key);
    return en == NULL ? NULL : hpc_worker_params(en, key);
}

float *hpc_worker_params(const hpc_engine *en, int key) {
    if (en->layout.holder < 0) return NULL;
    char *part = hpc_window_peer_view(en->window, en->layout.holder);
    return (float *)(void *)(part + hpc_params_at(en, en->layout.holder, key, en->keys[key].pushes));
}

/* ---- start ---- */

int hpc_exchange_ready(hpc_exchange *ex, int key) {
    static const char op[] = "ready";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    int status = hpc_worker_check_call(en, key, op);
    if (status != HPC_OK) return status;
    if (en->keys[key].sending != 0) return HPC_IN_PROGRESS;
    return en->pace->may_push == NULL ? HPC_OK : en->pace->may_push(en, key, NULL);
}

/* Encodes src into the slot. With NULL the gradient is there already, or is the model that is trained in place. */
static void fill_slot(hpc_engine *en, int key, const void *src) {
    if (!en->layout.places[en->context->group.rank].gives) return;
    if (src == NULL && en->asked.in_place) src = hpc_worker_params(en, key);
    if (src == NULL || src == hpc_push_slot(en, key)) return;
    const hpc_codec *codec = en->keys[key].codec;
    uint64_t count = en->plan->keys[key].count;
    size_t most = codec->max_bytes(NULL, count);
    if (codec->plain)
        en->kernels->copy(hpc_push_slot(en, key), src, most, 0);
    else
        codec->encode(NULL, &(hpc_codec_source){src, 0}, (int64_t)count, NULL, hpc_push_slot(en, key), (int64_t)most,
                      NULL);
}

int hpc_worker_refuse_infinite(const hpc_engine *en, int key, const char *why, const char *op) {
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the gradient of key %s on rank %d has a NaN or an Inf%s", op,
                    en->plan->keys[key].name, en->context->group.rank, why);
}

/* Looks at the encoded values: a float32 may be too large for 16 bits. */
static int check_finite(const hpc_engine *en, int key, const char *op) {
    const int dtype = en->keys[key].codec->number;
    if (en->kernels->all_finite(hpc_push_slot(en, key), (size_t)en->plan->keys[key].count, dtype)) return HPC_OK;
    return hpc_worker_refuse_infinite(en, key, dtype == HPC_F32 ? "" : ", or a value too large for its wire format",
                                      op);
}

int hpc_worker_fill_slot(hpc_engine *en, int key, const void *src, int checks, const char *op) {
    fill_slot(en, key, src);
    return checks ? check_finite(en, key, op) : HPC_OK;
}

/* Pieces are looked at before they are encoded: what is refused leaves no trace in the residual. */
static int fill_pieces(hpc_engine *en, int key, const void *src, int checks, const char *op) {
    void *own = NULL;
    int status = HPC_OK;
    if (en->pieces[key].encoder.codec == NULL) return HPC_OK; /* this rank gives no updates of the key */
    if (src == NULL) status = hpc_pieces_source(en, key, op, &own);
    if (status != HPC_OK) return status;
    if (src == NULL) src = own;
    if (checks && !hpc_pieces_are_finite(en, key, src)) return hpc_worker_refuse_infinite(en, key, "", op);
    status = hpc_note(en, key, HPC_ON_ENCODE, NULL, op);
    if (status != HPC_OK) return status;
    return hpc_pieces_encode(en, key, src, hpc_push_slot(en, key)) == 0 ? HPC_OK : hpc_engine_check(en, op);
}

/* Puts the update into its slot. One that is held was looked at before. */
static int fill(hpc_engine *en, int key, int what, const void *src, const char *op) {
    const int checks = en->asked.check_finite && en->layout.places[en->context->group.rank].gives && what == 0;
    const int empty = what == HPC_PUSH_EMPTY;
    int status = HPC_OK;
    if (!empty && hpc_key_pushes_pieces(en, key)) return fill_pieces(en, key, src, checks, op);
    if (!empty) status = hpc_worker_fill_slot(en, key, src, checks, op);
    return status == HPC_OK ? hpc_note(en, key, HPC_ON_ENCODE, NULL, op) : status;
}

/* Counts a push before it is sent, so that a rank that is named as missing has not pushed yet. */
static void publish_count(hpc_engine *en, int key) {
    _Atomic uint64_t *counts =
        (_Atomic uint64_t *)(void *)(hpc_own_part(en) + en->layout.places[en->context->group.rank].pushed);
    atomic_store_explicit(&counts[key], en->keys[key].pushes + 1, memory_order_relaxed);
}

static int send_push(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &en->keys[key];
    int slot = (int)(k->pushes % (uint64_t)en->layout.depth);
    int brought = k->brings ? hpc_args_bring(en, key, slot, l) : HPC_OK;
    if (brought != HPC_OK) return brought;
    for (; k->at_share < k->n_shares; k->at_share++, k->at_row = 0) {
        int s = k->shares[k->at_share];
        if (en->graph != NULL && !hpc_graph_goes_to(en, &en->layout.shares[s])) continue;
        int status =
            en->pace->send_share == NULL ? hpc_push_share(en, s, slot, l) : en->pace->send_share(en, s, slot, l);
        if (status != HPC_OK) return status;
    }
    k->news = (unsigned char)(k->news - (k->brings != 0));
    k->brings = 0;
    k->pushes++;
    en->stats.pushes++;
    hpc_watch_step(&en->context->group.watch, k->pushes);
    return hpc_note(en, key, HPC_ON_SENT, NULL, op);
}

static int ask_share(hpc_engine *en, int key, int s, hpc_limit *l) {
    const hpc_share *share = &en->layout.shares[s];
    int answered = hpc_ticket_is_done(en, key, 2 * en->keys[key].pulls + HPC_PULL_TICKET) ? HPC_ANSWERED : 0;
    return hpc_send_event(en, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_PULL, answered, s), l);
}

static int ask_owners(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &en->keys[key];
    for (; k->at_share < k->n_shares; k->at_share++) {
        int s = k->shares[k->at_share];
        int status = en->pace->ask != NULL ? en->pace->ask(en, s, l) : ask_share(en, key, s, l);
        if (status != HPC_OK) return status;
    }
    k->pulls++;
    return hpc_note(en, key, HPC_ON_ASKED, NULL, op);
}

/* Asks the owners for parameters, where those come to pulls; elsewhere a pull waits for the answer to the push. A pull
 * that ends at once has the number of the last one that asked. */
static int send_pull(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &en->keys[key];
    const hpc_discipline *d = en->discipline;
    int status = HPC_OK;
    if (!(d->traits & HPC_PULLS))
        k->pulls++;
    else if (k->at_share > 0 || en->pace->ends == NULL || !en->pace->ends(en, key))
        status = ask_owners(en, key, l, op);
    if (status == HPC_OK) en->stats.pulls++;
    return status;
}

/* Sends the rest of a start, as k->sending has it. After a timeout the next start goes on where this one stopped. A
 * dead owner is told of by every later call anyway; any other failure has left half of an update with the owners and
 * ends the exchange. */
static int send_left(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &en->keys[key];
    int status = HPC_OK;
    while (k->sending != 0 && status == HPC_OK) {
        int part = k->sending & HPC_PUSH ? HPC_PUSH : HPC_PULL;
        status = part == HPC_PUSH ? send_push(en, key, l, op) : send_pull(en, key, l, op);
        if (status != HPC_OK) break;
        k->sending &= (unsigned char)~part;
        k->at_share = k->at_row = 0;
    }
    if (status == HPC_ERR_TIMEOUT) {
        int freed = hpc_ticket_freed(en, key, UINT64_MAX - 1);
        if (freed >= 0) return hpc_fail_freed(en, freed, key, op);
    } else if (status != HPC_OK && status != HPC_ERR_PEER) {
        int failed = hpc_engine_check(en, op); /* a core, also of another engine, may have failed before */
        if (failed == HPC_OK) {
            hpc_engine_fail(en, status, hpc_last_error()->message);
            failed = hpc_engine_check(en, op);
        }
        return failed != HPC_OK ? failed : status;
    }
    return status;
}

int hpc_worker_start(hpc_engine *en, int key, int flags, int what, const void *src, hpc_limit *l, uint64_t *ticket,
                     const char *op) {
    int status = hpc_worker_check_call(en, key, op);
    if (status != HPC_OK) return status;
    hpc_pushed *k = &en->keys[key];
    if (k->sending == 0) {
        status = check_start(en, key, flags, ticket, op);
        if (status != HPC_OK) return status;
        if (flags & HPC_PUSH) {
            status = wait_slot(en, key, l, op);
            if (status != HPC_OK) return status;
            if ((status = fill(en, key, what, src, op)) != HPC_OK) return status;
            publish_count(en, key);
            if (k->news > 0) hpc_args_begin_push(en, key, (int)(k->pushes % (uint64_t)en->layout.depth));
            if ((status = hpc_note(en, key, HPC_ON_SEND, NULL, op)) != HPC_OK) return status;
            hpc_end_gradient();
        }
        if (flags & HPC_PUSH) k->since = hpc_now();
        k->sending = (unsigned char)flags;
        k->started = (unsigned char)(flags | what);
    } else if (k->started != (flags | what) || ticket == NULL) {
        return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                               "%s: the last call on key %s of rank %d was cut short; make it again, with flags %d", op,
                               en->plan->keys[key].name, en->context->group.rank, k->started & (HPC_PUSH | HPC_PULL));
    }
    status = send_left(en, key, l, op);
    if (status == HPC_OK)
        *ticket =
            flags & HPC_PULL && en->discipline->traits & HPC_PULLS ? 2 * k->pulls + HPC_PULL_TICKET : 2 * k->pushes;
    return status;
}

int hpc_exchange_test(hpc_exchange *ex, int key, uint64_t ticket) {
    static const char op[] = "test";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    int status = hpc_worker_check_call(en, key, op);
    return status == HPC_OK ? hpc_ticket_test(en, key, ticket, op) : status;
}

int hpc_exchange_wait(hpc_exchange *ex, int key, uint64_t ticket, double timeout) {
    static const char op[] = "wait";
    hpc_engine *en = hpc_engine_of(ex, &key, op);
    if (en == NULL) return HPC_ERR_INVALID;
    HPC_IN_CALL(en, key, op);
    int status = hpc_worker_check_call(en, key, op);
    if (status == HPC_OK) status = hpc_ticket_wait(en, key, ticket, timeout, op);
    return status == HPC_OK ? hpc_ticket_end(en, key, ticket, op) : status;
}

/* ---- what is under way ---- */

int hpc_worker_under_way(const hpc_engine *en) {
    for (int k = 0; k < en->plan->n_keys && en->layout.places[en->context->group.rank].worker; k++) {
        const hpc_pushed *key = &en->keys[k];
        if (key->sending != 0 || !hpc_ticket_is_done(en, k, 2 * key->pushes)) return k;
        if (en->discipline->traits & HPC_PULLS && !hpc_ticket_is_done(en, k, 2 * key->pulls + HPC_PULL_TICKET))
            return k;
    }
    return -1;
}

int hpc_worker_check_idle(const hpc_engine *en, const char *op) {
    int key = hpc_worker_under_way(en);
    if (key < 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s is under way on rank %d; wait for it first", op,
                    en->plan->keys[key].name, en->context->group.rank);
}

/* The parameters outlive the exchange: what is on its way is waited for, and decoded if it comes encoded. */
static int finish_params(hpc_engine *en, int key, double deadline, const char *op) {
    uint64_t newest = hpc_params_newest(en, key);
    int status = hpc_ticket_wait(en, key, newest, hpc_left(deadline), op);
    if (status == HPC_OK && en->keys[key].encoded.n_rows > 0) hpc_params_came(en, key, newest);
    return status;
}

static int end_push(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    int status = send_left(en, key, l, op);
    if (status == HPC_OK) status = hpc_ticket_wait(en, key, 2 * en->keys[key].pushes, hpc_left(l->deadline), op);
    return status == HPC_OK ? finish_params(en, key, l->deadline, op) : status;
}

static int note_finish(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    return hpc_note(en, key, HPC_ON_FINISH, l, op);
}

/* Waits until the owners have read what is in the slots of key. On a graph it waits for each push by itself: where the
 * graph changes, the last push and the one before may have other readers. */
static int wait_read(hpc_engine *en, int key, hpc_limit *l, const char *op) {
    const uint64_t pushes = en->keys[key].pushes, depth = (uint64_t)en->layout.depth;
    int status = HPC_OK;
    if (en->discipline->traits & HPC_UNREAD) return hpc_flush_key(en, key, l);
    if (en->has_read == NULL) return HPC_OK;
    uint64_t n = en->graph == NULL ? pushes : pushes < depth ? 1 : pushes - depth + 1;
    for (; n <= pushes && status == HPC_OK; n++)
        status = hpc_ticket_wait_slot(en, key, 2 * n, hpc_limit_left(en, l), op);
    return status;
}

/* A peer may wait for this rank to finish one key before it reads another, so each step is made for all keys. */
int hpc_worker_finish(hpc_engine *en, const char *op, double deadline) {
    static int (*const steps[])(hpc_engine *, int, hpc_limit *, const char *) = {end_push, note_finish, wait_read};
    int status = HPC_OK;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (int k = 0; k < en->plan->n_keys && status == HPC_OK; k++) {
            hpc_limit l = {0, deadline};
            if (en->keys[k].n_shares > 0) status = steps[i](en, k, &l, op);
        }
    return status;
}

int hpc_worker_settle(hpc_engine *en, double deadline, const char *op) {
    int status = hpc_engine_check(en, op);
    for (int k = 0; k < en->plan->n_keys && en->layout.places[en->context->group.rank].worker; k++) {
        if (status != HPC_OK) break;
        if (en->keys[k].n_shares == 0) continue;
        status = hpc_ticket_wait(en, k, 2 * en->keys[k].pushes, hpc_left(deadline), op);
        if (status == HPC_OK) status = hpc_note(en, k, HPC_ON_SETTLE, &(hpc_limit){0, deadline}, op);
    }
    return status;
}
