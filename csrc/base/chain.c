/* Follows chains of waits to their ends: ranks that died, are stopped, do not answer or compute; or to a circle. It
 * reads the states that ranks have shown, and asks no rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/blame.h"

/* The search's notes about a rank: the rank's place in chain->ranks, whether and from which rank the search has reached
 * the rank, and how long others have waited for it. */
typedef struct visit {
    int known; /* index in chain->ranks + 1; 0: its state is unknown */
    int seen, from;
    double waited;
    int stopped; /* another rank of its host says so */
} visit;

typedef struct search {
    const hpc_chain *chain;
    visit *visits; /* indexed by rank */
    int *queue;    /* ranks in the order in which they were found */
    int n;
} search;

static void find(search *s, int rank, int from, double waited, int stopped) {
    if (rank < 0 || rank >= s->chain->size) return;
    visit *v = &s->visits[rank];
    if (waited > v->waited) v->waited = waited;
    v->stopped |= stopped;
    if (v->seen || v->known == 0) return;
    v->seen = 1;
    v->from = from;
    s->queue[s->n++] = rank;
}

/* Returns whether the chain ends at this rank: the rank is in no wait, or it names culprits itself. */
static int is_end(const hpc_shown_rank *r, const visit *v) {
    return r->gone[0] != 0 || r->stopped || v->stopped || !r->answers || r->n_culprits > 0 || r->n_waits == 0;
}

/* Follows the waits of a rank. A wait that does not list all of its ranks may be for any rank. */
static void follow(search *s, int rank) {
    const hpc_shown_rank *r = &s->chain->ranks[s->visits[rank].known - 1];
    for (int i = 0; i < r->n_waits; i++) {
        const hpc_shown_wait *w = &r->waits[i];
        int listed = w->n_ranks < HPC_SHOWN_RANKS ? w->n_ranks : HPC_SHOWN_RANKS;
        for (int k = 0; k < listed; k++)
            if (w->ranks[k] != rank) find(s, w->ranks[k], rank, w->seconds, (int)(w->stopped >> k & 1));
        for (int k = 0; k < s->chain->size && listed < w->n_ranks; k++)
            if (k != rank) find(s, k, rank, w->seconds, 0);
    }
}

static int begin(search *s, const hpc_chain *chain) {
    size_t size = (size_t)chain->size;
    *s = (search){
        .chain = chain, .visits = calloc(size + 1, sizeof *s->visits), .queue = malloc((size + 1) * sizeof(int))};
    if (s->visits == NULL || s->queue == NULL) return 0;
    for (int i = 0; i < chain->n; i++)
        if (chain->ranks[i].rank >= 0 && chain->ranks[i].rank < chain->size)
            s->visits[chain->ranks[i].rank].known = i + 1;
    for (int i = 0; i < chain->n_start; i++) find(s, chain->start[i], -1, chain->seconds, 0);
    for (int i = 0; i < s->n; i++) {
        const visit *v = &s->visits[s->queue[i]];
        if (!is_end(&chain->ranks[v->known - 1], v)) follow(s, s->queue[i]);
    }
    return 1;
}

static void finish(search *s) {
    free(s->visits);
    free(s->queue);
}

static hpc_culprit end_of(const hpc_shown_rank *r, const visit *v) {
    hpc_culprit c = {.rank = r->rank};
    if (r->gone[0] != 0) {
        c.state = r->state == HPC_PEER_LEFT ? HPC_CULPRIT_LEFT : HPC_CULPRIT_DIED;
    } else if (r->stopped || v->stopped) {
        c.state = HPC_CULPRIT_STOPPED;
    } else if (!r->answers) {
        c.state = HPC_CULPRIT_SILENT;
        c.seconds = v->waited;
    } else {
        c.state = HPC_CULPRIT_COMPUTING;
        c.seconds = r->idle >= 0 && r->idle < v->waited ? r->idle : v->waited;
        c.step = r->step;
    }
    return c;
}

/* Returns whether culprit c is only between two waits, so that it does not hold other ranks up. */
static int is_brief(const hpc_culprit *c, const visit *v) {
    return c->state == HPC_CULPRIT_COMPUTING && c->seconds < v->waited / 2;
}

/* Returns whether culprit c, which another rank found silent, answers now. Without this check ranks could pass an
 * outdated finding on to each other forever while waits are tried again. */
static int has_answered_since(const search *s, const hpc_culprit *c) {
    if (c->state != HPC_CULPRIT_SILENT || c->rank < 0 || c->rank >= s->chain->size) return 0;
    const int known = s->visits[c->rank].known;
    return known > 0 && s->chain->ranks[known - 1].answers;
}

static int list_ends(const search *s, int brief, hpc_culprit *culprits, int cap) {
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        const visit *v = &s->visits[s->queue[i]];
        const hpc_shown_rank *r = &s->chain->ranks[v->known - 1];
        if (!is_end(r, v)) continue;
        for (int k = 0; k < r->n_culprits; k++)
            if (!has_answered_since(s, &r->culprits[k])) n = hpc_culprits_add(culprits, n, cap, &r->culprits[k]);
        hpc_culprit c = end_of(r, v);
        if (r->n_culprits == 0 && (brief || !is_brief(&c, v))) n = hpc_culprits_add(culprits, n, cap, &c);
    }
    return n;
}

/* ---- circles ---- */

/* Returns the shortest wait of a rank's threads: a rank is not stuck if one of its threads has just begun to wait. */
static double shortest_wait(const hpc_shown_rank *r) {
    double least = r->waits[0].seconds;
    for (int i = 1; i < r->n_waits; i++)
        if (r->waits[i].seconds < least) least = r->waits[i].seconds;
    return least;
}

/* Marks the ranks that can be reached from rank: to[r] = 1. */
static void reach(const search *s, int rank, char *to, int *stack) {
    int n = 0;
    memset(to, 0, (size_t)s->chain->size);
    stack[n++] = rank;
    while (n > 0) {
        const hpc_shown_rank *r = &s->chain->ranks[s->visits[stack[--n]].known - 1];
        for (int i = 0; i < r->n_waits; i++)
            for (int k = 0; k < r->waits[i].n_ranks && k < HPC_SHOWN_RANKS; k++) {
                int next = r->waits[i].ranks[k];
                if (next < 0 || next >= s->chain->size || next == r->rank || to[next] || !s->visits[next].seen)
                    continue;
                to[next] = 1;
                stack[n++] = next;
            }
    }
}

/* Lists one circle: ranks that wait for each other, directly or through others, and for no rank outside the circle. */
static int list_circle(const search *s, hpc_culprit *culprits, int cap) {
    size_t size = (size_t)s->chain->size;
    char *from = malloc(2 * size + 1), *back = from + size;
    int *stack = malloc((size + 1) * sizeof *stack), n = 0;
    for (int i = 0; i < s->n && n == 0 && from != NULL && stack != NULL; i++) {
        reach(s, s->queue[i], from, stack);
        int closed = from[s->queue[i]];
        for (int r = 0; r < s->chain->size && closed; r++) {
            if (!from[r]) continue;
            reach(s, r, back, stack);
            closed = back[s->queue[i]];
        }
        for (int r = 0; r < s->chain->size && closed; r++) {
            if (!from[r]) continue;
            const hpc_shown_rank *shown = &s->chain->ranks[s->visits[r].known - 1];
            hpc_culprit c = {.rank = r, .state = HPC_CULPRIT_CIRCLE, .seconds = shortest_wait(shown)};
            c.every = shown->waits[0].every;
            snprintf(c.op, sizeof c.op, "%s", shown->waits[0].op);
            n = hpc_culprits_add(culprits, n, cap, &c);
        }
    }
    free(from);
    free(stack);
    return n;
}

/* ---- results ---- */

int hpc_chain_ends(const hpc_chain *chain, hpc_culprit *culprits, int cap) {
    search s;
    int n = 0;
    if (begin(&s, chain)) {
        n = list_ends(&s, 0, culprits, cap);
        if (n == 0) n = list_ends(&s, 1, culprits, cap);
        if (n == 0) n = list_circle(&s, culprits, cap);
    }
    finish(&s);
    return n;
}

const char *hpc_chain_way(const hpc_chain *chain, int culprit, char *text, size_t cap) {
    search s;
    text[0] = 0;
    if (begin(&s, chain) && culprit >= 0 && culprit < chain->size && s.visits[culprit].seen) {
        size_t used = 0;
        int way[8], n = 0, at = culprit;
        while (at >= 0 && n < 8) {
            way[n++] = at;
            at = s.visits[at].from;
        }
        for (int i = n - 1; i > 0 && at < 0 && used < cap - 1; i--)
            used += (size_t)snprintf(text + used, cap - used, "%srank %d waits for rank %d", i == n - 1 ? "" : ", ",
                                     way[i], way[i - 1]);
    }
    finish(&s);
    return text;
}

int hpc_job_culprits(const hpc_shown_rank *ranks, int n, hpc_culprit *culprits, int cap, char *text, size_t nbytes) {
    int size = 0, n_start = 0;
    if (ranks == NULL || n < 0 || cap < 0 || (culprits == NULL && cap > 0)) return 0;
    for (int i = 0; i < n; i++)
        if (ranks[i].size > size) size = ranks[i].size;
    int *start = malloc(((size_t)n + 1) * sizeof *start);
    for (int i = 0; i < n && start != NULL; i++)
        if (ranks[i].answers > 0 && ranks[i].n_waits > 0 && ranks[i].gone[0] == 0) start[n_start++] = ranks[i].rank;
    const hpc_chain chain = {ranks, n, size, start, n_start, 0};
    int found = n_start == 0 ? 0 : hpc_chain_ends(&chain, culprits, cap);
    free(start);
    if (text != NULL && nbytes > 0) hpc_culprits_text(culprits, found < cap ? found : cap, text, nbytes);
    return found;
}
