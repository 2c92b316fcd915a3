/* The weighted sum over a graph, exact on small whole numbers, for thousands of rounds and without a deadlock. */
#include "ranks.h"

enum { COUNT = 1500 };

typedef struct graph {
    int in[RANKS_MAX], n_in, out[RANKS_MAX], n_out;
} graph;

typedef bool edge_fn(int from, int to, int size);

static bool ring(int from, int to, int size) {
    return to == (from + 1) % size;
}

static bool both_neighbours(int from, int to, int size) {
    return to == (from + 1) % size || from == (to + 1) % size;
}

static bool complete(int from, int to, int size) {
    (void)size;
    return from != to;
}

static bool skewed(int from, int to, int size) { /* cycles of several lengths, uneven degrees, a rank that only sends */
    return from != to && to != 0 && ((from * 5 + to * 3) % 7 < 3 || to == from % (size - 1) + 1);
}

static edge_fn *const graphs[] = {ring, both_neighbours, complete, skewed};

static graph graph_of(const rank *r, edge_fn *edge) {
    graph g = {.n_in = 0};
    for (int i = 0; i < r->size; i++) {
        if (edge(i, r->rank, r->size)) g.in[g.n_in++] = i;
        if (edge(r->rank, i, r->size)) g.out[g.n_out++] = i;
    }
    return g;
}

/* Small whole numbers: every sum of them is exact in both types. */
static double value_of(int who, uint64_t round, int j) {
    return (double)(((uint64_t)who * 31 + round * 17 + (uint64_t)j * 7) % 1000) - 500;
}

static double weight_of(int who, uint64_t round) {
    return (double)((uint64_t)who + round % 3);
}

static void store(void *at, int dtype, int j, double value) {
    if (dtype == HPC_F32)
        ((float *)at)[j] = (float)value;
    else
        ((double *)at)[j] = value;
}

static double load(const void *at, int dtype, int j) {
    return dtype == HPC_F32 ? (double)((const float *)at)[j] : ((const double *)at)[j];
}

/* arg: graph + 4 * (depth - 1) + 16 * buffers + 1024 * dtype */
static void reduce(rank *r) {
    int dtype = r->arg / 1024, buffers = r->arg / 16 % 64, depth = r->arg / 4 % 4 + 1;
    graph g = graph_of(r, graphs[r->arg % 4]);
    size_t nbytes = COUNT * (dtype == HPC_F32 ? sizeof(float) : sizeof(double));
    hpc_queue_config c;
    hpc_queue *q;
    hpc_queue_config_init(&c);
    c.in_peers = g.in, c.n_in = g.n_in;
    c.out_peers = g.out, c.n_out = g.n_out;
    c.nbytes = nbytes, c.depth = depth, c.buffers = buffers, c.type = "a graph's update";
    CHECK_OK(hpc_queue_create(r->context, &c, -1, &q));
    void *own = malloc(nbytes), *other = malloc(nbytes);
    uint64_t rounds = (uint64_t)ranks_rounds(500);
    for (uint64_t round = 0; round < rounds; round++) {
        void *src = own;
        if (buffers) {
            CHECK_OK(hpc_queue_acquire(q, (int)(round % (uint64_t)buffers), -1));
            src = hpc_queue_buffer(q, (int)(round % (uint64_t)buffers));
        }
        for (int j = 0; j < COUNT; j++) store(src, dtype, j, value_of(r->rank, round, j));
        for (int i = 0; i < g.n_out; i++) CHECK_OK(hpc_queue_send(q, g.out[i], src, nbytes, -1));
        double weights[RANKS_MAX];
        for (int i = 0; i < g.n_in; i++) weights[i] = weight_of(g.in[i], round);
        void *out = round % 2 && !buffers ? own : other;
        CHECK_OK(hpc_queue_reduce(q, out, src, 2, weights, dtype, -1));
        for (int j = 0; j < COUNT; j++) {
            double expected = 2 * value_of(r->rank, round, j);
            for (int i = 0; i < g.n_in; i++) expected += weights[i] * value_of(g.in[i], round, j);
            if (load(out, dtype, j) == expected) continue;
            fprintf(stderr, "rank %d round %llu element %d: %g, not %g\n", r->rank, (unsigned long long)round, j,
                    load(out, dtype, j), expected);
            CHECK(0);
        }
    }
    free(own);
    free(other);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_queue_free(q);
}

int main(int argc, char **argv) {
    enum { RING, NEIGHBOURS, COMPLETE, SKEWED, DEPTH_2 = 4, BUFFER = 16, F64 = 1024 };
    static const ranks_case cases[] = {
        {.name = "ring_8", .size = 8, .run = reduce, .arg = RING},
        {.name = "ring_2_sleepy", .size = 2, .run = reduce, .arg = RING | F64, .sleepy = true},
        {.name = "neighbours_5_registered", .size = 5, .run = reduce, .arg = NEIGHBOURS | 2 * BUFFER},
        {.name = "complete_4", .size = 4, .run = reduce, .arg = COMPLETE | DEPTH_2 | F64},
        {.name = "complete_8_registered", .size = 8, .run = reduce, .arg = COMPLETE | BUFFER},
        {.name = "skewed_8", .size = 8, .run = reduce, .arg = SKEWED | DEPTH_2},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
