#define _GNU_SOURCE
#include "base/host.h"
#include "base/isa.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef HPC_BUILD_TYPE
#define HPC_BUILD_TYPE "unknown"
#endif

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

#if defined(HPC_HAVE_VERBS)
#define VERBS "yes"
#else
#define VERBS "no"
#endif

enum { PATH_BYTES = 4096, LINE_BYTES = 4 * PATH_BYTES };

/* A cgroup's folder. mount_length is the length of its mount point; the path can be cut down to it, to get the
 * parents. */
struct cgroup {
    char folder[2 * PATH_BYTES];
    size_t mount_length;
};

double hpc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

const char *hpc_version(void) {
#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)
    return VERSION(HPC_VERSION_MAJOR, HPC_VERSION_MINOR, HPC_VERSION_PATCH) HPC_VERSION_PRE;
}

const char *hpc_build_info(void) {
#define BUILD(isa) "compiler=" COMPILER "; build=" HPC_BUILD_TYPE "; isa=" isa "; verbs=" VERBS
    if (hpc_isa_available(HPC_ISA_AVX512)) return BUILD("avx512,avx2,generic");
    if (hpc_isa_available(HPC_ISA_AVX2)) return BUILD("avx2,generic");
    return BUILD("generic");
}

/* Returns whether a comma-separated list contains word. */
static int has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) return 1;
    return 0;
}

/* Gets this process's path in the hierarchy of a version 1 controller, or in version 2 (controller NULL). */
static int cgroup_path(const char *root, const char *controller, char *path) {
    char name[PATH_BYTES], line[LINE_BYTES];
    int found = 0;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "re");
    if (file == NULL) return 0;
    while (!found && fgets(line, sizeof line, file) != NULL) { /* a line is hierarchy:controllers:path */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *rest = controllers ? strchr(controllers + 1, ':') : NULL;
        if (rest == NULL) continue;
        *rest++ = '\0';
        controllers++;
        found = controller ? has_word(controllers, controller) : *controllers == '\0';
        if (found) snprintf(path, PATH_BYTES, "%s", rest);
    }
    fclose(file);
    return found;
}

/* Finds the folder in which this process's cgroup can be read. In a container the mounted hierarchy may begin at the
 * container's cgroup. */
static int cgroup_find(const char *root, const char *controller, struct cgroup *cgroup) {
    char name[PATH_BYTES], line[LINE_BYTES], path[PATH_BYTES], top[PATH_BYTES], mount[PATH_BYTES], type[32],
        options[1024];
    int found = 0;
    if (!cgroup_path(root, controller, path)) return 0;
    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(name, "re");
    if (file == NULL) return 0;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        char *second = strstr(line, " - "); /* a line: id parent device root mount options ... - type source options */
        if (second == NULL || sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) != 2) continue;
        if (sscanf(second, " - %31s %*s %1023s", type, options) != 2) continue;
        found =
            controller ? strcmp(type, "cgroup") == 0 && has_word(options, controller) : strcmp(type, "cgroup2") == 0;
    }
    fclose(file);
    if (!found) return 0;

    size_t shared = strcmp(top, "/") == 0 ? 0 : strlen(top);
    const char *below = path + shared;
    if (strncmp(path, top, shared) != 0 || (*below != '/' && *below != '\0') || strstr(path, "/..") != NULL) below = "";
    int length = snprintf(cgroup->folder, sizeof cgroup->folder, "%s%s", root, mount);
    if (length < 0 || (size_t)length + strlen(below) >= sizeof cgroup->folder) return 0;
    cgroup->mount_length = (size_t)length;
    strcpy(cgroup->folder + length, strcmp(below, "/") == 0 ? "" : below);
    return 1;
}

/* Moves to the parent cgroup; returns 0 if no parent is visible. */
static int cgroup_up(struct cgroup *cgroup) {
    char *last = strrchr(cgroup->folder, '/');
    if (last == NULL || (size_t)(last - cgroup->folder) < cgroup->mount_length) return 0;
    *last = '\0';
    return 1;
}

static int read_line(const char *folder, const char *name, char *line, size_t cap) {
    char path[3 * PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    int read = fgets(line, (int)cap, file) != NULL;
    fclose(file);
    return read;
}

/* Reads a file with one number. Returns 0 if it contains "max" or does not exist. */
static int read_number(const char *folder, const char *name, long long *value) {
    char line[64];
    return read_line(folder, name, line, sizeof line) && sscanf(line, "%lld", value) == 1;
}

/* Returns the number after field in a file with lines "name number" or "name: number kB", in the file's unit; 0 if
 * absent. */
static long long read_field(const char *folder, const char *name, const char *field) {
    char path[3 * PATH_BYTES], line[256];
    size_t length = strlen(field);
    long long value = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, field, length) == 0 && sscanf(line + length, " %lld", &value) == 1) break;
    fclose(file);
    return value;
}

static int quota_of(const char *folder, const char *controller, long long *quota, long long *period) {
    char line[64];
    if (controller == NULL)
        return read_line(folder, "cpu.max", line, sizeof line) && sscanf(line, "%lld %lld", quota, period) == 2;
    return read_number(folder, "cpu.cfs_quota_us", quota) && read_number(folder, "cpu.cfs_period_us", period);
}

/* Returns a number that identifies the cgroup in every namespace, from the device and inode of its folder. */
static uint64_t cgroup_id(const struct cgroup *cgroup) {
    struct stat s;
    return stat(cgroup->folder, &s) == 0 ? (uint64_t)s.st_dev << 48 ^ (uint64_t)s.st_ino : 0;
}

int hpc_host_quota(const char *root, uint64_t *of) {
    static const char *const controllers[] = {NULL, "cpu"}; /* a host may have mounted both versions */
    struct cgroup cgroup;
    long long quota, period, cores = 0;
    *of = 0;
    for (int i = 0; i < 2; i++) {
        if (!cgroup_find(root, controllers[i], &cgroup)) continue;
        do {
            if (!quota_of(cgroup.folder, controllers[i], &quota, &period) || quota <= 0 || period <= 0) continue;
            long long whole = quota < period ? 1 : quota / period;
            if (cores != 0 && whole > cores) continue;
            cores = whole;
            *of = cgroup_id(&cgroup);
        } while (cgroup_up(&cgroup));
    }
    return (int)cores;
}

/* Version 1 writes no limit as the largest number of whole pages. */
static const long long NO_LIMIT = 1LL << 62;

/* Gets the bytes that a cgroup may still take. Its usage includes cached file pages, which the kernel frees when
 * needed. */
static int room_of(const char *folder, const char *controller, uint64_t *room) {
    long long limit, usage, cached;
    if (controller == NULL) {
        if (!read_number(folder, "memory.max", &limit) || !read_number(folder, "memory.current", &usage)) return 0;
        cached =
            read_field(folder, "memory.stat", "inactive_file ") + read_field(folder, "memory.stat", "active_file ");
    } else {
        if (!read_number(folder, "memory.limit_in_bytes", &limit) || limit >= NO_LIMIT) return 0;
        if (!read_number(folder, "memory.usage_in_bytes", &usage)) return 0;
        cached = read_field(folder, "memory.stat", "total_inactive_file ") +
                 read_field(folder, "memory.stat", "total_active_file ");
    }
    usage = usage > cached ? usage - cached : 0;
    *room = limit > usage ? (uint64_t)(limit - usage) : 0;
    return 1;
}

uint64_t hpc_host_memory(const char *root) {
    static const char *const controllers[] = {NULL, "memory"};
    struct cgroup cgroup;
    uint64_t room;
    uint64_t available = (uint64_t)read_field(root, "proc/meminfo", "MemAvailable:") * 1024;
    if (available == 0) available = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < 2; i++) {
        if (!cgroup_find(root, controllers[i], &cgroup)) continue;
        do {
            if (room_of(cgroup.folder, controllers[i], &room) && room < available) available = room;
        } while (cgroup_up(&cgroup));
    }
    return available;
}

/* Reads the last-level cache's size from sysfs, because the C library returns that of the whole package, even on CPUs
 * whose groups of cores have separate caches. */
size_t hpc_host_cache(const char *root) {
    char folder[PATH_BYTES], line[64], unit;
    unsigned long long value;
    size_t nbytes = (size_t)32 << 20;
    for (int i = 0;; i++) {
        snprintf(folder, sizeof folder, "%s/sys/devices/system/cpu/cpu0/cache/index%d", root, i);
        if (!read_line(folder, "size", line, sizeof line)) return nbytes;
        if (sscanf(line, "%llu%c", &value, &unit) == 2 && value > 0)
            nbytes = (size_t)value << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
    }
}

/* The mask may be larger than cpu_set_t: the kernel returns EINVAL until the set has room for all of its CPUs. */
int hpc_host_cpus(int *cpus, int cap) {
    for (int size = CPU_SETSIZE; size <= 1 << 20; size *= 2) {
        cpu_set_t *set = CPU_ALLOC(size);
        if (set == NULL) break;
        int failed = sched_getaffinity(0, CPU_ALLOC_SIZE(size), set), count = 0;
        int too_small = failed && errno == EINVAL;
        for (int cpu = 0; !failed && cpu < size; cpu++) {
            if (!CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(size), set)) continue;
            if (count < cap) cpus[count] = cpu;
            count++;
        }
        CPU_FREE(set);
        if (count > 0) return count;
        if (!too_small) break;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int count = online > 0 ? (int)online : 1;
    for (int cpu = 0; cpu < count && cpu < cap; cpu++) cpus[cpu] = cpu;
    return count;
}

int hpc_core_count(void) {
    uint64_t of;
    int cores = hpc_host_cpus(NULL, 0), quota = hpc_host_quota("", &of);
    return quota > 0 && quota < cores ? quota : cores;
}

/* Reads the node from a link's name in the CPU's folder. */
int hpc_host_node(const char *root, int cpu) {
    char path[PATH_BYTES], rest;
    int node = 0, found = 0;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d", root, cpu);
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;)
        found = sscanf(entry->d_name, "node%d%c", &node, &rest) == 1 && node >= 0;
    closedir(folder);
    return found ? node : 0;
}

int hpc_host_is_stopped(const char *root, int64_t pid) {
    char name[PATH_BYTES], line[1024] = "";
    snprintf(name, sizeof name, "%s/proc/%lld/stat", root, (long long)pid);
    FILE *file = fopen(name, "re");
    if (file == NULL) return 0;
    size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = 0;
    const char *after = strrchr(line, ')'); /* skip the command, which may contain anything */
    return after != NULL && after[1] == ' ' && (after[2] == 'T' || after[2] == 't');
}

/* Reads without stdio, which would need two more system calls, because waits call this. */
int hpc_host_waited(const char *root, uint64_t *ran, uint64_t *waited) {
    char name[PATH_BYTES], line[128];
    unsigned long long run, wait;
    snprintf(name, sizeof name, "%s/proc/thread-self/schedstat", root);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    line[n > 0 ? n : 0] = 0;
    if (sscanf(line, "%llu %llu", &run, &wait) != 2) return 0;
    *ran = run;
    *waited = wait;
    return 1;
}

uint64_t hpc_host_files(uint64_t needed) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    if (limit.rlim_cur >= needed) return limit.rlim_cur; /* RLIM_INFINITY is the largest value */
    struct rlimit raised = {needed < limit.rlim_max ? needed : limit.rlim_max, limit.rlim_max};
    return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

int hpc_host_open_files(void) {
    DIR *open = opendir("/proc/self/fd");
    int n = -3; /* ., .. and the directory itself */
    if (open == NULL) return 0;
    while (readdir(open) != NULL) n++;
    closedir(open);
    return n;
}

const char *hpc_files_hint(int error, char text[HPC_FILES_HINT]) {
    text[0] = 0;
    if (error == EMFILE)
        snprintf(text, HPC_FILES_HINT, "; this process may open %llu files: raise ulimit -n",
                 (unsigned long long)hpc_host_files(0));
    return text;
}

int hpc_host_allow(const int *cpus, int n) {
    int last = -1;
    for (int i = 0; i < n; i++) {
        if (cpus[i] < 0) return -EINVAL;
        if (cpus[i] > last) last = cpus[i];
    }
    if (last < 0) return -EINVAL;
    cpu_set_t *set = CPU_ALLOC((size_t)last + 1);
    if (set == NULL) return -ENOMEM;
    size_t nbytes = CPU_ALLOC_SIZE((size_t)last + 1);
    CPU_ZERO_S(nbytes, set);
    for (int i = 0; i < n; i++) CPU_SET_S(cpus[i], nbytes, set);
    int status = sched_setaffinity(0, nbytes, set) == 0 ? 0 : -errno;
    CPU_FREE(set);
    return status;
}

int hpc_host_pin(int cpu) {
    return hpc_host_allow(&cpu, 1);
}

uint64_t hpc_memory_available(void) {
    return hpc_host_memory("");
}

int hpc_host_start_thread(void *(*run)(void *arg), void *arg) {
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, &detached, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return error;
}
