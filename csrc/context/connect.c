/* Connects a created context: checks the ranks' addresses, chooses a transport for each pair, and opens the control
 * channel and the first lanes. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context/mail.h"

static int check_addresses(const hpc_context *c) {
    const hpc_address *all = c->addresses, *first = &all[0];
    for (int r = 0; r < c->group.size; r++) {
        const hpc_address *a = &all[r];
        if (a->magic != HPC_ADDRESS_MAGIC)
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: the bytes received for rank %d are not an address; the out-of-band allgather must "
                            "deliver all bytes in rank order",
                            r);
        if (a->version != first->version || a->nbytes != first->nbytes)
            return hpc_fail(
                HPC_ERR_CONFIG, "init",
                "init: rank %d runs hpcomm %u.%u.%u and rank 0 runs %u.%u.%u; install the same version on every host",
                r, a->version >> 16, a->version >> 8 & 255, a->version & 255, first->version >> 16,
                first->version >> 8 & 255, first->version & 255);
    }
    for (int r = 0; r < c->group.size; r++) {
        if (all[r].size != first->size)
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: rank %d was given %d ranks and rank 0 was given %d; give all ranks the same size", r,
                            all[r].size, first->size);
        if (all[r].rank != r)
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: address %d belongs to rank %d; give the addresses in rank order", r, all[r].rank);
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
        if (all[r].silence != first->silence) /* ranks send beats, and declare others dead, by this time */
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "init: rank %d has silence %g s and rank 0 has %g s; set HPCOMM_SILENCE alike", r,
                            all[r].silence, first->silence);
    }
    for (int r = 0; r < c->door_first && r < c->group.size && c->self.control.door; r++)
        if (all[r].control.door) /* this rank would call wherever it says */
            return hpc_fail(HPC_ERR_CONFIG, "init", "init: rank %d has a door: only ranks from %d on may have one", r,
                            c->door_first);
    if (memcmp(&all[c->group.rank], &c->self, sizeof c->self) != 0)
        return hpc_fail(HPC_ERR_CONFIG, "init",
                        "init: address %d is not the one that this rank has given; give the addresses in rank order",
                        c->group.rank);
    return HPC_OK;
}

/* Returns whether transports judge two ranks alike, whatever the third rank with which they connect them. */
static int are_alike(const hpc_address *a, const hpc_address *b, int in_one_process) {
    if (a->devices.state == HPC_VERBS_READY || a->devices.state != b->devices.state || !hpc_same_host(a, b)) return 0;
    if (memcmp(&a->control.users, &b->control.users, sizeof a->control.users) != 0) return 0;
    if ((a->control.endpoints[0].family != 0) != (b->control.endpoints[0].family != 0)) return 0;
    return !in_one_process ||
           (a->control.pid == b->control.pid && a->control.pid_namespace == b->control.pid_namespace);
}

/* Gives each rank the lowest rank that is like it. */
static void find_alike(const hpc_context *c, int *like) {
    const char *names = hpc_transport_names(&c->self);
    const int in_one_process = names != NULL && hpc_transport_find(names, HPC_CAP_ONE_PROCESS, 0) != NULL;
    int n = 0, *kinds = like + c->group.size;
    for (int r = 0; r < c->group.size; r++) {
        like[r] = r;
        for (int k = 0; k < n && like[r] == r; k++)
            if (are_alike(&c->addresses[kinds[k]], &c->addresses[r], in_one_process)) like[r] = kinds[k];
        if (like[r] == r) kinds[n++] = r;
    }
}

static int choose_transport(hpc_context *c, int a, int b) {
    char why[512];
    const hpc_transport *t =
        hpc_transport_choose(hpc_transport_names(&c->self), &c->addresses[a], &c->addresses[b], why, sizeof why);
    if (t == NULL)
        return hpc_fail(HPC_ERR_UNSUPPORTED, "init", "init: no transport reaches rank %d (%s) from rank %d (%s): %s", b,
                        c->addresses[b].hostname, a, c->addresses[a].hostname, why);
    if (a == c->group.rank) c->transports[b] = t;
    return HPC_OK;
}

/* Chooses the transports of this rank. All ranks judge every pair alike, so one unreachable pair fails the start on all
 * of them; of pairs that are alike they judge one. */
static int choose_transports(hpc_context *c) {
    const int size = c->group.size;
    int *like = malloc(2 * (size_t)size * sizeof *like), status = HPC_OK;
    if (like == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", size);
    find_alike(c, like);
    /* apart == size, each rank with itself, comes last, so that errors name two ranks */
    for (int apart = 1; apart <= size && status == HPC_OK; apart++)
        for (int a = 0; a < size && status == HPC_OK; a++) {
            const int b = (a + apart) % size, within = like[b] == a && apart < size;
            if (like[a] == a && (like[b] == b || within)) status = choose_transport(c, a, b);
        }
    for (int r = 0; r < size && status == HPC_OK; r++) status = choose_transport(c, c->group.rank, r);
    free(like);
    if (status != HPC_OK) return status;
    const hpc_transport **own = &c->transports[c->group.rank];
    *own = hpc_transport_to_self(*own);
    return HPC_OK;
}

/* Returns whether some pair of ranks may use an eager transport, now or once their link turns out to be TCP. All ranks
 * find the same. */
static int may_be_eager(const hpc_context *c) {
    int n = 0;
    if (hpc_transport_find(hpc_transport_names(&c->self), HPC_CAP_EAGER, 0) == NULL) return 0;
    for (int r = 0; r < c->group.size; r++) n += c->addresses[r].devices.state == HPC_VERBS_READY;
    return n > 1;
}

/* Chooses how waits spin and yield. If each rank has its own CPU they spin, which takes no CPU from others. With fewer
 * CPUs a spin takes the CPU of the rank that it waits for, and yielding for longer is faster than a futex' wake-up
 * (docs/internals.md, Waiting). */
static int choose_waiting(hpc_context *c) {
    hpc_cpu_need *needs = calloc((size_t)c->group.size, sizeof *needs);
    hpc_cpu_deal deal;
    if (needs == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", c->group.size);
    for (int r = 0; r < c->group.size; r++) needs[r].threads = 1;
    int status = hpc_cpus_deal(c, c->group.rank, needs, HPC_KEY_BY_CORE, &deal, NULL, "init");
    free(needs);
    if (status != HPC_OK) return status;
    if (!deal.enough)
        hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "%d ranks share %d cores of %s: waits yield instead of spinning",
                       deal.ranks, deal.cpus, c->self.hostname);
    c->group.eases = deal.enough && c->group.spin < 0 && c->group.yield < 0; /* otherwise the load is the job's own */
    if (c->group.spin < 0) c->group.spin = deal.enough ? 50e-6 : 0;
    if (c->group.yield < 0) c->group.yield = deal.enough ? 100e-6 : 500e-6;
    return HPC_OK;
}

/* Returns the kinds of link (hpc_link_kind bits) that the transport to this rank can use. Two hosts may look like one,
 * such as cloned machines, so ranks that seem to share a host need TCP too. Two processes cannot look like one. */
static unsigned char links_for(const hpc_context *c, size_t rank) {
    const hpc_transport *t = c->transports[rank];
    const hpc_address *self = &c->self, *peer = &c->addresses[rank];
    unsigned char links = 0;
    int one_host = t->caps & HPC_CAP_ONE_HOST;
    int calls = t->accept_lane != NULL; /* its lanes call the TCP listeners, also on one host */
    if (t->caps & HPC_CAP_ONE_PROCESS) return HPC_LINK_UNIX;
    if (one_host || (hpc_can_share(self, peer) && !calls)) links |= HPC_LINK_UNIX;
    if (one_host && hpc_transport_across_hosts(hpc_transport_names(self), self, peer) == NULL) return links;
    if (hpc_both_listen(self, peer)) links |= HPC_LINK_TCP;
    return links;
}

/* Orders ranks by host, and ranks of one host by their numbers. */
static int by_host(const void *a, const void *b, void *arg) {
    const hpc_address *all = arg;
    const int x = *(const int *)a, y = *(const int *)b;
    for (int i = 0; i < 2; i++)
        if (all[x].host[i] != all[y].host[i]) return all[x].host[i] < all[y].host[i] ? -1 : 1;
    return x - y;
}

/* Finds the lowest rank on the host of each rank. order has room for all ranks. */
static void find_hosts(hpc_context *c, int *order, int *hosts) {
    const int size = c->group.size;
    for (int r = 0; r < size; r++) order[r] = r;
    qsort_r(order, (size_t)size, sizeof *order, by_host, c->addresses);
    for (int i = 0, first = 0; i < size; i++) {
        if (!hpc_same_host(&c->addresses[order[i]], &c->addresses[order[first]])) first = i;
        hosts[order[i]] = order[first];
    }
}

/* Connects the control channel with the links that the chosen transports need. If the transport of a pair is shared
 * memory but the pair's link became TCP, the pair gets a transport that connects hosts instead. */
static int connect_control(hpc_context *c, double deadline) {
    size_t size = (size_t)c->group.size;
    hpc_control_address *controls = calloc(size, sizeof *controls);
    unsigned char *links = calloc(size, 1), *same_host = calloc(size, 1);
    int *hosts = calloc(2 * size, sizeof *hosts), status = HPC_OK;
    if (controls == NULL || links == NULL || same_host == NULL || hosts == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %zu addresses", size);
    for (size_t r = 0; r < size && status == HPC_OK; r++) {
        controls[r] = c->addresses[r].control;
        hpc_context_follow_leads(c, (int)r, &controls[r]);
        same_host[r] = (unsigned char)hpc_same_host(&c->addresses[r], &c->self);
        links[r] = links_for(c, r);
    }
    if (status == HPC_OK) find_hosts(c, hosts + size, hosts);
    if (status == HPC_OK) status = hpc_control_connect(c->control, controls, links, same_host, hosts, deadline);
    /* Fail if a rank failed or left while the others connected: other ranks may already be in the next step, and would
     * keep objects that they exchange there. */
    for (int r = 0; r < c->group.size && status == HPC_OK; r++) status = hpc_group_peer_present(&c->group, r, "init");
    c->all_remote = size > 1;
    for (size_t r = 0; r < size && status == HPC_OK; r++) {
        if (r == (size_t)c->group.rank) continue;
        if (hpc_control_link(c->control, (int)r) == HPC_LINK_TCP && c->transports[r]->caps & HPC_CAP_ONE_HOST)
            c->transports[r] = hpc_transport_across_hosts(hpc_transport_names(&c->self), &c->self, &c->addresses[r]);
        if (c->transports[r]->caps & HPC_CAP_ONE_HOST) c->all_remote = 0;
    }
    free(controls);
    free(links);
    free(same_host);
    free(hosts);
    return status;
}

static void list_used(hpc_context *c) {
    int n = 0;
    for (int r = 0; r < c->group.size; r++) {
        int known = 0;
        for (int i = 0; i < n; i++) known |= c->used[i] == c->transports[r];
        if (!known && n + 1 < HPC_USED) c->used[n++] = c->transports[r];
    }
}

/* Closes NIC ports that no pair uses. Adds a note if both ranks of a pair have ports and still use TCP. */
static void settle_nics(hpc_context *c) {
    const hpc_transport *by_nics = hpc_transport_find(hpc_transport_names(&c->self), HPC_CAP_NICS, 0);
    const char *why;
    unsigned wanted = 0;
    for (int r = 0; r < c->group.size; r++) wanted |= c->transports[r]->caps & HPC_CAP_NICS;
    for (int r = 0; r < c->group.size && c->nics != NULL && by_nics != NULL; r++)
        if (!(c->transports[r]->caps & (HPC_CAP_ONE_HOST | HPC_CAP_NICS)) &&
            c->addresses[r].devices.state == HPC_VERBS_READY && !by_nics->reaches(&c->self, &c->addresses[r], &why)) {
            hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "cannot use %s to rank %d: %s", by_nics->name, r, why);
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

/* Shows the transports to processes that ask the control channel (hpcomm status). */
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

static int connect_all(hpc_context *c, const void *addresses, double deadline) {
    int status;
    c->asked = hpc_mail_asked;
    memcpy(c->addresses, addresses, (size_t)c->group.size * sizeof *c->addresses);
    for (int r = 0; r < c->group.size; r++) { /* texts from other processes may lack their 0 */
        c->addresses[r].hostname[HPC_HOST_BYTES - 1] = 0;
        c->addresses[r].transports[HPC_TRANSPORTS_BYTES - 1] = 0;
    }
    status = check_addresses(c);
    if (status == HPC_OK) name_timeline(c);
    if (status == HPC_OK) status = choose_transports(c);
    if (status == HPC_OK) status = choose_waiting(c);
    if (status != HPC_OK) return status;

    status = hpc_context_join_engine(c);
    if (status == HPC_OK) status = connect_control(c, deadline);
    list_used(c);
    c->has_eager = may_be_eager(c);
    for (int i = 0; c->used[i] != NULL && status == HPC_OK; i++)
        if (c->used[i]->open != NULL) status = c->used[i]->open(c);
    settle_nics(c);
    if (status == HPC_OK) status = hpc_lane_open(c, 1, 0, deadline, &c->lane);
    if (status == HPC_OK) status = hpc_lane_open(c, 1, 0, deadline, &c->acks);
    if (status == HPC_OK) status = hpc_mail_open_eager(c, deadline);
    if (status != HPC_OK) return status;
    c->group.progress_arg = c;
    for (int i = 0; c->used[i] != NULL; i++)
        if (c->used[i]->progress != NULL) c->group.progress = hpc_context_progress;
    c->group.bed_arg = c->reactor;
    if (c->reactor != NULL) c->group.bed = &hpc_reactor_bed;
    c->connected = 1;
    show_transports(c);
    return HPC_OK;
}

int hpc_context_connect(hpc_context *c, const void *addresses, double timeout) {
    int status;
    if (c == NULL || addresses == NULL) return hpc_fail(HPC_ERR_INVALID, "init", "init: context or addresses is NULL");
    status = hpc_group_usable(&c->group, "init");
    if (status != HPC_OK) return status;
    if (c->connecting)
        return hpc_fail(HPC_ERR_INVALID, "init", "init: connect was called already; create a new context");
    c->connecting = 1;
    hpc_context_begin_connect(c);
    status = connect_all(c, addresses, hpc_deadline(&c->group, timeout < 0 ? c->group.init_timeout : timeout));
    return hpc_context_end_connect(c, status);
}

/* Gives *addresses the address of every rank; the caller frees it. */
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
        if (hpc_now() >= deadline) /* Neither request nor buffers are freed, because the callback may still use them. */
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
    deadline = hpc_deadline(&c->group, c->group.init_timeout);
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
