/* The work of the service thread, which all channels of a process share: it reads every link, greets callers, and
 * watches processes and the clock. It sleeps until the channel's epoll set has an event (base/service.h), and elsewhere
 * only briefly: at most a second, to answer a caller on the Unix socket. It waits for nothing that another channel of
 * this process must do: the kernel has room for that answer, the first bytes on a new socket.
 *
 * While there is a TCP link, the clock ticks eight times within config.silence. Each tick sends neighbours (edges.c) a
 * beat if this rank has sent them nothing for two ticks, and gives up those from which nothing came for config.silence.
 * If a tick is late by half of config.silence, this process was stopped or got no CPU; its peers' beats may be unread,
 * so all peers' clocks start again. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/host.h"
#include "control/channel.h"

enum { EVENTS = 32, TICKS = 8, QUIET_TICKS = 2, TURN_BYTES = 4 << 20 /* read from a link in its turn */ };

static const double GREETING_SECONDS = 5;   /* for a TCP caller's whole handshake */
static const double UNASKED_SECONDS = 2e-3; /* until a rank whose socket was full is asked again */
static const double PLACE_SECONDS = 1;      /* until a TCP caller must give up its place to others */

/* ---- links ---- */

/* Sends the news and handles that rank asked for. If the socket has no room, the rest, or newer news, are sent when it
 * has. While another thread sends a message on the link, this is tried again whenever the socket has room. */
static void answer(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    const int waited = l->asks || l->blocked;
    if (l->asks) l->asks = hpc_jobs_tell(c, rank) == HPC_ERR_TIMEOUT;
    l->wants = 0;
    l->blocked = hpc_handles_answer(c, rank) == HPC_ERR_TIMEOUT;
    const int waits = l->asks || l->blocked;
    if (!waited && !waits) return;
    struct epoll_event event = {.events = waits ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                .data.u64 = (uint64_t)HPC_WATCH_LINK << 32 | (uint32_t)rank};
    epoll_ctl(c->epoll_fd, EPOLL_CTL_MOD, atomic_load(&l->fd), &event);
}

static void on_link(hpc_control *c, int rank, size_t most) {
    if (c->links[rank].ended) { /* a tick ended it before the connecting thread had it watched */
        epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, atomic_load(&c->links[rank].fd), NULL);
        return;
    }
    const char *why = hpc_link_read(c, rank, most);
    if (why != NULL)
        hpc_link_end(c, rank, why);
    else if (c->links[rank].asks || c->links[rank].wants || c->links[rank].blocked)
        answer(c, rank);
}

static void on_death(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, l->pidfd, NULL);
    if (atomic_load(&l->fd) >= 0) on_link(c, rank, SIZE_MAX); /* its last words, perhaps a BYE, may be unread */
    if (!hpc_link_is_up(l) && atomic_load(&c->joined)) {
        hpc_link_suspect(c, rank, "its process died", hpc_now());
        return;
    }
    atomic_store(&l->proven, 1);
    hpc_link_settle(c, rank, HPC_PEER_FAILED);
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, "its process died");
}

/* ---- strangers ---- */

/* Watches the listeners, or stops watching while no place is free: callers then wait in the backlogs. */
static void listen_again(hpc_control *c, int listen) {
    struct epoll_event unix_event = {.events = listen ? EPOLLIN : 0, .data.u64 = (uint64_t)HPC_WATCH_UNIX << 32};
    struct epoll_event tcp_event = {.events = listen ? EPOLLIN : 0, .data.u64 = (uint64_t)HPC_WATCH_TCP << 32};
    c->full = !listen;
    epoll_ctl(c->epoll_fd, EPOLL_CTL_MOD, c->listen_fd, &unix_event);
    pthread_mutex_lock(&c->lock);
    if (c->tcp_fd >= 0) epoll_ctl(c->epoll_fd, EPOLL_CTL_MOD, c->tcp_fd, &tcp_event);
    pthread_mutex_unlock(&c->lock);
}

/* Frees a stranger's place and returns its descriptor, still open. */
static int release_place(hpc_control *c, hpc_stranger *s) {
    int fd = s->fd;
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    s->fd = -1;
    c->greeting--;
    return fd;
}

static void drop(hpc_control *c, hpc_stranger *s) {
    int fd = release_place(c, s);
    hpc_close(&fd);
}

/* Returns a free place, or the oldest stranger's if its time is over, or NULL. *since gets the oldest stranger's
 * time. */
static hpc_stranger *find_place(hpc_control *c, double now, double *since) {
    hpc_stranger *oldest = NULL;
    for (int i = 0; i < HPC_STRANGERS; i++) {
        hpc_stranger *s = &c->strangers[i];
        if (s->fd < 0) return s;
        if (oldest == NULL || s->since < oldest->since) oldest = s;
    }
    *since = oldest->since;
    return now - oldest->since >= PLACE_SECONDS ? oldest : NULL;
}

static void take_in(hpc_control *c, int fd, int kind) {
    double now = hpc_now(), since;
    hpc_stranger *s = find_place(c, now, &since);
    if (s == NULL) { /* cannot happen: the listeners are not watched */
        hpc_close(&fd);
        return;
    }
    if (s->fd >= 0) drop(c, s);
    *s = (hpc_stranger){.fd = fd, .kind = kind, .since = now};
    hpc_greeting_start(&s->greeting);
    c->greeting++;
    if (hpc_mesh_watch(c, fd, HPC_WATCH_STRANGER, (int)(s - c->strangers)) != 0) drop(c, s);
}

/* Takes in connections that have come to this rank's door. While no place is free, they wait. */
static void take_given(hpc_control *c) {
    double since;
    while (atomic_load(&c->open)) {
        int fd = -1;
        pthread_mutex_lock(&c->lock);
        const int waits = c->n_given > 0, has_place = waits && find_place(c, hpc_now(), &since) != NULL;
        if (has_place) {
            fd = c->given[0];
            memmove(c->given, c->given + 1, (size_t)--c->n_given * sizeof *c->given);
        }
        pthread_mutex_unlock(&c->lock);
        if (waits && !has_place) listen_again(c, 0);
        if (!has_place) return;
        take_in(c, fd, HPC_LINK_TCP);
    }
}

/* Keeps the reason of a refusal, for the error of a thread of this rank that waits in connect. */
static void keep_refusal(hpc_control *c, const char *from, const char *why) {
    pthread_mutex_lock(&c->lock);
    snprintf(c->refusal, sizeof c->refusal, "%s failed: %s", from, why);
    pthread_mutex_unlock(&c->lock);
}

static void refuse(hpc_control *c, int fd, const char *why) {
    char from[HPC_ENDPOINT_TEXT];
    hpc_net_peer_text(fd, from);
    keep_refusal(c, from, why);
    atomic_fetch_add(&c->refused, 1);
    if (c->told) return;
    c->told = 1;
    hpc_group_note(c->group, HPC_NOTE_REFUSED, "refused a connection from %s: %s", from, why);
}

static void on_accept(hpc_control *c, int kind) {
    const hpc_users *users = &c->self.users;
    double since;
    int fd = -1;
    if (find_place(c, hpc_now(), &since) == NULL) {
        listen_again(c, 0);
        return;
    }
    pthread_mutex_lock(&c->lock); /* another thread may close the TCP listener */
    int from = kind == HPC_LINK_UNIX ? c->listen_fd : c->tcp_fd;
    if (from >= 0) fd = accept4(from, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    int error = errno;
    pthread_mutex_unlock(&c->lock);
    if (fd < 0) {
        /* Out of descriptors: the caller stays in the backlog, so epoll would report it again and again. */
        if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) poll(NULL, 0, 1);
        char hint[HPC_FILES_HINT];
        if (error == EMFILE) keep_refusal(c, "a peer", hpc_files_hint(error, hint) + 2); /* skips its leading "; " */
        return;
    }
    if (kind == HPC_LINK_TCP && !hpc_net_is_local(fd, c->self.endpoints)) {
        refuse(c, fd, "it came by an interface that HPCOMM_SOCKET_IFNAME leaves out");
        hpc_close(&fd);
        return;
    }
    if (kind == HPC_LINK_UNIX && !hpc_user_is_there(fd, users->named, users->n)) {
        hpc_close(&fd);
        return;
    }
    take_in(c, fd, kind);
}

static int has_failed(const hpc_control *c, int rank) {
    return hpc_link_is_gone(c, rank) && atomic_load(&c->group->states[rank]) == HPC_PEER_FAILED;
}

/* Returns whether a proven caller becomes the link to this rank. */
static int may_link(hpc_control *c, int rank) {
    return rank != c->group->rank && !hpc_link_is_gone(c, rank) && !hpc_link_is_up(&c->links[rank]) &&
           c->links[rank].bell == NULL && hpc_callers_yield(c, rank);
}

static void on_unix_caller(hpc_control *c, hpc_stranger *s) {
    unsigned char secret[HPC_COOKIE_BYTES];
    int rank, bell = -1, status = hpc_link_read_hello(s->fd, c->group->size, &rank, secret, &bell);
    if (status == HPC_IN_PROGRESS) return;
    int fd = release_place(c, s);
    if (status == HPC_ERR_INVALID && hpc_user_is_there(fd, NULL, 0)) hpc_jobs_answer(c, fd, rank, secret);
    if (status == HPC_OK && !hpc_same_bytes(secret, c->self.secret, sizeof secret)) status = HPC_ERR_AUTH;
    if (status == HPC_OK && has_failed(c, rank)) hpc_link_turn_down(c, fd);
    if (status == HPC_OK && may_link(c, rank)) {
        status = hpc_memory_attach(bell, sizeof(hpc_bell), "init", &c->links[rank].bell);
        bell = -1;
    } else {
        status = HPC_ERR_AUTH;
    }
    hpc_close(&bell);
    if (status != HPC_OK) {
        atomic_store(&c->seeking, 1); /* this rank's own call may have been given up for it */
        hpc_close(&fd);
        return;
    }
    /* The answer comes before anything else that can be sent on this link. If the peer has hung up, its last word is
     * there to read. */
    hpc_link_greet(c, fd, c->self.secret);
    hpc_link_publish(c, rank, fd, HPC_LINK_UNIX);
    hpc_callers_made(c, rank);
}

/* Remembers how to reach the peer: the endpoint with the address from which it called. */
static void recall_endpoint(hpc_control *c, hpc_link *l) {
    hpc_endpoint candidates[HPC_ENDPOINTS + 2];
    char text[HPC_ENDPOINT_TEXT];
    int n = hpc_net_candidates(c->self.endpoints, l->address.endpoints, l->same_host, candidates);
    for (int i = 0; i < n; i++) {
        hpc_endpoint e = candidates[i];
        e.interface[0] = 0;
        hpc_net_text(&e, text);
        const char *port = strrchr(text, ':');
        if (port == NULL || strncmp(text, l->path, (size_t)(port - text) + 1) != 0) continue;
        hpc_mesh_remember(c, l, &candidates[i]);
        hpc_net_text(&candidates[i], l->path);
        return;
    }
}

/* Takes fd over if it returns 1. */
static int take_link(hpc_control *c, int fd, const hpc_hello *hello) {
    hpc_link *l = &c->links[hello->from];
    if (has_failed(c, hello->from) && hpc_greeting_end(fd) == HPC_OK) hpc_link_turn_down(c, fd);
    if (!(atomic_load(&l->allowed) & HPC_LINK_TCP) || !may_link(c, hello->from)) return 0;
    if (hpc_greeting_end(fd) != HPC_OK) return 0;
    hpc_net_tune(fd, c->silence);
    hpc_net_peer_text(fd, l->path);
    recall_endpoint(c, l);
    hpc_link_publish(c, hello->from, fd, HPC_LINK_TCP);
    hpc_callers_made(c, hello->from);
    return 1;
}

static int take_lane(hpc_control *c, int fd, const hpc_hello *hello) {
    if (c->accept_lane == NULL || hpc_group_has_departed(c->group, hello->from)) return 0;
    hpc_net_tune(fd, c->silence);
    return c->accept_lane(c->accept_arg, hello->from, hello->lane, hello->stream, fd) == HPC_OK;
}

static void on_tcp_caller(hpc_control *c, hpc_stranger *s) {
    char from[HPC_ENDPOINT_TEXT];
    const char *why = "";
    int taken = 0, status;
    status = hpc_greeting_step(&s->greeting, s->fd, c->key, c->self.name, c->group->rank, c->group->size, &why);
    if (status == HPC_IN_PROGRESS) return;
    if (status == HPC_ERR_AUTH) refuse(c, s->fd, why);
    const int said_hello = s->greeting.hello.magic != 0; /* a look for a child says nothing */
    if (status == HPC_ERR_TRANSPORT && said_hello) {     /* the caller rejects this rank's proof, gave up, or died */
        hpc_net_peer_text(s->fd, from);
        keep_refusal(c, from, "it hung up before its proof; do all ranks have the same secret?");
    }
    const hpc_hello hello = s->greeting.hello;
    int fd = release_place(c, s);
    if (status == HPC_OK && hello.purpose == HPC_FOR_CONTROL) taken = take_link(c, fd, &hello);
    if (status == HPC_OK && hello.purpose == HPC_FOR_LANE) taken = take_lane(c, fd, &hello);
    if (!taken) hpc_close(&fd);
}

static void on_stranger(hpc_control *c, hpc_stranger *s) {
    if (s->fd >= 0) (s->kind == HPC_LINK_UNIX ? on_unix_caller : on_tcp_caller)(c, s);
}

static void drop_silent(hpc_control *c, double now) {
    double since;
    for (int i = 0; i < HPC_STRANGERS && c->greeting > 0; i++) {
        hpc_stranger *s = &c->strangers[i];
        if (s->fd < 0 || s->kind != HPC_LINK_TCP || now - s->since < GREETING_SECONDS) continue;
        refuse(c, s->fd, "it did not say who it is");
        drop(c, s);
    }
    if (c->full && find_place(c, now, &since) != NULL) listen_again(c, 1);
}

/* ---- the clock ---- */

static void tick_link(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    char why[HPC_REASON_BYTES];
    if (l->kind != HPC_LINK_TCP || l->ended) return;
    if (now - l->heard > c->silence) {
        on_link(c, rank, TURN_BYTES); /* the peer's bytes may be unread */
        if (!l->ended && now - l->heard > c->silence) {
            snprintf(why, sizeof why, "nothing was heard from it for %.3g s", c->silence);
            hpc_link_drop(c, rank); /* in case it is still alive */
            l->unsure = 1;
            hpc_link_end(c, rank, why);
        }
    }
    if (l->ended || hpc_link_is_gone(c, rank)) return;
    if (atomic_exchange_explicit(&l->spoke, 0, memory_order_relaxed))
        l->quiet = 0;
    else if (++l->quiet >= QUIET_TICKS && hpc_link_tell(c, rank, HPC_MESH_BEAT, NULL, 0) == HPC_OK)
        l->quiet = 0;
}

static void tick(hpc_control *c, double now) {
    if (atomic_load(&c->tcp_links) == 0) return;
    if (c->next_tick == 0) c->next_tick = now + c->silence / TICKS;
    if (now < c->next_tick) return;
    int delayed = now - c->next_tick > c->silence / 2;
    const int n = atomic_load_explicit(&c->n_edges, memory_order_acquire);
    for (int i = 0; i < n; i++) {
        const int r = c->edges[i];
        if (!hpc_link_is_up(&c->links[r])) continue;
        if (delayed) c->links[r].heard = now;
        tick_link(c, r, now);
    }
    c->next_tick = now + c->silence / TICKS;
}

/* Returns the seconds until the next due time; INFINITY if nothing is due. */
static double seconds_left(hpc_control *c, double now) {
    double due = c->next_tick > 0 ? c->next_tick : INFINITY, since;
    if (c->next_told < due) due = c->next_told;
    if (c->next_call < due) due = c->next_call;
    if (c->next_edges < due) due = c->next_edges;
    if (c->next_lost < due) due = c->next_lost;
    for (int i = 0; i < HPC_STRANGERS && c->greeting > 0; i++) {
        const hpc_stranger *s = &c->strangers[i];
        if (s->fd >= 0 && s->kind == HPC_LINK_TCP && s->since + GREETING_SECONDS < due)
            due = s->since + GREETING_SECONDS;
    }
    if (c->full && find_place(c, now, &since) == NULL && since + PLACE_SECONDS < due) due = since + PLACE_SECONDS;
    if ((c->unasked || c->unsent) && now + UNASKED_SECONDS < due) due = now + UNASKED_SECONDS;
    return due - now;
}

/* ---- the thread ---- */

static void handle(hpc_control *c, const struct epoll_event *event) {
    int index = (int)(uint32_t)event->data.u64;
    uint64_t pokes;
    switch (event->data.u64 >> 32) {
    case HPC_WATCH_POKE:
        if (read(c->poke_fd, &pokes, sizeof pokes) < 0) return; /* it is read to become quiet */
        return;
    case HPC_WATCH_UNIX:
        on_accept(c, HPC_LINK_UNIX);
        return;
    case HPC_WATCH_TCP:
        on_accept(c, HPC_LINK_TCP);
        return;
    case HPC_WATCH_STRANGER:
        on_stranger(c, &c->strangers[index]);
        return;
    case HPC_WATCH_LINK:
        on_link(c, index, TURN_BYTES);
        return;
    case HPC_WATCH_PROCESS:
        on_death(c, index);
        return;
    case HPC_WATCH_CALL:
        hpc_callers_read(c, index);
        return;
    }
}

/* Goes on with collectives: what this rank has to tell about them, and the one that it gave up. */
static void go_on(hpc_control *c, double now) {
    const int garbled = hpc_roll_hear(c);
    if (garbled >= 0) hpc_link_end(c, garbled, hpc_link_garbled);
    c->next_told = hpc_roll_tell(c, now);
    c->unsent = hpc_relay_go_on(c);
    hpc_link_lost(c, now);
    hpc_spread_go_on(c); /* it may learn of departures */
    hpc_edges_look(c, now);
    if (hpc_spread_go_on(c)) c->unsent = 1;
}

static hpc_service_thread service = HPC_SERVICE_THREAD("hpcomm-control", 0);

static double prepare(void *arg) {
    hpc_control *c = arg;
    return seconds_left(c, hpc_now());
}

/* The thread can no longer serve this channel, so its ranks count as failed. Other channels go on. */
static int give_up(hpc_control *c, int error) {
    char why[HPC_REASON_BYTES];
    snprintf(why, sizeof why, "this rank can no longer read its connections: epoll_wait: %s", strerror(error));
    for (int r = 0; r < c->group->size; r++)
        if (r != c->group->rank) hpc_group_depart(c->group, r, HPC_PEER_FAILED, why);
    return 1;
}

static int serve(void *arg, int ms) {
    hpc_control *c = arg;
    struct epoll_event events[EVENTS];
    int n = epoll_wait(c->epoll_fd, events, EVENTS, ms);
    if (n < 0 && errno != EINTR) return give_up(c, errno);
    for (int i = 0; i < n; i++) handle(c, &events[i]);
    double now = hpc_now();
    drop_silent(c, now);
    take_given(c);
    tick(c, now);
    hpc_callers_go_on(c, now);
    if (atomic_exchange(&c->answering, 0))
        for (int r = 0; r < c->group->size; r++)
            if (atomic_load(&c->links[r].fd) >= 0 && !c->links[r].ended) answer(c, r);
    c->unasked = hpc_inquiry_look(c);
    go_on(c, now);
    hpc_survivors_look(c);
    return 0;
}

static void wake(void *arg) {
    hpc_mesh_poke(arg);
}

int hpc_control_serve(hpc_control *c) {
    c->client =
        (hpc_client){.arg = c, .fd = c->epoll_fd, .call_fd = -1, .prepare = prepare, .serve = serve, .wake = wake};
    return hpc_service_thread_add(&service, &c->client);
}
