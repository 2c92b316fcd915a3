/* Started calls: how they are waited for, and who goes on with them. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/wait.h"
#include "collective/call.h"
#include "collective/message.h"
#include "collective/request.h"

static const double NOTE_SECONDS = 0.05; /* a rank that waits for longer leaves notes */

static hpc_group *group_of(const hpc_calls *calls) {
    return &calls->mail->context->group;
}

static int status_of(const hpc_request *r) {
    return atomic_load_explicit(&r->status, memory_order_acquire);
}

/* ---- who goes on ---- */

/* A call that ends keeps the sentence of its error, also inside a wait that wants none. */
static void go_on(hpc_calls *calls) {
    const int muted = hpc_mute_errors(0);
    hpc_works_go_on(calls);
    hpc_messages_go_on(calls);
    hpc_mute_errors(muted);
}

/* A wait for something else goes on with started calls, and takes letters of messages: their senders wait for that. */
static const char *run(hpc_task *task) {
    hpc_calls *calls = task->arg;
    task->due = INFINITY;
    task->worked = 0;
    if (!hpc_calls_try(calls)) return NULL;
    const int before = atomic_load_explicit(&calls->going, memory_order_relaxed);
    go_on(calls);
    const int left = atomic_load_explicit(&calls->going, memory_order_relaxed);
    task->worked = before - left;
    hpc_calls_leave(calls);
    if (left < before) hpc_bell_ring(group_of(calls)->bell); /* a wait for one of them may sleep */
    return NULL;
}

/* ---- requests ---- */

static int is_done(void *arg) {
    hpc_request *r = arg;
    if (status_of(r) != HPC_IN_PROGRESS) return 1;
    if (!hpc_calls_try(r->calls)) return 0;
    go_on(r->calls);
    hpc_calls_leave(r->calls);
    return status_of(r) != HPC_IN_PROGRESS;
}

static int waits_for(void *arg, int *ranks) {
    hpc_request *r = arg;
    hpc_calls_enter(r->calls);
    const int n = r->kind->waits_for(r, ranks);
    hpc_calls_leave(r->calls);
    return n;
}

static double leave_notes(void *arg) {
    hpc_request *r = arg;
    if (!hpc_calls_try(r->calls)) return NOTE_SECONDS;
    hpc_work_note(r->calls);
    hpc_calls_leave(r->calls);
    return NOTE_SECONDS;
}

/* Returns how an ended request has ended. */
static int tell(const hpc_request *r) {
    const int status = status_of(r);
    return status == HPC_OK ? HPC_OK : hpc_fail(status, r->op, "%s", r->why == NULL ? "" : r->why);
}

int hpc_request_wait(hpc_request *r, double timeout) {
    if (r == NULL) return hpc_fail(HPC_ERR_INVALID, "wait", "wait: request is NULL");
    if (status_of(r) != HPC_IN_PROGRESS) return tell(r);
    const hpc_wait wait = {.op = r->op,
                           .ready = is_done,
                           .waiting_for = waits_for,
                           .arg = r,
                           .every = r->kind->every,
                           .later = leave_notes,
                           .after = NOTE_SECONDS};
    const int status = hpc_wait_for(group_of(r->calls), &wait, timeout);
    return status != HPC_OK ? status : tell(r);
}

/* A rank that has departed sends nothing more, but its last letters may only now be looked at. */
static int fail_if_gone(hpc_request *r) {
    hpc_group *g = group_of(r->calls);
    int status = hpc_group_usable(g, r->op), n = 0, *ranks;
    if (status != HPC_OK || atomic_load(&g->departures) == 0) return status;
    hpc_group_progress(g);
    if (is_done(r)) return HPC_OK;
    for (int i = 0; i < g->size && status == HPC_OK; i++)
        if (hpc_group_has_lost(g, i)) status = hpc_group_peer_present(g, i, r->op);
    ranks = status == HPC_OK ? malloc((size_t)g->size * sizeof *ranks) : NULL;
    if (ranks != NULL) n = waits_for(r, ranks);
    for (int i = 0; i < n && status == HPC_OK; i++)
        if (ranks[i] != g->rank) status = hpc_group_peer_present(g, ranks[i], r->op);
    for (int i = 0; i < g->size && ranks != NULL && n == 0 && status == HPC_OK; i++) /* it waits for any rank */
        status = hpc_group_peer_present(g, i, r->op);
    free(ranks);
    return status;
}

int hpc_request_test(hpc_request *r) {
    if (r == NULL) return hpc_fail(HPC_ERR_INVALID, "test", "test: request is NULL");
    if (status_of(r) != HPC_IN_PROGRESS) return tell(r);
    hpc_group_progress(group_of(r->calls));
    if (is_done(r)) return tell(r);
    const int status = fail_if_gone(r);
    if (status_of(r) != HPC_IN_PROGRESS) return tell(r);
    return status == HPC_OK ? HPC_IN_PROGRESS : status;
}

static void drop(hpc_request *r) {
    free(r->why);
    r->kind->drop(r);
}

void hpc_request_free(hpc_request *r) {
    if (r == NULL) return;
    hpc_calls *calls = r->calls;
    if (calls == NULL) {
        drop(r);
        return;
    }
    if (!hpc_group_is_mine(group_of(calls))) return;
    hpc_calls_enter(calls);
    if (status_of(r) == HPC_IN_PROGRESS) r->kind->give_up(r);
    hpc_request_remove(r);
    drop(r);
    hpc_calls_leave(calls);
}

/* ---- the calls of a context ---- */

/* Ends all calls, because the context is freed. */
static void forget(hpc_calls *calls) {
    if (calls->added) hpc_task_remove(&calls->task);
    for (hpc_request *r = calls->requests; r != NULL; r = r->next) {
        if (status_of(r) == HPC_IN_PROGRESS)
            hpc_request_end(r, HPC_ERR_INVALID, "the context was freed before the call had ended");
        r->calls = NULL;
    }
    hpc_messages_forget(calls);
    free(calls->stuck);
    hpc_teams_free(calls);
    free(calls);
}

int hpc_calls_of(hpc_context *c, const char *op, hpc_calls **found) {
    *found = c->calls;
    if (*found != NULL) return HPC_OK;
    hpc_calls *calls = calloc(1, sizeof *calls);
    uint64_t *stuck = calloc((size_t)c->group.size, sizeof *stuck);
    const int whole = calls != NULL && stuck != NULL && hpc_teams_find(calls, c);
    int status = whole ? hpc_mail_of(c, op, &calls->mail) : hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    if (status != HPC_OK) {
        if (calls != NULL) hpc_teams_free(calls);
        free(calls);
        free(stuck);
        return status;
    }
    calls->last = &calls->first;
    calls->last_arrived = &calls->arrived;
    calls->stuck = stuck;
    calls->task = (hpc_task){.run = run, .arg = calls, .due = INFINITY, .weight = 1};
    c->calls_free = forget;
    *found = c->calls = calls;
    return HPC_OK;
}

/* Lets all waits of this rank go on with the call. */
int hpc_calls_add_task(hpc_calls *calls, const char *op) {
    if (!calls->added && !hpc_context_add_task(calls->mail->context, &calls->task))
        return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    calls->added = 1;
    return HPC_OK;
}

int hpc_request_go_on(hpc_request *r) {
    const int status = hpc_calls_add_task(r->calls, r->op);
    if (status == HPC_OK) is_done(r);
    return status;
}
