/* hpcomm's side of foreign.py: two ranks over verbs, and a plain queue pair for a peer that knows nothing of hpcomm.
 *
 * Rank 1 puts bytes into the upper half of rank 0's window; the foreign peer reads them. Then it writes into the lower
 * half, and a signal word behind it, for which rank 0 waits as for any other. What the two sides say to each other goes
 * by lines of standard input and output. */
#define _GNU_SOURCE
#include "ranks.h"
#include "transport/verbs/device.h"
#include "context/context.h"

enum { HALF = 300000, PSN = 0x1234, OF_RANK_1 = 0, OF_FOREIGN = 1, VALUE = 7 };

static unsigned char of_rank_1(size_t i) {
    return (unsigned char)(3 * i + 1);
}

static unsigned char of_foreign(size_t i) {
    return (unsigned char)(5 * i + 2);
}

static void connect_to(const verbs_library *l, struct ibv_qp *qp, const verbs_nic *nic, unsigned qpn, unsigned psn,
                       const union ibv_gid *gid) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = (uint8_t)nic->port,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    CHECK_EQ(l->modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
    struct ibv_qp_attr ready = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)nic->address.mtu,
        .dest_qp_num = qpn,
        .rq_psn = psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = (uint8_t)nic->port,
                    .grh = {.dgid = *gid, .sgid_index = (uint8_t)nic->gid_index, .hop_limit = 64}}};
    CHECK_EQ(l->modify_qp(qp, &ready,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
             0);
}

static void serve(rank *r, hpc_window *w) {
    CHECK(r->context->nics != NULL);
    const verbs_library *l = r->context->nics->library;
    const verbs_nic *nic = &r->context->nics->nics[0];
    unsigned char *data = hpc_window_data(w);
    unsigned char *signal = (unsigned char *)hpc_own_signal(w, OF_FOREIGN);
    struct ibv_mr *mr = l->reg_mr(nic->pd, data, (size_t)(signal - data) + HPC_SIGNAL_STRIDE,
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    struct ibv_cq *cq = l->create_cq(nic->context, 4, NULL, NULL, 0);
    CHECK(mr != NULL && cq != NULL);
    struct ibv_qp_init_attr attributes = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = l->create_qp(nic->pd, &attributes);
    CHECK(qp != NULL);

    char hex[33];
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", nic->address.gid[i]);
    printf("{\"device\": \"%s\", \"port\": %d, \"gid\": \"%s\", \"mtu\": %d, \"qpn\": %u, \"psn\": %d, \"rkey\": %u, "
           "\"data\": %llu, \"half\": %d, \"signal\": %llu, \"value\": %d}\n",
           nic->name, nic->port, hex, nic->address.mtu, qp->qp_num, PSN, mr->rkey, (unsigned long long)(uintptr_t)data,
           HALF, (unsigned long long)(uintptr_t)signal, VALUE);
    fflush(stdout);

    char line[128];
    unsigned qpn, psn;
    union ibv_gid gid;
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    CHECK_EQ(sscanf(line, "%u %u %32s", &qpn, &psn, hex), 3);
    for (int i = 0; i < 16; i++) CHECK_EQ(sscanf(hex + 2 * i, "%2hhx", &gid.raw[i]), 1);
    connect_to(l, qp, nic, qpn, psn, &gid);
    printf("connected\n");
    fflush(stdout);

    CHECK_OK(hpc_wait_signal(w, OF_FOREIGN, VALUE, -1, 60, NULL));
    for (size_t i = 0; i < HALF; i++) CHECK_EQ(data[i], of_foreign(i));
    for (size_t i = 0; i < HALF; i++) CHECK_EQ(data[HALF + i], of_rank_1(i));
    printf("seen\n");
    fflush(stdout);
    CHECK_EQ(l->destroy_qp(qp), 0);
    CHECK_EQ(l->destroy_cq(cq), 0);
    CHECK_EQ(l->dereg_mr(mr), 0);
}

static void foreign(rank *r) {
    r->config.spin = 100; /* the foreign peer's write wakes nobody: a wait has to look */
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 2 * HALF, 2, NULL, -1, &w));
    static unsigned char src[HALF];
    if (r->rank == 1) {
        for (size_t i = 0; i < HALF; i++) src[i] = of_rank_1(i);
        CHECK_OK(hpc_put_signal(NULL, w, 0, src, HALF, HALF, OF_RANK_1, 1));
        CHECK_OK(hpc_flush(NULL, w, -1, -1));
    } else {
        CHECK_OK(hpc_wait_signal(w, OF_RANK_1, 1, 1, -1, NULL));
        serve(r, w);
    }
    rank_meet(r);
    hpc_window_free(w);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "foreign", .size = 2, .run = foreign, .where = RANKS_PROCESSES | RANKS_VERBS, .bare = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
