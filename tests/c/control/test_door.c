/* Ranks that are called at a door: a port at which their process listens, and whose connections it gives them. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/channel.h"
#include "node.h"

enum { SIZE = 6, WITH_DOOR = SIZE - 1 };

static const double SECONDS = 20;

/* ---- a process that listens ---- */

typedef struct door {
    int fd, port;
    node *to;
    pthread_t thread;
    _Atomic int calls, refuses, ends; /* refuses: it has no context */
} door;

static int listen_here(int *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t nbytes = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &nbytes) == 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static void serve_one(door *d, int fd) {
    static const char greeting[HPC_DOOR_GREETING + 1] = "hpchub, and what it likes";
    char call[HPC_DOOR_CALL];
    hpc_control_address own;
    CHECK(send(fd, greeting, HPC_DOOR_GREETING, MSG_NOSIGNAL) == HPC_DOOR_GREETING);
    CHECK(recv(fd, call, sizeof call, MSG_WAITALL) == sizeof call);
    hpc_control_address_of(d->to->control, &own);
    CHECK(memcmp(call, "hpcdoor1", 8) == 0 && memcmp(call + 8, own.name, sizeof own.name) == 0);
    atomic_fetch_add(&d->calls, 1);
    const char taken = !atomic_load(&d->refuses);
    CHECK(send(fd, &taken, 1, MSG_NOSIGNAL) == 1);
    if (taken) CHECK_OK(hpc_control_take(d->to->control, fd));
    if (!taken) close(fd);
}

static void *serve(void *arg) {
    door *d = arg;
    for (;;) {
        const int fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC);
        if (atomic_load(&d->ends)) {
            close(fd);
            return NULL;
        }
        serve_one(d, fd);
    }
}

static void open_door(door *d, node *to) {
    d->to = to;
    CHECK(pthread_create(&d->thread, NULL, serve, d) == 0);
}

static void close_door(door *d) {
    atomic_store(&d->ends, 1);
    int fd = node_call_port(1, (uint16_t)d->port, 0);
    pthread_join(d->thread, NULL);
    close(fd);
    close(d->fd);
}

/* ---- ranks ---- */

static _Thread_local hpc_giver giver;

typedef struct answer {
    _Atomic int status;
    char why[256];
} answer;

static void take(void *arg, int rank, uint64_t number, int status, const char *why, hpc_blob *blob) {
    answer *a = arg;
    (void)rank, (void)number, (void)blob;
    snprintf(a->why, sizeof a->why, "%s", why == NULL ? "" : why);
    atomic_store(&a->status, status == 0 ? 1 : status);
}

static void await_links(node *n, const char *linked) {
    const double until = ranks_now() + SECONDS;
    for (int r = 0; r < SIZE; r++)
        while (linked[r] && !hpc_control_is_linked(n->control, r) && ranks_now() < until) poll(NULL, 0, 1);
    for (int r = 0; r < SIZE; r++) CHECK(!linked[r] || hpc_control_is_linked(n->control, r));
}

/* The others call the rank with a door at the start and later, also when that rank asks for the link. It calls none,
 * and cannot be called when its door leads nowhere. */
static void called(rank *r) {
    const int me = r->rank;
    const char both[SIZE] = {[3] = 1, [4] = 1};
    answer a = {0};
    door d = {.fd = -1};
    if (me == WITH_DOOR) d.fd = listen_here(&d.port);
    node *n = node_open_at(r, SIZE, 10, NULL, d.port);
    if (me == WITH_DOOR) open_door(&d, n);
    giver = (hpc_giver){.take = take};
    hpc_control_on_want(n->control, &giver, &a);
    n->group.init_timeout = 1;
    CHECK_OK(node_connect(n, ALL_TCP, SECONDS));
    CHECK_OK(node_meet(n, SECONDS));
    for (int other = 0; other < SIZE; other++)
        CHECK(other == me ||
              hpc_control_calls(n->control, other) == (other == WITH_DOOR || (me != WITH_DOOR && me > other)));
    CHECK(me != WITH_DOOR || atomic_load(&d.calls) == 1); /* of its parent in the tree */
    CHECK_OK(node_meet(n, SECONDS));
    if (me == WITH_DOOR) hpc_control_seek(n->control, 3);
    if (me == 4) hpc_control_seek(n->control, WITH_DOOR);
    if (me == WITH_DOOR) {
        await_links(n, both);
        CHECK(atomic_load(&d.calls) == 3);
        atomic_store(&d.refuses, 1);
        CHECK_OK(hpc_control_want(n->control, 2, 7));
        while (atomic_load(&a.status) == 0) poll(NULL, 0, 1);
        CHECK(atomic_load(&a.status) == HPC_ERR_TIMEOUT);
        CHECK(strstr(a.why, "this rank has a door") != NULL);
        for (const double until = ranks_now() + SECONDS; atomic_load(&d.calls) == 3; poll(NULL, 0, 1))
            CHECK(ranks_now() < until); /* rank 2 has called, in vain */
    }
    CHECK_OK(node_meet(n, SECONDS));
    if (me == WITH_DOOR) close_door(&d);
    node_leave(n, NULL);
}

/* ---- a call by itself ---- */

typedef struct script {
    const char *said;
    size_t nbytes;
    int status, ends;
    const char *why;
} script;

static void *answer_call(void *arg) {
    door *d = arg;
    const script *s = (const void *)d->to;
    char call[HPC_DOOR_CALL];
    const int fd = accept4(d->fd, NULL, NULL, SOCK_CLOEXEC);
    CHECK(recv(fd, call, sizeof call, MSG_WAITALL) == sizeof call);
    CHECK(send(fd, s->said, s->nbytes, MSG_NOSIGNAL) == (ssize_t)s->nbytes);
    if (s->ends) shutdown(fd, SHUT_WR);
    while (recv(fd, call, sizeof call, 0) > 0) {
    }
    close(fd);
    return NULL;
}

#define GREETING "hpchub03................"

static void answers(rank *r) {
    static const script all[] = {
        {GREETING "\1", 25, HPC_OK, 0, ""},
        {GREETING "\0", 25, HPC_ERR_PEER, 0, "it has ended"},
        {GREETING, 24, HPC_ERR_TRANSPORT, 1, "it has no place"},
        {GREETING, 24, HPC_ERR_TIMEOUT, 0, "in time"},
        {GREETING, 7, HPC_ERR_TRANSPORT, 1, "it has no place"},
        {"HTTP/1.1 400 Bad Request\r\n", 26, HPC_ERR_AUTH, 0, "no hub"},
        {"", 0, HPC_ERR_TIMEOUT, 0, "in time"},
    };
    const unsigned char name[HPC_NAME_BYTES] = "a context";
    (void)r;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *why = "";
        door d = {.to = (void *)(uintptr_t)&all[i]};
        d.fd = listen_here(&d.port);
        CHECK(pthread_create(&d.thread, NULL, answer_call, &d) == 0);
        int fd = node_call_port(1, (uint16_t)d.port, 0);
        const double until = hpc_now() + (all[i].status == HPC_ERR_TIMEOUT ? 0.1 : SECONDS);
        CHECK_STATUS(hpc_door_call(fd, name, until, &why), all[i].status);
        CHECK(strstr(why, all[i].why) != NULL);
        close(fd);
        pthread_join(d.thread, NULL);
        close(d.fd);
    }
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "called", .size = SIZE, .run = called, .where = RANKS_SHM, .bare = true},
        {.name = "answers", .size = 1, .run = answers, .where = RANKS_SHM | RANKS_PROCESSES, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
