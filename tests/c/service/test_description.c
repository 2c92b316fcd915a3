/* The description of an exchange: what is written comes back, and what a hub does not take is refused in a sentence. */
#include "check.h"
#include "plan/plan.h"
#include "service/description.h"

enum { N = 3, MOST = 4096 };

static const hpc_key keys[N] = {{"w", 21000, 70}, {"b", 70, 0}, {"big", 150000, 4096}};

typedef struct arguments {
    hpc_hub hub;
    hpc_exchange_config config;
    hpc_rule sgd, prox;
    hpc_codec_config topk;
    const hpc_rule *rules[N];
    const hpc_codec_config *codecs[N];
    int wires[N];
} arguments;

static void init(arguments *a) {
    memset(a, 0, sizeof *a);
    CHECK_OK(hpc_plan_args_init("hub", &a->hub, sizeof a->hub));
    hpc_exchange_config_init(&a->config);
    hpc_codec_config_init(&a->topk);
    CHECK_OK(hpc_rule_find("sgd", HPC_ISA_GENERIC, &a->sgd));
    CHECK_OK(hpc_rule_find("proxsgd", HPC_ISA_BEST, &a->prox));
    CHECK_OK(hpc_prox_find("elastic_net", HPC_ISA_BEST, &a->prox.prox));
    a->prox.name = "proxsgd(elastic net)";
    a->prox.columns = 70;
    a->prox.args[3] = 0.25;
    a->topk.fraction = 0.125;
    a->topk.values = HPC_F16;
    a->wires[2] = HPC_TOPK;
    a->rules[0] = &a->prox, a->rules[1] = a->rules[2] = &a->sgd;
    a->codecs[2] = &a->topk;
    a->hub.keys = keys, a->hub.n_keys = a->hub.n_wires = N;
    a->hub.wires = a->wires;
    a->hub.cores = 4, a->hub.interfaces = 2, a->hub.depth = 3, a->hub.chunk = 1 << 16, a->hub.least = 1 << 14;
    a->hub.sum = 1, a->hub.codec_out = HPC_BF16, a->hub.affinity = HPC_WORKER_BY_INTERFACE;
    a->config.rules = a->rules;
    a->config.codecs = a->codecs;
    a->config.consistency = HPC_SSP, a->config.staleness = 2, a->config.split = 1, a->config.grace = 0.5;
}

static int64_t written(const arguments *a, unsigned char message[MOST]) {
    const hpc_hub *hubs[] = {&a->hub};
    return hpc_description_write(hubs, NULL, &a->config, message, MOST);
}

static void test_it_comes_back(void) {
    arguments a;
    unsigned char message[MOST];
    hpc_description *d = NULL;
    init(&a);
    const int64_t n = written(&a, message);
    CHECK(n > 0 && n < MOST);
    CHECK_OK(hpc_description_read(message, (size_t)n, 4, &d));
    CHECK_EQ(d->n_schemes, 1);
    const hpc_described_scheme *s = d->schemes;
    const hpc_hub *hub = &s->hub;
    CHECK_EQ(hub->n_keys, N);
    for (int k = 0; k < N; k++) {
        CHECK(strcmp(hub->keys[k].name, keys[k].name) == 0);
        CHECK(hub->keys[k].count == keys[k].count && hub->keys[k].unit == keys[k].unit);
        CHECK_EQ(hub->wires[k], a.wires[k]);
        CHECK_EQ(hub->codecs_out[k], HPC_BF16);
    }
    CHECK(hub->cores == 4 && hub->interfaces == 2 && hub->depth == 3 && hub->chunk == 1 << 16 && hub->least == 1 << 14);
    CHECK(hub->sum == 1 && hub->each == 0 && hub->affinity == HPC_WORKER_BY_INTERFACE && hub->apply_at == 0);
    CHECK(s->config.consistency == HPC_SSP && s->config.staleness == 2 && s->config.quorum == 0);
    CHECK(s->config.split == 1 && s->config.shared_params == 0 && s->config.grace == 0.5);
    CHECK(strcmp(s->rules[0]->name, "proxsgd(elastic net)") == 0 && s->rules[0]->prox != NULL);
    CHECK(s->rules[0]->columns == 70 && s->rules[0]->args[3] == 0.25);
    CHECK(strcmp(s->rules[1]->name, "sgd") == 0 && s->rules[1]->prox == NULL && s->rules[1]->args[1] == 0.01);
    CHECK(s->codecs[0] == NULL && s->codecs[2]->fraction == 0.125 && s->codecs[2]->values == HPC_F16);
    CHECK_OK(hpc_description_plan(d, 2, 2));
    CHECK_OK(hpc_description_plan(d, 2, 2)); /* it keeps the first */
    CHECK_OK(hpc_plan_check(d->schemes[0].plan, 4));
    const uint64_t both = hpc_description_memory(d, 2, 2, 1, 2) + hpc_description_memory(d, 2, 2, 1, 3);
    CHECK(both / 2 == hpc_description_memory(d, 2, 2, 1, -1));
    hpc_description_free(d);
    hpc_description_free(NULL);
}

static int apply_own(float *param, const float *acc, int64_t count, float *state, const double *args, int64_t n) {
    (void)param, (void)acc, (void)count, (void)state, (void)args, (void)n;
    return 0;
}

static int prox_own(float *param, int64_t rows, int64_t columns, const double *args) {
    (void)param, (void)rows, (void)columns, (void)args;
    return 0;
}

static int64_t filter_own(const float *x, float *residual, int64_t n, float delta, void *values, uint8_t *bits) {
    (void)x, (void)residual, (void)n, (void)delta, (void)values, (void)bits;
    return 0;
}

/* Checks that arguments are refused, and makes them good again. */
static void check_refused(arguments *a, const char *wrong) {
    unsigned char message[MOST];
    CHECK_STATUS((int)written(a, message), HPC_ERR_INVALID);
    CHECK_MESSAGE(wrong);
    init(a);
}

static void check_own_refused(arguments *a, const char *whose) {
    char sentence[256];
    snprintf(sentence, sizeof sentence,
             "%s is the user's own: a hub runs none of its tenants' code: give a rule or a codec of hpcomm", whose);
    check_refused(a, sentence);
}

static void test_code_of_a_user_is_refused(void) {
    arguments a;
    init(&a);
    a.sgd.apply = apply_own;
    check_own_refused(&a, "rule sgd");
    a.prox.prox = prox_own;
    check_own_refused(&a, "the prox of rule proxsgd(elastic net)");
    a.topk.filter = filter_own;
    check_own_refused(&a, "the filter of codec topk");
    a.topk.name = "mine";
    a.wires[2] = HPC_OWN_CODEC;
    check_own_refused(&a, "codec mine");
}

static void test_other_arguments_are_refused(void) {
    static char long_name[HPC_KEY_NAME_BYTES + 2];
    const int parents[N] = {-1, -1, -1};
    const hpc_graph graph = {0};
    arguments a;
    init(&a);
    a.config.graph = &graph;
    check_refused(&a, "graph is given: it is for graphs, and at a hub servers apply the rule");
    a.config.in_place = 1;
    check_refused(&a, "in_place is True: it is for graphs, and at a hub servers apply the rule");
    a.hub.parents = parents;
    check_refused(&a, "leave tree out");
    a.hub.n_wires = 1;
    check_refused(&a, "a hub's plan has 3 keys, n_wires is 1");
    a.rules[1] = NULL;
    check_refused(&a, "the rule of key b is NULL");
    a.config.rules = NULL;
    check_refused(&a, "rule is NULL");
    a.topk.size = 8;
    check_refused(&a, "call hpc_codec_config_init first");
    memset(long_name, 'x', sizeof long_name - 1);
    const hpc_key longest[] = {{long_name, 1, 0}, keys[1], keys[2]};
    a.hub.keys = longest;
    check_refused(&a, "the name of key 0 has 1025 bytes: a hub takes 1 to 1024");
    CHECK_EQ(hpc_description_write(NULL, NULL, &a.config, NULL, 0), HPC_ERR_INVALID);
}

static void test_an_exchange_needs_its_plans(void) {
    arguments a;
    unsigned char message[MOST];
    hpc_description *d = NULL;
    hpc_exchange *exchange = NULL;
    init(&a);
    CHECK_OK(hpc_description_read(message, (size_t)written(&a, message), 4, &d));
    CHECK_STATUS(hpc_description_exchange(d, NULL, 1, 1, &exchange), HPC_ERR_INVALID);
    CHECK_MESSAGE("call hpc_description_plan first");
    CHECK_STATUS(hpc_description_plan(d, 0, 1), HPC_ERR_INVALID);
    hpc_description_free(d);
}

/* ---- racks ---- */

enum { WORKERS = 4, HUBS = 2 };

static const int groups[] = {0, 0, 2, 3, 0, 0, 1, 1}; /* hosts, then racks */

typedef struct racked {
    arguments a;
    hpc_hosts hosts;
} racked;

static void init_racks(racked *r) {
    init(&r->a);
    memset(r->a.wires, 0, sizeof r->a.wires);
    r->a.codecs[2] = NULL;
    hpc_hub_to_hosts(&r->a.hub, &(hpc_hub_racks){WORKERS, groups, HPC_TOP_SHARDED, 1}, &r->hosts);
}

static int64_t written_racks(const racked *r, unsigned char message[MOST]) {
    const hpc_hosts *racks[] = {&r->hosts};
    return hpc_description_write(NULL, racks, &r->a.config, message, MOST);
}

static hpc_description *read_racks(const racked *r) {
    unsigned char message[MOST];
    hpc_description *d = NULL;
    CHECK_OK(hpc_description_read(message, (size_t)written_racks(r, message), 4, &d));
    return d;
}

static void test_racks_come_back_with_the_plan_of_a_hierarchy(void) {
    const int all[] = {0, 1, 2, 3, 4, 5}, serves[] = {0, 0, 0, 0, 1, 1};
    const int planned[] = {0, 0, 2, 3, 9, 9, 0, 0, 1, 1, 0, 1};
    racked r;
    hpc_plan *plan = NULL;
    init_racks(&r);
    hpc_description *d = read_racks(&r);
    const hpc_described_scheme *s = d->schemes;
    CHECK(s->racks.n == WORKERS && s->racks.top == HPC_TOP_SHARDED && s->racks.apart == 1);
    CHECK(memcmp(s->racks.groups, groups, sizeof groups) == 0);
    CHECK(s->n_hosts == 3 && s->n_shared == 1);
    CHECK_OK(hpc_description_plan(d, WORKERS, HUBS));
    r.hosts.workers = all, r.hosts.n_workers = WORKERS + HUBS, r.hosts.groups = planned, r.hosts.serves = serves;
    CHECK_OK(hpc_plan_make("hosts", &r.hosts, &plan));
    CHECK_OK(hpc_plan_check(plan, WORKERS + HUBS));
    CHECK(hpc_plan_digest(plan) == hpc_plan_digest(s->plan));
    hpc_plan_free(plan);
    hpc_description_free(d);
}

/* Without racks a hub exchanges data with all workers, and in racks with those of its own and the other hubs. */
static void test_lanes_of_a_rack_reach_its_workers_and_other_hubs(void) {
    racked r;
    unsigned char message[MOST];
    hpc_description *flat = NULL;
    init_racks(&r);
    hpc_description *d = read_racks(&r);
    CHECK_OK(hpc_description_read(message, (size_t)written(&r.a, message), 4, &flat));
    CHECK_OK(hpc_description_plan(d, WORKERS, HUBS));
    CHECK_OK(hpc_description_plan(flat, WORKERS, HUBS));
    CHECK_EQ(hpc_description_descriptors(flat, WORKERS, HUBS - 1, WORKERS, 1), 1 + 2 * 4 * WORKERS);
    CHECK_EQ(hpc_description_descriptors(d, WORKERS, HUBS - 1, WORKERS + 1, 1), 1 + 2 * 4 * (2 + HUBS - 1));
    CHECK_EQ(hpc_description_descriptors(d, 1, 0, WORKERS, 1), 1 + 2 * 4);
    hpc_description_free(flat);
    hpc_description_free(d);
}

static void check_plan_refused(const int *wrong, int workers, int hubs, const char *why) {
    racked r;
    init_racks(&r);
    if (wrong != NULL) r.hosts.groups = wrong;
    hpc_description *d = read_racks(&r);
    CHECK_STATUS(hpc_description_plan(d, workers, hubs), HPC_ERR_INVALID);
    CHECK_MESSAGE(why);
    hpc_description_free(d);
}

static void test_racks_that_do_not_fit_the_job_are_refused(void) {
    static const int same[] = {0, 1, 2, 3, 0, 0, 0, 0}, split[] = {0, 1, 2, 2, 0, 0, 0, 1};
    check_plan_refused(NULL, 3, HUBS, "racks have 4 workers, and the job has 3");
    check_plan_refused(NULL, WORKERS, 1, "rank 2 is in rack 1, and the job has 1 hubs: each rack has one hub");
    check_plan_refused(NULL, WORKERS, 3, "no worker is in the rack of hub 2");
    check_plan_refused(same, WORKERS, HUBS, "no worker is in the rack of hub 1");
    check_plan_refused(split, WORKERS, HUBS, "ranks 2 and 3 share group 2 of level 0");
}

static void check_racks_refused(racked *r, const char *why) {
    unsigned char message[MOST];
    CHECK_STATUS((int)written_racks(r, message), HPC_ERR_INVALID);
    CHECK_MESSAGE(why);
    init_racks(r);
}

static void test_racks_out_of_range_are_refused(void) {
    const int no_host[] = {0, -1, 2, 3, 0, 0, 1, 1}, no_rack[] = {0, 0, 2, 3, 0, -1, 1, 1};
    const int beyond[] = {0, 0, 2, 3, 0, 0, 64, 1};
    racked r;
    init_racks(&r);
    r.hosts.groups = no_host;
    check_racks_refused(&r, "the host of rank 1 is -1");
    r.hosts.groups = no_rack;
    check_racks_refused(&r, "the rack of rank 1 is -1: must be the number of a hub, 0 to 63");
    r.hosts.groups = beyond;
    check_racks_refused(&r, "the rack of rank 2 is 64");
    r.hosts.top = 2;
    check_racks_refused(&r, "top is 2");
    r.hosts.apply_at = HPC_AT_RECEIVERS;
    check_racks_refused(&r, "apply_at is 1 and racks are given");
    r.hosts.serves = groups;
    check_racks_refused(&r, "serves is given beside racks");
    r.hosts.n_levels = 1;
    check_racks_refused(&r, "give hosts and racks, so 2 levels");
    r.hosts.size = 8;
    check_racks_refused(&r, "not of hpc_plan_args_init");
}

int main(void) {
    test_racks_come_back_with_the_plan_of_a_hierarchy();
    test_lanes_of_a_rack_reach_its_workers_and_other_hubs();
    test_racks_that_do_not_fit_the_job_are_refused();
    test_racks_out_of_range_are_refused();
    test_it_comes_back();
    test_code_of_a_user_is_refused();
    test_other_arguments_are_refused();
    test_an_exchange_needs_its_plans();
    return 0;
}
