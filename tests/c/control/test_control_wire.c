/* Callers of the control channel by TCP: strangers, and bytes of a peer that is proven but is not this code. */
#define _GNU_SOURCE
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node.h"

enum { MET = 1, DONE, GONE, PORT, ASKED, FILLED };

/* ---- bytes of a peer that is proven, but not this code ---- */

static const hpc_mesh_frame sound = {
    .magic = 0x68706331, .type = HPC_MESH_GATHER, .rank = 1, .sequence = 1, .op = "meet"};

/* Rank 1 as a bare connection to rank 0. */
static int impersonate(rank *r) {
    hpc_control_address all[RANKS_MAX], self = {0};
    unsigned char key[HPC_DIGEST_BYTES];
    const char *why = "";
    node_share(r, &self, all, sizeof self);
    const hpc_bytes part = {all[0].secret, sizeof all[0].secret};
    hpc_hello hello = {.purpose = HPC_FOR_CONTROL, .from = 1, .size = 2};
    memcpy(hello.name, all[0].name, sizeof hello.name);
    hpc_hmac(NULL, 0, &part, 1, key);
    int fd = node_call_port(1, all[0].endpoints[0].port, 0);
    CHECK_OK(hpc_hello_call(fd, &hello, key, hpc_now() + 10, &why));
    return fd;
}

static void send_bytes(int fd, const void *data, size_t n) {
    CHECK_EQ(send(fd, data, n, MSG_NOSIGNAL), n);
}

static void receive_bytes(int fd, void *data, size_t n) {
    CHECK_EQ(recv(fd, data, n, MSG_WAITALL), n);
}

static void say_bye(int fd) {
    const hpc_last_word word = {.n_culprits = 0};
    hpc_mesh_frame bye = sound;
    bye.type = HPC_MESH_BYE;
    bye.nbytes = bye.total = sizeof word;
    send_bytes(fd, &bye, sizeof bye);
    send_bytes(fd, &word, sizeof word);
    shutdown(fd, SHUT_WR); /* and the other half is read to its end: a close before would reset the connection */
    char rest[4096];
    while (recv(fd, rest, sizeof rest, 0) > 0) continue;
    close(fd);
}

/* A message may be cut anywhere. */
static void dribble(rank *r) {
    enum { BYTES = 100000 };
    char *data = malloc(BYTES), *stream = malloc(2 * BYTES);
    size_t used = 0;
    CHECK(data && stream);
    ranks_fill(data, BYTES, 3 + (uint64_t)r->rank);
    if (r->rank == 0) {
        node *n = node_join(r, ALL_TCP, 10);
        CHECK_OK(node_gather(n, "gather", data, BYTES, HPC_EQUAL_SIZES, 20));
        CHECK_EQ(ranks_first_wrong(n->replies[1].data, BYTES, 4), BYTES);
        hpc_control_free_replies(n->control, n->replies);
        node_expect_gone(n, 1, "rank 1 has ended", 5);
        node_leave(n, NULL);
    } else {
        int fd = impersonate(r);
        uint64_t random = 5;
        for (size_t at = 0; at < BYTES; at += 1000) {
            hpc_mesh_frame f = sound, beat = sound;
            f.nbytes = 1000, f.total = BYTES, f.offset = at;
            snprintf(f.op, sizeof f.op, "gather");
            beat.type = HPC_MESH_BEAT;
            memcpy(stream + used, &f, sizeof f);
            memcpy(stream + used + sizeof f, data + at, 1000);
            memcpy(stream + used + sizeof f + 1000, &beat, sizeof beat);
            used += sizeof f + 1000 + sizeof beat;
        }
        for (size_t at = 0, n; at < used; at += n) {
            n = 1 + ranks_random(&random) % 300;
            if (n > used - at) n = used - at;
            send_bytes(fd, stream + at, n);
        }
        for (size_t at = 0; at < BYTES;) {
            hpc_mesh_frame f;
            receive_bytes(fd, &f, sizeof f);
            if (f.type == HPC_MESH_BEAT) continue;
            CHECK_EQ(f.type, HPC_MESH_GATHER);
            CHECK_EQ(f.offset, at);
            receive_bytes(fd, stream + at, f.nbytes);
            at += f.nbytes;
        }
        CHECK_EQ(ranks_first_wrong(stream, BYTES, 3), BYTES);
        say_bye(fd);
    }
    free(data);
    free(stream);
}

/* Beats come all the while, and whoever leaves has not read them: that must not become a reset, which eats the BYE. */
static void talkative(rank *r) {
    for (int i = 0; i < 5; i++) {
        if (r->rank == 0) {
            node *n = node_join(r, ALL_TCP, 10);
            rank_await(r, DONE, (uint64_t)i + 1);
            node_leave(n, NULL);
        } else {
            int fd = impersonate(r), told = 0;
            hpc_mesh_frame f, beat = sound;
            beat.type = HPC_MESH_BEAT;
            for (int k = 0; k < 2000; k++) {
                send_bytes(fd, &beat, sizeof beat);
                if (k == 1000) rank_set(r, DONE, (uint64_t)i + 1);
                if (k > 1000) poll(NULL, 0, k % 100 == 0);
            }
            hpc_last_word word;
            while (recv(fd, &f, sizeof f, MSG_WAITALL) == sizeof f) {
                told = f.type == HPC_MESH_BYE;
                if (f.nbytes > 0) receive_bytes(fd, &word, f.nbytes < sizeof word ? f.nbytes : sizeof word);
            }
            CHECK(told);
            CHECK_EQ(recv(fd, &f, sizeof f, 0), 0); /* the end, and no reset */
            close(fd);
        }
        rank_meet(r);
    }
}

/* ---- news that find no room ---- */

static void ask_for_news(int fd) {
    hpc_mesh_frame look = sound;
    look.type = HPC_MESH_LOOK;
    send_bytes(fd, &look, sizeof look);
}

/* Reads whole frames until these many bytes of a gather have come and news of this step; nobody sends beats. */
static void read_until_news(int fd, size_t gathered, uint64_t step) {
    char *payload = malloc(HPC_FRAME_BYTES);
    hpc_shown_rank shown = {.step = UINT64_MAX};
    hpc_mesh_frame f;
    size_t got = 0;
    CHECK(payload);
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 20}, sizeof(struct timeval)), 0);
    while (got < gathered || shown.step != step) {
        receive_bytes(fd, &f, sizeof f);
        CHECK(f.magic == sound.magic && f.nbytes <= HPC_FRAME_BYTES);
        if (f.nbytes > 0) receive_bytes(fd, payload, f.nbytes);
        if (f.type == HPC_MESH_GATHER) got += f.nbytes;
        if (f.type == HPC_MESH_NEWS) memcpy(&shown, payload, sizeof shown);
    }
    free(payload);
}

/* The service thread has read what has come. */
static void await_read(int fd) {
    int unread = 1;
    while (CHECK_EQ(ioctl(fd, FIONREAD, &unread), 0), unread > 0) sched_yield();
}

enum { MUCH = 32 << 20 /* more than the sockets hold */ };

static void *gather_much(void *arg) {
    node *n = arg;
    char *data = calloc(1, MUCH);
    CHECK(data);
    CHECK_OK(node_gather(n, "gather", data, MUCH, HPC_OWN_SIZES, 20));
    hpc_control_free_replies(n->control, n->replies);
    free(data);
    return NULL;
}

/* A message is under way when news are asked for: they come behind it, with no beat and no second question. */
static void news_behind_a_message(rank *r) {
    if (r->rank == 0) {
        node *n = node_join(r, ALL_TCP, 1000);
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, gather_much, n), 0);
        rank_await(r, ASKED, 1);
        await_read(atomic_load(&n->control->links[1].fd));
        rank_set(r, DONE, 1);
        pthread_join(thread, NULL);
        rank_await(r, GONE, 1);
        node_leave(n, NULL);
    } else {
        char first;
        hpc_mesh_frame own = sound;
        int fd = impersonate(r);
        snprintf(own.op, sizeof own.op, "gather");
        CHECK_EQ(recv(fd, &first, 1, MSG_PEEK), 1);
        ask_for_news(fd);
        rank_set(r, ASKED, 1);
        rank_await(r, DONE, 1);
        read_until_news(fd, MUCH, 0);
        send_bytes(fd, &own, sizeof own);
        say_bye(fd);
        rank_set(r, GONE, 1);
    }
}

/* News are asked for until some find no room. Once there is, what is left of them comes, and then news of that time. */
static void news_when_there_is_room(rank *r) {
    enum { ROOM = 64 << 10 };
    static char filler[ROOM];
    uint64_t asked = 0, full = 0; /* asked: also this rank's step */
    size_t filled = 0;
    if (r->rank == 0) {
        node *n = node_join(r, ALL_TCP, 1000);
        hpc_link *l = &n->control->links[1];
        int fd = atomic_load(&l->fd);
        CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){ROOM}, sizeof(int)), 0);
        for (ssize_t sent; (sent = send(fd, filler, sizeof filler, MSG_DONTWAIT)) > 0;) filled += (size_t)sent;
        rank_set(r, FILLED, filled);
        while (!full) {
            rank_await(r, ASKED, ++asked);
            await_read(fd);
            hpc_watch_step(&n->group.watch, asked);
            pthread_mutex_lock(&l->send_lock);
            full = l->told_left > 0;
            pthread_mutex_unlock(&l->send_lock);
            rank_set(r, DONE, 2 * asked + full);
        }
        rank_await(r, GONE, 1);
        node_leave(n, NULL);
    } else {
        int fd = impersonate(r);
        filled = (size_t)rank_await(r, FILLED, 1);
        while (!full) {
            ask_for_news(fd);
            rank_set(r, ASKED, ++asked);
            full = rank_await(r, DONE, 2 * asked) % 2;
        }
        for (size_t n; filled > 0; filled -= n) {
            n = filled < sizeof filler ? filled : sizeof filler;
            receive_bytes(fd, filler, n);
        }
        read_until_news(fd, 0, asked);
        say_bye(fd);
        rank_set(r, GONE, 1);
    }
}

enum { GARBLED = 19, SECOND = 16 /* from here on the frame goes on with a message of 16 bytes */ };

/* One wrong thing each; what follows the frame is zeros. */
static hpc_mesh_frame garble(int what) {
    hpc_mesh_frame f = sound;
    switch (what) {
    case 0:
        f.magic++;
        break;
    case 1:
        f.type = 99;
        break;
    case 2:
        f.type = HPC_MESH_HELLO;
        break;
    case 3:
        f.rank = 0;
        break;
    case 4:
        f.rank = -1;
        break;
    case 5:
        f.rank = 1 << 30;
        break;
    case 6:
        f.nbytes = HPC_FRAME_BYTES + 1, f.total = 1 << 20;
        break;
    case 7:
        f.nbytes = UINT32_MAX, f.total = UINT64_MAX;
        break;
    case 8:
        f.nbytes = 2, f.total = 1;
        break;
    case 9:
        f.offset = UINT64_MAX - 1, f.total = UINT64_MAX, f.nbytes = 1;
        break;
    case 10:
        f.offset = 8, f.total = 16, f.nbytes = 8; /* the first one of its message */
        break;
    case 11:
        f.total = ((uint64_t)1 << 32) + 1;
        break;
    case 12:
        memset(f.op, 'x', sizeof f.op);
        break;
    case 13:
        f.type = HPC_MESH_ABORT, f.nbytes = f.total = sizeof(hpc_last_word) - 1;
        break;
    case 14:
        f.type = HPC_MESH_NEWS, f.nbytes = f.total = sizeof(hpc_shown_rank) - 1;
        break;
    case 15:
        f.type = HPC_MESH_LOOK, f.nbytes = f.total = 1;
        break;
    case 16:
        f.total = 16, f.nbytes = 4, f.offset = 12;
        break;
    case 17:
        f.total = 17, f.nbytes = 8, f.offset = 8;
        break;
    case 18:
        f.total = 16, f.nbytes = 8, f.offset = 8, f.sequence = 2;
        break;
    }
    return f;
}

static size_t mapped_bytes(void) {
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%lu", &pages) == 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

static void garbled(rank *r) {
    for (int what = 0; what <= GARBLED; what++) {
        if (r->rank == 0) {
            node *n = node_join(r, ALL_TCP, 10);
            size_t before = mapped_bytes();
            node_expect_gone(
                n, 1, what < GARBLED ? "it sent bytes that are not a message of hpcomm" : "its process died or closed",
                5);
            CHECK(mapped_bytes() < before + ((size_t)1 << 30));
            node_leave(n, NULL);
        } else {
            char rest[4096];
            int fd = impersonate(r);
            hpc_mesh_frame f = garble(what);
            if (what >= SECOND && what < GARBLED) {
                hpc_mesh_frame first = sound;
                first.total = 16, first.nbytes = 8;
                send_bytes(fd, &first, sizeof first);
                send_bytes(fd, "12345678", 8);
            }
            if (what == GARBLED) f.total = (uint64_t)1 << 32, f.nbytes = 8; /* sound, but there is not as much */
            send_bytes(fd, &f, sizeof f);
            send_bytes(fd, "12345678", 8);
            shutdown(fd, SHUT_WR);
            while (recv(fd, rest, sizeof rest, 0) > 0) {
            }
            close(fd); /* with nothing unread: no reset */
        }
        rank_meet(r);
    }
}

/* Sound frames with a few random bytes changed: whatever it is taken for, this rank lives and says who was at fault. */
static void noise(rank *r) {
    for (int i = 0; i < ranks_rounds(100); i++) {
        if (r->rank == 0) {
            node *n = node_join(r, ALL_TCP, 10);
            int status;
            while ((status = node_meet(n, 20)) == HPC_OK) {
            }
            CHECK(status == HPC_ERR_PEER || status == HPC_ERR_CONFIG);
            node_leave(n, NULL);
        } else {
            uint64_t random = (uint64_t)i;
            int fd = impersonate(r);
            for (int k = 0; k < 50; k++) {
                hpc_mesh_frame f = sound;
                f.sequence = (uint64_t)k / 2 + 1;
                f.type = k % 2 ? HPC_MESH_GATHER : HPC_MESH_BEAT;
                if (ranks_random(&random) % 8 == 0)
                    ((char *)&f)[ranks_random(&random) % 40] ^= (char)(1 << ranks_random(&random) % 8);
                if (send(fd, &f, sizeof f, MSG_NOSIGNAL) < 0) break;
            }
            close(fd);
        }
        rank_meet(r);
    }
}

/* ---- strangers ---- */

static int open_files(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    CHECK(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static int has_hung_up(int fd, int ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char bytes[64];
    while (poll(&p, 1, ms) == 1)
        if (recv(fd, bytes, sizeof bytes, 0) <= 0) return 1;
    return 0;
}

/* Rank 2 is none: it calls rank 0 instead, before and after the others connect. */
static void strangers(rank *r) {
    enum { SILENT = 150 };
    static const char garbage[] = "GET / HTTP/1.1\r\nHost: nobody\r\n\r\nand much more that nobody asked for\r\n";
    if (r->rank == 2) {
        static int silent[SILENT];
        hpc_control_address none[RANKS_MAX], self = {0};
        node_share(r, &self, none, sizeof self);
        uint16_t port = (uint16_t)rank_await(r, PORT, 1);
        for (int i = 0; i < SILENT; i++) silent[i] = node_call_port(1, port, 0);
        int loud = node_call_port(1, port, 0);
        CHECK(send(loud, garbage, sizeof garbage, MSG_NOSIGNAL) > 0);
        rank_set(r, MET, 1);
        rank_await(r, DONE, 2); /* the others have met in spite of it */
        CHECK(has_hung_up(loud, 1000));
        for (int i = 0; i < SILENT; i++) {
            CHECK(has_hung_up(silent[i], 10000));
            close(silent[i]);
        }
        close(loud);
        rank_set(r, GONE, 1);
        return;
    }
    node *n = node_open(r, 2, 2, NULL);
    int before = open_files();
    if (r->rank == 0) rank_set(r, PORT, n->all[0].endpoints[0].port);
    rank_await(r, MET, 1);
    double start = ranks_now();
    CHECK_OK(node_connect(n, ALL_TCP, 20));
    CHECK(ranks_now() - start < 8); /* the silent ones have had their second each */
    CHECK_OK(node_meet(n, 20));
    CHECK(!r->mode->threads ? open_files() <= before + 64 + 2 : 1);
    atomic_fetch_add(&r->board[DONE], 1);
    rank_await(r, GONE, 1);
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 0) {
        const char *note = hpc_group_note_at(&n->group, 0);
        CHECK(note && strstr(note, "refused a connection from 127.0.0.1:"));
        CHECK(hpc_group_note_at(&n->group, 1) == NULL);
    } else {
        CHECK(hpc_group_note_at(&n->group, 0) == NULL);
    }
    node_leave(n, NULL);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "dribble", .size = 2, .run = dribble, .where = RANKS_SHM, .bare = true},
        {.name = "talkative", .size = 2, .run = talkative, .where = RANKS_SHM, .bare = true},
        {.name = "news behind a message", .size = 2, .run = news_behind_a_message, .where = RANKS_SHM, .bare = true},
        {.name = "news when there is room",
         .size = 2,
         .run = news_when_there_is_room,
         .where = RANKS_SHM,
         .bare = true},
        {.name = "garbled", .size = 2, .run = garbled, .where = RANKS_SHM, .bare = true},
        {.name = "noise", .size = 2, .run = noise, .where = RANKS_SHM, .bare = true},
        {.name = "strangers", .size = 3, .run = strangers, .where = RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
