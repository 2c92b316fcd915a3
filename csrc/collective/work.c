/* Moves the streams of collectives, and folds them. Collectives go on in the order of their starts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective/call.h"

enum {
    READ_PIECE = 4 << 20, /* bytes of one read */
    PIECES = 512 << 10,   /* bytes of all ranks that are folded in one go */
    LEAST_PIECE = 16 << 10,
    MOST_PIECE = 256 << 10
};

static int rank_of(const hpc_moving *w) {
    return w->request.calls->mail->context->group.rank;
}

static int size_of(const hpc_moving *w) {
    return w->request.calls->mail->context->group.size;
}

static hpc_box *box_of(const hpc_moving *w) {
    return &w->request.calls->mail->boxes[HPC_BOX_CALLS];
}

static uint64_t least_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- mismatches ---- */

static int break_off(hpc_moving *w, int status, const char *why) {
    hpc_calls *calls = w->request.calls;
    if (calls->broken[0] == 0) {
        snprintf(calls->broken, sizeof calls->broken, "%s", why);
        hpc_mail_complain(calls->mail, calls->broken, w->request.call.number);
    }
    return hpc_fail(status, w->request.op, "%s", calls->broken);
}

static int fail_mismatch(hpc_moving *w, int peer, const hpc_described *its, const char *also) {
    char mine[96], other[96], why[HPC_COMPLAINT_BYTES];
    snprintf(why, sizeof why, "%s: rank %d calls %s, and rank %d %s%s: all ranks must make the same calls",
             w->request.op, rank_of(w), hpc_call_text(&w->request.call, mine, sizeof mine), peer,
             hpc_call_text(its, other, sizeof other), also);
    return break_off(w, HPC_ERR_CONFIG, why);
}

static int stage_of(const hpc_letter_head *head) {
    return (int)(head->part / HPC_PARTS);
}

static int same_call(const hpc_described *a, const hpc_described *b) {
    return a->what == b->what && a->type == b->type && a->op == b->op && a->root == b->root && a->count == b->count;
}

/* Returns HPC_OK if the letter is of this call, HPC_IN_PROGRESS if it may wait, or the failure. A letter of a later
 * stage may wait, and so may one of a later call if no letter of the peer is awaited. */
static int check_letter(hpc_moving *w, int peer, const hpc_letter_head *head, int awaited) {
    const uint64_t number = w->request.call.number;
    if (head->call.number == number && !same_call(&head->call, &w->request.call))
        return fail_mismatch(w, peer, &head->call, "");
    if (head->call.number == number) return stage_of(head) > w->stage ? HPC_IN_PROGRESS : HPC_OK;
    if (head->call.number > number && !awaited) return HPC_IN_PROGRESS;
    return fail_mismatch(w, peer, &head->call, head->call.number < number ? " before" : " afterwards");
}

/* Finds the way of the stream in its first letter. */
static int check_stream(hpc_moving *w, int peer, const hpc_letter_head *head, hpc_stream *s) {
    char mine[96], why[HPC_COMPLAINT_BYTES];
    const hpc_stream_way *way = hpc_stream_way_of(head);
    const uint64_t left = s->nbytes - s->done + s->used, most = least_of(left, way->most(w, head->part % HPC_PARTS));
    if (s->way == NULL) s->way = way;
    const int is_sound = way == s->way && head->nbytes <= most && (head->nbytes > 0) == (left > 0);
    if (s->open && head->stream == s->nbytes && is_sound) return HPC_OK;
    snprintf(why, sizeof why, "%s: rank %d sends %llu elements to rank %d, which expects %llu in its %s", w->request.op,
             peer, (unsigned long long)(head->stream / w->request.element), rank_of(w),
             s->open ? (unsigned long long)(s->nbytes / w->request.element) : 0ULL,
             hpc_call_text(&w->request.call, mine, sizeof mine));
    return break_off(w, HPC_ERR_CONFIG, why);
}

static int check_notes(hpc_moving *w) {
    hpc_calls *calls = w->request.calls;
    const char *complaint = hpc_mail_complaint(calls->mail, w->request.call.number);
    if (complaint != NULL) { /* tells the ranks that its author has not reached */
        char why[HPC_COMPLAINT_BYTES];
        snprintf(why, sizeof why, "%.*s", HPC_COMPLAINT_BYTES - 1, complaint);
        return break_off(w, HPC_ERR_CONFIG, why);
    }
    for (int p = 0; p < size_of(w); p++) {
        const hpc_described *its = p == rank_of(w) ? NULL : hpc_mail_noted(calls->mail, p, &w->request.call);
        if (its != NULL) return fail_mismatch(w, p, its, "");
    }
    return HPC_OK;
}

/* ---- streams ---- */

/* Sends the next letter of a stream, if it is complete. Returns HPC_IN_PROGRESS if it is not. */
static int send_part(hpc_moving *w, int peer, int part) {
    hpc_stream *s = &w->out[part][peer];
    const uint64_t left = s->nbytes - s->done, ready = (part == HPC_FIRST ? s->nbytes : w->fold.done) - s->done;
    if (!s->open) return HPC_IN_PROGRESS;
    if (s->way == NULL) s->way = hpc_stream_way_to(w, peer, s);
    const uint64_t n = least_of(left, s->way->most(w, part));
    if (ready < n) return HPC_IN_PROGRESS;
    hpc_letter_head head = {.call = w->request.call,
                            .stream = s->nbytes,
                            .nbytes = (uint32_t)n,
                            .part = (uint32_t)(w->stage * HPC_PARTS + part)};
    const int status = s->way->send(w, peer, s, &head);
    if (status != HPC_OK) return status;
    s->done += n;
    s->open = s->done < s->nbytes;
    return HPC_OK;
}

/* Sends the letters that the peer has room for. On one host a result goes before the next letter of a first stream, as
 * its receiver can take it at once. Over a network it goes after them: a letter that waits for its fold would hold up
 * the results behind it, and so the other ranks' folds. */
static int send_to(hpc_moving *w, int peer, int *moved) {
    const int results_first = (w->request.calls->mail->context->transports[peer]->caps & HPC_CAP_PEER_VIEW) != 0;
    int status = HPC_OK;
    while (status == HPC_OK && (w->out[HPC_FIRST][peer].open || w->out[HPC_SECOND][peer].open) &&
           hpc_box_has_room(box_of(w), peer)) {
        status = send_part(w, peer, results_first ? HPC_SECOND : HPC_FIRST);
        if (status == HPC_IN_PROGRESS) status = send_part(w, peer, results_first ? HPC_FIRST : HPC_SECOND);
        *moved |= status == HPC_OK;
    }
    return status == HPC_IN_PROGRESS ? HPC_OK : status;
}

/* Counts bytes of the peer's letter as taken, and takes the letter after its last byte. */
static int take(hpc_moving *w, int peer, hpc_stream *s, const hpc_letter_head *head, uint64_t nbytes) {
    s->done += nbytes;
    s->used += (uint32_t)nbytes;
    if (s->used < head->nbytes) return HPC_OK;
    s->used = 0;
    s->open = s->done < s->nbytes;
    return hpc_box_take(box_of(w), peer);
}

/* Copies bytes of the peer's letter, from the first that was not taken on. Returns HPC_IN_PROGRESS if the peer is gone,
 * which a wait finds out. */
static int copy(hpc_moving *w, int peer, const hpc_letter_head *head, const hpc_stream *s, void *to, uint64_t n) {
    char mine[96], why[HPC_COMPLAINT_BYTES];
    int status = s->way->copy(w, peer, head, s->used, to, n);
    if (status != HPC_GONE) return status;
    status = check_notes(w); /* the peer may have said why */
    if (status != HPC_OK) return status;
    if (!hpc_request_is_deserted(&w->request, peer)) return HPC_IN_PROGRESS;
    snprintf(why, sizeof why, "%s: rank %d has given up its %s before rank %d had read all of its elements",
             w->request.op, peer, hpc_call_text(&w->request.call, mine, sizeof mine), rank_of(w));
    return break_off(w, HPC_ERR_CONFIG, why);
}

/* Takes the letters of the peer, up to one that is to be folded. */
static int take_from(hpc_moving *w, int peer, int *moved) {
    const hpc_letter_head *head;
    while ((head = hpc_box_next(box_of(w), peer)) != NULL) {
        const int awaited = w->in[HPC_FIRST][peer].open || w->in[HPC_SECOND][peer].open;
        int status = check_letter(w, peer, head, awaited);
        if (status != HPC_OK) return status == HPC_IN_PROGRESS ? HPC_OK : status;
        hpc_stream *s = &w->in[head->part % HPC_PARTS][peer];
        status = check_stream(w, peer, head, s);
        if (status != HPC_OK || s->folds) return status;
        const uint64_t n = least_of(head->nbytes - s->used, READ_PIECE);
        status = copy(w, peer, head, s, s->at + s->done, n);
        if (status != HPC_OK) return status == HPC_IN_PROGRESS ? HPC_OK : status;
        status = take(w, peer, s, head, n);
        if (status != HPC_OK) return status;
        *moved = 1;
    }
    return HPC_OK;
}

/* ---- the fold ---- */

/* Returns whether n more bytes of the fold may be written. */
static int may_overwrite(const hpc_moving *w, uint64_t n) {
    for (int p = 0; p < size_of(w) && w->fold.after_sends; p++)
        if (w->out[HPC_FIRST][p].open && w->out[HPC_FIRST][p].done < w->fold.done + n) return 0;
    return 1;
}

static uint64_t piece_of(const hpc_moving *w) {
    const uint64_t each = PIECES / (unsigned)w->fold.team->n / LEAST_PIECE * LEAST_PIECE;
    return each < LEAST_PIECE ? LEAST_PIECE : least_of(each, MOST_PIECE);
}

/* Finds the next letter of each rank of the team, and how many bytes can be folded. Returns HPC_IN_PROGRESS if a letter
 * has not come. */
static int find_inputs(hpc_moving *w, const hpc_letter_head **heads, uint64_t *n) {
    const hpc_team *t = w->fold.team;
    *n = w->fold.nbytes - w->fold.done;
    for (int i = 0; i < t->n; i++) {
        const int p = t->ranks[i];
        hpc_stream *s = &w->in[HPC_FIRST][p];
        const hpc_letter_head *head = heads[i] = i == t->me ? NULL : hpc_box_next(box_of(w), p);
        if (i == t->me) continue;
        if (head == NULL || head->call.number > w->request.call.number || !s->open) return HPC_IN_PROGRESS;
        int status = check_letter(w, p, head, 1); /* it may have come after take_from looked */
        if (status == HPC_OK && head->part % HPC_PARTS != HPC_FIRST) return HPC_IN_PROGRESS;
        if (status == HPC_OK) status = check_stream(w, p, head, s);
        if (status != HPC_OK) return status;
        *n = least_of(*n, head->nbytes - s->used);
        if (s->way->see == NULL || w->fold.combine_host != NULL) *n = least_of(*n, piece_of(w));
    }
    return HPC_OK;
}

/* Lists the elements of each rank, in the order of ranks; lent ones are copied. */
static int gather_inputs(hpc_moving *w, const hpc_letter_head **heads, const void **in, uint64_t n) {
    const hpc_team *t = w->fold.team;
    for (int i = 0; i < t->n; i++) {
        const int p = t->ranks[i];
        const hpc_stream *s = &w->in[HPC_FIRST][p];
        if (i == t->me) {
            in[i] = w->fold.mine + w->fold.done;
        } else if (s->way->see != NULL) {
            in[i] = s->way->see(heads[i], s->used);
        } else {
            const size_t piece = piece_of(w);
            if (w->fold.pieces == NULL) w->fold.pieces = aligned_alloc(4096, (size_t)t->n * piece);
            if (w->fold.pieces == NULL)
                return hpc_fail(HPC_ERR_MEMORY, w->request.op, "%s: no memory for pieces", w->request.op);
            char *to = w->fold.pieces + (size_t)i * piece;
            const int status = copy(w, p, heads[i], s, to, n);
            if (status != HPC_OK) return status;
            in[i] = to;
        }
    }
    return HPC_OK;
}

/* Combines n bytes of each rank. */
static int combine(hpc_moving *w, const void **in, uint64_t n) {
    hpc_fold_part *f = &w->fold;
    const hpc_calls *calls = w->request.calls;
    const uint64_t count = n / w->request.element;
    const int each = calls->host.n, n_hosts = calls->across.n;
    char *out = f->out + f->done;
    if (f->combine_host == NULL) {
        f->combine(out, in, f->team->n, count, calls->all.n);
        return HPC_OK;
    }
    const size_t piece = piece_of(w), places = (size_t)(each + n_hosts) * sizeof(void *);
    if (f->hosts == NULL) f->hosts = aligned_alloc(64, ((size_t)n_hosts * piece + places + 63) / 64 * 64);
    if (f->hosts == NULL) return hpc_fail(HPC_ERR_MEMORY, w->request.op, "%s: no memory for hosts", w->request.op);
    const void **ranks = (const void **)(void *)(f->hosts + (size_t)n_hosts * piece), **sums = ranks + each;
    for (int h = 0; h < n_hosts; h++) {
        for (int i = 0; i < each; i++) ranks[i] = in[calls->grid[i * n_hosts + h]];
        sums[h] = f->hosts + (size_t)h * piece;
        f->combine_host(f->hosts + (size_t)h * piece, ranks, each, count, each);
    }
    f->combine(out, sums, n_hosts, count, calls->all.n);
    return HPC_OK;
}

static int fold_next(hpc_moving *w, int *moved) {
    enum { FEW = 64 };
    hpc_fold_part *f = &w->fold;
    if (f->combine == NULL) return HPC_OK;
    const hpc_team *t = f->team;
    const void *few[2 * FEW], **in = t->n <= FEW ? few : malloc(2 * (size_t)t->n * sizeof *in);
    int status = HPC_OK;
    uint64_t n;
    if (in == NULL) return hpc_fail(HPC_ERR_MEMORY, w->request.op, "%s: no memory for %d ranks", w->request.op, t->n);
    const hpc_letter_head **heads = (const hpc_letter_head **)(in + t->n);
    while (status == HPC_OK && f->combine != NULL) {
        status = find_inputs(w, heads, &n);
        if (status != HPC_OK || !may_overwrite(w, n)) break;
        status = gather_inputs(w, heads, in, n);
        if (status != HPC_OK) break;
        status = combine(w, in, n);
        if (status != HPC_OK) break;
        f->done += n;
        *moved = 1;
        hpc_watch_move(&w->request.calls->mail->context->group.watch);
        for (int i = 0; i < t->n && status == HPC_OK; i++)
            if (i != t->me) status = take(w, t->ranks[i], &w->in[HPC_FIRST][t->ranks[i]], heads[i], n);
        if (f->done == f->nbytes) f->combine = NULL; /* it is over */
    }
    if (in != few) free(in);
    return status == HPC_IN_PROGRESS ? HPC_OK : status;
}

/* ---- one call ---- */

static int is_complete(const hpc_moving *w) {
    for (int p = 0; p < size_of(w); p++)
        for (int i = 0; i < HPC_PARTS; i++)
            if (w->out[i][p].open || w->in[i][p].open || !hpc_box_has_taken(box_of(w), p, w->out[i][p].letters))
                return 0;
    return w->fold.combine == NULL;
}

static int talks_to(const hpc_moving *w, int peer) {
    for (int i = 0; i < HPC_PARTS; i++)
        if (w->out[i][peer].open || w->in[i][peer].open) return 1;
    return 0;
}

/* Goes one step towards the peers of the present stage. */
static int reach(hpc_moving *w) {
    w->reached = 1;
    for (int p = 0; p < size_of(w); p++) {
        if (hpc_mail_is_near(w->request.calls->mail, p) || !talks_to(w, p)) continue;
        const int status = hpc_mail_reach(w->request.calls->mail, p, w->request.op);
        if (status < 0) return status;
        if (status != HPC_OK) w->reached = 0;
    }
    return w->reached ? HPC_OK : HPC_IN_PROGRESS;
}

static int go_on(hpc_moving *w) {
    const int size = size_of(w), me = rank_of(w);
    int status = w->reached ? HPC_OK : reach(w), moved;
    if (status == HPC_IN_PROGRESS) status = check_notes(w);
    if (status != HPC_OK || !w->reached) return status == HPC_OK ? HPC_IN_PROGRESS : status;
    if (size == 1 && w->fold.combine != NULL) {
        const void *mine = w->fold.mine;
        w->fold.combine(w->fold.out, &mine, 1, w->fold.nbytes / w->request.element, 1);
        w->fold.combine = NULL;
    }
    for (;;) {
        for (moved = 1; moved && status == HPC_OK;) {
            moved = 0;
            for (int i = 1; i < size && status == HPC_OK; i++) status = send_to(w, (me + i) % size, &moved);
            for (int i = 1; i < size && status == HPC_OK; i++) status = take_from(w, (me + size - i) % size, &moved);
            if (status == HPC_OK) status = fold_next(w, &moved);
        }
        if (status != HPC_OK) return status;
        if (!is_complete(w)) break;
        if (w->stage == w->last_stage) return HPC_OK;
        w->stage++;
        status = hpc_moving_open(w);
        if (status == HPC_OK) status = reach(w);
        if (status != HPC_OK) return status;
    }
    status = check_notes(w);
    return status == HPC_OK ? HPC_IN_PROGRESS : status;
}

static int has_lost_a_rank(const hpc_calls *calls) {
    const hpc_group *g = &calls->mail->context->group;
    for (int r = 0; r < g->size && atomic_load(&g->departures) > 0; r++)
        if (hpc_group_has_lost(g, r)) return 1;
    return 0;
}

/* After a failure no collective goes on. The collectives behind it fail too, unless a rank is lost: then their waits
 * fail. */
void hpc_works_go_on(hpc_calls *calls) {
    while (calls->first != NULL) {
        hpc_moving *w = calls->first;
        if (calls->broken[0] != 0 && has_lost_a_rank(calls)) return;
        const int status = calls->broken[0] != 0 ? HPC_ERR_CONFIG : go_on(w);
        if (status == HPC_IN_PROGRESS) return;
        const char *why = status == HPC_OK ? "" : calls->broken[0] != 0 ? calls->broken : hpc_last_error()->message;
        if (status < 0 && why[0] == 0) why = "it failed";
        if (status < 0 && calls->broken[0] == 0) snprintf(calls->broken, sizeof calls->broken, "%s", why);
        hpc_request_end(&w->request, status, why);
    }
}

void hpc_work_note(hpc_calls *calls) {
    const int muted = hpc_mute_errors(1);
    for (int p = 0; calls->first != NULL && p < size_of(calls->first); p++)
        if (p != rank_of(calls->first)) hpc_mail_note(calls->mail, p, &calls->first->request.call);
    hpc_mute_errors(muted);
}
