/* Units in plans: whatever makes a plan cuts keys only at multiples of them, and rows made by hand must do so too. */
#include "check.h"
#include "plan/plan.h"

enum { KEYS = 6, RANKS = 4, BINS = 64 };

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

static const int ranks[RANKS] = {0, 1, 2, 3}, groups[] = {0, 0, 1, 1}, parents[RANKS] = {-1, 0, 0, 1};
static const double weights[RANKS * RANKS] = {1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1};

struct shape {
    hpc_key keys[KEYS];
    int n_keys, cores;
    uint64_t chunk;
};

static struct shape random_shape(void) {
    static const char *const names[KEYS] = {"a", "b", "c", "d", "e", "f"};
    static const uint64_t units[] = {0, 1, 2, 3, 7, 8, 16, 24, 48, 64, 100, 1000, 1023, UINT64_MAX};
    struct shape s = {.n_keys = 1 + (int)random_below(KEYS), .cores = 1 + (int)random_below(4)};
    for (int k = 0; k < s.n_keys; k++) {
        uint64_t listed = units[random_below(sizeof units / sizeof *units)];
        s.keys[k].name = names[k];
        s.keys[k].count = 1 + random_below(1u << (1 + random_below(15)));
        s.keys[k].unit = random_below(3) > 0 ? listed : random_below(2 * s.keys[k].count);
    }
    s.chunk = 64 * (1 + random_below(1u << random_below(9)));
    return s;
}

/* Elements of a chunk, by definition: as many as a chunk may have, else the fewest that can be cut off. */
static uint64_t expected_elements(const hpc_key *key, uint64_t chunk) {
    uint64_t unit = key->unit == 0 ? 1 : key->unit > key->count ? key->count : key->unit, step = unit, most;
    while (step % HPC_PLAN_ALIGN != 0) step += unit;
    for (most = step; most + step <= chunk / sizeof(float); most += step) continue;
    return most;
}

/* Takes each chunk of a key once. load, by owner and core: its elements of rows that apply. Returns the largest. */
static uint64_t check_cuts(const struct shape *s, const hpc_plan *plan, int owner, uint64_t load[BINS]) {
    uint64_t at = 0, largest = 0;
    int key = 0;
    for (int r = 0; r < plan->n_rows; r++) {
        const hpc_row *row = &plan->rows[r];
        if (row->action != HPC_APPLY || (owner >= 0 && row->owner != owner)) continue;
        if (at == s->keys[key].count) key++, at = 0;
        uint64_t full = expected_elements(&s->keys[key], s->chunk), left = s->keys[key].count - at;
        CHECK_EQ(row->key, key);
        CHECK_EQ(row->offset, at);
        CHECK_EQ(row->count, left < full ? left : full);
        CHECK_EQ(plan->keys[key].unit, s->keys[key].unit);
        at += row->count;
        load[row->owner * s->cores + row->core] += row->count;
        if (row->count > largest) largest = row->count;
    }
    CHECK(key == s->n_keys - 1 && at == s->keys[key].count);
    return largest;
}

/* No core has more than the mean and the largest chunk, however large units make it. */
static void check_balance(const uint64_t load[BINS], int bins, uint64_t largest) {
    uint64_t total = 0;
    for (int b = 0; b < bins; b++) total += load[b];
    for (int b = 0; b < bins; b++) CHECK(load[b] <= total / (uint64_t)bins + 1 + largest);
}

/* The equal chunks of a key in one bin lie together. */
static void check_gathered(const hpc_plan *plan, int cores) {
    for (int from = 0, to; from < plan->n_rows; from = to) {
        int last = -1, runs = 0;
        uint64_t seen = 0;
        for (to = from; to < plan->n_rows && plan->rows[to].key == plan->rows[from].key &&
                        plan->rows[to].count == plan->rows[from].count;
             to++) {
            int bin = plan->rows[to].owner * cores + plan->rows[to].core;
            runs += bin != last;
            seen |= (uint64_t)1 << bin;
            last = bin;
        }
        CHECK_EQ(runs, __builtin_popcountll(seen));
    }
}

static hpc_hub hub_of(const struct shape *s, int servers) {
    hpc_hub hub;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = s->keys, hub.n_keys = s->n_keys, hub.cores = s->cores, hub.chunk = s->chunk;
    hub.workers = hub.servers = ranks, hub.n_workers = RANKS, hub.n_servers = servers;
    return hub;
}

static void test_hub(void) {
    for (int round = 0; round < 2000; round++) {
        const struct shape s = random_shape();
        hpc_hub hub = hub_of(&s, 1 + (int)random_below(RANKS));
        uint64_t load[BINS] = {0};
        hpc_plan *plan;
        hub.interfaces = s.cores % 2 == 0 ? 2 : 1;
        CHECK_OK(hpc_plan_make("hub", &hub, &plan));
        CHECK_OK(hpc_plan_check(plan, RANKS));
        uint64_t largest = check_cuts(&s, plan, -1, load);
        check_balance(load, hub.n_servers * s.cores, largest);
        check_gathered(plan, s.cores);
        hpc_plan_free(plan);
    }
}

static void test_graph(void) {
    for (int round = 0; round < 500; round++) {
        const struct shape s = random_shape();
        uint64_t load[BINS] = {0}, largest = 0;
        hpc_graph graph;
        hpc_plan *plan;
        hpc_plan_args_init("graph", &graph, sizeof graph);
        graph.keys = s.keys, graph.n_keys = s.n_keys, graph.cores = s.cores, graph.chunk = s.chunk;
        graph.ranks = RANKS, graph.weights = weights;
        CHECK_OK(hpc_plan_make("graph", &graph, &plan));
        CHECK_OK(hpc_plan_check(plan, RANKS));
        for (int rank = 0; rank < RANKS; rank++) largest = check_cuts(&s, plan, rank, load);
        check_balance(load, RANKS * s.cores, largest);
        hpc_plan_free(plan);
    }
}

static void test_hosts(void) {
    for (int round = 0; round < 500; round++) {
        const struct shape s = random_shape();
        uint64_t load[BINS] = {0};
        hpc_hosts hosts;
        hpc_plan *plan;
        hpc_plan_args_init("hosts", &hosts, sizeof hosts);
        hosts.keys = s.keys, hosts.n_keys = s.n_keys, hosts.cores = s.cores, hosts.chunk = s.chunk;
        hosts.workers = ranks, hosts.n_workers = RANKS, hosts.groups = groups;
        hosts.apply_at = random_below(2) == 0 ? HPC_AT_OWNERS : HPC_AT_BOTH;
        CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
        CHECK_OK(hpc_plan_check(plan, RANKS)); /* the rows that forward and relay too are whole units */
        if (hosts.apply_at == HPC_AT_OWNERS) check_balance(load, RANKS * s.cores, check_cuts(&s, plan, -1, load));
        hpc_plan_free(plan);
    }
}

static void test_tree(void) {
    for (int round = 0; round < 500; round++) {
        const struct shape s = random_shape();
        uint64_t load[BINS] = {0};
        hpc_tree tree;
        hpc_plan *plan;
        hpc_plan_args_init("tree", &tree, sizeof tree);
        tree.keys = s.keys, tree.n_keys = s.n_keys, tree.cores = s.cores, tree.chunk = s.chunk;
        tree.parents = parents, tree.ranks = RANKS;
        CHECK_OK(hpc_plan_make("tree", &tree, &plan));
        CHECK_OK(hpc_plan_check(plan, RANKS));
        check_balance(load, s.cores, check_cuts(&s, plan, -1, load));
        hpc_plan_free(plan);
    }
}

static int rows_of(hpc_key key, uint64_t chunk) {
    const struct shape s = {.keys = {key}, .n_keys = 1, .cores = 1, .chunk = chunk};
    hpc_hub hub = hub_of(&s, 1);
    hpc_plan *plan;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    CHECK_OK(hpc_plan_check(plan, RANKS));
    int n = plan->n_rows;
    hpc_plan_free(plan);
    return n;
}

static void test_extremes(void) {
    const uint64_t most = HPC_PLAN_ELEMENTS;
    CHECK_EQ(rows_of((hpc_key){"a", most, UINT64_MAX}, 64), 1);
    CHECK_EQ(rows_of((hpc_key){"a", most, most}, 64), 1);
    CHECK_EQ(rows_of((hpc_key){"a", most, most - 1}, 64), 1); /* its second unit does not begin on a cache line */
    CHECK_EQ(rows_of((hpc_key){"a", most, most / 2}, 64), 2);
    CHECK_EQ(rows_of((hpc_key){"a", most, most / 2}, (uint64_t)1 << 63), 1);
    CHECK_EQ(rows_of((hpc_key){"a", most, most - 1}, (uint64_t)1 << 63), 1);
    CHECK_EQ(rows_of((hpc_key){"a", 1, 5}, 64), 1);
    CHECK_EQ(rows_of((hpc_key){"a", 480, 10}, 64), 6);   /* of 80 elements */
    CHECK_EQ(rows_of((hpc_key){"a", 480, 10}, 1024), 2); /* of 240, where 256 would fit */
    CHECK_EQ(rows_of((hpc_key){"a", 481, 10}, 1024), 3);
}

/* Rows by hand: one worker, who is the server, and a key of 100 elements. */
static int check_rows(uint64_t unit, uint64_t second, uint64_t third) {
    const hpc_key key = {"w", 100, unit};
    const uint64_t ends[] = {0, second, third, 100};
    const hpc_edge in = {0, -1, 1.0}, out = {0, -1, 1.0};
    hpc_row rows[3];
    for (int r = 0; r < 3; r++)
        rows[r] = (hpc_row){.offset = ends[r],
                            .count = ends[r + 1] - ends[r],
                            .depth = 1,
                            .quorum = 1,
                            .n_in = 1,
                            .n_out = 1,
                            .in = &in,
                            .out = &out};
    const hpc_plan plan = {.n_keys = 1, .n_rows = 3, .keys = &key, .rows = rows};
    return hpc_plan_check(&plan, 1);
}

static void test_rows_by_hand(void) {
    CHECK_OK(check_rows(0, 16, 64));
    CHECK_OK(check_rows(1, 16, 64));
    CHECK_OK(check_rows(8, 16, 64));
    CHECK_OK(check_rows(16, 16, 64));
    CHECK_OK(check_rows(12, 48, 96));
    CHECK_STATUS(check_rows(32, 16, 64), HPC_ERR_INVALID);
    CHECK_MESSAGE("row 0 has 16 elements at offset 0; key 'w' may be cut only at multiples of its unit, 32");
    CHECK_STATUS(check_rows(32, 32, 80), HPC_ERR_INVALID);
    CHECK_MESSAGE("row 1 has 48 elements at offset 32; key 'w' may be cut");
    CHECK_STATUS(check_rows(101, 16, 64), HPC_ERR_INVALID);
    CHECK_MESSAGE("row 0 has 16 elements at offset 0; key 'w' may be cut only at multiples of its unit, 100");
    CHECK_STATUS(check_rows(UINT64_MAX, 16, 64), HPC_ERR_INVALID);

    /* a first row that begins in the midst of a unit, of a key with a row from its start */
    const hpc_key key = {"w", 100, 64};
    const hpc_edge edge = {0, -1, 1.0};
    hpc_row row = {.depth = 1, .quorum = 1, .n_in = 1, .n_out = 1, .in = &edge, .out = &edge};
    row.offset = 16, row.count = 84;
    const hpc_plan plan = {.n_keys = 1, .n_rows = 1, .keys = &key, .rows = &row};
    CHECK_STATUS(hpc_plan_check(&plan, 1), HPC_ERR_INVALID);
    CHECK_MESSAGE("row 0 has 84 elements at offset 16; key 'w' may be cut only at multiples of its unit, 64");
}

static void test_digest_and_copy(void) {
    static const uint64_t units[] = {0, 1, 2, 96, 100, 101, UINT64_MAX}; /* of 100 elements */
    static const int same_as[] = {0, 0, 2, 3, 4, 4, 4};
    uint64_t digests[7];
    for (int i = 0; i < 7; i++) {
        const struct shape s = {.keys = {{"a", 100, units[i]}}, .n_keys = 1, .cores = 1, .chunk = 1024};
        const hpc_hub hub = hub_of(&s, 1);
        hpc_plan *plan, *copy;
        CHECK_OK(hpc_plan_make("hub", &hub, &plan));
        CHECK_EQ(plan->n_rows, 1);
        CHECK_OK(hpc_plan_copy(plan, "test", &copy));
        digests[i] = hpc_plan_digest(plan);
        CHECK(hpc_plan_digest(copy) == digests[i]);
        CHECK(copy->keys[0].unit == units[i]);
        for (int j = 0; j < i; j++) CHECK((digests[i] == digests[j]) == (same_as[i] == same_as[j]));
        hpc_plan_free(copy);
        hpc_plan_free(plan);
    }
}

int main(void) {
    test_hub();
    test_graph();
    test_hosts();
    test_tree();
    test_extremes();
    test_rows_by_hand();
    test_digest_and_copy();
    return 0;
}
