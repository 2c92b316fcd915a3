/* links.c - the cost of a rank's links to its peers (links.py).
 *
 * links job COUNTS SECONDS DEATH [options of c_ranks.h]
 * links contexts ALIVE [options of c_ranks.h]
 *
 * job: the ranks make a context, then a hub on four owners whose workers are all ranks, with a key for each number of
 * elements in COUNTS (comma-separated). They make one step of all keys and -n more, do nothing for SECONDS, and if
 * DEATH is 1 one worker is killed. contexts: two ranks make and close -n contexts, of which ALIVE are alive at a time.
 *
 * Rank 0 prints a line of JSON for each figure. Between the parts the ranks meet in shared memory of the benchmark, so
 * that no part has messages of a barrier in it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>

#include "c_ranks.h"

#ifndef BENCH_LIBRARY
enum {
    OWNERS = 4,
    MOST_KEYS = 1024,
    LEAST_BYTES = 16 << 10, /* least, chunks and parts: Python's choices for a hub (hpcomm/plan.py) */
    CHUNK_SHARED = 32 << 10,
    CHUNK_MOST = 256 << 10,
    CHUNK_LEAST = 64 << 10,
    PARTS = 4
};
static const double RATE = 1.0 / 64;       /* with whole updates all parameters are exact */
static const double LOOK_SECONDS = 50e-6;  /* times the ranks: how long survivors sleep between two looks */
static const double SETTLED_SECONDS = 0.1; /* time for the last messages before a part in which nothing is called */

/* A rank's share of what is measured; only that rank writes it, and rank 0 reads it after they have met. */
typedef struct told {
    double start, end, cpu; /* of the last part */
    bench_memory memory;    /* growth since before the context */
    int descriptors, threads, mappings;
    int64_t wrong;
    double named; /* seconds from the death until this rank named it; negative: it did not */
} told;

/* Memory of all ranks. */
typedef struct common {
    _Atomic int met, survived; /* of bench_arrive */
    double until;              /* the end of the idle part */
    double killed;             /* when the worker was killed; 0: not yet */
    pid_t victim;
    told ranks[BENCH_RANKS_MAX];
} common;

static common *shared;
static const char *row;
static uint64_t counts[MOST_KEYS];
static char names[MOST_KEYS][16];
static int n_keys, deaths, alive;
static double idle_seconds;

static void meet(const bench_rank *r) {
    bench_arrive(&shared->met, r->size);
}

static told *own(const bench_rank *r) {
    return &shared->ranks[r->rank];
}

static void tell(const bench_rank *r, const char *name, const char *unit, double value) {
    if (r->rank != 0) return;
    printf("{\"name\": \"%s\", \"unit\": \"%s\", \"value\": %.9g}\n", name, unit, value);
    fflush(stdout);
}

static void pause_for(double seconds) {
    if (seconds <= 0) return;
    const struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&t, NULL);
}

/* ---- parts ---- */

static void begin(const bench_rank *r) {
    meet(r);
    own(r)->cpu = bench_cpu_now();
    own(r)->start = bench_now();
}

/* Ends a part when all ranks have ended it. A rank's processor time counts until then, because it may still work for
 * the others. */
static void end(const bench_rank *r) {
    own(r)->end = bench_now();
    meet(r);
    own(r)->cpu = bench_cpu_now() - own(r)->cpu;
    meet(r);
}

/* Tells the time from the first rank's start to the last one's end, and the processor time of all ranks. divisor: how
 * often the part did the same thing. */
static void tell_part(const bench_rank *r, const char *name, int divisor) {
    double start = INFINITY, last = 0, cpu = 0;
    char of_cpu[64];
    for (int p = 0; p < r->size; p++) {
        const told *t = &shared->ranks[p];
        start = t->start < start ? t->start : start;
        last = t->end > last ? t->end : last;
        cpu += t->cpu;
    }
    tell(r, name, "s", (last - start) / divisor);
    snprintf(of_cpu, sizeof of_cpu, "%s, processor", name);
    tell(r, of_cpu, "s", cpu / divisor);
}

/* ---- memory, descriptors, threads, mappings ---- */

/* Returns whether an entry of a folder is a pipe. The processes of a benchmark are held together by pipes. */
static int is_pipe(int folder, const char *name) {
    char target[16];
    const ssize_t n = readlinkat(folder, name, target, sizeof target);
    return n >= 5 && memcmp(target, "pipe:", 5) == 0;
}

/* Returns the number of entries of a folder of /proc, without pipes and the descriptor that reads it. */
static int entries(const char *path, int own_one) {
    int n = -own_one;
    DIR *folder = opendir(path);
    if (folder == NULL) return 0;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        n += entry->d_name[0] != '.' && !is_pipe(dirfd(folder), entry->d_name);
    closedir(folder);
    return n;
}

static int lines(const char *path) {
    char buffer[4096];
    int n = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) return 0;
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, file)) > 0;)
        for (size_t i = 0; i < got; i++) n += buffer[i] == '\n';
    fclose(file);
    return n;
}

static void count(told *t) {
    t->descriptors = entries("/proc/self/fd", 1);
    t->threads = entries("/proc/self/task", 0);
    t->mappings = lines("/proc/self/maps");
}

static double most_of(const bench_rank *r, size_t offset) {
    double most = 0;
    for (int p = 0; p < r->size; p++) {
        const int64_t bytes = *(const int64_t *)((const char *)&shared->ranks[p].memory + offset);
        most = (double)bytes > most ? (double)bytes : most;
    }
    return most;
}

/* Tells the memory of the rank with the most. when: "after init". */
static void tell_memory(const bench_rank *r, const char *when) {
    static const struct {
        const char *name;
        size_t offset;
    } kinds[] = {{"private dirty", offsetof(bench_memory, private_dirty)},
                 {"PSS", offsetof(bench_memory, pss)},
                 {"RSS", offsetof(bench_memory, rss)},
                 {"kernel's part", offsetof(bench_memory, kernel)}};
    bench_memory *m = &own(r)->memory;
    char name[64];
    meet(r);
    bench_measure_memory(m);
    m->private_dirty -= r->before.private_dirty;
    m->pss -= r->before.pss;
    m->rss -= r->before.rss;
    m->kernel = (uint64_t)((int64_t)(m->kernel - r->before.kernel) / r->size);
    meet(r);
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s %s", kinds[i].name, when);
        tell(r, name, "B", most_of(r, kinds[i].offset));
    }
}

/* ---- the hub ---- */

static int owner(const bench_rank *r, int i) {
    const int n = r->size < OWNERS ? r->size : OWNERS;
    return i * r->size / n + r->size / (2 * n); /* rank 0 and the last rank own nothing if there are 8 or more ranks */
}

static void tell_counts(const bench_rank *r) {
    const struct {
        const char *name;
        int rank;
    } who[] = {{"rank 0", 0}, {"an owner", owner(r, 0)}, {"the last worker", r->size - 1}};
    char name[64];
    count(own(r));
    meet(r);
    for (int i = 0; i < 3; i++) {
        const told *t = &shared->ranks[who[i].rank];
        const int of[] = {t->descriptors, t->threads, t->mappings};
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "%s of %s", (const char *[]){"descriptors", "threads", "mappings"}[k],
                     who[i].name);
            tell(r, name, "", of[k]);
        }
    }
}

/* Sets the chunks that Python chooses; see chunk_of_part in hpcomm/plan.py. */
static void cut(const bench_rank *r, hpc_hub *hub) {
    uint64_t bytes = 0;
    hub->chunk = CHUNK_SHARED;
    if (hpc_over_sockets(r->context, hub->workers, hub->n_workers) != 1) return;
    for (int k = 0; k < n_keys; k++) bytes += counts[k] * sizeof(float);
    hub->least = LEAST_BYTES;
    hub->chunk = CHUNK_MOST;
    while (hub->chunk > CHUNK_LEAST && (uint64_t)(PARTS * hub->n_servers * hub->cores) * hub->chunk > bytes)
        hub->chunk /= 2;
}

static int make_plan(const bench_rank *r, hpc_plan **plan) {
    hpc_key keys[MOST_KEYS];
    int workers[BENCH_RANKS_MAX], owners[OWNERS];
    hpc_hub hub;
    for (int k = 0; k < n_keys; k++) keys[k] = (hpc_key){names[k], counts[k], 0};
    for (int p = 0; p < r->size; p++) workers[p] = p;
    hpc_plan_args_init("hub", &hub, sizeof hub);
    hub.keys = keys;
    hub.n_keys = n_keys;
    hub.workers = workers;
    hub.n_workers = r->size;
    hub.servers = owners;
    hub.n_servers = r->size < OWNERS ? r->size : OWNERS;
    for (int i = 0; i < hub.n_servers; i++) owners[i] = owner(r, i);
    hub.interfaces = hpc_interfaces(r->context, owners, hub.n_servers);
    hub.cores = hub.interfaces; /* Python's choice with inline progress */
    hub.sum = 1;                /* exact for any number of ranks */
    cut(r, &hub);
    return hpc_plan_make("hub", &hub, plan);
}

static int make_hub(bench_rank *r, const hpc_plan *plan, const float *first, hpc_exchange **exchange) {
    const float *values[MOST_KEYS];
    hpc_exchange_config config;
    hpc_rule rule;
    int status = hpc_rule_find("sgd", HPC_ISA_BEST, &rule);
    for (int k = 0; k < n_keys; k++) values[k] = first;
    rule.args[1] = RATE;
    rule.args[2] = 0;
    hpc_exchange_config_init(&config);
    config.plan = plan;
    config.rule = &rule;
    config.values = values;
    config.progress = HPC_PROGRESS_INLINE;
    begin(r);
    if (status == HPC_OK) status = hpc_exchange_create(r->context, &config, r->options.timeout, exchange);
    if (status != HPC_OK) return status;
    end(r);
    tell_part(r, "hub", 1);
    return HPC_OK;
}

static int fill_gradients(const bench_rank *r, hpc_exchange *exchange) {
    int status = HPC_OK;
    for (int k = 0; status == HPC_OK && k < n_keys; k++) {
        void *place = NULL;
        status = hpc_exchange_gradient(exchange, k, r->options.timeout, &place);
        if (status == HPC_OK) bench_fill_whole(place, r->rank, counts[k]);
    }
    return status;
}

/* Makes one step: a push_pull of all keys, which are in flight together. */
static int step(const bench_rank *r, hpc_exchange *exchange) {
    uint64_t tickets[MOST_KEYS];
    int status = HPC_OK;
    for (int k = 0; status == HPC_OK && k < n_keys; k++)
        status = hpc_exchange_start(exchange, k, HPC_PUSH | HPC_PULL, NULL, r->options.timeout, &tickets[k]);
    for (int k = 0; status == HPC_OK && k < n_keys; k++)
        status = hpc_exchange_wait(exchange, k, tickets[k], r->options.timeout);
    return status;
}

/* Makes n steps, and tells them as one part. Ranks that wait in meet answer nobody, so they first wait in a barrier,
 * which is in no time. */
static int steps(bench_rank *r, hpc_exchange *exchange, int n, const char *name) {
    int status = HPC_OK;
    begin(r);
    for (int i = 0; status == HPC_OK && i < n; i++) {
        const double start = bench_now();
        status = step(r, exchange);
        if (i < BENCH_SAMPLES) r->seconds[i] = bench_now() - start;
    }
    const double last = bench_now();
    if (status == HPC_OK) status = bench_meet(r);
    if (status != HPC_OK) return status;
    end(r);
    own(r)->end = last;
    meet(r);
    tell_part(r, name, n);
    return HPC_OK;
}

static int64_t wrong_of(const bench_rank *r, const hpc_exchange *exchange, int made) {
    float first[BENCH_PERIOD], sum[BENCH_PERIOD] = {0};
    int64_t wrong = 0;
    for (int j = 0; j < BENCH_PERIOD; j++) {
        first[j] = bench_whole(-1, (uint64_t)j);
        for (int p = 0; p < r->size; p++) sum[j] += bench_whole(p, (uint64_t)j);
    }
    for (int k = 0; k < n_keys; k++) {
        const float *got = hpc_exchange_params(exchange, k);
        for (uint64_t j = 0; j < counts[k]; j++)
            wrong +=
                (double)got[j] != (double)first[j % BENCH_PERIOD] - RATE * (double)made * (double)sum[j % BENCH_PERIOD];
    }
    return wrong;
}

static void tell_wrong(const bench_rank *r) {
    int64_t wrong = 0;
    meet(r);
    for (int p = 0; p < r->size; p++) wrong += shared->ranks[p].wrong;
    tell(r, "wrong", "", (double)wrong);
}

/* ---- nothing is called, and a death ---- */

/* Tells the processor time of all ranks while none calls anything, as a number of cores. */
static void idle(const bench_rank *r) {
    double cpu = 0;
    pause_for(SETTLED_SECONDS);
    if (r->rank == 0) shared->until = bench_now() + SETTLED_SECONDS + idle_seconds;
    meet(r);
    pause_for(shared->until - idle_seconds - bench_now()); /* the ranks wake each other in meet */
    own(r)->cpu = bench_cpu_now();
    pause_for(shared->until - bench_now());
    own(r)->cpu = bench_cpu_now() - own(r)->cpu;
    meet(r);
    for (int p = 0; p < r->size; p++) cpu += shared->ranks[p].cpu;
    tell(r, "idle", "cores", cpu / idle_seconds);
}

/* Returns whether the last error of this thread blames the rank and no other. */
static int blames(int rank) {
    const hpc_error *e = hpc_last_error();
    return e->status == HPC_ERR_PEER && e->n_ranks == 1 && e->ranks[0] == rank;
}

/* Looks until this rank's context knows that the worker is dead. Then a barrier must fail with its rank. */
static void await_death(const bench_rank *r, int victim) {
    const double deadline = shared->killed + r->options.timeout;
    hpc_peer peer = {.state = HPC_PEER_ALIVE};
    told *t = own(r);
    t->named = -1;
    while (t->named < 0 && bench_now() < deadline) {
        if (hpc_context_peer(r->context, victim, &peer) == HPC_OK && peer.state == HPC_PEER_FAILED)
            t->named = bench_now() - shared->killed;
        else
            pause_for(LOOK_SECONDS * r->size);
    }
    t->wrong += t->named < 0 || hpc_barrier(r->context, r->options.timeout) == HPC_OK || !blames(victim);
    if (t->wrong > 0)
        fprintf(stderr, "rank %d does not blame rank %d: %s\n", r->rank, victim, hpc_last_error()->message);
}

/* Kills a worker that owns nothing, while no rank calls anything. */
static void die(const bench_rank *r) {
    const int victim = r->size / 2 + 1;
    double last = 0;
    int64_t wrong = 0;
    int all_named = 1;
    if (r->rank == victim) shared->victim = getpid();
    own(r)->wrong = 0;
    meet(r);
    if (r->rank == victim)
        while (1) pause();
    pause_for(SETTLED_SECONDS);
    if (r->rank == 0) {
        shared->killed = bench_now();
        kill(shared->victim, SIGKILL);
    }
    bench_arrive(&shared->survived, r->size - 1);
    await_death(r, victim);
    bench_arrive(&shared->survived, r->size - 1);
    for (int p = 0; p < r->size; p++) {
        const told *t = &shared->ranks[p];
        if (p == victim) continue;
        last = t->named > last ? t->named : last;
        all_named &= t->named >= 0;
        wrong += t->wrong;
    }
    if (all_named) tell(r, "death", "s", last);
    tell(r, "wrong", "", (double)wrong);
}

static int job(bench_rank *r) {
    float *first = NULL;
    hpc_exchange *exchange = NULL;
    hpc_plan *plan = NULL;
    uint64_t most = 0;
    own(r)->start = r->begun;
    own(r)->cpu = r->cpu_begun;
    end(r);
    own(r)->end = r->connected;
    meet(r);
    tell_part(r, "init", 1);
    tell_memory(r, "after init");
    for (int k = 0; k < n_keys; k++) most = counts[k] > most ? counts[k] : most;
    first = malloc(most * sizeof *first);
    int status = first == NULL ? HPC_ERR_MEMORY : make_plan(r, &plan);
    if (status == HPC_OK) {
        bench_fill_whole(first, -1, most);
        status = make_hub(r, plan, first, &exchange);
    }
    free(first);
    hpc_plan_free(plan);
    if (status == HPC_OK) tell_memory(r, "after the hub");
    if (status == HPC_OK) status = fill_gradients(r, exchange);
    if (status == HPC_OK) status = steps(r, exchange, 1, "first step");
    if (status == HPC_OK) status = steps(r, exchange, r->options.iters, "mean step");
    if (status == HPC_OK) {
        tell(r, "step", "s", bench_percentile(r->seconds, r->options.iters, 50));
        tell_memory(r, "after steps");
        tell_counts(r);
        own(r)->wrong = wrong_of(r, exchange, 1 + r->options.iters);
        tell_wrong(r);
        if (idle_seconds > 0) idle(r);
        if (deaths > 0) die(r);
    }
    if (status == HPC_OK && deaths == 0) status = hpc_exchange_close(exchange, r->options.timeout);
    hpc_exchange_free(exchange);
    return status;
}

/* ---- contexts ---- */

/* Makes a context of both ranks, and gathers their numbers by it. */
static int make(bench_rank *r, hpc_context **context) {
    const size_t nbytes = hpc_address_size();
    char *all = calloc((size_t)r->size + 1, nbytes), *mine = all + (size_t)r->size * nbytes;
    int ranks[BENCH_RANKS_MAX] = {0};
    hpc_config config;
    if (all == NULL) return HPC_ERR_MEMORY;
    hpc_config_init(&config);
    config.transports = r->options.transport;
    int status = hpc_context_create(r->rank, r->size, &config, context);
    if (status == HPC_OK) status = hpc_context_address(*context, mine);
    if (status == HPC_OK) status = hpc_allgather(r->context, mine, all, nbytes, r->options.timeout);
    if (status == HPC_OK) status = hpc_context_connect(*context, all, r->options.timeout);
    if (status == HPC_OK) status = hpc_allgather(*context, &r->rank, ranks, sizeof r->rank, r->options.timeout);
    for (int p = 0; status == HPC_OK && p < r->size; p++) own(r)->wrong += ranks[p] != p;
    free(all);
    return status;
}

/* Makes n contexts; each closes the one that was made `alive` contexts before it. Then it closes the rest. most: NULL,
 * or gets the counts before that. */
static int make_and_close(bench_rank *r, int n, told *most) {
    hpc_context **made = calloc((size_t)alive, sizeof *made);
    int status = made == NULL ? HPC_ERR_MEMORY : HPC_OK;
    for (int i = 0; status == HPC_OK && i < n; i++) {
        hpc_context_free(made[i % alive]);
        made[i % alive] = NULL;
        status = make(r, &made[i % alive]);
    }
    if (status == HPC_OK && most != NULL) count(most);
    if (status == HPC_OK) status = bench_meet(r);
    for (int i = 0; made != NULL && i < alive; i++) hpc_context_free(made[i]);
    free(made);
    return status;
}

static void tell_left(const bench_rank *r, const told *before) {
    int most[3] = {0, 0, 0};
    told *t = own(r);
    count(t);
    t->descriptors -= before->descriptors;
    t->threads -= before->threads;
    t->mappings -= before->mappings;
    meet(r);
    for (int p = 0; p < r->size; p++) {
        const told *of = &shared->ranks[p];
        most[0] = of->descriptors > most[0] ? of->descriptors : most[0];
        most[1] = of->threads > most[1] ? of->threads : most[1];
        most[2] = of->mappings > most[2] ? of->mappings : most[2];
    }
    tell(r, "descriptors left over", "", most[0]);
    tell(r, "threads left over", "", most[1]);
    tell(r, "mappings left over", "", most[2]);
}

static int contexts(bench_rank *r) {
    told before, most = {.threads = 0};
    int status = make_and_close(r, 2 * alive, NULL); /* the C library keeps some stacks and heaps of ended threads */
    if (status == HPC_OK) status = bench_meet(r);
    if (status != HPC_OK) return status;
    count(&before);
    begin(r);
    status = make_and_close(r, r->options.iters, &most);
    if (status != HPC_OK) return status;
    end(r);
    tell_part(r, "a context", r->options.iters);
    tell(r, "descriptors, all alive", "", most.descriptors);
    tell(r, "threads, all alive", "", most.threads);
    tell(r, "mappings, all alive", "", most.mappings);
    tell_left(r, &before);
    tell_wrong(r);
    return HPC_OK;
}

static int run(bench_rank *r) {
    return strcmp(row, "job") == 0 ? job(r) : contexts(r);
}

static int read_counts(const char *text) {
    for (char *at = (char *)text; *at != '\0'; at += *at == ',') {
        char *from = at;
        if (n_keys == MOST_KEYS) return 0;
        counts[n_keys] = strtoull(from, &at, 10);
        if (at == from || counts[n_keys] == 0) return 0;
        snprintf(names[n_keys], sizeof names[n_keys], "key%d", n_keys);
        n_keys++;
    }
    return n_keys > 0;
}

int main(int argc, char **argv) {
    bench_options defaults = {.minbytes = 8,
                              .maxbytes = 8,
                              .stepfactor = 2,
                              .iters = 100,
                              .warmup_iters = 1,
                              .agg_iters = 1,
                              .run_cycles = 1,
                              .ranks = 64,
                              .json = 1,
                              .timeout = 60};
    int used = 0;
    row = argc > 1 ? argv[1] : "";
    if (strcmp(row, "job") == 0 && argc > 4 && read_counts(argv[2])) {
        idle_seconds = atof(argv[3]);
        defaults.deaths = deaths = atoi(argv[4]) != 0;
        used = 4;
    } else if (strcmp(row, "contexts") == 0 && argc > 2 && atoi(argv[2]) > 0) {
        alive = atoi(argv[2]);
        used = 2;
    }
    if (used == 0) {
        fprintf(stderr, "usage: links job COUNTS SECONDS DEATH [-t ranks] [-n steps] [--transport shm|tcp]\n"
                        "       links contexts ALIVE [-t ranks] [-n contexts] [--transport shm|tcp]\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    return bench_main(argc - used, argv + used, "links", defaults, run);
}
#endif
