/* How ranks wait: with cores of their own, with one that they share, and for ranks that leave. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "context/context.h"
#include "base/crowd.h"
#include "base/host.h"
#include "ranks.h"

static int shares_cores(const hpc_context *c) {
    const char *note;
    for (int i = 0; (note = hpc_context_note(c, i, NULL)) != NULL; i++)
        if (strstr(note, "ranks share")) return 1;
    return 0;
}

/* As mpirun binds them by default: a core each, and none of a rank's own beside it. */
static void bound_apart(rank *r) {
    int cpus[2];
    if (hpc_host_cpus(cpus, 2) < 2) ranks_skip("one CPU");
    CHECK_EQ(hpc_host_pin(cpus[r->rank]), 0);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK_EQ(hpc_core_count(), 1);
    CHECK(!shares_cores(r->context));
    CHECK(r->context->group.spin > 0);
}

static void bound_together(rank *r) {
    int cpu;
    CHECK(hpc_host_cpus(&cpu, 1) > 0);
    CHECK_EQ(hpc_host_pin(cpu), 0);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK(shares_cores(r->context));
    CHECK(r->context->group.spin == 0);
}

enum { LEAVERS = 40 };

typedef struct leaving {
    hpc_group group;
    _Atomic int states[LEAVERS];
    _Atomic char departing[LEAVERS];
    char reasons[LEAVERS][HPC_REASON_BYTES];
    int sent, gave, calls, events;
} leaving;

static int all_gave(void *arg) {
    return ((leaving *)arg)->gave == LEAVERS;
}

/* As soon as it has said who is missing the first of these gives its part, and leaves. */
static int who_has_not(void *arg, int *ranks) {
    leaving *l = arg;
    int n = 0;
    for (int i = l->gave; i < LEAVERS; i++) ranks[n++] = i;
    if (l->gave < LEAVERS) hpc_group_depart(&l->group, l->gave++, HPC_PEER_LEFT, "it left");
    return n;
}

/* One has left already. */
static void leaving_init(leaving *l, const hpc_group *own) {
    l->group.size = LEAVERS;
    l->group.rank = LEAVERS - 1;
    l->group.timeout = 20;
    l->group.states = l->states;
    l->group.departing = l->departing;
    l->group.reasons = l->reasons;
    l->group.bell = own->bell;
    l->group.owner = own->owner;
    hpc_group_depart(&l->group, l->gave++, HPC_PEER_LEFT, "it left");
}

/* A rank that gives its part and leaves is no loss, though it was on the list of the missing just before. */
static void leave_when_listed(rank *r) {
    static leaving l;
    const hpc_wait wait = {"test", all_gave, who_has_not, &l, .every = 0};
    leaving_init(&l, &r->context->group);
    CHECK_OK(hpc_wait_for(&l.group, &wait, -1));
    CHECK_EQ(l.gave, LEAVERS);
}

/* Takes what has been sent, as from a completion queue. */
static int take_all(void *arg, hpc_looker looker) {
    leaving *l = arg;
    (void)looker;
    l->gave = l->sent;
    return 0;
}

/* As soon as it has been looked at the next one sends its part, and leaves: its departure is seen before its part. */
static int all_taken(void *arg) {
    leaving *l = arg;
    if (l->gave == LEAVERS) return 1;
    if (l->sent < LEAVERS) hpc_group_depart(&l->group, l->sent++, HPC_PEER_LEFT, "it left");
    return 0;
}

static int who_is_not_taken(void *arg, int *ranks) {
    leaving *l = arg;
    int n = 0;
    for (int i = l->gave; i < LEAVERS; i++) ranks[n++] = i;
    return n;
}

/* Data that a rank sent before it left is taken before the rank counts as missing. */
static void taken_after_departure(rank *r) {
    static leaving l;
    const hpc_wait wait = {"test", all_taken, who_is_not_taken, &l, .every = 0};
    leaving_init(&l, &r->context->group);
    l.sent = l.gave;
    l.group.progress = take_all;
    l.group.progress_arg = &l;
    CHECK_OK(hpc_wait_for(&l.group, &wait, -1));
}

/* Brings an event when it is called for the second time, which is after the departure was seen. */
static int bring(void *arg, hpc_looker looker) {
    leaving *l = arg;
    (void)looker;
    l->events += ++l->calls == 2;
    return l->calls == 2 ? HPC_LEFT : 0;
}

static int take_event(void *arg) {
    leaving *l = arg;
    return l->events > 0 && l->events--;
}

static int last_one(void *arg, int *ranks) {
    (void)arg;
    ranks[0] = LEAVERS - 1;
    return 1;
}

/* Whoever waits where somebody has left takes an event once, and goes. */
static void taken_once(rank *r) {
    static leaving l;
    const hpc_wait wait = {"test", take_event, last_one, &l, .every = 0};
    leaving_init(&l, &r->context->group);
    l.group.progress = bring;
    l.group.progress_arg = &l;
    CHECK_OK(hpc_wait_for(&l.group, &wait, 1));
    CHECK_EQ(l.calls, 2);
}

/* ---- threads that others keep from their CPU ---- */

static const uint64_t MS = 1000000;

/* By made-up counts: looks a tenth of a second apart, at which the thread had run and had waited for so many more ms.
 */
static int looks(const int (*counts)[2], int n) {
    hpc_crowd crowd = {0};
    uint64_t ran = 0, waited = 0;
    double now = 100;
    for (int i = 0; i < n; i++, now += 0.1) {
        ran += (uint64_t)counts[i][0] * MS;
        waited += (uint64_t)counts[i][1] * MS;
        hpc_crowd_look(&crowd, now, ran, waited);
    }
    CHECK(crowd.until == 0 || crowd.until <= now - 0.1 + 2.01);
    return now - 0.1 < crowd.until;
}

static void crowded_by_counts(rank *r) {
    (void)r;
    CHECK(!looks((const int[][2]){{50, 50}}, 1)); /* the first look only begins to count */
    CHECK(!looks((const int[][2]){{0, 0}, {50, 50}}, 2));
    CHECK(looks((const int[][2]){{0, 0}, {50, 50}, {50, 50}}, 3));
    CHECK(!looks((const int[][2]){{0, 0}, {50, 50}, {100, 0}, {50, 50}}, 4)); /* never twice in a row */
    CHECK(!looks((const int[][2]){{0, 0}, {95, 5}, {95, 5}}, 3));             /* 5 of 100 */
    CHECK(!looks((const int[][2]){{0, 0}, {1, 1}, {1, 1}}, 3));               /* it wants little */
    CHECK(looks((const int[][2]){{0, 0}, {9, 3}, {9, 3}}, 3));                /* the most part it sleeps */
    CHECK(looks((const int[][2]){{0, 0}, {50, 50}, {50, 50}, {100, 0}}, 4));  /* for a while */
    enum { LONG = 25 };
    int calm[LONG][2] = {{0, 0}, {50, 50}, {50, 50}};
    for (int i = 3; i < LONG; i++) calm[i][0] = 100;
    CHECK(!looks((const int(*)[2])calm, LONG));
}

typedef struct beside {
    hpc_bell *bell;
    _Atomic int stop;
    int told;
} beside;

static void *burn(void *arg) {
    while (!atomic_load_explicit(&((beside *)arg)->stop, memory_order_relaxed)) continue;
    return NULL;
}

/* A wait looks whether it is over after it has joined the sleepers. */
static int has_gone_to_bed(void *arg) {
    return atomic_load(&((beside *)arg)->bell->sleepers) > 0;
}

static void note_told(void *arg) {
    ((beside *)arg)->told++;
}

/* A thread that shares its CPU with one that burns it goes to sleep, though it has ages left to spin and to yield;
 * alone it would not. */
static void sleeps_in_a_crowd(rank *r) {
    hpc_group *group = &r->context->group;
    beside b = {.bell = group->bell};
    const hpc_wait wait = {"test", has_gone_to_bed, last_one, &b, .every = 0};
    uint64_t ran, waited;
    pthread_t burner;
    int cpu;
    if (!hpc_host_waited("", &ran, &waited)) ranks_skip("the kernel does not count how long threads wait for CPUs");
    CHECK(hpc_host_cpus(&cpu, 1) > 0);
    CHECK_EQ(hpc_host_pin(cpu), 0);
    CHECK_EQ(pthread_create(&burner, NULL, burn, &b), 0); /* on the same CPU */
    hpc_crowd_tell(note_told, &b);
    group->spin = 0, group->yield = 1e6, group->eases = 1;
    CHECK_OK(hpc_wait_for(group, &wait, 20));
    CHECK(b.told > 0);
    CHECK(hpc_crowd_is(hpc_now()));
    group->spin = 1e6;
    CHECK_OK(hpc_wait_for(group, &wait, 20)); /* neither does it spin */
    hpc_crowd_tell(NULL, NULL);               /* waits of the teardown come after b has gone */
    atomic_store(&b.stop, 1);
    CHECK_EQ(pthread_join(burner, NULL), 0);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "bound_apart", .size = 2, .run = bound_apart, .where = RANKS_PROCESSES, .bare = true},
        {.name = "bound_together", .size = 2, .run = bound_together, .where = RANKS_PROCESSES, .bare = true},
        {.name = "leave_when_listed", .size = 1, .run = leave_when_listed, .where = RANKS_SHM | RANKS_THREADS},
        {.name = "taken_after_departure", .size = 1, .run = taken_after_departure, .where = RANKS_SHM | RANKS_THREADS},
        {.name = "crowded_by_counts",
         .size = 1,
         .run = crowded_by_counts,
         .bare = true,
         .where = RANKS_SHM | RANKS_THREADS},
        {.name = "sleeps_in_a_crowd", .size = 1, .run = sleeps_in_a_crowd, .where = RANKS_SHM | RANKS_PROCESSES},
        {.name = "taken_once", .size = 1, .run = taken_once, .where = RANKS_SHM | RANKS_THREADS},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
