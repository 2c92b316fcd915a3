/* Plans: made for a hub, copied, and compared. */
#include "codec/codec.h"
#include "plan/plan.h"
#include "base/status.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char op_plan[] = "plan";

/* ---- copy and digest ---- */

/* Rows share lists of edges: each of the lists met lately is known by its place, with what was made of it. */
enum { LISTS = 64 };

struct list {
    const hpc_edge *edges;
    int n;
    const hpc_edge *copy;
    uint64_t digest;
};

struct lists {
    struct list list[LISTS];
    unsigned n; /* met so far */
};

static struct list *find_list(struct lists *lists, const hpc_edge *edges, int n) {
    unsigned kept = lists->n < LISTS ? lists->n : LISTS;
    for (unsigned i = 1; i <= kept; i++) {
        struct list *list = &lists->list[(lists->n - i) % LISTS];
        if (list->edges == edges && list->n == n) return list;
    }
    return NULL;
}

static struct list *add_list(struct lists *lists, const hpc_edge *edges, int n) {
    struct list *list = &lists->list[lists->n++ % LISTS];
    *list = (struct list){edges, n, NULL, 0};
    return list;
}

/* Takes n edges of *room unless the list was met lately; counts only where *room is NULL. */
static const hpc_edge *copy_list(struct lists *lists, const hpc_edge *edges, int n, hpc_edge **room, size_t *n_edges) {
    struct list *list = find_list(lists, edges, n);
    if (list != NULL) return list->copy;
    list = add_list(lists, edges, n);
    *n_edges += (size_t)n;
    if (*room != NULL) {
        list->copy = n > 0 ? memcpy(*room, edges, (size_t)n * sizeof *edges) : *room;
        *room += n;
    }
    return list->copy;
}

int hpc_plan_copy(const hpc_plan *plan, const char *op, hpc_plan **copy) {
    struct lists counted = {.n = 0}, copied = {.n = 0};
    hpc_edge *room = NULL;
    size_t n_edges = 0;
    for (int r = 0; r < plan->n_rows; r++) {
        copy_list(&counted, plan->rows[r].in, plan->rows[r].n_in, &room, &n_edges);
        copy_list(&counted, plan->rows[r].out, plan->rows[r].n_out, &room, &n_edges);
    }
    hpc_plan_block b;
    int status = hpc_plan_block_make(plan->keys, plan->n_keys, plan->n_rows, n_edges, op, &b);
    if (status != HPC_OK) return status;

    room = b.edges;
    n_edges = 0;
    for (int r = 0; r < plan->n_rows; r++) {
        b.rows[r] = plan->rows[r];
        b.rows[r].in = copy_list(&copied, plan->rows[r].in, plan->rows[r].n_in, &room, &n_edges);
        b.rows[r].out = copy_list(&copied, plan->rows[r].out, plan->rows[r].n_out, &room, &n_edges);
    }
    b.plan->affinity = plan->affinity;
    *copy = b.plan;
    return HPC_OK;
}

/* FNV-1a by words of 64 bits; the shift lets high bits reach low ones, which a product alone does not. */
static const uint64_t fnv_start = 14695981039346656037u;

static uint64_t mix(uint64_t digest, uint64_t word) {
    digest = (digest ^ word) * 1099511628211u;
    return digest ^ digest >> 32;
}

static uint64_t mix_ints(uint64_t digest, int a, int b) {
    return mix(digest, (uint64_t)(uint32_t)a << 32 | (uint32_t)b);
}

static uint64_t digest_of(struct lists *lists, const hpc_edge *edges, int n) {
    struct list *list = find_list(lists, edges, n);
    if (list != NULL) return list->digest;
    uint64_t digest = mix(fnv_start, (uint64_t)n);
    for (int e = 0; e < n; e++) {
        uint64_t weight;
        memcpy(&weight, &edges[e].weight, sizeof weight);
        digest = mix(mix_ints(digest, edges[e].rank, edges[e].row), weight);
    }
    add_list(lists, edges, n)->digest = digest;
    return digest;
}

uint64_t hpc_plan_digest(const hpc_plan *plan) {
    struct lists lists = {.n = 0};
    uint64_t digest = mix(mix_ints(fnv_start, plan->n_keys, plan->n_rows), (uint64_t)plan->affinity);
    for (int k = 0; k < plan->n_keys; k++) {
        digest = mix(mix(digest, plan->keys[k].count), hpc_plan_unit(&plan->keys[k]));
        const char *name = plan->keys[k].name;
        do digest = mix(digest, (unsigned char)*name);
        while (*name++ != '\0');
    }
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        digest = mix_ints(digest, row->key, row->owner);
        digest = mix_ints(digest, row->core, row->action);
        digest = mix(mix(digest, row->offset), row->count);
        digest = mix_ints(digest, row->depth, row->quorum);
        digest = mix_ints(digest, row->codec_in, row->codec_out);
        digest = mix(digest, digest_of(&lists, row->in, row->n_in));
        digest = mix(digest, digest_of(&lists, row->out, row->n_out));
    }
    return digest;
}

int hpc_plan_takes_float32(const hpc_plan *plan) {
    for (int r = 0; r < plan->n_rows; r++)
        if (plan->rows[r].codec_in != HPC_F32) return 0;
    return 1;
}

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

/* ---- hub ---- */

void hpc_hub_init(hpc_hub *hub) {
    *hub = (hpc_hub){
        .size = sizeof *hub, .cores = 1, .chunk = 32 << 10, .depth = 1, .wire = HPC_F32, .codec_out = HPC_F32};
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

static int check_hub(const hpc_hub *h) {
    if (h == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: hub is NULL");
    if (h->size != sizeof *h)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: hub->size is %zu, not %zu: call hpc_hub_init first", h->size,
                        sizeof *h);
    int status = hpc_plan_check_keys(h->keys, h->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_ranks(h->workers, h->n_workers, "worker", "hub");
    if (status == HPC_OK) status = hpc_plan_check_ranks(h->servers, h->n_servers, "server", "hub");
    if (status != HPC_OK) return status;
    status = hpc_plan_check_cut(h->cores, h->chunk, h->depth);
    if (status == HPC_OK)
        status = hpc_plan_check_both(h->keys, h->n_keys, h->wire, h->wires, h->n_wires, h->codec_out, h->codecs_out,
                                     h->n_codecs_out);
    if (status != HPC_OK) return status;
    if (h->n_servers > INT_MAX / h->cores)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %d servers of %d cores are too many", h->n_servers, h->cores);
    if ((h->sum != 0 && h->sum != 1) || (h->each != 0 && h->each != 1))
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %s is %d; must be 0 or 1",
                        h->sum != 0 && h->sum != 1 ? "sum" : "each", h->sum != 0 && h->sum != 1 ? h->sum : h->each);
    if (h->interfaces < 0 || h->interfaces > h->cores)
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: interfaces is %d; 0 (one) to %d are possible, since each needs one of the %d cores",
                        h->interfaces, h->cores, h->cores);
    status = hpc_plan_check_apply_at(h->apply_at);
    if (status == HPC_OK && h->each && h->apply_at != HPC_AT_OWNERS)
        status =
            hpc_fail(HPC_ERR_INVALID, op_plan,
                     "plan: apply_at is %d and each 1; receivers apply the fold of all updates, not each by itself",
                     h->apply_at);
    return status == HPC_OK ? hpc_plan_check_affinity(h->affinity) : status;
}

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
static int deal_by_interface(const hpc_hub *hub, const uint64_t *sizes, int n, int *bin_of) {
    const int interfaces = hub->interfaces, groups = hub->n_servers * interfaces;
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
        const int m = end[g] - start, interface = g % interfaces, cores = (hub->cores - 1 - interface) / interfaces + 1;
        for (int i = 0; i < m; i++) own[i] = sizes[chunk[start + i]];
        status = hpc_partition(own, m, cores, 1, core);
        for (int i = 0; i < m && status == HPC_OK; i++)
            bin_of[chunk[start + i]] = g / interfaces * hub->cores + core[i] * interfaces + interface;
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

/* The bins of rows: servers, each with so many cores. */
static int deal(const hpc_hub *hub, const hpc_row *rows, int n, int *bin_of) {
    uint64_t *sizes = malloc((size_t)n * sizeof *sizes);
    if (sizes == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
    for (int r = 0; r < n; r++) sizes[r] = rows[r].count * sizeof(float);
    const int bins = hub->n_servers * hub->cores;
    int status = hub->interfaces > 1 ? deal_by_interface(hub, sizes, n, bin_of)
                                     : hpc_partition(sizes, n, bins, hub->cores, bin_of);
    free(sizes);
    return status == HPC_OK ? gather_chunks(rows, n, bins, bin_of) : status;
}

int hpc_plan_deal(const hpc_row *rows, int n, int servers, int cores, int *bin_of) {
    const hpc_hub hub = {.n_servers = servers, .cores = cores, .interfaces = 1};
    return deal(&hub, rows, n, bin_of);
}

int hpc_plan_hub(const hpc_hub *hub, hpc_plan **plan) {
    int status = check_hub(hub);
    if (status != HPC_OK) return status;
    if (plan == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: plan is NULL");
    int n = 0;
    status = hpc_plan_chunks(hub->keys, hub->n_keys, hub->chunk, HPC_PLAN_NUMBERS, op_plan, &n);
    if (status != HPC_OK) return status;

    hpc_plan_block b = {NULL, NULL, NULL};
    int *bin_of = malloc((size_t)n * sizeof *bin_of);
    if (bin_of == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d rows", n);
        goto err;
    }
    status = hpc_plan_block_make(hub->keys, hub->n_keys, n, 2 * (size_t)hub->n_workers, op_plan, &b);
    if (status != HPC_OK) goto err;

    hpc_edge *in = b.edges, *out = in + hub->n_workers;
    const double weight = hub->sum || hub->each ? 1.0 : 1.0 / hub->n_workers;
    for (int w = 0; w < hub->n_workers; w++) {
        in[w] = (hpc_edge){hub->workers[w], -1, weight};
        out[w] = (hpc_edge){hub->workers[w], -1, 1.0};
    }
    hpc_plan_cut(hub->keys, hub->n_keys, hub->chunk, 1, b.rows);
    status = deal(hub, b.rows, n, bin_of);
    if (status != HPC_OK) goto err;
    for (int r = 0; r < n; r++) {
        hpc_row *row = &b.rows[r];
        row->owner = hub->servers[bin_of[r] / hub->cores];
        row->core = bin_of[r] % hub->cores;
        row->action = HPC_APPLY;
        row->depth = hub->depth;
        row->quorum = hub->each ? 1 : hub->n_workers;
        row->codec_in = hub->wires != NULL ? hub->wires[row->key] : hub->wire;
        row->codec_out = hub->codecs_out != NULL ? hub->codecs_out[row->key] : hub->codec_out;
        row->n_in = row->n_out = hub->n_workers;
        row->in = in;
        row->out = out;
    }
    b.plan->affinity = hub->affinity;
    status = hpc_plan_apply_at(&b.plan, b.edges, 2 * (size_t)hub->n_workers, hub->apply_at, NULL);
    if (status != HPC_OK) goto err;
    *plan = b.plan;
    b.plan = NULL;
err:
    free(b.plan);
    free(bin_of);
    return status;
}
