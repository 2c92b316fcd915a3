/* Memory of plans: each plan is one block with the struct, rows, edges, keys and their names. This file makes blocks,
 * copies plans, and computes the digests by which plans are compared. */
#include "plan/planner.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hpc_plan_block_make(const hpc_key *keys, int n_keys, int n_rows, size_t n_edges, const char *op,
                        hpc_plan_block *b) {
    size_t names = 0;
    for (int k = 0; k < n_keys; k++) names += strlen(keys[k].name) + 1;
    size_t nbytes = sizeof(hpc_plan) + (size_t)n_rows * sizeof(hpc_row) + n_edges * sizeof(hpc_edge) +
                    (size_t)n_keys * sizeof(hpc_key) + names;
    hpc_plan *plan = calloc(1, nbytes);
    if (plan == NULL)
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for a plan of %d rows (%zu bytes)", op, n_rows, nbytes);

    b->plan = plan;
    b->rows = (hpc_row *)(void *)(plan + 1);
    b->edges = (hpc_edge *)(void *)(b->rows + n_rows);
    hpc_key *own_keys = (hpc_key *)(void *)(b->edges + n_edges);
    char *name = (char *)(own_keys + n_keys);
    for (int k = 0; k < n_keys; k++) {
        size_t length = strlen(keys[k].name) + 1;
        memcpy(name, keys[k].name, length);
        own_keys[k] = (hpc_key){name, keys[k].count, keys[k].unit};
        name += length;
    }
    *plan = (hpc_plan){.n_keys = n_keys, .n_rows = n_rows, .keys = own_keys, .rows = b->rows};
    return HPC_OK;
}

void hpc_plan_free(hpc_plan *plan) {
    free(plan);
}

/* ---- copies ---- */

/* Rows share lists of edges, so the last LISTS lists are remembered by address, each with its copy and its digest. */
enum { LISTS = 64 };

struct list {
    const hpc_edge *edges;
    int n;
    const hpc_edge *copy;
    uint64_t digest;
};

struct lists {
    struct list list[LISTS];
    unsigned n; /* how many lists were met so far */
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

/* Returns the copy of a list of n edges. Makes the copy from *room, unless the list is among the last LISTS lists; if
 * *room is NULL, only counts the edges that are needed. */
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

/* FNV-1a by words of 64 bits. The shift lets high bits change low ones, which the product alone does not. */
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

uint64_t hpc_plan_unit(const hpc_key *key) {
    if (key->unit == 0) return 1;
    return key->unit < key->count ? key->unit : key->count;
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

int hpc_plan_has_ways(const hpc_plan *plan) {
    for (int i = 0; i < plan->n_rows; i++)
        for (int e = 0; e < plan->rows[i].n_in; e++)
            if (hpc_edge_via(&plan->rows[i].in[e]) >= 0) return 1;
    return 0;
}

int hpc_plan_takes_float32(const hpc_plan *plan) {
    for (int r = 0; r < plan->n_rows; r++)
        if (plan->rows[r].codec_in != HPC_F32) return 0;
    return 1;
}

/* ---- by the name of a planner ---- */

static const char op_plan[] = "plan";

static int find(const char *name, const hpc_planner **found) {
    char names[256] = "";
    size_t used = 0;
    if (name == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: the planner's name is NULL");
    for (const hpc_planner *const *of = hpc_planners(); *of != NULL; of++) {
        if (strcmp(name, (*of)->name) == 0) {
            *found = *of;
            return HPC_OK;
        }
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "", (*of)->name);
    }
    return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: no planner is called '%s'; there are %s", name, names);
}

static int run(const hpc_planner *planner, const void *args, hpc_plan **plan) {
    size_t size;
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %s is NULL", planner->name);
    memcpy(&size, args, sizeof size);
    if (size != planner->size)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %s->size is %zu, not %zu: call hpc_plan_args_init first",
                        planner->name, size, planner->size);
    if (plan == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: plan is NULL");
    return planner->plan(args, plan);
}

int hpc_plan_args_init(const char *name, void *args, size_t size) {
    const hpc_planner *planner = NULL;
    int status = find(name, &planner);
    if (status != HPC_OK) return status;
    if (args == NULL) return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: %s is NULL", name);
    if (size != planner->size)
        return hpc_fail(HPC_ERR_INVALID, op_plan, "plan: the arguments of planner '%s' have %zu bytes, not %zu", name,
                        planner->size, size);
    planner->init(args);
    return HPC_OK;
}

int hpc_plan_make(const char *name, const void *args, hpc_plan **plan) {
    const hpc_planner *planner = NULL;
    int status = find(name, &planner);
    return status == HPC_OK ? run(planner, args, plan) : status;
}
