#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control/letters.h"
#include "base/wait.h"

enum { ADDRESSES_TEXT = 256 };

/* ---- the addresses of a name ---- */

static int endpoint_of(const struct sockaddr *address, int port, hpc_endpoint *e) {
    memset(e, 0, sizeof *e);
    e->port = (uint16_t)port;
    if (address->sa_family == AF_INET) {
        e->family = 4;
        memcpy(e->ip, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        e->family = 6;
        memcpy(e->ip, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
    }
    return e->family != 0;
}

static int is_any(const hpc_endpoint *e) {
    static const uint8_t zero[16] = {0};
    return memcmp(e->ip, zero, sizeof zero) == 0;
}

/* "10.0.0.2 and fd00::2" */
static const char *list_addresses(const hpc_meeting_place *place, char text[ADDRESSES_TEXT]) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < place->n && used < ADDRESSES_TEXT - 1; i++) {
        const hpc_endpoint *e = &place->at[i];
        char ip[INET6_ADDRSTRLEN] = "?";
        inet_ntop(e->family == 4 ? AF_INET : AF_INET6, e->ip, ip, sizeof ip);
        int n = snprintf(text + used, ADDRESSES_TEXT - used, "%s%s", i > 0 ? " and " : "", ip);
        used += n > 0 ? (size_t)n : 0;
    }
    return text;
}

/* Each address once. */
static void keep(hpc_meeting_place *place, const struct addrinfo *found) {
    for (; found != NULL && place->n < HPC_PLACES; found = found->ai_next) {
        hpc_endpoint *e = &place->at[place->n];
        int known = !endpoint_of(found->ai_addr, place->port, e);
        for (int i = 0; i < place->n && !known; i++) known = memcmp(e, &place->at[i], sizeof *e) == 0;
        if (!known) place->n++;
    }
}

/* Looks up the host until the deadline; returns 0, or getaddrinfo's last error. It tries again and again, because a
 * host that starts late has no name yet, and a pod gets its own name only after its start. */
static int look_up(hpc_meeting_place *place, double deadline) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    for (int pause = 10;; pause = pause < 500 ? 2 * pause : 1000) {
        int error = getaddrinfo(place->host, NULL, &hints, &found);
        if (error == 0) {
            keep(place, found);
            freeaddrinfo(found);
            return place->n > 0 ? 0 : EAI_ADDRFAMILY;
        }
        double left = hpc_left(deadline);
        if (left <= 0) return error;
        poll(NULL, 0, 1e3 * left < pause ? (int)(1e3 * left) + 1 : pause);
    }
}

int hpc_meeting_place_find(hpc_meeting_place *place, int rank, const char *host, int port, int has_secret,
                           double deadline) {
    char addresses[ADDRESSES_TEXT];
    memset(place, 0, sizeof *place);
    if (host == NULL || host[0] == '\0' || strlen(host) >= sizeof place->host)
        return hpc_fail(HPC_ERR_INVALID, "init", "rank %d: init: the host of rank 0 (MASTER_ADDR) is %s", rank,
                        host == NULL || host[0] == '\0' ? "empty" : "too long for a host name");
    if (port < 1 || port > 65535)
        return hpc_fail(HPC_ERR_INVALID, "init",
                        "rank %d: init: the port of rank 0 (MASTER_PORT) is %d: it must be from 1 to 65535", rank,
                        port);
    snprintf(place->host, sizeof place->host, "%s", host);
    snprintf(place->text, sizeof place->text, strchr(host, ':') == NULL ? "%s:%d" : "[%s]:%d", place->host, port);
    place->port = port;

    int error = look_up(place, deadline);
    if (error != 0)
        return hpc_fail(HPC_ERR_CONFIG, "init",
                        "rank %d: init: cannot look up MASTER_ADDR=%s: %s; set MASTER_ADDR to an address of rank 0's "
                        "host (ip addr says them there), or give this host the name (DNS, /etc/hosts)",
                        rank, place->host, gai_strerror(error));
    place->is_loopback = 1;
    for (int i = 0; i < place->n; i++) {
        if (!hpc_net_is_loopback(&place->at[i])) place->is_loopback = 0;
        if (is_any(&place->at[i]))
            return hpc_fail(HPC_ERR_CONFIG, "init",
                            "rank %d: init: MASTER_ADDR=%s means every address of a host: give the one of rank 0's "
                            "host that the other ranks reach",
                            rank, place->host);
        if (!has_secret && !hpc_net_is_loopback(&place->at[i]))
            return hpc_fail(HPC_ERR_AUTH, "init",
                            "rank %d: init: MASTER_ADDR=%s (%s) is not loopback and the job has no secret, so anybody "
                            "who reaches port %d could join it: give every rank HPCOMM_SECRET_FILE, a file with the "
                            "same random bytes on every host (head -c 32 /dev/urandom > FILE; chmod 600 FILE)",
                            rank, place->host, list_addresses(place, addresses), place->port);
    }
    return HPC_OK;
}

/* ---- listening there ---- */

static int fail_to_listen(const hpc_meeting_place *place, int rank, int error) {
    char addresses[ADDRESSES_TEXT], own[HOST_NAME_MAX + 1] = "";
    if (error == EADDRINUSE)
        return hpc_fail(
            HPC_ERR_CONFIG, "init",
            "rank %d: init: port %d of %s is in use by another process, perhaps another job, a second rank 0 "
            "or torchrun's own store: set MASTER_PORT, or HPCOMM_MASTER_PORT, to a free port on every rank",
            rank, place->port, place->host);
    if (error == EACCES || error == EPERM)
        return hpc_fail(HPC_ERR_CONFIG, "init",
                        "rank %d: init: this user may not listen at port %d: set MASTER_PORT to one above 1023", rank,
                        place->port);
    gethostname(own, sizeof own - 1);
    return hpc_fail(HPC_ERR_CONFIG, "init",
                    "rank %d: init: MASTER_ADDR=%s (%s) is no address of %s (%s), but rank 0 must run on the host that "
                    "it names: start rank 0 there, or set MASTER_ADDR to an address of this host on every rank",
                    rank, place->host, list_addresses(place, addresses), own, strerror(error));
}

int hpc_meeting_place_listen(const hpc_meeting_place *place, int rank, int fds[HPC_PLACES]) {
    int n = 0, error = EADDRNOTAVAIL;
    for (int i = 0; i < place->n; i++) {
        int fd = hpc_net_listen_at(&place->at[i]);
        if (fd >= 0) {
            fds[n++] = fd;
            continue;
        }
        error = errno;
        if (error != EADDRINUSE && error != EACCES && error != EPERM) continue;
        while (n > 0) close(fds[--n]);
        break;
    }
    return n > 0 ? n : fail_to_listen(place, rank, error);
}
