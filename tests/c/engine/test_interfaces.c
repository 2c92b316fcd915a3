/* Facts that NICs decide before a byte moves: how many interfaces a server has, and on which node its threads and its
 * windows are. Ranks and NICs are made up; none is opened. */
#include "check.h"
#include "engine/layout/layout.h"

#if defined(HPC_HAVE_VERBS)
#include "context/context.h"
#include "transport/verbs/device.h"
#endif

enum { RANKS = 4 };

/* So many ports, each in a subnet of its own, on these nodes. */
static hpc_device_address ports(int n, int node, int node_of_others) {
    hpc_device_address d = {.state = n > 0 ? HPC_VERBS_READY : HPC_VERBS_NO_DEVICE, .n = n};
    for (int i = 0; i < n; i++)
        d.ports[i] = (hpc_port_address){.gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [13] = (unsigned char)i, [15] = 1},
                                        .fabric = HPC_FABRIC_ROCE,
                                        .prefix = 120,
                                        .mtu = 3,
                                        .node = (int16_t)(i == 0 ? node : node_of_others)};
    return d;
}

static void make_context(hpc_context *c, hpc_address *addresses, const int *n_ports) {
    memset(c, 0, sizeof *c);
    memset(addresses, 0, RANKS * sizeof *addresses);
    snprintf(c->self.transports, sizeof c->self.transports, "verbs");
    for (int r = 0; r < RANKS; r++) {
        addresses[r].rank = r, addresses[r].size = RANKS;
        snprintf(addresses[r].transports, sizeof addresses[r].transports, "verbs");
        addresses[r].devices = ports(n_ports[r], 0, 0);
    }
    c->group.size = RANKS;
    c->addresses = addresses;
    c->connected = 1;
}

/* Returns n, or 1 in a build without verbs. */
static int if_verbs(const hpc_context *c, int n) {
    const char *why;
    return hpc_transport_verbs.reaches(&c->addresses[0], &c->addresses[1], &why) ? n : 1;
}

static void test_number(void) {
    static const int n_ports[RANKS] = {3, 3, 2, 0}, all[] = {0, 1, 2, 3}, beyond[] = {0, 4};
    hpc_context c;
    hpc_address addresses[RANKS];
    make_context(&c, addresses, n_ports);
    CHECK_EQ(hpc_interfaces(&c, all, 1), if_verbs(&c, 3)); /* the most by which it reaches anybody */
    CHECK_EQ(hpc_interfaces(&c, all, 2), if_verbs(&c, 3));
    CHECK_EQ(hpc_interfaces(&c, all + 2, 1), if_verbs(&c, 2)); /* both of its own */
    CHECK_EQ(hpc_interfaces(&c, all, 3), if_verbs(&c, 2));     /* the least of the servers */
    CHECK_EQ(hpc_interfaces(&c, all, 4), 1);                   /* the last has none */
    CHECK_EQ(hpc_interfaces(&c, beyond, 2), 1);
    CHECK_EQ(hpc_interfaces(&c, all, 0), 1);
    CHECK_EQ(hpc_interfaces(&c, NULL, 1), 1);
    CHECK_EQ(hpc_interfaces(NULL, all, 1), 1);
    c.self.transports[0] = '\0'; /* all share memory then */
    for (int r = 0; r < RANKS; r++) addresses[r].transports[0] = '\0';
    CHECK_EQ(hpc_interfaces(&c, all, 3), 1);
    c.connected = 0;
    CHECK_EQ(hpc_interfaces(&c, all, 3), 1);
}

/* Asked of the ranks that are given: another host is reached by sockets, unless there is a NIC. */
static void test_over_sockets(void) {
    static const int n_ports[RANKS] = {0}, all[] = {0, 1, 2, 3}, beyond[] = {0, 4};
    hpc_context c;
    hpc_address addresses[RANKS];
    make_context(&c, addresses, n_ports);
    c.self.transports[0] = '\0';
    for (int r = 0; r < RANKS; r++) {
        addresses[r].transports[0] = '\0';
        addresses[r].control.endpoints[0].family = 4; /* it listens */
    }
    CHECK_EQ(hpc_over_sockets(&c, all, RANKS), 0);
    addresses[3].host[0] = 1;
    CHECK_EQ(hpc_over_sockets(&c, all, RANKS), 1);
    CHECK_EQ(hpc_over_sockets(&c, all + 1, 3), 1);
    CHECK_EQ(hpc_over_sockets(&c, all, 3), 0);
    CHECK_EQ(hpc_over_sockets(&c, all + 3, 1), 0);
    CHECK_EQ(hpc_over_sockets(&c, (const int[]){1, 1, 2}, 3), 0);
    CHECK_EQ(hpc_over_sockets(&c, beyond, 2), 0);
    CHECK_EQ(hpc_over_sockets(&c, all, 0), 0);
    CHECK_EQ(hpc_over_sockets(&c, NULL, 1), 0);
    CHECK_EQ(hpc_over_sockets(NULL, all, 4), 0);
    c.connected = 0;
    CHECK_EQ(hpc_over_sockets(&c, all, 4), 0);
    make_context(&c, addresses, (const int[]){1, 1, 1, 1}); /* by verbs alone */
    CHECK_EQ(hpc_over_sockets(&c, all, 4), 0);
    make_context(&c, addresses, n_ports);
    snprintf(c.self.transports, sizeof c.self.transports, "loop");
    for (int r = 0; r < RANKS; r++) snprintf(addresses[r].transports, sizeof addresses[r].transports, "loop");
    CHECK_EQ(hpc_over_sockets(&c, all, 4), 0);
}

static void test_node_of_core(void) {
    const hpc_device_address none = ports(0, 0, 0), one = ports(3, 1, 1), two = ports(3, 0, 1);
    for (int core = -1; core < 7; core++) {
        CHECK_EQ(hpc_node_of_core(&none, core), -1);
        CHECK_EQ(hpc_node_of_core(&one, core), 1);
        CHECK_EQ(hpc_node_of_core(&two, core), core < 0 ? -1 : core % 3 != 0);
    }
}

static void check_deal(int n, const int *wanted, const int *expected) {
    static const int cpus[] = {2, 3, 4, 5, 6, 7}, nodes[] = {0, 0, 1, 1, 0, 0};
    int chosen[6];
    hpc_deal_cpus(cpus, nodes, 6, wanted, n, chosen);
    for (int i = 0; i < n; i++) CHECK_EQ(chosen[i], expected[i]);
}

static void test_deal(void) {
    check_deal(4, (const int[]){-1, -1, -1, -1}, (const int[]){2, 3, 4, 5}); /* in order, as without NICs */
    check_deal(2, (const int[]){1, 0}, (const int[]){4, 2});
    check_deal(4, (const int[]){0, 1, 0, 1}, (const int[]){2, 4, 3, 5});
    check_deal(4, (const int[]){1, 1, 1, 0}, (const int[]){4, 5, 3, 2}); /* a third one of node 1 has to go elsewhere */
    check_deal(3, (const int[]){-1, 0, 1}, (const int[]){3, 2, 4});      /* who wants none takes nobody's */
    check_deal(2, (const int[]){7, 1}, (const int[]){2, 4});             /* a node without CPUs */
    check_deal(6, (const int[]){1, 1, 1, 1, 1, 1}, (const int[]){4, 5, 2, 3, 6, 7});
    check_deal(0, NULL, NULL);
}

static void test_window_node(void) {
    const hpc_transport *transports[RANKS] = {&hpc_transport_shm, &hpc_transport_tcp, &hpc_transport_tcp};
    hpc_context c = {.group = {.size = 3}, .transports = transports};
    CHECK_EQ(hpc_window_node(&c), -1);
    transports[2] = &hpc_transport_verbs;
    CHECK_EQ(hpc_window_node(&c), -1); /* it has no NICs */
#if defined(HPC_HAVE_VERBS)
    hpc_nics nics = {.n = 2, .nics = {{.node = 1}, {.node = 1}}};
    c.nics = &nics;
    CHECK_EQ(hpc_window_node(&c), 1);
    nics.nics[1].node = 0;
    CHECK_EQ(hpc_window_node(&c), -1);
    nics.nics[1].node = 1;
    transports[2] = &hpc_transport_tcp;
    CHECK_EQ(hpc_window_node(&c), -1);
#endif
}

int main(void) {
    test_number();
    test_over_sockets();
    test_node_of_core();
    test_deal();
    test_window_node();
    return 0;
}
