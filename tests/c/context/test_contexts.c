/* Several contexts of a process: they share their service threads, and the end of one takes nothing of the others. */
#define _GNU_SOURCE
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "context/context.h"
#include "probe/probe.h"
#include "ranks.h"

enum { CONTEXTS = 8, KEPT = 3 };

static hpc_context *open_context(rank *r) {
    hpc_context *ctx;
    CHECK_OK(hpc_init(&r->oob, &r->config, &ctx));
    return ctx;
}

static void close_context(hpc_context *ctx) {
    CHECK_OK(hpc_context_close(ctx));
    hpc_context_free(ctx);
}

/* Each rank puts into the next one's window, and all meet. */
static void works(hpc_context *ctx) {
    const int me = hpc_context_rank(ctx), size = hpc_context_size(ctx);
    const int next = (me + 1) % size, prev = (me + size - 1) % size;
    const uint64_t value = (uint64_t)me + 7;
    hpc_window *w;
    CHECK_OK(hpc_window_create(ctx, 8, 1, NULL, -1, &w));
    CHECK_OK(hpc_put_signal(NULL, w, next, &value, 8, 0, 0, 1));
    CHECK_OK(hpc_wait_signal(w, 0, 1, prev, -1, NULL));
    CHECK_EQ(*(uint64_t *)hpc_window_data(w), prev + 7);
    CHECK_OK(hpc_barrier(ctx, -1));
    hpc_window_free(w);
}

static int count_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;
    CHECK(tasks != NULL);
    while (readdir(tasks) != NULL) n++;
    closedir(tasks);
    return n;
}

/* A thread that has ended may stay in /proc for a moment. */
static void has_threads(rank *r, int expected) {
    const double end = ranks_now() + 5;
    rank_meet(r);
    while (!RANKS_TSAN && count_threads() != expected && ranks_now() < end) sched_yield();
    if (!RANKS_TSAN) CHECK_EQ(count_threads(), expected);
    rank_meet(r);
}

/* The peer's listener begins with this call. */
static void probe(rank *r, hpc_context *ctx) {
    hpc_probe_path *path = calloc(1, sizeof *path);
    CHECK(path != NULL);
    CHECK_OK(hpc_probe_connect(ctx, 1 - r->rank, NULL, hpc_now() + 10, path));
    hpc_probe_close(path);
    free(path);
}

/* Eight contexts have as many threads as one. arg 1: bandwidth probes have called, too. */
static void one_of_each_thread(rank *r) {
    hpc_context *all[CONTEXTS] = {r->context};
    if (r->arg) probe(r, all[0]);
    rank_meet(r);
    const int before = count_threads();
    for (int i = 1; i < CONTEXTS; i++) {
        all[i] = open_context(r);
        if (r->arg) probe(r, all[i]);
        works(all[i]);
    }
    has_threads(r, before);
    for (int i = 0; i < CONTEXTS; i++) works(all[i]);
    for (int i = 1; i < CONTEXTS; i++) {
        close_context(all[i]);
        for (int k = i + 1; k < CONTEXTS; k++) works(all[k]);
        works(all[0]);
    }
    has_threads(r, before);
}

/* The context that is left tells of its peer's death. */
static void others_end(rank *r) {
    hpc_context *all[CONTEXTS] = {r->context};
    for (int i = 1; i < CONTEXTS; i++) all[i] = open_context(r);
    hpc_context *kept = r->context = all[KEPT];
    for (int i = 0; i < CONTEXTS; i++) {
        const int k = (i + r->rank * 3) % CONTEXTS; /* the ranks close in different orders */
        if (k == KEPT) continue;
        if (k % 3 == 0) CHECK_OK(hpc_context_abort(all[k], "the test says so"));
        close_context(all[k]);
    }
    works(kept);
    rank_meet(r);
    if (r->rank == 1) {
        rank_die(r);
        return;
    }
    CHECK_STATUS(hpc_barrier(kept, -1), HPC_ERR_PEER);
    CHECK(ranks_error_names(1));
}

/* A death is told in every context of the process. */
static void all_are_told(rank *r) {
    hpc_context *all[CONTEXTS] = {r->context};
    for (int i = 1; i < CONTEXTS; i++) all[i] = open_context(r);
    rank_meet(r);
    if (r->rank == 1) raise(SIGKILL);
    for (int i = CONTEXTS - 1; i >= 0; i--) {
        CHECK_STATUS(hpc_barrier(all[i], -1), HPC_ERR_PEER);
        CHECK(ranks_error_names(1));
        if (i > 0) close_context(all[i]);
    }
}

typedef struct held {
    int files, threads, mappings;
} held;

static held look(void) {
    held h = {ranks_entries("/proc/self/fd"), count_threads(), 0};
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) h.mappings++;
    fclose(maps);
    return h;
}

/* The ranks look in turn, because a look opens files. */
static held look_in_turn(rank *r) {
    held h = {0, 0, 0};
    for (int i = 0; i < r->size; i++) {
        rank_meet(r);
        if (i == r->rank) h = look();
    }
    rank_meet(r);
    return h;
}

/* Contexts that come and go leave nothing, with another one beside them (arg 1) or none. */
static void many(rank *r) {
    enum { FIRST = 8, MOST_MAPPINGS = 8 /* of malloc */ };
    held before = {0, 0, 0};
    if (r->arg == 0) close_context(r->context);
    if (r->arg == 0) r->context = NULL;
    for (int i = 0, n = FIRST + ranks_rounds(200); i < n; i++) {
        if (i == FIRST) before = look_in_turn(r);
        hpc_context *ctx = open_context(r);
        works(ctx);
        close_context(ctx);
    }
    const held after = look_in_turn(r);
    CHECK_EQ(after.files, before.files);
    if (!RANKS_TSAN && !RANKS_ASAN) CHECK(after.mappings <= before.mappings + MOST_MAPPINGS);
    has_threads(r, before.threads);
}

/* ---- a forked child ---- */

static int test_alone(void *request) {
    (void)request;
    return HPC_OK;
}

static int gather_alone(const void *send, void *recv, size_t nbytes, void *arg, void **request) {
    memcpy(recv, send, nbytes);
    *request = arg;
    return HPC_OK;
}

static void child(const rank *r) {
    const hpc_oob alone = {0, 1, NULL, gather_alone, test_alone, test_alone};
    hpc_context *ctx[2];
    int threads = 0;
    alarm(20);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hpc_init(&alone, &r->config, &ctx[i]));
        works(ctx[i]);
        if (i == 0) threads = count_threads();
    }
    CHECK_EQ(count_threads(), threads);
    close_context(ctx[0]);
    works(ctx[1]);
    close_context(ctx[1]);
    hpc_context_free(r->context); /* the parent's */
    _exit(0);
}

/* A child has threads of its own, and does not disturb its parent's. */
static void in_a_child(rank *r) {
    hpc_context *other = open_context(r);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) child(r);
        works(other);
        works(r->context);
        int status;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
    }
    close_context(other);
    works(r->context);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "one-of-each-thread", .size = 2, .run = one_of_each_thread},
        {.name = "one-prober", .size = 2, .run = one_of_each_thread, .arg = 1, .per_host = 1},
        {.name = "others-end", .size = 2, .run = others_end, .victims = 2},
        {.name = "others-end-four", .size = 4, .run = others_end, .victims = 2, .where = RANKS_TCP},
        {.name = "all-are-told", .size = 2, .run = all_are_told, .victims = 2, .where = RANKS_PROCESSES},
        {.name = "many", .size = 2, .run = many, .where = RANKS_TCP},
        {.name = "many-beside-another", .size = 2, .run = many, .arg = 1, .where = RANKS_TCP},
        {.name = "in-a-child", .size = 2, .run = in_a_child, .where = RANKS_PROCESSES},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
