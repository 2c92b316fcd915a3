/* The users of ranks. The kernel tells each end of a Unix socket the user of the other end, so no rank can claim
 * another user than its own.
 *
 * Ranks of one user share memory. Ranks of two users share memory if each names the other's user, as a hub and the
 * workers of its tenants may do. All ranks judge a pair alike, by the addresses of the two. */
#ifndef HPC_USERS_H
#define HPC_USERS_H

#include "hpcomm/hpcomm.h"

/* A part of a rank's address: it may come from a stranger to this process, so n may have any value. */
typedef struct hpc_users {
    uint32_t own; /* of the rank's process */
    int32_t n;
    uint32_t named[HPC_MOST_USERS];
} hpc_users;

/* Returns whether two ranks are of one user, or name each other's users. */
int hpc_users_share(const hpc_users *a, const hpc_users *b);

/* Returns whether the process at the other end of a Unix socket belongs to this process's user, to root, or to one of
 * n other users. */
int hpc_user_is_there(int fd, const uint32_t *others, int n);

#endif
