/* The choice of RDMA ports: those that a rank takes, and how two ranks' ports are matched, with made-up ports and those
 * of this machine. */
#define _GNU_SOURCE
#include "check.h"
#include "context/context.h"
#include "sysfs.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <limits.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- names ---- */

static void test_grammar(void) {
    static const char *const good[] = {"",        "mlx5_0",           "mlx5_0,mlx5_1:1", "^mlx5_2",
                                       "=mlx5_1", "^=mlx5_1",         "=mlx5_1:255",     " mlx5_0 , rxe0:2 ",
                                       "rxe0,",   "mlx5_0,=mlx5_1:1", "bnxt_re-0",       "a"};
    static const char *const bad[] = {"^",         "=",          ",",         "mlx5_0:",    "mlx5_0:0",
                                      "mlx5_0:x",  "mlx5_0:256", ":1",        "mlx5_0:1:2", "mlx5_0,^mlx5_1",
                                      "^^mlx5_0",  "mlx5 0",     "mlx5_0/1",  "a=b",        "mlx5_0:99999999999",
                                      "mlx5_0:-1", "mlx5_0: 1",  "rxe0,,=,a", "=^mlx5_1"};
    char long_name[80];
    CHECK_OK(hpc_nics_check(NULL));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) CHECK_OK(hpc_nics_check(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(hpc_nics_check(bad[i]), HPC_ERR_CONFIG);
        CHECK_MESSAGE("HPCOMM_DEVICES is \"");
        CHECK_MESSAGE(bad[i]);
    }
    CHECK_STATUS(hpc_nics_check("mlx5_0,mlx5_1:x,mlx5_2"), HPC_ERR_CONFIG);
    CHECK_MESSAGE("in which \"mlx5_1:x\" is not a device");
    memset(long_name, 'a', sizeof long_name);
    long_name[64] = '\0';
    CHECK_STATUS(hpc_nics_check(long_name), HPC_ERR_CONFIG);
    long_name[63] = '\0';
    CHECK_OK(hpc_nics_check(long_name));
}

static void test_allowed(void) {
    static const struct {
        const char *names, *device;
        int port, allowed;
    } cases[] = {
        {NULL, "mlx5_0", 1, 1},
        {"", "mlx5_0", 1, 1},
        {"mlx5_0", "mlx5_0", 1, 1},
        {"mlx5_0", "mlx5_0", 2, 1},
        {"mlx5_0", "mlx5_1", 1, 0},
        {"mlx5", "mlx5_7", 1, 1},
        {"mlx5_1", "mlx5_10", 1, 1},
        {"=mlx5_1", "mlx5_10", 1, 0},
        {"=mlx5_1", "mlx5_1", 2, 1},
        {"mlx5_0,mlx5_1:1", "mlx5_1", 1, 1},
        {"mlx5_0,mlx5_1:1", "mlx5_1", 2, 0},
        {"mlx5_0,mlx5_1:1", "mlx5_0", 2, 1},
        {"^mlx5_2", "mlx5_2", 1, 0},
        {"^mlx5_2", "mlx5_3", 1, 1},
        {"^mlx5_2:1", "mlx5_2", 2, 1},
        {"^mlx5_2:1", "mlx5_2", 1, 0},
        {"^mlx5_1", "mlx5_10", 1, 0},
        {"^=mlx5_1", "mlx5_10", 1, 1},
        {"^=mlx5_1", "mlx5_1", 1, 0},
        {" rxe1 , rxe0 ", "rxe0", 1, 1},
        {"rxe1,=mlx5", "mlx5_0", 1, 0},
        {"rxe0:2,rxe0:1", "rxe0", 1, 1},
        {"=rxe", "rxe0", 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(hpc_nics_check(cases[i].names));
        if (hpc_nics_allow(cases[i].names, cases[i].device, cases[i].port) == cases[i].allowed) continue;
        fprintf(stderr, "\"%s\" allows %s:%d: not %d\n", cases[i].names, cases[i].device, cases[i].port,
                cases[i].allowed);
        check_fail("");
    }
}

/* ---- rails ---- */

static hpc_port_address port(const char *gid, int fabric, int prefix) {
    hpc_port_address p = {.fabric = (uint8_t)fabric, .prefix = (uint8_t)prefix, .mtu = 5};
    CHECK_EQ(inet_pton(AF_INET6, gid, p.gid), 1);
    return p;
}

static hpc_port_address roce(const char *ip, int prefix) {
    char gid[64];
    snprintf(gid, sizeof gid, strchr(ip, ':') == NULL ? "::ffff:%s" : "%s", ip);
    return port(gid, HPC_FABRIC_ROCE, strchr(ip, ':') == NULL ? 96 + prefix : prefix);
}

static hpc_port_address infiniband(const char *gid) {
    return port(gid, HPC_FABRIC_INFINIBAND, 64);
}

static hpc_device_address of(int n, hpc_port_address a, hpc_port_address b) {
    return (hpc_device_address){.state = HPC_VERBS_READY, .n = n, .ports = {a, b}};
}

/* Their rails as "00 11": the port here and the port there; or the reason. Both ranks must see the same. */
static const char *rails_of(hpc_device_address a, hpc_device_address b, int routed) {
    static char text[64];
    hpc_rail ab[HPC_RAILS], ba[HPC_RAILS];
    const char *why = "", *why_back = "";
    int n = hpc_match_rails(&a, &b, routed, ab, &why);
    CHECK_EQ(hpc_match_rails(&b, &a, routed, ba, &why_back), n);
    CHECK(strcmp(why, why_back) == 0);
    if (n == 0) return why;
    text[0] = '\0';
    for (int k = 0; k < n; k++) {
        CHECK(ab[k].here == ba[k].there && ab[k].there == ba[k].here);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d%d", k > 0 ? " " : "", ab[k].here, ab[k].there);
    }
    return text;
}

static void check_rails(hpc_device_address a, hpc_device_address b, int routed, const char *expected) {
    const char *got = rails_of(a, b, routed);
    if (strstr(got, expected) != NULL) return;
    fprintf(stderr, "rails are \"%s\", not \"%s\"\n", got, expected);
    check_fail("");
}

static void test_rails(void) {
    const hpc_port_address a77 = roce("10.77.0.1", 24), b77 = roce("10.77.0.2", 24), a78 = roce("10.78.0.1", 24),
                           b78 = roce("10.78.0.2", 24), v6 = roce("fd00::1", 64), local = roce("fe80::1", 64),
                           ib = infiniband("fe80::2:c903:0:1"), ib_there = infiniband("fe80::2:c903:0:2"),
                           ib_other = infiniband("fec0::2:c903:0:3"), auto_ip = roce("169.254.3.1", 16);
    hpc_port_address small = b77;
    small.mtu = 3;

    check_rails(of(2, a77, a78), of(2, b77, b78), 0, "00 11");
    check_rails(of(2, a77, a78), of(2, small, b78), 0, "00 11");
    check_rails(of(2, a77, a78), of(2, a77, a78), 0, "00 11"); /* a rank with itself, or two of one host */
    check_rails(of(2, a77, a77), of(2, a77, a77), 0, "00 11");
    check_rails(of(2, a77, a78), of(1, b78, b78), 0, "10");
    check_rails(of(1, ib, ib), of(1, ib_there, ib_there), 0, "00");
    check_rails(of(2, ib, a77), of(2, b77, ib_there), 0, "0");
    check_rails(of(1, local, local), of(1, roce("fe80::2", 64), local), 0, "00");

    check_rails(of(1, a77, a77), of(1, b78, b78), 0, "different subnets; HPCOMM_TRANSPORT=shm,verbs");
    check_rails(of(1, a77, a77), of(1, b78, b78), 1, "00");
    check_rails(of(1, roce("10.77.0.1", 24), a77), of(1, roce("10.77.1.1", 16), a77), 0, "different subnets");
    check_rails(of(1, roce("10.77.0.1", 16), a77), of(1, roce("10.77.1.1", 16), a77), 0, "00");
    check_rails(of(1, roce("10.77.0.1", 31), a77), of(1, roce("10.77.0.2", 31), a77), 0, "different subnets");
    check_rails(of(1, ib, ib), of(1, ib_other, ib_other), 1, "InfiniBand ports are in different subnets");
    check_rails(of(1, ib, ib), of(1, a77, a77), 1, "one has InfiniBand ports and the other RoCE ones");
    check_rails(of(1, a77, a77), of(1, v6, v6), 1, "IPv4");
    check_rails(of(1, a77, a77), of(1, auto_ip, auto_ip), 1, "link-local");
    /* the one of the same subnet first, whatever the order of the ports */
    check_rails(of(2, a77, a78), of(2, roce("10.99.0.1", 24), b77), 1, "01 10");
}

static void test_reasons(void) {
    static const struct {
        int state;
        const char *says;
    } cases[] = {{HPC_VERBS_NOT_ALLOWED, "does not allow"},
                 {HPC_VERBS_NOT_BUILT, "apt-get install libibverbs-dev"},
                 {HPC_VERBS_NO_LIBRARY, "apt-get install libibverbs1 ibverbs-providers"},
                 {HPC_VERBS_NO_DEVICE, "no RDMA device, or none that HPCOMM_DEVICES allows"},
                 {HPC_VERBS_NO_ACCESS, "cannot open its RDMA devices; hpcomm info --devices"},
                 {HPC_VERBS_NO_PORT, "no RDMA port that is active and has an address; hpcomm info --devices"}};
    hpc_device_address ready = of(1, roce("10.77.0.1", 24), roce("10.77.0.1", 24));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hpc_device_address none = {.state = cases[i].state};
        check_rails(ready, none, 0, cases[i].says);
        check_rails(none, none, 1, cases[i].says);
        none.n = 1; /* a state that says no counts for more */
        none.ports[0] = ready.ports[0];
        check_rails(ready, none, 0, cases[i].says);
    }
    hpc_device_address odd = ready;
    odd.n = 1000; /* from outside */
    check_rails(odd, ready, 0, "00");
    odd.n = -1;
    check_rails(odd, ready, 0, "one has");
    odd.n = 1;
    odd.ports[0].prefix = 255;
    check_rails(odd, odd, 0, "00");
}

static uint64_t seed;

static unsigned draw(unsigned below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

static hpc_device_address draw_address(void) {
    hpc_device_address a = {.state = draw(8) > 0 ? HPC_VERBS_READY : (int)draw(7), .n = (int)draw(HPC_RAILS + 1)};
    int kinds = 1 + (int)draw(4);
    for (int i = 0; i < HPC_RAILS; i++) {
        char text[64];
        int subnet = (int)draw(3), host = 1 + (int)draw(250);
        switch (draw((unsigned)kinds)) {
        case 0:
            snprintf(text, sizeof text, "10.77.%d.%d", subnet, host);
            a.ports[i] = roce(text, draw(8) > 0 ? 24 : 16 + (int)draw(17));
            break;
        case 1:
            snprintf(text, sizeof text, "fec0:%x::%x", subnet, host);
            a.ports[i] = infiniband(text);
            break;
        case 2:
            snprintf(text, sizeof text, "fd00:%x::%x", subnet, host);
            a.ports[i] = roce(text, 64);
            break;
        default:
            snprintf(text, sizeof text, "fe80::%x", host);
            a.ports[i] = roce(text, 64);
            if (draw(4) == 0) a.ports[i].fabric = HPC_FABRIC_NONE;
        }
        a.ports[i].mtu = (uint8_t)(1 + draw(5));
    }
    return a;
}

static int shares_subnet(const hpc_port_address *a, const hpc_port_address *b) {
    if (a->fabric == HPC_FABRIC_NONE || a->fabric != b->fabric) return 0;
    for (int bit = 0; bit < (a->prefix > b->prefix ? a->prefix : b->prefix); bit++)
        if ((a->gid[bit / 8] ^ b->gid[bit / 8]) >> (7 - bit % 8) & 1) return 0;
    return 1;
}

static int kind_routed(const hpc_port_address *p) { /* 0: not at all */
    if (p->fabric != HPC_FABRIC_ROCE || p->gid[0] == 0xfe) return 0;
    return p->gid[0] == 0 ? 4 : 6;
}

static int usable(const hpc_device_address *a) {
    return a->state == HPC_VERBS_READY ? a->n : 0;
}

/* Whether a rail could be had of ports that are in none. */
static int is_left(const hpc_device_address *a, const hpc_device_address *b, unsigned here, unsigned there,
                   int routed) {
    for (int i = 0; i < usable(a); i++)
        for (int j = 0; j < usable(b); j++) {
            const hpc_port_address *p = &a->ports[i], *q = &b->ports[j];
            if (here >> i & 1 || there >> j & 1) continue;
            if (shares_subnet(p, q) || (routed && kind_routed(p) != 0 && kind_routed(p) == kind_routed(q))) return 1;
        }
    return 0;
}

static void check_matching(const hpc_device_address *a, const hpc_device_address *b, int routed) {
    hpc_rail ab[HPC_RAILS], ba[HPC_RAILS];
    const char *why = NULL, *why_back = NULL;
    unsigned here = 0, there = 0;
    int n = hpc_match_rails(a, b, routed, ab, &why), by_router = 0;
    CHECK_EQ(hpc_match_rails(b, a, routed, ba, &why_back), n);
    for (int k = 0; k < n; k++) {
        CHECK(ab[k].here == ba[k].there && ab[k].there == ba[k].here);
        CHECK(ab[k].here >= 0 && ab[k].here < usable(a) && !(here >> ab[k].here & 1));
        CHECK(ab[k].there >= 0 && ab[k].there < usable(b) && !(there >> ab[k].there & 1));
        here |= 1u << ab[k].here;
        there |= 1u << ab[k].there;
        const hpc_port_address *p = &a->ports[ab[k].here], *q = &b->ports[ab[k].there];
        if (shares_subnet(p, q)) {
            CHECK(!by_router);
        } else {
            by_router = 1;
            CHECK(routed && kind_routed(p) != 0 && kind_routed(p) == kind_routed(q));
        }
        if (memcmp(a, b, sizeof *a) == 0) CHECK_EQ(ab[k].here, ab[k].there);
    }
    CHECK(!is_left(a, b, here, there, routed));
    CHECK(n > 0 || (why != NULL && why[0] != '\0' && strcmp(why, why_back) == 0));
}

static void test_any_rails(void) {
    for (seed = 1; seed < 40000;) {
        uint64_t first = seed;
        hpc_device_address a = draw_address(), b = draw_address();
        int routed = (int)draw(2);
        check_matching(&a, &b, routed);
        check_matching(&a, &a, routed);
        seed = first + 1;
    }
}

/* ---- a context ---- */

static void check_create(const char *transports, const char *devices, int status, int state, int listens) {
    hpc_config config;
    hpc_context *c;
    hpc_config_init(&config);
    config.transports = transports;
    config.devices = devices;
    CHECK_STATUS(hpc_context_create(0, 1, &config, &c), status);
    if (status != HPC_OK) return;
    if (state >= 0) CHECK_EQ(c->self.devices.state, state);
    if (devices != NULL) { /* asked for, and not there */
        CHECK(c->self.devices.state != HPC_VERBS_READY && hpc_context_note(c, 0, NULL) != NULL);
        CHECK(strncmp(hpc_context_note(c, 0, NULL), "cannot use verbs: rank 0 ", 25) == 0);
    }
    CHECK_EQ(c->self.devices.state == HPC_VERBS_READY, c->nics != NULL);
    CHECK_EQ(c->self.control.endpoints[0].family != 0, listens);
    hpc_context_free(c);
}

static void test_context(void) {
    check_create(NULL, "mlx5_0:x", HPC_ERR_CONFIG, 0, 0);
    CHECK_MESSAGE("HPCOMM_DEVICES is \"mlx5_0:x\"");
    check_create("shm", "mlx5_0:x", HPC_ERR_CONFIG, 0, 0); /* a mistake is one whether it matters or not */
    check_create("shm", NULL, HPC_OK, HPC_VERBS_NOT_ALLOWED, 0);
    check_create("tcp", NULL, HPC_OK, HPC_VERBS_NOT_ALLOWED, 1);
    check_create("verbs", NULL, HPC_OK, -1, 1);
    check_create(NULL, "none_like_this", HPC_OK, -1, 1);
    CHECK(strcmp(hpc_transport_name(0, 0, 0), "shm") == 0 && strcmp(hpc_transport_name(1, 0, 0), "verbs") == 0);
}

/* ---- without a device, or without the library ---- */

static void connect_alone(const char *transports, hpc_context **c, int status) {
    hpc_config config;
    char address[sizeof(hpc_address)];
    hpc_config_init(&config);
    config.transports = transports;
    CHECK_OK(hpc_context_create(0, 1, &config, c));
    CHECK_OK(hpc_context_address(*c, address));
    CHECK_STATUS(hpc_context_connect(*c, address, -1), status);
}

static void check_none(int state) {
    hpc_nics *nics = (hpc_nics *)&state;
    hpc_device_address a;
    hpc_context *c;
    char says[256];
    hpc_nics_open(NULL, &nics, &a);
    CHECK(nics == NULL);
    CHECK_EQ(a.n, 0);
    CHECK_EQ(a.state, state);
    CHECK_EQ(hpc_nics_node(nics), -1);
    hpc_nics_close(nics);
    connect_alone("verbs", &c, HPC_ERR_UNSUPPORTED);
    CHECK_MESSAGE("init: no transport reaches rank 0");
    snprintf(says, sizeof says, "verbs: rank 0 %s", hpc_no_verbs_text(state));
    CHECK_MESSAGE(says);
    hpc_context_free(c);
    connect_alone(NULL, &c, HPC_OK); /* the others are there */
    int told =
        hpc_context_note(c, 0, NULL) != NULL && strstr(hpc_context_note(c, 0, NULL), says + strlen("verbs: ")) != NULL;
    CHECK_EQ(told, state != HPC_VERBS_NOT_BUILT && state != HPC_VERBS_NO_DEVICE);
    hpc_context_free(c);
}

static void test_build(void) {
#if defined(HPC_HAVE_VERBS)
    CHECK(strstr(hpc_build_info(), "; verbs=yes") != NULL);
#else
    CHECK(strstr(hpc_build_info(), "; verbs=no") != NULL);
    check_none(HPC_VERBS_NOT_BUILT);
    CHECK_STATUS(hpc_devices(NULL, 0), HPC_ERR_UNSUPPORTED);
    CHECK_MESSAGE("devices: this hpcomm was built without rdma-core's headers; apt-get install libibverbs-dev");
#endif
}

#if defined(HPC_HAVE_VERBS)

static char library[PATH_MAX];

/* Finds the library by a process that then ends: this process must not have loaded it yet. */
static void find_library(void) {
    int ends[2];
    ssize_t got;
    CHECK_EQ(pipe(ends), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct link_map *map;
        char path[PATH_MAX] = "";
        void *loaded = dlopen("libibverbs.so.1", RTLD_NOW);
        if (loaded == NULL || dlinfo(loaded, RTLD_DI_LINKMAP, &map) != 0 || realpath(map->l_name, path) == NULL)
            path[0] = '\0';
        _exit(write(ends[1], path, sizeof path) == sizeof path ? 0 : 1);
    }
    close(ends[1]);
    for (size_t all = 0; all < sizeof library; all += (size_t)got) {
        got = read(ends[0], library + all, sizeof library - all);
        CHECK(got > 0);
    }
    close(ends[0]);
    CHECK_EQ(waitpid(child, NULL, 0), child);
}

static void give_device(void) {
    sysfs_give("infiniband/none0/ports/1/state", "4: ACTIVE");
    sysfs_give("infiniband/none0/ports/1/link_layer", "Ethernet");
    sysfs_give("infiniband/none0/ports/1/rate", "2.5 Gb/sec (1X SDR)");
}

static void run_without_device(void) {
    check_none(HPC_VERBS_NO_DEVICE);
    CHECK(dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL); /* nobody pays for what is not there */
    CHECK(library[0] == '\0' || hpc_devices(NULL, 0) == 0);
}

static void run_without_library(void) {
    if (library[0] != '\0') sysfs_hide(library);
    give_device();
    check_none(HPC_VERBS_NO_LIBRARY);
    CHECK_STATUS(hpc_devices(NULL, 0), HPC_ERR_UNSUPPORTED);
    CHECK_MESSAGE("devices: libibverbs cannot be loaded (");
    CHECK_MESSAGE("apt-get install libibverbs1 ibverbs-providers");
}

static void run_unknown_device(void) {
    hpc_device d[2];
    hpc_nics *nics;
    hpc_device_address a;
    give_device();
    check_none(HPC_VERBS_NO_ACCESS);
    hpc_nics_open("rxe", &nics, &a);
    CHECK_EQ(a.state, HPC_VERBS_NO_DEVICE);
    CHECK_EQ(hpc_devices(d, 2), 1);
    CHECK(strcmp(d[0].name, "none0") == 0 && strcmp(d[0].state, "active") == 0);
    CHECK(strcmp(d[0].link_layer, "Ethernet") == 0 && d[0].gbits == 2.5);
    CHECK(d[0].port == 1 && d[0].gid_index == -1 && d[0].numa_node == -1 && d[0].gid[0] == '\0');
    CHECK(strstr(d[0].why, "modprobe ib_uverbs") != NULL);
    CHECK_STATUS(hpc_devices(NULL, 1), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_devices(d, -1), HPC_ERR_INVALID);
}

static void test_without(void) {
    find_library();
    sysfs_run("run_without_device", run_without_device);
    sysfs_run("run_without_library", run_without_library);
    if (library[0] != '\0')
        sysfs_run("run_unknown_device", run_unknown_device);
    else
        fprintf(stderr, "run_unknown_device left out: no libibverbs here\n");
}

/* ---- this machine's own ports ---- */

/* The subnet of an interface's first IPv4 address, as bits of a GID; 0 if it has none. */
static int ipv4_of(const char *netdev, char gid[48]) {
    struct ifaddrs *all;
    int prefix = 0;
    CHECK_EQ(getifaddrs(&all), 0);
    for (const struct ifaddrs *i = all; i != NULL && prefix == 0; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || strcmp(i->ifa_name, netdev) != 0) continue;
        const struct sockaddr_in *ip = (const void *)i->ifa_addr, *mask = (const void *)i->ifa_netmask;
        char text[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &ip->sin_addr, text, sizeof text);
        snprintf(gid, 48, "::ffff:%s", text);
        prefix = 96 + __builtin_popcount(mask->sin_addr.s_addr);
    }
    freeifaddrs(all);
    return prefix;
}

static void check_port(const hpc_device *d, const hpc_port_address *a) {
    char path[PATH_MAX], line[64] = "", expected[48], gid[48];
    inet_ntop(AF_INET6, a->gid, gid, sizeof gid);
    CHECK(strcmp(gid, d->gid) == 0);
    CHECK_EQ(128 << a->mtu, d->mtu);
    CHECK(d->gbits > 0);
    CHECK(strcmp(d->state, "active") == 0);
    if (strcmp(d->link_layer, "Ethernet") != 0) {
        CHECK(a->fabric == HPC_FABRIC_INFINIBAND && a->lid != 0 && a->lid == d->lid && a->prefix == 64);
        return;
    }
    CHECK(a->fabric == HPC_FABRIC_ROCE && d->netdev[0] != '\0' && d->gid_index >= 0);
    snprintf(path, sizeof path, "/sys/class/infiniband/%.63s/ports/%d/gid_attrs/types/%d", d->name, d->port,
             d->gid_index);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
    fclose(file);
    CHECK(strcmp(line, "RoCE v2\n") == 0);
    int prefix = ipv4_of(d->netdev, expected);
    if (prefix == 0) return;
    CHECK(strcmp(gid, expected) == 0);
    CHECK_EQ(a->prefix, prefix);
}

static int open_files(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    while (readdir(folder) != NULL) n++;
    closedir(folder);
    return n;
}

static void test_own_ports(void) {
    enum { MOST = 64 };
    hpc_device d[MOST];
    hpc_nics *nics;
    hpc_device_address a;
    int n = hpc_devices(d, MOST), usable_ports = 0, others = 0;
    if (n == HPC_ERR_UNSUPPORTED || n == 0) {
        fprintf(stderr, "test_own_ports left out: no RDMA device here\n");
        return;
    }
    CHECK(n > 0 && n <= MOST);
    CHECK_EQ(hpc_devices(NULL, 0), n);
    int files = open_files();
    hpc_nics_open(NULL, &nics, &a);
    for (int i = 0; i < n; i++) {
        printf("%s:%d %s %s %s gid %d lid %d mtu %d node %d %g Gb/s %s\n", d[i].name, d[i].port, d[i].state,
               d[i].netdev, d[i].gid, d[i].gid_index, d[i].lid, d[i].mtu, d[i].numa_node, d[i].gbits, d[i].why);
        if (d[i].why[0] != '\0' || usable_ports == HPC_RAILS) continue;
        CHECK(usable_ports < a.n);
        check_port(&d[i], &a.ports[usable_ports++]);
    }
    CHECK_EQ(a.n, usable_ports);
    CHECK_EQ(a.state, usable_ports > 0 ? HPC_VERBS_READY : a.state);
    hpc_nics_close(nics);
    CHECK_EQ(open_files(), files);
    if (usable_ports == 0) return;

    char without[80];
    snprintf(without, sizeof without, "^=%s", d[0].name);
    for (int i = 0; i < n; i++) others += d[i].why[0] == '\0' && strcmp(d[i].name, d[0].name) != 0;
    hpc_nics_open(without, &nics, &a);
    CHECK_EQ(a.n, others < HPC_RAILS ? others : HPC_RAILS);
    CHECK_EQ(a.state, others > 0 ? HPC_VERBS_READY : a.state);
    hpc_nics_close(nics);
    hpc_nics_open("none_like_this", &nics, &a);
    CHECK(nics == NULL && a.state == HPC_VERBS_NO_DEVICE);
    CHECK_EQ(open_files(), files);
}

#endif

int main(void) {
    test_grammar();
    test_allowed();
    test_rails();
    test_reasons();
    test_any_rails();
    test_build();
#if defined(HPC_HAVE_VERBS)
    test_without(); /* before anything loads the library */
    test_own_ports();
#endif
    test_context();
    return 0;
}
