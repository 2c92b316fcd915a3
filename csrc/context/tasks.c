/* The work that waits of a context do besides looking at their conditions, and the context's engine. */
#include "context/context.h"

int hpc_context_progress(void *context, hpc_looker looker) {
    hpc_context *c = context;
    int left = 0;
    for (int i = 0; c->used[i] != NULL; i++) {
        const hpc_transport *t = c->used[i];
        if (t->progress != NULL && !(t->wakes_beds && looker == HPC_LOOKS_BESIDE_BED)) left |= t->progress(c);
    }
    return left | (atomic_load_explicit(&c->leaving, memory_order_relaxed) ? 0 : hpc_member_work(c->member, looker));
}

int hpc_context_add_task(hpc_context *c, hpc_task *task) {
    atomic_store_explicit(&c->group.progress, hpc_context_progress, memory_order_release);
    return hpc_task_add(c->member, task);
}

static void fail(hpc_group *group, const char *why) {
    hpc_context_abort((hpc_context *)(void *)group, why);
}

static int has_rank_beside(const hpc_context *c) {
    for (int r = 0; r < c->group.size; r++)
        if (r != c->group.rank && hpc_same_process(c, r)) return 1;
    return 0;
}

int hpc_context_join_engine(hpc_context *c) {
    hpc_engine *fresh = NULL;
    if (c->engine == NULL && has_rank_beside(c)) fresh = hpc_engine_new();
    if (c->engine != NULL || fresh != NULL || !has_rank_beside(c))
        c->member = hpc_engine_join(c->engine != NULL ? c->engine : fresh, &c->group, fail);
    hpc_engine_release(fresh);
    return c->member != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for an engine");
}

int hpc_engine_create(hpc_engine **engine) {
    if (engine == NULL) return hpc_fail(HPC_ERR_INVALID, "engine", "engine: engine is NULL");
    *engine = hpc_engine_new();
    return *engine != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, "engine", "engine: no memory for an engine");
}

void hpc_engine_free(hpc_engine *engine) {
    hpc_engine_release(engine);
}
