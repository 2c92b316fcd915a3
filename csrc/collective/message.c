/* Messages between two ranks.
 *
 * A short message is one letter with its bytes. A longer one begins with an OFFER, which may lend the bytes:
 *
 *   lent        the receiver reads the bytes when a recv asks for the message, and answers DONE
 *   not lent    the receiver answers GO when a recv asks for the message; then the bytes come in letters of DATA
 *
 * A recv that expects another type or number of elements answers REFUSED; the head of that letter describes its own
 * call. A recv that is given up answers FORGONE. A sender that has given up a message answers a GO by WITHDRAWN.
 *
 * A receiver takes every letter at once, so no message holds up another one. If no recv asks for a message, the
 * receiver copies a short message, and keeps the offer of a longer one. Messages of a sender are matched in the order
 * of their sends, and recvs in the order of their starts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/message.h"

#include "kernel/combine.h"

enum {
    READ_PIECE = 32 << 20 /* bytes of one read */
};

typedef enum hpc_message_part { SHORT, OFFER, GO, DONE, REFUSED, FORGONE, DATA, WITHDRAWN } hpc_message_part;

/* The next step of a message. */
typedef enum hpc_message_state {
    QUEUED,    /* a send posts its first letter */
    OFFERED,   /* a send waits for the answer */
    SENDING,   /* a send posts its next letter of DATA */
    POSTED,    /* a recv waits for a message */
    READING,   /* a recv reads lent bytes */
    ANSWERING, /* a recv posts its answer */
    RECEIVING, /* a recv waits for DATA */
} hpc_message_state;

typedef struct hpc_parcel {
    hpc_request request; /* first; call.root: the tag */
    struct hpc_parcel *next;
    hpc_message_state state;
    int peer; /* of a recv: HPC_ANY, until it has a message */
    char *at;
    uint64_t nbytes, done;
    hpc_letter_head offer;   /* of a recv: the message that it has */
    hpc_message_part answer; /* of a recv */
} hpc_parcel;

/* A message that no recv has asked for. */
typedef struct hpc_arrival {
    struct hpc_arrival *next;
    int from;
    hpc_letter_head head;
    char bytes[]; /* of a short one */
} hpc_arrival;

typedef struct hpc_withdrawal {
    struct hpc_withdrawal *next;
    int to;
    hpc_message_part part; /* WITHDRAWN or FORGONE */
    hpc_described call;
} hpc_withdrawal;

const char hpc_send_op[] = "send", hpc_recv_op[] = "recv";

static hpc_group *group_of(const hpc_calls *calls) {
    return &calls->mail->context->group;
}

static hpc_box *box_of(const hpc_calls *calls) {
    return &calls->mail->boxes[HPC_BOX_MESSAGES];
}

static int is_recv(const hpc_parcel *m) {
    return m->request.op == hpc_recv_op;
}

static uint64_t least_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static void append(hpc_parcel **list, hpc_parcel *m) {
    while (*list != NULL) list = &(*list)->next;
    *list = m;
}

static void end(hpc_parcel *m) {
    hpc_request_end(&m->request, HPC_OK, "");
}

static void end_as_last(hpc_parcel *m, int status) {
    hpc_request_end(&m->request, status, hpc_last_error()->message);
}

/* ---- sentences ---- */

static void describe(const hpc_described *call, char *text, size_t nbytes) {
    const char *type = hpc_type_name(call->type);
    snprintf(text, nbytes, "%llu %s", (unsigned long long)call->count, type == NULL ? "?" : type);
}

static int fail_mismatch(const hpc_parcel *m, int from, const hpc_described *sent, int to,
                         const hpc_described *wanted) {
    char its[64], mine[64];
    describe(sent, its, sizeof its);
    describe(wanted, mine, sizeof mine);
    return hpc_fail(HPC_ERR_CONFIG, m->request.op,
                    "%s: rank %d sends %s to rank %d (tag %d), which expects %s: give "
                    "both the same type and number of elements",
                    m->request.op, from, its, to, sent->root, mine);
}

static int fail_withdrawn(const hpc_parcel *m) {
    return hpc_fail(HPC_ERR_CONFIG, hpc_recv_op,
                    "recv: rank %d has given up its send (tag %d) before rank %d had all of it", m->peer,
                    m->offer.call.root, group_of(m->request.calls)->rank);
}

/* ---- letters ---- */

/* Sends a letter about a message. bytes: of nbytes, unless the head lends them. */
static int post(hpc_calls *calls, int to, hpc_message_part part, const hpc_described *call, hpc_letter_head head,
                const void *bytes) {
    head.call = *call;
    head.part = part;
    return hpc_box_send(box_of(calls), to, &head, bytes);
}

static int same_kind(const hpc_described *a, const hpc_described *b) {
    return a->type == b->type && a->count == b->count;
}

/* Gives a recv its message. bytes: of a short one. */
static void deliver(hpc_parcel *m, int from, const hpc_letter_head *head, const void *bytes) {
    const int me = group_of(m->request.calls)->rank, fits = same_kind(&head->call, &m->request.call);
    m->peer = from;
    m->offer = *head;
    if (head->part == SHORT && fits) {
        if (head->nbytes > 0) memcpy(m->at, bytes, head->nbytes);
        end(m);
    } else if (head->part == SHORT) {
        fail_mismatch(m, from, &head->call, me, &m->request.call);
        end_as_last(m, HPC_ERR_CONFIG);
    } else if (!fits) {
        m->state = ANSWERING;
        m->answer = REFUSED;
    } else {
        m->state = head->lent ? READING : ANSWERING;
        m->answer = head->lent ? DONE : GO;
    }
}

static int asks_for(const hpc_parcel *m, int from, int tag) {
    return m->state == POSTED && (m->peer == HPC_ANY || m->peer == from) &&
           (m->request.call.root == HPC_ANY || m->request.call.root == tag);
}

static hpc_parcel *find_recv(const hpc_calls *calls, int from, int tag) {
    hpc_parcel *m = calls->recvs;
    while (m != NULL && !asks_for(m, from, tag)) m = m->next;
    return m;
}

static int keep(hpc_calls *calls, int from, const hpc_letter_head *head) {
    const size_t nbytes = head->part == SHORT ? head->nbytes : 0;
    hpc_arrival *a = malloc(sizeof *a + nbytes), **last = calls->last_arrived;
    if (a == NULL) return 0;
    *a = (hpc_arrival){.from = from, .head = *head};
    if (nbytes > 0) memcpy(a->bytes, hpc_letter_bytes(head), nbytes);
    *last = a;
    calls->last_arrived = &a->next;
    return 1;
}

/* Returns the send to this peer, or the recv from it, whose message has this number; NULL if it was given up. */
static hpc_parcel *find_message(hpc_parcel *m, int peer, uint64_t number) {
    while (m != NULL && !(m->peer == peer && m->state != POSTED &&
                          (is_recv(m) ? m->offer.call.number : m->request.call.number) == number))
        m = m->next;
    return m;
}

static void withdraw(hpc_calls *calls, int to, hpc_message_part part, const hpc_described *call) {
    hpc_withdrawal *w = malloc(sizeof *w);
    if (w == NULL) return; /* the peer's wait ends at its timeout */
    *w = (hpc_withdrawal){calls->withdrawals, to, part, *call};
    calls->withdrawals = w;
}

static void take_answer(hpc_calls *calls, int peer, const hpc_letter_head *head) {
    hpc_parcel *m = find_message(calls->sends, peer, head->call.number);
    if (m == NULL || m->state != OFFERED) {
        if (head->part == GO) withdraw(calls, peer, WITHDRAWN, &head->call);
    } else if (head->part == GO) {
        m->state = SENDING;
    } else if (head->part == DONE) {
        end(m);
    } else if (head->part == FORGONE) {
        hpc_fail(HPC_ERR_CONFIG, hpc_send_op, "send: rank %d has given up its recv (tag %d) before it had all", peer,
                 m->request.call.root);
        end_as_last(m, HPC_ERR_CONFIG);
    } else {
        fail_mismatch(m, group_of(calls)->rank, &m->request.call, peer, &head->call);
        end_as_last(m, HPC_ERR_CONFIG);
    }
}

static void take_data(hpc_calls *calls, int peer, const hpc_letter_head *head) {
    hpc_parcel *m = find_message(calls->recvs, peer, head->call.number);
    if (m == NULL || m->state != RECEIVING) return; /* it was given up */
    if (head->part == WITHDRAWN || head->nbytes > m->nbytes - m->done) {
        fail_withdrawn(m);
        end_as_last(m, HPC_ERR_CONFIG);
        return;
    }
    memcpy(m->at + m->done, hpc_letter_bytes(head), head->nbytes);
    m->done += head->nbytes;
    if (m->done == m->nbytes) end(m);
}

/* Takes all letters of the peer. Returns how many. */
static int take_letters(hpc_calls *calls, int peer) {
    const hpc_letter_head *head;
    int n = 0;
    for (; (head = hpc_box_next(box_of(calls), peer)) != NULL; n++) {
        if (head->part == SHORT || head->part == OFFER) {
            hpc_parcel *m = find_recv(calls, peer, head->call.root);
            if (m != NULL)
                deliver(m, peer, head, hpc_letter_bytes(head));
            else if (!keep(calls, peer, head))
                return n; /* no memory: it stays in its slot */
        } else if (head->part == DATA || head->part == WITHDRAWN) {
            take_data(calls, peer, head);
        } else {
            take_answer(calls, peer, head);
        }
        hpc_box_take(box_of(calls), peer);
    }
    return n;
}

/* A peer that sends needs its answer, so this rank goes towards it. */
static int take_all(hpc_calls *calls) {
    hpc_box *box = box_of(calls);
    int n = 0;
    for (int p = 0; p < group_of(calls)->size; p++) {
        if (hpc_box_next(box, p) != NULL) n += take_letters(calls, p);
        if (hpc_box_owes(box, p)) hpc_mail_reach(calls->mail, p, hpc_recv_op);
    }
    return n;
}

/* ---- steps ---- */

static int begin_send(hpc_parcel *m) {
    hpc_calls *calls = m->request.calls;
    hpc_letter_head head = {.stream = m->nbytes};
    if (m->nbytes <= box_of(calls)->room) {
        head.nbytes = (uint32_t)m->nbytes;
        const int status = post(calls, m->peer, SHORT, &m->request.call, head, m->at);
        if (status == HPC_OK) end(m);
        return status;
    }
    if (hpc_request_lends(&m->request, box_of(calls), m->peer, m->at, m->nbytes, 0))
        hpc_request_lend(&m->request, &head, m->at);
    m->state = OFFERED;
    return post(calls, m->peer, OFFER, &m->request.call, head, NULL);
}

static int go_on_sending(hpc_parcel *m) {
    hpc_calls *calls = m->request.calls;
    const uint64_t n = least_of(m->nbytes - m->done, box_of(calls)->room);
    hpc_letter_head head = {.stream = m->nbytes, .nbytes = (uint32_t)n};
    const int status = post(calls, m->peer, DATA, &m->request.call, head, m->at + m->done);
    if (status != HPC_OK) return status;
    m->done += n;
    if (m->done == m->nbytes) end(m);
    return HPC_OK;
}

static int go_on_reading(hpc_parcel *m) {
    const uint64_t n = least_of(m->nbytes - m->done, READ_PIECE);
    int status = hpc_mail_read(m->request.calls->mail, m->peer, &m->offer, m->done, m->at + m->done, n);
    if (status == HPC_GONE)
        status = hpc_request_is_deserted(&m->request, m->peer) ? fail_withdrawn(m) : HPC_IN_PROGRESS;
    if (status != HPC_OK) return status;
    m->done += n;
    if (m->done == m->nbytes) m->state = ANSWERING;
    return HPC_OK;
}

static int give_answer(hpc_parcel *m) {
    hpc_calls *calls = m->request.calls;
    hpc_described call = m->request.call;
    call.number = m->offer.call.number;
    call.root = m->offer.call.root;
    const int status = post(calls, m->peer, m->answer, &call, (hpc_letter_head){0}, NULL);
    if (status != HPC_OK) return status;
    if (m->answer == GO) {
        m->state = RECEIVING;
    } else if (m->answer == DONE) {
        end(m);
    } else {
        fail_mismatch(m, m->peer, &m->offer.call, group_of(calls)->rank, &m->request.call);
        end_as_last(m, HPC_ERR_CONFIG);
    }
    return HPC_OK;
}

/* Makes the next step of a message. Returns HPC_IN_PROGRESS if it cannot be made now. */
static int step(hpc_parcel *m) {
    hpc_calls *calls = m->request.calls;
    if (m->state == READING) return go_on_reading(m);
    if (m->state != QUEUED && m->state != SENDING && m->state != ANSWERING) return HPC_IN_PROGRESS;
    if (!is_recv(m) && calls->stuck[m->peer] == calls->looks) return HPC_IN_PROGRESS; /* behind an earlier send */
    const int status = hpc_mail_reach(calls->mail, m->peer, m->request.op);
    if (status < 0) return status;
    if (status != HPC_OK || !hpc_box_has_room(box_of(calls), m->peer)) {
        calls->stuck[m->peer] = calls->looks;
        return HPC_IN_PROGRESS;
    }
    return m->state == QUEUED ? begin_send(m) : m->state == SENDING ? go_on_sending(m) : give_answer(m);
}

/* Returns how many steps were made. */
static int step_all(hpc_parcel *first) {
    int n = 0;
    for (hpc_parcel *m = first, *next; m != NULL; m = next) {
        next = m->next; /* a step ends no other message */
        const int status = step(m);
        n += status == HPC_OK;
        if (status < 0) end_as_last(m, status);
    }
    return n;
}

static int tell_withdrawals(hpc_calls *calls) {
    int n = 0;
    for (hpc_withdrawal **at = &calls->withdrawals, *w; (w = *at) != NULL;) {
        if (!hpc_box_has_room(box_of(calls), w->to)) {
            at = &w->next;
            continue;
        }
        post(calls, w->to, w->part, &w->call, (hpc_letter_head){0}, NULL);
        *at = w->next;
        free(w);
        n++;
    }
    return n;
}

void hpc_messages_go_on(hpc_calls *calls) {
    for (int moved = 1; moved;) {
        calls->looks++;
        moved = take_all(calls);
        moved += step_all(calls->sends);
        moved += step_all(calls->recvs);
        moved += tell_withdrawals(calls);
    }
}

void hpc_messages_forget(hpc_calls *calls) {
    for (hpc_arrival *a = calls->arrived, *next; a != NULL; a = next) {
        next = a->next;
        free(a);
    }
    for (hpc_withdrawal *w = calls->withdrawals, *next; w != NULL; w = next) {
        next = w->next;
        free(w);
    }
}

/* ---- requests ---- */

static int waits_for(hpc_request *r, int *ranks) {
    const hpc_parcel *m = (const hpc_parcel *)(const void *)r;
    const hpc_group *g = group_of(r->calls);
    if (m->peer == HPC_ANY) return g->size > 1 ? hpc_group_others(g, ranks) : (ranks[0] = g->rank, 1);
    const int is_free = (m->state == QUEUED || m->state == SENDING || m->state == ANSWERING) &&
                        hpc_mail_is_near(r->calls->mail, m->peer) && hpc_box_has_room(box_of(r->calls), m->peer);
    const int goes_on = r->deserter < 0 && (is_free || m->state == READING);
    ranks[0] = goes_on ? g->rank : m->peer;
    return 1;
}

/* A peer that waits for more of the message is told. */
static void give_up(hpc_request *r) {
    const hpc_parcel *m = (const hpc_parcel *)(const void *)r;
    if (m->state == SENDING) withdraw(r->calls, m->peer, WITHDRAWN, &r->call);
    if (m->state == READING || m->state == ANSWERING) withdraw(r->calls, m->peer, FORGONE, &m->offer.call);
}

static void unlist(hpc_request *r) {
    hpc_parcel *m = (hpc_parcel *)(void *)r, **at = is_recv(m) ? &r->calls->recvs : &r->calls->sends;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
}

static void drop(hpc_request *r) {
    free(r);
}

static const hpc_request_kind kind = {waits_for, give_up, unlist, drop, 0};

/* ---- calls ---- */

int hpc_message_check(const hpc_context *c, const char *op, int peer, int tag, const void *data, uint64_t count,
                      int type) {
    const int rank = c->group.rank, any = op == hpc_recv_op;
    if ((peer < 0 || peer >= c->group.size) && !(any && peer == HPC_ANY))
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: peer is %d; it must be 0 to %d%s", rank, op, peer,
                        c->group.size - 1, any ? ", or HPC_ANY" : "");
    if (tag < 0 && !(any && tag == HPC_ANY))
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: tag is %d; it must be 0 or more%s", rank, op, tag,
                        any ? ", or HPC_ANY" : "");
    if (hpc_element_size(type) == 0)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: type is %d, which is no hpc_dtype or hpc_element", rank, op,
                        type);
    if (count > UINT64_MAX / 64)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: count is %llu, which is too much", rank, op,
                        (unsigned long long)count);
    if (data == NULL && count > 0)
        return hpc_fail(HPC_ERR_INVALID, op, "rank %d: %s: data is NULL while count is %llu", rank, op,
                        (unsigned long long)count);
    return HPC_OK;
}

int hpc_message_make(hpc_calls *calls, const char *op, int peer, int tag, const void *data, uint64_t count, int type,
                     hpc_request **request) {
    hpc_parcel *m = malloc(sizeof *m); /* calloc takes longer: it does not use the thread's list of freed memory */
    if (m == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory", op);
    hpc_request *r = &m->request;
    *m = (hpc_parcel){.peer = peer, .at = (char *)(uintptr_t)data, .nbytes = count * hpc_element_size(type)};
    m->state = op == hpc_recv_op ? POSTED : QUEUED;
    r->kind = &kind;
    r->calls = calls;
    r->op = op;
    r->element = hpc_element_size(type);
    r->call = (hpc_described){.count = count, .root = tag, .type = (uint8_t)type};
    r->uses[0] = (hpc_extent){m->at, m->at + m->nbytes, op == hpc_recv_op};
    atomic_init(&r->status, HPC_IN_PROGRESS);
    const int status = hpc_request_add(calls, r);
    if (status != HPC_OK) {
        free(m);
        return status;
    }
    *request = r;
    if (op == hpc_send_op) {
        r->call.number = ++calls->messages;
        append(&calls->sends, m);
        return HPC_OK;
    }
    append(&calls->recvs, m);
    hpc_arrival **at = &calls->arrived;
    while (*at != NULL && !asks_for(m, (*at)->from, (*at)->head.call.root)) at = &(*at)->next;
    hpc_arrival *a = *at;
    if (a == NULL) return HPC_OK;
    *at = a->next;
    if (calls->last_arrived == &a->next) calls->last_arrived = at;
    deliver(m, a->from, &a->head, a->bytes);
    free(a);
    return HPC_OK;
}

int hpc_request_received(const hpc_request *r, hpc_received *received) {
    const hpc_parcel *m = (const hpc_parcel *)(const void *)r;
    if (r == NULL || received == NULL || r->kind != &kind || !is_recv(m))
        return hpc_fail(HPC_ERR_INVALID, hpc_recv_op, "received: the request is no recv, or received is NULL");
    if (atomic_load_explicit(&r->status, memory_order_acquire) != HPC_OK)
        return hpc_fail(HPC_ERR_INVALID, hpc_recv_op, "received: the recv has not ended well");
    *received = (hpc_received){m->peer, m->offer.call.root, m->offer.call.count};
    return HPC_OK;
}
