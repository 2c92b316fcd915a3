/* Follows a wait that timed out to the end of its chain. This rank asks each rank that it waits for which ranks that
 * one waits for, then asks those ranks, and so on. It asks each of them on a link of the two, which is made now if
 * there is none, so no rank forwards questions: the ranks on the way might be stopped.
 *
 * Threads: the waiting thread sends a LOOK. If the link has no room, it marks the link as wanted and pokes the
 * service thread, which sends the LOOK later. The service thread stores the NEWS that come back, with their time,
 * under the control's lock, and rings the bell. So a rank that is not asked sends nothing. A rank that does not read
 * its socket delays only the asking rank, by at most 250 ms. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/channel.h"

enum { MOST = 256 }; /* ranks that one inquiry asks */

typedef struct asking {
    hpc_control *control;
    const hpc_inquiry *inquiry;
    hpc_shown_rank *shown; /* states of the asked ranks, in the order of asking */
    double *asked;         /* by index in shown: when it was asked; 0: it has answered, or cannot be asked */
    int *place;            /* by rank: 1 + its index in shown; 0: not asked */
    int n, pending, poke;
    double until; /* deadline for all answers */
} asking;

/* Seconds until a rank is asked again that answered between two of its waits. */
static const double STEP_SECONDS = 0.02;

int hpc_inquiry_look(hpc_control *c) {
    int left = 0;
    if (atomic_exchange(&c->inquiries, 0) == 0) return 0;
    for (int r = 0; r < c->group->size; r++) {
        hpc_link *l = &c->links[r];
        if (atomic_exchange(&l->wanted, 0) == 0) continue; /* cleared first, so that a later request sets it again */
        if (!hpc_link_is_up(l)) {                          /* callers.c sets inquiries when it is */
            atomic_store(&l->wanted, !hpc_group_has_departed(c->group, r));
            continue;
        }
        int status = hpc_link_tell(c, r, HPC_MESH_LOOK, NULL, 0);
        if (status == HPC_OK) hpc_jobs_looked(c, r, hpc_now());
        if (status != HPC_ERR_TIMEOUT) continue;
        atomic_store(&l->wanted, 1);
        left = 1;
    }
    if (left) atomic_store(&c->inquiries, 1);
    return left;
}

/* Shows the inquiry's own wait as this rank's only wait, even if other threads wait too. */
static void show_own(const asking *a, hpc_shown_rank *s) {
    const hpc_inquiry *q = a->inquiry;
    hpc_jobs_show_self(a->control, s);
    s->n_culprits = 0;
    s->n_waits = 1;
    s->waits[0] = (hpc_shown_wait){.seconds = q->waited, .n_ranks = q->n};
    snprintf(s->waits[0].op, sizeof s->waits[0].op, "%s", q->doing.op);
    s->waits[0].every = q->doing.every;
    for (int i = 0; i < q->n && i < HPC_SHOWN_RANKS; i++) s->waits[0].ranks[i] = q->waiting_for[i];
}

/* Returns whether a rank answered between two of its waits: it waits for nothing now, but its last wait ended less
 * than half of this rank's waiting time ago. */
static int is_brief(const asking *a, const hpc_shown_rank *s) {
    return s->answers && s->gone[0] == 0 && !s->stopped && s->n_waits == 0 && s->n_culprits == 0 && s->idle >= 0 &&
           s->idle < a->inquiry->waited / 2 && s->rank != a->control->group->rank && a->inquiry->asks == HPC_ASK_ENDS;
}

static void want(asking *a, int i) {
    hpc_control *c = a->control;
    int rank = a->shown[i].rank;
    a->asked[i] = hpc_now();
    a->pending++;
    const int is_up = hpc_link_is_up(&c->links[rank]);
    if (is_up && hpc_link_tell(c, rank, HPC_MESH_LOOK, NULL, 0) != HPC_ERR_TIMEOUT) return;
    atomic_store(&c->links[rank].wanted, 1); /* no room in the link: the service thread tries until there is room */
    a->poke = 1;
    if (!is_up) hpc_mesh_seek(c, rank, HPC_SEEKS);
}

static void ask(asking *a, int rank) {
    hpc_control *c = a->control;
    if (rank < 0 || rank >= c->group->size || a->place[rank] != 0 || a->n == MOST) return;
    hpc_shown_rank *s = &a->shown[a->n++];
    a->place[rank] = a->n;
    s->rank = rank;
    s->size = c->group->size;
    s->told_by = c->group->rank;
    if (rank == c->group->rank) {
        show_own(a, s);
    } else if (hpc_group_has_departed(c->group, rank)) {
        s->answers = 1;
        hpc_jobs_show_gone(c, rank, s);
    } else if (hpc_link_is_stopped(c, rank)) {
        s->answers = s->stopped = 1;
    } else if (atomic_load(&c->group->states[rank]) == HPC_PEER_ALIVE && !atomic_load(&c->stopping)) {
        want(a, a->n - 1);
    }
}

/* Asks the ranks that an answering rank waits for, or every rank if its answer had no room for their list. */
static void ask_further(asking *a, const hpc_shown_rank *s) {
    if (a->inquiry->asks != HPC_ASK_ENDS || s->n_culprits > 0) return;
    for (int i = 0; i < s->n_waits; i++) {
        const hpc_shown_wait *w = &s->waits[i];
        for (int k = 0; k < w->n_ranks && k < HPC_SHOWN_RANKS; k++) ask(a, w->ranks[k]);
        for (int r = 0; r < s->size && w->n_ranks > HPC_SHOWN_RANKS; r++) ask(a, r);
    }
}

/* Returns whether a rank has sent news since it was asked, or will send no usable ones. */
static int has_answered(asking *a, int i) {
    hpc_control *c = a->control;
    hpc_shown_rank *s = &a->shown[i], news;
    const hpc_link *l = &c->links[s->rank];
    int came = 0, rank = s->rank;
    if (hpc_group_has_departed(c->group, rank)) {
        s->answers = 1;
        hpc_jobs_show_gone(c, rank, s);
        return 1;
    }
    pthread_mutex_lock(&c->lock);
    if (l->news != NULL && l->news_at >= a->asked[i]) {
        memcpy(&news, l->news->data, sizeof news);
        came = 1;
    }
    pthread_mutex_unlock(&c->lock);
    if (!came) return 0;
    if (hpc_jobs_check_rank(&news) != HPC_OK || news.rank != rank || news.size != c->group->size) return 1;
    *s = news;
    s->gone[0] = 0;
    s->answers = 1;
    return 1;
}

static void poke(asking *a) {
    if (!a->poke) return;
    a->poke = 0;
    atomic_store(&a->control->inquiries, 1); /* stored after the links' wanted marks */
    hpc_mesh_poke(a->control);
}

static int all_have_answered(void *arg) {
    asking *a = arg;
    for (int i = 0; i < a->n; i++) {
        if (a->asked[i] == 0 || !has_answered(a, i)) continue;
        a->asked[i] = 0;
        a->pending--;
        ask_further(a, &a->shown[i]);
    }
    poke(a);
    return a->pending == 0;
}

static int who_is_asked(void *arg, int *ranks) {
    const asking *a = arg;
    int n = 0;
    for (int i = 0; i < a->n; i++)
        if (a->asked[i] != 0) ranks[n++] = a->shown[i].rank;
    return n;
}

static void await_answers(asking *a) {
    hpc_control *c = a->control;
    hpc_group *calm = hpc_group_calm(c->group); /* no departure ends this wait */
    const hpc_wait wait = {"follow", all_have_answered, who_is_asked, a, .every = 0};
    int muted = hpc_mute_errors(1);
    double left;
    while (calm != NULL && (left = hpc_left(a->until)) > 0) {
        double now = hpc_now();
        if (a->pending > 0) hpc_wait_for(calm, &wait, left < STEP_SECONDS ? left : STEP_SECONDS);
        int brief = 0;
        for (int i = 0; i < a->n; i++) brief += a->asked[i] == 0 && is_brief(a, &a->shown[i]);
        if (a->pending == 0 && brief == 0) break;
        double rest = now + STEP_SECONDS - hpc_now();
        if (a->pending == 0 && rest > 0) poll(NULL, 0, (int)(rest * 1e3) + 1);
        for (int i = 0; i < a->n; i++)
            if (a->asked[i] == 0 && is_brief(a, &a->shown[i])) want(a, i);
        poke(a);
    }
    hpc_mute_errors(muted);
    free(calm);
    for (int i = 0; i < a->n; i++) {
        hpc_shown_rank *s = &a->shown[i];
        if (a->asked[i] != 0 && s->answers == 0) s->stopped = hpc_link_is_stopped(c, s->rank);
    }
}

/* Lists the culprits that the ranks with closed exchanges name; returns how many. */
static int list_causes(const asking *a, hpc_culprit *culprits, int cap) {
    int n = 0;
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < a->shown[i].n_culprits; k++)
            n = hpc_culprits_add(culprits, n, cap, &a->shown[i].culprits[k]);
    return n;
}

/* Finds the first rank that waits, in the order of asking. A stopped or departed rank does not wait. */
static int find_waiting(asking *a, hpc_culprit *culprit) {
    const hpc_inquiry *q = a->inquiry;
    for (int i = 0; i < q->n && hpc_now() < a->until; i++) {
        const int before = a->n;
        ask(a, q->waiting_for[i]);
        poke(a);
        await_answers(a);
        if (a->n == before) continue;
        const hpc_shown_rank *s = &a->shown[before];
        if (!s->answers || s->stopped || s->gone[0] != 0 || s->n_waits == 0 || s->waits[0].seconds < q->waited)
            continue;
        *culprit = (hpc_culprit){.rank = s->rank, .seconds = s->waits[0].seconds};
        return 1;
    }
    return 0;
}

static int begin(asking *a, hpc_control *c, const hpc_inquiry *q) {
    size_t size = (size_t)c->group->size, most = size < MOST ? size : MOST;
    *a = (asking){.control = c, .inquiry = q, .until = hpc_now() + q->most};
    a->shown = calloc(most, sizeof *a->shown);
    a->asked = calloc(most, sizeof *a->asked);
    a->place = calloc(size, sizeof *a->place);
    return a->shown != NULL && a->asked != NULL && a->place != NULL;
}

static void find_ends(asking *a, hpc_inquiry *q) {
    const hpc_chain chain = {a->shown, a->n, a->control->group->size, q->waiting_for, q->n, q->waited};
    q->n_culprits = hpc_chain_ends(&chain, q->culprits, HPC_BLAMED);
    if (q->n_culprits > 0 && !hpc_culprits_are_circle(q->culprits, q->n_culprits))
        hpc_chain_way(&chain, q->culprits[0].rank, q->way, sizeof q->way);
    q->moved = 0;
    for (int i = 0; i < a->n; i++) q->moved += a->shown[i].moved;
}

static void ask_all(asking *a, const hpc_inquiry *q) {
    for (int i = 0; i < q->n; i++) ask(a, q->waiting_for[i]);
    poke(a);
    await_answers(a);
}

void hpc_inquiry_follow(void *arg, hpc_inquiry *q) {
    hpc_control *c = arg;
    hpc_group *g = c->group;
    asking a;
    int shown = -1;
    double since = hpc_now() - q->waited;
    q->n_culprits = 0;
    q->way[0] = 0;
    /* Shows this wait to other ranks meanwhile, because their chains may lead here. */
    if (q->asks == HPC_ASK_ENDS) shown = hpc_watch_wait(&g->watch, -1, q->doing, q->waiting_for, q->n, &since);
    if (begin(&a, c, q)) {
        if (q->asks == HPC_ASK_WHO_WAITS)
            q->n_culprits = find_waiting(&a, q->culprits);
        else
            ask_all(&a, q);
        if (q->asks == HPC_ASK_ENDS) find_ends(&a, q);
        if (q->asks == HPC_ASK_CAUSES) q->n_culprits = list_causes(&a, q->culprits, HPC_BLAMED);
    }
    hpc_watch_end(&g->watch, shown, 0, hpc_now());
    free(a.shown);
    free(a.asked);
    free(a.place);
}
