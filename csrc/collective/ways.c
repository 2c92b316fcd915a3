/* How the bytes of a stream travel: in its letters, or lent.
 *
 * The sender chooses at the first letter, when it knows whether the peer can read its memory. The receiver learns the
 * choice from that letter. All letters of a stream travel the same way. */
#include <string.h>

#include "collective/call.h"

enum {
    LENT_PIECE = 1 << 20, /* of a result, so that its receivers do not wait for all of it */
    MOST_LENT = 1 << 30   /* bytes of one letter */
};

static hpc_box *box_of(const hpc_moving *w) {
    return &w->request.calls->mail->boxes[HPC_BOX_CALLS];
}

/* ---- in letters ---- */

static uint64_t most_carried(const hpc_moving *w, int part) {
    (void)part;
    return box_of(w)->room;
}

static int carry(hpc_moving *w, int peer, hpc_stream *s, hpc_letter_head *head) {
    return hpc_box_send(box_of(w), peer, head, s->at + s->done);
}

static const void *see(const hpc_letter_head *head, uint64_t offset) {
    return (const char *)hpc_letter_bytes(head) + offset;
}

static int copy_carried(const hpc_moving *w, int peer, const hpc_letter_head *head, uint64_t offset, void *to,
                        uint64_t n) {
    (void)w, (void)peer;
    if (n > 0) memcpy(to, see(head, offset), n);
    return HPC_OK;
}

static const hpc_stream_way carried = {most_carried, carry, copy_carried, see};

/* ---- lent ---- */

static uint64_t most_lent(const hpc_moving *w, int part) {
    (void)w;
    return part == HPC_FIRST ? MOST_LENT : LENT_PIECE;
}

static int lend(hpc_moving *w, int peer, hpc_stream *s, hpc_letter_head *head) {
    hpc_request_lend(&w->request, head, s->at + s->done);
    const int status = hpc_box_send(box_of(w), peer, head, NULL);
    if (status == HPC_OK) s->letters = box_of(w)->peers[peer].sent;
    return status;
}

static int copy_lent(const hpc_moving *w, int peer, const hpc_letter_head *head, uint64_t offset, void *to,
                     uint64_t n) {
    return hpc_mail_read(w->request.calls->mail, peer, head, offset, to, n);
}

static const hpc_stream_way lent = {most_lent, lend, copy_lent, NULL};

/* ---- the choice ---- */

const hpc_stream_way *hpc_stream_way_to(hpc_moving *w, int peer, const hpc_stream *s) {
    const int what = w->call.what;
    const int one_way = what == HPC_BROADCAST || what == HPC_GATHER || what == HPC_SCATTER;
    return hpc_request_lends(&w->request, box_of(w), peer, s->at, s->nbytes, !one_way) ? &lent : &carried;
}

const hpc_stream_way *hpc_stream_way_of(const hpc_letter_head *head) {
    return head->lent == 0 ? &carried : &lent;
}
