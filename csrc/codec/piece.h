/* The wire form of a piece of variable length, and the codecs that write it. Pure functions of their arguments: any
 * thread may call them, and none blocks or allocates.
 *
 * A piece of n elements is a head of 16 bytes, the values that were kept, and what says where they belong. All numbers
 * are little-endian; the values begin right behind the head, and the rest right behind the values.
 *
 *     form                 values                                    rest
 *     HPC_PIECE_DENSE      n, 0 where none was kept                  nothing
 *     HPC_PIECE_BITS       those kept                                (n + 7) / 8 bytes of bits (kernel/sparse.h)
 *     HPC_PIECE_GAPS8      those kept                                gaps, a byte a code (kernel/sparse.h)
 *     HPC_PIECE_GAPS16     those kept                                gaps, two bytes a code
 *     HPC_PIECE_SIGNS      two float32 for each unit of elements:    for each unit its bits, from a byte of its own on
 *                          where the bit is set, and where not
 *
 * A sum that is folded of pieces depends on no form: dense is the same update, with its zeros. */
#ifndef HPC_PIECE_H
#define HPC_PIECE_H

#include "kernel/sparse.h"

enum { HPC_PIECE_DENSE, HPC_PIECE_BITS, HPC_PIECE_GAPS8, HPC_PIECE_GAPS16, HPC_PIECE_SIGNS, HPC_PIECE_FORMS };
enum { HPC_PIECE_ELEMENTS = 1 << 29 }; /* of one piece, at most */

typedef struct hpc_piece_head {
    uint32_t nbytes;  /* of the piece, this head included */
    uint8_t form;     /* HPC_PIECE_* */
    uint8_t values;   /* hpc_dtype: HPC_F32, HPC_F16, HPC_BF16 */
    uint16_t unused;  /* 0 */
    uint32_t n;       /* elements */
    uint32_t entries; /* values; HPC_PIECE_SIGNS: elements of a unit, the last one of which may be shorter */
} hpc_piece_head;

/* What an encoder or a decoder returns for what it refuses, having written nothing. */
enum {
    HPC_PIECE_BAD_ARGS = -1,   /* arguments out of range */
    HPC_PIECE_NO_ROOM = -2,    /* cap is less than max_bytes */
    HPC_PIECE_FAILED = -3,     /* the filter of a user's own failed */
    HPC_PIECE_BAD_HEAD = -4,   /* form, format of values or elements */
    HPC_PIECE_BAD_LENGTH = -5, /* not as many bytes as came, or as the form takes */
    HPC_PIECE_BAD_COUNT = -6,  /* not as many elements are kept as there are values */
    HPC_PIECE_BAD_INDEX = -7   /* an element at n or behind it */
};

/* The same in words, for errors: "its length is wrong". */
const char *hpc_piece_text(int status);

/* The most bytes of a piece: those of dense values, and the head. values: HPC_F32, HPC_F16 or HPC_BF16. */
size_t hpc_piece_max_bytes(uint64_t n, int values);

/* Reads the head of a piece of n elements, of which nbytes came, once (its memory may change after that), and holds it
 * against n and nbytes. Returns 0, or the error that says what is wrong with it. in is aligned to 4 bytes. */
int hpc_piece_read(hpc_piece_head *head, const void *in, int64_t nbytes, int64_t n);

/* hpc_codec's decode_add, for every form. Nothing is written if the piece is refused. If its memory changes meanwhile,
 * what is added is undefined, but no element outside acc[0..n) is touched. args is not read and may be NULL. */
int hpc_piece_decode_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args);

/* The same by the kernels of an instruction set (hpc_isa). */
int hpc_piece_add(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, int isa);

/* How a piece is filtered, and written. */
typedef struct hpc_piece_filter {
    hpc_filter_fn *filter; /* NULL: the kernel for the format of values */
    float delta;
    int values;
    int paper; /* gaps above 80 % zeros, else dense (Parameter Flow 3.3.1); else what takes the fewest bytes */
    int isa;   /* hpc_isa */
} hpc_piece_filter;

/* Writes x plus the residual, filtered, as a piece to out, and returns the bytes of the piece, or a negative error.
 * *kept gets the number of elements that were kept; kept may be NULL. out is aligned to 4 bytes. Unless the filter
 * fails, sent and residual add up to x plus the old residual, up to the rounding of that sum. */
int64_t hpc_piece_encode(const hpc_piece_filter *how, const float *x, int64_t n, float *residual, void *out,
                         int64_t cap, int64_t *kept);

/* Whether n, values and cap are in range: 0, or why not. */
int hpc_piece_check(int64_t n, int values, int64_t cap);

/* Writes the head of a piece whose other bytes, so many, are there; returns those of all. */
int64_t hpc_piece_finish(void *out, int form, int values, int64_t n, int64_t entries, size_t nbytes);

/* Bytes behind the head of a piece of signs. unit is at least 1. */
uint64_t hpc_piece_signs_bytes(uint64_t n, uint64_t unit);

/* ---- codecs --------------------------------------------------------------------------------------------------------
 * Encoders in the shape of hpc_codec.encode. state has n values of residual, and then those of the codec's own, all 0
 * at first. args[0] is the step, from 1. */

enum { HPC_ARG_STEP, HPC_ARG_DELTA, HPC_ARG_DECAYS, HPC_ARG_VALUES, HPC_ARG_PAPER, HPC_THRESHOLD_ARGS };
enum { HPC_ARG_FRACTION = HPC_ARG_DELTA, HPC_ARG_UNIT = HPC_ARG_DELTA, HPC_TOPK_STATE = 2 };

/* Parameter Flow's filter (3.3): what is larger than delta, or where HPC_ARG_DECAYS is not 0 than delta / sqrt(step).
 */
int64_t hpc_threshold_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap);

/* About the largest fraction of a piece, by a delta that follows the density seen: state[n] is the next step's delta, 0
 * for one from a sample of the magnitudes, and state[n + 1] its trend. The delta is the piece's own, so the bits depend
 * on how keys are cut. */
int64_t hpc_topk_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap);

/* A bit an element (CNTK's 1-bit SGD): units of HPC_ARG_UNIT elements in a row, each with the mean of its elements from
 * 0 up and that of the others; the residual is what these miss. Dense float32 where units are so small that this takes
 * less. A piece begins with a unit. */
int64_t hpc_onebit_encode(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap);

#endif
