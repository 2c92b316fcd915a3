/* The memory that a core of an exchange works on lies on its node, and its thread stays on its CPU. Meaningful where
 * there are two nodes: tests/numa runs this in a guest that has them. */
#define _GNU_SOURCE
#include "numa.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "engine/bytes.h"
#include "inside.h"
#include "base/host.h"

enum { KEYS = 3, MOST_CORES = 3 };

static const hpc_key keys[KEYS] = {{"a", 100003, 0}, {"b", 17, 0}, {"c", 250000, 0}};

static hpc_exchange *open_exchange(const rank *r, int cores) {
    static float zeros[250000];
    const float *values[KEYS] = {zeros, zeros, zeros};
    int everybody[RANKS_MAX];
    hpc_exchange_config config;
    hpc_exchange *ex;
    hpc_plan *plan;
    hpc_rule rule;
    hpc_hub hub;
    for (int i = 0; i < r->size; i++) everybody[i] = i;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys, hub.n_keys = KEYS, hub.cores = cores, hub.each = 1;
    hub.workers = hub.servers = everybody, hub.n_workers = hub.n_servers = r->size;
    CHECK_OK(hpc_plan_make("hub", &hub, &plan));
    CHECK_OK(hpc_rule_find("momentum", HPC_ISA_BEST, &rule));
    hpc_exchange_config_init(&config);
    config.plan = plan, config.rule = &rule, config.values = values;
    config.consistency = HPC_ASYNC, config.progress = HPC_PROGRESS_THREAD;
    CHECK_OK(hpc_exchange_create(r->context, &config, -1, &ex));
    hpc_plan_free(plan);
    for (int key = 0; key < KEYS; key++) CHECK_OK(hpc_exchange_push_pull(ex, key, zeros, -1));
    return ex;
}

static void check_range(const void *at, size_t nbytes, int node, const char *what, int core) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uintptr_t p = (uintptr_t)at / page * page; p < (uintptr_t)at + nbytes; p += page) {
        int found = numa_node_of((void *)p);
        if (found == node) continue;
        fprintf(stderr, "%s of core %d: a page is on node %d, not on node %d\n", what, core, found, node);
        exit(1);
    }
}

static void check_thread(const hpc_core *core) {
    cpu_set_t mask;
    CHECK(core->thread != NULL && core->cpu >= 0 && core->thread->started == HPC_STARTED);
    CHECK_EQ(pthread_getaffinity_np(core->thread->handle, sizeof mask, &mask), 0);
    CHECK_EQ(CPU_COUNT(&mask), 1);
    CHECK(CPU_ISSET(core->cpu, &mask));
    CHECK_EQ(core->node, hpc_host_node("", core->cpu));
}

static void check_home(const hpc_exchange *ex) {
    for (int i = 0; i < inside(ex)->n_own_cores; i++) {
        check_thread(&inside(ex)->cores[i]);
        check_range(inside(ex)->cores[i].memory, inside(ex)->cores[i].memory_bytes, inside(ex)->cores[i].node,
                    "the state", i);
    }
    for (int i = 0; i < inside(ex)->n_work; i++) {
        const hpc_work *w = &inside(ex)->work[i];
        const hpc_core *core = &inside(ex)->cores[w->row->core];
        check_range(w->param, (size_t)w->row->count * sizeof(float), core->node, "a master", core->index);
        for (int e = 0; e < w->row->n_in; e++) {
            if (hpc_is_mapped(inside(ex), w->inputs[e].rank)) continue; /* read where the worker wrote it */
            check_range(w->inputs[e].slots, hpc_slot_stride(inside(ex), w->row), core->node, "a receive slot",
                        core->index);
        }
    }
}

/* Whichever node the pages would come from. */
static void cores_at_home(rank *r) {
    int spare = (numa_n_cpus - r->size) / r->size, cores = spare < MOST_CORES ? spare : MOST_CORES;
    if (cores < 1) ranks_skip("no CPU to spare beside one for each rank, so threads are not pinned");
    numa_needed();
    for (int i = 0; i < numa_n_nodes; i++) {
        numa_avoid(numa_nodes[i]);
        hpc_exchange *ex = open_exchange(r, cores);
        CHECK_EQ(inside(ex)->window->memory->unplaced, 0);
        CHECK_EQ(inside(ex)->n_own_cores, cores);
        check_home(ex);
        CHECK_OK(hpc_exchange_close(ex, -1)); /* not before the other rank's pushes are answered */
        hpc_exchange_free(ex);
    }
}

static void *burn(void *stop) {
    while (!atomic_load_explicit((_Atomic int *)stop, memory_order_relaxed)) continue;
    return NULL;
}

/* A core whose CPU somebody else takes leaves it: it may run then wherever the rank may. */
static void leaves_a_crowd(rank *r) {
    static const float zeros[250000];
    _Atomic int stop = 0;
    cpu_set_t mine, its;
    uint64_t ran, waited;
    pthread_t burner;
    char words[200] = "", expected[200];
    if (numa_n_cpus < 2) ranks_skip("one CPU");
    if (!hpc_host_waited("", &ran, &waited)) ranks_skip("the kernel does not count how long threads wait for CPUs");
    hpc_exchange *ex = open_exchange(r, 1);
    const hpc_core *core = &inside(ex)->cores[0];
    check_thread(core);
    CHECK_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    CPU_ZERO(&its);
    CPU_SET(core->cpu, &its);
    CHECK_EQ(pthread_create(&burner, NULL, burn, &stop), 0);
    CHECK_EQ(pthread_setaffinity_np(burner, sizeof its, &its), 0);
    snprintf(expected, sizeof expected, "thread: core 0 on any CPU, as others kept CPU %d busy", core->cpu);
    for (double end = ranks_now() + 20; strcmp(words, expected) != 0 && ranks_now() < end;) {
        CHECK_OK(hpc_exchange_push_pull(ex, 1, zeros, -1));
        CHECK_OK(hpc_exchange_get_progress(ex, words, sizeof words));
    }
    CHECK_EQ(strcmp(words, expected), 0);
    CHECK_EQ(pthread_getaffinity_np(core->thread->handle, sizeof its, &its), 0);
    CHECK(CPU_EQUAL(&mine, &its));
    atomic_store(&stop, 1);
    CHECK_EQ(pthread_join(burner, NULL), 0);
    CHECK_OK(hpc_exchange_close(ex, -1));
    hpc_exchange_free(ex);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "one_rank", .size = 1, .run = cores_at_home, .where = RANKS_SHM},
        {.name = "leaves_a_crowd", .size = 1, .run = leaves_a_crowd, .where = RANKS_SHM},
        {.name = "two_ranks", .size = 2, .run = cores_at_home, .where = RANKS_UNSEEDED},
        {0},
    };
    numa_look();
    return ranks_main(argc, argv, cases);
}
