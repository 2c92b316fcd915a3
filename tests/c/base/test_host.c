/* Facts about the host: the real one within its bounds, and made-up /proc and /sys trees with known answers. */
#define _GNU_SOURCE
#include "check.h"
#include "base/host.h"
#include "base/isa.h"

#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIFIED "38 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
#define SPLIT                                                                                                          \
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"                                                       \
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw shared:3 - cgroup cgroup rw,cpuset\n"                                       \
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct\n"                             \
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"

static const uint64_t MiB = 1 << 20;
static char trees[] = "/tmp/hpcomm-test-host-XXXXXX";
static char tree[64]; /* the one in use */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static void remove_trees(void) {
    nftw(trees, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void give(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", tree, name);
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    CHECK(fputs(text, file) >= 0);
    CHECK_EQ(fclose(file), 0);
}

static void begin(const char *cgroup, const char *mountinfo) {
    static int n;
    snprintf(tree, sizeof tree, "%s/%d", trees, n++);
    give("proc/self/cgroup", cgroup);
    give("proc/self/mountinfo", mountinfo);
    give("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1024 kB\nMemAvailable:    8388608 kB\n");
}

static int quota(const char *root) {
    uint64_t of;
    return hpc_host_quota(root, &of);
}

/* The cgroup that limits most, by its folder: two that stand below it have the same. */
static void test_quota_of(void) {
    uint64_t job, first, second, none;
    struct stat s;
    char folder[128];
    begin("0::/job/first\n", UNIFIED);
    give("sys/fs/cgroup/job/first/cpu.max", "200000 100000\n");
    give("sys/fs/cgroup/job/second/cpu.max", "300000 100000\n");
    give("sys/fs/cgroup/job/cpu.max", "max 100000\n");
    CHECK_EQ(hpc_host_quota(tree, &first), 2);
    snprintf(folder, sizeof folder, "%s/sys/fs/cgroup/job/first", tree);
    CHECK_EQ(stat(folder, &s), 0);
    CHECK_EQ(first & 0xffffffffffff, (uint64_t)s.st_ino & 0xffffffffffff);
    give("proc/self/cgroup", "0::/job/second\n");
    CHECK_EQ(hpc_host_quota(tree, &second), 3);
    CHECK(first != second);
    give("sys/fs/cgroup/job/cpu.max", "200000 100000\n");
    CHECK_EQ(hpc_host_quota(tree, &job), 2);
    CHECK(job != first && job != second && job != 0);
    give("proc/self/cgroup", "0::/job/first\n");
    CHECK_EQ(hpc_host_quota(tree, &first), 2); /* as much as the job's, which counts */
    CHECK_EQ(first, job);
    begin("0::/\n", UNIFIED);
    CHECK_EQ(hpc_host_quota(tree, &none), 0);
    CHECK_EQ(none, 0);
}

static void test_no_limits(void) {
    begin("0::/\n", UNIFIED);
    CHECK_EQ(quota(tree), 0);
    CHECK_EQ(hpc_host_memory(tree), 8192 * MiB);
    CHECK_EQ(hpc_host_cache(tree), 32 * MiB);
    begin("", "");
    CHECK_EQ(quota(tree), 0);
    CHECK_EQ(hpc_host_memory(tree), 8192 * MiB);
}

static void test_quota(void) {
    begin("0::/job/rank\n", UNIFIED);
    give("sys/fs/cgroup/job/rank/cpu.max", "max 100000\n");
    CHECK_EQ(quota(tree), 0);
    give("sys/fs/cgroup/job/cpu.max", "350000 100000\n");
    CHECK_EQ(quota(tree), 3);
    give("sys/fs/cgroup/job/rank/cpu.max", "200000 100000\n");
    CHECK_EQ(quota(tree), 2);
    give("sys/fs/cgroup/cpu.max", "50000 100000\n");
    CHECK_EQ(quota(tree), 1);

    begin("5:cpuset:/other\n4:cpu,cpuacct:/job\n0::/\n", SPLIT);
    give("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    give("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    CHECK_EQ(quota(tree), 0);
    give("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
    CHECK_EQ(quota(tree), 4);
}

static void test_memory(void) {
    begin("0::/job/rank\n", UNIFIED);
    give("sys/fs/cgroup/job/rank/memory.max", "max\n");
    give("sys/fs/cgroup/job/rank/memory.current", "1048576\n");
    CHECK_EQ(hpc_host_memory(tree), 8192 * MiB);
    give("sys/fs/cgroup/job/memory.max", "1073741824\n");
    give("sys/fs/cgroup/job/memory.current", "629145600\n");
    CHECK_EQ(hpc_host_memory(tree), 424 * MiB);
    /* Pages of files that could be dropped do not count: 20 + 80 MiB here. */
    give("sys/fs/cgroup/job/memory.stat", "anon 5\nfile 104857600\ninactive_file 20971520\nactive_file 83886080\n");
    CHECK_EQ(hpc_host_memory(tree), 524 * MiB);
    give("sys/fs/cgroup/job/rank/memory.max", "536870912\n");
    CHECK_EQ(hpc_host_memory(tree), 511 * MiB);
    give("sys/fs/cgroup/job/rank/memory.current", "999999999\n");
    CHECK_EQ(hpc_host_memory(tree), 0);

    begin("4:memory:/job\n", SPLIT);
    give("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    give("sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824\n");
    CHECK_EQ(hpc_host_memory(tree), 8192 * MiB);
    give("sys/fs/cgroup/memory/memory.usage_in_bytes", "9223372036854771000\n"); /* is not read: there is no limit */
    CHECK_EQ(hpc_host_memory(tree), 8192 * MiB);
    give("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
    give("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "536870912\n");
    give("sys/fs/cgroup/memory/job/memory.stat",
         "inactive_file 7\ntotal_inactive_file 1048576\ntotal_active_file 1048576\n");
    CHECK_EQ(hpc_host_memory(tree), 514 * MiB);
}

/* A container without a cgroup namespace: the path is the host's, the mount begins at the container's own cgroup. */
static void test_container(void) {
    begin("0::/docker/c1/job\n", "38 31 0:38 /docker/c1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    give("sys/fs/cgroup/cpu.max", "600000 100000\n");
    CHECK_EQ(quota(tree), 6);
    give("sys/fs/cgroup/job/cpu.max", "500000 100000\n");
    CHECK_EQ(quota(tree), 5);
    give("proc/self/cgroup", "0::/docker/c1\n");
    CHECK_EQ(quota(tree), 6);
    give("proc/self/cgroup", "0::/docker/c123\n");
    CHECK_EQ(quota(tree), 6);

    /* A cgroup outside of the namespace's root is none that the mount shows. */
    begin("0::/../outside\n", UNIFIED);
    give("sys/fs/outside/cpu.max", "100000 100000\n");
    give("sys/fs/cgroup/cpu.max", "600000 100000\n");
    CHECK_EQ(quota(tree), 6);
}

static void test_cache(void) {
    begin("", "");
    give("sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n");
    give("sys/devices/system/cpu/cpu0/cache/index1/size", "32K\n");
    give("sys/devices/system/cpu/cpu0/cache/index2/size", "1024K\n");
    CHECK_EQ(hpc_host_cache(tree), MiB);
    give("sys/devices/system/cpu/cpu0/cache/index3/size", "96M\n");
    CHECK_EQ(hpc_host_cache(tree), 96 * MiB);
}

static void test_node(void) {
    begin("", "");
    give("sys/devices/system/cpu/cpu3/cache/index0/size", "48K\n");
    give("sys/devices/system/cpu/cpu3/node2/cpulist", "3\n");
    give("sys/devices/system/cpu/cpu3/nodes", "7\n");
    give("sys/devices/system/cpu/cpu3/node9x", "");
    give("sys/devices/system/cpu/cpu30/node11/cpulist", "30\n");
    give("sys/devices/system/cpu/cpu4/online", "1\n");
    CHECK_EQ(hpc_host_node(tree, 3), 2);
    CHECK_EQ(hpc_host_node(tree, 30), 11);
    CHECK_EQ(hpc_host_node(tree, 4), 0); /* a kernel without NUMA */
    CHECK_EQ(hpc_host_node(tree, 5), 0);
    CHECK_EQ(hpc_host_node(tree, -1), 0);
}

/* Counts of a thread in nanoseconds, with its slices behind them. */
static void test_waited(void) {
    uint64_t ran = 1, waited = 2;
    begin("", "");
    CHECK(!hpc_host_waited(tree, &ran, &waited)); /* a kernel without them */
    give("proc/thread-self/schedstat", "\n");
    CHECK(!hpc_host_waited(tree, &ran, &waited));
    give("proc/thread-self/schedstat", "418319578\n");
    CHECK(!hpc_host_waited(tree, &ran, &waited));
    CHECK_EQ(ran, 1);
    CHECK_EQ(waited, 2);
    give("proc/thread-self/schedstat", "418319578 132256218 75\n");
    CHECK(hpc_host_waited(tree, &ran, &waited));
    CHECK_EQ(ran, 418319578);
    CHECK_EQ(waited, 132256218);
    give("proc/thread-self/schedstat", "18446744073709551615 9223372036854775808 1\n");
    CHECK(hpc_host_waited(tree, &ran, &waited));
    CHECK(ran == UINT64_MAX && waited == (uint64_t)1 << 63);
}

static void test_cpus(void) {
    int cpus[CPU_SETSIZE], few[2] = {-1, -1};
    int n = hpc_host_cpus(cpus, CPU_SETSIZE);
    cpu_set_t mine;
    CHECK_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    CHECK_EQ(n, CPU_COUNT(&mine));
    CHECK(hpc_core_count() <= n);
    for (int i = 0; i < n; i++) {
        CHECK(CPU_ISSET(cpus[i], &mine));
        CHECK(i == 0 || cpus[i] > cpus[i - 1]);
        CHECK(hpc_host_node("", cpus[i]) >= 0);
    }
    CHECK_EQ(hpc_host_cpus(few, 1), n);
    CHECK_EQ(few[0], cpus[0]);
    CHECK_EQ(few[1], -1);

    CHECK_EQ(hpc_host_pin(cpus[n - 1]), 0);
    CHECK_EQ(sched_getcpu(), cpus[n - 1]);
    CHECK_EQ(hpc_host_cpus(few, 2), 1);
    CHECK_EQ(few[0], cpus[n - 1]);
    CHECK_EQ(hpc_host_pin(-1), -EINVAL);
    CHECK_EQ(hpc_host_pin(1 << 20), -EINVAL);
    CHECK_EQ(hpc_host_allow(cpus, 0), -EINVAL);
    CHECK_EQ(hpc_host_allow((const int[]){cpus[0], -1}, 2), -EINVAL);
    CHECK_EQ(sched_getcpu(), cpus[n - 1]);
    CHECK_EQ(hpc_last_error()->status, HPC_OK);
    CHECK_EQ(hpc_host_allow(cpus, n), 0);
    cpu_set_t again;
    CHECK_EQ(sched_getaffinity(0, sizeof again, &again), 0);
    CHECK(CPU_EQUAL(&mine, &again));
}

static void test_files(void) {
    struct rlimit own, low;
    char hint[HPC_FILES_HINT];
    CHECK(getrlimit(RLIMIT_NOFILE, &own) == 0);
    low = (struct rlimit){40, own.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    CHECK_EQ(hpc_host_files(0), 40);
    CHECK_EQ(hpc_host_files(30), 40); /* never lowered */
    CHECK(strcmp(hpc_files_hint(EMFILE, hint), "; this process may open 40 files: raise ulimit -n") == 0);
    CHECK(hpc_files_hint(ENOMEM, hint)[0] == 0);
    CHECK_EQ(hpc_host_files(50), 50);
    if (own.rlim_max != RLIM_INFINITY) CHECK_EQ(hpc_host_files((uint64_t)own.rlim_max + 1), own.rlim_max);
    CHECK(setrlimit(RLIMIT_NOFILE, &own) == 0);
}

static void test_here(void) {
    CHECK(hpc_core_count() >= 1);
    CHECK(hpc_core_count() <= sysconf(_SC_NPROCESSORS_CONF));
    CHECK(hpc_memory_available() > 0);
    CHECK(hpc_memory_available() <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));

    cpu_set_t before, one;
    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(hpc_core_count(), 1);
    CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

static void test_build_info(void) {
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d%s", HPC_VERSION_MAJOR, HPC_VERSION_MINOR, HPC_VERSION_PATCH,
             HPC_VERSION_PRE);
    CHECK(strcmp(hpc_version(), version) == 0);
    CHECK(strncmp(hpc_build_info(), "compiler=", 9) == 0);
    CHECK(strstr(hpc_build_info(), "; build=") != NULL);
    CHECK(strstr(hpc_build_info(), "; isa=") != NULL);
    CHECK((strstr(hpc_build_info(), "avx512") != NULL) == hpc_isa_available(HPC_ISA_AVX512));
    CHECK((strstr(hpc_build_info(), "avx2") != NULL) == hpc_isa_available(HPC_ISA_AVX2));
}

int main(void) {
    CHECK(mkdtemp(trees) != NULL);
    CHECK_EQ(atexit(remove_trees), 0);
    test_no_limits();
    test_quota_of();
    test_quota();
    test_memory();
    test_container();
    test_cache();
    test_node();
    test_waited();
    test_cpus();
    test_files();
    test_here();
    test_build_info();
    return 0;
}
