/* A codec encodes updates as bytes. It is one const struct, in one file of this folder and in the array of codec.c; no
 * other code knows how many bytes a number of elements takes.
 *
 * A codec is addressable if its bytes have no header and may be cut at any element: it encodes an array, which is
 * folded in place, block by block. Only such codecs can encode parameters. Other codecs write pieces (piece.h) of
 * varying length, at most max_bytes, which are added as a whole. An encoder of pieces has a state, with a residual in
 * it. Any thread may call a codec's functions; none of them blocks. */
#ifndef HPC_CODEC_H
#define HPC_CODEC_H

#include "kernel/fold.h"

enum { HPC_ENCODER_VALUES = 2 };

/* The facts that an encoder of pieces has beside its state. */
typedef struct hpc_encoding {
    const hpc_codec_config *config;
    uint64_t made; /* number of encodings, with the present one */
    double asked;  /* the configured delta, before it decays; used by codecs whose delta is configured */
    float delta;   /* delta of the present encoding, if the codec has one */
    float own[HPC_ENCODER_VALUES]; /* values that the codec keeps for its next encoding; 0 at first */
} hpc_encoding;

/* An update of a key, as its trainer or a row has it, and the element at which a piece of it begins. */
typedef struct hpc_codec_source {
    const void *data; /* the whole update: float32 values, or a form of hpc_codec.source_bytes bytes */
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

/* A form of pieces (piece.h). Both functions return 0, or an error of piece.h. check tests whether a piece with such a
 * head may have body bytes after it; NULL: the codec's decode_add checks the rest. add adds a piece that was checked;
 * NULL: only the codec itself can add it. */
typedef struct hpc_piece_form {
    int (*check)(const struct hpc_piece_head *head, uint64_t body);
    int (*add)(const struct hpc_piece_intake *in, float *acc);
} hpc_piece_form;

typedef struct hpc_codec {
    const char *name; /* in plans and errors */
    int number;       /* hpc_dtype or hpc_codec_number, as in plans */
    int addressable;
    size_t item; /* addressable: bytes of an element */
    int plain;   /* the encoding is an array of float32: a single input with weight 1 needs no fold */

    int weighs; /* decode_add adds weight times each value, rounded once, so a piece may be added to any array */

    /* Returns the most bytes that n elements take. Slots have room for no more, so all ranks must compute the same.
     * Here and below config is NULL for arrays. */
    size_t (*max_bytes)(const hpc_codec_config *config, uint64_t n);
    /* Returns the bytes of the piece in a slot, at most max_bytes; 0 if the slot holds no piece of n elements. */
    size_t (*length)(const hpc_codec_config *config, const void *piece, uint64_t n);
    /* Encodes n elements of source into out, of cap bytes; returns the bytes written, or a negative number. state is
     * hpc_codec_state_slots arrays of n values; the first is the residual, if the codec keeps one. *kept gets the
     * number of elements that were sent. When a codec encodes arrays, encoding, state and kept are NULL. */
    int64_t (*encode)(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state, void *out,
                      int64_t cap, int64_t *kept);
    /* Adds weight times a piece of n elements, nbytes long, to acc. Returns 0; nonzero, with nothing written, if in is
     * not a piece of n elements. */
    int (*decode_add)(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                      double weight);
    /* The form of pieces that only this codec writes; NULL: it writes only forms of all codecs. */
    const hpc_piece_form *form;
    /* Subtracts rate times the weighted sum of pieces that are not packed from param, in one pass over its n elements.
     * The sum begins with 0. The bits are the same as by decode_add and the rule sgd. Returns 0; nonzero if an input is
     * no piece: then *wrong gets the input's number, and nothing is written. NULL: pieces are added one by one. */
    int (*add_all)(const hpc_codec_config *config, float *param, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                   double rate, int *wrong);
    /* Functions that make the weighted sum for any rule, a part at a time. NULL: the sum of a row is made as a whole.
     * - check_all returns 0 if all inputs are pieces of n elements; otherwise the error of one of them, whose number
     *   *wrong gets.
     * - add_range adds elements from to from + count - 1 of their weighted sum, with the bits of decode_add, to
     *   sum[0..count). A piece that has changed since it was checked may add any values, but nothing outside sum is
     *   written.
     * - squares returns 1 and sets *squares to the sum of squares of the weighted sum, up to rounding; or 0 if that
     *   needs the sum itself. */
    int (*check_all)(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                     int *wrong);
    void (*add_range)(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                      uint64_t from, uint64_t count, float *sum);
    int (*squares)(const hpc_codec_config *config, int64_t n, const hpc_codec_input *inputs, int n_inputs,
                   double *squares);

    /* Addressable only: returns the kernel that folds encoded arrays in place. */
    hpc_fold_fn *(*fold)(const struct hpc_fold_kernels *kernels);

    /* Pieces only, down to end. check returns NULL if the configuration is valid, otherwise its fault, in words. */
    const char *(*check)(const hpc_codec_config *config);
    /* Returns how many consecutive elements no piece of a key of n elements may cut apart. NULL: 1. */
    uint64_t (*unit)(const hpc_codec_config *config, uint64_t n);
    /* Returns whether a residual keeps the values that a piece leaves out. NULL: it does. */
    int (*keeps)(const hpc_codec_config *config);
    /* Returns the bytes of an update of n elements, as a trainer writes it. NULL: the update is an array of n float32.
     * If it is not an array, only trainers can encode, and no row can encode a sum. */
    size_t (*source_bytes)(const hpc_codec_config *config, uint64_t n);
    /* Multiplies such an update by a factor. NULL: the update is an array. */
    void (*scale)(const hpc_codec_config *config, void *source, float factor);
    /* Returns whether the n values of a source are finite. NULL: the source is an array. */
    int (*is_finite)(const hpc_codec_config *config, const hpc_codec_source *source, uint64_t n);
    /* Called before and after all pieces of an update are encoded, for steps that concern the whole update. The pieces,
     * of n elements in all, may lie apart from each other. kept: how many elements all pieces have sent. NULL: no such
     * steps. */
    void (*begin)(hpc_encoding *encoding, const hpc_codec_source *source, const float *residual, int64_t n);
    void (*end)(hpc_encoding *encoding, int64_t n, int64_t kept);

    /* Pieces only. Writes a piece of n elements that adds nothing to out, which has room for max_bytes. */
    void (*encode_nothing)(const hpc_codec_config *config, int64_t n, void *out);
    /* Returns the fault that a status stands for, in words: a nonzero status of decode_add and unpack, or a negative
     * one of encode and pack. */
    const char *(*text)(int status);
    /* Compression: pieces are packed after they are encoded, and unpacked before they are read. scratch() returns the
     * bytes of scratch memory that pack() and unpack() need for pieces of at most `most` bytes; 0 if this configuration
     * does not compress: then neither of them is called. pack() packs a piece of at most cap bytes in place, and
     * returns its new length. unpack() writes the piece to raw and returns its bytes, or 0 if the piece was not packed.
     * Both return a negative status if they fail. */
    size_t (*scratch)(const hpc_codec_config *config, size_t most);
    int64_t (*pack)(const hpc_codec_config *config, void *piece, size_t cap, void *scratch, size_t room);
    int64_t (*unpack)(const hpc_codec_config *config, const void *piece, int64_t nbytes, void *raw, size_t cap,
                      void *scratch, size_t room);
} hpc_codec;

extern const hpc_codec hpc_codec_f32, hpc_codec_f16, hpc_codec_bf16;
extern const hpc_codec hpc_codec_threshold, hpc_codec_topk, hpc_codec_onebit, hpc_codec_own, hpc_codec_factors,
    hpc_codec_float4;

/* Returns NULL if the configuration of a key's pieces is valid, otherwise its fault, in words (use.c). */
const char *hpc_codec_check(const hpc_codec *codec, const hpc_codec_config *config);

/* Returns the codec with this number, below HPC_CODEC_NUMBERS, or NULL. */
enum { HPC_CODEC_NUMBERS = 32, HPC_CODEC_TEXT = 128 };
const hpc_codec *hpc_codec_of(int number);
/* Texts for errors (use.c). hpc_codec_names writes the names of the codecs whose bit (1u << number) is set, each after
 * a space: " float32 float16". hpc_codec_numbers writes codecs with their numbers, of pieces too or only of arrays: "0
 * (float32), 2 (float16)". */
void hpc_codec_names(unsigned numbers, char *names, size_t cap);
void hpc_codec_numbers(char *numbers, size_t cap, int pieces);

/* The functions encode and decode_add of the codecs f32, f16 and bf16, whose dtype the last argument gives (use.c). */
int64_t hpc_codec_encode_array(const float *x, int64_t n, void *out, int64_t cap, int dtype);
int hpc_codec_add_array(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int dtype);

/* Sets a residual to 0 where it is NaN or infinite (use.c). */
void hpc_codec_drop_wild(float *residual, int64_t n);

/* Returns the values of an array from the piece's first element on. */
static inline const float *hpc_source_values(const hpc_codec_source *source) {
    return (const float *)source->data + source->from;
}

/* Returns whether an encoder of pieces has a residual. */
static inline int hpc_codec_keeps(const hpc_codec *codec, const hpc_codec_config *config) {
    return codec->keeps == NULL || codec->keeps(config);
}

/* Returns how many float32 values an encoder's state has for each element, with the residual. */
static inline int hpc_codec_state_slots(const hpc_codec *codec, const hpc_codec_config *config) {
    return hpc_codec_keeps(codec, config) + config->state_slots;
}

/* Writes n elements of an addressable codec's array to out, as values; decode_add would add them. stream: stores past
 * the caches, as in hpc_fold_fn. */
void hpc_codec_decode(const hpc_codec *codec, const struct hpc_fold_kernels *kernels, const void *piece, float *out,
                      size_t n, int stream);

/* Returns the bytes of n elements of an addressable codec, which is also the offset of element n in its array. */
static inline size_t hpc_codec_span(const hpc_codec *codec, uint64_t n) {
    return (size_t)n * codec->item;
}

#endif
