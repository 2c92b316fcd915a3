/* Started calls. They go on in the order of their starts, in every test and wait of one of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "collective/call.h"

static const double NOTE_SECONDS = 0.05; /* a rank that waits for longer leaves notes */

static int rank_of(const struct hpc_request *w) {
    return w->mail->context->group.rank;
}

static int size_of(const struct hpc_request *w) {
    return w->mail->context->group.size;
}

static int is_over(const hpc_stream *s) {
    return !s->open;
}

/* ---- mismatches ---- */

static int break_off(struct hpc_request *w, int status, const char *why) {
    if (w->mail->broken[0] != 0) return hpc_fail(status, w->op, "%s", w->mail->broken);
    snprintf(w->mail->broken, sizeof w->mail->broken, "%s", why);
    hpc_mail_complain(w->mail, w->call.number);
    return hpc_fail(status, w->op, "%s", w->mail->broken);
}

static int fail_mismatch(struct hpc_request *w, int peer, const hpc_described *its, const char *also) {
    char mine[96], other[96], why[HPC_COMPLAINT_BYTES];
    snprintf(why, sizeof why, "%s: rank %d calls %s, and rank %d %s%s: all ranks must make the same calls", w->op,
             rank_of(w), hpc_call_text(&w->call, mine, sizeof mine), peer, hpc_call_text(its, other, sizeof other),
             also);
    return break_off(w, HPC_ERR_CONFIG, why);
}

static int same_call(const hpc_described *a, const hpc_described *b) {
    return a->what == b->what && a->type == b->type && a->op == b->op && a->root == b->root && a->count == b->count;
}

/* Returns HPC_OK if the letter is of this call, HPC_IN_PROGRESS if it is of a later call and none of the peer's is
 * awaited, or the failure. */
static int check_letter(struct hpc_request *w, int peer, const hpc_letter_head *head, int awaited) {
    if (head->call.number == w->call.number)
        return same_call(&head->call, &w->call) ? HPC_OK : fail_mismatch(w, peer, &head->call, "");
    if (head->call.number > w->call.number && !awaited) return HPC_IN_PROGRESS;
    return fail_mismatch(w, peer, &head->call, head->call.number < w->call.number ? " before" : " afterwards");
}

static int check_stream(struct hpc_request *w, int peer, const hpc_letter_head *head, const hpc_stream *s) {
    char mine[96], why[HPC_COMPLAINT_BYTES];
    const uint64_t left = s->nbytes - s->done, most = left < w->mail->room ? left : w->mail->room;
    if (s->open && head->stream == s->nbytes && head->nbytes == most) return HPC_OK;
    snprintf(why, sizeof why, "%s: rank %d sends %llu elements to rank %d, which expects %llu in its %s", w->op, peer,
             (unsigned long long)(head->stream / w->element), rank_of(w),
             s->open ? (unsigned long long)(s->nbytes / w->element) : 0ULL, hpc_call_text(&w->call, mine, sizeof mine));
    return break_off(w, HPC_ERR_CONFIG, why);
}

static int check_notes(struct hpc_request *w) {
    const char *complaint = hpc_mail_complaint(w->mail, w->call.number);
    if (complaint != NULL) {
        snprintf(w->mail->broken, sizeof w->mail->broken, "%.*s", HPC_COMPLAINT_BYTES - 1, complaint);
        return hpc_fail(HPC_ERR_CONFIG, w->op, "%s", w->mail->broken);
    }
    for (int p = 0; p < size_of(w); p++) {
        const hpc_described *its = p == rank_of(w) ? NULL : hpc_mail_noted(w->mail, p, &w->call);
        if (its != NULL) return fail_mismatch(w, p, its, "");
    }
    return HPC_OK;
}

/* ---- streams ---- */

static uint64_t available(const struct hpc_request *w, int part, const hpc_stream *s) {
    return part == HPC_FIRST ? s->nbytes : w->fold.done;
}

/* Sends the next letter of a stream, if it is complete. Returns HPC_IN_PROGRESS if it is not. */
static int send_part(struct hpc_request *w, int peer, int part) {
    hpc_stream *s = &w->out[part][peer];
    const uint64_t left = s->nbytes - s->done, n = left < w->mail->room ? left : w->mail->room;
    if (!s->open || available(w, part, s) < s->done + n) return HPC_IN_PROGRESS;
    hpc_letter_head head = {.call = w->call, .stream = s->nbytes, .nbytes = (uint32_t)n, .part = (uint32_t)part};
    const int status = hpc_mail_send(w->mail, peer, &head, s->at + s->done);
    if (status != HPC_OK) return status;
    s->done += n;
    s->open = s->done < s->nbytes;
    return HPC_OK;
}

/* Sends the letters that the peer has room for. A result goes before the next letter of a first stream, as its receiver
 * can take it at once. */
static int send_to(struct hpc_request *w, int peer, int *moved) {
    int status = HPC_OK;
    while (status == HPC_OK && (w->out[HPC_FIRST][peer].open || w->out[HPC_SECOND][peer].open) &&
           hpc_mail_has_room(w->mail, peer)) {
        status = send_part(w, peer, HPC_SECOND);
        if (status == HPC_IN_PROGRESS) status = send_part(w, peer, HPC_FIRST);
        *moved |= status == HPC_OK;
    }
    return status == HPC_IN_PROGRESS ? HPC_OK : status;
}

static int take(struct hpc_request *w, int peer, hpc_stream *s, uint64_t nbytes) {
    s->done += nbytes;
    s->open = s->done < s->nbytes;
    return hpc_mail_take(w->mail, peer);
}

/* Takes the letters of the peer, up to one that is to be folded. */
static int take_from(struct hpc_request *w, int peer, int *moved) {
    const hpc_letter_head *head;
    while ((head = hpc_mail_next(w->mail, peer)) != NULL) {
        const int awaited = w->in[HPC_FIRST][peer].open || w->in[HPC_SECOND][peer].open;
        int status = check_letter(w, peer, head, awaited);
        if (status != HPC_OK) return status == HPC_IN_PROGRESS ? HPC_OK : status;
        hpc_stream *s = &w->in[head->part < HPC_PARTS ? head->part : HPC_FIRST][peer];
        status = check_stream(w, peer, head, s);
        if (status != HPC_OK || s->folds) return status;
        if (head->nbytes > 0) memcpy(s->at + s->done, hpc_letter_bytes(head), head->nbytes);
        status = take(w, peer, s, head->nbytes);
        if (status != HPC_OK) return status;
        *moved = 1;
    }
    return HPC_OK;
}

/* ---- the fold ---- */

/* Returns whether n more bytes of the fold may be written. */
static int may_overwrite(const struct hpc_request *w, uint64_t n) {
    for (int p = 0; p < size_of(w) && w->fold.after_sends; p++)
        if (w->out[HPC_FIRST][p].open && w->out[HPC_FIRST][p].done < w->fold.done + n) return 0;
    return 1;
}

/* Lists the elements of the next letter of each rank, in the order of ranks. Returns HPC_IN_PROGRESS if one has not
 * come. */
static int gather_inputs(struct hpc_request *w, const void **in) {
    for (int p = 0; p < size_of(w); p++) {
        const hpc_stream *s = &w->in[HPC_FIRST][p];
        const hpc_letter_head *head = p == rank_of(w) ? NULL : hpc_mail_next(w->mail, p);
        in[p] = w->fold.mine + w->fold.done;
        if (p == rank_of(w)) continue;
        if (head == NULL || head->call.number > w->call.number || !s->open) return HPC_IN_PROGRESS;
        int status = check_letter(w, p, head, 1); /* it may have come after take_from looked */
        if (status == HPC_OK && head->part != HPC_FIRST) return HPC_IN_PROGRESS;
        if (status == HPC_OK) status = check_stream(w, p, head, s);
        if (status != HPC_OK) return status;
        in[p] = hpc_letter_bytes(head);
    }
    return HPC_OK;
}

static int fold_next(struct hpc_request *w, int *moved) {
    hpc_fold_part *f = &w->fold;
    const void *few[64], **in = size_of(w) <= 64 ? few : malloc((size_t)size_of(w) * sizeof *in);
    int status = HPC_OK;
    if (in == NULL) return hpc_fail(HPC_ERR_MEMORY, w->op, "%s: no memory for %d ranks", w->op, size_of(w));
    while (status == HPC_OK && f->combine != NULL) {
        status = gather_inputs(w, in);
        if (status != HPC_OK) break;
        const uint64_t left = f->nbytes - f->done, n = left < w->mail->room ? left : w->mail->room;
        if (!may_overwrite(w, n)) break;
        f->combine(f->out + f->done, in, size_of(w), n / w->element, size_of(w));
        f->done += n;
        *moved = 1;
        for (int p = 0; p < size_of(w) && status == HPC_OK; p++)
            if (p != rank_of(w)) status = take(w, p, &w->in[HPC_FIRST][p], n);
        if (f->done == f->nbytes) f->combine = NULL; /* it is over */
    }
    if (in != few) free(in);
    return status == HPC_IN_PROGRESS ? HPC_OK : status;
}

/* ---- one call ---- */

static int is_complete(const struct hpc_request *w) {
    for (int p = 0; p < size_of(w); p++) {
        if (!is_over(&w->out[HPC_FIRST][p]) || !is_over(&w->out[HPC_SECOND][p])) return 0;
        if (!is_over(&w->in[HPC_FIRST][p]) || !is_over(&w->in[HPC_SECOND][p])) return 0;
    }
    return w->fold.combine == NULL;
}

static int go_on(struct hpc_request *w) {
    const int size = size_of(w), me = rank_of(w);
    int status = HPC_OK, moved = 1;
    if (size == 1 && w->fold.combine != NULL) {
        const void *mine = w->fold.mine;
        w->fold.combine(w->fold.out, &mine, 1, w->fold.nbytes / w->element, 1);
        w->fold.combine = NULL;
    }
    while (moved && status == HPC_OK) {
        moved = 0;
        for (int i = 1; i < size && status == HPC_OK; i++) status = send_to(w, (me + i) % size, &moved);
        for (int i = 1; i < size && status == HPC_OK; i++) status = take_from(w, (me + size - i) % size, &moved);
        if (status == HPC_OK) status = fold_next(w, &moved);
    }
    if (status != HPC_OK) return status;
    if (is_complete(w)) return HPC_OK;
    status = check_notes(w);
    return status == HPC_OK ? HPC_IN_PROGRESS : status;
}

/* Records a request's end. Its sentence is kept, because others may fail before it is asked for. */
static void end(struct hpc_request *w, int status, const char *why) {
    w->status = status;
    if (status < 0) snprintf(w->why, sizeof w->why, "%s", why);
}

static int has_lost_a_rank(const hpc_mail *m) {
    const hpc_group *g = &m->context->group;
    for (int r = 0; r < g->size && atomic_load(&g->departures) > 0; r++)
        if (hpc_group_has_lost(g, r)) return 1;
    return 0;
}

/* Goes on with the first calls that are not over. After a failure no call goes on: those behind it fail too, unless a
 * rank is lost, which their waits tell. */
static void go_on_all(hpc_mail *m) {
    while (m->first != NULL) {
        struct hpc_request *w = m->first;
        if (m->broken[0] != 0 && has_lost_a_rank(m)) return;
        const int status = m->broken[0] != 0 ? HPC_ERR_CONFIG : go_on(w);
        if (status == HPC_IN_PROGRESS) return;
        end(w, status, m->broken[0] != 0 ? m->broken : hpc_last_error()->message);
        m->first = w->next;
        if (m->first == NULL) m->last = &m->first;
        if (status < 0 && m->broken[0] == 0) snprintf(m->broken, sizeof m->broken, "%s", w->why);
    }
}

static void remove_work(struct hpc_request *w) {
    hpc_mail *m = w->mail;
    for (struct hpc_request **at = &m->first; *at != NULL; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    for (m->last = &m->first; *m->last != NULL;) m->last = &(*m->last)->next;
}

/* ---- waits ---- */

static int is_done(void *arg) {
    struct hpc_request *w = arg;
    if (w->status == HPC_IN_PROGRESS) go_on_all(w->mail);
    return w->status != HPC_IN_PROGRESS;
}

/* The first call holds up the others. If letters have come that it can take, it waits for itself, and for no rank that
 * has left meanwhile. */
static int waits_for(void *arg, int *ranks) {
    struct hpc_request *w = ((struct hpc_request *)arg)->mail->first;
    int n = 0;
    if (w == NULL) return 0;
    for (int p = 0; p < size_of(w); p++) {
        const int sends = w->out[HPC_FIRST][p].open || (w->out[HPC_SECOND][p].open && w->fold.combine == NULL);
        const int comes = (w->in[HPC_FIRST][p].open || w->in[HPC_SECOND][p].open) && hpc_mail_next(w->mail, p) == NULL;
        if (p != rank_of(w) && (comes || (sends && !hpc_mail_has_room(w->mail, p)))) ranks[n++] = p;
    }
    if (n == 0) ranks[n++] = rank_of(w);
    return n;
}

static double leave_notes(void *arg) {
    struct hpc_request *w = ((struct hpc_request *)arg)->mail->first;
    const int muted = hpc_mute_errors(1);
    for (int p = 0; w != NULL && p < size_of(w); p++)
        if (p != rank_of(w)) hpc_mail_note(w->mail, p, &w->call);
    hpc_mute_errors(muted);
    return NOTE_SECONDS;
}

/* Returns how an ended request has ended. */
static int tell(const struct hpc_request *w) {
    return w->status == HPC_OK ? HPC_OK : hpc_fail(w->status, w->op, "%s", w->why);
}

int hpc_request_wait(hpc_request *w, double timeout) {
    if (w == NULL) return hpc_fail(HPC_ERR_INVALID, "wait", "wait: request is NULL");
    if (w->status != HPC_IN_PROGRESS) return tell(w);
    const hpc_wait wait = {.op = w->op,
                           .ready = is_done,
                           .waiting_for = waits_for,
                           .arg = w,
                           .every = 1,
                           .later = leave_notes,
                           .after = NOTE_SECONDS};
    const int status = hpc_wait_for(&w->mail->context->group, &wait, timeout);
    return status != HPC_OK ? status : tell(w);
}

/* A rank that has departed sends nothing more, but its last letters may only now be looked at. */
static int fail_if_gone(struct hpc_request *w) {
    hpc_group *g = &w->mail->context->group;
    int status = hpc_group_usable(g, w->op), n = 0, *ranks;
    if (status != HPC_OK || atomic_load(&g->departures) == 0) return status;
    hpc_group_progress(g);
    if (is_done(w)) return HPC_OK;
    for (int r = 0; r < g->size && status == HPC_OK; r++)
        if (hpc_group_has_lost(g, r)) status = hpc_group_peer_present(g, r, w->op);
    ranks = status == HPC_OK ? malloc((size_t)g->size * sizeof *ranks) : NULL;
    if (ranks != NULL) n = waits_for(w, ranks);
    for (int i = 0; i < n && status == HPC_OK; i++)
        if (ranks[i] != g->rank) status = hpc_group_peer_present(g, ranks[i], w->op);
    free(ranks);
    return status;
}

int hpc_request_test(hpc_request *w) {
    if (w == NULL) return hpc_fail(HPC_ERR_INVALID, "test", "test: request is NULL");
    if (w->status != HPC_IN_PROGRESS) return tell(w);
    hpc_group_progress(&w->mail->context->group);
    if (is_done(w)) return tell(w);
    const int status = fail_if_gone(w);
    if (w->status != HPC_IN_PROGRESS) return tell(w);
    return status == HPC_OK ? HPC_IN_PROGRESS : status;
}

void hpc_request_free(hpc_request *w) {
    if (w == NULL) return;
    if (w->status == HPC_IN_PROGRESS) {
        remove_work(w);
        if (w->mail->broken[0] == 0)
            snprintf(w->mail->broken, sizeof w->mail->broken, "%s was given up before its end", w->op);
    }
    hpc_request_drop(w);
}

/* The context is freed. */
static void forget(hpc_mail *m) {
    for (struct hpc_request *w = m->first; w != NULL; w = w->next) {
        end(w, HPC_ERR_INVALID, "the context was freed before the call had ended");
        w->mail = NULL;
    }
}

/* ---- calls ---- */

static int start(hpc_context *c, const hpc_collective_call *call, double deadline, hpc_request **work) {
    hpc_mail *m;
    int status = hpc_call_check(c, call);
    if (status != HPC_OK) return status;
    const char *op = hpc_call_name(call->what);
    if (c->mail == NULL) {
        status = hpc_mail_open(c, op, deadline, &m);
        if (status != HPC_OK) return status;
        m->forget = forget;
        c->mail = m;
        c->mail_free = hpc_mail_free;
    }
    m = c->mail;
    if (m->broken[0] != 0)
        return hpc_fail(HPC_ERR_CONFIG, op, "rank %d: %s: no further collectives are possible: %s", c->group.rank, op,
                        m->broken);
    status = hpc_request_make(m, call, work);
    if (status != HPC_OK) return status;
    *m->last = *work;
    m->last = &(*work)->next;
    return HPC_OK;
}

int hpc_collective_start(hpc_context *c, const hpc_collective_call *call, hpc_request **work) {
    static const char op[] = "collective";
    if (work == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: work is NULL", op);
    *work = NULL;
    int status = hpc_context_ready(c, op);
    if (status == HPC_OK) status = start(c, call, hpc_deadline(&c->group, c->group.init_timeout), work);
    if (status == HPC_OK) go_on_all((*work)->mail);
    return status;
}

int hpc_collective_run(hpc_context *c, const hpc_collective_call *call, double timeout) {
    hpc_request *w = NULL;
    int status = hpc_context_ready(c, "collective");
    if (status != HPC_OK) return status;
    const double deadline = hpc_deadline(&c->group, timeout);
    status = start(c, call, deadline, &w);
    if (status == HPC_OK) status = hpc_request_wait(w, hpc_left(deadline));
    hpc_request_free(w);
    return status;
}
