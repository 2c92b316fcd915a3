/* collective.h - collectives of arrays, and messages. hpcomm.h includes it. */
#ifndef HPCOMM_COLLECTIVE_H
#define HPCOMM_COLLECTIVE_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes collective.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* Types of elements, beside those of hpc_dtype. A boolean is a byte, 0 or 1. A complex number is a pair. */
typedef enum hpc_element {
    HPC_I8 = 32,
    HPC_U8,
    HPC_I16,
    HPC_U16,
    HPC_I32,
    HPC_U32,
    HPC_I64,
    HPC_U64,
    HPC_BOOL,
    HPC_C64, /* two float32 */
    HPC_C128 /* two float64 */
} hpc_element;

/* How elements of all ranks become one. They are taken in the order of ranks, so every rank gets the same bits. If
 * several hosts have equally many ranks, and more than one each, the elements of each host are first made one, except
 * for sums and products of 16-bit floats, which are made in float32 and rounded once. Integers wrap around. HPC_AVG is
 * the sum divided by the number of ranks, and takes floats and complex numbers. HPC_MIN and HPC_MAX give NaN if an
 * element is NaN, and take no complex numbers. Of booleans HPC_SUM and HPC_MAX are "or", HPC_PROD and HPC_MIN "and".
 * HPC_BAND, HPC_BOR and HPC_BXOR take integers and booleans. */
typedef enum hpc_op { HPC_SUM, HPC_AVG, HPC_MIN, HPC_MAX, HPC_PROD, HPC_BAND, HPC_BOR, HPC_BXOR } hpc_op;

typedef enum hpc_collective {
    HPC_ALLREDUCE,      /* recv: the elements of all ranks as one */
    HPC_REDUCE,         /* the same, on the root alone */
    HPC_REDUCE_SCATTER, /* send: a block for each rank; recv: this rank's blocks as one */
    HPC_BROADCAST,      /* recv of the root goes to recv of all; send is not used */
    HPC_ALLGATHER,      /* send: a block; recv: the blocks of all ranks */
    HPC_GATHER,         /* the same, on the root alone */
    HPC_SCATTER,        /* send of the root: a block for each rank; recv: this rank's block */
    HPC_ALLTOALL        /* send: a block for each rank; recv: a block of each rank */
} hpc_collective;

/* One collective call. All ranks of the context make the same calls in the same order, with equal what, type, op (of
 * the reductions) and root (of the rooted ones).
 *
 * count is the number of elements of a block: of the whole array for allreduce, reduce and broadcast. It must be equal
 * on all ranks. With send_counts and recv_counts, which have a number for each rank, blocks have unequal lengths, and
 * count is not used: what a rank sends to another must be as long as the other expects. Blocks lie one behind the other
 * in the order of ranks. Allgather, gather: recv_counts[r] is the length of rank r's block, on all ranks; so it is for
 * reduce_scatter. Scatter: send_counts likewise, on all ranks. Alltoall: both.
 *
 * send may be recv for allreduce and reduce; for gather, allgather, scatter and reduce_scatter it may be this rank's
 * block of the other array. Otherwise they must not overlap. */
typedef struct hpc_collective_call {
    size_t size; /* sizeof(hpc_collective_call) */
    int what;    /* hpc_collective */
    int type;    /* hpc_dtype or hpc_element */
    int op;      /* hpc_op */
    int root;
    const void *send;
    void *recv;
    uint64_t count;
    const uint64_t *send_counts, *recv_counts; /* by rank; NULL: all blocks have count elements */
} hpc_collective_call;

/* A started call. It holds the arrays until it is over. */
typedef struct hpc_request hpc_request;

HPC_API size_t hpc_element_size(int type); /* in bytes; 0 if there is no such type */

/* Makes the call and waits for its end. Fails with HPC_ERR_CONFIG on all ranks if ranks make different calls. After a
 * failure the context makes no further collectives of arrays. */
HPC_API int hpc_collective_run(hpc_context *context, const hpc_collective_call *call, double timeout);

/* Starts the call. Started calls of a context go on in the order of their starts, in every test and wait of this rank,
 * whatever it waits for. One thread at a time may start the calls of a context. Fails with HPC_ERR_INVALID if the call
 * shares memory with a started one that either of them writes. */
HPC_API int hpc_collective_start(hpc_context *context, const hpc_collective_call *call, hpc_request **work);
HPC_API int hpc_request_test(hpc_request *work);                 /* returns HPC_OK or HPC_IN_PROGRESS */
HPC_API int hpc_request_wait(hpc_request *work, double timeout); /* after HPC_ERR_TIMEOUT it may be called again */
HPC_API void
hpc_request_free(hpc_request *work); /* of a collective that is not over: it ends all collectives in this context */

/* ---- messages ----
 *
 * A message goes from one rank to another. It has a tag, 0 or more. type and count must be equal on both sides; a recv
 * of another type or count fails with HPC_ERR_CONFIG, and so does the send if its rank is still waiting; the message is
 * then dropped, and the context goes on. Messages of one sender with one tag are received in the order of their sends.
 * Messages and collectives do not hold each other up.
 *
 * A send of up to 64 KiB (1 to 32 KiB among more than 8 ranks) ends when the message is on its way, a longer one when
 * its receiver has it. A rank may send to itself. */

enum { HPC_ANY = -1 }; /* any rank, or any tag */

typedef struct hpc_received {
    int rank, tag; /* of the sender */
    uint64_t count;
} hpc_received;

HPC_API int hpc_send(hpc_context *context, int to, int tag, const void *data, uint64_t count, int type, double timeout);
/* from and tag may be HPC_ANY. received: NULL, or it gets the facts of the message. */
HPC_API int hpc_recv(hpc_context *context, int from, int tag, void *data, uint64_t count, int type,
                     hpc_received *received, double timeout);

/* The started forms. hpc_request_test, wait and free are as for collectives; a message that is given up ends nothing
 * else. */
HPC_API int hpc_send_start(hpc_context *context, int to, int tag, const void *data, uint64_t count, int type,
                           hpc_request **work);
HPC_API int hpc_recv_start(hpc_context *context, int from, int tag, void *data, uint64_t count, int type,
                           hpc_request **work);
HPC_API int hpc_request_received(const hpc_request *work, hpc_received *received); /* of a recv that has ended well */

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
