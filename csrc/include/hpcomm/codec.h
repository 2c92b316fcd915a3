/* codec.h - codecs of variable length, for updates that do not travel as arrays of a dtype. hpcomm.h includes it. */
#ifndef HPCOMM_CODEC_H
#define HPCOMM_CODEC_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes codec.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Codecs of pieces: numbers for hpc_row.codec_in and codec_out, and for the wires of planners, beside hpc_dtype. A
 * piece is the encoded part of an update that a row takes, at most 16 bytes longer than its float32 values. The encoder
 * keeps the values that a piece leaves out in a residual, which it adds to the next update: nothing is lost. A worker
 * encodes its pushes, an owner the folds that it forwards (hpc_apply_at); parameters have no such codec. All rows that
 * take the same elements of a worker's update get one encoding of them. */
typedef enum hpc_codec_number {
    HPC_THRESHOLD = 8,  /* the elements larger than delta (Parameter Flow, 3.3) */
    HPC_TOPK = 9,       /* about a fraction of the elements, the largest, by a delta that follows the density */
    HPC_ONEBIT = 10,    /* a bit an element and two values a unit (Poseidon, 5.3) */
    HPC_OWN_CODEC = 11, /* a user's codec */
    HPC_FACTORS = 12,   /* pairs of vectors, whose products add up to a matrix (SFB, section 2) */
    HPC_FLOAT4 = 13     /* 4-bit floats and a scale for each unit (Streaming DiLoCo, arXiv 2501.18512) */
} hpc_codec_number;

/* A library that makes pieces smaller still, loaded at run time; a piece that it makes no smaller stays as it is. */
typedef enum hpc_compression {
    HPC_COMPRESS_NONE = 0,
    HPC_COMPRESS_LZ4 = 1,
    HPC_COMPRESS_SNAPPY = 2,
    HPC_COMPRESS_ZSTD = 3,
    HPC_COMPRESS_ZLIB = 4
} hpc_compression;

enum { HPC_CODEC_ARGS = 8, HPC_OWN_CODEC_SLOTS = 8 };
enum { HPC_PIECE_ELEMENTS = 1 << 29 }; /* of one piece, at most */

/* A filter of n elements. It keeps u = x + residual where |u| > delta, or where u is NaN. Kept elements go to values,
 * one behind the other, in the filter's format; the residual becomes the part that is not sent: u where it is not kept,
 * else the error of rounding, and 0 where u is NaN or infinite. Bit i % 8 of byte i / 8 of bits is 1 where element i is
 * kept, and 0 behind the last element.
 *
 * Returns the number of kept elements. values has room for n of them, and all of it may be written; bits has (n + 7) /
 * 8 bytes. A user's filter may choose other elements, and returns a negative number if it fails. The same elements may
 * come again, with x 0 and all of u in the residual: then the last result counts. */
typedef int64_t hpc_filter_fn(const float *x, float *residual, int64_t n, float delta, void *values, uint8_t *bits);

/* The functions of a user's codec. encode writes x[0..n) into out, of cap bytes (4 n), and returns the number of bytes,
 * or a negative number; state is state_slots arrays of n values, all 0 at first. decode_add adds weight times the
 * values that nbytes of in encode to acc[0..n), or writes nothing and returns nonzero: in may come from another
 * process, and may hold anything. args are the configuration's, but args[0] is the number of the encoding, from 1 (for
 * decode_add 0). Any thread of the engine may call them; they may not block. */
typedef int64_t hpc_encode_fn(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap);
typedef int hpc_decode_add_fn(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args);

/* How the delta of HPC_THRESHOLD follows the network (Parameter Flow, 3.3.3): hpc_codec_config has delta (the paper's
 * low one), up and at_least. BY_PROBES: a worker's pushes have `up` while a path that it sends on has less than
 * at_least left, and an owner's forwarded folds while a path of its tree has less; probes of hpc_context_bandwidth
 * measure that. SMOOTHLY: without probes, delta goes from up, where this rank's connections get at_least, to delta,
 * where they get twice as much. */
typedef enum hpc_follow_how {
    HPC_FOLLOW_NOTHING = 0,
    HPC_FOLLOW_BY_PROBES = 1,
    HPC_FOLLOW_SMOOTHLY = 2
} hpc_follow_how;

/* The way in which the pieces of a key are written. Ranks may differ in filter, encode and decode_add alone. */
typedef struct hpc_codec_config {
    size_t size;     /* sizeof(hpc_codec_config), set by hpc_codec_config_init */
    double delta;    /* HPC_THRESHOLD: 0 or more */
    int decays;      /* HPC_THRESHOLD: 1: encoding t has delta / sqrt(t) */
    double fraction; /* HPC_TOPK: of the elements, above 0 and at most 1 */
    uint64_t unit;   /* elements that no row cuts apart. They share two values (HPC_ONEBIT) or a scale (HPC_FLOAT4, 16
                        at least). HPC_FACTORS: a multiple of columns */
    uint64_t rows, columns; /* HPC_FACTORS: of the matrix that the key is */
    int pairs;              /* HPC_FACTORS: the most pairs of vectors of one update */
    int values;             /* HPC_THRESHOLD, HPC_TOPK, HPC_FACTORS: hpc_dtype of sent values: HPC_F32, HPC_F16 or
                               HPC_BF16 */
    int paper;       /* the same: 0: the form that takes the fewest bytes; 1: indices above 80 % zeros, else dense
                        (Parameter Flow, 3.3.1) */
    int compress;    /* hpc_compression */
    int no_feedback; /* 1: values that a piece leaves out are lost. For comparison; HPC_FLOAT4: as in its paper, and an
                        encoder has no residual */
    hpc_filter_fn *filter; /* HPC_THRESHOLD, HPC_TOPK, with values HPC_F32: a user's filter; NULL: the library's */
    const char *name;      /* HPC_OWN_CODEC, as are the next four; for errors */
    hpc_encode_fn *encode;
    hpc_decode_add_fn *decode_add;
    int state_slots;             /* of float32, beside the residual; at most HPC_OWN_CODEC_SLOTS */
    double args[HPC_CODEC_ARGS]; /* from args[1] on */
    int follow;                  /* HPC_THRESHOLD: hpc_follow_how; all keys of an exchange that follow have one how and
                                    one at_least */
    double up, at_least;         /* with follow: delta or more; bytes a second, above 0 */
} hpc_codec_config;

HPC_API void hpc_codec_config_init(hpc_codec_config *config);

/* HPC_FACTORS: an update as its trainer writes it: the first *count pairs of vectors stand for the sum of their
 * products u v^T. Vectors that are mostly 0 are sent as their indices and values. */
typedef struct hpc_factors {
    int *count; /* 0 to pairs; 0 at first */
    float *u;   /* [pairs][rows] */
    float *v;   /* [pairs][columns] */
    int pairs;
    uint64_t rows, columns;
} hpc_factors;

/* The place of a key's next update, as hpc_exchange_gradient gives it for other codecs. A push without src sends what
 * lies there. */
HPC_API int hpc_exchange_factors(hpc_exchange *exchange, int key, double timeout, hpc_factors *factors);
/* hpc_exchange_start of a copy of count pairs: u is count vectors of rows values, v count vectors of columns values. */
HPC_API int hpc_exchange_start_factors(hpc_exchange *exchange, int key, int flags, int count, const float *u,
                                       const float *v, double timeout, uint64_t *ticket);

/* The state of an encoder between two encodings, for checkpoints: the number of encodings it has made, and values: the
 * residual (count values), the codec's state, slot by slot, and two values of HPC_TOPK. A worker has an encoder for
 * each key that it pushes, an owner one for each of its rows that forwards pieces. encoder_values returns the number of
 * values: 0 if nothing is encoded. A user's codec, or HPC_FLOAT4, without feedback has no residual: zeros stand for it,
 * or, if it has no state either, there are only the last two values. get and set: as hpc_exchange_get_row and set_row;
 * row -1: the worker's encoder of key. */
HPC_API int64_t hpc_exchange_encoder_values(const hpc_exchange *exchange, int key, int row);
HPC_API int hpc_exchange_get_encoder(hpc_exchange *exchange, int key, int row, uint64_t *made, float *values);
HPC_API int hpc_exchange_set_encoder(hpc_exchange *exchange, int key, int row, uint64_t made, const float *values);

/* HPC_THRESHOLD: sets delta, before it decays, for this rank's encodings from now on of a key, or of all such keys (key
 * -1): of its pushes, of the folds that it forwards, or of both. Ranks may have different deltas, as decoders do not
 * use them. Any thread, at any time. Not for keys whose delta follows the network (hpc_codec_config.follow). */
enum { HPC_DELTA_OF_PUSHES = 1, HPC_DELTA_OF_FOLDS = 2 };
HPC_API int hpc_exchange_set_delta(hpc_exchange *exchange, int key, int of, double delta);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
