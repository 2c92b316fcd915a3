/* shared_params over several hosts: the workers of a host read one copy, which a rank of that host writes once. What is
 * in it is what workers with parameters of their own have, bit for bit, as all numbers here are exact. */
#include "exchange_plans.h"
#include "inside.h"

enum { STEPS = 12 };

/* Flags of a case, in its arg. */
enum { CHAIN = 1, THREADS = 2, HALF_IN = 4, DEEP = 16, RING = 32, RACKS = 64, SPLIT = 128, APART = 256 };

static void shared_job(job *j, const rank *r) {
    job_init(j, r);
    j->rule = "momentum", j->args[3] = 0.5;
    j->shared_params = !(r->arg & APART);
    j->split = !!(r->arg & SPLIT);
    j->progress = r->arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    if (r->arg & HALF_IN) j->wire = HPC_F16;
}

static int host_of(const rank *r, int who) {
    return who / r->per_host;
}

/* The lowest rank of the host, whose part has the copy. */
static int holder_of(const rank *r, int who) {
    return host_of(r, who) * r->per_host;
}

static int ranks_on(const rank *r, int host) {
    int first = host * r->per_host;
    return first + r->per_host < r->size ? r->per_host : r->size - first;
}

static void by_hand(job *j, hand_plan *h, const rank *r) {
    shared_job(j, r);
    hand_hosts(h, j, r->size, r->per_host, r->arg & CHAIN, 512);
    for (int i = 0; i < h->plan.n_rows && r->arg & DEEP; i++) h->rows[i].depth = 2;
    CHECK_OK(hpc_plan_check(&h->plan, r->size));
    j->plan = &h->plan;
}

/* All pushes of a step go out before its first wait, in turns from the slot and from elsewhere. */
static void train(const rank *r, const job *j, hpc_exchange *e, reference *ref, int steps) {
    for (int step = 0; step < steps; step++) {
        uint64_t tickets[JOB_KEYS];
        int now = ref->step[0];
        for (int key = 0; key < j->n_keys; key++)
            tickets[key] = job_start(r, j, e, key, now, HPC_PUSH | HPC_PULL, (step + r->rank) % 2);
        for (int key = j->n_keys; key-- > 0;) {
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            reference_step(ref, key);
            reference_check(ref, r, e, key);
        }
    }
}

/* A plan by hand, whose leaders change from chunk to chunk: the owner's host has no relay, every other one has one. So
 * what a rank has written is what its relays have, once for its host: the owner's master is the copy itself. */
static void trains(rank *r) {
    job j;
    hand_plan *h = hand_new();
    reference ref;
    by_hand(&j, h, r);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    const int steps = ranks_rounds(STEPS);
    train(r, &j, e, &ref, steps);
    CHECK_EQ(inside(e)->layout.holder, j.shared_params ? holder_of(r, r->rank) : r->rank);
    uint64_t written = 0;
    for (int i = 0; i < h->plan.n_rows; i++) {
        const hpc_row *row = &h->rows[i];
        if (row->owner != r->rank || row->action == HPC_FORWARD) continue;
        int workers = ranks_on(r, host_of(r, r->rank));
        int copies = j.shared_params ? row->action == HPC_RELAY : workers - (row->action == HPC_APPLY);
        written += row->count * sizeof(float) * (uint64_t)copies * (uint64_t)steps;
    }
    hpc_exchange_stats stats;
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.bytes_written, written);
    job_close(e, &ref, h);
}

/* A plan of hosts as users have it. A host with one worker has no relay: the owner puts into its copy. */
static void trains_by_hosts(rank *r) {
    job j;
    hpc_plan *plan;
    reference ref;
    hpc_hosts hosts;
    int groups[2 * RANKS_MAX];
    shared_job(&j, r);
    hpc_plan_args_init("hosts", &hosts, sizeof hosts);
    hosts.keys = j.keys, hosts.n_keys = j.n_keys;
    hosts.workers = j.workers, hosts.n_workers = r->size;
    hosts.groups = groups, hosts.n_levels = r->arg & RACKS ? 2 : 1;
    for (int w = 0; w < r->size; w++) groups[w] = host_of(r, w), groups[r->size + w] = host_of(r, w) / 2;
    hosts.top = r->arg & RING ? HPC_TOP_RING : HPC_TOP_SHARDED;
    hosts.chunk = 1024, hosts.cores = 2, hosts.sum = 1, hosts.wire = j.wire;
    CHECK_OK(hpc_plan_make("hosts", &hosts, &plan));
    j.plan = plan;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, ranks_rounds(STEPS));
    CHECK_EQ(inside(e)->layout.holder, holder_of(r, r->rank));
    job_close(e, &ref, NULL);
    hpc_plan_free(plan);
}

/* Between a rank's pull and its next push the copy stays as it is, though all others have pushed again. */
static void stands_still(rank *r) {
    enum { SLOW = 1 };
    job j;
    hand_plan *h = hand_new();
    reference ref;
    by_hand(&j, h, r);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, 1);
    for (int step = 1; step < ranks_rounds(STEPS); step++) {
        uint64_t tickets[JOB_KEYS];
        if (r->rank == SLOW) {
            progress_until(r, e, 0, (uint64_t)step * (uint64_t)(r->size - 1));
            for (int key = 0; key < j.n_keys; key++) reference_check(&ref, r, e, key);
        }
        for (int key = 0; key < j.n_keys; key++)
            tickets[key] = job_start(r, &j, e, key, step, HPC_PUSH | HPC_PULL, false);
        if (r->rank != SLOW) atomic_fetch_add(&r->board[0], 1);
        for (int key = 0; key < j.n_keys; key++) {
            CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    }
    job_close(e, &ref, h);
}

/* Rows are set by their owners and published: each host's copy gets them once, by the same ways. */
static void published(rank *r) {
    job j;
    hand_plan *h = hand_new();
    reference ref;
    by_hand(&j, h, r);
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, 2);
    CHECK_OK(hpc_barrier(r->context, -1)); /* all have looked */
    for (int i = 0; i < h->plan.n_rows; i++) {
        const hpc_row *row = &h->rows[i];
        if (row->owner != r->rank || row->action != HPC_APPLY) continue;
        float *values = malloc(row->count * sizeof *values), *state = calloc(row->count, sizeof *state);
        uint64_t step;
        CHECK_OK(hpc_exchange_get_row(e, i, &step, values, NULL));
        CHECK_EQ(step, 2);
        CHECK(same_floats(values, ref.params[row->key] + row->offset, row->count, "a row", r->rank, row->key));
        for (uint64_t k = 0; k < row->count; k++) values[k] = (float)((row->offset + k) % 61);
        CHECK_OK(hpc_exchange_set_row(e, i, 2, values, state));
        free(values);
        free(state);
    }
    CHECK_OK(hpc_exchange_publish(e, -1));
    for (int key = 0; key < j.n_keys; key++)
        for (uint64_t k = 0; k < j.keys[key].count; k++) {
            CHECK(hpc_exchange_params(e, key)[k] == (float)(k % 61));
            ref.params[key][k] = (float)(k % 61), ref.state[key][k] = 0;
        }
    CHECK_OK(hpc_barrier(r->context, -1));
    train(r, &j, e, &ref, 2);
    job_close(e, &ref, h);
}

/* Without several workers on a host every hub will do: what a worker reads is its own. */
static void hub_of_single_workers(rank *r) {
    job j;
    reference ref;
    shared_job(&j, r);
    j.n_servers = 1; /* rank 0 alone, which does not work */
    for (int w = 1; w < r->size; w++) j.workers[w - 1] = w;
    j.n_workers = r->size - 1;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    CHECK_EQ(inside(e)->layout.holder, r->rank ? r->rank : -1);
    for (int step = 0; step < STEPS && r->rank; step++)
        for (int key = 0; key < j.n_keys; key++) {
            job_push_pull(r, &j, e, key, step);
            reference_step(&ref, key);
            reference_check(&ref, r, e, key);
        }
    if (r->rank == 0) CHECK_OK(hpc_exchange_serve(e, -1));
    job_close(e, &ref, NULL);
}

/* The owner sends to a relay of its own host, which writes the copy: the owner's master lies apart. */
static void relayed_at_home(rank *r) {
    job j;
    reference ref;
    shared_job(&j, r);
    j.n_keys = 1;
    const uint64_t count = j.keys[0].count;
    const hpc_edge push[2] = {{0, -1, 1}, {1, -1, 1}}, down = {1, 1, 1}, from = {0, 0, 1};
    hpc_row rows[2] = {
        {.owner = 0, .action = HPC_APPLY, .count = count, .depth = 1, .quorum = 2, .n_in = 2, .n_out = 1},
        {.owner = 1, .action = HPC_RELAY, .count = count, .depth = 1, .quorum = 1, .n_in = 1, .n_out = 2}};
    rows[0].in = push, rows[0].out = &down, rows[1].in = &from, rows[1].out = push;
    const hpc_plan plan = {.n_keys = 1, .n_rows = 2, .keys = j.keys, .rows = rows};
    j.plan = &plan;
    hpc_exchange *e = job_open(r, &j);
    reference_init(&ref, &j);
    train(r, &j, e, &ref, STEPS);
    hpc_exchange_stats stats;
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.bytes_written, r->rank * STEPS * count * sizeof(float));
    job_close(e, &ref, NULL);
}

static void refuses(const rank *r, const job *j, const char *sentence) {
    hpc_exchange *e = NULL;
    CHECK_STATUS(job_create(r, j, -1, &e), HPC_ERR_CONFIG);
    CHECK(!e);
    CHECK_MESSAGE(sentence);
}

/* Two hosts of two ranks. Every rank says the same sentence, and nothing has moved: the next exchange works. */
static void refused(rank *r) {
    job j;
    hand_plan *h = hand_new();
    shared_job(&j, r);
    refuses(r, &j,
            "row 0 of rank 0 sends parameters to ranks 2 and 3, which read one copy on another host: a rank of that "
            "host must write it, as in a Hierarchy or by topology \"auto\"");
    hand_hosts(h, &j, r->size, 1, false, 512); /* hosts of one rank, which these are not */
    j.plan = &h->plan;
    refuses(r, &j,
            "row 0 sends parameters to rank 0 and not to rank 1, which reads the same copy: a copy has one writer, "
            "which sends to all workers of its host");
    hand_hosts(h, &j, r->size, 3, false, 512);
    refuses(r, &j, "row 0 sends parameters to rank 2 and not to rank 3, which reads the same copy");
    j.n_keys = 1; /* the second host feeds the fold, and nobody writes its copy */
    const uint64_t count = j.keys[0].count;
    const hpc_edge push[4] = {{0, -1, 1}, {1, -1, 1}, {2, -1, 1}, {3, -1, 1}};
    hpc_row row = {.action = HPC_APPLY, .count = count, .depth = 1, .quorum = 4, .n_in = 4, .n_out = 2};
    row.in = row.out = push;
    const hpc_plan plan = {.n_keys = 1, .n_rows = 1, .keys = j.keys, .rows = &row};
    j.plan = &plan;
    refuses(r, &j, "parameters of every key on each worker; no row sends rank 2 those of key 'k0'");
    j.n_keys = 3;
    j.plan = NULL, j.each = 1;
    refuses(r, &j, "shared_params needs BSP");
    j.each = 0, j.codec_out = HPC_F16;
    refuses(r, &j, "with shared_params all workers read the owner's float32");
    j.codec_out = HPC_F32;
    free(h);
    trains(r);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "2_hosts_of_2", .size = 4, .per_host = 2, .run = trains},
        {.name = "2_hosts_of_2_threads", .size = 4, .per_host = 2, .run = trains, .arg = THREADS},
        {.name = "2_hosts_of_2_apart", .size = 4, .per_host = 2, .run = trains, .arg = APART},
        {.name = "3_hosts_of_2_uneven", .size = 5, .per_host = 2, .run = trains, .arg = HALF_IN},
        {.name = "3_hosts_of_3", .size = 8, .per_host = 3, .run = trains, .sleepy = true},
        {.name = "3_hosts_chain_threads", .size = 6, .per_host = 2, .run = trains, .arg = CHAIN | THREADS | DEEP},
        {.name = "2_hosts_split", .size = 4, .per_host = 2, .run = trains, .arg = SPLIT | THREADS},
        {.name = "3_hosts_split_chain", .size = 6, .per_host = 2, .run = trains, .arg = SPLIT | CHAIN},
        {.name = "hosts_of_one", .size = 3, .per_host = 1, .run = trains, .arg = THREADS},
        {.name = "one_host", .size = 3, .per_host = 3, .run = trains},
        {.name = "sharded", .size = 4, .per_host = 2, .run = trains_by_hosts, .arg = THREADS},
        {.name = "sharded_uneven", .size = 7, .per_host = 2, .run = trains_by_hosts, .arg = HALF_IN},
        {.name = "sharded_split", .size = 5, .per_host = 2, .run = trains_by_hosts, .arg = SPLIT},
        {.name = "ring", .size = 6, .per_host = 2, .run = trains_by_hosts, .arg = RING},
        {.name = "ring_uneven", .size = 7, .per_host = 3, .run = trains_by_hosts, .arg = RING | THREADS},
        {.name = "racks", .size = 8, .per_host = 2, .run = trains_by_hosts, .arg = RACKS | THREADS},
        {.name = "racks_ring_uneven", .size = 7, .per_host = 2, .run = trains_by_hosts, .arg = RACKS | RING},
        {.name = "stands_still", .size = 4, .per_host = 2, .run = stands_still},
        {.name = "stands_still_threads", .size = 5, .per_host = 2, .run = stands_still, .arg = THREADS},
        {.name = "published", .size = 4, .per_host = 2, .run = published},
        {.name = "published_chain", .size = 5, .per_host = 2, .run = published, .arg = CHAIN | THREADS},
        {.name = "hub_of_single_workers", .size = 3, .per_host = 1, .run = hub_of_single_workers},
        {.name = "relayed_at_home", .size = 2, .per_host = 2, .run = relayed_at_home},
        {.name = "refused", .size = 4, .per_host = 2, .run = refused},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
