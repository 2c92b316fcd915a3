#include "transport/device.h"

#include <string.h>

#include "control/net.h"

/* ---- which ports ---- */

enum { NAME_BYTES = 64, MOST_PORT = 255 };

/* One word of HPCOMM_DEVICES: the beginning of a device's name and perhaps a port. "=" before the word asks for the
 * whole name. */
typedef struct word {
    const char *name;
    size_t length;
    int exact;
    int port; /* 0: all ports */
} word;

static size_t trimmed(const char *text, size_t length) {
    while (length > 0 && text[length - 1] == ' ') length--;
    return length;
}

/* Reads the next word of *list into *w and moves *list past it. Returns 1, 0 at the end, or -1 if the word does not
 * follow the grammar; *w then has its text. */
static int next_word(const char **list, word *w) {
    while (**list == ',' || **list == ' ') ++*list;
    size_t length = strcspn(*list, ",");
    *w = (word){.name = *list, .length = trimmed(*list, length)};
    *list += length;
    if (w->length == 0) return 0;
    const char *name = w->name + (*w->name == '='), *end = w->name + w->length;
    size_t named = strcspn(name, ":,");
    if (named > (size_t)(end - name)) named = (size_t)(end - name);
    if (named == 0 || named >= NAME_BYTES || strcspn(name, "^=/ ") < named) return -1;
    int port = 0;
    if (name + named < end) {
        for (const char *digit = name + named + 1; digit < end; digit++) {
            if (*digit < '0' || *digit > '9') return -1;
            port = 10 * port + (*digit - '0');
            if (port > MOST_PORT) return -1;
        }
        if (port == 0) return -1;
    }
    *w = (word){name, named, name != w->name, port};
    return 1;
}

int hpc_nics_check(const char *names) {
    word w = {.name = ""};
    int words = 0, got;
    if (names == NULL || names[0] == '\0') return HPC_OK;
    hpc_choice c = hpc_choice_of(names);
    while ((got = next_word(&c.list, &w)) > 0) words++;
    if (got == 0 && words > 0) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, "init",
                    "init: HPCOMM_DEVICES is \"%s\", in which \"%.*s\" is not a device; give names with or without a "
                    "port, as in mlx5_0,mlx5_1:1, or ^mlx5_2 for all but that one, or =mlx5_1 for the whole name",
                    names, (int)w.length, w.name);
}

int hpc_nics_allow(const char *names, const char *device, int port) {
    word w;
    if (names == NULL || names[0] == '\0') return 1;
    hpc_choice c = hpc_choice_of(names);
    while (next_word(&c.list, &w) > 0) {
        if (w.port != 0 && w.port != port) continue;
        if (strncmp(device, w.name, w.length) == 0 && (!(c.exact || w.exact) || device[w.length] == '\0'))
            return !c.excludes;
    }
    return c.excludes;
}

/* ---- rails ---- */

static int is_ipv4(const unsigned char *gid) {
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid, mapped, sizeof mapped) == 0;
}

int hpc_gid_grade(const unsigned char gid[16]) {
    if (is_ipv4(gid)) return gid[12] == 169 && gid[13] == 254 ? 1 : 3;
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80 ? 1 : 2;
}

static int in_one_subnet(const hpc_port_address *a, const hpc_port_address *b) {
    size_t bits = a->prefix > b->prefix ? a->prefix : b->prefix, most = 8 * sizeof a->gid;
    if (a->fabric == HPC_FABRIC_NONE || a->fabric != b->fabric) return 0;
    if (bits > most) bits = most;
    if (memcmp(a->gid, b->gid, bits / 8) != 0) return 0;
    return bits % 8 == 0 || (a->gid[bits / 8] ^ b->gid[bits / 8]) >> (8 - bits % 8) == 0;
}

static int can_be_routed(const hpc_port_address *a, const hpc_port_address *b) {
    return a->fabric == HPC_FABRIC_ROCE && b->fabric == HPC_FABRIC_ROCE && is_ipv4(a->gid) == is_ipv4(b->gid) &&
           hpc_gid_grade(a->gid) > 1 && hpc_gid_grade(b->gid) > 1;
}

/* Returns the number of ports, bounded, because the address came from another process. */
static int count(const hpc_device_address *a) {
    return a->state != HPC_VERBS_READY || a->n < 0 ? 0 : a->n < HPC_RAILS ? a->n : HPC_RAILS;
}

int hpc_node_of_core(const hpc_device_address *address, int core) {
    int n = count(address);
    if (n == 0) return -1;
    if (core >= 0) return address->ports[core % n].node;
    for (int i = 1; i < n; i++)
        if (address->ports[i].node != address->ports[0].node) return -1;
    return address->ports[0].node;
}

typedef struct pairing {
    const hpc_device_address *of[2];
    unsigned taken[2];
    hpc_rail *rails;
    int n;
} pairing;

/* Pairs each free port of one rank with the first free port of the other rank that fits it. */
static void pair_up(pairing *p, int (*fits)(const hpc_port_address *, const hpc_port_address *)) {
    for (int i = 0; i < count(p->of[0]); i++)
        for (int j = 0; j < count(p->of[1]) && !(p->taken[0] >> i & 1); j++) {
            if (p->taken[1] >> j & 1 || !fits(&p->of[0]->ports[i], &p->of[1]->ports[j])) continue;
            p->taken[0] |= 1u << i;
            p->taken[1] |= 1u << j;
            p->rails[p->n++] = (hpc_rail){i, j};
        }
}

static unsigned fabrics_of(const hpc_device_address *a) {
    unsigned fabrics = 0;
    for (int i = 0; i < count(a); i++) fabrics |= 1u << (a->ports[i].fabric & 31);
    return fabrics;
}

const char *hpc_no_verbs_text(int state) {
    switch (state) {
    case HPC_VERBS_READY:
        return "has RDMA ports";
    case HPC_VERBS_NOT_ALLOWED:
        return "does not allow verbs";
    case HPC_VERBS_NOT_BUILT:
        return "runs an hpcomm built without rdma-core's headers; apt-get install libibverbs-dev, and build it again";
    case HPC_VERBS_NO_LIBRARY:
        return "has no libibverbs.so.1; apt-get install libibverbs1 ibverbs-providers";
    case HPC_VERBS_NO_DEVICE:
        return "has no RDMA device, or none that HPCOMM_DEVICES allows";
    case HPC_VERBS_NO_ACCESS:
        return "cannot open its RDMA devices; hpcomm info --devices says why";
    default:
        return "has no RDMA port that is active and has an address; hpcomm info --devices says why";
    }
}

static const char *why_none(const hpc_device_address *self, const hpc_device_address *peer, int routed) {
    if (self->state != HPC_VERBS_READY && (peer->state == HPC_VERBS_READY || self->state < peer->state))
        return hpc_no_verbs_text(self->state);
    if (peer->state != HPC_VERBS_READY) return hpc_no_verbs_text(peer->state);
    unsigned shared = fabrics_of(self) & fabrics_of(peer);
    if (shared >> HPC_FABRIC_ROCE & 1)
        return routed ? "one has IPv4 and the other IPv6 RoCE v2 addresses, or a link-local one"
                      : "their RoCE ports are in different subnets; HPCOMM_TRANSPORT=shm,verbs lets routers be used";
    if (shared >> HPC_FABRIC_INFINIBAND & 1) return "their InfiniBand ports are in different subnets";
    return "one has InfiniBand ports and the other RoCE ones";
}

int hpc_match_rails(const hpc_device_address *self, const hpc_device_address *peer, int routed,
                    hpc_rail rails[HPC_RAILS], const char **why) {
    /* Both ranks must make the same pairs. So they go through the ports in the same order, the lesser address first.
     * Between equal addresses this pairs each port with the port of the same index. */
    int swapped = memcmp(self, peer, sizeof *self) > 0;
    pairing p = {.of = {swapped ? peer : self, swapped ? self : peer}, .rails = rails};
    pair_up(&p, in_one_subnet);
    if (routed) pair_up(&p, can_be_routed);
    for (int k = 0; swapped && k < p.n; k++) rails[k] = (hpc_rail){rails[k].there, rails[k].here};
    if (p.n == 0) *why = why_none(self, peer, routed);
    return p.n;
}
