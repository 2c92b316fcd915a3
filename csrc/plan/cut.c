/* Cuts keys into chunks, and deals chunks to cores. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "base/status.h"

static const char op_plan[] = "plan";

/* ---- partition ---- */

/* An entry of a heap: a bin of a group; or a group, represented by its emptiest bin. */
struct bin {
    uint64_t load;  /* of the bin, or of the group's emptiest bin */
    uint64_t total; /* of the group; 0 for a bin */
    int index;
};

static int before(const struct bin *a, const struct bin *b) {
    if (a->load != b->load) return a->load < b->load;
    if (a->total != b->total) return a->total < b->total;
    return a->index < b->index;
}

/* Restores the order of the heap after its first bin has grown. */
static void sift(struct bin *heap, int n) {
    for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) child++;
        if (before(&heap[i], &heap[child])) return;
        struct bin moved = heap[i];
        heap[i] = heap[child];
        heap[child] = moved;
    }
}

struct item {
    uint64_t size, order; /* size: the load that the item adds to a bin; order: the size by which items are sorted */
    int index;
};

static int larger_first(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    if (x->order != y->order) return x->order > y->order ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Sorts items and deals them to bins as hpc_partition does. Writes the load of each bin into loads, which may be
 * NULL. */
static int partition(struct item *items, int n, int bins, int per_group, int *bin_of, uint64_t *loads, const char *op) {
    int n_groups = (bins - 1) / per_group + 1;
    struct bin *heaps = malloc(((size_t)bins + (size_t)n_groups) * sizeof *heaps);
    if (heaps == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d bins", op, bins);
    struct bin *groups = heaps + bins;
    for (int b = 0; b < bins; b++) heaps[b] = (struct bin){0, 0, b};
    for (int g = 0; g < n_groups; g++) groups[g] = (struct bin){0, 0, g};
    qsort(items, (size_t)n, sizeof *items, larger_first);
    for (int i = 0; i < n; i++) {
        int first = groups->index * per_group;
        struct bin *heap = heaps + first;
        bin_of[items[i].index] = heap->index;
        heap->load += items[i].size;
        groups->total += items[i].size;
        sift(heap, bins - first < per_group ? bins - first : per_group);
        groups->load = heap->load;
        sift(groups, n_groups);
    }
    for (int b = 0; b < bins && loads != NULL; b++) loads[heaps[b].index] = heaps[b].load;
    free(heaps);
    return HPC_OK;
}

int hpc_partition(const uint64_t *sizes, int n, int bins, int per_group, int *bin_of) {
    static const char op[] = "partition";
    if (n < 0) return hpc_fail(HPC_ERR_INVALID, op, "partition: n is %d; must be 0 or more", n);
    if (bins < 1) return hpc_fail(HPC_ERR_INVALID, op, "partition: bins is %d; must be 1 or more", bins);
    if (per_group < 1) return hpc_fail(HPC_ERR_INVALID, op, "partition: per_group is %d; must be 1 or more", per_group);
    if (n == 0) return HPC_OK;
    if (sizes == NULL || bin_of == NULL)
        return hpc_fail(HPC_ERR_INVALID, op, "partition: %s is NULL with n %d", sizes == NULL ? "sizes" : "bin_of", n);
    uint64_t total = 0;
    for (int i = 0; i < n; i++) {
        if (sizes[i] > UINT64_MAX - total)
            return hpc_fail(HPC_ERR_INVALID, op, "partition: the sum of the sizes passes 2^64 at sizes[%d]", i);
        total += sizes[i];
    }
    struct item *items = malloc((size_t)n * sizeof *items);
    if (items == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "partition: no memory for %d sizes", n);
    for (int i = 0; i < n; i++) items[i] = (struct item){sizes[i], sizes[i], i};
    int status = partition(items, n, bins, per_group, bin_of, NULL, op);
    free(items);
    return status;
}

/* ---- chunks ---- */

static uint64_t ratio_up(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

/* Returns into how many equal chunks a key is cut. If every core can get a chunk of least bytes, all cores get equally
 * many chunks; otherwise chunks have about least bytes. */
static uint64_t equal_chunks(uint64_t nbytes, const hpc_cutting *how) {
    const uint64_t cores = (uint64_t)how->cores, few = nbytes / how->least;
    if (few >= cores) return cores * ratio_up(ratio_up(nbytes, cores), how->chunk);
    const uint64_t n = ratio_up(nbytes, how->chunk);
    return few > n ? few : n;
}

/* Returns the number of elements of each chunk of the key but its last. No product overflows: a key has
 * HPC_PLAN_ELEMENTS at most. */
static uint64_t chunk_elements(const hpc_key *key, const hpc_cutting *how) {
    uint64_t step = hpc_plan_unit(key), elements = how->chunk / sizeof(float);
    while (step % HPC_PLAN_ALIGN != 0) step *= 2; /* the least common multiple: HPC_PLAN_ALIGN is a power of two */
    if (how->least > 0)
        return ratio_up(ratio_up(key->count, equal_chunks(key->count * sizeof(float), how)), step) * step;
    return elements < step ? step : elements - elements % step;
}

int hpc_plan_chunks(const hpc_key *keys, int n_keys, const hpc_cutting *how, int most, const char *op, int *n) {
    uint64_t chunks = 0;
    for (int k = 0; k < n_keys; k++) {
        chunks += (keys[k].count - 1) / chunk_elements(&keys[k], how) + 1;
        if (chunks > (uint64_t)most)
            return hpc_fail(HPC_ERR_INVALID, op,
                            "plan: chunk is %llu bytes, which makes more than the %d rows that a plan may have; make "
                            "it larger",
                            (unsigned long long)how->chunk, HPC_PLAN_NUMBERS);
    }
    *n = (int)chunks;
    return HPC_OK;
}

void hpc_plan_cut(const hpc_key *keys, int n_keys, const hpc_cutting *how, int copies, hpc_row *rows) {
    for (int k = 0; k < n_keys; k++) {
        const uint64_t elements = chunk_elements(&keys[k], how);
        for (uint64_t offset = 0; offset < keys[k].count; offset += elements) {
            uint64_t left = keys[k].count - offset;
            for (int i = 0; i < copies; i++)
                *rows++ = (hpc_row){.key = k, .offset = offset, .count = left < elements ? left : elements};
        }
    }
}

/* ---- the deal ---- */

enum {
    SMALL = 16 << 10, /* bytes: a larger key is dealt by its size, never with its neighbours */
    FINE = 8 /* a key is small if FINE such keys fit into the mean load of a bin, since it then cannot unbalance bins */
};

/* A chunk to deal. Chunks are sorted by key_order, the size of the full chunks of their key, so that a key's chunks are
 * dealt one after the other. */
struct chunk {
    uint64_t size, key_order;
    int row, is_key; /* is_key: the chunk is its whole key */
};

static int is_small(uint64_t size, uint64_t mean) {
    return size <= SMALL && size <= mean / FINE;
}

static int is_key(const hpc_row *rows, int n, int r) {
    return (r == 0 || rows[r - 1].key != rows[r].key) && (r + 1 == n || rows[r + 1].key != rows[r].key);
}

int hpc_plan_is_small(const hpc_row *chunks, int n, int i, uint64_t mean) {
    return is_key(chunks, n, i) && is_small(chunks[i].count * sizeof(float), mean);
}

static void find_chunks(const hpc_row *rows, int n, struct chunk *chunks) {
    for (int r = 0; r < n; r++) {
        const int follows = r > 0 && rows[r - 1].key == rows[r].key;
        const uint64_t count = rows[r].count, before = follows ? rows[r - 1].count : count;
        const int full = !follows || count >= before - before / 16; /* as the last of equal chunks may be */
        chunks[r] = (struct chunk){.size = count * sizeof(float),
                                   .key_order = (full ? before : count) * sizeof(float),
                                   .row = r,
                                   .is_key = is_key(rows, n, r)};
    }
}

static int emptiest(const uint64_t *loads, int bins) {
    int best = 0;
    for (int b = 1; b < bins; b++)
        if (loads[b] < loads[best]) best = b;
    return best;
}

/* Fills the bins up with small keys. Neighbouring keys, which a trainer pushes close together, go to one bin, because
 * pushes to one owner can share a message. */
static void fill_bins(const struct chunk *chunks, const int *small, int n, uint64_t mean, uint64_t *loads, int bins,
                      int *bin_of) {
    uint64_t run = HPC_PLAN_RUN; /* bytes of neighbours that this bin has got */
    for (int i = 0, bin = 0; i < n; i++) {
        const uint64_t size = chunks[small[i]].size;
        if (run + size > HPC_PLAN_RUN || loads[bin] + size > mean) {
            bin = emptiest(loads, bins);
            run = 0;
        }
        bin_of[small[i]] = bin;
        loads[bin] += size;
        run += size;
    }
}

/* Deals n chunks, in the order of keys, to bins. The fullest bin gets at most the mean load plus one chunk. */
static int deal(const struct chunk *chunks, int n, int bins, int per_group, int *bin_of) {
    struct item *items = malloc((size_t)n * sizeof *items + 1);
    int *small = malloc((size_t)n * sizeof *small + 1), n_items = 0, n_small = 0;
    uint64_t *loads = malloc((size_t)bins * sizeof *loads), total = 0;
    int status = HPC_OK;
    if (items == NULL || small == NULL || loads == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
        goto err;
    }
    for (int i = 0; i < n; i++) total += chunks[i].size;
    const uint64_t mean = total / (uint64_t)bins;
    for (int i = 0; i < n; i++) {
        if (chunks[i].is_key && is_small(chunks[i].size, mean))
            small[n_small++] = i;
        else
            items[n_items++] = (struct item){chunks[i].size, chunks[i].key_order, i};
    }
    status = partition(items, n_items, bins, per_group, bin_of, loads, op_plan);
    if (status == HPC_OK) fill_bins(chunks, small, n_small, mean, loads, bins, bin_of);
err:
    free(loads);
    free(small);
    free(items);
    return status;
}

/* Deals chunks to the interfaces of all servers, then each interface's chunks to its cores. */
static int deal_by_interface(const struct chunk *chunks, int n, int servers, int of_each, int interfaces, int *bin_of) {
    const int groups = servers * interfaces;
    struct chunk *own = malloc((size_t)n * sizeof *own);
    int *core = malloc((size_t)n * sizeof *core);
    int *end = calloc((size_t)groups + 1, sizeof *end);
    int status = HPC_OK;
    if (own == NULL || core == NULL || end == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
        goto err;
    }
    status = deal(chunks, n, groups, interfaces, bin_of);
    if (status != HPC_OK) goto err;
    for (int i = 0; i < n; i++) end[bin_of[i] + 1]++;
    for (int g = 0; g < groups; g++) end[g + 1] += end[g];
    for (int i = 0; i < n; i++) own[end[bin_of[i]]++] = chunks[i]; /* end[g] was the start of g, and is its end now */

    for (int g = 0, start = 0; g < groups && status == HPC_OK; start = end[g++]) {
        const int m = end[g] - start, interface = g % interfaces, cores = (of_each - 1 - interface) / interfaces + 1;
        status = deal(own + start, m, cores, 1, core);
        for (int i = 0; i < m && status == HPC_OK; i++)
            bin_of[own[start + i].row] = g / interfaces * of_each + core[i] * interfaces + interface;
    }
err:
    free(end);
    free(core);
    free(own);
    return status;
}

/* Permutes the bins of the equal chunks of each key, so that each bin's chunks are adjacent. The bins keep the order in
 * which they first got a chunk of the key. Every bin's load stays the same, and its core reads memory in long runs. */
static int gather_chunks(const hpc_row *rows, int n, int bins, int *bin_of) {
    int *was = malloc((size_t)n * sizeof *was), *filled = calloc((size_t)bins, sizeof *filled);
    if (was == NULL || filled == NULL) {
        free(filled);
        free(was);
        return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
    }
    memcpy(was, bin_of, (size_t)n * sizeof *was);
    for (int from = 0, to; from < n; from = to) {
        for (to = from; to < n && rows[to].key == rows[from].key && rows[to].count == rows[from].count; to++)
            filled[was[to]]++;
        int at = from;
        for (int r = from; r < to; r++)
            for (; filled[was[r]] > 0; filled[was[r]]--) bin_of[at++] = was[r];
    }
    free(filled);
    free(was);
    return HPC_OK;
}

int hpc_plan_deal(const hpc_row *rows, int n, int servers, int cores, int interfaces, int *bin_of) {
    struct chunk *chunks = malloc((size_t)n * sizeof *chunks);
    if (chunks == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
    find_chunks(rows, n, chunks);
    const int bins = servers * cores;
    int status = interfaces > 1 ? deal_by_interface(chunks, n, servers, cores, interfaces, bin_of)
                                : deal(chunks, n, bins, cores, bin_of);
    free(chunks);
    return status == HPC_OK ? gather_chunks(rows, n, bins, bin_of) : status;
}
