/* The plan of a hierarchy of hosts: its rows, who leads, when it is a hub's, and every refusal. */
#include "check.h"
#include "plan/plan.h"

#include <string.h>

static const hpc_key keys[] = {{"conv", 1000, 0}, {"bias", 1, 0}, {"fc", 70000, 0}};
static const int workers[] = {4, 0, 3, 7, 1, 6};
static const int groups[] = {5, 5, 2, 2, 2, 9, 0, 0, 0, 0, 0, 1}; /* hosts {4 0} {3 7 1} {6}; racks {4 0 3 7 1} {6} */

enum { N = 6, SIZE = 8 };

static hpc_hosts small(void) {
    hpc_hosts hosts;
    hpc_plan_args_init("hosts", &hosts, sizeof hosts);
    CHECK_EQ(hosts.n_levels, 1);
    CHECK_EQ(hosts.chunk, 65536);
    CHECK_EQ(hosts.depth, 1);
    CHECK_EQ(hosts.cores, 1);
    hosts.keys = keys, hosts.n_keys = 3;
    hosts.workers = workers, hosts.n_workers = N;
    hosts.groups = groups;
    hosts.chunk = 4096;
    return hosts;
}

static hpc_plan *make(const hpc_hosts *hosts) {
    hpc_plan *plan = NULL;
    CHECK_OK(hpc_plan_make("hosts", hosts, &plan));
    CHECK_OK(hpc_plan_check(plan, SIZE));
    return plan;
}

/* The pushes that a row folds in the end, by rank: their weight, and how many there are. */
static void follow(const hpc_plan *plan, int r, double *weights, int *times) {
    const hpc_row *row = &plan->rows[r];
    for (int e = 0; e < row->n_in; e++) {
        const hpc_edge *edge = &row->in[e];
        if (edge->row >= 0) {
            CHECK_EQ(plan->rows[edge->row].action, HPC_FORWARD);
            CHECK_EQ(plan->rows[edge->row].core, row->core);
            CHECK(edge->weight == 1.0);
            follow(plan, edge->row, weights, times);
            continue;
        }
        weights[edge->rank] = edge->weight;
        times[edge->rank]++;
    }
}

static void give(const hpc_plan *plan, int r, int *times) {
    const hpc_row *row = &plan->rows[r];
    for (int e = 0; e < row->n_out; e++) {
        const hpc_edge *edge = &row->out[e];
        if (edge->row < 0) {
            times[edge->rank]++;
            continue;
        }
        const hpc_row *relay = &plan->rows[edge->row];
        CHECK_EQ(relay->action, HPC_RELAY);
        CHECK_EQ(relay->owner, edge->rank);
        CHECK_EQ(relay->core, row->core);
        CHECK_EQ(relay->n_in, 1);
        CHECK_EQ(relay->quorum, 1);
        CHECK(relay->in[0].rank == row->owner && relay->in[0].row == r && relay->in[0].weight == 1.0);
        CHECK(relay->codec_in == row->codec_out && relay->codec_out == row->codec_out);
        give(plan, edge->row, times);
    }
}

/* Each push comes to the owner once, and each worker gets each chunk once. */
static void check_ways(const hpc_plan *plan, double weight) {
    uint64_t covered[3] = {0};
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        if (row->action != HPC_APPLY) continue;
        CHECK_EQ(row->offset, covered[row->key]);
        covered[row->key] += row->count;
        double weights[SIZE] = {0};
        int pushes[SIZE] = {0}, answers[SIZE] = {0};
        follow(plan, r, weights, pushes);
        give(plan, r, answers);
        for (int i = 0; i < N; i++) {
            CHECK_EQ(pushes[workers[i]], 1);
            CHECK_EQ(answers[workers[i]], 1);
            CHECK(weights[workers[i]] == weight);
            pushes[workers[i]] = answers[workers[i]] = 0;
        }
        for (int rank = 0; rank < SIZE; rank++) CHECK(pushes[rank] == 0 && answers[rank] == 0);
    }
    for (int k = 0; k < 3; k++) CHECK_EQ(covered[k], keys[k].count);
}

static void test_ways(void) {
    for (int top = HPC_TOP_SHARDED; top <= HPC_TOP_RING; top++)
        for (int levels = 1; levels <= 2; levels++)
            for (int cores = 1; cores <= 3; cores++) {
                hpc_hosts hosts = small();
                hosts.top = top, hosts.n_levels = levels, hosts.cores = cores;
                hosts.wire = HPC_F16, hosts.codec_out = HPC_BF16, hosts.depth = 2, hosts.sum = cores == 1;
                hpc_plan *plan = make(&hosts);
                check_ways(plan, hosts.sum ? 1.0 : 1.0 / N);
                for (int r = 0; r < plan->n_rows; r++) {
                    const hpc_row *row = &plan->rows[r];
                    CHECK_EQ(row->depth, 2);
                    CHECK_EQ(row->codec_in, row->action == HPC_RELAY ? HPC_BF16 : HPC_F16);
                    CHECK_EQ(row->codec_out, row->action == HPC_FORWARD ? HPC_F16 : HPC_BF16);
                }
                hpc_plan_free(plan);
            }
}

static void test_codecs_by_key(void) {
    const int wires[] = {HPC_F32, HPC_F16, HPC_BF16}, codecs_out[] = {HPC_BF16, HPC_F32, HPC_F16};
    hpc_hosts hosts = small();
    hosts.wires = wires, hosts.n_wires = 3;
    hosts.codecs_out = codecs_out, hosts.n_codecs_out = 3;
    hpc_plan *plan = make(&hosts);
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        CHECK_EQ(row->codec_in, row->action == HPC_RELAY ? codecs_out[row->key] : wires[row->key]);
        CHECK_EQ(row->codec_out, row->action == HPC_FORWARD ? wires[row->key] : codecs_out[row->key]);
    }
    hpc_plan_free(plan);
}

/* Only leading ranks own rows; in a host each of them leads as much. */
static void test_leaders(void) {
    const int leads[] = {0, 1, 1, 0, 1, 1};
    const bool may[SIZE] = {[0] = true, [3] = true, [1] = true, [6] = true};
    hpc_hosts hosts = small();
    hosts.leads = leads;
    hpc_plan *plan = make(&hosts);
    uint64_t led[SIZE] = {0};
    for (int r = 0; r < plan->n_rows; r++) {
        CHECK(may[plan->rows[r].owner]);
        if (plan->rows[r].action != HPC_RELAY) led[plan->rows[r].owner] += plan->rows[r].count;
    }
    CHECK_EQ(led[0], 71001); /* alone for its host: of all chunks */
    CHECK_EQ(led[3] + led[1], 71001);
    CHECK((led[3] > led[1] ? led[3] - led[1] : led[1] - led[3]) <= 1024);
    hpc_plan_free(plan);
}

static void check_equal(const hpc_plan *a, const hpc_plan *b) {
    CHECK_EQ(a->n_rows, b->n_rows);
    CHECK(hpc_plan_digest(a) == hpc_plan_digest(b));
}

/* A host of all workers, or one for each, is a hub. */
static void test_hub(void) {
    const int one[N] = {3, 3, 3, 3, 3, 3}, each[N] = {5, 4, 3, 2, 1, 0}, leads[N] = {0, 1, 1, 0, 0, 1};
    const int servers[] = {0, 3, 6};
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys, hub.n_keys = 3;
    hub.workers = workers, hub.n_workers = N;
    hub.cores = 2, hub.chunk = 4096, hub.wire = HPC_F16, hub.codec_out = HPC_BF16, hub.sum = 1;
    for (int i = 0; i < 4; i++) {
        hpc_hosts hosts = small();
        hpc_plan *of_hosts, *of_hub;
        hosts.cores = 2, hosts.wire = HPC_F16, hosts.codec_out = HPC_BF16, hosts.sum = 1;
        hosts.groups = i & 1 ? each : one;
        hosts.leads = i & 2 && !(i & 1) ? leads : NULL;
        hosts.top = i & 1 ? HPC_TOP_SHARDED : HPC_TOP_RING;
        hub.servers = hosts.leads ? servers : workers;
        hub.n_servers = hosts.leads ? 3 : N;
        CHECK_OK(hpc_plan_make("hub", &hub, &of_hub));
        of_hosts = make(&hosts);
        check_equal(of_hosts, of_hub);
        hpc_plan_free(of_hosts);
        hpc_plan_free(of_hub);
    }
}

/* Rows whose inputs, or outputs, are the same workers share the list. */
static void test_lists_are_shared(void) {
    hpc_hosts hosts = small();
    hpc_plan *plan = make(&hosts);
    const hpc_edge *in = NULL, *out = NULL;
    int forwards = 0;
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        if (row->action == HPC_FORWARD && row->n_in == 3) {
            CHECK(in == NULL || in == row->in);
            in = row->in;
            forwards++;
        }
        if (row->action == HPC_RELAY && row->n_out == 3) {
            CHECK(out == NULL || out == row->out);
            out = row->out;
        }
    }
    CHECK(forwards > 10);
    hpc_plan_free(plan);
}

static void refused(const hpc_hosts *hosts, const char *message) {
    hpc_plan *plan = NULL;
    CHECK_STATUS(hpc_plan_make("hosts", hosts, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE(message);
    CHECK(plan == NULL);
}

#define REFUSED(change, message)                                                                                       \
    do {                                                                                                               \
        hpc_hosts h = small();                                                                                         \
        change;                                                                                                        \
        refused(&h, message);                                                                                          \
    } while (0)

static void test_refusals(void) {
    const int split[] = {5, 5, 2, 2, 2, 9, 0, 0, 0, 0, 1, 1}, lost[] = {5, 5, 2, -1, 2, 9},
              twice[] = {4, 0, 3, 0, 1, 6};
    const int bad[] = {4, 0, -3, 7, 1, 6}, led[] = {1, 0, 0, 0, 0, 1}, wires[] = {HPC_F32, 14, HPC_F32};
    hpc_hosts good = small();
    refused(NULL, "hosts is NULL");
    CHECK_STATUS(hpc_plan_make("hosts", &good, NULL), HPC_ERR_INVALID);
    CHECK_MESSAGE("plan is NULL");
    REFUSED(h.size--, "call hpc_plan_args_init first");
    REFUSED(h.n_keys = 0, "n_keys is 0");
    REFUSED(h.n_workers = 0, "workers is empty (n_workers is 0); a hierarchy needs at least one");
    REFUSED(h.workers = NULL, "workers is empty");
    REFUSED(h.workers = bad, "workers[2] is rank -3");
    REFUSED(h.workers = twice, "rank 0 is given twice in workers");
    REFUSED(h.n_levels = 0, "n_levels is 0; 1 (hosts) to 8 are possible");
    REFUSED(h.n_levels = 9, "n_levels is 9");
    REFUSED(h.groups = NULL, "groups is NULL");
    REFUSED(h.groups = lost, "rank 7 is in no group of level 0: groups[0][3] is -1");
    REFUSED((h.groups = split, h.n_levels = 2), "ranks 3 and 1 share group 2 of level 0, but are in groups 0 and 1");
    REFUSED(h.leads = led, "the host of rank 3 has no rank that leads");
    REFUSED(h.top = 2, "top is 2; must be 0 (sharded) or 1 (ring)");
    REFUSED(h.cores = 0, "cores is 0");
    REFUSED(h.chunk = 100, "chunk is 100 bytes");
    REFUSED(h.depth = 33, "depth is 33");
    REFUSED(h.sum = 2, "sum is 2");
    REFUSED(h.wire = 14, "wire is 14");
    REFUSED(h.codec_out = HPC_THRESHOLD, "codec_out is 8; must be 0 (float32), 2 (float16), 3 (bfloat16)");
    REFUSED((h.wires = wires, h.n_wires = 3), "wires[1], of key 'bias', is 14");
    const hpc_key large[] = {{"w", 16u << 23, 0}};
    REFUSED((h.keys = large, h.n_keys = 1, h.chunk = 64), "makes more than the 16777216 rows");
}

int main(void) {
    test_ways();
    test_codecs_by_key();
    test_leaders();
    test_hub();
    test_lists_are_shared();
    test_refusals();
    return 0;
}
