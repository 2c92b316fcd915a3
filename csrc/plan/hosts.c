/* The plan of a hierarchy of hosts (PHub, section 3.4).
 *
 * The groups are the nodes of a tree: hosts, the groups that they make, and the job at its root. For each chunk every
 * node has a leader among the ranks below it. The root's leader owns the chunk, and leads all nodes that it belongs to.
 * A node may have several workers, and a parent with another leader. Then its own leader has two rows for the chunk:
 * one forwards the node's fold to the parent's leader, the other relays the parameters that come back. */
#include <limits.h>
#include <stdlib.h>

#include "plan/hosts_rows.h"
#include "plan/planner.h"
#include "base/status.h"

static const char op_plan[] = "plan";

enum { MOST_LEVELS = 8 };

static void init(void *args) {
    *(hpc_hosts *)args = (hpc_hosts){.size = sizeof(hpc_hosts),
                                     .n_levels = 1,
                                     .cores = 1,
                                     .chunk = 64 << 10,
                                     .depth = 1,
                                     .wire = HPC_F32,
                                     .codec_out = HPC_F32};
}

/* ---- checks ---- */

static int group_of(const hpc_hosts *h, int level, int worker) {
    return h->groups[(size_t)level * (size_t)h->n_workers + (size_t)worker];
}

/* Workers that share a group of one level share one of the next; and a host has a worker that leads. */
static int check_groups(const hpc_hosts *h) {
    for (int level = 0; level < h->n_levels; level++)
        for (int w = 0; w < h->n_workers; w++)
            if (group_of(h, level, w) < 0)
                return hpc_fail(HPC_ERR_INVALID, op_plan,
                                "plan: rank %d is in no group of level %d: groups[%d][%d] is %d, must be 0 or more",
                                h->workers[w], level, level, w, group_of(h, level, w));
    for (int w = 0; w < h->n_workers; w++) {
        int leading = 0;
        for (int v = 0; v < h->n_workers; v++) {
            if (group_of(h, 0, v) == group_of(h, 0, w)) leading |= h->leads == NULL || h->leads[v];
            for (int level = 1; level < h->n_levels; level++)
                if (group_of(h, level - 1, v) == group_of(h, level - 1, w) &&
                    group_of(h, level, v) != group_of(h, level, w))
                    return hpc_fail(HPC_ERR_INVALID, op_plan,
                                    "plan: ranks %d and %d share group %d of level %d, but are in groups %d and %d of "
                                    "level %d; a group lies in one group of the next level",
                                    h->workers[w], h->workers[v], group_of(h, level - 1, w), level - 1,
                                    group_of(h, level, w), group_of(h, level, v), level);
        }
        if (!leading)
            return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: the host of rank %d has no rank that leads; name one",
                            h->workers[w]);
    }
    return HPC_OK;
}

static int check_hosts(const hpc_hosts *h) {
    int status = hpc_plan_check_keys(h->keys, h->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_ranks(h->workers, h->n_workers, "worker", "hierarchy");
    if (status == HPC_OK) status = hpc_plan_check_cut(h->cores, h->chunk, h->depth);
    if (status == HPC_OK) status = hpc_plan_check_least(h->least, h->chunk);
    if (status == HPC_OK)
        status = hpc_plan_check_both(h->keys, h->n_keys, h->wire, h->wires, h->n_wires, h->codec_out, h->codecs_out,
                                     h->n_codecs_out);
    if (status != HPC_OK) return status;
    if (h->n_workers > INT_MAX / h->cores)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %d workers of %d cores are too many", h->n_workers, h->cores);
    if (h->sum != 0 && h->sum != 1)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: sum is %d; must be 0 or 1", h->sum);
    status = hpc_plan_check_apply_at(h->apply_at);
    if (status != HPC_OK) return status;
    if (h->top != HPC_TOP_SHARDED && h->top != HPC_TOP_RING)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: top is %d; must be %d (sharded) or %d (ring)", h->top,
                        HPC_TOP_SHARDED, HPC_TOP_RING);
    if ((h->apart != 0 && h->apart != 1) || (h->apart && h->top == HPC_TOP_RING))
        return hpc_fail(HPC_ERR_INVALID, op_plan,
                        "plan: apart is %d with top %d; must be 0 or 1, and 0 with a ring, which folds all groups into "
                        "one update",
                        h->apart, h->top);
    if (h->each != 0 && (h->each != 1 || !h->apart))
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: each is %d with apart %d; must be 0, or both 1", h->each,
                        h->apart);
    if (h->n_levels < 1 || h->n_levels > MOST_LEVELS)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: n_levels is %d; 1 (hosts) to %d are possible", h->n_levels,
                        MOST_LEVELS);
    if (h->groups == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: groups is NULL; every worker is in one");
    return check_groups(h);
}

/* ---- the tree ---- */

static void free_tree(struct hpc_group_tree *t) {
    free(t->groups);
    free(t->room);
}

/* Takes worker w, of the group below (-1: none) that it was in. */
static void add_worker(const hpc_hosts *h, struct hpc_group_tree *t, int g, int w, int below) {
    struct hpc_group_node *own = &t->groups[g];
    own->workers[own->n_workers++] = w;
    if (h->leads == NULL || h->leads[w]) own->leads[own->n_leads++] = w;
    if (below < 0 || t->groups[below].parent >= 0) return;
    own->children[own->n_children++] = below;
    t->groups[below].parent = g;
}

static int make_tree(const hpc_hosts *h, struct hpc_group_tree *t) {
    const size_t n = (size_t)h->n_workers, levels = (size_t)h->n_levels + 1;
    *t = (struct hpc_group_tree){.groups = calloc(n * levels, sizeof *t->groups),
                                 .room = malloc(3 * n * levels * sizeof(int))};
    int *inside = malloc(n * sizeof *inside); /* the group that a worker is in, of the last level */
    if (t->groups == NULL || t->room == NULL || inside == NULL) {
        free(inside);
        return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for the groups of %d workers", h->n_workers);
    }
    for (size_t w = 0; w < n; w++) inside[w] = -1;
    for (int level = 0; level <= h->n_levels; level++) {
        const int base = t->n;
        int *room = t->room + 3 * n * (size_t)level;
        for (int first = 0; first < h->n_workers; first++) {
            if (inside[first] >= base) continue;
            struct hpc_group_node *own = &t->groups[t->n];
            *own = (struct hpc_group_node){.parent = -1, .children = room, .workers = room + n, .leads = room + 2 * n};
            for (int w = first; w < h->n_workers; w++) {
                if (level < h->n_levels && group_of(h, level, w) != group_of(h, level, first)) continue;
                add_worker(h, t, t->n, w, inside[w]);
                inside[w] = t->n;
            }
            room += own->n_workers; /* enough for the next one's three lists: none is longer */
            t->n++;
        }
    }
    free(inside);
    return HPC_OK;
}

/* ---- leaders ---- */

struct place {
    uint64_t size;
    int core, chunk;
};

static int by_core_and_size(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->core != y->core) return x->core < y->core ? -1 : 1;
    if (x->size != y->size) return x->size > y->size ? -1 : 1;
    return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

static int order_chunks(struct hpc_leaders *d) {
    struct place *places = malloc((size_t)d->n * sizeof *places);
    if (places == NULL) return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks", d->n);
    for (int c = 0; c < d->n; c++) places[c] = (struct place){d->chunks[c].count, d->core[c], c};
    qsort(places, (size_t)d->n, sizeof *places, by_core_and_size);
    for (int i = 0; i < d->n; i++) d->by_size[i] = places[i].chunk;
    for (int c = 0; c < d->n; c++) places[c] = (struct place){0, d->core[c], c};
    qsort(places, (size_t)d->n, sizeof *places, by_core_and_size);
    for (int i = 0; i < d->n; i++) d->in_order[i] = places[i].chunk;
    free(places);
    return HPC_OK;
}

static hpc_cutting cutting_of(const hpc_hosts *h) {
    int leads = 0;
    for (int w = 0; w < h->n_workers; w++) leads += h->leads == NULL || h->leads[w];
    return (hpc_cutting){h->chunk, h->least, leads * h->cores};
}

/* The root's leaders: as a hub deals chunks to servers. */
static int deal_owners(struct hpc_leaders *d) {
    const struct hpc_group_node *root = &d->t->groups[d->t->n - 1];
    int *owner = d->leaders + (size_t)(d->t->n - 1) * (size_t)d->n;
    const int cores = d->h->cores;
    int status = hpc_plan_deal(d->chunks, d->n, root->n_leads, cores, 1, owner);
    if (status != HPC_OK) return status;
    for (int c = 0; c < d->n; c++) {
        d->core[c] = owner[c] % cores;
        owner[c] = root->leads[owner[c] / cores];
        d->load[owner[c]] += d->chunks[c].count;
    }
    return order_chunks(d);
}

/* The n equal chunks of a run change their leaders so that each leader's chunks lie together. */
static void gather_run(struct hpc_leaders *d, int n, int *leader) {
    int at = 0;
    for (int i = 0; i < n; i++) {
        d->was[i] = leader[d->run[i]];
        d->filled[d->was[i]]++;
    }
    for (int i = 0; i < n; i++)
        for (; d->filled[d->was[i]] > 0; d->filled[d->was[i]]--) leader[d->run[at++]] = d->was[i];
}

static int least_loaded(const struct hpc_leaders *d, const struct hpc_group_node *own) {
    int least = own->leads[0];
    for (int k = 1; k < own->n_leads; k++)
        if (d->load[own->leads[k]] < d->load[least]) least = own->leads[k];
    return least;
}

/* The load of each leader of a group, in elements, if all had the same. */
static uint64_t mean_load(const struct hpc_leaders *d, const struct hpc_group_node *own, const int *above) {
    uint64_t all = 0;
    for (int k = 0; k < own->n_leads; k++) all += d->load[own->leads[k]];
    for (int c = 0; c < d->n; c++) all += d->in[above[c]] ? 0 : d->chunks[c].count;
    return all / (uint64_t)own->n_leads;
}

/* Neighbouring small keys of one core above go to one leader, as hpc_plan_deal gives them to one owner. */
static void deal_small(struct hpc_leaders *d, const struct hpc_group_node *own, const int *above, uint64_t mean,
                       int *leader) {
    uint64_t run = 0; /* elements that the last one's leader has got in a row */
    for (int i = 0, last = -1; i < d->n; i++) {
        const int c = d->in_order[i];
        const uint64_t count = d->chunks[c].count;
        if (d->in[above[c]] || !hpc_plan_is_small(d->chunks, d->n, c, mean * sizeof(float))) continue;
        if (last < 0 || above[c] != above[last] || d->core[c] != d->core[last] ||
            (run + count) * sizeof(float) > HPC_PLAN_RUN || d->load[leader[last]] + count > mean) {
            leader[c] = least_loaded(d, own);
            run = 0;
        } else {
            leader[c] = leader[last];
        }
        d->load[leader[c]] += count;
        run += count;
        last = c;
    }
}

/* A group's leaders. The parent's leader of a chunk also leads the group if it belongs to it; the other chunks go, core
 * by core, to the least loaded leader so far. So the loads of a group's leaders differ by a chunk at most, unless they
 * differed by more before. */
static void deal_group(struct hpc_leaders *d, int g) {
    const struct hpc_group_node *own = &d->t->groups[g];
    const size_t n = (size_t)d->n;
    const int *above = d->leaders + (size_t)own->parent * n;
    int *leader = d->leaders + (size_t)g * n;
    for (int i = 0; i < own->n_workers; i++) d->in[own->workers[i]] = 1;
    const uint64_t mean = mean_load(d, own, above);
    for (int i = 0; i < d->n; i++) {
        const int c = d->by_size[i];
        leader[c] = above[c];
        if (d->in[above[c]] || hpc_plan_is_small(d->chunks, d->n, c, mean * sizeof(float))) continue;
        leader[c] = least_loaded(d, own);
        d->load[leader[c]] += d->chunks[c].count;
    }
    deal_small(d, own, above, mean, leader);
    int length = 0;
    for (int i = 0; i < d->n; i++) {
        const int c = d->in_order[i];
        const hpc_row *chunk = &d->chunks[c], *last = length > 0 ? &d->chunks[d->run[length - 1]] : NULL;
        if (d->in[above[c]]) continue;
        if (last != NULL &&
            (last->key != chunk->key || last->count != chunk->count || d->core[d->run[length - 1]] != d->core[c])) {
            gather_run(d, length, leader);
            length = 0;
        }
        d->run[length++] = c;
    }
    gather_run(d, length, leader);
    for (int i = 0; i < own->n_workers; i++) d->in[own->workers[i]] = 0;
}

static int plan_hosts(const void *args, hpc_plan **plan) {
    const hpc_hosts *h = args;
    int status = check_hosts(h), n = 0;
    if (status != HPC_OK) return status;
    const hpc_cutting how = cutting_of(h);
    status = hpc_plan_chunks(h->keys, h->n_keys, &how, HPC_PLAN_NUMBERS, op_plan, &n);
    if (status != HPC_OK) return status;

    struct hpc_group_tree t;
    status = make_tree(h, &t);
    const size_t chunks = (size_t)n, workers = (size_t)h->n_workers;
    hpc_row *rows = calloc(chunks, sizeof *rows);
    int *room = malloc((5 + (size_t)t.n) * chunks * sizeof *room);
    struct hpc_leaders d = {
        .h = h,
        .t = &t,
        .chunks = rows,
        .n = n,
        .filled = calloc(workers, sizeof *d.filled),
        .load = calloc(workers, sizeof *d.load),
        .in = calloc(workers, 1),
    };
    if (status == HPC_OK && (rows == NULL || room == NULL || d.filled == NULL || d.load == NULL || d.in == NULL))
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %d chunks of %d workers", n, h->n_workers);
    if (status == HPC_OK) {
        d.core = room;
        d.in_order = room + chunks;
        d.by_size = room + 2 * chunks;
        d.run = room + 3 * chunks;
        d.was = room + 4 * chunks;
        d.leaders = room + 5 * chunks;
        hpc_plan_cut(h->keys, h->n_keys, &how, 1, rows);
        status = deal_owners(&d);
    }
    if (status == HPC_OK) {
        for (int g = t.n - 2; g >= 0; g--) deal_group(&d, g);
        status = hpc_plan_hosts_rows(&d, plan);
    }
    free(d.in);
    free(d.load);
    free(d.filled);
    free(room);
    free(rows);
    free_tree(&t);
    return status;
}

const hpc_planner hpc_planner_hosts = {.name = "hosts", .size = sizeof(hpc_hosts), .init = init, .plan = plan_hosts};
