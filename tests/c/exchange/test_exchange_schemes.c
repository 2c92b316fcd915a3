/* Several configurations in one exchange: each key is folded as its own one says, whatever the others do meanwhile. */
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "graph_jobs.h"
#include "inside.h"

enum { MOST_MEMBERS = 4, BOTH = HPC_PUSH | HPC_PULL, SETTLES = 8 };

/* Kinds of configurations. From ASYNC on the parameters are known only when all ranks have met; they are the sum of all
 * updates, in any order. */
typedef enum kind { HUB, SPLIT, GRAPH, ASYNC, SSP, KINDS } kind;

typedef struct member {
    kind kind;
    graph_job g;
    reference ref;
    job_config config;
} member;

typedef struct mix {
    member members[MOST_MEMBERS];
    int n, n_keys;
    hpc_exchange *e;
} mix;

static int below(uint64_t *random, int n) {
    return (int)(ranks_random(random) % (uint64_t)n);
}

/* All ranks work for all keys, and each for its own reasons in its own way: progress differs between ranks. */
static void random_member(member *m, rank *r, kind kind, uint64_t seed) {
    static const int progress[] = {HPC_PROGRESS_INLINE, HPC_PROGRESS_THREAD, HPC_PROGRESS_AUTO};
    job *j = &m->g.j;
    m->kind = kind;
    graph_job_random(&m->g, r, seed);
    if (kind != GRAPH) {
        job_random(j, r, seed);
        for (int i = 0; i < r->size; i++) j->workers[i] = i;
        j->n_workers = r->size, j->sum = 1, j->shared_params = 0;
        if (kind == SPLIT) j->split = 1;
        if (kind >= ASYNC) j->rule = "sgd", j->wire = HPC_F32, j->mixed = 0, j->depth = 2;
        j->each = kind == ASYNC;
    }
    j->progress = progress[(seed + (uint64_t)r->rank) % 3];
}

static void init_config(member *m, const rank *r) {
    hpc_exchange_config c;
    if (m->kind == GRAPH) {
        graph_config_init(&m->config, r, &m->g);
        return;
    }
    job_settings(&c, &m->g.j);
    if (m->kind == SSP) c.consistency = HPC_SSP, c.staleness = 3;
    job_config_init(&m->config, r, &m->g.j, &c);
}

static int mix_create(mix *x, const rank *r) {
    x->n_keys = 0;
    for (int i = 0; i < x->n; i++) {
        job_number(&x->members[i].g.j, x->n_keys);
        init_config(&x->members[i], r);
        x->n_keys += x->members[i].g.j.n_keys;
        if (i > 0) x->members[i - 1].config.config.next = &x->members[i].config.config;
    }
    int status = hpc_exchange_create(r->context, &x->members[0].config.config, -1, &x->e);
    for (int i = 0; i < x->n; i++) job_config_free(&x->members[i].config);
    return status;
}

static void mix_open(mix *x, const rank *r) {
    CHECK_OK(mix_create(x, r));
    for (int i = 0; i < x->n; i++) reference_init(&x->members[i].ref, &x->members[i].g.j);
}

static void mix_close(mix *x) {
    CHECK_OK(hpc_exchange_close(x->e, -1));
    for (int i = 0; i < x->n; i++) reference_free(&x->members[i].ref);
    hpc_exchange_free(x->e);
}

static member *member_of(mix *x, int *key) {
    int i = 0;
    while (*key >= x->members[i].g.j.n_keys) *key -= x->members[i++].g.j.n_keys;
    return &x->members[i];
}

static void shuffle(int *numbers, int n, uint64_t *random) {
    for (int i = 0; i < n; i++) numbers[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int k = below(random, i + 1), at = numbers[i];
        numbers[i] = numbers[k], numbers[k] = at;
    }
}

static uint64_t begin(mix *x, rank *r, int number, int step) {
    int key = number;
    const member *m = member_of(x, &key);
    const bool in_place = m->kind != ASYNC && m->kind != SSP && (step + number) % 2;
    return job_start(r, &m->g.j, x->e, key, step, m->kind == SPLIT ? HPC_PUSH : BOTH, in_place);
}

/* Folds are waited for before any other wait: all ranks apply them, and none waits for an answer before that. */
static void apply_fold(mix *x, int number, uint64_t *ticket) {
    int key = number;
    if (member_of(x, &key)->kind != SPLIT) return;
    CHECK_OK(hpc_exchange_wait(x->e, number, *ticket, -1));
    CHECK_OK(hpc_exchange_apply(x->e, number, 1, -1, ticket));
}

static void finish(mix *x, rank *r, int number, uint64_t ticket) {
    int key = number;
    member *m = member_of(x, &key);
    CHECK_OK(hpc_exchange_wait(x->e, number, ticket, -1));
    if (m->kind == GRAPH)
        graph_reference_step(&m->ref, &m->g, r->rank, key);
    else
        reference_step(&m->ref, key);
    if (m->kind < ASYNC) reference_check(&m->ref, r, x->e, key);
}

/* A step of all keys, in the order of chance; its own on each rank. */
static void one_step(mix *x, rank *r, int step, uint64_t *random) {
    int order[JOB_KEYS];
    uint64_t tickets[JOB_KEYS];
    shuffle(order, x->n_keys, random);
    for (int i = 0; i < x->n_keys; i++) tickets[order[i]] = begin(x, r, order[i], step);
    shuffle(order, x->n_keys, random);
    for (int i = 0; i < x->n_keys; i++) apply_fold(x, order[i], &tickets[order[i]]);
    for (int i = 0; i < x->n_keys; i++) finish(x, r, order[i], tickets[order[i]]);
}

/* Checks the configurations whose owners apply each update by itself. */
static void check_later(mix *x, rank *r) {
    CHECK_OK(hpc_exchange_settle(x->e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int number = 0; number < x->n_keys; number++) {
        int key = number;
        uint64_t ticket;
        member *m = member_of(x, &key);
        if (m->kind < ASYNC) continue;
        CHECK_OK(hpc_exchange_start(x->e, number, HPC_PULL, NULL, -1, &ticket));
        CHECK_OK(hpc_exchange_wait(x->e, number, ticket, -1));
        reference_check(&m->ref, r, x->e, key);
    }
}

static void random_mix(rank *r, uint64_t seed) {
    mix x = {.n = 2 + (int)(seed % (MOST_MEMBERS - 1))};
    uint64_t common = seed * 77 + 5, own = seed * 1009 + (uint64_t)r->rank;
    for (int i = 0; i < x.n; i++)
        random_member(&x.members[i], r, (kind)((seed + (uint64_t)below(&common, KINDS)) % KINDS),
                      seed * 10 + (uint64_t)i);
    mix_open(&x, r);
    for (int step = 0; step < 4; step++) one_step(&x, r, step, &own);
    check_later(&x, r);
    CHECK_EQ(hpc_exchange_under_way(x.e), -1);
    mix_close(&x);
}

static void random_mixes(rank *r) {
    int rounds = ranks_rounds(12);
    for (int i = 0; i < rounds; i++) random_mix(r, (uint64_t)(1000 * r->arg + i + 1));
}

/* Each rank owns keys of both members. */
static void two(mix *x, rank *r, kind first, kind second, int progress) {
    x->n = 2;
    for (int i = 0; i < 2; i++) {
        member *m = &x->members[i];
        m->kind = i == 0 ? first : second;
        graph_job_init(&m->g, r);
        if (m->kind == GRAPH) graph_job_shape(&m->g, COMPLETE);
        if (m->kind != GRAPH) job_init(&m->g.j, r);
        if (m->kind >= ASYNC) m->g.j.depth = 2;
        m->g.j.each = m->kind == ASYNC, m->g.j.split = m->kind == SPLIT;
        m->g.j.progress = progress, m->g.j.chunk = 512, m->g.j.seed = (uint64_t)i + 3;
    }
}

/* A wait for one member works for the others: rank 0 waits for a key that rank 1 pushes when it has got one of another
 * member, whose owner is rank 0. */
static void waits_work_for_all(rank *r) {
    mix x;
    two(&x, r, HUB, ASYNC, HPC_PROGRESS_INLINE);
    for (int i = 0; i < 2; i++) x.members[i].g.j.n_servers = 1;
    mix_open(&x, r);
    const int async = x.members[1].g.j.first;
    if (r->rank == 1) job_push_pull(r, &x.members[1].g.j, x.e, 0, 0);
    job_push_pull(r, &x.members[0].g.j, x.e, 0, 0);
    reference_step(&x.members[0].ref, 0);
    reference_check(&x.members[0].ref, r, x.e, 0);
    if (r->rank == 1) CHECK_EQ(x.e->keys[async].scheme->keys[0].pushes, 1);
    mix_close(&x);
}

/* The same for what a worker has kept back for a slow neighbour: rank 0 sends its second update when rank 1 has folded
 * the first one, and waits meanwhile for a key of another member. arg: progress, + SETTLES where it waits for others'
 * updates to be applied, under SSP at receivers. */
static void waits_send_for_all(rank *r) {
    const int settles = r->arg >= SETTLES;
    mix x;
    two(&x, r, settles ? SSP : HUB, GRAPH, r->arg % SETTLES);
    graph_job *g = &x.members[1].g;
    graph_job_init(g, r);
    graph_job_edge(g, 0, 1, 0, 1);
    graph_job_edge(g, 0, 1, 2, 1);
    g->j.progress = r->arg % SETTLES, g->j.depth = 3, g->quorum = 1, g->grace = 0;
    if (settles) x.members[0].g.j.apply_at = HPC_AT_RECEIVERS, x.members[0].g.j.depth = 5;
    mix_open(&x, r);
    if (r->rank == 1) rank_await(r, 0, 1);
    for (int step = 0; step < 2 && r->rank != 2; step++) job_push_pull(r, &g->j, x.e, 0, step);
    rank_set(r, r->rank, 1);
    job_push_pull(r, &x.members[0].g.j, x.e, 0, 0);
    if (settles) CHECK_OK(hpc_exchange_settle(x.e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    mix_close(&x);
}

/* Cores of one number have one thread, which works for all members. arg: the cores of each, digit by digit. */
static void share_threads(rank *r) {
    hpc_exchange_stats stats;
    uint64_t random = 1;
    int most = 0;
    mix x;
    two(&x, r, HUB, GRAPH, HPC_PROGRESS_THREAD);
    x.members[x.n++] = x.members[0];
    for (int i = 0, left = r->arg; i < x.n; i++, left /= 10) {
        int *cores = &x.members[i].g.j.cores;
        *cores = left % 10;
        most = *cores > most ? *cores : most;
    }
    mix_open(&x, r);
    CHECK_OK(hpc_exchange_get_stats(x.e, &stats));
    CHECK_EQ(stats.threads, most);
    for (int step = 0; step < 3; step++) one_step(&x, r, step, &random);
    mix_close(&x);
}

/* An update may come before the thread of its core works for its scheme: the thread of the first scheme is asleep when
 * the second one opens, and others have opened theirs. Here the owner leaves the thread and joins it once more. */
static void joins_late(rank *r) {
    mix x;
    two(&x, r, HUB, ASYNC, HPC_PROGRESS_THREAD);
    for (int i = 0; i < 2; i++) x.members[i].g.j.n_servers = x.members[i].g.j.cores = 1;
    mix_open(&x, r);
    const job *j = &x.members[1].g.j;
    if (r->rank == 0) {
        hpc_core *core = &x.e->schemes[1]->cores[0];
        hpc_crew_remove(core->thread, core->task);
        core->thread = NULL;
        rank_set(r, 0, 1);
        rank_await(r, 1, 1);
        for (int calm = 0; calm < 1000; calm++) { /* until the event has rung for nobody, and the thread sleeps again */
            while (atomic_load(&r->context->group.bell->sleepers) == 0) sched_yield();
            sched_yield();
        }
        CHECK_OK(hpc_cores_start(x.e->schemes[1], "test"));
        rank_await(r, 2, 1);
    } else {
        rank_await(r, 0, 1);
        uint64_t ticket = job_start(r, j, x.e, 0, 0, BOTH, false);
        rank_set(r, 1, 1);
        CHECK_OK(hpc_exchange_wait(x.e, j->first, ticket, -1));
        rank_set(r, 2, 1);
    }
    mix_close(&x);
}

/* A failure ends the exchange, and a wait for any of its keys tells it: rank 0, which owns all, waits for a key that
 * rank 1 never pushes. arg: progress. */
static void fails(rank *r) {
    double args[HPC_RULE_ARGS] = {0, 0.25};
    uint64_t ticket = 0;
    mix x;
    two(&x, r, HUB, HUB, r->arg);
    for (int i = 0; i < 2; i++) x.members[i].g.j.n_servers = 1;
    mix_open(&x, r);
    const job *waits = &x.members[0].g.j, *fails = &x.members[1].g.j;
    if (r->rank == 1) CHECK_OK(hpc_exchange_set_args(x.e, fails->first, args));
    if (r->rank == 0) ticket = job_start(r, waits, x.e, 0, 0, BOTH, false);
    if (r->rank == 0) job_start(r, fails, x.e, 0, 0, BOTH, false);
    int status = r->rank == 0
                     ? hpc_exchange_wait(x.e, waits->first, ticket, -1) /* rank 1 may hear of it as it pushes */
                     : hpc_exchange_push_pull(x.e, fails->first, x.members[1].ref.params[0], -1);
    CHECK_EQ(status, r->rank == 0 ? HPC_ERR_CONFIG : HPC_ERR_PEER);
    for (int i = 0; i < 2 && r->rank == 0; i++) {
        CHECK(strstr(hpc_last_error()->message, "lr is 0.25 on rank 1"));
        CHECK_EQ(hpc_exchange_push_pull(x.e, x.members[i].g.j.first, x.members[i].ref.params[0], -1), HPC_ERR_CONFIG);
    }
    if (r->rank == 0) CHECK_EQ(hpc_exchange_close(x.e, -1), HPC_ERR_CONFIG);
    for (int i = 0; i < 2; i++) reference_free(&x.members[i].ref);
    hpc_exchange_free(x.e);
}

/* Rows and counts of all members: each rank reads its rows, writes others, and all get those. */
static void rows(rank *r) {
    hpc_exchange_stats stats;
    uint64_t random = 1, step, sent = 0;
    float *params = malloc(5000 * sizeof *params);
    mix x;
    two(&x, r, HUB, GRAPH, r->arg);
    mix_open(&x, r);
    for (int i = 0; i < 3; i++) one_step(&x, r, i, &random);
    CHECK_OK(hpc_barrier(r->context, -1)); /* all have got what is written over below */
    CHECK_OK(hpc_exchange_get_stats(x.e, &stats));
    CHECK_EQ(stats.pushes, 3 * (uint64_t)x.n_keys);
    for (int i = 0; i < x.e->n_schemes; i++)
        for (int who = 0; who < r->size; who++) sent += 3 * rows_traffic(x.e->schemes[i]->plan, r->rank, who);
    CHECK_EQ(stats.bytes_sent, sent);
    for (int number = 0, i = 0; i < 2; i++) {
        const hpc_plan *plan = x.e->schemes[i]->plan;
        for (int n = 0; n < plan->n_rows; n++, number++) {
            const hpc_row *row = &plan->rows[n];
            if (row->owner != r->rank) continue;
            CHECK_OK(hpc_exchange_get_row(x.e, number, &step, params, NULL));
            CHECK_EQ(step, 3);
            const float *now = hpc_exchange_params(x.e, x.members[i].g.j.first + row->key) + row->offset;
            CHECK(same_floats(params, now, row->count, "a row", r->rank, row->key));
            for (uint64_t k = 0; k < row->count; k++) params[k] = (float)(number % 1000) + (float)k;
            CHECK_OK(hpc_exchange_set_row(x.e, number, 7, params, NULL));
        }
    }
    CHECK_OK(hpc_exchange_publish(x.e, -1));
    for (int number = 0, i = 0; i < 2; i++) {
        const hpc_plan *plan = x.e->schemes[i]->plan;
        for (int n = 0; n < plan->n_rows; n++, number++) {
            const hpc_row *row = &plan->rows[n];
            if (x.members[i].kind == GRAPH && row->owner != r->rank) continue; /* a model of that rank's own */
            for (uint64_t k = 0; k < row->count; k++) params[k] = (float)(number % 1000) + (float)k;
            const float *now = hpc_exchange_params(x.e, x.members[i].g.j.first + row->key) + row->offset;
            CHECK(same_floats(now, params, row->count, "published", r->rank, row->key));
        }
    }
    CHECK_EQ(hpc_exchange_get_row(x.e, x.e->n_rows, &step, params, NULL), HPC_ERR_INVALID);
    CHECK_EQ(hpc_exchange_push_pull(x.e, x.n_keys, params, -1), HPC_ERR_INVALID);
    CHECK(strstr(hpc_last_error()->message, "the exchange has 6"));
    free(params);
    mix_close(&x);
}

/* The last rank works for one member and only serves for the other one. Its first close waits for the others in vain,
 * and the second one goes on. arg: progress. */
static void serves_in_one(rank *r) {
    mix x;
    two(&x, r, HUB, HUB, r->arg);
    job *served = &x.members[0].g.j;
    const job *j = &x.members[1].g.j;
    const int last = r->size - 1;
    served->n_workers = last, served->servers[0] = last, served->n_servers = 1;
    mix_open(&x, r);
    for (int step = 0; step < 3; step++) {
        job_push_pull(r, j, x.e, 0, step);
        reference_step(&x.members[1].ref, 0);
        reference_check(&x.members[1].ref, r, x.e, 0);
        if (r->rank == last) continue;
        job_push_pull(r, served, x.e, 0, step);
        reference_step(&x.members[0].ref, 0);
        reference_check(&x.members[0].ref, r, x.e, 0);
    }
    if (r->rank == last) {
        CHECK(hpc_exchange_params(x.e, served->first) == NULL);
        CHECK_EQ(hpc_exchange_push_pull(x.e, served->first, x.members[0].ref.params[0], -1), HPC_ERR_INVALID);
        CHECK_EQ(hpc_exchange_serve(x.e, 0), HPC_ERR_INVALID);
        CHECK_EQ(hpc_exchange_close(x.e, 0.05), HPC_ERR_TIMEOUT);
        CHECK_EQ(hpc_exchange_push_pull(x.e, j->first, x.members[1].ref.params[0], -1), HPC_ERR_INVALID);
        rank_set(r, 0, 1);
    } else if (r->arg == HPC_PROGRESS_THREAD || r->rank == 0) {
        rank_await(r, 0, 1);
    }
    mix_close(&x);
}

/* All are through the barrier before one of them goes. */
static void meet(rank *r) {
    CHECK_OK(hpc_barrier(r->context, -1));
    rank_meet(r);
}

/* The ranks that are left stay until each of them has seen what it has to: one that leaves is not one that is lost. */
static void stay(rank *r, int gone) {
    rank_set(r, r->rank, 1);
    for (int who = 0; who < r->size; who++)
        if (who != gone) rank_await(r, who, 1);
}

/* A revoke ends all waits, of any member, also a close that serves. Then rows can be read. arg: progress. */
static void revoked(rank *r) {
    uint64_t step, random = 1;
    mix x;
    two(&x, r, ASYNC, GRAPH, r->arg);
    mix_open(&x, r);
    one_step(&x, r, 0, &random);
    meet(r);
    if (r->rank == 1) {
        hpc_context_revoke(r->context);
        hpc_context_close(r->context);
    } else {
        const int key = x.members[1].g.j.first;
        int status = HPC_OK;
        for (int tries = 0; tries < 4 && status == HPC_OK; tries++)
            status = hpc_exchange_push_pull(x.e, key, x.members[1].ref.params[0], -1);
        CHECK_EQ(status, HPC_ERR_PEER);
        CHECK_EQ(hpc_exchange_under_way(x.e), -1);
        for (int number = 0, i = 0; i < 2; i++)
            for (int n = 0; n < x.e->schemes[i]->plan->n_rows; n++, number++)
                if (x.e->schemes[i]->plan->rows[n].owner == r->rank)
                    CHECK_OK(hpc_exchange_get_row(x.e, number, &step, NULL, NULL));
        stay(r, 1);
        CHECK_EQ(hpc_exchange_close(x.e, -1), HPC_ERR_PEER);
        CHECK_OK(hpc_exchange_close(x.e, -1));
    }
    for (int i = 0; i < 2; i++) reference_free(&x.members[i].ref);
    hpc_exchange_free(x.e);
}

/* A rank leaves while the others go on with a member that can do without it. arg: progress. */
static void leaves_early(rank *r) {
    mix x;
    two(&x, r, ASYNC, HUB, r->arg);
    mix_open(&x, r);
    const int steps = r->rank == 0 ? 1 : 5;
    job_push_pull(r, &x.members[1].g.j, x.e, 0, 0);
    for (int step = 0; step < steps; step++) job_push_pull(r, &x.members[0].g.j, x.e, 0, step);
    mix_close(&x);
}

/* All ranks hear of what one of them gives otherwise, before anything is opened. */
static void refuse(rank *r) {
    hpc_exchange_config c;
    mix x;
    for (int what = 0; what < 4; what++) {
        two(&x, r, HUB, GRAPH, HPC_PROGRESS_INLINE);
        const bool odd = r->rank == 1;
        x.n_keys = 0;
        for (int i = 0; i < 2; i++) {
            job *j = &x.members[i].g.j;
            job_number(j, what == 0 && odd ? 0 : x.n_keys);
            init_config(&x.members[i], r);
            x.n_keys += j->n_keys;
        }
        c = x.members[0].config.config;
        c.next = &x.members[1].config.config;
        if (what == 1 && odd) c.next = NULL;
        if (what == 2 && odd)
            x.members[1].config.config.staleness = -1, x.members[1].config.config.consistency = HPC_SSP;
        if (what == 3 && odd) x.members[1].config.config.consistency = HPC_BSP;
        x.e = (hpc_exchange *)&x;
        CHECK(hpc_exchange_create(r->context, &c, -1, &x.e) != HPC_OK && x.e == NULL);
        const char *told = hpc_last_error()->message;
        if (what == 0) CHECK(strstr(told, "key k0 is in two configurations"));
        if (what == 1) CHECK(strstr(told, "rank 1 gives 1 configurations of keys and rank 0 gives 2"));
        if (what == 2) CHECK(strstr(told, "staleness"));
        if (what == 3) CHECK(strstr(told, "rank 1 has consistency 0"));
        for (int i = 0; i < 2; i++) job_config_free(&x.members[i].config);
    }
}

/* Rank 1 runs out of files while the exchange is made, in either scheme: all ranks hear of it, and what was open before
 * is free again: with enough files the next exchange is made. */
static void runs_out_of_files(rank *r) {
    int made = 0, failed = 0;
    for (int more = 0; more < 40 && made < 2; more++) {
        struct rlimit before, few;
        mix x;
        two(&x, r, HUB, GRAPH, r->arg);
        CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
        few = before, few.rlim_cur = (rlim_t)open("/dev/null", O_RDONLY);
        close((int)few.rlim_cur);
        few.rlim_cur += (rlim_t)more;
        if (r->rank == 1) CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        int status = mix_create(&x, r);
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        if (status != HPC_OK) CHECK(x.e == NULL && strstr(hpc_last_error()->message, "rank 1"));
        made += status == HPC_OK, failed += status != HPC_OK;
        hpc_exchange_free(x.e);
    }
    CHECK(made == 2 && failed > 0);
}

/* The ranks that are left are told by any key, and can read their rows. */
static void dies(rank *r) {
    uint64_t step, random = 1;
    mix x;
    two(&x, r, HUB, GRAPH, r->arg);
    mix_open(&x, r);
    one_step(&x, r, 0, &random);
    meet(r);
    if (r->rank == 1) rank_die(r);
    for (int i = 0; i < 2 && r->rank != 1; i++) {
        int status = HPC_OK;
        for (int tries = 0; tries < 3 && status == HPC_OK; tries++)
            status = hpc_exchange_push_pull(x.e, x.members[i].g.j.first, x.members[i].ref.params[0], -1);
        CHECK(status == HPC_ERR_PEER || (r->mode->threads && status != HPC_OK));
        CHECK(r->mode->threads || ranks_error_names(1));
    }
    for (int number = 0, i = 0; i < 2; i++)
        for (int n = 0; n < x.e->schemes[i]->plan->n_rows; n++, number++)
            if (x.e->schemes[i]->plan->rows[n].owner == r->rank && r->rank != 1 && !r->mode->threads)
                CHECK_OK(hpc_exchange_get_row(x.e, number, &step, NULL, NULL));
    if (r->rank != 1) stay(r, 1);
    for (int i = 0; i < 2; i++) reference_free(&x.members[i].ref);
    hpc_exchange_free(x.e);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "random_2", .size = 2, .run = random_mixes, .arg = 1},
        {.name = "random_3", .size = 3, .run = random_mixes, .arg = 2},
        {.name = "random_5", .size = 5, .run = random_mixes, .arg = 3},
        {.name = "waits_work_for_all", .size = 2, .run = waits_work_for_all},
        {.name = "waits_send_for_all_inline", .size = 3, .run = waits_send_for_all, .arg = HPC_PROGRESS_INLINE},
        {.name = "settles_send_for_all", .size = 3, .run = waits_send_for_all, .arg = SETTLES + HPC_PROGRESS_INLINE},
        {.name = "waits_send_for_all_thread", .size = 3, .run = waits_send_for_all, .arg = HPC_PROGRESS_THREAD},
        {.name = "share_threads_falling", .size = 2, .run = share_threads, .arg = 123},
        {.name = "share_threads_rising", .size = 2, .run = share_threads, .arg = 321},
        {.name = "share_threads_mixed", .size = 2, .run = share_threads, .arg = 231},
        {.name = "joins_late", .size = 2, .run = joins_late, .sleepy = true},
        {.name = "fails_inline", .size = 2, .run = fails, .arg = HPC_PROGRESS_INLINE, .apart = true},
        {.name = "fails_thread", .size = 2, .run = fails, .arg = HPC_PROGRESS_THREAD, .apart = true},
        {.name = "rows_inline", .size = 3, .run = rows, .arg = HPC_PROGRESS_INLINE},
        {.name = "rows_thread", .size = 3, .run = rows, .arg = HPC_PROGRESS_THREAD},
        {.name = "serves_in_one_inline", .size = 3, .run = serves_in_one, .arg = HPC_PROGRESS_INLINE, .apart = true},
        {.name = "serves_in_one_thread", .size = 3, .run = serves_in_one, .arg = HPC_PROGRESS_THREAD, .apart = true},
        {.name = "revoked_inline", .size = 3, .run = revoked, .arg = HPC_PROGRESS_INLINE, .victims = 2, .apart = true},
        {.name = "revoked_thread", .size = 3, .run = revoked, .arg = HPC_PROGRESS_THREAD, .victims = 2, .apart = true},
        {.name = "leaves_early_inline", .size = 3, .run = leaves_early, .arg = HPC_PROGRESS_INLINE, .apart = true},
        {.name = "leaves_early_thread", .size = 3, .run = leaves_early, .arg = HPC_PROGRESS_THREAD, .apart = true},
        {.name = "refuse", .size = 2, .run = refuse},
        {.name = "runs_out_of_files",
         .size = 3,
         .run = runs_out_of_files,
         .arg = HPC_PROGRESS_THREAD,
         .where = RANKS_PROCESSES | RANKS_SHM},
        {.name = "dies_inline", .size = 3, .run = dies, .arg = HPC_PROGRESS_INLINE, .victims = 2},
        {.name = "dies_thread", .size = 3, .run = dies, .arg = HPC_PROGRESS_THREAD, .victims = 2},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
