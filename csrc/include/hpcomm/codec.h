/* codec.h - codecs of pieces, which encode updates in a variable number of bytes. hpcomm.h includes it. */
#ifndef HPCOMM_CODEC_H
#define HPCOMM_CODEC_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes codec.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Codecs of pieces. Their numbers may stand for an hpc_dtype in hpc_row.codec_in and codec_out, and in the wires of
 * planners. A piece is the encoded part of an update that one row takes; it is at most 16 bytes longer than the part as
 * float32. The encoder keeps the values that a piece leaves out in a residual, and adds the residual to the next
 * update, so nothing is lost. A worker encodes its pushes, and an owner encodes the folds that it forwards
 * (hpc_apply_at); parameters are never sent as pieces. All rows that take the same elements of a worker's update get
 * the same piece. */
typedef enum hpc_codec_number {
    HPC_THRESHOLD = 8,  /* elements with a magnitude above delta (Parameter Flow, 3.3) */
    HPC_TOPK = 9,       /* about a given fraction of the elements, the largest ones; the delta adapts to the fraction */
    HPC_ONEBIT = 10,    /* one bit per element, and two values per unit (Poseidon, 5.3) */
    HPC_OWN_CODEC = 11, /* a user's codec */
    HPC_FACTORS = 12,   /* pairs of vectors; the sum of their products is a matrix (SFB, section 2) */
    HPC_FLOAT4 = 13     /* 4-bit floats, and a scale per unit (Streaming DiLoCo, arXiv 2501.18512) */
} hpc_codec_number;

/* A compression library, loaded at run time, that is applied to pieces; a piece that it does not shorten is sent as it
 * is. */
typedef enum hpc_compression {
    HPC_COMPRESS_NONE = 0,
    HPC_COMPRESS_LZ4 = 1,
    HPC_COMPRESS_SNAPPY = 2,
    HPC_COMPRESS_ZSTD = 3,
    HPC_COMPRESS_ZLIB = 4
} hpc_compression;

enum { HPC_CODEC_ARGS = 8, HPC_OWN_CODEC_SLOTS = 8 };
enum { HPC_PIECE_ELEMENTS = 1 << 29 }; /* the most elements of one piece */

/* A filter, which chooses the elements of an update to send. For each of n elements, with u = x + residual, it keeps u
 * if |u| > delta or u is NaN. It writes the kept elements into values, one after the other, in the filter's format. It
 * sets the residual to the part that is not sent: u if u is not kept, otherwise the rounding error, or 0 for a u that
 * is NaN or infinite. It sets bit i % 8 of byte i / 8 of bits to 1 if element i is kept, and to 0 otherwise and after
 * the last element.
 *
 * Returns the number of kept elements. values has room for n elements, and all of it may be written; bits has (n + 7) /
 * 8 bytes. A user's filter may choose other elements, and returns a negative number if it fails. It may be called again
 * for the same elements, with x 0 and all of u in the residual; the last result is then used. */
typedef int64_t hpc_filter_fn(const float *x, float *residual, int64_t n, float delta, void *values, uint8_t *bits);

/* The functions of a user's codec. encode writes x[0..n) into out, which has cap bytes (4 n), and returns the number of
 * bytes, or a negative number if it fails; state is state_slots arrays of n values, all 0 at first. decode_add decodes
 * nbytes of in and adds weight times these values to acc[0..n); if in is not valid it must write nothing and return
 * nonzero, as in comes from another process and may hold anything. args are the configuration's, but args[0] is the
 * number of the encoding, from 1 (for decode_add 0). Any thread of the engine may call the functions; they must not
 * block. */
typedef int64_t hpc_encode_fn(const float *x, int64_t n, float *state, const double *args, void *out, int64_t cap);
typedef int hpc_decode_add_fn(float *acc, int64_t n, const void *in, int64_t nbytes, double weight, const double *args);

/* How the threshold of HPC_THRESHOLD follows the network (Parameter Flow, 3.3.3). It lies between
 * hpc_codec_config.delta (the paper's low value) and hpc_codec_config.up. BY_PROBES: a worker's pushes use config.up
 * while a path on which the worker sends has less than config.at_least left; the folds that an owner forwards use
 * config.up while a path of the owner's tree has less. Probes of hpc_context_bandwidth measure this. SMOOTHLY, without
 * probes: the threshold falls from config.up, when this rank's connections reach the rate config.at_least, to
 * config.delta, when they reach twice that rate. */
typedef enum hpc_follow_how {
    HPC_FOLLOW_NOTHING = 0,
    HPC_FOLLOW_BY_PROBES = 1,
    HPC_FOLLOW_SMOOTHLY = 2
} hpc_follow_how;

/* The settings of one key's codec. All but filter, encode and decode_add must be the same on all ranks. */
typedef struct hpc_codec_config {
    size_t size;     /* sizeof(hpc_codec_config), set by hpc_codec_config_init */
    double delta;    /* HPC_THRESHOLD: 0 or more */
    int decays;      /* HPC_THRESHOLD: 1: encoding number t uses delta / sqrt(t) */
    double fraction; /* HPC_TOPK: fraction of the elements to send, above 0 and at most 1 */
    uint64_t unit; /* number of consecutive elements that no row may cut apart. The elements of a unit share two values
                      (HPC_ONEBIT) or a scale (HPC_FLOAT4, 16 elements or more). With HPC_FACTORS unit must be a
                      multiple of columns */
    uint64_t rows, columns; /* HPC_FACTORS: shape of the key's matrix */
    int pairs;              /* HPC_FACTORS: the most pairs of vectors in one update */
    int values;   /* HPC_THRESHOLD, HPC_TOPK, HPC_FACTORS: hpc_dtype in which values are sent: HPC_F32, HPC_F16 or
                     HPC_BF16 */
    int paper;    /* for these three codecs. 0: each piece has the form with the fewest bytes; 1: a piece has indices if
                     more than 80 % are zeros, else it is dense (Parameter Flow, 3.3.1) */
    int compress; /* hpc_compression */
    int no_feedback; /* 1: values that a piece leaves out are lost, which is meant for comparisons. HPC_FLOAT4 is then
                        as in the paper, and its encoder has no residual */
    hpc_filter_fn *filter; /* HPC_THRESHOLD and HPC_TOPK with values HPC_F32: a user's filter; NULL: the library's */
    const char *name;      /* HPC_OWN_CODEC uses name (in errors) and the next four members */
    hpc_encode_fn *encode;
    hpc_decode_add_fn *decode_add;
    int state_slots;             /* arrays of float32 beside the residual; at most HPC_OWN_CODEC_SLOTS */
    double args[HPC_CODEC_ARGS]; /* arguments of the functions, from args[1] on */
    int follow; /* HPC_THRESHOLD: hpc_follow_how; all keys of an exchange that follow must have the same follow and
                   at_least */
    double up, at_least; /* used unless follow is 0. up: the larger threshold, delta or more; at_least: a rate in bytes
                            a second, above 0 */
} hpc_codec_config;

HPC_API void hpc_codec_config_init(hpc_codec_config *config);

/* The memory of an HPC_FACTORS update, which the trainer fills: the update is the sum of the products u v^T of the
 * first *count pairs of vectors. Vectors that are mostly 0 are sent as indices and values. */
typedef struct hpc_factors {
    int *count; /* the trainer sets it, 0 to pairs; 0 at first */
    float *u;   /* [pairs][rows] */
    float *v;   /* [pairs][columns] */
    int pairs;
    uint64_t rows, columns;
} hpc_factors;

/* Gives the memory for the next update of a key with HPC_FACTORS, as hpc_exchange_gradient does for other codecs. A
 * push without src sends this memory. */
HPC_API int hpc_exchange_factors(hpc_exchange *exchange, int key, double timeout, hpc_factors *factors);
/* Copies count pairs of vectors and starts a push, as hpc_exchange_start. u: count vectors of rows values; v: count
 * vectors of columns values. */
HPC_API int hpc_exchange_start_factors(hpc_exchange *exchange, int key, int flags, int count, const float *u,
                                       const float *v, double timeout, uint64_t *ticket);

/* Functions for checkpoints: they read and set the state of an encoder between two encodings. made is the number of
 * encodings that it has made. values has the residual (count values), the codec's state, array by array, and two values
 * of HPC_TOPK. A worker has an encoder for each key that it pushes, an owner has one for each of its rows that forwards
 * pieces; row -1 means the worker's encoder of key. encoder_values returns the number of values, or 0 if nothing is
 * encoded. An encoder without a residual (no_feedback with HPC_FLOAT4 or a user's codec) gives zeros for it, or, if it
 * has no state either, only the last two values. get and set are refused when hpc_exchange_get_row and set_row are. */
HPC_API int64_t hpc_exchange_encoder_values(const hpc_exchange *exchange, int key, int row);
HPC_API int hpc_exchange_get_encoder(hpc_exchange *exchange, int key, int row, uint64_t *made, float *values);
HPC_API int hpc_exchange_set_encoder(hpc_exchange *exchange, int key, int row, uint64_t made, const float *values);

/* Sets the delta of HPC_THRESHOLD, before it decays, for this rank's later encodings of key (-1: of all keys with
 * HPC_THRESHOLD). `of`, a sum of HPC_DELTA_OF_*, selects them: the rank's pushes, the folds that it
 * forwards, or both. Ranks may have different deltas, because decoders do not use delta. Any thread may call it at any
 * time. Refused for keys whose delta follows the network (hpc_codec_config.follow). */
enum { HPC_DELTA_OF_PUSHES = 1, HPC_DELTA_OF_FOLDS = 2 };
HPC_API int hpc_exchange_set_delta(hpc_exchange *exchange, int key, int of, double delta);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
