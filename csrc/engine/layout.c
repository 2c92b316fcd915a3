/* The layout of an exchange's window. All ranks derive the same layout from the plan. Only the receive slots depend on
 * which ranks can map each other, so every owner tells the others where the slots of each sender begin. */
#include "engine/layout.h"

#include <stdlib.h>
#include <string.h>

#include "engine/holders.h"
#include "engine/ranges.h"
#include "engine/pieces.h"
#include "engine/stages.h"

enum { LINE = 64, PAGE = 4096 };

static size_t aligned(size_t nbytes, size_t to) {
    return (nbytes + to - 1) / to * to;
}

size_t hpc_layout_take(hpc_place *place, size_t nbytes) {
    size_t at = aligned(place->nbytes, PAGE);
    place->nbytes = at + nbytes;
    return at;
}

void hpc_layout_take_own(hpc_engine *en, size_t (*part)(const hpc_engine *en, int rank)) {
    for (int r = 0; r < en->context->group.size; r++) {
        const size_t nbytes = part(en, r);
        if (nbytes > 0) en->layout.places[r].own = hpc_layout_take(&en->layout.places[r], nbytes);
    }
}

/* Whether the master of a row is the copy of the parameters that its owner reads, which change between the owner's push
 * and its pull only: the owner has pushed whenever the row is folded, unless owners go on without some. So it is with
 * the one copy of a host, whose workers have all pushed then. Where parameters are sent encoded the owner's own are as
 * rounded as all others', and the master is not. */
static int is_master_params(const hpc_engine *en, int index) {
    const hpc_row *row = &en->plan->rows[index];
    if (hpc_row_encodes(row)) return 0;
    if (en->asked.shared_params) return hpc_row_home(en, row) >= 0;
    return !(en->discipline->traits & HPC_GOES_ON) && hpc_row_is_fed_by(en, index, row->owner) &&
           hpc_row_has_output(row, row->owner);
}

/* ---- shares ---- */

static void find_cores(hpc_engine *en) {
    const hpc_plan *plan = en->plan;
    int size = en->context->group.size;
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_place *place = &en->layout.places[plan->rows[i].owner];
        if (plan->rows[i].core >= place->cores) place->cores = plan->rows[i].core + 1;
    }
    for (int r = 0; r < size; r++) {
        en->layout.places[r].first_core = en->layout.n_cores;
        en->layout.n_cores += en->layout.places[r].cores;
        if (en->layout.places[r].cores > en->n_lanes) en->n_lanes = en->layout.places[r].cores;
    }
}

/* Shares are numbered in the order of their first rows. share_at: by core and action, the share of the key at hand. */
static int find_shares(hpc_engine *en, const char *op) {
    const hpc_plan *plan = en->plan;
    enum { ACTIONS = HPC_RELAY + 1 };
    const int n = en->layout.n_cores * ACTIONS;
    int *share_at = malloc((size_t)n * sizeof *share_at), status = HPC_OK, empty = 0;
    const hpc_edge *push = NULL, *edges = NULL;
    en->layout.share_of = malloc((size_t)plan->n_rows * sizeof *en->layout.share_of);
    en->layout.shares = calloc((size_t)plan->n_rows, sizeof *en->layout.shares);
    if (share_at == NULL || en->layout.share_of == NULL || en->layout.shares == NULL) goto no_memory;
    for (int c = 0; c < n; c++) share_at[c] = -1;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        int *at = &share_at[(en->layout.places[row->owner].first_core + row->core) * ACTIONS + row->action];
        if (*at < 0 || en->layout.shares[*at].key != row->key) {
            *at = en->layout.n_shares++;
            en->layout.shares[*at] = (hpc_share){.key = row->key, .owner = row->owner, .core = row->core};
            en->layout.shares[*at].at = en->layout.places[row->owner].shares++;
        }
        en->layout.share_of[i] = *at;
        en->layout.shares[*at].n_rows++;
    }
    for (int s = 0; s < en->layout.n_shares; s++) {
        en->layout.shares[s].rows = malloc((size_t)en->layout.shares[s].n_rows * sizeof(int));
        if (en->layout.shares[s].rows == NULL) goto no_memory;
        en->layout.shares[s].n_rows = 0;
    }
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_share *share = &en->layout.shares[en->layout.share_of[i]];
        const hpc_row *row = &plan->rows[i];
        size_t nbytes = hpc_input_bytes(en, row);
        const int counts = hpc_codec_of(row->codec_in)->addressable; /* pieces are counted as they are folded */
        if (row->in != edges) {                                      /* a hub has one list */
            push = hpc_row_input(row, en->context->group.rank);
            empty = 0;
            for (int e = 0; e < row->n_in; e++) empty |= hpc_input_is_empty(en, &row->in[e]);
        }
        edges = row->in;
        share->some_empty |= empty;
        share->rows[share->n_rows++] = i;
        share->nbytes += counts ? nbytes : 0;
        if (push == NULL || hpc_edge_via(push) >= 0) continue;
        if (hpc_input_is_empty(en, push))
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

static void add_share(hpc_engine *en, int s) {
    const hpc_share *share = &en->layout.shares[s];
    hpc_pushed *key = &en->keys[share->key];
    int rank = en->context->group.rank;
    if (!hpc_share_involves(en, share, rank)) return;
    key->shares[key->n_shares++] = s;
    if (!hpc_share_is_awaited_by(en, share, rank)) return;
    if (!(en->discipline->traits & HPC_OWN_PARAMS) || hpc_row_has_output(&en->plan->rows[share->rows[0]], rank))
        key->awaited[key->n_awaited++] = s;
}

/* An update that is no array lies before the mean: its trainer finds what it has written there. */
static size_t before_mean(const hpc_engine *en, int key) {
    return en->keys[key].codec->source_bytes == NULL ? 0 : aligned(hpc_pieces_source_bytes(en, key), LINE);
}

/* Room for a mean in float32, and for the update of which pieces are made. */
static size_t dense_bytes(const hpc_engine *en, int key) {
    return before_mean(en, key) + aligned((size_t)en->plan->keys[key].count * sizeof(float), LINE);
}

static int find_keys(hpc_engine *en, const char *op) {
    const hpc_plan *plan = en->plan;
    int rank = en->context->group.rank;
    en->keys = calloc((size_t)plan->n_keys, sizeof *en->keys);
    en->layout.pushers = calloc((size_t)plan->n_keys * (size_t)en->context->group.size, 1);
    en->layout.dense_at = calloc((size_t)plan->n_keys, sizeof *en->layout.dense_at);
    if (en->keys == NULL || en->layout.pushers == NULL || en->layout.dense_at == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d keys", op, plan->n_keys);
    for (int s = 0; s < en->layout.n_shares; s++) en->keys[en->layout.shares[s].key].n_shares++;
    for (int k = 0; k < plan->n_keys; k++) {
        en->keys[k].codec = hpc_codec_of(HPC_F32);
        en->keys[k].shares = malloc((size_t)en->keys[k].n_shares * sizeof(int) + 1);
        en->keys[k].awaited = malloc((size_t)en->keys[k].n_shares * sizeof(int) + 1);
        if (en->keys[k].shares == NULL || en->keys[k].awaited == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
        en->keys[k].n_shares = 0;
    }
    /* Pushes to forwards go first, as they have the longest way. Of each kind a rank begins with the owner after itself
     * and ends with itself: so over wires the ranks begin with different owners. */
    for (int round = 0; round < 4; round++)
        for (int s = 0; s < en->layout.n_shares; s++) {
            const hpc_share *share = &en->layout.shares[s];
            const int forwards = plan->rows[share->rows[0]].action == HPC_FORWARD, wraps = share->owner <= rank;
            if (forwards == (round < 2) && wraps == round % 2) add_share(en, s);
        }
    const int keeps_mean = en->use != NULL && !(en->discipline->traits & (HPC_KEEPS_INPUTS | HPC_KEEPS_MEANS));
    en->layout.depth = keeps_mean ? 1 : plan->rows[0].depth; /* a plan has one, and a key one codec */
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        for (int e = 0; e < row->n_in; e++) {
            if (row->in[e].row >= 0) continue;
            en->keys[row->key].codec = hpc_codec_of(row->codec_in);
            en->layout.pushers[(size_t)row->key * (size_t)en->context->group.size + (size_t)row->in[e].rank] = 1;
        }
    }
    for (int k = 0, row = 0; k < plan->n_keys; k++) { /* rows are in order of key */
        while (plan->rows[row].key < k) row++;
        en->keys[k].params = en->layout.params_bytes;
        en->keys[k].gradient = en->layout.gradient_bytes;
        en->layout.params_bytes += aligned((size_t)plan->keys[k].count * sizeof(float), LINE);
        int status = en->keys[k].codec->addressable ? HPC_OK : hpc_pieces_find(en, k, row, op);
        if (status != HPC_OK) return status;
        en->layout.dense_at[k] = en->layout.dense_bytes;
        if (keeps_mean && !en->keys[k].codec->plain) en->layout.dense_bytes += dense_bytes(en, k);
        en->layout.gradient_bytes +=
            aligned(en->keys[k].codec->addressable ? en->keys[k].codec->max_bytes(NULL, plan->keys[k].count)
                                                   : en->pieces[k].slot_bytes,
                    LINE);
    }
    return HPC_OK;
}

/* ---- parts ---- */

static void find_workers(hpc_engine *en) {
    const hpc_plan *plan = en->plan;
    const hpc_edge *in = NULL, *out = NULL;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->in == in && row->out == out) continue;
        in = row->in, out = row->out;
        for (int e = 0; e < row->n_in; e++)
            if (in[e].row < 0) {
                en->layout.places[in[e].rank].worker = 1;
                en->layout.places[in[e].rank].gives |= !hpc_input_is_empty(en, &in[e]);
            }
        for (int e = 0; e < row->n_out; e++)
            if (out[e].row < 0) en->layout.places[out[e].rank].worker = 1;
    }
}

static int place_masters(hpc_engine *en, const char *op) {
    const hpc_plan *plan = en->plan;
    size_t *used = calloc((size_t)en->context->group.size, sizeof *used);
    en->layout.master_of = malloc((size_t)plan->n_rows * sizeof *en->layout.master_of);
    if (used == NULL || en->layout.master_of == NULL) {
        free(used);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d rows", op, plan->n_rows);
    }
    for (int core = 0; core < en->n_lanes; core++) { /* those of a core lie together, on pages of their own */
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            if (row->core != core) continue;
            en->layout.master_of[i] = HPC_NOWHERE;
            if (!hpc_row_keeps_params(row) || is_master_params(en, i)) continue;
            en->keys[row->key].encoded.apart = 1;
            en->layout.master_of[i] = used[row->owner];
            used[row->owner] += aligned((size_t)row->count * sizeof(float), LINE);
        }
        for (int r = 0; r < en->context->group.size; r++) used[r] = aligned(used[r], PAGE);
    }
    for (int r = 0; r < en->context->group.size; r++)
        if (used[r] > 0) en->layout.places[r].masters = hpc_layout_take(&en->layout.places[r], used[r]);
    free(used);
    return HPC_OK;
}

int hpc_layout_make(hpc_engine *en, const char *op) {
    int size = en->context->group.size, rank = en->context->group.rank;
    size_t counts = (size_t)en->plan->n_keys * sizeof(uint64_t);
    en->layout.places = calloc((size_t)size, sizeof *en->layout.places);
    en->layout.slot_base = calloc((size_t)size * (size_t)size, sizeof *en->layout.slot_base);
    if (en->layout.places == NULL || en->layout.slot_base == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size);
    find_cores(en);
    int status = hpc_stages_find(en, op);
    if (status == HPC_OK) status = find_shares(en, op);
    if (status == HPC_OK && hpc_signals(en) > HPC_MOST_SIGNALS)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: %d keys on %d cores need %d signals; at most %d are possible", op,
                          en->plan->n_keys, en->layout.n_cores, hpc_signals(en), HPC_MOST_SIGNALS);
    if (status != HPC_OK) return status;
    find_workers(en);
    status = hpc_holders_find(en, op);
    if (status == HPC_OK) status = find_keys(en, op);
    if (status != HPC_OK) return status;
    for (int r = 0; r < size; r++) {
        hpc_place *p = &en->layout.places[r];
        p->params = p->gradients = p->pushed = p->masters = p->args = HPC_NOWHERE;
        p->own = p->encoded = p->dense = HPC_NOWHERE;
        if (p->worker && !en->rotates && en->layout.holders[r] == r)
            p->params = hpc_layout_take(p, en->layout.params_bytes);
        const int holds = p->gives || (en->use != NULL && p->worker); /* a mean is gathered to all workers */
        if (holds) p->gradients = hpc_layout_take(p, en->layout.gradient_bytes * (size_t)en->layout.depth);
        if (holds && en->layout.dense_bytes > 0) p->dense = hpc_layout_take(p, en->layout.dense_bytes);
        if (en->rotates) p->params = p->gradients;
        if (p->worker) p->pushed = hpc_layout_take(p, counts);
        p->closed = hpc_layout_take(p, counts * (size_t)size);
        if (p->shares > 0)
            p->args = hpc_layout_take(p, (size_t)p->shares * (size_t)(en->own_args ? 1 : size) *
                                             (size_t)en->layout.depth * HPC_ARGS_BYTES);
    }
    en->layout.holder = en->layout.places[rank].worker ? en->layout.holders[rank] : -1;
    return place_masters(en, op);
}

size_t hpc_gathered_at(const hpc_engine *en, int rank, int key) {
    const hpc_place *place = &en->layout.places[rank];
    return en->keys[key].codec->plain ? place->gradients + en->keys[key].gradient
                                      : place->dense + en->layout.dense_at[key] + before_mean(en, key);
}

/* A key of models that rotate begins in the parameters where it does in a slot: both are float32. */
size_t hpc_params_at(const hpc_engine *en, int rank, int key, uint64_t pushes) {
    size_t slot = en->rotates ? (size_t)(pushes % (uint64_t)en->layout.depth) : 0;
    return en->layout.places[rank].params + en->keys[key].params + slot * en->layout.gradient_bytes;
}

/* ---- receive slots ---- */

int hpc_layout_walk(const hpc_engine *en, int owner, int sender, hpc_visit *visit, void *arg) {
    const hpc_plan *plan = en->plan;
    int size = en->context->group.size;
    size_t *used = calloc((size_t)size, sizeof *used);
    if (used == NULL) return hpc_fail(HPC_ERR_MEMORY, "exchange", "exchange: no memory for %d rows", plan->n_rows);
    for (int core = 0; core < en->n_lanes; core++) { /* those of a core lie together, on pages of their own */
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            if (row->core != core || (owner >= 0 && row->owner != owner)) continue;
            for (int e = 0; e < row->n_in; e++) {
                const hpc_edge *edge = &row->in[e];
                if (sender >= 0 && edge->rank != sender) continue;
                if (edge->row < 0 && (hpc_input_is_empty(en, edge) || hpc_reads_in_place(en, row->owner, edge->rank)))
                    continue;
                size_t *at = &used[owner >= 0 ? edge->rank : row->owner];
                visit(arg, i, e, *at);
                *at += hpc_slot_stride(en, row) * (size_t)hpc_slot_depth(en);
            }
        }
        for (int r = 0; r < size; r++) used[r] = aligned(used[r], PAGE);
    }
    free(used);
    return HPC_OK;
}

static void count_slots(void *arg, int row, int edge, size_t offset) {
    hpc_engine *en = arg;
    const hpc_row *r = &en->plan->rows[row];
    size_t size = (size_t)en->context->group.size;
    size_t end = offset + hpc_slot_stride(en, r) * (size_t)hpc_slot_depth(en);
    size_t *bytes = &en->layout.slot_base[(size_t)r->owner * size + (size_t)r->in[edge].rank];
    if (end > *bytes) *bytes = end;
}

int hpc_layout_slots(hpc_engine *en) {
    int size = en->context->group.size, me = en->context->group.rank;
    hpc_place *place = &en->layout.places[me];
    int status = hpc_layout_walk(en, me, -1, count_slots, en);
    if (status != HPC_OK) return status;
    for (int s = 0; s < size; s++) { /* from sizes to places */
        size_t *base = &en->layout.slot_base[(size_t)me * (size_t)size + (size_t)s];
        *base = *base > 0 ? hpc_layout_take(place, *base) : HPC_NOWHERE;
    }
    return HPC_OK;
}

void hpc_layout_free(hpc_engine *en) {
    for (int s = 0; s < en->layout.n_shares; s++) {
        free(en->layout.shares[s].rows);
        free(en->layout.shares[s].members);
    }
    for (int k = 0; en->keys != NULL && k < en->plan->n_keys; k++) {
        free(en->keys[k].shares);
        free(en->keys[k].awaited);
        free(en->keys[k].encoded.rows);
    }
    free(en->keys);
    free(en->layout.pushers);
    free(en->layout.shares);
    free(en->layout.share_of);
    hpc_stages_free(en);
    free(en->layout.places);
    free(en->layout.holders);
    free(en->layout.slot_base);
    free(en->layout.master_of);
    free(en->layout.dense_at);
}
