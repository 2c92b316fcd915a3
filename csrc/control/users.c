#define _GNU_SOURCE
#include "control/users.h"

#include <sys/socket.h>
#include <unistd.h>

static int is_in(const uint32_t *users, int n, uint32_t user) {
    for (int i = 0; i < n && i < HPC_MOST_USERS; i++)
        if (users[i] == user) return 1;
    return 0;
}

int hpc_users_share(const hpc_users *a, const hpc_users *b) {
    return a->own == b->own || (is_in(a->named, a->n, b->own) && is_in(b->named, b->n, a->own));
}

int hpc_user_is_there(int fd, const uint32_t *others, int n) {
    struct ucred there;
    socklen_t length = sizeof there;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &there, &length) != 0) return 0;
    return there.uid == geteuid() || there.uid == 0 || is_in(others, n, there.uid);
}
