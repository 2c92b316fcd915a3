/* The users of ranks: which pairs share memory, and whom the kernel lets call. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "control/users.h"

static const uint32_t HUB = 4101, WORKER = 4102, OTHER = 4103;

static void test_pairs(void) {
    const hpc_users hub = {HUB, 2, {OTHER, WORKER}}, worker = {WORKER, 1, {HUB}}, alone = {WORKER, 0, {HUB}},
                    other = {OTHER, 1, {WORKER}}, root = {0, 0, {0}};
    CHECK(hpc_users_share(&hub, &worker) && hpc_users_share(&worker, &hub));
    CHECK(hpc_users_share(&worker, &alone)); /* one user */
    CHECK(!hpc_users_share(&hub, &alone) && !hpc_users_share(&alone, &hub));
    CHECK(!hpc_users_share(&hub, &other) && !hpc_users_share(&other, &worker));
    CHECK(!hpc_users_share(&hub, &root) && !hpc_users_share(&root, &worker));
}

/* An address from elsewhere may have any count. */
static void test_counts(void) {
    hpc_users hub = {HUB, 1, {WORKER}}, *worker = malloc(sizeof *worker); /* a sanitizer sees reads past it */
    CHECK(worker);
    *worker = (hpc_users){WORKER, INT32_MAX, {0}};
    CHECK(!hpc_users_share(&hub, worker));
    worker->n = -1;
    worker->named[0] = HUB;
    CHECK(!hpc_users_share(&hub, worker));
    free(worker);
}

static void test_sockets(void) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0);
    CHECK(hpc_user_is_there(fds[0], NULL, 0)); /* this process */
    close(fds[0]);
    close(fds[1]);
    CHECK(!hpc_user_is_there(fds[0], NULL, 0));
    if (geteuid() != 0) return;
    CHECK(seteuid(WORKER) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0);
    CHECK(seteuid(0) == 0);
    CHECK(!hpc_user_is_there(fds[0], NULL, 0));
    CHECK(!hpc_user_is_there(fds[0], (uint32_t[]){HUB, OTHER}, 2));
    CHECK(!hpc_user_is_there(fds[0], (uint32_t[]){HUB, WORKER}, 1));
    CHECK(hpc_user_is_there(fds[0], (uint32_t[]){HUB, WORKER}, 2));
    close(fds[0]);
    close(fds[1]);
}

int main(void) {
    test_pairs();
    test_counts();
    test_sockets();
    return 0;
}
