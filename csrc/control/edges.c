/* Keeps the ranks that are left connected. At the start a rank's neighbours are its parent and its children in the tree
 * (join.c). If a rank is gone, its children become neighbours of its nearest ancestor that is not gone; if all of them
 * are gone, of the lowest rank that is left. Each rank computes this for all ranks from the departures that it knows,
 * so both ends of a new edge want it. It does not matter which end calls, or whether one of them learns later: an EDGE
 * makes the other end a neighbour too. A neighbour that cannot be reached has failed.
 *
 * A rank that left is replaced only after LEFT_SECONDS, because all ranks leave at the end of a job. A rank that leaves
 * meanwhile calls the rank that would become its neighbour, to say so.
 *
 * Silence. Over TCP neighbours send each other beats (service.c), and a rank that is silent has failed, as its
 * neighbours say. If a network is cut between two neighbours, each of them says so of the other. The others believe the
 * lower one. So the higher one counts the lower one as failed itself, but does not tell (hpc_link.doubted); it looks
 * for another neighbour, which turns it down if it has heard of it (a DROP). If the lower one is dead, its other
 * neighbours tell. If no rank above is left, the higher one tells of its doubts. A rank that several ranks turned down
 * gives this up: the others go on without it.
 *
 * A rank that a lower one dropped tells its neighbours so (DROPPED). They may be cut off with it, as the ranks of a
 * host that was frozen are. So each of them makes the lower rank its neighbour, or is dropped too. */
#include "control/channel.h"

#include <math.h>
#include <stdlib.h>

static const double LEFT_SECONDS = 1;

static const double FAREWELL_SECONDS = 0.2;

enum { MOST_DROPS = 3, MOST_FAREWELLS = 3 };

/* Marks the ranks that are gone. Returns when more will be: INFINITY if none will. */
static double mark_gone(hpc_control *c, double now, char *gone) {
    double due = INFINITY;
    for (int r = 0; r < c->group->size; r++) {
        hpc_link *l = &c->links[r];
        const int state = atomic_load_explicit(&c->group->states[r], memory_order_acquire);
        gone[r] = l->refused_at > 0 || (state == HPC_PEER_FAILED && hpc_link_is_gone(c, r));
        if (state != HPC_PEER_LEFT) continue;
        if (l->left_at == 0) l->left_at = now;
        gone[r] |= now >= l->left_at + LEFT_SECONDS;
        if (!gone[r] && l->left_at + LEFT_SECONDS < due) due = l->left_at + LEFT_SECONDS;
    }
    return due;
}

/* Returns the rank whose neighbour a rank shall be; -1 for the lowest one. */
static int above(const hpc_control *c, const char *gone, int lowest, int rank) {
    for (int up = c->tree.parent[rank]; up >= 0; up = c->tree.parent[up])
        if (!gone[up]) return up;
    return lowest < rank ? lowest : -1;
}

static void become_edge(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    if (atomic_load(&l->edge)) return;
    l->heard = now;
    l->quiet = 0;
    hpc_link_add_edge(c, rank);
    hpc_mesh_watch_process(c, rank);
}

/* This rank wants rank as a neighbour. */
static void want(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    if (atomic_load(&l->edge)) return;
    l->needed = 1;
    if (!hpc_link_is_up(l)) {
        if (hpc_mesh_watch_process(c, rank))
            hpc_link_suspect(c, rank, "its process died", now);
        else
            hpc_mesh_seek(c, rank, HPC_SEEKS | HPC_MUST_REACH);
        return;
    }
    if (l->ended) { /* a link is made once */
        if (rank > c->group->rank)
            hpc_link_settle(c, rank, HPC_PEER_FAILED);
        else
            atomic_store(&l->doubted, HPC_DOUBT_SILENT);
        hpc_group_depart(c->group, rank, HPC_PEER_FAILED,
                         l->lost_why != NULL ? l->lost_why : "the connection to it failed");
        c->departed = c->arranged = -1;
        return;
    }
    become_edge(c, rank, now);
    hpc_spread_to(c, rank, HPC_MESH_EDGE);
}

/* No rank above this one is left, so the ranks that are left believe it. Each finds out itself about a rank that drops
 * others. */
static void end_doubts(hpc_control *c) {
    for (int r = 0; r < c->group->size; r++)
        if (!c->links[r].drops && atomic_load(&c->links[r].doubted) == HPC_DOUBT_SILENT)
            hpc_link_settle(c, r, HPC_PEER_FAILED);
}

static void arrange(hpc_control *c, double now, char *gone) {
    const int me = c->group->rank;
    int lowest = 0;
    c->next_edges = mark_gone(c, now, gone);
    while (lowest < me && gone[lowest]) lowest++;
    if (lowest == me) end_doubts(c);
    for (int r = 0; r < c->group->size; r++) {
        if (gone[r] || hpc_link_is_gone(c, r)) continue;
        const int up = above(c, gone, lowest, r);
        if (r == me && up >= 0 && !hpc_link_is_gone(c, up)) want(c, up, now);
        if (r != me && up == me) want(c, r, now);
        if (r < me && c->links[r].drops) want(c, r, now);
    }
}

/* Calls rank. Returns whether it has a link then. */
static int call(hpc_control *c, int rank, double deadline) {
    const int by_tcp = (atomic_load(&c->links[rank].allowed) & HPC_LINK_UNIX) == 0;
    if (by_tcp && !hpc_link_may_call(c, rank)) return 0;
    const int muted = hpc_mute_errors(1);
    hpc_endpoint reached;
    int refused, fd = by_tcp ? -1 : hpc_mesh_call_unix(c, rank);
    if (by_tcp) hpc_mesh_call_tcp(c, rank, "close", deadline, &fd, &reached, &refused);
    hpc_mute_errors(muted);
    if (fd < 0) return 0;
    if (!by_tcp) hpc_link_greet(c, fd, c->links[rank].address.secret);
    hpc_link_publish(c, rank, fd, by_tcp ? HPC_LINK_TCP : HPC_LINK_UNIX);
    return 1;
}

/* Makes rank a neighbour, which is told all that this rank knows. Returns 0 if it cannot be reached. */
static int tell_all(hpc_control *c, int rank, double deadline) {
    if (c->links[rank].ended || (!hpc_link_is_up(&c->links[rank]) && !call(c, rank, deadline))) return 0;
    if (!atomic_load(&c->links[rank].edge)) hpc_link_add_edge(c, rank);
    return 1;
}

/* A rank that leaves has the rank above as its neighbour, or makes that rank its neighbour that would become it, and
 * the ranks below that would call it, so that its last word is heard, and what it has said while it had no neighbour.
 * By a Unix socket a call waits for no answer; by TCP all calls are brief. */
int hpc_edges_farewell(hpc_control *c) {
    const int me = c->group->rank, size = c->group->size;
    const double deadline = hpc_now() + FAREWELL_SECONDS;
    int lowest = 0, tries = 0, up = -1;
    char *gone = calloc((size_t)size, 1);
    while (gone != NULL && atomic_load(&c->joined) && size > HPC_DIRECT && tries++ < MOST_FAREWELLS) {
        for (int r = 0; r < size; r++) gone[r] |= (char)hpc_link_is_gone(c, r);
        for (lowest = 0; lowest < me && gone[lowest]; lowest++) {
        }
        up = above(c, gone, lowest, me);
        if (up < 0 || tell_all(c, up, deadline)) break;
        gone[up] = 1;
        up = -1;
    }
    for (int r = me + 1; r < size && tries > 0; r++)
        if (!gone[r] && above(c, gone, lowest, r) == me) tell_all(c, r, hpc_now() + (deadline - hpc_now()) / 2);
    free(gone);
    return up;
}

double hpc_edges_look(hpc_control *c, double now) {
    const int departures = atomic_load_explicit(&c->group->departures, memory_order_acquire);
    if (!atomic_load(&c->joined) || c->group->size <= HPC_DIRECT) return INFINITY;
    for (int r = 0; r < c->group->size && c->edges_asked; r++) {
        hpc_link *l = &c->links[r];
        if (l->edge_asked && hpc_link_is_up(l)) become_edge(c, r, now);
        if (l->needed && hpc_link_is_up(l) && !l->ended) want(c, r, now);
    }
    c->edges_asked = 0;
    c->next_edges = c->dropped_by >= MOST_DROPS ? INFINITY : c->next_edges;
    if (c->dropped_by >= MOST_DROPS) return INFINITY;
    if (departures == c->arranged && now < c->next_edges) return c->next_edges;
    char *gone = malloc((size_t)c->group->size);
    if (gone == NULL) return c->next_edges = now + 0.01;
    c->arranged = departures;
    arrange(c, now, gone);
    free(gone);
    return c->next_edges;
}
