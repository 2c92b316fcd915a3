/* Where everything of an exchange lies. All ranks derive the same from the plan; only the receive slots depend on which
 * ranks can map each other, so every owner tells where those of each sender begin. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { LINE = 64, PAGE = 4096 };

static size_t aligned(size_t nbytes, size_t to) {
    return (nbytes + to - 1) / to * to;
}

/* Takes nbytes at the end of a part, on pages of its own: a core's memory can be placed on its node. */
static size_t take(hpc_place *place, size_t nbytes) {
    size_t at = aligned(place->nbytes, PAGE);
    place->nbytes = at + nbytes;
    return at;
}

static int has_edge(const hpc_edge *edges, int n, int rank) {
    for (int e = 0; e < n; e++)
        if (edges[e].rank == rank && edges[e].row < 0) return 1;
    return 0;
}

/* Whether the master of a row is its owner's own copy of the parameters, which change between the owner's push and its
 * pull only: under BSP the owner has pushed whenever the row is applied, unless a quorum is enough. */
static int is_master_params(const hpc_exchange *ex, const hpc_row *row) {
    return ex->shared_params ||
           ((ex->n_phases > 0 || (ex->consistency == HPC_BSP && !hpc_has_quorum(ex))) &&
            has_edge(row->in, row->n_in, row->owner) && has_edge(row->out, row->n_out, row->owner));
}

/* ---- shares ---- */

static void find_cores(hpc_exchange *ex) {
    const hpc_plan *plan = ex->plan;
    int size = ex->context->group.size;
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_place *place = &ex->places[plan->rows[i].owner];
        if (plan->rows[i].core >= place->cores) place->cores = plan->rows[i].core + 1;
    }
    for (int r = 0; r < size; r++) {
        ex->places[r].first_core = ex->n_cores;
        ex->n_cores += ex->places[r].cores;
        if (ex->places[r].cores > ex->n_lanes) ex->n_lanes = ex->places[r].cores;
    }
}

/* Shares are numbered in the order of their first rows. share_at: by core, the share of the key at hand. */
static int find_shares(hpc_exchange *ex, const char *op) {
    const hpc_plan *plan = ex->plan;
    int *share_at = malloc((size_t)ex->n_cores * sizeof *share_at), status = HPC_OK, pushes = 0;
    const hpc_edge *edges = NULL;
    ex->share_of = malloc((size_t)plan->n_rows * sizeof *ex->share_of);
    ex->shares = calloc((size_t)plan->n_rows, sizeof *ex->shares);
    if (share_at == NULL || ex->share_of == NULL || ex->shares == NULL) goto no_memory;
    for (int c = 0; c < ex->n_cores; c++) share_at[c] = -1;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        int *at = &share_at[ex->places[row->owner].first_core + row->core];
        if (*at < 0 || ex->shares[*at].key != row->key) {
            *at = ex->n_shares++;
            ex->shares[*at] = (hpc_share){.key = row->key, .owner = row->owner, .core = row->core};
            ex->shares[*at].at = ex->places[row->owner].shares++;
        }
        ex->share_of[i] = *at;
        ex->shares[*at].n_rows++;
    }
    for (int s = 0; s < ex->n_shares; s++) {
        ex->shares[s].rows = malloc((size_t)ex->shares[s].n_rows * sizeof(int));
        if (ex->shares[s].rows == NULL) goto no_memory;
        ex->shares[s].n_rows = 0;
    }
    for (int i = 0; i < plan->n_rows; i++) {
        hpc_share *share = &ex->shares[ex->share_of[i]];
        const hpc_row *row = &plan->rows[i];
        size_t nbytes = (size_t)row->count * hpc_codec_bytes(row->codec_in);
        if (row->in != edges) pushes = has_edge(row->in, row->n_in, ex->context->group.rank); /* a hub has one list */
        edges = row->in;
        share->rows[share->n_rows++] = i;
        share->nbytes += nbytes;
        if (pushes) share->pushed += nbytes;
    }
    goto out;
no_memory:
    status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d rows", op, plan->n_rows);
out:
    free(share_at);
    return status;
}

/* ---- keys ---- */

/* Rows are taken once all that forward to them were; of each the ranks that feed it are known then. A plan has no
 * circle. */
static void spread_feeders(const hpc_exchange *ex, int *missing, int *ready) {
    const hpc_plan *plan = ex->plan;
    size_t words = ex->feeder_words;
    int n_ready = 0;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        for (int e = 0; e < row->n_in; e++) {
            size_t rank = (size_t)row->in[e].rank;
            if (row->in[e].row < 0)
                ex->feeders[(size_t)i * words + rank / 64] |= (uint64_t)1 << rank % 64;
            else
                missing[i]++;
        }
        if (missing[i] == 0) ready[n_ready++] = i;
    }
    while (n_ready > 0) {
        int i = ready[--n_ready];
        const hpc_row *row = &plan->rows[i];
        for (int e = 0; row->action == HPC_FORWARD && e < row->n_out; e++) {
            int to = row->out[e].row;
            for (size_t k = 0; k < words; k++)
                ex->feeders[(size_t)to * words + k] |= ex->feeders[(size_t)i * words + k];
            if (--missing[to] == 0) ready[n_ready++] = to;
        }
    }
}

/* Where nothing is forwarded the in-edges say it. */
static int find_feeders(hpc_exchange *ex, const char *op) {
    size_t rows = (size_t)ex->plan->n_rows;
    for (size_t i = 0; i < rows; i++) ex->forwards |= ex->plan->rows[i].action == HPC_FORWARD;
    if (!ex->forwards) return HPC_OK;
    ex->feeder_words = ((size_t)ex->context->group.size + 63) / 64;
    ex->feeders = calloc(rows * ex->feeder_words, sizeof *ex->feeders);
    int *missing = calloc(rows, sizeof *missing), *ready = malloc(rows * sizeof *ready), status = HPC_OK;
    if (ex->feeders == NULL || missing == NULL || ready == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for the stages of %zu rows", op, rows);
    else
        spread_feeders(ex, missing, ready);
    free(missing);
    free(ready);
    return status;
}

int hpc_row_is_fed_by(const hpc_exchange *ex, int row, int rank) {
    const hpc_row *r = &ex->plan->rows[row];
    if (ex->feeders == NULL) return has_edge(r->in, r->n_in, rank);
    return (int)(ex->feeders[(size_t)row * ex->feeder_words + (size_t)rank / 64] >> rank % 64 & 1);
}

/* A rank takes part in a share if its pushes come there, by whatever stages, or if it gets parameters from there. When
 * all shares of a key have answered it, its gradient has been read, what was made of it has gone all the way, and its
 * parameters are written. */
int hpc_share_involves(const hpc_exchange *ex, const hpc_share *share, int rank) {
    const hpc_row *before = NULL;
    if (ex->n_phases > 0 && ex->consistency == HPC_BSP) return 1; /* all ranks wait for all */
    for (int i = 0; i < share->n_rows; i++) {
        const hpc_row *row = &ex->plan->rows[share->rows[i]];
        if (before != NULL && before->in == row->in && before->out == row->out) continue; /* as in every hub */
        if (hpc_row_is_fed_by(ex, share->rows[i], rank) || has_edge(row->out, row->n_out, rank)) return 1;
        before = row;
    }
    return 0;
}

static int find_keys(hpc_exchange *ex, const char *op) {
    const hpc_plan *plan = ex->plan;
    int rank = ex->context->group.rank;
    ex->keys = calloc((size_t)plan->n_keys, sizeof *ex->keys);
    ex->pushers = calloc((size_t)plan->n_keys * (size_t)ex->context->group.size, 1);
    if (ex->keys == NULL || ex->pushers == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d keys", op, plan->n_keys);
    for (int s = 0; s < ex->n_shares; s++) ex->keys[ex->shares[s].key].n_shares++;
    for (int k = 0; k < plan->n_keys; k++) {
        ex->keys[k].codec = HPC_F32;
        ex->keys[k].shares = malloc((size_t)ex->keys[k].n_shares * sizeof(int) + 1);
        if (ex->keys[k].shares == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a key", op);
        ex->keys[k].n_shares = 0;
    }
    /* From the owner after this rank on, round to this rank itself: over wires no owner is everybody's first. */
    for (int s = 0; s < 2 * ex->n_shares; s++) {
        const hpc_share *share = &ex->shares[s % ex->n_shares];
        hpc_pushed *key = &ex->keys[share->key];
        if ((share->owner > rank) != (s < ex->n_shares)) continue;
        if (hpc_share_involves(ex, share, rank)) key->shares[key->n_shares++] = s % ex->n_shares;
    }
    ex->depth = plan->rows[0].depth; /* a plan has one, and a key one codec */
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        for (int e = 0; e < row->n_in; e++) {
            if (row->in[e].row >= 0) continue;
            ex->keys[row->key].codec = row->codec_in;
            ex->pushers[(size_t)row->key * (size_t)ex->context->group.size + (size_t)row->in[e].rank] = 1;
        }
    }
    for (int k = 0; k < plan->n_keys; k++) {
        ex->keys[k].params = ex->params_bytes;
        ex->keys[k].gradient = ex->gradient_bytes;
        ex->params_bytes += aligned((size_t)plan->keys[k].count * sizeof(float), LINE);
        ex->gradient_bytes += aligned((size_t)plan->keys[k].count * hpc_codec_bytes(ex->keys[k].codec), LINE);
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
            if (in[e].row < 0) ex->places[in[e].rank].worker = 1;
        for (int e = 0; e < row->n_out; e++)
            if (out[e].row < 0) ex->places[out[e].rank].worker = 1;
    }
    ex->lowest = 0;
    while (!ex->places[ex->lowest].worker) ex->lowest++;
}

static int place_masters(hpc_exchange *ex, const char *op) {
    const hpc_plan *plan = ex->plan;
    size_t *used = calloc((size_t)ex->context->group.size, sizeof *used);
    ex->master_of = malloc((size_t)plan->n_rows * sizeof *ex->master_of);
    if (used == NULL || ex->master_of == NULL) {
        free(used);
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d rows", op, plan->n_rows);
    }
    for (int core = 0; core < ex->n_lanes; core++) { /* those of a core lie together, on pages of their own */
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            if (row->core != core) continue;
            ex->master_of[i] = HPC_NOWHERE;
            if (row->action == HPC_FORWARD || is_master_params(ex, row)) continue;
            ex->master_of[i] = used[row->owner];
            used[row->owner] += aligned((size_t)row->count * sizeof(float), LINE);
        }
        for (int r = 0; r < ex->context->group.size; r++) used[r] = aligned(used[r], PAGE);
    }
    for (int r = 0; r < ex->context->group.size; r++)
        if (used[r] > 0) ex->places[r].masters = take(&ex->places[r], used[r]);
    free(used);
    return HPC_OK;
}

int hpc_layout(hpc_exchange *ex, const char *op) {
    int size = ex->context->group.size, rank = ex->context->group.rank;
    size_t counts = (size_t)ex->plan->n_keys * sizeof(uint64_t);
    ex->places = calloc((size_t)size, sizeof *ex->places);
    ex->slot_base = calloc((size_t)size * (size_t)size, sizeof *ex->slot_base);
    if (ex->places == NULL || ex->slot_base == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size);
    find_cores(ex);
    int status = find_feeders(ex, op);
    if (status == HPC_OK) status = find_shares(ex, op);
    if (status == HPC_OK && hpc_signals(ex) > HPC_MOST_SIGNALS)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: %d keys on %d cores need %d signals; at most %d are possible", op,
                          ex->plan->n_keys, ex->n_cores, hpc_signals(ex), HPC_MOST_SIGNALS);
    if (status != HPC_OK) return status;
    find_workers(ex);
    status = find_keys(ex, op);
    if (status != HPC_OK) return status;
    for (int r = 0; r < size; r++) {
        hpc_place *p = &ex->places[r];
        p->params = p->gradients = p->pushed = p->masters = p->args = HPC_NOWHERE;
        p->numbers = p->verdicts = p->told = HPC_NOWHERE;
        if (p->worker && !ex->rotates && (!ex->shared_params || r == ex->lowest)) p->params = take(p, ex->params_bytes);
        if (p->worker) p->gradients = take(p, ex->gradient_bytes * (size_t)ex->depth);
        if (ex->rotates) p->params = p->gradients;
        if (p->worker) p->pushed = take(p, counts);
        p->closed = take(p, counts * (size_t)size);
        if (hpc_has_quorum(ex)) {
            p->numbers = take(p, (size_t)p->shares * (size_t)size * sizeof(uint64_t));
            p->verdicts = take(p, (size_t)ex->n_shares * sizeof(hpc_verdict));
        }
        if (p->cores > 0) p->args = take(p, (size_t)p->cores * (size_t)size * HPC_RULE_ARGS * sizeof(double));
        if (hpc_leaves_out(ex)) p->told = take(p, (size_t)ex->n_shares * sizeof(hpc_told));
    }
    ex->holder = !ex->places[rank].worker ? -1 : ex->shared_params ? ex->lowest : rank;
    return place_masters(ex, op);
}

/* Where models rotate a key begins in the parameters where it does in a slot: both are float32. */
size_t hpc_params_at(const hpc_exchange *ex, int rank, int key, uint64_t pushes) {
    size_t slot = ex->rotates ? (size_t)(pushes % (uint64_t)ex->depth) : 0;
    return ex->places[rank].params + ex->keys[key].params + slot * ex->gradient_bytes;
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
                if (edge->row < 0 && hpc_reads_in_place(ex, row->owner, edge->rank)) continue;
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
    size_t *bytes = &ex->slot_base[(size_t)r->owner * size + (size_t)r->in[edge].rank];
    if (end > *bytes) *bytes = end;
}

int hpc_layout_slots(hpc_exchange *ex) {
    int size = ex->context->group.size, me = ex->context->group.rank;
    hpc_place *place = &ex->places[me];
    int status = hpc_layout_walk(ex, me, -1, count_slots, ex);
    if (status != HPC_OK) return status;
    for (int s = 0; s < size; s++) { /* from sizes to places */
        size_t *base = &ex->slot_base[(size_t)me * (size_t)size + (size_t)s];
        *base = *base > 0 ? take(place, *base) : HPC_NOWHERE;
    }
    for (int s = 0; s < ex->n_shares; s++) {
        const hpc_share *share = &ex->shares[s];
        size_t nbytes = 0;
        if (share->outlet == NULL || hpc_is_mapped(ex, share->owner)) continue;
        for (int i = 0; i < share->n_rows; i++) nbytes += hpc_row_bytes(&ex->plan->rows[share->rows[i]]);
        share->outlet->staged = take(place, nbytes);
    }
    return HPC_OK;
}

void hpc_layout_free(hpc_exchange *ex) {
    for (int s = 0; s < ex->n_shares; s++) {
        free(ex->shares[s].rows);
        free(ex->shares[s].parts);
        free(ex->shares[s].applied);
        free(ex->shares[s].pulled);
        free(ex->shares[s].rows_done);
        hpc_quorum_free(&ex->shares[s]);
        free(ex->shares[s].clock);
        free(ex->shares[s].used);
        free(ex->shares[s].consumed);
        free(ex->shares[s].siblings);
        hpc_graph_quorum_free(&ex->shares[s]);
    }
    for (int k = 0; ex->keys != NULL && k < ex->plan->n_keys; k++) free(ex->keys[k].shares);
    free(ex->keys);
    free(ex->pushers);
    free(ex->shares);
    free(ex->share_of);
    free(ex->feeders);
    free(ex->places);
    free(ex->slot_base);
    free(ex->master_of);
}
