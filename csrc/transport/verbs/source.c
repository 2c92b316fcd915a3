/* Sources of puts that lie in no window: they are copied into the link's stage, or registered for the one put.
 *
 * A registration is a system call that pins pages; up to some size a copy is cheaper. The stage is a ring,
 * registered at its first use. If it is full, the source is registered instead. Stage bytes and registration are
 * called a *loan*, returned when the write has completed. Writes of a queue pair complete in the order of their
 * posts, so stage bytes are returned in the order in which they were taken. All functions run under the link's
 * sending, except verbs_source_lend, which needs no lock. */
#define _GNU_SOURCE
#include "transport/verbs/parts.h"

#if defined(HPC_HAVE_VERBS)

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STAGE = 1 << 20, STAGED = 64 << 10 /* most bytes of one put */, ALIGNMENT = 64 };

int verbs_source_is_small(size_t nbytes) {
    return nbytes <= STAGED;
}

int verbs_source_lend(verbs_link *l, verbs_order *o, const char *op) {
    hpc_verbs *v = l->iface->verbs;
    const verbs_nic *nic = &v->nics->nics[l->iface->nic];
    verbs_loan *loan = malloc(sizeof *loan);
    struct ibv_mr *region = loan == NULL ? NULL : v->library->reg_mr(nic->pd, (void *)(uintptr_t)o->src, o->nbytes, 0);
    if (region == NULL) {
        int error = loan == NULL ? ENOMEM : errno;
        free(loan);
        return hpc_fail_transport(op, "verbs", l->peer, "rank %d: %s: %s cannot register %zu bytes of the source: %s%s",
                                  v->context->group.rank, op, nic->name, o->nbytes, strerror(error),
                                  error == ENOMEM ? "; raise ulimit -l, or put from a window's memory" : "");
    }
    *loan = (verbs_loan){.region = region};
    o->loan = loan;
    o->local_key = region->lkey;
    return HPC_OK;
}

static int open_stage(verbs_link *l) {
    const verbs_nic *nic = &l->iface->verbs->nics->nics[l->iface->nic];
    verbs_stage *s = &l->stage;
    if (s->tried) return s->region != NULL;
    s->tried = 1;
    s->memory = hpc_private_alloc(STAGE, nic->node);
    if (s->memory == NULL) return 0;
    madvise(s->memory, STAGE, MADV_DONTFORK); /* a fork must not move these pages away from the NIC by copy on write */
    s->region = l->iface->verbs->library->reg_mr(nic->pd, s->memory, STAGE, 0);
    return s->region != NULL;
}

int verbs_source_stage(verbs_link *l, verbs_order *o) {
    verbs_stage *s = &l->stage;
    verbs_loan *loan;
    if (!open_stage(l)) return 0;
    verbs_source_reclaim(l, atomic_load_explicit(&l->done, memory_order_acquire));
    size_t at = s->head % STAGE, bytes = (o->nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (at + bytes > STAGE) { /* does not fit before the ring's end: skip that rest */
        bytes += STAGE - at;
        at = 0;
    }
    if (s->head + bytes - s->tail > STAGE || (loan = malloc(sizeof *loan)) == NULL) return 0;
    memcpy(s->memory + at, o->src, o->nbytes);
    s->head += bytes;
    *loan = (verbs_loan){.staged = bytes};
    o->loan = loan;
    o->src = s->memory + at;
    o->local_key = s->region->lkey;
    return 1;
}

int verbs_source_asks(verbs_link *l, const verbs_loan *loan) {
    if (loan == NULL) return 0;
    if (loan->region != NULL) return 1;
    l->stage.unasked += loan->staged;
    if (l->stage.unasked < STAGE / 4) return 0;
    l->stage.unasked = 0;
    return 1;
}

void verbs_source_is_posted(verbs_link *l, verbs_order *o) {
    if (o->loan == NULL) return;
    atomic_store(&l->busy, 1); /* before the post, so that the thread that takes its completion calls go_on */
    o->loan->until = l->posted;
    *l->last_loan = o->loan;
    l->last_loan = &o->loan->next;
    o->loan = NULL;
}

void verbs_source_give_back(verbs_link *l, verbs_loan *loan) {
    if (loan == NULL) return;
    if (loan->region != NULL)
        l->iface->verbs->library->dereg_mr(loan->region);
    else
        l->stage.tail += loan->staged;
    free(loan);
}

void verbs_source_reclaim(verbs_link *l, uint64_t done) {
    while (l->loans != NULL && l->loans->until <= done) {
        verbs_loan *loan = l->loans;
        l->loans = loan->next;
        if (l->loans == NULL) l->last_loan = &l->loans;
        verbs_source_give_back(l, loan);
    }
}

void verbs_source_close(verbs_link *l) {
    verbs_source_reclaim(l, UINT64_MAX);
    if (l->stage.region != NULL) l->iface->verbs->library->dereg_mr(l->stage.region);
    hpc_private_free(l->stage.memory, STAGE);
}

#endif
