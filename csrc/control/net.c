#define _GNU_SOURCE
#include "control/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/wait.h"

enum { IPV4 = 1, IPV6 = 2 }; /* families of addresses (bits) */

enum { BACKLOG = 4096, IPV4_BYTES = 4, IPV6_BYTES = 16, NAMES_BYTES = 256 };

_Static_assert(HPC_IFNAME == IFNAMSIZ, "an interface's name has room");

typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} address;

/* ---- addresses ---- */

static size_t ip_bytes(const hpc_endpoint *e) {
    return e->family == 4 ? IPV4_BYTES : IPV6_BYTES;
}

/* Reads an IP address; one that a dual-stack socket shows as IPv6 becomes IPv4 again. Returns 0 for other families. */
static int endpoint_of(const address *a, hpc_endpoint *e) {
    memset(e, 0, sizeof *e);
    if (a->any.sa_family == AF_INET) {
        e->family = 4;
        e->port = ntohs(a->v4.sin_port);
        memcpy(e->ip, &a->v4.sin_addr, IPV4_BYTES);
    } else if (a->any.sa_family == AF_INET6) {
        int mapped = IN6_IS_ADDR_V4MAPPED(&a->v6.sin6_addr);
        e->family = mapped ? 4 : 6;
        e->port = ntohs(a->v6.sin6_port);
        memcpy(e->ip, a->v6.sin6_addr.s6_addr + (mapped ? IPV6_BYTES - IPV4_BYTES : 0),
               mapped ? IPV4_BYTES : IPV6_BYTES);
    }
    return e->family != 0;
}

static socklen_t address_of(const hpc_endpoint *e, address *a) {
    memset(a, 0, sizeof *a);
    if (e->family == 4) {
        a->v4.sin_family = AF_INET;
        a->v4.sin_port = htons(e->port);
        memcpy(&a->v4.sin_addr, e->ip, IPV4_BYTES);
        return sizeof a->v4;
    }
    a->v6.sin6_family = AF_INET6;
    a->v6.sin6_port = htons(e->port);
    memcpy(&a->v6.sin6_addr, e->ip, IPV6_BYTES);
    return sizeof a->v6;
}

static int is_present(const hpc_endpoint *e) {
    return e->family == 4 || e->family == 6;
}

int hpc_net_is_loopback(const hpc_endpoint *e) {
    static const uint8_t one[IPV6_BYTES] = {[IPV6_BYTES - 1] = 1};
    return e->family == 4 ? e->ip[0] == 127 : e->family == 6 && memcmp(e->ip, one, sizeof one) == 0;
}

static int is_link_local(const hpc_endpoint *e) {
    return e->family == 4 ? e->ip[0] == 169 && e->ip[1] == 254 : e->ip[0] == 0xfe && (e->ip[1] & 0xc0) == 0x80;
}

static int same_ip(const hpc_endpoint *a, const hpc_endpoint *b) {
    return a->family == b->family && memcmp(a->ip, b->ip, ip_bytes(a)) == 0;
}

static int in_network(const hpc_endpoint *e, const hpc_endpoint *network) {
    if (e->family != network->family) return 0;
    size_t bits = network->prefix, most = 8 * ip_bytes(e);
    if (bits > most) bits = most;
    if (memcmp(e->ip, network->ip, bits / 8) != 0) return 0;
    return bits % 8 == 0 || (e->ip[bits / 8] ^ network->ip[bits / 8]) >> (8 - bits % 8) == 0;
}

void hpc_net_text(const hpc_endpoint *e, char text[HPC_ENDPOINT_TEXT]) {
    char ip[INET6_ADDRSTRLEN];
    if (!is_present(e) || inet_ntop(e->family == 4 ? AF_INET : AF_INET6, e->ip, ip, sizeof ip) == NULL) {
        snprintf(text, HPC_ENDPOINT_TEXT, "no address");
        return;
    }
    int n = snprintf(text, HPC_ENDPOINT_TEXT, e->family == 4 ? "%s:%u" : "[%s]:%u", ip, (unsigned)e->port);
    if (e->interface[0] != '\0')
        snprintf(text + n, HPC_ENDPOINT_TEXT - (size_t)n, " by %.*s", HPC_IFNAME - 1, e->interface);
}

void hpc_net_peer_text(int fd, char text[HPC_ENDPOINT_TEXT]) {
    address a;
    socklen_t nbytes = sizeof a;
    hpc_endpoint e;
    if (getpeername(fd, &a.any, &nbytes) != 0)
        snprintf(text, HPC_ENDPOINT_TEXT, "a peer that is gone");
    else if (!endpoint_of(&a, &e))
        snprintf(text, HPC_ENDPOINT_TEXT, "a socket of this host");
    else
        hpc_net_text(&e, text);
}

/* ---- which interfaces ---- */

hpc_choice hpc_choice_of(const char *text) {
    hpc_choice c = {0};
    if (text == NULL || text[0] == '\0') return c;
    c.list = text;
    c.excludes = *c.list == '^';
    c.list += c.excludes;
    c.exact = *c.list == '=';
    c.list += c.exact;
    return c;
}

/* Returns the next name of a comma list, without spaces around it; NULL at the end. */
static const char *next_name(const char **list, size_t *length) {
    while (**list == ',' || **list == ' ') ++*list;
    const char *name = *list;
    size_t n = strcspn(name, ",");
    *list += n;
    while (n > 0 && name[n - 1] == ' ') n--;
    *length = n;
    return n > 0 ? name : NULL;
}

static int is_listed(const hpc_choice *c, const char *interface) {
    const char *list = c->list, *name;
    size_t length;
    while ((name = next_name(&list, &length)) != NULL) {
        int exact = c->exact || *name == '=';
        if (*name == '=') name++, length--;
        if (strncmp(interface, name, length) == 0 && (!exact || interface[length] == '\0')) return 1;
    }
    return 0;
}

static int is_allowed(const hpc_choice *c, const hpc_endpoint *e) {
    if (c->list != NULL) return is_listed(c, e->interface) != c->excludes;
    return !hpc_net_is_loopback(e) && strcmp(e->interface, "lo") != 0 && strncmp(e->interface, "docker", 6) != 0 &&
           strncmp(e->interface, "br-", 3) != 0;
}

static int prefix_of(const struct sockaddr *mask, const hpc_endpoint *e) {
    const unsigned char *bytes;
    int bits = 0, most = 8 * (int)ip_bytes(e);
    if (mask == NULL) return most;
    bytes = e->family == 4 ? (const unsigned char *)&((const struct sockaddr_in *)(const void *)mask)->sin_addr
                           : ((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr.s6_addr;
    while (bits < most && (bytes[bits / 8] >> (7 - bits % 8) & 1)) bits++;
    return bits;
}

/* Returns whether to give an interface's address to other hosts: a link-local IPv6 address needs a scope that they
 * lack. */
static int endpoint_of_interface(const struct ifaddrs *i, unsigned families, hpc_endpoint *e) {
    address a;
    if (i->ifa_addr == NULL || (i->ifa_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING)) return 0;
    memset(&a, 0, sizeof a);
    if (i->ifa_addr->sa_family == AF_INET && families & IPV4)
        memcpy(&a, i->ifa_addr, sizeof a.v4);
    else if (i->ifa_addr->sa_family == AF_INET6 && families & IPV6)
        memcpy(&a, i->ifa_addr, sizeof a.v6);
    if (!endpoint_of(&a, e) || (e->family == 6 && is_link_local(e))) return 0;
    e->prefix = (uint8_t)prefix_of(i->ifa_netmask, e);
    /* A second IPv4 address of an interface may be named eth0:label. */
    snprintf(e->interface, sizeof e->interface, "%.*s", (int)strcspn(i->ifa_name, ":"), i->ifa_name);
    return 1;
}

/* Rates an endpoint of this host; lower is better. */
static int grade(const hpc_endpoint *e) {
    if (hpc_net_is_loopback(e)) return e->family == 4 ? 3 : 4;
    if (is_link_local(e)) return 2;
    return e->family == 4 ? 0 : 1;
}

/* Inserts an endpoint before worse ones; if the array is full, the last one is dropped. */
static void insert(hpc_endpoint endpoints[HPC_ENDPOINTS], const hpc_endpoint *e) {
    int at = 0;
    while (at < HPC_ENDPOINTS && is_present(&endpoints[at]) && grade(&endpoints[at]) <= grade(e)) at++;
    if (at == HPC_ENDPOINTS) return;
    memmove(&endpoints[at + 1], &endpoints[at], (size_t)(HPC_ENDPOINTS - 1 - at) * sizeof *endpoints);
    endpoints[at] = *e;
}

/* Collects the addresses that the choice allows, and returns their number. */
static int collect(const struct ifaddrs *interfaces, const hpc_choice *c, unsigned families, int all,
                   hpc_endpoint endpoints[HPC_ENDPOINTS]) {
    int n = 0;
    hpc_endpoint e;
    memset(endpoints, 0, HPC_ENDPOINTS * sizeof *endpoints);
    for (const struct ifaddrs *i = interfaces; i != NULL; i = i->ifa_next) {
        if (!endpoint_of_interface(i, families, &e) || (!all && !is_allowed(c, &e))) continue;
        insert(endpoints, &e);
        n++;
    }
    return n;
}

/* Lists the names of the interfaces, each once. */
static void list_names(const struct ifaddrs *interfaces, unsigned families, char names[NAMES_BYTES]) {
    const hpc_choice known = {.exact = 1, .list = names};
    hpc_endpoint e;
    size_t used = 0;
    names[0] = '\0';
    for (const struct ifaddrs *i = interfaces; i != NULL && used < NAMES_BYTES - 1; i = i->ifa_next) {
        if (!endpoint_of_interface(i, families, &e) || is_listed(&known, e.interface)) continue;
        int n = snprintf(names + used, NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "", e.interface);
        used += n > 0 ? (size_t)n : 0;
    }
    if (used == 0) snprintf(names, NAMES_BYTES, "none");
}

static int find_endpoints(const char *interfaces, unsigned families, hpc_endpoint endpoints[HPC_ENDPOINTS],
                          const char *op) {
    hpc_choice c = hpc_choice_of(interfaces);
    struct ifaddrs *there = NULL;
    char names[NAMES_BYTES];
    int status = HPC_OK;
    if (getifaddrs(&there) != 0)
        return hpc_fail(HPC_ERR_TRANSPORT, op, "%s: cannot list the interfaces of this host: %s", op, strerror(errno));
    int n = collect(there, &c, families, 0, endpoints);
    if (n == 0 && c.list == NULL) n = collect(there, &c, families, 1, endpoints);
    if (n == 0) {
        list_names(there, families, names);
        status = c.list == NULL
                     ? hpc_fail(HPC_ERR_CONFIG, op, "%s: no interface of this host is up and has an address", op)
                     : hpc_fail(HPC_ERR_CONFIG, op,
                                "%s: HPCOMM_SOCKET_IFNAME is \"%s\", which allows no interface of this host that is up "
                                "and has an address; name some of these, or leave it unset: %s",
                                op, interfaces, names);
    }
    freeifaddrs(there);
    return status;
}

int hpc_net_endpoint(const char *ip, int port, hpc_endpoint *e) {
    memset(e, 0, sizeof *e);
    if (inet_pton(AF_INET, ip, e->ip) == 1)
        e->family = 4;
    else if (inet_pton(AF_INET6, ip, e->ip) == 1)
        e->family = 6;
    e->prefix = (uint8_t)(8 * ip_bytes(e));
    e->port = (uint16_t)port;
    return is_present(e) && port > 0 && port <= UINT16_MAX;
}

/* Adds the network and the interface of an address of this host, if it is one. */
static void add_interface(hpc_endpoint *e) {
    struct ifaddrs *there = NULL;
    hpc_endpoint found;
    if (getifaddrs(&there) != 0) return;
    for (const struct ifaddrs *i = there; i != NULL; i = i->ifa_next) {
        if (!endpoint_of_interface(i, IPV4 | IPV6, &found) || !same_ip(&found, e)) continue;
        found.port = e->port;
        *e = found;
    }
    freeifaddrs(there);
}

static void set_port(hpc_endpoint endpoints[HPC_ENDPOINTS], uint16_t port) {
    for (int i = 0; i < HPC_ENDPOINTS; i++)
        if (is_present(&endpoints[i])) endpoints[i].port = port;
}

int hpc_net_announce(const char *ip, int port, const char *interfaces, hpc_endpoint endpoints[HPC_ENDPOINTS],
                     const char *op) {
    static const uint8_t every[IPV6_BYTES];
    hpc_endpoint at;
    if (!hpc_net_endpoint(ip, port, &at))
        return hpc_fail(HPC_ERR_CONFIG, op, "%s: door is \"%.64s\" and door_port %d: give an IP address and a port", op,
                        ip, port);
    if (memcmp(at.ip, every, ip_bytes(&at)) == 0) {
        const int status = find_endpoints(interfaces, at.family == 4 ? IPV4 : IPV6, endpoints, op);
        if (status == HPC_OK) set_port(endpoints, at.port);
        return status;
    }
    memset(endpoints, 0, HPC_ENDPOINTS * sizeof *endpoints);
    add_interface(&at);
    endpoints[0] = at;
    return HPC_OK;
}

/* ---- sockets ---- */

/* Makes a listening socket; returns -1 with errno on failure. */
static int listen_on(const address *a, socklen_t nbytes, int only_ipv6) {
    const int on = 1, family = a->any.sa_family;
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error;
    if (fd < 0) return -1;
    if ((family != AF_INET6 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_ipv6, sizeof only_ipv6) == 0) &&
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && bind(fd, &a->any, nbytes) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Listens on every address of the family; AF_INET6 includes IPv4. */
static int listen_everywhere(int family) {
    const address a = {.any.sa_family = (sa_family_t)family};
    return listen_on(&a, family == AF_INET6 ? sizeof a.v6 : sizeof a.v4, 0);
}

int hpc_net_listen_at(const hpc_endpoint *endpoint) {
    address a;
    const socklen_t nbytes = address_of(endpoint, &a);
    return listen_on(&a, nbytes, 1);
}

int hpc_net_listen(const char *interfaces, hpc_endpoint endpoints[HPC_ENDPOINTS], int *fd, const char *op) {
    address a;
    socklen_t nbytes = sizeof a;
    hpc_endpoint bound;
    char hint[HPC_FILES_HINT];
    int status;
    unsigned families = IPV4 | IPV6;
    *fd = listen_everywhere(AF_INET6);
    if (*fd < 0) {
        families = IPV4;
        *fd = listen_everywhere(AF_INET);
    }
    if (*fd < 0 || getsockname(*fd, &a.any, &nbytes) != 0)
        status = hpc_fail(HPC_ERR_TRANSPORT, op, "%s: cannot listen for TCP connections: %s%s", op, strerror(errno),
                          hpc_files_hint(errno, hint));
    else
        status = find_endpoints(interfaces, families, endpoints, op);
    if (status != HPC_OK) {
        if (*fd >= 0) close(*fd);
        *fd = -1;
        return status;
    }
    endpoint_of(&a, &bound);
    set_port(endpoints, bound.port);
    return HPC_OK;
}

int hpc_net_is_local(int fd, const hpc_endpoint endpoints[HPC_ENDPOINTS]) {
    address a;
    socklen_t nbytes = sizeof a;
    hpc_endpoint e;
    if (getsockname(fd, &a.any, &nbytes) != 0 || !endpoint_of(&a, &e)) return 0;
    if (hpc_net_is_loopback(&e)) return 1;
    for (int i = 0; i < HPC_ENDPOINTS; i++)
        if (is_present(&endpoints[i]) && same_ip(&e, &endpoints[i])) return 1;
    return 0;
}

/* ---- reaching a peer ---- */

/* Rates an endpoint of a peer; lower is tried first. If the peer is not known to be on this host, a loopback address
 * leads back to this host. */
static int distance(const hpc_endpoint own[HPC_ENDPOINTS], const hpc_endpoint *e) {
    int best = hpc_net_is_loopback(e) ? 3 : 2;
    for (int i = 0; i < HPC_ENDPOINTS && !hpc_net_is_loopback(e); i++) {
        if (!is_present(&own[i])) continue;
        if (in_network(e, &own[i])) return 0;
        if (strncmp(e->interface, own[i].interface, HPC_IFNAME) == 0) best = 1;
    }
    return best;
}

static int add(hpc_endpoint *candidates, int n, const hpc_endpoint *e) {
    for (int i = 0; i < n; i++)
        if (same_ip(&candidates[i], e)) return n;
    candidates[n] = *e;
    return n + 1;
}

int hpc_net_candidates(const hpc_endpoint own[HPC_ENDPOINTS], const hpc_endpoint peer[HPC_ENDPOINTS], int same_host,
                       hpc_endpoint candidates[HPC_ENDPOINTS + 2]) {
    enum { FARTHEST = 3 };
    hpc_endpoint loopback4 = {.family = 4, .prefix = 8, .ip = {127, 0, 0, 1}, .interface = "lo"};
    hpc_endpoint loopback6 = {.family = 6, .prefix = 128, .ip = {[IPV6_BYTES - 1] = 1}, .interface = "lo"};
    int n = 0, has_ipv6 = 0;
    for (int i = 0; i < HPC_ENDPOINTS; i++) has_ipv6 |= peer[i].family == 6;
    if (same_host && is_present(&peer[0])) {
        loopback4.port = loopback6.port = peer[0].port;
        n = add(candidates, n, &loopback4);
        if (has_ipv6) n = add(candidates, n, &loopback6);
    }
    for (int near = 0; near <= FARTHEST; near++)
        for (int i = 0; i < HPC_ENDPOINTS; i++)
            if (is_present(&peer[i]) && distance(own, &peer[i]) == near) n = add(candidates, n, &peer[i]);
    return n;
}

/* Detects a connection to itself: a connect to an ephemeral port without listener may choose that very port as its
 * source. */
static int is_own_echo(int fd) {
    address here, there;
    socklen_t n_here = sizeof here, n_there = sizeof there;
    hpc_endpoint a, b;
    return getsockname(fd, &here.any, &n_here) == 0 && getpeername(fd, &there.any, &n_there) == 0 &&
           endpoint_of(&here, &a) && endpoint_of(&there, &b) && same_ip(&a, &b) && a.port == b.port;
}

static _Thread_local const _Atomic int *over; /* hpc_net_heed's */

void hpc_net_heed(const _Atomic int *end) {
    over = end;
}

int hpc_net_await(int fd, short events, double deadline) {
    enum { MOST_MS = 60000, HEED_MS = 20 };
    for (;;) {
        const double left = hpc_left(deadline), most = over == NULL ? MOST_MS : HEED_MS;
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, left * 1e3 > most ? (int)most : (int)(left * 1e3) + (left > 0));
        if (n > 0) return HPC_OK;
        if (n < 0 && errno != EINTR) return HPC_ERR_TRANSPORT;
        if (left <= 0 || (over != NULL && atomic_load(over))) return HPC_ERR_TIMEOUT;
    }
}

int hpc_net_send_all(int fd, const void *data, size_t nbytes, double deadline) {
    const char *bytes = data;
    while (nbytes > 0) {
        ssize_t n = send(fd, bytes, nbytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            bytes += n;
            nbytes -= (size_t)n;
        } else if (errno == EAGAIN) {
            int status = hpc_net_await(fd, POLLOUT, deadline);
            if (status != HPC_OK) return status;
        } else if (errno != EINTR) {
            return HPC_ERR_TRANSPORT;
        }
    }
    return HPC_OK;
}

int hpc_net_receive_all(int fd, void *data, size_t nbytes, double deadline) {
    char *bytes = data;
    while (nbytes > 0) {
        ssize_t n = recv(fd, bytes, nbytes, MSG_DONTWAIT);
        if (n == 0) return HPC_ERR_TRANSPORT;
        if (n > 0) {
            bytes += n;
            nbytes -= (size_t)n;
        } else if (errno == EAGAIN) {
            int status = hpc_net_await(fd, POLLIN, deadline);
            if (status != HPC_OK) return status;
        } else if (errno != EINTR) {
            return HPC_ERR_TRANSPORT;
        }
    }
    return HPC_OK;
}

/* Waits for a pending connect; returns 0 when it succeeds, its errno, or EINPROGRESS after the deadline. */
static int await_connected(int fd, double deadline) {
    int error = 0;
    socklen_t nbytes = sizeof error;
    const int status = hpc_net_await(fd, POLLOUT, deadline);
    if (status == HPC_ERR_TIMEOUT) return EINPROGRESS;
    return status == HPC_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &nbytes) == 0 ? error : errno;
}

int hpc_net_connect(const hpc_endpoint *to, double deadline, int *fd, int *error) {
    address a;
    socklen_t nbytes = address_of(to, &a);
    *error = 0;
    *fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0) {
        *error = errno;
        return HPC_ERR_TRANSPORT;
    }
    /* An interrupted connect goes on by itself. */
    if (connect(*fd, &a.any, nbytes) != 0)
        *error = errno == EINPROGRESS || errno == EINTR ? await_connected(*fd, deadline) : errno;
    if (*error == 0 && is_own_echo(*fd)) *error = ECONNREFUSED;
    if (*error == 0) return HPC_OK;
    close(*fd);
    *fd = -1;
    if (*error != EINPROGRESS) return HPC_ERR_TRANSPORT;
    *error = ETIMEDOUT;
    return HPC_ERR_TIMEOUT;
}

static void set(int fd, int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof value); /* if the kernel refuses an option, its default stays */
}

void hpc_net_tune(int fd, double silence) {
    enum { MOST_SECONDS = 32767 }; /* the kernel's limit for keepalive */
    int seconds = silence >= 1 ? (silence < MOST_SECONDS ? (int)silence : MOST_SECONDS) : 1;
    int idle = seconds > 1 ? seconds / 2 : 1, interval = seconds > 10 ? seconds / 10 : 1;
    int probes = seconds > idle ? (seconds - idle) / interval : 1;
    double ms = silence * 1e3;
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, probes);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    /* 0 would mean the default. */
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, ms >= 1 ? (ms < INT_MAX ? (int)ms : INT_MAX) : 1);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* ---- congestion control ---- */

static int take_congestion(int fd, const char *name) {
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

void hpc_net_set_congestion(int fd, const char *name) {
    char now[HPC_CONGESTION_BYTES] = "";
    socklen_t nbytes = sizeof now - 1;
    if (name[0] != 0) {
        take_congestion(fd, name);
        return;
    }
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, now, &nbytes) != 0 || strncmp(now, "bbr", 3) != 0) return;
    if (!take_congestion(fd, "cubic")) take_congestion(fd, "reno");
}

int hpc_net_check_congestion(const char *name, const char *op) {
    if (name[0] == 0) return HPC_OK;
    char allowed[NAMES_BYTES] = "";
    int fd = strlen(name) < HPC_CONGESTION_BYTES ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
    int takes = fd >= 0 && take_congestion(fd, name);
    if (fd >= 0) close(fd);
    if (takes) return HPC_OK;
    FILE *names = fopen("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "re");
    if (names != NULL) {
        if (fgets(allowed, sizeof allowed, names) == NULL) allowed[0] = 0;
        fclose(names);
        allowed[strcspn(allowed, "\n")] = 0;
    }
    return hpc_fail(HPC_ERR_CONFIG, op, "%s: tcp_congestion is \"%.32s\"; this process may choose: %s", op, name,
                    allowed[0] != 0 ? allowed : "(unknown)");
}
