/* A plan is one block: the struct, rows, edges, keys and their names. */
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"
#include "base/status.h"

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
