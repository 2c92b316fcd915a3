#include "probe/trend.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST_DELAYS = 25, MOST_GROUP = 64, MOST_FLEETS = 20, MOST_GREYS = 2, LEAST_TRAIN = 16, SENDERS_OWN = 24 };

/* The limits of the journal version, section IV: a test says "rising" above the first and "no trend" below the
 * second. */
static const double PCT_RISING = 0.66, PCT_NONE = 0.54, PDT_RISING = 0.55, PDT_NONE = 0.45;
static const double STEADY = 0.5; /* a quarter of a train is as fast as another at this fraction of the other's rate */
static const double FRACTION = 0.7; /* f: fraction of a fleet's streams that must agree */

/* ---- one stream ---- */

double hpc_trend_pct(const double *medians, int n) {
    int rising = 0;
    for (int i = 1; i < n; i++) rising += medians[i] > medians[i - 1];
    return (double)rising / (n - 1);
}

double hpc_trend_pdt(const double *medians, int n) {
    double steps = 0;
    for (int i = 1; i < n; i++) steps += fabs(medians[i] - medians[i - 1]);
    return steps > 0 ? (medians[n - 1] - medians[0]) / steps : 0;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n) {
    double sorted[MOST_GROUP];
    for (int i = 0; i < n; i++) sorted[i] = values[i];
    qsort(sorted, (size_t)n, sizeof *sorted, compare);
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

static hpc_trend decide(double value, double rising, double none) {
    return value > rising ? HPC_TREND_RISING : value < none ? HPC_TREND_NONE : HPC_TREND_UNCLEAR;
}

hpc_trend hpc_trend_of(const double *delays, int n) {
    double medians[MOST_GROUP];
    if (n < LEAST_DELAYS) return HPC_TREND_UNCLEAR;
    int groups = (int)sqrt((double)n);
    if (groups > MOST_GROUP) groups = MOST_GROUP;
    int each = n / groups;
    if (each > MOST_GROUP) each = MOST_GROUP;
    for (int g = 0; g < groups; g++) medians[g] = median(delays + (int64_t)g * n / groups, each);
    hpc_trend pct = decide(hpc_trend_pct(medians, groups), PCT_RISING, PCT_NONE);
    hpc_trend pdt = decide(hpc_trend_pdt(medians, groups), PDT_RISING, PDT_NONE);
    if (pct == HPC_TREND_UNCLEAR) return pdt;
    return pdt == HPC_TREND_UNCLEAR || pdt == pct ? pct : HPC_TREND_UNCLEAR;
}

double hpc_trend_slope(const double *sent, const double *delays, int n) {
    int fifth = n / 5 < MOST_GROUP ? n / 5 : MOST_GROUP;
    double span = sent[n - 1 - fifth / 2] - sent[fifth / 2];
    return span > 0 ? (median(delays + n - fifth, fifth) - median(delays, fifth)) / span : 0;
}

/* ---- one train ---- */

/* A token bucket of b bytes and rate r lets b + r t bytes pass in t seconds. So b is the largest number of bytes by
 * which the arrivals were ahead of the rate. */
int hpc_train_of(const double *sent, const double *came, int n, double each, hpc_train *train) {
    int first = -1, last = -1, arrived = 0, middle = -1, after = 0, before = 0;
    for (int i = 0; i < n; i++) {
        if (came[i] < 0) continue;
        if (first < 0) first = i;
        last = i;
        arrived++;
    }
    if (arrived < LEAST_TRAIN) return 0;
    for (int i = first; i <= last; i++) {
        if (came[i] < 0) continue;
        if (++before <= arrived / 2)
            middle = i;
        else
            after++;
    }
    double span = came[last] - came[middle];
    if (!(span > 0)) return 0;
    *train = (hpc_train){.rate = after * each / span};
    int so_far = 0;
    for (int i = first + 1; i <= last; i++) {
        if (came[i] < 0) continue;
        double ahead = ++so_far * each - train->rate * (came[i] - came[first]);
        if (ahead > train->bucket) train->bucket = ahead;
    }
    /* If a bucket ends late in the train, or not at all, the last two quarters have different rates. */
    int third = 0, fourth = 0, seen = 0;
    double turn = came[last];
    for (int i = first; i <= last; i++) {
        if (came[i] < 0 || ++seen <= arrived / 2) continue;
        if (seen <= arrived * 3 / 4)
            third++, turn = came[i];
        else
            fourth++;
    }
    double before_turn = third / fmax(turn - came[middle], 1e-9), after_turn = fourth / fmax(came[last] - turn, 1e-9);
    int is_even = after_turn > STEADY * before_turn && before_turn > STEADY * after_turn;
    int own = n - 1 < SENDERS_OWN ? n - 1 : SENDERS_OWN;
    double spent = sent[own] - sent[0], whole = (arrived - 1) * each;
    double offered = spent > 0 ? own * each / spent : INFINITY;
    train->is_limited = is_even && train->rate < 0.7 * offered && train->bucket < 0.45 * whole;
    return 1;
}

/* ---- one fleet ---- */

hpc_fleet_says hpc_fleet_judge(const hpc_fleet *f) {
    int needed = (int)ceil(FRACTION * f->streams - 1e-9);
    int left = f->streams - f->rising - f->level - f->unclear;
    if (f->rising >= needed) return HPC_FLEET_ABOVE;
    if (f->level >= needed) return HPC_FLEET_BELOW;
    return f->rising + left < needed && f->level + left < needed ? HPC_FLEET_GREY : HPC_FLEET_OPEN;
}

/* ---- all fleets ---- */

void hpc_search_begin(hpc_search *s, double at_least, double resolution, double hint, double most) {
    *s = (hpc_search){.at_least = at_least, .resolution = resolution, .most = most};
    s->rate = at_least > 0 ? at_least : 0.9 * hint;
    if (at_least > 0 && most > 0 && at_least > most) { /* this rank cannot even send that fast */
        s->high = most;
        s->is_done = 1;
    }
}

static void narrow(hpc_search *s, hpc_fleet_says says) {
    double rate = s->rate;
    if (says == HPC_FLEET_ABOVE) {
        s->high = rate;
        if (s->low >= rate) s->low = 0; /* the path has changed during the search */
        if (s->grey_high >= rate) s->grey_low = s->grey_high = 0;
    } else if (says == HPC_FLEET_BELOW) {
        s->low = rate;
        if (s->high > 0 && s->high <= rate) s->high = 0;
        if (s->grey_low > 0 && s->grey_low <= rate) s->grey_low = s->grey_high = 0;
    } else {
        if (s->grey_low == 0 || rate < s->grey_low) s->grey_low = rate;
        if (rate > s->grey_high) s->grey_high = rate;
        s->greys++;
    }
}

/* Returns the next rate, or 0 if the range is narrow enough. */
static double next_rate(const hpc_search *s) {
    double grey = s->grey_high > 0 ? s->grey_high : s->low;
    double floor = s->grey_low > 0 ? s->grey_low : s->high;
    if (s->high == 0) {
        if (s->most > 0 && grey >= s->most) return 0;
        double up = 1.2 * (grey > 0 ? grey : s->rate);
        return s->most > 0 && up > s->most ? s->most : up;
    }
    /* A fleet just below the guess and one just above it make a range that is narrow enough. */
    double aside = 0.45 * s->resolution;
    double under = (1 - aside) * s->guess, over = (1 + aside) * s->guess;
    if (s->guess > 0 && s->grey_high == 0) {
        if (under > 1.02 * s->low && under < 0.98 * s->high) return under;
        if (over > 1.02 * s->low && over < 0.98 * s->high) return over;
    }
    double above = s->high - grey, below = floor - s->low;
    double enough = s->resolution * (s->low + s->high) / 2;
    if (s->grey_high == 0) return above <= enough ? 0 : (s->low + s->high) / 2;
    if (above <= enough / 2 && below <= enough / 2) return 0;
    return above >= below ? (s->high + grey) / 2 : (floor + s->low) / 2;
}

void hpc_search_take(hpc_search *s, hpc_fleet_says says, double guess) {
    narrow(s, says);
    if (says == HPC_FLEET_ABOVE) s->guess = guess < s->rate ? guess : 0;
    s->fleets++;
    if (s->at_least > 0) {
        s->is_done = says != HPC_FLEET_GREY || s->greys >= MOST_GREYS;
        return;
    }
    double rate = s->fleets < MOST_FLEETS ? next_rate(s) : 0;
    if (rate > 0)
        s->rate = rate;
    else
        s->is_done = 1;
}
