/* nic.h - a port of an RDMA device, memory registered with it, and reliable queue pairs to another process, by plain
 * libibverbs. hpcomm is measured against it, so it shares no code with hpcomm. */
#ifndef BENCH_NIC_H
#define BENCH_NIC_H

#include "bench.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { BENCH_QPS = 16, BENCH_DEPTH = 128, BENCH_INLINE = 64, BENCH_RECEIVES = 256, BENCH_WHY = 256 };

/* Writes a sentence into why (BENCH_WHY bytes); returns -1. */
__attribute__((format(printf, 2, 3))) static inline int bench_fail(char *why, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(why, BENCH_WHY, format, values);
    va_end(values);
    return -1;
}

typedef struct bench_port {
    struct ibv_context *context;
    struct ibv_pd *pd;
    union ibv_gid gid;
    enum ibv_mtu mtu;
    uint16_t lid;
    uint8_t number;
    int gid_index, global; /* global: packets carry a GID (RoCE) */
    char name[64];
} bench_port;

/* The facts about one end that the other end needs. */
typedef struct bench_address {
    union ibv_gid gid;
    uint64_t memory;
    uint32_t key, mtu, qps, qp[BENCH_QPS];
    uint16_t lid;
} bench_address;

typedef struct bench_end {
    bench_port *port;
    struct ibv_mr *mr;
    struct ibv_comp_channel *channel; /* of arrivals */
    struct ibv_cq *sent, *arrived;
    struct ibv_srq *srq;
    struct ibv_qp *qp[BENCH_QPS];
    int qps;
    bench_address there;
} bench_end;

/* Returns the index of a RoCE v2 GID, preferably an IPv4 one; the kernel's type of each entry decides, not its
 * position. */
static inline int bench_find_gid(const char *device, int port, struct ibv_context *context, int n, union ibv_gid *gid) {
    static const unsigned char ipv4[12] = {[10] = 0xff, [11] = 0xff};
    int found = -1;
    for (int i = 0; i < n; i++) {
        char path[160], type[32] = "";
        union ibv_gid each;
        snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%d/gid_attrs/types/%d", device, port, i);
        FILE *file = fopen(path, "re");
        if (file == NULL) continue;
        int v2 = fgets(type, sizeof type, file) != NULL && strncmp(type, "RoCE v2", 7) == 0;
        fclose(file);
        if (!v2 || ibv_query_gid(context, (uint8_t)port, i, &each) != 0) continue;
        int best = memcmp(each.raw, ipv4, sizeof ipv4) == 0;
        if (found >= 0 && !best) continue;
        *gid = each;
        found = i;
        if (best) break;
    }
    return found;
}

static inline void bench_port_close(bench_port *p) {
    if (p->pd != NULL) ibv_dealloc_pd(p->pd);
    if (p->context != NULL) ibv_close_device(p->context);
    memset(p, 0, sizeof *p);
}

/* Opens a device's first active port that has an address. */
static inline int bench_port_open(struct ibv_device *device, bench_port *p, char *why) {
    struct ibv_device_attr attributes;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", ibv_get_device_name(device));
    p->context = ibv_open_device(device);
    if (p->context == NULL) return bench_fail(why, "%s does not open: %s", p->name, strerror(errno));
    if (ibv_query_device(p->context, &attributes) != 0) goto none;
    for (int i = 1; i <= attributes.phys_port_cnt; i++) {
        struct ibv_port_attr port;
        if (ibv_query_port(p->context, (uint8_t)i, &port) != 0 || port.state != IBV_PORT_ACTIVE) continue;
        p->global = port.link_layer == IBV_LINK_LAYER_ETHERNET;
        p->gid_index = p->global ? bench_find_gid(p->name, i, p->context, port.gid_tbl_len, &p->gid) : 0;
        if (p->gid_index < 0) continue;
        p->number = (uint8_t)i;
        p->lid = port.lid;
        p->mtu = port.active_mtu;
        p->pd = ibv_alloc_pd(p->context);
        if (p->pd != NULL) return 0;
    }
none:
    bench_fail(why, "%.63s has no active port with an address (ibv_devinfo -v shows states and GIDs)", p->name);
    bench_port_close(p);
    return -1;
}

/* Opens the ports of the devices in a comma list, or all usable ones for NULL or ""; returns how many, or -1 with
 * *why. */
static inline int bench_ports_open(const char *names, bench_port *ports, int most, char *why) {
    int devices = 0, n = 0, all = names == NULL || *names == '\0';
    struct ibv_device **list = ibv_get_device_list(&devices);
    snprintf(why, BENCH_WHY, "no RDMA device here (ibv_devices lists them)");
    for (int i = 0; i < devices && n < most; i++) {
        const char *name = ibv_get_device_name(list[i]), *at = all ? name : strstr(names, name);
        size_t length = strlen(name);
        if (at == NULL || (!all && at > names && at[-1] != ',') || (at[length] != '\0' && at[length] != ',')) continue;
        if (bench_port_open(list[i], &ports[n], why) == 0)
            n++;
        else if (!all)
            break;
    }
    if (list != NULL) ibv_free_device_list(list);
    return n > 0 ? n : -1;
}

static inline void bench_end_close(bench_end *e) {
    for (int i = 0; i < e->qps; i++)
        if (e->qp[i] != NULL) ibv_destroy_qp(e->qp[i]);
    if (e->srq != NULL) ibv_destroy_srq(e->srq);
    if (e->arrived != NULL) ibv_destroy_cq(e->arrived);
    if (e->sent != NULL) ibv_destroy_cq(e->sent);
    if (e->channel != NULL) ibv_destroy_comp_channel(e->channel);
    if (e->mr != NULL) ibv_dereg_mr(e->mr);
    memset(e, 0, sizeof *e);
}

/* Registers memory and makes queue pairs, a shared receive queue and a completion queue for each direction. */
static inline int bench_end_open(bench_port *port, void *memory, size_t nbytes, int qps, bench_end *e,
                                 bench_address *here, char *why) {
    struct ibv_srq_init_attr receives = {.attr = {.max_wr = BENCH_RECEIVES, .max_sge = 1}};
    memset(e, 0, sizeof *e);
    memset(here, 0, sizeof *here);
    e->port = port;
    e->mr = ibv_reg_mr(port->pd, memory, nbytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (e->mr == NULL) {
        bench_fail(why, "%s registers no %zu bytes: %s (ulimit -l says how many may be locked)", port->name, nbytes,
                   strerror(errno));
        goto err;
    }
    e->channel = ibv_create_comp_channel(port->context);
    e->sent = ibv_create_cq(port->context, qps * BENCH_DEPTH, NULL, NULL, 0);
    e->arrived = e->channel == NULL ? NULL : ibv_create_cq(port->context, 2 * BENCH_RECEIVES, NULL, e->channel, 0);
    e->srq = ibv_create_srq(port->pd, &receives);
    if (e->sent == NULL || e->arrived == NULL || e->srq == NULL) {
        bench_fail(why, "%s makes no queues of %d: %s", port->name, qps * BENCH_DEPTH, strerror(errno));
        goto err;
    }
    for (e->qps = 0; e->qps < qps; e->qps++) {
        struct ibv_qp_init_attr init = {
            .send_cq = e->sent,
            .recv_cq = e->arrived,
            .srq = e->srq,
            .qp_type = IBV_QPT_RC,
            .cap = {.max_send_wr = BENCH_DEPTH, .max_send_sge = 1, .max_inline_data = BENCH_INLINE}};
        struct ibv_qp_attr to_init = {.qp_state = IBV_QPS_INIT,
                                      .port_num = port->number,
                                      .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
        e->qp[e->qps] = ibv_create_qp(port->pd, &init);
        if (e->qp[e->qps] == NULL ||
            ibv_modify_qp(e->qp[e->qps], &to_init,
                          IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0) {
            bench_fail(why, "%s makes no queue pair %d: %s", port->name, e->qps, strerror(errno));
            e->qps += e->qp[e->qps] != NULL;
            goto err;
        }
        here->qp[e->qps] = e->qp[e->qps]->qp_num;
    }
    here->gid = port->gid;
    here->lid = port->lid;
    here->mtu = port->mtu;
    here->memory = (uint64_t)(uintptr_t)memory;
    here->key = e->mr->rkey;
    here->qps = (uint32_t)qps;
    return 0;
err:
    bench_end_close(e);
    return -1;
}

/* Connects queue pair i of this end to queue pair i of the other end, for each i. */
static inline int bench_end_connect(bench_end *e, const bench_address *there, char *why) {
    e->there = *there;
    for (int i = 0; i < e->qps; i++) {
        struct ibv_qp_attr receive = {
            .qp_state = IBV_QPS_RTR,
            .path_mtu = there->mtu < (uint32_t)e->port->mtu ? (enum ibv_mtu)there->mtu : e->port->mtu,
            .dest_qp_num = there->qp[i],
            .max_dest_rd_atomic = 1,
            .min_rnr_timer = 12,
            .ah_attr = {.is_global = (uint8_t)e->port->global,
                        .grh = {.dgid = there->gid, .sgid_index = (uint8_t)e->port->gid_index, .hop_limit = 64},
                        .dlid = there->lid,
                        .port_num = e->port->number}};
        struct ibv_qp_attr send = {
            .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 6, .max_rd_atomic = 1};
        if (ibv_modify_qp(e->qp[i], &receive,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0 ||
            ibv_modify_qp(e->qp[i], &send,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                              IBV_QP_MAX_QP_RD_ATOMIC) != 0)
            return bench_fail(why, "%s does not connect queue pair %d: %s", e->port->name, i, strerror(errno));
    }
    return 0;
}

/* Takes up to most completions; returns how many, or -1 with *why if one has failed. */
static inline int bench_completed(const bench_end *e, struct ibv_cq *cq, struct ibv_wc *done, int most, char *why) {
    int n = ibv_poll_cq(cq, most, done);
    for (int i = 0; i < n; i++)
        if (done[i].status != IBV_WC_SUCCESS)
            return bench_fail(why, "%s: a work request ended with: %s", e->port->name,
                              ibv_wc_status_str(done[i].status));
    return n < 0 ? bench_fail(why, "%s: a completion queue cannot be read", e->port->name) : n;
}

/* Prepares one RDMA write from the end's registered memory to byte `at` of the other end's; short ones are inline. */
static inline void bench_write(const bench_end *e, struct ibv_send_wr *wr, struct ibv_sge *sge, const void *from,
                               size_t nbytes, size_t at) {
    *sge = (struct ibv_sge){(uint64_t)(uintptr_t)from, (uint32_t)nbytes, e->mr->lkey};
    memset(wr, 0, sizeof *wr);
    wr->sg_list = sge;
    wr->num_sge = nbytes > 0;
    wr->opcode = IBV_WR_RDMA_WRITE;
    wr->send_flags = nbytes <= BENCH_INLINE ? IBV_SEND_INLINE : 0;
    wr->wr.rdma.remote_addr = e->there.memory + at;
    wr->wr.rdma.rkey = e->there.key;
}

#endif
