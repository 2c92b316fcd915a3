/* The layout of an exchange's window. All ranks derive the same layout from the plan. Only the receive slots depend on
 * which ranks can map each other, so every owner tells the others where each sender's slots begin. */
#include "engine/layout/layout.h"

#include <stdlib.h>
#include <string.h>

#include "engine/bytes.h"
#include "engine/layout/holders.h"
#include "engine/pieces.h"
#include "engine/layout/stages.h"

enum { LINE = 64, PAGE = 4096 };

static size_t aligned(size_t nbytes, size_t to) {
    return (nbytes + to - 1) / to * to;
}

size_t hpc_layout_take(hpc_place *place, size_t nbytes) {
    size_t at = aligned(place->nbytes, PAGE);
    place->nbytes = at + nbytes;
    return at;
}

void hpc_layout_take_own(hpc_scheme *sc, size_t (*part)(const hpc_scheme *sc, int rank)) {
    for (int r = 0; r < sc->context->group.size; r++) {
        const size_t nbytes = part(sc, r);
        if (nbytes > 0) sc->layout.places[r].own = hpc_layout_take(&sc->layout.places[r], nbytes);
    }
}

/* Returns whether a row's master is the same memory as the parameters that its owner reads. That is possible because
 * these parameters may change only between the owner's push and its pull, and the owner has pushed whenever the row is
 * folded. It is not possible with HPC_GOES_ON. The copy that a host shares may be the master too, since all its workers
 * have pushed. If parameters are sent encoded, the owner's copy is rounded like all others, so the master is
 * separate. */
static int is_master_params(const hpc_scheme *sc, int index) {
    const hpc_row *row = &sc->plan->rows[index];
    if (hpc_row_encodes(row)) return 0;
    if (sc->asked.shared_params) return hpc_row_home(sc, row) >= 0;
    return !(sc->discipline->traits & HPC_GOES_ON) && hpc_row_is_fed_by(sc, index, row->owner) &&
           hpc_row_has_output(row, row->owner);
}

/* ---- shares ---- */

static void find_cores(hpc_scheme *sc) {
    const hpc_plan *plan = sc->plan;
    int size = sc->context->group.size;
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_place *place = &sc->layout.places[plan->rows[i].owner];
        if (plan->rows[i].core >= place->cores) place->cores = plan->rows[i].core + 1;
    }
    for (int r = 0; r < size; r++) {
        sc->layout.places[r].first_core = sc->layout.n_cores;
        sc->layout.n_cores += sc->layout.places[r].cores;
        if (sc->layout.places[r].cores > sc->n_lanes) sc->n_lanes = sc->layout.places[r].cores;
    }
}

/* Numbers shares in the order of their first rows. share_at: by core and action, the present key's share. */
static int find_shares(hpc_scheme *sc, const char *op) {
    const hpc_plan *plan = sc->plan;
    enum { ACTIONS = HPC_RELAY + 1 };
    const int n = sc->layout.n_cores * ACTIONS;
    int *share_at = malloc((size_t)n * sizeof *share_at), status = HPC_OK, empty = 0;
    const hpc_edge *push = NULL, *edges = NULL;
    sc->layout.share_of = malloc((size_t)plan->n_rows * sizeof *sc->layout.share_of);
    sc->layout.shares = calloc((size_t)plan->n_rows, sizeof *sc->layout.shares);
    if (share_at == NULL || sc->layout.share_of == NULL || sc->layout.shares == NULL) goto no_memory;
    for (int c = 0; c < n; c++) share_at[c] = -1;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        int *at = &share_at[(sc->layout.places[row->owner].first_core + row->core) * ACTIONS + row->action];
        if (*at < 0 || sc->layout.shares[*at].key != row->key) {
            *at = sc->layout.n_shares++;
            sc->layout.shares[*at] = (hpc_share){.key = row->key, .owner = row->owner, .core = row->core};
            sc->layout.shares[*at].at = sc->layout.places[row->owner].shares++;
        }
        sc->layout.share_of[i] = *at;
        sc->layout.shares[*at].n_rows++;
    }
    for (int s = 0; s < sc->layout.n_shares; s++) {
        sc->layout.shares[s].rows = malloc((size_t)sc->layout.shares[s].n_rows * sizeof(int));
        if (sc->layout.shares[s].rows == NULL) goto no_memory;
        sc->layout.shares[s].n_rows = 0;
    }
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_share *share = &sc->layout.shares[sc->layout.share_of[i]];
        const hpc_row *row = &plan->rows[i];
        size_t nbytes = hpc_input_bytes(sc, row);
        const int counts = hpc_codec_of(row->codec_in)->addressable; /* pieces are counted when they are folded */
        if (row->in != edges) {                                      /* all rows of a hub have one list of edges */
            push = hpc_row_input(row, sc->context->group.rank);
            empty = 0;
            for (int e = 0; e < row->n_in; e++) empty |= hpc_input_is_empty(sc, &row->in[e]);
        }
        edges = row->in;
        share->some_empty |= empty;
        share->rows[share->n_rows++] = i;
        share->nbytes += counts ? nbytes : 0;
        if (push == NULL || hpc_edge_via(push) >= 0) continue;
        if (hpc_input_is_empty(sc, push))
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

static void add_share(hpc_scheme *sc, int s) {
    const hpc_share *share = &sc->layout.shares[s];
    hpc_pushed *key = &sc->keys[share->key];
    int rank = sc->context->group.rank;
    if (!hpc_share_involves(sc, share, rank)) return;
    key->shares[key->n_shares++] = s;
    if (!hpc_share_is_awaited_by(sc, share, rank)) return;
    if (!(sc->discipline->traits & HPC_OWN_PARAMS) || hpc_row_has_output(&sc->plan->rows[share->rows[0]], rank))
        key->awaited[key->n_awaited++] = s;
}

/* Returns how many bytes come before the mean. They hold an update that is not an array, so the mean does not overwrite
 * it. */
static size_t before_mean(const hpc_scheme *sc, int key) {
    return sc->keys[key].codec->source_bytes == NULL ? 0 : aligned(hpc_pieces_source_bytes(sc, key), LINE);
}

/* Returns the bytes of a mean in float32, plus the bytes before it (before_mean). */
static size_t dense_bytes(const hpc_scheme *sc, int key) {
    return before_mean(sc, key) + aligned((size_t)sc->plan->keys[key].count * sizeof(float), LINE);
}

static int find_keys(hpc_scheme *sc, const char *op) {
    const hpc_plan *plan = sc->plan;
    int rank = sc->context->group.rank;
    sc->keys = calloc((size_t)plan->n_keys, sizeof *sc->keys);
    sc->layout.pushers = calloc((size_t)plan->n_keys * (size_t)sc->context->group.size, 1);
    sc->layout.dense_at = calloc((size_t)plan->n_keys, sizeof *sc->layout.dense_at);
    if (sc->keys == NULL || sc->layout.pushers == NULL || sc->layout.dense_at == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d keys", op, plan->n_keys);
    for (int s = 0; s < sc->layout.n_shares; s++) sc->keys[sc->layout.shares[s].key].n_shares++;
    for (int k = 0; k < plan->n_keys; k++) {
        sc->keys[k].codec = hpc_codec_of(HPC_F32);
        sc->keys[k].shares = malloc((size_t)sc->keys[k].n_shares * sizeof(int) + 1);
        sc->keys[k].awaited = malloc((size_t)sc->keys[k].n_shares * sizeof(int) + 1);
        if (sc->keys[k].shares == NULL || sc->keys[k].awaited == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
        sc->keys[k].n_shares = 0;
    }
    /* Pushes to forwards go first, because they pass the most stages. Among pushes of one kind a rank begins with the
     * owner whose rank follows its own and ends with itself, so the ranks begin with different owners. */
    for (int round = 0; round < 4; round++)
        for (int s = 0; s < sc->layout.n_shares; s++) {
            const hpc_share *share = &sc->layout.shares[s];
            const int forwards = plan->rows[share->rows[0]].action == HPC_FORWARD, wraps = share->owner <= rank;
            if (forwards == (round < 2) && wraps == round % 2) add_share(sc, s);
        }
    const int keeps_mean = sc->use != NULL && !(sc->discipline->traits & (HPC_KEEPS_INPUTS | HPC_KEEPS_MEANS));
    sc->layout.depth = keeps_mean ? 1 : plan->rows[0].depth; /* a plan has one depth, and a key one codec */
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        for (int e = 0; e < row->n_in; e++) {
            if (row->in[e].row >= 0) continue;
            sc->keys[row->key].codec = hpc_codec_of(row->codec_in);
            sc->layout.pushers[(size_t)row->key * (size_t)sc->context->group.size + (size_t)row->in[e].rank] = 1;
        }
    }
    for (int k = 0, row = 0; k < plan->n_keys; k++) { /* rows are in the order of their keys */
        while (plan->rows[row].key < k) row++;
        sc->keys[k].params = sc->layout.params_bytes;
        sc->keys[k].gradient = sc->layout.gradient_bytes;
        sc->layout.params_bytes += aligned((size_t)plan->keys[k].count * sizeof(float), LINE);
        int status = sc->keys[k].codec->addressable ? HPC_OK : hpc_pieces_find(sc, k, row, op);
        if (status != HPC_OK) return status;
        sc->layout.dense_at[k] = sc->layout.dense_bytes;
        if (keeps_mean && !sc->keys[k].codec->plain) sc->layout.dense_bytes += dense_bytes(sc, k);
        sc->layout.gradient_bytes +=
            aligned(sc->keys[k].codec->addressable ? sc->keys[k].codec->max_bytes(NULL, plan->keys[k].count)
                                                   : sc->pieces[k].slot_bytes,
                    LINE);
    }
    return HPC_OK;
}

/* ---- parts ---- */

static void find_workers(hpc_scheme *sc) {
    const hpc_plan *plan = sc->plan;
    const hpc_edge *in = NULL, *out = NULL;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->in == in && row->out == out) continue;
        in = row->in, out = row->out;
        for (int e = 0; e < row->n_in; e++)
            if (in[e].row < 0) {
                sc->layout.places[in[e].rank].worker = 1;
                sc->layout.places[in[e].rank].gives |= !hpc_input_is_empty(sc, &in[e]);
            }
        for (int e = 0; e < row->n_out; e++)
            if (out[e].row < 0) sc->layout.places[out[e].rank].worker = 1;
    }
}

static int place_masters(hpc_scheme *sc, const char *op) {
    const hpc_plan *plan = sc->plan;
    size_t *used = calloc((size_t)sc->context->group.size, sizeof *used);
    sc->layout.master_of = malloc((size_t)plan->n_rows * sizeof *sc->layout.master_of);
    if (used == NULL || sc->layout.master_of == NULL) {
        free(used);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d rows", op, plan->n_rows);
    }
    for (int core = 0; core < sc->n_lanes; core++) { /* each core's masters are together, on separate pages */
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            if (row->core != core) continue;
            sc->layout.master_of[i] = HPC_NOWHERE;
            if (!hpc_row_keeps_params(row) || is_master_params(sc, i)) continue;
            sc->keys[row->key].encoded.apart = 1;
            sc->layout.master_of[i] = used[row->owner];
            used[row->owner] += aligned((size_t)row->count * sizeof(float), LINE);
        }
        for (int r = 0; r < sc->context->group.size; r++) used[r] = aligned(used[r], PAGE);
    }
    for (int r = 0; r < sc->context->group.size; r++)
        if (used[r] > 0) sc->layout.places[r].masters = hpc_layout_take(&sc->layout.places[r], used[r]);
    free(used);
    return HPC_OK;
}

int hpc_layout_make(hpc_scheme *sc, const char *op) {
    int size = sc->context->group.size, rank = sc->context->group.rank;
    size_t counts = (size_t)sc->plan->n_keys * sizeof(uint64_t);
    sc->layout.places = calloc((size_t)size, sizeof *sc->layout.places);
    sc->layout.slot_base = calloc((size_t)size * (size_t)size, sizeof *sc->layout.slot_base);
    if (sc->layout.places == NULL || sc->layout.slot_base == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size);
    find_cores(sc);
    int status = hpc_stages_find(sc, op);
    if (status == HPC_OK) status = find_shares(sc, op);
    if (status == HPC_OK && hpc_signals(sc) > HPC_MOST_SIGNALS)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: %d keys on %d cores need %d signals; at most %d are possible", op,
                          sc->plan->n_keys, sc->layout.n_cores, hpc_signals(sc), HPC_MOST_SIGNALS);
    if (status != HPC_OK) return status;
    find_workers(sc);
    status = hpc_holders_find(sc, op);
    if (status == HPC_OK) status = find_keys(sc, op);
    if (status != HPC_OK) return status;
    for (int r = 0; r < size; r++) {
        hpc_place *p = &sc->layout.places[r];
        p->params = p->gradients = p->pushed = p->masters = p->args = HPC_NOWHERE;
        p->own = p->encoded = p->dense = HPC_NOWHERE;
        if (p->worker && !sc->rotates && sc->layout.holders[r] == r)
            p->params = hpc_layout_take(p, sc->layout.params_bytes);
        const int holds = p->gives || (sc->use != NULL && p->worker); /* every worker may gather a mean */
        if (holds) p->gradients = hpc_layout_take(p, sc->layout.gradient_bytes * (size_t)sc->layout.depth);
        if (holds && sc->layout.dense_bytes > 0) p->dense = hpc_layout_take(p, sc->layout.dense_bytes);
        if (sc->rotates) p->params = p->gradients;
        if (p->worker) p->pushed = hpc_layout_take(p, counts);
        p->closed = hpc_layout_take(p, counts * (size_t)size);
        if (p->shares > 0)
            p->args = hpc_layout_take(p, (size_t)p->shares * (size_t)(sc->own_args ? 1 : size) *
                                             (size_t)sc->layout.depth * HPC_ARGS_BYTES);
    }
    sc->layout.holder = sc->layout.places[rank].worker ? sc->layout.holders[rank] : -1;
    return place_masters(sc, op);
}

size_t hpc_gathered_at(const hpc_scheme *sc, int rank, int key) {
    const hpc_place *place = &sc->layout.places[rank];
    return sc->keys[key].codec->plain ? place->gradients + sc->keys[key].gradient
                                      : place->dense + sc->layout.dense_at[key] + before_mean(sc, key);
}

/* A key of rotating models has the same offset in the parameters as in a slot, because both are float32. */
size_t hpc_params_at(const hpc_scheme *sc, int rank, int key, uint64_t pushes) {
    size_t slot = sc->rotates ? (size_t)(pushes % (uint64_t)sc->layout.depth) : 0;
    return sc->layout.places[rank].params + sc->keys[key].params + slot * sc->layout.gradient_bytes;
}

/* ---- receive slots ---- */

int hpc_layout_walk(const hpc_scheme *sc, int owner, int sender, hpc_visit *visit, void *arg) {
    const hpc_plan *plan = sc->plan;
    int size = sc->context->group.size;
    size_t *used = calloc((size_t)size, sizeof *used);
    if (used == NULL) return hpc_fail(HPC_ERR_MEMORY, "exchange", "exchange: no memory for %d rows", plan->n_rows);
    for (int core = 0; core < sc->n_lanes; core++) { /* each core's slots are together, on separate pages */
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            if (row->core != core || (owner >= 0 && row->owner != owner)) continue;
            for (int e = 0; e < row->n_in; e++) {
                const hpc_edge *edge = &row->in[e];
                if (sender >= 0 && edge->rank != sender) continue;
                if (edge->row < 0 && (hpc_input_is_empty(sc, edge) || hpc_reads_in_place(sc, row->owner, edge->rank)))
                    continue;
                size_t *at = &used[owner >= 0 ? edge->rank : row->owner];
                visit(arg, i, e, *at);
                *at += hpc_slot_stride(sc, row) * (size_t)hpc_slot_depth(sc);
            }
        }
        for (int r = 0; r < size; r++) used[r] = aligned(used[r], PAGE);
    }
    free(used);
    return HPC_OK;
}

static void count_slots(void *arg, int row, int edge, size_t offset) {
    hpc_scheme *sc = arg;
    const hpc_row *r = &sc->plan->rows[row];
    size_t size = (size_t)sc->context->group.size;
    size_t end = offset + hpc_slot_stride(sc, r) * (size_t)hpc_slot_depth(sc);
    size_t *bytes = &sc->layout.slot_base[(size_t)r->owner * size + (size_t)r->in[edge].rank];
    if (end > *bytes) *bytes = end;
}

int hpc_layout_slots(hpc_scheme *sc) {
    int size = sc->context->group.size, me = sc->context->group.rank;
    hpc_place *place = &sc->layout.places[me];
    int status = hpc_layout_walk(sc, me, -1, count_slots, sc);
    if (status != HPC_OK) return status;
    for (int s = 0; s < size; s++) { /* replaces sizes by offsets */
        size_t *base = &sc->layout.slot_base[(size_t)me * (size_t)size + (size_t)s];
        *base = *base > 0 ? hpc_layout_take(place, *base) : HPC_NOWHERE;
    }
    return HPC_OK;
}

void hpc_layout_free(hpc_scheme *sc) {
    for (int s = 0; s < sc->layout.n_shares; s++) {
        free(sc->layout.shares[s].rows);
        free(sc->layout.shares[s].members);
    }
    for (int k = 0; sc->keys != NULL && k < sc->plan->n_keys; k++) {
        free(sc->keys[k].shares);
        free(sc->keys[k].awaited);
        free(sc->keys[k].encoded.rows);
    }
    free(sc->keys);
    free(sc->layout.pushers);
    free(sc->layout.shares);
    free(sc->layout.share_of);
    hpc_stages_free(sc);
    free(sc->layout.places);
    free(sc->layout.holders);
    free(sc->layout.slot_base);
    free(sc->layout.master_of);
    free(sc->layout.dense_at);
}
