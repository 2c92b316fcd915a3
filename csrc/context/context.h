/* The functions of a context, its windows and its lanes. Their structs are in transport/objects.h, as transports see
 * them too. Each of these files calls only files that come before it in this list:
 *
 *   context.c  the handle
 *   agree.c    steps of all ranks by the control channel
 *   open.c     makes one
 *   window.c   memory that peers write into
 *   lane.c     one thread's ordered channel to every peer
 *   queue.c    updates from peers, in slots
 *   cpus.c     deals the CPUs that ranks of one kernel have
 *   close.c    contexts of one origin, and how they end
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

/* The number that rank had in the first context, from which shrinks made this one. */
int hpc_context_first_rank(const hpc_context *context, int rank);

/* ---- windows ---- */

/* hpc_window_create for parts that may differ between ranks. places puts ranges of this rank's own part on given NUMA
 * nodes; their offsets count from the start of the data. window->memory->unplaced says if the kernel refused. */
int hpc_window_create_parts(hpc_context *context, const char *op, size_t nbytes, int signals,
                            const hpc_placement *places, int n_places, double deadline, hpc_window **window);

/* Returns the NUMA node for a window without given places. If NICs carry the peers' writes into the window, it is the
 * node of the context's NICs, so that the data goes no further than it must (PHub, section 3.2.1). -1: any node. */
int hpc_window_node(const hpc_context *context);

/* ---- lanes ---- */

/* Remote completion of all that the lane has put, to every peer that is still here. */
int hpc_lane_flush(hpc_lane *lane, double timeout);

/* The next event, or HPC_IN_PROGRESS; moves nothing that a transport holds back. One thread may poll a lane while
 * another puts on it. */
int hpc_lane_poll(hpc_lane *lane, hpc_event *event);
/* The same, but of no rank r with but[r]. */
int hpc_lane_poll_but(hpc_lane *lane, const char *but, hpc_event *event);

/* One look at whether everything put to peer is in place: HPC_OK, HPC_IN_PROGRESS or a failure. */
int hpc_lane_try_flush(hpc_lane *lane, int peer);

/* hpc_put_notify without its wait: HPC_IN_PROGRESS, with nothing done, while the peer's ring is full. */
int hpc_lane_try_notify(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                        uint32_t imm);

/* Between the two calls puts of the lane may be kept back, in their order, to be sent together. By the lane's thread,
 * which waits for nothing in between. */
static inline void hpc_lane_cork(hpc_lane *lane) {
    lane->corked = lane->keeps;
}
void hpc_lane_send_kept(hpc_lane *lane);
static inline void hpc_lane_uncork(hpc_lane *lane) {
    if (lane->corked) hpc_lane_send_kept(lane);
}

/* Until the next call puts of the lane have this turn: they may reach their peer before earlier puts with a later
 * (greater) turn, which a transport does while those still wait for room in a socket. Puts of one turn keep their
 * order, and nothing overtakes puts of turn 0. */
static inline void hpc_lane_take_turn(hpc_lane *lane, uint32_t turn) {
    lane->turn = turn;
}

/* rail: as in hpc_lane. */
int hpc_lane_open(hpc_context *context, int own, int rail, double deadline, hpc_lane **lane);

/* ---- CPUs ----
 *
 * The CPUs that ranks of one kernel have, and how they are dealt. Every choice of threads, pins and waiting asks here.
 *
 * Ranks share CPUs if they run on one kernel and their affinity masks overlap, or one quota limits them, directly or
 * through other ranks. Namespaces make no difference: a CPU has the same number in all of them. The facts lie in the
 * addresses of the ranks, so equal questions have equal answers on all ranks. */

/* The CPUs that a rank needs: one for each thread that it computes with, and one for each of its cores. */
typedef struct hpc_cpu_need {
    int threads, cores;
} hpc_cpu_need;

/* The answer, about the ranks that share CPUs with one rank, itself included. */
typedef struct hpc_cpu_deal {
    int ranks, threads, cores; /* how many ranks, and the threads and cores of them all */
    int cpus;                  /* that they have, cut by quotas */
    int each;                  /* the threads of each rank, if they are equally many; else 0 */
    int enough;                /* every thread and every core gets a CPU to itself */
} hpc_cpu_deal;

/* Deals the CPUs. needs: by rank. affinity: of the plan, for the NUMA nodes of NICs (hpc_affinity). chosen gets the CPU
 * of each core of the rank, or -1 if there are not enough; NULL: only count. */
int hpc_cpus_deal(const hpc_context *c, int rank, const hpc_cpu_need *needs, int affinity, hpc_cpu_deal *deal,
                  int *chosen, const char *op);

/* Chooses a CPU for each of n cores. A core gets a CPU of the node that it wants (-1: any) while that node has one
 * left, and the next free CPU otherwise. No CPU is chosen twice. n_cpus is n or more; nodes[k] is the node of cpus[k].
 * Equal arguments give equal choices on all ranks. */
void hpc_deal_cpus(const int *cpus, const int *nodes, int n_cpus, const int *wanted, int n, int *chosen);

#endif
