/* Which CPUs ranks share, and how they are dealt: by made-up addresses, as hosts, containers and schedulers give them.
 */
#include "check.h"
#include "context/context.h"

enum { RANKS = 8, CONTAINER = 77 };

static hpc_address addresses[RANKS];
static hpc_context context = {.addresses = addresses, .connected = 1};
static hpc_cpu_need needs[RANKS];

/* A rank of the kernel `boot`, in a network namespace of its own, which may use the CPUs from..to-1. */
static void give(int rank, uint64_t boot, int from, int to) {
    addresses[rank] = (hpc_address){.rank = rank, .threads = 1, .host = {boot, (uint64_t)rank + 100}};
    for (int cpu = from; cpu < to; cpu++) addresses[rank].cpus[cpu / 64] |= (uint64_t)1 << cpu % 64;
    needs[rank] = (hpc_cpu_need){1, 1};
    context.group.size = rank + 1;
}

static void limit(int rank, int quota, uint64_t of) {
    addresses[rank].quota = quota;
    addresses[rank].quota_of = of;
}

static hpc_cpu_deal deal_of(int rank, int *chosen) {
    hpc_cpu_deal deal;
    CHECK_EQ(hpc_cpus_deal(&context, rank, needs, HPC_KEY_BY_CORE, &deal, chosen, "test"), HPC_OK);
    return deal;
}

/* The answer of the rank: how many ranks share how many CPUs, and the CPU of its first core, -1: none. */
static void check(int rank, int ranks, int cpus, int cpu) {
    int chosen[16];
    const hpc_cpu_deal deal = deal_of(rank, chosen);
    CHECK_EQ(deal.ranks, ranks);
    CHECK_EQ(deal.cpus, cpus);
    CHECK_EQ(deal.enough, cpu >= 0);
    CHECK_EQ(chosen[0], cpu);
}

/* Four ranks, each in its own network namespace, on one kernel with n CPUs. */
static void test_namespaces(void) {
    for (int r = 0; r < 4; r++) give(r, 1, 0, 2);
    for (int r = 0; r < 4; r++) check(r, 4, 2, -1);
    for (int r = 0; r < 4; r++) give(r, 1, 0, 8);
    for (int r = 0; r < 4; r++) check(r, 4, 8, 4 + r); /* the lowest four are for the trainers */
    needs[2].threads = 2;
    for (int r = 0; r < 4; r++) check(r, 4, 8, -1);
    CHECK_EQ(deal_of(0, NULL).threads, 5);
    CHECK_EQ(deal_of(0, NULL).cores, 4);
    for (int r = 0; r < 4; r++) give(r, 1 + (uint64_t)r % 2, 0, 4); /* two kernels */
    for (int r = 0; r < 4; r++) check(r, 2, 4, 2 + r / 2);
}

/* Ranks that are bound apart, or containers with CPU sets of their own. */
static void test_masks_apart(void) {
    give(0, 1, 0, 1);
    give(1, 1, 1, 2);
    give(2, 1, 64, 66);
    give(3, 1, 66, 70);
    give(4, 1, 66, 70);
    check(0, 1, 1, -1);
    check(1, 1, 1, -1);
    check(2, 1, 2, 65);
    check(3, 2, 4, 68);
    check(4, 2, 4, 69);
}

/* A rank with few CPUs has its share of them though another one may use all. */
static void test_masks_nested(void) {
    give(0, 1, 0, 4);
    give(1, 1, 0, 2);
    needs[0].threads = 1;
    check(0, 2, 4, 3);
    check(1, 2, 4, 1);
    needs[1].threads = 2; /* four CPUs for five */
    check(1, 2, 4, -1);
    needs[1] = (hpc_cpu_need){2, 1}; /* of CPUs 0 and 1, whatever is idle elsewhere */
    give(2, 1, 2, 8);
    check(1, 3, 8, -1);
    CHECK_EQ(deal_of(2, NULL).enough, 0);
}

/* Ranks 0 and 2 share no CPU, but both share some with rank 1. */
static void test_masks_chained(void) {
    give(0, 1, 0, 3);
    give(1, 1, 2, 6);
    give(2, 1, 5, 8);
    for (int r = 0; r < 3; r++) CHECK_EQ(deal_of(r, NULL).ranks, 3);
    int chosen[3];
    for (int r = 0; r < 3; r++) CHECK_EQ(deal_of(r, &chosen[r]).enough, 1);
    for (int r = 0; r < 3; r++) CHECK(addresses[r].cpus[0] >> chosen[r] & 1);
    CHECK(chosen[0] != chosen[1] && chosen[1] != chosen[2]);
}

static void test_quotas(void) {
    for (int r = 0; r < 4; r++) give(r, 1, 0, 64);
    for (int r = 0; r < 4; r++) limit(r, 4, CONTAINER); /* one container for all */
    check(0, 4, 4, -1);
    for (int r = 0; r < 4; r++) limit(r, 2, CONTAINER + (uint64_t)r); /* one each */
    for (int r = 0; r < 4; r++) check(r, 4, 8, 4 + r);
    limit(3, 1, CONTAINER + 3);
    check(0, 4, 7, -1);
    limit(3, 0, 0); /* free to use all */
    check(0, 4, 64, 4);
    give(0, 1, 0, 4); /* CPU sets apart, and one quota above both */
    give(1, 1, 4, 8);
    limit(0, 2, CONTAINER);
    limit(1, 2, CONTAINER);
    context.group.size = 2;
    check(0, 2, 2, -1);
    limit(1, 2, CONTAINER + 1);
    check(0, 1, 2, 1);
    check(1, 1, 2, 5);
}

/* Many cores for each rank, and no more than the masks hold. */
static void test_many(void) {
    int chosen[2][4], taken[16] = {0};
    give(0, 1, 0, 10);
    give(1, 1, 0, 10);
    needs[0] = needs[1] = (hpc_cpu_need){1, 4};
    for (int r = 0; r < 2; r++) CHECK_EQ(deal_of(r, chosen[r]).enough, 1);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 4; i++) CHECK_EQ(taken[chosen[r][i]]++, 0);
    CHECK_EQ(taken[0] + taken[1], 0);
    needs[0].cores = 5;
    CHECK_EQ(deal_of(1, chosen[1]).enough, 0);
    for (int i = 0; i < 4; i++) CHECK_EQ(chosen[1][i], -1);
    needs[0].cores = 1 << 20; /* also of another rank of this kernel */
    CHECK_EQ(deal_of(1, NULL).enough, 0);
}

static void test_spare_cores(void) {
    static const int all[] = {0, 1, 2, 3}, wrong[] = {0, 4};
    for (int r = 0; r < 4; r++) give(r, 1, 0, 2);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 4), 0);
    for (int r = 0; r < 4; r++) give(r, 1, 0, 16);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 4), 3);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 2), 6);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 1), 8); /* more do not help */
    for (int r = 0; r < 4; r++) give(r, 1 + (uint64_t)r, 0, 2 + r);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 4), 1); /* the least of all kernels */
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all + 1, 3), 2);
    for (int r = 0; r < 4; r++) give(r, 1, 4 * r, 4 * r + 4); /* CPU sets apart */
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 4), 3);
    addresses[3].threads = 2; /* its trainer's */
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 4), 2);
    CHECK_EQ(hpc_spare_cores(&context, all, 3, all, 4), 3); /* rank 3 only serves */
    addresses[3].threads = 4;
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 4), 0);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 3), 3); /* ranks 0 to 2 have CPUs of their own */
    CHECK_EQ(hpc_spare_cores(&context, all, 4, all, 0), 0);
    CHECK_EQ(hpc_spare_cores(&context, NULL, 4, all, 4), 0);
    CHECK_EQ(hpc_spare_cores(&context, wrong, 2, all, 4), 0);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, wrong, 2), 0);
    CHECK_EQ(hpc_spare_cores(&context, all, 4, NULL, 1), 0);
    CHECK_EQ(hpc_spare_cores(NULL, all, 4, all, 1), 0);
}

int main(void) {
    test_namespaces();
    test_masks_apart();
    test_masks_nested();
    test_masks_chained();
    test_quotas();
    test_many();
    test_spare_cores();
    return 0;
}
