/* The rules that every plan must fulfil, whether a planner or a user has made it. The engine relies on these rules and
 * does not check them again. */
#include "codec/codec.h"
#include "plan/plan.h"
#include "base/status.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char op_plan[] = "plan";
static const char *name_of(int codec) {
    return hpc_codec_of(codec) == NULL ? "none" : hpc_codec_of(codec)->name;
}

static int wrong(int row, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int wrong(int row, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: row %d %s", row, text);
}

/* ---- keys ---- */

static int by_name(const void *a, const void *b) {
    const hpc_key *x = *(const hpc_key *const *)a, *y = *(const hpc_key *const *)b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : x < y ? -1 : x > y;
}

static int check_names(const hpc_key *keys, int n_keys) {
    const hpc_key **sorted = malloc((size_t)n_keys * sizeof *sorted);
    if (sorted == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d keys", n_keys);
    for (int k = 0; k < n_keys; k++) sorted[k] = &keys[k];
    qsort(sorted, (size_t)n_keys, sizeof *sorted, by_name);
    int status = HPC_OK;
    for (int k = 1; k < n_keys && status == HPC_OK; k++)
        if (strcmp(sorted[k - 1]->name, sorted[k]->name) == 0)
            status = hpc_fail(HPC_ERR_INVALID, op_plan, "plan: keys %d and %d are both named '%.100s'; names differ",
                              (int)(sorted[k - 1] - keys), (int)(sorted[k] - keys), sorted[k]->name);
    free(sorted);
    return status;
}

int hpc_plan_check_keys(const hpc_key *keys, int n_keys) {
    if (n_keys < 1 || n_keys > HPC_PLAN_NUMBERS)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: n_keys is %d; 1 to %d are possible", n_keys, HPC_PLAN_NUMBERS);
    if (keys == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: keys is NULL with n_keys %d", n_keys);
    uint64_t total = 0;
    for (int k = 0; k < n_keys; k++) {
        if (keys[k].name == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: key %d has no name", k);
        if (keys[k].count == 0)
            return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: key '%.100s' has no elements; leave it out", keys[k].name);
        if (keys[k].count > HPC_PLAN_ELEMENTS - total)
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "plan: key '%.100s' has %llu elements, after %llu of the keys before it; all keys together "
                            "may have %llu",
                            keys[k].name, (unsigned long long)keys[k].count, (unsigned long long)total,
                            (unsigned long long)HPC_PLAN_ELEMENTS);
        total += keys[k].count;
    }
    return check_names(keys, n_keys);
}

int hpc_plan_check_affinity(int affinity) {
    if (affinity == HPC_KEY_BY_CORE || affinity == HPC_WORKER_BY_INTERFACE) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op_plan,
                    "plan: affinity is %d; must be %d (key by core) or %d (worker by interface)", affinity,
                    HPC_KEY_BY_CORE, HPC_WORKER_BY_INTERFACE);
}

int hpc_plan_check_cut(int cores, uint64_t chunk, int depth) {
    if (cores < 1 || cores > HPC_PLAN_CORES)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: cores is %d; 1 to %d of each server are possible", cores,
                        HPC_PLAN_CORES);
    if (chunk == 0 || chunk % (HPC_PLAN_ALIGN * sizeof(float)) != 0)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: chunk is %llu bytes; must be a multiple of 64, and not 0",
                        (unsigned long long)chunk);
    if (depth < 1 || depth > HPC_PLAN_DEPTH)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: depth is %d; 1 to %d are possible", depth, HPC_PLAN_DEPTH);
    return HPC_OK;
}

int hpc_plan_check_least(uint64_t least, uint64_t chunk) {
    if (least <= chunk) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: least is %llu bytes; 0 to chunk, %llu, are possible",
                    (unsigned long long)least, (unsigned long long)chunk);
}

/* The names of this build's codecs, for errors: codecs of updates if pieces is 1; otherwise codecs of parameters, which
 * must be arrays. */
typedef struct known {
    char text[HPC_CODEC_TEXT];
} known;

static known known_codecs(int pieces) {
    known some;
    hpc_codec_numbers(some.text, sizeof some.text, pieces);
    return some;
}

static int is_codec(int number, int pieces) {
    const hpc_codec *codec = hpc_codec_of(number);
    return codec != NULL && (pieces || codec->addressable);
}

static int check_codecs(const hpc_key *keys, int n_keys, const char *name, int all, const char *names,
                        const int *by_key, int n, int pieces) {
    if (!is_codec(all, pieces))
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %s is %d; must be %s", name, all, known_codecs(pieces).text);
    if (n != (by_key == NULL ? 0 : n_keys))
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: n_%s is %d and %s is %s; must be %d, one for each key, or 0 where it is NULL", names, n,
                        names, by_key == NULL ? "NULL" : "given", n_keys);
    for (int k = 0; k < n; k++)
        if (!is_codec(by_key[k], pieces))
            return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %s[%d], of key '%.100s', is %d; must be %s", names, k,
                            keys[k].name, by_key[k], known_codecs(pieces).text);
    return HPC_OK;
}

int hpc_plan_check_codecs(const hpc_key *keys, int n_keys, const char *name, int all, const char *names,
                          const int *by_key, int n) {
    return check_codecs(keys, n_keys, name, all, names, by_key, n, 1);
}

int hpc_plan_check_both(const hpc_key *keys, int n_keys, int wire, const int *wires, int n_wires, int codec_out,
                        const int *codecs_out, int n_codecs_out) {
    int status = hpc_plan_check_codecs(keys, n_keys, "wire", wire, "wires", wires, n_wires);
    return status == HPC_OK
               ? check_codecs(keys, n_keys, "codec_out", codec_out, "codecs_out", codecs_out, n_codecs_out, 0)
               : status;
}

/* ---- rows by themselves ---- */

static int check_place(const hpc_plan *plan, int r) {
    const hpc_row *row = &plan->rows[r], *last = r > 0 ? row - 1 : NULL;
    if (row->key < 0 || row->key >= plan->n_keys)
        return wrong(r, "is of key %d; there are %d keys", row->key, plan->n_keys);
    int expected = last != NULL ? last->key : 0;
    if (row->key < expected || (last != NULL && row->key == last->key && row->offset < last->offset))
        return wrong(r, "(key %d, offset %llu) comes after key %d, offset %llu; rows are in order of key, then offset",
                     row->key, (unsigned long long)row->offset, last != NULL ? last->key : 0,
                     (unsigned long long)(last != NULL ? last->offset : 0));
    if (row->key > expected + (last != NULL))
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: key '%.100s' has no row",
                        plan->keys[expected + (last != NULL)].name);
    const hpc_key *key = &plan->keys[row->key];
    if (row->count == 0) return wrong(r, "has no elements");
    if (row->offset >= key->count || row->count > key->count - row->offset)
        return wrong(r, "has %llu elements at offset %llu; key '%.100s' has %llu", (unsigned long long)row->count,
                     (unsigned long long)row->offset, key->name, (unsigned long long)key->count);
    if (row->offset % HPC_PLAN_ALIGN != 0)
        return wrong(r, "is at offset %llu; must be a multiple of %d elements", (unsigned long long)row->offset,
                     HPC_PLAN_ALIGN);
    const uint64_t unit = hpc_plan_unit(key);
    if (row->offset % unit != 0 || (row->count % unit != 0 && row->count < key->count - row->offset))
        return wrong(r, "has %llu elements at offset %llu; key '%.100s' may be cut only at multiples of its unit, %llu",
                     (unsigned long long)row->count, (unsigned long long)row->offset, key->name,
                     (unsigned long long)unit);
    return HPC_OK;
}

static int check_fields(const hpc_plan *plan, int size, int r) {
    const hpc_row *row = &plan->rows[r];
    if (row->owner < 0 || row->owner >= size) return wrong(r, "has owner %d; ranks are 0 to %d", row->owner, size - 1);
    if (row->core < 0 || row->core >= HPC_PLAN_CORES)
        return wrong(r, "has core %d; 0 to %d are possible", row->core, HPC_PLAN_CORES - 1);
    if (row->action < HPC_APPLY || row->action > HPC_RELAY)
        return wrong(r, "has action %d; must be %d (apply), %d (forward), %d (emit) or %d (relay)", row->action,
                     HPC_APPLY, HPC_FORWARD, HPC_EMIT, HPC_RELAY);
    if (row->depth < 1 || row->depth > HPC_PLAN_DEPTH)
        return wrong(r, "has depth %d; 1 to %d are possible", row->depth, HPC_PLAN_DEPTH);
    if (row->depth != plan->rows[0].depth)
        return wrong(r, "has depth %d, row 0 has %d; a plan has one depth", row->depth, plan->rows[0].depth);
    const int relays = row->action == HPC_RELAY, forwards = row->action == HPC_FORWARD;
    if (!is_codec(row->codec_in, !relays))
        return wrong(r, "has codec_in %d; must be %s", row->codec_in, known_codecs(!relays).text);
    if (!is_codec(row->codec_out, forwards))
        return wrong(r, "has codec_out %d; must be %s", row->codec_out, known_codecs(forwards).text);
    if (row->n_in < 1 || row->in == NULL) return wrong(r, "has no in-edge (n_in is %d)", row->n_in);
    if (row->n_out != 0 || row->action != HPC_APPLY || row->in[0].row < 0) /* otherwise it keeps a master */
        if (row->n_out < 1 || row->out == NULL) return wrong(r, "has no out-edge (n_out is %d)", row->n_out);
    if (row->quorum != 1 && row->quorum != row->n_in)
        return wrong(r, "has quorum %d; must be 1 or all %d of its in-edges", row->quorum, row->n_in);
    if (row->action != HPC_RELAY) return HPC_OK;
    if (row->n_in != 1 || row->in[0].row < 0)
        return wrong(r, "relays, so it has one in-edge, from a row; it has %d%s", row->n_in,
                     row->in[0].row < 0 ? ", the first from a push" : "");
    if (row->codec_in != row->codec_out)
        return wrong(r, "relays %s as %s; a relay cannot change the codec", name_of(row->codec_in),
                     name_of(row->codec_out));
    return HPC_OK;
}

/* ---- edges ---- */

/* The memory of the checks. A rank's or row's mark says at which row an edge last named it: 2r for row r's in-edges, 2r
 * + 1 for row r's out-edges. So marks are never cleared between rows. */
struct check {
    const hpc_plan *plan;
    int size;
    uint64_t *covered; /* by rank: how many elements of the current key are sent to the rank */
    int *receivers;    /* ranks that are sent the current key */
    int *rank_mark;
    int *row_mark;
    int *missing; /* by row: how many in-edges come from rows that check_acyclic has not taken yet */
    int *waiting; /* rows that check_acyclic has taken, but whose out-edges it has not followed yet */
};

static const hpc_edge *find_row(const hpc_edge *edges, int n, int row) {
    for (int e = 0; e < n; e++)
        if (edges[e].row == row) return &edges[e];
    return NULL;
}

/* Checks the other end of an edge by which row `from` sends to row `to`. named: the row whose list of edges has this
 * edge. */
static int check_ends(const struct check *c, int from, int to, int rank, int named) {
    const hpc_row *a = &c->plan->rows[from], *b = &c->plan->rows[to];
    int other = named == from ? to : from;
    if (rank != c->plan->rows[other].owner)
        return wrong(named, "has an edge to row %d of rank %d, but rank %d owns that row", other, rank,
                     c->plan->rows[other].owner);
    if ((a->action != HPC_FORWARD) != (b->action == HPC_RELAY))
        return wrong(to,
                     "of action %d has an in-edge from row %d of action %d; a relay (%d) takes parameters, all others "
                     "take forwarded folds (%d)",
                     b->action, from, a->action, HPC_RELAY, HPC_FORWARD);
    if (find_row(named == from ? b->in : a->out, named == from ? b->n_in : a->n_out, named) == NULL)
        return wrong(named, "has an edge %s row %d, which lacks the other end of that edge",
                     named == from ? "to" : "from", other);
    if (a->key != b->key || a->offset != b->offset || a->count != b->count)
        return wrong(from, "sends to row %d, which is of other elements; both must have the same key, offset and count",
                     to);
    if (a->core != b->core)
        return wrong(from, "of core %d sends to row %d of core %d; a row sends to the core of the same number", a->core,
                     to, b->core);
    const int sum = a->codec_out == HPC_F32 && !hpc_codec_of(b->codec_in)->addressable; /* of pushed pieces */
    if (b->codec_in != a->codec_out && !sum && hpc_codec_of(a->codec_out)->addressable) /* pieces name their own form */
        return wrong(to, "has codec_in %s, but row %d sends it %s", name_of(b->codec_in), from, name_of(a->codec_out));
    return HPC_OK;
}

/* Checks the in-edges of row r. *wire: the codec of all pushes of the row's key; -1 before the first push edge of the
 * key. */
static int check_in(const struct check *c, int r, int *wire) {
    const hpc_row *row = &c->plan->rows[r];
    for (int e = 0; e < row->n_in; e++) {
        const hpc_edge *edge = &row->in[e];
        if (edge->rank < 0 || edge->rank >= c->size)
            return wrong(r, "has in-edge %d from rank %d; ranks are 0 to %d", e, edge->rank, c->size - 1);
        if (!isfinite(edge->weight)) return wrong(r, "has in-edge %d with weight %g; must be finite", e, edge->weight);
        if (hpc_edge_via(edge) >= c->size)
            return wrong(r, "has in-edge %d, which comes by rank %d; ranks are 0 to %d", e, hpc_edge_via(edge),
                         c->size - 1);
        if (edge->row < 0) {
            if (c->rank_mark[edge->rank] == r) return wrong(r, "has two in-edges from rank %d", edge->rank);
            c->rank_mark[edge->rank] = r;
            if (*wire == -1) *wire = row->codec_in;
            if (*wire != row->codec_in)
                return wrong(r, "takes pushes as %s, rows before it of the same key as %s; a key has one wire format",
                             name_of(row->codec_in), name_of(*wire));
            continue;
        }
        if (edge->row >= c->plan->n_rows)
            return wrong(r, "has in-edge %d from row %d; there are rows 0 to %d, and -1 for a push", e, edge->row,
                         c->plan->n_rows - 1);
        if (c->row_mark[edge->row] == 2 * r) return wrong(r, "has two in-edges from row %d", edge->row);
        c->row_mark[edge->row] = 2 * r;
        int status = check_ends(c, edge->row, r, edge->rank, r);
        if (status != HPC_OK) return status;
        for (int f = 0; f < e; f++)
            if (row->in[f].row >= 0 && row->in[f].rank == edge->rank)
                return wrong(r, "has in-edges from two rows of rank %d, %d and %d; let one forward to the other",
                             edge->rank, row->in[f].row, edge->row);
    }
    return HPC_OK;
}

/* Checks the out-edges of row r. *sent: the codec in which parameters of the row's key are sent; -1 before the first
 * such edge of the key. */
static int check_out(const struct check *c, int r, int *sent) {
    const hpc_row *row = &c->plan->rows[r];
    if (row->action != HPC_FORWARD && *sent == -1) *sent = row->codec_out;
    if (row->action != HPC_FORWARD && *sent != row->codec_out)
        return wrong(r,
                     "sends parameters as %s, rows before it of the same key as %s; a key's parameters have one codec",
                     name_of(row->codec_out), name_of(*sent));
    for (int e = 0; e < row->n_out; e++) {
        const hpc_edge *edge = &row->out[e];
        if (edge->rank < 0 || edge->rank >= c->size)
            return wrong(r, "has out-edge %d to rank %d; ranks are 0 to %d", e, edge->rank, c->size - 1);
        if (row->action != HPC_FORWARD && edge->row == -1) continue;
        if (edge->row < 0 || edge->row >= c->plan->n_rows)
            return wrong(r, "has out-edge %d to row %d; %s, 0 to %d", e, edge->row,
                         row->action == HPC_FORWARD ? "a forwarded fold goes to a row"
                                                    : "parameters go to a rank (row -1) or to a relay",
                         c->plan->n_rows - 1);
        if (c->row_mark[edge->row] == 2 * r + 1) return wrong(r, "has two out-edges to row %d", edge->row);
        c->row_mark[edge->row] = 2 * r + 1;
        int status = check_ends(c, r, edge->row, edge->rank, r);
        if (status != HPC_OK) return status;
    }
    return HPC_OK;
}

/* Takes each row after all rows that send to it. Returns HPC_ERR_INVALID if some rows cannot be taken, since they form
 * a cycle. */
static int check_acyclic(const struct check *c) {
    int n = c->plan->n_rows, n_waiting = 0, taken = 0;
    for (int r = 0; r < n; r++) {
        c->missing[r] = 0;
        for (int e = 0; e < c->plan->rows[r].n_in; e++) c->missing[r] += c->plan->rows[r].in[e].row >= 0;
        if (c->missing[r] == 0) c->waiting[n_waiting++] = r;
    }
    while (n_waiting > 0) {
        const hpc_row *row = &c->plan->rows[c->waiting[--n_waiting]];
        taken++;
        for (int e = 0; e < row->n_out; e++)
            if (row->out[e].row >= 0 && --c->missing[row->out[e].row] == 0) c->waiting[n_waiting++] = row->out[e].row;
    }
    for (int r = 0; taken < n && r < n; r++)
        if (c->missing[r] > 0) return wrong(r, "waits for itself: rows send in a circle");
    return HPC_OK;
}

/* ---- cover ---- */

/* Checks that every rank that is sent parameters of a key is sent each element of it exactly once. */
static int check_cover(const struct check *c) {
    const hpc_plan *plan = c->plan;
    int n = 0;
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        const hpc_key *key = &plan->keys[row->key];
        for (int e = 0; row->action != HPC_FORWARD && e < row->n_out; e++) {
            int rank = row->out[e].rank;
            if (row->out[e].row >= 0) continue;
            if (c->rank_mark[rank] == r) return wrong(r, "has two out-edges to rank %d", rank);
            c->rank_mark[rank] = r;
            uint64_t covered = c->covered[rank];
            if (covered == 0) c->receivers[n++] = rank;
            if (row->offset != covered)
                return wrong(r,
                             "sends rank %d elements from %llu on of key '%.100s', but the rows before it end at "
                             "element %llu: %s",
                             rank, (unsigned long long)row->offset, key->name, (unsigned long long)covered,
                             row->offset < covered ? "they overlap" : "there is a hole");
            c->covered[rank] = row->offset + row->count;
        }
        if (r + 1 < plan->n_rows && row[1].key == row->key) continue;
        while (n > 0) {
            int rank = c->receivers[--n];
            if (c->covered[rank] != key->count)
                return hpc_fail(HPC_ERR_INVALID, op_plan,
                                "plan: rank %d is sent %llu of the %llu elements of key '%.100s'; rows must send all "
                                "of them",
                                rank, (unsigned long long)c->covered[rank], (unsigned long long)key->count, key->name);
            c->covered[rank] = 0;
        }
    }
    return HPC_OK;
}

/* ---- the whole ---- */

static void forget(const struct check *c) {
    for (int i = 0; i < c->size; i++) c->rank_mark[i] = -1;
    for (int r = 0; r < c->plan->n_rows; r++) c->row_mark[r] = -1;
}

static int check_rows(const struct check *c) {
    const hpc_plan *plan = c->plan;
    int status = HPC_OK, wire = -1, sent = -1;
    for (int r = 0; r < plan->n_rows && status == HPC_OK; r++) {
        status = check_place(plan, r);
        if (status == HPC_OK) status = check_fields(plan, c->size, r);
    }
    if (status != HPC_OK) return status;
    int last = plan->rows[plan->n_rows - 1].key;
    if (last != plan->n_keys - 1)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: key '%.100s' has no row", plan->keys[last + 1].name);

    forget(c);
    for (int r = 0; r < plan->n_rows && status == HPC_OK; r++) {
        if (r > 0 && plan->rows[r].key != plan->rows[r - 1].key) wire = sent = -1;
        status = check_in(c, r, &wire);
        if (status == HPC_OK) status = check_out(c, r, &sent);
    }
    if (status == HPC_OK) status = check_acyclic(c);
    forget(c);
    return status == HPC_OK ? check_cover(c) : status;
}

int hpc_plan_check(const hpc_plan *plan, int size) {
    if (plan == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: plan is NULL");
    if (size < 1) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: size is %d; must be 1 or more ranks", size);
    int status = hpc_plan_check_keys(plan->keys, plan->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_affinity(plan->affinity);
    if (status != HPC_OK) return status;
    if (plan->n_rows < 1 || plan->n_rows > HPC_PLAN_NUMBERS)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: n_rows is %d; 1 to %d are possible", plan->n_rows,
                        HPC_PLAN_NUMBERS);
    if (plan->rows == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: rows is NULL with n_rows %d", plan->n_rows);

    size_t ranks = (size_t)size, rows = (size_t)plan->n_rows;
    struct check c = {
        .plan = plan,
        .size = size,
        .covered = calloc(ranks, sizeof *c.covered),
        .receivers = malloc(ranks * sizeof *c.receivers),
        .rank_mark = malloc(ranks * sizeof *c.rank_mark),
        .row_mark = malloc(rows * sizeof *c.row_mark),
        .missing = malloc(rows * sizeof *c.missing),
        .waiting = malloc(rows * sizeof *c.waiting),
    };
    if (c.covered && c.receivers && c.rank_mark && c.row_mark && c.missing && c.waiting)
        status = check_rows(&c);
    else
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory to check %zu rows for %zu ranks", rows, ranks);
    free(c.waiting);
    free(c.missing);
    free(c.row_mark);
    free(c.rank_mark);
    free(c.receivers);
    free(c.covered);
    return status;
}

static int rising(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

int hpc_plan_check_ranks(const int *ranks, int n, const char *name, const char *whose) {
    if (n < 1 || ranks == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %ss is empty (n_%ss is %d); a %s needs at least one", name,
                        name, n, whose);
    for (int i = 0; i < n; i++)
        if (ranks[i] < 0)
            return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %ss[%d] is rank %d; ranks are 0 or more", name, i,
                            ranks[i]);
    int *sorted = malloc((size_t)n * sizeof *sorted);
    if (sorted == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d ranks", n);
    memcpy(sorted, ranks, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, rising);
    int status = HPC_OK;
    for (int i = 1; i < n && status == HPC_OK; i++)
        if (sorted[i] == sorted[i - 1])
            status = hpc_fail(HPC_ERR_INVALID, op_plan, "plan: rank %d is given twice in %ss; give it once", sorted[i],
                              name);
    free(sorted);
    return status;
}
