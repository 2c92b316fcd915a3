/* The cost, in seconds, of exchanging a layer's update in each form (as a matrix through servers, as vectors, as 1-bit
 * values). It is a pure function of the layer's shape, the cluster and the machine's rates. */
#include <math.h>
#include <stddef.h>

#include "base/status.h"

static const char op_way[] = "way";

enum { ITEM = sizeof(float) };

/* A layer on a cluster, in the terms of the formulas. */
typedef struct terms {
    double n; /* elements of the layer */
    double workers, servers, hosts;
    double near, near_servers; /* workers and servers on the fullest host */
    double pairs, vectors; /* pairs: K, a worker's number of vector pairs; vectors: how many values these pairs have, or
                              the layer if it has fewer */
    double slots;
    hpc_codec_rates codec;
    const hpc_rates *rates;
} terms;

static double over(double amount, double rate) {
    return rate > 0 ? amount / rate : 0;
}

/* Returns how many seconds it takes to read and write an array of this many elements once. */
static double pass(const terms *t, double elements) {
    return over(elements * ITEM, t->rates->memory);
}

static double link_seconds(const terms *t, double out, double in) {
    return t->hosts > 1 ? over(fmax(out, in) * ITEM, t->rates->between) : 0;
}

static double products(const terms *t) {
    return over(2 * t->workers * t->pairs * t->n, t->rates->multiply) + pass(t, t->n);
}

static void by_servers(const terms *t, hpc_cost *cost) {
    const double part = t->n / t->servers, far = t->workers - t->near, others = t->servers - t->near_servers;
    const double pushed = t->near * part * others * t->codec.ratio, pulled = t->near_servers * part * far;
    const double came = t->near_servers * part * far * t->codec.ratio, returned = t->near * part * others;
    cost->seconds = link_seconds(t, pushed + pulled, came + returned) + t->n * t->codec.encode +
                    t->workers * part * (t->codec.decode + t->rates->fold) + pass(t, part) +
                    over((t->near - 1) * part * ITEM, t->rates->inside);
    cost->sent = (1 + t->codec.ratio) * t->n * (t->workers - 1) * ITEM;
    cost->busiest = (1 + t->codec.ratio) * part * (t->servers + t->workers - 2) * ITEM;
    cost->memory = (2 * t->n + part * (t->slots + far)) * ITEM;
}

/* Each rank of a host is the leader for one part of the layer. */
static void by_hosts(const terms *t, hpc_cost *cost) {
    const double lead = t->n / t->near, part = t->n / t->workers;
    const double crossing = t->n * (t->hosts - 1) / t->hosts;
    cost->seconds = link_seconds(t, (1 + t->codec.ratio) * crossing, (1 + t->codec.ratio) * crossing) +
                    lead * t->codec.encode + t->hosts * part * t->codec.decode +
                    (t->near * lead + t->hosts * part) * t->rates->fold + pass(t, part) +
                    over((t->near - 1) * lead * ITEM, t->rates->inside);
    cost->sent = ((1 + t->codec.ratio) * t->n * (t->hosts - 1) + 2 * t->n * (t->workers - t->hosts)) * ITEM;
    cost->busiest = ((1 + t->codec.ratio) * 2 * crossing / t->near + 4 * lead * (t->near - 1)) * ITEM;
    cost->memory = (2 * t->n + part * (t->slots + t->hosts) + lead) * ITEM;
}

/* On several hosts one rank of each host adds the products and passes the layer to the other ranks of its host. On one
 * host all ranks add them. */
static void by_factors(const terms *t, hpc_cost *cost) {
    const double adding = t->hosts > 1 ? t->hosts : t->workers, others = t->hosts > 1 ? t->near - 1 : 0;
    const double slots = others > 0 ? 1 + t->workers : 2 * t->workers;
    cost->seconds = link_seconds(t, t->near * t->vectors * (t->hosts - 1), t->vectors * (t->workers - t->near)) +
                    pass(t, t->vectors) + products(t) + over(others * t->n * ITEM, t->rates->inside);
    cost->sent = (t->vectors * adding * (t->workers - 1) + t->n * (t->workers - adding)) * ITEM;
    cost->busiest = (t->vectors * (adding + t->workers - 2) + t->n * others) * ITEM;
    cost->memory = (t->n * (1 + t->slots) + slots * t->vectors) * ITEM;
}

static void by_adam(const terms *t, hpc_cost *cost) {
    const double far = t->workers - t->near;
    cost->seconds = link_seconds(t, far * t->n, far * t->vectors) + pass(t, t->vectors) + products(t) +
                    over((t->near - 1) * t->n * ITEM, t->rates->inside);
    cost->sent = cost->busiest = (t->workers - 1) * (t->n + t->vectors) * ITEM;
    cost->memory = (t->n * (1 + t->slots) + (1 + t->workers) * t->vectors) * ITEM;
}

static void (*const ways[])(const terms *t, hpc_cost *cost) = {
    [HPC_WAY_PS] = by_servers,
    [HPC_WAY_HOSTS] = by_hosts,
    [HPC_WAY_FACTORS] = by_factors,
    [HPC_WAY_ADAM] = by_adam,
};
enum { WAYS = sizeof ways / sizeof *ways };

static int sends_pairs(int way) {
    return way == HPC_WAY_FACTORS || way == HPC_WAY_ADAM;
}

static int check(const hpc_layer *layer, const hpc_cluster *cluster) {
    if (layer == NULL || cluster == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_way, "way: %s is NULL", layer == NULL ? "layer" : "cluster");
    if (layer->rows == 0 || layer->columns == 0 || layer->slots < 0)
        return hpc_fail(HPC_ERR_INVALID, op_way,
                        "way: the layer has %llu x %llu elements and %d values of state for each: must be above 0, "
                        "and 0 or more",
                        (unsigned long long)layer->rows, (unsigned long long)layer->columns, layer->slots);
    if (cluster->workers < 1 || cluster->servers < 1 || cluster->servers > cluster->workers || cluster->hosts < 1 ||
        cluster->hosts > cluster->workers)
        return hpc_fail(HPC_ERR_INVALID, op_way,
                        "way: the cluster has %d workers, %d servers and %d hosts: must be 1 or more, and not more "
                        "servers or hosts than workers",
                        cluster->workers, cluster->servers, cluster->hosts);
    return HPC_OK;
}

static int check_rates(const hpc_rates *rates, const hpc_codec_rates *codec) {
    const double given[] = {rates->between,  rates->inside, rates->memory, rates->fold,
                            rates->multiply, codec->ratio,  codec->encode, codec->decode};
    static const char *const names[] = {"between", "inside", "memory", "fold", "multiply", "ratio", "encode", "decode"};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (!(given[i] >= 0) || isinf(given[i]))
            return hpc_fail(HPC_ERR_INVALID, op_way, "way: %s is %g: must be finite, 0 or more", names[i], given[i]);
    return HPC_OK;
}

static terms terms_of(const hpc_layer *layer, const hpc_cluster *cluster, const hpc_rates *rates,
                      const hpc_codec_rates *codec) {
    const double n = (double)layer->rows * (double)layer->columns, hosts = cluster->hosts;
    const double vectors = (double)layer->pairs * ((double)layer->rows + (double)layer->columns);
    return (terms){.n = n,
                   .workers = cluster->workers,
                   .servers = cluster->servers,
                   .hosts = hosts,
                   .near = ceil(cluster->workers / hosts),
                   .near_servers = ceil(cluster->servers / hosts),
                   .pairs = (double)layer->pairs,
                   .vectors = fmin(vectors, n),
                   .slots = layer->slots,
                   .codec = *codec,
                   .rates = rates};
}

int hpc_way_cost(int way, const hpc_layer *layer, const hpc_cluster *cluster, const hpc_rates *rates,
                 const hpc_codec_rates *codec, hpc_cost *cost) {
    static const hpc_codec_rates dense = {1, 0, 0};
    static const hpc_rates free_of_charge = {0, 0, 0, 0, 0};
    if (way < 0 || way >= WAYS)
        return hpc_fail(HPC_ERR_INVALID, op_way, "way: %d is no hpc_way: must be 0 to %d", way, WAYS - 1);
    int status = check(layer, cluster);
    if (status != HPC_OK) return status;
    if (cost == NULL) return hpc_fail(HPC_ERR_INVALID, op_way, "way: cost is NULL");
    if (rates == NULL) rates = &free_of_charge;
    if (codec == NULL) codec = &dense;
    status = check_rates(rates, codec);
    if (status != HPC_OK) return status;
    if (layer->pairs == 0 && sends_pairs(way))
        return hpc_fail(HPC_ERR_UNSUPPORTED, op_way, "way: the layer has no pairs, and this way sends them");
    const terms t = terms_of(layer, cluster, rates, codec);
    ways[way](&t, cost);
    return HPC_OK;
}

/* Poseidon's Algorithm 1. */
static int by_paper(const hpc_layer *layer, const hpc_cluster *cluster) {
    const double m = (double)layer->rows, n = (double)layer->columns, k = (double)layer->pairs;
    const double p1 = cluster->workers, p2 = cluster->servers;
    return k > 0 && 2 * k * (p1 - 1) * (m + n) <= 2 * m * n * (p1 + p2 - 2) / p2 ? HPC_WAY_FACTORS : HPC_WAY_PS;
}

int hpc_best_way(const hpc_layer *layer, const hpc_cluster *cluster, const hpc_rates *rates, double memory, int *way) {
    int status = check(layer, cluster);
    if (status != HPC_OK) return status;
    if (way == NULL) return hpc_fail(HPC_ERR_INVALID, op_way, "way: way is NULL");
    if (!(memory >= 0)) return hpc_fail(HPC_ERR_INVALID, op_way, "way: memory is %g: must be 0 or more", memory);
    if (rates == NULL) {
        *way = by_paper(layer, cluster);
        return HPC_OK;
    }
    static const int choice[] = {HPC_WAY_PS, HPC_WAY_HOSTS, HPC_WAY_FACTORS};
    double least = INFINITY, smallest = INFINITY;
    int best = -1, fits = HPC_WAY_PS;
    for (size_t i = 0; i < sizeof choice / sizeof *choice; i++) {
        hpc_cost cost;
        if (choice[i] == HPC_WAY_HOSTS && cluster->hosts == cluster->workers) continue;
        if (sends_pairs(choice[i]) && layer->pairs == 0) continue;
        status = hpc_way_cost(choice[i], layer, cluster, rates, NULL, &cost);
        if (status != HPC_OK) return status;
        if (cost.memory < smallest) smallest = cost.memory, fits = choice[i];
        if ((memory == 0 || cost.memory <= memory) && cost.seconds < least) least = cost.seconds, best = choice[i];
    }
    *way = best < 0 ? fits : best;
    return HPC_OK;
}
