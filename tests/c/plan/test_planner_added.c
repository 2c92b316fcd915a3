/* A planner of one's own: this program has an array with one more member, "turns", and hpc_planners is its own.
 * docs/architecture.md shows this file. */
#include "exchange_plans.h"
#include "plan/planner.h"
#include "base/status.h"

enum { STEPS = 5 };

/* ---- the planner: ranks own whole keys by turns, and all ranks work ---- */

typedef struct turns {
    size_t size;
    const hpc_key *keys;
    int n_keys, ranks, first; /* first: the owner of the first key */
} turns;

static void init(void *args) {
    *(turns *)args = (turns){.size = sizeof(turns)};
}

static int plan_turns(const void *args, hpc_plan **plan) {
    const turns *t = args;
    hpc_plan_block b;
    int status = hpc_plan_check_keys(t->keys, t->n_keys);
    if (status == HPC_OK && t->ranks < 1)
        status = hpc_fail(HPC_ERR_INVALID, "plan", "plan: ranks is %d; must be 1 or more", t->ranks);
    if (status == HPC_OK) status = hpc_plan_block_make(t->keys, t->n_keys, t->n_keys, 2 * (size_t)t->ranks, "plan", &b);
    if (status != HPC_OK) return status;
    hpc_edge *in = b.edges, *out = in + t->ranks;
    for (int r = 0; r < t->ranks; r++) {
        in[r] = (hpc_edge){.rank = r, .row = -1, .weight = 1};
        out[r] = in[r];
    }
    for (int k = 0; k < t->n_keys; k++)
        b.rows[k] = (hpc_row){.key = k,
                              .owner = (t->first + k) % t->ranks,
                              .action = HPC_APPLY,
                              .count = t->keys[k].count,
                              .depth = 1,
                              .quorum = t->ranks,
                              .n_in = t->ranks,
                              .in = in,
                              .n_out = t->ranks,
                              .out = out};
    *plan = b.plan;
    return HPC_OK;
}

static const hpc_planner planner_turns = {.name = "turns", .size = sizeof(turns), .init = init, .plan = plan_turns};

const hpc_planner *const *hpc_planners(void) {
    static const hpc_planner *const planners[] = {&hpc_planner_hub, &planner_turns, NULL};
    return planners;
}

/* ---- tests ---- */

/* arg: progress. */
static void trains(rank *r) {
    job j;
    reference ref;
    turns args;
    hpc_plan *plan = NULL;
    job_init(&j, r);
    CHECK_OK(hpc_plan_args_init("turns", &args, sizeof args));
    args.keys = j.keys, args.n_keys = j.n_keys, args.ranks = r->size, args.first = 1;
    CHECK_OK(hpc_plan_make("turns", &args, &plan));
    CHECK_OK(hpc_plan_check(plan, r->size));
    for (int k = 0; k < j.n_keys; k++) CHECK_EQ(plan->rows[k].owner, (1 + k) % r->size);
    j.plan = plan, j.progress = r->arg;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < j.n_keys; k++) {
            job_push_pull(r, &j, e, k, step);
            reference_step(&ref, k);
            reference_check(&ref, r, e, k);
        }
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* A name that no member has, arguments of another planner, and what the planner itself refuses. */
static void refuses(rank *r) {
    job j;
    turns args;
    hpc_hub hub;
    hpc_plan *plan = NULL;
    job_init(&j, r);
    CHECK_STATUS(hpc_plan_args_init("graph", &args, sizeof args), HPC_ERR_INVALID);
    CHECK_MESSAGE("no planner is called 'graph'; there are hub, turns");
    CHECK_STATUS(hpc_plan_args_init("turns", &hub, sizeof hub), HPC_ERR_INVALID);
    CHECK_MESSAGE("the arguments of planner 'turns' have");
    CHECK_STATUS(hpc_plan_make("turns", NULL, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("turns is NULL");
    hpc_plan_args_init("hub", &hub, sizeof hub);
    CHECK_STATUS(hpc_plan_make("turns", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("turns->size is");
    CHECK_OK(hpc_plan_args_init("turns", &args, sizeof args));
    args.keys = j.keys, args.n_keys = j.n_keys;
    CHECK_STATUS(hpc_plan_make("turns", &args, NULL), HPC_ERR_INVALID);
    CHECK_MESSAGE("plan is NULL");
    CHECK_STATUS(hpc_plan_make("turns", &args, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("ranks is 0; must be 1 or more");
    CHECK(plan == NULL);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "trains", .size = 3, .run = trains, .arg = HPC_PROGRESS_INLINE},
        {.name = "trains by threads", .size = 2, .run = trains, .arg = HPC_PROGRESS_THREAD},
        {.name = "refuses", .size = 1, .run = refuses, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
