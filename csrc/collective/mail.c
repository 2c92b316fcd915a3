#include "collective/mail.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGED = 4096, /* letters of up to so many bytes, head included, are sent by one put on one host */
    MOST_ROOM = 256 << 10,
    LEAST_ROOM = 16 << 10,
    ALL_ROOM = 16 << 20 /* bytes of all slots of a rank */
};

typedef enum mail_word { CAME, TAKEN, NOTED, COMPLAINED, WORDS } mail_word;

static int signal_of(const hpc_mail *m, mail_word word, int from) {
    return (int)word * m->context->group.size + from;
}

static uint64_t load(const hpc_mail *m, mail_word word, int from) {
    return atomic_load_explicit(hpc_own_signal(m->window, signal_of(m, word, from)), memory_order_acquire);
}

/* ---- places in a rank's window ---- */

typedef struct note {
    hpc_described call;
    uint64_t unused[5];
} note;

static size_t slot_bytes(const hpc_mail *m) {
    return sizeof(hpc_letter_head) + m->room;
}

static size_t slot_at(const hpc_mail *m, int from, uint64_t number) {
    return ((size_t)from * HPC_MAIL_SLOTS + number % HPC_MAIL_SLOTS) * slot_bytes(m);
}

static size_t note_at(const hpc_mail *m, int from) {
    return (size_t)m->context->group.size * HPC_MAIL_SLOTS * slot_bytes(m) + (size_t)from * sizeof(note);
}

static size_t complaint_at(const hpc_mail *m, int from) {
    return note_at(m, m->context->group.size) + (size_t)from * HPC_COMPLAINT_BYTES;
}

static const char *own(const hpc_mail *m, size_t at) {
    return (const char *)hpc_window_data(m->window) + at;
}

/* ---- open ---- */

static size_t room_for(int size) {
    const size_t each = ALL_ROOM / ((size_t)size * HPC_MAIL_SLOTS);
    return each > MOST_ROOM ? MOST_ROOM : each < LEAST_ROOM ? LEAST_ROOM : each / 4096 * 4096;
}

static int reach_all(hpc_mail *m, const char *op, double deadline) {
    const int size = m->context->group.size;
    hpc_goal *goals = malloc(2 * (size_t)size * sizeof *goals);
    int n = 0;
    if (goals == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size);
    for (int r = 0; r < size; r++) {
        if (r == m->context->group.rank) continue;
        goals[n++] = (hpc_goal){&m->window->object, r};
        goals[n++] = (hpc_goal){&m->lane->object, r};
    }
    int status = hpc_reach_all(m->context, goals, n, op, deadline);
    free(goals);
    return status;
}

int hpc_mail_open(hpc_context *c, const char *op, double deadline, hpc_mail **mail) {
    const size_t size = (size_t)c->group.size;
    hpc_mail *m = calloc(1, sizeof *m);
    int status = HPC_OK;
    if (m != NULL) {
        m->context = c;
        m->room = room_for(c->group.size);
        m->last = &m->first;
        m->peers = calloc(size, sizeof *m->peers);
    }
    if (m == NULL || m->peers == NULL)
        status = hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, c->group.size);
    status = hpc_context_agree(c, op, status, deadline);
    if (status == HPC_OK)
        status = hpc_window_create_parts(c, op, complaint_at(m, c->group.size), WORDS * c->group.size, NULL, 0,
                                         deadline, &m->window);
    if (status == HPC_OK) status = hpc_lane_open(c, 0, HPC_RAIL_BY_WORKER, deadline, &m->lane);
    if (status == HPC_OK) status = hpc_context_agree(c, op, reach_all(m, op, deadline), deadline);
    if (status != HPC_OK) {
        hpc_mail_free(m);
        return status;
    }
    *mail = m;
    return HPC_OK;
}

void hpc_mail_free(void *mail) {
    hpc_mail *m = mail;
    if (m == NULL) return;
    hpc_context *c = hpc_context_retain(m->context);
    if (m->forget != NULL) m->forget(m);
    hpc_lane_free(m->lane);
    hpc_window_free(m->window);
    for (int r = 0; r < m->context->group.size && m->peers != NULL; r++) free(m->peers[r].staged);
    free(m->peers);
    hpc_context_release(c);
    free(m);
}

/* ---- letters ---- */

static void learn_taken(hpc_mail *m, int peer) {
    hpc_mail_peer *p = &m->peers[peer];
    const uint64_t told = load(m, TAKEN, peer), came = load(m, CAME, peer);
    if (told > p->taken) p->taken = told;
    if (came > p->got) { /* the newest letter tells most */
        const hpc_letter_head *newest = (const void *)own(m, slot_at(m, peer, came - 1));
        if (newest->taken > p->taken) p->taken = newest->taken;
    }
}

int hpc_mail_has_room(hpc_mail *m, int peer) {
    const hpc_mail_peer *p = &m->peers[peer];
    if (p->sent - p->taken >= HPC_MAIL_SLOTS) learn_taken(m, peer);
    return p->sent - p->taken < HPC_MAIL_SLOTS;
}

/* A put to a peer of another host may read its source for long after the call, so such letters are sent from a copy. */
static int stage(hpc_mail *m, int peer) {
    hpc_mail_peer *p = &m->peers[peer];
    p->staged_bytes = m->context->transports[peer]->caps & HPC_CAP_PEER_VIEW ? STAGED : slot_bytes(m);
    p->staged = malloc(HPC_MAIL_SLOTS * p->staged_bytes);
    return p->staged != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, "collective", "no memory for letters");
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

int hpc_mail_send(hpc_mail *m, int peer, hpc_letter_head *head, const void *bytes) {
    hpc_mail_peer *p = &m->peers[peer];
    const size_t at = slot_at(m, m->context->group.rank, p->sent);
    const int came = signal_of(m, CAME, m->context->group.rank);
    int status = p->staged == NULL ? stage(m, peer) : HPC_OK;
    if (status != HPC_OK || is_gone(m, peer)) return status;
    char *staged = p->staged + p->sent % HPC_MAIL_SLOTS * p->staged_bytes;
    head->taken = p->told = p->got;
    memcpy(staged, head, sizeof *head);
    if (sizeof *head + head->nbytes <= p->staged_bytes) {
        if (head->nbytes > 0) memcpy(staged + sizeof *head, bytes, head->nbytes);
        status = hpc_put_signal(m->lane, m->window, peer, staged, sizeof *head + head->nbytes, at, came, p->sent + 1);
    } else {
        status = hpc_put(m->lane, m->window, peer, bytes, head->nbytes, at + sizeof *head);
        if (status == HPC_OK)
            status = hpc_put_signal(m->lane, m->window, peer, staged, sizeof *head, at, came, p->sent + 1);
    }
    if (status == HPC_OK) p->sent++;
    return unless_gone(m, status);
}

const hpc_letter_head *hpc_mail_next(const hpc_mail *m, int peer) {
    const hpc_mail_peer *p = &m->peers[peer];
    if (load(m, CAME, peer) <= p->got) return NULL;
    return (const void *)own(m, slot_at(m, peer, p->got));
}

/* A small letter is told by the next letter to the peer, or when the peer may wait for it. */
int hpc_mail_take(hpc_mail *m, int peer) {
    hpc_mail_peer *p = &m->peers[peer];
    const hpc_letter_head *head = (const void *)own(m, slot_at(m, peer, p->got));
    const int is_small = head->nbytes <= STAGED;
    if (head->taken > p->taken) p->taken = head->taken;
    p->got++;
    if ((is_small && p->got - p->told < HPC_MAIL_SLOTS) || is_gone(m, peer)) return HPC_OK;
    p->told = p->got;
    const int taken = signal_of(m, TAKEN, m->context->group.rank);
    return unless_gone(m, hpc_put_signal(m->lane, m->window, peer, NULL, 0, 0, taken, p->got));
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
    hpc_mail_peer *p = &m->peers[peer];
    const int me = m->context->group.rank;
    if (p->noted.number == call->number || is_gone(m, peer)) return HPC_OK;
    if (hpc_lane_try_flush(m->lane, peer) != HPC_OK) return HPC_OK; /* the last note may still be read */
    p->noted = *call;
    return unless_gone(m, hpc_put_signal(m->lane, m->window, peer, &p->noted, sizeof p->noted, note_at(m, me),
                                         signal_of(m, NOTED, me), mark_of(call)));
}

const hpc_described *hpc_mail_noted(const hpc_mail *m, int peer, const hpc_described *call) {
    const uint64_t mark = load(m, NOTED, peer);
    if (mark >> MARK_BITS != call->number || mark == mark_of(call)) return NULL;
    return (const void *)own(m, note_at(m, peer));
}

void hpc_mail_complain(hpc_mail *m, uint64_t number) {
    const int me = m->context->group.rank, muted = hpc_mute_errors(1);
    for (int r = 0; r < m->context->group.size; r++)
        if (r != me)
            hpc_put_signal(m->lane, m->window, r, m->broken, HPC_COMPLAINT_BYTES, complaint_at(m, me),
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
