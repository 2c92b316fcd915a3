/* Failures of a queue pair: killed peers, keys that are no more, a port that goes away, too little locked
 * memory, and how each of them is told. */
#define _GNU_SOURCE
#include <ctype.h>
#include <linux/capability.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "verbs_ranks.h"

#if defined(HPC_HAVE_VERBS)

/* A broken queue pair is reported after a grace of a second, and a port that is gone after the retries; long before the
 * silence that ends what is not reported. */
static const double SOON = 10, SILENCE = 40;

static void bring_up(rank *r) {
    r->config.silence = SILENCE;
    r->config.timeout = ranks_patience(30);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
}

static int state_of(rank *r, int peer) {
    hpc_peer p;
    CHECK_OK(hpc_context_peer(r->context, peer, &p));
    return p.state;
}

/* The bytes at p that may hold digits: a rank, a device, the port of RoCE. */
static size_t known_at(const rank *r, const char *text, const char *p) {
    const hpc_nics *nics = r->context->nics;
    for (int i = 0; i < nics->n; i++) {
        size_t n = strlen(nics->nics[i].name);
        if (strncmp(p, nics->nics[i].name, n) == 0) return n;
    }
    if (strncmp(p, "4791", 4) == 0) return 4;
    return p - text >= 5 && strncmp(p - 5, "rank ", 5) == 0 ? strspn(p, "0123456789") : 0;
}

/* A status is said by its name, not by its number. */
static void check_sentence(const rank *r, const char *text) {
    for (const char *p = text; *p;) {
        size_t known = known_at(r, text, p);
        if (known == 0 && isdigit((unsigned char)*p)) {
            fprintf(stderr, "a number in: %s\n", text);
            exit(1);
        }
        p += known > 0 ? known : 1;
    }
}

/* ---- a peer that dies ---- */

enum { BIG = 64 << 20, VICTIM = 1 };

/* SIGKILL in the middle of writes of 1 GiB to each of the others: both say so, and what they put to each other still
 * arrives. */
static void killed_in_midwrite(rank *r) {
    enum { TIMES = 16 };
    hpc_window *w;
    hpc_peer p;
    bring_up(r);
    CHECK_OK(hpc_window_create(r->context, BIG, 2, NULL, -1, &w));
    CHECK_OK(hpc_context_peer(r->context, VICTIM, &p));
    _Atomic char *data = hpc_window_data(w);
    rank_meet(r);
    if (r->rank == VICTIM) {
        char *src = hpc_window_data(w);
        memset(src, 0x77, BIG);
        for (int i = 0; i < TIMES; i++)
            for (int to = 0; to < 3; to += 2) CHECK_OK(hpc_put(NULL, w, to, src, BIG, 0));
        for (int to = 0; to < 3; to += 2) CHECK_OK(hpc_put_signal(NULL, w, to, NULL, 0, 0, 0, 1));
        for (;;) sched_yield();
    }
    int other = 2 - r->rank;
    while (data[0] == 0) sched_yield();
    rank_set(r, r->rank, 1);
    rank_await(r, other, 1);
    double start = ranks_now();
    if (r->rank == 0) CHECK_EQ(kill((pid_t)p.pid, SIGKILL), 0);
    CHECK_STATUS(hpc_wait_signal(w, 0, 1, VICTIM, -1, NULL), HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    CHECK_MESSAGE("rank 1");
    CHECK(ranks_now() - start < ranks_patience(SOON));
    CHECK_STATUS(hpc_put_signal(NULL, w, VICTIM, &start, 8, 0, 0, 1), HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    CHECK_STATUS(hpc_put_notify(NULL, w, VICTIM, NULL, 0, 0, 1, -1), HPC_ERR_PEER);
    for (uint64_t k = 1; k <= 50; k++) {
        CHECK_OK(hpc_put_signal(NULL, w, other, NULL, 0, 0, 1, k));
        while (atomic_load(hpc_own_signal(w, 1)) < k) { /* any wait would tell of the dead one */
            CHECK(ranks_now() - start < ranks_patience(2 * SOON));
            sched_yield();
        }
    }
    rank_set(r, r->rank, 2);
    rank_await(r, other, 2);
    hpc_window_free(w);
}

/* No rank holds the window any more, and none that is dead. */
static void await_gone(rank *r, uint32_t number) {
    hpc_verbs *v = r->context->verbs;
    double end = ranks_now() + ranks_patience(5);
    while (atomic_load(&v->windows[number]) != NULL) {
        CHECK(ranks_now() < end);
        verbs_progress(r->context);
    }
}

/* The writer's peer dies under it: flush does not take for delivered what is not. */
static void killed_under_a_writer(rank *r) {
    hpc_window *w;
    bring_up(r);
    CHECK_OK(hpc_window_create(r->context, BIG, 1, NULL, -1, &w));
    rank_meet(r);
    if (r->rank == VICTIM) {
        while (*(_Atomic char *)hpc_window_data(w) == 0) sched_yield();
        raise(SIGKILL);
    }
    char *src = malloc(BIG);
    CHECK(src);
    memset(src, 0x77, BIG);
    double start = ranks_now();
    CHECK_OK(hpc_put(NULL, w, VICTIM, src, BIG, 0));
    CHECK_STATUS(hpc_flush(NULL, w, VICTIM, -1), HPC_ERR_PEER);
    CHECK(ranks_error_names(VICTIM));
    CHECK(ranks_now() - start < ranks_patience(SOON));
    uint32_t number = ((const verbs_window *)w->registered)->number;
    hpc_window_free(w);
    await_gone(r, number);
    free(src);
}

/* ---- keys that are no more ---- */

/* The source's registration is gone under the put: this rank hears it at once, of its own call. */
static void source_unregistered(rank *r) {
    hpc_window *w;
    bring_up(r);
    CHECK_OK(hpc_window_create(r->context, 8192, 1, NULL, -1, &w));
    rank_meet(r);
    if (r->rank == 0) {
        struct ibv_mr *region = ((const verbs_window *)w->registered)->regions[link_to(r, NULL, 1)->iface->nic];
        double start = ranks_now();
        region->lkey ^= 0x5a00;
        CHECK_OK(hpc_put(NULL, w, 1, hpc_window_data(w), 4096, 0));
        CHECK_STATUS(hpc_flush(NULL, w, 1, -1), HPC_ERR_TRANSPORT);
        CHECK(ranks_now() - start < ranks_patience(2));
        CHECK_MESSAGE("rank 0: flush: to rank 1: RDMA on ");
        CHECK_MESSAGE(" error ("); /* rxe calls it an operation error */
        check_sentence(r, hpc_last_error()->message);
        CHECK_STATUS(hpc_put(NULL, w, 1, &start, 8, 0), HPC_ERR_TRANSPORT);
        CHECK_MESSAGE("rank 0: put: to rank 1: RDMA on ");
        region->lkey ^= 0x5a00;
    }
    rank_meet(r);
    hpc_window_free(w);
}

/* A source that is registered and has no pages: the put says so, and nothing else suffers. */
static void source_missing(rank *r) {
    enum { BYTES = 1 << 17 };
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w));
    if (r->rank == 0) {
        int empty = memfd_create("empty", MFD_CLOEXEC);
        void *src = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, empty, 0);
        CHECK(src != MAP_FAILED);
        CHECK_EQ(close(empty), 0);
        CHECK_STATUS(hpc_put(NULL, w, 1, src, BYTES, 0), HPC_ERR_TRANSPORT);
        CHECK_MESSAGE("cannot register 131072 bytes of the source: Bad address");
        CHECK_STATUS(hpc_put_notify(NULL, w, 1, src, BYTES, 0, 1, -1), HPC_ERR_TRANSPORT);
        /* A value that is lost with it does not count. */
        CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, 10));
        CHECK_STATUS(hpc_put_signal(NULL, w, 1, src, BYTES, 0, 0, 1500), HPC_ERR_TRANSPORT);
        CHECK_OK(hpc_put_signal(NULL, w, 1, "nothing", 8, 0, 0, 2400));
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
        CHECK_EQ(munmap(src, BYTES), 0);
    } else {
        uint64_t value;
        CHECK_OK(hpc_wait_signal(w, 0, 2400, 0, -1, &value));
        CHECK_EQ(value, 2400);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

/* A put that waited for credit goes with the link, though all that was posted is done: the flush does not say that it
 * arrived. */
static void dropped(rank *r) {
    hpc_window *w;
    bring_up(r);
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    rank_meet(r);
    if (r->rank == 0) {
        verbs_link *l = link_to(r, NULL, 1);
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
        pthread_mutex_lock(&l->sending);
        l->used += VERBS_RECEIVES; /* more than the peer grants */
        pthread_mutex_unlock(&l->sending);
        CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, 1));
        CHECK_EQ(atomic_load(&l->done), l->posted);
        verbs_link_break(l, "broken by a test", "nothing to repair", 0);
        CHECK_STATUS(hpc_flush(NULL, w, 1, -1), HPC_ERR_PEER);
        CHECK_MESSAGE("broken by a test");
        rank_set(r, 0, 1);
    }
    rank_await(r, 0, 1);
    CHECK_EQ(atomic_load(hpc_own_signal(w, 0)), 0);
    rank_meet(r);
    hpc_window_free(w);
}

/* The peer's window has another key: the sender says which peer, and what to look at; so does every later put. */
static void window_unregistered(rank *r) {
    hpc_window *w;
    bring_up(r);
    CHECK_OK(hpc_window_create(r->context, 8192, 1, NULL, -1, &w));
    rank_meet(r);
    double start = ranks_now();
    if (r->rank == 0) {
        verbs_link *l = link_to(r, NULL, 1);
        ((verbs_remote *)w->parts[1].remote)->keys[l->far] ^= 0x5a00;
        CHECK_OK(hpc_put(NULL, w, 1, &start, 8, 0));
        CHECK_STATUS(hpc_flush(NULL, w, 1, -1), HPC_ERR_PEER);
        CHECK(ranks_now() - start < ranks_patience(SOON));
        CHECK(ranks_error_names(1) && !ranks_error_names(2));
        CHECK_MESSAGE("remote access error (its window no longer exists)");
        check_sentence(r, r->context->group.reasons[1]);
        CHECK_STATUS(hpc_put(NULL, w, 1, &start, 8, 0), HPC_ERR_PEER);
        CHECK(ranks_error_names(1));
        CHECK_STATUS(hpc_put_notify(NULL, w, 1, &start, 8, 0, 1, -1), HPC_ERR_PEER);
        CHECK_EQ(state_of(r, 2), HPC_PEER_ALIVE);
        rank_set(r, 0, 1);
    }
    rank_await(r, 0, 1);
    if (r->rank == 2) CHECK_EQ(state_of(r, 0), HPC_PEER_ALIVE);
    rank_meet(r);
    hpc_window_free(w);
}

/* Every status has a name, and is told with what to look at. */
static void names(rank *r) {
    hpc_lane *lane;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    if (r->rank == 0) {
        verbs_link *l = link_to(r, lane, 1);
        for (int status = IBV_WC_LOC_LEN_ERR; status < IBV_WC_TM_ERR; status++) {
            verbs_link_fail(l, (enum ibv_wc_status)status);
            CHECK(atomic_load(&l->silent));
            check_sentence(r, l->why);
            CHECK(strncmp(l->why, "RDMA on ", 8) == 0 && strstr(l->why, " (") && strchr(l->why, ')'));
            CHECK(!strstr(l->why, "unknown"));
            atomic_store(&l->silent, 0); /* before the grace is over */
        }
        verbs_link_fail(l, IBV_WC_LOC_QP_OP_ERR); /* which is no peer's fault */
    }
    hpc_lane_free(lane);
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* ---- a port that goes ---- */

/* The netdev under a device that is software, if it is virtual as well: no other one is touched. */
static bool netdev_of(const verbs_nic *n, char name[IFNAMSIZ]) {
    char path[200];
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/parent", (int)strcspn(n->name, ":"), n->name);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    int got = fscanf(f, "%15s", name);
    fclose(f);
    snprintf(path, sizeof path, "/sys/devices/virtual/net/%s", name);
    return got == 1 && access(path, F_OK) == 0;
}

static void set_link(const char *netdev, bool up) {
    struct ifreq q;
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(s >= 0);
    memset(&q, 0, sizeof q);
    memcpy(q.ifr_name, netdev, strnlen(netdev, IFNAMSIZ - 1));
    CHECK_EQ(ioctl(s, SIOCGIFFLAGS, &q), 0);
    q.ifr_flags = (short)(up ? q.ifr_flags | IFF_UP : q.ifr_flags & ~IFF_UP);
    if (ioctl(s, SIOCSIFFLAGS, &q) != 0) ranks_skip("it may not take a network device down");
    close(s);
}

/* It is taken down under a write: the sender says within seconds to look at the port. */
static void port_down(rank *r) {
    enum { BYTES = 4 << 20 };
    char netdev[IFNAMSIZ];
    hpc_window *w;
    bring_up(r);
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w));
    verbs_link *l = link_to(r, NULL, 1 - r->rank);
    if (!netdev_of(&r->context->nics->nics[l->iface->nic], netdev))
        ranks_skip("no RDMA device of software, whose network device may go down");
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        char *src = calloc(1, BYTES);
        CHECK(src);
        CHECK_OK(hpc_put(NULL, w, 1, src, BYTES, 0));
        set_link(netdev, false);
        double start = ranks_now();
        int status = HPC_OK;
        while ((status == HPC_OK || status == HPC_ERR_TIMEOUT) && ranks_now() - start < ranks_patience(SOON)) {
            status = hpc_put_signal(NULL, w, 1, src, 64, 0, 0, 1);
            if (status == HPC_OK) status = hpc_flush(NULL, w, 1, 0.2);
        }
        set_link(netdev, true);
        CHECK(status == HPC_ERR_TRANSPORT || status == HPC_ERR_PEER); /* its own port, or the peer's: rxe has one */
        CHECK_MESSAGE("rank 1");
        CHECK_MESSAGE("port");
        free(src);
    }
    rank_meet(r);
    hpc_window_free(w);
}

/* ---- locked memory ---- */

/* The limit of locked memory holds for this process, even if it is root's. After init it is too late: uverbs takes no
 * calls from a process whose credentials have changed. */
static void have_a_limit(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    CHECK_EQ(syscall(SYS_capget, &header, data), 0);
    data[CAP_IPC_LOCK / 32].effective &= ~(1u << CAP_IPC_LOCK % 32);
    data[CAP_IPC_LOCK / 32].permitted &= ~(1u << CAP_IPC_LOCK % 32);
    data[CAP_IPC_LOCK / 32].inheritable &= ~(1u << CAP_IPC_LOCK % 32);
    CHECK_EQ(syscall(SYS_capset, &header, data), 0);
}

static void lock_at_most(rlim_t nbytes) {
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){nbytes, nbytes}), 0);
}

/* arg: whether all ranks have too little for their queues, or rank 1 alone; all say so. */
static void too_little_for_queues(rank *r) {
    have_a_limit();
    if (r->arg || r->rank == 1) lock_at_most(4096);
    CHECK_STATUS(hpc_init(&r->oob, &r->config, &r->context), HPC_ERR_TRANSPORT);
    CHECK_MESSAGE("ulimit -l");
    if (!r->arg) CHECK_MESSAGE("rank 1");
    r->context = NULL;
}

static void too_little_for_a_window(rank *r) {
    enum { BYTES = 32 << 20 };
    hpc_window *w;
    have_a_limit();
    if (r->rank == 1) lock_at_most(BYTES / 2);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK_STATUS(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w), HPC_ERR_TRANSPORT);
    CHECK_MESSAGE("ulimit -l");
    CHECK_MESSAGE("rank 1");
    for (int i = 0; i < 40; i++) { /* smaller ones are fine, and what is freed may be locked again */
        CHECK_OK(hpc_window_create(r->context, BYTES / 32, 1, NULL, -1, &w));
        if (i < 39) hpc_window_free(w);
    }
    for (uint64_t k = 1; k <= 20; k++) {
        CHECK_OK(hpc_put_signal(NULL, w, 1 - r->rank, &k, 8, 0, 0, k));
        CHECK_OK(hpc_wait_signal(w, 0, k, 1 - r->rank, -1, NULL));
        CHECK_OK(hpc_flush(NULL, w, -1, -1));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

/* The target has enough, the sender has not: its put says so, and that a window's memory needs none. */
static void too_little_for_a_source(rank *r) {
    enum { BYTES = 2 << 20 };
    hpc_window *w;
    have_a_limit();
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w));
    if (r->rank == 1) {
        char *src = calloc(1, BYTES);
        CHECK(src);
        lock_at_most(4096);
        CHECK_STATUS(hpc_put(NULL, w, 0, src, BYTES, 0), HPC_ERR_TRANSPORT);
        CHECK_MESSAGE("raise ulimit -l, or put from a window's memory");
        CHECK_OK(hpc_put_signal(NULL, w, 0, hpc_window_data(w), BYTES, 0, 0, 1));
        CHECK_OK(hpc_flush(NULL, w, 0, -1));
        free(src);
    } else {
        CHECK_OK(hpc_wait_signal(w, 0, 1, 1, -1, NULL));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    enum { PROCESSES = RANKS_VERBS | RANKS_PROCESSES };
    static const ranks_case cases[] = {
        {.name = "killed_in_midwrite",
         .size = 3,
         .run = killed_in_midwrite,
         .where = PROCESSES,
         .victims = 1 << VICTIM,
         .bare = true},
        {.name = "killed_under_a_writer",
         .size = 2,
         .run = killed_under_a_writer,
         .where = PROCESSES,
         .victims = 1 << VICTIM,
         .bare = true},
        {.name = "source_unregistered",
         .size = 2,
         .run = source_unregistered,
         .where = PROCESSES,
         .apart = true,
         .bare = true},
        {.name = "source_missing", .size = 2, .run = source_missing, .where = PROCESSES},
        {.name = "dropped", .size = 2, .run = dropped, .where = PROCESSES, .apart = true, .bare = true},
        {.name = "window_unregistered",
         .size = 3,
         .run = window_unregistered,
         .where = PROCESSES,
         .apart = true,
         .bare = true},
        {.name = "names", .size = 2, .run = names, .where = PROCESSES},
        {.name = "port_down", .size = 2, .run = port_down, .where = PROCESSES, .apart = true, .bare = true},
        {.name = "too_little_for_queues",
         .size = 2,
         .run = too_little_for_queues,
         .where = PROCESSES,
         .apart = true,
         .bare = true},
        {.name = "too_little_for_all_queues",
         .size = 2,
         .run = too_little_for_queues,
         .arg = 1,
         .where = PROCESSES,
         .apart = true,
         .bare = true},
        {.name = "too_little_for_a_window",
         .size = 2,
         .run = too_little_for_a_window,
         .where = PROCESSES,
         .bare = true},
        {.name = "too_little_for_a_source",
         .size = 2,
         .run = too_little_for_a_source,
         .where = PROCESSES,
         .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}

#endif
