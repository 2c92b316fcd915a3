#include "base/crowd.h"

#include <math.h>
#include <stddef.h>

#include "base/host.h"

static const double LOOK_SECONDS = 0.1, CROWDED_SECONDS = 2;
static const double
    OF_WANTED = 0.1,
    OF_ALL = 0.02; /* crowded above these fractions of the time in which the thread wanted a CPU, and of all time */

static _Thread_local hpc_crowd own;
static _Thread_local struct {
    void (*call)(void *arg);
    void *arg;
} told;

void hpc_crowd_look(hpc_crowd *crowd, double now, uint64_t ran, uint64_t waited) {
    const double run = (double)(ran - crowd->ran) * 1e-9, wait = (double)(waited - crowd->waited) * 1e-9;
    const int first = crowd->looked == 0;
    if (!first && wait > OF_WANTED * (run + wait) && wait > OF_ALL * (now - crowd->looked))
        crowd->crowded++;
    else
        crowd->crowded = 0;
    if (crowd->crowded >= 2) crowd->until = now + CROWDED_SECONDS;
    crowd->looked = now;
    crowd->ran = ran;
    crowd->waited = waited;
}

int hpc_crowd_is(double now) {
    return now < own.until;
}

int hpc_crowd_find(double now) {
    uint64_t ran, waited;
    if (now - own.looked >= LOOK_SECONDS) {
        if (hpc_host_waited("", &ran, &waited))
            hpc_crowd_look(&own, now, ran, waited);
        else
            own.looked = INFINITY;
        if (now < own.until && told.call != NULL) told.call(told.arg);
    }
    return now < own.until;
}

void hpc_crowd_tell(void (*call)(void *arg), void *arg) {
    told.call = call;
    told.arg = arg;
}
