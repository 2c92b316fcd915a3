/* Interfaces, addresses, listening and connecting: on this host as it is, and in a network namespace with known
 * interfaces where this process may make one and there is an ip command. */
#define _GNU_SOURCE
#include "check.h"
#include "control/net.h"
#include "base/wait.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double SOON = 20; /* a deadline that no test should meet */
static int without_ipv6;

/* A kernel without IPv6, at will. */
int socket(int domain, int type, int protocol) {
    if (without_ipv6 && domain == AF_INET6) {
        errno = EAFNOSUPPORT;
        return -1;
    }
    return (int)syscall(SYS_socket, domain, type, protocol);
}

static hpc_endpoint endpoint(const char *ip, int prefix, int port, const char *interface) {
    hpc_endpoint e = {.family = strchr(ip, ':') ? 6 : 4, .prefix = (uint8_t)prefix, .port = (uint16_t)port};
    CHECK_EQ(inet_pton(e.family == 6 ? AF_INET6 : AF_INET, ip, e.ip), 1);
    memcpy(e.interface, interface, strnlen(interface, HPC_IFNAME));
    return e;
}

static void check_text(const char *got, const char *expected) {
    if (strcmp(got, expected) != 0) fprintf(stderr, "\"%s\" is not \"%s\"\n", got, expected);
    CHECK(strcmp(got, expected) == 0);
}

static void test_text(void) {
    char text[HPC_ENDPOINT_TEXT];
    hpc_endpoint e = endpoint("10.0.0.2", 24, 40001, "eth0");
    hpc_net_text(&e, text);
    check_text(text, "10.0.0.2:40001 by eth0");
    e = endpoint("fd00::2", 64, 40001, "eth0");
    hpc_net_text(&e, text);
    check_text(text, "[fd00::2]:40001 by eth0");
    e = endpoint("255.255.255.255", 24, 65535, "");
    hpc_net_text(&e, text);
    check_text(text, "255.255.255.255:65535");
    e = (hpc_endpoint){0};
    hpc_net_text(&e, text);
    check_text(text, "no address");
    e.family = 9;
    hpc_net_text(&e, text);
    check_text(text, "no address");
    /* One from the wire, with a name that does not end. */
    e = endpoint("1111:2222:3333:4444:5555:6666:7777:8888", 64, 65535, "sixteen-letters-");
    hpc_net_text(&e, text);
    check_text(text, "[1111:2222:3333:4444:5555:6666:7777:8888]:65535 by sixteen-letters");
}

/* ---- which addresses of a peer to try ---- */

/* expected: "IP:PORT IP:PORT ..." */
static void check_candidates(const hpc_endpoint *own, const hpc_endpoint *peer, int same_host, const char *expected) {
    hpc_endpoint candidates[HPC_ENDPOINTS + 2];
    char got[(HPC_ENDPOINTS + 2) * HPC_ENDPOINT_TEXT] = "", text[HPC_ENDPOINT_TEXT];
    int n = hpc_net_candidates(own, peer, same_host, candidates);
    CHECK(n <= HPC_ENDPOINTS + 2);
    for (int i = 0; i < n; i++) {
        if (i > 0) strcat(got, " ");
        candidates[i].interface[0] = '\0';
        hpc_net_text(&candidates[i], text);
        strcat(got, text);
    }
    check_text(got, expected);
}

static void test_candidates(void) {
    hpc_endpoint own[HPC_ENDPOINTS] = {endpoint("10.0.0.1", 24, 1, "eth0"), endpoint("10.9.0.1", 16, 1, "ib0"),
                                       endpoint("fd00::1", 64, 1, "eth0")};
    hpc_endpoint peer[HPC_ENDPOINTS] = {endpoint("172.16.0.2", 24, 7, "eth3"), endpoint("10.7.0.2", 24, 7, "ib0"),
                                        endpoint("10.9.255.2", 24, 7, "eth9"), endpoint("fd00::2", 64, 7, "eth0")};
    const hpc_endpoint none[HPC_ENDPOINTS] = {{0}};
    check_candidates(own, peer, 0, "10.9.255.2:7 [fd00::2]:7 10.7.0.2:7 172.16.0.2:7");
    check_candidates(own, peer, 1, "127.0.0.1:7 [::1]:7 10.9.255.2:7 [fd00::2]:7 10.7.0.2:7 172.16.0.2:7");
    check_candidates(none, peer, 0, "172.16.0.2:7 10.7.0.2:7 10.9.255.2:7 [fd00::2]:7");
    check_candidates(own, none, 0, "");
    check_candidates(own, none, 1, "");

    /* A host without a network. One's own loopback network is not the peer's, but better than nothing. */
    hpc_endpoint alone[HPC_ENDPOINTS] = {endpoint("127.0.0.1", 8, 5, "lo"), endpoint("::1", 128, 5, "lo")};
    check_candidates(alone, alone, 1, "127.0.0.1:5 [::1]:5");
    check_candidates(alone, alone, 0, "127.0.0.1:5 [::1]:5");
    hpc_endpoint mixed[HPC_ENDPOINTS] = {endpoint("127.0.0.1", 8, 5, "lo"), endpoint("10.3.0.1", 24, 5, "eth7")};
    check_candidates(alone, mixed, 0, "10.3.0.1:5 127.0.0.1:5");
    check_candidates(alone, mixed, 1, "127.0.0.1:5 10.3.0.1:5");

    /* Networks that end inside of a byte, that are one address, that are everything. */
    for (int prefix = 0; prefix <= 40; prefix++) {
        hpc_endpoint a[HPC_ENDPOINTS] = {endpoint("10.1.2.4", prefix, 1, "a")};
        hpc_endpoint b[HPC_ENDPOINTS] = {endpoint("192.168.0.1", 24, 2, "b"), endpoint("10.1.2.7", 24, 2, "c")};
        int near = prefix > 0 && prefix <= 30;
        check_candidates(a, b, 0, near ? "10.1.2.7:2 192.168.0.1:2" : "192.168.0.1:2 10.1.2.7:2");
    }
    /* The first bytes of an IPv6 address are no IPv4 address. */
    hpc_endpoint four[HPC_ENDPOINTS] = {endpoint("253.0.0.0", 8, 1, "a")};
    hpc_endpoint six[HPC_ENDPOINTS] = {endpoint("fc00::1", 8, 2, "b"), endpoint("fd00::1", 8, 2, "c")};
    check_candidates(four, six, 0, "[fc00::1]:2 [fd00::1]:2");
    hpc_endpoint both[HPC_ENDPOINTS] = {endpoint("253.0.0.0", 8, 2, "b"), endpoint("fd00::1", 8, 2, "c")};
    check_candidates(four, both, 0, "253.0.0.0:2 [fd00::1]:2");
    /* A prefix from the wire that no network has. */
    hpc_endpoint wrong[HPC_ENDPOINTS] = {endpoint("fd00::1", 255, 1, "a")};
    check_candidates(wrong, six, 0, "[fd00::1]:2 [fc00::1]:2");
}

/* ---- listening ---- */

static int accept_one(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, (int)SOON * 1000), 1);
    int accepted = accept(fd, NULL, NULL);
    CHECK(accepted >= 0);
    return accepted;
}

/* The address of a socket that this test opened itself, as text; its port. */
static int name_of(int fd, char text[HPC_ENDPOINT_TEXT]) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[INET6_ADDRSTRLEN], port[8];
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    CHECK_EQ(
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV),
        0);
    snprintf(text, HPC_ENDPOINT_TEXT, a.ss_family == AF_INET ? "%s:%s" : "[%s]:%s", host, port);
    return atoi(port);
}

/* Connects to an endpoint of a listener; whether that arrives by one of endpoints. */
static int arrives_locally(const hpc_endpoint *to, int listener, const hpc_endpoint endpoints[HPC_ENDPOINTS]) {
    char text[HPC_ENDPOINT_TEXT], expected[HPC_ENDPOINT_TEXT];
    int fd = -1, error = -1;
    int status = hpc_net_connect(to, hpc_now() + SOON, &fd, &error);
    hpc_net_text(to, text);
    if (status != HPC_OK) fprintf(stderr, "cannot connect to %s: %s\n", text, strerror(error));
    CHECK_STATUS(status, HPC_OK);
    CHECK_EQ(error, 0);
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    int accepted = accept_one(listener);

    hpc_endpoint plain = *to;
    plain.interface[0] = '\0';
    hpc_net_text(&plain, expected);
    hpc_net_peer_text(fd, text);
    check_text(text, expected);
    name_of(fd, expected); /* no trace of ::ffff: in an IPv4 one */
    hpc_net_peer_text(accepted, text);
    check_text(text, expected);

    int local = hpc_net_is_local(accepted, endpoints);
    close(accepted);
    close(fd);
    return local;
}

static void test_listen_here(void) {
    hpc_endpoint endpoints[HPC_ENDPOINTS], none[HPC_ENDPOINTS] = {{0}}, loopback;
    int fd = -1, n = 0;
    memset(endpoints, 0xa5, sizeof endpoints);
    CHECK_OK(hpc_net_listen(NULL, endpoints, &fd, "init"));
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    while (n < HPC_ENDPOINTS && endpoints[n].family != 0) n++;
    CHECK(n >= 1);
    for (int i = 0; i < n; i++) {
        CHECK(endpoints[i].family == 4 || endpoints[i].family == 6);
        CHECK(endpoints[i].port != 0 && endpoints[i].port == endpoints[0].port);
        CHECK(endpoints[i].interface[0] != '\0');
        CHECK(arrives_locally(&endpoints[i], fd, endpoints));
    }
    for (int i = n; i < HPC_ENDPOINTS; i++) CHECK(memcmp(&endpoints[i], none, sizeof none[0]) == 0);
    loopback = endpoint("127.0.0.1", 8, endpoints[0].port, "lo");
    CHECK(arrives_locally(&loopback, fd, none));
    close(fd);
}

static void test_refused_names(void) {
    hpc_endpoint endpoints[HPC_ENDPOINTS];
    const char *const lists[] = {"no-such-one", "=l", "^lo,e,w,i,d,b,v,t,p,n", ",", "=", " "};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        int fd = 1234;
        if (lists[i][0] == '^' && hpc_net_listen(lists[i], endpoints, &fd, "init") == HPC_OK) { /* a rare name */
            close(fd);
            continue;
        }
        CHECK_STATUS(hpc_net_listen(lists[i], endpoints, &fd, "init"), HPC_ERR_CONFIG);
        CHECK_EQ(fd, -1);
        CHECK_MESSAGE("init: HPCOMM_SOCKET_IFNAME is \"");
        CHECK_MESSAGE(lists[i]);
        CHECK_MESSAGE("lo");
    }
}

static void test_other_sockets(void) {
    hpc_endpoint endpoints[HPC_ENDPOINTS] = {{0}};
    char text[HPC_ENDPOINT_TEXT];
    int fds[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    CHECK(!hpc_net_is_local(fds[0], endpoints));
    hpc_net_peer_text(fds[0], text);
    check_text(text, "a socket of this host");
    close(fds[0]);
    close(fds[1]);
    CHECK(!hpc_net_is_local(-1, endpoints));
    hpc_net_peer_text(-1, text);
    check_text(text, "a peer that is gone");
}

/* ---- connecting ---- */

/* A listener that accepts nothing and has no room: the kernel drops what comes then. */
static int full_listener(hpc_endpoint *e, int fillers[2]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char text[HPC_ENDPOINT_TEXT];
    int fd = socket(AF_INET, SOCK_STREAM, 0), error;
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 0) == 0);
    *e = endpoint("127.0.0.1", 8, name_of(fd, text), "lo");
    for (int i = 0; i < 2; i++) {
        fillers[i] = -1;
        int status = hpc_net_connect(e, hpc_now() + 0.05, &fillers[i], &error);
        CHECK(i > 0 || status == HPC_OK);
    }
    return fd;
}

static void on_signal(int number) {
    (void)number;
}

static _Atomic int stop_signals;
static void *send_signals(void *arg) {
    while (!atomic_load(&stop_signals)) {
        pthread_kill(*(pthread_t *)arg, SIGUSR1);
        sched_yield();
    }
    return NULL;
}

static void test_connect_deadline(void) {
    struct sigaction action = {.sa_handler = on_signal}; /* without SA_RESTART */
    hpc_endpoint e;
    pthread_t self = pthread_self(), other;
    int fillers[2], fd = 0, error = 0, listener = full_listener(&e, fillers);
    CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    for (int interrupted = 0; interrupted < 2; interrupted++) {
        double start = hpc_now();
        if (interrupted) CHECK_EQ(pthread_create(&other, NULL, send_signals, &self), 0);
        CHECK_STATUS(hpc_net_connect(&e, start + 0.1, &fd, &error), HPC_ERR_TIMEOUT);
        if (interrupted) {
            atomic_store(&stop_signals, 1);
            CHECK_EQ(pthread_join(other, NULL), 0);
        }
        CHECK_EQ(fd, -1);
        CHECK_EQ(error, ETIMEDOUT);
        CHECK(hpc_now() - start >= 0.1);
        CHECK(hpc_now() - start < SOON / 2);
    }
    CHECK_STATUS(hpc_net_connect(&e, hpc_now() - 1, &fd, &error), HPC_ERR_TIMEOUT);
    for (int i = 0; i < 2; i++)
        if (fillers[i] >= 0) close(fillers[i]);
    close(listener);

    CHECK_STATUS(hpc_net_connect(&e, hpc_now() + SOON, &fd, &error), HPC_ERR_TRANSPORT);
    CHECK_EQ(fd, -1);
    CHECK_EQ(error, ECONNREFUSED);
    e = endpoint("fe80::1", 64, 9, ""); /* link-local, without its interface */
    CHECK_STATUS(hpc_net_connect(&e, hpc_now() + SOON, &fd, &error), HPC_ERR_TRANSPORT);
    CHECK(error != 0);
}

static int option(int fd, int level, int name) {
    int value = -1;
    socklen_t n = sizeof value;
    CHECK_EQ(getsockopt(fd, level, name, &value, &n), 0);
    return value;
}

static void test_tune(void) {
    const double silences[] = {10, 1, 0.3, 2, 3, 7.9, 19, 20, 3600, 1e12, INFINITY, NAN, -1, -1e300, 0};
    for (size_t i = 0; i < sizeof silences / sizeof *silences; i++) {
        double s = silences[i], most = s >= 2 ? s : 2; /* whole seconds, and at least one probe */
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        int send_room = option(fd, SOL_SOCKET, SO_SNDBUF), receive_room = option(fd, SOL_SOCKET, SO_RCVBUF);
        hpc_net_tune(fd, s);
        int idle = option(fd, IPPROTO_TCP, TCP_KEEPIDLE), interval = option(fd, IPPROTO_TCP, TCP_KEEPINTVL);
        int probes = option(fd, IPPROTO_TCP, TCP_KEEPCNT), ms = option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT);
        CHECK_EQ(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
        CHECK_EQ(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
        CHECK(idle + interval * probes <= most);
        CHECK(idle + interval * (probes + 1) > (most < 32767 ? most - 1 : 32000));
        CHECK_EQ(ms, s * 1e3 >= 1 ? (s * 1e3 < INT32_MAX ? (int)(s * 1e3) : INT32_MAX) : 1);
        CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
        CHECK_EQ(option(fd, SOL_SOCKET, SO_SNDBUF), send_room);
        CHECK_EQ(option(fd, SOL_SOCKET, SO_RCVBUF), receive_room);
        close(fd);
    }
}

/* ---- a host with known interfaces ---- */

static int write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY), ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return ok;
}

static int ip_commands(const char *text) {
    signal(SIGPIPE, SIG_IGN); /* where there is no ip, its shell may have ended before the commands are written */
    FILE *ip = popen("PATH=$PATH:/sbin:/usr/sbin ip -batch - 2>&1", "w");
    if (ip == NULL) return 0;
    int wrote = fputs(text, ip) >= 0;
    return pclose(ip) == 0 && wrote;
}

static int has_line(const char *path, const char *beginning) {
    char line[256];
    int found = 0;
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (!found && fgets(line, sizeof line, file) != NULL) found = strncmp(line, beginning, strlen(beginning)) == 0;
    fclose(file);
    return found;
}

/* The kernel makes the route to an IPv6 address of its own some time after the address. */
static void await_own_route(const char *ip_in_hex) {
    double deadline = hpc_now() + SOON;
    while (!has_line("/proc/net/ipv6_route", ip_in_hex)) {
        CHECK(hpc_left(deadline) > 0);
        sched_yield();
    }
}

/* Into a network namespace of its own, which ends with this process. */
static int leave_network(void) {
    char map[64];
    unsigned uid = getuid();
    if (unshare(CLONE_NEWNET) == 0) return 1;
    snprintf(map, sizeof map, "0 %u 1", uid);
    return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 && write_file("/proc/self/uid_map", map);
}

/* expected: "INTERFACE=IP/PREFIX ..." */
static void check_endpoints(const hpc_endpoint endpoints[HPC_ENDPOINTS], const char *of, const char *expected) {
    char got[512] = "", ip[INET6_ADDRSTRLEN];
    for (int i = 0; i < HPC_ENDPOINTS && endpoints[i].family != 0; i++) {
        size_t n = strlen(got);
        inet_ntop(endpoints[i].family == 4 ? AF_INET : AF_INET6, endpoints[i].ip, ip, sizeof ip);
        snprintf(got + n, sizeof got - n, "%s%s=%s/%d", i > 0 ? " " : "", endpoints[i].interface, ip,
                 endpoints[i].prefix);
        CHECK(endpoints[i].port != 0);
    }
    if (strcmp(got, expected) != 0) fprintf(stderr, "for \"%s\"\n", of ? of : "(NULL)");
    check_text(got, expected);
}

static void check_listed(const char *list, const char *expected) {
    hpc_endpoint endpoints[HPC_ENDPOINTS];
    int fd;
    CHECK_OK(hpc_net_listen(list, endpoints, &fd, "init"));
    close(fd);
    check_endpoints(endpoints, list, expected);
}

static void check_announced(const char *ip, const char *list, const char *expected) {
    hpc_endpoint endpoints[HPC_ENDPOINTS];
    CHECK_OK(hpc_net_announce(ip, 7700, list, endpoints, "init"));
    check_endpoints(endpoints, ip, expected);
    CHECK_EQ(endpoints[0].port, 7700);
}

static void test_lists(void) {
#define ETH0_4 "eth0=10.1.0.1/24"
#define ETH0_6 "eth0=fd01::1/64"
    check_listed(NULL, ETH0_4 " eth01=10.2.0.1/20 ib0=10.3.0.1/24 ib0=10.3.1.1/24");
    check_listed("", ETH0_4 " eth01=10.2.0.1/20 ib0=10.3.0.1/24 ib0=10.3.1.1/24");
    check_listed("eth", ETH0_4 " eth01=10.2.0.1/20 " ETH0_6 " eth01=fd02::1/64");
    check_listed("=eth0", ETH0_4 " " ETH0_6);
    check_listed("=eth01,ib0", "eth01=10.2.0.1/20 ib0=10.3.0.1/24 ib0=10.3.1.1/24 eth01=fd02::1/64");
    check_listed("=ib,eth0", ETH0_4 " " ETH0_6); /* exactly, all of the list */
    check_listed("=eth01,=", "eth01=10.2.0.1/20 eth01=fd02::1/64");
    check_listed("ib,=eth0", ETH0_4 " ib0=10.3.0.1/24 ib0=10.3.1.1/24 " ETH0_6);
    check_listed(" ib0 , eth01 ", "eth01=10.2.0.1/20 ib0=10.3.0.1/24 ib0=10.3.1.1/24 eth01=fd02::1/64");
    check_listed("docker", "docker0=172.17.0.1/16");
    check_listed("br", "br-0123=172.18.0.1/16");
    check_listed("lo", "lo=127.0.0.1/8 lo=::1/128");
    check_listed("^docker,br-,lo,wlan", ETH0_4 " eth01=10.2.0.1/20 ib0=10.3.0.1/24 ib0=10.3.1.1/24");
    check_listed("^=eth0,lo,docker0,br-0123,wlan0",
                 "eth01=10.2.0.1/20 ib0=10.3.0.1/24 ib0=10.3.1.1/24 eth01=fd02::1/64");
    check_listed("^eth,docker,br-", "ib0=10.3.0.1/24 ib0=10.3.1.1/24 wlan0=169.254.7.7/16 lo=127.0.0.1/8");
    check_listed("=ib0", "ib0=10.3.0.1/24 ib0=10.3.1.1/24"); /* the second one's label is ib0:two */
    check_listed("wlan", "wlan0=169.254.7.7/16");

    hpc_endpoint endpoints[HPC_ENDPOINTS];
    int fd;
    CHECK_STATUS(hpc_net_listen("down", endpoints, &fd, "init"), HPC_ERR_CONFIG);
    CHECK_MESSAGE("\"down\"");
    CHECK_MESSAGE(": lo, wlan0, docker0, br-0123, eth0, eth01, ib0");
    CHECK(strstr(hpc_last_error()->message, "down0") == NULL);
}

/* A port at which another part of the process listens, at one address or at all of a family. */
static void test_announced(void) {
    static const struct {
        const char *ip;
        int port;
    } wrong[] = {{"hub7", 7700}, {"", 7700}, {"10.1.0.1", 0}, {"10.1.0.1", 65536}, {"fe80::1%eth0", 7700}};
    hpc_endpoint endpoints[HPC_ENDPOINTS];
    check_announced("10.2.0.1", "=eth0", "eth01=10.2.0.1/20"); /* listen decides */
    check_announced("fd01::1", NULL, ETH0_6);
    check_announced("127.0.0.1", NULL, "lo=127.0.0.1/8");
    check_announced("10.9.9.9", NULL, "=10.9.9.9/32"); /* of no interface here */
    check_announced("0.0.0.0", "eth", ETH0_4 " eth01=10.2.0.1/20");
    check_announced("::", "eth", ETH0_6 " eth01=fd02::1/64");
    CHECK_STATUS(hpc_net_announce("0.0.0.0", 7700, "down", endpoints, "init"), HPC_ERR_CONFIG);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(hpc_net_announce(wrong[i].ip, wrong[i].port, NULL, endpoints, "init"), HPC_ERR_CONFIG);
        CHECK_MESSAGE("give an IP address and a port");
    }
}

/* A connection to an address of this host that the choice left out does not come from where it should. */
static void test_arrivals(void) {
    hpc_endpoint endpoints[HPC_ENDPOINTS], to;
    int fd;
    CHECK_OK(hpc_net_listen("=eth01", endpoints, &fd, "init"));
    const struct {
        const char *ip;
        int local;
    } cases[] = {{"10.2.0.1", 1}, {"fd02::1", 1}, {"127.0.0.1", 1},  {"::1", 1},
                 {"10.1.0.1", 0}, {"fd01::1", 0}, {"172.17.0.1", 0}, {"127.3.2.1", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        to = endpoint(cases[i].ip, 0, endpoints[0].port, "");
        CHECK_EQ(arrives_locally(&to, fd, endpoints), cases[i].local);
    }
    close(fd);
}

static void test_without_ipv6(void) {
    hpc_endpoint endpoints[HPC_ENDPOINTS], to;
    char text[HPC_ENDPOINT_TEXT];
    int fd;
    without_ipv6 = 1;
    check_listed(NULL, ETH0_4 " eth01=10.2.0.1/20 ib0=10.3.0.1/24 ib0=10.3.1.1/24");
    check_listed("eth", ETH0_4 " eth01=10.2.0.1/20");
    check_listed("lo", "lo=127.0.0.1/8");
    CHECK_OK(hpc_net_listen(NULL, endpoints, &fd, "init"));
    name_of(fd, text);
    CHECK(strncmp(text, "0.0.0.0:", 8) == 0);
    CHECK(arrives_locally(&endpoints[0], fd, endpoints));
    to = endpoint("fd01::1", 64, endpoints[0].port, "");
    int error, other;
    CHECK_STATUS(hpc_net_connect(&to, hpc_now() + SOON, &other, &error), HPC_ERR_TRANSPORT);
    CHECK_EQ(error, EAFNOSUPPORT);
    close(fd);
    without_ipv6 = 0;
}

/* IPv6 sockets exist, but no interface has an IPv6 address. */
static void test_ipv6_switched_off(void) {
    hpc_endpoint endpoints[HPC_ENDPOINTS];
    int fd;
    if (!write_file("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")) {
        fprintf(stderr, "test_ipv6_switched_off left out: IPv6 cannot be switched off here\n");
        return;
    }
    check_listed("eth", ETH0_4 " eth01=10.2.0.1/20");
    CHECK_OK(hpc_net_listen("eth0", endpoints, &fd, "init"));
    CHECK(arrives_locally(&endpoints[0], fd, endpoints));
    close(fd);
}

/* With one ephemeral port there is, the connection comes from the port that it goes to. */
static void test_own_echo(void) {
    hpc_endpoint to = endpoint("127.0.0.1", 8, 40000, "lo");
    int fd, error;
    if (!write_file("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000")) {
        fprintf(stderr, "test_own_echo left out: the range of ephemeral ports cannot be set here\n");
        return;
    }
    CHECK_STATUS(hpc_net_connect(&to, hpc_now() + SOON, &fd, &error), HPC_ERR_TRANSPORT);
    CHECK_EQ(error, ECONNREFUSED);
}

static void test_known_host(void) {
    if (!leave_network() || !ip_commands("link set lo up\n")) {
        fprintf(stderr, "the known interfaces are left out: no network namespace or no ip command here\n");
        return;
    }
    /* Nothing but loopback, then only what is left out by default. */
    check_listed(NULL, "lo=127.0.0.1/8 lo=::1/128");
    if (!ip_commands("link add wlan0 type veth peer name p0\n")) {
        fprintf(stderr, "the known interfaces are left out: no veth in this kernel\n");
        return;
    }
    CHECK(ip_commands("link add docker0 type veth peer name p1\n"
                      "link add br-0123 type veth peer name p2\n"
                      "link set p0 up\nlink set p1 up\nlink set p2 up\n"
                      "link set wlan0 up\nlink set docker0 up\nlink set br-0123 up\n"
                      "addr add 172.17.0.1/16 dev docker0\naddr add 172.18.0.1/16 dev br-0123\n"));
    check_listed(NULL, "docker0=172.17.0.1/16 br-0123=172.18.0.1/16 lo=127.0.0.1/8 lo=::1/128");
    CHECK(ip_commands("addr add 169.254.7.7/16 dev wlan0\n"));
    check_listed(NULL, "wlan0=169.254.7.7/16");
    CHECK(ip_commands("link add eth0 type veth peer name p3\nlink set p3 up\nlink set eth0 up\n"
                      "link add eth01 type veth peer name p4\nlink set p4 up\nlink set eth01 up\n"
                      "link add ib0 type veth peer name p5\nlink set p5 up\nlink set ib0 up\n"
                      "link add down0 type veth peer name p6\nlink set p6 up\n"
                      "addr add 10.1.0.1/24 dev eth0\naddr add fd01::1/64 dev eth0 nodad\n"
                      "addr add 10.2.0.1/20 dev eth01\naddr add fd02::1/64 dev eth01 nodad\n"
                      "addr add 10.3.0.1/24 dev ib0\naddr add 10.3.1.1/24 dev ib0 label ib0:two\n"
                      "addr add 10.4.0.1/24 dev down0\n"));
    await_own_route("fd010000000000000000000000000001 80");
    await_own_route("fd020000000000000000000000000001 80");
    test_lists();
    test_announced();
    test_arrivals();
    test_without_ipv6();
    test_ipv6_switched_off();
    test_own_echo();
}

/* ---- congestion control ---- */

static void check_congestion(const char *first, const char *asked, const char *expected) {
    char name[HPC_CONGESTION_BYTES] = "";
    socklen_t nbytes = sizeof name - 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, first, (socklen_t)strlen(first)) == 0) {
        hpc_net_set_congestion(fd, asked);
        CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &nbytes) == 0);
        if (expected != NULL)
            CHECK(strcmp(name, expected) == 0);
        else
            CHECK(strcmp(name, "cubic") == 0 || strcmp(name, "reno") == 0);
    }
    close(fd);
}

/* Every kernel has reno, and lets every process choose it. */
static void test_congestion(void) {
    check_congestion("reno", "", "reno");
    check_congestion("bbr", "", NULL); /* where the kernel has bbr */
    check_congestion("bbr", "bbr", "bbr");
    check_congestion("bbr", "reno", "reno");
    CHECK_OK(hpc_net_check_congestion("", "test"));
    CHECK_OK(hpc_net_check_congestion("reno", "test"));
    CHECK_STATUS(hpc_net_check_congestion("nocontrol", "test"), HPC_ERR_CONFIG);
    CHECK_MESSAGE("tcp_congestion is \"nocontrol\"; this process may choose: ");
    CHECK_STATUS(hpc_net_check_congestion("a_name_of_sixteen", "test"), HPC_ERR_CONFIG);
    CHECK_MESSAGE("reno");
}

static int next_descriptor(void) {
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

int main(void) {
    int before = next_descriptor();
    test_text();
    test_candidates();
    test_listen_here();
    test_other_sockets();
    test_connect_deadline();
    test_tune();
    CHECK_EQ(hpc_last_error()->status, HPC_OK);
    test_congestion();
    test_refused_names();
    test_known_host();
    CHECK_EQ(next_descriptor(), before);
    return 0;
}
