/* The reactor reads data that arrives from other hosts, on threads that wait and on a service thread.
 *
 * A context has one epoll set with the descriptors of its transports: tcp's streams and verbs' completion channels.
 * A thread that waits polls for itself (hpc_transport.progress), so it handles the arrival that it waits for. When
 * it sleeps, it sleeps in the set (hpc_bed). A service thread, one for all contexts of the process, reads while no
 * thread waits, so a rank that computes still receives. While other threads poll or sleep in the set, the service
 * thread does not look at it, to leave them the core. */
#ifndef HPC_REACTOR_H
#define HPC_REACTOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/wait.h"

enum { HPC_REACTOR_SOURCES = 4 };

typedef struct hpc_reactor hpc_reactor;

/* A source: a transport's part of the reactor. Any thread may call its functions, several threads at once; none may
 * block. */
typedef struct hpc_source {
    void *arg;
    /* Handles an event of a descriptor. events are epoll's, tag was given to watch, budget is about how many bytes
     * to read. Must take the event from the descriptor before it looks for arrivals. Returns nonzero if more is
     * left. */
    int (*handle)(void *arg, uint64_t tag, uint32_t events, size_t budget);
    /* Called before a thread sleeps in the set: makes the next arrival an event. A look follows, for earlier
     * arrivals. One event ends the effect. The caller of watch arms a new descriptor itself. NULL if every arrival
     * is an event anyway. */
    void (*arm)(void *arg);
    /* Called after arm: takes arrivals that made no event. Returns nonzero to be called again soon, because more is
     * left or something awaited makes no event. It does not count as a poll by a wait (hpc_reactor_looked). NULL if
     * arm is NULL. */
    int (*look)(void *arg);
    /* Called by the service thread after hpc_reactor_report: tells the group about broken connections. Returns
     * nonzero to be called again soon. May be NULL. */
    int (*report)(void *arg);
    /* Arrivals can wait, because data moves without this rank's CPU. The service thread may nap longer. */
    int patient;
} hpc_source;

/* Opens a reactor. all_remote: no peer shares memory with this rank; only this process then rings its bell, so a
 * wait may sleep in the set. Returns NULL with the error recorded. */
hpc_reactor *hpc_reactor_open(hpc_group *group, int all_remote);
void hpc_reactor_close(hpc_reactor *reactor); /* ends its service; accepts NULL */

/* Adds a transport and returns its number, for watch. Returns -1 after HPC_REACTOR_SOURCES calls on this reactor. */
int hpc_reactor_add(hpc_reactor *reactor, const hpc_source *source);
/* Removes a transport; when it returns, none of the source's functions runs or will run. The caller must then close
 * its descriptors that are still in the set. Must not be called from a function of a source. */
void hpc_reactor_remove(hpc_reactor *reactor, int source);

/* Adds a descriptor to the set or, with again, arms it there again. Returns 0, or -1 with errno. events are epoll's,
 * with EPOLLET, so that only one thread gets each event. tag has at most 56 bits. */
int hpc_reactor_watch(hpc_reactor *reactor, int source, int fd, uint32_t events, uint64_t tag, int again);

/* Notes that a wait has polled: the service thread leaves the reading to the wait. */
void hpc_reactor_looked(hpc_reactor *reactor);
/* Notes that a call has polled its own connection, and will poll it again in a loop: the service thread polls the
 * others between naps. */
void hpc_reactor_loops(hpc_reactor *reactor);
/* Handles the events that are in the set now; returns nonzero if more is left. */
int hpc_reactor_poll(hpc_reactor *reactor, size_t budget);
/* Wakes the thread that sleeps in the set, because it now awaits something that makes no event. The source's look
 * must return nonzero for it, and so must its progress, so that a wait does not sleep. Any thread may call it. */
void hpc_reactor_call(hpc_reactor *reactor);
/* Notes that a connection has broken: the service thread calls report soon, and again until it returns 0. */
void hpc_reactor_report(hpc_reactor *reactor);

/* Returns whether a wait sleeps in the set, or is about to. */
int hpc_reactor_has_sleeper(const hpc_reactor *reactor);

/* The callbacks by which a context's waits sleep in the set; their argument is the reactor. */
extern const hpc_bed hpc_reactor_bed;

#endif
