/* ibverbs.h - RDMA devices that a test makes up; ibverbs.c is loaded in libibverbs' place and shows them. */
#ifndef HPC_TEST_FAKE_IBVERBS_H
#define HPC_TEST_FAKE_IBVERBS_H

#include <infiniband/verbs.h>

enum { FAKE_DEVICES = 8, FAKE_PORTS = 2, FAKE_GIDS = 6 };

typedef struct fake_port {
    int state, link_layer, lid, mtu;
    const char *gids[FAKE_GIDS]; /* NULL: an empty place of the table */
} fake_port;

typedef struct fake_device {
    const char *name;
    int transport, srqs;
    int error;    /* errno of opening */
    int extended; /* it has a query_port of its own, and libibverbs' fails */
    fake_port ports[FAKE_PORTS];
    int opened, tries, pds; /* now, ever, now */
} fake_device;

typedef struct fake_verbs {
    int n;
    fake_device devices[FAKE_DEVICES];
} fake_verbs;

extern fake_verbs fake;

#endif
