/* way.h - costs of the ways to exchange a layer's updates, and the cheapest way (Poseidon, section 3.2). hpcomm.h
 * includes it. */
#ifndef HPCOMM_WAY_H
#define HPCOMM_WAY_H

#ifndef HPCOMM_H
#error "include <hpcomm/hpcomm.h>, which includes way.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

typedef enum hpc_way {
    HPC_WAY_PS = 0,      /* updates go to servers, each with an equal part of the layer, and parameters come back */
    HPC_WAY_HOSTS = 1,   /* the same, but a rank of each host first folds the host's updates */
    HPC_WAY_FACTORS = 2, /* pairs of vectors go to all workers, and each adds up their products (SFB); with several
                            hosts they go to one worker of each host, which does this for the host */
    HPC_WAY_ADAM = 3     /* pairs go to one server, and the matrix comes back */
} hpc_way;

/* A layer: a matrix of rows x columns. pairs: the number of pairs of vectors in a worker's update (the paper's K), such
 * as one for each sample of its batch; 0: updates are no sums of products, so the layer cannot be sent as pairs. slots:
 * float32 values of the rule's state per element. */
typedef struct hpc_layer {
    uint64_t rows, columns, pairs;
    int slots;
} hpc_layer;

/* The workers of a job, the number of those workers that are servers too, and the number of hosts over which both are
 * spread evenly. */
typedef struct hpc_cluster {
    int workers, servers, hosts;
} hpc_cluster;

/* The rates of a rank while all ranks work. Rate 0 means that the operation costs nothing. */
typedef struct hpc_rates {
    double between;  /* bytes a second over a host's link, in each direction */
    double inside;   /* bytes a second that a rank writes into the memory of another rank of its host */
    double memory;   /* bytes a second that a rank copies */
    double fold;     /* seconds to add an element of an input */
    double multiply; /* floating-point operations a second in sums of products; a product and its addition are two
                        operations */
} hpc_rates;

/* The rates of a codec of updates that servers take. */
typedef struct hpc_codec_rates {
    double ratio;          /* bytes of pieces divided by bytes of float32 */
    double encode, decode; /* seconds per element */
} hpc_codec_rates;

typedef struct hpc_cost {
    double seconds; /* time of the busiest link plus work of the busiest rank; no overlap is assumed */
    double sent;    /* bytes that all ranks together send to others */
    double busiest; /* bytes that the busiest rank sends and receives */
    double memory;  /* the most bytes that a rank needs: parameters, gradients, slots and state */
} hpc_cost;

/* Computes the cost of one step of a layer. codec: the rates of the codec of updates that go to servers; NULL: these
 * updates are float32. Returns HPC_ERR_UNSUPPORTED if way sends pairs and the layer cannot go as pairs. */
HPC_API int hpc_way_cost(int way, const hpc_layer *layer, const hpc_cluster *cluster, const hpc_rates *rates,
                         const hpc_codec_rates *codec, hpc_cost *cost);

/* Chooses one of HPC_WAY_PS, HPC_WAY_HOSTS (if hosts have several workers) and HPC_WAY_FACTORS: the fastest way that
 * needs at most memory bytes (0: no limit) or, if none fits, the way that needs the least. With rates NULL it uses
 * algorithm 1 of the paper, which counts bytes alone: HPC_WAY_FACTORS if 2 K (P1 - 1) (M + N) <= 2 M N (P1 + P2 - 2) /
 * P2, else HPC_WAY_PS, for P1 workers, P2 servers and an M x N matrix. */
HPC_API int hpc_best_way(const hpc_layer *layer, const hpc_cluster *cluster, const hpc_rates *rates, double memory,
                         int *way);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
