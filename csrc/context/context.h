/* The functions of a context. Its structs are in transport/objects.h, as transports see them too. Each of these files
 * calls only files that come before it in this list:
 *
 *   context.c  the handle
 *   agree.c    steps of all ranks by the control channel
 *   open.c     makes one
 *   window.c   memory that peers write into
 *   lane.c     one thread's ordered channel to every peer
 *   queue.c    updates from peers, in slots
 *   family.c   contexts of one origin
 *   close.c    leaves one
 *   tasks.c    work that waits do
 *   connect.c  brings one up
 *   shrink.c   a new one without the ranks that departed
 */
#ifndef HPC_CONTEXT_H
#define HPC_CONTEXT_H

#include "transport/objects.h"

/* hpc_context_create with another number than the rank in the name of its timeline's file. */
int hpc_context_create_named(int rank, int size, int name, const hpc_config *config, hpc_context **context);
hpc_context *hpc_context_retain(hpc_context *context);
void hpc_context_release(hpc_context *context);

/* Frees a lane with its connections, as it is: nothing is flushed, and its hold of the context stays. NULL is fine. */
void hpc_context_drop_lane(hpc_lane *lane);

/* Makes heir one of old's family: first are the root's ranks by heir's own, and heir's from then on. Fails when
 * another thread has closed old meanwhile, or aborted its family. */
int hpc_family_adopt(hpc_context *old, hpc_context *heir, int *first, const char *op);

/* Stops the control channel of a context that has been closed, or that has failed for the reason why. Does the same for
 * the contexts of its family that end with it (family.c). Called once. */
void hpc_family_leave(hpc_context *context, const char *why);

/* HPC_OK if calls may be made on it: connected, open, and this process's own. */
int hpc_context_ready(const hpc_context *context, const char *op);

/* The task belongs to the context until it is removed; then no thread runs it. */
void hpc_context_add_task(hpc_context *context, hpc_task *task);
void hpc_context_remove_task(hpc_context *context, hpc_task *task);

/* Between the two calls no thread runs the tasks; this thread's waits then only look. Not from within a task, and not
 * twice. */
void hpc_context_hold_tasks(hpc_context *context);
void hpc_context_let_tasks(hpc_context *context);

/* Runs the tasks once, and returns hpc_left_over bits for the work that they leave. HPC_LEFT if another thread runs
 * them: work that it leaves has to be looked at again before a sleep. */
int hpc_context_work(hpc_context *context);

/* The work that waits of the context do, as hpc_group's progress: its transports' part and hpc_context_work. */
int hpc_context_progress(void *context, hpc_looker looker);

/* The lane, or the context's first one for NULL. */
hpc_lane *hpc_context_lane(hpc_context *context, hpc_lane *lane);

/* Collective: every rank gives its status; HPC_OK if all do, else the failure of the lowest rank that has one. */
int hpc_context_agree(hpc_context *context, const char *op, int status, double deadline);

/* Collective: makes every rank's object reachable for every other rank, by the transport chosen for each pair.
 * export_to and attach are called once a peer. A failure on one rank fails all. */
typedef struct hpc_joint {
    void *object;
    int (*export_to)(const hpc_transport *transport, void *object, int peer, hpc_blob *blob);
    int (*attach)(const hpc_transport *transport, void *object, int peer, const hpc_blob *blob, double deadline);
} hpc_joint;
int hpc_context_join(hpc_context *context, const char *op, const hpc_joint *joint, double deadline);

/* Collective: HPC_ERR_MEMORY on every rank unless each host can hold the totals of its ranks. total: nbytes with all
 * overhead. */
int hpc_context_check_memory(hpc_context *context, const char *op, size_t nbytes, size_t total, double deadline);

/* Whether NICs carry the data of that rank to at least one other. */
int hpc_context_uses_nics(const hpc_context *context, int rank);

/* The lowest rank on the host of rank; -1: there is no such rank, or the context is not connected. */
int hpc_context_host(const hpc_context *context, int rank);
/* The number that rank had in the first context, from which shrinks made this one. */
int hpc_context_first_rank(const hpc_context *context, int rank);

#endif
