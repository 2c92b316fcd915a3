/* Connects at the start. Each rank makes the links to its neighbours in the tree, and then all ranks take part in a
 * collective. So every rank has come when connect returns, and other links can be made at their first use.
 *
 * Up to three ranks are all neighbours of each other (collective.c).
 *
 * The collective carries the kind of each rank's link to its parent. If two machines look like one host, such as clones
 * of one machine, some link of that "host" is TCP. Then the ranks of the "host" look whom of it they reach by a Unix
 * socket; the others are linked by TCP. */
#include "control/channel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/overdue.h"

static const double LOOK_SECONDS = 0.5;     /* until a rank looks for children that have not called */
static const double FAR_SECONDS = 2;        /* for those of other hosts: a firewall may refuse this rank's look alone */
static const double CALLERS_SECONDS = 0.25; /* a rank that failed to connect still answers for so long */

/* Returns whether rank is a neighbour of this rank at the start. */
static int is_neighbour(const hpc_control *c, int rank) {
    const int me = c->group->rank;
    return rank != me && (c->group->size <= HPC_DIRECT || c->tree.parent[rank] == me || c->tree.parent[me] == rank);
}

static int is_joining(const hpc_control *c, int rank) {
    return atomic_load_explicit(&c->group->states[rank], memory_order_acquire) == HPC_PEER_JOINING &&
           atomic_load(&c->links[rank].edge);
}

static int who_is_joining(void *arg, int *ranks) {
    const hpc_control *c = arg;
    int n = 0;
    for (int r = 0; r < c->group->size; r++)
        if (is_joining(c, r)) ranks[n++] = r;
    return n;
}

static int all_connected(void *arg) {
    const hpc_control *c = arg;
    for (int r = 0; r < c->group->size; r++)
        if (is_joining(c, r)) return 0;
    return 1;
}

/* Records connect's timeout again, with the last refused caller as a possible cause. */
static int explain_timeout(hpc_control *c) {
    const hpc_error *e = hpc_last_error();
    char refusal[HPC_REASON_BYTES], message[1024];
    hpc_fault f = {.n_waiting = e->n_waiting, .n_culprits = e->n_culprits};
    int *waiting = malloc(((size_t)f.n_waiting + 1) * sizeof *waiting);
    hpc_culprit *culprits = malloc(((size_t)f.n_culprits + 1) * sizeof *culprits);
    pthread_mutex_lock(&c->lock);
    memcpy(refusal, c->refusal, sizeof refusal);
    pthread_mutex_unlock(&c->lock);
    if (refusal[0] != 0 && waiting != NULL && culprits != NULL) {
        memcpy(waiting, e->waiting_for, (size_t)f.n_waiting * sizeof *waiting);
        memcpy(culprits, e->culprits, (size_t)f.n_culprits * sizeof *culprits);
        f.waiting_for = waiting;
        f.culprits = culprits;
        snprintf(message, sizeof message, "%s", e->message);
        hpc_fail_fault(HPC_ERR_TIMEOUT, "init", &f, "%s; a call from %s", message, refusal);
    }
    free(waiting);
    free(culprits);
    return HPC_ERR_TIMEOUT;
}

static int have_called(void *arg) {
    const hpc_control *c = arg;
    for (int r = 0; r < c->group->size; r++)
        if (is_joining(c, r) && !hpc_control_calls(c, r)) return 0;
    return 1;
}

/* Answers the ranks that call this one for a moment after this rank has failed to connect, so that they get its last
 * word. If the listener closed at once, they would report this rank as dead. */
static void await_callers(hpc_control *c) {
    const hpc_wait wait = {"init", have_called, who_is_joining, c, .every = 0};
    hpc_group *calm = hpc_group_calm(c->group);
    int muted = hpc_mute_errors(1);
    if (calm != NULL) hpc_wait_for(calm, &wait, CALLERS_SECONDS);
    hpc_mute_errors(muted);
    free(calm);
}

/* Makes the tree for collectives. */
static int arrange(hpc_control *c, const int *hosts) {
    int status = hpc_rank_tree_make(&c->tree, c->group->size, hosts);
    if (status == HPC_OK) status = hpc_roll_open(c);
    if (status == HPC_ERR_MEMORY) return hpc_fail(status, "init", "init: no memory for %d ranks", c->group->size);
    if (status != HPC_OK) return hpc_fail(status, "init", "init: the lists of each host's ranks do not match");
    return HPC_OK;
}

/* Notes the facts about the others before the first call. Returns the kinds of links that are allowed. */
static int take_addresses(hpc_control *c, const hpc_control_address *addresses, const unsigned char *links,
                          const unsigned char *same_host) {
    const hpc_bytes of_job = {addresses[0].secret, HPC_COOKIE_BYTES};
    int any = 0;
    hpc_hmac(c->secret, c->secret_bytes, &of_job, 1, c->key);
    for (int r = 0; r < c->group->size; r++) {
        c->links[r].address = addresses[r];
        c->links[r].same_host = same_host[r];
        if (r == c->group->rank) continue;
        atomic_store(&c->links[r].allowed, links[r]);
        if (is_neighbour(c, r)) hpc_link_add_edge(c, r);
        any |= links[r];
    }
    return any;
}

/* Names the last refused caller, which may have been the child, in the reason why a child counts as failed. */
static void name_refusal(hpc_control *c, char why[HPC_REASON_BYTES]) {
    pthread_mutex_lock(&c->lock);
    if (c->refusal[0] != 0) snprintf(why, HPC_REASON_BYTES, "it refuses calls; a call from %.128s", c->refusal);
    pthread_mutex_unlock(&c->lock);
}

/* A child may have died before it called, or in its call, or have ended because its call was refused. */
static double look_for_children(void *arg) {
    hpc_control *c = arg;
    char why[HPC_REASON_BYTES];
    const int all = hpc_now() - c->joins_since >= FAR_SECONDS;
    for (int r = 0; r < c->group->size; r++) {
        if (hpc_control_calls(c, r) || !is_joining(c, r) || !(all || c->links[r].same_host)) continue;
        if (!hpc_mesh_refuses(c, r, why) || !is_joining(c, r)) continue;
        name_refusal(c, why);
        hpc_group_depart(c->group, r, HPC_PEER_FAILED, why);
    }
    hpc_mesh_poke(c); /* the service thread tells the neighbours */
    return LOOK_SECONDS;
}

static int connect_neighbours(hpc_control *c, double deadline) {
    const hpc_wait wait = {.op = "init",
                           .ready = all_connected,
                           .waiting_for = who_is_joining,
                           .arg = c,
                           .later = look_for_children,
                           .after = LOOK_SECONDS};
    int status = HPC_OK;
    c->joins_since = hpc_now();
    for (int r = 0; r < c->group->size; r++)
        if (atomic_load(&c->links[r].edge) && hpc_mesh_watch_process(c, r))
            hpc_group_depart(c->group, r, HPC_PEER_FAILED, "its process died"); /* before this rank could connect */
    for (int r = 0; r < c->group->size && status == HPC_OK; r++)
        if (hpc_control_calls(c, r) && is_joining(c, r)) status = hpc_mesh_call(c, r, deadline);
    return status == HPC_OK ? hpc_wait_for(c->group, &wait, hpc_left(deadline)) : status;
}

/* Returns whether this rank's link to its parent is TCP though both seem to share a host. */
static char is_odd(const hpc_control *c) {
    const int parent = c->tree.parent[c->group->rank];
    return parent >= 0 && atomic_load(&c->links[parent].allowed) & HPC_LINK_UNIX &&
           atomic_load(&c->links[parent].kind) == HPC_LINK_TCP;
}

/* Returns the kind of link that a rank of this host gets, which may be no rank of this host: odd[r] is of rank r. */
static int kind_of(const hpc_control *c, int rank, const int *hosts, const hpc_reply *odd) {
    int doubtful = 0;
    for (int r = 0; r < c->group->size && !doubtful; r++)
        doubtful = hosts[r] == hosts[rank] && *(const char *)odd[r].data != 0;
    if (!doubtful) return HPC_LINK_UNIX;
    int fd = hpc_mesh_call_unix(c, rank);
    const int kind = fd < 0 && (errno == ECONNREFUSED || errno == ENOENT) ? HPC_LINK_TCP : HPC_LINK_UNIX;
    hpc_close(&fd);
    return kind;
}

/* Lets the ranks that are called by TCP be heard; returns 0, or -1 with errno. */
static int hear(hpc_control *c) {
    if (c->tcp_fd >= 0) return hpc_mesh_watch(c, c->tcp_fd, HPC_WATCH_TCP, 0);
    atomic_store(&c->open, 1);
    hpc_mesh_poke(c);
    return 0;
}

/* Awaits all ranks. Then the kinds of all links are known, and each rank counts as alive unless it has departed. */
static int await_all(hpc_control *c, const int *hosts, double deadline) {
    hpc_group *g = c->group;
    hpc_reply *odd = calloc((size_t)g->size, sizeof *odd);
    const char mine = is_odd(c);
    if (odd == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", g->size);
    const int status = hpc_control_exchange(c, "init", &mine, sizeof mine, HPC_EQUAL_SIZES, odd, deadline);
    for (int r = 0; r < g->size && status == HPC_OK; r++) {
        hpc_link *l = &c->links[r];
        if (r == g->rank || atomic_load(&l->edge)) continue;
        const int on_host = (atomic_load(&l->allowed) & HPC_LINK_UNIX) != 0;
        const int kind = on_host ? kind_of(c, r, hosts, odd) : HPC_LINK_TCP;
        atomic_store(&l->allowed, (unsigned char)kind);
        atomic_store(&l->kind, kind);
        if (kind == HPC_LINK_TCP) hpc_mesh_guess_path(c, r);
        hpc_link_alive(c, r);
    }
    if (status == HPC_OK) hpc_control_free_replies(c, odd);
    free(odd);
    return status;
}

/* Returns whether some link is TCP, or would be. */
static int needs_tcp(const hpc_control *c) {
    for (int r = 0; r < c->group->size; r++)
        if (r != c->group->rank && atomic_load(&c->links[r].kind) == HPC_LINK_TCP) return 1;
    return 0;
}

int hpc_control_connect(hpc_control *c, const hpc_control_address *addresses, const unsigned char *links,
                        const unsigned char *same_host, const int *hosts, double deadline) {
    hpc_group *g = c->group;
    int status = arrange(c, hosts);
    if (status != HPC_OK) return status;
    const int kinds = take_addresses(c, addresses, links, same_host);
    atomic_store(&g->states[g->rank], HPC_PEER_ALIVE);
    if ((kinds & HPC_LINK_TCP) == 0)
        hpc_mesh_deafen(c);
    else if (hear(c) != 0)
        return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: epoll_ctl: %s", strerror(errno));
    if (g->size > HPC_DIRECT) hpc_roll_enter(c, 1); /* a rank that waits for its neighbours has come */
    status = connect_neighbours(c, deadline);
    if (status == HPC_OK && g->size > HPC_DIRECT) status = await_all(c, hosts, deadline);
    if (status != HPC_OK && status != HPC_ERR_TIMEOUT && !atomic_load(&g->closed)) await_callers(c);
    if (status == HPC_ERR_TIMEOUT) status = explain_timeout(c);
    if (status != HPC_OK) return status;
    if (!needs_tcp(c)) hpc_mesh_deafen(c);
    atomic_store(&c->joined, 1);
    hpc_mesh_poke(c); /* links may be sought already */
    return HPC_OK;
}
