#include "engine/worker/worker.h"

#include "engine/owner/signals.h"
#include "engine/args.h"
#include "engine/bytes.h"
#include "engine/layout/graph.h"
#include "engine/layout/layout.h"
#include "engine/params.h"
#include "engine/pieces.h"
#include "engine/worker/send.h"
#include "engine/worker/waits.h"

/* ---- gradient ---- */

static int wait_slot(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    return sc->pace->wait_slot == NULL ? hpc_push_wait_slot(sc, key, l, op) : sc->pace->wait_slot(sc, key, l, op);
}

static int check_start(hpc_scheme *sc, int key, int flags, const uint64_t *ticket, const char *op) {
    if (flags < HPC_PUSH || flags > (HPC_PUSH | HPC_PULL))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: flags are %d, not HPC_PUSH, HPC_PULL or both", op, flags);
    if (ticket == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: ticket is NULL", op);
    if (!(flags & HPC_PUSH) || sc->pace->may_push == NULL) return HPC_OK;
    return sc->pace->may_push(sc, key, op);
}

int hpc_worker_take_slot(hpc_scheme *sc, int key, const uint64_t *ticket, hpc_limit *l, const char *op) {
    const int status = check_start(sc, key, HPC_PUSH, ticket, op);
    return status == HPC_OK ? wait_slot(sc, key, l, op) : status;
}

int hpc_worker_gradient(hpc_scheme *sc, int key, double timeout, void **gradient, const char *op) {
    int status = hpc_worker_check_call(sc, key, op);
    if (status != HPC_OK) return status;
    if (gradient == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: gradient is NULL", op);
    if (!sc->layout.places[sc->context->group.rank].gives)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op, "%s: by its plan rank %d gives no updates, and only gets parameters",
                        op, sc->context->group.rank);
    if (sc->keys[key].sending & HPC_PUSH)
        return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                               "%s: the last call on key %s of rank %d was cut short; make it again first", op,
                               sc->plan->keys[key].name, sc->context->group.rank);
    hpc_limit l = {timeout, 0};
    status = sc->asked.in_place ? hpc_push_wait_done(sc, key, &l, op) : wait_slot(sc, key, &l, op);
    if (status == HPC_OK && hpc_key_pushes_pieces(sc, key)) return hpc_pieces_source(sc, key, op, gradient);
    if (status == HPC_OK) *gradient = sc->asked.in_place ? (char *)hpc_worker_params(sc, key) : hpc_push_slot(sc, key);
    return status;
}

float *hpc_worker_params(const hpc_scheme *sc, int key) {
    if (sc->layout.holder < 0) return NULL;
    char *part = hpc_window_peer_view(sc->window, sc->layout.holder);
    return (float *)(void *)(part + hpc_params_at(sc, sc->layout.holder, key, sc->keys[key].pushes));
}

/* ---- start ---- */

int hpc_worker_ready(hpc_scheme *sc, int key, const char *op) {
    int status = hpc_worker_check_call(sc, key, op);
    if (status != HPC_OK) return status;
    if (sc->keys[key].sending != 0) return HPC_IN_PROGRESS;
    return sc->pace->may_push == NULL ? HPC_OK : sc->pace->may_push(sc, key, NULL);
}

/* Encodes src into the slot. If src is NULL the slot already has the gradient, or the model that is trained in
 * place. */
static void fill_slot(hpc_scheme *sc, int key, const void *src) {
    if (!sc->layout.places[sc->context->group.rank].gives) return;
    if (src == NULL && sc->asked.in_place) src = hpc_worker_params(sc, key);
    if (src == NULL || src == hpc_push_slot(sc, key)) return;
    const hpc_codec *codec = sc->keys[key].codec;
    uint64_t count = sc->plan->keys[key].count;
    size_t most = codec->max_bytes(NULL, count);
    if (codec->plain)
        sc->kernels->copy(hpc_push_slot(sc, key), src, most, 0);
    else
        codec->encode(NULL, &(hpc_codec_source){src, 0}, (int64_t)count, NULL, hpc_push_slot(sc, key), (int64_t)most,
                      NULL);
}

int hpc_worker_refuse_infinite(const hpc_scheme *sc, int key, const char *why, const char *op) {
    return hpc_fail(HPC_ERR_INVALID, op, "%s: the gradient of key %s on rank %d has a NaN or an Inf%s", op,
                    sc->plan->keys[key].name, sc->context->group.rank, why);
}

/* Checks the encoded values, because a float32 may be too large for 16 bits. */
static int check_finite(const hpc_scheme *sc, int key, const char *op) {
    const int dtype = sc->keys[key].codec->number;
    if (sc->kernels->all_finite(hpc_push_slot(sc, key), (size_t)sc->plan->keys[key].count, dtype)) return HPC_OK;
    return hpc_worker_refuse_infinite(sc, key, dtype == HPC_F32 ? "" : ", or a value too large for its wire format",
                                      op);
}

int hpc_worker_fill_slot(hpc_scheme *sc, int key, const void *src, int checks, const char *op) {
    fill_slot(sc, key, src);
    return checks ? check_finite(sc, key, op) : HPC_OK;
}

/* Checks an update before it encodes it as pieces, so that a refusal leaves the residual as it was. */
static int fill_pieces(hpc_scheme *sc, int key, const void *src, int checks, const char *op) {
    void *own = NULL;
    int status = HPC_OK;
    if (sc->pieces[key].encoder.codec == NULL) return HPC_OK; /* this rank pushes no updates of the key */
    if (src == NULL) status = hpc_pieces_source(sc, key, op, &own);
    if (status != HPC_OK) return status;
    if (src == NULL) src = own;
    if (checks && !hpc_pieces_are_finite(sc, key, src)) return hpc_worker_refuse_infinite(sc, key, "", op);
    status = hpc_note(sc, key, HPC_ON_ENCODE, NULL, op);
    if (status != HPC_OK) return status;
    return hpc_pieces_encode(sc, key, src, hpc_push_slot(sc, key)) == 0 ? HPC_OK : hpc_scheme_check(sc, op);
}

/* Puts the update into its slot. A held update was checked when it was folded. */
static int fill(hpc_scheme *sc, int key, int what, const void *src, const char *op) {
    const int checks = sc->asked.check_finite && sc->layout.places[sc->context->group.rank].gives && what == 0;
    const int empty = what == HPC_PUSH_EMPTY;
    int status = HPC_OK;
    if (!empty && hpc_key_pushes_pieces(sc, key)) return fill_pieces(sc, key, src, checks, op);
    if (!empty) status = hpc_worker_fill_slot(sc, key, src, checks, op);
    return status == HPC_OK ? hpc_note(sc, key, HPC_ON_ENCODE, NULL, op) : status;
}

/* Counts a push before it is sent, so that no error names a rank that has pushed as missing. */
static void publish_count(hpc_scheme *sc, int key) {
    _Atomic uint64_t *counts =
        (_Atomic uint64_t *)(void *)(hpc_own_part(sc) + sc->layout.places[sc->context->group.rank].pushed);
    atomic_store_explicit(&counts[key], sc->keys[key].pushes + 1, memory_order_relaxed);
}

static int send_push(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &sc->keys[key];
    int slot = (int)(k->pushes % (uint64_t)sc->layout.depth);
    int brought = k->brings ? hpc_args_bring(sc, key, slot, l) : HPC_OK;
    if (brought != HPC_OK) return brought;
    for (; k->at_share < k->n_shares; k->at_share++, k->at_row = 0) {
        int s = k->shares[k->at_share];
        if (sc->graph != NULL && !hpc_graph_goes_to(sc, &sc->layout.shares[s])) continue;
        int status =
            sc->pace->send_share == NULL ? hpc_push_share(sc, s, slot, l) : sc->pace->send_share(sc, s, slot, l);
        if (status != HPC_OK) return status;
    }
    k->news = (unsigned char)(k->news - (k->brings != 0));
    k->brings = 0;
    k->pushes++;
    sc->stats.pushes++;
    hpc_watch_step(&sc->context->group.watch, k->pushes);
    return hpc_note(sc, key, HPC_ON_SENT, NULL, op);
}

static int ask_share(hpc_scheme *sc, int key, int s, hpc_limit *l) {
    const hpc_share *share = &sc->layout.shares[s];
    int answered = hpc_ticket_is_done(sc, key, 2 * sc->keys[key].pulls + HPC_PULL_TICKET) ? HPC_ANSWERED : 0;
    return hpc_send_event(sc, share->core, share->owner, NULL, 0, 0, hpc_imm(HPC_OP_PULL, answered, s), l);
}

static int ask_owners(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &sc->keys[key];
    for (; k->at_share < k->n_shares; k->at_share++) {
        int s = k->shares[k->at_share];
        int status = sc->pace->ask != NULL ? sc->pace->ask(sc, s, l) : ask_share(sc, key, s, l);
        if (status != HPC_OK) return status;
    }
    k->pulls++;
    return hpc_note(sc, key, HPC_ON_ASKED, NULL, op);
}

/* Asks the owners for parameters, if pulls ask for them; if not, the pull waits for the answer to the push. A pull that
 * ends at once gets the ticket of the last pull that asked. */
static int send_pull(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &sc->keys[key];
    const hpc_discipline *d = sc->discipline;
    int status = HPC_OK;
    if (!(d->traits & HPC_PULLS))
        k->pulls++;
    else if (k->at_share > 0 || sc->pace->ends == NULL || !sc->pace->ends(sc, key))
        status = ask_owners(sc, key, l, op);
    if (status == HPC_OK) sc->stats.pulls++;
    return status;
}

/* Sends the parts of a start that k->sending still has. After a timeout the next start continues. HPC_ERR_PEER does not
 * end the exchange, since every later call reports a dead owner. Any other failure ends it, since the owners may have
 * half of an update. */
static int send_left(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    hpc_pushed *k = &sc->keys[key];
    int status = HPC_OK;
    while (k->sending != 0 && status == HPC_OK) {
        int part = k->sending & HPC_PUSH ? HPC_PUSH : HPC_PULL;
        status = part == HPC_PUSH ? send_push(sc, key, l, op) : send_pull(sc, key, l, op);
        if (status != HPC_OK) break;
        k->sending &= (unsigned char)~part;
        k->at_share = k->at_row = 0;
    }
    if (status == HPC_ERR_TIMEOUT) {
        int freed = hpc_ticket_freed(sc, key, UINT64_MAX - 1);
        if (freed >= 0) return hpc_fail_freed(sc, freed, key, op);
    } else if (status != HPC_OK && status != HPC_ERR_PEER) {
        int failed = hpc_scheme_check(sc, op); /* a core, perhaps of another scheme, may have failed first */
        if (failed == HPC_OK) {
            hpc_scheme_fail_as_told(sc, status);
            failed = hpc_scheme_check(sc, op);
        }
        return failed != HPC_OK ? failed : status;
    }
    return status;
}

int hpc_worker_start(hpc_scheme *sc, int key, int flags, int what, const void *src, hpc_limit *l, uint64_t *ticket,
                     const char *op) {
    int status = hpc_worker_check_call(sc, key, op);
    if (status != HPC_OK) return status;
    hpc_pushed *k = &sc->keys[key];
    if (k->sending == 0) {
        status = check_start(sc, key, flags, ticket, op);
        if (status != HPC_OK) return status;
        if (flags & HPC_PUSH) {
            status = wait_slot(sc, key, l, op);
            if (status != HPC_OK) return status;
            if ((status = fill(sc, key, what, src, op)) != HPC_OK) return status;
            publish_count(sc, key);
            if (k->news > 0) hpc_args_begin_push(sc, key, (int)(k->pushes % (uint64_t)sc->layout.depth));
            if ((status = hpc_note(sc, key, HPC_ON_SEND, NULL, op)) != HPC_OK) return status;
            hpc_end_gradient();
        }
        if (flags & HPC_PUSH) k->since = hpc_now();
        k->sending = (unsigned char)flags;
        k->started = (unsigned char)(flags | what);
    } else if (k->started != (flags | what) || ticket == NULL) {
        return hpc_fail_detail(op, HPC_DETAIL_UNFINISHED,
                               "%s: the last call on key %s of rank %d was cut short; make it again, with flags %d", op,
                               sc->plan->keys[key].name, sc->context->group.rank, k->started & (HPC_PUSH | HPC_PULL));
    }
    status = send_left(sc, key, l, op);
    if (status == HPC_OK)
        *ticket =
            flags & HPC_PULL && sc->discipline->traits & HPC_PULLS ? 2 * k->pulls + HPC_PULL_TICKET : 2 * k->pushes;
    return status;
}

/* ---- pending calls ---- */

int hpc_worker_under_way(const hpc_scheme *sc) {
    for (int k = 0; k < sc->plan->n_keys && hpc_scheme_works(sc); k++) {
        const hpc_pushed *key = &sc->keys[k];
        if (key->sending != 0 || !hpc_ticket_is_done(sc, k, 2 * key->pushes)) return k;
        if (sc->discipline->traits & HPC_PULLS && !hpc_ticket_is_done(sc, k, 2 * key->pulls + HPC_PULL_TICKET))
            return k;
    }
    return -1;
}

int hpc_worker_check_idle(const hpc_scheme *sc, const char *op) {
    int key = hpc_worker_under_way(sc);
    if (key < 0) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s is under way on rank %d; wait for it first", op,
                    sc->plan->keys[key].name, sc->context->group.rank);
}

/* Waits for the newest parameters and, if they come encoded, decodes them, since a trainer may read them after the
 * exchange is closed. */
static int finish_params(hpc_scheme *sc, int key, double deadline, const char *op) {
    uint64_t newest = hpc_params_newest(sc, key);
    int status = hpc_ticket_wait(sc, key, newest, hpc_left(deadline), op);
    if (status == HPC_OK && sc->keys[key].encoded.n_rows > 0) hpc_params_came(sc, key, newest);
    return status;
}

static int end_push(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    int status = send_left(sc, key, l, op);
    if (status == HPC_OK) status = hpc_ticket_wait(sc, key, 2 * sc->keys[key].pushes, hpc_left(l->deadline), op);
    return status == HPC_OK ? finish_params(sc, key, l->deadline, op) : status;
}

static int note_finish(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    return hpc_note(sc, key, HPC_ON_FINISH, l, op);
}

/* Waits until the owners have read the slots of key. On a graph it waits for each push separately: with several phases,
 * successive pushes may have different readers. */
static int wait_read(hpc_scheme *sc, int key, hpc_limit *l, const char *op) {
    const uint64_t pushes = sc->keys[key].pushes, depth = (uint64_t)sc->layout.depth;
    int status = HPC_OK;
    if (sc->discipline->traits & HPC_UNREAD) return hpc_flush_key(sc, key, l);
    if (sc->has_read == NULL) return HPC_OK;
    uint64_t n = sc->graph == NULL ? pushes : pushes < depth ? 1 : pushes - depth + 1;
    for (; n <= pushes && status == HPC_OK; n++)
        status = hpc_ticket_wait_slot(sc, key, 2 * n, hpc_limit_left(sc, l), op);
    return status;
}

/* Does each step for all keys before the next step: a peer may wait for one key of this rank before it reads
 * another. */
int hpc_worker_finish(hpc_scheme *sc, const char *op, double deadline) {
    static int (*const steps[])(hpc_scheme *, int, hpc_limit *, const char *) = {end_push, note_finish, wait_read};
    int status = HPC_OK;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        for (int k = 0; k < sc->plan->n_keys && status == HPC_OK; k++) {
            hpc_limit l = {0, deadline};
            if (sc->keys[k].n_shares > 0) status = steps[i](sc, k, &l, op);
        }
    return status;
}

int hpc_worker_settle(hpc_scheme *sc, double deadline, const char *op) {
    int status = hpc_scheme_check(sc, op);
    for (int k = 0; k < sc->plan->n_keys && hpc_scheme_works(sc); k++) {
        if (status != HPC_OK) break;
        if (sc->keys[k].n_shares == 0) continue;
        status = hpc_ticket_wait(sc, k, 2 * sc->keys[k].pushes, hpc_left(deadline), op);
        if (status == HPC_OK) status = hpc_note(sc, k, HPC_ON_SETTLE, &(hpc_limit){0, deadline}, op);
    }
    return status;
}

/* ---- the worker's own update ---- */

static double own_weight(const hpc_scheme *sc, const hpc_row *row) {
    double weight = 0;
    for (int e = 0; e < row->n_in; e++)
        if (row->in[e].rank == sc->context->group.rank) weight = row->in[e].weight;
    return weight;
}

/* Adds the update of the last push, which is still in its slot, to this rank's copy of a row. */
static void add_row(hpc_scheme *sc, const hpc_row *row, const double *args) {
    const hpc_pushed *k = &sc->keys[row->key];
    float block[HPC_BLOCK];
    const char *from = hpc_slot_of_push(sc, row->key, k->pushes) + hpc_row_from(sc, row);
    float *params = (float *)(void *)(hpc_own_part(sc) + hpc_params_at(sc, sc->context->group.rank, row->key, 0));
    double weight = own_weight(sc, row);
    for (uint64_t at = 0; at < row->count; at += HPC_BLOCK) {
        size_t n = row->count - at < HPC_BLOCK ? (size_t)(row->count - at) : HPC_BLOCK;
        const void *piece = from + hpc_codec_span(k->codec, at);
        k->codec->fold(sc->kernels)(block, &piece, &weight, 1, n, 0);
        sc->rules[row->key].rule.apply(params + row->offset + at, block, 1, NULL, args, (int64_t)n);
    }
}

/* sgd is the only built-in rule with a pass and no state. A user's rule may depend on the step, which only the owner
 * knows. */
void hpc_worker_add_own(hpc_scheme *sc, int key, const double *args) {
    const hpc_pushed *k = &sc->keys[key];
    const hpc_key_rule *its = &sc->rules[key];
    if (its->rule.slots > 0 || its->pass == NULL) return;
    for (int i = 0; i < k->n_awaited; i++) {
        const hpc_share *share = &sc->layout.shares[k->awaited[i]];
        for (int r = 0; r < share->n_rows; r++) add_row(sc, &sc->plan->rows[share->rows[r]], args);
    }
}
