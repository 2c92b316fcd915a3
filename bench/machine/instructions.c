/* instructions.c - a few operations, each repeated in `counted`, for callgrind to count (instructions.py).
 *
 * instructions OPERATION COUNT
 *
 * Both ranks are in this process. After they are connected, one thread works for both, inline, so nothing spins and
 * every run has the same instructions. The operations: push_pull of 8 bytes and of 64 KiB with momentum, the same in
 * two calls (fold, apply), an exchange of 4000 bytes on a graph (NOTIFY-ACK), and an 8-byte put_signal. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hpcomm/hpcomm.h"
#include "hpcomm/plan.h"

enum { RANKS = 2, MOST = 16384 };
static const double LIMIT = 20; /* seconds of a wait */

typedef struct operation {
    const char *name, *rule;
    uint64_t elements; /* 0: put_signal */
    int graph, split;
} operation;

static const operation operations[] = {
    {"push_pull 8 B", "momentum", 2, 0, 0},
    {"push_pull 64 KiB", "momentum", 16384, 0, 0},
    {"fold, apply 64 KiB", "momentum", 16384, 0, 1},
    {"graph 4000 B", "sgd", 1000, 1, 0},
    {"put_signal 8 B", NULL, 0, 0, 0},
};

static char *addresses;
static hpc_context *contexts[RANKS];
static hpc_exchange *exchanges[RANKS];
static hpc_exchange_config config;
static hpc_lane *lanes[RANKS];
static hpc_window *windows[RANKS];

static void must(int status) {
    if (status >= 0) return;
    fprintf(stderr, "instructions: %s\n", hpc_last_error()->message);
    exit(1);
}

static void *connect_rank(void *rank) {
    must(hpc_context_connect(contexts[*(int *)rank], addresses, LIMIT));
    return NULL;
}

static void *open_exchange(void *rank) {
    must(hpc_exchange_create(contexts[*(int *)rank], &config, LIMIT, &exchanges[*(int *)rank]));
    return NULL;
}

static void *open_window(void *rank) {
    const int r = *(int *)rank;
    must(hpc_lane_create(contexts[r], LIMIT, &lanes[r]));
    must(hpc_window_create(contexts[r], 4096, 1, "counted", LIMIT, &windows[r]));
    return NULL;
}

/* Makes a collective call: each rank has its own thread until the call has returned. */
static void together(void *(*call)(void *)) {
    static int ranks[RANKS] = {0, 1};
    pthread_t threads[RANKS];
    for (int r = 0; r < RANKS; r++) must(-pthread_create(&threads[r], NULL, call, &ranks[r]));
    for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
}

static void put_once(void) {
    static uint64_t value;
    uint64_t data = 1, seen;
    value++;
    must(hpc_put_signal(lanes[0], windows[0], 1, &data, sizeof data, 0, 0, value));
    must(hpc_test_signal(windows[1], 0, value, &seen));
}

static void exchange_once(void) {
    uint64_t tickets[RANKS];
    for (int r = 0; r < RANKS; r++)
        must(hpc_exchange_start(exchanges[r], 0, HPC_PUSH | HPC_PULL, NULL, LIMIT, &tickets[r]));
    for (int look = 0; look < 2; look++)
        for (int r = 0; r < RANKS; r++) must(hpc_exchange_progress(exchanges[r]));
    for (int r = 0; r < RANKS; r++) must(hpc_exchange_wait(exchanges[r], 0, tickets[r], LIMIT));
}

__attribute__((noinline)) void counted(void (*once)(void), int n) {
    for (int i = 0; i < n; i++) once();
}

static void open_operation(const operation *of) {
    static const double weights[] = {0.5, 0.5, 0.5, 0.5};
    static const int ranks[RANKS] = {0, 1};
    static float values[MOST];
    static const float *const all_values[] = {values};
    static hpc_key key = {.name = "k"};
    static hpc_graph graph;
    static hpc_rule rule;
    hpc_hub hub;
    hpc_plan *plan;
    key.count = of->elements;
    hpc_plan_args_init("graph", &graph, sizeof graph);
    hpc_plan_args_init("hub", &hub, sizeof hub);
    if (of->graph) {
        graph.keys = &key;
        graph.n_keys = graph.n_phases = graph.cores = 1;
        graph.ranks = graph.depth = RANKS;
        graph.weights = weights;
        must(hpc_plan_make("graph", &graph, &plan));
    } else {
        hub.keys = &key;
        hub.n_keys = hub.cores = hub.interfaces = 1;
        hub.workers = hub.servers = ranks;
        hub.n_workers = hub.n_servers = RANKS;
        must(hpc_plan_make("hub", &hub, &plan));
    }
    must(hpc_rule_find(of->rule, HPC_ISA_BEST, &rule));
    hpc_exchange_config_init(&config);
    config.plan = plan;
    config.rule = &rule;
    config.values = all_values;
    config.progress = HPC_PROGRESS_INLINE;
    config.split = of->split;
    if (of->graph) config.graph = &graph, config.consistency = HPC_NOTIFY_ACK;
    together(open_exchange);
}

int main(int argc, char **argv) {
    const operation *of = NULL;
    for (size_t i = 0; argc == 3 && i < sizeof operations / sizeof *operations; i++)
        if (strcmp(argv[1], operations[i].name) == 0) of = &operations[i];
    if (of == NULL) {
        fprintf(stderr, "usage: instructions OPERATION COUNT; the operations are\n");
        for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) puts(operations[i].name);
        return 2;
    }
    addresses = malloc(RANKS * hpc_address_size());
    for (int r = 0; r < RANKS; r++) {
        hpc_config own;
        hpc_config_init(&own);
        own.transports = "shm";
        must(hpc_context_create(r, RANKS, &own, &contexts[r]));
        must(hpc_context_address(contexts[r], addresses + (size_t)r * hpc_address_size()));
    }
    together(connect_rank);
    if (of->elements == 0)
        together(open_window);
    else
        open_operation(of);
    counted(of->elements == 0 ? put_once : exchange_once, atoi(argv[2]));
    fflush(stdout);
    _exit(0); /* nothing after the operations is counted */
}
