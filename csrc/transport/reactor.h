/* Reads arrivals from other hosts, by the threads that wait and by a service thread.
 *
 * One epoll set a context holds the descriptors of its transports: the streams of tcp, the completion channels of
 * verbs. A wait looks itself (hpc_transport.progress), so the thread that waits for an arrival handles it; when it
 * sleeps, it sleeps in the set (hpc_bed, wait.h). One service thread reads while no thread waits, so a rank that
 * computes still receives; while waits look or sleep, it naps to keep out of their way. */
#ifndef HPC_REACTOR_H
#define HPC_REACTOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/wait.h"

enum { HPC_REACTOR_SOURCES = 4 };

typedef struct hpc_reactor hpc_reactor;

/* A transport's part of the reactor. Any thread may call any function, several at once; none blocks. */
typedef struct hpc_source {
    void *arg;
    /* Handles an event of a descriptor: events as of epoll, tag as given to watch, budget: about how many bytes to
     * read. Takes the event from the descriptor before it looks for arrivals. Nonzero if more is left. */
    int (*handle)(void *arg, uint64_t tag, uint32_t events, size_t budget);
    /* Before a sleep in the set: makes the next arrival an event; a look follows for earlier arrivals. An event ends
     * the arm. The caller of watch arms a new descriptor. NULL if every arrival is an event anyway. */
    void (*arm)(void *arg);
    /* After arm: takes arrivals that made no event. Nonzero to be called again in a while: more is left, or something
     * awaited makes no event. It is not the look of a wait (hpc_reactor_looked). NULL if arm is. */
    int (*look)(void *arg);
    /* After hpc_reactor_report: tells the group of broken connections; nonzero to be called again in a while. The
     * service thread only. May be NULL. */
    int (*report)(void *arg);
    /* Arrivals can lie for a while: data moves without this rank. Its naps may be longer. */
    int patient;
} hpc_source;

/* all_remote: no peer shares memory with this rank, so only this process rings its bell, and a wait may sleep in the
 * set. NULL with the error recorded. */
hpc_reactor *hpc_reactor_open(hpc_group *group, int all_remote);
void hpc_reactor_close(hpc_reactor *reactor); /* ends the thread; NULL is no error */

/* Adds a transport: its number, for watch; at most HPC_REACTOR_SOURCES in the life of a reactor, else -1. */
int hpc_reactor_add(hpc_reactor *reactor, const hpc_source *source);
/* Removes a transport; on return none of its functions runs or will run. The caller closes its descriptors that are
 * still in the set next. Not to be called from one of these functions. */
void hpc_reactor_remove(hpc_reactor *reactor, int source);

/* Puts a descriptor into the set, or with again arms it there once more; 0 or -1 with errno. events as of epoll, with
 * EPOLLET: one event, one reader. tag has 56 bits. */
int hpc_reactor_watch(hpc_reactor *reactor, int source, int fd, uint32_t events, uint64_t tag, int again);

/* A wait has looked: the service thread leaves the reading to it. */
void hpc_reactor_looked(hpc_reactor *reactor);
/* A call has looked at its own part, and will again in a loop: the service thread looks at the rest between naps. */
void hpc_reactor_loops(hpc_reactor *reactor);
/* Handles the set's present events; nonzero if more is left. */
int hpc_reactor_poll(hpc_reactor *reactor, size_t budget);
/* Wakes the sleeper in the set: something is now awaited that makes no event, and look will say so (as the look of a
 * wait does, which then does not sleep). Any thread. */
void hpc_reactor_call(hpc_reactor *reactor);
/* A connection has broken: report is called soon, and again until it returns 0. */
void hpc_reactor_report(hpc_reactor *reactor);

/* Whether a wait sleeps in the set, or is about to. */
int hpc_reactor_has_sleeper(const hpc_reactor *reactor);

/* Callbacks of a context's waits; their argument is the reactor. */
extern const hpc_bed hpc_reactor_bed;

#endif
