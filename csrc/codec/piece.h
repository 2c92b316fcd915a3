/* The wire form of a piece of variable length, and the codecs that write it. Pure functions of their arguments: any
 * thread may call them, and none blocks or allocates.
 *
 * A piece of n elements is a head of 16 bytes, the values that were kept, and the rest, which says where they belong.
 * All numbers are little-endian; the values begin right after the head, and the rest right after the values.
 *
 *     form                 values                                    rest
 *     HPC_PIECE_DENSE      n, 0 where none was kept                  nothing
 *     HPC_PIECE_BITS       the kept ones                             (n + 7) / 8 bytes of bits (kernel/sparse.h)
 *     HPC_PIECE_GAPS8      the kept ones                             gaps, a byte a code (kernel/sparse.h)
 *     HPC_PIECE_GAPS16     the kept ones                             gaps, two bytes a code
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
    uint32_t nbytes;  /* of the whole piece, with this head */
    uint8_t form;     /* HPC_PIECE_* */
    uint8_t values;   /* hpc_dtype: HPC_F32, HPC_F16, HPC_BF16 */
    uint16_t packed;  /* 0: raw, as described above; otherwise the body is compressed (codec/compress.h) */
    uint32_t n;       /* elements */
    uint32_t entries; /* values; in HPC_PIECE_SIGNS and HPC_PIECE_FLOAT4 the elements of a unit; the last unit may be
                         shorter */
} hpc_piece_head;

/* A piece whose head was read and checked, and which is now added to an array. */
typedef struct hpc_piece_intake {
    const hpc_piece_head *head;
    const char *body; /* what follows the head */
    double weight;
    int isa; /* hpc_isa */
} hpc_piece_intake;

/* Errors of an encoder or a decoder that has refused its input and written nothing. */
enum {
    HPC_PIECE_BAD_ARGS = -1,   /* arguments out of range */
    HPC_PIECE_NO_ROOM = -2,    /* cap is less than max_bytes */
    HPC_PIECE_FAILED = -3,     /* a user's filter or encoder failed */
    HPC_PIECE_BAD_HEAD = -4,   /* wrong form, format of values or number of elements */
    HPC_PIECE_BAD_LENGTH = -5, /* its length is not the received length, or not that of its form */
    HPC_PIECE_BAD_COUNT = -6,  /* more or fewer kept elements than values */
    HPC_PIECE_BAD_INDEX = -7,  /* an element number of n or more */
    HPC_PIECE_REFUSED = -8,    /* a user's decoder refused it */
    HPC_PIECE_BAD_PACK = -9,   /* its body cannot be decompressed to its stated length */
    HPC_PIECE_NO_LIBRARY = -10 /* the library of its compression cannot be loaded */
};

/* Returns a status (HPC_PIECE_*) in words, for errors: "its length is wrong". */
const char *hpc_piece_text(int status);

/* Returns the most bytes of a piece: dense values, and the head. values: HPC_F32, HPC_F16 or HPC_BF16. */
size_t hpc_piece_max_bytes(uint64_t n, int values);

/* Reads the head of a piece once (the memory may change after that), and compares it with n elements and nbytes.
 * Returns 0, or an error. in must be aligned to 4 bytes. */
int hpc_piece_read(hpc_piece_head *head, const void *in, int64_t nbytes, int64_t n);

/* Does hpc_codec.decode_add for every form. If the piece is refused, nothing is written. If its memory changes
 * meanwhile, the added values are undefined, but no element outside acc[0..n) changes. config is not read and may be
 * NULL. */
int hpc_piece_decode_add(const hpc_codec_config *config, float *acc, int64_t n, const void *in, int64_t nbytes,
                         double weight);

/* hpc_codec.max_bytes: a head and dense values, in float32 or in the format that is sent. */
size_t hpc_piece_most(const hpc_codec_config *config, uint64_t n);
size_t hpc_piece_most_filtered(const hpc_codec_config *config, uint64_t n);

/* Returns the length that a piece states. Its memory may change, so a caller reads the length once. */
static inline size_t hpc_piece_bytes(const void *piece) {
    return atomic_load_explicit((const _Atomic uint32_t *)piece, memory_order_relaxed);
}

/* hpc_codec.length, for pieces of at most `most` bytes. */
size_t hpc_piece_length(const void *piece, size_t most);
size_t hpc_piece_length_dense(const hpc_codec_config *config, const void *piece, uint64_t n);
size_t hpc_piece_length_filtered(const hpc_codec_config *config, const void *piece, uint64_t n);

/* The same as hpc_piece_decode_add, by the kernels of an instruction set (hpc_isa). */
int hpc_piece_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int isa);

/* hpc_codec.encode_nothing; and scratch, pack and unpack of hpc_codec, by the configuration's compression. */
void hpc_piece_encode_nothing(const hpc_codec_config *config, int64_t n, void *out);
size_t hpc_piece_scratch(const hpc_codec_config *config, size_t most);
int64_t hpc_piece_pack_by(const hpc_codec_config *config, void *piece, size_t cap, void *scratch, size_t room);
int64_t hpc_piece_unpack_by(const hpc_codec_config *config, const void *piece, int64_t nbytes, void *raw, size_t cap,
                            void *scratch, size_t room);

/* Arguments of hpc_piece_encode: the filter of a piece, and how it is written. */
typedef struct hpc_piece_filter {
    hpc_filter_fn *filter; /* NULL: the kernel for the format of values */
    float delta;
    int values;
    int paper; /* 1: gaps above 80 % zeros, otherwise dense (Parameter Flow 3.3.1); 0: the form with the fewest bytes */
    int isa;   /* hpc_isa */
} hpc_piece_filter;

/* Writes x plus the residual, filtered, as a piece to out; returns the bytes of the piece, or a negative error. *kept
 * gets the number of kept elements; kept may be NULL. out must be aligned to 4 bytes. Unless the filter fails, the sent
 * values and the new residual add up to x plus the old residual, up to the rounding of that sum. */
int64_t hpc_piece_encode(const hpc_piece_filter *how, const float *x, int64_t n, float *residual, void *out,
                         int64_t cap, int64_t *kept);

/* For codecs with a delta: hpc_codec.encode, and their part of hpc_codec.check. */
int64_t hpc_piece_encode_filtered(const hpc_encoding *encoding, const hpc_codec_source *source, int64_t n, float *state,
                                  void *out, int64_t cap, int64_t *kept);
const char *hpc_piece_check_filter(const hpc_codec_config *config);

/* Returns 0 if n, values and cap are in range, otherwise the error. */
int hpc_piece_check(int64_t n, int values, int64_t cap);

/* Writes the head of a piece whose other nbytes are already written; returns the bytes of the whole piece. */
int64_t hpc_piece_finish(void *out, int form, int values, int64_t n, int64_t entries, size_t nbytes);

/* Encodes by the codec float4, with the kernels of an instruction set (hpc_isa). residual may be NULL: no residual. */
int64_t hpc_float4_encode(const hpc_codec_config *config, const float *x, int64_t n, float *residual, void *out,
                          int64_t cap, int isa);

#endif
