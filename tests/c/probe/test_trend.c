/* How streams, trains and fleets of bandwidth probes are judged: on made delays, and on a made link that answers a
 * whole search. */
#include "check.h"
#include "probe/trend.h"

#include <math.h>
#include <stdint.h>

enum { PACKETS = 100, TRAIN = 192 };

static double noise(void) { /* -1 to 1 */
    static uint64_t state = 7;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 33) / (double)(1u << 30) - 1;
}

static void test_metrics(void) {
    const double rises[] = {1, 2, 3, 4, 5}, falls[] = {5, 4, 3, 2, 1}, flat[] = {2, 2, 2, 2, 2},
                 saw[] = {0, 2, 1, 3, 2};
    CHECK(hpc_trend_pct(rises, 5) == 1 && hpc_trend_pdt(rises, 5) == 1);
    CHECK(hpc_trend_pct(falls, 5) == 0 && hpc_trend_pdt(falls, 5) == -1);
    CHECK(hpc_trend_pct(flat, 5) == 0 && hpc_trend_pdt(flat, 5) == 0);
    CHECK(hpc_trend_pct(saw, 5) == 0.5 && fabs(hpc_trend_pdt(saw, 5) - 2.0 / 6) < 1e-12);
}

/* Delays in microseconds: a slope over the stream, noise, and now and then a packet that was held up. */
static hpc_trend trend(double offset, double slope, double jitter, int spikes) {
    double delays[PACKETS];
    for (int i = 0; i < PACKETS; i++) {
        delays[i] = offset + 1e-6 * (slope * i / PACKETS + jitter * noise());
        if (spikes > 0 && i % (PACKETS / spikes) == 3) delays[i] += 2e-3;
    }
    return hpc_trend_of(delays, PACKETS);
}

static void test_streams(void) {
    for (int round = 0; round < 200; round++) {
        double offset = 1e6 * noise(); /* the clocks of two hosts */
        CHECK_EQ(trend(offset, 800, 100, 0), HPC_TREND_RISING);
        CHECK_EQ(trend(offset, 800, 100, 9), HPC_TREND_RISING);
        CHECK_EQ(trend(offset, -800, 100, 0), HPC_TREND_NONE);
        CHECK_EQ(trend(offset, -800, 100, 9), HPC_TREND_NONE);
    }
    int rising = 0;
    for (int round = 0; round < 1000; round++) rising += trend(0, 0, 100, round % 5) == HPC_TREND_RISING;
    CHECK(rising < 150);                   /* of noise alone */
    double sent[PACKETS], delays[PACKETS]; /* seconds */
    for (int i = 0; i < PACKETS; i++) {
        sent[i] = i * 1e-4;
        delays[i] = 1e3 + 0.2 * sent[i] + 20e-6 * noise() + (i % 17 == 0) * 1e-3;
    }
    CHECK(fabs(hpc_trend_slope(sent, delays, PACKETS) - 0.2) < 0.01);
    const double few[24] = {0};
    CHECK_EQ(hpc_trend_of(few, 24), HPC_TREND_UNCLEAR);
}

/* A train over a link with a token bucket. */
static void make_train(double rate, double bucket, double each, double *sent, double *came) {
    double tokens = bucket, clock = 0, out = 0;
    for (int i = 0; i < TRAIN; i++) {
        sent[i] = i * 2e-6;
        tokens = fmin(bucket, tokens + (sent[i] > clock ? (sent[i] - clock) * rate : 0));
        double go = fmax(sent[i], out);
        tokens = fmin(bucket, bucket > 0 ? tokens : 0);
        if (tokens >= each) {
            tokens -= each;
        } else {
            go = fmax(go, out) + (each - tokens) / rate;
            tokens = 0;
        }
        clock = out = go;
        came[i] = go + 100; /* another clock */
    }
}

static void test_trains(void) {
    double sent[TRAIN], came[TRAIN];
    hpc_train t;
    make_train(25e6, 16384, 1500, sent, came);
    CHECK(hpc_train_of(sent, came, TRAIN, 1500, &t));
    CHECK(fabs(t.rate / 25e6 - 1) < 0.01);
    CHECK(fabs(t.bucket - 16384) < 2 * 1500);
    CHECK(t.is_limited);

    make_train(25e6, 0, 1500, sent, came); /* no bucket */
    CHECK(hpc_train_of(sent, came, TRAIN, 1500, &t));
    CHECK(t.is_limited && t.bucket < 1500);

    make_train(25e6, 1e6, 1500, sent, came); /* all of it fits into the bucket */
    CHECK(hpc_train_of(sent, came, TRAIN, 1500, &t));
    CHECK(!t.is_limited);

    make_train(25e6, 16384, 1500, sent, came);
    for (int i = 0; i < TRAIN; i++)
        if (i % 2) came[i] = -1; /* the half was lost: what came is the rate */
    CHECK(hpc_train_of(sent, came, TRAIN, 1500, &t));
    CHECK(fabs(t.rate / 12.5e6 - 1) < 0.05);
    for (int i = 8; i < TRAIN; i++) came[i] = -1;
    CHECK(!hpc_train_of(sent, came, TRAIN, 1500, &t));
}

static hpc_fleet_says fleet(int rising, int level, int unclear) {
    const hpc_fleet f = {.streams = 12, .rising = rising, .level = level, .unclear = unclear};
    return hpc_fleet_judge(&f);
}

static void test_fleets(void) {
    CHECK_EQ(fleet(9, 0, 0), HPC_FLEET_ABOVE); /* 0.7 of 12 is 8.4 */
    CHECK_EQ(fleet(8, 0, 0), HPC_FLEET_OPEN);
    CHECK_EQ(fleet(8, 3, 1), HPC_FLEET_GREY);
    CHECK_EQ(fleet(0, 9, 0), HPC_FLEET_BELOW);
    CHECK_EQ(fleet(3, 8, 0), HPC_FLEET_OPEN);
    CHECK_EQ(fleet(4, 4, 0), HPC_FLEET_GREY); /* at once: neither can have nine any more */
    CHECK_EQ(fleet(3, 3, 0), HPC_FLEET_OPEN);
    CHECK_EQ(fleet(0, 0, 12), HPC_FLEET_GREY);
}

/* Searches a link whose rate goes between low and high while a fleet is under way. */
static hpc_search search(double hint, double most, double low, double high, double guess) {
    hpc_search s;
    hpc_search_begin(&s, 0, 0.2, hint, most);
    while (!s.is_done) {
        CHECK(s.rate > 0 && (most == 0 || s.rate <= most * 1.0001));
        hpc_search_take(&s, s.rate > high ? HPC_FLEET_ABOVE : s.rate < low ? HPC_FLEET_BELOW : HPC_FLEET_GREY, guess);
        CHECK(s.fleets <= 20);
    }
    return s;
}

static void test_searches(void) {
    for (double rate = 0.06; rate < 3; rate *= 1.13) { /* of what the train said, which may be wrong both ways */
        hpc_search s = search(1e7, 0, rate * 1e7, rate * 1e7, 0);
        CHECK(s.low <= rate * 1e7 && s.high >= rate * 1e7);
        CHECK(s.high - s.low <= 0.21 * (s.low + s.high) / 2);
        s = search(1e7, 0, 0.9 * rate * 1e7, 1.1 * rate * 1e7, 0);
        CHECK(s.low <= 0.9 * rate * 1e7 && s.high >= 1.1 * rate * 1e7);
        CHECK(s.high - s.low <= 0.45 * (s.low + s.high) / 2);
        for (double wrong = 0.3; wrong < 3; wrong *= 1.3) { /* a guess may be wrong */
            s = search(1e7, 0, rate * 1e7, rate * 1e7, wrong * rate * 1e7);
            CHECK(s.low <= rate * 1e7 && s.high >= rate * 1e7);
            CHECK(s.high - s.low <= 0.21 * (s.low + s.high) / 2);
        }
        if (rate < 0.6) CHECK(search(1e7, 0, rate * 1e7, rate * 1e7, 1.04 * rate * 1e7).fleets == 3);
    }
    hpc_search s = search(1e8, 1e8, 1e9, 1e9, 0); /* faster than this host can send */
    CHECK(s.high == 0 && s.low >= 0.99e8);

    hpc_search_begin(&s, 5e6, 0.2, 1e7, 0);
    CHECK(s.rate == 5e6);
    hpc_search_take(&s, HPC_FLEET_BELOW, 0);
    CHECK(s.is_done && s.low == 5e6 && s.high == 0);
    hpc_search_begin(&s, 5e6, 0.2, 1e7, 0);
    hpc_search_take(&s, HPC_FLEET_GREY, 0);
    CHECK(!s.is_done && s.rate == 5e6);
    hpc_search_take(&s, HPC_FLEET_GREY, 0);
    CHECK(s.is_done);
    hpc_search_begin(&s, 5e6, 0.2, 1e6, 1e6);
    CHECK(s.is_done && s.high == 1e6);
}

int main(void) {
    test_metrics();
    test_streams();
    test_trains();
    test_fleets();
    test_searches();
    return 0;
}
