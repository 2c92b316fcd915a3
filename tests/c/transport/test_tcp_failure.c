/* Failures of a lane's TCP connections: bytes that no rank sends, connections that break under living peers. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "context/context.h"
#include "ranks.h"
#include "transport/tcp/parts.h"

/* A broken connection is reported after a grace of a second, and some time that a busy machine takes; long before the
 * silence that ends what is not reported. */
static const double SOON = 6, SILENCE = 30;

static void bring_up(rank *r, int streams) {
    r->config.tcp_streams = streams;
    r->config.silence = SILENCE;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
}

static tcp_link *link_to(rank *r, hpc_lane *lane, int peer) {
    lane = hpc_context_lane(r->context, lane);
    CHECK_OK(hpc_reach(r->context, &lane->object, peer, "lane"));
    return lane->peers[peer].out;
}

static int state_of(rank *r, int peer) {
    hpc_peer p;
    CHECK_OK(hpc_context_peer(r->context, peer, &p));
    return p.state;
}

static void await_failed(rank *r, int peer, double start) {
    while (state_of(r, peer) != HPC_PEER_FAILED) {
        CHECK(ranks_now() - start < SOON);
        sched_yield();
    }
}

static void send_all(int fd, const void *bytes, size_t nbytes) {
    for (const char *p = bytes; nbytes > 0;) {
        ssize_t sent = send(fd, p, nbytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) sched_yield();
        if (sent < 0 && errno != EAGAIN) return; /* hung up on: that is what is tested */
        if (sent > 0) p += sent, nbytes -= (size_t)sent;
    }
}

/* ---- bad frames ---- */

enum { BYTES = 4096, SIGNALS = 2, HUGE_OFFSET = -16 };

typedef struct bad {
    const char *why; /* as it is reported */
    hpc_frame frame; /* window 1 stands for the right one, other numbers for themselves */
    int again;       /* how often it takes */
} bad;

#define PUT_FRAME(...)                                                                                                 \
    { .magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT, .window = 1, .nbytes = 8, __VA_ARGS__ }

static const bad bads[] = {
    {"bytes that are not the head of a frame", {.magic = 0x6870, .type = HPC_FRAME_PUT, .window = 1, .nbytes = 8}, 1},
    {"a frame of an unknown type", {.magic = HPC_FRAME_MAGIC, .type = 7}, 1},
    {"a put into a window that does not exist", {.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT, .nbytes = 8}, 1},
    {"a put into a window that does not exist",
     {.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT, .window = 1000, .nbytes = 8},
     1},
    {"a put into a window that does not exist",
     {.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT, .window = UINT32_MAX, .nbytes = 8},
     1},
    {"a put past the end of a window", PUT_FRAME(.offset = BYTES - 7), 1},
    {"a put past the end of a window", PUT_FRAME(.offset = BYTES + 1), 1},
    {"a put past the end of a window", PUT_FRAME(.offset = (uint64_t)HUGE_OFFSET), 1},
    {"a signal that the window does not have", PUT_FRAME(.flags = HPC_FRAME_SIGNAL, .word = SIGNALS), 1},
    {"a signal that the window does not have", PUT_FRAME(.flags = HPC_FRAME_SIGNAL, .word = UINT32_MAX), 1},
    {"a frame with unknown flags", PUT_FRAME(.flags = HPC_FRAME_SIGNAL | HPC_FRAME_EVENT), 1},
    {"more events than this rank has granted",
     {.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_PUT, .flags = HPC_FRAME_EVENT, .window = 1},
     HPC_NOTIFY_DEPTH + 1},
    {"a frame with a wrong number of fences", PUT_FRAME(.fences = 1), 1},
    {"a payload on a frame other than a put", {.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_FLUSH, .nbytes = 8}, 1},
};

enum { BADS = sizeof bads / sizeof *bads, VICTIM = 0, GOOD = BADS + 1 };
_Static_assert(GOOD < RANKS_MAX, "a rank for each");

/* Each of ranks 1 to BADS sends rank 0 one of them: rank 0 reports just these, and why; nothing is written, and the one
 * rank that behaves is served as before. */
static void bad_frames(rank *r) {
    static const unsigned char payload[8] = "PAYLOAD";
    bring_up(r, 1);
    hpc_window *before, *w, *after;
    CHECK_OK(hpc_window_create(r->context, BYTES, SIGNALS, NULL, -1, &before));
    CHECK_OK(hpc_window_create(r->context, BYTES, SIGNALS, NULL, -1, &w));
    CHECK_OK(hpc_window_create(r->context, BYTES, SIGNALS, NULL, -1, &after));
    rank_meet(r);
    double start = ranks_now();
    if (r->rank == VICTIM) {
        for (int i = 0; i < BADS; i++) {
            await_failed(r, i + 1, start);
            if (strstr(r->context->group.reasons[i + 1], bads[i].why)) continue;
            fprintf(stderr, "bad frame %d was reported as: %s\n", i, r->context->group.reasons[i + 1]);
            exit(1);
        }
        hpc_event e;
        CHECK_STATUS(hpc_wait_signal(w, 0, 1, 1, -1, NULL), HPC_ERR_PEER);
        CHECK(ranks_error_names(1) && ranks_error_names(BADS) && !ranks_error_names(GOOD));
        rank_set(r, 0, 1);
        for (uint64_t k = 1; k <= 20; k++) {
            while (hpc_test_signal(w, 1, k, NULL) == HPC_IN_PROGRESS) sched_yield();
            CHECK_OK(hpc_put_signal(NULL, w, GOOD, &k, 8, 0, 1, k));
        }
        for (int i = 0; i < HPC_NOTIFY_DEPTH; i++) {
            CHECK_OK(hpc_poll(r->context, NULL, &e));
            CHECK(bads[e.peer - 1].frame.flags == HPC_FRAME_EVENT);
        }
        CHECK_STATUS(hpc_poll(r->context, NULL, &e), HPC_IN_PROGRESS);
        for (int i = 0; i < 3; i++) {
            hpc_window *look = i == 0 ? before : i == 1 ? w : after;
            for (size_t k = look == w ? 8 : 0; k < BYTES; k++) CHECK_EQ(((char *)hpc_window_data(look))[k], 0);
            CHECK_OK(hpc_test_signal(look, 0, 0, NULL));
            CHECK_STATUS(hpc_test_signal(look, 0, 1, NULL), HPC_IN_PROGRESS);
            CHECK_STATUS(hpc_test_signal(look, 1, look == w ? 21 : 1, NULL), HPC_IN_PROGRESS);
        }
        CHECK_EQ(state_of(r, GOOD), HPC_PEER_ALIVE);
        rank_set(r, 1, 1);
    } else if (r->rank == GOOD) {
        rank_await(r, 0, 1);
        for (uint64_t k = 1; k <= 20; k++) {
            CHECK_OK(hpc_put_signal(NULL, w, VICTIM, &k, 8, 0, 1, k));
            CHECK_OK(hpc_wait_signal(w, 1, k, VICTIM, -1, NULL));
        }
        rank_await(r, 1, 1);
    } else {
        const bad *b = &bads[r->rank - 1];
        hpc_frame frame = b->frame;
        if (frame.window == 1) frame.window = (uint32_t)w->object.number;
        int fd = link_to(r, NULL, VICTIM)->streams[0].fd;
        for (int k = 0; k < b->again; k++) {
            send_all(fd, &frame, sizeof frame);
            send_all(fd, payload, (size_t)frame.nbytes);
        }
        await_failed(r, VICTIM, start);
        rank_await(r, 0, 1);
    }
    rank_meet(r); /* to the others rank 0 has failed before it leaves */
    hpc_window_free(before);
    hpc_window_free(w);
    hpc_window_free(after);
}

/* Events that tell of other bytes than their frames bring: short, long, and striped ones without their pieces. */
static void lying_events(rank *r) {
    enum { STRIPED = 1 << 20, PIECE = STRIPED / 2 };
    static const hpc_frame lies[] = {
        {.nbytes = 8, .value = 16},          {.nbytes = 8, .value = 0},          {.nbytes = 8, .value = STRIPED},
        {.nbytes = PIECE, .value = STRIPED}, {.nbytes = 0, .value = UINT64_MAX},
    };
    enum { LIES = sizeof lies / sizeof *lies };
    static const unsigned char payload[PIECE];
    hpc_window *w;
    hpc_event e;
    bring_up(r, 2);
    CHECK_EQ(r->size, LIES + 1);
    CHECK_OK(hpc_window_create(r->context, STRIPED, 1, NULL, -1, &w));
    rank_meet(r);
    double start = ranks_now();
    if (r->rank == VICTIM) {
        for (int peer = 1; peer <= LIES; peer++) {
            await_failed(r, peer, start);
            CHECK(strstr(r->context->group.reasons[peer], "an event that announces another number of bytes than came"));
        }
        CHECK_STATUS(hpc_poll(r->context, NULL, &e), HPC_IN_PROGRESS);
        rank_set(r, 0, 1);
    } else {
        hpc_frame frame = lies[r->rank - 1];
        frame.magic = HPC_FRAME_MAGIC, frame.type = HPC_FRAME_PUT, frame.flags = HPC_FRAME_EVENT;
        frame.window = (uint32_t)w->object.number;
        int fd = link_to(r, NULL, VICTIM)->streams[0].fd;
        send_all(fd, &frame, sizeof frame);
        send_all(fd, payload, (size_t)frame.nbytes);
        rank_await(r, 0, 1);
    }
    rank_meet(r);
    hpc_window_free(w);
}

/* A peer that asks and asks for FLUSHED, and reads nothing: it is answered once it does, and nothing piles up. */
static void asks_without_end(rank *r) {
    enum { ASKED = 300000, FEW = 16 };
    int small = 4096;
    hpc_window *w;
    bring_up(r, 1);
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    int fd = link_to(r, NULL, 1 - r->rank)->streams[0].fd;
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 1) {
        CHECK_EQ(hpc_reactor_watch(r->context->reactor, r->context->tcp->source, fd, 0, 0, 1), 0); /* deaf */
        static hpc_frame frames[1000];
        for (int i = 0; i < ASKED / 1000; i++) {
            for (int k = 0; k < 1000; k++)
                frames[k] = (hpc_frame){.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_FLUSH, .value = (uint64_t)i};
            send_all(fd, frames, sizeof frames);
            sched_yield();
        }
        CHECK_EQ(tcp_watch(r->context->tcp, link_to(r, NULL, 0), 0, fd, 1), 0);
        CHECK_OK(hpc_put_signal(NULL, w, 0, NULL, 0, 0, 0, 1));
        CHECK_OK(hpc_flush(NULL, w, 0, -1));
    } else {
        tcp_link *l = link_to(r, NULL, 1);
        int most = 0;
        while (hpc_test_signal(w, 0, 1, NULL) == HPC_IN_PROGRESS) {
            int n = 0;
            pthread_mutex_lock(&l->sending);
            for (const tcp_order *o = l->streams[0].first; o; o = o->next) n++;
            pthread_mutex_unlock(&l->sending);
            most = n > most ? n : most;
            sched_yield();
        }
        CHECK(most < FEW);
    }
    hpc_window_free(w);
}

/* ---- connections that break ---- */

enum { CUT_FIRST = 0, CUT_LAST = 1, CUT_AFTER_WORK = 2 };

/* One data connection is shut down, both ranks live: each says so of the other; a third one has no part in it. */
static void cut(rank *r) {
    bring_up(r, r->arg == CUT_LAST ? 3 : 1);
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 1 << 20, 1, NULL, -1, &w));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->arg == CUT_AFTER_WORK) { /* the service thread has begun to sleep in the set, and the wait joins it there */
        double busy = ranks_now() + 0.1;
        while (ranks_now() < busy) sched_yield();
    }
    if (r->rank == 2) {
        for (int i = 0; i < 2; i++) rank_await(r, i, 1);
        CHECK(state_of(r, 0) == HPC_PEER_ALIVE && state_of(r, 1) == HPC_PEER_ALIVE);
        rank_set(r, 2, 1);
    } else {
        int peer = 1 - r->rank;
        tcp_link *l = link_to(r, NULL, peer);
        double start = ranks_now();
        if (r->rank == 1) {
            if (r->arg == CUT_AFTER_WORK) { /* rank 0 is asleep by now */
                while (ranks_now() < start + 0.1) sched_yield();
            }
            CHECK_EQ(shutdown(l->streams[l->n_streams - 1].fd, SHUT_RDWR), 0);
        }
        CHECK_STATUS(hpc_wait_signal(w, 0, 1, peer, -1, NULL), HPC_ERR_PEER);
        CHECK(ranks_error_names(peer) && !ranks_error_names(2));
        CHECK_MESSAGE("connection");
        CHECK(ranks_now() - start < SOON);
        rank_set(r, r->rank, 1);
        rank_await(r, 2, 1);
    }
    hpc_window_free(w);
}

static void *wait_for_news(void *arg) {
    rank *r = ((void **)arg)[0];
    CHECK_STATUS(hpc_wait_signal(((void **)arg)[1], 0, 1, 1 - r->rank, -1, NULL), HPC_ERR_PEER);
    CHECK(ranks_error_names(1 - r->rank));
    return NULL;
}

/* One thread sleeps in the set, where the service thread has slept for longer, and a third one finds by a put that the
 * connection is broken, of which no event tells: the sleeper hears of it. */
static void broken_under_put(rank *r) {
    hpc_window *w;
    bring_up(r, 1);
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        tcp_link *l = link_to(r, NULL, 1);
        pthread_t thread;
        void *arg[] = {r, w};
        double start = ranks_now();
        while (ranks_now() < start + 0.1) sched_yield();
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_news, arg), 0);
        while (ranks_now() < start + 0.2) sched_yield();
        int none = open("/dev/null", O_WRONLY | O_CLOEXEC), fd = atomic_exchange(&l->streams[0].fd, none);
        CHECK_OK(hpc_put(NULL, w, 1, "nothing", 8, 0));
        CHECK(atomic_load(&l->silent));
        atomic_store(&l->streams[0].fd, fd);
        CHECK_EQ(close(none), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK(ranks_now() - start < SOON);
        rank_set(r, 0, 1);
    }
    rank_await(r, 0, 1);
    hpc_window_free(w);
}

/* A connection that is reset after the peer freed its lane properly says nothing of the peer. */
static void reset_after_close(rank *r) {
    hpc_lane *lane;
    hpc_window *w;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    CHECK_OK(hpc_barrier(r->context, -1));
    tcp_link *l = tcp_link_retain(link_to(r, lane, 1 - r->rank));
    if (r->rank == 0) {
        hpc_lane_free(lane);
        while (!atomic_load(&l->ended)) sched_yield();
    } else {
        const struct sockaddr nobody = {.sa_family = AF_UNSPEC};
        while (!atomic_load(&l->closed_there)) sched_yield();
        /* A reset, without a FIN before it. ThreadSanitizer's connect() would count it as the making of a descriptor,
         * in a race with the thread that reads; the kernel orders the two. */
        CHECK_EQ(syscall(SYS_connect, l->streams[0].fd, &nobody, sizeof nobody), 0);
        CHECK_OK(hpc_put(lane, w, 0, "dropped", 8, 0));
    }
    double end = ranks_now() + 1.3;
    while (ranks_now() < end) sched_yield();
    CHECK_EQ(state_of(r, 1 - r->rank), HPC_PEER_ALIVE);
    CHECK_OK(hpc_put_signal(NULL, w, 1 - r->rank, NULL, 0, 0, 0, 1));
    CHECK_OK(hpc_wait_signal(w, 0, 1, 1 - r->rank, -1, NULL));
    CHECK_OK(hpc_barrier(r->context, -1));
    tcp_link_release(l);
    if (r->rank == 1) {
        hpc_context_abort(r->context, "its lane cannot be flushed");
        hpc_lane_free(lane);
    }
    hpc_window_free(w);
}

/* The end of a connection is told once. Who was told left the reading to a thread that knew of data alone. */
static void end_told_to_another(rank *r) {
    hpc_lane *lane;
    CHECK_OK(hpc_lane_create(r->context, -1, &lane));
    tcp_link *l = link_to(r, lane, 1 - r->rank);
    if (r->rank == 0) {
        while (atomic_exchange(&l->reading, 1)) sched_yield();
        rank_set(r, 0, 1);
        rank_await(r, 1, 1);
        double end = ranks_now() + 0.2;
        while (ranks_now() < end) sched_yield(); /* the service thread, or whoever looks, has seen it by now */
        atomic_store(&l->reading, 0);
        tcp_link_visit(l, 0, EPOLLIN, 1 << 20);
        while (!atomic_load(&l->ended)) {
            CHECK(ranks_now() < end + 1);
            sched_yield();
        }
    } else {
        rank_await(r, 0, 1);
        const hpc_frame frame = {.magic = HPC_FRAME_MAGIC, .type = HPC_FRAME_FLUSH};
        send_all(l->streams[0].fd, &frame, sizeof frame);
        CHECK_EQ(shutdown(l->streams[0].fd, SHUT_WR), 0);
        rank_set(r, 1, 1);
        rank_await(r, 0, 2);
    }
    rank_set(r, 0, 2);
    hpc_lane_free(lane);
}

/* A put on a connection that has broken is lost, and flush says so. */
static void lost_put(rank *r) {
    uint64_t x = 1;
    double start = ranks_now();
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 8, 1, NULL, -1, &w));
    CHECK_OK(hpc_barrier(r->context, -1));
    tcp_link *l = link_to(r, NULL, 1 - r->rank);
    if (r->rank == 0) CHECK_EQ(shutdown(l->streams[0].fd, SHUT_RDWR), 0);
    while (!atomic_load(&l->silent)) sched_yield();
    int status = hpc_put_signal(NULL, w, 1 - r->rank, &x, 8, 0, 0, 1);
    if (status == HPC_OK) status = hpc_flush(NULL, w, 1 - r->rank, -1);
    CHECK_STATUS(status, HPC_ERR_PEER);
    CHECK(ranks_error_names(1 - r->rank));
    CHECK(ranks_now() - start < SOON);
    rank_meet(r); /* nobody leaves before the other has seen it */
    hpc_window_free(w);
}

/* A rank puts, striped, with a signal, and dies. Its last words lie in four sockets, and whichever of them is read to
 * its end first, all of them are heard. */
static void last_words(rank *r) {
    enum { STREAMS = 4, NBYTES = 256 << 10 };
    unsigned char *src = malloc(NBYTES);
    double start = ranks_now();
    hpc_window *w;
    bring_up(r, STREAMS);
    CHECK_OK(hpc_window_create(r->context, NBYTES, 1, NULL, -1, &w));
    tcp_link *l = link_to(r, NULL, 1 - r->rank);
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 1) {
        rank_await(r, 0, 1);
        ranks_fill(src, NBYTES, 7);
        CHECK_OK(hpc_put_signal(NULL, w, 0, src, NBYTES, 0, 0, 1));
        pthread_mutex_lock(&l->sending);
        for (int k = 0; k < STREAMS; k++) CHECK(l->streams[k].first == NULL); /* the kernel has all of it */
        raise(SIGKILL);
    }
    while (atomic_exchange(&l->reading, 1)) sched_yield(); /* nobody reads until it is dead */
    rank_set(r, 0, 1);
    await_failed(r, 1, start);
    atomic_store(&l->reading, 0);
    for (int k = STREAMS - 1; k >= 0; k--) tcp_link_visit(l, k, EPOLLIN | EPOLLRDHUP | EPOLLHUP, 1 << 20);
    CHECK_OK(hpc_wait_signal(w, 0, 1, 1, -1, NULL));
    CHECK_EQ(ranks_first_wrong(hpc_window_data(w), NBYTES, 7), NBYTES);
    hpc_window_free(w);
    free(src);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "bad_frames", .size = GOOD + 1, .run = bad_frames, .where = RANKS_TCP, .apart = true, .bare = true},
        {.name = "lying_events", .size = 6, .run = lying_events, .where = RANKS_TCP, .apart = true, .bare = true},
        {.name = "asks_without_end", .size = 2, .run = asks_without_end, .where = RANKS_TCP, .bare = true},
        {.name = "cut_first", .size = 3, .run = cut, .arg = CUT_FIRST, .where = RANKS_TCP, .apart = true, .bare = true},
        {.name = "cut_last", .size = 3, .run = cut, .arg = CUT_LAST, .where = RANKS_TCP, .apart = true, .bare = true},
        {.name = "cut_after_work",
         .size = 3,
         .run = cut,
         .arg = CUT_AFTER_WORK,
         .where = RANKS_TCP,
         .sleepy = true,
         .apart = true,
         .bare = true},
        {.name = "broken_under_put",
         .size = 2,
         .run = broken_under_put,
         .where = RANKS_TCP,
         .sleepy = true,
         .apart = true,
         .bare = true},
        {.name = "reset_after_close", .size = 2, .run = reset_after_close, .where = RANKS_TCP, .apart = true},
        {.name = "lost_put", .size = 2, .run = lost_put, .where = RANKS_TCP, .apart = true},
        {.name = "last_words",
         .size = 2,
         .run = last_words,
         .where = RANKS_TCP | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "end_told_to_another", .size = 2, .run = end_told_to_another, .where = RANKS_TCP, .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
