/* Updates that a trainer writes as pairs of vectors (HPC_FACTORS). */
#include "codec/factors.h"

#include <string.h>

#include "engine/pieces.h"
#include "exchange/exchange.h"

/* Returns the codec configuration of a key that is pushed as factors. For any other key, records an error and returns
 * NULL. */
static const hpc_codec_config *config_of(const hpc_scheme *sc, int key, const char *op) {
    const hpc_codec_config *config = sc->configs[key];
    if (config != NULL && sc->pieces[key].codec->number == HPC_FACTORS) return config;
    hpc_fail(HPC_ERR_INVALID, op, "%s: key %s of rank %d goes as %s, not as factors", op, sc->plan->keys[key].name,
             sc->context->group.rank, sc->keys[key].codec->name);
    return NULL;
}

int hpc_exchange_factors(hpc_exchange *ex, int key, double timeout, hpc_factors *factors) {
    static const char op[] = "factors";
    void *source = NULL;
    int inside = key;
    const hpc_scheme *sc = hpc_scheme_of(ex, &inside, op);
    const hpc_codec_config *config = sc == NULL ? NULL : config_of(sc, inside, op);
    if (config == NULL) return HPC_ERR_INVALID;
    if (factors == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: factors is NULL", op);
    int status = hpc_exchange_gradient(ex, key, timeout, &source);
    if (status == HPC_OK) *factors = hpc_factors_at(config, source);
    return status;
}

static int copy(hpc_exchange *ex, int key, const char *name, int count, const float *u, const float *v, double timeout,
                const char *op) {
    hpc_factors to;
    int status = hpc_exchange_factors(ex, key, timeout, &to);
    if (status != HPC_OK) return status;
    if (count < 0 || count > to.pairs)
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s: count is %d; 0 to %d pairs of vectors are possible", op, name,
                        count, to.pairs);
    if (count > 0 && (u == NULL || v == NULL))
        return hpc_fail(HPC_ERR_INVALID, op, "%s: key %s: %s is NULL with count %d", op, name, u == NULL ? "u" : "v",
                        count);
    if (count > 0) memcpy(to.u, u, (size_t)count * to.rows * sizeof *u);
    if (count > 0) memcpy(to.v, v, (size_t)count * to.columns * sizeof *v);
    *to.count = count;
    return HPC_OK;
}

int hpc_exchange_start_factors(hpc_exchange *ex, int key, int flags, int count, const float *u, const float *v,
                               double timeout, uint64_t *ticket) {
    static const char op[] = "push";
    int inside = key, status = HPC_OK;
    const hpc_scheme *sc = hpc_scheme_of(ex, &inside, op);
    if (sc == NULL || config_of(sc, inside, op) == NULL) return HPC_ERR_INVALID;
    if (sc->keys[inside].sending == 0) /* otherwise the last call was sent only in part, and this call continues it */
        status = copy(ex, key, sc->plan->keys[inside].name, count, u, v, timeout, op);
    return status == HPC_OK ? hpc_exchange_start(ex, key, flags, NULL, timeout, ticket) : status;
}
