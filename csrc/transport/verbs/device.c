#define _GNU_SOURCE
#include "transport/verbs/device.h"

#if defined(HPC_HAVE_VERBS)

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband"

enum { PATH_BYTES = 512, LINE_BYTES = 64, IPV4_AT = 12, GID_BITS = 128 };

/* ---- the library ---- */

static struct {
    verbs_library library;
    int (*query_port)(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attributes);
    int ready;
    char why[256];
} loaded;
static pthread_once_t load_once = PTHREAD_ONCE_INIT;

/* Copies the header's inline function, because the library's symbol dates from a smaller struct and fills in only
 * that. A driver's own function, if there is one, fills in the whole struct. */
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes) {
    struct verbs_context *v = verbs_get_ctx_op(context, query_port);
    memset(attributes, 0, sizeof *attributes);
    if (v != NULL) return v->query_port(context, port, attributes, sizeof *attributes);
    return loaded.query_port(context, port, (struct _compat_ibv_port_attr *)(void *)attributes);
}

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
    {"ibv_get_device_list", offsetof(verbs_library, get_device_list)},
    {"ibv_free_device_list", offsetof(verbs_library, free_device_list)},
    {"ibv_get_device_name", offsetof(verbs_library, get_device_name)},
    {"ibv_open_device", offsetof(verbs_library, open_device)},
    {"ibv_close_device", offsetof(verbs_library, close_device)},
    {"ibv_query_device", offsetof(verbs_library, query_device)},
    {"ibv_query_gid", offsetof(verbs_library, query_gid)},
    {"ibv_alloc_pd", offsetof(verbs_library, alloc_pd)},
    {"ibv_dealloc_pd", offsetof(verbs_library, dealloc_pd)},
    {"ibv_reg_mr", offsetof(verbs_library, reg_mr)},
    {"ibv_dereg_mr", offsetof(verbs_library, dereg_mr)},
    {"ibv_create_comp_channel", offsetof(verbs_library, create_comp_channel)},
    {"ibv_destroy_comp_channel", offsetof(verbs_library, destroy_comp_channel)},
    {"ibv_create_cq", offsetof(verbs_library, create_cq)},
    {"ibv_destroy_cq", offsetof(verbs_library, destroy_cq)},
    {"ibv_get_cq_event", offsetof(verbs_library, get_cq_event)},
    {"ibv_ack_cq_events", offsetof(verbs_library, ack_cq_events)},
    {"ibv_create_srq", offsetof(verbs_library, create_srq)},
    {"ibv_destroy_srq", offsetof(verbs_library, destroy_srq)},
    {"ibv_create_qp", offsetof(verbs_library, create_qp)},
    {"ibv_modify_qp", offsetof(verbs_library, modify_qp)},
    {"ibv_destroy_qp", offsetof(verbs_library, destroy_qp)},
    {"ibv_get_async_event", offsetof(verbs_library, get_async_event)},
    {"ibv_ack_async_event", offsetof(verbs_library, ack_async_event)},
    {"ibv_wc_status_str", offsetof(verbs_library, wc_status_str)},
    {"ibv_event_type_str", offsetof(verbs_library, event_type_str)},
};

/* ISO C has no conversion from an object pointer to a function pointer. */
static int find_symbol(void *library, const char *name, void *pointer) {
    void *symbol = dlsym(library, name);
    memcpy(pointer, &symbol, sizeof symbol);
    if (symbol == NULL)
        snprintf(loaded.why, sizeof loaded.why,
                 "libibverbs.so.1 has no %s; it is too old, apt-get install --only-upgrade libibverbs1", name);
    return symbol != NULL;
}

/* Loads libibverbs for good: its drivers keep state in the process, so it is never unloaded. */
static void load(void) {
    void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        snprintf(loaded.why, sizeof loaded.why,
                 "libibverbs cannot be loaded (%.128s); apt-get install libibverbs1 ibverbs-providers",
                 error == NULL ? "libibverbs.so.1" : error);
        return;
    }
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!find_symbol(library, symbols[i].name, (char *)&loaded.library + symbols[i].at)) return;
    if (!find_symbol(library, "ibv_query_port", &loaded.query_port)) return;
    loaded.library.query_port = query_port;
    loaded.ready = 1;
}

/* Returns the library, loaded at the first call; NULL with *why if it cannot be loaded. */
static const verbs_library *library_of(const char **why) {
    pthread_once(&load_once, load);
    if (!loaded.ready) *why = loaded.why;
    return loaded.ready ? &loaded.library : NULL;
}

/* ---- the kernel's files ---- */

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* Lists the names in a folder, sorted so that 2 comes before 10; returns how many. */
static int list(const char *folder, struct dirent ***names) {
    int n = scandir(folder, names, is_visible, versionsort);
    if (n >= 0) return n;
    *names = NULL;
    return 0;
}

static void free_list(struct dirent **names, int n) {
    while (n > 0) free(names[--n]);
    free(names);
}

/* Reads the first line of a file; "" if that fails. */
static int read_line(const char *path, char line[LINE_BYTES]) {
    FILE *file = fopen(path, "re");
    int read = file != NULL && fgets(line, LINE_BYTES, file) != NULL;
    if (file != NULL) fclose(file);
    if (!read) line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return read;
}

static int read_of_port(const char *device, int port, const char *what, char line[LINE_BYTES]) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, CLASS "/%s/ports/%d/%s", device, port, what);
    return read_line(path, line);
}

static int read_node(const char *folder, const char *name) {
    char path[PATH_BYTES], line[LINE_BYTES];
    int node;
    snprintf(path, sizeof path, "%s/%s/device/numa_node", folder, name);
    return read_line(path, line) && sscanf(line, "%d", &node) == 1 && node >= 0 ? node : -1;
}

static int has_devices(void) {
    struct dirent **names;
    int n = list(CLASS, &names);
    free_list(names, n);
    return n > 0;
}

/* ---- addresses ---- */

static int bits_of(const unsigned char *mask, int most) {
    int bits = 0;
    while (bits < most && mask[bits / 8] >> (7 - bits % 8) & 1) bits++;
    return bits;
}

/* Returns how many leading bits of a RoCE v2 GID name its subnet, from the interface that has this address. */
static int prefix_of(const unsigned char gid[16], const char *netdev) {
    struct ifaddrs *all = NULL;
    int is_ipv4 = IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)(const void *)gid);
    int prefix = is_ipv4 ? GID_BITS : 64; /* without an interface, the address is alone in its subnet */
    if (getifaddrs(&all) != 0) return prefix;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_netmask == NULL) continue;
        if (netdev[0] != '\0' && strncmp(i->ifa_name, netdev, strcspn(i->ifa_name, ":")) != 0) continue;
        if (is_ipv4 && i->ifa_addr->sa_family == AF_INET) {
            struct sockaddr_in a, mask;
            memcpy(&a, i->ifa_addr, sizeof a);
            memcpy(&mask, i->ifa_netmask, sizeof mask);
            if (memcmp(&a.sin_addr, gid + IPV4_AT, sizeof a.sin_addr) != 0) continue;
            prefix = 8 * IPV4_AT + bits_of((const unsigned char *)&mask.sin_addr, 32);
            break;
        }
        if (!is_ipv4 && i->ifa_addr->sa_family == AF_INET6) {
            struct sockaddr_in6 a, mask;
            memcpy(&a, i->ifa_addr, sizeof a);
            memcpy(&mask, i->ifa_netmask, sizeof mask);
            if (memcmp(&a.sin6_addr, gid, sizeof a.sin6_addr) != 0) continue;
            prefix = bits_of(mask.sin6_addr.s6_addr, GID_BITS);
            break;
        }
    }
    freeifaddrs(all);
    return prefix;
}

/* ---- one port ---- */

typedef struct port_view {
    hpc_device shown;
    verbs_nic nic; /* no PD yet; filled in as far as the port was usable */
    int opened;
} port_view;

typedef struct opened_device {
    const char *name;
    struct ibv_device *device;   /* NULL: libibverbs does not know it */
    struct ibv_context *context; /* NULL: cannot be opened */
    struct ibv_device_attr attributes;
    int error; /* errno of opening */
} opened_device;

/* Returns the index of the best RoCE v2 address, the first of equals; -1 without one. Of the table's hundreds
 * of entries few are used. libibverbs returns zeros for an empty one, faster than a file can be opened. */
static int choose_gid(const verbs_library *l, const opened_device *d, int port, int n, port_view *v) {
    static const union ibv_gid empty;
    char file[LINE_BYTES], line[LINE_BYTES];
    int best = -1, best_grade = 0;
    for (int i = 0; i < n; i++) {
        union ibv_gid gid;
        if (l->query_gid(d->context, (uint8_t)port, i, &gid) != 0) continue;
        if (memcmp(&gid, &empty, sizeof gid) == 0 || hpc_gid_grade(gid.raw) <= best_grade) continue;
        snprintf(file, sizeof file, "gid_attrs/types/%d", i);
        if (!read_of_port(d->name, port, file, line) || strcmp(line, "RoCE v2") != 0) continue;
        best = i;
        best_grade = hpc_gid_grade(gid.raw);
        memcpy(v->nic.address.gid, gid.raw, sizeof gid.raw);
    }
    snprintf(file, sizeof file, "gid_attrs/ndevs/%d", best < 0 ? 0 : best);
    if (read_of_port(d->name, port, file, line))
        snprintf(v->shown.netdev, sizeof v->shown.netdev, "%.*s", IFNAMSIZ - 1, line);
    return best;
}

/* Writes why hpcomm cannot use the port; "" if it can. */
static void judge(const verbs_library *l, const opened_device *d, int port, port_view *v) {
    hpc_device *shown = &v->shown;
    hpc_port_address *a = &v->nic.address;
    struct ibv_port_attr p;
    if (d->device == NULL) {
        snprintf(shown->why, sizeof shown->why,
                 "libibverbs does not see it: modprobe ib_uverbs; apt-get install "
                 "ibverbs-providers");
        return;
    }
    if (d->context == NULL) {
        snprintf(shown->why, sizeof shown->why,
                 "cannot be opened (%.30s): may this user write /dev/infiniband/uverbs*?", strerror(d->error));
        return;
    }
    if (l->query_port(d->context, (uint8_t)port, &p) != 0) {
        snprintf(shown->why, sizeof shown->why, "the device does not say how the port is");
        return;
    }
    shown->mtu = 128 << p.active_mtu;
    int is_roce = p.link_layer == IBV_LINK_LAYER_ETHERNET;
    v->nic.gid_index = is_roce ? choose_gid(l, d, port, p.gid_tbl_len, v) : 0;
    if (!is_roce) {
        union ibv_gid gid;
        if (l->query_gid(d->context, (uint8_t)port, 0, &gid) == 0) memcpy(a->gid, gid.raw, sizeof gid.raw);
        a->lid = p.lid;
    }
    a->fabric = is_roce ? HPC_FABRIC_ROCE : HPC_FABRIC_INFINIBAND;
    a->global = (p.flags & IBV_QPF_GRH_REQUIRED) != 0;
    a->mtu = (uint8_t)p.active_mtu;
    if (!is_roce)
        a->prefix = 64;
    else if (v->nic.gid_index >= 0)
        a->prefix = (uint8_t)prefix_of(a->gid, shown->netdev);
    v->nic.most_message = p.max_msg_sz;
    shown->lid = a->lid;
    shown->gid_index = v->nic.gid_index;
    if (v->nic.gid_index >= 0) inet_ntop(AF_INET6, a->gid, shown->gid, sizeof shown->gid);

    if (d->device->transport_type != IBV_TRANSPORT_IB)
        snprintf(shown->why, sizeof shown->why, "hpcomm needs InfiniBand or RoCE, and this is neither");
    else if (d->attributes.max_srq == 0)
        snprintf(shown->why, sizeof shown->why, "the device has no shared receive queues");
    else if (p.state != IBV_PORT_ACTIVE)
        snprintf(shown->why, sizeof shown->why, "the port is not active: %s",
                 is_roce ? "ip link set its interface up, and look at the cable"
                         : "look at the cable, and whether a subnet manager runs (opensm)");
    else if (is_roce && v->nic.gid_index < 0)
        snprintf(shown->why, sizeof shown->why, "no RoCE v2 address: ip addr add ADDRESS/24 dev %s",
                 shown->netdev[0] == '\0' ? "INTERFACE" : shown->netdev);
    else if (!is_roce && p.lid == 0)
        snprintf(shown->why, sizeof shown->why, "the port has no LID: does a subnet manager run (opensm)?");
}

static void look(const verbs_library *l, const opened_device *d, int port, port_view *v) {
    char line[LINE_BYTES];
    int whole, tenths = 0;
    *v = (port_view){.opened = d->context != NULL};
    hpc_device *shown = &v->shown;
    snprintf(shown->name, sizeof shown->name, "%s", d->name);
    shown->port = port;
    shown->gid_index = -1;
    if (read_of_port(d->name, port, "link_layer", line))
        snprintf(shown->link_layer, sizeof shown->link_layer, "%.15s", line);
    if (read_of_port(d->name, port, "state", line)) { /* 4: ACTIVE */
        const char *name = strchr(line, ' ');
        snprintf(shown->state, sizeof shown->state, "%.15s", name == NULL ? line : name + 1);
        for (char *c = shown->state; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
    }
    /* "100 Gb/sec (4X EDR)" or "2.5 Gb/sec", read as two integers: a locale may have a decimal comma */
    if (read_of_port(d->name, port, "rate", line) && sscanf(line, "%d.%1d", &whole, &tenths) >= 1)
        shown->gbits = whole + tenths / 10.0;
    judge(l, d, port, v);
    shown->numa_node = read_node(CLASS, d->name);
    if (shown->numa_node < 0 && shown->netdev[0] != '\0') shown->numa_node = read_node("/sys/class/net", shown->netdev);

    snprintf(v->nic.name, sizeof v->nic.name, "%s", d->name);
    v->nic.context = d->context;
    v->nic.port = port;
    v->nic.node = shown->numa_node;
    v->nic.address.node = (int16_t)shown->numa_node;
    v->nic.most_cqe = d->attributes.max_cqe;
    v->nic.most_srq = d->attributes.max_srq_wr;
    v->nic.most_sends = d->attributes.max_qp_wr;
}

/* ---- all ports ---- */

/* Returns 0, or an errno if the device file is missing or may not be opened. In these cases libibverbs would wait
 * five seconds for udev. Like libibverbs, looks for the file by name, then by number. */
static int check_file(const struct ibv_device *device) {
    char path[PATH_BYTES], number[LINE_BYTES];
    snprintf(path, sizeof path, "/dev/infiniband/%s", device->dev_name);
    if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0) return 0;
    int error = errno;
    snprintf(path, sizeof path, "/sys/class/infiniband_verbs/%s/dev", device->dev_name);
    if (!read_line(path, number)) return error;
    snprintf(path, sizeof path, "/dev/char/%s", number);
    return faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0 ? 0 : error;
}

static void open_device(const verbs_library *l, struct ibv_device **known, int n_known, opened_device *d) {
    for (int i = 0; i < n_known && d->device == NULL; i++)
        if (strcmp(l->get_device_name(known[i]), d->name) == 0) d->device = known[i];
    if (d->device == NULL) return;
    d->error = check_file(d->device);
    if (d->error != 0) return;
    errno = 0;
    d->context = l->open_device(d->device);
    d->error = errno;
    if (d->context == NULL || l->query_device(d->context, &d->attributes) == 0) return;
    d->error = EIO;
    l->close_device(d->context);
    d->context = NULL;
}

/* Calls take for each port that names allow, in the order of device and port. Closes a device unless take returned
 * nonzero, and so kept it, for one of its ports. */
static void each_port(const verbs_library *l, const char *names, int (*take)(void *arg, const port_view *v),
                      void *arg) {
    struct dirent **devices, **ports;
    int n_known = 0, n_devices = list(CLASS, &devices);
    struct ibv_device **known = l->get_device_list(&n_known);
    if (known == NULL) n_known = 0;
    for (int i = 0; i < n_devices; i++) {
        char folder[PATH_BYTES];
        opened_device d = {.name = devices[i]->d_name};
        int kept = 0, tried = 0;
        snprintf(folder, sizeof folder, CLASS "/%s/ports", d.name);
        int n_ports = list(folder, &ports);
        for (int k = 0; k < n_ports; k++) {
            int port = atoi(ports[k]->d_name);
            port_view v;
            if (!hpc_nics_allow(names, d.name, port)) continue;
            if (!tried) open_device(l, known, n_known, &d);
            tried = 1;
            look(l, &d, port, &v);
            kept |= take(arg, &v);
        }
        free_list(ports, n_ports);
        if (d.context != NULL && !kept) l->close_device(d.context);
    }
    free_list(devices, n_devices);
    if (known != NULL) l->free_device_list(known);
}

typedef struct opening {
    hpc_nics *nics;
    int state; /* the hpc_no_verbs value of the port that came closest to being usable */
} opening;

static int take_nic(void *arg, const port_view *v) {
    opening *o = arg;
    hpc_nics *nics = o->nics;
    int state = v->opened ? HPC_VERBS_NO_PORT : HPC_VERBS_NO_ACCESS;
    if (state > o->state) o->state = state;
    if (v->shown.why[0] != '\0' || nics->n == HPC_RAILS) return 0;
    verbs_nic *nic = &nics->nics[nics->n], *before = nics->n > 0 ? nic - 1 : NULL;
    *nic = v->nic;
    nic->pd = before != NULL && before->context == nic->context ? before->pd : nics->library->alloc_pd(nic->context);
    if (nic->pd == NULL) return 0;
    nics->n++;
    return 1;
}

void verbs_nics_open(const char *names, hpc_nics **nics, hpc_device_address *address) {
    const char *why;
    opening o = {.state = HPC_VERBS_NO_DEVICE};
    *nics = NULL;
    *address = (hpc_device_address){.state = HPC_VERBS_NO_DEVICE};
    if (!has_devices()) return; /* avoids loading the library at all */
    const verbs_library *l = library_of(&why);
    if (l == NULL) {
        address->state = HPC_VERBS_NO_LIBRARY;
        return;
    }
    o.nics = calloc(1, sizeof *o.nics);
    if (o.nics == NULL) {
        address->state = HPC_VERBS_NO_ACCESS;
        return;
    }
    o.nics->library = l;
    each_port(l, names, take_nic, &o);
    address->state = o.nics->n > 0 ? HPC_VERBS_READY : o.state;
    address->n = o.nics->n;
    for (int i = 0; i < o.nics->n; i++) address->ports[i] = o.nics->nics[i].address;
    if (o.nics->n > 0)
        *nics = o.nics;
    else
        free(o.nics);
}

void verbs_nics_close(hpc_nics *nics) {
    if (nics == NULL) return;
    for (int i = nics->n - 1; i >= 0; i--) {
        const verbs_nic *nic = &nics->nics[i];
        if (i > 0 && nic[-1].context == nic->context) continue;
        nics->library->dealloc_pd(nic->pd);
        nics->library->close_device(nic->context);
    }
    free(nics);
}

int verbs_nics_node(const hpc_nics *nics) {
    int node = nics == NULL ? -1 : nics->nics[0].node;
    for (int i = 1; nics != NULL && i < nics->n; i++)
        if (nics->nics[i].node != node) return -1;
    return node;
}

/* ---- hpc_devices ---- */

typedef struct showing {
    hpc_device *devices;
    int n, cap;
} showing;

static int show(void *arg, const port_view *v) {
    showing *s = arg;
    if (s->n < s->cap) s->devices[s->n] = v->shown;
    s->n++;
    return 0;
}

int hpc_devices(hpc_device *devices, int cap) {
    const char *why;
    showing s = {devices, 0, cap};
    if (cap < 0 || (devices == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "devices", "devices: cap is %d%s", cap,
                        devices == NULL ? " and devices NULL" : "");
    const verbs_library *l = library_of(&why);
    if (l == NULL) return hpc_fail(HPC_ERR_UNSUPPORTED, "devices", "devices: %s", why);
    each_port(l, NULL, show, &s);
    return s.n;
}

#else /* a build without rdma-core's headers */

int hpc_devices(hpc_device *devices, int cap) {
    (void)devices, (void)cap;
    return hpc_fail(HPC_ERR_UNSUPPORTED, "devices",
                    "devices: this hpcomm was built without rdma-core's headers; apt-get install libibverbs-dev, and "
                    "build it again");
}

#endif
