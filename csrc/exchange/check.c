/* Checks the configuration of an exchange: first on this rank, then that all ranks gave the same one. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/isa.h"
#include "discipline/discipline.h"
#include "discipline/graph.h"
#include "exchange/exchange.h"
#include "kernel/rule.h"

static const char op_create[] = "exchange";

enum { NAME_BYTES = 64 };

/* A rank's description of its exchange, which all ranks compare with their own. An array of n_keys key_descriptions
 * follows it in memory. */
struct description {
    uint64_t digest; /* of the plan */
    double grace;
    int32_t consistency, shared_params, in_place, n_keys, n_phases, staleness, quorum, split;
    int32_t n_schemes, unused;
};

struct key_description {
    char name[NAME_BYTES]; /* its beginning; the digest covers the whole name */
    uint64_t count;
    char rule[NAME_BYTES];
    double args[HPC_RULE_ARGS];
    int32_t slots, has_fold, fold_wires, dual, prox_whole;
    uint64_t columns; /* 0: the rule has no prox */
    char prox[NAME_BYTES];
    hpc_codec_description codec;
};

static int is_edge(const hpc_graph *g, int to, int from) {
    size_t ranks = (size_t)g->ranks;
    for (size_t p = 0; p < (size_t)g->n_phases; p++)
        if (g->weights[(p * ranks + (size_t)to) * ranks + (size_t)from] != 0) return 1;
    return 0;
}

/* Refuses a row of a graph unless its owner folds and applies it, and its in-edges equal the graph's in order and
 * weight. */
static int check_graph_row(const hpc_graph *g, const hpc_row *row, int i) {
    int edges = 0, sound = row->action == HPC_APPLY && row->n_out == 1 && row->out[0].rank == row->owner;
    for (int from = 0; from < g->ranks; from++) {
        if (!is_edge(g, row->owner, from)) continue;
        const hpc_edge *edge = edges < row->n_in ? &row->in[edges] : NULL;
        sound &= edge != NULL && edge->row < 0 && edge->rank == from &&
                 edge->weight == g->weights[(size_t)row->owner * (size_t)g->ranks + (size_t)from];
        edges++;
    }
    if (sound && edges == row->n_in && row->quorum == row->n_in) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, op_create,
                    "exchange: row %d is not of the graph: make the plan by planner \"graph\"", i);
}

/* Checks plans in which receivers apply the fold that one row makes from all updates (hpc_apply_at). Under SSP the
 * discipline refuses other plans. */
static int check_receivers(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows && f->consistency == HPC_BSP; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->action != HPC_APPLY || row->n_in != 1 || row->in[0].row < 0) continue;
        const hpc_rule *rule = hpc_config_rule(f, row->key);
        if (rule->fold != NULL)
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: rule %s has a fold of its own, by which row %d would fold a sum again: let "
                            "owners apply it (apply_at), or give a rule of the weighted sum",
                            rule->name, i);
    }
    return HPC_OK;
}

/* Checks that a user's fold function reads elements of the wire's size; with another size it would read and write past
 * a block. */
static int check_fold(const hpc_exchange_config *f) {
    char names[NAME_BYTES];
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_rule *rule = hpc_config_rule(f, f->plan->rows[i].key);
        const unsigned wires = rule->fold == NULL ? 0 : rule->fold_wires;
        int codec = f->plan->rows[i].codec_in;
        if (wires == 0 || wires >> codec & 1 || f->plan->rows[i].action == HPC_RELAY) continue;
        hpc_codec_names(wires, names, sizeof names);
        return hpc_fail(
            HPC_ERR_CONFIG, op_create,
            "exchange: the fold of rule %s reads%s, and row %d takes its inputs as %s: give a wire that the "
            "fold reads, or another fold",
            rule->name, names, i, hpc_codec_of(codec)->name);
    }
    return HPC_OK;
}

/* Refuses plans whose pushes reach rows through other ranks, unless the discipline has HPC_PASSES_ON. */
static int check_via(const hpc_exchange_config *f) {
    const hpc_discipline *d = hpc_discipline_of(f);
    for (int i = 0; i < f->plan->n_rows && (d == NULL || !(d->traits & HPC_PASSES_ON)); i++)
        for (int e = 0; e < f->plan->rows[i].n_in; e++)
            if (hpc_edge_via(&f->plan->rows[i].in[e]) >= 0)
                return hpc_fail(
                    HPC_ERR_UNSUPPORTED, op_create,
                    "exchange: row %d takes pushes of rank %d by way of rank %d; that needs peers under BSP "
                    "or SSP",
                    i, f->plan->rows[i].in[e].rank, hpc_edge_via(&f->plan->rows[i].in[e]));
    return HPC_OK;
}

/* A prox gets whole rows of the key's matrix, so chunks must not cut such rows. */
static int check_prox(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        const hpc_key *key = &f->plan->keys[row->key];
        const hpc_rule *rule = hpc_config_rule(f, row->key);
        if (rule->prox == NULL || row->action != HPC_APPLY) continue;
        if (key->count % rule->columns != 0)
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: key %s has %llu elements, and the prox of rule %s reads rows of %llu: give "
                            "the rule the columns of the key's matrix",
                            key->name, (unsigned long long)key->count, rule->name, (unsigned long long)rule->columns);
        const uint64_t unit = rule->prox_whole ? key->count : rule->columns;
        if (row->offset % unit == 0 && row->count % unit == 0) continue;
        return hpc_fail(
            HPC_ERR_CONFIG, op_create,
            "exchange: row %d has %llu elements at offset %llu of key %s, and the prox of rule %s reads %s: "
            "make the plan with a unit of %llu elements for that key",
            i, (unsigned long long)row->count, (unsigned long long)row->offset, key->name, rule->name,
            rule->prox_whole ? "the whole matrix" : "whole rows of the matrix", (unsigned long long)unit);
    }
    return HPC_OK;
}

/* Checks inputs of weight 0: such a push has no bytes and only says that its rank is ready. */
static int check_empty(const hpc_exchange_config *f) {
    const hpc_discipline *d = hpc_discipline_of(f);
    for (int i = 0; i < f->plan->n_rows && f->graph == NULL; i++) {
        const hpc_row *row = &f->plan->rows[i];
        int empty = 0;
        if (i > 0 && row->in == row[-1].in)
            continue; /* the row has the edges of the row before, as most rows of a hub have */
        for (int e = 0; e < row->n_in; e++) empty += row->in[e].row < 0 && row->in[e].weight == 0;
        if (empty == row->n_in)
            return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: all %d inputs of row %d have weight 0", row->n_in, i);
        if (empty > 0 && (d == NULL || !(d->traits & HPC_WHOLE)))
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: row %d takes a push with weight 0, which only tells that its rank is ready; "
                            "that needs BSP",
                            i);
    }
    return HPC_OK;
}

/* Checks parameters that are encoded, and so rounded, when they are sent: they need a master separate from all workers'
 * parameters, and a copy of the parameters for each worker. */
static int check_encoded(const hpc_exchange_config *f) {
    for (int i = 0; i < f->plan->n_rows && (f->graph != NULL || f->shared_params); i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->action == HPC_FORWARD || hpc_codec_of(row->codec_out)->plain) continue;
        return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: row %d sends parameters as %s; %s", i,
                        hpc_codec_of(row->codec_out)->name,
                        f->graph != NULL ? "on a graph they stay at their rank, as float32"
                                         : "with shared_params all workers read the owner's float32: leave one of the "
                                           "two out");
    }
    return HPC_OK;
}

/* Checks in_place: it needs a graph, the rule average and no quorum. If models rotate (float32), it also needs two
 * slots. */
static int check_in_place(const hpc_exchange_config *f) {
    for (int k = 0; k < f->plan->n_keys && f->in_place; k++)
        if (f->graph == NULL || !hpc_rule_averages(hpc_config_rule(f, k)))
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: in_place needs a graph and rule average; here are %s and rule %s",
                            f->graph == NULL ? "servers" : "a graph", hpc_config_rule(f, k)->name);
    if (f->in_place && f->quorum > 0)
        return hpc_fail(
            HPC_ERR_UNSUPPORTED, op_create,
            "exchange: quorum is %d and in_place 1: a straggler would read a model while it is trained; give "
            "one of the two",
            f->quorum);
    if (hpc_models_rotate(f) && f->plan->rows[0].depth < 2)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: in_place needs a plan of depth 2 or more, as one of the slots is the model; this "
                        "one has %d",
                        f->plan->rows[0].depth);
    return HPC_OK;
}

static int check_graph(const hpc_context *c, const hpc_exchange_config *f) {
    const hpc_graph *g = f->graph;
    int status = hpc_graph_check(g);
    if (status != HPC_OK) return status;
    if (g->ranks != c->group.size)
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: the graph has %d ranks, the job %d", g->ranks,
                        c->group.size);
    if (f->shared_params)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: shared_params is for servers; on a graph every rank has its own parameters");
    for (int i = 0; i < f->plan->n_rows && status == HPC_OK; i++) status = check_graph_row(g, &f->plan->rows[i], i);
    return status;
}

/* Returns whether a quorum counts the inputs of a row. Only rows that make parameters have a quorum; forwards and
 * relays wait for all inputs. */
static int counts_inputs(const hpc_row *row) {
    return row->action == HPC_APPLY || row->action == HPC_EMIT;
}

static int check_quorum(const hpc_exchange_config *f) {
    if (f->quorum < 0)
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: quorum is %d; must be 1 or more, or 0 for all inputs",
                        f->quorum);
    if (isnan(f->grace)) return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: grace is NaN; must be seconds");
    for (int i = 0; i < f->plan->n_rows && f->graph == NULL; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (!counts_inputs(row) || f->quorum <= row->n_in) continue;
        int groups = 0;
        for (int e = 0; e < row->n_in; e++) groups |= row->in[e].row >= 0;
        return hpc_fail(HPC_ERR_INVALID, op_create,
                        "exchange: quorum is %d, but key %s gets %d update%s a step, one from each %s: give a quorum "
                        "from 1 to %d",
                        f->quorum, f->plan->keys[row->key].name, row->n_in, row->n_in == 1 ? "" : "s",
                        groups ? "host or rack" : "worker", row->n_in);
    }
    return HPC_OK;
}

/* Returns HPC_OK if the configuration has no quorum, or if a discipline with a quorum accepts it. That discipline is
 * also asked if the quorum is all inputs, because with another plan the same number may be less than all. */
static int check_quorum_discipline(const hpc_context *c, const hpc_exchange_config *f) {
    hpc_exchange_config one = *f;
    int most = 0;
    if (f->quorum == 0) return HPC_OK;
    for (int i = 0; i < f->plan->n_rows; i++)
        if (counts_inputs(&f->plan->rows[i]) && f->plan->rows[i].n_in - (f->graph != NULL) > most)
            most = f->plan->rows[i].n_in - (f->graph != NULL);
    one.quorum = 1;
    const hpc_discipline *d = hpc_discipline_of(&one);
    if (d != NULL && d->traits & HPC_BY_QUORUM) return d->check(c, f);
    if (most <= 1) return HPC_OK; /* a row with one input always waits for all */
    return hpc_fail(HPC_ERR_UNSUPPORTED, op_create,
                    "exchange: quorum is %d; this build has no discipline with a quorum %s", f->quorum,
                    f->graph != NULL ? "on a graph" : "with servers");
}

static int check_discipline(const hpc_context *c, const hpc_exchange_config *f) {
    const hpc_discipline *d = hpc_discipline_of(f);
    if (d == NULL && (f->consistency < HPC_BSP || f->consistency > HPC_BARRIER))
        return hpc_fail(HPC_ERR_INVALID, op_create,
                        "exchange: consistency is %d, not 0 (BSP), 1 (ASYNC), 2 (NOTIFY_ACK), 3 (SSP) or 4 (BARRIER)",
                        f->consistency);
    if (d == NULL)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op_create, "exchange: this build has no consistency %s %s",
                        hpc_consistency_name(f->consistency), f->graph != NULL ? "on a graph" : "with servers");
    if (f->split && d->use == NULL && !(d->traits & HPC_EACH))
        return hpc_fail(
            HPC_ERR_UNSUPPORTED, op_create,
            "exchange: split with a quorum needs workers that push to owners themselves, or a graph; here is %s %s",
            d->name, f->graph != NULL ? "on a graph" : "with servers");
    return d->check == NULL ? HPC_OK : d->check(c, f);
}

int hpc_scheme_check_config(const hpc_context *c, const hpc_exchange_config *f) {
    if (f == NULL) return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: config is NULL");
    if (f->size != sizeof *f)
        return hpc_fail(HPC_ERR_INVALID, op_create,
                        "exchange: config->size is %zu, not %zu: call hpc_exchange_config_init first", f->size,
                        sizeof *f);
    if (f->refusal != NULL) return hpc_fail(HPC_ERR_INVALID, op_create, "%s", f->refusal);
    if (f->plan == NULL || (f->rule == NULL && f->rules == NULL))
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: %s is NULL", f->plan == NULL ? "plan" : "rule");
    if (f->progress < HPC_PROGRESS_AUTO || f->progress > HPC_PROGRESS_THREAD)
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: progress is %d, not 0 (auto), 1 (inline) or 2 (thread)",
                        f->progress);
    if (f->threads < 0 || f->threads > HPC_MOST_THREADS)
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: threads is %d; it must be 0 to %d", f->threads,
                        HPC_MOST_THREADS);
    if (!(f->weight >= 0 && f->weight <= DBL_MAX))
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: weight is %g; must be 0 or more", f->weight);
    if (f->patience != 0 && !(f->patience >= 1 && f->patience <= DBL_MAX))
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: patience is %g; must be 1 or more, or 0", f->patience);
    int status = hpc_isa_check(f->isa, op_create);
    if (status == HPC_OK) status = hpc_plan_check(f->plan, c->group.size);
    for (int k = 0; status == HPC_OK && k < (f->rules == NULL ? 1 : f->plan->n_keys); k++)
        status =
            hpc_config_rule(f, k) != NULL
                ? hpc_rule_check(hpc_config_rule(f, k), op_create)
                : hpc_fail(HPC_ERR_INVALID, op_create, "exchange: the rule of key %s is NULL", f->plan->keys[k].name);
    if (status == HPC_OK) status = check_fold(f);
    if (status == HPC_OK) status = check_prox(f);
    if (status == HPC_OK) status = check_receivers(f);
    if (status == HPC_OK) status = check_empty(f);
    if (status == HPC_OK) status = check_via(f);
    if (status == HPC_OK) status = check_encoded(f);
    if (status == HPC_OK) status = hpc_codecs_check(f);
    if (status == HPC_OK) status = check_quorum(f);
    if (status == HPC_OK) status = check_in_place(f);
    if (status == HPC_OK && f->graph != NULL) status = check_graph(c, f);
    if (status == HPC_OK) status = check_quorum_discipline(c, f);
    if (status == HPC_OK) status = check_discipline(c, f);
    if (status != HPC_OK) return status;
    for (int k = 0; c->group.rank == 0 && k < f->plan->n_keys; k++)
        if (f->values == NULL || f->values[k] == NULL)
            return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: rank 0 gives no initial values of key %s",
                            f->plan->keys[k].name);
    return HPC_OK;
}

/* Returns whether a description from another process has the right length. Terminates its strings. */
static int is_sound(hpc_reply *reply) {
    struct description *d = reply->data;
    if (reply->nbytes < sizeof *d || d->n_keys < 0 ||
        reply->nbytes != sizeof *d + (size_t)d->n_keys * sizeof(struct key_description))
        return 0;
    struct key_description *keys = (void *)(d + 1);
    for (int k = 0; k < d->n_keys; k++)
        keys[k].name[NAME_BYTES - 1] = keys[k].rule[NAME_BYTES - 1] = keys[k].prox[NAME_BYTES - 1] = 0;
    return 1;
}

/* Compares the rules of a key. own: this rank's rule of the key, from which the error takes the names of the arguments;
 * NULL if this rank does not have the key. */
static int compare_rules(int r, const struct key_description *k, const struct key_description *f,
                         const hpc_key_rule *own) {
    const char *names = own != NULL && strcmp(own->name, k->rule) == 0 ? own->arg_names : NULL;
    char name[HPC_ARG_NAME_BYTES];
    if (strcmp(k->rule, f->rule) != 0 || k->slots != f->slots || k->has_fold != f->has_fold)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: rank %d has rule %s with %d slots, rank 0 %s with %d, for key %s", r, k->rule,
                        k->slots, f->rule, f->slots, k->name);
    if (k->fold_wires != f->fold_wires)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: the fold of rule %s has fold_wires %#x on rank %d and %#x on rank 0", k->rule,
                        (unsigned)k->fold_wires, r, (unsigned)f->fold_wires);
    if (strcmp(k->prox, f->prox) != 0 || k->prox_whole != f->prox_whole || k->dual != f->dual)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: rule %s has prox %s (prox_whole %d, dual %d) on rank %d and %s (%d, %d) on rank 0, "
                        "for key %s",
                        k->rule, k->prox, k->prox_whole, k->dual, r, f->prox, f->prox_whole, f->dual, k->name);
    if (k->columns != f->columns)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: the prox of rule %s reads rows of %llu elements on rank %d and of %llu on rank 0, "
                        "for key %s",
                        k->rule, (unsigned long long)k->columns, r, (unsigned long long)f->columns, k->name);
    for (int a = 1; a < HPC_RULE_ARGS; a++)
        if (k->args[a] != f->args[a])
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: %s of rule %s is %.9g on rank %d and %.9g on rank 0, for key %s: give the same "
                            "on every rank",
                            hpc_rule_arg_name(names, a, name, sizeof name), k->rule, k->args[a], r, f->args[a],
                            k->name);
    return HPC_OK;
}

static int compare(const hpc_scheme *sc, int r, const struct description *d, const struct description *first) {
    if (d->n_schemes != first->n_schemes)
        return hpc_fail(
            HPC_ERR_CONFIG, op_create,
            "exchange: rank %d gives %d configurations of keys and rank 0 gives %d: give each key the same graph "
            "or servers, the same consistency, and with a quorum the same group",
            r, d->n_schemes, first->n_schemes);
    if (d->n_keys != first->n_keys)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: rank %d has %d keys and rank 0 has %d%s: give the same keys, and with a quorum the "
                        "same groups",
                        r, d->n_keys, first->n_keys, d->n_schemes > 1 ? " of one configuration" : "");
    const struct key_description *k = (const void *)(d + 1), *f = (const void *)(first + 1);
    for (int i = 0; i < d->n_keys; i++)
        if (strcmp(k[i].name, f[i].name) != 0 || k[i].count != f[i].count)
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: key %d is %s of %llu elements on rank %d and %s of %llu on rank 0: give the "
                            "same keys in the same order%s",
                            i, k[i].name, (unsigned long long)k[i].count, r, f[i].name, (unsigned long long)f[i].count,
                            d->n_schemes > 1 ? ", and with a quorum the same groups" : "");
    for (int i = 0; i < d->n_keys; i++) {
        int status = compare_rules(r, &k[i], &f[i], i < sc->plan->n_keys ? &sc->rules[i] : NULL);
        if (status == HPC_OK) status = hpc_codecs_compare(r, k[i].name, &k[i].codec, &f[i].codec);
        if (status != HPC_OK) return status;
    }
    if (d->consistency != first->consistency || d->shared_params != first->shared_params)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: rank %d has consistency %d, shared_params %d; rank 0 has %d, %d", r, d->consistency,
                        d->shared_params, first->consistency, first->shared_params);
    if (d->in_place != first->in_place)
        return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: rank %d has in_place %d and rank 0 has %d", r,
                        d->in_place, first->in_place);
    if (d->split != first->split)
        return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: rank %d has split %d and rank 0 has %d", r, d->split,
                        first->split);
    if (d->n_phases != first->n_phases || d->staleness != first->staleness)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: rank %d has %d graph phases (0: servers) and staleness %d; rank 0 has %d and %d", r,
                        d->n_phases, d->staleness, first->n_phases, first->staleness);
    if (d->quorum != first->quorum || d->grace != first->grace)
        return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: rank %d has quorum %d and grace %g; rank 0 has %d and %g",
                        r, d->quorum, d->grace, first->quorum, first->grace);
    if (d->digest != first->digest)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: rank %d has another plan than rank 0: give all ranks the same %s", r,
                        d->n_phases > 0 ? "graph, weights, cores, chunk, depth and wire"
                                        : "servers, cores, interfaces, affinity, chunk, depth, wire and codec_out");
    return HPC_OK;
}

static uint64_t weights_digest(const hpc_graph *g) {
    size_t size = g == NULL ? 0 : (size_t)g->ranks, n = g == NULL ? 0 : (size_t)g->n_phases * size * size;
    uint64_t digest = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t weight;
        memcpy(&weight, &g->weights[i], sizeof weight);
        digest = (digest ^ weight) * 1099511628211u;
        digest ^= digest >> 32;
    }
    return digest;
}

/* The ranks first exchange digests of their descriptions, and the descriptions only if the digests differ. */
struct outline {
    unsigned char digest[HPC_DIGEST_BYTES];
    int32_t threads;
};

/* Returns HPC_OK if all descriptions are equal, and HPC_IN_PROGRESS if some differ. */
static int compare_digests(hpc_scheme *sc, const struct description *mine, size_t nbytes, int threads,
                           hpc_reply *replies, double deadline) {
    hpc_context *c = sc->context;
    const hpc_bytes whole = {mine, nbytes};
    struct outline own = {.threads = threads};
    hpc_sha256(&whole, 1, own.digest);
    int status = hpc_control_exchange(c->control, op_create, &own, sizeof own, HPC_EQUAL_SIZES, replies, deadline);
    if (status != HPC_OK) return status;
    for (int r = 0; r < c->group.size; r++) {
        const struct outline *its = replies[r].data;
        sc->threads[r] = its->threads;
        if (memcmp(its->digest, own.digest, sizeof own.digest) != 0) status = HPC_IN_PROGRESS;
    }
    hpc_control_free_replies(c->control, replies);
    return status;
}

int hpc_scheme_agree(hpc_scheme *sc, const hpc_exchange_config *f, const hpc_exchange *of, double deadline) {
    hpc_context *c = sc->context;
    size_t nbytes = sizeof(struct description) + (size_t)sc->plan->n_keys * sizeof(struct key_description);
    struct description *mine = calloc(1, nbytes);
    hpc_reply *replies = calloc((size_t)c->group.size, sizeof *replies);
    int status = mine == NULL || replies == NULL ? hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory") : HPC_OK;
    status = hpc_context_agree(c, op_create, status, deadline);
    if (status != HPC_OK) goto out;
    mine->digest = hpc_plan_digest(sc->plan) ^ weights_digest(f->graph);
    mine->n_phases = f->graph == NULL ? 0 : f->graph->n_phases;
    mine->staleness = sc->asked.staleness;
    mine->quorum = sc->asked.quorum;
    mine->grace = sc->asked.grace;
    mine->consistency = f->consistency;
    mine->shared_params = sc->asked.shared_params;
    mine->in_place = sc->asked.in_place;
    mine->n_keys = sc->plan->n_keys;
    mine->n_schemes = of->n_schemes;
    mine->split = f->split != 0;
    struct key_description *keys = (void *)(mine + 1);
    for (int k = 0; k < sc->plan->n_keys; k++) {
        snprintf(keys[k].name, sizeof keys[k].name, "%.*s", NAME_BYTES - 1, sc->plan->keys[k].name);
        keys[k].count = sc->plan->keys[k].count;
        const hpc_rule *rule = &sc->rules[k].rule;
        snprintf(keys[k].rule, sizeof keys[k].rule, "%s", rule->name);
        memcpy(keys[k].args, rule->args, sizeof keys[k].args);
        keys[k].slots = rule->slots;
        keys[k].has_fold = rule->fold != NULL;
        keys[k].fold_wires = (int32_t)rule->fold_wires;
        keys[k].dual = rule->dual != 0;
        keys[k].prox_whole = rule->prox != NULL && rule->prox_whole;
        keys[k].columns = rule->prox != NULL ? rule->columns : 0;
        snprintf(keys[k].prox, sizeof keys[k].prox, "%s", hpc_prox_text(rule->prox));
        hpc_codec_describe(sc, k, &keys[k].codec);
    }
    status = compare_digests(sc, mine, nbytes, f->threads > 0 ? f->threads : c->self.threads, replies, deadline);
    if (status != HPC_IN_PROGRESS) goto out;
    status = hpc_control_exchange(c->control, op_create, mine, nbytes, HPC_OWN_SIZES, replies, deadline);
    if (status != HPC_OK) goto out;
    for (int r = 0; r < c->group.size && status == HPC_OK; r++)
        if (!is_sound(&replies[r]))
            status = hpc_fail(HPC_ERR_CONFIG, op_create,
                              "exchange: rank %d sent a description of its exchange that cannot be read (%zu bytes)", r,
                              replies[r].nbytes);
    for (int r = 1; r < c->group.size && status == HPC_OK; r++)
        status = compare(sc, r, replies[r].data, replies[0].data);
    hpc_control_free_replies(c->control, replies);
out:
    free(mine);
    free(replies);
    return status;
}
