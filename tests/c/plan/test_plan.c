/* Plans: the partition and its bound, what a hub's plan looks like, copies and digests, and every refusal. */
#include "check.h"
#include "plan/plan.h"

#include <math.h>

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

/* ---- partition ---- */

static uint64_t fullest(const uint64_t *sizes, const int *bin_of, int n, int bins) {
    uint64_t most = 0;
    for (int b = 0; b < bins; b++) {
        uint64_t load = 0;
        for (int i = 0; i < n; i++) load += bin_of[i] == b ? sizes[i] : 0;
        if (load > most) most = load;
    }
    return most;
}

/* The least possible of the fullest bin, by trying every way. */
static uint64_t least(const uint64_t *sizes, int n, uint64_t *loads, int bins, int i) {
    uint64_t best = UINT64_MAX;
    if (i == n) {
        best = 0;
        for (int b = 0; b < bins; b++) best = loads[b] > best ? loads[b] : best;
        return best;
    }
    for (int b = 0; b < bins; b++) {
        loads[b] += sizes[i];
        uint64_t found = least(sizes, n, loads, bins, i + 1);
        if (found < best) best = found;
        loads[b] -= sizes[i];
    }
    return best;
}

static void test_partition_bound(void) {
    enum { MOST = 8 };
    for (int round = 0; round < 300; round++) {
        int bins = 2 + (int)random_below(3), n = 1 + (int)random_below(bins == 4 ? 7 : MOST), bin_of[MOST];
        uint64_t sizes[MOST], loads[4] = {0};
        for (int i = 0; i < n; i++) sizes[i] = random_below(20);
        CHECK_OK(hpc_partition(sizes, n, bins, 1 + (int)random_below(3), bin_of));
        for (int i = 0; i < n; i++) CHECK(bin_of[i] >= 0 && bin_of[i] < bins);
        CHECK(3 * fullest(sizes, bin_of, n, bins) <= 4 * least(sizes, n, loads, bins, 0));
    }
}

static void test_partition_mean(void) {
    enum { N = 500 };
    static uint64_t sizes[N];
    static int bin_of[N];
    for (int round = 0; round < 50; round++) {
        int bins = 1 + (int)random_below(40);
        uint64_t total = 0, largest = 0;
        for (int i = 0; i < N; i++) {
            sizes[i] = random_below(1u << (1 + random_below(20)));
            total += sizes[i];
            if (sizes[i] > largest) largest = sizes[i];
        }
        CHECK_OK(hpc_partition(sizes, N, bins, 1 + (int)random_below(8), bin_of));
        CHECK(fullest(sizes, bin_of, N, bins) <= total / (uint64_t)bins + 1 + largest);
    }
}

static void test_partition_ties(void) {
    const uint64_t equal[] = {5, 5, 5, 5, 5, 5, 5}, sizes[] = {1, 9, 4, 4};
    int bin_of[7];
    /* groups {0,1} {2,3} {4}: round the groups first, then round their bins */
    const int round_groups[] = {0, 2, 4, 1, 3, 4, 0};
    CHECK_OK(hpc_partition(equal, 7, 5, 2, bin_of));
    const int round_five[] = {0, 2, 4, 1, 3};
    for (int i = 0; i < 5; i++) CHECK_EQ(bin_of[i], round_five[i]);
    /* all bins hold 5; group {4} holds 5 in all, the others 10 */
    CHECK_EQ(bin_of[5], round_groups[5]);
    CHECK_EQ(bin_of[6], round_groups[6]);

    const int largest_first[] = {1, 0, 1, 1};
    CHECK_OK(hpc_partition(sizes, 4, 2, 1, bin_of));
    for (int i = 0; i < 4; i++) CHECK_EQ(bin_of[i], largest_first[i]);
}

static void test_partition_refusals(void) {
    const uint64_t sizes[] = {1, UINT64_MAX};
    int bin_of[2] = {7, 7};
    CHECK_OK(hpc_partition(NULL, 0, 1, 1, NULL));
    CHECK_STATUS(hpc_partition(sizes, -1, 1, 1, bin_of), HPC_ERR_INVALID);
    CHECK_MESSAGE("n is -1");
    CHECK_STATUS(hpc_partition(sizes, 1, 0, 1, bin_of), HPC_ERR_INVALID);
    CHECK_MESSAGE("bins is 0");
    CHECK_STATUS(hpc_partition(sizes, 1, 1, 0, bin_of), HPC_ERR_INVALID);
    CHECK_MESSAGE("per_group is 0");
    CHECK_STATUS(hpc_partition(NULL, 1, 1, 1, bin_of), HPC_ERR_INVALID);
    CHECK_MESSAGE("sizes is NULL");
    CHECK_STATUS(hpc_partition(sizes, 1, 1, 1, NULL), HPC_ERR_INVALID);
    CHECK_MESSAGE("bin_of is NULL");
    CHECK_STATUS(hpc_partition(sizes, 2, 1, 1, bin_of), HPC_ERR_INVALID);
    CHECK_MESSAGE("sizes[1]");
    CHECK(bin_of[0] == 7 && bin_of[1] == 7);
    CHECK_OK(hpc_partition(sizes + 1, 1, 1, 1 << 30, bin_of));
}

/* ---- hub ---- */

static const hpc_key keys[] = {{"conv", 1000, 0}, {"bias", 1, 0}, {"fc", 70000, 0}};
static const int workers[] = {3, 0, 1}, servers[] = {2, 0};

static hpc_hub small_hub(void) {
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    CHECK_EQ(hub.chunk, 32768);
    hub.keys = keys, hub.n_keys = 3;
    hub.workers = workers, hub.n_workers = 3;
    hub.servers = servers, hub.n_servers = 2;
    hub.cores = 2;
    hub.chunk = 4096;
    return hub;
}

static hpc_plan *make(const hpc_hub *hub) {
    hpc_plan *plan = NULL;
    CHECK_OK(hpc_plan_make("hub", hub, &plan));
    CHECK_OK(hpc_plan_check(plan, 4));
    return plan;
}

static void test_hub_rows(void) {
    hpc_hub hub = small_hub();
    hub.depth = 3, hub.wire = HPC_BF16, hub.codec_out = HPC_F16;
    hpc_plan *plan = make(&hub);
    CHECK_EQ(plan->n_keys, 3);
    CHECK_EQ(plan->n_rows, 1 + 1 + 69);
    uint64_t at = 0;
    int key = 0, per_bin[4] = {0};
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        if (at == keys[key].count) key++, at = 0;
        CHECK_EQ(row->key, key);
        CHECK_EQ(row->offset, at);
        CHECK(row->count == 1024 || at + row->count == keys[key].count);
        at += row->count;
        CHECK(row->owner == 2 || row->owner == 0);
        CHECK(row->core == 0 || row->core == 1);
        if (row->count == 1024) per_bin[2 * (row->owner == 0) + row->core]++;
        CHECK_EQ(row->action, HPC_APPLY);
        CHECK_EQ(row->depth, 3);
        CHECK_EQ(row->quorum, 3);
        CHECK_EQ(row->codec_in, HPC_BF16);
        CHECK_EQ(row->codec_out, HPC_F16);
        CHECK(row->n_in == 3 && row->n_out == 3);
        CHECK(row->in == plan->rows[0].in && row->out == plan->rows[0].out);
    }
    CHECK(key == 2 && at == 70000);
    for (int b = 0; b < 4; b++) CHECK_EQ(per_bin[b], 17);
    for (int w = 0; w < 3; w++) {
        const hpc_edge *in = &plan->rows[0].in[w], *out = &plan->rows[0].out[w];
        CHECK(in->rank == workers[w] && in->row == -1 && in->weight == 1.0 / 3);
        CHECK(out->rank == workers[w] && out->row == -1);
    }
    for (int k = 0; k < 3; k++) {
        CHECK(plan->keys[k].name != keys[k].name && strcmp(plan->keys[k].name, keys[k].name) == 0);
        CHECK_EQ(plan->keys[k].count, keys[k].count);
    }
    hpc_plan_free(plan);
    hpc_plan_free(NULL);
}

static void test_hub_choices(void) {
    hpc_hub hub = small_hub();
    hub.sum = 1;
    hpc_plan *plan = make(&hub);
    CHECK(plan->rows[0].in[2].weight == 1.0 && plan->rows[0].quorum == 3);
    hpc_plan_free(plan);
    hub.sum = 0, hub.each = 1;
    plan = make(&hub);
    CHECK(plan->rows[0].in[2].weight == 1.0 && plan->rows[0].quorum == 1);
    hpc_plan_free(plan);
    hub.chunk = (uint64_t)1 << 63;
    plan = make(&hub);
    CHECK_EQ(plan->n_rows, 3);
    hpc_plan_free(plan);
    hub.chunk = 64;
    plan = make(&hub);
    CHECK_EQ(plan->n_rows, 63 + 1 + 4375);
    hpc_plan_free(plan);
    hub = small_hub();
    hub.n_keys = hub.n_workers = hub.n_servers = 1;
    hub.depth = HPC_PLAN_DEPTH;
    for (hub.cores = 1; hub.cores <= HPC_PLAN_CORES; hub.cores += HPC_PLAN_CORES - 1) {
        plan = make(&hub);
        CHECK(plan->n_rows == 1 && plan->rows[0].depth == HPC_PLAN_DEPTH && plan->rows[0].in[0].weight == 1.0);
        hpc_plan_free(plan);
    }
}

#define REFUSED(text, ...)                                                                                             \
    do {                                                                                                               \
        hpc_hub hub = small_hub();                                                                                     \
        hpc_plan *plan = NULL;                                                                                         \
        __VA_ARGS__;                                                                                                   \
        CHECK_STATUS(hpc_plan_make("hub", &hub, &plan), HPC_ERR_INVALID);                                              \
        CHECK_MESSAGE(text);                                                                                           \
        CHECK(plan == NULL);                                                                                           \
    } while (0)

static void test_hub_refusals(void) {
    static const int twice[] = {1, 0, 1}, negative[] = {1, -2};
    const hpc_key same[] = {{"a", 1, 0}, {"b", 1, 0}, {"a", 2, 0}}, none[] = {{"a", 1, 0}, {"b", 0, 0}};
    const hpc_key unnamed[] = {{NULL, 1, 0}}, many[] = {{"a", ((uint64_t)16 << 24) + 1, 0}};
    const hpc_key huge[] = {{"a", HPC_PLAN_ELEMENTS, 0}, {"b", 1, 0}};
    hpc_plan *plan = NULL;
    CHECK_STATUS(hpc_plan_make("hub", NULL, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("hub is NULL");
    CHECK_STATUS(hpc_plan_make("hub", &(hpc_hub){.n_keys = 1}, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("hpc_plan_args_init");
    hpc_hub whole = small_hub();
    CHECK_STATUS(hpc_plan_make("hub", &whole, NULL), HPC_ERR_INVALID);
    REFUSED("n_keys is 0", hub.n_keys = 0);
    REFUSED("n_keys is 16777217", hub.n_keys = (1 << 24) + 1);
    REFUSED("keys is NULL", hub.keys = NULL);
    REFUSED("keys 0 and 2 are both named 'a'", hub.keys = same);
    REFUSED("key 'b' has no elements", hub.keys = none; hub.n_keys = 2);
    REFUSED("key 0 has no name", hub.keys = unnamed; hub.n_keys = 1);
    REFUSED("key 'b' has 1 elements, after 281474976710656", hub.keys = huge; hub.n_keys = 2);
    REFUSED("chunk is 64 bytes, which makes more than the 16777216 rows", hub.keys = many; hub.n_keys = 1;
            hub.chunk = 64);
    REFUSED("workers is empty", hub.n_workers = 0);
    REFUSED("workers is empty", hub.workers = NULL);
    REFUSED("servers is empty", hub.n_servers = 0);
    REFUSED("servers is empty", hub.n_servers = -1);
    REFUSED("rank 1 is given twice in workers", hub.workers = twice);
    REFUSED("rank 1 is given twice in servers", hub.servers = twice; hub.n_servers = 3);
    REFUSED("servers[1] is rank -2", hub.servers = negative);
    REFUSED("least is 65 bytes; 0 to chunk, 64, are possible", hub.chunk = 64; hub.least = 65);
    REFUSED("cores is 0", hub.cores = 0);
    REFUSED("cores is 1025", hub.cores = HPC_PLAN_CORES + 1);
    enum { MANY = (1 << 21) + 1 };
    int *many_ranks = malloc(MANY * sizeof *many_ranks);
    CHECK(many_ranks);
    for (int i = 0; i < MANY; i++) many_ranks[i] = i;
    REFUSED("2097153 servers of 1024 cores are too many", hub.servers = many_ranks; hub.n_servers = MANY;
            hub.cores = HPC_PLAN_CORES);
    free(many_ranks);
    REFUSED("chunk is 0 bytes", hub.chunk = 0);
    REFUSED("chunk is 100 bytes", hub.chunk = 100);
    REFUSED("chunk is 96 bytes", hub.chunk = 96);
    REFUSED("depth is 0", hub.depth = 0);
    REFUSED("depth is 33", hub.depth = 33);
    REFUSED("wire is 1", hub.wire = HPC_F64);
    REFUSED("wire is 14", hub.wire = 14);
    static const int wrong[] = {HPC_F32, HPC_F64, HPC_F16};
    REFUSED("wires[1], of key 'bias', is 1", hub.wires = wrong; hub.n_wires = 3);
    REFUSED("n_wires is 2 and wires is given; must be 3, one for each key", hub.wires = wrong; hub.n_wires = 2);
    REFUSED("n_wires is 3 and wires is NULL", hub.n_wires = 3);
    REFUSED("codecs_out[1], of key 'bias', is 1", hub.codecs_out = wrong; hub.n_codecs_out = 3);
    REFUSED("n_codecs_out is 1 and codecs_out is given; must be 3", hub.codecs_out = wrong; hub.n_codecs_out = 1);
    REFUSED("codec_out is 1", hub.codec_out = HPC_F64);
    REFUSED("codec_out is -1", hub.codec_out = -1);
    REFUSED("sum is 2", hub.sum = 2);
    REFUSED("each is -1", hub.each = -1);
    REFUSED("affinity is 2; must be 0 (key by core) or 1 (worker by interface)", hub.affinity = 2);
    REFUSED("affinity is -1", hub.affinity = -1);
    REFUSED("interfaces is -1; 0 (one) to 2", hub.interfaces = -1);
    REFUSED("interfaces is 3; 0 (one) to 2 are possible, since each needs one of the 2 cores", hub.interfaces = 3);
}

/* Each key has codecs of its own, in all of its rows; the one of all keys does not count then. */
static void test_codecs_by_key(void) {
    const int wires[] = {HPC_BF16, HPC_F32, HPC_F16}, codecs_out[] = {HPC_F32, HPC_F16, HPC_BF16};
    const double weights[] = {1};
    hpc_hub hub = small_hub();
    hub.wire = HPC_F16, hub.wires = wires, hub.n_wires = 3;
    hub.codec_out = HPC_F16, hub.codecs_out = codecs_out, hub.n_codecs_out = 3;
    hpc_plan *plan = make(&hub), *other;
    for (int r = 0; r < plan->n_rows; r++) {
        CHECK_EQ(plan->rows[r].codec_in, wires[plan->rows[r].key]);
        CHECK_EQ(plan->rows[r].codec_out, codecs_out[plan->rows[r].key]);
    }
    CHECK(!hpc_plan_takes_float32(plan));
    const int same[] = {HPC_F32, HPC_F32, HPC_F32}, last[] = {HPC_BF16, HPC_F32, HPC_F32};
    hub.wires = last;
    other = make(&hub);
    CHECK(hpc_plan_digest(plan) != hpc_plan_digest(other));
    CHECK(!hpc_plan_takes_float32(other));
    hpc_plan_free(plan);
    hpc_plan_free(other);
    hub.wires = same, hub.codecs_out = wires;
    plan = make(&hub);
    CHECK(hpc_plan_takes_float32(plan));
    hpc_plan_free(plan);

    hpc_graph graph;
    hpc_plan_args_init("graph", &graph, sizeof graph);
    graph.keys = keys, graph.n_keys = 3, graph.ranks = 1, graph.weights = weights, graph.chunk = 4096;
    graph.wires = wires, graph.n_wires = 3;
    CHECK_OK(hpc_plan_make("graph", &graph, &plan));
    CHECK_OK(hpc_plan_check(plan, 1));
    for (int r = 0; r < plan->n_rows; r++) {
        CHECK_EQ(plan->rows[r].codec_in, wires[plan->rows[r].key]);
        CHECK_EQ(plan->rows[r].codec_out, HPC_F32);
    }
    hpc_plan_free(plan);
    graph.n_wires = 4;
    CHECK_STATUS(hpc_plan_make("graph", &graph, &plan), HPC_ERR_INVALID);
    CHECK_MESSAGE("n_wires is 4 and wires is given; must be 3");
}

/* The equal chunks that a core has of a key lie one behind the other. */
static void test_hub_gathers(void) {
    const hpc_key keys[] = {{"odd", 100, 0}, {"a", 64 * 11, 0}, {"b", 5, 0}, {"c", 64 * 7 + 3, 0}};
    const int ranks[] = {0, 1, 2};
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys, hub.n_keys = 4, hub.workers = hub.servers = ranks, hub.n_workers = hub.n_servers = 3;
    hub.cores = 2, hub.chunk = 256;
    hpc_plan *plan;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    for (int key = 0; key < 4; key++) {
        int last = -1, runs = 0, seen = 0;
        for (int r = 0; r < plan->n_rows; r++) {
            const hpc_row *row = &plan->rows[r];
            if (row->key != key || row->count != 64) continue;
            int bin = row->owner * 2 + row->core;
            runs += bin != last;
            seen |= 1 << bin;
            last = bin;
        }
        CHECK_EQ(runs, __builtin_popcount((unsigned)seen));
    }
    hpc_plan_free(plan);
}

/* ---- interfaces ---- */

enum { MOST_SERVERS = 3, MOST_KEYS = 200 };

static const int first_ranks[MOST_SERVERS] = {0, 1, 2};

/* A hub of one chunk a key, whose sizes are random. */
static hpc_hub random_hub(hpc_key *own, char names[][16], int n_keys, uint64_t largest) {
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    for (int k = 0; k < n_keys; k++) {
        snprintf(names[k], sizeof names[k], "%d", k);
        own[k] = (hpc_key){names[k], 1 + random_below(largest), 0};
    }
    hub.keys = own, hub.n_keys = n_keys, hub.workers = hub.servers = first_ranks;
    hub.n_workers = MOST_SERVERS, hub.n_servers = 1 + (int)random_below(MOST_SERVERS);
    hub.chunk = (largest + 15) / 16 * 64;
    return hub;
}

/* Every interface's load is within 4/3 of the best partition over all interfaces, and every core's within 4/3 of the
 * best partition of what its interface has. */
static void test_interfaces_bound(void) {
    enum { N = 7 };
    for (int round = 0; round < 300; round++) {
        hpc_key own[N];
        char names[N][16];
        int n = 1 + (int)random_below(N);
        hpc_hub hub = random_hub(own, names, n, 20);
        hub.interfaces = 2 + (int)random_below(2);
        if (hub.n_servers * hub.interfaces > 4) hub.n_servers = 1;
        hub.cores = hub.interfaces + (int)random_below(4);
        hpc_plan *plan = make(&hub);
        CHECK_EQ(plan->n_rows, n);

        int groups = hub.n_servers * hub.interfaces, group_of[N], core_of[N];
        uint64_t sizes[N], loads[8] = {0};
        for (int r = 0; r < n; r++) {
            sizes[r] = plan->rows[r].count;
            group_of[r] = plan->rows[r].owner * hub.interfaces + plan->rows[r].core % hub.interfaces;
        }
        CHECK(3 * fullest(sizes, group_of, n, groups) <= 4 * least(sizes, n, loads, groups, 0));
        for (int g = 0; g < groups; g++) {
            uint64_t part[N];
            int m = 0, cores = (hub.cores - g % hub.interfaces + hub.interfaces - 1) / hub.interfaces;
            for (int r = 0; r < n; r++) {
                if (group_of[r] != g) continue;
                core_of[m] = plan->rows[r].core / hub.interfaces;
                CHECK(core_of[m] < cores);
                part[m++] = sizes[r];
            }
            CHECK(3 * fullest(part, core_of, m, cores) <= 4 * least(part, m, loads, cores, 0));
        }
        hpc_plan_free(plan);
    }
}

/* However many chunks: no interface has more than the mean and one chunk, and where all interfaces have as many cores
 * no core has either. */
static void test_interfaces_mean(void) {
    for (int round = 0; round < 100; round++) {
        static hpc_key own[MOST_KEYS];
        static char names[MOST_KEYS][16];
        int n = 1 + (int)random_below(MOST_KEYS);
        hpc_hub hub = random_hub(own, names, n, 1u << (1 + random_below(16)));
        hub.interfaces = 1 + (int)random_below(8);
        hub.cores = hub.interfaces * (1 + (int)random_below(3));
        hub.chunk = 4096;
        hpc_plan *plan = make(&hub);

        uint64_t by_interface[8 * MOST_SERVERS] = {0}, by_core[24 * MOST_SERVERS] = {0}, total = 0, largest = 0;
        for (int r = 0; r < plan->n_rows; r++) {
            const hpc_row *row = &plan->rows[r];
            by_interface[row->owner * hub.interfaces + row->core % hub.interfaces] += row->count;
            by_core[row->owner * hub.cores + row->core] += row->count;
            total += row->count;
            if (row->count > largest) largest = row->count;
        }
        uint64_t groups = (uint64_t)(hub.n_servers * hub.interfaces), cores = (uint64_t)(hub.n_servers * hub.cores);
        for (uint64_t g = 0; g < groups; g++) CHECK(by_interface[g] <= total / groups + 1 + largest);
        for (uint64_t c = 0; c < cores; c++) CHECK(by_core[c] <= total / cores + 1 + largest);
        hpc_plan_free(plan);
    }
}

/* One large chunk takes an interface for itself, although the small ones would leave its other cores idle. */
static void test_interface_comes_first(void) {
    const hpc_key own[] = {{"large", 512, 0}, {"a", 128, 0}, {"b", 128, 0}, {"c", 128, 0}, {"d", 128, 0}};
    hpc_hub hub = small_hub();
    hub.keys = own, hub.n_keys = 5, hub.n_servers = 1;
    hub.cores = 8, hub.interfaces = 2, hub.chunk = 2048;
    hpc_plan *plan = make(&hub);
    static const int cores[] = {0, 1, 3, 5, 7};
    for (int r = 0; r < 5; r++) CHECK_EQ(plan->rows[r].core, cores[r]);
    hpc_plan_free(plan);

    /* equal ones go round the servers before they go to the next interface of one */
    const int owners[] = {2, 0, 2, 0};
    hub = small_hub();
    hub.keys = own + 1, hub.n_keys = 4, hub.cores = hub.interfaces = 2;
    plan = make(&hub);
    for (int r = 0; r < 4; r++) CHECK(plan->rows[r].owner == owners[r] && plan->rows[r].core == r / 2);
    hpc_plan_free(plan);
}

static void test_affinity_moves_no_chunk(void) {
    for (int round = 0; round < 50; round++) {
        static hpc_key own[MOST_KEYS];
        static char names[MOST_KEYS][16];
        hpc_hub hub = random_hub(own, names, 1 + (int)random_below(MOST_KEYS), 5000);
        hub.cores = 1 + (int)random_below(6);
        hub.interfaces = (int)random_below((uint64_t)hub.cores + 1);
        hpc_plan *by_key = make(&hub);
        hub.affinity = HPC_WORKER_BY_INTERFACE;
        hpc_plan *by_worker = make(&hub);
        CHECK(by_key->affinity == HPC_KEY_BY_CORE && by_worker->affinity == HPC_WORKER_BY_INTERFACE);
        CHECK_EQ(by_key->n_rows, by_worker->n_rows);
        for (int r = 0; r < by_key->n_rows; r++) {
            CHECK_EQ(by_key->rows[r].owner, by_worker->rows[r].owner);
            CHECK_EQ(by_key->rows[r].core, by_worker->rows[r].core);
        }
        CHECK(hpc_plan_digest(by_key) != hpc_plan_digest(by_worker));
        by_worker->affinity = HPC_KEY_BY_CORE;
        CHECK(hpc_plan_digest(by_key) == hpc_plan_digest(by_worker));
        hpc_plan_free(by_key);
        hpc_plan_free(by_worker);
    }
}

/* ---- a rack hierarchy by hand ---- */

/* Ranks 0 and 1 are a rack, 2 and 3 another; each rack's sum goes to rank 3. Key "a" has two chunks, "b" one: rows
 * 3c, 3c + 1 forward, 3c + 2 applies. */
enum { CHUNKS = 3, ROWS = 3 * CHUNKS };

struct racks {
    hpc_plan plan;
    hpc_key keys[2];
    hpc_row rows[ROWS];
    hpc_edge pushes[2][2], up[CHUNKS][1], sums[CHUNKS][2], params[4], more[3];
};

static void make_racks(struct racks *p) {
    static const uint64_t offsets[CHUNKS] = {0, 32, 0}, counts[CHUNKS] = {32, 8, 5};
    *p = (struct racks){.keys = {{"a", 40, 0}, {"b", 5, 0}}};
    p->plan = (hpc_plan){.n_keys = 2, .n_rows = ROWS, .keys = p->keys, .rows = p->rows};
    for (int rank = 0; rank < 4; rank++) {
        p->pushes[rank / 2][rank % 2] = (hpc_edge){rank, -1, 0.25};
        p->params[rank] = (hpc_edge){rank, -1, 0};
    }
    for (int c = 0; c < CHUNKS; c++) {
        p->up[c][0] = (hpc_edge){3, 3 * c + 2, 0};
        for (int rack = 0; rack < 2; rack++) {
            p->sums[c][rack] = (hpc_edge){2 * rack, 3 * c + rack, 1};
            p->rows[3 * c + rack] = (hpc_row){.key = c / 2,
                                              .owner = 2 * rack,
                                              .core = c,
                                              .action = HPC_FORWARD,
                                              .offset = offsets[c],
                                              .count = counts[c],
                                              .depth = 1,
                                              .quorum = 2,
                                              .codec_in = HPC_F16,
                                              .n_in = 2,
                                              .n_out = 1,
                                              .in = p->pushes[rack],
                                              .out = p->up[c]};
        }
        p->rows[3 * c + 2] = (hpc_row){.key = c / 2,
                                       .owner = 3,
                                       .core = c,
                                       .action = HPC_APPLY,
                                       .offset = offsets[c],
                                       .count = counts[c],
                                       .depth = 1,
                                       .quorum = 2,
                                       .n_in = 2,
                                       .n_out = 4,
                                       .in = p->sums[c],
                                       .out = p->params};
    }
}

#define BROKEN(text, ...)                                                                                              \
    do {                                                                                                               \
        struct racks p;                                                                                                \
        make_racks(&p);                                                                                                \
        __VA_ARGS__;                                                                                                   \
        CHECK_STATUS(hpc_plan_check(&p.plan, 4), HPC_ERR_INVALID);                                                     \
        CHECK_MESSAGE(text);                                                                                           \
    } while (0)

static void test_check_whole(void) {
    struct racks p;
    make_racks(&p);
    CHECK_OK(hpc_plan_check(&p.plan, 4));
    CHECK_OK(hpc_plan_check(&p.plan, 40));
    p.rows[2].action = HPC_EMIT;
    p.rows[2].quorum = 1;
    CHECK_OK(hpc_plan_check(&p.plan, 4));
    for (int i = 0; i < p.plan.n_rows; i++) {
        if (i % 3 == 2) p.rows[i].codec_in = HPC_BF16;
        p.rows[i].codec_out = i % 3 < 2 ? HPC_BF16 : p.rows[i].key == 0 ? HPC_F16 : HPC_F32; /* each key its own */
    }
    CHECK_OK(hpc_plan_check(&p.plan, 4));
    CHECK_STATUS(hpc_plan_check(NULL, 4), HPC_ERR_INVALID);
    CHECK_MESSAGE("plan is NULL");
    CHECK_STATUS(hpc_plan_check(&p.plan, 0), HPC_ERR_INVALID);
    CHECK_MESSAGE("size is 0");
    CHECK_STATUS(hpc_plan_check(&p.plan, 3), HPC_ERR_INVALID);
    CHECK_MESSAGE("row 2 has owner 3; ranks are 0 to 2");
}

static void test_check_keys(void) {
    BROKEN("affinity is 2; must be 0 (key by core) or 1 (worker by interface)", p.plan.affinity = 2);
    BROKEN("affinity is -1", p.plan.affinity = -1);
    BROKEN("n_keys is 0", p.plan.n_keys = 0);
    BROKEN("keys is NULL", p.plan.keys = NULL);
    BROKEN("key 1 has no name", p.keys[1].name = NULL);
    BROKEN("keys 0 and 1 are both named 'a'", p.keys[1].name = "a");
    BROKEN("key 'a' has no elements", p.keys[0].count = 0);
    BROKEN("all keys together may have", p.keys[0].count = UINT64_MAX);
    BROKEN("n_rows is 0", p.plan.n_rows = 0);
    BROKEN("n_rows is 16777217", p.plan.n_rows = (1 << 24) + 1);
    BROKEN("rows is NULL", p.plan.rows = NULL);
    BROKEN("key 'b' has no row", p.plan.n_rows = 6);
    BROKEN("key 'a' has no row", for (int r = 0; r < 6; r++) p.rows[r] = p.rows[6]);
}

static void test_check_rows(void) {
    BROKEN("row 8 is of key 2", p.rows[8].key = 2);
    BROKEN("row 0 is of key -1", p.rows[0].key = -1);
    BROKEN("row 3 (key 0, offset 0) comes after key 0, offset 32", p.rows[2].offset = 32; p.rows[2].count = 8;
           p.rows[3].offset = 0);
    BROKEN("row 7 (key 0, offset 0) comes after key 1", p.rows[7].key = 0);
    BROKEN("row 1 has no elements", p.rows[1].count = 0);
    BROKEN("row 3 has 9 elements at offset 32; key 'a' has 40", p.rows[3].count = 9);
    BROKEN("row 8 has 5 elements at offset 16; key 'b' has 5", p.rows[8].offset = 16);
    BROKEN("row 8 has 18446744073709551615 elements", p.rows[8].count = UINT64_MAX);
    BROKEN("row 5 is at offset 33", p.rows[5].offset = 33; p.rows[5].count = 7);
    BROKEN("row 4 has owner -1", p.rows[4].owner = -1);
    BROKEN("row 4 has owner 4", p.rows[4].owner = 4);
    BROKEN("row 4 has core -1", p.rows[4].core = -1);
    BROKEN("row 4 has core 1024", p.rows[4].core = HPC_PLAN_CORES);
    BROKEN("row 4 has action 4", p.rows[4].action = 4);
    BROKEN("row 4 has depth 0; 1 to 32", p.rows[4].depth = 0);
    BROKEN("row 0 has depth 33", p.rows[0].depth = 33);
    BROKEN("row 8 has depth 2, row 0 has 1", p.rows[8].depth = 2);
    BROKEN("row 4 has codec_in 1; must be", p.rows[4].codec_in = HPC_F64);
    BROKEN("row 4 has codec_in 4; must be", p.rows[4].codec_in = 4);
    BROKEN("row 4 has codec_out 1; must be", p.rows[4].codec_out = HPC_F64);
    BROKEN("row 4 has codec_out -1; must be", p.rows[4].codec_out = -1);
    BROKEN("row 4 has no in-edge (n_in is 0)", p.rows[4].n_in = 0);
    BROKEN("row 4 has no in-edge", p.rows[4].in = NULL);
    BROKEN("row 4 has no out-edge (n_out is -1)", p.rows[4].n_out = -1);
    BROKEN("row 4 has no out-edge", p.rows[4].out = NULL);
    BROKEN("row 5 has quorum 3", p.rows[5].quorum = 3);
    BROKEN("row 5 has quorum 0", p.rows[5].quorum = 0);
}

/* One more in-edge for row r, which applies. */
static void add_input(struct racks *p, int r, hpc_edge edge) {
    p->more[0] = p->rows[r].in[0], p->more[1] = p->rows[r].in[1], p->more[2] = edge;
    p->rows[r].in = p->more;
    p->rows[r].n_in = p->rows[r].quorum = 3;
}

static void test_check_edges(void) {
    BROKEN("row 0 has in-edge 1 from rank 4", p.pushes[0][1].rank = 4);
    BROKEN("row 1 has in-edge 0 from rank -1", p.pushes[1][0].rank = -1);
    BROKEN("row 0 has in-edge 1 with weight nan", p.pushes[0][1].weight = NAN);
    BROKEN("row 2 has in-edge 0 with weight inf", p.sums[0][0].weight = INFINITY);
    BROKEN("row 0 has two in-edges from rank 0", p.pushes[0][1].rank = 0);
    BROKEN("row 1 takes pushes as bfloat16, rows before it of the same key as float16", p.rows[1].codec_in = HPC_BF16);
    BROKEN("row 0 has in-edge 0, which comes by rank 4; ranks are 0 to 3", p.pushes[0][0].row = -6);
    BROKEN("row 2 has in-edge 2 from row 9", add_input(&p, 2, (hpc_edge){0, ROWS, 1}));
    BROKEN("row 2 has two in-edges from row 0", add_input(&p, 2, p.sums[0][0]));
    BROKEN("row 2 has an edge to row 1 of rank 0, but rank 2 owns that row", p.sums[0][1].rank = 0);
    BROKEN("row 2 of action 0 has an in-edge from row 5 of action 0", add_input(&p, 2, (hpc_edge){3, 5, 1}));
    BROKEN("row 5 has an edge from row 0, which lacks the other end of that edge",
           add_input(&p, 5, (hpc_edge){0, 0, 1}));
    BROKEN("row 2 has codec_in float16, but row 0 sends it float32", p.rows[2].codec_in = HPC_F16);
    BROKEN("row 2 has codec_in float32, but row 1 sends it bfloat16", p.rows[1].codec_out = HPC_BF16);
    BROKEN("row 5 sends parameters as float16, rows before it of the same key as float32",
           p.rows[5].codec_out = HPC_F16);
    BROKEN("row 0 sends to row 2, which is of other elements", p.rows[2].count = 16);
    BROKEN("row 0 of core 1 sends to row 2 of core 0", p.rows[0].core = 1);
    BROKEN("row 2 has in-edges from two rows of rank 0, 0 and 1", p.rows[1].owner = p.sums[0][1].rank = 0);

    BROKEN("row 3 sends to row 8, which is of other elements", p.up[1][0].row = 8; p.sums[2][0] = (hpc_edge){0, 3, 1};
           for (int r = 3; r < 6; r++) p.rows[r].offset = 0, p.rows[r].count = 5);
    BROKEN("row 2 has out-edge 1 to rank 4", p.params[1].rank = 4);
    BROKEN("row 2 has out-edge 1 to rank -1", p.params[1].rank = -1);
    BROKEN("row 2 has an edge to row 0 of rank 1, but rank 0 owns that row", p.params[1].row = 0);
    BROKEN("row 2 has out-edge 1 to row 9; parameters go to a rank (row -1) or to a relay, 0 to 8",
           p.params[1].row = ROWS);
    BROKEN("row 0 has out-edge 0 to row -1", p.up[0][0].row = -1);
    BROKEN("row 0 has out-edge 0 to row 9", p.up[0][0].row = ROWS);
    BROKEN("row 0 has out-edge 0 to rank 7", p.up[0][0].rank = 7);
    BROKEN("row 0 has an edge to row 2 of rank 1, but rank 3 owns that row", p.up[0][0].rank = 1);
    BROKEN("row 0 has an edge to row 5, which lacks the other end of that edge", p.up[0][0].row = 5);
    BROKEN("row 0 has two out-edges to row 2", hpc_edge two[2] = {p.up[0][0], p.up[0][0]}; p.rows[0].out = two;
           p.rows[0].n_out = 2);
}

static void test_check_circle(void) {
    /* rows 0 and 1 forward to each other, and 1 to 2 */
    BROKEN("rows send in a circle", hpc_edge in0[2] = {{0, -1, 1}, {2, 1, 1}}; hpc_edge out0[1] = {{2, 1, 0}};
           hpc_edge in1[2] = {{2, -1, 1}, {0, 0, 1}}; hpc_edge out1[2] = {{3, 2, 0}, {0, 0, 0}}; p.rows[0].in = in0;
           p.rows[0].out = out0; p.rows[1].in = in1; p.rows[1].out = out1; p.rows[1].n_out = 2;
           p.rows[0].codec_in = p.rows[1].codec_in = HPC_F32; p.rows[3].codec_in = p.rows[4].codec_in = HPC_F32;
           p.sums[0][0] = (hpc_edge){2, 1, 1}; p.rows[2].n_in = 1; p.rows[2].quorum = 1);
}

static void test_check_cover(void) {
    BROKEN("row 5 has two out-edges to rank 1", hpc_edge twice[2] = {{1, -1, 0}, {1, -1, 0}}; p.rows[5].out = twice;
           p.rows[5].n_out = 2; p.rows[2].n_out = 2);
    BROKEN("row 5 sends rank 3 elements from 32 on of key 'a', but the rows before it end at element 0: there is a "
           "hole",
           p.rows[2].n_out = 3);
    BROKEN("rank 3 is sent 32 of the 40 elements of key 'a'", p.rows[5].n_out = 3);
    BROKEN("row 5 sends rank 0 elements from 16 on of key 'a', but the rows before it end at element 32: they "
           "overlap",
           for (int r = 3; r < 6; r++) p.rows[r].offset = 16, p.rows[r].count = 24);
    BROKEN("rank 3 is sent 39 of the 40 elements", for (int r = 3; r < 6; r++) p.rows[r].count = 7);
}

/* ---- copy and digest ---- */

static void test_copy(void) {
    struct racks p;
    make_racks(&p);
    p.plan.affinity = HPC_WORKER_BY_INTERFACE;
    hpc_plan *copy = NULL;
    const uint64_t digest = hpc_plan_digest(&p.plan);
    CHECK_OK(hpc_plan_copy(&p.plan, "test", &copy));
    CHECK(hpc_plan_digest(copy) == digest);
    CHECK_EQ(copy->affinity, HPC_WORKER_BY_INTERFACE);
    CHECK(copy->rows[0].in == copy->rows[3].in && copy->rows[2].out == copy->rows[8].out);
    memset(&p, 0xee, sizeof p);
    CHECK(hpc_plan_digest(copy) == digest);
    CHECK_OK(hpc_plan_check(copy, 4));
    CHECK(copy->rows[7].owner == 2 && copy->rows[7].in[1].rank == 3 && strcmp(copy->keys[1].name, "b") == 0);
    hpc_plan_free(copy);
}

/* More lists than are remembered, each met again: a copy may hold some of them twice, but holds all of them. */
static void test_copy_many_lists(void) {
    enum { N = 1000, LISTS = 200 };
    static hpc_row rows[N];
    static hpc_edge in[LISTS], out[LISTS];
    const hpc_key key[] = {{"a", N * 16, 0}};
    const hpc_plan plan = {.n_keys = 1, .n_rows = N, .keys = key, .rows = rows};
    for (int i = 0; i < LISTS; i++) in[i] = (hpc_edge){i, -1, i}, out[i] = (hpc_edge){0, -1, 0};
    for (int r = 0; r < N; r++)
        rows[r] = (hpc_row){.action = HPC_EMIT,
                            .offset = (uint64_t)r * 16,
                            .count = 16,
                            .depth = 1,
                            .quorum = 1,
                            .n_in = 1,
                            .n_out = 1,
                            .in = &in[r % LISTS],
                            .out = &out[r % LISTS]};
    CHECK_OK(hpc_plan_check(&plan, LISTS));
    hpc_plan *copy = NULL;
    CHECK_OK(hpc_plan_copy(&plan, "test", &copy));
    CHECK(hpc_plan_digest(copy) == hpc_plan_digest(&plan));
    for (int r = 0; r < N; r++) CHECK(copy->rows[r].in->weight == r % LISTS && copy->rows[r].in != rows[r].in);
    hpc_plan_free(copy);
}

#define DIFFERS(...)                                                                                                   \
    do {                                                                                                               \
        struct racks p;                                                                                                \
        make_racks(&p);                                                                                                \
        uint64_t before = hpc_plan_digest(&p.plan);                                                                    \
        __VA_ARGS__;                                                                                                   \
        CHECK(hpc_plan_digest(&p.plan) != before);                                                                     \
    } while (0)

static void test_digest(void) {
    struct racks a, b;
    make_racks(&a);
    make_racks(&b);
    hpc_edge own[4];
    memcpy(own, b.params, sizeof own);
    b.rows[5].out = own;
    CHECK(hpc_plan_digest(&a.plan) == hpc_plan_digest(&b.plan));
    DIFFERS(p.keys[0].name = "A");
    DIFFERS(p.keys[0].count++);
    DIFFERS(p.keys[0].name = "ab"; p.keys[1].name = "");
    DIFFERS(p.plan.n_rows--);
    DIFFERS(p.plan.affinity++);
    DIFFERS(p.rows[8].key--);
    DIFFERS(p.rows[8].owner--);
    DIFFERS(p.rows[8].core++);
    DIFFERS(p.rows[8].action++);
    DIFFERS(p.rows[8].offset++);
    DIFFERS(p.rows[8].count--);
    DIFFERS(p.rows[8].depth++);
    DIFFERS(p.rows[8].quorum--);
    DIFFERS(p.rows[8].codec_in++);
    DIFFERS(p.rows[8].codec_out++);
    DIFFERS(p.rows[8].n_in--);
    DIFFERS(p.rows[8].n_out--);
    DIFFERS(p.pushes[1][1].rank--);
    DIFFERS(p.pushes[1][1].row--);
    DIFFERS(p.pushes[1][1].weight += 1);
    DIFFERS(p.params[3].rank--);
    DIFFERS(hpc_edge first = p.pushes[0][0]; p.pushes[0][0] = p.pushes[0][1]; p.pushes[0][1] = first);
}

int main(void) {
    test_codecs_by_key();
    test_hub_gathers();
    test_partition_bound();
    test_partition_mean();
    test_partition_ties();
    test_partition_refusals();
    test_hub_rows();
    test_hub_choices();
    test_hub_refusals();
    test_interfaces_bound();
    test_interfaces_mean();
    test_interface_comes_first();
    test_affinity_moves_no_chunk();
    test_check_whole();
    test_check_keys();
    test_check_rows();
    test_check_edges();
    test_check_circle();
    test_check_cover();
    test_copy();
    test_copy_many_lists();
    test_digest();
    return 0;
}
