/* The timeline of a rank: every line of its file is whole, spans of a thread lie within or beside each other, threads
 * that record, end and close at once lose nothing that they must not. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/host.h"
#include "ranks.h"

enum { PATH_BYTES = 256, LINES = 1 << 15, TRACKS = 64, MAKERS = 4 };

/* ---- a file, read ---- */

typedef struct span {
    double start, end; /* ns */
    int tid;
    char name[64], cat[16], op[24]; /* op: of a wait */
} span;

/* Spans of the file that this rank read last; ranks may be threads. */
static _Thread_local span *spans;
static _Thread_local int n_spans;
static _Thread_local bool ended;

static long long field(const char *line, const char *name) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\"%s\": ", name);
    const char *at = strstr(line, pattern);
    CHECK(at);
    long long whole, part;
    int read = sscanf(at + strlen(pattern), "%lld.%3lld", &whole, &part);
    CHECK(read >= 1);
    return read == 2 ? whole * 1000 + part : whole;
}

static void text_field(const char *line, const char *name, char *to, size_t cap) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "\"%s\": \"", name);
    const char *at = strstr(line, pattern);
    CHECK(at);
    at += strlen(pattern);
    size_t n = strcspn(at, "\"");
    CHECK(n < cap);
    memcpy(to, at, n);
    to[n] = 0;
}

/* Reads one rank's file; every line must be an event, or a bracket. */
static void read_file(const char *path, int rank) {
    char line[4096];
    FILE *file = fopen(path, "re");
    if (!spans) spans = malloc(LINES * sizeof *spans);
    CHECK(file && spans);
    n_spans = 0;
    ended = false;
    CHECK(fgets(line, sizeof line, file) && strcmp(line, "[\n") == 0);
    while (fgets(line, sizeof line, file)) {
        size_t n = strlen(line);
        CHECK(line[n - 1] == '\n' && !ended);
        ended = strcmp(line, "]\n") == 0;
        if (ended) continue;
        bool is_last = strstr(line, "\"hpcomm_end\"") != NULL;
        CHECK(line[0] == '{' && strcmp(line + n - (is_last ? 3 : 4), is_last ? "}}\n" : "}},\n") == 0);
        CHECK_EQ(field(line, "pid"), rank);
        if (!strstr(line, "\"ph\": \"X\"")) continue;
        CHECK(n_spans < LINES);
        span *s = &spans[n_spans++];
        *s = (span){.tid = (int)field(line, "tid"), .start = (double)field(line, "ts")};
        s->end = s->start + (double)field(line, "dur");
        CHECK(s->end >= s->start);
        text_field(line, "name", s->name, sizeof s->name);
        text_field(line, "cat", s->cat, sizeof s->cat);
        if (strcmp(s->cat, "wait") == 0) text_field(line, "op", s->op, sizeof s->op);
    }
    fclose(file);
}

static int by_start(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->tid != y->tid) return x->tid - y->tid;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

static void check_nesting(void) {
    double open[32];
    int depth = 0;
    qsort(spans, (size_t)n_spans, sizeof *spans, by_start);
    for (int i = 0; i < n_spans; i++) {
        const span *s = &spans[i];
        if (i > 0 && spans[i - 1].tid != s->tid) depth = 0;
        CHECK(depth == 0 || s[-1].start != s->start || strcmp(s[-1].name, s->name) != 0); /* none is there twice */
        while (depth > 0 && open[depth - 1] <= s->start) depth--;
        if (depth > 0 && s->end > open[depth - 1])
            fprintf(stderr, "%s of thread %d crosses the end of what it is in\n", s->name, s->tid);
        CHECK(depth == 0 || s->end <= open[depth - 1]);
        CHECK(depth < 32);
        open[depth++] = s->end;
    }
}

static int count(const char *cat, const char *name) {
    int n = 0;
    for (int i = 0; i < n_spans; i++) n += strcmp(spans[i].cat, cat) == 0 && strcmp(spans[i].name, name) == 0;
    return n;
}

/* ---- its place ---- */

/* The same for all ranks of a case, and no other: by a process of it. */
static void path_of(rank *r, char path[PATH_BYTES], int rank) {
    if (r->rank == 0) rank_set(r, 0, (uint64_t)getpid());
    int n = snprintf(path, PATH_BYTES, "/tmp/hpcomm-timeline-%llu", (unsigned long long)rank_await(r, 0, 1));
    if (rank >= 0)
        snprintf(path + n, PATH_BYTES - (size_t)n, ".rank%d.json", rank);
    else
        snprintf(path + n, PATH_BYTES - (size_t)n, ".json");
}

static void start(rank *r) {
    char path[PATH_BYTES];
    path_of(r, path, -1);
    r->config.timeline = path;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
}

/* The own file, after close. */
static void end(rank *r) {
    char path[PATH_BYTES];
    CHECK_OK(hpc_context_close(r->context));
    path_of(r, path, r->rank);
    read_file(path, r->rank);
    CHECK(ended);
    check_nesting();
    unlink(path);
}

static void forget(void) {
    free(spans);
    spans = NULL;
}

/* ---- cases ---- */

/* Until ranks 0 and 1 are seen to wait for rank 2. */
static void await_waits(rank *r) {
    enum { CAP = 1024 };
    hpc_shown_rank *all = malloc(CAP * sizeof *all);
    CHECK(all);
    for (int waiting = 0; waiting < 2;) {
        int n = hpc_jobs(all, CAP, ranks_patience(2));
        CHECK(n >= 0);
        waiting = 0;
        for (int i = 0; i < n && i < CAP; i++) {
            hpc_peer peer;
            if (all[i].size != 3 || all[i].rank < 0 || all[i].rank == 2) continue;
            CHECK_OK(hpc_context_peer(r->context, all[i].rank, &peer));
            waiting += all[i].pid == peer.pid && all[i].n_waits > 0 && strcmp(all[i].waits[0].op, "recv") == 0;
        }
    }
    free(all);
}

/* Rank 2 comes last with its update. */
static void straggler(rank *r) {
    const int both[] = {0, 1}, last[] = {2};
    float update = 1;
    const void *got;
    start(r);
    hpc_queue_config config;
    hpc_queue_config_init(&config);
    config.nbytes = sizeof update;
    config.in_peers = last;
    config.n_in = r->rank != 2;
    config.out_peers = both;
    config.n_out = r->rank == 2 ? 2 : 0;
    hpc_queue *q;
    CHECK_OK(hpc_queue_create(r->context, &config, -1, &q));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 2) {
        await_waits(r);
        for (int peer = 0; peer < 2; peer++) CHECK_OK(hpc_queue_send(q, peer, &update, sizeof update, -1));
    } else {
        CHECK_OK(hpc_queue_recv(q, 2, &got, -1));
        CHECK_OK(hpc_queue_ack(q, 2));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_queue_free(q);
    end(r);
    CHECK_EQ(count("call", "barrier"), 2);
    CHECK_EQ(count("call", "recv"), r->rank != 2);
    CHECK_EQ(count("call", "send"), r->rank == 2 ? 2 : 0);
    int told = 0;
    for (int i = 0; i < n_spans; i++)
        told += strcmp(spans[i].name, "wait for 2") == 0 && strcmp(spans[i].op, "recv") == 0;
    CHECK_EQ(told, r->rank != 2);
    forget();
}

typedef struct maker {
    pthread_t thread;
    hpc_context *context;
    int rounds;
    _Atomic int made, *stop;
} maker;

static void *make_spans(void *arg) {
    maker *m = arg;
    for (int i = 0; i < m->rounds && !(m->stop && atomic_load(m->stop)); i++) {
        double outer = hpc_now(), inner = hpc_now();
        if (hpc_context_span(m->context, "inner \"\\\n", inner) != HPC_OK) break;
        if (hpc_context_span(m->context, "outer", outer) != HPC_OK) break;
        m->made++;
    }
    return NULL;
}

/* Threads that record at the same time, more than a ring holds, and end: all of it is there. */
static void all_is_kept(rank *r) {
    maker makers[MAKERS];
    int rounds = ranks_rounds(3000);
    start(r);
    for (int i = 0; i < MAKERS; i++) {
        makers[i] = (maker){.context = r->context, .rounds = rounds};
        CHECK_EQ(pthread_create(&makers[i].thread, NULL, make_spans, &makers[i]), 0);
    }
    for (int i = 0; i < MAKERS; i++) pthread_join(makers[i].thread, NULL);
    end(r);
    CHECK_EQ(count("trainer", "outer"), MAKERS * rounds);
    forget();
}

static int made_by(const maker *makers) {
    int made = 0;
    for (int i = 0; i < MAKERS; i++) made += atomic_load(&makers[i].made);
    return made;
}

/* Threads that still record while the context is closed: what had ended before is there. */
static void close_meanwhile(rank *r) {
    maker makers[MAKERS];
    _Atomic int stop = 0;
    start(r);
    for (int i = 0; i < MAKERS; i++) {
        makers[i] = (maker){.context = r->context, .rounds = 3500, .stop = &stop};
        CHECK_EQ(pthread_create(&makers[i].thread, NULL, make_spans, &makers[i]), 0);
    }
    for (int i = 0; i < 20; i++) CHECK_OK(hpc_barrier(r->context, -1));
    int before = made_by(makers);
    hpc_context_close(r->context);
    for (int i = 0; i < MAKERS; i++) pthread_join(makers[i].thread, NULL);
    end(r);
    CHECK_EQ(count("call", "barrier"), 20);
    CHECK(count("trainer", "outer") >= before && count("trainer", "outer") <= made_by(makers));
    forget();
}

typedef struct given {
    hpc_context *context;
    double start;
} given;

static void *make_one(void *arg) {
    const given *g = arg;
    CHECK_OK(hpc_context_span(g->context, "one", g->start));
    return NULL;
}

static void make_one_since(rank *r, double start) {
    given g = {r->context, start};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, make_one, &g), 0);
    pthread_join(thread, NULL);
}

/* A span that began before the last one of a left track had ended does not go there. */
static void tracks_do_not_cross(rank *r) {
    start(r);
    double first = hpc_now(), second = first;
    while (second == first) second = hpc_now();
    make_one_since(r, first);
    make_one_since(r, second);
    end(r);
    CHECK_EQ(count("trainer", "one"), 2);
    CHECK(spans[n_spans - 1].tid != spans[n_spans - 2].tid || spans[n_spans - 1].start >= spans[n_spans - 2].end);
    forget();
}

/* Threads one after the other have one track, not one each. */
static void tracks_are_left(rank *r) {
    start(r);
    for (int i = 0; i < TRACKS; i++) {
        maker m = {.context = r->context, .rounds = 1};
        CHECK_EQ(pthread_create(&m.thread, NULL, make_spans, &m), 0);
        pthread_join(m.thread, NULL);
    }
    end(r);
    CHECK_EQ(count("trainer", "outer"), TRACKS);
    for (int i = 0; i < n_spans; i++) CHECK(spans[i].tid < 2);
    forget();
}

static bool holds(const char *path, const char *text) {
    static char all[1 << 20];
    FILE *file = fopen(path, "re");
    CHECK(file);
    all[fread(all, 1, sizeof all - 1, file)] = 0;
    fclose(file);
    return strstr(all, text) != NULL;
}

/* A rank that is killed in its sleep leaves a file of whole lines, with what it did before. */
static void killed(rank *r) {
    char path[PATH_BYTES];
    hpc_event event;
    start(r);
    if (r->rank == 1) {
        CHECK_STATUS(hpc_wait_event(r->context, NULL, &event, 0.05), HPC_ERR_TIMEOUT);
        CHECK_OK(hpc_context_span(r->context, "before", hpc_now()));
        hpc_wait_event(r->context, NULL, &event, 1e3);
        CHECK(!"reached: rank 0 kills this one in its sleep");
    }
    hpc_peer peer;
    CHECK_OK(hpc_context_peer(r->context, 1, &peer));
    path_of(r, path, 1);
    for (double until = hpc_now() + ranks_patience(20); hpc_now() < until && !holds(path, "before");) usleep(1000);
    CHECK_EQ(kill((pid_t)peer.pid, SIGKILL), 0);
    CHECK_STATUS(hpc_barrier(r->context, -1), HPC_ERR_PEER);
    read_file(path, 1);
    CHECK(count("trainer", "before") > 0 && !ended);
    unlink(path);
    end(r);
    forget();
}

/* No file, no cost worth naming, and the same arguments refused. */
static void off(rank *r) {
    char path[PATH_BYTES];
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK_OK(hpc_context_span(r->context, "x", hpc_now()));
    CHECK_STATUS(hpc_context_span(r->context, NULL, 0), HPC_ERR_INVALID);
    path_of(r, path, 0);
    CHECK(access(path, F_OK) != 0);
}

static void refusals(rank *r) {
    hpc_context *c = NULL;
    char path[PATH_BYTES];
    r->config.timeline = "/nowhere/at/all.json";
    CHECK_STATUS(hpc_context_create(0, 1, &r->config, &c), HPC_ERR_CONFIG);
    CHECK_MESSAGE("timeline \"/nowhere/at/all.rank0.json\" of rank 0 cannot be written: No such file");
    CHECK(c == NULL);
    start(r);
    CHECK_STATUS(hpc_context_span(r->context, "x", hpc_now() + 100), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_context_span(r->context, "x", -1), HPC_ERR_INVALID);
    /* Another context at the same place. */
    path_of(r, path, -1);
    r->config.timeline = path;
    CHECK_OK(hpc_context_create(0, 1, &r->config, &c));
    hpc_context_free(c);
    char second[PATH_BYTES];
    snprintf(second, sizeof second, "%.*s.rank0-2.json", (int)strlen(path) - 5, path);
    CHECK_EQ(unlink(second), 0);
    end(r);
    /* %r. */
    char with[PATH_BYTES + 8], made[PATH_BYTES + 8];
    snprintf(with, sizeof with, "%s-%%r-x", path);
    snprintf(made, sizeof made, "%s-0-x", path);
    r->config.timeline = with;
    CHECK_OK(hpc_context_create(0, 1, &r->config, &c));
    hpc_context_free(c);
    CHECK_EQ(unlink(made), 0);
    forget();
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "straggler", .size = 3, .run = straggler, .bare = true, .apart = true},
        {.name = "straggler_sleepy", .size = 3, .run = straggler, .bare = true, .sleepy = true, .apart = true},
        {.name = "all_is_kept", .size = 2, .run = all_is_kept, .where = RANKS_SHM, .bare = true, .apart = true},
        {.name = "close_meanwhile", .size = 2, .run = close_meanwhile, .where = RANKS_SHM, .bare = true, .apart = true},
        {.name = "tracks_do_not_cross",
         .size = 1,
         .run = tracks_do_not_cross,
         .where = RANKS_SHM,
         .bare = true,
         .apart = true},
        {.name = "tracks_are_left", .size = 1, .run = tracks_are_left, .where = RANKS_SHM, .bare = true, .apart = true},
        {.name = "killed",
         .size = 2,
         .run = killed,
         .where = RANKS_PROCESSES | RANKS_SHM,
         .victims = 2,
         .bare = true,
         .apart = true},
        {.name = "off", .size = 1, .run = off, .where = RANKS_SHM, .bare = true, .apart = true},
        {.name = "refusals", .size = 1, .run = refusals, .where = RANKS_SHM, .bare = true, .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
