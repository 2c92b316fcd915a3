/* Lets one thread at a time work on calls, and does the work that all kinds of requests share. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "collective/calls.h"

static const hpc_group *group_of(const hpc_calls *calls) {
    return &calls->mail->context->group;
}

/* Returns 1 if this thread has the calls now. If not, the thread that has them rings the bell when it leaves. */
int hpc_calls_try(hpc_calls *calls) {
    for (;;) {
        int found = 0;
        if (atomic_compare_exchange_strong(&calls->busy, &found, 1)) return 1;
        if (found == 2 || atomic_compare_exchange_strong(&calls->busy, &found, 2)) return 0;
        if (found == 2) return 0; /* otherwise the thread has left meanwhile */
    }
}

void hpc_calls_enter(hpc_calls *calls) {
    while (!hpc_calls_try(calls)) sched_yield();
}

void hpc_calls_leave(hpc_calls *calls) {
    if (atomic_exchange_explicit(&calls->busy, 0, memory_order_acq_rel) == 2) hpc_bell_ring(group_of(calls)->bell);
}

/* ---- requests ---- */

static int overlap(const hpc_extent *a, const hpc_extent *b) {
    const int both = a->begin < a->end && b->begin < b->end;
    return both && a->begin < b->end && b->begin < a->end && (a->written || b->written);
}

int hpc_request_add(hpc_calls *calls, hpc_request *r) {
    for (const hpc_request *other = calls->requests; other != NULL; other = other->next)
        for (int i = 0; i < 4 && atomic_load(&other->status) == HPC_IN_PROGRESS; i++)
            if (overlap(&r->uses[i & 1], &other->uses[i >> 1]))
                return hpc_fail(HPC_ERR_INVALID, r->op,
                                "rank %d: %s: its memory overlaps that of a started %s: wait for that call first",
                                group_of(calls)->rank, r->op, other->op);
    r->deserter = -1;
    r->next = calls->requests;
    calls->requests = r;
    atomic_fetch_add_explicit(&calls->going, 1, memory_order_relaxed);
    return HPC_OK;
}

void hpc_request_end(hpc_request *r, int status, const char *why) {
    r->kind->unlist(r);
    hpc_lease_end(r->lease);
    r->lease = NULL;
    if (status < 0 && why[0] != 0 && (r->why = malloc(strlen(why) + 1)) != NULL) strcpy(r->why, why);
    atomic_fetch_sub_explicit(&r->calls->going, 1, memory_order_relaxed);
    atomic_store_explicit(&r->status, status, memory_order_release);
}

void hpc_request_remove(hpc_request *r) {
    hpc_request **at = &r->calls->requests;
    if (atomic_load_explicit(&r->status, memory_order_relaxed) == HPC_IN_PROGRESS)
        hpc_request_end(r, HPC_ERR_INVALID, "");
    while (*at != r) at = &(*at)->next;
    *at = r->next;
}

int hpc_request_lends(hpc_request *r, hpc_box *box, int peer, const char *at, uint64_t nbytes, int both_ways) {
    if (!hpc_mail_lends(box->mail, peer, at, nbytes, both_ways)) return 0;
    if (r->lease == NULL) r->lease = hpc_box_lease(box, r->call.number);
    return r->lease != NULL;
}

void hpc_request_lend(const hpc_request *r, hpc_letter_head *head, const char *at) {
    head->lent = (uintptr_t)at;
    head->lease = (uintptr_t)r->lease;
}

int hpc_request_is_deserted(hpc_request *r, int peer) {
    static const double PATIENCE = 1;
    if (r->deserter < 0) {
        r->deserter = peer;
        r->deserted = hpc_now();
    }
    return hpc_now() - r->deserted > PATIENCE;
}

/* ---- teams ---- */

/* Returns the lowest rank on the host of this rank. */
static int host_of(const hpc_context *c, int rank) {
    int first = 0;
    while (!hpc_same_host(&c->addresses[first], &c->addresses[rank])) first++;
    return first;
}

static void put_in(hpc_team *t, int rank, int me) {
    if (rank == me) t->me = t->n;
    t->ranks[t->n++] = rank;
}

/* Lists the ranks by place and host. order: by lowest rank of a host, the number of the host. */
static void fill_grid(hpc_calls *calls, const int *hosts, const int *order, int n_hosts) {
    const int size = calls->all.n;
    for (int r = 0; r < size; r++) calls->grid[calls->place_of[r] * n_hosts + order[hosts[r]]] = r;
    calls->across = (hpc_team){calls->grid + calls->host.me * n_hosts, n_hosts, order[hosts[calls->all.me]]};
}

int hpc_teams_find(hpc_calls *calls, const hpc_context *c) {
    const int size = c->group.size, me = c->group.rank;
    int *hosts = malloc(3 * (size_t)size * sizeof *hosts), *ranks = hosts + size, *order = ranks + size;
    int even = 1, n_hosts = 0;
    calls->place_of = malloc(4 * (size_t)size * sizeof *calls->place_of);
    if (hosts == NULL || calls->place_of == NULL) {
        free(hosts);
        return 0;
    }
    for (int r = 0; r < size; r++) {
        hosts[r] = host_of(c, r);
        ranks[r] = 0; /* on the host whose lowest rank is r */
        calls->place_of[r] = ranks[hosts[r]]++;
        if (hosts[r] == r) order[r] = n_hosts++;
    }
    for (int r = 0; r < size; r++) even &= ranks[hosts[r]] == ranks[0];
    calls->all.ranks = calls->place_of + size;
    calls->host.ranks = calls->all.ranks + size;
    calls->grid = calls->host.ranks + size;
    for (int r = 0; r < size && !even; r++) {
        hosts[r] = order[r] = 0;
        calls->place_of[r] = r;
    }
    for (int r = 0; r < size; r++) {
        put_in(&calls->all, r, me);
        if (hosts[r] == hosts[me]) put_in(&calls->host, r, me);
    }
    fill_grid(calls, hosts, order, even ? n_hosts : 1);
    free(hosts);
    return 1;
}

void hpc_teams_free(hpc_calls *calls) {
    free(calls->place_of);
}
