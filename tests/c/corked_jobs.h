/* Jobs that the tests of corked lanes share, whatever the transport. */
#ifndef CORKED_JOBS_H
#define CORKED_JOBS_H

#include "context/context.h"
#include "ranks.h"

enum { CORKED_SENDER = 0, CORKED_TAKER = 1, CORKED_SMALL = 1000 };

/* Whether an event has come. */
int corked_has_come(const rank *r, hpc_lane *lane, hpc_event *event);

/* The sender dies with a set half sent: what it has sent is taken, what it kept never comes, and the wait names it. */
void corked_dies(rank *r);

#endif
