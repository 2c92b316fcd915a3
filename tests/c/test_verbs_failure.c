/* What goes wrong on a queue pair: killed peers, keys that are no more, a port that goes away, too little locked
 * memory, and how each of them is told. */
#define _GNU_SOURCE
#include <ctype.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ranks.h"
#include "transport/verbs.h"

#if defined(HPC_HAVE_VERBS)

/* A broken queue pair is reported after a grace of a second, and a port that is gone after the retries; long before the
 * silence that ends what is not reported. */
static const double SOON = 10, SILENCE = 40;

static void bring_up(rank *r) {
    r->config.silence = SILENCE;
    r->config.timeout = ranks_patience(30);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
}

static verbs_link *link_to(rank *r, hpc_lane *lane, int peer) {
    return hpc_context_lane(r->context, lane)->peers[peer].out;
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
    hpc_window_free(w);
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
        CHECK_MESSAGE("remote access error (its window is not there any more)");
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

/* ---- locked memory ---- */

/* No more than this may be locked by this process, even if it is root's. */
static void lock_at_most(rlim_t nbytes) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    CHECK_EQ(syscall(SYS_capget, &header, data), 0);
    data[CAP_IPC_LOCK / 32].effective &= ~(1u << CAP_IPC_LOCK % 32);
    data[CAP_IPC_LOCK / 32].permitted &= ~(1u << CAP_IPC_LOCK % 32);
    data[CAP_IPC_LOCK / 32].inheritable &= ~(1u << CAP_IPC_LOCK % 32);
    CHECK_EQ(syscall(SYS_capset, &header, data), 0);
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){nbytes, nbytes}), 0);
}

/* arg: whether all ranks have too little for their queues, or rank 1 alone; all say so. */
static void too_little_for_queues(rank *r) {
    if (r->arg || r->rank == 1) lock_at_most(4096);
    CHECK_STATUS(hpc_init(&r->oob, &r->config, &r->context), HPC_ERR_TRANSPORT);
    CHECK_MESSAGE("ulimit -l");
    if (!r->arg) CHECK_MESSAGE("rank 1");
    r->context = NULL;
}

static void too_little_for_a_window(rank *r) {
    enum { BYTES = 32 << 20 };
    hpc_window *w;
    if (r->rank == 1) lock_at_most(BYTES / 2);
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    CHECK_STATUS(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w), HPC_ERR_TRANSPORT);
    CHECK_MESSAGE("ulimit -l");
    CHECK_MESSAGE("rank 1");
    CHECK_OK(hpc_window_create(r->context, 1 << 16, 1, NULL, -1, &w)); /* a smaller one is fine */
    for (uint64_t k = 1; k <= 20; k++) {
        CHECK_OK(hpc_put_signal(NULL, w, 1 - r->rank, &k, 8, 0, 0, k));
        CHECK_OK(hpc_wait_signal(w, 0, k, 1 - r->rank, -1, NULL));
        CHECK_OK(hpc_flush(NULL, w, -1, -1));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    enum { PROCESSES = RANKS_VERBS | RANKS_PROCESSES };
    static const ranks_case cases[] = {
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
        {.name = "window_unregistered",
         .size = 3,
         .run = window_unregistered,
         .where = PROCESSES,
         .apart = true,
         .bare = true},
        {.name = "names", .size = 2, .run = names, .where = PROCESSES},
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
        {0},
    };
    return ranks_main(argc, argv, cases);
}

#else

int main(void) {
    fprintf(stderr, "skipped: built without rdma-core's headers\n");
    return 77;
}

#endif
