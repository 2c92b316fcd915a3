/* Made-up tasks on the threads of an engine: how a thread divides its work among them. */
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "base/crew.h"
#include "base/memory.h"
#include "base/wait.h"
#include "check.h"

enum { TASKS = 3, ENOUGH = 4000 /* slices */, ROUNDS = 40 };

typedef struct made_up {
    hpc_task task;
    _Atomic uint64_t slices, runs, turns; /* turns: runs that found something to do */
} made_up;

static hpc_bell bell;
static _Atomic int states[1];
static hpc_group group = {.size = 1, .timeout = 20, .states = states, .bell = &bell};
static hpc_engine *engine;
static hpc_member *member;
static made_up tasks[TASKS];
static hpc_thread *thread;
static _Atomic uint64_t total;

static void fails(hpc_group *of, const char *why) {
    (void)of;
    check_fail_red(why);
}

/* Works as long as it may, until all tasks together have done enough. */
static const char *work(hpc_task *task) {
    made_up *its = task->arg;
    const uint64_t before = its->slices;
    atomic_fetch_add(&its->runs, 1);
    while (!hpc_task_stops(task) && atomic_load(&total) < ENOUGH) {
        atomic_fetch_add(&total, 1);
        atomic_fetch_add(&its->slices, 1);
        hpc_slice_count(task, HPC_SLICE);
    }
    task->worked = (int)(its->slices - before);
    atomic_fetch_add(&its->turns, its->slices > before);
    task->due = INFINITY;
    return NULL;
}

static void add(int i, double weight, const char *(*run)(hpc_task *task)) {
    made_up *its = &tasks[i];
    memset(its, 0, sizeof *its);
    its->task = (hpc_task){.run = run, .arg = its, .weight = weight};
    thread = hpc_crew_add(member, &its->task, 0, -1, 1);
    CHECK(thread != NULL);
}

static void remove_task(int i) {
    hpc_crew_remove(thread, &tasks[i].task);
}

static void open_engine(void) {
    group.owner = hpc_owner_page();
    engine = hpc_engine_new();
    member = hpc_engine_join(engine, &group, fails);
    CHECK(group.owner != NULL && engine != NULL && member != NULL);
    atomic_store(&total, 0);
}

static void close_engine(void) {
    hpc_engine_leave(member);
    hpc_engine_release(engine);
    hpc_owner_page_free(group.owner);
}

static const char *rest(hpc_task *task) {
    made_up *its = task->arg;
    atomic_fetch_add(&its->runs, 1);
    task->worked = 0;
    task->due = INFINITY;
    return NULL;
}

/* The tasks have nothing to do until all are there. A third one never has. Tasks that have more to do take long turns,
 * and the third one is looked at after each slice. */
static void test_shares(void) {
    static const double weights[][2] = {{1, 1}, {1, 3}, {2, 1}, {0.5, 5}};
    for (int k = 0; k < 4; k++) {
        open_engine();
        atomic_store(&total, ENOUGH);
        for (int i = 0; i < 2; i++) add(i, weights[k][i], work);
        add(2, 1, rest);
        atomic_store(&total, 0);
        while (atomic_load(&total) < ENOUGH) {
            sched_yield();
            hpc_engine_ring(engine);
        }
        for (int i = 0; i < TASKS; i++) remove_task(i);
        const double all = weights[k][0] + weights[k][1];
        for (int i = 0; i < 2; i++) CHECK(fabs((double)tasks[i].slices - ENOUGH * weights[k][i] / all) < ENOUGH / 20);
        CHECK(tasks[0].turns + tasks[1].turns < ENOUGH / (HPC_LEAD / HPC_SLICE));
        CHECK(tasks[2].runs > ENOUGH / 2);
        close_engine();
    }
}

/* Ends its run only when another task was run so many times meanwhile. */
static const char *waits_for_other(hpc_task *task) {
    made_up *its = task->arg;
    const uint64_t before = atomic_load(&tasks[1].runs);
    while (its->runs == 0 && atomic_load(&tasks[1].runs) < before + 10) hpc_slice_count(task, HPC_SLICE);
    its->runs = 1;
    task->worked = 0;
    task->due = INFINITY;
    return NULL;
}

static void test_served_inside(void) {
    open_engine();
    add(1, 1, rest);
    add(0, 1, waits_for_other);
    while (atomic_load(&tasks[0].runs) == 0) sched_yield();
    for (int i = 0; i < 2; i++) remove_task(i);
    close_engine();
}

/* A held task does not run, and the thread's other task does. */
static void test_held(void) {
    open_engine();
    add(0, 1, rest);
    add(1, 1, rest);
    hpc_task_hold(&tasks[0].task);
    const uint64_t runs = atomic_load(&tasks[0].runs), others = atomic_load(&tasks[1].runs);
    while (atomic_load(&tasks[1].runs) < others + 10) hpc_engine_ring(engine);
    CHECK_EQ(atomic_load(&tasks[0].runs), runs);
    hpc_task_let(&tasks[0].task);
    while (atomic_load(&tasks[0].runs) == runs) hpc_engine_ring(engine);
    for (int i = 0; i < 2; i++) remove_task(i);
    close_engine();
}

enum { COMINGS = 1000 };

/* Adds and removes its own task. */
static void *comes_and_goes(void *arg) {
    made_up *its = arg;
    for (int i = 0; i < COMINGS; i++) {
        its->task = (hpc_task){.run = rest, .arg = its, .weight = 1};
        hpc_thread *by = hpc_crew_add(member, &its->task, 0, -1, 1);
        CHECK(by != NULL);
        hpc_crew_remove(by, &its->task);
    }
    return NULL;
}

static void test_many_come_and_go(void) {
    pthread_t threads[TASKS];
    open_engine();
    memset(tasks, 0, sizeof tasks);
    for (int i = 0; i < TASKS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, comes_and_goes, &tasks[i]), 0);
    for (int i = 0; i < TASKS; i++) CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK(engine->threads == NULL);
    close_engine();
}

static const char *comes_again(hpc_task *task) {
    atomic_fetch_add(&((made_up *)task->arg)->runs, 1);
    task->worked = 0;
    task->due = hpc_now() + 1e-3;
    return NULL;
}

/* A new task claims nothing of the time before it came. */
static void test_new_is_level(void) {
    open_engine();
    atomic_store(&total, ENOUGH);
    add(0, 1, rest);
    atomic_store(&tasks[0].task.station->served, 1e12);
    add(1, 1, work);
    atomic_store(&total, 0);
    while (atomic_load(&total) < ENOUGH) {
        sched_yield();
        hpc_engine_ring(engine);
    }
    CHECK(atomic_load(&tasks[1].task.station->served) > 1e12);
    for (int i = 0; i < 2; i++) remove_task(i);
    close_engine();
}

/* A task runs when it is due, although nothing rings. */
static void test_due(void) {
    open_engine();
    add(0, 1, comes_again);
    while (atomic_load(&tasks[0].runs) < 5) sched_yield();
    remove_task(0);
    close_engine();
}

/* Once a rank is lost the task takes what is left, and then does not run again. Another context's task does. */
static void test_lost(void) {
    static _Atomic int theirs[1];
    static hpc_bell bell_of_others;
    hpc_group others = {.size = 1, .timeout = 20, .states = theirs, .bell = &bell_of_others};
    open_engine();
    others.owner = group.owner;
    hpc_member *beside = hpc_engine_join(engine, &others, fails);
    add(0, 1, rest);
    tasks[1].task = (hpc_task){.run = rest, .arg = &tasks[1], .weight = 1};
    CHECK(hpc_crew_add(beside, &tasks[1].task, 0, -1, 1) == thread);
    atomic_store(&theirs[0], HPC_PEER_FAILED);
    atomic_store(&others.departures, 1);
    for (uint64_t runs = atomic_load(&tasks[0].runs) + 10; atomic_load(&tasks[0].runs) < runs;) hpc_bell_ring(&bell);
    const uint64_t runs = atomic_load(&tasks[1].runs);
    for (uint64_t n = atomic_load(&tasks[0].runs) + 10; atomic_load(&tasks[0].runs) < n;) hpc_engine_ring(engine);
    CHECK_EQ(atomic_load(&tasks[1].runs), runs);
    for (int i = 0; i < 2; i++) remove_task(i);
    hpc_engine_leave(beside);
    close_engine();
}

static _Atomic int starts;

static void *removes_1(void *arg) {
    while (!atomic_load(&starts)) sched_yield();
    remove_task(1);
    return arg;
}

/* Adds a task while the others are removed, perhaps to a new thread of the same number. The task runs. */
static void *adds_2(void *arg) {
    made_up *its = arg;
    while (!atomic_load(&starts)) sched_yield();
    hpc_thread *of = hpc_crew_add(member, &its->task, 0, -1, 1);
    while (atomic_load(&its->runs) == 0) hpc_engine_ring(engine);
    hpc_crew_remove(of, &its->task);
    return NULL;
}

/* Several threads remove the last tasks of a thread at once, and one adds a task. No remover looks at the thread's
 * memory when it is freed: the byte that freed memory is filled with would keep it waiting for ever. */
static void test_removed_at_once(int adds) {
    pthread_t others[2];
    mallopt(M_PERTURB, 0x80);
    open_engine();
    for (int n = 0; n < ROUNDS; n++) {
        atomic_store(&starts, 0);
        for (int i = 0; i < 2; i++) add(i, 1, rest);
        tasks[2] = (made_up){.task = {.run = rest, .arg = &tasks[2], .weight = 1}};
        CHECK_EQ(pthread_create(&others[0], NULL, removes_1, NULL), 0);
        if (adds) CHECK_EQ(pthread_create(&others[1], NULL, adds_2, &tasks[2]), 0);
        atomic_store(&starts, 1);
        remove_task(0);
        for (int i = 0; i <= adds; i++) CHECK_EQ(pthread_join(others[i], NULL), 0);
    }
    close_engine();
}

static void *removes_task(void *arg) {
    hpc_crew_remove(thread, arg);
    return NULL;
}

/* Returns how many stations the thread of number 0 has. */
static int count_stations(void) {
    int n = 0;
    for (const hpc_station *s = atomic_load(&member->stations); s != NULL; s = s->next) n += atomic_load(&s->by) == 0;
    return n;
}

/* A thread ends when it serves no station, so it must count no task that has no station. The remover waits for the
 * lock, so its unlock is a system call, after which this thread is in time to look. */
static void test_counts(void) {
    pthread_t remover;
    open_engine();
    add(0, 1, rest);
    for (int n = 0; n < 20; n++) {
        add(1, 1, rest);
        pthread_mutex_lock(&engine->lock);
        CHECK_EQ(pthread_create(&remover, NULL, removes_task, &tasks[1].task), 0);
        while (!hpc_task_stops(&tasks[1].task)) sched_yield();
        for (int i = 0; i < 100; i++) sched_yield();
        pthread_mutex_unlock(&engine->lock);
        while (count_stations() == 2) hpc_cpu_relax();
        pthread_mutex_lock(&engine->lock);
        CHECK_EQ(thread->n_tasks, count_stations());
        pthread_mutex_unlock(&engine->lock);
        CHECK_EQ(pthread_join(remover, NULL), 0);
    }
    remove_task(0);
    close_engine();
}

int main(void) {
    test_shares();
    test_served_inside();
    test_held();
    test_many_come_and_go();
    test_new_is_level();
    test_due();
    test_lost();
    test_counts();
    for (int adds = 0; adds <= 1; adds++) test_removed_at_once(adds);
    return 0;
}
