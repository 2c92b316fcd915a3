/* Ports of made-up RDMA devices: those that are opened, and how they are shown and closed; also kinds that few machines
 * have. */
#include "check.h"
#include "sysfs.h"
#include "transport/verbs/device.h"

#if !defined(HPC_HAVE_VERBS)

int main(void) {
    fprintf(stderr, "left out: built without rdma-core's headers\n");
    return 77;
}

#else

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include "fake/ibverbs.h"

static fake_verbs *fakes;

/* Loads the fake, whose name is libibverbs.so.1: later loads of that name get it. */
static void load_fake(void) {
    void *library = dlopen(FAKE_IBVERBS, RTLD_NOW);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    fakes = dlsym(library, "fake");
    CHECK(fakes != NULL);
}

static void give(const char *device, int port, const char *what, const char *text) {
    char path[160];
    snprintf(path, sizeof path, "infiniband/%s/ports/%d/%s", device, port, what);
    sysfs_give(path, text);
}

/* One more device; its first port is active InfiniBand, with a LID. */
static fake_device *add_device(const char *name) {
    fake_device *d = &fakes->devices[fakes->n++];
    char file[64];
    *d = (fake_device){.name = name, .transport = IBV_TRANSPORT_IB, .srqs = 1};
    d->ports[0] =
        (fake_port){.state = IBV_PORT_ACTIVE, .link_layer = IBV_LINK_LAYER_INFINIBAND, .lid = 7, .mtu = IBV_MTU_4096};
    d->ports[0].gids[0] = "fec0::2:c903:0:1";
    snprintf(file, sizeof file, "/dev/infiniband/uverbs_%s", name);
    sysfs_give(file, "");
    give(name, 1, "link_layer", "InfiniBand");
    give(name, 1, "state", "4: ACTIVE");
    give(name, 1, "rate", "100 Gb/sec (4X EDR)");
    return d;
}

static void add_second_port(fake_device *d, const char *gid) {
    d->ports[1] = d->ports[0];
    d->ports[1].gids[0] = gid;
    d->ports[1].lid = 8;
    give(d->name, 2, "state", "4: ACTIVE");
}

/* The same with an Ethernet port and no address. */
static fake_device *add_roce(const char *name) {
    fake_device *d = add_device(name);
    d->ports[0] = (fake_port){.state = IBV_PORT_ACTIVE, .link_layer = IBV_LINK_LAYER_ETHERNET, .mtu = IBV_MTU_1024};
    give(name, 1, "link_layer", "Ethernet");
    return d;
}

static void add_gid(fake_device *d, int at, const char *gid, const char *type, const char *netdev) {
    char file[64];
    d->ports[0].gids[at] = gid;
    snprintf(file, sizeof file, "gid_attrs/types/%d", at);
    give(d->name, 1, file, type);
    snprintf(file, sizeof file, "gid_attrs/ndevs/%d", at);
    give(d->name, 1, file, netdev);
}

static hpc_nics *open_nics(const char *names, int n, int state) {
    hpc_nics *nics;
    hpc_device_address a;
    hpc_nics_open(names, &nics, &a);
    CHECK_EQ(a.state, state);
    CHECK_EQ(a.n, n);
    CHECK_EQ(nics == NULL ? 0 : nics->n, n);
    for (int i = 0; i < n; i++) CHECK(memcmp(&nics->nics[i].address, &a.ports[i], sizeof a.ports[i]) == 0);
    return nics;
}

static void check_closed(void) {
    for (int i = 0; i < fakes->n; i++) CHECK(fakes->devices[i].opened == 0 && fakes->devices[i].pds == 0);
}

static void check_gid(const verbs_nic *nic, const char *gid, int index, int prefix) {
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, nic->address.gid, text, sizeof text);
    if (strcmp(text, gid) != 0) fprintf(stderr, "%s is taken\n", text);
    CHECK(strcmp(text, gid) == 0);
    CHECK_EQ(nic->gid_index, index);
    CHECK_EQ(nic->address.prefix, prefix);
}

static void run_infiniband(void) {
    load_fake();
    add_device("mlx5_10");
    add_device("mlx5_2");
    fake_device *two = add_device("mlx5_0");
    add_second_port(two, "fec0::1:2:c903:0:2");
    two->extended = 1;
    sysfs_give("infiniband/mlx5_0/device/numa_node", "1");
    sysfs_give("infiniband/mlx5_2/device/numa_node", "-1");

    hpc_nics *nics = open_nics(NULL, 4, HPC_VERBS_READY);
    static const struct {
        const char *name;
        int port, lid, node;
    } expected[] = {{"mlx5_0", 1, 7, 1}, {"mlx5_0", 2, 8, 1}, {"mlx5_2", 1, 7, -1}, {"mlx5_10", 1, 7, -1}};
    for (int i = 0; i < 4; i++) {
        const verbs_nic *nic = &nics->nics[i];
        CHECK(strcmp(nic->name, expected[i].name) == 0);
        CHECK_EQ(nic->port, expected[i].port);
        CHECK(nic->node == expected[i].node && nic->address.node == nic->node);
        CHECK_EQ(nic->address.lid, expected[i].lid);
        CHECK_EQ(nic->address.fabric, HPC_FABRIC_INFINIBAND);
        CHECK_EQ(nic->address.mtu, IBV_MTU_4096);
        check_gid(nic, i == 1 ? "fec0::1:2:c903:0:2" : "fec0::2:c903:0:1", 0, 64);
        CHECK(nic->most_message == (size_t)1 << 30 && nic->most_cqe == 1000);
        CHECK(nic->most_srq == 2000 && nic->most_sends == 3000);
    }
    CHECK(nics->nics[0].context == nics->nics[1].context && nics->nics[0].pd == nics->nics[1].pd);
    CHECK(nics->nics[1].context != nics->nics[2].context && nics->nics[1].pd != nics->nics[2].pd);
    for (int i = 0; i < 3; i++) CHECK(fakes->devices[i].opened == 1 && fakes->devices[i].pds == 1);
    CHECK_EQ(hpc_nics_node(nics), -1);
    hpc_nics_close(nics);
    check_closed();

    nics = open_nics("mlx5_0", 2, HPC_VERBS_READY);
    CHECK_EQ(hpc_nics_node(nics), 1);
    hpc_nics_close(nics);
    CHECK_EQ(fakes->devices[0].tries, 1); /* what was not named is not touched */
    nics = open_nics("mlx5_0:2,=mlx5_1", 1, HPC_VERBS_READY);
    CHECK_EQ(nics->nics[0].port, 2);
    hpc_nics_close(nics);
    CHECK(open_nics("mlx5_0:3", 0, HPC_VERBS_NO_DEVICE) == NULL);
    check_closed();

    hpc_device d[2];
    CHECK_EQ(hpc_devices(d, 2), 4);
    CHECK(strcmp(d[1].name, "mlx5_0") == 0 && d[1].port == 2 && d[1].lid == 8 && d[1].gid_index == 0);
    CHECK(strcmp(d[0].link_layer, "InfiniBand") == 0 && strcmp(d[0].gid, "fec0::2:c903:0:1") == 0);
    CHECK(d[0].gbits == 100 && d[0].mtu == 4096 && d[0].numa_node == 1 && d[0].why[0] == '\0');
    check_closed();
}

static void run_many(void) {
    static const char *const names[] = {"a0", "a1", "a2", "a3", "a4", "a5"};
    load_fake();
    for (int i = 0; i < 6; i++) add_second_port(add_device(names[i]), "fec0::2");
    hpc_nics *nics = open_nics(NULL, HPC_RAILS, HPC_VERBS_READY);
    CHECK(strcmp(nics->nics[HPC_RAILS - 1].name, "a3") == 0);
    CHECK(fakes->devices[3].opened == 1 && fakes->devices[4].opened == 0);
    hpc_nics_close(nics);
    check_closed();
    CHECK_EQ(hpc_devices(NULL, 0), 12);
}

static void run_gids(void) {
    load_fake();
    fake_device *d = add_roce("rxe0");
    hpc_nics *nics;
    sysfs_give("net/lo/device/numa_node", "0");
    add_gid(d, 0, "::ffff:127.0.0.1", "IB/RoCE v1", "lo");
    CHECK(open_nics(NULL, 0, HPC_VERBS_NO_PORT) == NULL);
    add_gid(d, 1, "fe80::1", "RoCE v2", "eth0");
    add_gid(d, 2, "fd00::1", "IB/RoCE v1", "eth0");
    nics = open_nics(NULL, 1, HPC_VERBS_READY);
    check_gid(&nics->nics[0], "fe80::1", 1, 64);
    CHECK(nics->nics[0].address.fabric == HPC_FABRIC_ROCE && nics->nics[0].address.lid == 0);
    CHECK_EQ(nics->nics[0].node, -1);
    hpc_nics_close(nics);
    add_gid(d, 2, "fd00::1", "RoCE v2", "eth0");
    nics = open_nics(NULL, 1, HPC_VERBS_READY);
    check_gid(&nics->nics[0], "fd00::1", 2, 64);
    hpc_nics_close(nics);
    add_gid(d, 3, "::ffff:169.254.1.1", "RoCE v2", "eth0");
    nics = open_nics(NULL, 1, HPC_VERBS_READY);
    check_gid(&nics->nics[0], "fd00::1", 2, 64);
    hpc_nics_close(nics);
    add_gid(d, 5, "::ffff:10.99.98.97", "RoCE v2", "none0"); /* an interface of another network namespace, say */
    nics = open_nics(NULL, 1, HPC_VERBS_READY);
    check_gid(&nics->nics[0], "::ffff:10.99.98.97", 5, 128);
    hpc_nics_close(nics);
    add_gid(d, 4, "::ffff:127.0.0.1", "RoCE v2", "lo"); /* the first of equal ones */
    nics = open_nics(NULL, 1, HPC_VERBS_READY);
    check_gid(&nics->nics[0], "::ffff:127.0.0.1", 4, 96 + 8);
    CHECK_EQ(nics->nics[0].node, 0); /* of its interface, since the device has none */
    CHECK_EQ(hpc_nics_node(nics), 0);
    hpc_nics_close(nics);

    hpc_device shown;
    CHECK_EQ(hpc_devices(&shown, 1), 1);
    CHECK(strcmp(shown.netdev, "lo") == 0 && strcmp(shown.gid, "::ffff:127.0.0.1") == 0 && shown.gid_index == 4);
    CHECK(strcmp(shown.link_layer, "Ethernet") == 0 && shown.mtu == 1024 && shown.lid == 0);
    check_closed();
}

/* Each of these alone is no port for hpcomm, and says why. */
static void run_refused(void) {
    static const char *const whys[] = {"neither",
                                       "no shared receive queues",
                                       "ip link set its interface up",
                                       "no RoCE v2 address: ip addr add ADDRESS/24 dev eth7",
                                       "has no LID",
                                       "subnet manager runs (opensm)",
                                       "cannot be opened (Permission denied)",
                                       "cannot be opened (No such file"};
    enum { CASES = sizeof whys / sizeof *whys };
    static const char *const names[CASES] = {"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"};
    load_fake();
    add_device(names[0])->transport = IBV_TRANSPORT_IWARP;
    add_device(names[1])->srqs = 0;
    fake_device *down = add_roce(names[2]), *bare = add_roce(names[3]);
    down->ports[0].state = IBV_PORT_DOWN;
    add_gid(down, 0, "::ffff:127.0.0.1", "RoCE v2", "lo");
    give(names[2], 1, "state", "1: DOWN");
    add_gid(bare, 0, "fe80::1", "IB/RoCE v1", "eth7");
    add_device(names[4])->ports[0].lid = 0;
    add_device(names[5])->ports[0].state = IBV_PORT_INIT;
    add_device(names[6])->error = EACCES;
    fake_device *absent = add_device(names[7]);
    CHECK_EQ(unlink("/dev/infiniband/uverbs_r7"), 0);

    hpc_device d[CASES];
    CHECK_EQ(hpc_devices(d, CASES), CASES);
    for (int i = 0; i < CASES; i++) {
        if (strstr(d[i].why, whys[i]) == NULL) fprintf(stderr, "%s: %s\n", d[i].name, d[i].why);
        CHECK(strstr(d[i].why, whys[i]) != NULL);
        CHECK(strlen(d[i].why) < sizeof d[i].why - 1); /* none is cut */
        CHECK(open_nics(names[i], 0, i >= 6 ? HPC_VERBS_NO_ACCESS : HPC_VERBS_NO_PORT) == NULL);
    }
    CHECK(strcmp(d[2].state, "down") == 0 && d[2].mtu == 1024);
    CHECK(strcmp(d[6].state, "active") == 0 && d[6].mtu == 0 && d[6].gid_index == -1 && d[6].gbits == 100);
    CHECK(open_nics(NULL, 0, HPC_VERBS_NO_PORT) == NULL); /* how far the best one has come */
    check_closed();

    CHECK_EQ(absent->tries, 0); /* libibverbs would wait for its file */
    sysfs_give("infiniband_verbs/uverbs_r7/dev", "231:199");
    CHECK(open_nics("r7", 0, HPC_VERBS_NO_ACCESS) == NULL);
    sysfs_give("/dev/char/231:199", "");
    hpc_nics_close(open_nics("r7", 1, HPC_VERBS_READY));
    CHECK_EQ(absent->tries, 1);
}

int main(void) {
    int ran = sysfs_run("run_infiniband", run_infiniband);
    ran |= sysfs_run("run_many", run_many);
    ran |= sysfs_run("run_gids", run_gids);
    ran |= sysfs_run("run_refused", run_refused);
    return ran ? 0 : 77;
}

#endif
