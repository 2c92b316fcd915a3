/* The layout of an exchange's window. All ranks derive the same layout from the plan. Only the receive slots depend on
 * which ranks can map each other, so every owner tells the others where the slots of each sender begin. */
#include <stdlib.h>
#include <string.h>

#include "engine/pieces.h"

enum { LINE = 64, PAGE = 4096 };

static size_t aligned(size_t nbytes, size_t to) {
    return (nbytes + to - 1) / to * to;
}

size_t hpc_layout_take(hpc_place *place, size_t nbytes) {
    size_t at = aligned(place->nbytes, PAGE);
    place->nbytes = at + nbytes;
    return at;
}

/* Whether the master of a row is the copy of the parameters that its owner reads, which change between the owner's push
 * and its pull only: the owner has pushed whenever the row is folded, unless owners go on without some. So it is with
 * the one copy of a host, whose workers have all pushed then. Where parameters are sent encoded the owner's own are as
 * rounded as all others', and the master is not. */
static int is_master_params(const hpc_exchange *ex, int index) {
    const hpc_row *row = &ex->plan->rows[index];
    if (hpc_row_encodes(row)) return 0;
    if (ex->asked.shared_params) return hpc_row_home(ex, row) >= 0;
    return !hpc_goes_on(ex) && hpc_row_is_fed_by(ex, index, row->owner) && hpc_row_has_output(row, row->owner);
}

/* ---- shares ---- */

static void find_cores(hpc_exchange *ex) {
    const hpc_plan *plan = ex->plan;
    int size = ex->context->group.size;
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_place *place = &ex->layout.places[plan->rows[i].owner];
        if (plan->rows[i].core >= place->cores) place->cores = plan->rows[i].core + 1;
    }
    for (int r = 0; r < size; r++) {
        ex->layout.places[r].first_core = ex->layout.n_cores;
        ex->layout.n_cores += ex->layout.places[r].cores;
        if (ex->layout.places[r].cores > ex->n_lanes) ex->n_lanes = ex->layout.places[r].cores;
    }
}

/* Shares are numbered in the order of their first rows. share_at: by core and action, the share of the key at hand. */
static int find_shares(hpc_exchange *ex, const char *op) {
    const hpc_plan *plan = ex->plan;
    enum { ACTIONS = HPC_RELAY + 1 };
    const int n = ex->layout.n_cores * ACTIONS;
    int *share_at = malloc((size_t)n * sizeof *share_at), status = HPC_OK, empty = 0;
    const hpc_edge *push = NULL, *edges = NULL;
    ex->layout.share_of = malloc((size_t)plan->n_rows * sizeof *ex->layout.share_of);
    ex->layout.shares = calloc((size_t)plan->n_rows, sizeof *ex->layout.shares);
    if (share_at == NULL || ex->layout.share_of == NULL || ex->layout.shares == NULL) goto no_memory;
    for (int c = 0; c < n; c++) share_at[c] = -1;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        int *at = &share_at[(ex->layout.places[row->owner].first_core + row->core) * ACTIONS + row->action];
        if (*at < 0 || ex->layout.shares[*at].key != row->key) {
            *at = ex->layout.n_shares++;
            ex->layout.shares[*at] = (hpc_share){.key = row->key, .owner = row->owner, .core = row->core};
            ex->layout.shares[*at].at = ex->layout.places[row->owner].shares++;
        }
        ex->layout.share_of[i] = *at;
        ex->layout.shares[*at].n_rows++;
    }
    for (int s = 0; s < ex->layout.n_shares; s++) {
        ex->layout.shares[s].rows = malloc((size_t)ex->layout.shares[s].n_rows * sizeof(int));
        if (ex->layout.shares[s].rows == NULL) goto no_memory;
        ex->layout.shares[s].n_rows = 0;
    }
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_share *share = &ex->layout.shares[ex->layout.share_of[i]];
        const hpc_row *row = &plan->rows[i];
        size_t nbytes = hpc_input_bytes(ex, row);
        const int counts = hpc_codec_of(row->codec_in)->addressable; /* pieces are counted as they are folded */
        if (row->in != edges) {                                      /* a hub has one list */
            push = hpc_row_input(row, ex->context->group.rank);
            empty = 0;
            for (int e = 0; e < row->n_in; e++) empty |= hpc_input_is_empty(ex, &row->in[e]);
        }
        edges = row->in;
        share->some_empty |= empty;
        share->rows[share->n_rows++] = i;
        share->nbytes += counts ? nbytes : 0;
        if (push == NULL) continue;
        if (hpc_input_is_empty(ex, push))
            share->tells++;
        else
            share->pushed += nbytes;
    }
    goto out;
no_memory:
    status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d rows", op, plan->n_rows);
out:
    free(share_at);
    return status;
}

/* ---- keys ---- */

static void add_share(hpc_exchange *ex, int s) {
    const hpc_share *share = &ex->layout.shares[s];
    hpc_pushed *key = &ex->keys[share->key];
    int rank = ex->context->group.rank;
    if (!hpc_share_involves(ex, share, rank)) return;
    key->shares[key->n_shares++] = s;
    if (!hpc_share_is_awaited_by(ex, share, rank)) return;
    if (ex->discipline->makes_params == NULL || ex->discipline->makes_params(ex, share))
        key->awaited[key->n_awaited++] = s;
}

/* Room for a mean in float32, and for the update of which pieces are made. */
static size_t dense_bytes(const hpc_exchange *ex, int key) {
    const size_t mean = (size_t)ex->plan->keys[key].count * sizeof(float);
    const size_t source = ex->keys[key].codec->addressable ? 0 : hpc_pieces_source_bytes(ex, key);
    return aligned(mean > source ? mean : source, LINE);
}

static int find_keys(hpc_exchange *ex, const char *op) {
    const hpc_plan *plan = ex->plan;
    int rank = ex->context->group.rank;
    ex->keys = calloc((size_t)plan->n_keys, sizeof *ex->keys);
    ex->layout.pushers = calloc((size_t)plan->n_keys * (size_t)ex->context->group.size, 1);
    ex->layout.dense_at = calloc((size_t)plan->n_keys, sizeof *ex->layout.dense_at);
    if (ex->keys == NULL || ex->layout.pushers == NULL || ex->layout.dense_at == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d keys", op, plan->n_keys);
    for (int s = 0; s < ex->layout.n_shares; s++) ex->keys[ex->layout.shares[s].key].n_shares++;
    for (int k = 0; k < plan->n_keys; k++) {
        ex->keys[k].codec = hpc_codec_of(HPC_F32);
        ex->keys[k].shares = malloc((size_t)ex->keys[k].n_shares * sizeof(int) + 1);
        ex->keys[k].awaited = malloc((size_t)ex->keys[k].n_shares * sizeof(int) + 1);
        if (ex->keys[k].shares == NULL || ex->keys[k].awaited == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
        ex->keys[k].n_shares = 0;
    }
    /* Pushes to forwards go first, as they have the longest way. Of each kind a rank begins with the owner after itself
     * and ends with itself: so over wires the ranks begin with different owners. */
    for (int round = 0; round < 4; round++)
        for (int s = 0; s < ex->layout.n_shares; s++) {
            const hpc_share *share = &ex->layout.shares[s];
            const int forwards = plan->rows[share->rows[0]].action == HPC_FORWARD, wraps = share->owner <= rank;
            if (forwards == (round < 2) && wraps == round % 2) add_share(ex, s);
        }
    ex->layout.depth =
        ex->discipline->split != NULL ? 1 : plan->rows[0].depth; /* a plan has one, and a key one codec */
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        for (int e = 0; e < row->n_in; e++) {
            if (row->in[e].row >= 0) continue;
            ex->keys[row->key].codec = hpc_codec_of(row->codec_in);
            ex->layout.pushers[(size_t)row->key * (size_t)ex->context->group.size + (size_t)row->in[e].rank] = 1;
        }
    }
    for (int k = 0, row = 0; k < plan->n_keys; k++) { /* rows are in order of key */
        while (plan->rows[row].key < k) row++;
        ex->keys[k].params = ex->layout.params_bytes;
        ex->keys[k].gradient = ex->layout.gradient_bytes;
        ex->layout.params_bytes += aligned((size_t)plan->keys[k].count * sizeof(float), LINE);
        int status = ex->keys[k].codec->addressable ? HPC_OK : hpc_pieces_find(ex, k, row, op);
        if (status != HPC_OK) return status;
        ex->layout.dense_at[k] = ex->layout.dense_bytes;
        if (ex->discipline->split != NULL && !ex->keys[k].codec->plain) ex->layout.dense_bytes += dense_bytes(ex, k);
        ex->layout.gradient_bytes +=
            aligned(ex->keys[k].codec->addressable ? ex->keys[k].codec->max_bytes(NULL, plan->keys[k].count)
                                                   : ex->pieces[k].slot_bytes,
                    LINE);
    }
    return HPC_OK;
}

/* ---- parts ---- */

static void find_workers(hpc_exchange *ex) {
    const hpc_plan *plan = ex->plan;
    const hpc_edge *in = NULL, *out = NULL;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->in == in && row->out == out) continue;
        in = row->in, out = row->out;
        for (int e = 0; e < row->n_in; e++)
            if (in[e].row < 0) {
                ex->layout.places[in[e].rank].worker = 1;
                ex->layout.places[in[e].rank].gives |= !hpc_input_is_empty(ex, &in[e]);
            }
        for (int e = 0; e < row->n_out; e++)
            if (out[e].row < 0) ex->layout.places[out[e].rank].worker = 1;
    }
}

static int place_masters(hpc_exchange *ex, const char *op) {
    const hpc_plan *plan = ex->plan;
    size_t *used = calloc((size_t)ex->context->group.size, sizeof *used);
    ex->layout.master_of = malloc((size_t)plan->n_rows * sizeof *ex->layout.master_of);
    if (used == NULL || ex->layout.master_of == NULL) {
        free(used);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d rows", op, plan->n_rows);
    }
    for (int core = 0; core < ex->n_lanes; core++) { /* those of a core lie together, on pages of their own */
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            if (row->core != core) continue;
            ex->layout.master_of[i] = HPC_NOWHERE;
            if (!hpc_row_keeps_params(row) || is_master_params(ex, i)) continue;
            ex->keys[row->key].encoded.apart = 1;
            ex->layout.master_of[i] = used[row->owner];
            used[row->owner] += aligned((size_t)row->count * sizeof(float), LINE);
        }
        for (int r = 0; r < ex->context->group.size; r++) used[r] = aligned(used[r], PAGE);
    }
    for (int r = 0; r < ex->context->group.size; r++)
        if (used[r] > 0) ex->layout.places[r].masters = hpc_layout_take(&ex->layout.places[r], used[r]);
    free(used);
    return HPC_OK;
}

int hpc_layout_make(hpc_exchange *ex, const char *op) {
    int size = ex->context->group.size, rank = ex->context->group.rank;
    size_t counts = (size_t)ex->plan->n_keys * sizeof(uint64_t);
    ex->layout.places = calloc((size_t)size, sizeof *ex->layout.places);
    ex->layout.slot_base = calloc((size_t)size * (size_t)size, sizeof *ex->layout.slot_base);
    if (ex->layout.places == NULL || ex->layout.slot_base == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size);
    find_cores(ex);
    int status = hpc_stages_find(ex, op);
    if (status == HPC_OK) status = find_shares(ex, op);
    if (status == HPC_OK && hpc_signals(ex) > HPC_MOST_SIGNALS)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: %d keys on %d cores need %d signals; at most %d are possible", op,
                          ex->plan->n_keys, ex->layout.n_cores, hpc_signals(ex), HPC_MOST_SIGNALS);
    if (status != HPC_OK) return status;
    find_workers(ex);
    status = hpc_holders_find(ex, op);
    if (status == HPC_OK) status = find_keys(ex, op);
    if (status != HPC_OK) return status;
    for (int r = 0; r < size; r++) {
        hpc_place *p = &ex->layout.places[r];
        p->params = p->gradients = p->pushed = p->masters = p->args = HPC_NOWHERE;
        p->own = p->encoded = p->dense = HPC_NOWHERE;
        if (p->worker && !ex->rotates && ex->layout.holders[r] == r)
            p->params = hpc_layout_take(p, ex->layout.params_bytes);
        if (p->gives) p->gradients = hpc_layout_take(p, ex->layout.gradient_bytes * (size_t)ex->layout.depth);
        if (p->gives && ex->layout.dense_bytes > 0) p->dense = hpc_layout_take(p, ex->layout.dense_bytes);
        if (ex->rotates) p->params = p->gradients;
        if (p->worker) p->pushed = hpc_layout_take(p, counts);
        p->closed = hpc_layout_take(p, counts * (size_t)size);
        if (p->shares > 0)
            p->args = hpc_layout_take(p, (size_t)p->shares * (size_t)(ex->own_args ? 1 : size) *
                                             (size_t)ex->layout.depth * HPC_ARGS_BYTES);
        size_t own = ex->discipline->part == NULL ? 0 : ex->discipline->part(ex, r);
        if (own > 0) p->own = hpc_layout_take(p, own);
    }
    ex->layout.holder = ex->layout.places[rank].worker ? ex->layout.holders[rank] : -1;
    return place_masters(ex, op);
}

size_t hpc_gathered_at(const hpc_exchange *ex, int rank, int key) {
    const hpc_place *place = &ex->layout.places[rank];
    return ex->keys[key].codec->plain ? place->gradients + ex->keys[key].gradient
                                      : place->dense + ex->layout.dense_at[key];
}

/* A key of models that rotate begins in the parameters where it does in a slot: both are float32. */
size_t hpc_params_at(const hpc_exchange *ex, int rank, int key, uint64_t pushes) {
    size_t slot = ex->rotates ? (size_t)(pushes % (uint64_t)ex->layout.depth) : 0;
    return ex->layout.places[rank].params + ex->keys[key].params + slot * ex->layout.gradient_bytes;
}

/* ---- receive slots ---- */

int hpc_layout_walk(const hpc_exchange *ex, int owner, int sender, hpc_visit *visit, void *arg) {
    const hpc_plan *plan = ex->plan;
    int size = ex->context->group.size;
    size_t *used = calloc((size_t)size, sizeof *used);
    if (used == NULL) return hpc_fail(HPC_ERR_MEMORY, "exchange", "exchange: no memory for %d rows", plan->n_rows);
    for (int core = 0; core < ex->n_lanes; core++) { /* those of a core lie together, on pages of their own */
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            if (row->core != core || (owner >= 0 && row->owner != owner)) continue;
            for (int e = 0; e < row->n_in; e++) {
                const hpc_edge *edge = &row->in[e];
                if (sender >= 0 && edge->rank != sender) continue;
                if (edge->row < 0 && (hpc_input_is_empty(ex, edge) || hpc_reads_in_place(ex, row->owner, edge->rank)))
                    continue;
                size_t *at = &used[owner >= 0 ? edge->rank : row->owner];
                visit(arg, i, e, *at);
                *at += hpc_slot_stride(ex, row) * (size_t)hpc_slot_depth(ex);
            }
        }
        for (int r = 0; r < size; r++) used[r] = aligned(used[r], PAGE);
    }
    free(used);
    return HPC_OK;
}

static void count_slots(void *arg, int row, int edge, size_t offset) {
    hpc_exchange *ex = arg;
    const hpc_row *r = &ex->plan->rows[row];
    size_t size = (size_t)ex->context->group.size;
    size_t end = offset + hpc_slot_stride(ex, r) * (size_t)hpc_slot_depth(ex);
    size_t *bytes = &ex->layout.slot_base[(size_t)r->owner * size + (size_t)r->in[edge].rank];
    if (end > *bytes) *bytes = end;
}

int hpc_layout_slots(hpc_exchange *ex) {
    int size = ex->context->group.size, me = ex->context->group.rank;
    hpc_place *place = &ex->layout.places[me];
    int status = hpc_layout_walk(ex, me, -1, count_slots, ex);
    if (status != HPC_OK) return status;
    for (int s = 0; s < size; s++) { /* from sizes to places */
        size_t *base = &ex->layout.slot_base[(size_t)me * (size_t)size + (size_t)s];
        *base = *base > 0 ? hpc_layout_take(place, *base) : HPC_NOWHERE;
    }
    return HPC_OK;
}

void hpc_layout_free(hpc_exchange *ex) {
    for (int s = 0; s < ex->layout.n_shares; s++) {
        free(ex->layout.shares[s].rows);
        free(ex->layout.shares[s].parts);
    }
    for (int k = 0; ex->keys != NULL && k < ex->plan->n_keys; k++) {
        free(ex->keys[k].shares);
        free(ex->keys[k].awaited);
        free(ex->keys[k].encoded.rows);
    }
    free(ex->keys);
    free(ex->layout.pushers);
    free(ex->layout.shares);
    free(ex->layout.share_of);
    hpc_stages_free(ex);
    free(ex->layout.places);
    free(ex->layout.holders);
    free(ex->layout.slot_base);
    free(ex->layout.master_of);
    free(ex->layout.dense_at);
}
