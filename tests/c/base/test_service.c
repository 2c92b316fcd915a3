/* A service with clients of its own, which echo: one thread serves them all, whether they are alone or many, come or
 * go, are busy or stuck; none is called after it was removed, and a forked child has its own thread. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/service.h"
#include "ranks.h"

enum { TIMEOUT = 20, MANY = 20 };

static hpc_service_thread service = HPC_SERVICE_THREAD("test-service", 0);

typedef struct echo {
    hpc_client client;
    int fd, wake_fd;
    _Atomic int inside, gone, is_busy, is_awake, ends;
    _Atomic double every; /* seconds; 0: only input wakes */
    sem_t heard, *enter, *leave;
} echo;

static void enter(echo *e) {
    CHECK_EQ(atomic_fetch_add(&e->inside, 1), 0);
    CHECK(!atomic_load(&e->gone));
}

static void leave(echo *e) {
    CHECK_EQ(atomic_fetch_sub(&e->inside, 1), 1);
}

static double prepare(void *arg) {
    echo *e = arg;
    enter(e);
    const double every = atomic_load(&e->every);
    leave(e);
    return atomic_load(&e->is_busy) ? 0 : every > 0 ? every : INFINITY;
}

static int serve(void *arg, int ms) {
    echo *e = arg;
    uint64_t count;
    int ends = 0;
    enter(e);
    struct pollfd polls[] = {{.fd = e->fd, .events = POLLIN}, {.fd = e->wake_fd, .events = POLLIN}};
    if (ms != 0) CHECK(poll(polls, 2, ms) >= 0 || errno == EINTR);
    if (read(e->wake_fd, &count, sizeof count) < 0) count = 0;
    if (read(e->fd, &count, sizeof count) == sizeof count || atomic_load(&e->every) > 0) {
        if (e->enter) sem_post(e->enter);
        if (e->leave) CHECK_EQ(sem_wait(e->leave), 0);
        ends = atomic_load(&e->ends);
        sem_post(&e->heard);
    }
    leave(e);
    return ends;
}

static void wake(void *arg) {
    const echo *e = arg;
    CHECK_EQ(write(e->wake_fd, &(uint64_t){1}, sizeof(uint64_t)), sizeof(uint64_t));
}

static int watches(void *arg) {
    return atomic_load(&((const echo *)arg)->is_awake);
}

static echo *add(void) {
    echo *e = calloc(1, sizeof *e);
    CHECK(e != NULL);
    e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(e->fd >= 0 && e->wake_fd >= 0);
    atomic_store(&e->is_awake, 1);
    e->client = (hpc_client){.arg = e,
                             .fd = e->fd,
                             .call_fd = e->wake_fd,
                             .prepare = prepare,
                             .serve = serve,
                             .wake = wake,
                             .watches = watches};
    CHECK_EQ(sem_init(&e->heard, 0, 0), 0);
    CHECK_EQ(hpc_service_thread_add(&service, &e->client), 0);
    return e;
}

static void drop(echo *e) {
    hpc_service_thread_remove(&e->client);
    CHECK_EQ(atomic_load(&e->inside), 0);
    atomic_store(&e->gone, 1);
    hpc_service_thread_remove(&e->client); /* does nothing */
    close(e->fd);
    close(e->wake_fd);
    sem_destroy(&e->heard);
    free(e);
}

static void say(echo *e) {
    CHECK_EQ(write(e->fd, &(uint64_t){1}, sizeof(uint64_t)), sizeof(uint64_t));
}

static int hears(sem_t *sem, double seconds) {
    struct timespec until;
    CHECK_EQ(clock_gettime(CLOCK_REALTIME, &until), 0);
    until.tv_sec += (time_t)seconds;
    while (sem_timedwait(sem, &until) != 0)
        if (errno != EINTR) return 0;
    return 1;
}

static void is_served(echo *e) {
    say(e);
    CHECK(hears(&e->heard, TIMEOUT));
}

/* The number of threads with the service's name. A thread that has ended may stay in /proc for a moment. */
static int threads(int expected) {
    int n = 0;
    for (double end = ranks_now() + 5; ranks_now() < end; sched_yield(), n = 0) {
        DIR *tasks = opendir("/proc/self/task");
        CHECK(tasks != NULL);
        for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
            char path[300], name[16] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
            FILE *file = fopen(path, "re");
            if (file != NULL && fgets(name, sizeof name, file) != NULL) n += strcmp(name, "test-service\n") == 0;
            if (file != NULL) fclose(file);
        }
        closedir(tasks);
        if (n == expected) return n;
    }
    return n;
}

/* One thread serves one client and many, in whatever order they go, and ends with the last. */
static void one_thread(void) {
    echo *all[MANY];
    for (int n = 1; n <= MANY; n += MANY - 1) {
        for (int i = 0; i < n; i++) {
            all[i] = add();
            for (int k = 0; k <= i; k++) is_served(all[k]);
            CHECK_EQ(threads(1), 1);
        }
        for (int i = 0; i < n; i++) {
            drop(all[(i * 7) % n]);
            for (int k = i + 1; k < n; k++) is_served(all[(k * 7) % n]);
        }
        CHECK_EQ(threads(0), 0);
    }
}

/* A time wakes a client that no input wakes, alone and beside others. */
static void by_time(void) {
    echo *e = add(), *other = add();
    atomic_store(&e->every, 1e-3);
    is_served(e); /* it learns of the time */
    for (int i = 0; i < 20; i++) CHECK(hears(&e->heard, TIMEOUT));
    drop(other);
    for (int i = 0; i < 20; i++) CHECK(hears(&e->heard, TIMEOUT));
    drop(e);
}

/* Returns when the thread sleeps, or does so without another turn: it keeps the lock from the end of a turn on. */
static void await_sleep(void) {
    for (int runs = 1; runs != 0;) {
        pthread_mutex_lock(&service.lock);
        runs = service.running != NULL;
        pthread_mutex_unlock(&service.lock);
        if (runs) sched_yield();
    }
}

/* Input is not taken while a client does not watch; then it is, also what came meanwhile. A call is taken at any time.
 */
static void unwatched(void) {
    echo *e = add(), *other = add();
    for (int i = 0; i < ranks_rounds(100); i++) {
        is_served(e);
        await_sleep();
        atomic_store(&e->is_awake, 0);
        hpc_service_thread_look(&e->client);
        say(e);
        is_served(other);
        is_served(other);
        await_sleep();
        CHECK_EQ(sem_trywait(&e->heard), -1);
        if (i % 2 == 0) {
            wake(e);
        } else {
            atomic_store(&e->is_awake, 1);
            hpc_service_thread_look(&e->client);
        }
        CHECK(hears(&e->heard, TIMEOUT));
        atomic_store(&e->is_awake, 1);
        hpc_service_thread_look(&e->client);
    }
    drop(e);
    drop(other);
}

/* A client that always has more to do leaves the others their turns, and new ones too. */
static void busy(void) {
    echo *e = add();
    atomic_store(&e->is_busy, 1);
    is_served(e);
    for (int i = 0; i < ranks_rounds(100); i++) {
        echo *other = add();
        is_served(other);
        is_served(e);
        drop(other);
    }
    drop(e);
}

/* While a function of one client does not return, others are removed, and new ones are added. */
static void stuck(void) {
    sem_t entered, let;
    CHECK_EQ(sem_init(&entered, 0, 0), 0);
    CHECK_EQ(sem_init(&let, 0, 0), 0);
    echo *e = add(), *other = add();
    e->enter = &entered;
    e->leave = &let;
    say(e);
    CHECK(hears(&entered, TIMEOUT));
    drop(other);
    other = add();
    sem_post(&let);
    CHECK(hears(&e->heard, TIMEOUT));
    is_served(other);
    drop(e);
    drop(other);
    sem_destroy(&entered);
    sem_destroy(&let);
}

/* A client that ends is not called again, and is still to be removed; the others go on. */
static void over(void) {
    for (int beside = 0; beside < 2; beside++) {
        echo *e = add(), *other = beside ? add() : NULL;
        atomic_store(&e->ends, 1);
        is_served(e);
        say(e);
        echo *late = add();
        is_served(late);
        if (beside) is_served(other);
        CHECK_EQ(sem_trywait(&e->heard), -1);
        drop(late);
        if (beside) drop(other);
        drop(e);
    }
    CHECK_EQ(threads(0), 0);
}

/* ---- all at once ---- */

static _Atomic int stop;

static void *come_and_go(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    while (!atomic_load(&stop)) {
        echo *mine[3];
        int n = 1 + rand_r(&seed) % 3;
        for (int i = 0; i < n; i++) mine[i] = add();
        for (int i = rand_r(&seed) % 5; i > 0; i--) is_served(mine[rand_r(&seed) % n]);
        if (rand_r(&seed) % 4 == 0) say(mine[0]);
        for (int i = 0; i < n; i++) drop(mine[i]);
    }
    return NULL;
}

static void at_once(void) {
    pthread_t comers[4];
    atomic_store(&stop, 0);
    for (uintptr_t i = 0; i < 4; i++) CHECK_EQ(pthread_create(&comers[i], NULL, come_and_go, (void *)(i + 1)), 0);
    for (int i = 0; i < ranks_rounds(300); i++) {
        echo *e = add();
        for (int k = 0; k < i % 4; k++) is_served(e);
        drop(e);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 4; i++) CHECK_EQ(pthread_join(comers[i], NULL), 0);
    CHECK_EQ(threads(0), 0);
}

/* A child that is forked at any moment serves clients of its own, and its parent's clients go on. */
static void forks(void) {
    pthread_t comers[2];
    atomic_store(&stop, 0);
    for (uintptr_t i = 0; i < 2; i++) CHECK_EQ(pthread_create(&comers[i], NULL, come_and_go, (void *)(i + 1)), 0);
    echo *e = add();
    for (int i = 0; i < ranks_rounds(50); i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(TIMEOUT);
            hpc_service_thread_remove(&e->client); /* it is the parent's */
            echo *own = add(), *second = add();
            is_served(own);
            is_served(second);
            CHECK_EQ(threads(1), 1);
            drop(own);
            drop(second);
            _exit(threads(0));
        }
        is_served(e);
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) CHECK_EQ(pthread_join(comers[i], NULL), 0);
    drop(e);
}

int main(void) {
    int files = ranks_entries("/proc/self/fd");
    one_thread();
    by_time();
    unwatched();
    busy();
    stuck();
    over();
    at_once();
    if (!RANKS_TSAN) forks(); /* TSan allows no threads in the child of a process that has some */
    CHECK_EQ(ranks_entries("/proc/self/fd"), files);
    return 0;
}
