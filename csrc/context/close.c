/* How a context ends, alone or with its family. */
#include <stdio.h>
#include <string.h>

#include "context/mail.h"
#include "probe/probe.h"

/* ---- families ----
 *
 * A family is a first context, its root, and its heirs, which shrinks made from it. Every heir holds the root. The
 * root's control channel stays open while there are heirs, because they shrink over it; the channel tells the peers
 * that this rank leaves when the last context of the family is closed. An abort ends the whole family: this rank has
 * failed, and all its peers in any of the contexts are told.
 *
 * Threads: one thread may abort a context (a scheme's thread does) while others shrink, close or free other contexts of
 * the family. The root's mutex guards open and the list of heirs, and nothing waits while it is held. A context in the
 * list has not lost its handle yet, because a close takes the context out of the list first. An abort holds each
 * context before it closes it, because any thread that finds a context closed may free it. Slow work is done after the
 * mutex is released. An heir is added only while old is open, so no heir outlives an abort. */

int hpc_family_adopt(hpc_context *old, hpc_context *heir, int *first, const char *op) {
    hpc_context *root = old->root;
    pthread_mutex_lock(&root->family);
    int status = hpc_group_usable(&old->group, op);
    if (status == HPC_OK) {
        heir->first = first;
        heir->root = hpc_context_retain(root);
        heir->next_heir = root->heirs;
        root->heirs = heir;
        root->open++;
    }
    pthread_mutex_unlock(&root->family);
    return status;
}

/* Closes the other contexts of the family because this rank has failed. Returns the heirs among them, with a reference
 * to each. */
static hpc_context *close_others(hpc_context *c) {
    hpc_context *root = c->root, *others = NULL, *next;
    for (hpc_context *heir = root->heirs; heir != NULL; heir = next) {
        next = heir->next_heir;
        if (heir == c) continue;
        heir->next_heir = others;
        others = hpc_context_retain(heir);
        atomic_store(&heir->group.closed, 1);
    }
    root->heirs = NULL;
    atomic_store(&root->group.closed, 1);
    return others;
}

static void remove_heir(hpc_context *c) {
    for (hpc_context **at = &c->root->heirs; *at != NULL; at = &(*at)->next_heir)
        if (*at == c) {
            *at = c->next_heir;
            return;
        }
}

/* Stops the control channel of a context that has closed (why NULL) or failed (why: the reason), and the channels of
 * the contexts that end with it. Called once. */
static void leave_family(hpc_context *c, const char *why) {
    hpc_context *root = c->root, *others = NULL, *next;
    if (c != root) hpc_control_stop(c->control, why);
    pthread_mutex_lock(&root->family);
    if (why != NULL)
        others = close_others(c);
    else
        remove_heir(c);
    int last = why != NULL || --root->open == 0; /* an abort stops the root's channel, and does not count open down */
    pthread_mutex_unlock(&root->family);
    hpc_bell_ring(root->group.bell); /* a shrink may wait there */
    for (; others != NULL; others = next) {
        next = others->next_heir;
        hpc_bell_ring(others->group.bell);
        hpc_control_stop(others->control, why);
        hpc_context_release(others);
    }
    if (last) hpc_control_stop(root->control, why);
}

/* ---- the end of one context ---- */

enum { LEFT = 1, LEAVES_LATE = 2 }; /* values of group.closed */

/* Asks the connecting thread, if there is one, to end the context: it may be using descriptors that the end closes.
 * Its waits end at once. Returns whether there is one. */
static int leaves_late(hpc_context *c, const char *why) {
    pthread_mutex_lock(&c->root->family);
    const int runs = c->connect_runs;
    if (runs && !c->ends_late) {
        c->ends_late = 1;
        snprintf(c->late_why, sizeof c->late_why, "%s", why == NULL ? "" : why);
        atomic_store(&c->group.closed, LEAVES_LATE);
        hpc_bell_ring(c->group.bell);
    }
    pthread_mutex_unlock(&c->root->family);
    return runs;
}

int hpc_context_revoke(hpc_context *c) {
    int status = hpc_context_ready(c, "revoke");
    if (status != HPC_OK) return status;
    hpc_group_revoke(&c->group);
    hpc_control_revoke(c->control);
    return HPC_OK;
}

/* Returns 1 if nothing remains to be sent, else 0. After a revoke the other ranks take nothing, so it returns 1. */
static int is_settled(void *arg) {
    hpc_context *c = arg;
    int left = 0;
    if (atomic_load(&c->group.revoked)) return 1;
    for (int i = 0; c->used[i] != NULL; i++)
        if (c->used[i]->settle != NULL) left += c->used[i]->settle(c);
    return left == 0;
}

static int anybody(void *arg, int *ranks) {
    return hpc_group_others(&((hpc_context *)arg)->group, ranks);
}

static void end_timeline(hpc_context *c) {
    int error = c->group.timeline == NULL ? 0 : hpc_timeline_close(c->group.timeline);
    if (error != 0) hpc_group_note(&c->group, HPC_NOTE_DEGRADED, "the timeline is incomplete: %s", strerror(error));
}

static int leave(hpc_context *c, const char *why) {
    if (c == NULL || !hpc_group_is_mine(&c->group) || leaves_late(c, why)) return HPC_OK;
    hpc_span span = hpc_span_begin(c->group.timeline, why == NULL ? "close" : "abort", NULL);
    hpc_blame_freeze(&c->group.blame);
    /* Deliver puts before the others hear that this rank is gone. A failed rank does not wait for that. */
    if (c->connected && !atomic_load(&c->group.closed)) {
        const hpc_wait wait = {"close", is_settled, anybody, c, .every = 0};
        double deadline = hpc_deadline(&c->group, why == NULL ? c->group.timeout : 0);
        int muted = hpc_mute_errors(1);
        atomic_store_explicit(&c->leaving, 1, memory_order_relaxed);
        hpc_lane_flush(c->lane, hpc_left(deadline));
        hpc_wait_for(&c->group, &wait, hpc_left(deadline));
        hpc_mute_errors(muted);
    }
    if (atomic_exchange(&c->group.closed, LEFT) == LEFT) return HPC_OK;
    hpc_bell_ring(c->group.bell); /* ends this rank's own waits too */
    hpc_probes_stop(c);
    leave_family(c, why);
    hpc_span_end(&span);
    end_timeline(c);
    return HPC_OK;
}

void hpc_context_begin_connect(hpc_context *c) {
    pthread_mutex_lock(&c->root->family);
    c->connect_runs = 1;
    pthread_mutex_unlock(&c->root->family);
    hpc_net_heed(&c->group.closed);
}

int hpc_context_end_connect(hpc_context *c, int status) {
    hpc_net_heed(NULL);
    pthread_mutex_lock(&c->root->family);
    c->connect_runs = 0;
    const int late = c->ends_late;
    pthread_mutex_unlock(&c->root->family);
    if (!late) return status;
    leave(c, c->late_why[0] == 0 ? NULL : c->late_why);
    return hpc_fail(HPC_ERR_INVALID, "init", "init: the context is closed");
}

int hpc_context_close(hpc_context *context) {
    return leave(context, NULL);
}

int hpc_context_abort(hpc_context *context, const char *why) {
    return leave(context, why != NULL && why[0] != 0 ? why : "it gave up");
}

void hpc_context_free(hpc_context *context) {
    if (context == NULL) return;
    hpc_context_close(context);
    if (hpc_group_is_mine(&context->group)) { /* in a forked child a thread that is not there may hold them */
        if (context->calls != NULL) context->calls_free(context->calls);
        context->calls = NULL;
        hpc_mail_free(context);
    }
    hpc_context_release(context);
}
