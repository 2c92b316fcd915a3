/* How ranks end: whether a rank counts as failed or as left, and whether the others are told so (hpc_doubt).
 *
 * A word of the rank, or its death as the kernel shows it, is certain. The end of a link shows a death only to a
 * neighbour: the word of any other rank may still come by others, so its verdict waits for WORD_SECONDS. A rank that
 * must be reached and refuses calls is suspected for LATE_SECONDS. The service thread alone calls these functions. */
#define _GNU_SOURCE
#include "control/channel.h"

#include <math.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/host.h"

static const double WORD_SECONDS = 0.5; /* for the last word of a rank whose link has ended */
static const double LATE_SECONDS = 3;   /* for the last word of a rank that refuses calls */

static const char dropped[] = "it heard nothing from this rank for too long and goes on without it";

void hpc_link_leaves(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    if (l->last != NULL) atomic_store(&l->missed, l->serial < l->last->said); /* before the state */
    hpc_link_settle(c, rank, HPC_PEER_LEFT);
    if (l->last != NULL)
        hpc_group_depart_saying(c->group, rank, HPC_PEER_LEFT, l->last);
    else
        hpc_group_depart(c->group, rank, HPC_PEER_LEFT, "it left");
}

void hpc_link_settle(hpc_control *c, int rank, int state) {
    hpc_link *l = &c->links[rank];
    const int before = atomic_exchange(&l->doubted, HPC_CERTAIN);
    if (before == HPC_NO_DOUBT || before == HPC_CERTAIN) return;
    l->end_state = state;
    c->departed = c->arranged = -1;
}

/* The others believe the lower of two ranks that accuse each other (edges.c). */
void hpc_link_dropped(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    if (!atomic_exchange(&l->dropped, 1)) c->dropped_by++;
    if (rank < c->group->rank) l->drops = 1;
    if (rank > c->group->rank)
        hpc_link_settle(c, rank, HPC_PEER_FAILED);
    else if (!hpc_link_is_gone(c, rank))
        atomic_store(&l->doubted, HPC_DOUBT_SILENT);
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, dropped);
    c->departed = c->arranged = -1; /* a doubt may have changed */
}

static int have_some_left(const hpc_control *c) {
    for (int r = 0; r < c->group->size; r++)
        if (atomic_load(&c->group->states[r]) == HPC_PEER_LEFT) return 1;
    return 0;
}

/* The peer of a link that has ended counts as failed. The end of a link shows a death to a neighbour, unless only the
 * connection failed: then the others believe the lower of two ranks. */
static void count_as_failed(hpc_control *c, int rank, const char *why) {
    hpc_link *l = &c->links[rank];
    const int unsure = l->unsure || atomic_load(&l->dropped); /* a rank that drops this one lives */
    const int local = !atomic_load(&l->edge) && l->refused_at == 0, silent = unsure && rank < c->group->rank;
    if (l->has_left) { /* its own word has not come, but others had it */
        hpc_link_leaves(c, rank);
        return;
    }
    if (l->refused_at > 0 && have_some_left(c)) { /* it may have left while no neighbour could hear it */
        atomic_store(&l->missed, 1);
        hpc_link_settle(c, rank, HPC_PEER_LEFT);
        hpc_group_depart(c->group, rank, HPC_PEER_LEFT, "it left, or its process died");
        return;
    }
    if (!unsure && !local) atomic_store(&l->proven, 1);
    if (!local && !silent)
        hpc_link_settle(c, rank, HPC_PEER_FAILED);
    else if (!hpc_link_is_gone(c, rank))
        atomic_store(&l->doubted, local ? HPC_DOUBT_LOCAL : HPC_DOUBT_SILENT);
    c->arranged = -1;
    hpc_group_depart(c->group, rank, HPC_PEER_FAILED, why); /* unless its last word gave another reason */
}

void hpc_link_end(hpc_control *c, int rank, const char *why) {
    hpc_link *l = &c->links[rank];
    int fd = atomic_load(&l->fd);
    if (l->ended) return;
    l->ended = 1;
    epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    if (atomic_load(&l->edge) && !l->is_fresh) {
        count_as_failed(c, rank, why);
    } else {
        l->lost_why = why;
        l->lost_at = hpc_now();
        c->next_lost = 0;
    }
    /* Ends the waits of the peer for this end, and this rank's sends. */
    if (l->kind == HPC_LINK_TCP) shutdown(fd, SHUT_RDWR);
}

void hpc_link_suspect(hpc_control *c, int rank, const char *why, double now) {
    hpc_link *l = &c->links[rank];
    l->lost_why = why;
    if (l->refused_at == 0) l->refused_at = now;
    c->next_lost = 0;
    c->arranged = -1; /* another neighbour is needed meanwhile */
    c->next_edges = 0;
}

double hpc_link_lost(hpc_control *c, double now) {
    if (now < c->next_lost) return c->next_lost;
    c->next_lost = INFINITY;
    for (int r = 0; r < c->group->size; r++) {
        hpc_link *l = &c->links[r];
        if (l->lost_why == NULL) continue;
        const double due = l->refused_at > 0 ? l->refused_at + LATE_SECONDS : l->lost_at + WORD_SECONDS;
        if (!hpc_link_is_gone(c, r) && now < due) {
            if (due < c->next_lost) c->next_lost = due;
            continue;
        }
        if (!hpc_link_is_gone(c, r)) count_as_failed(c, r, l->lost_why);
        l->lost_why = NULL;
        l->refused_at = 0;
        atomic_store(&c->seeking, 1); /* the questions to it fail */
        c->next_call = 0;
    }
    return c->next_lost;
}
