/* way.h - the costs of several ways to exchange a layer, and the cheapest of them (Poseidon, section 3.2). hpcomm.h
 * includes it.
 */
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
    HPC_WAY_PS = 0,      /* updates to servers that have equal parts of the layer, and parameters back */
    HPC_WAY_HOSTS = 1,   /* the same, after the updates of each host are folded there */
    HPC_WAY_FACTORS = 2, /* pairs of vectors to all workers, each of which adds their products (SFB); with several
                               hosts, to one worker of each host, which adds them for it */
    HPC_WAY_ADAM = 3     /* pairs to one server, and the matrix back */
} hpc_way;

/* A matrix of rows x columns. pairs: K, the pairs of vectors of a worker's update, such as the samples of its batch; 0:
 * the layer's updates are no sums of products, so it cannot go as pairs. slots: float32 values of state that the rule
 * keeps of an element. */
typedef struct hpc_layer {
    uint64_t rows, columns, pairs;
    int slots;
} hpc_layer;

/* Workers, and how many of them serve as well, spread evenly over hosts, which are joined by links. */
typedef struct hpc_cluster {
    int workers, servers, hosts;
} hpc_cluster;

/* The rates of a rank while all ranks work. A rate of 0 says that it costs nothing. */
typedef struct hpc_rates {
    double between;  /* bytes a second of a host's link, in each direction */
    double inside;   /* bytes a second that a rank writes into the memory of another rank of its host */
    double memory;   /* bytes a second that a rank copies */
    double fold;     /* seconds that it takes to add an element of an input */
    double multiply; /* floating-point operations a second of sums of products; a product and its sum are two */
} hpc_rates;

/* The rates of a codec, for updates that servers take. */
typedef struct hpc_codec_rates {
    double ratio;          /* bytes of pieces by bytes of float32 */
    double encode, decode; /* seconds an element */
} hpc_codec_rates;

typedef struct hpc_cost {
    double seconds; /* of the busiest link, then of the busiest rank's work: nothing is taken to overlap */
    double sent;    /* bytes that all ranks send to others */
    double busiest; /* bytes that the busiest rank sends and gets */
    double memory;  /* bytes of a rank at most: parameters, gradients, slots and state */
} hpc_cost;

/* The cost of a step of a layer. codec: for updates that go to servers as arrays; NULL: float32. HPC_ERR_UNSUPPORTED
 * when the layer cannot go as pairs and the way sends them. */
HPC_API int hpc_way_cost(int way, const hpc_layer *layer, const hpc_cluster *cluster, const hpc_rates *rates,
                         const hpc_codec_rates *codec, hpc_cost *cost);

/* Chooses one of HPC_WAY_PS, HPC_WAY_HOSTS (if hosts have several workers) and HPC_WAY_FACTORS: the fastest
 * way with at most this memory (0: any), or, if none fits, the way with the least memory. With rates NULL it uses
 * algorithm 1 of the paper, which counts bytes alone: HPC_WAY_FACTORS where 2 K (P1 - 1) (M + N) <= 2 M N (P1 + P2 -
 * 2) / P2, else HPC_WAY_PS. */
HPC_API int hpc_best_way(const hpc_layer *layer, const hpc_cluster *cluster, const hpc_rates *rates, double memory,
                         int *way);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
