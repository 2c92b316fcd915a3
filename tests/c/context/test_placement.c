/* The nodes of pages and the CPUs of threads, as the kernel tells. On a host with one node every page is on it,
 * whatever was asked for; tests/numa runs this in a guest that has two. */
#define _GNU_SOURCE
#include "numa.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/host.h"
#include "base/memory.h"
#include "context/context.h"

enum { PLACES = 4 };

static const size_t MiB = 1 << 20;

/* Four ranges that begin inside of pages, one of them wherever, the last one over the end; grain 0: page by page. */
static int make_places(hpc_placement *places, size_t nbytes, size_t grain, int turn) {
    size_t cut[PLACES + 1] = {64, nbytes / 4 + 64, nbytes / 2 + 192, nbytes / 4 * 3 + 64, nbytes + 100};
    for (int i = 0; i < PLACES; i++) {
        if (grain != 0) cut[i] = cut[i] / grain * grain;
        places[i].node = i == 2 ? NUMA_WHEREVER : numa_nodes[(i + turn) % numa_n_nodes];
    }
    for (int i = 0; i < PLACES; i++) {
        places[i].offset = cut[i];
        places[i].nbytes = cut[i + 1] - cut[i];
    }
    return PLACES;
}

/* Every page is on the node of the last range that has a byte of it. */
static void check_places(const char *data, size_t nbytes, const hpc_placement *places, int n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int checked = 0;
    for (size_t at = 0; at < nbytes; at += page) {
        (void)*(const volatile char *)(data + at); /* a peer's pages are mapped when they are touched */
        int wanted = NUMA_WHEREVER, node = numa_node_of(data + at);
        for (int i = 0; i < n; i++)
            if (places[i].node != NUMA_WHEREVER && places[i].offset < at + page &&
                places[i].offset + places[i].nbytes > at)
                wanted = places[i].node;
        CHECK(node >= 0);
        if (wanted == NUMA_WHEREVER) continue;
        CHECK_EQ(node, wanted);
        checked++;
    }
    CHECK(checked > 0);
}

static void shared_memory(rank *r) {
    (void)r;
    numa_needed();
    static const struct {
        size_t nbytes, grain;
    } blocks[] = {{100, 0}, {256 << 10, 0}, {(14 << 20) + 8192, 0}, {16 << 20, 2 << 20}};
    for (int turn = 0; turn < 2; turn++) {
        for (int b = 0; b < 4; b++) {
            hpc_placement places[PLACES];
            hpc_memory *memory;
            size_t nbytes = blocks[b].nbytes;
            int n = make_places(places, nbytes, blocks[b].grain, turn);
            numa_avoid(numa_nodes[turn % numa_n_nodes]);
            CHECK_OK(hpc_memory_create_placed(nbytes, places, n, "test", &memory));
            CHECK_EQ(memory->unplaced, 0);
            check_places(hpc_memory_data(memory), nbytes, places, n);
            hpc_memory_release(memory);
        }
    }
}

/* Neighbours on one node, among them empty ones, count as one range. */
static void many_ranges(rank *r) {
    (void)r;
    numa_needed();
    enum { N = 512, EACH = 1024 };
    static hpc_placement places[N];
    for (int i = 0; i < N; i++)
        places[i] = (hpc_placement){(size_t)i * EACH, i % 3 == 1 ? 0 : EACH, numa_nodes[i / (N / 2) % numa_n_nodes]};
    hpc_memory *memory;
    numa_avoid(numa_nodes[numa_n_nodes - 1]);
    CHECK_OK(hpc_memory_create_placed((size_t)N * EACH, places, N, "test", &memory));
    CHECK_EQ(memory->unplaced, 0);
    check_places(hpc_memory_data(memory), (size_t)N * EACH, places, N);
    hpc_memory_release(memory);
}

static void no_such_node(rank *r) {
    (void)r;
    static const int absent[] = {NUMA_NODES - 1, NUMA_NODES, 1 << 30};
    for (int i = 0; i < 3; i++) {
        const hpc_placement places[] = {{0, 4096, absent[i]}, {4096, 4096, NUMA_WHEREVER}};
        hpc_memory *memory;
        CHECK_OK(hpc_memory_create_placed(8192, places, 2, "test", &memory));
        CHECK(memory->unplaced > 0);
        memset(hpc_memory_data(memory), 1, 8192);
        hpc_memory_release(memory);
        char *p = hpc_private_alloc(8192, absent[i]);
        CHECK(p != NULL);
        memset(p, 1, 8192);
        hpc_private_free(p, 8192);
    }
}

/* A container's filter answers EPERM to mbind. */
static void refused(rank *r) {
    (void)r;
    static struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        ranks_skip("the kernel has no system call filters");
    const hpc_placement places[] = {{0, 8192, 0}};
    hpc_memory *memory;
    CHECK_OK(hpc_memory_create_placed(8192, places, 1, "test", &memory));
    CHECK_EQ(memory->unplaced, EPERM);
    memset(hpc_memory_data(memory), 1, 8192);
    hpc_memory_release(memory);
    char *p = hpc_private_alloc(8192, 0);
    CHECK(p != NULL);
    memset(p, 1, 8192);
    hpc_private_free(p, 8192);
}

static void private_memory(rank *r) {
    (void)r;
    static const size_t sizes[] = {1, 100 << 10, 9 << 20};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < 3; i++) {
        for (int n = -1; n < numa_n_nodes; n++) {
            int node = n < 0 ? NUMA_WHEREVER : numa_nodes[n];
            if (node != NUMA_WHEREVER) numa_avoid(node);
            char *p = hpc_private_alloc(sizes[i], node);
            CHECK(p != NULL);
            CHECK_EQ((uintptr_t)p % page, 0);
            for (size_t at = 0; at < sizes[i]; at += page)
                if (numa_n_nodes > 0)
                    CHECK(node == NUMA_WHEREVER ? numa_node_of(p + at) >= 0 : numa_node_of(p + at) == node);
            for (size_t at = 0; at < sizes[i]; at++) CHECK(p[at] == 0);
            memset(p, 1, sizes[i]);
            hpc_private_free(p, sizes[i]);
        }
    }
    CHECK(hpc_private_alloc(SIZE_MAX, 0) == NULL);
    CHECK(hpc_private_alloc((size_t)hpc_memory_available() * 2, 0) == NULL);
    CHECK(hpc_private_alloc(0, 0) == NULL);
    hpc_private_free(NULL, 1);
    CHECK_EQ(hpc_last_error()->status, HPC_OK);
}

static void run_on(int cpu) {
    unsigned seen, node;
    CHECK_EQ(hpc_host_pin(cpu), 0);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(syscall(SYS_getcpu, &seen, &node, NULL), 0);
        CHECK_EQ(seen, cpu);
        CHECK_EQ(node, hpc_host_node("", cpu));
        sched_yield();
    }
}

/* Over all CPUs, so that no luck of the scheduler's passes for a pin. */
static void *run_everywhere(void *arg) {
    for (int i = 0; i < numa_n_cpus; i++) run_on(numa_cpus[i]);
    run_on(*(int *)arg);
    return NULL;
}

static void pinned_threads(rank *r) {
    (void)r;
    static pthread_t threads[NUMA_CPUS];
    cpu_set_t before, after;
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    for (int i = 0; i < numa_n_cpus; i++) CHECK_EQ(pthread_create(&threads[i], NULL, run_everywhere, &numa_cpus[i]), 0);
    for (int i = 0; i < numa_n_cpus; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    CHECK(CPU_EQUAL(&before, &after));
}

/* Both ranks see both parts where their owners asked for them, though each was touched first by a thread elsewhere. */
static void window(rank *r) {
    numa_needed();
    hpc_placement places[2][PLACES];
    size_t nbytes = MiB;
    hpc_window *w;
    for (int i = 0; i < 2; i++) make_places(places[i], nbytes, 0, i);
    numa_avoid(places[r->rank][0].node);
    CHECK_OK(hpc_window_create_parts(r->context, "test", nbytes, 3, places[r->rank], PLACES, ranks_now() + 20, &w));
    CHECK_EQ(w->memory->unplaced, 0);
    for (int i = 0; i < 2; i++) check_places(hpc_window_peer_view(w, i), nbytes, places[i], PLACES);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    enum { ONCE = RANKS_SHM | RANKS_THREADS };
    static const ranks_case cases[] = {
        {.name = "shared_memory", .size = 1, .run = shared_memory, .bare = true, .where = ONCE},
        {.name = "many_ranges", .size = 1, .run = many_ranges, .bare = true, .where = ONCE},
        {.name = "no_such_node", .size = 1, .run = no_such_node, .bare = true, .where = ONCE},
        {.name = "refused", .size = 1, .run = refused, .bare = true, .where = ONCE},
        {.name = "private_memory", .size = 1, .run = private_memory, .bare = true, .where = ONCE},
        {.name = "pinned_threads", .size = 1, .run = pinned_threads, .bare = true, .where = ONCE},
        {.name = "window", .size = 2, .run = window, .where = RANKS_SHM},
        {0},
    };
    numa_look();
    return ranks_main(argc, argv, cases);
}
