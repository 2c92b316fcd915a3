/* Creates a context, from its config to the rank's address; connect.c connects it. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "base/overdue.h"
#include "context/context.h"
#include "probe/probe.h"

static const uint32_t VERSION = HPC_VERSION_MAJOR << 16 | HPC_VERSION_MINOR << 8 | HPC_VERSION_PATCH;

enum { OWN_FILES = 256, LEAST_OWN_FILES = 16, LANES = 8 };

static const double DEFAULT_TIMEOUT = 30 * 60, INIT_TIMEOUT = 30;

static double init_seconds(const hpc_config *config) {
    if (config->init_timeout >= 0) return config->init_timeout;
    return config->timeout == DEFAULT_TIMEOUT ? INIT_TIMEOUT : config->timeout;
}

void hpc_config_init(hpc_config *config) {
    *config = (hpc_config){.size = sizeof *config,
                           .timeout = DEFAULT_TIMEOUT,
                           .init_timeout = -1,
                           .look_after = 30,
                           .spin = -1,
                           .yield = -1,
                           .silence = 10,
                           .tcp_streams = 1};
}

size_t hpc_address_size(void) {
    return sizeof(hpc_address);
}

/* ---- create ---- */

static void note_cpus(hpc_address *a) {
    int cpus[64 * HPC_CPU_WORDS], n = hpc_host_cpus(cpus, 64 * HPC_CPU_WORDS);
    a->quota = hpc_host_quota("", &a->quota_of);
    for (int i = 0; i < n && i < 64 * HPC_CPU_WORDS; i++)
        a->cpus[cpus[i] / 64 % HPC_CPU_WORDS] |= (uint64_t)1 << cpus[i] % 64;
}

static void describe_self(hpc_context *c, const hpc_config *config) {
    hpc_address *a = &c->self;
    struct stat s;
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    char id[64] = "";
    *a = (hpc_address){.magic = HPC_ADDRESS_MAGIC,
                       .version = VERSION,
                       .nbytes = sizeof *a,
                       .rank = c->group.rank,
                       .size = c->group.size};
    note_cpus(a);
    a->tcp_streams = config->tcp_streams;
    a->threads = config->threads > 0 ? config->threads : 1;
    a->silence = config->silence;
    if (boot != NULL) {
        if (fgets(id, sizeof id, boot) == NULL) id[0] = 0;
        fclose(boot);
    }
    for (const char *p = id; *p != 0; p++) a->host[0] = a->host[0] * 1099511628211u + (unsigned char)*p;
    a->host[1] = stat("/proc/self/ns/net", &s) == 0 ? (uint64_t)s.st_ino : 0;
    if (gethostname(a->hostname, sizeof a->hostname - 1) != 0) snprintf(a->hostname, sizeof a->hostname, "?");
    snprintf(a->transports, sizeof a->transports, "%s", config->transports == NULL ? "" : config->transports);
    hpc_control_address_of(c->control, &a->control);
    a->name_at = (uintptr_t)a->control.name;
    if (hpc_transport_find(config->transports, HPC_CAP_NICS, 0) != NULL)
        hpc_nics_open(config->devices, &c->nics, &a->devices);
    else
        a->devices.state = HPC_VERBS_NOT_ALLOWED;
}

/* Adds a note if RDMA exists here, or was asked for, but cannot be used. */
static void note_devices(hpc_context *c, const hpc_config *config) {
    int state = c->self.devices.state, asked = config->devices != NULL && config->devices[0] != '\0';
    int there = state == HPC_VERBS_NO_LIBRARY || state == HPC_VERBS_NO_ACCESS || state == HPC_VERBS_NO_PORT;
    if (there || (asked && state != HPC_VERBS_READY && state != HPC_VERBS_NOT_ALLOWED))
        hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "cannot use verbs: rank %d %s", c->group.rank,
                       hpc_no_verbs_text(state));
}

static int accept_connection(void *arg, int rank, uint64_t lane, int stream, int fd) {
    hpc_context *c = arg;
    if (lane != HPC_PROBE_LANE) return hpc_lane_accept(c, rank, lane, stream, fd);
    int status = hpc_probes_accept(c, rank, fd);
    if (status == HPC_OK) hpc_greeting_end(fd); /* the listener writes only after the caller's first bytes */
    return status;
}

int hpc_context_create(int rank, int size, const hpc_config *config, hpc_context **context) {
    return hpc_context_create_named(rank, size, rank, config, context);
}

static const char *congestion_of(const hpc_config *config) {
    return config->tcp_congestion == NULL ? "" : config->tcp_congestion;
}

/* Checks the times and counts of a configuration. A NaN is out of every range. */
static int check_numbers(const hpc_config *config) {
    if (!(config->timeout > 0))
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: timeout is %g s; it must be more than 0", config->timeout);
    if (isnan(config->init_timeout)) return hpc_fail(HPC_ERR_CONFIG, "init", "init: init_timeout is not a number");
    if (!(config->look_after > 0))
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: look_after is %g s; it must be more than 0", config->look_after);
    if (!(config->slice >= 0))
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: slice is %g s; it must be 0 or more", config->slice);
    if (!(config->silence > 0))
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: silence is %g s; it must be more than 0", config->silence);
    if (config->tcp_streams < 1 || config->tcp_streams > HPC_TCP_STREAMS)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: tcp_streams is %d; it must be 1 to %d", config->tcp_streams,
                        HPC_TCP_STREAMS);
    if (config->tcp_window < 0)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: tcp_window is %d; it must be 0 or more", config->tcp_window);
    if (config->threads < 0 || config->threads > HPC_MOST_THREADS)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: threads is %d; it must be 0 to %d", config->threads,
                        HPC_MOST_THREADS);
    if (config->n_users < 0 || config->n_users > HPC_MOST_USERS)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: n_users is %d; it must be 0 to %d", config->n_users,
                        HPC_MOST_USERS);
    return HPC_OK;
}

static int check_config(int rank, int size, const hpc_config *config) {
    if (config->size != sizeof *config)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: config->size is %zu, not %zu: call hpc_config_init first",
                        config->size, sizeof *config);
    if (size < 1 || rank < 0 || rank >= size)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: rank %d of %d ranks; rank must be in 0..size-1", rank, size);
    if (config->transports != NULL && strlen(config->transports) >= HPC_TRANSPORTS_BYTES)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: transports \"%s\" is too long", config->transports);
    if (config->secret == NULL && config->secret_bytes > 0)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: secret is NULL while secret_bytes is %zu",
                        config->secret_bytes);
    if (config->users == NULL && config->n_users > 0)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: users is NULL while n_users is %d", config->n_users);
    if (config->engine != NULL && !hpc_engine_is_mine(config->engine))
        return hpc_fail(HPC_ERR_INVALID, "init", "init: the engine belongs to the process that forked this one");
    int status = check_numbers(config);
    if (status == HPC_OK) status = hpc_transport_check(config->transports);
    if (status == HPC_OK) status = hpc_net_check_congestion(congestion_of(config), "init");
    if (status == HPC_OK) status = hpc_nics_check(config->devices);
    return status;
}

/* Makes a context from its settings, without a channel or lanes. Returns NULL without memory. */
static hpc_context *make(int rank, int size, const hpc_config *config) {
    hpc_context *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    hpc_group *g = &c->group;
    atomic_init(&c->references, 1);
    c->open = 1;
    c->root = c;
    pthread_mutex_init(&c->family, NULL);
    pthread_mutex_init(&c->reach, NULL);
    pthread_mutex_init(&c->mailing, NULL);
    g->rank = rank;
    g->size = size;
    g->timeout = config->timeout;
    g->init_timeout = init_seconds(config);
    g->look_after = config->look_after;
    g->warn = config->warn;
    g->warn_arg = config->warn_arg;
    g->spin = config->spin;
    g->yield = config->yield;
    g->slice = config->slice;
    c->loop_seed = config->loop_seed;
    c->tcp_streams = config->tcp_streams;
    c->tcp_window = config->tcp_window;
    c->door_first = config->door_first;
    c->engine = config->engine == NULL ? NULL : hpc_engine_retain(config->engine);
    snprintf(c->tcp_congestion, sizeof c->tcp_congestion, "%s", congestion_of(config));
    return c;
}

static int take_memory(hpc_context *c) {
    hpc_group *g = &c->group;
    const size_t size = (size_t)g->size;
    g->owner = hpc_owner_page();
    g->states = calloc(size, sizeof *g->states);
    g->departing = calloc(size, sizeof *g->departing);
    g->reasons = calloc(size, sizeof *g->reasons);
    c->addresses = calloc(size, sizeof *c->addresses);
    c->transports = calloc(size, sizeof *c->transports);
    if (g->owner == NULL || g->states == NULL || g->departing == NULL || g->reasons == NULL || c->addresses == NULL ||
        c->transports == NULL)
        return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", g->size);
    return hpc_probes_open(c);
}

/* Makes the bell, and the control channel, which shares it with other ranks. */
static int open_channel(hpc_context *c, const hpc_config *config) {
    const int connects_hosts = hpc_transport_find(config->transports, 0, HPC_CAP_ONE_HOST) != NULL;
    const hpc_control_config control = {
        .tcp = connects_hosts,
        .interfaces = config->interfaces,
        .silence = config->silence,
        .secret = config->secret,
        .secret_bytes = config->secret_bytes,
        .users = config->users,
        .n_users = config->n_users,
        .door = config->door,
        .door_port = config->door_port,
    };
    int status = hpc_memory_create(sizeof(hpc_bell), "init", &c->bell_memory);
    if (status != HPC_OK) return status;
    c->group.bell = hpc_memory_data(c->bell_memory);
    status = hpc_control_open(&c->group, c->bell_memory, &control, &c->control);
    if (status == HPC_OK) hpc_control_on_lane(c->control, accept_connection, c);
    if (status == HPC_OK) hpc_control_on_want(c->control, &hpc_reach_giver, c);
    return status;
}

static int open_timeline(hpc_context *c, const char *file, int name) {
    hpc_group *g = &c->group;
    if (file == NULL || file[0] == 0) return HPC_OK;
    return hpc_timeline_open(file, name, g->rank, g->size, c->self.hostname, &g->timeline);
}

static int open_all(hpc_context *c, int name, const hpc_config *config) {
    int status = take_memory(c);
    if (status == HPC_OK) status = open_channel(c, config);
    if (status != HPC_OK) return status;
    describe_self(c, config);
    note_devices(c, config);
    return open_timeline(c, config->timeline, name);
}

/* Raises the limit of open files to what the context may use: a peer needs two, its connection and its process; over
 * TCP also one for each stream of each lane. Fails if the limit allows less than the connections alone. */
static int take_files(int rank, int size, int streams) {
    const uint64_t wanted = OWN_FILES + (uint64_t)size * (2 + LANES * (uint64_t)streams), may = hpc_host_files(wanted);
    if (may == 0 || may >= wanted) return HPC_OK;
    const uint64_t least = (uint64_t)hpc_host_open_files() + LEAST_OWN_FILES + (uint64_t)size;
    if (may >= least) return HPC_OK;
    return hpc_fail(
        HPC_ERR_CONFIG, "init",
        "init: rank %d needs at least %llu open files for %d ranks, and its process may have %llu: raise the "
        "hard limit to %llu (ulimit -Hn, LimitNOFILE= of a service)",
        rank, (unsigned long long)least, size, (unsigned long long)may, (unsigned long long)wanted);
}

int hpc_context_create_named(int rank, int size, int name, const hpc_config *config, hpc_context **context) {
    hpc_config defaults;
    if (context == NULL) return hpc_fail(HPC_ERR_INVALID, "init", "init: context is NULL");
    *context = NULL;
    hpc_config_init(&defaults);
    if (config == NULL) config = &defaults;
    int status = check_config(rank, size, config);
    if (status == HPC_OK) status = take_files(rank, size, config->tcp_streams);
    if (status != HPC_OK) return status;

    hpc_context *c = make(rank, size, config);
    if (c == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory");
    status = open_all(c, name, config);
    if (status != HPC_OK) goto err;
    hpc_group_enter(&c->group);
    *context = c;
    return HPC_OK;
err:
    hpc_context_release(c);
    return status;
}
