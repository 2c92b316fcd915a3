/* Judges one stream and one fleet of a bandwidth probe, and chooses the next rate to try. Pure functions.
 *
 * Source: Jain and Dovrolis, "End-to-End Available Bandwidth: Measurement Methodology, Dynamics, and Relation with TCP
 * Throughput" (SIGCOMM 2002; IEEE/ACM Transactions on Networking 11(4), 2003): SLoPS and pathload. Delays are one-way
 * delays in seconds; the offset between the two clocks does not matter. Rates are bytes a second. */
#ifndef HPC_TREND_H
#define HPC_TREND_H

#include <stdint.h>

/* ---- one stream ---- */

typedef enum hpc_trend {
    HPC_TREND_UNCLEAR = 0, /* the two tests disagree, or neither decides */
    HPC_TREND_NONE,        /* the stream was no faster than the available bandwidth */
    HPC_TREND_RISING       /* the stream filled a queue */
} hpc_trend;

/* The share of consecutive pairs that rise: 0.5 for independent values, 1 for a strong trend. n >= 2. */
double hpc_trend_pct(const double *medians, int n);
/* (last - first) / sum of all steps: 0 for independent values, 1 for a strong trend, -1 for falling. n >= 2. */
double hpc_trend_pdt(const double *medians, int n);

/* The trend of n delays by both tests over the medians of sqrt(n) groups. Fewer than 25 delays are unclear. */
hpc_trend hpc_trend_of(const double *delays, int n);

/* How much delays grow: seconds a second, from the first fifth of n packets to the last. A stream at rate R over a link
 * of capacity C that has A left fills its queue by R - A bytes a second, so the slope is (R - A) / C. n >= 25. */
double hpc_trend_slope(const double *sent, const double *delays, int n);

/* ---- one train: packets sent as fast as they go ---- */

typedef struct hpc_train {
    double rate;    /* at which its last half arrived */
    double bucket;  /* bytes that passed faster than that before (a token bucket) */
    int is_limited; /* the path was slower than the sender, and the bucket ended in the first part of the train */
} hpc_train;

/* sent, came: seconds, on the sender's and on the receiver's clock; came[i] < 0: lost. each: bytes of a packet. 0 if
 * too few came to tell. */
int hpc_train_of(const double *sent, const double *came, int n, double each, hpc_train *train);

/* ---- one fleet ---- */

typedef enum hpc_fleet_says {
    HPC_FLEET_OPEN = 0, /* more streams are needed */
    HPC_FLEET_BELOW,    /* its rate is below the available bandwidth */
    HPC_FLEET_ABOVE,
    HPC_FLEET_GREY /* the available bandwidth crossed the rate meanwhile */
} hpc_fleet_says;

typedef struct hpc_fleet {
    int streams; /* of it */
    int rising, level, unclear;
} hpc_fleet;

/* The verdict, as soon as the streams that are still to come cannot change it. */
hpc_fleet_says hpc_fleet_judge(const hpc_fleet *fleet);

/* ---- all fleets ---- */

typedef struct hpc_search {
    double at_least;   /* 0: a range is wanted */
    double resolution; /* of the range, as a share of its middle */
    double most;       /* that can be sent; 0: unknown */
    double low, high;  /* high 0: nothing was too fast yet */
    double grey_low, grey_high;
    double guess; /* available bandwidth, estimated from a fleet above it; 0: unknown */
    double rate;  /* of the next fleet */
    int fleets, greys, is_done;
} hpc_search;

/* hint: the rate of a train. */
void hpc_search_begin(hpc_search *search, double at_least, double resolution, double hint, double most);
/* guess: 0, or an estimate of the available bandwidth by the slopes of a fleet that was above. It only chooses the next
 * rate. */
void hpc_search_take(hpc_search *search, hpc_fleet_says says, double guess);

#endif
