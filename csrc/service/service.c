#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "service/member.h"
#include "service/request.h"

static const char op_create[] = "create_service", op_connect[] = "connect_service";

static const double ANSWER_SECONDS = 10; /* for a hub's answer to a question */
static const double BYE_SECONDS = 1;     /* for the last words to a hub */

/* ---- create ---- */

/* Creates the job at all hubs, one after the other; each later one gets the first one's name and nonce. */
static int create_at_all(hpc_job_place *place, hpc_token token, double timeout, hpc_hub_link *links) {
    int n = 0, status = HPC_OK;
    for (; n < place->n_hubs && status == HPC_OK; n++) {
        const double deadline = hpc_now() + timeout;
        status = hpc_hub_link_open(&links[n], &place->hubs[n], place->space, token, deadline);
        if (status == HPC_OK) status = hpc_request_create(&links[n], n, place, hpc_now() + timeout);
    }
    /* All hubs have accepted; without this word each forgets the job. */
    for (int i = 0; i < n && status == HPC_OK; i++) status = hpc_request_keep(&links[i], hpc_now() + timeout);
    for (int i = 0; i < n; i++) hpc_hub_link_close(&links[i]);
    return status;
}

int hpc_service_create(const char *hubs, const char *space, const char *job, const void *token, size_t token_bytes,
                       double timeout, char *handle, size_t cap) {
    unsigned char *memory = NULL;
    hpc_token found;
    if (hubs == NULL || handle == NULL)
        return hpc_fail(HPC_ERR_INVALID, op_create, "%s is NULL", hubs == NULL ? "hubs" : "handle");
    int status = hpc_name_check("namespace", space);
    if (status == HPC_OK && job != NULL) status = hpc_name_check("job", job);
    if (status == HPC_OK) status = hpc_token_find(token, token_bytes, &found, &memory);
    if (status != HPC_OK) return status;
    hpc_job_place *place = calloc(1, sizeof *place);
    hpc_hub_link *links = calloc(HPC_MOST_HUBS, sizeof *links);
    if (place == NULL || links == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, op_create, "no memory for a handle");
        goto err;
    }
    status = hpc_hub_places_read(hubs, strlen(hubs), place);
    if (status != HPC_OK) goto err;
    snprintf(place->space, sizeof place->space, "%s", space);
    snprintf(place->job, sizeof place->job, "%s", job == NULL ? "" : job);
    status = create_at_all(place, found, timeout < 0 ? ANSWER_SECONDS : timeout, links);
    if (status == HPC_OK) status = hpc_handle_write(place, handle, cap);
err:
    free(links);
    free(place);
    free(memory);
    return status;
}

/* ---- connect ---- */

/* Tells all hubs that this rank is done. A hub that is gone needs no goodbye. */
static void say_bye(hpc_service *s) {
    const int before = hpc_mute_errors(1);
    for (int i = 0; i < s->meeting.n_links; i++) hpc_request_bye(&s->links[i], hpc_now() + BYE_SECONDS);
    hpc_mute_errors(before);
}

static void hang_up(hpc_service *s) {
    for (int i = 0; i < s->meeting.n_links; i++) hpc_hub_link_close(&s->links[i]);
    s->meeting.n_links = 0;
}

static void add_user(hpc_service *s, uint32_t user) {
    for (int i = 0; i < s->n_users; i++)
        if (s->users[i] == user) return;
    if (s->n_users < HPC_MOST_USERS) s->users[s->n_users++] = user;
}

/* Joins the job at the hubs to which this rank is connected: rank 0 at all of them, others at the first one. */
static int join(hpc_service *s, hpc_token token, const hpc_config *config, double seconds) {
    const double deadline = hpc_now() + seconds;
    const hpc_joining says = {s->meeting.rank, s->meeting.size, config->tcp_streams, seconds,
                              config->timeout, config->silence, config->transports};
    const int n = s->meeting.rank == 0 ? s->place.n_hubs : 1;
    int status = HPC_OK;
    for (int i = 0; i < n && status == HPC_OK; i++) {
        hpc_hub_link *link = &s->links[s->meeting.n_links];
        status = hpc_hub_link_open(link, &s->place.hubs[i], s->place.space, token, deadline);
        if (status != HPC_OK) return status;
        s->meeting.n_links++;
        hpc_granted granted;
        status = hpc_request_join(link, &s->place, &says, &granted, deadline);
        if (status != HPC_OK) return status;
        s->cores = granted.cores;
        s->resumes = granted.resumes;
        add_user(s, granted.user);
    }
    return status;
}

/* Lets all workers know the users of the hubs, of which rank 0 has joined each (collective). */
static int learn_users(hpc_service *s, double timeout) {
    const int n = s->meeting.n_hubs < HPC_MOST_USERS ? s->meeting.n_hubs : HPC_MOST_USERS;
    uint32_t mine[HPC_MOST_USERS], *all;
    if (n < 2) return HPC_OK;
    all = malloc((size_t)s->meeting.size * (size_t)n * sizeof *all);
    if (all == NULL) return hpc_fail(HPC_ERR_MEMORY, op_connect, "no memory for the users of %d hubs", n);
    for (int i = 0; i < n; i++) mine[i] = s->users[i % s->n_users];
    const int status = hpc_allgather(s->workers, mine, all, (size_t)n * sizeof *all, timeout);
    for (int i = 0; i < n && status == HPC_OK; i++) add_user(s, all[i]);
    free(all);
    return status;
}

static int entitle(hpc_service *s) {
    char title[HPC_TITLE_BYTES];
    snprintf(title, sizeof title, "%.30s/%.22s, workers", s->place.space, s->place.job);
    int status = hpc_context_set_title(s->workers, title);
    snprintf(title, sizeof title, "%.31s/%.31s", s->place.space, s->place.job);
    return status == HPC_OK ? hpc_context_set_title(s->served, title) : status;
}

static int bring_up(hpc_service *s, hpc_token token, const hpc_config *given) {
    unsigned char secret[HPC_DIGEST_BYTES];
    hpc_config config;
    hpc_config_init(&config);
    const double usual = config.timeout, least = 30;
    if (given != NULL) config = *given;
    const double seconds = config.init_timeout >= 0  ? config.init_timeout
                           : config.timeout == usual ? least
                                                     : config.timeout;
    int status = join(s, token, &config, seconds);
    if (status != HPC_OK) return status;
    hpc_proof_secret(token, s->place.nonce, secret);
    config.secret = secret;
    config.secret_bytes = sizeof secret;
    config.users = s->users;
    config.n_users = 0; /* workers share memory with workers of their own user */
    status = hpc_meeting_connect(&s->meeting, HPC_OF_WORKERS, &config, seconds, &s->workers);
    if (status == HPC_OK) status = learn_users(s, seconds);
    config.n_users = s->n_users;
    if (status == HPC_OK)
        status = hpc_meeting_connect(&s->meeting, HPC_OF_WORKERS_AND_HUBS, &config, seconds, &s->served);
    return status == HPC_OK ? entitle(s) : status;
}

static int fail_connect(hpc_service *s, int status) {
    const int before = hpc_mute_errors(1);
    if (s->workers != NULL) hpc_context_abort(s->workers, hpc_last_error()->message);
    hpc_mute_errors(before);
    s->closed = 1;
    hang_up(s);
    hpc_service_free(s);
    return status;
}

static int check_connect(int rank, int size, const hpc_config *config) {
    enum { MOST_RANKS = 1 << 20 };
    if (config != NULL && config->size != sizeof *config)
        return hpc_fail(HPC_ERR_INVALID, op_connect, "config->size is %zu, not %zu: call hpc_config_init first",
                        config->size, sizeof *config);
    if (size < 1 || size > MOST_RANKS)
        return hpc_fail(HPC_ERR_INVALID, op_connect, "size is %d: must be 1 to %d", size, MOST_RANKS);
    if (rank < 0 || rank >= size)
        return hpc_fail(HPC_ERR_INVALID, op_connect, "rank is %d: must be 0 to %d", rank, size - 1);
    return HPC_OK;
}

int hpc_service_connect(const char *handle, const void *token, size_t token_bytes, int rank, int size,
                        const hpc_config *config, hpc_service **service) {
    unsigned char *memory = NULL;
    hpc_token found;
    if (service == NULL) return hpc_fail(HPC_ERR_INVALID, op_connect, "service is NULL");
    *service = NULL;
    hpc_service *s = calloc(1, sizeof *s);
    if (s == NULL) return hpc_fail(HPC_ERR_MEMORY, op_connect, "no memory for a service");
    s->owner = getpid();
    s->meeting = (hpc_meeting){.rank = rank, .size = size, .place = &s->place, .links = s->links};
    int status = hpc_handle_read(handle, &s->place);
    if (status == HPC_OK) status = hpc_token_find(token, token_bytes, &found, &memory);
    if (status == HPC_OK) status = check_connect(rank, size, config);
    s->meeting.n_hubs = s->place.n_hubs;
    if (status == HPC_OK) status = bring_up(s, found, config);
    free(memory);
    if (status != HPC_OK) return fail_connect(s, status);
    *service = s;
    return HPC_OK;
}

/* ---- a service that is open ---- */

int hpc_service_usable(const hpc_service *s, const char *op) {
    if (s == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: service is NULL", op);
    if (s->owner != getpid())
        return hpc_fail(HPC_ERR_INVALID, op,
                        "%s: this service belongs to the process that forked this one; connect here", op);
    return s->closed ? hpc_fail(HPC_ERR_INVALID, op, "%s: the service is closed", op) : HPC_OK;
}

hpc_context *hpc_service_context(const hpc_service *s) {
    return s == NULL ? NULL : s->workers;
}

int hpc_service_cores(const hpc_service *s) {
    return s == NULL ? 0 : s->cores;
}

const char *hpc_service_notice(hpc_service *s, int i) {
    if (s == NULL || s->owner != getpid()) return NULL;
    const int before = hpc_mute_errors(0);
    for (int h = 0; h < s->meeting.n_links; h++) hpc_hub_link_look(&s->links[h]);
    hpc_mute_errors(before);
    for (int h = 0; h < s->meeting.n_links; h++) {
        if (i >= 0 && i < s->links[h].n_notices) return s->links[h].notices[i];
        i -= s->links[h].n_notices;
    }
    return NULL;
}

int hpc_service_close(hpc_service *s) {
    if (s == NULL) return hpc_fail(HPC_ERR_INVALID, "close", "close: service is NULL");
    if (s->closed || s->owner != getpid()) return HPC_OK;
    s->closed = 1;
    int status = hpc_context_close(s->served);
    say_bye(s);
    hang_up(s);
    const int second = hpc_context_close(s->workers);
    return status != HPC_OK ? status : second;
}

int hpc_service_abort(hpc_service *s, const char *why) {
    static const char op[] = "abort";
    int status = hpc_service_usable(s, op);
    if (status != HPC_OK) return status;
    s->closed = 1;
    status = hpc_context_abort(s->served, why);
    hang_up(s);
    const int second = hpc_context_abort(s->workers, why);
    return status != HPC_OK ? status : second;
}

void hpc_service_free(hpc_service *s) {
    if (s == NULL) return;
    if (!s->closed && s->owner == getpid()) {
        const int before = hpc_mute_errors(1);
        hpc_service_close(s);
        hpc_mute_errors(before);
    }
    hang_up(s); /* in a forked child it only closes the child's descriptors */
    if (s->served != NULL) hpc_context_free(s->served);
    if (s->workers != NULL) hpc_context_free(s->workers);
    free(s->made);
    free(s);
}
