/* The functions of contexts, their windows and their lanes. The structs are in transport/objects.h, because transports
 * use them too. Each of these files calls only files that are before it in this list:
 *
 *   reach.c    how a rank reaches a peer's part of a window or a lane, at its first use
 *   context.c  the handle, and facts about a context
 *   agree.c    steps that all ranks take together, over the control channel
 *   join.c     reaches what is reached when a window or a lane is made
 *   open.c     creates a context
 *   window.c   memory that peers write into
 *   lane.c     one thread's ordered channel to every peer
 *   mail.c     letters between ranks; lend.c: bytes that a peer reads where they lie
 *   queue.c    updates from peers, in slots
 *   cpus.c     deals the CPUs of ranks on one kernel
 *   close.c    contexts of one origin, and how they end
 *   tasks.c    work that waits do, and the engine
 *   connect.c  connects a created context
 *   shrink.c   makes a new context without the ranks that departed */
#ifndef HPC_CONTEXT_H
#define HPC_CONTEXT_H

#include "context/reach.h"

/* Does hpc_context_create, with the number `name` in place of the rank in the name of the timeline's file. */
int hpc_context_create_named(int rank, int size, int name, const hpc_config *config, hpc_context **context);
hpc_context *hpc_context_retain(hpc_context *context);
void hpc_context_release(hpc_context *context);

/* Frees a lane with its connections. It flushes nothing, and does not release the lane's reference to the context. NULL
 * is allowed. */
void hpc_context_drop_lane(hpc_lane *lane);

/* Adds heir to the family of old (the contexts that shrinks made from one first context, the root). first[r] is the
 * rank in the root of rank r of heir; heir owns the array from then on. Fails if another thread has meanwhile closed
 * old or aborted its family. */
int hpc_family_adopt(hpc_context *old, hpc_context *heir, int *first, const char *op);

/* Begins and ends a connect. Meanwhile a close or an abort in another thread ends only the waits of the connect, whose
 * end then ends the context. end returns status, or HPC_ERR_INVALID if the context is closed. */
void hpc_context_begin_connect(hpc_context *context);
int hpc_context_end_connect(hpc_context *context, int status);

/* Replaces the endpoints of a rank's door by those of hpc_context_lead, if there are some. */
void hpc_context_follow_leads(const hpc_context *context, int rank, hpc_control_address *address);

/* Returns HPC_OK if calls may use the context: it is connected, open, and was made by this process. */
int hpc_context_ready(const hpc_context *context, const char *op);

/* Makes the context a member of the engine that the user asked for. If none was asked for: of the process's engine, or
 * of a new one if another rank of the context lives in this process, since each rank has cores of its own. */
int hpc_context_join_engine(hpc_context *context);

/* Lets the waits of this rank run a task (base/engine.h). Returns 0 without memory. */
int hpc_context_add_task(hpc_context *context, hpc_task *task);

/* Works for waits of the context, as hpc_group.progress: for its transports and by hpc_member_work. */
int hpc_context_progress(void *context, hpc_looker looker);

/* Returns lane, or the context's first lane if lane is NULL. */
hpc_lane *hpc_context_lane(hpc_context *context, hpc_lane *lane);

/* Collective: every rank gives its status. Returns HPC_OK if all are HPC_OK, else the lowest failed rank's failure. */
int hpc_context_agree(hpc_context *context, const char *op, int status, double deadline);

/* Collective, after open, whose result is status: reaches this rank's own part, and the parts of the peers whose
 * transport is eager. A failure on one rank fails all ranks. When it returns, all ranks have opened the object. */
int hpc_object_join(hpc_context *context, const char *op, hpc_object *object, int status, double deadline);

/* Does so for an object that each rank makes by itself; only eager transports make it a collective. */
int hpc_object_join_alone(hpc_context *context, const char *op, hpc_object *object, int status, double deadline);

/* Collective: returns HPC_ERR_MEMORY on every rank unless each host has enough memory for all its ranks together.
 * total: bytes that this rank needs, which are nbytes and all overhead. */
int hpc_context_check_memory(hpc_context *context, const char *op, size_t nbytes, size_t total, double deadline);

/* Returns whether NICs carry data between rank and at least one other rank. */
int hpc_context_uses_nics(const hpc_context *context, int rank);

/* Returns which rank `rank` was in the first context, from which shrinks made this one. */
int hpc_context_first_rank(const hpc_context *context, int rank);

/* ---- windows ---- */

/* Does hpc_window_create, for parts that may differ by rank. places puts ranges of this rank's own part on NUMA nodes;
 * their offsets are from the start of the data. If the kernel refuses, window->memory->unplaced has the errno. */
int hpc_window_create_parts(hpc_context *context, const char *op, size_t nbytes, int signals,
                            const hpc_placement *places, int n_places, double deadline, hpc_window **window);

/* Makes a window with equal parts and its own number, by itself. Over eager transports it is collective, and deadline
 * is its end. */
int hpc_window_create_alike(hpc_context *context, const char *op, uint64_t number, size_t nbytes, int signals,
                            double deadline, hpc_window **window);

/* Puts a few bytes and a signal by the control channel, to a peer that this rank may never reach by a lane. Puts of a
 * lane have no order with it. */
int hpc_window_tell(hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset, int signal,
                    uint64_t value);
/* Does so for all ranks r whose told[r] is 0, along the control channel's tree: this rank need not be linked to them.
 * Each takes the bytes at the place that its hpc_window_hear chose for this rank, and then its signal of this rank's
 * number becomes value, if value is larger. What one rank says keeps its order. It never waits. */
int hpc_window_say(hpc_window *window, const char *told, const void *src, size_t nbytes, uint64_t value);
/* Chooses where the bytes go that ranks say: at + stride * rank. Call it before a collective after which ranks speak.
 */
void hpc_window_hear(hpc_window *window, size_t at, size_t stride);

/* Returns the NUMA node for a window without given places. If NICs carry the peers' writes into the window it is the
 * node of the context's NICs, so that the data does not cross nodes (PHub, section 3.2.1); else -1: any node. */
int hpc_window_node(const hpc_context *context);

/* ---- lanes ---- */

/* Waits until all puts of the lane are written at every peer that is still present. */
int hpc_lane_flush(hpc_lane *lane, double timeout);

/* Takes the next event; returns HPC_IN_PROGRESS if there is no event. It does not make a transport deliver data that
 * the transport still holds. One thread may poll a lane while another thread puts on it. */
int hpc_lane_poll(hpc_lane *lane, hpc_event *event);
/* Does the same, but takes no events of ranks r with but[r] nonzero. */
int hpc_lane_poll_but(hpc_lane *lane, const char *but, hpc_event *event);

/* Checks once whether all puts to peer are written there. Returns HPC_OK if they are, HPC_IN_PROGRESS or a failure. */
int hpc_lane_try_flush(hpc_lane *lane, int peer);

/* Does hpc_put_notify without its wait: returns HPC_IN_PROGRESS, and does nothing, while the peer's ring is full. */
int hpc_lane_try_notify(hpc_lane *lane, hpc_window *window, int peer, const void *src, size_t nbytes, size_t offset,
                        uint32_t imm);

/* Between the two calls puts of the lane may be kept back, in order, to be sent together. The lane's thread calls both,
 * and must not wait in between. */
static inline void hpc_lane_cork(hpc_lane *lane) {
    lane->corked = lane->keeps;
}
void hpc_lane_send_kept(hpc_lane *lane);
static inline void hpc_lane_uncork(hpc_lane *lane) {
    if (lane->corked) hpc_lane_send_kept(lane);
}

/* Sets the turn of later puts of the lane. A put may reach its peer before earlier puts with a greater turn, because a
 * transport may reorder puts that wait for room in a socket. Puts of one turn keep their order, and nothing overtakes
 * puts of turn 0. */
static inline void hpc_lane_take_turn(hpc_lane *lane, uint32_t turn) {
    lane->turn = turn;
}

/* Passes a connection that rank made for its lane of this number to the transport of the pair. The control channel's
 * thread calls it. Takes fd over if it returns HPC_OK. */
int hpc_lane_accept(hpc_context *context, int rank, uint64_t number, int stream, int fd);

/* Adds rank to the senders of a lane, which has a ring for it now. The caller holds the context's `reach`. */
void hpc_lane_hear(hpc_lane *lane, int rank);

/* Opens a lane. own: 1 for a lane that the context itself uses, else 0; rail: as in hpc_lane. */
int hpc_lane_open(hpc_context *context, int own, int rail, double deadline, hpc_lane **lane);

/* Opens a lane with its own number, as hpc_window_create_alike makes a window. */
int hpc_lane_open_alike(hpc_context *context, const char *op, uint64_t number, double deadline, hpc_lane **lane);

/* ---- reads of a peer's memory (lend.c) ---- */

/* Tries whether the kernel lets this rank read the memory of the peer's process. */
int hpc_can_read(const hpc_context *context, int peer);
/* Reads it. Returns HPC_GONE if there is no such memory or process. */
int hpc_read_peer(const hpc_context *context, int peer, uint64_t from, void *to, size_t nbytes);
/* Returns whether the kernel reads this rank's own memory from its first to its last byte. */
int hpc_is_readable(const char *at, uint64_t nbytes);

/* ---- CPUs ----
 * These functions tell which CPUs the ranks on one kernel have, and deal the CPUs to threads and cores. Every choice of
 * thread counts, pinning and waiting uses them.
 *
 * Two ranks share CPUs if they run on one kernel and their affinity masks overlap, or one quota limits both, directly
 * or through other ranks. Namespaces make no difference, because a CPU has the same number in all of them. Masks and
 * quotas are in the ranks' addresses, so all ranks compute the same results. */

/* The CPUs that a rank needs: one for each compute thread, and one for each of its cores. */
typedef struct hpc_cpu_need {
    int threads, cores;
} hpc_cpu_need;

/* The result of a deal for the ranks that share CPUs with one rank, including that rank. */
typedef struct hpc_cpu_deal {
    int ranks, threads, cores; /* number of these ranks, of all their threads, and of all their cores */
    int cpus;                  /* number of CPUs of these ranks, limited by quotas */
    int each;                  /* threads of each rank if all have equally many, else 0 */
    int enough;                /* 1: every thread and every core gets its own CPU */
} hpc_cpu_deal;

/* Deals the CPUs. needs[r] is the need of rank r. affinity: the plan's hpc_affinity, which tells the NIC, and so the
 * NUMA node, of each core. chosen[i] gets the CPU of core i of rank, or -1 if there are too few CPUs; chosen NULL: the
 * CPUs are only counted. */
int hpc_cpus_deal(const hpc_context *c, int rank, const hpc_cpu_need *needs, int affinity, hpc_cpu_deal *deal,
                  int *chosen, const char *op);

/* Chooses a CPU for each of n cores. Core i gets a CPU of node wanted[i] (-1: any node), or the next free CPU if that
 * node has no free one. No CPU is chosen twice. n_cpus must be at least n; nodes[k] is the node of cpus[k]. Equal
 * arguments give equal choices on all ranks. */
void hpc_deal_cpus(const int *cpus, const int *nodes, int n_cpus, const int *wanted, int n, int *chosen);

#endif
