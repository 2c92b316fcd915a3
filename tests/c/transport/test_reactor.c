/* The reactor with sources of its own: queues that make an event only when armed, as completion queues do, and plain
 * descriptors. No wait sleeps through what comes, whoever takes the events; the service thread handles what comes while
 * nobody waits; a source that was removed is not called. All of this holds for a reactor that is alone in its process,
 * and for one beside another. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "ranks.h"
#include "transport/reactor.h"

enum { AWAITED = 1, HERE = 2 };

enum { QUEUES = 4, BURST = 3, LOOPS = 4, TIMEOUT = 20 };

typedef struct queue {
    int fd;
    _Atomic int armed;
    _Atomic uint64_t made, taken;
} queue;

typedef struct source {
    struct job *job;
    int number, plain; /* an event for all that is made */
    size_t most;       /* taken at once */
    queue queues[QUEUES];
    _Atomic int awaited; /* HERE when it has come, without an event */
    _Atomic int hold;    /* 1: the next look waits; 2: a look waits until this is 0 */
    _Atomic int inside, gone, calls, reports, unreported;
} source;

typedef struct job {
    hpc_bell bell;
    hpc_group group;
    _Atomic int state;
    char departing;
    char reasons[1][HPC_REASON_BYTES];
    hpc_reactor *reactor;
    source sources[2]; /* armed, plain */
    int polls;         /* a look of a wait asks the set, too */
    _Atomic int stop;
    sem_t told;
    int tells;
} job;

/* ---- a source ---- */

static void make(source *s, queue *q, int n) {
    uint64_t one = 1;
    for (int i = 0; i < n; i++) {
        atomic_fetch_add(&q->made, 1);
        if (s->plain || atomic_exchange(&q->armed, 0)) CHECK_EQ(write(q->fd, &one, sizeof one), sizeof one);
    }
}

/* The bell rings for the last of a burst, as for what a wait waits for; the others are taken in silence. */
static int take(source *s, queue *q) {
    uint64_t made = atomic_load(&q->made), taken = atomic_load(&q->taken), n;
    do n = made - taken < s->most ? made - taken : s->most;
    while (made > taken && !atomic_compare_exchange_weak(&q->taken, &taken, taken + n));
    if (made <= taken) return 0;
    if (s->job->tells)
        for (uint64_t i = 0; i < n; i++) sem_post(&s->job->told);
    if (taken / BURST != (taken + n) / BURST) hpc_bell_ring(&s->job->bell);
    return taken + n < made;
}

static int take_all(source *s) {
    int left = 0, here = HERE;
    if (atomic_compare_exchange_strong(&s->awaited, &here, 0)) sem_post(&s->job->told);
    left += atomic_load(&s->awaited) != 0;
    for (int i = 0; i < QUEUES; i++) left += take(s, &s->queues[i]);
    return left;
}

static void begin(source *s) {
    atomic_fetch_add(&s->inside, 1);
    CHECK(!atomic_load(&s->gone));
    atomic_fetch_add(&s->calls, 1);
}

static void end(source *s) {
    CHECK(!atomic_load(&s->gone));
    atomic_fetch_sub(&s->inside, 1);
}

/* Data that a plain source leaves is made an event again. */
static int handle(void *arg, uint64_t tag, uint32_t events, size_t budget) {
    source *s = arg;
    queue *q = &s->queues[tag];
    uint64_t count;
    CHECK(tag < QUEUES && events == EPOLLIN && budget > 0);
    begin(s);
    ssize_t n = read(q->fd, &count, sizeof count);
    CHECK(n == sizeof count || n < 0); /* another thread may have had it */
    int left = take(s, q);
    if (left && s->plain) CHECK_EQ(write(q->fd, &(uint64_t){1}, sizeof(uint64_t)), sizeof(uint64_t));
    end(s);
    return left;
}

static void arm(void *arg) {
    source *s = arg;
    begin(s);
    for (int i = 0; i < QUEUES; i++) atomic_store(&s->queues[i].armed, 1);
    end(s);
}

static int look(void *arg) {
    source *s = arg;
    int next = 1;
    begin(s);
    if (atomic_compare_exchange_strong(&s->hold, &next, 2))
        while (atomic_load(&s->hold) != 0) sched_yield();
    int left = take_all(s);
    end(s);
    return left;
}

static int report(void *arg) {
    source *s = arg;
    char name[16];
    begin(s);
    CHECK_EQ(pthread_getname_np(pthread_self(), name, sizeof name), 0);
    CHECK(strcmp(name, "hpcomm-reactor") == 0);
    int left = atomic_fetch_sub(&s->unreported, 1) > 1;
    atomic_fetch_add(&s->reports, 1);
    end(s);
    return left;
}

static void add(job *j, source *s, int plain, size_t most) {
    *s = (source){.job = j, .plain = plain, .most = most};
    const hpc_source as = {
        .arg = s, .handle = handle, .arm = plain ? NULL : arm, .look = plain ? NULL : look, .report = report};
    s->number = hpc_reactor_add(j->reactor, &as);
    CHECK(s->number >= 0);
    for (int i = 0; i < QUEUES; i++) {
        queue *q = &s->queues[i];
        q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        CHECK(q->fd >= 0);
        atomic_store(&q->armed, 1);
        CHECK_EQ(hpc_reactor_watch(j->reactor, s->number, q->fd, EPOLLIN | EPOLLET, (uint64_t)i, 0), 0);
    }
}

static void drop(source *s) {
    hpc_reactor_remove(s->job->reactor, s->number);
    CHECK_EQ(atomic_load(&s->inside), 0);
    atomic_store(&s->gone, 1);
    for (int i = 0; i < QUEUES; i++) close(s->queues[i].fd);
}

/* ---- a rank ---- */

/* As a transport's progress: an armed source is looked at by itself. */
static int progress(void *arg, hpc_looker looker) {
    job *j = arg;
    int left = 0;
    hpc_reactor_looked(j->reactor);
    if (j->polls && looker == HPC_LOOKS_ALL) left += hpc_reactor_poll(j->reactor, 1 << 20);
    return left + (atomic_load(&j->sources[0].gone) ? 0 : take_all(&j->sources[0]));
}

/* Waits neither spin nor yield: each is a sleep and a wake. */
static void open_job(job *j, int all_remote, int polls, size_t most) {
    memset(j, 0, sizeof *j);
    j->group.size = 1;
    j->group.timeout = TIMEOUT;
    j->group.states = &j->state;
    j->group.departing = (_Atomic char *)&j->departing;
    j->group.reasons = j->reasons;
    j->group.bell = &j->bell;
    j->group.owner = "\1";
    j->polls = polls;
    CHECK_EQ(sem_init(&j->told, 0, 0), 0);
    j->reactor = hpc_reactor_open(&j->group, all_remote);
    CHECK(j->reactor != NULL);
    CHECK_EQ(j->bell.alarm != 0, all_remote);
    add(j, &j->sources[0], 0, most);
    add(j, &j->sources[1], 1, most);
    atomic_store(&j->group.progress, progress);
    j->group.progress_arg = j;
    j->group.bed_arg = j->reactor;
    j->group.bed = &hpc_reactor_bed;
}

static void close_job(job *j) {
    for (int i = 0; i < 2; i++)
        if (!atomic_load(&j->sources[i].gone)) drop(&j->sources[i]);
    hpc_reactor_close(j->reactor);
    CHECK_EQ(j->bell.alarm, 0);
    CHECK_EQ(j->bell.sleepers, 0);
    sem_destroy(&j->told);
}

/* ---- waits that sleep ---- */

typedef struct pair {
    job *job;
    source *source;
    queue *queue;
    int rounds;
    uint64_t goal;
    sem_t asked;
    unsigned seed;
    double slowest;
} pair;

static void *produce(void *arg) {
    pair *p = arg;
    for (int k = 0; k < p->rounds; k++) {
        CHECK_EQ(sem_wait(&p->asked), 0);
        int most = rand_r(&p->seed) % 2 ? 2000 : 1;
        for (int i = 0; i < BURST; i++) {
            for (int spin = rand_r(&p->seed) % most; spin > 0; spin--) hpc_cpu_relax();
            if (rand_r(&p->seed) % 4 == 0 && most > 1) sched_yield();
            make(p->source, p->queue, 1);
        }
    }
    return NULL;
}

static int is_here(void *arg) {
    pair *p = arg;
    return atomic_load(&p->queue->taken) >= p->goal;
}

static int nobody(void *arg, int *ranks) {
    (void)arg;
    (void)ranks;
    return 0;
}

static void *consume(void *arg) {
    pair *p = arg;
    for (int k = 0; k < p->rounds; k++) {
        const hpc_wait wait = {"test", is_here, nobody, p, .every = 0};
        double start = ranks_now();
        p->goal += BURST;
        sem_post(&p->asked);
        CHECK_OK(hpc_wait_for(&p->job->group, &wait, -1));
        double took = ranks_now() - start;
        p->slowest = took > p->slowest ? took : p->slowest;
    }
    return NULL;
}

/* Takes events from the set, and goes. */
static void *pass_by(void *arg) {
    job *j = arg;
    while (!atomic_load(&j->stop)) {
        hpc_reactor_poll(j->reactor, 1 << 20);
        for (int i = 0; i < 100; i++) hpc_cpu_relax();
        sched_yield();
    }
    return NULL;
}

static void nothing_is_missed(int all_remote, int polls, size_t most, int armed, int plain, int passer) {
    static job j;
    pair pairs[2 * QUEUES];
    pthread_t producers[2 * QUEUES], consumers[2 * QUEUES], passing;
    int n = 0;
    open_job(&j, all_remote, polls, most);
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < (kind == 0 ? armed : plain); i++) {
            source *s = &j.sources[kind];
            pairs[n] = (pair){
                .job = &j, .source = s, .queue = &s->queues[i], .rounds = ranks_rounds(400), .seed = (unsigned)n};
            CHECK_EQ(sem_init(&pairs[n++].asked, 0, 0), 0);
        }
    if (passer) CHECK_EQ(pthread_create(&passing, NULL, pass_by, &j), 0);
    for (int i = 0; i < n; i++) {
        CHECK_EQ(pthread_create(&producers[i], NULL, produce, &pairs[i]), 0);
        CHECK_EQ(pthread_create(&consumers[i], NULL, consume, &pairs[i]), 0);
    }
    for (int i = 0; i < n; i++) {
        CHECK_EQ(pthread_join(producers[i], NULL), 0);
        CHECK_EQ(pthread_join(consumers[i], NULL), 0);
        CHECK(pairs[i].slowest < 5); /* one that is missed costs the whole timeout */
        sem_destroy(&pairs[i].asked);
    }
    atomic_store(&j.stop, 1);
    if (passer) CHECK_EQ(pthread_join(passing, NULL), 0);
    close_job(&j);
}

static void waits_that_sleep(void) {
    for (int all_remote = 0; all_remote < 2; all_remote++)
        for (int polls = 0; polls < 2; polls++)
            for (size_t most = 1; most <= BURST; most += BURST - 1) {
                nothing_is_missed(all_remote, polls, most, 1, 0, 0);
                nothing_is_missed(all_remote, polls, most, 1, 0, 1);
                nothing_is_missed(all_remote, polls, most, 3, 0, 1);
                nothing_is_missed(all_remote, polls, most, 2, 2, 0);
            }
}

/* ---- nobody waits ---- */

static void hear(job *j, int n) {
    struct timespec until;
    CHECK_EQ(clock_gettime(CLOCK_REALTIME, &until), 0);
    until.tv_sec += TIMEOUT;
    for (int i = 0; i < n; i++) CHECK_EQ(sem_timedwait(&j->told, &until), 0);
}

/* A thread that does not wait takes events before the service thread does: that one hears of the next ones all the
 * same. */
static void while_nobody_waits(void) {
    static job j;
    for (size_t most = 1; most <= BURST; most += BURST - 1)
        for (int thief = 0; thief < 2; thief++) {
            open_job(&j, 1, 0, most);
            j.tells = 1;
            for (int k = 0; k < ranks_rounds(2000); k++) {
                source *s = &j.sources[k & 1];
                make(s, &s->queues[k / 2 % QUEUES], BURST);
                for (int i = 0; i < 2 * thief; i++) hpc_reactor_poll(j.reactor, 1 << 20);
                hear(&j, BURST);
            }
            close_job(&j);
        }
}

/* Another reactor is added as the service thread begins to sleep for this one, and another thread takes all that is in
 * the set, also the alarm: the service thread works for the other one all the same. */
static void another_joins(void) {
    static job j, other;
    open_job(&j, 0, 0, BURST);
    j.tells = 1;
    for (int k = 0; k < ranks_rounds(20); k++) {
        const double until = ranks_now() + TIMEOUT;
        atomic_store(&j.sources[0].hold, 1);
        make(&j.sources[0], &j.sources[0].queues[0], BURST);
        while (atomic_load(&j.sources[0].hold) != 2) {
            CHECK(ranks_now() < until);
            sched_yield();
        }
        open_job(&other, 0, 0, BURST);
        other.tells = 1;
        hpc_reactor_poll(j.reactor, 1 << 20);
        atomic_store(&j.sources[0].hold, 0);
        hear(&j, BURST);
        make(&other.sources[0], &other.sources[0].queues[0], BURST);
        hear(&other, BURST);
        close_job(&other);
    }
    close_job(&j);
}

/* The service thread listens when a wait joins it in the set, which gets the event: what comes after the wait is for
 * the service thread again. */
static void after_a_wait(void) {
    static job j;
    open_job(&j, 1, 0, BURST);
    int rounds = ranks_rounds(500);
    pthread_t thread;
    pair p = {.job = &j, .source = &j.sources[0], .queue = &j.sources[0].queues[0], .rounds = rounds};
    const hpc_wait wait = {"test", is_here, nobody, &p, .every = 0};
    CHECK_EQ(sem_init(&p.asked, 0, 0), 0);
    CHECK_EQ(pthread_create(&thread, NULL, produce, &p), 0);
    j.tells = 1;
    for (int k = 0; k < rounds; k++) {
        for (int i = 0; i < 2; i++) { /* after the second the service thread has no looks of waits to keep away from */
            make(p.source, p.queue, BURST);
            hear(&j, BURST);
        }
        p.goal = (uint64_t)(k + 1) * 3 * BURST;
        sem_post(&p.asked);
        CHECK_OK(hpc_wait_for(&j.group, &wait, -1));
        hear(&j, BURST);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    sem_destroy(&p.asked);
    close_job(&j);
}

/* A source that makes no event is looked at, also when a wait slept in the set as the data began to come. */
static void awaited(int slept_in) {
    static job j;
    pthread_t thread;
    pair p = {.job = &j, .source = &j.sources[0], .queue = &j.sources[0].queues[0], .rounds = 1};
    open_job(&j, 1, 0, BURST);
    CHECK_EQ(sem_init(&p.asked, 0, 0), 0);
    if (slept_in) CHECK_EQ(pthread_create(&thread, NULL, consume, &p), 0);
    for (int k = 0; k < ranks_rounds(200); k++) {
        while (slept_in && !hpc_reactor_has_sleeper(j.reactor)) sched_yield();
        atomic_store(&j.sources[0].awaited, AWAITED);
        hpc_reactor_call(j.reactor);
        for (int i = 0; i < k % 20; i++) sched_yield();
        atomic_store(&j.sources[0].awaited, HERE);
        hear(&j, 1);
    }
    make(p.source, p.queue, BURST);
    if (slept_in) CHECK_EQ(pthread_join(thread, NULL), 0);
    sem_destroy(&p.asked);
    close_job(&j);
}

/* ---- sources that go ---- */

static void *loop_on(void *arg) {
    job *j = arg;
    while (!atomic_load(&j->stop)) {
        hpc_reactor_loops(j->reactor);
    }
    return NULL;
}

/* Loops of calls see to what is their own: the rest is taken all the same, of both kinds. */
static void while_calls_loop(void) {
    static job j;
    open_job(&j, 1, 0, 1);
    j.tells = 1;
    pthread_t threads[LOOPS]; /* one of them is on a core, mostly */
    for (int i = 0; i < LOOPS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, loop_on, &j), 0);
    for (int k = 0; k < ranks_rounds(100); k++) {
        source *s = &j.sources[k & 1];
        make(s, &s->queues[k / 2 % QUEUES], BURST);
        hear(&j, BURST);
    }
    atomic_store(&j.stop, 1);
    for (int i = 0; i < LOOPS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    close_job(&j);
}

static void *look_on(void *arg) {
    job *j = arg;
    while (!atomic_load(&j->stop)) {
        progress(j, HPC_LOOKS_ALL);
    }
    return NULL;
}

static void removed(void) {
    static job j;
    for (int k = 0; k < ranks_rounds(150); k++) {
        source more[HPC_REACTOR_SOURCES - 2];
        pthread_t thread;
        open_job(&j, k & 1, 1, BURST);
        CHECK_EQ(pthread_create(&thread, NULL, look_on, &j), 0);
        for (int i = 0; i < HPC_REACTOR_SOURCES - 2; i++) {
            source *s = &more[i];
            add(&j, s, i & 1, BURST);
            for (int n = 0; n < 50 || atomic_load(&s->calls) == 0; n++) {
                make(s, &s->queues[n % QUEUES], 1);
                if (n >= 50) sched_yield();
            }
            drop(s);
        }
        CHECK_EQ(hpc_reactor_add(j.reactor, &(hpc_source){.handle = handle}), -1);
        atomic_store(&j.stop, 1);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        close_job(&j);
    }
}

/* ---- reports ---- */

static void reports(void) {
    static job j;
    for (int looked = 0; looked < 2; looked++) {
        enum { TIMES = 3 };
        open_job(&j, 1, 0, BURST);
        for (int i = 0; i < 2; i++) atomic_store(&j.sources[i].unreported, TIMES - i);
        if (looked) hpc_reactor_looked(j.reactor);
        hpc_reactor_report(j.reactor);
        double until = ranks_now() + TIMEOUT;
        while (atomic_load(&j.sources[1].reports) < TIMES && ranks_now() < until) {
            if (looked) hpc_reactor_looked(j.reactor);
            sched_yield();
        }
        j.tells = 1;
        make(&j.sources[0], &j.sources[0].queues[0], 1);
        hear(&j, 1);
        close_job(&j);
        for (int i = 0; i < 2; i++) CHECK_EQ(j.sources[i].reports, TIMES); /* all are asked while one has more */
    }
}

static void all_cases(void) {
    waits_that_sleep();
    while_nobody_waits();
    another_joins();
    after_a_wait();
    while_calls_loop();
    awaited(0);
    awaited(1);
    removed();
    reports();
}

int main(void) {
    static job beside; /* it has nothing to do, so it never wakes the service thread */
    int files = ranks_entries("/proc/self/fd"), threads = ranks_entries("/proc/self/task");
    all_cases();
    open_job(&beside, 1, 0, 1);
    all_cases();
    close_job(&beside);
    CHECK_EQ(ranks_entries("/proc/self/fd"), files);
    double end = ranks_now() + 5; /* a joined thread may stay in /proc for a moment */
    while (!RANKS_TSAN && ranks_entries("/proc/self/task") != threads) CHECK(ranks_now() < end);
    return 0;
}
