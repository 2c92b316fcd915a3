/* One lane's queue pair to one peer: sending.
 *
 * A put is posted at once. If the send queue is full or the peer gave no credit, the put becomes an order; the
 * thread that sees sends complete or credit arrive posts it. No call waits. One of many writes asks for a
 * completion, and a flush asks for one after the last write.
 *
 * Small puts of a corked lane are kept until uncork, and then posted together. Each keeps its own immediate: an
 * event's is the caller's, a signal's has the low bits of the value. */
#include "transport/verbs/parts.h"

#if defined(HPC_HAVE_VERBS)

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHAIN = VERBS_KEPT,   /* most sends of one post; they are on the stack and take less than a page */
    MOST_KEPT = 64 << 10, /* most bytes that a corked lane keeps */
    TOGETHER = 8,         /* every eighth put polls for completions; each does once so many orders wait */
    INLINE = 256,         /* inline bytes to ask for: payload carried in the send itself */
    INLINE_LEAST = 64,    /* fewest inline bytes */
    MANY = 16,            /* number of links above which each is made small */
    LARGE = 4096,         /* bytes from which a write asks for a completion when no earlier one is pending */
    SPAN = 1 << 20,       /* most bytes of writes that share a completion */
    RNR_TIMER = 12,       /* 0.64 ms until the next try at a peer that had no receive posted */
    RETRIES = 7,
    ACK_TIMEOUT = 17, /* 0.54 s: with the retries, a dead port is detected after 4 s */
    HOPS = 64
};

/* ---- life ---- */

static int create_queue_pair(verbs_link *l, struct ibv_pd *pd, const verbs_library *library) {
    const int sizes[] = {INLINE, INLINE / 2, INLINE_LEAST};
    for (size_t i = l->iface->n_slots > MANY; i < sizeof sizes / sizeof sizes[0] && l->qp == NULL; i++) {
        struct ibv_qp_init_attr a = {
            .send_cq = l->iface->cq,
            .recv_cq = l->iface->cq,
            .srq = l->iface->srq,
            .cap = {.max_send_wr = (uint32_t)l->depth, .max_send_sge = 1, .max_inline_data = (uint32_t)sizes[i]},
            .qp_type = IBV_QPT_RC};
        l->qp = library->create_qp(pd, &a);
        l->inline_most = sizes[i];
    }
    return l->qp == NULL ? errno : 0;
}

int verbs_link_open(hpc_verbs *v, verbs_iface *f, hpc_lane *lane, int peer, const hpc_rail *rail, verbs_link **link) {
    const verbs_nic *nic = &v->nics->nics[f->nic];
    verbs_link *l = calloc(1, sizeof *l);
    int slot = verbs_iface_slot(f);
    if (l == NULL || slot < 0) {
        free(l);
        return hpc_fail(HPC_ERR_MEMORY, "lane", "lane: no memory for a queue pair to rank %d", peer);
    }
    pthread_mutex_init(&l->sending, NULL);
    l->iface = f;
    l->peer = peer;
    l->slot = slot;
    l->lane = ((verbs_lane *)lane->verbs)->number;
    l->number = ++v->links;
    l->depth = f->depth;
    l->most_kept = l->depth / 4 < CHAIN ? l->depth / 4 : CHAIN;
    l->far = rail->there;
    l->ring = lane->peers[peer].in;
    l->credit = &f->credit[slot];
    l->last = &l->first;
    l->last_loan = &l->loans;
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_INIT, .port_num = (uint8_t)nic->port, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    int error = create_queue_pair(l, nic->pd, v->library);
    if (error == 0)
        error = v->library->modify_qp(l->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) {
        l->iface = NULL; /* not in it yet */
        if (l->qp != NULL) v->library->destroy_qp(l->qp);
        pthread_mutex_destroy(&l->sending);
        free(l);
        return hpc_fail_transport("lane", "verbs", peer, "rank %d: lane: %s cannot make a queue pair for rank %d: %s%s",
                                  v->context->group.rank, nic->name, peer, strerror(error),
                                  error == ENOMEM ? "; it has no more, or ulimit -l is too low" : "");
    }
    verbs_iface_add(f, l);
    *link = l;
    return HPC_OK;
}

void verbs_link_greet(const verbs_link *l, verbs_greeting *g) {
    *g = (verbs_greeting){.qp = l->qp->qp_num,
                          .sequence = l->qp->qp_num & 0xffffff,
                          .credit_to = (uint64_t)(uintptr_t)l->credit,
                          .credit_key = l->iface->region->rkey,
                          .credits = (uint32_t)l->iface->credits};
}

static void address_of(const verbs_nic *nic, const hpc_port_address *peer, struct ibv_ah_attr *ah) {
    *ah = (struct ibv_ah_attr){.port_num = (uint8_t)nic->port, .dlid = peer->lid};
    /* Within an InfiniBand subnet the LID suffices; otherwise a global route is needed. */
    if (nic->address.fabric == HPC_FABRIC_INFINIBAND && memcmp(nic->address.gid, peer->gid, 8) == 0 &&
        !nic->address.global && !peer->global)
        return;
    ah->is_global = 1;
    ah->grh.sgid_index = (uint8_t)nic->gid_index;
    ah->grh.hop_limit = HOPS;
    memcpy(ah->grh.dgid.raw, peer->gid, sizeof peer->gid);
}

int verbs_link_connect(verbs_link *l, const verbs_greeting *g) {
    hpc_verbs *v = l->iface->verbs;
    const verbs_nic *nic = &v->nics->nics[l->iface->nic];
    const hpc_port_address *peer = &v->context->addresses[l->peer].devices.ports[l->far];
    uint8_t mtu = peer->mtu < nic->address.mtu ? peer->mtu : nic->address.mtu;
    struct ibv_qp_attr ready = {.qp_state = IBV_QPS_RTR,
                                .path_mtu = (enum ibv_mtu)mtu,
                                .dest_qp_num = g->qp,
                                .rq_psn = g->sequence,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = RNR_TIMER};
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS,
                               .timeout = ACK_TIMEOUT,
                               .retry_cnt = RETRIES,
                               .rnr_retry = RETRIES - 1, /* 7 would retry for ever */
                               .sq_psn = l->qp->qp_num & 0xffffff,
                               .max_rd_atomic = 1};
    address_of(nic, peer, &ready.ah_attr);
    l->credit_to = g->credit_to;
    l->credit_key = g->credit_key;
    atomic_store_explicit(&l->credit->granted, g->credits, memory_order_relaxed);
    atomic_store_explicit(&l->told_granted, (uint64_t)l->iface->credits, memory_order_relaxed);
    int error = v->library->modify_qp(l->qp, &ready,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error == 0)
        error = v->library->modify_qp(l->qp, &send,
                                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (error == 0) {
        l->connected = 1;
        return HPC_OK;
    }
    return hpc_fail_transport("lane", "verbs", l->peer,
                              "rank %d: lane: %s cannot connect to rank %d: %s; check the route to its address",
                              v->context->group.rank, nic->name, l->peer, strerror(error));
}

static void set_starved(verbs_link *l, int starved) {
    if (l->starved == starved) return;
    l->starved = starved;
    atomic_fetch_add(&l->iface->starved, starved ? 1 : -1);
    atomic_fetch_add(&l->iface->verbs->starved, starved ? 1 : -1);
    if (starved) hpc_reactor_call(l->iface->verbs->reactor); /* a thread must poll for credit now and then */
}

static void drop_orders(verbs_link *l) {
    if (l->first != NULL || l->n_kept > 0) l->lost = 1;
    for (int i = 0; i < l->n_kept; i++) verbs_source_give_back(l, l->kept[i].loan);
    for (verbs_order *o = l->first, *next; o != NULL; o = next) {
        next = o->next;
        verbs_source_give_back(l, o->loan);
        free(o);
    }
    l->first = NULL;
    l->last = &l->first;
    l->n_orders = l->n_kept = 0;
    l->kept_bytes = 0;
    set_starved(l, 0);
}

void verbs_link_free(verbs_link *l) {
    l->iface->verbs->library->destroy_qp(l->qp);
    drop_orders(l);
    verbs_source_close(l);
    pthread_mutex_destroy(&l->sending);
    free(l);
}

/* ---- posting: under l->sending ---- */

static int room(const verbs_link *l) {
    return l->depth - (int)(l->posted - atomic_load(&l->done));
}

static int has_credit(const verbs_link *l) {
    return l->used < atomic_load_explicit(&l->credit->granted, memory_order_acquire);
}

typedef struct chain {
    struct ibv_send_wr sends[CHAIN];
    struct ibv_sge parts[CHAIN];
    int n;
} chain;

static struct ibv_send_wr *add_send(verbs_link *l, chain *c, enum ibv_wr_opcode opcode, const void *src, size_t nbytes,
                                    uint32_t key, int asks) {
    struct ibv_send_wr *s = &c->sends[c->n];
    int is_alone = room(l) == l->depth;
    c->parts[c->n] = (struct ibv_sge){(uint64_t)(uintptr_t)src, (uint32_t)nbytes, key};
    l->posted++;
    *s = (struct ibv_send_wr){.wr_id = (uint64_t)l->slot << VERBS_COUNT_BITS | l->posted,
                              .sg_list = &c->parts[c->n],
                              .num_sge = nbytes > 0,
                              .opcode = opcode};
    if (nbytes > 0 && nbytes <= (size_t)l->inline_most) s->send_flags |= IBV_SEND_INLINE;
    l->unsignalled++;
    l->unsignalled_bytes += nbytes;
    /* Each completion may wake a thread, so few writes ask for one, but enough that one always makes room in a full
     * queue. */
    if (asks || (is_alone && nbytes >= LARGE) || l->unsignalled_bytes >= SPAN || l->unsignalled >= l->depth / 4) {
        s->send_flags |= IBV_SEND_SIGNALED;
        l->unsignalled = 0;
        l->unsignalled_bytes = 0;
    }
    if (c->n > 0) c->sends[c->n - 1].next = s;
    c->n++;
    return s;
}

static void post(verbs_link *l, chain *c) {
    struct ibv_send_wr *bad;
    if (c->n == 0) return;
    l->posts++;
    if (ibv_post_send(l->qp, c->sends, &bad) == 0) return;
    for (; bad != NULL; bad = bad->next) l->posted--; /* no completion will come for these */
    l->failed = l->lost = 1;
}

/* Posts an empty write that asks for a completion, for the writes before it that asked for none. */
static void post_last(verbs_link *l) {
    chain c;
    c.n = 0;
    struct ibv_send_wr *s = add_send(l, &c, IBV_WR_RDMA_WRITE, NULL, 0, 0, 1);
    s->wr.rdma.remote_addr = l->credit_to;
    s->wr.rdma.rkey = l->credit_key;
    post(l, &c);
}

/* ---- breaking ---- */

/* Returns advice for the user: the likely cause of a completion's error. */
static const char *hint(enum ibv_wc_status status) {
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "its port does not answer: check link, MTU, UDP 4791";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "it takes no data: is its process stopped?";
    case IBV_WC_REM_ACCESS_ERR:
        return "its window no longer exists";
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_QP_OP_ERR: /* softRoCE reports both by this status */
        return "is the port up? was the source unmapped before the flush?";
    case IBV_WC_WR_FLUSH_ERR:
        return "the queue pair was closed";
    default:
        return "see the NIC's counters and dmesg";
    }
}

/* Makes the link silent: it sends nothing more. Posted sends then fail here, and also at the peer, which would
 * otherwise wait for them; the last completion shows that all have failed. */
static void fall_silent(verbs_link *l) {
    struct ibv_qp_attr failed = {.qp_state = IBV_QPS_ERR};
    l->iface->verbs->library->modify_qp(l->qp, &failed, IBV_QP_STATE);
    if (l->connected && room(l) > 0 && room(l) < l->depth) post_last(l);
    atomic_store_explicit(&l->silent, 1, memory_order_release);
    atomic_store(&l->iface->closing, 1);
}

/* Breaks the link; the first reason stays. */
static void break_now(verbs_link *l, const char *what, const char *advice, int local) {
    hpc_verbs *v = l->iface->verbs;
    drop_orders(l);
    if (!atomic_load_explicit(&l->silent, memory_order_relaxed)) {
        l->local = local;
        snprintf(l->why, sizeof l->why, "RDMA on %s: %s (%s)", v->nics->nics[l->iface->nic].name, what, advice);
        l->broken_at = hpc_now();
        fall_silent(l);
        if (!atomic_load(&l->closed_there) && !atomic_load(&l->closed_here)) hpc_reactor_report(v->reactor);
    }
}

void verbs_link_break(verbs_link *l, const char *what, const char *advice, int local) {
    pthread_mutex_lock(&l->sending);
    break_now(l, what, advice, local);
    pthread_mutex_unlock(&l->sending);
    hpc_bell_ring(l->iface->verbs->context->group.bell);
}

void verbs_link_fail(verbs_link *l, enum ibv_wc_status status) {
    int local = status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_LEN_ERR || status == IBV_WC_LOC_QP_OP_ERR ||
                status == IBV_WC_LOC_ACCESS_ERR || status == IBV_WC_MW_BIND_ERR;
    verbs_link_break(l, l->iface->verbs->library->wc_status_str(status), hint(status), local);
}

static int is_silent(const verbs_link *l) {
    return atomic_load_explicit(&l->silent, memory_order_acquire);
}

/* Returns the status for a call on a broken link: this rank's own fault is an error at once. A peer's fault is
 * reported by the control channel or, after GRACE, by the reactor's thread; the call returns `otherwise`. */
static int broken(const verbs_link *l, const char *op, int otherwise) {
    if (!l->local) return otherwise;
    return hpc_fail_transport(op, "verbs", l->peer, "rank %d: %s: to rank %d: %s", l->iface->verbs->context->group.rank,
                              op, l->peer, l->why);
}

/* ---- orders: under l->sending ---- */

static void add_write(verbs_link *l, chain *c, verbs_order *o) {
    size_t most = verbs_link_most(l);
    size_t n = o->nbytes - o->sent < most ? o->nbytes - o->sent : most;
    int last = o->sent + n == o->nbytes, with_imm = last && o->with_imm;
    struct ibv_send_wr *s = add_send(l, c, with_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, o->src + o->sent,
                                     n, o->local_key, last && verbs_source_asks(l, o->loan));
    s->wr.rdma.remote_addr = o->to + o->sent;
    s->wr.rdma.rkey = o->remote_key;
    if (with_imm) {
        s->imm_data = htonl(o->imm);
        l->used++;
    }
    o->sent += n;
    o->written = last;
    if (last) verbs_source_is_posted(l, o);
}

static int is_posted(const verbs_order *o) {
    return o->written && (o->message.kind == VERBS_NONE || o->finished);
}

/* Adds an order's sends to the chain, as far as credit and *most sends per chain allow. Returns nonzero if the whole
 * order is in. The order must stay in place until the chain is posted. */
static int add_order(verbs_link *l, chain *c, verbs_order *o, int *most) {
    while (!is_posted(o) && c->n < *most) {
        int takes_receive = o->written || (o->with_imm && o->nbytes - o->sent <= verbs_link_most(l));
        if (takes_receive && !has_credit(l)) {
            *most = c->n;
        } else if (o->written) {
            add_send(l, c, IBV_WR_SEND, &o->message, sizeof o->message, 0, o->message.kind == VERBS_CLOSE);
            l->used++;
            o->finished = 1;
        } else {
            add_write(l, c, o);
        }
    }
    return is_posted(o);
}

/* Posts this order and those after it as far as possible; returns the first one that is not fully posted, or NULL. */
static verbs_order *post_from(verbs_link *l, verbs_order *o) {
    chain c;
    do {
        int most = room(l) < CHAIN ? room(l) : CHAIN;
        c.n = 0;
        while (o != NULL && add_order(l, &c, o, &most)) o = o->next;
        post(l, &c);
    } while (o != NULL && c.n == CHAIN && !l->failed);
    return o;
}

static void post_orders(verbs_link *l) {
    const verbs_order *end = post_from(l, l->first);
    while (l->first != end) {
        verbs_order *posted = l->first;
        l->first = posted->next;
        l->n_orders--;
        free(posted);
    }
    if (l->first == NULL) l->last = &l->first;
    /* A completion will report room, but nothing reports credit. */
    set_starved(l, l->first != NULL && room(l) > 0);
}

/* Appends a copy of the order to the waiting orders. */
static void let_wait(verbs_link *l, verbs_order *order) {
    verbs_order *o = malloc(sizeof *o);
    if (o == NULL) {
        verbs_source_is_posted(l, order);
        l->failed = l->lost = 1;
        return;
    }
    *o = *order;
    o->next = NULL;
    *l->last = o;
    l->last = &o->next;
    l->n_orders++;
}

static void post_waiting(verbs_link *l) {
    /* Before the load of done: the thread that stores done loads busy afterwards, so one of the two sees the other. */
    atomic_store(&l->busy, 1);
    if (room(l) > 0 && !l->failed) post_orders(l);
}

static void post_kept(verbs_link *l) {
    verbs_order *o = l->kept;
    for (int i = 1; i < l->n_kept; i++) o[i - 1].next = &o[i];
    l->n_kept = 0;
    l->kept_bytes = 0;
    o = post_from(l, o);
    if (o == NULL) return;
    for (; o != NULL; o = o->next) let_wait(l, o);
    post_waiting(l);
}

/* Returns whether to keep an order until uncork. While orders wait, a new one must queue behind them. */
static int may_keep(const verbs_link *l, const verbs_order *o) {
    return o->corked && o->nbytes < MOST_KEPT && l->first == NULL;
}

/* Keeps the order, or posts it at once together with the kept ones. Changes the caller's *order. */
static void submit(verbs_link *l, verbs_order *order) {
    const int keeps = may_keep(l, order);
    order->next = NULL;
    if (keeps || l->n_kept > 0) {
        l->kept[l->n_kept++] = *order;
        l->kept_bytes += order->nbytes;
        if (keeps) l->uncork_due = 1;
        if (!keeps || l->n_kept == l->most_kept || l->kept_bytes >= MOST_KEPT) post_kept(l);
        return;
    }
    if (l->first == NULL && post_from(l, order) == NULL) return;
    let_wait(l, order);
    post_waiting(l);
}

/* Unlocks sending. If the library refused a post, the queue pair works on but a message is missing at the peer, so
 * the link is broken before anything later is posted. */
static void unlock(verbs_link *l) {
    const enum ibv_wc_status status = IBV_WC_LOC_QP_OP_ERR;
    int failed = l->failed;
    l->failed = 0;
    if (failed) break_now(l, l->iface->verbs->library->wc_status_str(status), hint(status), 1);
    pthread_mutex_unlock(&l->sending);
    if (failed) hpc_bell_ring(l->iface->verbs->context->group.bell);
}

/* Returns whether the peer has departed, so that orders wait for its credit in vain. */
static int has_gone(const verbs_link *l) {
    return atomic_load_explicit(&l->iface->verbs->context->group.states[l->peer], memory_order_acquire) !=
           HPC_PEER_ALIVE;
}

void verbs_link_go_on(verbs_link *l) {
    int owes, message;
    pthread_mutex_lock(&l->sending);
    verbs_source_reclaim(l, atomic_load_explicit(&l->done, memory_order_acquire));
    if (l->first != NULL && has_gone(l)) {
        drop_orders(l);
        snprintf(l->why, sizeof l->why, "it has gone");
        fall_silent(l);
    }
    if (l->first != NULL && !is_silent(l)) post_orders(l);
    owes = l->owes;
    message = l->owes_message;
    atomic_store_explicit(&l->busy, l->first != NULL || l->loans != NULL || owes, memory_order_relaxed);
    unlock(l);
    if (owes) verbs_link_tell(l, message);
}

/* ---- calls of a lane ---- */

static int may_notify(verbs_link *l) {
    uint64_t taken = atomic_load_explicit(&l->credit->taken, memory_order_acquire);
    if (l->events - taken < HPC_NOTIFY_DEPTH) {
        l->wanting = 0;
        return 1;
    }
    if (!l->wanting) submit(l, &(verbs_order){.written = 1, .message = {.kind = VERBS_WANT, .value = taken}});
    l->wanting = 1;
    return 0;
}

/* Tries to put; the caller holds l->sending. */
static int try_put(verbs_link *l, verbs_order *o, int is_event, int stages, const char *op) {
    if (is_silent(l)) {
        l->lost = 1; /* flush must not report it as delivered */
        return broken(l, op, is_event ? HPC_IN_PROGRESS : HPC_OK);
    }
    if (is_event && !may_notify(l)) return HPC_IN_PROGRESS;
    if (stages && !verbs_source_stage(l, o)) {
        int status = verbs_source_lend(l, o, op);
        if (status != HPC_OK) return status;
    }
    l->events += is_event != 0;
    submit(l, o);
    o->loan = NULL;
    return HPC_OK;
}

int verbs_link_put(verbs_link *l, const hpc_window *w, verbs_order *o, int is_event, const char *op, int *look_due) {
    int status = HPC_OK, stages = 0;
    *look_due = 0;
    o->remote_key = ((const verbs_remote *)w->parts[l->peer].remote)->keys[l->far];
    if (o->nbytes > (size_t)l->inline_most) {
        const struct ibv_mr *region = verbs_region_of(l->iface->verbs, w, l->iface->nic, o->src, o->nbytes);
        if (region != NULL)
            o->local_key = region->lkey;
        else if (verbs_source_is_small(o->nbytes))
            stages = 1;
        else
            status = verbs_source_lend(l, o, op); /* before the lock, because registering may take long */
        if (status != HPC_OK) return status;
    }
    pthread_mutex_lock(&l->sending);
    status = try_put(l, o, is_event, stages, op);
    if (o->loan != NULL) verbs_source_give_back(l, o->loan); /* the put was not accepted */
    *look_due = l->n_orders >= TOGETHER || ++l->puts % TOGETHER == 0;
    unlock(l);
    if (*look_due || o->nbytes >= LARGE) hpc_reactor_loops(l->iface->verbs->reactor); /* not worth it for small puts */
    return status;
}

void verbs_link_uncork(verbs_link *l) {
    if (!l->uncork_due) return;
    l->uncork_due = 0;
    pthread_mutex_lock(&l->sending);
    if (l->n_kept > 0) post_kept(l); /* unless another thread's message has posted them */
    unlock(l);
}

int verbs_link_say(verbs_link *l, const verbs_message *message) {
    pthread_mutex_lock(&l->sending);
    if (!is_silent(l)) submit(l, &(verbs_order){.written = 1, .message = *message});
    unlock(l);
    return HPC_OK;
}

int verbs_link_flush(verbs_link *l, const char *op) {
    int status;
    pthread_mutex_lock(&l->sending);
    if (is_silent(l)) {
        status = l->lost || atomic_load(&l->done) < l->posted ? broken(l, op, HPC_IN_PROGRESS) : HPC_OK;
    } else {
        if (l->n_kept > 0) post_kept(l);
        if (l->first == NULL && l->unsignalled > 0 && room(l) > 0) post_last(l);
        status = l->first == NULL && atomic_load_explicit(&l->done, memory_order_acquire) == l->posted
                     ? HPC_OK
                     : HPC_IN_PROGRESS;
    }
    unlock(l);
    return status;
}

void verbs_link_tell(verbs_link *l, int message) {
    pthread_mutex_lock(&l->sending);
    if (!is_silent(l) && l->connected) {
        int closed = atomic_load(&l->closed_here); /* the peer's lane may still put here */
        uint64_t words[2] = {(uint64_t)l->iface->credits + atomic_load_explicit(&l->consumed, memory_order_acquire),
                             atomic_load_explicit(&l->ring->head, memory_order_acquire)};
        message = (message || l->owes_message) && !closed;
        atomic_store(&l->busy, 1); /* before the load of done, as in post_waiting */
        l->owes = room(l) == 0;
        l->owes_message = l->owes && message;
        if (!l->owes) {
            chain c;
            c.n = 0;
            struct ibv_send_wr *s = add_send(l, &c, IBV_WR_RDMA_WRITE, words, sizeof words, 0, closed);
            s->wr.rdma.remote_addr = l->credit_to;
            s->wr.rdma.rkey = l->credit_key;
            post(l, &c);
            atomic_store_explicit(&l->told_granted, words[0], memory_order_relaxed);
            atomic_store_explicit(&l->told_taken, words[1], memory_order_relaxed);
            if (message) submit(l, &(verbs_order){.written = 1, .message = {.kind = VERBS_CREDIT}});
        }
    }
    unlock(l);
}

void verbs_link_close(verbs_link *l) {
    pthread_mutex_lock(&l->sending);
    if (!l->connected) /* the lane was never connected: the peer puts nothing on it */
        atomic_store(&l->closed_there, 1);
    else if (!is_silent(l))
        submit(l, &(verbs_order){.written = 1, .message = {.kind = VERBS_CLOSE}});
    atomic_store(&l->closed_here, 1);
    atomic_store(&l->iface->closing, 1);
    unlock(l);
}

int verbs_link_can_go(verbs_link *l) {
    int can = atomic_load(&l->closed_here) && (atomic_load(&l->closed_there) || is_silent(l));
    pthread_mutex_lock(&l->sending);
    can = can && l->first == NULL && l->reaped == l->posted;
    pthread_mutex_unlock(&l->sending);
    return can;
}

#endif
