/* Makes an exchange whose servers are hubs, on both sides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "service/description.h"
#include "service/saved.h"

static const char op_make[] = "exchange";

enum { SENTENCE = 1024 };

static const double TELL_SECONDS = 10; /* for a message to a hub */

/* ---- both sides ---- */

int hpc_hub_refuse(hpc_context *context, double timeout) {
    char own[SENTENCE], sentence[SENTENCE + 32];
    hpc_exchange_config config;
    hpc_exchange *none = NULL;
    const int status = hpc_last_error()->status;
    snprintf(own, sizeof own, "%s", hpc_last_error()->message);
    snprintf(sentence, sizeof sentence, "rank %d: %s", hpc_context_rank(context), own);
    hpc_exchange_config_init(&config);
    config.refusal = sentence;
    hpc_exchange_create(context, &config, timeout, &none);
    return hpc_fail(status, op_make, "%s", own);
}

/* ---- the hub ---- */

int hpc_description_plan(hpc_description *d, int workers, int hubs) {
    if (d == NULL || workers < 1 || hubs < 1)
        return hpc_fail(HPC_ERR_INVALID, op_make, "exchange: a plan of %d workers and %d hubs", workers, hubs);
    int status = HPC_OK;
    if (d->schemes[0].plan == NULL) {
        d->workers = workers;
        d->hubs = hubs;
    }
    for (int i = 0; i < d->n_schemes && status == HPC_OK; i++) {
        hpc_described_scheme *s = &d->schemes[i];
        if (s->plan == NULL) status = hpc_hub_plan(&s->hub, &s->racks, workers, hubs, &s->plan);
        s->config.plan = s->plan;
    }
    return status;
}

int hpc_description_exchange(const hpc_description *d, hpc_context *context, double weight, double timeout,
                             hpc_exchange **exchange) {
    if (d == NULL || exchange == NULL || d->schemes[d->n_schemes - 1].plan == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_make, "exchange: %s",
                        exchange == NULL ? "exchange is NULL" : "call hpc_description_plan first");
    hpc_exchange_config *configs = calloc((size_t)d->n_schemes, sizeof *configs);
    if (configs == NULL) {
        hpc_fail(HPC_ERR_MEMORY, op_make, "exchange: no memory for %d configurations", d->n_schemes);
        return hpc_hub_refuse(context, timeout);
    }
    for (int i = 0; i < d->n_schemes; i++) {
        configs[i] = d->schemes[i].config;
        configs[i].weight = weight;
        configs[i].next = i + 1 < d->n_schemes ? &configs[i + 1] : NULL;
    }
    int status = hpc_exchange_create(context, configs, timeout, exchange);
    free(configs);
    return status;
}

/* ---- a worker ---- */

/* Tells all hubs something of the job's first worker. If a hub is gone, the exchange's own waits say so. */
static void tell(hpc_service *s, char kind, const void *body, size_t nbytes) {
    const int before = hpc_mute_errors(1);
    for (int i = 0; i < s->meeting.n_links && s->meeting.rank == 0; i++)
        hpc_hub_link_send(&s->links[i], kind, body, nbytes, hpc_now() + TELL_SECONDS);
    hpc_mute_errors(before);
}

/* Fills in the members that the hubs decide. */
static void complete(const hpc_service *s, hpc_hub *hub) {
    int servers[HPC_MOST_HUBS];
    for (int i = 0; i < s->meeting.n_hubs; i++) servers[i] = s->meeting.size + i;
    if (hub->interfaces != 0) return;
    hub->interfaces = hpc_interfaces(s->served, servers, s->meeting.n_hubs);
    if (hub->interfaces > hub->cores) hub->interfaces = hub->cores;
}

/* The arguments of one call, copied and completed. */
typedef struct hpc_asked {
    int n; /* configurations */
    hpc_hub *hubs;
    const hpc_hub **addresses; /* of hubs; NULL: hosts is used */
    hpc_hosts *hosts;
    const hpc_hosts **racks; /* addresses of hosts; NULL: no racks */
    hpc_exchange_config *configs;
    hpc_plan **plans;
    unsigned char *message;
    int64_t nbytes;
} hpc_asked;

static int make_plans(const hpc_service *s, hpc_asked *a) {
    int status = HPC_OK;
    for (int i = 0; i < a->n && status == HPC_OK; i++) {
        hpc_hub_racks racks = {0};
        if (a->racks[i] != NULL) hpc_hub_of_hosts(&a->hosts[i], &a->hubs[i], &racks);
        status = hpc_hub_plan(&a->hubs[i], &racks, s->meeting.size, s->meeting.n_hubs, &a->plans[i]);
        a->configs[i].plan = a->plans[i];
    }
    return status;
}

static int describe(hpc_asked *a) {
    a->nbytes = hpc_description_write(a->addresses, a->racks, a->configs, NULL, 0);
    if (a->nbytes < 0) return (int)a->nbytes;
    a->message = malloc((size_t)a->nbytes);
    if (a->message == NULL) return hpc_fail(HPC_ERR_MEMORY, op_make, "exchange: no memory for a description");
    hpc_description_write(a->addresses, a->racks, a->configs, a->message, (size_t)a->nbytes);
    return HPC_OK;
}

/* Gives *cores the number of the hub's, if it is 0. */
static int take_cores(const hpc_service *s, int *cores) {
    if (*cores == 0) *cores = s->cores;
    if (*cores <= s->cores) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op_make, "cores is %d: the hub has %d", *cores, s->cores);
}

/* Copies and completes the arguments of configuration i. Malformed arguments are left out: write refuses them. */
static int take_args(const hpc_service *s, const hpc_hub *hub, const hpc_hosts *racks, int i, hpc_asked *a) {
    if (racks != NULL) {
        if (racks->size != sizeof *racks) return hpc_hub_check_hosts(racks);
        a->hosts[i] = *racks;
        a->racks[i] = &a->hosts[i];
        return take_cores(s, &a->hosts[i].cores);
    }
    if (hub == NULL || hub->size != sizeof *hub) return HPC_OK;
    a->hubs[i] = *hub;
    a->addresses[i] = &a->hubs[i];
    const int status = take_cores(s, &a->hubs[i].cores);
    if (status == HPC_OK) complete(s, &a->hubs[i]);
    return status;
}

static int prepare(const hpc_service *s, const hpc_hub *const *hubs, const hpc_hosts *const *racks,
                   const hpc_exchange_config *config, hpc_asked *a) {
    const size_t n = (size_t)a->n;
    int status = HPC_OK;
    a->hubs = calloc(n, sizeof *a->hubs);
    a->addresses = calloc(n, sizeof *a->addresses);
    a->hosts = calloc(n, sizeof *a->hosts);
    a->racks = calloc(n, sizeof *a->racks);
    a->configs = calloc(n, sizeof *a->configs);
    a->plans = calloc(n, sizeof *a->plans);
    if (!a->hubs || !a->addresses || !a->hosts || !a->racks || !a->configs || !a->plans)
        return hpc_fail(HPC_ERR_MEMORY, op_make, "exchange: no memory for %d configurations", a->n);
    for (int i = 0; i < a->n && status == HPC_OK; i++, config = config->next) {
        a->configs[i] = *config;
        if (i + 1 < a->n) a->configs[i].next = &a->configs[i + 1];
        if (config->refusal != NULL) return hpc_fail(HPC_ERR_INVALID, op_make, "%s", config->refusal);
        status = take_args(s, hubs == NULL ? NULL : hubs[i], racks == NULL ? NULL : racks[i], i, a);
    }
    if (status == HPC_OK) status = describe(a);
    return status == HPC_OK ? make_plans(s, a) : status;
}

static int workers_apply(const hpc_asked *a) {
    int apply = 0;
    for (int i = 0; i < a->n; i++) apply |= a->hubs[i].apply_at != HPC_AT_OWNERS;
    return apply;
}

static int count_keys(const hpc_asked *a) {
    int n = 0;
    for (int i = 0; i < a->n; i++) n += a->hubs[i].n_keys;
    return n;
}

int hpc_service_exchange(hpc_service *s, const hpc_hub *const *hubs, const hpc_hosts *const *racks,
                         const hpc_exchange_config *config, double timeout, hpc_exchange **exchange) {
    hpc_asked a = {0};
    int status = hpc_service_usable(s, op_make);
    if (status != HPC_OK) return status;
    if ((hubs == NULL && racks == NULL) || config == NULL || exchange == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_make, "exchange: %s is NULL",
                        config == NULL     ? "config"
                        : exchange == NULL ? "exchange"
                                           : "hubs");
    *exchange = NULL;
    for (const hpc_exchange_config *f = config; f != NULL; f = f->next) a.n++;
    status = prepare(s, hubs, racks, config, &a);
    if (status == HPC_OK) {
        tell(s, 'E', a.message, (size_t)a.nbytes);
        status = hpc_exchange_create(s->served, a.configs, timeout, exchange);
        if (status == HPC_OK) status = hpc_service_made(s, count_keys(&a), workers_apply(&a), exchange);
    } else { /* the hubs take part in the refusal, as in the creation */
        tell(s, 'R', hpc_last_error()->message, strlen(hpc_last_error()->message));
        status = hpc_hub_refuse(s->served, timeout);
    }
    for (int i = 0; a.plans != NULL && i < a.n; i++) hpc_plan_free(a.plans[i]);
    free(a.plans);
    free(a.configs);
    free(a.racks);
    free(a.hosts);
    free(a.addresses);
    free(a.hubs);
    free(a.message);
    return status;
}
