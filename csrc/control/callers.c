/* Makes a link at its first use. Any thread seeks one (hpc_mesh_seek); the service thread makes it. By a Unix socket
 * the service thread calls itself: it connects and greets without waiting, and reads the answer when it comes. By TCP a
 * thread calls, because a call may wait for long. It gives its connection, or its failure, to the service thread, and
 * ends when no call is left.
 *
 * Either end may call, and both may call at the same time. The call of the higher rank has precedence: the higher rank
 * turns down a call that comes while its own goes on, and the lower rank takes the call that comes, and gives its own
 * up. A call that was turned down is tried again unless a link has come meanwhile, so a link comes too if the call with
 * precedence fails. Over TCP, where two calls cost more, the lower rank has the higher one asked to call
 * (HPC_MESH_CALL, by spread.c), and calls itself after HEAD_START.
 *
 * A rank with a door (door.h) calls no rank without one: it asks the other one to call, and waits. hpc_control_calls
 * decides which call has precedence, and which rank asks.
 *
 * A firewall may let calls pass in one direction only. So a rank whose call fails has the peer asked to call too.
 *
 * If no link can be made, this rank's questions to the peer fail (on_unreachable). The peer counts as failed if it must
 * be reached (HPC_MUST_REACH), or if no process has its Unix socket. A rank that leaves closes its socket a moment
 * before the others hear of it, so a refused call is tried again for GRACE, and a rank that must be reached is only
 * suspected at first (hpc_link_lost). */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/host.h"
#include "control/channel.h"

enum { MOST_CALLERS = 8 };

static const double HEAD_START = 0.25; /* of a higher rank over TCP */
static const double AGAIN = 5e-3;      /* until the next try */
static const double GRACE = 2;         /* Unix: of tries that no process answers */
static const double ASKED_BACK = 1;    /* TCP: until the peer should have called */

static const char no_process[] = "its process died";
static const char refused[] = "the connection to it was refused: it died, or a firewall rejects the call";

static void ask_back(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    if (l->asked_back || !hpc_link_may_be_called(c, rank)) return;
    l->asked_back = 1;
    hpc_spread_say(c, HPC_MESH_CALL, (uint64_t)c->group->rank << 32 | (uint32_t)rank, NULL, 0);
}

static void give_up(hpc_control *c, int rank, int status, const char *why) {
    hpc_link *l = &c->links[rank];
    atomic_store(&l->sought, 0);
    l->called_since = l->call_again = 0;
    l->failures = l->asked_back = 0;
    c->on_unreachable(c, rank, status, why);
}

void hpc_callers_made(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    atomic_store(&l->sought, 0);
    if (l->refused_at > 0) c->arranged = -1; /* it does not any more */
    l->refused_at = 0;
    l->lost_why = NULL;
    l->is_fresh = 1;
    l->called_since = l->call_again = 0;
    hpc_link_alive(c, rank);
    if (hpc_mesh_watch(c, atomic_load(&l->fd), HPC_WATCH_LINK, rank) != 0) {
        l->unsure = 1;
        hpc_link_end(c, rank, "this rank cannot watch its connection");
    }
    if (l->needed) c->edges_asked = 1;
    if (atomic_load(&l->wanted)) atomic_store(&c->inquiries, 1);
    atomic_store(&c->answering, 1);
}

/* No link can be made. */
static void fail(hpc_control *c, int rank, int status, const char *why, int died) {
    hpc_link *l = &c->links[rank];
    const int must = atomic_load(&l->sought) & HPC_MUST_REACH;
    if (must && !died && l->drops && rank < c->group->rank) {
        hpc_link_dropped(c, rank);
        give_up(c, rank, HPC_ERR_PEER, c->group->reasons[rank]);
        return;
    }
    if (died) atomic_store(&l->proven, 1);
    if (died || (must && rank > c->group->rank)) hpc_link_settle(c, rank, HPC_PEER_FAILED);
    if (must && !died && rank < c->group->rank) atomic_store(&l->doubted, HPC_DOUBT_SILENT);
    give_up(c, rank, status, why);
    if (must || died) hpc_group_depart(c->group, rank, HPC_PEER_FAILED, why);
}

/* A rank that must be reached refuses calls. It died, or it left and its word has not come yet: the verdict waits, and
 * no call is made meanwhile. */
static void suspect(hpc_control *c, int rank, const char *why, double now) {
    hpc_link *l = &c->links[rank];
    if (l->drops) {
        fail(c, rank, HPC_ERR_PEER, why, 0);
        return;
    }
    hpc_link_suspect(c, rank, why, now);
}

/* This rank lacks something for a link. The peer is lost to it alone. */
static void fail_here(hpc_control *c, int rank, int status, const char *why) {
    int none = HPC_NO_DOUBT;
    const int must = atomic_load(&c->links[rank].sought) & HPC_MUST_REACH;
    give_up(c, rank, status, why);
    if (!must) return;
    if (!hpc_link_is_gone(c, rank)) atomic_compare_exchange_strong(&c->links[rank].doubted, &none, HPC_DOUBT_LOCAL);
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, why);
}

/* ---- Unix ---- */

static void end_call(hpc_control *c, hpc_link *l) {
    if (l->call_fd < 0) return;
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, l->call_fd, NULL);
    hpc_close(&l->call_fd);
}

static void no_listener(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    l->call_again = now + AGAIN;
    if (atomic_load(&l->sought) & HPC_MUST_REACH)
        suspect(c, rank, no_process, now);
    else if (now - l->called_since >= GRACE)
        fail(c, rank, HPC_ERR_PEER, no_process, 1);
}

static void call_unix(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    char why[HPC_REASON_BYTES], hint[HPC_FILES_HINT];
    const int fd = hpc_mesh_call_unix(c, rank);
    if (fd < 0 && (errno == ECONNREFUSED || errno == ENOENT)) {
        no_listener(c, rank, now);
    } else if (fd < 0 && errno == EAGAIN) { /* its backlog is full */
        l->call_again = now + AGAIN;
    } else if (fd < 0 && now - l->called_since < GRACE) { /* too few descriptors, perhaps not for long */
        l->call_again = now + 20 * AGAIN;
    } else if (fd < 0) {
        snprintf(why, sizeof why, "cannot connect to it: %s%s", strerror(errno), hpc_files_hint(errno, hint));
        fail_here(c, rank, HPC_ERR_TRANSPORT, why);
    } else {
        l->call_fd = fd;
        if (hpc_link_greet(c, fd, l->address.secret) == HPC_OK && hpc_mesh_watch(c, fd, HPC_WATCH_CALL, rank) == 0)
            return;
        hpc_close(&l->call_fd);
        l->call_again = now + AGAIN;
    }
}

void hpc_callers_read(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    int bell = -1;
    if (l->call_fd < 0) return;
    const int status = hpc_link_read_welcome(c, l->call_fd, rank, &bell);
    if (status == HPC_IN_PROGRESS) return;
    if (status != HPC_OK) {
        end_call(c, l);
        if (status == HPC_ERR_AUTH && !hpc_link_is_gone(c, rank)) {
            hpc_link_dropped(c, rank);
            give_up(c, rank, HPC_ERR_PEER, "it counts this rank as failed");
        }
        l->call_again = hpc_now() + AGAIN; /* it has called, or it ends */
        atomic_store(&c->seeking, 1);
        return;
    }
    if (hpc_memory_attach(bell, sizeof(hpc_bell), "reach", &l->bell) != HPC_OK) {
        end_call(c, l);
        fail_here(c, rank, HPC_ERR_MEMORY, "this rank has no memory for a link");
        return;
    }
    const int fd = l->call_fd;
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    l->call_fd = -1;
    hpc_link_publish(c, rank, fd, HPC_LINK_UNIX);
    hpc_callers_made(c, rank);
}

/* ---- TCP ---- */

static void *call(void *arg) {
    hpc_outcall *call = arg;
    hpc_control *c = call->control;
    hpc_net_heed(&c->stopping);
    call->status = hpc_mesh_call_tcp(c, call->rank, "reach", call->deadline, &call->fd, &call->reached, &call->refused);
    if (call->status != HPC_OK) snprintf(call->why, sizeof call->why, "%s", hpc_last_error()->message);
    pthread_mutex_lock(&c->lock);
    call->next = c->called;
    c->called = call;
    atomic_store(&c->seeking, 1);
    hpc_mesh_poke(c);
    c->n_callers--;
    pthread_cond_signal(&c->ended); /* stop frees nothing before it has the lock */
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Starts a thread for a call; returns 0 if the kernel gives none. */
static int start(hpc_control *c, hpc_outcall *of) {
    pthread_mutex_lock(&c->lock);
    c->n_callers++;
    pthread_mutex_unlock(&c->lock);
    if (hpc_host_start_thread(call, of) == 0) return 1;
    pthread_mutex_lock(&c->lock);
    c->n_callers--;
    pthread_mutex_unlock(&c->lock);
    return 0;
}

static void call_tcp(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    const double most = atomic_load(&l->sought) & HPC_MUST_REACH ? c->silence : c->group->init_timeout / 2;
    l->call_again = now + AGAIN;
    pthread_mutex_lock(&c->lock);
    const int callers = c->n_callers;
    pthread_mutex_unlock(&c->lock);
    if (callers >= MOST_CALLERS) return;
    hpc_outcall *of = calloc(1, sizeof *of);
    if (of == NULL) return;
    *of = (hpc_outcall){.control = c, .rank = rank, .fd = -1, .deadline = now + most};
    l->calling = 1;
    if (start(c, of)) return;
    l->calling = 0;
    free(of);
}

/* A call has failed. The peer is asked to call, once; a first refusal may only mean that it calls already. */
static void on_failed(hpc_control *c, const hpc_outcall *of) {
    hpc_link *l = &c->links[of->rank];
    const double now = hpc_now();
    if (of->status == HPC_ERR_TIMEOUT && atomic_load(&l->sought) & HPC_MUST_REACH) {
        char why[HPC_REASON_BYTES];
        snprintf(why, sizeof why, "nothing was heard from it for %.3g s", c->silence);
        fail(c, of->rank, of->status, why, 0);
        return;
    }
    l->call_again = now + (of->refused ? 10 * AGAIN : ASKED_BACK);
    if (++l->failures == 1 && of->refused) {
        l->called_since = now;
        return;
    }
    const int must = atomic_load(&l->sought) & HPC_MUST_REACH;
    if (must && of->refused == HPC_NO_LISTENER) {
        suspect(c, of->rank, refused, now);
        return;
    }
    if (now - l->called_since >= (must ? c->silence : ASKED_BACK))
        fail(c, of->rank, of->status, of->why, 0);
    else
        ask_back(c, of->rank);
}

static void on_called(hpc_control *c, hpc_outcall *of) {
    hpc_link *l = &c->links[of->rank];
    l->calling = 0;
    if (of->status == HPC_OK && !hpc_link_is_up(l)) {
        hpc_net_text(&of->reached, l->path);
        hpc_mesh_remember(c, l, &of->reached);
        hpc_link_publish(c, of->rank, of->fd, HPC_LINK_TCP);
        of->fd = -1;
        hpc_callers_made(c, of->rank);
    } else if (!hpc_link_is_up(l) && !hpc_link_is_gone(c, of->rank)) {
        on_failed(c, of);
    }
    hpc_close(&of->fd);
    free(of);
}

static hpc_outcall *take_called(hpc_control *c) {
    pthread_mutex_lock(&c->lock);
    hpc_outcall *all = c->called;
    c->called = NULL;
    pthread_mutex_unlock(&c->lock);
    return all;
}

/* This rank may not call the peer, which was asked to call. */
static void await_call(hpc_control *c, int rank, double now) {
    const hpc_link *l = &c->links[rank];
    const int must = atomic_load(&l->sought) & HPC_MUST_REACH;
    const double until = l->called_since + (must ? c->silence : c->group->init_timeout / 2);
    if (now >= until)
        fail(c, rank, HPC_ERR_TIMEOUT, "this rank has a door, so it waits for a call, and none came", 0);
    else
        c->links[rank].call_again = until;
}

/* ---- the service thread ---- */

/* Goes on with the link to rank. Returns when to do it again; INFINITY: after an event. */
static double go_on(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    if (atomic_load(&l->sought) == 0 || l->calling || l->call_fd >= 0) return INFINITY;
    if (hpc_link_is_up(l) || hpc_link_is_gone(c, rank)) {
        if (!hpc_link_is_up(l)) give_up(c, rank, HPC_ERR_PEER, c->group->reasons[rank]);
        atomic_store(&l->sought, 0);
        return INFINITY;
    }
    if (l->refused_at > 0) return INFINITY;
    const int by_tcp = (atomic_load(&l->allowed) & HPC_LINK_UNIX) == 0;
    if (l->called_since == 0) {
        l->called_since = now;
        if (by_tcp && !hpc_control_calls(c, rank)) {
            ask_back(c, rank);
            l->call_again = now + HEAD_START;
        }
    }
    if (now >= l->call_again) (!by_tcp ? call_unix : hpc_link_may_call(c, rank) ? call_tcp : await_call)(c, rank, now);
    return l->calling || l->call_fd >= 0 || atomic_load(&l->sought) == 0 ? INFINITY : l->call_again;
}

double hpc_callers_go_on(hpc_control *c, double now) {
    if (!atomic_load(&c->joined)) return INFINITY;
    if (atomic_exchange(&c->seeking, 0) == 0 && now < c->next_call) return c->next_call;
    for (hpc_outcall *of = take_called(c), *next; of != NULL; of = next) {
        next = of->next;
        on_called(c, of);
    }
    c->next_call = INFINITY;
    for (int r = 0; r < c->group->size; r++) {
        const double due = go_on(c, r, now);
        if (due < c->next_call) c->next_call = due;
    }
    return c->next_call;
}

int hpc_callers_yield(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    const int is_new = hpc_now() - l->called_since < ASKED_BACK; /* an old call over TCP may get nowhere */
    /* Before connect has written the addresses, which decide who calls, no call goes on. */
    if ((l->call_fd >= 0 || (l->calling && is_new)) && hpc_control_calls(c, rank)) return 0;
    end_call(c, l);
    return 1;
}

/* The peer of a call that goes on may have it already. So it gets the last word on that connection: on another one the
 * word would come too late, or not be taken. */
static void keep_call(hpc_control *c, int rank, int *fd, int kind) {
    if (*fd < 0 || hpc_link_is_up(&c->links[rank])) {
        hpc_close(fd);
        return;
    }
    hpc_link_publish(c, rank, *fd, kind);
    *fd = -1;
}

void hpc_callers_stop(hpc_control *c) {
    pthread_mutex_lock(&c->lock);
    while (c->n_callers > 0) pthread_cond_wait(&c->ended, &c->lock);
    pthread_mutex_unlock(&c->lock);
    for (hpc_outcall *of = take_called(c), *next; of != NULL; of = next) {
        next = of->next;
        keep_call(c, of->rank, &of->fd, HPC_LINK_TCP);
        free(of);
    }
    for (int r = 0; r < c->group->size; r++) keep_call(c, r, &c->links[r].call_fd, HPC_LINK_UNIX);
}
