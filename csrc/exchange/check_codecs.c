/* Refuses configurations in which codecs with pieces of variable length cannot work. */
#include <string.h>

#include "discipline/discipline.h"
#include "codec/compress.h"
#include "codec/piece.h"
#include "engine/bytes.h"
#include "engine/pieces.h"
#include "exchange/exchange.h"

static const char op_create[] = "exchange";

enum { MISSING_BYTES = 256 };

static int check_row(const hpc_exchange_config *f, int i, const hpc_codec *codec) {
    const hpc_row *row = &f->plan->rows[i];
    const hpc_key *key = &f->plan->keys[row->key];
    const uint64_t unit = codec->unit != NULL ? codec->unit(f->codecs[row->key], key->count) : 1;
    if (row->count > HPC_PIECE_ELEMENTS)
        return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: row %d has %llu elements; a piece has at most %d", i,
                        (unsigned long long)row->count, HPC_PIECE_ELEMENTS);
    if (row->offset % unit != 0 || (row->count % unit != 0 && row->offset + row->count != key->count))
        return hpc_fail(
            HPC_ERR_CONFIG, op_create,
            "exchange: row %d has elements %llu to %llu of key %s, which cuts a unit of %llu elements apart", i,
            (unsigned long long)row->offset, (unsigned long long)(row->offset + row->count - 1), key->name,
            (unsigned long long)unit);
    return HPC_OK;
}

/* Returns whether a row has one input and sends it on without decoding it (kind_passthrough.c). */
static int passes_on(const hpc_exchange_config *f, const hpc_row *row) {
    return row->n_in == 1 && row->in[0].row >= 0 && row->in[0].weight == 1 &&
           f->plan->rows[row->in[0].row].codec_out == row->codec_out;
}

/* Refuses a codec that does not encode float32 arrays (its source_bytes is set) for rows that forward a sum, since a
 * sum is a float32 array. */
static int check_source(const hpc_exchange_config *f, int i, const hpc_codec *codec) {
    const hpc_row *row = &f->plan->rows[i];
    if (codec->source_bytes == NULL || row->action != HPC_FORWARD || row->codec_out != codec->number) return HPC_OK;
    if (passes_on(f, row)) return HPC_OK;
    return hpc_fail(
        HPC_ERR_CONFIG, op_create,
        "exchange: row %d forwards a sum of key %s as %s, which only workers can encode: send sums as arrays", i,
        f->plan->keys[row->key].name, codec->name);
}

static int check_key(const hpc_exchange_config *f, int key, const hpc_codec *codec) {
    const hpc_codec_config *config = f->codecs == NULL ? NULL : f->codecs[key];
    const hpc_rule *rule = hpc_config_rule(f, key);
    const char *name = f->plan->keys[key].name;
    if (config == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_create,
                        "exchange: key %s goes as %s by the plan, but codecs has no configuration of it", name,
                        codec->name);
    const char *wrong = hpc_codec_check(codec, config);
    if (wrong != NULL)
        return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: the codec of key %s, %s: %s", name, codec->name, wrong);
    if (codec->number == HPC_FACTORS && config->rows * config->columns != f->plan->keys[key].count)
        return hpc_fail(HPC_ERR_INVALID, op_create,
                        "exchange: key %s has %llu elements, and its codec, factors, is for a matrix of %llu x %llu",
                        name, (unsigned long long)f->plan->keys[key].count, (unsigned long long)config->rows,
                        (unsigned long long)config->columns);
    char missing[MISSING_BYTES];
    if (hpc_compress_check(config->compress, missing, sizeof missing) != 0)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op_create, "exchange: key %s is to be compressed: %s", name, missing);
    if (hpc_rule_averages(rule))
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: key %s has rule average and codec %s: an average is of models, and a model is no "
                        "update of which a part can come later; give a rule that applies updates",
                        name, codec->name);
    if (rule->fold != NULL)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: the fold of rule %s reads arrays, and key %s goes as %s: leave one of the two out",
                        rule->name, name, codec->name);
    return HPC_OK;
}

static int check_whole(const hpc_exchange_config *f) {
    const hpc_discipline *d = hpc_discipline_of(f);
    if (d == NULL || !(d->traits & HPC_TEARS)) return HPC_OK;
    return hpc_pieces_refuse(f, d->name, "a fold may find an update half written");
}

/* Checks the codec of one row. number: the codec of the key's pieces. The row must have the same codec, since a key has
 * one codec configuration. */
static int check_one(const hpc_exchange_config *f, int i, int number) {
    const hpc_row *row = &f->plan->rows[i];
    const int both[2] = {row->codec_in, row->codec_out};
    for (int way = 0; way < 2; way++) {
        const hpc_codec *codec = hpc_codec_of(both[way]);
        if (codec->addressable || codec->number == number) continue;
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: row %d %s pieces of %s, and pieces of key %s come or go as %s elsewhere; a key has "
                        "one codec of pieces",
                        i, way == 0 ? "takes" : "sends", codec->name, f->plan->keys[row->key].name,
                        hpc_codec_of(number)->name);
    }
    return HPC_OK;
}

int hpc_codecs_check(const hpc_exchange_config *f) {
    const hpc_plan *plan = f->plan;
    for (int i = 0, last = -1, its = -1; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        const int number = hpc_row_variable_codec(row);
        if (number < 0) continue;
        if (row->key != last) its = number;
        const hpc_codec *codec = hpc_codec_of(its);
        int status = row->key == last ? HPC_OK : check_key(f, row->key, codec);
        if (status == HPC_OK) status = check_one(f, i, its);
        if (status == HPC_OK) status = check_row(f, i, codec);
        if (status == HPC_OK) status = check_whole(f);
        if (status == HPC_OK) status = check_source(f, i, codec);
        if (status != HPC_OK) return status;
        last = row->key;
    }
    return HPC_OK;
}

/* ---- the same on all ranks ---- */

void hpc_codec_describe(const hpc_scheme *sc, int key, hpc_codec_description *d) {
    memset(d, 0, sizeof *d);
    if (!hpc_key_has_pieces(sc, key)) return;
    const hpc_key_pieces *its = &sc->pieces[key];
    const hpc_codec_config *config = &its->config;
    memcpy(d->name, its->name, sizeof d->name);
    d->number = its->codec->number;
    d->delta = config->delta;
    d->fraction = config->fraction;
    memcpy(d->args + 1, config->args + 1, sizeof d->args - sizeof *d->args);
    d->unit = config->unit;
    d->rows = config->rows;
    d->columns = config->columns;
    d->pairs = config->pairs;
    d->decays = config->decays != 0;
    d->values = config->values;
    d->paper = config->paper != 0;
    d->compress = config->compress;
    d->no_feedback = config->no_feedback != 0;
    d->follow = config->follow;
    d->up = config->follow ? config->up : 0;
    d->at_least = config->follow ? config->at_least : 0;
    d->state_slots = config->state_slots;
}

static int differs(int rank, const char *key, const char *what, double its, double first) {
    return hpc_fail(HPC_ERR_CONFIG, op_create,
                    "exchange: the codec of key %s has %s %.9g on rank %d and %.9g on rank 0", key, what, its, rank,
                    first);
}

int hpc_codecs_compare(int r, const char *key, const hpc_codec_description *d, const hpc_codec_description *f) {
    if (strncmp(d->name, f->name, sizeof d->name) != 0)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: the codec of key %s is %.63s on rank %d and %.63s on rank 0", key, d->name, r,
                        f->name);
    const struct {
        const char *name;
        double its, first;
    } numbers[] = {
        {"delta", d->delta, f->delta},
        {"decays", d->decays, f->decays},
        {"fraction", d->fraction, f->fraction},
        {"unit", (double)d->unit, (double)f->unit},
        {"rows", (double)d->rows, (double)f->rows},
        {"columns", (double)d->columns, (double)f->columns},
        {"pairs", d->pairs, f->pairs},
        {"values", d->values, f->values},
        {"paper", d->paper, f->paper},
        {"compress", d->compress, f->compress},
        {"no_feedback", d->no_feedback, f->no_feedback},
        {"follow", d->follow, f->follow},
        {"up", d->up, f->up},
        {"at_least", d->at_least, f->at_least},
        {"state_slots", d->state_slots, f->state_slots},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].its != numbers[i].first)
            return differs(r, key, numbers[i].name, numbers[i].its, numbers[i].first);
    for (int a = 1; a < HPC_CODEC_ARGS; a++)
        if (d->args[a] != f->args[a]) return differs(r, key, "an argument", d->args[a], f->args[a]);
    return HPC_OK;
}
