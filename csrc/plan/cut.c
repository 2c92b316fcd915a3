/* Keys cut into chunks, and chunks dealt to cores. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "base/status.h"

static const char op_plan[] = "plan";

/* ---- partition ---- */

/* A bin of a group, or a group by its emptiest bin. */
struct bin {
    uint64_t load;  /* of the bin, of the group's emptiest one */
    uint64_t total; /* of the group; 0 for a bin */
    int index;
};

static int before(const struct bin *a, const struct bin *b) {
    if (a->load != b->load) return a->load < b->load;
    if (a->total != b->total) return a->total < b->total;
    return a->index < b->index;
}

/* Puts the heap in order again after its first has grown. */
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
    uint64_t size;
    int index;
};

static int larger_first(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
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

    int n_groups = (bins - 1) / per_group + 1;
    struct item *items = malloc((size_t)n * sizeof *items);
    struct bin *heaps = malloc(((size_t)bins + (size_t)n_groups) * sizeof *heaps);
    int status = HPC_OK;
    if (items == NULL || heaps == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op, "partition: no memory for %d sizes and %d bins", n, bins);
        goto err;
    }
    struct bin *groups = heaps + bins;
    for (int b = 0; b < bins; b++) heaps[b] = (struct bin){0, 0, b};
    for (int g = 0; g < n_groups; g++) groups[g] = (struct bin){0, 0, g};
    for (int i = 0; i < n; i++) items[i] = (struct item){sizes[i], i};
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
err:
    free(heaps);
    free(items);
    return status;
}

/* ---- chunks ---- */

/* Elements of every chunk of the key but its last. No product overflows: a key has HPC_PLAN_ELEMENTS at most. */
static uint64_t chunk_elements(const hpc_key *key, uint64_t chunk) {
    uint64_t step = hpc_plan_unit(key), elements = chunk / sizeof(float);
    while (step % HPC_PLAN_ALIGN != 0) step *= 2; /* the least common multiple: HPC_PLAN_ALIGN is a power of two */
    return elements < step ? step : elements - elements % step;
}

int hpc_plan_chunks(const hpc_key *keys, int n_keys, uint64_t chunk, int most, const char *op, int *n) {
    uint64_t chunks = 0;
    for (int k = 0; k < n_keys; k++) {
        chunks += (keys[k].count - 1) / chunk_elements(&keys[k], chunk) + 1;
        if (chunks > (uint64_t)most)
            return hpc_fail(HPC_ERR_INVALID, op,
                            "plan: chunk is %llu bytes, which makes more than the %d rows that a plan may have; make "
                            "it larger",
                            (unsigned long long)chunk, HPC_PLAN_NUMBERS);
    }
    *n = (int)chunks;
    return HPC_OK;
}

void hpc_plan_cut(const hpc_key *keys, int n_keys, uint64_t chunk, int copies, hpc_row *rows) {
    for (int k = 0; k < n_keys; k++) {
        const uint64_t elements = chunk_elements(&keys[k], chunk);
        for (uint64_t offset = 0; offset < keys[k].count; offset += elements) {
            uint64_t left = keys[k].count - offset;
            for (int i = 0; i < copies; i++)
                *rows++ = (hpc_row){.key = k, .offset = offset, .count = left < elements ? left : elements};
        }
    }
}

/* First to the interfaces of all servers; then what each of them has, to its own cores. */
static int deal_by_interface(const uint64_t *sizes, int n, int servers, int of_each, int interfaces, int *bin_of) {
    const int groups = servers * interfaces;
    uint64_t *own = malloc((size_t)n * sizeof *own);
    int *chunk = malloc((size_t)n * sizeof *chunk), *core = malloc((size_t)n * sizeof *core);
    int *end = calloc((size_t)groups + 1, sizeof *end);
    int status = HPC_OK;
    if (own == NULL || chunk == NULL || core == NULL || end == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
        goto err;
    }
    status = hpc_partition(sizes, n, groups, interfaces, bin_of);
    if (status != HPC_OK) goto err;
    for (int i = 0; i < n; i++) end[bin_of[i] + 1]++;
    for (int g = 0; g < groups; g++) end[g + 1] += end[g];
    for (int i = 0; i < n; i++) chunk[end[bin_of[i]]++] = i; /* end[g] was the start of g, and is its end now */

    for (int g = 0, start = 0; g < groups && status == HPC_OK; start = end[g++]) {
        const int m = end[g] - start, interface = g % interfaces, cores = (of_each - 1 - interface) / interfaces + 1;
        for (int i = 0; i < m; i++) own[i] = sizes[chunk[start + i]];
        status = hpc_partition(own, m, cores, 1, core);
        for (int i = 0; i < m && status == HPC_OK; i++)
            bin_of[chunk[start + i]] = g / interfaces * of_each + core[i] * interfaces + interface;
    }
err:
    free(end);
    free(core);
    free(chunk);
    free(own);
    return status;
}

/* Equal chunks of a key change their bins so that those of a bin lie together, in the order in which the key came to
 * the bins: every bin has as much as before, and passes over memory in long runs. */
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
    uint64_t *sizes = malloc((size_t)n * sizeof *sizes);
    if (sizes == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
    for (int r = 0; r < n; r++) sizes[r] = rows[r].count * sizeof(float);
    const int bins = servers * cores;
    int status = interfaces > 1 ? deal_by_interface(sizes, n, servers, cores, interfaces, bin_of)
                                : hpc_partition(sizes, n, bins, cores, bin_of);
    free(sizes);
    return status == HPC_OK ? gather_chunks(rows, n, bins, bin_of) : status;
}
