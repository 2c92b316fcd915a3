/* Contexts of one origin are a family. Its root is the first context, which every heir holds. The root's control
 * channel outlives it while there are heirs, which shrink by it, and says goodbye when the last of the family is
 * closed. An abort is the whole family's: this rank has failed, and all its peers in any of the contexts are told.
 *
 * Threads: one may abort a context (a scheme's does) while others shrink, close or free other contexts of the family.
 * The root's mutex guards open and the list of heirs; nothing waits under it. A context in the list still has its
 * handle: a close takes the context out before the handle goes. An abort holds each context before it closes it,
 * because any thread that finds a context closed may free it. What takes time comes after the mutex. An heir gets into
 * the list only while old is open, so none outlives an abort. */
#include "context/context.h"

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

/* The other heirs, held and closed: this rank has failed. */
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

void hpc_family_leave(hpc_context *c, const char *why) {
    hpc_context *root = c->root, *others = NULL, *next;
    if (c != root) hpc_control_stop(c->control, why);
    pthread_mutex_lock(&root->family);
    if (why != NULL)
        others = close_others(c);
    else
        remove_heir(c);
    int last = why != NULL || --root->open == 0; /* an abort is the last word, and does not count itself out */
    pthread_mutex_unlock(&root->family);
    hpc_bell_ring(root->group.bell); /* where a shrink waits */
    for (; others != NULL; others = next) {
        next = others->next_heir;
        hpc_bell_ring(others->group.bell);
        hpc_control_stop(others->control, why);
        hpc_context_release(others);
    }
    if (last) hpc_control_stop(root->control, why);
}
