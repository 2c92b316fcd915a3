/* Reads pieces, and adds them. */
#include "codec/piece.h"

#include <string.h>

#include "codec/codec.h"
#include "base/isa.h"

enum { BLOCK = 1024, CODES = 512, NEAR = 1 << 17 /* elements that a second cache may hold */, FEW = 32 };

_Static_assert(sizeof(hpc_piece_head) == 16, "the head of a piece has 16 bytes");

const char *hpc_piece_text(int status) {
    switch (status) {
    case HPC_PIECE_BAD_ARGS:
        return "its arguments are out of range";
    case HPC_PIECE_NO_ROOM:
        return "its room is less than max_bytes";
    case HPC_PIECE_FAILED:
        return "its encoder failed";
    case HPC_PIECE_BAD_HEAD:
        return "its head names a form, a format or a number of elements that it cannot have";
    case HPC_PIECE_BAD_LENGTH:
        return "its length does not fit its form, or the bytes that came";
    case HPC_PIECE_BAD_COUNT:
        return "it keeps another number of elements than it has values";
    case HPC_PIECE_BAD_INDEX:
        return "it has an element behind the last one";
    case HPC_PIECE_REFUSED:
        return "its decoder refuses it";
    case HPC_PIECE_BAD_PACK:
        return "its compressed bytes are damaged";
    case HPC_PIECE_NO_LIBRARY:
        return "it is compressed by a library that cannot be loaded here";
    default:
        return "it is right";
    }
}

static int is_format(int values) {
    return values == HPC_F32 || values == HPC_F16 || values == HPC_BF16;
}

size_t hpc_piece_max_bytes(uint64_t n, int values) {
    return sizeof(hpc_piece_head) + (size_t)n * hpc_dtype_bytes(values);
}

size_t hpc_piece_most(const hpc_codec_config *config, uint64_t n) {
    (void)config;
    return hpc_piece_max_bytes(n, HPC_F32);
}

size_t hpc_piece_most_filtered(const hpc_codec_config *config, uint64_t n) {
    return hpc_piece_max_bytes(n, config->values);
}

size_t hpc_piece_length(const void *piece, size_t most) {
    const size_t nbytes = hpc_piece_bytes(piece);
    return nbytes < sizeof(hpc_piece_head) || nbytes > most ? 0 : nbytes;
}

size_t hpc_piece_length_dense(const hpc_codec_config *config, const void *piece, uint64_t n) {
    return hpc_piece_length(piece, hpc_piece_most(config, n));
}

size_t hpc_piece_length_filtered(const hpc_codec_config *config, const void *piece, uint64_t n) {
    return hpc_piece_length(piece, hpc_piece_most_filtered(config, n));
}

int hpc_piece_check(int64_t n, int values, int64_t cap) {
    if (n < 0 || n > HPC_PIECE_ELEMENTS || !is_format(values)) return HPC_PIECE_BAD_ARGS;
    return cap < 0 || (uint64_t)cap < hpc_piece_max_bytes((uint64_t)n, values) ? HPC_PIECE_NO_ROOM : 0;
}

int64_t hpc_piece_finish(void *out, int form, int values, int64_t n, int64_t entries, size_t nbytes) {
    hpc_piece_head head = {
        .nbytes = (uint32_t)(sizeof head + nbytes),
        .form = (uint8_t)form,
        .values = (uint8_t)values,
        .n = (uint32_t)n,
        .entries = (uint32_t)entries,
    };
    memcpy(out, &head, sizeof head);
    return head.nbytes;
}

void hpc_piece_encode_nothing(const hpc_codec_config *config, int64_t n, void *out) {
    (void)config;
    hpc_piece_finish(out, HPC_PIECE_GAPS8, HPC_F32, n, 0, 0);
}

/* ---- adding --------------------------------------------------------------------------------------------------------
 */

/* A piece of values and their places, which is being added. */
typedef struct piece_intake {
    const hpc_piece_head *head;
    const struct hpc_sparse_kernels *kernels;
    const struct hpc_fold_kernels *fold;
    const char *values;
    const uint8_t *rest;
    size_t nbytes; /* of the rest */
    double weight;
} piece_intake;

/* Returns the next count values times the weight: in block, or where they lie in the piece if they need no change. */
static const float *weighted(const piece_intake *in, size_t first, size_t count, float *block) {
    int values = in->head->values;
    const void *from = in->values + first * hpc_dtype_bytes(values);
    if (values == HPC_F32 && in->weight == 1) return from;
    if (count > 0) hpc_fold_of(in->fold, values)(block, &from, &in->weight, 1, count, 0);
    return block;
}

static int add_by_bits(const piece_intake *in, float *acc) {
    size_t n = in->head->n, entries = in->head->entries, used = 0;
    if (n % 8 != 0 && in->rest[in->nbytes - 1] >> n % 8 != 0) return HPC_PIECE_BAD_INDEX;
    if (in->kernels->count(in->rest, n) != entries) return HPC_PIECE_BAD_COUNT;
    for (size_t from = 0; from < n; from += BLOCK) {
        float block[BLOCK];
        uint8_t bits[BLOCK / 8]; /* a copy: the added bits are the counted ones, even if the piece changes meanwhile */
        size_t some = n - from < BLOCK ? n - from : BLOCK;
        memcpy(bits, in->rest + from / 8, (some + 7) / 8);
        size_t count = in->kernels->count(bits, some);
        if (count > entries - used) return HPC_PIECE_BAD_COUNT;
        if (some % 8 != 0) bits[some / 8] &= (uint8_t)((1u << some % 8) - 1);
        in->kernels->add_bits(acc + from, some, bits, weighted(in, used, count, block));
        used += count;
    }
    return 0;
}

/* Prefetches the elements to which a piece is about to add, into the second cache, which allows more pending loads than
 * the first. */
static void fetch(const float *acc, const uint32_t *positions, size_t count) {
    for (size_t i = 0; i < count; i++) __builtin_prefetch(acc + positions[i], 0, 2);
}

/* Adds values at positions, of which no two are equal. Two positions are loaded at once, because loads and stores take
 * most of the time. */
static void add_at(float *restrict acc, const uint32_t *restrict positions, const float *restrict values,
                   size_t count) {
    size_t i = 0;
    for (; count - i >= 4; i += 4) {
        uint64_t first, second;
        memcpy(&first, positions + i, sizeof first);
        memcpy(&second, positions + i + 2, sizeof second);
        acc[(uint32_t)first] += values[i];
        acc[first >> 32] += values[i + 1];
        acc[(uint32_t)second] += values[i + 2];
        acc[second >> 32] += values[i + 3];
    }
    for (; i < count; i++) acc[positions[i]] += values[i];
}

/* Adds values at places given by byte codes, eight codes at a time by one multiplication: the fastest way if few codes
 * skip and acc is in a near cache. Positions are sums of the codes before them, in 16 bits each; the next eight codes
 * wait only for that sum. */
static void add_eights(float *restrict acc, const uint8_t *restrict codes, size_t n, const float *restrict values) {
    const uint64_t ones = UINT64_MAX / 255, lanes = UINT64_MAX / 65535;
    size_t i = 0;
    for (; n - i >= sizeof(uint64_t); i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, codes + i, sizeof word);
        if (((~word - ones) & word & ones << 7) != 0) { /* ~word has a byte of 0: a code skips */
            for (size_t b = 0; b < sizeof word; b++) {
                acc += codes[i + b];
                if (codes[i + b] != HPC_GAP_SKIP8) *acc++ += *values++;
            }
            continue;
        }
        uint64_t odd = word >> 8 & lanes * 0xff, to_odd = ((word & lanes * 0xff) + odd) * lanes, to_even = to_odd - odd;
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {
            acc[(to_even >> 16 * pair & 0xffff) + 2 * (size_t)pair] += values[2 * pair];
            acc[(to_odd >> 16 * pair & 0xffff) + 2 * (size_t)pair + 1] += values[2 * pair + 1];
        }
        acc += (to_odd >> 48) + sizeof word;
        values += sizeof word;
    }
    for (; i < n; i++) {
        acc += codes[i];
        if (codes[i] != HPC_GAP_SKIP8) *acc++ += *values++;
    }
}

/* Copies each block before adding it: the added codes are the counted ones, even if the piece changes meanwhile. */
static int add_near_bytes(const piece_intake *in, float *acc) {
    size_t entries = in->head->entries, n = in->head->n, next = 0, used = 0;
    for (size_t from = 0; from < in->nbytes; from += CODES) {
        uint8_t codes[CODES];
        float block[CODES];
        uint64_t span;
        size_t some = in->nbytes - from < CODES ? in->nbytes - from : CODES;
        memcpy(codes, in->rest + from, some);
        size_t count = in->kernels->codes8(codes, some, &span);
        if (count > entries - used) return HPC_PIECE_BAD_COUNT;
        if (span > n - next) return HPC_PIECE_BAD_INDEX;
        add_eights(acc + next, codes, some, weighted(in, used, count, block));
        used += count;
        next += span;
    }
    return 0;
}

static int add_by_gaps(const piece_intake *in, float *acc, int wide) {
    const struct hpc_sparse_kernels *kernels = in->kernels;
    size_t width = wide ? 2 : 1, codes = in->nbytes / width, entries = in->head->entries, used = 0;
    uint32_t n = in->head->n, next = 0;
    uint64_t span;
    if ((wide ? kernels->codes16 : kernels->codes8)(in->rest, codes, &span) != entries) return HPC_PIECE_BAD_COUNT;
    if (span > n) return HPC_PIECE_BAD_INDEX;
    if (!wide && n <= NEAR && codes - entries <= codes / FEW) return add_near_bytes(in, acc);
    for (size_t from = 0; from < codes; from += CODES) {
        uint32_t positions[CODES + HPC_POSITIONS_SLACK];
        float block[CODES];
        size_t some = codes - from < CODES ? codes - from : CODES;
        const uint8_t *at = in->rest + from * width;
        size_t count = (wide ? kernels->positions16 : kernels->positions8)(at, some, positions, &next);
        if (count > entries - used) return HPC_PIECE_BAD_COUNT; /* the piece has changed since the count above */
        if (next > n) return HPC_PIECE_BAD_INDEX;
        if (n > NEAR) fetch(acc, positions, count);
        add_at(acc, positions, weighted(in, used, count, block), count);
        used += count;
    }
    return 0;
}

/* ---- forms ---------------------------------------------------------------------------------------------------------
 */

static piece_intake open_values(const hpc_piece_intake *in) {
    const size_t values = (size_t)in->head->entries * hpc_dtype_bytes(in->head->values);
    return (piece_intake){.head = in->head,
                          .kernels = hpc_sparse_kernels_of(in->isa),
                          .fold = hpc_fold_kernels_of(in->isa),
                          .values = in->body,
                          .rest = (const uint8_t *)in->body + values,
                          .nbytes = in->head->nbytes - sizeof *in->head - values,
                          .weight = in->weight};
}

/* Checks the values of a piece, and sets *rest to the bytes after them. */
static int check_values(const hpc_piece_head *head, uint64_t body, uint64_t *rest) {
    const uint64_t values = (uint64_t)head->entries * hpc_dtype_bytes(head->values);
    if (head->entries > head->n) return HPC_PIECE_BAD_COUNT;
    *rest = body - values;
    return values > body ? HPC_PIECE_BAD_LENGTH : 0;
}

static int check_dense(const hpc_piece_head *head, uint64_t body) {
    uint64_t rest;
    const int status = check_values(head, body, &rest);
    if (status != 0) return status;
    if (head->entries != head->n) return HPC_PIECE_BAD_COUNT;
    return rest == 0 ? 0 : HPC_PIECE_BAD_LENGTH;
}

static int add_dense(const hpc_piece_intake *in, float *acc) {
    const hpc_piece_head *head = in->head;
    const int64_t nbytes = (int64_t)(head->nbytes - sizeof *head);
    return hpc_codec_add_array(acc, head->n, in->body, nbytes, in->weight, head->values);
}

static int check_bits(const hpc_piece_head *head, uint64_t body) {
    uint64_t rest;
    const int status = check_values(head, body, &rest);
    return status != 0 || rest == ((uint64_t)head->n + 7) / 8 ? status : HPC_PIECE_BAD_LENGTH;
}

static int add_bits(const hpc_piece_intake *in, float *acc) {
    const piece_intake values = open_values(in);
    return add_by_bits(&values, acc);
}

static int check_gaps8(const hpc_piece_head *head, uint64_t body) {
    uint64_t rest;
    const int status = check_values(head, body, &rest);
    return status != 0 || rest >= head->entries ? status : HPC_PIECE_BAD_LENGTH;
}

static int add_gaps8(const hpc_piece_intake *in, float *acc) {
    const piece_intake values = open_values(in);
    return add_by_gaps(&values, acc, 0);
}

static int check_gaps16(const hpc_piece_head *head, uint64_t body) {
    uint64_t rest;
    const int status = check_values(head, body, &rest);
    return status != 0 || (rest % 2 == 0 && rest / 2 >= head->entries) ? status : HPC_PIECE_BAD_LENGTH;
}

static int add_gaps16(const hpc_piece_intake *in, float *acc) {
    const piece_intake values = open_values(in);
    return add_by_gaps(&values, acc, 1);
}

/* The forms that any codec may write; each other form belongs to the codec that writes it. */
static const hpc_piece_form common[] = {
    [HPC_PIECE_DENSE] = {check_dense, add_dense},
    [HPC_PIECE_BITS] = {check_bits, add_bits},
    [HPC_PIECE_GAPS8] = {check_gaps8, add_gaps8},
    [HPC_PIECE_GAPS16] = {check_gaps16, add_gaps16},
};

static const int writers[HPC_PIECE_FORMS] = {
    [HPC_PIECE_SIGNS] = HPC_ONEBIT,   [HPC_PIECE_OWN] = HPC_OWN_CODEC, [HPC_PIECE_FACTORS] = HPC_FACTORS,
    [HPC_PIECE_SPARSE] = HPC_FACTORS, [HPC_PIECE_FLOAT4] = HPC_FLOAT4,
};

/* Returns the form of a piece; NULL if no such form exists, or if this build lacks the codec that writes it. */
static const hpc_piece_form *form_of(const hpc_piece_head *head) {
    if (head->form < sizeof common / sizeof *common) return &common[head->form];
    const hpc_codec *codec = head->form < HPC_PIECE_FORMS ? hpc_codec_of(writers[head->form]) : NULL;
    return codec != NULL ? codec->form : NULL;
}

int hpc_piece_read(hpc_piece_head *head, const void *in, int64_t nbytes, int64_t n) {
    if (nbytes < (int64_t)sizeof *head) return HPC_PIECE_BAD_LENGTH;
    memcpy(head, in, sizeof *head);
    if (n < 0 || n > HPC_PIECE_ELEMENTS || head->n != n) return HPC_PIECE_BAD_HEAD;
    const hpc_piece_form *form = form_of(head);
    if (form == NULL || !is_format(head->values) || head->packed != 0) return HPC_PIECE_BAD_HEAD;
    if (head->nbytes != nbytes) return HPC_PIECE_BAD_LENGTH;
    return form->check != NULL ? form->check(head, (uint64_t)nbytes - sizeof *head) : 0;
}

int hpc_piece_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int isa) {
    hpc_piece_head head;
    const int status = hpc_piece_read(&head, in, nbytes, n);
    if (status != 0) return status;
    const hpc_piece_intake intake = {&head, (const char *)in + sizeof head, weight, isa};
    const hpc_piece_form *form = form_of(&head);
    return form->add != NULL ? form->add(&intake, acc) : HPC_PIECE_BAD_HEAD;
}

int hpc_piece_decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                         double weight) {
    (void)config;
    return hpc_piece_add(acc, n, in, nbytes, weight, HPC_ISA_BEST);
}
