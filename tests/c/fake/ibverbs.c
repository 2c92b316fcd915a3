#include "fake/ibverbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_query_port
#undef ibv_reg_mr

fake_verbs fake;
static struct ibv_device devices[FAKE_DEVICES];

static fake_device *device_of(struct ibv_context *context) {
    return &fake.devices[context->device - devices];
}

/* ---- devices ---- */

struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **list = calloc((size_t)fake.n + 1, sizeof *list);
    for (int i = 0; i < fake.n; i++) {
        list[i] = &devices[fake.n - 1 - i]; /* libibverbs promises no order */
        snprintf(list[i]->name, sizeof list[i]->name, "%s", fake.devices[fake.n - 1 - i].name);
        snprintf(list[i]->dev_name, sizeof list[i]->dev_name, "uverbs_%.32s", list[i]->name);
        list[i]->transport_type = fake.devices[fake.n - 1 - i].transport;
    }
    *n = fake.n;
    return list;
}

void ibv_free_device_list(struct ibv_device **list) {
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device) {
    return device->name;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *p, size_t nbytes) {
    const fake_port *f = &device_of(context)->ports[port - 1];
    (void)nbytes;
    p->state = f->state;
    p->link_layer = (uint8_t)f->link_layer;
    p->lid = (uint16_t)f->lid;
    p->active_mtu = f->mtu;
    p->gid_tbl_len = FAKE_GIDS;
    p->max_msg_sz = 1u << 30;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attributes) {
    if (device_of(context)->extended) return EINVAL;
    return query_port(context, port, (struct ibv_port_attr *)(void *)attributes, 0);
}

struct ibv_context *ibv_open_device(struct ibv_device *device) {
    fake_device *d = &fake.devices[device - devices];
    struct verbs_context *c;
    d->tries++;
    errno = d->error;
    if (d->error != 0) return NULL;
    c = calloc(1, sizeof *c);
    c->sz = sizeof *c;
    c->context.device = device;
    c->query_port = query_port;
    if (d->extended) c->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    d->opened++;
    return &c->context;
}

int ibv_close_device(struct ibv_context *context) {
    device_of(context)->opened--;
    free((char *)context - offsetof(struct verbs_context, context));
    return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes) {
    *attributes = (struct ibv_device_attr){
        .max_cqe = 1000, .max_srq = device_of(context)->srqs, .max_srq_wr = 2000, .max_qp_wr = 3000};
    return 0;
}

/* An empty place is no error and has zeros, as libibverbs gives it. */
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
    const char *text = device_of(context)->ports[port - 1].gids[index];
    memset(gid, 0, sizeof *gid);
    return text == NULL || inet_pton(AF_INET6, text, gid->raw) == 1 ? 0 : -1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    device_of(context)->pds++;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd) {
    device_of(pd->context)->pds--;
    free(pd);
    return 0;
}

/* ---- nothing can be sent ---- */

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *start, size_t nbytes, int access) {
    (void)pd, (void)start, (void)nbytes, (void)access;
    return NULL;
}

int ibv_dereg_mr(struct ibv_mr *mr) {
    (void)mr;
    return ENOSYS;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    (void)context;
    return NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    (void)channel;
    return ENOSYS;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context,
                             struct ibv_comp_channel *channel, int vector) {
    (void)context, (void)entries, (void)cq_context, (void)channel, (void)vector;
    return NULL;
}

int ibv_destroy_cq(struct ibv_cq *cq) {
    (void)cq;
    return ENOSYS;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context) {
    (void)channel, (void)cq, (void)cq_context;
    return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) {
    (void)cq, (void)n;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attributes) {
    (void)pd, (void)attributes;
    return NULL;
}

int ibv_destroy_srq(struct ibv_srq *srq) {
    (void)srq;
    return ENOSYS;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes) {
    (void)pd, (void)attributes;
    return NULL;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    (void)qp, (void)attributes, (void)mask;
    return ENOSYS;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    (void)qp;
    return ENOSYS;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    (void)context, (void)event;
    return -1;
}

void ibv_ack_async_event(struct ibv_async_event *event) {
    (void)event;
}

const char *ibv_wc_status_str(enum ibv_wc_status status) {
    (void)status;
    return "fake";
}

const char *ibv_event_type_str(enum ibv_event_type event) {
    (void)event;
    return "fake";
}
