#define _GNU_SOURCE
#include "service/meeting.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/host.h"

static const char op_connect[] = "connect_service";

enum {
    HELLO_BYTES = 64 + 192, /* launch.meet: a version, then a rack, which stays unknown here */
    VERSION_BYTES = 64
};

/* Seconds by which a rank waits longer than the hub, whose error names the missing ranks. */
static const double GRACE = 2;

/* ---- a round ---- */

static int fail_round(const hpc_hub_link *link, size_t nbytes, int size) {
    return hpc_fail(HPC_ERR_AUTH, op_connect, "the hub at %s sent %zu bytes for %d ranks", link->hub->text, nbytes,
                    size);
}

/* Receives data of a group. */
static int receive(hpc_hub_link *link, hpc_group_kind kind, const unsigned char **data, size_t *nbytes,
                   double deadline) {
    int status = hpc_hub_link_receive(link, 'D', data, nbytes, deadline);
    if (status != HPC_OK) return status;
    if (*nbytes < 1 || **data != kind) return fail_round(link, *nbytes, 0);
    ++*data;
    --*nbytes;
    return HPC_OK;
}

static int send_part(hpc_hub_link *link, const void *head, size_t head_bytes, const void *data, size_t nbytes,
                     double deadline) {
    unsigned char *body = malloc(head_bytes + nbytes);
    if (body == NULL) return hpc_fail(HPC_ERR_MEMORY, op_connect, "no memory for %zu bytes", nbytes);
    memcpy(body, head, head_bytes);
    memcpy(body + head_bytes, data, nbytes);
    int status = hpc_hub_link_send(link, 'D', body, head_bytes + nbytes, deadline);
    free(body);
    return status;
}

/* Gives nbytes to all ranks of a group. all gets the bytes of each rank, in rank order; the caller frees it. */
static int exchange(hpc_meeting *m, hpc_group_kind kind, int size, const void *data, size_t nbytes, double timeout,
                    unsigned char **all) {
    const double deadline = hpc_now() + timeout + GRACE;
    const unsigned char group = (unsigned char)kind, *found;
    const int passes = kind == HPC_OF_WORKERS_AND_HUBS;
    size_t n;
    int status = send_part(&m->links[0], &group, 1, data, nbytes, deadline);
    for (int i = 1; status == HPC_OK && passes && i < m->n_links; i++) {
        const unsigned char of_hub[] = {'h', (unsigned char)i};
        status = receive(&m->links[i], kind, &found, &n, deadline);
        if (status == HPC_OK) status = send_part(&m->links[0], of_hub, sizeof of_hub, found, n, deadline);
    }
    if (status == HPC_OK) status = receive(&m->links[0], kind, &found, &n, deadline);
    for (int i = 1; status == HPC_OK && passes && i < m->n_links; i++)
        status = send_part(&m->links[i], &group, 1, found, n, deadline);
    if (status != HPC_OK) return status;
    if (n != nbytes * (size_t)size) return fail_round(&m->links[0], n, size);
    *all = malloc(n);
    if (*all == NULL) return hpc_fail(HPC_ERR_MEMORY, op_connect, "no memory for the addresses of %d ranks", size);
    memcpy(*all, found, n);
    return HPC_OK;
}

/* ---- the agreement on a version ---- */

static size_t trimmed(const unsigned char *version) {
    size_t n = VERSION_BYTES;
    while (n > 0 && version[n - 1] == ' ') n--;
    return n;
}

/* Compares the versions of all ranks, whose parts are stride bytes apart; the error lists the ranks of each. */
static int compare_versions(int rank, const unsigned char *all, size_t stride, int size) {
    char told[512] = "";
    size_t used = 0;
    int same = 1;
    for (int r = 0; r < size; r++) {
        const unsigned char *its = all + (size_t)r * stride;
        int is_first = 1;
        for (int q = 0; q < r && is_first; q++) is_first = memcmp(all + (size_t)q * stride, its, VERSION_BYTES) != 0;
        same = same && (r == 0 || !is_first);
        if (!is_first || used >= sizeof told) continue;
        used += (size_t)snprintf(told + used, sizeof told - used, "%s%.*s on rank", used > 0 ? ", " : "",
                                 (int)trimmed(its), (const char *)its);
        for (int q = r; q < size && used < sizeof told; q++)
            if (memcmp(all + (size_t)q * stride, its, VERSION_BYTES) == 0)
                used += (size_t)snprintf(told + used, sizeof told - used, " %d", q);
    }
    if (same) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, "init", "rank %d: init: the ranks run different versions of hpcomm: %s", rank,
                    told);
}

static void write_hello(unsigned char hello[HELLO_BYTES]) {
    char version[VERSION_BYTES];
    memset(hello, ' ', HELLO_BYTES);
    const int n = snprintf(version, sizeof version, "%s (%zu B addresses)", hpc_version(), hpc_address_size());
    memcpy(hello, version, n < VERSION_BYTES ? (size_t)n : VERSION_BYTES - 1);
}

/* ---- connecting while the hub is listened to ---- */

/* A thread that listens to the first hub while the ranks connect to each other: the hub knows first if one of them has
 * died, and the thread then aborts this rank's wait. */
typedef struct hub_watch {
    hpc_hub_link *link;
    hpc_context *context;
    int end_fd; /* input ends the thread */
    int status; /* the refusal; HPC_OK: none came */
    char why[HPC_REFUSAL_TEXT];
} hub_watch;

static void *listen_to_hub(void *arg) {
    hub_watch *w = arg;
    struct pollfd fds[] = {{.fd = w->link->fd, .events = POLLIN}, {.fd = w->end_fd, .events = POLLIN}};
    for (;;) {
        if (poll(fds, 2, -1) < 0 && errno != EINTR) return NULL;
        if (fds[1].revents != 0) return NULL;
        if (fds[0].revents == 0) continue;
        w->status = hpc_hub_link_look(w->link);
        if (w->status == HPC_OK) continue;
        snprintf(w->why, sizeof w->why, "%s", hpc_last_error()->message);
        hpc_context_abort(w->context, w->why);
        return NULL;
    }
}

static int connect_watched(hpc_hub_link *link, hpc_context *context, const unsigned char *addresses, double timeout) {
    pthread_t thread;
    hub_watch w = {.link = link, .context = context, .end_fd = eventfd(0, EFD_CLOEXEC), .status = HPC_OK};
    const uint64_t one = 1;
    if (w.end_fd < 0) return hpc_fail(HPC_ERR_UNSUPPORTED, op_connect, "no eventfd: %s", strerror(errno));
    sigset_t all, before;
    sigfillset(&all); /* leaves signals to the caller's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, listen_to_hub, &w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        close(w.end_fd);
        return hpc_fail(HPC_ERR_UNSUPPORTED, op_connect, "no thread to listen to the hub: %s", strerror(error));
    }
    int status = hpc_context_connect(context, addresses, timeout);
    while (write(w.end_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    pthread_join(thread, NULL);
    close(w.end_fd);
    if (w.status == HPC_OK) return status;
    if (w.status == HPC_ERR_TRANSPORT) return hpc_fail_transport(op_connect, "tcp", -1, "%s", w.why);
    return hpc_fail(w.status, op_connect, "%s", w.why);
}

/* Tells a context how the hubs are reached from here. */
static int lead(const hpc_meeting *m, hpc_context *context) {
    int status = HPC_OK;
    for (int i = 0; i < m->n_hubs && status == HPC_OK; i++)
        status = hpc_hub_lead(i < m->n_links ? &m->links[i] : NULL, &m->place->hubs[i], context, m->size + i);
    return status;
}

/* Connects an open context. The hub has compared the versions when the workers joined, so one round has both hellos and
 * addresses. */
static int bring_up(hpc_meeting *m, hpc_group_kind kind, int size, double seconds, hpc_context *context) {
    const double deadline = hpc_now() + seconds;
    const size_t nbytes = hpc_address_size(), stride = HELLO_BYTES + nbytes;
    unsigned char *mine = malloc(stride), *all = NULL;
    if (mine == NULL) return hpc_fail(HPC_ERR_MEMORY, op_connect, "no memory for an address");
    write_hello(mine);
    int status = hpc_context_address(context, mine + HELLO_BYTES);
    if (status == HPC_OK) status = exchange(m, kind, size, mine, stride, seconds, &all);
    if (status == HPC_OK) status = compare_versions(m->rank, all, stride, size);
    for (size_t r = 0; r < (size_t)size && status == HPC_OK; r++)
        memmove(all + r * nbytes, all + r * stride + HELLO_BYTES, nbytes);
    const double left = deadline - hpc_now();
    if (status == HPC_OK) status = connect_watched(&m->links[0], context, all, left > 0 ? left : 0);
    free(all);
    free(mine);
    return status;
}

int hpc_meeting_connect(hpc_meeting *m, hpc_group_kind kind, const hpc_config *config, double seconds,
                        hpc_context **context) {
    const int size = m->size + (kind == HPC_OF_WORKERS_AND_HUBS ? m->n_hubs : 0);
    hpc_context *made = NULL;
    int status = hpc_context_create(m->rank, size, config, &made);
    if (status != HPC_OK) return status;
    if (kind == HPC_OF_WORKERS_AND_HUBS) status = lead(m, made);
    if (status == HPC_OK) status = bring_up(m, kind, size, seconds, made);
    if (status == HPC_OK) {
        *context = made;
        return HPC_OK;
    }
    const int before = hpc_mute_errors(1);
    hpc_context_abort(made, hpc_last_error()->message);
    hpc_context_free(made);
    hpc_mute_errors(before);
    return status;
}
