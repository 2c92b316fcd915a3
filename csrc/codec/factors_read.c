#include "codec/factors_read.h"
#include "base/isa.h"

#include <string.h>

hpc_factor_sizes hpc_factors_sizes(const hpc_codec_config *config, uint64_t n) {
    const uint64_t rows = n / config->columns;
    return (hpc_factor_sizes){.rows = rows,
                              .columns = config->columns,
                              .pairs = (uint64_t)config->pairs,
                              .values = config->values,
                              .item = hpc_dtype_bytes(config->values),
                              .u_index = rows <= HPC_FACTOR_NARROW ? 2 : 4,
                              .v_index = config->columns <= HPC_FACTOR_NARROW ? 2 : 4};
}

size_t hpc_factors_most(const hpc_factor_sizes *sizes) {
    const uint64_t n = sizes->rows * sizes->columns, both = sizes->rows + sizes->columns;
    const uint64_t values = both == 0 || sizes->pairs > n / both ? n : sizes->pairs * both;
    return sizeof(hpc_piece_head) + (size_t)values * sizes->item;
}

/* ---- one piece ---- */

/* Reads a word once, because another process may change it. */
static uint32_t word_at(const char *table, uint64_t i) {
    return atomic_load_explicit((const _Atomic uint32_t *)(const void *)table + i, memory_order_relaxed);
}

/* Takes the next vector, and moves *at past it. Returns nonzero if it would pass end. */
static int take_vector(const hpc_factor_sizes *sizes, const char **at, const char *end, uint64_t length, size_t index,
                       uint32_t entries, int padded, hpc_factor *vector) {
    const int dense = entries == HPC_FACTOR_DENSE;
    if (!dense && entries > length) return HPC_PIECE_BAD_COUNT;
    const uint64_t nbytes = padded ? hpc_factors_vector(length, entries, sizes->item, index) : length * sizes->item;
    if (nbytes > (uint64_t)(end - *at)) return HPC_PIECE_BAD_LENGTH;
    const char *values = dense ? *at : *at + ((uint64_t)entries * index + 3) / 4 * 4;
    *vector = (hpc_factor){.values = values,
                           .indices = dense ? NULL : *at,
                           .n = dense ? (uint32_t)length : entries,
                           .length = (uint32_t)length};
    *at += nbytes;
    return 0;
}

/* Places the cursors of a walk at the first pair of a piece whose head was read. */
static int enter(hpc_factors_walk *w, const hpc_piece_head *head, const void *in) {
    const hpc_factor_sizes *s = &w->sizes;
    const uint64_t body = head->nbytes - sizeof *head, count = head->entries;
    const char *from = (const char *)in + sizeof *head;
    w->pair = 0;
    w->pairs = head->entries;
    w->end = from + body;
    w->table = NULL;
    w->v = from;
    if (head->form == HPC_PIECE_FACTORS) {
        if (body != count * (s->rows + s->columns) * s->item) return HPC_PIECE_BAD_LENGTH;
        w->u = from + count * s->columns * s->item;
        return 0;
    }
    if (count * 2 * sizeof(uint32_t) > body) return HPC_PIECE_BAD_LENGTH;
    w->table = from;
    w->u = w->v = from + count * 2 * sizeof(uint32_t);
    for (uint64_t k = 0; k < count; k++) {
        hpc_factor skipped;
        int status = take_vector(s, &w->u, w->end, s->columns, s->v_index, word_at(w->table, k), 1, &skipped);
        if (status != 0) return status;
    }
    return 0;
}

static int take_pair(hpc_factors_walk *w, hpc_factor_pair *pair) {
    const hpc_factor_sizes *s = &w->sizes;
    const int sparse = w->table != NULL;
    const uint32_t v = sparse ? word_at(w->table, w->pair) : HPC_FACTOR_DENSE;
    const uint32_t u = sparse ? word_at(w->table, (uint64_t)w->pairs + w->pair) : HPC_FACTOR_DENSE;
    int status = take_vector(s, &w->v, w->end, s->columns, s->v_index, v, sparse, &pair->v);
    if (status == 0) status = take_vector(s, &w->u, w->end, s->rows, s->u_index, u, sparse, &pair->u);
    w->pair++;
    return status;
}

/* Reads the head of a piece of n elements, and checks that the piece is not larger than such pieces may be. */
static int read_head(const hpc_factor_sizes *s, int64_t n, const void *in, int64_t nbytes, hpc_piece_head *head) {
    const int status = hpc_piece_read(head, in, nbytes, n);
    if (status != 0) return status;
    if (n % (int64_t)s->columns != 0 || head->values != s->values) return HPC_PIECE_BAD_HEAD;
    if ((uint64_t)nbytes > hpc_factors_most(s)) return HPC_PIECE_BAD_LENGTH;
    if (head->form == HPC_PIECE_DENSE) return 0;
    if (head->form != HPC_PIECE_FACTORS && head->form != HPC_PIECE_SPARSE) return HPC_PIECE_BAD_HEAD;
    return head->entries > s->pairs ? HPC_PIECE_BAD_COUNT : 0;
}

static int check_indices(const hpc_factor *vector, uint64_t length, size_t index) {
    uint64_t next = 0;
    for (uint32_t i = 0; vector->indices != NULL && i < vector->n; i++) {
        const uint64_t at =
            index == 2 ? ((const uint16_t *)vector->indices)[i] : ((const uint32_t *)vector->indices)[i];
        if (at < next || at >= length) return HPC_PIECE_BAD_INDEX;
        next = at + 1;
    }
    return 0;
}

int hpc_factors_check(const hpc_codec_config *config, int64_t n, const void *in, int64_t nbytes) {
    if (n < 0 || n > HPC_PIECE_ELEMENTS) return HPC_PIECE_BAD_HEAD;
    hpc_factors_walk w = {.sizes = hpc_factors_sizes(config, (uint64_t)n)};
    const hpc_factor_sizes *s = &w.sizes;
    hpc_piece_head head;
    int status = read_head(s, n, in, nbytes, &head);
    if (status != 0 || head.form == HPC_PIECE_DENSE) return status;
    status = enter(&w, &head, in);
    const char *u = w.u;
    while (status == 0 && w.pair < w.pairs) {
        hpc_factor_pair pair;
        status = take_pair(&w, &pair);
        if (status == 0) status = check_indices(&pair.v, s->columns, s->v_index);
        if (status == 0) status = check_indices(&pair.u, s->rows, s->u_index);
    }
    return status != 0 ? status : w.v == u && w.u == w.end ? 0 : HPC_PIECE_BAD_LENGTH;
}

/* ---- some ---- */

void hpc_factors_begin(hpc_factors_walk *walk, const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs,
                       int n_inputs) {
    *walk = (hpc_factors_walk){
        .sizes = hpc_factors_sizes(config, (uint64_t)n), .inputs = inputs, .n_inputs = n_inputs, .n = n};
}

/* If a piece has changed since its check, the pairs that were read before the change are added. */
size_t hpc_factors_next(hpc_factors_walk *w, hpc_factor_pair *pairs, hpc_factors_array *array) {
    size_t some = 0;
    array->values = NULL;
    while (some < HPC_FACTOR_PAIRS) {
        if (w->pair < w->pairs) {
            pairs[some].weight = w->inputs[w->at - 1].weight;
            if (take_pair(w, &pairs[some]) == 0)
                some++;
            else
                w->pair = w->pairs;
            continue;
        }
        if (w->at == w->n_inputs) break;
        const hpc_codec_input *in = &w->inputs[w->at];
        hpc_piece_head head;
        const int status = read_head(&w->sizes, w->n, in->piece, in->nbytes, &head);
        if (status == 0 && head.form == HPC_PIECE_DENSE && some > 0) break; /* after the pairs before it are taken */
        w->at++;
        if (status == 0 && head.form == HPC_PIECE_DENSE) {
            *array = (hpc_factors_array){(const char *)in->piece + sizeof head, in->weight};
            return 0;
        }
        if (status != 0 || enter(w, &head, in->piece) != 0) w->pair = w->pairs = 0;
    }
    return some;
}
