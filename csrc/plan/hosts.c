/* The plan of a hierarchy of hosts (PHub, section 3.4).
 *
 * Groups form a tree: its leaves are hosts, its inner nodes groups of groups, its root the whole job. For each chunk
 * every node has a leader among the ranks below it. The root's leader owns the chunk, and leads all nodes that it
 * belongs to. If a node has several workers and its parent has a different leader, the node's leader has two rows for
 * the chunk: one forwards the node's fold to the parent's leader, the other relays the parameters back to the node's
 * ranks. */
#include <limits.h>
#include <stdlib.h>

#include "plan/planner.h"
#include "base/status.h"
#include "codec/codec.h"

static const char op_plan[] = "plan";

enum { MOST_LEVELS = 8 };

/* A group. Workers are named by their indices in hpc_hosts.workers. Children are in the order of their first workers.
 * Ranks that only serve (hpc_hosts.serves) are among the leads alone. */
struct node {
    int parent; /* -1: none */
    int n_children, n_workers, n_leads;
    int served;                       /* its leads only serve */
    int *children;                    /* groups; a host has none */
    int *workers;                     /* all workers below it, in order */
    int *leads;                       /* the workers that lead */
    const hpc_edge *pushes, *answers; /* edges from and to all workers of the group, shared by rows that need exactly
                                         these edges; NULL before the first such row */
};

struct tree {
    struct node *groups; /* children come before their parent; the last is the root */
    int n;
    int *room;
};

/* The choice of leaders: leaders[g * n + c] leads group g for chunk c. */
struct leaders {
    const hpc_hosts *h;
    const struct tree *t;
    const hpc_row *chunks;
    int n;
    int *core;         /* by chunk */
    int *leaders;      /* by group and chunk */
    int *in_order;     /* chunks by core, then by number */
    int *by_size;      /* chunks by core, then by size, the largest first */
    int *run, *was;    /* chunks of a run, and their leaders before */
    int *filled;       /* by worker; 0 between calls */
    uint64_t *load;    /* by worker: the elements of the chunks that it leads */
    unsigned char *in; /* by worker: whether it is in the present group */
};

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

static int serves(const hpc_hosts *h, int worker) {
    return h->serves != NULL && h->serves[worker] != 0;
}

/* Checks the ranks that only serve: each level has a worker in their groups, and they lead. */
static int check_servers(const hpc_hosts *h) {
    for (int s = 0; s < h->n_workers; s++) {
        if (!serves(h, s)) continue;
        if (h->leads != NULL && !h->leads[s])
            return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: rank %d only serves, and leads has 0 for it; make it 1",
                            h->workers[s]);
        if (h->top == HPC_TOP_RING && h->n_levels == 1)
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "plan: rank %d only serves, and is in no group of a ring of hosts; give racks, or another "
                            "top",
                            h->workers[s]);
        int working = 0;
        for (int w = 0; w < h->n_workers && !working; w++)
            working = !serves(h, w) && (h->n_levels == 1 || group_of(h, 1, w) == group_of(h, 1, s));
        if (!working)
            return hpc_fail(HPC_ERR_INVALID, op_plan,
                            "plan: rank %d only serves, and its group has no worker; name one", h->workers[s]);
    }
    return HPC_OK;
}

/* Checks that workers of one group are also in one group at the next level, and that each host has a worker that may
 * lead. */
static int check_groups(const hpc_hosts *h) {
    for (int level = 0; level < h->n_levels; level++)
        for (int w = 0; w < h->n_workers; w++)
            if (group_of(h, level, w) < 0)
                return hpc_fail(HPC_ERR_INVALID, op_plan,
                                "plan: rank %d is in no group of level %d: groups[%d][%d] is %d, must be 0 or more",
                                h->workers[w], level, level, w, group_of(h, level, w));
    for (int w = 0; w < h->n_workers; w++) {
        int leading = serves(h, w);
        for (int v = 0; v < h->n_workers; v++) {
            const int alone = serves(h, v) || serves(h, w); /* on its host */
            if (group_of(h, 0, v) == group_of(h, 0, w) && !alone) leading |= h->leads == NULL || h->leads[v];
            for (int level = alone ? 2 : 1; level < h->n_levels; level++)
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
    status = check_groups(h);
    return status == HPC_OK ? check_servers(h) : status;
}

/* ---- the tree ---- */

static void free_tree(struct tree *t) {
    free(t->groups);
    free(t->room);
}

/* Adds worker w to group g. below: the group of the level below that w is in, or -1. */
static void add_worker(const hpc_hosts *h, struct tree *t, int g, int w, int below) {
    struct node *own = &t->groups[g];
    const int is_server = serves(h, w);
    if (is_server && !own->served) {
        own->served = 1;
        own->n_leads = 0;
    }
    if (!is_server) own->workers[own->n_workers++] = w;
    if (is_server == own->served && (h->leads == NULL || h->leads[w])) own->leads[own->n_leads++] = w;
    if (below < 0 || t->groups[below].parent >= 0) return;
    own->children[own->n_children++] = below;
    t->groups[below].parent = g;
}

static int make_tree(const hpc_hosts *h, struct tree *t) {
    const size_t n = (size_t)h->n_workers, levels = (size_t)h->n_levels + 1;
    *t = (struct tree){.groups = calloc(n * levels, sizeof *t->groups), .room = malloc(3 * n * levels * sizeof(int))};
    int *inside = malloc(n * sizeof *inside); /* by worker: its group of the level before */
    if (t->groups == NULL || t->room == NULL || inside == NULL) {
        free(inside);
        return hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for the groups of %d workers", h->n_workers);
    }
    for (size_t w = 0; w < n; w++) inside[w] = -1;
    for (int level = 0; level <= h->n_levels; level++) {
        const int base = t->n;
        int *room = t->room + 3 * n * (size_t)level;
        for (int first = 0; first < h->n_workers; first++) {
            if (inside[first] >= base || (level == 0 && serves(h, first))) continue;
            struct node *own = &t->groups[t->n];
            *own = (struct node){.parent = -1, .children = room, .workers = room + n, .leads = room + 2 * n};
            for (int w = first; w < h->n_workers; w++) {
                if (level < h->n_levels && group_of(h, level, w) != group_of(h, level, first)) continue;
                if (level == 0 && serves(h, w)) continue;
                add_worker(h, t, t->n, w, inside[w]);
                inside[w] = t->n;
            }
            /* enough memory for the next group's three lists, each at most this long */
            room += own->served ? own->n_workers + own->n_leads : own->n_workers;
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

static int order_chunks(struct leaders *d) {
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
    int leads = 0, servers = 0;
    for (int w = 0; w < h->n_workers; w++) {
        leads += h->leads == NULL || h->leads[w];
        servers += serves(h, w);
    }
    return (hpc_cutting){h->chunk, h->least, (servers > 0 ? servers : leads) * h->cores};
}

/* Chooses the root's leaders, as a hub deals chunks to servers. */
static int deal_owners(struct leaders *d) {
    const struct node *root = &d->t->groups[d->t->n - 1];
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

/* Permutes the leaders of n equal chunks that follow one another, so that each leader's chunks are adjacent. */
static void gather_run(struct leaders *d, int n, int *leader) {
    int at = 0;
    for (int i = 0; i < n; i++) {
        d->was[i] = leader[d->run[i]];
        d->filled[d->was[i]]++;
    }
    for (int i = 0; i < n; i++)
        for (; d->filled[d->was[i]] > 0; d->filled[d->was[i]]--) leader[d->run[at++]] = d->was[i];
}

static int least_loaded(const struct leaders *d, const struct node *own) {
    int least = own->leads[0];
    for (int k = 1; k < own->n_leads; k++)
        if (d->load[own->leads[k]] < d->load[least]) least = own->leads[k];
    return least;
}

/* Returns the mean load of a group's leaders, in elements. */
static uint64_t mean_load(const struct leaders *d, const struct node *own, const int *above) {
    uint64_t all = 0;
    for (int k = 0; k < own->n_leads; k++) all += d->load[own->leads[k]];
    for (int c = 0; c < d->n; c++) all += d->in[above[c]] ? 0 : d->chunks[c].count;
    return all / (uint64_t)own->n_leads;
}

/* Gives neighbouring small keys that have the same leader in the parent group to one leader of this group, as
 * hpc_plan_deal gives them to one owner. */
static void deal_small(struct leaders *d, const struct node *own, const int *above, uint64_t mean, int *leader) {
    uint64_t run = 0; /* elements of neighbours that this leader has got */
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

/* Chooses a group's leaders. If the parent's leader of a chunk belongs to the group, it also leads the group for that
 * chunk. The other chunks go, core by core, to the leader with the least load so far. So the loads of a group's leaders
 * differ by at most one chunk, unless the first rule makes them differ by more. */
static void deal_group(struct leaders *d, int g) {
    const struct node *own = &d->t->groups[g];
    const size_t n = (size_t)d->n;
    const int *above = d->leaders + (size_t)own->parent * n;
    int *leader = d->leaders + (size_t)g * n;
    for (int i = 0; i < own->n_workers; i++) d->in[own->workers[i]] = 1;
    for (int i = 0; i < own->n_leads; i++) d->in[own->leads[i]] = 1;
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
    for (int i = 0; i < own->n_leads; i++) d->in[own->leads[i]] = 0;
}

/* ---- rows: a first pass counts them, a second one fills them in ---- */

/* A group, and the rows of its leader for the chunk. The row fold takes the group's updates, the row send sends
 * parameters to the group; the owner has one row for both. -1: no such row. */
struct task {
    int group, fold, send;
};

/* The state while rows are made: in a first pass they are only counted. */
struct maker {
    const struct leaders *d;
    double *weights; /* by worker */
    hpc_row *rows;   /* NULL: only counts */
    hpc_edge *edges;
    size_t n_rows, n_edges;
    int chunk;
    struct task *tasks; /* the tasks of the chunk */
    int n_tasks;
    int *pushing, *answered; /* pushing: workers that push to the task's fold row; answered: workers to which its send
                                row sends */
    hpc_edge *from, *to;     /* rows that forward to the fold row; relays to which the send row sends */
    int n_pushing, n_answered, n_from, n_to;
};

static int leader_of(const struct maker *m, int group) {
    return m->d->leaders[(size_t)group * (size_t)m->d->n + (size_t)m->chunk];
}

static int rank_of(const struct maker *m, int group) {
    return m->d->h->workers[leader_of(m, group)];
}

static int wire_of(const hpc_hosts *h, int key) {
    return h->wires != NULL ? h->wires[key] : h->wire;
}

/* Returns whether only workers can write pieces of the key's codec, so that sums of updates are forwarded as arrays. */
static int is_of_workers(const hpc_hosts *h, int key) {
    return hpc_codec_of(wire_of(h, key))->source_bytes != NULL;
}

/* Returns whether the key travels as pieces only between groups: workers push arrays to their leader, and the leader
 * encodes the fold. Then even a group of one worker needs a leader's row. */
static int sends_pieces(const hpc_hosts *h, int key) {
    return !hpc_codec_of(wire_of(h, key))->addressable && !is_of_workers(h, key);
}

/* Adds a row of a group's leader, without its edges. Returns its number. */
static int add_row(struct maker *m, int group, int action) {
    const hpc_hosts *h = m->d->h;
    const size_t r = m->n_rows++;
    if (m->rows != NULL) {
        hpc_row *row = &m->rows[r];
        *row = m->d->chunks[m->chunk];
        row->owner = rank_of(m, group);
        row->core = m->d->core[m->chunk];
        row->action = action;
        row->depth = h->depth;
        row->codec_in = row->codec_out = wire_of(h, row->key);
        if (sends_pieces(h, row->key)) row->codec_in = HPC_F32;
        if (is_of_workers(h, row->key)) row->codec_out = HPC_F32;
        if (action == HPC_FORWARD) return (int)r;
        row->codec_out = h->codecs_out != NULL ? h->codecs_out[row->key] : h->codec_out;
        if (action == HPC_RELAY) row->codec_in = row->codec_out;
    }
    return (int)r;
}

/* Adds the one out-edge of a forwarding row, to the row that folds next; or the one in-edge of a relay. */
static void join(struct maker *m, int row, int other, int action) {
    const size_t e = m->n_edges++;
    if (m->rows == NULL) return;
    m->edges[e] = (hpc_edge){m->rows[other].owner, other, 1.0};
    if (action == HPC_FORWARD) {
        m->rows[row].out = &m->edges[e];
        m->rows[row].n_out = 1;
    } else {
        m->rows[row].in = &m->edges[e];
        m->rows[row].n_in = m->rows[row].quorum = 1;
    }
}

/* Adds an input of the task's fold row: a group's fold row, or the push of the group's only worker if fold is -1. */
static void take_from(struct maker *m, int group, int fold) {
    if (fold < 0)
        m->pushing[m->n_pushing++] = m->d->t->groups[group].workers[0];
    else
        m->from[m->n_from++] = (hpc_edge){rank_of(m, group), fold, 1.0};
}

static void send_to(struct maker *m, int group, int send) {
    if (send < 0)
        m->answered[m->n_answered++] = m->d->t->groups[group].workers[0];
    else
        m->to[m->n_to++] = (hpc_edge){rank_of(m, group), send, 1.0};
}

/* Connects a task's rows to a group inside the task's group: directly to the workers of a host with the same leader; to
 * groups with other leaders by new tasks for those leaders. */
static void serve(struct maker *m, const struct task *task, int group) {
    const struct node *own = &m->d->t->groups[group];
    for (int i = 0; i < own->n_workers && own->n_children == 0; i++)
        m->pushing[m->n_pushing++] = m->answered[m->n_answered++] = own->workers[i];
    for (int i = 0; i < own->n_children; i++) {
        struct task below = {own->children[i], -1, -1};
        const int outermost = m->d->h->apart && group == m->d->t->n - 1;
        if (leader_of(m, below.group) == leader_of(m, group) && !outermost) {
            serve(m, task, below.group);
            continue;
        }
        const int several = m->d->t->groups[below.group].n_workers > 1;
        if (several || sends_pieces(m->d->h, m->d->chunks[m->chunk].key)) {
            below.fold = add_row(m, below.group, HPC_FORWARD);
            if (several) below.send = add_row(m, below.group, HPC_RELAY);
            join(m, below.fold, task->fold, HPC_FORWARD);
            if (several) join(m, below.send, task->send, HPC_RELAY);
            m->tasks[m->n_tasks++] = below;
        }
        take_from(m, below.group, below.fold);
        send_to(m, below.group, below.send);
    }
}

static int rising(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

/* Writes edges to workers, in order. weights: by worker; NULL: 1. */
static hpc_edge *fill(const struct maker *m, hpc_edge *edge, const int *workers, int n, const double *weights) {
    for (int i = 0; i < n; i++)
        *edge++ = (hpc_edge){m->d->h->workers[workers[i]], -1, weights == NULL ? 1 : weights[workers[i]]};
    return edge;
}

/* Writes the inputs of a row: pushes in the order of workers, then the folds of rows. Rows of one group that take
 * exactly the pushes of all its workers share the list. */
static void put_inputs(struct maker *m, const struct task *task) {
    struct node *own = &m->d->t->groups[task->group];
    const int shared = m->n_from == 0 && m->n_pushing == own->n_workers, n = m->n_pushing + m->n_from;
    static const hpc_edge counted;
    const hpc_edge *in = shared ? own->pushes : NULL;
    if (in == NULL) {
        in = m->rows == NULL ? &counted : m->edges + m->n_edges;
        if (m->rows != NULL) {
            qsort(m->pushing, (size_t)m->n_pushing, sizeof *m->pushing, rising);
            hpc_edge *edge = fill(m, m->edges + m->n_edges, m->pushing, m->n_pushing, m->weights);
            for (int i = 0; i < m->n_from; i++) *edge++ = m->from[i];
        }
        m->n_edges += (size_t)n;
        if (shared) own->pushes = in;
    }
    if (m->rows == NULL) return;
    m->rows[task->fold].in = in;
    m->rows[task->fold].n_in = m->rows[task->fold].quorum = n;
    if (m->n_pushing == 0 && is_of_workers(m->d->h, m->rows[task->fold].key)) m->rows[task->fold].codec_in = HPC_F32;
}

/* Writes the outputs of a row: first to relays, because their parameters have a longer way to go, then to workers in
 * order. */
static void put_outputs(struct maker *m, const struct task *task) {
    struct node *own = &m->d->t->groups[task->group];
    const int shared = m->n_to == 0 && m->n_answered == own->n_workers, n = m->n_answered + m->n_to;
    static const hpc_edge counted;
    const hpc_edge *out = shared ? own->answers : NULL;
    if (out == NULL) {
        out = m->rows == NULL ? &counted : m->edges + m->n_edges;
        if (m->rows != NULL) {
            hpc_edge *edge = m->edges + m->n_edges;
            for (int i = 0; i < m->n_to; i++) *edge++ = m->to[i];
            qsort(m->answered, (size_t)m->n_answered, sizeof *m->answered, rising);
            fill(m, edge, m->answered, m->n_answered, NULL);
        }
        m->n_edges += (size_t)n;
        if (shared) own->answers = out;
    }
    if (m->rows == NULL) return;
    m->rows[task->send].out = out;
    m->rows[task->send].n_out = n;
}

/* Connects the outermost groups in a ring, beginning with the owner's group. Each group adds its own updates to its
 * predecessor's fold and forwards the sum; parameters go around the ring from one group to the next. The owner's group
 * is the last to fold and the first to send parameters. */
static void make_ring(struct maker *m, const struct node *root, int row) {
    const int n = root->n_children, owner = leader_of(m, m->d->t->n - 1);
    int at = 0;
    while (leader_of(m, root->children[at]) != owner) at++;
    struct task *ring = m->tasks;
    ring[0] = (struct task){root->children[at], row, row};
    for (int i = 1; i < n; i++) {
        struct task *own = &ring[i];
        *own = (struct task){root->children[(at + i) % n], -1, -1};
        const int several = m->d->t->groups[own->group].n_workers > 1;
        if (several || i > 1 || sends_pieces(m->d->h, m->d->chunks[m->chunk].key))
            own->fold = add_row(m, own->group, HPC_FORWARD);
        if (several || i < n - 1) own->send = add_row(m, own->group, HPC_RELAY);
        if (i > 1 && ring[i - 1].fold >= 0) join(m, ring[i - 1].fold, own->fold, HPC_FORWARD);
        if (own->send >= 0) join(m, own->send, ring[i - 1].send, HPC_RELAY);
    }
    if (ring[n - 1].fold >= 0) join(m, ring[n - 1].fold, row, HPC_FORWARD);
    m->n_tasks = n;
}

/* Connects one of the ring's tasks to its two neighbours. */
static void join_ring(struct maker *m, int i, int n) {
    const struct task *ring = m->tasks, *before = &ring[(i + n - 1) % n], *after = &ring[(i + 1) % n];
    if (i != 1) take_from(m, before->group, before->fold);
    if (i != n - 1) send_to(m, after->group, after->send);
}

static void make_chunk(struct maker *m, int chunk) {
    const int root = m->d->t->n - 1;
    const struct node *job = &m->d->t->groups[root];
    m->chunk = chunk;
    int row = add_row(m, root, HPC_APPLY), ring = 0;
    if (m->d->h->top == HPC_TOP_RING && job->n_children > 1) {
        make_ring(m, job, row);
        ring = m->n_tasks;
    } else {
        m->tasks[0] = (struct task){root, row, row};
        m->n_tasks = 1;
    }
    for (int i = 0; i < m->n_tasks; i++) {
        m->n_pushing = m->n_answered = m->n_from = m->n_to = 0;
        const struct task task = m->tasks[i];
        serve(m, &task, task.group);
        if (i < ring) join_ring(m, i, ring);
        if (task.fold >= 0) put_inputs(m, &task);
        if (task.send >= 0) put_outputs(m, &task);
    }
}

/* Sets the weights of updates, so that a fold is a sum, the mean over all workers or, if hpc_hosts.each is set, the
 * mean over the workers of an outermost group. */
static void find_weights(struct maker *m) {
    const hpc_hosts *h = m->d->h;
    const struct node *root = &m->d->t->groups[m->d->t->n - 1];
    for (int w = 0; w < h->n_workers; w++) m->weights[w] = h->sum ? 1.0 : 1.0 / (h->each ? 1 : root->n_workers);
    for (int i = 0; i < root->n_children && h->each && !h->sum; i++) {
        const struct node *group = &m->d->t->groups[root->children[i]];
        for (int k = 0; k < group->n_workers; k++) m->weights[group->workers[k]] = 1.0 / group->n_workers;
    }
}

/* Returns an array, by rank, of the numbers of the ranks' hosts, for receivers.c; the caller frees it. NULL: out of
 * memory. */
static int *hosts_of(const hpc_hosts *h) {
    int most = 0;
    for (int w = 0; w < h->n_workers; w++)
        if (h->workers[w] > most) most = h->workers[w];
    int *hosts = malloc(((size_t)most + 1) * sizeof *hosts);
    for (int w = 0; w < h->n_workers && hosts != NULL; w++) hosts[h->workers[w]] = h->groups[w];
    return hosts;
}

static void make_rows(struct maker *m) {
    m->n_rows = m->n_edges = 0;
    for (int g = 0; g < m->d->t->n; g++) m->d->t->groups[g].pushes = m->d->t->groups[g].answers = NULL;
    for (int c = 0; c < m->d->n && m->n_rows <= HPC_PLAN_NUMBERS; c++) make_chunk(m, c);
}

/* Makes the plan, with the rows of all chunks. */
static int rows_of(const struct leaders *d, hpc_plan **plan) {
    const size_t workers = (size_t)d->h->n_workers, groups = (size_t)d->t->n;
    hpc_plan_block b = {NULL, NULL, NULL};
    struct maker m = {
        .d = d,
        .weights = malloc(workers * sizeof *m.weights),
        .tasks = malloc(groups * sizeof *m.tasks),
        .pushing = malloc((workers + 1) * sizeof *m.pushing), /* one more: a ring's neighbour */
        .answered = malloc((workers + 1) * sizeof *m.answered),
        .from = malloc((groups + 1) * sizeof *m.from),
        .to = malloc((groups + 1) * sizeof *m.to),
    };
    int status = HPC_OK, *hosts = hosts_of(d->h);
    if (hosts == NULL || m.weights == NULL || m.tasks == NULL || m.pushing == NULL || m.answered == NULL ||
        m.from == NULL || m.to == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_plan, "plan: no memory for %zu groups", groups);
        goto err;
    }
    find_weights(&m);
    make_rows(&m);
    if (m.n_rows > HPC_PLAN_NUMBERS) {
        status = hpc_fail(HPC_ERR_INVALID, op_plan,
                          "plan: chunk is %llu bytes, which makes more than the %d rows that a plan may have; make it "
                          "larger",
                          (unsigned long long)d->h->chunk, HPC_PLAN_NUMBERS);
        goto err;
    }
    status = hpc_plan_block_make(d->h->keys, d->h->n_keys, (int)m.n_rows, m.n_edges, op_plan, &b);
    if (status != HPC_OK) goto err;
    m.rows = b.rows;
    m.edges = b.edges;
    make_rows(&m);
    status = hpc_plan_apply_at(&b.plan, b.edges, m.n_edges, d->h->apply_at, d->h->apart ? NULL : hosts);
    if (status == HPC_OK)
        *plan = b.plan;
    else
        hpc_plan_free(b.plan);
err:
    free(hosts);
    free(m.to);
    free(m.from);
    free(m.answered);
    free(m.pushing);
    free(m.tasks);
    free(m.weights);
    return status;
}

/* ---- the planner ---- */

static int plan_hosts(const void *args, hpc_plan **plan) {
    const hpc_hosts *h = args;
    int status = check_hosts(h), n = 0;
    if (status != HPC_OK) return status;
    const hpc_cutting how = cutting_of(h);
    status = hpc_plan_chunks(h->keys, h->n_keys, &how, HPC_PLAN_NUMBERS, op_plan, &n);
    if (status != HPC_OK) return status;

    struct tree t;
    status = make_tree(h, &t);
    const size_t chunks = (size_t)n, workers = (size_t)h->n_workers;
    hpc_row *rows = calloc(chunks, sizeof *rows);
    int *room = malloc((5 + (size_t)t.n) * chunks * sizeof *room);
    struct leaders d = {
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
        status = rows_of(&d, plan);
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
