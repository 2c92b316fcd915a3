/* Tasks: work that the waits of a context do besides looking at their conditions. */
#include <sched.h>
#include <stdio.h>

#include "context/context.h"

/* Acquire here, release in leave_tasks: a thread that runs the tasks sees all that the last one did to a scheme. */
static int take_tasks(hpc_context *c) {
    return atomic_load_explicit(&c->working, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&c->working, 1, memory_order_acquire) == 0;
}

static void leave_tasks(hpc_context *c) {
    atomic_store_explicit(&c->working, 0, memory_order_release);
}

void hpc_context_hold_tasks(hpc_context *c) {
    while (!take_tasks(c)) sched_yield();
}

void hpc_context_let_tasks(hpc_context *c) {
    leave_tasks(c);
}

int hpc_context_work(hpc_context *c) {
    const char *failure = NULL;
    char why[HPC_REASON_BYTES];
    int left = 0;
    if (atomic_load_explicit(&c->n_tasks, memory_order_relaxed) == 0) return 0;
    if (!take_tasks(c)) return HPC_LEFT;
    for (const hpc_task *t = c->tasks; t != NULL && failure == NULL; t = t->next) {
        failure = t->run(t->arg);
        left |= t->left;
    }
    if (failure != NULL) snprintf(why, sizeof why, "%s", failure); /* the task may be freed after leave_tasks */
    leave_tasks(c);
    if (failure != NULL) hpc_context_abort(c, why);
    return left;
}

int hpc_context_progress(void *context, hpc_looker looker) {
    hpc_context *c = context;
    int left = 0;
    for (int i = 0; c->used[i] != NULL; i++) {
        const hpc_transport *t = c->used[i];
        if (t->progress != NULL && !(t->wakes_beds && looker == HPC_LOOKS_BESIDE_BED)) left |= t->progress(c);
    }
    return left | (atomic_load_explicit(&c->leaving, memory_order_relaxed) ? 0 : hpc_context_work(c));
}

void hpc_context_add_task(hpc_context *c, hpc_task *task) {
    hpc_context_hold_tasks(c);
    task->next = c->tasks;
    c->tasks = task;
    atomic_fetch_add_explicit(&c->n_tasks, 1, memory_order_release);
    leave_tasks(c);
    atomic_store_explicit(&c->group.progress, hpc_context_progress, memory_order_release);
}

void hpc_context_remove_task(hpc_context *c, hpc_task *task) {
    hpc_context_hold_tasks(c);
    for (hpc_task **at = &c->tasks; *at != NULL; at = &(*at)->next)
        if (*at == task) {
            *at = task->next;
            atomic_fetch_sub_explicit(&c->n_tasks, 1, memory_order_relaxed);
            break;
        }
    leave_tasks(c);
}
