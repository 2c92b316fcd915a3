/* The choice between threads and waits in words: schemes are made up, and none is opened. */
#include "check.h"
#include "engine/layout/progress.h"

enum { CORES = 2 };

static hpc_core cores[CORES];
static hpc_thread threads[CORES];
static hpc_context context = {.group = {.size = 4}};
static hpc_scheme scheme = {.context = &context, .cores = cores, .n_own_cores = 1};

static void check(const char *expected) {
    char text[512] = "";
    hpc_progress_tell(&scheme, text, sizeof text);
    if (strcmp(text, expected) != 0) fprintf(stderr, "told: %s\nexpected: %s\n", text, expected);
    CHECK(strcmp(text, expected) == 0);
}

static void test_inline(void) {
    scheme.choice = (hpc_progress_choice){.deal = {.ranks = 4, .threads = 4, .cores = 4, .cpus = 2, .each = 1}};
    check("inline: 4 ranks with 1 thread each and 4 cores need 8 CPUs; this kernel has 2 for them");
    scheme.choice.deal = (hpc_cpu_deal){.ranks = 3, .threads = 5, .cores = 1, .cpus = 4};
    check("inline: 3 ranks with 5 threads and 1 core need 6 CPUs; this kernel has 4 for them");
    scheme.choice.deal = (hpc_cpu_deal){.ranks = 1, .threads = 8, .cores = 1, .cpus = 8, .each = 8};
    check("inline: 1 rank with 8 threads and 1 core needs 9 CPUs; this kernel has 8 for it");
    scheme.choice.deal = (hpc_cpu_deal){.ranks = 2, .threads = 2, .cores = 2, .cpus = 4, .each = 1};
    check("inline: 2 ranks with 1 thread each and 2 cores need 4 CPUs; this kernel has 4 for them, but masks or quotas "
          "leave some of them too few");
    scheme.choice.asked = HPC_PROGRESS_INLINE;
    check("inline: asked for");
    scheme.choice = (hpc_progress_choice){.lacked = 1};
    check("inline: not all core threads could be started (ulimit -u)");
    scheme.choice = (hpc_progress_choice){.deal = {.enough = 1}};
    context.group.size = 1;
    check("inline: a single rank waits for nobody but its own cores");
    context.group.size = 4;
    scheme.n_own_cores = 0;
    check("none: this rank owns no rows");
    scheme.n_own_cores = 1;
}

static void test_threads(void) {
    scheme.choice = (hpc_progress_choice){.threads = 1, .deal = {.enough = 1}};
    atomic_init(&threads[0].cpu, 3);
    atomic_init(&threads[0].started, HPC_STARTED);
    atomic_init(&threads[1].cpu, 12);
    atomic_init(&threads[1].started, HPC_UNPINNED);
    for (int i = 0; i < CORES; i++) cores[i] = (hpc_core){.tells = 1, .thread = &threads[i]};
    check("thread: core 0 on CPU 3");
    scheme.n_own_cores = 2;
    check("thread: core 0 on CPU 3, core 1 on any CPU, as the kernel refused CPU 12");
    cores[0].tells = 0; /* another scheme does */
    threads[1].cpu = -1;
    scheme.choice.deal = (hpc_cpu_deal){.ranks = 1, .threads = 1, .cores = 2, .cpus = 1, .each = 1};
    check("thread: core 1 on any CPU; 1 rank with 1 thread and 2 cores needs 3 CPUs; this kernel has 1 for it");
    cores[1].tells = 0;
    check("");
}

static void test_no_room(void) {
    char text[16] = "before ";
    scheme.choice = (hpc_progress_choice){.asked = HPC_PROGRESS_INLINE};
    hpc_progress_tell(&scheme, text, sizeof text);
    CHECK(strcmp(text, "before inline: ") == 0);
}

int main(void) {
    test_inline();
    test_threads();
    test_no_room();
    return 0;
}
