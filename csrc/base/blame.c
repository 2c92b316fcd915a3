#include "base/blame.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static void lock(hpc_blame *b) {
    while (atomic_exchange_explicit(&b->busy, 1, memory_order_acquire)) sched_yield();
}

static void unlock(hpc_blame *b) {
    atomic_store_explicit(&b->busy, 0, memory_order_release);
}

/* Adds or changes the entry of a rank. An entry told by another rank does not change, unless its rank is now known to
 * have died. */
static void put(hpc_blame *b, const hpc_culprit *culprit, const char *why, int by_wait) {
    int i = 0;
    while (i < b->n && b->list[i].culprit.rank != culprit->rank) i++;
    if (i == HPC_BLAMED) return;
    hpc_blamed *at = &b->list[i];
    if (i < b->n && !at->by_wait &&
        (by_wait || culprit->state != HPC_CULPRIT_DIED || at->culprit.state == HPC_CULPRIT_DIED))
        return;
    if (i < b->n && at->by_wait) atomic_fetch_sub_explicit(&b->waits, 1, memory_order_relaxed);
    if (by_wait) atomic_fetch_add_explicit(&b->waits, 1, memory_order_relaxed);
    if (i == b->n) b->n++;
    at->culprit = *culprit;
    at->by_wait = by_wait;
    snprintf(at->why, sizeof at->why, "%s", why);
}

static void forget_waits(hpc_blame *b) {
    int n = 0;
    for (int i = 0; i < b->n; i++)
        if (!b->list[i].by_wait) b->list[n++] = b->list[i];
    b->n = n;
    atomic_store_explicit(&b->waits, 0, memory_order_relaxed);
}

int hpc_culprits_check(hpc_culprit *culprits, int n, int cap, int size) {
    int kept = 0;
    for (int i = 0; i < n && i < cap; i++) {
        hpc_culprit c = culprits[i];
        if (c.rank < 0 || c.rank >= size || c.state < HPC_CULPRIT_DIED || c.state > HPC_CULPRIT_CIRCLE) continue;
        if (!(c.seconds >= 0 && c.seconds < 1e12)) c.seconds = 0; /* also if it is a NaN */
        c.every = c.every != 0;
        c.op[sizeof c.op - 1] = 0;
        for (char *at = c.op; *at != 0; at++)
            if (*at < 0x20 || *at > 0x7e) *at = '?';
        culprits[kept++] = c;
    }
    return kept;
}

void hpc_blame_tell(hpc_blame *b, const hpc_last_word *word, int size) {
    hpc_last_word w = *word;
    w.why[sizeof w.why - 1] = 0;
    int n = hpc_culprits_check(w.culprits, w.n_culprits > INT32_MAX ? INT32_MAX : (int)w.n_culprits, HPC_SHOWN_CULPRITS,
                               size);
    if (n == 0) return;
    int explained = w.culprits[0].rank == word->culprits[0].rank && w.culprits[0].state == HPC_CULPRIT_DIED;
    lock(b);
    for (int i = 0; i < n; i++) put(b, &w.culprits[i], i == 0 && explained ? w.why : "", 0);
    unlock(b);
}

void hpc_blame_wait(hpc_blame *b, const char *op, uint64_t step, const hpc_culprit *culprits, int n) {
    lock(b);
    forget_waits(b);
    for (int i = 0; i < n; i++) put(b, &culprits[i], "", 1);
    b->op = op;
    b->step = step;
    unlock(b);
}

void hpc_blame_settle_slow(hpc_blame *b, const char *op, uint64_t step) {
    lock(b);
    if (op == NULL || b->op == NULL || strcmp(b->op, op) == 0 || step > b->step) forget_waits(b);
    unlock(b);
}

void hpc_blame_freeze(hpc_blame *b) {
    lock(b);
    b->op = "";
    b->step = UINT64_MAX;
    unlock(b);
}

int hpc_blame_read(hpc_blame *b, int by_wait, hpc_blamed *blamed) {
    int n = 0;
    lock(b);
    for (int i = 0; i < b->n; i++)
        if (by_wait || !b->list[i].by_wait) blamed[n++] = b->list[i];
    unlock(b);
    return n;
}

/* ---- lists and sentences ---- */

int hpc_culprits_add(hpc_culprit *list, int n, int cap, const hpc_culprit *culprit) {
    int at = 0;
    while (at < n && list[at].rank < culprit->rank) at++;
    if (at < n && list[at].rank == culprit->rank) return n;
    if (at == cap) return n;
    if (n == cap) n--;
    memmove(list + at + 1, list + at, (size_t)(n - at) * sizeof *list);
    list[at] = *culprit;
    return n + 1;
}

const char *hpc_ranks_text(const int *ranks, int n, char *text, size_t cap) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < n && used < cap - 1; i++) {
        const char *before = i == 0 ? "" : i == n - 1 ? " and " : ", ";
        if (i >= 32 && n > 33) {
            snprintf(text + used, cap - used, " and %d more", n - i);
            break;
        }
        int wrote = snprintf(text + used, cap - used, "%s%d", before, ranks[i]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return text;
}

enum { TOLD = 16 }; /* the most culprits in a sentence */

static const char *state_text(const hpc_culprit *c, int many, char *text, size_t cap) {
    switch (c->state) {
    case HPC_CULPRIT_DIED:
        return "died";
    case HPC_CULPRIT_LEFT:
        return "left";
    case HPC_CULPRIT_STOPPED:
        return many ? "are stopped" : "is stopped";
    case HPC_CULPRIT_SILENT:
        snprintf(text, cap, "%s not answered for %.1f s", many ? "have" : "has", c->seconds);
        return text;
    case HPC_CULPRIT_COMPUTING:
        snprintf(text, cap, "%s computed for %.1f s, at step %llu", many ? "have" : "has", c->seconds,
                 (unsigned long long)c->step);
        return text;
    default:
        return "wait for each other";
    }
}

/* Writes a text such as "rank 0 is in state_dict(), which every rank must call; ranks 1 and 2 are in step()". If every
 * rank need not make any of these calls, or if all ranks are in the same call, the text is like "rank 0 in send, ranks
 * 1 and 2 in recv". */
static size_t circle_text(const hpc_culprit *culprits, int n, char *text, size_t cap) {
    char done[TOLD] = {0}, who[256];
    size_t used = 0;
    int first = -1, differ = 0, tells = 0;
    for (int i = 0; i < n; i++) {
        if (culprits[i].state != HPC_CULPRIT_CIRCLE) continue;
        if (first < 0) first = i;
        differ |= strcmp(culprits[i].op, culprits[first].op) != 0;
        tells |= culprits[i].every;
    }
    tells &= differ;
    for (int i = 0; i < n && used < cap - 1; i++) {
        int ranks[TOLD], k = 0;
        if (done[i] || culprits[i].state != HPC_CULPRIT_CIRCLE) continue;
        for (int j = i; j < n; j++)
            if (culprits[j].state == HPC_CULPRIT_CIRCLE && strcmp(culprits[i].op, culprits[j].op) == 0) {
                done[j] = 1;
                ranks[k++] = culprits[j].rank;
            }
        int wrote = snprintf(text + used, cap - used, "%srank%s %s %sin %s%s",
                             i == first ? ""
                             : tells    ? "; "
                                        : ", ",
                             k == 1 ? "" : "s", hpc_ranks_text(ranks, k, who, sizeof who),
                             !tells   ? ""
                             : k == 1 ? "is "
                                      : "are ",
                             culprits[i].op, tells && culprits[i].every ? ", which every rank must call" : "");
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return used < cap ? used : cap - 1;
}

int hpc_culprits_are_circle(const hpc_culprit *culprits, int n) {
    for (int i = 0; i < n; i++)
        if (culprits[i].state != HPC_CULPRIT_CIRCLE) return 0;
    return n > 0;
}

static int reads_alike(const hpc_culprit *a, const hpc_culprit *b) {
    char x[64], y[64];
    return a->state == b->state && strcmp(state_text(a, 0, x, sizeof x), state_text(b, 0, y, sizeof y)) == 0;
}

const char *hpc_culprits_text(const hpc_culprit *culprits, int n, char *text, size_t cap) {
    char done[TOLD] = {0}, who[256], state[64], *before = "";
    size_t used = 0;
    text[0] = 0;
    if (n > TOLD) n = TOLD;
    for (int i = 0; i < n && used < cap - 1; i++) {
        int ranks[TOLD], k = 0, wrote;
        if (done[i]) continue;
        for (int j = i; j < n; j++)
            if (reads_alike(&culprits[i], &culprits[j])) {
                done[j] = 1;
                ranks[k++] = culprits[j].rank;
            }
        wrote =
            snprintf(text + used, cap - used, "%srank%s %s %s", before, k == 1 ? "" : "s",
                     hpc_ranks_text(ranks, k, who, sizeof who), state_text(&culprits[i], k > 1, state, sizeof state));
        used += wrote > 0 ? (size_t)wrote : 0;
        before = "; ";
        if (culprits[i].state != HPC_CULPRIT_CIRCLE || used >= cap - 1) continue;
        used += (size_t)snprintf(text + used, cap - used, ": ");
        if (used < cap - 1) used += circle_text(culprits, n, text + used, cap - used);
        if (used < cap - 1) used += (size_t)snprintf(text + used, cap - used, " (a deadlock of the program)");
    }
    return text;
}
