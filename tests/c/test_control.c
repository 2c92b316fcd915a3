/* The control channel by itself, its links by TCP, by Unix sockets, and mixed: ranks of equal parity share a "host". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control.h"
#include "ranks.h"

typedef enum kinds { ALL_TCP, ALL_UNIX, MIXED } kinds;

enum { MET = 1, DONE, GONE };

/* One rank's control channel and the group it needs. */
typedef struct node {
    rank *r;
    hpc_group group;
    hpc_memory *bell;
    hpc_control *control;
    hpc_control_address all[RANKS_MAX];
    unsigned char links[RANKS_MAX], same_host[RANKS_MAX];
    hpc_reply replies[RANKS_MAX];
} node;

static unsigned char links_of(kinds kinds, int a, int b) {
    if (kinds == ALL_TCP) return HPC_LINK_TCP;
    if (kinds == ALL_UNIX) return HPC_LINK_UNIX | HPC_LINK_TCP;
    return a % 2 == b % 2 ? HPC_LINK_UNIX | HPC_LINK_TCP : HPC_LINK_TCP;
}

static void share(rank *r, const void *mine, void *all, size_t nbytes) {
    void *request;
    CHECK_OK(r->oob.allgather(mine, all, nbytes, r->oob.arg, &request));
    while (r->oob.test(request) == HPC_IN_PROGRESS) {
    }
    CHECK_OK(r->oob.free(request));
}

static node *open_node(rank *r, double silence, const char *secret) {
    static char owner = 1;
    node *n = calloc(1, sizeof *n);
    const hpc_control_config config = {
        .tcp = 1, .silence = silence, .secret = secret, .secret_bytes = secret ? strlen(secret) : 0};
    hpc_control_address mine;
    CHECK(n);
    n->r = r;
    n->group = (hpc_group){.rank = r->rank, .size = r->size, .timeout = 20, .owner = &owner};
    n->group.states = calloc((size_t)r->size, sizeof *n->group.states);
    n->group.departing = calloc((size_t)r->size, sizeof *n->group.departing);
    n->group.reasons = calloc((size_t)r->size, sizeof *n->group.reasons);
    CHECK_OK(hpc_memory_create(sizeof(hpc_bell), "test", &n->bell));
    n->group.bell = hpc_memory_data(n->bell);
    CHECK_OK(hpc_control_open(&n->group, n->bell, &config, &n->control));
    memset(&mine, 0, sizeof mine);
    hpc_control_address_of(n->control, &mine);
    share(r, &mine, n->all, sizeof mine);
    return n;
}

static int connect_node(node *n, kinds kinds, double seconds) {
    for (int i = 0; i < n->r->size; i++) {
        n->links[i] = links_of(kinds, n->r->rank, i);
        n->same_host[i] = kinds != MIXED || i % 2 == n->r->rank % 2;
    }
    return hpc_control_connect(n->control, n->all, n->links, n->same_host, hpc_now() + seconds);
}

static node *join(rank *r, kinds kinds, double silence) {
    node *n = open_node(r, silence, NULL);
    CHECK_OK(connect_node(n, kinds, 20));
    return n;
}

static void leave(node *n, const char *why) {
    atomic_store(&n->group.closed, 1);
    hpc_control_stop(n->control, why);
    hpc_control_free(n->control);
    hpc_memory_release(n->bell);
    free(n->group.states);
    free(n->group.departing);
    free(n->group.reasons);
    free(n);
}

static int gather(node *n, const char *op, const void *data, size_t nbytes, hpc_sizes sizes, double seconds) {
    return hpc_control_exchange(n->control, op, data, nbytes, -1, sizes, n->replies, hpc_now() + seconds);
}

static int meet(node *n, double seconds) {
    int status = gather(n, "meet", NULL, 0, HPC_EQUAL_SIZES, seconds);
    if (status == HPC_OK) hpc_control_free_replies(n->control, n->replies);
    return status;
}

/* Time passes; nothing of this rank's own is called. */
static void idle(double seconds) {
    double end = ranks_now() + seconds;
    while (ranks_now() < end) poll(NULL, 0, 10);
}

static void compute(double seconds) {
    volatile uint64_t x = 1;
    for (double end = ranks_now() + seconds; ranks_now() < end;)
        for (int i = 0; i < 1000; i++) x = x * 3 + 1;
}

/* ---- collectives ---- */

static void check_gather(node *n, size_t nbytes, uint64_t seed, hpc_sizes sizes) {
    rank *r = n->r;
    size_t mine = sizes == HPC_EQUAL_SIZES ? nbytes : nbytes * (size_t)r->rank + (size_t)r->rank;
    char *data = malloc(mine + 1);
    CHECK(data);
    ranks_fill(data, mine, seed + (uint64_t)r->rank);
    CHECK_OK(gather(n, "gather", data, mine, sizes, 20));
    for (int i = 0; i < r->size; i++) {
        size_t expected = sizes == HPC_EQUAL_SIZES ? nbytes : nbytes * (size_t)i + (size_t)i;
        CHECK_EQ(n->replies[i].nbytes, expected);
        CHECK_EQ(ranks_first_wrong(n->replies[i].data, expected, seed + (uint64_t)i), expected);
        CHECK_EQ(n->replies[i].fd, -1);
    }
    hpc_control_free_replies(n->control, n->replies);
    free(data);
}

static void collectives(rank *r) {
    static const size_t sizes[] = {0, 1, 63, 4096, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 100000, 1 << 20, 3000001};
    node *n = join(r, r->arg, 10);
    for (int i = 0; i < r->size; i++) {
        int unix_link = i == r->rank || r->arg == ALL_UNIX || (r->arg == MIXED && i % 2 == r->rank % 2);
        CHECK_EQ(hpc_control_link(n->control, i), unix_link ? HPC_LINK_UNIX : HPC_LINK_TCP);
        CHECK_EQ(hpc_control_path(n->control, i)[0] == 0, unix_link);
        CHECK_EQ(hpc_control_bell(n->control, i) != NULL, unix_link);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (r->size > 4 && sizes[i] > 100000) break;
        check_gather(n, sizes[i], 7 * i, HPC_EQUAL_SIZES);
        check_gather(n, sizes[i], 7 * i + 3, HPC_OWN_SIZES);
    }
    for (int i = 0; i < ranks_rounds(300); i++) CHECK_OK(meet(n, 20));
    leave(n, NULL);
}

static void disagreement(rank *r) {
    node *n = join(r, r->arg, 10);
    char data[8] = {0};
    CHECK_STATUS(gather(n, "gather", data, r->rank == 2 ? 8 : 4, HPC_EQUAL_SIZES, 20), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rank 2 gives 8 bytes and rank 0 gives 4");
    CHECK_STATUS(gather(n, r->rank == 1 ? "red" : "green", NULL, 0, HPC_EQUAL_SIZES, 20), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rank 0 calls green while rank 1 calls red");
    CHECK_OK(meet(n, 20));
    leave(n, NULL);
}

/* A descriptor goes along where it can. */
static void descriptor(rank *r) {
    node *n = join(r, MIXED, 10);
    CHECK_OK(hpc_control_exchange(n->control, "fd", NULL, 0, n->bell->fd, HPC_EQUAL_SIZES, n->replies, hpc_now() + 20));
    for (int i = 0; i < r->size; i++) CHECK_EQ(n->replies[i].fd >= 0, i != r->rank && i % 2 == r->rank % 2);
    hpc_control_free_replies(n->control, n->replies);
    CHECK_OK(meet(n, 20));
    leave(n, NULL);
}

/* ---- starting ---- */

static void late(rank *r) {
    node *n = open_node(r, 0.5, NULL);
    if (r->rank == 0) idle(2.5);
    CHECK_OK(connect_node(n, r->arg, 20));
    CHECK_OK(meet(n, 20));
    leave(n, NULL);
}

static void never(rank *r) {
    node *n = open_node(r, 1, NULL);
    if (r->rank != 0) {
        CHECK_STATUS(connect_node(n, ALL_TCP, 1.5), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(0));
    }
    rank_meet(r);
    leave(n, NULL);
}

static void dead_before(rank *r) {
    node *n = open_node(r, 1, NULL);
    rank_meet(r);
    if (r->rank == 0) {
        leave(n, NULL);
        rank_set(r, GONE, 1);
        return;
    }
    rank_await(r, GONE, 1);
    /* With nobody else to wait for, what follows names the dead. */
    if (connect_node(n, ALL_TCP, 20) == HPC_OK) CHECK_STATUS(meet(n, 20), HPC_ERR_PEER);
    CHECK_EQ(hpc_last_error()->status, HPC_ERR_PEER);
    CHECK(ranks_error_names(0));
    CHECK_MESSAGE("it died, or a firewall refuses");
    leave(n, NULL);
}

static void wrong_secret(rank *r) {
    node *n = open_node(r, 1, r->rank == 1 ? "sesam" : "mellon");
    if (r->rank == 1) {
        CHECK_STATUS(connect_node(n, ALL_TCP, 20), HPC_ERR_AUTH);
        CHECK_MESSAGE("rank 1: init: none of rank 0's addresses leads to it");
    } else {
        CHECK_STATUS(connect_node(n, ALL_TCP, 2), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1));
    }
    rank_meet(r);
    leave(n, NULL);
}

/* 127.0.0.last: all of them are this host. */
static hpc_endpoint loopback(int last, uint16_t port) {
    return (hpc_endpoint){.family = 4, .prefix = 8, .port = port, .ip = {127, 0, 0, (uint8_t)last}, .interface = "lo"};
}

static int listen_at(int last, int backlog, uint16_t *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u + (unsigned)last)};
    socklen_t length = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, backlog) == 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static int call_port(int last, uint16_t port, int flags) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x7f000000u + (unsigned)last)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS || errno == ECONNREFUSED);
    return fd;
}

/* Rank 0 seems to be at four addresses: one swallows everything, one accepts and is silent, one is another rank, and
 * one is right. */
static void wrong_addresses(rank *r) {
    enum { FILL = 4 };
    node *n = open_node(r, 10, NULL);
    uint16_t hole, mute;
    int hole_fd = listen_at(2, 0, &hole), mute_fd = listen_at(3, 16, &mute), fill[FILL];
    hpc_endpoint right = loopback(4, n->all[0].endpoints[0].port);
    for (int i = 0; i < FILL; i++) fill[i] = call_port(2, hole, SOCK_NONBLOCK);
    if (r->rank == 1) {
        n->all[0].endpoints[0] = loopback(2, hole);
        n->all[0].endpoints[1] = loopback(3, mute);
        n->all[0].endpoints[2] = loopback(5, n->all[1].endpoints[0].port);
        n->all[0].endpoints[3] = right;
    }
    n->links[0] = n->links[1] = HPC_LINK_TCP;
    double start = ranks_now();
    CHECK_OK(hpc_control_connect(n->control, n->all, n->links, n->same_host, hpc_now() + (r->rank == 1 ? 12 : 20)));
    CHECK(ranks_now() - start < 10);
    if (r->rank == 1) {
        char text[HPC_ENDPOINT_TEXT];
        hpc_net_text(&right, text);
        CHECK_EQ(strcmp(hpc_control_path(n->control, 0), text), 0);
    }
    CHECK_OK(meet(n, 20));
    for (int i = 0; i < FILL; i++) close(fill[i]);
    close(hole_fd);
    close(mute_fd);
    leave(n, NULL);
}

/* The listener is closed when nobody needs it. */
static void deaf(rank *r) {
    node *n = join(r, r->arg, 10);
    CHECK_OK(meet(n, 20));
    int fd = call_port(1, n->all[r->rank].endpoints[0].port, 0);
    char byte;
    errno = 0;
    CHECK_EQ(send(fd, "x", 1, MSG_NOSIGNAL) == 1, r->arg == ALL_TCP);
    CHECK(r->arg != ALL_TCP || recv(fd, &byte, 1, MSG_DONTWAIT) <= 0);
    close(fd);
    CHECK_OK(meet(n, 20));
    leave(n, NULL);
}

/* ---- who is alive ---- */

static void expect_gone(node *n, int who, const char *text, double seconds) {
    double start = ranks_now();
    CHECK_STATUS(meet(n, 20), HPC_ERR_PEER);
    CHECK(ranks_error_names(who));
    CHECK_MESSAGE(text);
    CHECK(ranks_now() - start < seconds);
    CHECK_STATUS(meet(n, 20), HPC_ERR_PEER); /* and from then on */
}

static void dead(rank *r) {
    node *n = join(r, r->arg, 10);
    CHECK_OK(meet(n, 20));
    if (r->rank == 1) raise(SIGKILL);
    expect_gone(n, 1, "its process died", 5);
    leave(n, NULL);
}

static void frozen(rank *r) {
    node *n = join(r, r->arg, 1);
    CHECK_OK(meet(n, 20));
    if (r->rank == 1) raise(SIGSTOP);
    expect_gone(n, 1, "nothing was heard from it for 1 s", 4);
    leave(n, NULL);
}

/* Thawed before the silence is over, it is alive, and blames nobody. */
static void thawed(rank *r) {
    node *n = join(r, ALL_TCP, 2);
    CHECK_OK(meet(n, 20));
    if (r->rank == 1) {
        rank_set(r, MET, (uint64_t)getpid());
        raise(SIGSTOP);
    } else if (r->rank == 0) {
        pid_t pid = (pid_t)rank_await(r, MET, 1);
        idle(1.2);
        CHECK_EQ(kill(pid, SIGCONT), 0);
    }
    CHECK_OK(meet(n, 20));
    leave(n, NULL);
}

/* Frozen for longer than the silence: the others have given it up, and it finds out. */
static void given_up(rank *r) {
    node *n = join(r, ALL_TCP, 0.5);
    CHECK_OK(meet(n, 20));
    if (r->rank == 1) {
        rank_set(r, MET, (uint64_t)getpid());
        raise(SIGSTOP);
        if (meet(n, 20) == HPC_OK) CHECK_STATUS(meet(n, 20), HPC_ERR_PEER); /* the parts of the first one had come */
    } else {
        pid_t pid = (pid_t)rank_await(r, MET, 1);
        expect_gone(n, 1, "nothing was heard from it for 0.5 s", 4);
        atomic_fetch_add(&r->board[DONE], 1);
        rank_await(r, DONE, (uint64_t)r->size - 1);
        kill(pid, SIGCONT);
    }
    leave(n, NULL);
}

static void busy(rank *r) {
    node *n = join(r, r->arg, 0.5);
    CHECK_OK(meet(n, 20));
    if (r->rank == 1) compute(2.5);
    CHECK_OK(meet(n, 20));
    if (r->rank == 0) idle(1.5);
    CHECK_OK(meet(n, 20));
    leave(n, NULL);
}

/* A child keeps the dead rank's sockets open: only its silence tells. */
static void orphaned(rank *r) {
    node *n = join(r, ALL_TCP, 1);
    CHECK_OK(meet(n, 20));
    if (r->rank == 1) {
        if (fork() == 0) {
            for (double end = ranks_now() + 10; ranks_now() < end && atomic_load(&r->board[DONE]) < 2;)
                poll(NULL, 0, 10);
            _exit(0);
        }
        raise(SIGKILL);
    }
    expect_gone(n, 1, "nothing was heard from it for 1 s", 4);
    atomic_fetch_add(&r->board[DONE], 1);
    leave(n, NULL);
}

/* It does not read, and the silence is longer than the deadline: a part that was sent by halves ends the link. */
static void clogged(rank *r) {
    enum { BYTES = 32 << 20 };
    node *n = join(r, ALL_TCP, 60);
    CHECK_OK(meet(n, 20));
    if (r->rank == 1) raise(SIGSTOP);
    char *data = calloc(1, BYTES);
    CHECK(data);
    double start = ranks_now();
    CHECK_STATUS(gather(n, "gather", data, BYTES, HPC_EQUAL_SIZES, 1), HPC_ERR_TIMEOUT);
    CHECK(ranks_error_waits_for(1));
    CHECK_STATUS(meet(n, 20), HPC_ERR_CONFIG);
    CHECK(ranks_now() - start < 5);
    free(data);
    start = ranks_now();
    leave(n, NULL);
    CHECK(ranks_now() - start < 5);
}

/* ---- leaving ---- */

/* Beats are under way all the time, and must not eat the last word. */
static void last_words(rank *r) {
    const char *why = r->arg ? "the disk is full" : NULL;
    for (int i = 0; i < ranks_rounds(40); i++) {
        node *n = join(r, ALL_TCP, 0.2);
        int who = i % r->size;
        CHECK_OK(meet(n, 20));
        rank_meet(r);
        if (r->rank == who) {
            if (i % 3 == 0) idle(0.1);
            leave(n, why);
        } else {
            expect_gone(n, who, why ? why : "it left", 5);
            CHECK_EQ(atomic_load(&n->group.states[who]), why ? HPC_PEER_FAILED : HPC_PEER_LEFT);
            CHECK_EQ(strcmp(n->group.reasons[who], why ? why : "it left"), 0);
            leave(n, NULL);
        }
        rank_meet(r);
    }
}

static void leave_together(rank *r) {
    for (int i = 0; i < ranks_rounds(40); i++) {
        node *n = join(r, i % 3, 1);
        CHECK_OK(meet(n, 20));
        double start = ranks_now();
        leave(n, NULL);
        CHECK(ranks_now() - start < 0.9);
        rank_meet(r);
    }
}

/* ---- lanes ---- */

typedef struct lanes {
    _Atomic int taken, refused;
    _Atomic int fds[RANKS_MAX];
} lanes;

static int accept_lane(void *arg, int from, uint64_t lane, int stream, int fd) {
    lanes *l = arg;
    if (lane != 7) {
        atomic_fetch_add(&l->refused, 1);
        return HPC_ERR_INVALID;
    }
    CHECK_EQ(stream, from % 3);
    atomic_store(&l->fds[from], fd);
    atomic_fetch_add(&l->taken, 1);
    return HPC_OK;
}

static void send_byte(int fd, int value) {
    char byte = (char)value;
    CHECK_EQ(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
}

static int receive_byte(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte = 0;
    CHECK_EQ(poll(&p, 1, 10000), 1);
    CHECK_EQ(recv(fd, &byte, 1, 0), 1);
    return byte;
}

static void call_lanes(rank *r) {
    node *n = open_node(r, 10, "mellon");
    lanes lanes = {0};
    int fds[RANKS_MAX], fd;
    hpc_control_on_lane(n->control, accept_lane, &lanes);
    CHECK_OK(connect_node(n, ALL_TCP, 20));
    for (int i = 0; i < r->size; i++) {
        if (i == r->rank) continue;
        CHECK_OK(hpc_control_call_lane(n->control, i, 7, r->rank % 3, "lane", hpc_now() + 10, &fds[i]));
        send_byte(fds[i], 'a' + r->rank);
        CHECK_STATUS(hpc_control_call_lane(n->control, i, 8, 0, "lane", hpc_now() + 10, &fd), HPC_ERR_TRANSPORT);
        CHECK_EQ(fd, -1);
        CHECK_EQ(hpc_last_error()->peer, i);
    }
    CHECK_OK(meet(n, 20));
    CHECK_EQ(atomic_load(&lanes.taken), r->size - 1);
    CHECK(atomic_load(&lanes.refused) >= r->size - 1);
    for (int i = 0; i < r->size; i++) {
        if (i == r->rank) continue;
        CHECK_EQ(receive_byte(atomic_load(&lanes.fds[i])), 'a' + i);
        send_byte(atomic_load(&lanes.fds[i]), 'A' + r->rank);
    }
    for (int i = 0; i < r->size; i++) {
        if (i == r->rank) continue;
        CHECK_EQ(receive_byte(fds[i]), 'A' + i);
        close(fds[i]);
        close(atomic_load(&lanes.fds[i]));
    }
    CHECK_OK(meet(n, 20));
    leave(n, NULL);
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
    const int port_word = 8;
    if (r->rank == 2) {
        static int silent[SILENT];
        hpc_control_address none[RANKS_MAX], self = {0};
        share(r, &self, none, sizeof self);
        uint16_t port = (uint16_t)rank_await(r, port_word, 1);
        for (int i = 0; i < SILENT; i++) silent[i] = call_port(1, port, 0);
        int loud = call_port(1, port, 0);
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
    rank fewer = *r; /* a job of two */
    fewer.size = 2;
    hpc_control_address three[RANKS_MAX], mine;
    node *n = calloc(1, sizeof *n);
    static char owner = 1;
    const hpc_control_config config = {.tcp = 1, .silence = 2};
    CHECK(n);
    n->r = &fewer;
    n->group = (hpc_group){.rank = r->rank, .size = 2, .timeout = 20, .owner = &owner};
    n->group.states = calloc(2, sizeof *n->group.states);
    n->group.departing = calloc(2, sizeof *n->group.departing);
    n->group.reasons = calloc(2, sizeof *n->group.reasons);
    CHECK_OK(hpc_memory_create(sizeof(hpc_bell), "test", &n->bell));
    n->group.bell = hpc_memory_data(n->bell);
    CHECK_OK(hpc_control_open(&n->group, n->bell, &config, &n->control));
    memset(&mine, 0, sizeof mine);
    hpc_control_address_of(n->control, &mine);
    share(r, &mine, three, sizeof mine);
    memcpy(n->all, three, sizeof n->all);
    int before = open_files();
    if (r->rank == 0) rank_set(r, port_word, n->all[0].endpoints[0].port);
    rank_await(r, MET, 1);
    CHECK_OK(connect_node(n, ALL_TCP, 20));
    CHECK_OK(meet(n, 20));
    CHECK(!r->mode->threads ? open_files() <= before + 64 + 2 : 1);
    atomic_fetch_add(&r->board[DONE], 1);
    rank_await(r, GONE, 1);
    CHECK_OK(meet(n, 20));
    if (r->rank == 0) {
        const char *note = hpc_group_note_at(&n->group, 0);
        CHECK(note && strstr(note, "refused a connection from 127.0.0.1:"));
        CHECK(hpc_group_note_at(&n->group, 1) == NULL);
    } else {
        CHECK(hpc_group_note_at(&n->group, 0) == NULL);
    }
    leave(n, NULL);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "collectives-tcp", .size = 3, .run = collectives, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "collectives-unix", .size = 3, .run = collectives, .arg = ALL_UNIX, .where = RANKS_SHM, .bare = true},
        {.name = "collectives-mixed", .size = 4, .run = collectives, .arg = MIXED, .where = RANKS_SHM, .bare = true},
        {.name = "collectives-sixteen",
         .size = 16,
         .run = collectives,
         .arg = ALL_TCP,
         .where = RANKS_SHM,
         .bare = true},
        {.name = "disagreement", .size = 3, .run = disagreement, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "descriptor", .size = 4, .run = descriptor, .where = RANKS_SHM, .bare = true},
        {.name = "late", .size = 3, .run = late, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "never", .size = 3, .run = never, .where = RANKS_SHM, .bare = true},
        {.name = "dead-before", .size = 3, .run = dead_before, .where = RANKS_SHM, .bare = true},
        {.name = "wrong-secret", .size = 2, .run = wrong_secret, .where = RANKS_SHM, .bare = true},
        {.name = "wrong-addresses", .size = 2, .run = wrong_addresses, .where = RANKS_SHM, .bare = true},
        {.name = "deaf-unix", .size = 2, .run = deaf, .arg = ALL_UNIX, .where = RANKS_SHM, .bare = true},
        {.name = "deaf-tcp", .size = 2, .run = deaf, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "dead-tcp",
         .size = 3,
         .run = dead,
         .arg = ALL_TCP,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "dead-unix",
         .size = 3,
         .run = dead,
         .arg = ALL_UNIX,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "frozen-tcp",
         .size = 3,
         .run = frozen,
         .arg = ALL_TCP,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "thawed", .size = 3, .run = thawed, .where = RANKS_SHM | RANKS_PROCESSES, .bare = true},
        {.name = "given-up", .size = 3, .run = given_up, .where = RANKS_SHM | RANKS_PROCESSES, .bare = true},
        {.name = "busy-tcp", .size = 3, .run = busy, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "busy-mixed", .size = 4, .run = busy, .arg = MIXED, .where = RANKS_SHM, .bare = true},
        {.name = "orphaned",
         .size = 3,
         .run = orphaned,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "clogged",
         .size = 3,
         .run = clogged,
         .where = RANKS_SHM | RANKS_PROCESSES,
         .victims = 2,
         .bare = true},
        {.name = "last-words-bye", .size = 3, .run = last_words, .arg = 0, .where = RANKS_SHM, .bare = true},
        {.name = "last-words-abort", .size = 3, .run = last_words, .arg = 1, .where = RANKS_SHM, .bare = true},
        {.name = "leave-together", .size = 4, .run = leave_together, .where = RANKS_SHM, .bare = true},
        {.name = "lanes", .size = 4, .run = call_lanes, .where = RANKS_SHM, .bare = true},
        {.name = "strangers", .size = 3, .run = strangers, .where = RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
