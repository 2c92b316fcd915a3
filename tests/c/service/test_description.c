/* The description of an exchange: what is written comes back, and what a hub does not take is refused in a sentence. */
#include "check.h"
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
    return hpc_description_write(hubs, &a->config, message, MOST);
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

static void check_refused(const arguments *a, const char *wrong) {
    unsigned char message[MOST];
    CHECK_STATUS((int)written(a, message), HPC_ERR_INVALID);
    CHECK_MESSAGE(wrong);
}

static void test_code_of_a_user_is_refused(void) {
    static const char why[] =
        "is the user's own: a hub runs none of its tenants' code: give a rule or a codec of hpcomm";
    arguments a;
    char sentence[256];
    init(&a);
    a.sgd.apply = apply_own;
    snprintf(sentence, sizeof sentence, "rule sgd %s", why);
    check_refused(&a, sentence);
    init(&a);
    a.prox.prox = prox_own;
    snprintf(sentence, sizeof sentence, "the prox of rule proxsgd(elastic net) %s", why);
    check_refused(&a, sentence);
    init(&a);
    a.topk.filter = filter_own;
    snprintf(sentence, sizeof sentence, "the filter of codec topk %s", why);
    check_refused(&a, sentence);
    init(&a);
    a.topk.name = "mine";
    a.wires[2] = HPC_OWN_CODEC;
    snprintf(sentence, sizeof sentence, "codec mine %s", why);
    check_refused(&a, sentence);
}

static void test_other_arguments_are_refused(void) {
    static char long_name[HPC_KEY_NAME_BYTES + 2];
    const int parents[N] = {-1, -1, -1};
    const hpc_graph graph = {0};
    arguments a;
    init(&a);
    a.config.graph = &graph;
    check_refused(&a, "graph is given: it is for graphs, and at a hub servers apply the rule");
    init(&a);
    a.config.in_place = 1;
    check_refused(&a, "in_place is True: it is for graphs, and at a hub servers apply the rule");
    init(&a);
    a.hub.parents = parents;
    check_refused(&a, "leave tree out");
    init(&a);
    a.hub.n_wires = 1;
    check_refused(&a, "a hub's plan has 3 keys, n_wires is 1");
    init(&a);
    a.rules[1] = NULL;
    check_refused(&a, "the rule of key b is NULL");
    init(&a);
    a.config.rules = NULL;
    check_refused(&a, "rule is NULL");
    init(&a);
    a.topk.size = 8;
    check_refused(&a, "call hpc_codec_config_init first");
    init(&a);
    memset(long_name, 'x', sizeof long_name - 1);
    const hpc_key longest[] = {{long_name, 1, 0}, keys[1], keys[2]};
    a.hub.keys = longest;
    check_refused(&a, "the name of key 0 has 1025 bytes: a hub takes 1 to 1024");
    CHECK_EQ(hpc_description_write(NULL, &a.config, NULL, 0), HPC_ERR_INVALID);
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

int main(void) {
    test_it_comes_back();
    test_code_of_a_user_is_refused();
    test_other_arguments_are_refused();
    test_an_exchange_needs_its_plans();
    return 0;
}
