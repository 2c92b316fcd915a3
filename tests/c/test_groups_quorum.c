/* A quorum between hosts: the ranks of a host are in step, and a host that comes late is left out, as a whole. */
#define _GNU_SOURCE
#include <math.h>
#include <time.h>

#include "exchange_plans.h"
#include "inside.h"
#include "plan/plan.h"

enum { BOTH = HPC_PUSH | HPC_PULL, LAST = 2, WORD = 1000 };

/* Parts of a case's arg: the quorum, flags, and how many ranks a host has (0: two, then one each). */
enum { THREADS = 16, ROUNDED = 32, DEEP = 64, RACKS = 128, SUM = 256, HAND = 512, HOSTS_OF = 1024 };

static int host_of(const rank *r, int who) {
    const int per_host = r->arg / HOSTS_OF;
    return per_host > 0 ? who / per_host : who < 2 ? 0 : who - 1;
}

/* The outermost group of a rank: its host, or of two hosts the rack. */
static int group_of(const rank *r, int who) {
    return r->arg & RACKS ? host_of(r, who) / 2 : host_of(r, who);
}

static int lowest_of(const rank *r, int group) {
    int who = 0;
    while (group_of(r, who) != group) who++;
    return who;
}

static hpc_plan *by_hosts(job *j, const rank *r, int apart) {
    hpc_hosts h;
    hpc_plan *plan = NULL;
    int groups[2 * RANKS_MAX];
    job_init(j, r);
    j->cores = 2, j->depth = r->arg & DEEP ? 2 : 1, j->sum = (r->arg & SUM) != 0;
    j->progress = r->arg & THREADS ? HPC_PROGRESS_THREAD : HPC_PROGRESS_INLINE;
    j->quorum = r->arg % THREADS, j->grace = 0;
    if (r->arg & ROUNDED) j->wire = HPC_F16, j->codec_out = HPC_F16;
    for (int who = 0; who < r->size; who++) groups[who] = host_of(r, who), groups[r->size + who] = host_of(r, who) / 2;
    if (r->arg & HAND) { /* one owner, which answers all ranks itself */
        hand_plan *hand = hand_new();
        hand_racks(hand, j, r->size, HPC_F32, 256);
        CHECK_OK(hpc_plan_copy(&hand->plan, "plan", &plan));
        free(hand);
        j->plan = plan;
        return plan;
    }
    hpc_hosts_init(&h);
    h.keys = j->keys, h.n_keys = j->n_keys, h.workers = j->workers, h.n_workers = j->n_workers;
    h.n_levels = r->arg & RACKS ? 2 : 1, h.groups = groups, h.cores = j->cores, h.chunk = 1024, h.depth = j->depth;
    h.sum = j->sum, h.wire = j->wire, h.codec_out = j->codec_out, h.apart = apart;
    CHECK_OK(hpc_plan_hosts(&h, &plan));
    j->plan = plan;
    return plan;
}

static int create(const rank *r, const job *j, hpc_exchange **e) {
    hpc_exchange_config c;
    hpc_exchange_config_init(&c);
    c.consistency = j->each ? HPC_ASYNC : HPC_BSP, c.progress = j->progress, c.eager = j->eager;
    c.quorum = j->quorum, c.grace = j->grace, c.shared_params = j->shared_params;
    return job_create_with(r, j, &c, -1, e);
}

static hpc_exchange *open_all(const rank *r, const job *j) {
    hpc_exchange *e = NULL;
    CHECK_OK(create(r, j, &e));
    return e;
}

static void end(hpc_exchange *e, hpc_plan *plan) {
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

static void meet(rank *r, hpc_exchange *e, uint64_t turn) {
    rank_set(r, r->rank, turn);
    for (int who = 0; who < r->size; who++) progress_until(r, e, who, turn);
}

/* The step that the ranks of some groups make together, of their gradients number `step`; a mean is that of these. */
static void fold_of(const rank *r, reference *ref, int key, unsigned groups, int step) {
    const job *j = ref->j;
    const uint64_t count = j->keys[key].count;
    double *sum = calloc(count, sizeof *sum);
    int n = 0;
    for (int w = 0; w < r->size; w++) n += groups >> group_of(r, w) & 1;
    for (int w = 0; w < r->size; w++)
        for (uint64_t i = 0; i < count && groups >> group_of(r, w) & 1; i++)
            sum[i] += (r->arg & HAND ? 0.5 : j->sum ? 1 : 1.0 / n) * (double)job_gradient(j, w, step, key, i);
    reference_apply(ref, key, sum);
    free(sum);
}

static void step_of_all(const rank *r, const job *j, hpc_exchange *e, int step) {
    uint64_t tickets[JOB_KEYS];
    for (int key = 0; key < j->n_keys; key++) tickets[key] = job_start(r, j, e, key, step, BOTH, (step + key) % 2);
    for (int key = 0; key < j->n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
}

static void check_params(const rank *r, const job *j, hpc_exchange *e, const reference *ref) {
    for (int key = 0; key < j->n_keys; key++) reference_check(ref, r, e, key);
}

/* Some groups make a step while the others look on, and see nothing of it. */
static void step_of(rank *r, const job *j, hpc_exchange *e, reference *ref, unsigned groups, int step,
                    const reference *unseen, uint64_t turn) {
    const int in = groups >> group_of(r, r->rank) & 1;
    for (int key = 0; key < j->n_keys; key++) fold_of(r, ref, key, groups, step);
    if (in) {
        step_of_all(r, j, e, step);
        CHECK_EQ(hpc_exchange_late(e, -1), 0);
        CHECK_EQ(hpc_exchange_version(e), ref->step[0]);
    }
    meet(r, e, 2 * turn + 1);
    check_params(r, j, e, in ? ref : unseen);
    meet(r, e, 2 * turn + 2);
}

/* Groups 0 and 1 are a quorum and make two steps; the others stand still, and their parameters stay as they are. Then
 * those push: that has no effect, and brings all their ranks what the others have. Then they count again, all ranks of
 * a group in the same version, and group 0 is late. */
static void stands_still(rank *r) {
    job j;
    reference ref, before;
    hpc_exchange_stats stats;
    hpc_exchange_peer peer;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    const int n_groups = group_of(r, r->size - 1) + 1, group = group_of(r, r->rank);
    const unsigned all = (1u << n_groups) - 1;
    uint64_t shares = 0, late = 0;
    reference_init(&ref, &j);
    reference_init(&before, &j);
    for (int step = 0; step < 2; step++) step_of(r, &j, e, &ref, 3, step, &before, (uint64_t)step);
    if (group > 1) {
        CHECK_EQ(hpc_exchange_version(e), 0);
        step_of_all(r, &j, e, 0);
        check_params(r, &j, e, &ref);
        for (int key = 0; key < j.n_keys; key++) CHECK(hpc_exchange_late(e, key) > 0);
        CHECK_EQ(hpc_exchange_version(e), 2);
    }
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.dropped, hpc_exchange_late(e, -1));
    CHECK_EQ(stats.dropped_at, group > 1 ? 2 : 0);
    reference_free(&before);
    reference_init(&before, &j);
    for (int key = 0; key < j.n_keys; key++)
        for (int step = 0; step < 2; step++) fold_of(r, &before, key, 3, step);
    step_of(r, &j, e, &ref, n_groups > 3 ? 12 : all & ~1u, 2, &before, 2);
    for (int key = 0; key < j.n_keys; key++) /* of all cores that apply rows of a key */
        for (int core = 0; core < j.cores; core++) {
            int some = 0;
            for (int i = 0; i < plan->n_rows; i++)
                some |= plan->rows[i].key == key && plan->rows[i].core == core && plan->rows[i].owner == r->rank &&
                        plan->rows[i].action == HPC_APPLY;
            shares += (uint64_t)some;
        }
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    CHECK_EQ(stats.reduces, 3 * shares);
    CHECK_EQ(stats.whole + stats.missing, stats.reduces * (uint64_t)n_groups);
    CHECK_EQ(stats.whole, 6 * shares);
    for (int who = 0; who < r->size; who++) {
        CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
        CHECK_EQ(peer.late, group_of(r, who) > 1 && who == lowest_of(r, group_of(r, who)) ? shares : 0);
        late += peer.late;
    }
    if (shares > 0) CHECK_EQ(hpc_exchange_get_inputs(e, NULL, 0), n_groups);
    reference_free(&ref);
    reference_free(&before);
    end(e, plan);
}

static void delay(uint64_t *random) {
    if (ranks_random(random) % 4) return;
    struct timespec t = {0, (long)(ranks_random(random) % 2000) * 1000};
    nanosleep(&t, NULL);
}

static uint64_t hash_of(const job *j, hpc_exchange *e) {
    uint64_t hash = 1469598103934665603u;
    for (int key = 0; key < j->n_keys; key++) {
        const unsigned char *at = (const unsigned char *)hpc_exchange_params(e, key);
        for (uint64_t i = 0; i < j->keys[key].count * sizeof(float); i++) hash = (hash ^ at[i]) * 1099511628211u;
    }
    return hash | 1;
}

enum { STEPS = 20, PUSHES = 0, TOLD = 100, HASHES = 400 }; /* words of the board */

/* Push number p of a rank is 2^p in the elements that count it, every n-th one: so the parameters tell which pushes of
 * each rank are in them. Ranks of a group have the same ones in each row; rows of a share are folded together; an
 * update that is not in all rows was told to be late, else not; and owners count what they left out. */
static void nothing_is_lost(rank *r) {
    const int me = r->rank;
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    uint64_t random = 77 * (uint64_t)me + r->mode->seed, pushes = 0, tickets[JOB_KEYS], whole[JOB_KEYS] = {0};
    hpc_exchange_stats stats;
    hpc_exchange_peer peer;
    j.args[1] = 1, j.sum = 1, j.grace = r->arg & DEEP ? 1e-4 : 0;
    hpc_exchange *e = open_all(r, &j);
    while (hpc_exchange_version(e) < STEPS) {
        delay(&random);
        for (int key = 0; key < j.n_keys; key++) {
            float *src = malloc(j.keys[key].count * sizeof *src);
            for (uint64_t i = 0; i < j.keys[key].count; i++)
                src[i] = i % (uint64_t)r->size == (uint64_t)me ? (float)(1 << pushes) : 0;
            CHECK_OK(hpc_exchange_start(e, key, BOTH, src, -1, &tickets[key]));
            free(src);
        }
        for (int key = 0; key < j.n_keys; key++) CHECK_OK(hpc_exchange_wait(e, key, tickets[key], -1));
        for (int key = 0; key < j.n_keys; key++)
            if (hpc_exchange_late(e, key) == 0) whole[key] |= (uint64_t)1 << pushes;
        rank_set(r, HASHES + (int)pushes * r->size + me, hash_of(&j, e));
        for (int who = 0; who < r->size && pushes > 0; who++) /* mates have made this push, after the step before it */
            if (group_of(r, who) == group_of(r, me))
                CHECK_EQ(atomic_load(&r->board[HASHES + ((int)pushes - 1) * r->size + who]),
                         atomic_load(&r->board[HASHES + ((int)pushes - 1) * r->size + me]));
        pushes++;
        CHECK(pushes <= STEPS);
    }
    rank_set(r, PUSHES + me, pushes);
    for (int key = 0; key < j.n_keys; key++) rank_set(r, TOLD + key * r->size + me, whole[key]);
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_OK(hpc_barrier(r->context, -1));
    CHECK_OK(hpc_exchange_get_stats(e, &stats));
    uint64_t left_out[RANKS_MAX] = {0};
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        uint64_t used[RANKS_MAX];
        bool first = true; /* of its share */
        if (row->owner != me || row->action != HPC_APPLY) continue;
        float *params = malloc(row->count * sizeof *params);
        CHECK_OK(hpc_exchange_get_row(e, i, NULL, params, NULL));
        memset(used, 255, sizeof used);
        for (uint64_t k = 0; k < row->count; k++) {
            const uint64_t at = row->offset + k, who = at % (uint64_t)r->size;
            const uint64_t seen = (uint64_t)(job_initial(&j, row->key, at) - params[k]);
            CHECK(used[who] == UINT64_MAX || used[who] == seen);
            used[who] = seen;
        }
        free(params);
        for (int before = 0; before < i; before++)
            first &= plan->rows[before].owner != me || plan->rows[before].key != row->key ||
                     plan->rows[before].core != row->core || plan->rows[before].action != HPC_APPLY;
        for (int who = 0; who < r->size; who++) {
            if (used[who] == UINT64_MAX) continue; /* a short row */
            const int lowest = lowest_of(r, group_of(r, who));
            const uint64_t told = atomic_load(&r->board[TOLD + row->key * r->size + who]);
            if (used[lowest] != UINT64_MAX) CHECK_EQ(used[who], used[lowest]);
            CHECK(used[who] >> atomic_load(&r->board[PUSHES + who]) == 0);
            CHECK_EQ(told & ~used[who], 0); /* whole: in all rows */
            atomic_fetch_or(&r->board[WORD + row->key * r->size + who], ~used[who] & ((1u << STEPS) - 1));
            if (who == lowest && first)
                left_out[who] += atomic_load(&r->board[PUSHES + who]) - (uint64_t)__builtin_popcountll(used[who]);
        }
    }
    for (int who = 0; who < r->size; who++) {
        CHECK_OK(hpc_exchange_get_peer(e, who, &peer));
        CHECK_EQ(peer.late, left_out[who]);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    uint64_t late = 0;
    for (int key = 0; key < j.n_keys; key++) { /* late: not in all rows */
        const uint64_t missed = atomic_load(&r->board[WORD + key * r->size + me]) & (((uint64_t)1 << pushes) - 1);
        CHECK_EQ(missed, ~whole[key] & (((uint64_t)1 << pushes) - 1));
        late += (uint64_t)__builtin_popcountll(missed);
    }
    CHECK(stats.dropped >= late && (stats.dropped > 0) == (late > 0));
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

/* Each group may have a rate of its own: that of the lowest rank in a fold counts. In one group all give the same, else
 * the exchange ends with an error that says so. */
static void rates(rank *r) {
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    double moved = 0, args[HPC_RULE_ARGS] = {0};
    hpc_exchange *e = open_all(r, &j);
    for (int step = 0; step < 4; step++) {
        const int group = group_of(r, r->rank), stands = step % 3;
        float *one = malloc(j.keys[0].count * sizeof *one);
        args[1] = 1 + group + step;
        CHECK_OK(hpc_exchange_set_args(e, 0, args));
        for (uint64_t i = 0; i < j.keys[0].count; i++) one[i] = 1;
        for (int key = 0; key < j.n_keys && group != stands; key++) {
            if (key == 0)
                CHECK_OK(hpc_exchange_push_pull(e, key, one, -1));
            else
                job_push_pull(r, &j, e, key, step);
        }
        moved += (1 + (stands == 0) + step) * (r->size - 2);
        if (group != stands && stands != 2) CHECK_EQ(hpc_exchange_late(e, -1), 0);
        meet(r, e, (uint64_t)(2 * step + 1));
        if (group == stands)
            for (int key = 0; key < j.n_keys; key++) job_push_pull(r, &j, e, key, step);
        for (uint64_t i = 0; i < j.keys[0].count; i++)
            CHECK(job_initial(&j, 0, i) - hpc_exchange_params(e, 0)[i] == (float)moved);
        meet(r, e, (uint64_t)(2 * step + 2));
        free(one);
    }
    end(e, plan);
}

/* A group that stands still costs one grace and is named by those who wait for it, also where it owns nothing of the
 * key (k1 has one chunk); then it is not waited for, though the grace has no end. */
static void names_slow(rank *r) {
    enum { KEY = 1 };
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    const int stands = group_of(r, r->rank) == LAST;
    uint64_t ticket = 0;
    j.grace = INFINITY;
    hpc_exchange *e = open_all(r, &j);
    for (int i = 0; i < plan->n_rows; i++)
        CHECK(plan->rows[i].key != KEY || plan->rows[i].action != HPC_APPLY ||
              group_of(r, plan->rows[i].owner) != LAST);
    if (!stands) ticket = job_start(r, &j, e, KEY, 0, BOTH, false);
    for (int named = stands; !named;) { /* at first another rank may not have pushed yet */
        CHECK_STATUS(hpc_exchange_wait(e, KEY, ticket, 0.1), HPC_ERR_TIMEOUT);
        const hpc_error *error = hpc_last_error();
        named = error->n_culprits > 0;
        for (int i = 0; i < error->n_culprits; i++) named &= group_of(r, error->culprits[i].rank) == LAST;
    }
    meet(r, e, 1);
    inside_set_grace(e, 0);
    if (!stands) CHECK_OK(hpc_exchange_wait(e, KEY, ticket, -1));
    for (int key = 0; key < 3 && !stands; key += 2) job_push_pull(r, &j, e, key, 0);
    meet(r, e, 2);
    inside_set_grace(e, INFINITY);
    meet(r, e, 3);
    for (int step = 1; step < 4 && !stands; step++) step_of_all(r, &j, e, step);
    if (!stands) CHECK_EQ(hpc_exchange_version(e), 4);
    meet(r, e, 4);
    end(e, plan);
}

/* A rank that has closed is not waited for, and neither is its group, however long the grace; when too few groups are
 * left a push fails. One rank of the last group closes, and the other one does not push. */
static void closed(rank *r) {
    job j;
    reference ref;
    hpc_plan *plan = by_hosts(&j, r, 1);
    j.grace = INFINITY;
    hpc_exchange *e = open_all(r, &j);
    reference_init(&ref, &j);
    const int group = group_of(r, r->rank);
    for (int step = 0; step < 3 - group; step++) {
        for (int key = 0; key < j.n_keys; key++) fold_of(r, &ref, key, step == 0 ? 7 : 3, step);
        if (group == 1 && step == 1) continue;
        if (group == 0 && step == 2) break;
        step_of_all(r, &j, e, step);
        check_params(r, &j, e, &ref);
        if (group == 1) { /* a second step, before the loop does not make it */
            for (int key = 0; key < j.n_keys; key++) fold_of(r, &ref, key, 3, 1);
            step_of_all(r, &j, e, 1);
            check_params(r, &j, e, &ref);
        }
    }
    if (group == LAST && r->rank < r->size - 1) progress_until(r, e, WORD, 1);
    if (group == 0) {
        uint64_t ticket = job_start(r, &j, e, 0, 2, BOTH, false);
        CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, -1), HPC_ERR_PEER);
        CHECK_MESSAGE("no quorum of 2");
        CHECK_EQ(hpc_exchange_version(e), 2);
        rank_set(r, WORD, 1);
    }
    reference_free(&ref);
    end(e, plan);
}

/* A rank closes between two steps; its mate, which makes another one, is told, and the other groups go on. */
static void mate_closes(rank *r) {
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    const int last = r->size - 1;
    hpc_exchange *e = NULL;
    j.grace = INFINITY;
    CHECK_OK(create(r, &j, &e));
    step_of_all(r, &j, e, 0);
    if (group_of(r, r->rank) == LAST && r->rank != last) {
        uint64_t ticket = job_start(r, &j, e, 0, 1, BOTH, false);
        CHECK_STATUS(hpc_exchange_wait(e, 0, ticket, -1), HPC_ERR_PEER);
        CHECK(ranks_error_names(last));
        for (int who = 0; who < last - 1; who++) progress_until(r, e, who, 1); /* it owns rows */
        CHECK_STATUS(hpc_exchange_close(e, -1), HPC_ERR_PEER);
    }
    for (int step = 1; step < 3 && group_of(r, r->rank) != LAST; step++) step_of_all(r, &j, e, step);
    rank_set(r, r->rank, 1);
    if (group_of(r, r->rank) != LAST || r->rank == last) CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
    hpc_plan_free(plan);
}

static bool has_note(const rank *r, const char *text) {
    for (int i = 0; hpc_context_note(r->context, i); i++)
        if (strstr(hpc_context_note(r->context, i), text)) return true;
    return false;
}

/* Pushes that find no quorum any more, and that nobody has waited for, are told by close on all ranks of the group. */
static void lost(rank *r) {
    job j;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    step_of_all(r, &j, e, 0);
    for (int key = 0; key < j.n_keys && group_of(r, r->rank) == 0; key++) job_start(r, &j, e, key, 1, HPC_PUSH, false);
    CHECK_OK(hpc_exchange_close(e, -1));
    CHECK_EQ(has_note(r, "lost the last push of 3 keys of rank"), group_of(r, r->rank) == 0);
    end(e, plan);
}

/* A publish goes to the straggling group too, which is in no fold, and goes on from the newest version. */
static void published(rank *r) {
    job j;
    reference ref;
    hpc_plan *plan = by_hosts(&j, r, 1);
    hpc_exchange *e = open_all(r, &j);
    const int steps = ranks_rounds(20);
    reference_init(&ref, &j);
    for (int step = 0; step < steps; step++) {
        const unsigned groups = step == steps - 1 ? 5 : 3; /* at last the straggler is in it, at once */
        for (int key = 0; key < j.n_keys; key++) fold_of(r, &ref, key, groups, step);
        if (groups >> group_of(r, r->rank) & 1) {
            step_of_all(r, &j, e, step);
            CHECK_EQ(hpc_exchange_version(e), step + 1);
            check_params(r, &j, e, &ref);
        }
        CHECK_EQ(hpc_exchange_late(e, -1), 0);
        if (step == steps - 1) break;
        CHECK_OK(hpc_exchange_publish(e, -1));
        check_params(r, &j, e, &ref);
        CHECK_EQ(hpc_exchange_version(e), step + 1);
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    reference_free(&ref);
    meet(r, e, 1);
    end(e, plan);
}

static void refuses(const rank *r, const job *j, int status, const char *why) {
    hpc_exchange *e = NULL;
    CHECK_STATUS(create(r, j, &e), status);
    CHECK_MESSAGE(why);
}

/* Plans whose groups are not those of one row, and settings that do not go with a quorum. */
static void refused(rank *r) {
    job j;
    hpc_plan *plan = by_hosts(&j, r, 0); /* each owner's host brings its updates rank by rank */
    refuses(r, &j, HPC_ERR_CONFIG, "each rank is in one group, which folds before all rows of a key");
    hpc_plan_free(plan);
    plan = by_hosts(&j, r, 1);
    j.quorum = 4;
    refuses(r, &j, HPC_ERR_INVALID, "gets 3 updates a step, one from each host or rack");
    for (j.quorum = 1; j.quorum <= 3; j.quorum += 2) { /* all groups are refused alike */
        j.eager = 1;
        refuses(r, &j, HPC_ERR_UNSUPPORTED, "a quorum of servers does not go with eager folds");
        j.eager = 0, j.each = 1;
        refuses(r, &j, HPC_ERR_UNSUPPORTED, "a quorum of servers does not go with consistency ASYNC");
        j.each = 0, j.shared_params = 1;
        refuses(r, &j, HPC_ERR_UNSUPPORTED, "a quorum of servers does not go with shared_params");
        j.shared_params = 0;
    }
    hpc_plan_free(plan);
    hand_plan *h = hand_new();
    j.quorum = 1;
    j.plan = &h->plan;
    hand_relay(h, &j, r->size, 512);
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "apply the same elements; with a quorum they have one owner");
    hand_racks(h, &j, r->size, HPC_F32, 512);
    h->rows[0].in++, h->rows[0].n_in = h->rows[0].quorum = 1;
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "forwards to a row that applies, and has one input");
    hand_racks(h, &j, r->size, HPC_F32, 512);
    h->rows[0].owner = 3; /* what ranks 0 and 1 push */
    ((hpc_edge *)h->rows[h->rows[0].out[0].row].in)->rank = 3;
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "row 0 forwards to a row that applies, and its owner does not push to it");
    hand_racks(h, &j, r->size, HPC_F32, 512);
    ((hpc_edge *)h->rows[0].in)->weight = -1;
    refuses(r, &j, HPC_ERR_UNSUPPORTED, "row 0 emits, or has a weight of 0 or less, or a quorum of its own");
    free(h);
}

#define HOSTS(n, what) ((n)*HOSTS_OF + (what))

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "stands still", .size = 6, .run = stands_still, .arg = HOSTS(2, SUM | 2)},
        {.name = "stands still, means", .size = 8, .run = stands_still, .arg = HOSTS(2, THREADS | DEEP | 2)},
        {.name = "stands still, sleepy",
         .size = 6,
         .run = stands_still,
         .arg = HOSTS(2, SUM | THREADS | 2),
         .sleepy = true},
        {.name = "stands still, racks", .size = 6, .run = stands_still, .arg = HOSTS(1, SUM | RACKS | DEEP | 2)},
        {.name = "stands still, uneven", .size = 4, .run = stands_still, .arg = HOSTS(0, SUM | 2)},
        {.name = "stands still, by hand", .size = 6, .run = stands_still, .arg = HOSTS(2, SUM | HAND | THREADS | 2)},
        {.name = "nothing is lost", .size = 6, .run = nothing_is_lost, .arg = HOSTS(2, SUM | 2)},
        {.name = "nothing is lost, threads", .size = 4, .run = nothing_is_lost, .arg = HOSTS(2, SUM | THREADS | 1)},
        {.name = "nothing is lost, uneven", .size = 4, .run = nothing_is_lost, .arg = HOSTS(0, SUM | DEEP | 2)},
        {.name = "nothing is lost, racks", .size = 8, .run = nothing_is_lost, .arg = HOSTS(2, SUM | RACKS | DEEP | 1)},
        {.name = "nothing is lost, two transports",
         .size = 6,
         .run = nothing_is_lost,
         .arg = HOSTS(2, SUM | THREADS | 2),
         .per_host = 2},
        {.name = "rates", .size = 6, .run = rates, .arg = HOSTS(2, SUM | 2)},
        {.name = "names slow", .size = 6, .run = names_slow, .arg = HOSTS(2, THREADS | 2), .where = RANKS_UNSEEDED},
        {.name = "closed", .size = 6, .run = closed, .arg = HOSTS(2, SUM | 2)},
        {.name = "closed, threads, sleepy",
         .size = 6,
         .run = closed,
         .arg = HOSTS(2, SUM | THREADS | 2),
         .sleepy = true},
        {.name = "mate closes", .size = 6, .run = mate_closes, .arg = HOSTS(2, SUM | 2), .apart = true},
        {.name = "lost", .size = 6, .run = lost, .arg = HOSTS(2, 2)},
        {.name = "published", .size = 6, .run = published, .arg = HOSTS(2, SUM | 2)},
        {.name = "refused", .size = 6, .run = refused, .arg = HOSTS(2, 1)},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
