/* libibverbs, loaded at run time, and the ports that it opens. */
#ifndef HPC_VERBS_DEVICE_H
#define HPC_VERBS_DEVICE_H

#include "transport/device.h"

#if defined(HPC_HAVE_VERBS)

#include <infiniband/verbs.h>

/* The functions of libibverbs that hpcomm calls. ibv_poll_cq, ibv_post_send, ibv_post_srq_recv and ibv_req_notify_cq
 * are inline functions that call the driver, so they need no symbol. */
typedef struct verbs_library {
    struct ibv_device **(*get_device_list)(int *n);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attributes);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attributes);
    int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *start, size_t nbytes, int access);
    int (*dereg_mr)(struct ibv_mr *mr);
    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int entries, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);
    struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attributes);
    int (*destroy_srq)(struct ibv_srq *srq);
    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attributes);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);
    const char *(*wc_status_str)(enum ibv_wc_status status);
    const char *(*event_type_str)(enum ibv_event_type event);
} verbs_library;

typedef struct verbs_nic {
    char name[64];
    struct ibv_context *context;
    struct ibv_pd *pd;
    int port, gid_index, node; /* node: NUMA, -1 if unknown */
    hpc_port_address address;
    size_t most_message; /* most bytes of one message */
    int most_cqe, most_srq, most_sends;
} verbs_nic;

struct hpc_nics {
    const verbs_library *library;
    int n;
    verbs_nic nics[HPC_RAILS]; /* in the order of the rank's address */
};

/* Implement the transport's slots of the same names. */
void verbs_nics_open(const char *names, hpc_nics **nics, hpc_device_address *address);
void verbs_nics_close(hpc_nics *nics);
int verbs_nics_node(const hpc_nics *nics);

#endif
#endif
