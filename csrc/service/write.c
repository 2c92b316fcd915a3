/* Writes the description of an exchange. */
#include <string.h>

#include "codec/codec.h"
#include "service/bytes.h"
#include "service/description.h"

static const char op_describe[] = "exchange";

enum { FORM_BYTES = 512 };

/* ---- arguments that a hub refuses ---- */

static int fail_code(const char *what, const char *name) {
    return hpc_fail(
        HPC_ERR_INVALID, op_describe,
        "%s %.63s is the user's own: a hub runs none of its tenants' code: give a rule or a codec of hpcomm", what,
        name);
}

static int is_rule(const hpc_rule *rule, const char *name) {
    static const int isas[] = {HPC_ISA_BEST, HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512};
    int same = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas && !same; i++) {
        hpc_rule found;
        same = hpc_rule_find(name, isas[i], &found) == HPC_OK && found.apply == rule->apply &&
               found.fold == rule->fold && found.slots == rule->slots && found.dual == rule->dual &&
               found.fold_wires == rule->fold_wires;
    }
    return same;
}

static int is_prox(hpc_prox_fn prox, const char *name) {
    static const int isas[] = {HPC_ISA_BEST, HPC_ISA_GENERIC, HPC_ISA_AVX2, HPC_ISA_AVX512};
    int same = 0;
    for (size_t i = 0; i < sizeof isas / sizeof *isas && !same; i++) {
        hpc_prox_fn found;
        same = hpc_prox_find(name, isas[i], &found) == HPC_OK && found == prox;
    }
    return same;
}

/* Returns the name of a built-in rule or prox; NULL for code of a user. */
static const char *rule_name(const hpc_rule *rule) {
    const char *name = NULL;
    const int before = hpc_mute_errors(1);
    for (int i = 0; (name = hpc_name(HPC_RULES, i)) != NULL && !is_rule(rule, name);) i++;
    hpc_mute_errors(before);
    return name;
}

static const char *prox_name(hpc_prox_fn prox) {
    const char *name = NULL;
    const int before = hpc_mute_errors(1);
    for (int i = 0; (name = hpc_name(HPC_PROXES, i)) != NULL && !is_prox(prox, name);) i++;
    hpc_mute_errors(before);
    return name;
}

static int check_hub(const hpc_hub *hub, const hpc_exchange_config *f) {
    if (hub == NULL || hub->size != sizeof *hub)
        return hpc_fail(HPC_ERR_INVALID, op_describe, "exchange: the arguments of a hub's plan are %s",
                        hub == NULL ? "NULL" : "not of hpc_plan_args_init");
    if (f->size != sizeof *f)
        return hpc_fail(HPC_ERR_INVALID, op_describe,
                        "exchange: config->size is %zu, not %zu: call hpc_exchange_config_init first", f->size,
                        sizeof *f);
    if (hub->parents != NULL)
        return hpc_fail(HPC_ERR_INVALID, op_describe, "tree is given and servers 'hub': leave tree out");
    if (f->graph != NULL || f->in_place)
        return hpc_fail(HPC_ERR_INVALID, op_describe, "%s: it is for graphs, and at a hub servers apply the rule",
                        f->graph != NULL ? "graph is given" : "in_place is True");
    if (hub->keys == NULL || hub->n_keys < 1)
        return hpc_fail(HPC_ERR_INVALID, op_describe, "exchange: the arguments of a hub's plan have no keys");
    if ((hub->wires != NULL && hub->n_wires != hub->n_keys) ||
        (hub->codecs_out != NULL && hub->n_codecs_out != hub->n_keys))
        return hpc_fail(HPC_ERR_INVALID, op_describe,
                        "exchange: a hub's plan has %d keys, n_wires is %d and n_codecs_out %d", hub->n_keys,
                        hub->n_wires, hub->n_codecs_out);
    if (f->rules == NULL && f->rule == NULL) return hpc_fail(HPC_ERR_INVALID, op_describe, "exchange: rule is NULL");
    return HPC_OK;
}

/* ---- forms ---- */

static void pack_name(hpc_packer *p, const char *name) {
    const size_t n = name == NULL ? 0 : strlen(name);
    hpc_pack_text(p, name, n < HPC_RULE_NAME_BYTES ? n : HPC_RULE_NAME_BYTES - 1, 1);
}

static int pack_rule(hpc_packer *p, const hpc_rule *rule, const char *key) {
    if (rule == NULL) return hpc_fail(HPC_ERR_INVALID, op_describe, "exchange: the rule of key %.63s is NULL", key);
    const char *name = rule_name(rule), *prox = rule->prox == NULL ? "" : prox_name(rule->prox);
    if (name == NULL) return fail_code("rule", rule->name == NULL ? "" : rule->name);
    if (prox == NULL) return fail_code("the prox of rule", rule->name == NULL ? name : rule->name);
    pack_name(p, name);
    pack_name(p, rule->name);
    for (int i = 1; i < HPC_RULE_ARGS; i++) hpc_pack_double(p, rule->args[i]);
    pack_name(p, prox);
    hpc_pack_number(p, rule->prox == NULL ? 0 : rule->columns, 8);
    hpc_pack_number(p, rule->prox_whole != 0, 1);
    return HPC_OK;
}

static int pack_codec(hpc_packer *p, const hpc_codec_config *c, int wire) {
    if (wire == HPC_OWN_CODEC) return fail_code("codec", c == NULL || c->name == NULL ? "" : c->name);
    if (c != NULL && c->size != sizeof *c)
        return hpc_fail(HPC_ERR_INVALID, op_describe,
                        "exchange: the size of a codec's config is %zu, not %zu: call hpc_codec_config_init first",
                        c->size, sizeof *c);
    hpc_pack_number(p, c != NULL, 1);
    if (c == NULL) return HPC_OK;
    if (c->filter != NULL)
        return fail_code("the filter of codec", hpc_codec_of(wire) == NULL ? "" : hpc_codec_of(wire)->name);
    const double numbers[] = {c->delta, c->fraction, c->up, c->at_least};
    const uint64_t sizes[] = {c->unit, c->rows, c->columns};
    const int counts[] = {c->pairs, c->values, c->compress, c->follow};
    for (int i = 0; i < 4; i++) hpc_pack_double(p, numbers[i]);
    for (int i = 0; i < 3; i++) hpc_pack_number(p, sizes[i], 8);
    for (int i = 0; i < 4; i++) hpc_pack_int(p, counts[i]);
    hpc_pack_number(p, c->decays != 0, 1);
    hpc_pack_number(p, c->paper != 0, 1);
    hpc_pack_number(p, c->no_feedback != 0, 1);
    return HPC_OK;
}

static int pack_form(hpc_packer *p, const hpc_hub *hub, const hpc_exchange_config *f, int k) {
    const int wire = hub->wires != NULL ? hub->wires[k] : hub->wire;
    hpc_pack_int(p, wire);
    hpc_pack_int(p, hub->codecs_out != NULL ? hub->codecs_out[k] : hub->codec_out);
    int status = pack_rule(p, f->rules != NULL ? f->rules[k] : f->rule, hub->keys[k].name);
    return status != HPC_OK ? status : pack_codec(p, f->codecs == NULL ? NULL : f->codecs[k], wire);
}

/* ---- the message ---- */

static int pack_key(hpc_packer *p, const hpc_hub *hub, const hpc_exchange_config *f, int k, hpc_packer *last) {
    unsigned char bytes[FORM_BYTES];
    hpc_packer form = {bytes, sizeof bytes, 0};
    const hpc_key *key = &hub->keys[k];
    const size_t length = key->name == NULL ? 0 : strlen(key->name);
    if (length < 1 || length > HPC_KEY_NAME_BYTES)
        return hpc_fail(HPC_ERR_INVALID, op_describe, "exchange: the name of key %d has %zu bytes: a hub takes 1 to %d",
                        k, length, HPC_KEY_NAME_BYTES);
    int status = pack_form(&form, hub, f, k);
    if (status != HPC_OK) return status;
    const int same = form.used == last->used && memcmp(bytes, last->into, form.used) == 0;
    hpc_pack_text(p, key->name, length, 2);
    hpc_pack_number(p, key->count, 8);
    hpc_pack_number(p, key->unit, 8);
    hpc_pack_number(p, (uint64_t)same, 1);
    if (same) return HPC_OK;
    hpc_pack(p, bytes, form.used);
    memcpy(last->into, bytes, form.used);
    last->used = form.used;
    return HPC_OK;
}

static void pack_racks(hpc_packer *p, const hpc_hub_racks *racks) {
    hpc_pack_int(p, racks->n);
    if (racks->n == 0) return;
    hpc_pack_int(p, racks->top);
    hpc_pack_number(p, racks->apart != 0, 1);
    for (int i = 0; i < HPC_RACK_LEVELS * racks->n; i++) hpc_pack_int(p, racks->groups[i]);
}

/* hosts: NULL: no racks. */
static int pack_scheme(hpc_packer *p, const hpc_hub *hub, const hpc_hosts *hosts, const hpc_exchange_config *f,
                       hpc_packer *last) {
    hpc_hub of_hosts;
    hpc_hub_racks racks = {0};
    int status = hosts == NULL ? HPC_OK : hpc_hub_check_hosts(hosts);
    if (status == HPC_OK && hosts != NULL) {
        hpc_hub_of_hosts(hosts, &of_hosts, &racks);
        hub = &of_hosts;
        status = hpc_hub_check_racks(&racks, hosts->apply_at);
    }
    if (status == HPC_OK) status = check_hub(hub, f);
    if (status != HPC_OK) return status;
    const int numbers[] = {f->consistency,  f->staleness, f->quorum,     hub->cores,
                           hub->interfaces, hub->depth,   hub->affinity, hub->apply_at};
    const int flags[] = {f->shared_params, f->split, hub->sum, hub->each};
    for (int i = 0; i < 8; i++) hpc_pack_int(p, numbers[i]);
    for (int i = 0; i < 4; i++) hpc_pack_number(p, flags[i] != 0, 1);
    hpc_pack_double(p, f->grace);
    hpc_pack_number(p, hub->chunk, 8);
    hpc_pack_number(p, hub->least, 8);
    pack_racks(p, &racks);
    hpc_pack_int(p, hub->n_keys);
    for (int k = 0; k < hub->n_keys && status == HPC_OK; k++) status = pack_key(p, hub, f, k, last);
    return status;
}

int64_t hpc_description_write(const hpc_hub *const *hubs, const hpc_hosts *const *racks,
                              const hpc_exchange_config *config, void *message, size_t cap) {
    unsigned char bytes[FORM_BYTES];
    hpc_packer p = {message, message == NULL ? 0 : cap, 0}, last = {bytes, sizeof bytes, 0};
    int n = 0, keys = 0, status = HPC_OK;
    if ((hubs == NULL && racks == NULL) || config == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_describe, "exchange: %s is NULL", config == NULL ? "config" : "hubs");
    for (const hpc_exchange_config *f = config; f != NULL; f = f->next) n++;
    hpc_pack(&p, "hpcx", 4);
    hpc_pack_int(&p, HPC_DESCRIPTION_VERSION);
    hpc_pack_int(&p, n);
    for (int i = 0; i < n && status == HPC_OK; i++, config = config->next) {
        const hpc_hosts *hosts = racks == NULL ? NULL : racks[i];
        const hpc_hub *hub = hubs == NULL ? NULL : hubs[i];
        status = pack_scheme(&p, hub, hosts, config, &last);
        if (status == HPC_OK) keys += hosts != NULL ? hosts->n_keys : hub->n_keys;
    }
    if (status != HPC_OK) return status;
    if (p.used <= HPC_DESCRIPTION_BYTES && keys <= HPC_DESCRIPTION_KEYS) return (int64_t)p.used;
    return hpc_fail(HPC_ERR_INVALID, op_describe,
                    "params has %d keys, whose description has %zu bytes: a hub takes %d keys and %d bytes at most",
                    keys, p.used, HPC_DESCRIPTION_KEYS, HPC_DESCRIPTION_BYTES);
}
