/* Bandwidth probes: what their packets and messages must be, and whole probes between ranks that take each other for
 * two hosts, over loopback: any rate is below what it has. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "context/context.h"
#include "probe/probe.h"
#include "ranks.h"

enum { BYTES = 300, READY = 0, OVER = 1, TRIES = 5 };

static const double SLOW = 20e6; /* bytes a second: loopback has more, under a sanitizer too */

/* ---- the wire ---- */

static int opens(const void *data, size_t nbytes, const unsigned char *key) {
    hpc_probe_packet packet;
    void *exact = malloc(nbytes); /* so that a sanitizer sees every byte read too many */
    CHECK(exact != NULL || nbytes == 0);
    if (nbytes > 0) memcpy(exact, data, nbytes);
    int good = hpc_probe_open(exact, nbytes, key, &packet);
    free(exact);
    return good;
}

static void packets(rank *r) {
    (void)r;
    unsigned char key[HPC_DIGEST_BYTES] = {1, 2, 3}, other[HPC_DIGEST_BYTES] = {1, 2, 4}, data[BYTES + 1] = {0};
    hpc_probe_packet sealed;
    hpc_probe_seal(&sealed, key, 7, 99, BYTES);
    memcpy(data, &sealed, sizeof sealed);
    CHECK(opens(data, BYTES, key));
    CHECK(!opens(data, BYTES, other));
    for (size_t n = 0; n <= BYTES + 1; n++) CHECK_EQ(opens(data, n, key), n == BYTES);
    for (size_t bit = 0; bit < 8 * sizeof sealed; bit++) { /* every bit of the head counts */
        if (bit / 8 >= offsetof(hpc_probe_packet, mac) + HPC_PROBE_MAC) continue;
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        CHECK(!opens(data, BYTES, key));
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    hpc_probe_seal(&sealed, key, 7, HPC_PROBE_MOST_PACKETS, BYTES); /* sealed, and yet no index */
    memcpy(data, &sealed, sizeof sealed);
    CHECK(!opens(data, BYTES, key));
    for (int i = 0; i < 2; i++) { /* the smallest and the largest */
        const int nbytes = i == 0 ? HPC_PROBE_LEAST_BYTES : HPC_PROBE_MOST_BYTES;
        unsigned char whole[HPC_PROBE_MOST_BYTES] = {0};
        hpc_probe_seal(&sealed, key, 7, 99, nbytes);
        memcpy(whole, &sealed, sizeof sealed);
        CHECK(opens(whole, (size_t)nbytes, key));
    }
}

static void messages(rank *r) {
    (void)r;
    hpc_probe_message m = hpc_probe_say(HPC_PROBE_ASK, 1, HPC_PROBE_MOST_PACKETS, 0, 0);
    CHECK(hpc_probe_is(&m, HPC_PROBE_ASK) && hpc_probe_is_sound(&m) && !hpc_probe_is(&m, HPC_PROBE_END));
    m.count++;
    CHECK(!hpc_probe_is_sound(&m));
    m = hpc_probe_say(HPC_PROBE_WELCOME, 0, 65535, 0, 0);
    CHECK(hpc_probe_is(&m, HPC_PROBE_WELCOME) && !hpc_probe_is_sound(&m)); /* no caller says it */
    m = hpc_probe_say(HPC_PROBE_END, 1, 5, 0, 0);
    m.magic ^= 1;
    CHECK(!hpc_probe_is_sound(&m));
    m = hpc_probe_say((hpc_probe_kind)99, 1, 5, 0, 0);
    CHECK(!hpc_probe_is_sound(&m));
}

/* ---- the listener ---- */

static hpc_probe_path *path_to(rank *r, int peer) {
    hpc_probe_path *p = calloc(1, sizeof *p);
    CHECK(p != NULL);
    CHECK_OK(hpc_probe_connect(r->context, peer, NULL, hpc_now() + 10, p));
    return p;
}

/* Datagrams that prove nothing do not count, though they come first and by the same socket; nor do those of another
 * stream, or twice the same. */
static void strays(rank *r) {
    if (r->rank == 0) {
        static hpc_probe_stream s;
        unsigned char junk[BYTES] = {0};
        hpc_probe_packet forged, sealed;
        hpc_probe_path *p = path_to(r, 1);
        for (int round = 0; round < 3; round++) {
            const hpc_probe_message ask = hpc_probe_say(HPC_PROBE_ASK, ++p->streams, 10, 0, 0);
            hpc_probe_message answer = {0};
            uint32_t offsets[HPC_PROBE_MOST_PACKETS];
            CHECK_EQ(write(p->tcp, &ask, sizeof ask), sizeof ask);
            const double limit = hpc_now() + ranks_patience(5);
            while (recv(p->tcp, &answer, sizeof answer, MSG_WAITALL) < 0 && hpc_now() < limit) usleep(1000);
            CHECK(hpc_probe_is(&answer, HPC_PROBE_GRANT) && answer.stream == p->streams);
            CHECK_EQ(write(p->udp, junk, sizeof junk), sizeof junk);
            hpc_probe_seal(&forged, junk, p->streams, 1, BYTES);
            memcpy(junk, &forged, sizeof forged);
            CHECK_EQ(write(p->udp, junk, sizeof junk), sizeof junk); /* another key */
            hpc_probe_seal(&sealed, p->key, p->streams - 1, 2, BYTES);
            memcpy(junk, &sealed, sizeof sealed);
            CHECK_EQ(write(p->udp, junk, sizeof junk), sizeof junk); /* another stream */
            hpc_probe_seal(&sealed, p->key, p->streams, 10, BYTES);
            memcpy(junk, &sealed, sizeof sealed);
            CHECK_EQ(write(p->udp, junk, sizeof junk), sizeof junk); /* more than were asked for */
            hpc_probe_seal(&sealed, p->key, p->streams, 3, BYTES);
            memcpy(junk, &sealed, sizeof sealed);
            CHECK_EQ(write(p->udp, junk, sizeof junk - 1), sizeof junk - 1); /* another length */
            for (int i = 0; i < 2; i++) CHECK_EQ(write(p->udp, junk, sizeof junk), sizeof junk);
            const hpc_probe_message end = hpc_probe_say(HPC_PROBE_END, p->streams, 10, 0, 0);
            CHECK_EQ(write(p->tcp, &end, sizeof end), sizeof end);
            struct {
                hpc_probe_message head;
                uint32_t offsets[10];
            } report;
            size_t got = 0;
            while (got < sizeof report) {
                ssize_t n = read(p->tcp, (char *)&report + got, sizeof report - got);
                if (n > 0) got += (size_t)n;
                CHECK(n != 0 && hpc_now() < limit);
            }
            CHECK(hpc_probe_is(&report.head, HPC_PROBE_REPORT) && report.head.stream == p->streams);
            for (int i = 0; i < 10; i++) CHECK_EQ(report.offsets[i], i == 3 ? 0 : HPC_PROBE_LOST);
            (void)offsets;
            memset(junk, 0, sizeof junk);
        }
        CHECK_OK(hpc_probe_send(p, 0, 50, 500, 1e6, hpc_now() + 10, &s)); /* and the next stream is whole */
        CHECK(s.lost == 0 || s.is_late);
        hpc_probe_close(p);
        free(p);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* A caller that does not keep to the protocol loses its connection, and nobody else does. */
static void rude(rank *r) {
    if (r->rank == 0) {
        hpc_probe_path *good = path_to(r, 1);
        static hpc_probe_stream s;
        const hpc_probe_message wrong[] = {
            hpc_probe_say(HPC_PROBE_REPORT, 1, 1, 0, 0), hpc_probe_say(HPC_PROBE_END, 1, 1, 0, 0),
            hpc_probe_say(HPC_PROBE_HELLO, 0, 0, 0, 0), hpc_probe_say(HPC_PROBE_ASK, 1, 0, 0, 0),
            hpc_probe_say(HPC_PROBE_ASK, 1, HPC_PROBE_MOST_PACKETS + 1, 0, 0)};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            hpc_probe_path *p = path_to(r, 1);
            char byte;
            CHECK_EQ(write(p->tcp, &wrong[i], sizeof *wrong), sizeof *wrong);
            double limit = hpc_now() + ranks_patience(5);
            ssize_t n;
            while ((n = recv(p->tcp, &byte, 1, MSG_DONTWAIT)) < 0 && hpc_now() < limit) usleep(500);
            CHECK_EQ(n, 0);
            hpc_probe_close(p);
            free(p);
        }
        CHECK_OK(hpc_probe_send(good, 0, 50, 500, 1e6, hpc_now() + 10, &s));
        hpc_probe_close(good);
        free(good);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* ---- whole probes ---- */

static hpc_bandwidth_options quick(void) {
    hpc_bandwidth_options o;
    hpc_bandwidth_options_init(&o);
    o.at_least = SLOW;
    o.timeout = ranks_patience(15);
    o.share = 1;
    o.streams = 4;
    return o;
}

/* All ranks probe all others, at once. */
static void everybody(rank *r) {
    int peers[RANKS_MAX], n = 0;
    hpc_bandwidth found[RANKS_MAX];
    const hpc_bandwidth_options o = quick();
    for (int p = 0; p < r->size; p++)
        if (p != r->rank) peers[n++] = p;
    int enough = 0;
    for (int tries = 0; tries < TRIES && enough == 0; tries++) { /* a busy machine may delay packets */
        CHECK_OK(hpc_context_bandwidth(r->context, peers, n, &o, found));
        enough = 0;
        for (int i = 0; i < n; i++) {
            CHECK_EQ(found[i].peer, peers[i]);
            CHECK(found[i].answered && found[i].nbytes > 0 && found[i].seconds > 0);
            CHECK(found[i].sufficient != 1 || found[i].low >= SLOW * 0.99);
            enough += found[i].sufficient == 1;
        }
    }
    CHECK(enough > 0);
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* What an earlier call has found saves the trains, and answers all the same. A bucket alone is a guess: one train
 * confirms it. */
static void again(rank *r) {
    const int other = 1 - r->rank;
    hpc_bandwidth_options o = quick();
    o.again = 1;
    for (double capacity = 0; capacity <= 10 * SLOW; capacity += 10 * SLOW) {
        hpc_bandwidth found = {.sufficient = -1};
        for (int tries = 0; tries < TRIES && found.sufficient != 1; tries++) {
            found = (hpc_bandwidth){.peer = other, .capacity = capacity, .bucket = 4000};
            CHECK_OK(hpc_context_bandwidth(r->context, &other, 1, &o, &found));
            CHECK(found.answered && found.bucket >= (capacity > 0 ? 4000 : 0));
        }
        CHECK_EQ(found.sufficient, 1);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

static void refusals(rank *r) {
    const int self = r->rank, other = 1 - r->rank, beyond = 2, twice[] = {other, other};
    hpc_bandwidth found[2];
    hpc_bandwidth_options o = quick();
    int stop = 1;
    CHECK_STATUS(hpc_context_bandwidth(r->context, &self, 1, &o, found), HPC_ERR_INVALID);
    CHECK_MESSAGE("to itself");
    CHECK_STATUS(hpc_context_bandwidth(r->context, &beyond, 1, &o, found), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_context_bandwidth(r->context, twice, 2, &o, found), HPC_ERR_INVALID);
    CHECK_MESSAGE("named twice");
    CHECK_STATUS(hpc_context_bandwidth(r->context, NULL, 1, &o, found), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_context_bandwidth(r->context, &other, 0, &o, found), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_context_bandwidth(r->context, &other, 1, &o, NULL), HPC_ERR_INVALID);
    o.at_least = NAN;
    CHECK_STATUS(hpc_context_bandwidth(r->context, &other, 1, &o, found), HPC_ERR_INVALID);
    CHECK_MESSAGE("at_least");
    o = quick(), o.packets = 3;
    CHECK_STATUS(hpc_context_bandwidth(r->context, &other, 1, &o, found), HPC_ERR_INVALID);
    o = quick(), o.size--;
    CHECK_STATUS(hpc_context_bandwidth(r->context, &other, 1, &o, found), HPC_ERR_INVALID);
    CHECK_MESSAGE("hpc_bandwidth_options_init");
    o = quick(), o.stop = &stop;
    CHECK_STATUS(hpc_context_bandwidth(r->context, &other, 1, &o, found), HPC_ERR_INVALID);
    CHECK_MESSAGE("stopped");
    CHECK_OK(hpc_barrier(r->context, -1));
}

static void one_host(rank *r) {
    const int other = 1 - r->rank;
    hpc_bandwidth found;
    CHECK_STATUS(hpc_context_bandwidth(r->context, &other, 1, NULL, &found), HPC_ERR_INVALID);
    CHECK_MESSAGE("on this rank's host");
}

typedef struct prober {
    rank *r;
    int status, names;
} prober;

static void *probe_on(void *arg) {
    prober *p = arg;
    const int other = 1 - p->r->rank;
    hpc_bandwidth found;
    hpc_bandwidth_options o = quick();
    o.share = 1e-4; /* for long */
    o.timeout = 60;
    rank_set(p->r, READY, 1);
    p->status = hpc_context_bandwidth(p->r->context, &other, 1, &o, &found);
    p->names = ranks_error_names(other);
    return NULL;
}

/* A peer that dies ends the probe of it. */
static void death(rank *r) {
    if (r->rank == 1) {
        rank_await(r, READY, 1);
        usleep(100000);
        rank_die(r);
        return;
    }
    prober p = {.r = r};
    double start = ranks_now();
    probe_on(&p);
    CHECK_EQ(p.status, HPC_ERR_PEER);
    CHECK(p.names);
    CHECK(ranks_now() - start < ranks_patience(15));
}

/* A close ends the probe of another thread, which holds the context meanwhile; the peer's listener ends with its own.
 */
static void closing(rank *r) {
    if (r->rank == 1) {
        rank_await(r, OVER, 1);
        return;
    }
    prober p = {.r = r};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, probe_on, &p), 0);
    rank_await(r, READY, 1);
    usleep(100000);
    CHECK_OK(hpc_context_close(r->context));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(p.status, HPC_ERR_INVALID);
    rank_set(r, OVER, 1);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "packets", .size = 1, .run = packets, .where = RANKS_TCP | RANKS_UNSEEDED, .bare = true},
        {.name = "messages", .size = 1, .run = messages, .where = RANKS_TCP | RANKS_UNSEEDED, .bare = true},
        {.name = "strays", .size = 2, .run = strays, .per_host = 1},
        {.name = "rude", .size = 2, .run = rude, .per_host = 1},
        {.name = "everybody", .size = 3, .run = everybody, .per_host = 1},
        {.name = "again", .size = 2, .run = again, .per_host = 1},
        {.name = "refusals", .size = 2, .run = refusals, .per_host = 1},
        {.name = "one-host", .size = 2, .run = one_host, .where = RANKS_TCP | RANKS_UNSEEDED},
        {.name = "death", .size = 2, .run = death, .per_host = 1, .victims = 2, .apart = true},
        {.name = "closing", .size = 2, .run = closing, .per_host = 1, .apart = true},
        {0}};
    return ranks_main(argc, argv, cases);
}
