/* Plans by which receivers apply: what becomes of the rows of a hub and of hosts, and every refusal. */
#include "check.h"
#include "plan/plan.h"

static const hpc_key keys[] = {{"conv", 1000, 0}, {"bias", 1, 0}, {"fc", 70000, 0}};

enum { SIZE = 8 };

static hpc_plan *of_hub(const int *workers, int n_workers, const int *servers, int n_servers, int apply_at) {
    hpc_hub hub;
    hpc_plan *plan = NULL;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    CHECK_EQ(hub.apply_at, HPC_AT_OWNERS);
    hub.keys = keys, hub.n_keys = 3, hub.workers = workers, hub.n_workers = n_workers;
    hub.servers = servers, hub.n_servers = n_servers, hub.chunk = 4096, hub.cores = 2;
    hub.wire = HPC_F16, hub.codec_out = HPC_BF16, hub.apply_at = apply_at;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    CHECK_OK(hpc_plan_check(plan, SIZE));
    return plan;
}

/* A row of one update, which a row forwards and this one applies. */
static void check_apply(const hpc_plan *plan, const hpc_row *from, const hpc_edge *out) {
    const hpc_row *row = &plan->rows[out->row];
    CHECK_EQ(row->action, HPC_APPLY);
    CHECK_EQ(row->owner, out->rank);
    CHECK_EQ(row->core, from->core);
    CHECK(row->n_in == 1 && row->quorum == 1 && row->in[0].weight == 1.0 && &plan->rows[row->in[0].row] == from);
    CHECK(row->codec_in == HPC_F16 && row->codec_out == HPC_BF16);
    CHECK_EQ(row->depth, 2);
}

/* Owners fold as they do where they apply; each worker applies for itself, and with both a server does too. */
static void hub(void) {
    static const int workers[] = {4, 0, 3}, servers[] = {3, 7};
    hpc_plan *owners = of_hub(workers, 3, servers, 2, HPC_AT_OWNERS);
    for (int apply_at = HPC_AT_RECEIVERS; apply_at <= HPC_AT_BOTH; apply_at++) {
        hpc_plan *plan = of_hub(workers, 3, servers, 2, apply_at);
        int chunks = 0, applies = 0;
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i], *old = &owners->rows[chunks];
            if (row->action == HPC_APPLY) {
                applies++;
                continue;
            }
            const int keeps = apply_at == HPC_AT_BOTH && old->owner == 7;
            CHECK_EQ(row->action, HPC_FORWARD);
            CHECK(row->owner == old->owner && row->core == old->core && row->offset == old->offset);
            CHECK(row->codec_in == HPC_F16 && row->codec_out == HPC_F16 && row->depth == 2);
            CHECK(row->n_in == 3 && row->quorum == 3);
            for (int e = 0; e < 3; e++)
                CHECK(row->in[e].rank == workers[e] && row->in[e].row == -1 && row->in[e].weight == old->in[e].weight);
            CHECK_EQ(row->n_out, 3 + keeps);
            int met = 0;
            for (int e = 0; e < row->n_out; e++) {
                const hpc_row *apply = &plan->rows[row->out[e].row];
                check_apply(plan, row, &row->out[e]);
                met |= 1 << apply->owner;
                CHECK_EQ(apply->n_out, apply->owner != 7);
                if (apply->n_out > 0) CHECK(apply->out[0].rank == apply->owner && apply->out[0].row == -1);
            }
            CHECK_EQ(met, 1 << 4 | 1 << 0 | 1 << 3 | keeps << 7);
            chunks++;
        }
        CHECK_EQ(chunks, owners->n_rows);
        CHECK_EQ(applies, plan->n_rows - chunks);
        hpc_plan *copy = NULL;
        CHECK_OK(hpc_plan_copy(plan, "test", &copy));
        CHECK(hpc_plan_digest(copy) == hpc_plan_digest(plan) && hpc_plan_digest(plan) != hpc_plan_digest(owners));
        hpc_plan_free(copy);
        hpc_plan_free(plan);
    }
    hpc_plan_free(owners);
}

/* One receiver a host, whose ranks it serves; nothing is relayed. A job on one host has one, its owner. */
static void hosts(void) {
    static const int workers[] = {0, 1, 2, 3, 4, 5, 6}, groups[] = {0, 0, 1, 1, 2, 3, 3, 0, 0, 0, 0, 1, 1, 1};
    static const int one[7] = {0};
    for (int top = HPC_TOP_SHARDED; top <= HPC_TOP_RING; top++)
        for (int levels = 0; levels <= 2; levels++) {
            hpc_hosts h;
            hpc_plan *plan = NULL;
            hpc_plan_args_init("hosts", &h, sizeof h);
            h.keys = keys, h.n_keys = 3, h.workers = workers, h.n_workers = 7, h.chunk = 4096, h.top = top;
            h.groups = levels ? groups : one, h.n_levels = levels ? levels : 1;
            h.wire = HPC_F16, h.codec_out = HPC_BF16, h.apply_at = HPC_AT_RECEIVERS;
            CHECK_OK(hpc_plan_make("hosts", &h, &plan));
            CHECK_OK(hpc_plan_check(plan, SIZE));
            for (int i = 0; i < plan->n_rows; i++) {
                const hpc_row *row = &plan->rows[i];
                CHECK(row->action == HPC_APPLY || (row->action == HPC_FORWARD && levels > 0));
                for (int e = 0; e < row->n_out; e++)
                    if (row->action == HPC_APPLY)
                        CHECK(row->out[e].row == -1 && h.groups[row->out[e].rank] == h.groups[row->owner]);
                    else if (plan->rows[row->out[e].row].action == HPC_APPLY)
                        check_apply(plan, row, &row->out[e]);
                int served = 0; /* all of the host */
                for (int w = 0; w < 7; w++) served += h.groups[w] == h.groups[row->owner];
                if (row->action == HPC_APPLY) CHECK_EQ(row->n_out, served);
            }
            hpc_plan_free(plan);
        }
}

/* Down the tree of its server a chunk comes to each worker once, from its parent: inner ranks pass it on, and apply. */
static void trees(void) {
    static const int workers[] = {4, 0, 3, 6},
                     servers[] = {3, 7}; /* by numbers: 2 -> 0 -> 1, 3; and 7 -> 3 -> 2 -> 0, 1 */
    static const int parents[] = {2, 0, -1, 0, 2, 2, 3, -1};
    static const int from[2][4] = {{3, 4, 3, 4}, {3, 3, 6, 7}}; /* ranks */
    hpc_hub hub;
    hpc_plan *plan = NULL;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys, hub.n_keys = 3, hub.workers = workers, hub.n_workers = 4, hub.servers = servers, hub.n_servers = 2;
    hub.chunk = 4096, hub.cores = 2, hub.wire = HPC_F16, hub.codec_out = HPC_BF16, hub.apply_at = HPC_AT_RECEIVERS;
    hub.parents = parents, hub.n_parents = 8;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    CHECK_OK(hpc_plan_check(plan, SIZE));
    int sums = 0, passing = 0, applies = 0;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i], *root = row;
        if (row->action == HPC_FORWARD && row->in[0].row < 0) {
            sums++;
            CHECK(row->n_in == 4 && row->in[1].weight == 0.25 && row->codec_in == HPC_F16 && row->codec_out == HPC_F16);
            continue;
        }
        passing += row->action == HPC_FORWARD, applies += row->action == HPC_APPLY;
        CHECK(row->n_in == 1 && row->in[0].weight == 1 && row->quorum == 1 && row->codec_in == HPC_F16);
        while (root->in[0].row >= 0) root = &plan->rows[root->in[0].row];
        CHECK(root->offset == row->offset && root->key == row->key && root->core == row->core);
        const hpc_row *feeder = &plan->rows[row->in[0].row];
        if (feeder->owner == row->owner) { /* an inner rank's, for itself */
            CHECK(row->action == HPC_APPLY && feeder->action == HPC_FORWARD);
            feeder = feeder == root ? feeder : &plan->rows[feeder->in[0].row];
        }
        for (int w = 0; w < 4; w++)
            if (workers[w] == row->owner) CHECK_EQ(feeder->owner, from[root->owner == 7][w]);
    }
    int of_first = 0;
    for (int i = 0; i < plan->n_rows; i++)
        of_first += plan->rows[i].owner == 3 && plan->rows[i].action == HPC_FORWARD && plan->rows[i].in[0].row < 0;
    CHECK(of_first > 0 && of_first < sums);
    CHECK_EQ(applies, 4 * sums);
    CHECK_EQ(passing, of_first + 2 * (sums - of_first));
    hpc_plan_free(plan);

    int wrong[8];
    memcpy(wrong, parents, sizeof wrong);
    hub.parents = wrong;
    wrong[0] = 1;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("worker 0 does not come from server 0: its parents go in a circle");
    wrong[0] = 4;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("the parent of worker 0 in the tree of server 0 is 4; must be a number of a worker, 0 to 3, or -1");
    wrong[0] = 2, wrong[2] = 1;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("the parent of worker 2 in the tree of server 0 is 1, but it is this server: must be -1");
    hub.parents = parents, hub.n_parents = 4;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("n_parents is 4; 2 servers and 4 workers need one parent for each pair");
    hub.n_parents = 8, hub.apply_at = HPC_AT_OWNERS;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("parents is given and apply_at is 0 (owners): only folds of updates go down trees");
}

/* With apart each worker applies for itself, for each chunk once; else one of its host does so for all. */
static void hosts_apart(void) {
    enum { WORKERS = 5 };
    static const int workers[] = {0, 1, 2, 3, 4}, groups[] = {0, 0, 1, 1, 1};
    for (int apart = 0; apart < 2; apart++) {
        hpc_hosts h;
        hpc_plan *plan = NULL;
        int applies[WORKERS] = {0}, sends[WORKERS] = {0}, others = 0;
        hpc_plan_args_init("hosts", &h, sizeof h);
        h.keys = keys, h.n_keys = 3, h.workers = workers, h.n_workers = WORKERS, h.groups = groups;
        h.apart = apart, h.apply_at = HPC_AT_RECEIVERS;
        CHECK_OK(hpc_plan_make("hosts", &h, &plan));
        CHECK_OK(hpc_plan_check(plan, WORKERS));
        int chunks = 0;
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            chunks += i == 0 || row->key != row[-1].key || row->offset != row[-1].offset;
            applies[row->owner] += row->action == HPC_APPLY;
            for (int e = 0; e < row->n_out && row->action == HPC_APPLY; e++) {
                sends[row->out[e].rank]++;
                others += row->out[e].rank != row->owner;
            }
        }
        for (int who = 0; who < WORKERS; who++) CHECK_EQ(sends[who], chunks);
        for (int who = 0; who < WORKERS && apart; who++) CHECK_EQ(applies[who], chunks);
        CHECK_EQ(others > 0, !apart);
        hpc_plan_free(plan);
    }
}

/* Each update counts in full, or as its part of its group's mean, and a sum takes all of them. */
static void each(void) {
    static const int workers[] = {0, 1, 2}, groups[] = {0, 0, 1}, parents[] = {-1, 0, 1};
    hpc_hub hub;
    hpc_hosts h;
    hpc_plan *plan = NULL;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys, hub.n_keys = 3, hub.workers = hub.servers = workers, hub.n_workers = 3, hub.n_servers = 1;
    hub.apply_at = HPC_AT_RECEIVERS, hub.each = 1;
    for (int tree = 0; tree < 2; tree++) {
        hub.parents = tree ? parents : NULL, hub.n_parents = tree ? 3 : 0;
        CHECK_OK(hpc_plan_make("hub", &hub, &plan));
        for (int i = 0; i < plan->n_rows; i++) {
            const hpc_row *row = &plan->rows[i];
            CHECK_EQ(row->quorum, row->n_in);
            for (int e = 0; e < row->n_in; e++) CHECK(row->in[e].weight == 1);
        }
        hpc_plan_free(plan);
    }
    hpc_plan_args_init("hosts", &h, sizeof h);
    h.keys = keys, h.n_keys = 3, h.workers = workers, h.n_workers = 3, h.groups = groups;
    h.apply_at = HPC_AT_RECEIVERS, h.apart = h.each = 1;
    CHECK_OK(hpc_plan_make("hosts", &h, &plan));
    for (int i = 0; i < plan->n_rows; i++)
        for (int e = 0; e < plan->rows[i].n_in; e++) {
            const hpc_edge *in = &plan->rows[i].in[e];
            CHECK(in->weight == (in->row < 0 && in->rank < 2 ? 0.5 : 1));
        }
    hpc_plan_free(plan);
}

static void refusals(void) {
    static const int workers[] = {0, 1}, groups[] = {0, 1};
    hpc_plan *plan = NULL;
    hpc_hub hub;
    hpc_hosts h;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys, hub.n_keys = 3, hub.workers = hub.servers = workers, hub.n_workers = hub.n_servers = 2;
    hub.apply_at = 3;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("apply_at is 3; must be 0 (owners), 1 (receivers) or 2 (both)");
    hub.apply_at = HPC_AT_RECEIVERS;
    hpc_plan_args_init("hosts", &h, sizeof h);
    h.keys = keys, h.n_keys = 3, h.workers = workers, h.n_workers = 2, h.groups = groups, h.apply_at = -1;
    CHECK_STATUS(hpc_plan_make("hosts", &h, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("apply_at is -1");

    const hpc_key huge = {"huge", (uint64_t)HPC_PLAN_NUMBERS * 16, 0};
    hub.keys = &huge, hub.n_keys = 1, hub.chunk = 128;
    CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("with apply_at 1 each chunk has a row at each receiver");

    const hpc_edge push = {0, -1, 1}; /* only a row that gets a fold may send nothing on */
    const hpc_row row = {.count = 1, .depth = 1, .quorum = 1, .n_in = 1, .in = &push};
    const hpc_plan alone = {.n_keys = 1, .n_rows = 1, .keys = &(hpc_key){"a", 1, 0}, .rows = &row};
    CHECK_STATUS(hpc_plan_check(&alone, 1), HPC_ERR_INVALID);
    CHECK_MESSAGE("row 0 has no out-edge");
}

int main(void) {
    hub();
    hosts();
    trees();
    hosts_apart();
    each();
    refusals();
    return 0;
}
