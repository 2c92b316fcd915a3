/* The wire form of a piece of variable length, and the codecs that write it. Pure functions of their arguments: any
 * thread may call them, and none blocks or allocates.
 *
 * A piece of n elements is a head of 16 bytes, the values that were kept, and their places. All numbers are
 * little-endian; the values begin right behind the head, and the rest right behind the values.
 *
 *     form                 values                                    rest
 *     HPC_PIECE_DENSE      n, 0 where none was kept                  nothing
 *     HPC_PIECE_BITS       those kept                                (n + 7) / 8 bytes of bits (kernel/sparse.h)
 *     HPC_PIECE_GAPS8      those kept                                gaps, a byte a code (kernel/sparse.h)
 *     HPC_PIECE_GAPS16     those kept                                gaps, two bytes a code
 *     HPC_PIECE_SIGNS      two float32 for each unit of elements:    for each unit its bits, from a new byte on
 *                          where the bit is set, and where not
 *     HPC_PIECE_OWN        the bytes that a user's codec has written; entries is 0
 *     HPC_PIECE_FACTORS    vectors whose products are the update (factors_read.h); entries is the number of pairs
 *     HPC_PIECE_SPARSE     the same; of some vectors only the values that are not 0
 *     HPC_PIECE_FLOAT4     a float32 for each unit: its scale        for each unit its codes, two in a byte, from a
 *                                                                    new byte on (kernel/float4.h)
 *
 * The fold of pieces does not depend on their forms: a dense piece is the same update, with its zeros. */
#ifndef HPC_PIECE_H
#define HPC_PIECE_H

#include <stdatomic.h>

#include "codec/codec.h"
#include "kernel/sparse.h"

enum {
    HPC_PIECE_DENSE,
    HPC_PIECE_BITS,
    HPC_PIECE_GAPS8,
    HPC_PIECE_GAPS16,
    HPC_PIECE_SIGNS,
    HPC_PIECE_OWN,
    HPC_PIECE_FACTORS,
    HPC_PIECE_SPARSE,
    HPC_PIECE_FLOAT4,
    HPC_PIECE_FORMS
};

typedef struct hpc_piece_head {
    uint32_t nbytes;  /* of the piece, this head included */
    uint8_t form;     /* HPC_PIECE_* */
    uint8_t values;   /* hpc_dtype: HPC_F32, HPC_F16, HPC_BF16 */
    uint16_t packed;  /* 0: raw, as all below; else the body is compressed (codec/compress.h) */
    uint32_t n;       /* elements */
    uint32_t entries; /* values; HPC_PIECE_SIGNS, HPC_PIECE_FLOAT4: elements of a unit. The last unit may be shorter */
} hpc_piece_head;

/* A piece whose head was read and checked, on its way into an array. */
typedef struct hpc_piece_intake {
    const hpc_piece_head *head;
    const char *body; /* behind the head */
    double weight;
    int isa; /* hpc_isa */
} hpc_piece_intake;

/* The answers of an encoder or a decoder that refuses, and has written nothing. */
enum {
    HPC_PIECE_BAD_ARGS = -1,   /* arguments out of range */
    HPC_PIECE_NO_ROOM = -2,    /* cap is less than max_bytes */
    HPC_PIECE_FAILED = -3,     /* a user's filter or encoder failed */
    HPC_PIECE_BAD_HEAD = -4,   /* form, format of values or elements */
    HPC_PIECE_BAD_LENGTH = -5, /* not as many bytes as came, or as the form takes */
    HPC_PIECE_BAD_COUNT = -6,  /* not as many elements are kept as there are values */
    HPC_PIECE_BAD_INDEX = -7,  /* an element at n or behind it */
    HPC_PIECE_REFUSED = -8,    /* by a user's decoder */
    HPC_PIECE_BAD_PACK = -9,   /* its body cannot be decompressed to the length that it should have */
    HPC_PIECE_NO_LIBRARY = -10 /* the library of its compression cannot be loaded */
};

/* The same in words, for errors: "its length is wrong". */
const char *hpc_piece_text(int status);

/* The most bytes of a piece: dense values, and the head. values: HPC_F32, HPC_F16 or HPC_BF16. */
size_t hpc_piece_max_bytes(uint64_t n, int values);

/* Reads the head of a piece of n elements and nbytes once (its memory may change after that), and holds it against n
 * and nbytes. Returns 0, or its error. in is aligned to 4 bytes. */
int hpc_piece_read(hpc_piece_head *head, const void *in, int64_t nbytes, int64_t n);

/* hpc_codec's decode_add, for every form. Nothing is written if the piece is refused. If its memory changes meanwhile,
 * the added values are undefined, but no element outside acc[0..n) is touched. config is not read and may be NULL. */
int hpc_piece_decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                         double weight);

/* hpc_codec's max_bytes: dense values behind a head, float32 or in the format that is sent. */
size_t hpc_piece_most(const hpc_codec_config *config, uint64_t n);
size_t hpc_piece_most_filtered(const hpc_codec_config *config, uint64_t n);

/* The length that a piece says it has. Its memory may change, so a caller reads the length once. */
static inline size_t hpc_piece_bytes(const void *piece) {
    return atomic_load_explicit((const _Atomic uint32_t *)piece, memory_order_relaxed);
}

/* hpc_codec's length, where a piece has at most so many bytes. */
size_t hpc_piece_length(const void *piece, size_t most);
size_t hpc_piece_length_dense(const hpc_codec_config *config, const void *piece, uint64_t n);
size_t hpc_piece_length_filtered(const hpc_codec_config *config, const void *piece, uint64_t n);

/* The same by the kernels of an instruction set (hpc_isa). */
int hpc_piece_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int isa);

/* hpc_codec's encode_nothing; and its scratch, pack and unpack, by the compression that the configuration names. */
void hpc_piece_encode_nothing(const hpc_codec_config *config, int64_t n, void *out);
size_t hpc_piece_scratch(const hpc_codec_config *config, size_t most);
int64_t hpc_piece_pack_by(const hpc_codec_config *config, void *piece, size_t cap, void *scratch, size_t room);
int64_t hpc_piece_unpack_by(const hpc_codec_config *config, const void *piece, int64_t nbytes, void *raw, size_t cap,
                            void *scratch, size_t room);

/* How a piece is filtered, and written. */
typedef struct hpc_piece_filter {
    hpc_filter_fn *filter; /* NULL: the kernel for the format of values */
    float delta;
    int values;
    int paper; /* gaps above 80 % zeros, else dense (Parameter Flow 3.3.1); else the form with the fewest bytes */
    int isa;   /* hpc_isa */
} hpc_piece_filter;

/* Writes x plus the residual, filtered, as a piece to out, and returns the bytes of the piece, or a negative error.
 * *kept gets the number of elements that were kept; kept may be NULL. out is aligned to 4 bytes. Unless the filter
 * fails, sent and residual add up to x plus the old residual, up to the rounding of that sum. */
int64_t hpc_piece_encode(const hpc_piece_filter *how, const float *x, int64_t n, float *residual, void *out,
                         int64_t cap, int64_t *kept);

/* For codecs with a delta: hpc_codec's encode, and their part of its check. */
int64_t hpc_piece_encode_filtered(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state,
                                  void *out, int64_t cap, int64_t *kept);
const char *hpc_piece_check_filter(const hpc_codec_config *config);

/* 0 if n, values and cap are in range, else the error. */
int hpc_piece_check(int64_t n, int values, int64_t cap);

/* Writes the head of a piece whose other nbytes are there; returns the bytes of the whole piece. */
int64_t hpc_piece_finish(void *out, int form, int values, int64_t n, int64_t entries, size_t nbytes);

/* The encoding of the codec float4 by the kernels of an instruction set (hpc_isa). residual: NULL for none. */
int64_t hpc_float4_encode(const hpc_codec_config *config, const float *x, int64_t n, float *residual, void *out,
                          int64_t cap, int isa);

#endif
