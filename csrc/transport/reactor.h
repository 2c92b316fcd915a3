/* The readers of what comes from other hosts, when nobody waits for it and when everybody does.
 *
 * One epoll set a context holds what its transports listen to: the streams of tcp, the completion channels of verbs. A
 * wait looks for itself (hpc_transport.progress), so that what comes is handled by the thread that waits for it; when
 * it sleeps, it sleeps in the set (hpc_bed, wait.h). For the time when nobody waits there is one service thread, so
 * that a rank that computes receives all the same; while waits look or sleep, it keeps out of their way by naps. */
#ifndef HPC_REACTOR_H
#define HPC_REACTOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/wait.h"

enum { HPC_REACTOR_SOURCES = 4 };

typedef struct hpc_reactor hpc_reactor;

/* A transport's part of it. Any thread may call any of them, several at once; none blocks. */
typedef struct hpc_source {
    void *arg;
    /* Handles what the set said of a descriptor: events as of epoll, tag as given to watch, about how many bytes to
     * read. Takes what made the event before it looks at what the event is about. Nonzero if more is left. */
    int (*handle)(void *arg, uint64_t tag, uint32_t events, size_t budget);
    /* Before a sleep in the set: what comes from now on has to be an event, and a look follows for what came before. An
     * event ends it; a new descriptor is armed by who watches it. NULL where all that comes is an event. */
    void (*arm)(void *arg);
    /* Takes what has come without an event, after arm. Nonzero to be called again in a while: more is left, or
     * something is awaited that is no event. It is not the look of a wait (hpc_reactor_looked). NULL as arm is. */
    int (*look)(void *arg);
    /* After hpc_reactor_report: tells the group of broken connections; nonzero to be called again in a while. The
     * service thread only. May be NULL. */
    int (*report)(void *arg);
    /* Arrivals can lie for a while: data moves without this rank. Its naps may be longer. */
    int patient;
} hpc_source;

/* all_remote: no peer shares memory with this rank, so nobody but this process rings its bell, and a wait may sleep in
 * the set. NULL with the error recorded. */
hpc_reactor *hpc_reactor_open(hpc_group *group, int all_remote);
void hpc_reactor_close(hpc_reactor *reactor); /* ends the thread; NULL is no error */

/* Adds a transport: its number, for watch; at most HPC_REACTOR_SOURCES in the life of a reactor, else -1. */
int hpc_reactor_add(hpc_reactor *reactor, const hpc_source *source);
/* Takes it out: no call to it is under way or comes any more. Its descriptors that are still in the set are closed
 * next. Not from within such a call. */
void hpc_reactor_remove(hpc_reactor *reactor, int source);

/* A descriptor into the set, or, again, there once more; 0 or -1 with errno. events as of epoll, with EPOLLET: one
 * event, one reader. tag has 56 bits. */
int hpc_reactor_watch(hpc_reactor *reactor, int source, int fd, uint32_t events, uint64_t tag, int again);

/* A wait has looked: the service thread leaves the reading to it. */
void hpc_reactor_looked(hpc_reactor *reactor);
/* A call has looked at what is its own, as it will again in a loop: the service thread looks at the rest by naps. */
void hpc_reactor_loops(hpc_reactor *reactor);
/* Handles what the set has by now; nonzero if more is left. By waits. */
int hpc_reactor_poll(hpc_reactor *reactor, size_t budget);
/* Something has begun to be awaited that is no event, and look will say so (as the look of a wait does, which then does
 * not sleep): whoever sleeps in the set gets up for it. Any thread. */
void hpc_reactor_call(hpc_reactor *reactor);
/* A connection has broken: report is called soon, and again until it says that there is nothing left. */
void hpc_reactor_report(hpc_reactor *reactor);

/* Whether a wait sleeps in the set, or is about to. */
int hpc_reactor_has_sleeper(const hpc_reactor *reactor);

/* Callbacks of a context's waits; their argument is the reactor. */
extern const hpc_bed hpc_reactor_bed;

#endif
