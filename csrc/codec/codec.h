/* A codec says what the bytes of an update are. It is one const struct, in one file of this folder and in the array of
 * codec.c; nothing else knows how many bytes a number of elements takes.
 *
 * An addressable codec has no header and may be cut at any element: its piece is folded where it lies, block by block.
 * The contract has room for others: those have a length of their own, at most max_bytes, and are added as a whole.
 *
 * Shapes are those of a user's own kernels too (compiled code, which returns a status and never raises): state is
 * state_slots arrays of n values, args the codec's numbers. Any thread may call them; none may block. */
#ifndef HPC_CODEC_H
#define HPC_CODEC_H

#include "kernel/fold.h"

typedef struct hpc_codec {
    const char *name; /* as plans and errors say it */
    int number;       /* hpc_dtype; as plans have it */
    int addressable;
    size_t item;     /* addressable: bytes of an element */
    int plain;       /* a piece is an array of float32: a single input with weight 1 needs no fold */
    int state_slots; /* float32 values of state an element, where the piece is encoded */

    /* The most bytes that n elements take. */
    size_t (*max_bytes)(uint64_t n);
    /* x[0..n) into out, of cap bytes: how many were written, or a negative number. */
    int64_t (*encode)(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap);
    /* Adds weight times a piece of n elements, nbytes long, to acc. Nonzero when it is not a piece of n elements. */
    int (*decode_add)(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args);

    /* Addressable only: the kernel that folds pieces where they lie. */
    hpc_fold_fn *(*fold)(const struct hpc_fold_kernels *kernels);
} hpc_codec;

extern const hpc_codec hpc_codec_f32, hpc_codec_f16, hpc_codec_bf16;

/* The codec with this number, below HPC_CODEC_NUMBERS, or NULL. */
enum { HPC_CODEC_NUMBERS = 32, HPC_CODEC_TEXT = 128 };
const hpc_codec *hpc_codec_of(int number);
/* For errors (use.c). The names of the codecs whose bit (1u << number) is set, each behind a space: " float32 float16".
 * And all codecs, with their numbers: "0 (float32), 2 (float16)". */
void hpc_codec_names(unsigned numbers, char *names, size_t cap);
void hpc_codec_numbers(char *numbers, size_t cap);

/* encode and decode_add of the codecs whose pieces are arrays of a dtype (array.c). */
int64_t hpc_codec_encode_array(const float *x, int64_t n, void *out, int64_t cap, int dtype);
int hpc_codec_add_array(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int dtype);

/* A part of n elements of an addressable codec's piece, as values, into out; decode_add would add them. stream: stores
 * past the caches, as hpc_fold_fn has it. */
void hpc_codec_decode(const hpc_codec *codec, const struct hpc_fold_kernels *kernels, const void *piece, float *out,
                      size_t n, int stream);

/* The bytes of n elements of an addressable codec, and so the offset of element n in its piece. */
static inline size_t hpc_codec_span(const hpc_codec *codec, uint64_t n) {
    return (size_t)n * codec->item;
}

#endif
