#include "context/mail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crowd.h"

enum {
    STAGED = 4096, /* letters of up to so many bytes, head included, are sent by one put on one host */
    MOST_ROOM = 256 << 10,
    LEAST_ROOM = 4 << 10,
    ALL_ROOM = 4 << 20, /* bytes of all slots of the first box of a rank */
    SMALLER = 4         /* a message's letter has a fourth of the room */
};

typedef enum mail_word { CAME, TAKEN = HPC_BOXES, NOTED = 2 * HPC_BOXES, COMPLAINED, READS, WORDS } mail_word;

static int signal_of(const hpc_mail *m, int word, int from) {
    return word * m->context->group.size + from;
}

static uint64_t load(const hpc_mail *m, int word, int from) {
    return atomic_load_explicit(hpc_own_signal(m->window, signal_of(m, word, from)), memory_order_acquire);
}

/* ---- places in a rank's window ---- */

typedef struct note {
    hpc_described call;
    uint64_t unused[5];
} note;

static size_t slot_bytes(const hpc_box *b) {
    return sizeof(hpc_letter_head) + b->room;
}

static size_t slot_at(const hpc_box *b, int from, uint64_t number) {
    return b->at + ((size_t)from * HPC_MAIL_SLOTS + number % HPC_MAIL_SLOTS) * slot_bytes(b);
}

static size_t note_at(const hpc_mail *m, int from) {
    return slot_at(&m->boxes[HPC_BOXES - 1], m->context->group.size, 0) + (size_t)from * sizeof(note);
}

static size_t complaint_at(const hpc_mail *m, int from) {
    return note_at(m, m->context->group.size) + (size_t)from * HPC_COMPLAINT_BYTES;
}

static const char *own(const hpc_mail *m, size_t at) {
    return (const char *)hpc_window_data(m->window) + at;
}

/* A peer that has departed gets nothing, and is not blamed for that. is_gone is asked before each put, so that a wait
 * that fails keeps its own sentence. */
static int is_gone(const hpc_mail *m, int peer) {
    return hpc_group_has_departed(&m->context->group, peer);
}

static int unless_gone(const hpc_mail *m, int status) {
    if (status != HPC_ERR_PEER) return status;
    hpc_blame_settle(&m->context->group.blame, NULL, 0);
    return HPC_OK;
}

/* ---- life ---- */

static size_t room_for(int size) {
    const size_t each = ALL_ROOM / ((size_t)size * HPC_MAIL_SLOTS);
    return each > MOST_ROOM ? MOST_ROOM : each < LEAST_ROOM ? LEAST_ROOM : each / 4096 * 4096;
}

static void let_go(hpc_mail *m) {
    if (m == NULL) return;
    if (m->lane != NULL) hpc_lane_free(m->lane);
    if (m->window != NULL) hpc_window_free(m->window);
    for (int b = 0; b < HPC_BOXES; b++) {
        for (int r = 0; r < m->context->group.size && m->boxes[b].peers != NULL; r++) free(m->boxes[b].peers[r].staged);
        free(m->boxes[b].peers);
    }
    free(m->noted);
    free(m->near);
    free(m->reads);
    free(m);
}

static hpc_mail *make(hpc_context *c) {
    const size_t size = (size_t)c->group.size;
    hpc_mail *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    m->context = c;
    m->noted = calloc(size, sizeof *m->noted);
    m->near = calloc(size, 1);
    m->reads = calloc(size, 1);
    int whole = m->noted != NULL && m->near != NULL && m->reads != NULL;
    size_t at = 0;
    for (int b = 0; b < HPC_BOXES; b++) {
        hpc_box *box = &m->boxes[b];
        const size_t room = room_for(c->group.size);
        box->mail = m;
        box->room = b == HPC_BOX_MESSAGES ? room / SMALLER : room;
        box->at = at;
        box->came = CAME + b;
        box->taken = TAKEN + b;
        box->peers = calloc(size, sizeof *box->peers);
        whole &= box->peers != NULL;
        at = slot_at(box, c->group.size, 0);
    }
    if (whole) return m;
    let_go(m);
    return NULL;
}

/* deadline: of the ranks' meeting, over eager transports. */
static int open(hpc_context *c, const char *op, double deadline, hpc_mail **mail) {
    hpc_mail *m = make(c);
    if (m == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, c->group.size);
    int status = hpc_window_create_alike(c, op, HPC_MAIL_WINDOW, complaint_at(m, c->group.size), WORDS * c->group.size,
                                         deadline, &m->window);
    if (status == HPC_OK) status = hpc_lane_open_alike(c, op, HPC_MAIL_LANE, deadline, &m->lane);
    if (status == HPC_OK)
        *mail = m;
    else
        let_go(m);
    return status;
}

/* The control thread makes the mail too, so `mailing` guards its making. */
static int find(hpc_context *c, const char *op, hpc_mail **mail) {
    int status = HPC_OK;
    pthread_mutex_lock(&c->mailing);
    if (c->mail == NULL && c->mail_closed)
        status = HPC_GONE;
    else if (c->mail == NULL)
        status = open(c, op, 0, &c->mail);
    *mail = c->mail;
    pthread_mutex_unlock(&c->mailing);
    return status;
}

int hpc_mail_of(hpc_context *c, const char *op, hpc_mail **mail) {
    const int status = find(c, op, mail);
    return status != HPC_GONE ? status : hpc_fail(HPC_ERR_INVALID, op, "%s: the context is closed", op);
}

int hpc_mail_asked(hpc_context *c, uint64_t number) {
    hpc_mail *m;
    if (c->has_eager) return HPC_OK; /* connect has made it, or will, on the caller's thread */
    return number == HPC_MAIL_WINDOW || number == HPC_MAIL_LANE ? find(c, "reach", &m) : HPC_GONE;
}

int hpc_mail_open_eager(hpc_context *c, double deadline) {
    return c->has_eager ? open(c, "init", deadline, &c->mail) : HPC_OK;
}

void hpc_mail_free(hpc_context *c) {
    pthread_mutex_lock(&c->mailing);
    hpc_mail *m = c->mail;
    c->mail = NULL;
    c->mail_closed = 1;
    pthread_mutex_unlock(&c->mailing);
    let_go(m);
}

/* Finds out whether this rank can read the peer's memory, and tells the peer if it can. */
static int offer_to_read(hpc_mail *m, int peer) {
    m->reads[peer] = (char)hpc_can_read(m->context, peer);
    if (!m->reads[peer]) return HPC_OK;
    return unless_gone(
        m, hpc_put_signal(m->lane, m->window, peer, NULL, 0, 0, signal_of(m, READS, m->context->group.rank), 1));
}

static int tell_taken(hpc_box *b, int peer);

int hpc_mail_reach(hpc_mail *m, int peer, const char *op) {
    if (m->near[peer] || is_gone(m, peer)) return HPC_OK;
    int status = hpc_reach_try(m->context, &m->window->object, peer, op);
    if (status == HPC_OK) status = hpc_reach_try(m->context, &m->lane->object, peer, op);
    if (status == HPC_GONE) return HPC_OK; /* it is leaving */
    if (status == HPC_OK) status = offer_to_read(m, peer);
    m->near[peer] = status == HPC_OK;
    for (int b = 0; b < HPC_BOXES && status == HPC_OK; b++)
        if (m->boxes[b].peers[peer].got != m->boxes[b].peers[peer].told) status = tell_taken(&m->boxes[b], peer);
    return unless_gone(m, status);
}

/* ---- letters ---- */

static void learn_taken(hpc_box *b, int peer) {
    hpc_box_peer *p = &b->peers[peer];
    const uint64_t told = load(b->mail, b->taken, peer), came = load(b->mail, b->came, peer);
    if (told > p->taken) p->taken = told;
    if (came > p->got) { /* the newest letter tells most */
        const hpc_letter_head *newest = (const void *)own(b->mail, slot_at(b, peer, came - 1));
        if (newest->taken > p->taken) p->taken = newest->taken;
    }
}

int hpc_box_has_taken(hpc_box *b, int peer, uint64_t letters) {
    const hpc_box_peer *p = &b->peers[peer];
    if (p->taken < letters) learn_taken(b, peer);
    return p->taken >= letters;
}

int hpc_box_has_room(hpc_box *b, int peer) {
    const uint64_t sent = b->peers[peer].sent;
    return sent < HPC_MAIL_SLOTS || hpc_box_has_taken(b, peer, sent - HPC_MAIL_SLOTS + 1);
}

/* A put to a peer of another host may read its source for long after the call, so such letters are sent from a copy. */
static int stage(hpc_box *b, int peer) {
    hpc_box_peer *p = &b->peers[peer];
    p->staged_bytes = b->mail->context->transports[peer]->caps & HPC_CAP_PEER_VIEW ? STAGED : slot_bytes(b);
    p->staged = malloc(HPC_MAIL_SLOTS * p->staged_bytes);
    return p->staged != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, "collective", "no memory for letters");
}

int hpc_box_send(hpc_box *b, int peer, hpc_letter_head *head, const void *bytes) {
    hpc_mail *m = b->mail;
    hpc_box_peer *p = &b->peers[peer];
    const size_t at = slot_at(b, m->context->group.rank, p->sent), carried = head->lent != 0 ? 0 : head->nbytes;
    const int came = signal_of(m, b->came, m->context->group.rank);
    int status = p->staged == NULL ? stage(b, peer) : HPC_OK;
    if (status != HPC_OK || is_gone(m, peer)) return status;
    char *staged = p->staged + p->sent % HPC_MAIL_SLOTS * p->staged_bytes;
    head->taken = p->told = p->got;
    memcpy(staged, head, sizeof *head);
    if (sizeof *head + carried <= p->staged_bytes) {
        if (carried > 0) memcpy(staged + sizeof *head, bytes, carried);
        status = hpc_put_signal(m->lane, m->window, peer, staged, sizeof *head + carried, at, came, p->sent + 1);
    } else {
        status = hpc_put(m->lane, m->window, peer, bytes, carried, at + sizeof *head);
        if (status == HPC_OK)
            status = hpc_put_signal(m->lane, m->window, peer, staged, sizeof *head, at, came, p->sent + 1);
    }
    if (status == HPC_OK) p->sent++;
    hpc_watch_move(&m->context->group.watch);
    return unless_gone(m, status);
}

const hpc_letter_head *hpc_box_next(const hpc_box *b, int peer) {
    const hpc_box_peer *p = &b->peers[peer];
    if (load(b->mail, b->came, peer) <= p->got) return NULL;
    return (const void *)own(b->mail, slot_at(b, peer, p->got));
}

static int tell_taken(hpc_box *b, int peer) {
    hpc_mail *m = b->mail;
    hpc_box_peer *p = &b->peers[peer];
    p->told = p->got;
    const int taken = signal_of(m, b->taken, m->context->group.rank);
    return unless_gone(m, hpc_put_signal(m->lane, m->window, peer, NULL, 0, 0, taken, p->got));
}

/* A small letter is told by the next letter to the peer, or when the peer may wait for it. Lent bytes are told at once:
 * the peer waits for them. A peer that is not near is told when it is. */
int hpc_box_take(hpc_box *b, int peer) {
    hpc_mail *m = b->mail;
    hpc_box_peer *p = &b->peers[peer];
    const hpc_letter_head *head = (const void *)own(m, slot_at(b, peer, p->got));
    const int may_wait = head->nbytes <= STAGED && head->lent == 0;
    if (head->taken > p->taken) p->taken = head->taken;
    p->got++;
    hpc_watch_move(&m->context->group.watch);
    if (!m->near[peer] || is_gone(m, peer)) return HPC_OK;
    return may_wait && p->got - p->told < HPC_MAIL_SLOTS ? HPC_OK : tell_taken(b, peer);
}

int hpc_box_owes(const hpc_box *b, int peer) {
    return b->peers[peer].got != b->peers[peer].told && !b->mail->near[peer] && !is_gone(b->mail, peer);
}

/* ---- notes and complaints ---- */

/* A word NOTED has the number of the call, and below it 24 bits of its description. So a note is compared without its
 * bytes, which the peer may be writing again; they are read only if the peer stands in this call. */
enum { MARK_BITS = 24 };

static uint64_t mark_of(const hpc_described *call) {
    uint64_t hash = call->count ^ (uint64_t)(uint32_t)call->root << 32 ^ (uint64_t)call->what << 16 ^
                    (uint64_t)call->type << 8 ^ call->op;
    hash *= 0x9e3779b97f4a7c15;
    return call->number << MARK_BITS | hash >> (64 - MARK_BITS);
}

int hpc_mail_note(hpc_mail *m, int peer, const hpc_described *call) {
    hpc_described *noted = &m->noted[peer];
    const int me = m->context->group.rank;
    if (noted->number == call->number || !m->near[peer] || is_gone(m, peer)) return HPC_OK;
    if (hpc_lane_try_flush(m->lane, peer) != HPC_OK) return HPC_OK; /* the last note may still be read */
    *noted = *call;
    return unless_gone(m, hpc_put_signal(m->lane, m->window, peer, noted, sizeof *noted, note_at(m, me),
                                         signal_of(m, NOTED, me), mark_of(call)));
}

const hpc_described *hpc_mail_noted(const hpc_mail *m, int peer, const hpc_described *call) {
    const uint64_t mark = load(m, NOTED, peer);
    if (mark >> MARK_BITS != call->number || mark == mark_of(call)) return NULL;
    return (const void *)own(m, note_at(m, peer));
}

void hpc_mail_complain(hpc_mail *m, const char *why, uint64_t number) {
    const int me = m->context->group.rank, muted = hpc_mute_errors(1);
    snprintf(m->complaint, sizeof m->complaint, "%s", why);
    for (int r = 0; r < m->context->group.size; r++)
        if (r != me && m->near[r] && !is_gone(m, r))
            hpc_put_signal(m->lane, m->window, r, m->complaint, sizeof m->complaint, complaint_at(m, me),
                           signal_of(m, COMPLAINED, me), number);
    hpc_mute_errors(muted);
}

const char *hpc_mail_complaint(const hpc_mail *m, uint64_t number) {
    for (int r = 0; r < m->context->group.size; r++) {
        const uint64_t about = r == m->context->group.rank ? 0 : load(m, COMPLAINED, r);
        if (about != 0 && about <= number) return own(m, complaint_at(m, r));
    }
    return NULL;
}

/* ---- lent bytes ---- */

int hpc_mail_lends(const hpc_mail *m, int peer, const char *at, uint64_t nbytes, int both_ways) {
    enum { SHARED = 128 << 10, ALONE = 8 << 20, CROWDED = 4 << 20 };
    const hpc_group *g = &m->context->group;
    if (nbytes < SHARED || load(m, READS, peer) == 0) return 0;
    const int has_core = g->spin > 0, crowded = g->eases && hpc_crowd_is(hpc_now());
    if (has_core && both_ways && !(crowded && nbytes <= CROWDED)) return 0;
    if (has_core && !both_ways && !crowded && nbytes < ALONE) return 0;
    return hpc_is_readable(at, nbytes);
}

/* ---- leases ----
 *
 * Order. The lender ends its lease before its caller may write the bytes again. The reader copies the bytes, then the
 * lease, in a second system call. If it still finds the value, the bytes were not written before. A lender that ends
 * its lease early waits for no reader; readers find that their copy may be torn. */

_Atomic uint64_t *hpc_box_lease(hpc_box *b, uint64_t number) {
    _Atomic uint64_t *lease = &b->leases[number % HPC_MAIL_LEASES];
    if (atomic_load_explicit(lease, memory_order_relaxed) != 0) return NULL;
    atomic_store_explicit(lease, number, memory_order_release);
    return lease;
}

void hpc_lease_end(_Atomic uint64_t *lease) {
    if (lease == NULL) return;
    atomic_store_explicit(lease, 0, memory_order_seq_cst);
}

int hpc_mail_read(hpc_mail *m, int peer, const hpc_letter_head *head, uint64_t offset, void *to, size_t nbytes) {
    uint64_t lease = 0;
    int status = hpc_read_peer(m->context, peer, head->lent + offset, to, nbytes);
    if (status == HPC_OK) status = hpc_read_peer(m->context, peer, head->lease, &lease, sizeof lease);
    if (status == HPC_OK) hpc_watch_move(&m->context->group.watch);
    return status == HPC_OK && lease != head->call.number ? HPC_GONE : status;
}
