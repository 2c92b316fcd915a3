/* Reads the description of an exchange from a message that may hold anything, checks each value, and bounds the memory
 * that the exchange needs at a hub. */
#define _GNU_SOURCE

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "plan/plan.h"
#include "service/bytes.h"
#include "service/description.h"

static const char op_read[] = "exchange";

enum {
    SENTENCE = 512,
    LEAST_KEY_BYTES = 2 + 1 + 8 + 8 + 1, /* of a key in a message */
    JOB_BYTES = 4 << 20,
    RECEIVER_BYTES = 192, /* of a receiver's row in the plan */
    ROW_BYTES = 512       /* of an exchange at its hub, and of each row, beside the bytes of elements */
};

static int refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int refuse(const char *format, ...) {
    char why[SENTENCE];
    va_list values;
    va_start(values, format);
    vsnprintf(why, sizeof why, format, values);
    va_end(values);
    return hpc_fail(HPC_ERR_INVALID, op_read, "the description of an exchange: %s", why);
}

/* Records the last failure again, as one of the description. */
static int refuse_again(void) {
    char why[SENTENCE];
    snprintf(why, sizeof why, "%s", hpc_last_error()->message);
    return refuse("%s", why);
}

static int fail_short(void) {
    return refuse("it ends too early");
}

static int no_memory(void) {
    return hpc_fail(HPC_ERR_MEMORY, op_read, "the description of an exchange: no memory to read it");
}

/* ---- forms ---- */

/* Reads a name of at most HPC_RULE_NAME_BYTES - 1 bytes without a 0. Returns whether there is one. */
static int unpack_name(hpc_unpacker *u, char name[HPC_RULE_NAME_BYTES]) {
    const size_t n = hpc_unpack_number(u, 1);
    const unsigned char *bytes = n < HPC_RULE_NAME_BYTES ? hpc_unpack(u, n) : NULL;
    if (bytes == NULL || memchr(bytes, 0, n) != NULL) return 0;
    memcpy(name, bytes, n);
    name[n] = 0;
    return 1;
}

static int unpack_rule(hpc_unpacker *u, hpc_key_form *form) {
    char name[HPC_RULE_NAME_BYTES], prox[HPC_RULE_NAME_BYTES];
    if (!unpack_name(u, name) || !unpack_name(u, form->label)) return refuse("the name of a rule is malformed");
    if (hpc_rule_find(name, HPC_ISA_BEST, &form->rule) != HPC_OK) return refuse_again();
    form->rule.name = form->label;
    for (int i = 1; i < HPC_RULE_ARGS; i++) form->rule.args[i] = hpc_unpack_double(u);
    if (!unpack_name(u, prox)) return refuse("the name of a prox is malformed");
    form->rule.columns = hpc_unpack_number(u, 8);
    form->rule.prox_whole = (int)hpc_unpack_number(u, 1);
    if (prox[0] == 0) return HPC_OK;
    return hpc_prox_find(prox, HPC_ISA_BEST, &form->rule.prox) == HPC_OK ? HPC_OK : refuse_again();
}

static int unpack_codec(hpc_unpacker *u, hpc_key_form *form) {
    hpc_codec_config *c = &form->codec;
    hpc_codec_config_init(c);
    if (form->wire == HPC_OWN_CODEC) return refuse("a codec is the user's own: a hub runs none of its tenants' code");
    form->has_codec = hpc_unpack_number(u, 1) != 0;
    if (!form->has_codec) return HPC_OK;
    double *const numbers[] = {&c->delta, &c->fraction, &c->up, &c->at_least};
    uint64_t *const sizes[] = {&c->unit, &c->rows, &c->columns};
    int *const counts[] = {&c->pairs, &c->values, &c->compress, &c->follow};
    for (int i = 0; i < 4; i++) *numbers[i] = hpc_unpack_double(u);
    for (int i = 0; i < 3; i++) *sizes[i] = hpc_unpack_number(u, 8);
    for (int i = 0; i < 4; i++) *counts[i] = hpc_unpack_int(u);
    c->decays = hpc_unpack_number(u, 1) != 0;
    c->paper = hpc_unpack_number(u, 1) != 0;
    c->no_feedback = hpc_unpack_number(u, 1) != 0;
    return HPC_OK;
}

static int unpack_form(hpc_unpacker *u, hpc_description *d) {
    hpc_key_form *form = calloc(1, sizeof *form);
    if (form == NULL) return no_memory();
    form->before = d->forms;
    d->forms = form;
    form->wire = hpc_unpack_int(u);
    form->codec_out = hpc_unpack_int(u);
    int status = unpack_rule(u, form);
    return status == HPC_OK ? unpack_codec(u, form) : status;
}

/* ---- keys ---- */

static int unpack_key(hpc_unpacker *u, hpc_description *d, hpc_described_scheme *s, int k) {
    const size_t n = hpc_unpack_number(u, 2);
    const unsigned char *name = n >= 1 && n <= HPC_KEY_NAME_BYTES ? hpc_unpack(u, n) : NULL;
    if (name == NULL || memchr(name, 0, n) != NULL) return refuse("the name of key %d is malformed", k);
    s->names[k] = strndup((const char *)name, n);
    if (s->names[k] == NULL) return no_memory();
    s->keys[k].name = s->names[k];
    s->keys[k].count = hpc_unpack_number(u, 8);
    s->keys[k].unit = hpc_unpack_number(u, 8);
    const uint64_t same = hpc_unpack_number(u, 1);
    if (same > 1 || (same && d->forms == NULL)) return refuse("the form of key %.63s is malformed", s->names[k]);
    int status = same ? HPC_OK : unpack_form(u, d);
    if (status != HPC_OK) return status;
    s->wires[k] = d->forms->wire;
    s->codecs_out[k] = d->forms->codec_out;
    s->rules[k] = &d->forms->rule;
    s->codecs[k] = d->forms->has_codec ? &d->forms->codec : NULL;
    return u->bad ? fail_short() : HPC_OK;
}

static int unpack_keys(hpc_unpacker *u, hpc_description *d, hpc_described_scheme *s) {
    const uint64_t n = hpc_unpack_number(u, 4);
    if (n < 1 || n > HPC_DESCRIPTION_KEYS || n * LEAST_KEY_BYTES > (size_t)(u->end - u->at))
        return refuse("it has %llu keys", (unsigned long long)n);
    s->keys = calloc(n, sizeof *s->keys);
    s->names = calloc(n, sizeof *s->names);
    s->wires = calloc(n, sizeof *s->wires);
    s->codecs_out = calloc(n, sizeof *s->codecs_out);
    s->rules = calloc(n, sizeof *s->rules);
    s->codecs = calloc(n, sizeof *s->codecs);
    s->hub.keys = s->keys;
    s->hub.wires = s->wires;
    s->hub.codecs_out = s->codecs_out;
    s->config.rules = s->rules;
    s->config.codecs = s->codecs;
    s->hub.n_keys = s->hub.n_wires = s->hub.n_codecs_out = (int)n;
    if (!s->keys || !s->names || !s->wires || !s->codecs_out || !s->rules || !s->codecs) return no_memory();
    int status = HPC_OK;
    for (int k = 0; k < (int)n && status == HPC_OK; k++) status = unpack_key(u, d, s, k);
    return status;
}

/* ---- schemes ---- */

/* Returns a bound on the number of the scheme's chunks. */
static double chunks(const hpc_hub *hub) {
    const double bytes = (double)(hub->least > 0 ? hub->least : hub->chunk);
    double n = 0;
    for (int k = 0; k < hub->n_keys; k++) n += 1 + 4 * (double)hub->keys[k].count / bytes;
    return n;
}

static int check_plan(const hpc_hub *hub, int cores) {
    if (hub->cores < 1 || hub->cores > cores) return refuse("cores is %d: the hub has %d", hub->cores, cores);
    if (hub->interfaces < 0 || hub->interfaces > hub->cores)
        return refuse("interfaces is %d: each needs one of the %d cores", hub->interfaces, hub->cores);
    int status = hpc_plan_check_keys(hub->keys, hub->n_keys);
    if (status == HPC_OK) status = hpc_plan_check_cut(hub->cores, hub->chunk, hub->depth);
    if (status == HPC_OK) status = hpc_plan_check_least(hub->least, hub->chunk);
    if (status == HPC_OK)
        status = hpc_plan_check_both(hub->keys, hub->n_keys, hub->wire, hub->wires, hub->n_wires, hub->codec_out,
                                     hub->codecs_out, hub->n_codecs_out);
    if (status == HPC_OK) status = hpc_plan_check_affinity(hub->affinity);
    if (status == HPC_OK) status = hpc_plan_check_apply_at(hub->apply_at);
    if (status != HPC_OK) return refuse_again();
    if (chunks(hub) <= HPC_DESCRIPTION_ROWS + hub->n_keys) return HPC_OK;
    return refuse("chunk_bytes is %llu: a hub takes %d chunks at most",
                  (unsigned long long)(hub->least > 0 ? hub->least : hub->chunk), HPC_DESCRIPTION_ROWS);
}

static int rising(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

static int count_hosts(hpc_described_scheme *s) {
    const int n = s->racks.n;
    int *hosts = malloc((size_t)n * sizeof *hosts);
    if (hosts == NULL) return no_memory();
    memcpy(hosts, s->groups, (size_t)n * sizeof *hosts);
    qsort(hosts, (size_t)n, sizeof *hosts, rising);
    for (int w = 0; w < n; w++) {
        const int begins = w == 0 || hosts[w] != hosts[w - 1];
        s->n_hosts += begins;
        s->n_shared += begins && w + 1 < n && hosts[w + 1] == hosts[w];
    }
    free(hosts);
    return HPC_OK;
}

static int unpack_racks(hpc_unpacker *u, hpc_described_scheme *s) {
    enum { WORKER_BYTES = HPC_RACK_LEVELS * 4 }; /* of a worker in a message */
    const uint64_t n = hpc_unpack_number(u, 4);
    if (n == 0) return HPC_OK;
    if (n * WORKER_BYTES > (size_t)(u->end - u->at))
        return refuse("its racks have %llu workers", (unsigned long long)n);
    s->groups = malloc(HPC_RACK_LEVELS * n * sizeof *s->groups);
    if (s->groups == NULL) return no_memory();
    s->racks = (hpc_hub_racks){.n = (int)n, .groups = s->groups};
    s->racks.top = hpc_unpack_int(u);
    s->racks.apart = hpc_unpack_number(u, 1) != 0;
    for (uint64_t i = 0; i < HPC_RACK_LEVELS * n; i++) s->groups[i] = hpc_unpack_int(u);
    if (u->bad) return fail_short();
    return hpc_hub_check_racks(&s->racks, s->hub.apply_at) == HPC_OK ? count_hosts(s) : refuse_again();
}

static int unpack_scheme(hpc_unpacker *u, hpc_description *d, hpc_described_scheme *s, int cores) {
    hpc_exchange_config *f = &s->config;
    hpc_hub *hub = &s->hub;
    hpc_exchange_config_init(f);
    int status = hpc_plan_args_init("hub", hub, sizeof *hub);
    if (status != HPC_OK) return status;
    int *const numbers[] = {&f->consistency,  &f->staleness, &f->quorum,     &hub->cores,
                            &hub->interfaces, &hub->depth,   &hub->affinity, &hub->apply_at};
    int *const flags[] = {&f->shared_params, &f->split, &hub->sum, &hub->each};
    for (int i = 0; i < 8; i++) *numbers[i] = hpc_unpack_int(u);
    for (int i = 0; i < 4; i++) *flags[i] = hpc_unpack_number(u, 1) != 0;
    f->grace = hpc_unpack_double(u);
    hub->chunk = hpc_unpack_number(u, 8);
    hub->least = hpc_unpack_number(u, 8);
    f->progress = HPC_PROGRESS_THREAD;
    status = u->bad ? fail_short() : unpack_racks(u, s);
    if (status == HPC_OK) status = unpack_keys(u, d, s);
    return status == HPC_OK ? check_plan(hub, cores) : status;
}

static int unpack_all(hpc_unpacker *u, hpc_description *d, int cores) {
    const unsigned char *magic = hpc_unpack(u, 4);
    const uint64_t version = hpc_unpack_number(u, 4), n = hpc_unpack_number(u, 4);
    if (magic == NULL || memcmp(magic, "hpcx", 4) != 0) return refuse("it does not begin as one");
    if (version != HPC_DESCRIPTION_VERSION)
        return refuse("its version is %llu, not %d", (unsigned long long)version, HPC_DESCRIPTION_VERSION);
    if (n < 1 || n * LEAST_KEY_BYTES > (size_t)(u->end - u->at))
        return refuse("it has %llu schemes", (unsigned long long)n);
    d->schemes = calloc(n, sizeof *d->schemes);
    if (d->schemes == NULL) return no_memory();
    int keys = 0, status = HPC_OK;
    for (; d->n_schemes < (int)n && status == HPC_OK; d->n_schemes++) {
        status = unpack_scheme(u, d, &d->schemes[d->n_schemes], cores);
        keys += d->schemes[d->n_schemes].hub.n_keys;
        if (status == HPC_OK && keys > HPC_DESCRIPTION_KEYS)
            status = refuse("it has more than %d keys", HPC_DESCRIPTION_KEYS);
    }
    if (status != HPC_OK) return status;
    if (u->at != u->end) return refuse("%zu bytes follow it", (size_t)(u->end - u->at));
    for (int i = 1; i < d->n_schemes; i++) d->schemes[i - 1].config.next = &d->schemes[i].config;
    return HPC_OK;
}

int hpc_description_read(const void *message, size_t nbytes, int cores, hpc_description **description) {
    if (nbytes > HPC_DESCRIPTION_BYTES) return refuse("it has %zu bytes, more than %d", nbytes, HPC_DESCRIPTION_BYTES);
    if (message == NULL || description == NULL)
        return refuse("%s is NULL", message == NULL ? "message" : "description");
    hpc_unpacker u = {message, (const unsigned char *)message + nbytes, 0};
    hpc_description *d = calloc(1, sizeof *d);
    if (d == NULL) return no_memory();
    int status = unpack_all(&u, d, cores);
    if (status == HPC_OK)
        *description = d;
    else
        hpc_description_free(d);
    return status;
}

void hpc_description_free(hpc_description *d) {
    if (d == NULL) return;
    for (int i = 0; i < d->n_schemes; i++) {
        hpc_described_scheme *s = &d->schemes[i];
        for (int k = 0; s->names != NULL && k < s->hub.n_keys; k++) free(s->names[k]);
        free(s->groups);
        free(s->keys);
        free(s->names);
        free(s->wires);
        free(s->codecs_out);
        free(s->rules);
        free(s->codecs);
        hpc_plan_free(s->plan);
    }
    for (hpc_key_form *form = d->forms, *before; form != NULL; form = before) {
        before = form->before;
        free(form);
    }
    free(d->schemes);
    free(d);
}

/* ---- keys and plans ---- */

int hpc_description_key(const hpc_description *d, int i, hpc_described_key *key) {
    if (d == NULL || key == NULL || i < 0) return HPC_ERR_INVALID;
    for (int n = 0; n < d->n_schemes; n++) {
        const hpc_described_scheme *s = &d->schemes[n];
        if (i < s->hub.n_keys) {
            *key = (hpc_described_key){s->keys[i].name, s->keys[i].count, s->rules[i], s->plan, i};
            return HPC_OK;
        }
        i -= s->hub.n_keys;
    }
    return HPC_ERR_INVALID;
}

/* ---- memory and descriptors ---- */

/* Returns whether a hub goes on while a worker has not taken its parameters, so puts need copies of them. */
static int goes_on(const hpc_exchange_config *f) {
    return f->consistency == HPC_ASYNC || f->staleness != 0 || f->quorum != 0;
}

/* Returns how many bytes each element of a key needs. depth: slots of each worker whose memory the hub does not map. */
static double bytes_each(const hpc_described_scheme *s, int k, int far, int depth) {
    const hpc_exchange_config *f = &s->config;
    const int receives = s->hub.apply_at != HPC_AT_OWNERS, pieces = s->wires[k] >= HPC_THRESHOLD;
    double values = 1.0 + s->rules[k]->slots + (f->split != 0) + 2 * pieces + (s->codecs_out[k] != HPC_F32);
    if (receives) values += 2.0 * depth;          /* sums of versions, and their encodings */
    values += (double)far * (depth + goes_on(f)); /* slots for updates, and a copy for puts */
    return 4 * values;
}

/* Returns how many bytes the vectors of a key need, whose updates are pairs of these. */
static double bytes_of_vectors(const hpc_described_scheme *s, int k, int far, int depth) {
    const hpc_codec_config *c = s->codecs[k];
    if (s->wires[k] != HPC_FACTORS || c == NULL || c->pairs < 1) return 0;
    return 4.0 * c->pairs * ((double)c->rows + (double)c->columns) * (2.0 + depth * (1.0 + far));
}

/* Adds to owned[key] the elements of the rows that a rank owns. Rows of the same elements, which lie together, count
 * once. */
static void count_owned(const hpc_plan *plan, int rank, double *owned) {
    const hpc_row *last = NULL;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->owner != rank) continue;
        if (last == NULL || last->key != row->key || last->offset != row->offset) owned[row->key] += (double)row->count;
        last = row;
    }
}

/* Returns how many bytes the rows of a hub need that grow with elements, if each rack has a hub: of rows that it owns,
 * of folds that it forwards, and of parameters that it relays. */
static double bytes_of_rows(const hpc_described_scheme *s, int far, int rank) {
    const hpc_exchange_config *f = &s->config;
    double bytes = 0;
    for (int i = 0; i < s->plan->n_rows; i++) {
        const hpc_row *row = &s->plan->rows[i];
        if (row->owner != rank) continue;
        int in = 0, out = 0, pushes = 0, answers = 0; /* from and to rows, and from and to workers */
        for (int e = 0; e < row->n_in; e++) *(row->in[e].row < 0 ? &pushes : &in) += 1;
        for (int e = 0; e < row->n_out; e++) *(row->out[e].row < 0 ? &answers : &out) += 1;
        const int pieces = s->wires[row->key] >= HPC_THRESHOLD;
        double values = (double)s->hub.depth * (in + (pushes < far ? pushes : far)); /* slots */
        if (row->action == HPC_APPLY) {
            values += 1.0 + s->rules[row->key]->slots + (f->split != 0) + 2 * pieces;
            values += s->codecs_out[row->key] != HPC_F32;
            values += goes_on(f) * (double)(out + (answers < far ? answers : far)); /* copies for puts */
        } else if (row->action == HPC_FORWARD) {
            values += 2.0 + 2 * pieces; /* a fold, its encoding and its residual */
        }
        bytes += 4 * values * (double)row->count + 64.0 * s->hub.depth * in;
    }
    return bytes;
}

/* Returns a bound on the bytes of the scheme's rows, of all ranks, and of what makes them, without elements. */
static double bytes_of_table(const hpc_described_scheme *s, int workers, int hubs, int far, int depth) {
    const double receivers = s->hub.apply_at != HPC_AT_OWNERS ? workers : 0; /* each has a row of each chunk */
    double each = ROW_BYTES + 64.0 * workers + 64.0 * far * depth + RECEIVER_BYTES * receivers;
    if (s->racks.n > 0) {
        each += 2.0 * ROW_BYTES * (hubs + s->n_shared);  /* forwards and relays */
        each += 64.0 * (workers + 2.0 * hubs);           /* edges, which chunks do not share */
        each += sizeof(int) * (6.0 + s->n_hosts + hubs); /* leaders of groups, while the plan is made */
    }
    return chunks(&s->hub) * each;
}

static double scheme_bytes(const hpc_described_scheme *s, int workers, int hubs, int far, int rank, double *owned) {
    const int depth = s->hub.apply_at != HPC_AT_OWNERS && s->hub.depth < 2 ? 2 : s->hub.depth;
    const int by_rows = s->racks.n > 0 && s->plan != NULL && rank >= 0;
    double bytes = bytes_of_table(s, workers, hubs, far, depth) + (by_rows ? bytes_of_rows(s, far, rank) : 0);
    for (int k = 0; k < s->hub.n_keys; k++) owned[k] = rank < 0 ? (double)s->hub.keys[k].count / hubs : 0;
    if (rank >= 0 && s->plan != NULL && !by_rows) count_owned(s->plan, rank, owned);
    for (int k = 0; k < s->hub.n_keys; k++)
        bytes += owned[k] * bytes_each(s, k, far, depth) + bytes_of_vectors(s, k, far, depth);
    return bytes;
}

uint64_t hpc_description_memory(const hpc_description *d, int workers, int hubs, int far, int rank) {
    double bytes = JOB_BYTES;
    for (int i = 0; i < d->n_schemes; i++) {
        double *owned = malloc((size_t)d->schemes[i].hub.n_keys * sizeof *owned);
        if (owned == NULL) return UINT64_MAX;
        bytes += scheme_bytes(&d->schemes[i], workers, hubs < 1 ? 1 : hubs, far, rank, owned);
        free(owned);
    }
    return bytes < 0x1p63 ? (uint64_t)bytes : UINT64_MAX;
}

/* Returns how many descriptors a hub needs for each lane: one for each rank with which its rows exchange bytes, unless
 * it maps the rank's memory. near: room for a mark for each rank. */
static int peers_of(const hpc_description *d, const hpc_plan *plan, int far, int far_hubs, int rank, char *near) {
    int workers = 0, hubs = 0;
    memset(near, 0, (size_t)(d->workers + d->hubs));
    near[rank] = 1;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->owner != rank || (i > 0 && row[-1].owner == rank && row->in == row[-1].in && row->out == row[-1].out))
            continue; /* rows of a hub that serves all share their edges */
        for (int e = 0; e < row->n_in + row->n_out; e++) {
            const int peer = e < row->n_in ? row->in[e].rank : row->out[e - row->n_in].rank;
            if (near[peer]) continue;
            near[peer] = 1;
            *(peer < d->workers ? &workers : &hubs) += 1;
        }
    }
    return (workers < far ? workers : far) + (hubs < far_hubs ? hubs : far_hubs);
}

int hpc_description_descriptors(const hpc_description *d, int far, int far_hubs, int rank, int streams) {
    if (d->schemes[d->n_schemes - 1].plan == NULL || rank < d->workers || rank >= d->workers + d->hubs) return INT_MAX;
    char *near = malloc((size_t)(d->workers + d->hubs));
    double n = near == NULL ? INT_MAX : 0;
    for (int i = 0; i < d->n_schemes && near != NULL; i++) {
        const hpc_described_scheme *s = &d->schemes[i];
        n += 1 + 2.0 * s->hub.cores * streams * peers_of(d, s->plan, far, far_hubs, rank, near);
    }
    free(near);
    return n < INT_MAX ? (int)n : INT_MAX;
}
