/* Plans made by a planner that is given by its name. */
#include <stdio.h>
#include <string.h>

#include "plan/planner.h"
#include "base/status.h"

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
