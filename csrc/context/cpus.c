#define _GNU_SOURCE
#include "context/context.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"

enum { MOST_CPUS = 64 * HPC_CPU_WORDS };

/* ---- ranks that share CPUs ---- */

/* The ranks that share CPUs with one rank, in the order of precedes. */
typedef struct sharing {
    const hpc_context *c;
    int *ranks, n;
    uint64_t cpus[HPC_CPU_WORDS]; /* union of their masks */
} sharing;

static int count_cpus(const uint64_t *cpus) {
    int n = 0;
    for (int i = 0; i < HPC_CPU_WORDS; i++) n += __builtin_popcountll(cpus[i]);
    return n;
}

static int same_mask(const hpc_address *a, const hpc_address *b) {
    return memcmp(a->cpus, b->cpus, sizeof a->cpus) == 0;
}

static int same_quota(const hpc_address *a, const hpc_address *b) {
    return a->quota > 0 && b->quota > 0 && a->quota_of == b->quota_of;
}

static int joins(const sharing *s, const hpc_address *a) {
    const hpc_address *all = s->c->addresses;
    if (a->host[0] != all[s->ranks[0]].host[0]) return 0; /* the boot id identifies the kernel */
    for (int i = 0; i < HPC_CPU_WORDS; i++)
        if (s->cpus[i] & a->cpus[i]) return 1;
    for (int i = 0; i < s->n && a->quota > 0; i++)
        if (same_quota(&all[s->ranks[i]], a)) return 1;
    return 0;
}

/* Returns whether rank a comes before rank b: by the size of its mask, then by the mask, then by rank. */
static int precedes(const hpc_context *c, int a, int b) {
    const int n = count_cpus(c->addresses[a].cpus), m = count_cpus(c->addresses[b].cpus);
    const int order = n != m ? n - m : memcmp(c->addresses[a].cpus, c->addresses[b].cpus, sizeof c->addresses[a].cpus);
    return order != 0 ? order < 0 : a < b;
}

/* Finds the ranks that share CPUs with rank. found[r] becomes 1 for each such rank r. */
static void find_sharing(sharing *s, int rank, char *found) {
    const hpc_context *c = s->c;
    int before;
    s->n = 0;
    s->ranks[s->n++] = rank;
    found[rank] = 1;
    memcpy(s->cpus, c->addresses[rank].cpus, sizeof s->cpus);
    do {
        before = s->n;
        for (int r = 0; r < c->group.size; r++) {
            if (found[r] || !joins(s, &c->addresses[r])) continue;
            found[r] = 1;
            s->ranks[s->n++] = r;
            for (int i = 0; i < HPC_CPU_WORDS; i++) s->cpus[i] |= c->addresses[r].cpus[i];
        }
    } while (s->n > before);
    for (int i = 1; i < s->n; i++) {
        int r = s->ranks[i], at = i;
        for (; at > 0 && precedes(c, r, s->ranks[at - 1]); at--) s->ranks[at] = s->ranks[at - 1];
        s->ranks[at] = r;
    }
}

/* Returns the smallest quota of the ranks from place `at` on that are under the same quota; 0 unless the rank at `at`
 * is the first of them. */
static int quota_once(const sharing *s, int at) {
    const hpc_address *all = s->c->addresses, *a = &all[s->ranks[at]];
    int quota = a->quota;
    for (int i = 0; i < s->n; i++) {
        const hpc_address *b = &all[s->ranks[i]];
        if (!same_quota(a, b)) continue;
        if (i < at) return 0;
        if (b->quota < quota) quota = b->quota;
    }
    return quota;
}

static int cpus_of(const sharing *s) {
    int cpus = count_cpus(s->cpus), quotas = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->c->addresses[s->ranks[i]].quota <= 0) return cpus;
        quotas += quota_once(s, i);
    }
    return quotas < cpus ? quotas : cpus;
}

/* ---- dealing ---- */

void hpc_deal_cpus(const int *cpus, const int *nodes, int n_cpus, const int *wanted, int n, int *chosen) {
    for (int i = 0; i < n; i++) {
        chosen[i] = -1;
        for (int k = 0; k < n_cpus && wanted[i] >= 0 && chosen[i] < 0; k++) {
            if (nodes[k] != wanted[i]) continue;
            int taken = 0;
            for (int j = 0; j < i && !taken; j++) taken = chosen[j] == cpus[k];
            if (!taken) chosen[i] = cpus[k];
        }
    }
    for (int i = 0, next = 0; i < n; i++) {
        for (int taken = 1; chosen[i] < 0 && taken; next++) {
            taken = 0;
            for (int j = 0; j < n && !taken; j++) taken = chosen[j] == cpus[next];
            if (!taken) chosen[i] = cpus[next];
        }
    }
}

static int quotas_suffice(const sharing *s, const hpc_cpu_need *needs) {
    for (int i = 0; i < s->n; i++) {
        const hpc_address *a = &s->c->addresses[s->ranks[i]];
        const int quota = quota_once(s, i);
        int needed = 0;
        for (int k = i; k < s->n && quota > 0; k++)
            if (same_quota(a, &s->c->addresses[s->ranks[k]]))
                needed += needs[s->ranks[k]].threads + needs[s->ranks[k]].cores;
        if (needed > quota) return 0;
    }
    return 1;
}

/* Returns the best node for a core of the rank: a core polls the queues of one NIC, so it belongs on that NIC's node
 * (PHub, section 3.3). -1: any node. */
static int node_wanted(const hpc_context *c, int rank, int core, int affinity) {
    if (!hpc_context_uses_nics(c, rank)) return -1;
    return hpc_node_of_core(&c->addresses[rank].devices, affinity == HPC_KEY_BY_CORE ? core : -1);
}

/* Deals the free CPUs to the ranks at places from to to - 1 of s, which have the same mask. Their threads get the
 * lowest CPUs, among which the kernel moves them. Returns 0 if there are too few CPUs, else 1. */
static int deal_group(const sharing *s, int from, int to, const hpc_cpu_need *needs, int affinity, uint64_t *left,
                      int rank, int *chosen) {
    const uint64_t *mask = s->c->addresses[s->ranks[from]].cpus;
    int cpus[MOST_CPUS], nodes[MOST_CPUS] = {0}, wanted[MOST_CPUS] = {0}, dealt[MOST_CPUS];
    int n = 0, threads = 0, cores = 0, any = 0, at = 0;
    for (int cpu = 0; cpu < MOST_CPUS; cpu++)
        if (mask[cpu / 64] & left[cpu / 64] & (uint64_t)1 << cpu % 64) cpus[n++] = cpu;
    for (int i = from; i < to; i++) {
        threads += needs[s->ranks[i]].threads;
        cores += needs[s->ranks[i]].cores;
        if (threads + cores > n) return 0;
    }
    for (int i = from; i < to; i++)
        for (int core = 0; core < needs[s->ranks[i]].cores; core++, at++) {
            wanted[at] = node_wanted(s->c, s->ranks[i], core, affinity);
            any |= wanted[at] >= 0;
        }
    for (int k = threads; any && k < n; k++) nodes[k] = hpc_host_node("", cpus[k]);
    hpc_deal_cpus(cpus + threads, nodes + threads, n - threads, wanted, cores, dealt);
    for (int k = 0; k < threads + cores; k++) {
        int cpu = k < threads ? cpus[k] : dealt[k - threads];
        left[cpu / 64] &= ~((uint64_t)1 << cpu % 64);
    }
    at = 0;
    for (int i = from; i < to; at += needs[s->ranks[i++]].cores)
        for (int core = 0; s->ranks[i] == rank && chosen != NULL && core < needs[rank].cores; core++)
            chosen[core] = dealt[at + core];
    return 1;
}

/* Deals CPUs to the ranks with the smallest masks first. If any two masks are nested or disjoint, as job schedulers and
 * containers make them, every thread and core gets a CPU if any deal can do that. */
static int deal_all(const sharing *s, const hpc_cpu_need *needs, int affinity, int rank, int *chosen) {
    uint64_t left[HPC_CPU_WORDS];
    memcpy(left, s->cpus, sizeof left);
    if (!quotas_suffice(s, needs)) return 0;
    for (int from = 0, to; from < s->n; from = to) {
        const hpc_address *first = &s->c->addresses[s->ranks[from]];
        for (to = from + 1; to < s->n && same_mask(first, &s->c->addresses[s->ranks[to]]);) to++;
        if (!deal_group(s, from, to, needs, affinity, left, rank, chosen)) return 0;
    }
    return 1;
}

int hpc_cpus_deal(const hpc_context *c, int rank, const hpc_cpu_need *needs, int affinity, hpc_cpu_deal *deal,
                  int *chosen, const char *op) {
    size_t size = (size_t)c->group.size;
    sharing s = {.c = c, .ranks = malloc(size * sizeof *s.ranks)};
    char *found = calloc(size, 1);
    int status = HPC_OK;
    if (s.ranks == NULL || found == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %zu ranks", op, size);
        goto out;
    }
    find_sharing(&s, rank, found);
    *deal = (hpc_cpu_deal){.ranks = s.n, .cpus = cpus_of(&s), .each = needs[rank].threads};
    for (int i = 0; i < s.n; i++) {
        if (needs[s.ranks[i]].threads != needs[rank].threads) deal->each = 0;
        deal->threads += needs[s.ranks[i]].threads;
        deal->cores += needs[s.ranks[i]].cores;
    }
    deal->enough = deal_all(&s, needs, affinity, rank, chosen);
    /* A bit of a mask identifies a CPU only if the kernel has no more CPUs than a mask has bits. */
    const int named = deal->enough && sysconf(_SC_NPROCESSORS_CONF) <= MOST_CPUS;
    for (int core = 0; core < needs[rank].cores && chosen != NULL && !named; core++) chosen[core] = -1;
out:
    free(s.ranks);
    free(found);
    return status;
}

/* ---- cores of servers ---- */

/* Returns the largest number of cores that each of the servers among these ranks can have. */
static int spare_among(const sharing *s, const int *servers, int n_servers, hpc_cpu_need *needs, int most) {
    for (int cores = most; cores > 0; cores--) {
        for (int i = 0; i < n_servers; i++) needs[servers[i]].cores = cores;
        if (deal_all(s, needs, HPC_KEY_BY_CORE, -1, NULL)) return cores;
    }
    return 0;
}

static int are_ranks(const hpc_context *c, const int *ranks, int n) {
    if (ranks == NULL || n <= 0) return 0;
    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= c->group.size) return 0;
    return 1;
}

int hpc_spare_cores(const hpc_context *c, const int *workers, int n_workers, const int *servers, int n_servers) {
    int least = 8; /* a few cores use all of a host's memory bandwidth */
    if (c == NULL || !c->connected || !are_ranks(c, workers, n_workers) || !are_ranks(c, servers, n_servers)) return 0;
    size_t size = (size_t)c->group.size;
    sharing s = {.c = c, .ranks = malloc(size * sizeof *s.ranks)};
    char *found = calloc(size, 1);
    hpc_cpu_need *needs = calloc(size, sizeof *needs);
    if (s.ranks == NULL || found == NULL || needs == NULL) least = 0;
    for (size_t r = 0; r < size && least > 0; r++) needs[r].threads = 1; /* a rank that only serves has one thread */
    for (int i = 0; i < n_workers && least > 0; i++) needs[workers[i]].threads = c->addresses[workers[i]].threads;
    for (int i = 0; i < n_servers && least > 0; i++) {
        if (found[servers[i]]) continue;
        find_sharing(&s, servers[i], found);
        least = spare_among(&s, servers, n_servers, needs, least);
    }
    free(needs);
    free(found);
    free(s.ranks);
    return least;
}
