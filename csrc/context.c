#define _GNU_SOURCE
#include "context.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "lane.h"

static const uint32_t MAGIC = 0x68706d61;
static const uint32_t VERSION = HPC_VERSION_MAJOR << 16 | HPC_VERSION_MINOR << 8 | HPC_VERSION_PATCH;

void hpc_config_init(hpc_config *config) {
    *config =
        (hpc_config){.size = sizeof *config, .timeout = 30, .spin = -1, .yield = -1, .silence = 10, .tcp_streams = 1};
}

size_t hpc_address_size(void) {
    return sizeof(hpc_address);
}

/* ---- create ---- */

static void note_cpus(hpc_address *a) {
    int cpus[64 * HPC_CPU_WORDS];
    a->cores = hpc_host_cpus(cpus, 64 * HPC_CPU_WORDS);
    a->quota = hpc_host_quota("");
    for (int i = 0; i < a->cores && i < 64 * HPC_CPU_WORDS; i++)
        a->cpus[cpus[i] / 64 % HPC_CPU_WORDS] |= (uint64_t)1 << cpus[i] % 64;
}

static void describe_self(hpc_context *c, const hpc_config *config) {
    hpc_address *a = &c->self;
    struct stat s;
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    char id[64] = "";
    *a = (hpc_address){
        .magic = MAGIC, .version = VERSION, .nbytes = sizeof *a, .rank = c->group.rank, .size = c->group.size};
    note_cpus(a);
    a->tcp_streams = config->tcp_streams;
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
    if (hpc_transport_allowed(config->transports, &hpc_transport_verbs))
        hpc_nics_open(config->devices, &c->nics, &a->devices);
    else
        a->devices.state = HPC_VERBS_NOT_ALLOWED;
}

/* Where RDMA is there, or asked for, and cannot be used. */
static void note_devices(hpc_context *c, const hpc_config *config) {
    int state = c->self.devices.state, asked = config->devices != NULL && config->devices[0] != '\0';
    int there = state == HPC_VERBS_NO_LIBRARY || state == HPC_VERBS_NO_ACCESS || state == HPC_VERBS_NO_PORT;
    if (there || (asked && state != HPC_VERBS_READY && state != HPC_VERBS_NOT_ALLOWED))
        hpc_group_note(&c->group, "no verbs: rank %d %s", c->group.rank, hpc_no_verbs_text(state));
}

static void *owner_page(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (madvise(p, page, MADV_WIPEONFORK) != 0) {
        munmap(p, page);
        return NULL;
    }
    p[0] = 1;
    return p;
}

/* Which transport a lane's connection is for is known by its rank. */
static int accept_lane(void *arg, int rank, uint64_t lane, int stream, int fd) {
    hpc_context *c = arg;
    const hpc_transport *t = c->transports[rank];
    return t == NULL || t->accept_lane == NULL ? HPC_ERR_INVALID : t->accept_lane(c, rank, lane, stream, fd);
}

int hpc_context_create(int rank, int size, const hpc_config *config, hpc_context **context) {
    return hpc_context_create_named(rank, size, rank, config, context);
}

int hpc_context_create_named(int rank, int size, int name, const hpc_config *config, hpc_context **context) {
    hpc_config defaults;
    hpc_context *c = NULL;
    int status;
    if (context == NULL) return hpc_fail(HPC_ERR_INVALID, "init", "init: context is NULL");
    *context = NULL;
    hpc_config_init(&defaults);
    if (config == NULL) config = &defaults;
    if (config->size != sizeof *config)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: config->size is %zu, not %zu: call hpc_config_init first",
                        config->size, sizeof *config);
    if (size < 1 || rank < 0 || rank >= size)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: rank %d of %d ranks; rank must be in 0..size-1", rank, size);
    if (!(config->timeout > 0)) /* also a NaN */
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: timeout is %g s; it must be more than 0", config->timeout);
    if (config->transports != NULL && strlen(config->transports) >= HPC_TRANSPORTS_BYTES)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: transports \"%s\" is too long", config->transports);
    if (!(config->silence > 0))
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: silence is %g s; it must be more than 0", config->silence);
    if (config->tcp_streams < 1 || config->tcp_streams > HPC_TCP_STREAMS)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: tcp_streams is %d; it must be 1 to %d", config->tcp_streams,
                        HPC_TCP_STREAMS);
    if (config->secret == NULL && config->secret_bytes > 0)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: secret is NULL while secret_bytes is %zu",
                        config->secret_bytes);
    status = hpc_transport_check(config->transports);
    if (status == HPC_OK) status = hpc_nics_check(config->devices);
    if (status != HPC_OK) return status;

    c = calloc(1, sizeof *c);
    if (c == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory");
    hpc_group *g = &c->group;
    atomic_init(&c->references, 1);
    c->open = 1;
    c->root = c;
    pthread_mutex_init(&c->family, NULL);
    g->rank = rank;
    g->size = size;
    g->timeout = config->timeout;
    g->spin = config->spin;
    g->yield = config->yield;
    c->loop_seed = config->loop_seed;
    c->tcp_streams = config->tcp_streams;
    c->tcp_zerocopy = config->tcp_zerocopy;
    g->owner = owner_page();
    g->states = calloc((size_t)size, sizeof *g->states);
    g->departing = calloc((size_t)size, sizeof *g->departing);
    g->reasons = calloc((size_t)size, sizeof *g->reasons);
    c->addresses = calloc((size_t)size, sizeof *c->addresses);
    c->transports = calloc((size_t)size, sizeof *c->transports);
    if (g->owner == NULL || g->states == NULL || g->departing == NULL || g->reasons == NULL || c->addresses == NULL ||
        c->transports == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", size);
        goto err;
    }
    status = hpc_memory_create(sizeof(hpc_bell), "init", &c->bell_memory);
    if (status != HPC_OK) goto err;
    g->bell = hpc_memory_data(c->bell_memory);
    const hpc_control_config control = {hpc_transport_allowed(config->transports, &hpc_transport_tcp) ||
                                            hpc_transport_allowed(config->transports, &hpc_transport_verbs),
                                        config->interfaces, config->silence, config->secret, config->secret_bytes};
    status = hpc_control_open(g, c->bell_memory, &control, &c->control);
    if (status != HPC_OK) goto err;
    hpc_control_on_lane(c->control, accept_lane, c);
    describe_self(c, config);
    note_devices(c, config);
    if (config->timeline != NULL && config->timeline[0] != 0)
        status = hpc_timeline_open(config->timeline, name, rank, size, c->self.hostname, &g->timeline);
    if (status != HPC_OK) goto err;
    *context = c;
    return HPC_OK;
err:
    hpc_context_release(c);
    return status;
}

int hpc_context_address(const hpc_context *context, void *address) {
    if (context == NULL || address == NULL)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: context or address is NULL");
    memcpy(address, &context->self, sizeof context->self);
    return HPC_OK;
}

/* ---- connect ---- */

static int check_addresses(const hpc_context *c) {
    const hpc_address *all = c->addresses, *first = &all[0];
    for (int r = 0; r < c->group.size; r++) {
        const hpc_address *a = &all[r];
        if (a->magic != MAGIC)
            return hpc_fail(
                HPC_ERR_CONFIG, "init",
                "init: what came as rank %d's address is none; did the out-of-band allgather mix up its bytes?", r);
        if (a->version != first->version || a->nbytes != first->nbytes)
            return hpc_fail(
                HPC_ERR_CONFIG, "init",
                "init: rank %d runs hpcomm %u.%u.%u and rank 0 runs %u.%u.%u; install the same version on every host",
                r, a->version >> 16, a->version >> 8 & 255, a->version & 255, first->version >> 16,
                first->version >> 8 & 255, first->version & 255);
    }
    for (int r = 0; r < c->group.size; r++) {
        if (all[r].size != first->size)
            return hpc_fail(HPC_ERR_CONFIG, "init", "init: rank %d counts %d ranks and rank 0 counts %d", r,
                            all[r].size, first->size);
        if (all[r].rank != r)
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: place %d of the addresses holds rank %d's; give them in rank order", r, all[r].rank);
        if (strcmp(all[r].transports, first->transports) != 0)
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: rank %d allows transports \"%s\" and rank 0 \"%s\"; set HPCOMM_TRANSPORT alike", r,
                            all[r].transports, first->transports);
    }
    for (int r = 0; r < c->group.size; r++) {
        if (all[r].tcp_streams != first->tcp_streams)
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: rank %d has %d tcp_streams and rank 0 has %d; set HPCOMM_TCP_STREAMS alike", r,
                            all[r].tcp_streams, first->tcp_streams);
        if (all[r].silence != first->silence) /* by it each sends its beats, and takes the others for dead */
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: rank %d bears a silence of %g s and rank 0 of %g s; set HPCOMM_SILENCE alike", r,
                            all[r].silence, first->silence);
    }
    if (memcmp(&all[c->group.rank], &c->self, sizeof c->self) != 0)
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: place %d of the addresses is not this rank's own",
                        c->group.rank);
    return HPC_OK;
}

/* Every pair is judged by every rank alike, so that one unreachable pair fails the start of all of them. */
static int choose_transports(hpc_context *c) {
    const char *names = c->self.transports[0] == 0 ? NULL : c->self.transports;
    char why[512];
    for (int apart = 1; apart <= c->group.size; apart++) /* what is wrong is told of two ranks, where there are two */
        for (int a = 0; a < c->group.size; a++) {
            int b = (a + apart) % c->group.size;
            const hpc_transport *t = hpc_transport_choose(names, &c->addresses[a], &c->addresses[b], why, sizeof why);
            if (t == NULL)
                return hpc_fail(HPC_ERR_UNSUPPORTED, "init",
                                "init: no transport reaches rank %d (%s) from rank %d (%s): %s", b,
                                c->addresses[b].hostname, a, c->addresses[a].hostname, why);
            if (a == c->group.rank) c->transports[b] = t;
        }
    const hpc_transport **own = &c->transports[c->group.rank];
    if (*own == &hpc_transport_tcp || *own == &hpc_transport_verbs) *own = &hpc_transport_shm;
    return HPC_OK;
}

/* With a core for each rank of the host a spin costs nobody anything; with fewer it takes the core of the rank that is
 * waited for, and yielding for longer beats the futex' wake-up (docs/architecture.md, Waiting). The ranks may be bound
 * to cores of their own: those of all count. */
static void choose_waiting(hpc_context *c) {
    uint64_t cpus[HPC_CPU_WORDS] = {0};
    int here = 0, cores = 0, quota = 0;
    for (int r = 0; r < c->group.size; r++) {
        if (!hpc_same_host(&c->addresses[r], &c->self)) continue;
        here++;
        for (int i = 0; i < HPC_CPU_WORDS; i++) cpus[i] |= c->addresses[r].cpus[i];
        int own = c->addresses[r].quota;
        if (own > 0 && (quota == 0 || own < quota)) quota = own;
    }
    for (int i = 0; i < HPC_CPU_WORDS; i++) cores += __builtin_popcountll(cpus[i]);
    if (quota > 0 && quota < cores) cores = quota;
    if (here > cores)
        hpc_group_note(&c->group, "%d ranks share %d cores of %s: waits yield instead of spinning", here, cores,
                       c->self.hostname);
    if (c->group.spin < 0) c->group.spin = here <= cores ? 50e-6 : 0;
    if (c->group.yield < 0) c->group.yield = here <= cores ? 100e-6 : 500e-6;
}

static int progress_all(void *arg) {
    hpc_context *c = arg;
    int left = 0;
    for (int i = 0; c->used[i] != NULL; i++)
        if (c->used[i]->progress != NULL) left |= c->used[i]->progress(c);
    return left | (atomic_load_explicit(&c->leaving, memory_order_relaxed) ? 0 : hpc_context_work(c));
}

/* ---- tasks ---- */

/* release and acquire: what one thread did to an engine is seen by the next that works for it. */
static int take_tasks(hpc_context *c) {
    return atomic_load_explicit(&c->working, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&c->working, 1, memory_order_acquire) == 0;
}

static void leave_tasks(hpc_context *c) {
    atomic_store_explicit(&c->working, 0, memory_order_release);
}

int hpc_context_work(hpc_context *c) {
    const char *why = NULL;
    int left = 0;
    if (atomic_load_explicit(&c->n_tasks, memory_order_relaxed) == 0) return 0;
    if (!take_tasks(c)) return HPC_LEFT;
    for (const hpc_task *t = c->tasks; t != NULL && why == NULL; t = t->next) {
        why = t->run(t->arg);
        left |= t->left;
    }
    leave_tasks(c);
    if (why != NULL) hpc_context_abort(c, why);
    return left;
}

void hpc_context_add_task(hpc_context *c, hpc_task *task) {
    while (!take_tasks(c)) sched_yield();
    task->next = c->tasks;
    c->tasks = task;
    atomic_fetch_add_explicit(&c->n_tasks, 1, memory_order_release);
    leave_tasks(c);
    atomic_store_explicit(&c->group.progress, progress_all, memory_order_release);
}

void hpc_context_remove_task(hpc_context *c, hpc_task *task) {
    while (!take_tasks(c)) sched_yield();
    for (hpc_task **at = &c->tasks; *at != NULL; at = &(*at)->next)
        if (*at == task) {
            *at = task->next;
            atomic_fetch_sub_explicit(&c->n_tasks, 1, memory_order_relaxed);
            break;
        }
    leave_tasks(c);
}

/* ---- connect ---- */

/* What serves a pair that looks like one host but is none (a cloned machine, say); NULL if nothing does. */
static const hpc_transport *across_hosts(const hpc_context *c, size_t peer) {
    static const hpc_transport *const candidates[] = {&hpc_transport_verbs, &hpc_transport_tcp};
    const char *names = c->self.transports[0] == 0 ? NULL : c->self.transports, *why;
    for (size_t i = 0; i < sizeof candidates / sizeof *candidates; i++)
        if (hpc_transport_allowed(names, candidates[i]) && candidates[i]->reaches(&c->self, &c->addresses[peer], &why))
            return candidates[i];
    return NULL;
}

/* Connects the control channel by what the chosen transports need; where shared memory was chosen and the link comes
 * out as TCP, the transport follows. */
static int connect_control(hpc_context *c, double deadline) {
    size_t size = (size_t)c->group.size;
    hpc_control_address *controls = calloc(size, sizeof *controls);
    unsigned char *links = calloc(size, 1), *same_host = calloc(size, 1);
    int status = HPC_OK;
    if (controls == NULL || links == NULL || same_host == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %zu addresses", size);
    for (size_t r = 0; r < size && status == HPC_OK; r++) {
        const hpc_transport *t = c->transports[r];
        const char *why;
        int both_listen = hpc_transport_tcp.reaches(&c->self, &c->addresses[r], &why);
        controls[r] = c->addresses[r].control;
        same_host[r] = (unsigned char)hpc_same_host(&c->addresses[r], &c->self);
        if (t->caps & HPC_CAP_ONE_HOST || (t == &hpc_transport_verbs && same_host[r])) links[r] |= HPC_LINK_UNIX;
        if (both_listen && t != &hpc_transport_loop && (t != &hpc_transport_shm || across_hosts(c, r) != NULL))
            links[r] |= HPC_LINK_TCP;
    }
    if (status == HPC_OK) status = hpc_control_connect(c->control, controls, links, same_host, deadline);
    c->all_remote = size > 1;
    for (size_t r = 0; r < size && status == HPC_OK; r++) {
        if (r == (size_t)c->group.rank) continue;
        if (hpc_control_link(c->control, (int)r) == HPC_LINK_TCP && c->transports[r] == &hpc_transport_shm)
            c->transports[r] = across_hosts(c, r);
        if (c->transports[r]->caps & HPC_CAP_ONE_HOST) c->all_remote = 0;
    }
    free(controls);
    free(links);
    free(same_host);
    return status;
}

hpc_reactor *hpc_context_reactor(hpc_context *c) {
    if (c->reactor == NULL) c->reactor = hpc_reactor_open(&c->group, c->all_remote);
    return c->reactor;
}

static void list_used(hpc_context *c) {
    int n = 0;
    for (int r = 0; r < c->group.size; r++) {
        int known = 0;
        for (int i = 0; i < n; i++) known |= c->used[i] == c->transports[r];
        if (!known && n + 1 < HPC_USED) c->used[n++] = c->transports[r];
    }
}

/* Ports that no pair has chosen are closed again. Where both ranks have some and go by TCP all the same, that is told.
 */
static void settle_nics(hpc_context *c) {
    const char *why, *names = c->self.transports[0] == 0 ? NULL : c->self.transports;
    int wanted = 0;
    for (int r = 0; r < c->group.size; r++) wanted |= c->transports[r] == &hpc_transport_verbs;
    for (int r = 0; r < c->group.size && c->nics != NULL && hpc_transport_allowed(names, &hpc_transport_verbs); r++)
        if (c->transports[r] == &hpc_transport_tcp && c->addresses[r].devices.state == HPC_VERBS_READY &&
            !hpc_transport_verbs.reaches(&c->self, &c->addresses[r], &why)) {
            hpc_group_note(&c->group, "no verbs to rank %d: %s", r, why);
            break;
        }
    if (wanted) return;
    hpc_nics_close(c->nics);
    c->nics = NULL;
}

static int serves_a_peer(const hpc_context *c, const hpc_transport *transport) {
    for (int r = 0; r < c->group.size; r++)
        if (r != c->group.rank && c->transports[r] == transport) return 1;
    return 0;
}

/* For whoever asks the control channel meanwhile (hpcomm status). */
static void show_transports(hpc_context *c) {
    char names[HPC_TRANSPORTS_BYTES] = "";
    size_t n = 0;
    for (int i = 0; c->used[i] != NULL && n < sizeof names; i++)
        if (serves_a_peer(c, c->used[i]))
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n == 0 ? "" : ",", c->used[i]->name);
    for (int r = 0; r < c->group.size; r++) hpc_control_show_host(c->control, r, c->addresses[r].hostname);
    hpc_control_show(c->control, names);
}

static void name_timeline(const hpc_context *c) {
    char job[HPC_JOB_BYTES];
    if (c->group.timeline == NULL) return;
    hpc_control_name_job(&c->addresses[0].control, job);
    hpc_timeline_name_job(c->group.timeline, job);
}

int hpc_context_connect(hpc_context *c, const void *addresses, double timeout) {
    double deadline;
    int status;
    if (c == NULL || addresses == NULL) return hpc_fail(HPC_ERR_INVALID, "init", "init: context or addresses is NULL");
    status = hpc_group_usable(&c->group, "init");
    if (status != HPC_OK) return status;
    if (c->connecting)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: connect was called already; create a new context");
    c->connecting = 1;
    deadline = hpc_deadline(&c->group, timeout);
    memcpy(c->addresses, addresses, (size_t)c->group.size * sizeof *c->addresses);
    for (int r = 0; r < c->group.size; r++) { /* they came from outside: end their texts */
        c->addresses[r].hostname[HPC_HOST_BYTES - 1] = 0;
        c->addresses[r].transports[HPC_TRANSPORTS_BYTES - 1] = 0;
    }
    status = check_addresses(c);
    if (status == HPC_OK) name_timeline(c);
    if (status == HPC_OK) status = choose_transports(c);
    if (status != HPC_OK) return status;
    choose_waiting(c);

    status = connect_control(c, deadline);
    list_used(c);
    settle_nics(c);
    if (status == HPC_OK) status = hpc_lane_open(c, 1, 0, deadline, &c->lane);
    if (status == HPC_OK) status = hpc_lane_open(c, 1, 0, deadline, &c->acks);
    if (status != HPC_OK) return status;
    c->group.progress_arg = c;
    for (int i = 0; c->used[i] != NULL; i++)
        if (c->used[i]->progress != NULL) c->group.progress = progress_all;
    c->group.bed_arg = c->reactor;
    if (c->reactor != NULL) c->group.bed = &hpc_reactor_bed;
    c->connected = 1;
    show_transports(c);
    return HPC_OK;
}

/* Gives every rank's address in *addresses, to be freed. */
static int carry_out_of_band(const hpc_oob *oob, const hpc_context *c, double deadline, hpc_address **addresses) {
    size_t size = (size_t)oob->size;
    void *request = NULL;
    hpc_address *all = calloc(size + 1, sizeof *all), *mine = all + size;
    int status;
    if (all == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %zu addresses", size);
    *mine = c->self;
    status = oob->allgather(mine, all, sizeof *all, oob->arg, &request);
    if (status < 0) {
        free(all);
        return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: the out-of-band allgather failed to start (%d)", status);
    }
    while ((status = oob->test(request)) == HPC_IN_PROGRESS) {
        if (hpc_now() >= deadline) /* Neither request nor buffers are freed: the callback may still use them. */
            return hpc_fail(
                HPC_ERR_TIMEOUT, "init",
                "rank %d: init: the out-of-band allgather of %d ranks did not end in time; did every rank start?",
                oob->rank, oob->size);
        sched_yield();
    }
    oob->free(request);
    if (status != HPC_OK) {
        free(all);
        return hpc_fail(HPC_ERR_TRANSPORT, "init", "init: the out-of-band allgather failed (%d)", status);
    }
    *addresses = all;
    return HPC_OK;
}

int hpc_init(const hpc_oob *oob, const hpc_config *config, hpc_context **context) {
    hpc_context *c = NULL;
    hpc_address *all = NULL;
    double deadline;
    int status;
    if (context == NULL || oob == NULL || oob->allgather == NULL || oob->test == NULL || oob->free == NULL)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: context, oob or one of its functions is NULL");
    *context = NULL;
    status = hpc_context_create(oob->rank, oob->size, config, &c);
    if (status != HPC_OK) return status;
    deadline = hpc_deadline(&c->group, -1);
    status = carry_out_of_band(oob, c, deadline, &all);
    if (status == HPC_OK) {
        double left = deadline - hpc_now();
        status = hpc_context_connect(c, all, left > 0 ? left : 0);
    }
    free(all);
    if (status != HPC_OK) {
        char why[HPC_REASON_BYTES];
        snprintf(why, sizeof why, "%s", hpc_last_error()->message);
        hpc_context_abort(c, why);
        hpc_context_free(c);
        return status;
    }
    *context = c;
    return HPC_OK;
}

/* ---- facts ---- */

int hpc_context_rank(const hpc_context *context) {
    return context->group.rank;
}

int hpc_context_size(const hpc_context *context) {
    return context->group.size;
}

int hpc_context_check_rank(const hpc_context *c, int rank, const char *what, const char *op) {
    if (rank >= 0 && rank < c->group.size) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op, "%s: %s %d is out of range; ranks are 0 to %d", op, what, rank,
                    c->group.size - 1);
}

int hpc_context_peer(const hpc_context *c, int rank, hpc_peer *peer) {
    if (c == NULL || peer == NULL) return hpc_fail(HPC_ERR_INVALID, "peer", "peer: context or peer is NULL");
    int status = hpc_context_check_rank(c, rank, "rank", "peer");
    if (status != HPC_OK) return status;
    peer->state = atomic_load_explicit(&c->group.states[rank], memory_order_acquire);
    peer->transport = c->transports[rank] == NULL ? "" : rank == c->group.rank ? "self" : c->transports[rank]->name;
    peer->host = c->addresses[rank].hostname;
    peer->pid = c->addresses[rank].control.pid;
    const hpc_transport *t = c->transports[rank];
    peer->path = t != NULL && t->path != NULL ? t->path(c, rank) : hpc_control_path(c->control, rank);
    return HPC_OK;
}

const char *hpc_context_note(const hpc_context *c, int i) {
    return c == NULL ? NULL : hpc_group_note_at(&c->group, i);
}

int hpc_context_ready(const hpc_context *c, const char *op) {
    if (c == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: context is NULL", op);
    int status = hpc_group_usable(&c->group, op);
    if (status == HPC_OK && !c->connected)
        status = hpc_fail(HPC_ERR_INVALID, op, "%s: the context is not connected yet", op);
    return status;
}

hpc_lane *hpc_context_lane(hpc_context *c, hpc_lane *lane) {
    return lane != NULL ? lane : c->lane;
}

int hpc_context_span(hpc_context *c, const char *name, double start) {
    static const char op[] = "span";
    if (c == NULL || name == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: context or name is NULL", op);
    int status = hpc_group_usable(&c->group, op);
    if (status != HPC_OK || c->group.timeline == NULL) return status;
    double now = hpc_now();
    if (!(start >= 0 && start <= now)) /* also a NaN */
        return hpc_fail(HPC_ERR_INVALID, op, "%s: start is %g s; it is CLOCK_MONOTONIC %g s now", op, start, now);
    const hpc_span span = {.timeline = c->group.timeline, .start = start, .label = name, .kind = HPC_SPAN_USER};
    hpc_timeline_record(&span, now);
    return HPC_OK;
}

/* ---- leaving ---- */

int hpc_context_revoke(hpc_context *c) {
    int status = hpc_context_ready(c, "revoke");
    if (status != HPC_OK) return status;
    hpc_group_revoke(&c->group);
    hpc_control_revoke(c->control);
    return HPC_OK;
}

static int is_settled(void *arg) {
    hpc_context *c = arg;
    int left = 0;
    for (int i = 0; c->used[i] != NULL; i++)
        if (c->used[i]->settle != NULL) left += c->used[i]->settle(c);
    return left == 0;
}

static int anybody(void *arg, int *ranks) {
    return hpc_group_others(&((hpc_context *)arg)->group, ranks);
}

static void end_timeline(hpc_context *c) {
    int error = c->group.timeline == NULL ? 0 : hpc_timeline_close(c->group.timeline);
    if (error != 0) hpc_group_note(&c->group, "the timeline is not whole: %s", strerror(error));
}

static int leave(hpc_context *c, const char *why) {
    if (c == NULL || !hpc_group_is_mine(&c->group)) return HPC_OK;
    hpc_span span = hpc_span_begin(c->group.timeline, why == NULL ? "close" : "abort", NULL);
    /* What was put is delivered before the others hear that this rank is gone; a failed rank does not wait for it. */
    if (c->connected && !atomic_load(&c->group.closed)) {
        const hpc_wait wait = {"close", is_settled, anybody, c};
        double deadline = hpc_deadline(&c->group, why == NULL ? c->group.timeout : 0);
        int muted = hpc_mute_errors(1);
        atomic_store_explicit(&c->leaving, 1, memory_order_relaxed);
        hpc_lane_flush(c->lane, hpc_left(deadline));
        hpc_wait_for(&c->group, &wait, hpc_left(deadline));
        hpc_mute_errors(muted);
    }
    if (atomic_exchange(&c->group.closed, 1)) return HPC_OK;
    hpc_bell_ring(c->group.bell); /* this rank's own waits end too */
    hpc_family_leave(c, why);
    hpc_span_end(&span);
    end_timeline(c);
    return HPC_OK;
}

int hpc_context_close(hpc_context *context) {
    return leave(context, NULL);
}

int hpc_context_abort(hpc_context *context, const char *why) {
    return leave(context, why != NULL && why[0] != 0 ? why : "it gave up");
}

void hpc_context_free(hpc_context *context) {
    if (context == NULL) return;
    hpc_context_close(context);
    hpc_context_release(context);
}

hpc_context *hpc_context_retain(hpc_context *context) {
    atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
    return context;
}

void hpc_context_release(hpc_context *c) {
    if (c->group.owner != NULL && !hpc_group_is_mine(&c->group)) return; /* a forked child tears nothing down */
    if (atomic_fetch_sub_explicit(&c->references, 1, memory_order_acq_rel) != 1) return;
    hpc_lane_free(c->lane);
    hpc_lane_free(c->acks);
    for (int r = 0; c->transports != NULL && r < c->group.size; r++)
        if (c->transports[r] != NULL && c->transports[r]->release != NULL) c->transports[r]->release(c);
    hpc_reactor_close(c->reactor);
    hpc_nics_close(c->nics);
    hpc_control_free(c->control);
    hpc_timeline_free(c->group.timeline);
    hpc_memory_release(c->bell_memory);
    if (c->group.owner != NULL) munmap((void *)(uintptr_t)c->group.owner, (size_t)sysconf(_SC_PAGESIZE));
    free(c->transports);
    free(c->addresses);
    free(c->group.departing);
    free(c->group.reasons);
    free(c->group.states);
    free(c->first);
    pthread_mutex_destroy(&c->family);
    hpc_context *root = c->root;
    free(c);
    if (root != c) hpc_context_release(root);
}
