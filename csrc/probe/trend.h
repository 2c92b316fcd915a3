/* Judges the streams and fleets of a bandwidth probe, and chooses the next rate. Pure functions.
 *
 * Source: Jain and Dovrolis, "End-to-End Available Bandwidth: Measurement Methodology, Dynamics, and Relation with TCP
 * Throughput" (SIGCOMM 2002; IEEE/ACM Transactions on Networking 11(4), 2003): SLoPS and pathload. A stream is a number
 * of packets sent at one rate, a fleet a number of streams of one rate. Delays are one-way delays in seconds; the
 * offset between the two clocks does not matter. Rates are in bytes a second. */
#ifndef HPC_TREND_H
#define HPC_TREND_H

#include <stdint.h>

/* ---- one stream ---- */

typedef enum hpc_trend {
    HPC_TREND_UNCLEAR = 0, /* the two tests disagree, or neither decides */
    HPC_TREND_NONE,        /* the stream was not faster than the available bandwidth */
    HPC_TREND_RISING       /* the stream filled a queue */
} hpc_trend;

/* Returns the fraction of consecutive pairs that rise: 0.5 for independent values, 1 for a strong trend. n must be 2 or
 * more. */
double hpc_trend_pct(const double *medians, int n);
/* Returns (last - first) / sum of |steps|: 0 for independent values, 1 for a strong trend, -1 for falling values. n
 * must be 2 or more. */
double hpc_trend_pdt(const double *medians, int n);

/* Returns the trend of n delays, by both tests on the medians of sqrt(n) groups; HPC_TREND_UNCLEAR for fewer than 25
 * delays. */
hpc_trend hpc_trend_of(const double *delays, int n);

/* Returns how fast delays grow, in seconds a second, from the first fifth of n packets to the last fifth. A stream at
 * rate R over a link of capacity C with A left fills its queue at R - A bytes a second, so the slope is (R - A) / C. n
 * must be 25 or more. */
double hpc_trend_slope(const double *sent, const double *delays, int n);

/* ---- one train: packets sent as fast as possible ---- */

typedef struct hpc_train {
    double rate;    /* the rate at which the train's last half arrived */
    double bucket;  /* bytes before it that arrived faster than at that rate (a token bucket) */
    int is_limited; /* 1: the path was slower than the sender, and the bucket was empty after the train's first part */
} hpc_train;

/* Evaluates a train. sent and came: seconds, on the sender's and on the receiver's clock; came[i] < 0: lost. each:
 * bytes of a packet. Returns 1, or 0 if too few packets arrived. */
int hpc_train_of(const double *sent, const double *came, int n, double each, hpc_train *train);

/* ---- one fleet ---- */

typedef enum hpc_fleet_says {
    HPC_FLEET_OPEN = 0, /* more streams are needed */
    HPC_FLEET_BELOW,    /* the fleet's rate is below the available bandwidth */
    HPC_FLEET_ABOVE,
    HPC_FLEET_GREY /* the available bandwidth crossed the rate during the fleet */
} hpc_fleet_says;

typedef struct hpc_fleet {
    int streams; /* number of streams in the fleet */
    int rising, level, unclear;
} hpc_fleet;

/* Returns the verdict once no further stream can change it; before that HPC_FLEET_OPEN. */
hpc_fleet_says hpc_fleet_judge(const hpc_fleet *fleet);

/* ---- the search over all fleets ---- */

typedef struct hpc_search {
    double at_least;   /* as in hpc_bandwidth_options; 0: find a range */
    double resolution; /* width at which the range is narrow enough, as a fraction of its middle */
    double most;       /* the highest rate that can be sent; 0: unknown */
    double low, high;  /* bounds of the range; high 0: no rate was too fast yet */
    double grey_low, grey_high;
    double guess; /* estimate of the available bandwidth, from a fleet above it; 0: unknown */
    double rate;  /* of the next fleet */
    int fleets, greys, is_done;
} hpc_search;

/* Begins a search. hint: the rate of a train. */
void hpc_search_begin(hpc_search *search, double at_least, double resolution, double hint, double most);
/* Takes the verdict on a fleet, and chooses the next rate. guess: an estimate of the available bandwidth, from the
 * slopes of a fleet above it; 0: no estimate. The guess is used only to choose the rate. */
void hpc_search_take(hpc_search *search, hpc_fleet_says says, double guess);

#endif
