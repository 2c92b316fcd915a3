#define _GNU_SOURCE
#include "context/context.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "context/lane.h"

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
    *a = (hpc_address){.magic = HPC_ADDRESS_MAGIC,
                       .version = VERSION,
                       .nbytes = sizeof *a,
                       .rank = c->group.rank,
                       .size = c->group.size};
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
    if (hpc_transport_find(config->transports, HPC_CAP_NICS, 0) != NULL)
        hpc_nics_open(config->devices, &c->nics, &a->devices);
    else
        a->devices.state = HPC_VERBS_NOT_ALLOWED;
}

/* Where RDMA is there, or asked for, and cannot be used. */
static void note_devices(hpc_context *c, const hpc_config *config) {
    int state = c->self.devices.state, asked = config->devices != NULL && config->devices[0] != '\0';
    int there = state == HPC_VERBS_NO_LIBRARY || state == HPC_VERBS_NO_ACCESS || state == HPC_VERBS_NO_PORT;
    if (there || (asked && state != HPC_VERBS_READY && state != HPC_VERBS_NOT_ALLOWED))
        hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "no verbs: rank %d %s", c->group.rank, hpc_no_verbs_text(state));
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
    if (!(config->slice >= 0)) /* also a NaN */
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: slice is %g s; it must be 0 or more", config->slice);
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
    g->slice = config->slice;
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
    const int connects_hosts = hpc_transport_find(config->transports, 0, HPC_CAP_ONE_HOST) != NULL;
    const hpc_control_config control = {connects_hosts, config->interfaces, config->silence, config->secret,
                                        config->secret_bytes};
    status = hpc_control_open(g, c->bell_memory, &control, &c->control);
    if (status != HPC_OK) goto err;
    hpc_control_on_lane(c->control, accept_lane, c);
    describe_self(c, config);
    note_devices(c, config);
    if (config->timeline != NULL && config->timeline[0] != 0)
        status = hpc_timeline_open(config->timeline, name, rank, size, c->self.hostname, &g->timeline);
    if (status != HPC_OK) goto err;
    hpc_group_enter(g);
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

/* ---- tasks ---- */

/* release and acquire: what one thread did to an engine is seen by the next that works for it. */
static int take_tasks(hpc_context *c) {
    return atomic_load_explicit(&c->working, memory_order_relaxed) == 0 &&
           atomic_exchange_explicit(&c->working, 1, memory_order_acquire) == 0;
}

static void leave_tasks(hpc_context *c) {
    atomic_store_explicit(&c->working, 0, memory_order_release);
}

void hpc_context_hold_tasks(hpc_context *c) {
    while (!take_tasks(c)) sched_yield();
}

void hpc_context_let_tasks(hpc_context *c) {
    leave_tasks(c);
}

int hpc_context_work(hpc_context *c) {
    const char *failure = NULL;
    char why[HPC_REASON_BYTES];
    int left = 0;
    if (atomic_load_explicit(&c->n_tasks, memory_order_relaxed) == 0) return 0;
    if (!take_tasks(c)) return HPC_LEFT;
    for (const hpc_task *t = c->tasks; t != NULL && failure == NULL; t = t->next) {
        failure = t->run(t->arg);
        left |= t->left;
    }
    if (failure != NULL) snprintf(why, sizeof why, "%s", failure); /* its task may be freed once they are left */
    leave_tasks(c);
    if (failure != NULL) hpc_context_abort(c, why);
    return left;
}

int hpc_context_progress(void *context) {
    hpc_context *c = context;
    int left = 0;
    for (int i = 0; c->used[i] != NULL; i++)
        if (c->used[i]->progress != NULL) left |= c->used[i]->progress(c);
    return left | (atomic_load_explicit(&c->leaving, memory_order_relaxed) ? 0 : hpc_context_work(c));
}

void hpc_context_add_task(hpc_context *c, hpc_task *task) {
    hpc_context_hold_tasks(c);
    task->next = c->tasks;
    c->tasks = task;
    atomic_fetch_add_explicit(&c->n_tasks, 1, memory_order_release);
    leave_tasks(c);
    atomic_store_explicit(&c->group.progress, hpc_context_progress, memory_order_release);
}

void hpc_context_remove_task(hpc_context *c, hpc_task *task) {
    hpc_context_hold_tasks(c);
    for (hpc_task **at = &c->tasks; *at != NULL; at = &(*at)->next)
        if (*at == task) {
            *at = task->next;
            atomic_fetch_sub_explicit(&c->n_tasks, 1, memory_order_relaxed);
            break;
        }
    leave_tasks(c);
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

int hpc_context_note_kind(const hpc_context *c, int i) {
    if (c == NULL || hpc_group_note_at(&c->group, i) == NULL)
        return hpc_fail(HPC_ERR_INVALID, "note", "note: there is no note %d", i);
    return c->group.note_kinds[i];
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
    if (error != 0) hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "the timeline is not whole: %s", strerror(error));
}

static int leave(hpc_context *c, const char *why) {
    if (c == NULL || !hpc_group_is_mine(&c->group)) return HPC_OK;
    hpc_span span = hpc_span_begin(c->group.timeline, why == NULL ? "close" : "abort", NULL);
    hpc_blame_freeze(&c->group.blame);
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
    hpc_group_leave(&c->group);
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
