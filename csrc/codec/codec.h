/* A codec encodes updates as bytes. It is one const struct, in one file of this folder and in the array of codec.c;
 * nothing else knows how many bytes a number of elements takes.
 *
 * An addressable codec has no header and may be cut at any element: its piece is folded where it lies, block by block.
 * The others write pieces (piece.h) of varying length, at most max_bytes, which are added as a whole. Their encoder has
 * a state, with a residual in it. Any thread may call them; none may block. */
#ifndef HPC_CODEC_H
#define HPC_CODEC_H

#include "kernel/fold.h"

enum { HPC_ENCODER_VALUES = 2 };

/* The knowledge of an encoder of pieces beside its state. */
typedef struct hpc_encoding {
    const hpc_codec_config *config;
    uint64_t made;                 /* encodings, the present one included */
    double asked;                  /* the delta of a codec that is given one, before it decays */
    float delta;                   /* of the present one, where it has a delta */
    float own[HPC_ENCODER_VALUES]; /* values that the codec keeps until the next one; 0 at first */
} hpc_encoding;

/* An update of a key, as its trainer or a row has it, and where a piece of it begins. */
typedef struct hpc_codec_source {
    const void *data; /* the whole update: float32 values, or the form whose size hpc_codec.source_bytes returns */
    uint64_t from;    /* the piece's first element */
} hpc_codec_source;

/* A piece of a row, and its weight. */
typedef struct hpc_codec_input {
    const void *piece;
    int64_t nbytes;
    double weight;
} hpc_codec_input;

struct hpc_piece_head;
struct hpc_piece_intake;

/* A form of pieces (piece.h): 0, or an error of piece.h. check: may a piece with such a head have body bytes behind it?
 * NULL: its codec's decode_add checks the rest. add: adds a piece that was checked. NULL: only its codec does. */
typedef struct hpc_piece_form {
    int (*check)(const struct hpc_piece_head *head, uint64_t body);
    int (*add)(const struct hpc_piece_intake *in, float *acc);
} hpc_piece_form;

typedef struct hpc_codec {
    const char *name; /* as plans and errors say it */
    int number;       /* hpc_dtype; as plans have it */
    int addressable;
    size_t item; /* addressable: bytes of an element */
    int plain;   /* a piece is an array of float32: a single input with weight 1 needs no fold */

    int weighs; /* decode_add adds weight times each value, rounded once: a piece may be added to anything */

    /* The most bytes that n elements take: slots have room for no more, so all ranks must find the same. config is NULL
     * for arrays, here and below. */
    size_t (*max_bytes)(const hpc_codec_config *config, uint64_t n);
    /* The bytes of the piece that lies in a slot: 0 if it is no piece of n elements, else at most max_bytes. */
    size_t (*length)(const hpc_codec_config *config, const void *piece, uint64_t n);
    /* Encodes n elements of source into out, of cap bytes; returns the bytes written, or a negative number. state is
     * hpc_codec_state_slots arrays of n values, first the residual of a codec that keeps one; *kept gets the elements
     * that were sent. Of arrays encoding, state and kept are NULL. */
    int64_t (*encode)(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept);
    /* Adds weight times a piece of n elements, nbytes long, to acc. Nonzero when it is not a piece of n elements: then
     * nothing is written. */
    int (*decode_add)(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                      double weight);
    const hpc_piece_form *form; /* of pieces that it alone writes; NULL: it writes only forms of all codecs */
    /* Subtracts rate times the weighted sum of pieces that are not packed from param, in one pass over its n elements.
     * The sum begins with 0. The same bits as by decode_add and the rule sgd. Nonzero when an input is no piece: *wrong
     * gets its number, and nothing is written. NULL: pieces are added one by one. */
    int (*add_all)(const hpc_codec_config *config, float *param, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                   double rate, int *wrong);
    /* The same for any rule, a part at a time. check_all: 0 if all inputs are pieces of n elements, else the error of
     * one of them, whose number *wrong gets. add_range adds elements from to from + count of their weighted sum, with
     * the bits of decode_add, to sum[0..count). squares: 1 when *squares gets the sum of squares of the weighted sum,
     * up to rounding, and 0 when it takes the sum itself. Pieces that have changed since they were checked add
     * anything, but nothing outside sum is written. NULL: the sum of a row is made as a whole. */
    int (*check_all)(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                     int *wrong);
    void (*add_range)(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                      uint64_t from, uint64_t count, float *sum);
    int (*squares)(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                   double *squares);

    /* Addressable only: the kernel that folds pieces where they lie. */
    hpc_fold_fn *(*fold)(const struct hpc_fold_kernels *kernels);

    /* Pieces only. check: NULL if the configuration is right, else its fault, in words. */
    const char *(*check)(const hpc_codec_config *config);
    /* Elements in a row that no piece of a key of n elements may cut apart. NULL: 1. */
    uint64_t (*unit)(const hpc_codec_config *config, uint64_t n);
    /* Whether a residual keeps the values that a piece leaves out. NULL: it does. */
    int (*keeps)(const hpc_codec_config *config);
    /* Bytes of an update of n elements, as a trainer writes it. NULL: it is an array of n float32. With another source
     * only trainers can encode, and no row can encode a sum. */
    size_t (*source_bytes)(const hpc_codec_config *config, uint64_t n);
    /* Multiplies such an update by a factor. NULL: it is an array. */
    void (*scale)(const hpc_codec_config *config, void *source, float factor);
    /* Whether the n values of a source are finite. NULL: it is an array. */
    int (*is_finite)(const hpc_codec_config *config, const hpc_codec_source *source, uint64_t n);
    /* Called before and after the pieces of n elements are encoded, which may lie apart, for steps that concern all of
     * them. kept counts them all. NULL: no such steps. */
    void (*begin)(hpc_encoding *encoding, const hpc_codec_source *source, const float *residual, int64_t n);
    void (*end)(hpc_encoding *encoding, int64_t n, int64_t kept);

    /* Pieces only. A piece of n elements that adds nothing, into out, which has room for max_bytes. */
    void (*encode_nothing)(const hpc_codec_config *config, int64_t n, void *out);
    /* The fault of a piece, or of an encoding, in words: of a nonzero status of decode_add and unpack, or a
     * negative one of encode and pack. */
    const char *(*text)(int status);
    /* Compression: pieces are packed after they are encoded, and unpacked before they are read. scratch: bytes that
     * pack and unpack need beside pieces of at most so many; 0: this configuration packs none, and neither of the two
     * is called. pack works on a piece of at most cap bytes where it lies, and returns its bytes. unpack writes
     * the piece to raw and returns its bytes; it returns 0 if the piece was not packed. Both return a negative status
     * where they fail. */
    size_t (*scratch)(const hpc_codec_config *config, size_t most);
    int64_t (*pack)(const hpc_codec_config *config, void *piece, size_t cap, void *scratch, size_t room);
    int64_t (*unpack)(const hpc_codec_config *config, const void *piece, int64_t nbytes, void *raw, size_t cap,
                      void *scratch, size_t room);
} hpc_codec;

extern const hpc_codec hpc_codec_f32, hpc_codec_f16, hpc_codec_bf16;
extern const hpc_codec hpc_codec_threshold, hpc_codec_topk, hpc_codec_onebit, hpc_codec_own, hpc_codec_factors,
    hpc_codec_float4;

/* NULL if the configuration of a key's pieces is right, else its fault, in words (use.c). */
const char *hpc_codec_check(const hpc_codec *codec, const hpc_codec_config *config);

/* The codec with this number, below HPC_CODEC_NUMBERS, or NULL. */
enum { HPC_CODEC_NUMBERS = 32, HPC_CODEC_TEXT = 128 };
const hpc_codec *hpc_codec_of(int number);
/* Texts for errors (use.c). The names of the codecs whose bit (1u << number) is set, each behind a space: " float32
 * float16". And codecs with their numbers, pieces included or arrays alone: "0 (float32), 2 (float16)". */
void hpc_codec_names(unsigned numbers, char *names, size_t cap);
void hpc_codec_numbers(char *numbers, size_t cap, int pieces);

/* encode and decode_add of the codecs whose pieces are arrays of a dtype (use.c). */
int64_t hpc_codec_encode_array(const float *x, int64_t n, void *out, int64_t cap, int dtype);
int hpc_codec_add_array(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int dtype);

/* Sets a residual to 0 where it is NaN or infinite (use.c). */
void hpc_codec_drop_wild(float *residual, int64_t n);

/* The values of an array, from the piece's first element on. */
static inline const float *hpc_source_values(const hpc_codec_source *source) {
    return (const float *)source->data + source->from;
}

/* Whether an encoder of pieces has a residual. */
static inline int hpc_codec_keeps(const hpc_codec *codec, const hpc_codec_config *config) {
    return codec->keeps == NULL || codec->keeps(config);
}

/* Float32 values of an encoder's state, for each element, the residual among them. */
static inline int hpc_codec_state_slots(const hpc_codec *codec, const hpc_codec_config *config) {
    return hpc_codec_keeps(codec, config) + config->state_slots;
}

/* A part of n elements of an addressable codec's piece, as values, into out; decode_add would add them. stream: stores
 * past the caches, as hpc_fold_fn has it. */
void hpc_codec_decode(const hpc_codec *codec, const struct hpc_fold_kernels *kernels, const void *piece, float *out,
                      size_t n, int stream);

/* The bytes of n elements of an addressable codec, and so the offset of element n in its piece. */
static inline size_t hpc_codec_span(const hpc_codec *codec, uint64_t n) {
    return (size_t)n * codec->item;
}

#endif
