/* Who reads the links of the tcp transport.
 *
 * All streams are in one epoll set, edge-triggered: one event, one reader. A wait looks into the set itself, so that
 * what comes is handled by the thread that waits for it; when it sleeps, it sleeps in the set. For the time when nobody
 * waits there is the service thread, so that a rank that computes receives all the same. While waits look or sleep, it
 * keeps out of their way by naps: woken by every message it would only take a core from them. The kernel wakes the
 * youngest sleeper of a set, which is the wait and not the service thread; an event that the latter gets nevertheless
 * it handles, and rings the bell.
 *
 * The bell of a rank whose peers all come by TCP has an alarm, an eventfd in the set: level-triggered, so that the
 * service thread, when it is woken by it, passes it on by leaving it alone. Only one thread sleeps in the set; others
 * sleep on the bell's futex as everywhere. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transport/tcp.h"

enum { EVENTS = 16, WAIT_BUDGET = 512 << 10, SERVICE_BUDGET = 1 << 20, NAP_MS = 1, LONGEST_NAP_MS = 16 };

enum { KNOWN = 1, NEWS = 2 }; /* some link is broken, and the service thread keeps the time; or has to hear of it */

static const uint64_t ALARM = UINT64_MAX;
static const double GRACE = 1; /* a broken connection's peer may be about to say that it leaves */

/* ---- the set ---- */

int tcp_watch(hpc_tcp *t, const tcp_link *link, int stream, int fd, int again) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.u64 = (uint64_t)link->slot << 8 | (uint64_t)stream};
    return epoll_ctl(t->epoll_fd, again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

int tcp_add_link(hpc_tcp *t, tcp_link *link) {
    int slot = 0;
    pthread_mutex_lock(&t->lock);
    while (slot < t->n_links && t->links[slot] != NULL) slot++;
    if (slot == t->n_links) {
        int room = t->n_links == 0 ? 64 : 2 * t->n_links;
        tcp_link **links = realloc(t->links, (size_t)room * sizeof *links);
        if (links == NULL) {
            pthread_mutex_unlock(&t->lock);
            return HPC_ERR_MEMORY;
        }
        memset(links + t->n_links, 0, (size_t)(room - t->n_links) * sizeof *links);
        t->links = links;
        t->n_links = room;
    }
    t->links[slot] = link;
    link->slot = slot;
    pthread_mutex_unlock(&t->lock);
    return HPC_OK;
}

void tcp_drop_link(hpc_tcp *t, tcp_link *link) {
    pthread_mutex_lock(&t->lock);
    int held = t->links[link->slot] == link;
    if (held) t->links[link->slot] = NULL;
    pthread_mutex_unlock(&t->lock);
    if (held) tcp_link_release(link);
}

static tcp_link *link_at(hpc_tcp *t, int slot) {
    tcp_link *link = NULL;
    pthread_mutex_lock(&t->lock);
    if (slot < t->n_links && t->links[slot] != NULL) link = tcp_link_retain(t->links[slot]);
    pthread_mutex_unlock(&t->lock);
    return link;
}

/* A slot may have a new link since the event: a look at it too many does no harm. */
static int handle(hpc_tcp *t, const struct epoll_event *event, size_t budget) {
    tcp_link *link = link_at(t, (int)(event->data.u64 >> 8));
    int left = 0;
    if (link == NULL) return 0;
    left = tcp_link_visit(link, (int)(event->data.u64 & 255), event->events, budget);
    tcp_link_release(link);
    return left;
}

static void clear(int eventfd) {
    uint64_t count;
    ssize_t n = read(eventfd, &count, sizeof count);
    (void)n; /* nothing there: as good */
}

static void poke(hpc_tcp *t) {
    uint64_t one = 1;
    ssize_t n = write(t->poke_fd, &one, sizeof one);
    (void)n; /* full: it is readable all the same */
}

static void raise_alarm(hpc_tcp *t) {
    uint64_t one = 1;
    ssize_t n = write(t->alarm_fd, &one, sizeof one);
    (void)n; /* likewise */
}

/* By the sleeper in the set, or while there is none. What came for another one meanwhile may have been taken with it:
 * then it is raised again. */
static void take_alarm(hpc_tcp *t, int is_sleeper) {
    if (atomic_load(&t->broken) == NEWS) return; /* for the service thread, whom this wakes */
    clear(t->alarm_fd);
    if ((!is_sleeper && atomic_load(&t->drowsy)) || atomic_load(&t->broken) == NEWS) raise_alarm(t);
}

void tcp_report(hpc_tcp *t) {
    if (atomic_exchange(&t->broken, NEWS) == NEWS) return;
    raise_alarm(t); /* the service thread has a time to keep now */
    if (atomic_load(&t->napping)) poke(t);
}

/* ---- waits ---- */

/* Mostly the link that spoke last speaks next: it is read at once, without asking the set. */
int tcp_progress(hpc_context *c) {
    struct epoll_event events[EVENTS];
    hpc_tcp *t = c->tcp;
    int n, left = 0;
    if (t == NULL) return 0;
    atomic_fetch_add_explicit(&t->polls, 1, memory_order_relaxed);
    int hot = atomic_load_explicit(&t->hot, memory_order_relaxed);
    uint32_t told = atomic_load_explicit(&t->told, memory_order_relaxed);
    if (hot != 0) {
        const struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)(hot - 1) << 8};
        left = handle(t, &event, WAIT_BUDGET);
        if (atomic_load_explicit(&t->told, memory_order_relaxed) != told) return 1;
    }
    n = epoll_wait(t->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < n; i++)
        if (events[i].data.u64 != ALARM)
            left += handle(t, &events[i], WAIT_BUDGET);
        else if (!atomic_load(&t->drowsy)) /* else it is for the sleeper, who set drowsy before its last look */
            take_alarm(t, 0);
    return left;
}

static int claim(void *arg) {
    hpc_context *c = arg;
    hpc_tcp *t = c->tcp;
    if (t == NULL) return 0;
    if (atomic_load_explicit(&c->group.bell->alarm, memory_order_relaxed) != 0 && !atomic_exchange(&t->drowsy, 1))
        return 1;
    if (atomic_load(&t->napping)) poke(t); /* this wait will not read: the service thread has to */
    return 0;
}

static void sleep_in_set(void *arg, double seconds) {
    struct epoll_event events[EVENTS];
    hpc_tcp *t = ((hpc_context *)arg)->tcp;
    int n = epoll_wait(t->epoll_fd, events, EVENTS, seconds > 60 ? 60000 : (int)(seconds * 1e3) + 1);
    atomic_fetch_sub(&t->context->group.bell->sleepers, 1);
    for (int i = 0; i < n; i++)
        if (events[i].data.u64 == ALARM)
            take_alarm(t, 1);
        else
            handle(t, &events[i], WAIT_BUDGET);
}

/* While this thread goes about its own business somebody has to read for the others that sleep. */
static void leave(void *arg) {
    hpc_context *c = arg;
    hpc_tcp *t = c->tcp;
    atomic_store(&t->drowsy, 0);
    if (atomic_load(&c->group.bell->sleepers) != 0 && atomic_load(&t->napping)) poke(t);
}

const hpc_bed tcp_bed = {claim, sleep_in_set, leave};

/* ---- the thread ---- */

static void report_broken(hpc_tcp *t) {
    hpc_group *g = &t->context->group;
    double now = hpc_now();
    int left = 0, known = KNOWN;
    atomic_exchange(&t->broken, KNOWN); /* before the look: what breaks after it is news again */
    pthread_mutex_lock(&t->lock);
    for (int i = 0; i < t->n_links; i++) {
        tcp_link *link = t->links[i];
        if (link == NULL || !atomic_load_explicit(&link->silent, memory_order_acquire)) continue;
        if (atomic_load(&link->closed_there) ||
            atomic_load_explicit(&g->states[link->peer], memory_order_acquire) != HPC_PEER_ALIVE)
            continue;
        if (now - link->broken_at < GRACE)
            left = 1;
        else if (!atomic_load(&g->closed))
            hpc_group_depart(g, link->peer, HPC_PEER_FAILED, link->why);
    }
    pthread_mutex_unlock(&t->lock);
    if (!left) atomic_compare_exchange_strong(&t->broken, &known, 0);
}

static int nap(hpc_tcp *t, int milliseconds) {
    struct pollfd poked = {.fd = t->poke_fd, .events = POLLIN};
    atomic_store(&t->napping, 1);
    int called = poll(&poked, 1, milliseconds) > 0;
    atomic_store(&t->napping, 0);
    if (called) clear(t->poke_fd);
    return called;
}

static void *serve(void *arg) {
    struct epoll_event events[EVENTS];
    hpc_tcp *t = arg;
    uint32_t seen = 0;
    int milliseconds = NAP_MS, called = 0;
    while (!atomic_load(&t->stopping)) {
        uint32_t polls = atomic_load_explicit(&t->polls, memory_order_relaxed);
        int drowsy = atomic_load(&t->drowsy), alarmed = 0;
        if (atomic_load(&t->broken)) report_broken(t);
        if (!called && (polls != seen || drowsy)) {
            called = nap(t, milliseconds);
            milliseconds = !drowsy ? NAP_MS : milliseconds < LONGEST_NAP_MS ? 2 * milliseconds : LONGEST_NAP_MS;
            seen = polls;
            continue;
        }
        seen = polls;
        milliseconds = NAP_MS;
        called = 0;
        int n = epoll_wait(t->epoll_fd, events, EVENTS, atomic_load(&t->broken) ? 100 : -1);
        for (int i = 0; i < n; i++)
            if (events[i].data.u64 == ALARM)
                alarmed = 1;
            else
                handle(t, &events[i], SERVICE_BUDGET);
        if (alarmed && !atomic_load(&t->drowsy)) take_alarm(t, 0);
    }
    return NULL;
}

static int start_thread(hpc_tcp *t) {
    sigset_t all, before;
    sigfillset(&all); /* signals are for the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&t->thread, NULL, serve, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return error;
    pthread_setname_np(t->thread, "hpcomm-tcp");
    t->running = 1;
    return 0;
}

hpc_tcp *tcp_of(hpc_context *c) {
    struct epoll_event alarm = {.events = EPOLLIN, .data.u64 = ALARM};
    hpc_tcp *t = c->tcp;
    int error;
    if (t != NULL) return t;
    t = calloc(1, sizeof *t);
    if (t == NULL) {
        hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for the tcp transport");
        return NULL;
    }
    t->context = c;
    pthread_mutex_init(&t->lock, NULL);
    t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    t->alarm_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    error = t->epoll_fd < 0 || t->alarm_fd < 0 || t->poke_fd < 0 ||
                    epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, t->alarm_fd, &alarm) != 0
                ? errno
                : start_thread(t);
    if (error != 0) {
        tcp_service_free(t);
        hpc_fail_transport("init", "tcp", -1, "rank %d: init: cannot open the tcp transport: %s%s", c->group.rank,
                           strerror(error), error == EMFILE ? "; raise ulimit -n" : "");
        return NULL;
    }
    if (c->all_tcp) atomic_store(&c->group.bell->alarm, t->alarm_fd + 1);
    return c->tcp = t;
}

void tcp_service_free(hpc_tcp *t) {
    atomic_store(&t->context->group.bell->alarm, 0);
    if (t->running) {
        atomic_store(&t->stopping, 1);
        poke(t);
        raise_alarm(t);
        pthread_join(t->thread, NULL);
    }
    for (int i = 0; i < t->n_links; i++)
        if (t->links[i] != NULL) tcp_link_release(t->links[i]);
    for (uint32_t i = 0; i < t->n_windows; i++) hpc_memory_release(t->windows[i].memory);
    free(t->links);
    free(t->windows);
    if (t->epoll_fd >= 0) close(t->epoll_fd);
    if (t->alarm_fd >= 0) close(t->alarm_fd);
    if (t->poke_fd >= 0) close(t->poke_fd);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
