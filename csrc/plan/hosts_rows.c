/* The rows of a hierarchy's plan, once leaders are chosen: a first pass counts them, a second one fills them in. */
#include <stdlib.h>

#include "plan/hosts_rows.h"
#include "base/status.h"
#include "codec/codec.h"

static const char op_plan[] = "plan";

/* A group, and the rows of its leader for the chunk: fold takes the group's updates, send has its parameters. The owner
 * has one row for both. -1: there is no such row. */
struct task {
    int group, fold, send;
};

/* Makes all rows twice: first to count them, then to fill them in. */
struct maker {
    const struct hpc_leaders *d;
    double *weights; /* by worker */
    hpc_row *rows;   /* NULL: to count */
    hpc_edge *edges;
    size_t n_rows, n_edges;
    int chunk;
    struct task *tasks; /* of the chunk */
    int n_tasks;
    int *pushing, *answered; /* workers that are joined to the task's rows by pushes, and by answers */
    hpc_edge *from, *to;     /* rows that are */
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

/* Only workers can write pieces of such a codec: a sum goes on as an array. */
static int is_of_workers(const hpc_hosts *h, int key) {
    return hpc_codec_of(wire_of(h, key))->source_bytes != NULL;
}

/* Other pieces go between groups only: workers push arrays to their leader, which encodes the fold. So the leader of a
 * group of one worker has a row too. */
static int sends_pieces(const hpc_hosts *h, int key) {
    return !hpc_codec_of(wire_of(h, key))->addressable && !is_of_workers(h, key);
}

/* A row of a group's leader, without its edges. Returns its number. */
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

/* The one edge of a forwarding row to the row that folds next, or of a relay from the row that sends to it. */
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

/* The inputs of the task's rows from a group by way of fold, or straight from its one worker. */
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

/* The relation of the leader of a task's group to one of the groups in it: it serves the workers of a host that it
 * leads by itself, and has tasks made for the leaders of others. */
static void serve(struct maker *m, const struct task *task, int group) {
    const struct hpc_group_node *own = &m->d->t->groups[group];
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

/* Workers in order, in front of rows or behind them. weights: by worker; NULL: 1. */
static hpc_edge *fill(const struct maker *m, hpc_edge *edge, const int *workers, int n, const double *weights) {
    for (int i = 0; i < n; i++)
        *edge++ = (hpc_edge){m->d->h->workers[workers[i]], -1, weights == NULL ? 1 : weights[workers[i]]};
    return edge;
}

/* The inputs of a row: pushes in the order of workers, then what rows forward. Rows of one group whose inputs are the
 * pushes of all its workers share the list. */
static void put_inputs(struct maker *m, const struct task *task) {
    struct hpc_group_node *own = &m->d->t->groups[task->group];
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

/* The outputs of a row: first to relays, which have more way before them, then to workers in order. */
static void put_outputs(struct maker *m, const struct task *task) {
    struct hpc_group_node *own = &m->d->t->groups[task->group];
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

/* The outermost groups in a ring, beginning with the owner's: each folds its predecessor's fold with its own updates,
 * and passes on the answer that its predecessor got. The owner's group is the last to fold and the first to answer. */
static void make_ring(struct maker *m, const struct hpc_group_node *root, int row) {
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

/* The two neighbours of one of the ring's tasks. */
static void join_ring(struct maker *m, int i, int n) {
    const struct task *ring = m->tasks, *before = &ring[(i + n - 1) % n], *after = &ring[(i + 1) % n];
    if (i != 1) take_from(m, before->group, before->fold);
    if (i != n - 1) send_to(m, after->group, after->send);
}

static void make_chunk(struct maker *m, int chunk) {
    const int root = m->d->t->n - 1;
    const struct hpc_group_node *job = &m->d->t->groups[root];
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

/* An update is a part of the mean of all workers, or of the workers of its outermost group. */
static void find_weights(struct maker *m) {
    const hpc_hosts *h = m->d->h;
    const struct hpc_group_node *root = &m->d->t->groups[m->d->t->n - 1];
    for (int w = 0; w < h->n_workers; w++) m->weights[w] = h->sum ? 1.0 : 1.0 / (h->each ? 1 : h->n_workers);
    for (int i = 0; i < root->n_children && h->each && !h->sum; i++) {
        const struct hpc_group_node *group = &m->d->t->groups[root->children[i]];
        for (int k = 0; k < group->n_workers; k++) m->weights[group->workers[k]] = 1.0 / group->n_workers;
    }
}

/* The number of each rank's host, for receivers; freed by the caller. */
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

int hpc_plan_hosts_rows(const struct hpc_leaders *d, hpc_plan **plan) {
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
