#define _GNU_SOURCE
#include "node.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

static unsigned char links_of(kinds kinds, int a, int b) {
    if (kinds == ALL_TCP) return HPC_LINK_TCP;
    if (kinds == ALL_UNIX) return HPC_LINK_UNIX | HPC_LINK_TCP;
    return a % 2 == b % 2 ? HPC_LINK_UNIX | HPC_LINK_TCP : HPC_LINK_TCP;
}

void node_share(rank *r, const void *mine, void *all, size_t nbytes) {
    void *request;
    CHECK_OK(r->oob.allgather(mine, all, nbytes, r->oob.arg, &request));
    while (r->oob.test(request) == HPC_IN_PROGRESS) {
    }
    CHECK_OK(r->oob.free(request));
}

node *node_open(rank *r, int size, double silence, const char *secret) {
    return node_open_at(r, size, silence, secret, 0);
}

node *node_open_at(rank *r, int size, double silence, const char *secret, int door_port) {
    static char owner = 1;
    node *n = calloc(1, sizeof *n);
    const hpc_control_config config = {.tcp = 1,
                                       .silence = silence,
                                       .secret = secret,
                                       .secret_bytes = secret ? strlen(secret) : 0,
                                       .door = door_port != 0 ? "127.0.0.1" : NULL,
                                       .door_port = door_port};
    hpc_control_address mine;
    CHECK(n);
    n->r = r;
    n->group = (hpc_group){.rank = r->rank, .size = size, .timeout = 20, .init_timeout = 20, .owner = &owner};
    n->group.states = calloc((size_t)size, sizeof *n->group.states);
    n->group.departing = calloc((size_t)size, sizeof *n->group.departing);
    n->group.reasons = calloc((size_t)size, sizeof *n->group.reasons);
    CHECK_OK(hpc_memory_create(sizeof(hpc_bell), "test", &n->bell));
    n->group.bell = hpc_memory_data(n->bell);
    CHECK_OK(hpc_control_open(&n->group, n->bell, &config, &n->control));
    memset(&mine, 0, sizeof mine);
    hpc_control_address_of(n->control, &mine);
    node_share(r, &mine, n->all, sizeof mine);
    return n;
}

int node_call(node *n, double seconds) {
    return hpc_control_connect(n->control, n->all, n->links, n->same_host, n->hosts, hpc_now() + seconds);
}

int node_connect(node *n, kinds kinds, double seconds) {
    for (int i = 0; i < n->group.size; i++) {
        n->links[i] = links_of(kinds, n->r->rank, i);
        n->same_host[i] = kinds != MIXED || i % 2 == n->r->rank % 2;
        n->hosts[i] = kinds == MIXED ? i % 2 : 0;
    }
    return node_call(n, seconds);
}

node *node_join(rank *r, kinds kinds, double silence) {
    node *n = node_open(r, r->size, silence, NULL);
    CHECK_OK(node_connect(n, kinds, 20));
    return n;
}

void node_leave(node *n, const char *why) {
    atomic_store(&n->group.closed, 1);
    hpc_control_stop(n->control, why);
    hpc_control_free(n->control);
    hpc_memory_release(n->bell);
    free(n->group.states);
    free(n->group.departing);
    free(n->group.reasons);
    free(n);
}

int node_gather(node *n, const char *op, const void *data, size_t nbytes, hpc_sizes sizes, double seconds) {
    return hpc_control_exchange(n->control, op, data, nbytes, sizes, n->replies, hpc_now() + seconds);
}

int node_meet(node *n, double seconds) {
    int status = node_gather(n, "meet", NULL, 0, HPC_EQUAL_SIZES, seconds);
    if (status == HPC_OK) hpc_control_free_replies(n->control, n->replies);
    return status;
}

void node_idle(double seconds) {
    double end = ranks_now() + seconds;
    while (ranks_now() < end) poll(NULL, 0, 10);
}

int node_call_port(int last, uint16_t port, int flags) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x7f000000u + (unsigned)last)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS || errno == ECONNREFUSED);
    return fd;
}

void node_expect_gone(node *n, int who, const char *text, double seconds) {
    double start = ranks_now();
    CHECK_STATUS(node_meet(n, 20), HPC_ERR_PEER);
    CHECK(ranks_error_names(who));
    CHECK_MESSAGE(text);
    CHECK(ranks_now() - start < seconds);
    CHECK_STATUS(node_meet(n, 20), HPC_ERR_PEER); /* and from then on */
}
