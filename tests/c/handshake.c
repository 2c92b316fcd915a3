#define _GNU_SOURCE
#include "handshake.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

const unsigned char job_key[PROOF] = "the key of this job, 32 bytes..", other_key[PROOF] = "the key of another job";
const unsigned char listener[HPC_NAME_BYTES] = "a listener name";

uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void loopback_pair(int fds[2]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(fds[0], (struct sockaddr *)&a, sizeof a), 0);
    fds[1] = accept4(fd, NULL, NULL, SOCK_NONBLOCK);
    CHECK(fds[1] >= 0 && fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
    for (int i = 0; i < 2; i++) CHECK_EQ(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
    close(fd);
}

void connection(int fds[2], int tcp) {
    if (tcp)
        loopback_pair(fds);
    else
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
}

void wait_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, SOON * 1000), 1);
}

void send_bytes(int fd, const void *data, size_t nbytes) {
    CHECK_EQ(send(fd, data, nbytes, MSG_NOSIGNAL), nbytes);
}

void receive_bytes(int fd, void *data, size_t nbytes) {
    for (size_t got = 0; got < nbytes;) {
        wait_readable(fd);
        ssize_t n = recv(fd, (char *)data + got, nbytes - got, 0);
        CHECK(n > 0);
        got += (size_t)n;
    }
}

hpc_hello a_hello(void) {
    hpc_hello h;
    memset(&h, 0xa5, sizeof h); /* what the library fills in, and what it must not send as it is */
    h.purpose = HPC_FOR_LANE;
    h.stream = 2;
    h.from = CALLER;
    h.to = RANK;
    h.size = SIZE;
    h.lane = 7;
    memcpy(h.name, listener, sizeof listener);
    return h;
}

hpc_hello good_hello(void) {
    hpc_hello h = a_hello();
    h.magic = 0x6870636d;
    h.version = 1;
    h.order = 0x0102;
    h.unused = 0;
    for (int i = 0; i < HPC_NONCE_BYTES; i++) h.nonce[i] = (unsigned char)random_bits();
    return h;
}

void prove(const char *label, const unsigned char *key, const void *hello, const void *nonce, void *proof) {
    const hpc_bytes parts[] = {{label, strlen(label)}, {hello, sizeof(hpc_hello)}, {nonce, HPC_NONCE_BYTES}};
    hpc_hmac(key, PROOF, parts, 3, proof);
}

int step(hpc_greeting *g, int fd, const unsigned char *key, const char **why) {
    return hpc_greeting_step(g, fd, key, listener, RANK, SIZE, why);
}
