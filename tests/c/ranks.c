#define _GNU_SOURCE
#include "ranks.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "transport/objects.h"

static ranks_mode modes[] = {
    {"shm-processes", "shm", false, 0},     {"shm-threads", "shm", true, 0},     {"loop", "loop", true, 0},
    {"loop-seed", "loop", true, 1},         {"loop-seed-1", "loop", true, 1},    {"loop-seed-2", "loop", true, 2},
    {"loop-seed-3", "loop", true, 3},       {"tcp-processes", "tcp", false, 0},  {"tcp-threads", "tcp", true, 0},
    {"verbs-processes", "verbs", false, 0}, {"verbs-threads", "verbs", true, 0}, {NULL, NULL, false, 0},
};

enum { SLOT = 4096, SKIP = 77 };

/* Sanitizers slow all down, and a wait no less than the work of those for whom it waits. */
enum { CASE_SECONDS = RANKS_TSAN || RANKS_ASAN ? 300 : 90 };
static const double TIMEOUT = RANKS_TSAN || RANKS_ASAN ? 60 : 20;

struct ranks_shared {
    _Atomic uint64_t board[RANKS_BOARD];
    _Atomic uint64_t met[RANKS_MOST];
    _Atomic uint64_t given[RANKS_MOST];
    unsigned char slots[2][RANKS_MOST][SLOT];
};

int ranks_entries(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    CHECK(d != NULL);
    while (readdir(d) != NULL) n++;
    closedir(d);
    return n;
}

double ranks_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int ranks_rounds(int n) {
    const char *scale = getenv("HPC_TEST_SCALE");
    int percent = scale ? atoi(scale) : RANKS_TSAN || RANKS_ASAN ? 10 : 100;
    int rounds = (int)((long)n * percent / 100);
    return rounds < 8 ? 8 : rounds;
}

/* The seed of mode loop-seed: never 0, which is the loop that delivers at once. */
static uint64_t loop_seed(void) {
    const char *text = getenv("HPC_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    return seed ? seed : 1;
}

double ranks_patience(double seconds) {
    const char *factor = getenv("HPC_TEST_PATIENCE");
    return factor ? seconds * atof(factor) : seconds;
}

void ranks_skip(const char *why) {
    fprintf(stderr, "skipped: %s\n", why);
    _exit(SKIP);
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

/* splitmix64 */
uint64_t ranks_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void ranks_fill(void *to, size_t n, uint64_t seed) {
    unsigned char *p = to;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = ranks_random(&seed);
        memcpy(p + i, &word, n - i < 8 ? n - i : 8);
    }
}

size_t ranks_first_wrong(const void *at, size_t n, uint64_t seed) {
    const unsigned char *p = at;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t word = ranks_random(&seed);
        size_t m = n - i < 8 ? n - i : 8;
        if (memcmp(p + i, &word, m) == 0) continue;
        for (size_t j = 0; j < m; j++) {
            if (p[i + j] != ((unsigned char *)&word)[j]) return i + j;
        }
    }
    return n;
}

/* ---- errors ------------------------------------------------------------------------------------------------- */

static bool among(const int *ranks, int n, int who) {
    for (int i = 0; i < n; i++) {
        if (ranks[i] == who) return true;
    }
    return false;
}

bool ranks_error_names(int who) {
    const hpc_error *e = hpc_last_error();
    return among(e->ranks, e->n_ranks, who);
}

bool ranks_error_waits_for(int who) {
    const hpc_error *e = hpc_last_error();
    return among(e->waiting_for, e->n_waiting, who);
}

/* ---- the out-of-band exchange -------------------------------------------------------------------------------- */

typedef struct request {
    const rank *r;
    uint64_t round;
    void *recv;
    size_t nbytes;
} request;

/* Two slots a rank are enough: nobody starts round k + 2 before all have given k + 1, and so have read round k. */
static int oob_allgather(const void *send, void *recv, size_t nbytes, void *arg, void **out) {
    rank *r = arg;
    request *q = malloc(sizeof *q);
    if (!q || nbytes > SLOT) {
        free(q);
        return HPC_ERR_MEMORY;
    }
    *q = (request){r, ++r->exchanged, recv, nbytes};
    memcpy(r->shared->slots[q->round & 1][r->rank], send, nbytes);
    atomic_store_explicit(&r->shared->given[r->rank], q->round, memory_order_release);
    *out = q;
    return HPC_OK;
}

/* Ranks of one host say so in their addresses. Each rank sees those of other groups as if they came from elsewhere. */
static void part_hosts(const rank *r, hpc_address *addresses) {
    for (int i = 0; i < r->size; i++)
        if (i / r->per_host != r->rank / r->per_host) addresses[i].host[1] += 1 + (uint64_t)(i / r->per_host);
}

static int oob_test(void *arg) {
    request *q = arg;
    ranks_shared *s = q->r->shared;
    for (int i = 0; i < q->r->size; i++) {
        if (atomic_load_explicit(&s->given[i], memory_order_acquire) < q->round) {
            sched_yield();
            return HPC_IN_PROGRESS;
        }
    }
    for (int i = 0; i < q->r->size; i++)
        memcpy((char *)q->recv + (size_t)i * q->nbytes, s->slots[q->round & 1][i], q->nbytes);
    if (q->r->per_host > 0 && q->nbytes == sizeof(hpc_address)) part_hosts(q->r, q->recv);
    return HPC_OK;
}

static int oob_free(void *arg) {
    free(arg);
    return HPC_OK;
}

/* Once more round a loop that waits for another rank: soon it sleeps, and leaves its core to those that work. */
static void pause_at(int *turns) {
    if (++*turns < 200) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){0, 100000}, NULL);
    }
}

void rank_meet(rank *r) {
    int turns = 0;
    atomic_store(&r->shared->met[r->rank], ++r->met);
    for (int i = 0; i < r->size; i++) {
        while (atomic_load(&r->shared->met[i]) < r->met) pause_at(&turns);
    }
}

void rank_set(rank *r, int word, uint64_t value) {
    atomic_store(&r->board[word], value);
}

uint64_t rank_await(const rank *r, int word, uint64_t at_least) {
    uint64_t value;
    int turns = 0;
    while ((value = atomic_load(&r->board[word])) < at_least) pause_at(&turns);
    return value;
}

void rank_die(rank *r) {
    if (!r->mode->threads) raise(SIGKILL);
    CHECK_OK(hpc_context_abort(r->context, "the test says so"));
}

/* ---- what a process holds ------------------------------------------------------------------------------------ */

typedef struct footprint {
    int files, threads, shared;
} footprint;

static int entries(const char *path) {
    DIR *dir = opendir(path);
    CHECK(dir);
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static footprint look(void) {
    footprint f = {entries("/proc/self/fd"), 0, 0};
    if (!RANKS_TSAN) f.threads = entries("/proc/self/task"); /* TSan starts one of its own with the first of ours */
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    char line[4096];
    while (fgets(line, sizeof line, maps)) f.shared += strstr(line, "/memfd:") != NULL;
    fclose(maps);
    return f;
}

/* A joined thread may stay in /proc for a moment. */
static void nothing_left(footprint before) {
    double end = ranks_now() + 5;
    footprint f = look();
    while (f.threads != before.threads && ranks_now() < end) {
        sched_yield();
        f = look();
    }
    if (f.files == before.files && f.threads == before.threads && f.shared == before.shared) return;
    fprintf(stderr, "files: %d, before %d; threads: %d, before %d; shared mappings: %d, before %d\n", f.files,
            before.files, f.threads, before.threads, f.shared, before.shared);
    check_fail_red("something is left");
}

/* ---- one case in one mode ------------------------------------------------------------------------------------ */

typedef struct life {
    rank r;
    const ranks_case *c;
    pthread_t thread;
} life;

static void live(life *l) {
    rank *r = &l->r;
    if (!l->c->bare) CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    l->c->run(r);
    if (!r->context) return;
    if (!l->c->victims && !l->c->apart) CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_context_close(r->context));
    hpc_context_free(r->context);
}

static void *live_thread(void *arg) {
    live(arg);
    return NULL;
}

static void set_up(life *l, const ranks_case *c, const ranks_mode *mode, ranks_shared *shared, int i) {
    *l = (life){.c = c};
    l->r = (rank){.rank = i, .size = c->size, .arg = c->arg, .mode = mode, .board = shared->board, .shared = shared};
    l->r.oob = (hpc_oob){i, c->size, &l->r, oob_allgather, oob_test, oob_free};
    hpc_config_init(&l->r.config);
    l->r.config.timeout = c->timeout > 0 ? c->timeout : TIMEOUT;
    l->r.config.transports = c->per_host > 0 ? "shm,tcp" : mode->transports;
    l->r.per_host = c->per_host;
    l->r.config.loop_seed = mode->seed;
    l->r.config.silence = 4;
    if (c->sleepy) l->r.config.spin = l->r.config.yield = 0;
    if (c->shares_core) l->r.config.spin = 0;
}

static void as_threads(const ranks_case *c, const ranks_mode *mode, ranks_shared *shared) {
    static life lives[RANKS_MOST];
    footprint before = look();
    for (int i = 0; i < c->size; i++) {
        set_up(&lives[i], c, mode, shared, i);
        CHECK_EQ(pthread_create(&lives[i].thread, NULL, live_thread, &lives[i]), 0);
    }
    for (int i = 0; i < c->size; i++) CHECK_EQ(pthread_join(lives[i].thread, NULL), 0);
    nothing_left(before);
}

static void as_processes(const ranks_case *c, const ranks_mode *mode, ranks_shared *shared) {
    pid_t pids[RANKS_MOST];
    for (int i = 0; i < c->size; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        life l;
        set_up(&l, c, mode, shared, i);
        footprint before = look();
        live(&l);
        nothing_left(before);
        exit(0);
    }
    for (int left = c->size - __builtin_popcount(c->victims); left;) {
        int status, i = 0;
        pid_t pid = waitpid(-1, &status, 0);
        CHECK(pid > 0);
        while (i < c->size && pids[i] != pid) i++;
        CHECK(i < c->size);
        if ((uint64_t)c->victims >> i & 1) continue;
        left--;
        if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP) _exit(SKIP);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
        fprintf(stderr, "rank %d: %s %d\n", i, WIFEXITED(status) ? "exit status" : "killed by signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : CHECK_RED);
    }
}

static bool runs_in(const ranks_case *c, const ranks_mode *mode) {
    bool shm = strcmp(mode->transports, "shm") == 0, loop = strcmp(mode->transports, "loop") == 0;
    bool tcp = strcmp(mode->transports, "tcp") == 0, verbs = strcmp(mode->transports, "verbs") == 0;
    if (RANKS_TSAN && !mode->threads) return false; /* a second mapping of the same memory hides every race from it */
    if (c->where & RANKS_NOT_TSAN && RANKS_TSAN) return false;
    if (c->where & RANKS_PROCESSES && mode->threads) return false;
    if (c->where & RANKS_THREADS && !mode->threads) return false;
    if ((c->where & RANKS_SHM || c->per_host > 0) && !shm) return false;
    if (c->where & RANKS_LOOP && !loop) return false;
    if (c->where & RANKS_TCP && !tcp) return false;
    if (c->where & RANKS_VERBS && !verbs) return false;
    if (c->where & RANKS_UNSEEDED && mode->seed) return false;
    return true;
}

/* One seed is enough, and so are processes where threads run the same code; TSan, which sees threads alone, has those.
 * HPC_TEST_MODES=all spares none of what this build can run. */
static bool is_spared(const ranks_case *c, const ranks_mode *mode) {
    const char *wanted = getenv("HPC_TEST_MODES");
    if (wanted && strcmp(wanted, "all") == 0) return false;
    if (strncmp(mode->name, "loop-seed-", 10) == 0) return true;
    return !RANKS_TSAN && mode->threads && strcmp(mode->transports, "loop") != 0 && !(c->where & RANKS_THREADS);
}

/* Whether this machine has an RDMA port that hpcomm can use. A child looks: libibverbs stays out of this process. */
static bool has_rdma(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        static hpc_device ports[64];
        int n = hpc_devices(ports, 64), usable = 0;
        for (int i = 0; i < n && i < 64; i++) usable += ports[i].why[0] == '\0';
        _exit(usable == 0);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool is_eligible(const ranks_case *c, const ranks_mode *mode) {
    static int rdma = -1; /* a look is a process */
    if (!runs_in(c, mode) || is_spared(c, mode)) return false;
    if (strcmp(mode->transports, "verbs") != 0) return true;
    if (rdma < 0) rdma = has_rdma();
    return rdma;
}

/* With HPC_TEST_MODES=half a case runs in every other one of its modes, with third in every third one, and always in
 * one unless it is one of many: in which, its name and the seed say. With sixth it runs as with third, under one of
 * ASan and TSan. */
static bool is_left_out(const ranks_case *c, const ranks_mode *mode) {
    const char *wanted = getenv("HPC_TEST_MODES");
    uint64_t at = loop_seed() + RANKS_TSAN, n = 0;
    bool sixth = wanted && strcmp(wanted, "sixth") == 0;
    uint64_t every = !wanted ? 1 : strcmp(wanted, "half") == 0 ? 2 : sixth || strcmp(wanted, "third") == 0 ? 3 : 1;
    for (const char *letter = c->name; *letter; letter++) at += (unsigned char)*letter;
    if (sixth && at % 2) return true;
    for (const ranks_mode *m = modes; m->name; m++) {
        if (m == mode) at += n;
        n += is_eligible(c, m);
    }
    if (every > n) every = n;
    if (c->many && every > 1) every *= 2;
    return every > 1 && at % every;
}

static double seconds_of(struct timeval t) {
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* The end of a failed case, in a word; it is red unless a check failed that a busy machine may have upset. */
static const char *verdict(bool ended, int status, int *result) {
    *result = CHECK_RED;
    if (!ended) return "no end in time";
    if (WIFSIGNALED(status)) return "killed by a signal";
    *result = WEXITSTATUS(status);
    if (*result == 0) return "ok";
    if (*result == SKIP) return "skipped";
    if (*result == CHECK_SANITIZED) *result = CHECK_RED;
    if (*result != CHECK_RED) *result = CHECK_FAILED;
    return "FAILED";
}

/* 0, 77, CHECK_FAILED or CHECK_RED. The case gets its own process group: whatever it left is killed with it. */
static int run_case(const ranks_case *c, const ranks_mode *mode) {
    ranks_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    sigset_t chld, before;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, &before);
    fflush(NULL);
    double start = ranks_now(), end = start + ranks_patience(CASE_SECONDS);
    pid_t host = fork();
    CHECK(host >= 0);
    if (host == 0) {
        setpgid(0, 0);
        check_now.told = true; /* the parent does it */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        (mode->threads ? as_threads : as_processes)(c, mode, shared);
        exit(0);
    }
    setpgid(host, host);
    int status = 0, result;
    struct rusage used = {0};
    pid_t ended;
    while ((ended = wait4(host, &status, WNOHANG, &used)) == 0 && ranks_now() < end) {
        sigtimedwait(&chld, NULL, &(struct timespec){1, 0});
    }
    kill(-host, SIGKILL);
    if (ended == 0) waitpid(host, &status, 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    munmap(shared, sizeof *shared);
    if (ended == host && WIFSIGNALED(status)) fprintf(stderr, "killed by signal %d\n", WTERMSIG(status));
    const char *text = verdict(ended == host, status, &result);
    printf("%-32s %-15s %7.0f ms %7.0f ms CPU  %s\n", c->name, mode->name, 1e3 * (ranks_now() - start),
           1e3 * (seconds_of(used.ru_utime) + seconds_of(used.ru_stime)), text);
    if (result == 0 || result == SKIP) return result;
    fflush(stdout);
    if (result == CHECK_RED) fprintf(stderr, "RED: %s %s: %s\n", c->name, mode->name, text);
    check_tell_conditions(&(check_conditions){mode->seed, c->size, true});
    return result;
}

/* Whether the list, joined by commas, has this one; NULL has all. */
static bool has_name(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; at && (at = strstr(at, name)); at += n) {
        if ((at == list || at[-1] == ',') && (at[n] == ',' || at[n] == '\0')) return true;
    }
    return !list;
}

/* A name in the list that is no case's would go unnoticed beside others that are. */
static void check_names(const char *list, const ranks_case *cases) {
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        int n = (int)strcspn(at, ",");
        const ranks_case *c = cases;
        while (c->name && (strncmp(c->name, at, (size_t)n) || c->name[n])) c++;
        if (c->name) continue;
        fprintf(stderr, "no case is called %.*s\n", n, at);
        exit(2);
    }
}

int ranks_main(int argc, char **argv, const ranks_case *cases) {
    const char *only_mode = argc > 1 && strcmp(argv[1], "all") ? argv[1] : NULL;
    const char *only_cases = argc > 2 && strcmp(argv[2], "all") ? argv[2] : NULL;
    check_names(only_cases, cases);
    int passed = 0, failed = 0, skipped = 0, red = 0;
    for (ranks_mode *mode = modes; mode->name; mode++) {
        if (strcmp(mode->name, "loop-seed") == 0) mode->seed = loop_seed();
        if (only_mode && strcmp(only_mode, mode->name)) continue;
        if (strcmp(mode->transports, "verbs") == 0 && !has_rdma()) continue;
        for (const ranks_case *c = cases; c->name; c++) {
            if (!has_name(only_cases, c->name) || !runs_in(c, mode)) continue;
            if (!only_mode && (!is_eligible(c, mode) || is_left_out(c, mode))) continue;
            int result = run_case(c, mode);
            passed += result == 0;
            failed += result == CHECK_FAILED || result == CHECK_RED;
            red += result == CHECK_RED;
            skipped += result == SKIP;
        }
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    if (failed) return red ? CHECK_RED : CHECK_FAILED;
    return passed ? 0 : SKIP;
}
