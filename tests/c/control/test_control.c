/* The control channel by itself, its links by TCP, by Unix sockets, and mixed: starting, collectives, calls of lanes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <sched.h>

#include "handshake.h"
#include "node.h"

enum { GONE = 1 };

/* ---- collectives ---- */

static void check_gather(node *n, size_t nbytes, uint64_t seed, hpc_sizes sizes) {
    rank *r = n->r;
    size_t mine = sizes == HPC_EQUAL_SIZES ? nbytes : nbytes * (size_t)r->rank + (size_t)r->rank;
    char *data = malloc(mine + 1);
    CHECK(data);
    ranks_fill(data, mine, seed + (uint64_t)r->rank);
    CHECK_OK(node_gather(n, "gather", data, mine, sizes, 20));
    for (int i = 0; i < r->size; i++) {
        size_t expected = sizes == HPC_EQUAL_SIZES ? nbytes : nbytes * (size_t)i + (size_t)i;
        CHECK_EQ(n->replies[i].nbytes, expected);
        CHECK_EQ(ranks_first_wrong(n->replies[i].data, expected, seed + (uint64_t)i), expected);
    }
    hpc_control_free_replies(n->control, n->replies);
    free(data);
}

/* Makes the links of all pairs; of many of them both ends call at the same time. */
static void link_all(node *n) {
    for (int i = 0; i < n->group.size; i++)
        while (i != n->group.rank && hpc_control_tell(n->control, i, 1, 1) == HPC_ERR_TIMEOUT) sched_yield();
    for (int i = 0; i < n->group.size; i++)
        while (i != n->group.rank && hpc_control_told(n->control, i, 1) != 1) sched_yield();
}

static void collectives(rank *r) {
    static const size_t sizes[] = {0, 1, 63, 4096, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 100000, 1 << 20, 3000001};
    node *n = node_join(r, r->arg, 10);
    link_all(n);
    for (int i = 0; i < r->size; i++) {
        int unix_link = i == r->rank || r->arg == ALL_UNIX || (r->arg == MIXED && i % 2 == r->rank % 2);
        CHECK_EQ(hpc_control_link(n->control, i), unix_link ? HPC_LINK_UNIX : HPC_LINK_TCP);
        CHECK_EQ(hpc_control_path(n->control, i)[0] == 0, unix_link);
        CHECK_EQ(hpc_control_bell(n->control, i) != NULL, unix_link);
        char port[32]; /* both sides say where the other one listens */
        snprintf(port, sizeof port, ":%d by ", n->all[i].endpoints[0].port);
        CHECK_EQ(strstr(hpc_control_path(n->control, i), port) == NULL, unix_link);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (r->size > 4 && sizes[i] > 100000) break;
        check_gather(n, sizes[i], 7 * i, HPC_EQUAL_SIZES);
        check_gather(n, sizes[i], 7 * i + 3, HPC_OWN_SIZES);
    }
    for (int i = 0; i < ranks_rounds(300); i++) CHECK_OK(node_meet(n, 20));
    node_leave(n, NULL);
}

static void disagreement(rank *r) {
    node *n = node_join(r, r->arg, 10);
    char data[8] = {0};
    CHECK_STATUS(node_gather(n, "gather", data, r->rank == 2 ? 8 : 4, HPC_EQUAL_SIZES, 20), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rank 2 gives 8 bytes and rank 0 gives 4");
    CHECK_STATUS(node_gather(n, r->rank == 1 ? "red" : "green", NULL, 0, HPC_EQUAL_SIZES, 20), HPC_ERR_CONFIG);
    CHECK_MESSAGE("rank 0 calls green while rank 1 calls red");
    CHECK_OK(node_meet(n, 20));
    node_leave(n, NULL);
}

/* ---- starting ---- */

static void late(rank *r) {
    node *n = node_open(r, r->size, 1, NULL);
    if (r->rank == 0) node_idle(2.5);
    CHECK_OK(node_connect(n, r->arg, 20));
    CHECK_OK(node_meet(n, 20));
    node_leave(n, NULL);
}

static void never(rank *r) {
    node *n = node_open(r, r->size, 1, NULL);
    if (r->rank != 0) {
        CHECK_STATUS(node_connect(n, ALL_TCP, 1.5), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(0));
    }
    rank_meet(r);
    node_leave(n, NULL);
}

static void dead_before(rank *r) {
    node *n = node_open(r, r->size, 1, NULL);
    rank_meet(r);
    if (r->rank == 0) {
        node_leave(n, NULL);
        rank_set(r, GONE, 1);
        return;
    }
    rank_await(r, GONE, 1);
    /* With nobody else to wait for, what follows names the dead. */
    if (node_connect(n, ALL_TCP, 20) == HPC_OK) CHECK_STATUS(node_meet(n, 20), HPC_ERR_PEER);
    CHECK_EQ(hpc_last_error()->status, HPC_ERR_PEER);
    CHECK(ranks_error_names(0));
    CHECK_MESSAGE("it died, or a firewall rejects the call");
    node_leave(n, NULL);
}

/* Says hello to rank 0, and hangs up instead of the proof. */
static void hang_up(const node *n) {
    char answer[ANSWER];
    hpc_hello hello = good_hello();
    hello.purpose = HPC_FOR_CONTROL;
    hello.from = n->r->rank;
    hello.to = 0;
    hello.size = n->r->size;
    memcpy(hello.name, n->all[0].name, sizeof hello.name);
    const int fd = node_call_port(1, n->all[0].endpoints[0].port, 0);
    send_bytes(fd, &hello, sizeof hello);
    wait_readable(fd);
    receive_bytes(fd, answer, sizeof answer);
    close(fd);
}

/* The last rank has an address, and dies before it calls, or in its call. All others name it soon. */
static void dead_child(rank *r) {
    node *n = node_open(r, r->size, 10, NULL);
    const int child = r->size - 1;
    const double start = ranks_now();
    if (r->rank == child && r->arg) hang_up(n);
    if (r->rank != child) {
        if (node_connect(n, ALL_TCP, 20) == HPC_OK) CHECK_STATUS(node_meet(n, 20), HPC_ERR_PEER);
        CHECK_EQ(hpc_last_error()->status, HPC_ERR_PEER);
        CHECK(ranks_error_names(child));
        CHECK(ranks_now() - start < 10);
        CHECK_MESSAGE(r->arg ? "it refuses calls; a call from " : "was refused: it died, or a firewall");
        if (r->arg) CHECK_MESSAGE("it hung up before its proof");
    }
    node_leave(n, NULL);
}

static void wrong_secret(rank *r) {
    node *n = node_open(r, r->size, 1, r->rank == 1 ? "sesam" : "mellon");
    if (r->rank == 1) {
        CHECK_STATUS(node_connect(n, ALL_TCP, 20), HPC_ERR_AUTH);
        CHECK_MESSAGE("rank 1: init: none of rank 0's addresses leads to it");
    } else {
        CHECK_STATUS(node_connect(n, ALL_TCP, 2), HPC_ERR_TIMEOUT);
        CHECK(ranks_error_waits_for(1));
        CHECK_MESSAGE("; a call from ");
        CHECK_MESSAGE("do all ranks have the same secret?");
    }
    rank_meet(r);
    node_leave(n, NULL);
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

static int take_lane(void *arg, int from, uint64_t lane, int stream, int fd) {
    (void)from, (void)lane, (void)stream;
    hpc_greeting_end(fd);
    atomic_store((_Atomic int *)arg, fd);
    return HPC_OK;
}

/* Rank 0 seems to be at four addresses: one swallows everything, one accepts and is silent, one is another rank, and
 * one is right. */
static void wrong_addresses(rank *r) {
    enum { FILL = 4 };
    node *n = node_open(r, r->size, 10, NULL);
    uint16_t hole, mute;
    int hole_fd = listen_at(2, 0, &hole), mute_fd = listen_at(3, 16, &mute), fill[FILL], lane;
    _Atomic int taken = -1;
    hpc_endpoint right = loopback(4, n->all[0].endpoints[0].port);
    for (int i = 0; i < FILL; i++) fill[i] = node_call_port(2, hole, SOCK_NONBLOCK);
    if (r->rank == 1) {
        n->all[0].endpoints[0] = loopback(2, hole);
        n->all[0].endpoints[1] = loopback(3, mute);
        n->all[0].endpoints[2] = loopback(5, n->all[1].endpoints[0].port);
        n->all[0].endpoints[3] = right;
    }
    n->links[0] = n->links[1] = HPC_LINK_TCP;
    hpc_control_on_lane(n->control, take_lane, &taken);
    double start = ranks_now();
    CHECK_OK(node_call(n, r->rank == 1 ? 12 : 20));
    CHECK(ranks_now() - start < 10);
    if (r->rank == 1) {
        char text[HPC_ENDPOINT_TEXT];
        hpc_net_text(&right, text);
        CHECK_EQ(strcmp(hpc_control_path(n->control, 0), text), 0);
    }
    CHECK_OK(node_meet(n, 20));
    start = ranks_now(); /* where to call is known now */
    if (r->rank == 1) {
        CHECK_OK(hpc_control_call_lane(n->control, 0, 1, 0, "lane", hpc_now() + 9, &lane));
        close(lane);
        CHECK(ranks_now() - start < 2.5);
    }
    CHECK_OK(node_meet(n, 20));
    if (r->rank == 0) close(atomic_load(&taken));
    for (int i = 0; i < FILL; i++) close(fill[i]);
    close(hole_fd);
    close(mute_fd);
    node_leave(n, NULL);
}

/* One of two networks is dead: rank 2 finds out with rank 0, and does not try it again with rank 1. */
static void dead_network(rank *r) {
    enum { FILL = 4, SECONDS = 9 };
    node *n = node_open(r, r->size, 20, NULL);
    uint16_t hole;
    int hole_fd = listen_at(2, 0, &hole), fill[FILL];
    for (int i = 0; i < FILL; i++) fill[i] = node_call_port(2, hole, SOCK_NONBLOCK);
    for (int i = 0; i < r->size; i++) {
        hpc_endpoint dead = loopback(2, hole), right = loopback(64 + i, n->all[i].endpoints[0].port);
        dead.prefix = right.prefix = 26;
        n->links[i] = HPC_LINK_TCP;
        if (i == r->rank) continue;
        memset(n->all[i].endpoints, 0, sizeof n->all[i].endpoints);
        n->all[i].endpoints[r->rank == 2 ? 1 : 0] = right;
        if (r->rank == 2) n->all[i].endpoints[0] = dead;
    }
    double start = ranks_now();
    CHECK_OK(node_call(n, r->rank == 2 ? SECONDS : 2 * SECONDS));
    if (r->rank == 2) CHECK(ranks_now() - start < SECONDS / 2.0);
    CHECK_OK(node_meet(n, 20));
    for (int i = 0; i < FILL; i++) close(fill[i]);
    close(hole_fd);
    node_leave(n, NULL);
}

/* The listener is closed when nobody needs it. */
static void deaf(rank *r) {
    node *n = node_join(r, r->arg, 10);
    CHECK_OK(node_meet(n, 20));
    int fd = node_call_port(1, n->all[r->rank].endpoints[0].port, 0);
    char byte;
    CHECK_EQ(send(fd, "x", 1, MSG_NOSIGNAL) == 1, r->arg == ALL_TCP);
    CHECK(r->arg != ALL_TCP || recv(fd, &byte, 1, MSG_DONTWAIT) <= 0);
    close(fd);
    CHECK_OK(node_meet(n, 20));
    node_leave(n, NULL);
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
    hpc_greeting_end(fd);
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
    node *n = node_open(r, r->size, 10, "mellon");
    lanes lanes = {0};
    int fds[RANKS_MAX], fd;
    hpc_control_on_lane(n->control, accept_lane, &lanes);
    CHECK_OK(node_connect(n, ALL_TCP, 20));
    CHECK_OK(node_meet(n, 20)); /* every rank knows every other one, as when a lane is made */
    for (int i = 0; i < r->size; i++) {
        if (i == r->rank) continue;
        CHECK_OK(hpc_control_call_lane(n->control, i, 7, r->rank % 3, "lane", hpc_now() + 10, &fds[i]));
        send_byte(fds[i], 'a' + r->rank);
        CHECK_STATUS(hpc_control_call_lane(n->control, i, 8, 0, "lane", hpc_now() + 10, &fd), HPC_ERR_TRANSPORT);
        CHECK_EQ(fd, -1);
        CHECK_EQ(hpc_last_error()->peer, i);
    }
    CHECK_OK(node_meet(n, 20));
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
    CHECK_OK(node_meet(n, 20));
    node_leave(n, NULL);
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
        {.name = "late", .size = 3, .run = late, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "never", .size = 3, .run = never, .where = RANKS_SHM, .bare = true},
        {.name = "dead-before", .size = 3, .run = dead_before, .where = RANKS_SHM, .bare = true},
        {.name = "dead-child", .size = 3, .run = dead_child, .arg = 0, .where = RANKS_SHM, .bare = true},
        {.name = "dead-in-its-call", .size = 2, .run = dead_child, .arg = 1, .where = RANKS_SHM, .bare = true},
        {.name = "wrong-secret", .size = 2, .run = wrong_secret, .where = RANKS_SHM, .bare = true},
        {.name = "wrong-addresses", .size = 2, .run = wrong_addresses, .where = RANKS_SHM, .bare = true},
        {.name = "dead-network", .size = 3, .run = dead_network, .where = RANKS_SHM, .bare = true},
        {.name = "deaf-unix", .size = 2, .run = deaf, .arg = ALL_UNIX, .where = RANKS_SHM, .bare = true},
        {.name = "deaf-tcp", .size = 2, .run = deaf, .arg = ALL_TCP, .where = RANKS_SHM, .bare = true},
        {.name = "lanes", .size = 4, .run = call_lanes, .where = RANKS_SHM, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
