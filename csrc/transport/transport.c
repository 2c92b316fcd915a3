#include "transport/objects.h"

#include <stdio.h>
#include <string.h>

/* The transports of this build, best first. One for ranks of one process is used only when a rank asks for it by
 * name. */
static const hpc_transport *const transports[] = {
    // clang-format off
    &hpc_transport_shm,
    &hpc_transport_verbs,
    &hpc_transport_tcp,
    &hpc_transport_loop,
    // clang-format on
};
enum { TRANSPORTS = sizeof transports / sizeof transports[0] };

static int has_caps(const hpc_transport *t, unsigned with, unsigned without) {
    return (t->caps & with) == with && !(t->caps & without);
}

const char *hpc_transport_name(int i, unsigned with, unsigned without) {
    for (int k = 0; i >= 0 && k < TRANSPORTS; k++)
        if (has_caps(transports[k], with, without) && i-- == 0) return transports[k]->name;
    return NULL;
}

static const hpc_transport *by_name(const char *name, size_t length) {
    for (int i = 0; i < TRANSPORTS; i++)
        if (strlen(transports[i]->name) == length && memcmp(transports[i]->name, name, length) == 0)
            return transports[i];
    return NULL;
}

int hpc_transport_check(const char *names) {
    char known[128];
    size_t used = 0;
    for (const char *p = names; p != NULL; p = *p == ',' ? p + 1 : NULL) {
        size_t length = strcspn(p, ",");
        if (by_name(p, length) == NULL) {
            for (int i = 0; i < TRANSPORTS && used < sizeof known; i++)
                used +=
                    (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", transports[i]->name);
            return hpc_fail(HPC_ERR_CONFIG, "init", "init: there is no transport \"%.*s\"; this build has %s",
                            (int)length, p, known);
        }
        p += length;
    }
    return HPC_OK;
}

static int is_in(const char *names, const hpc_transport *transport) {
    if (names == NULL) return !(transport->caps & HPC_CAP_ONE_PROCESS);
    for (const char *p = names; p != NULL; p = *p == ',' ? p + 1 : NULL) {
        size_t length = strcspn(p, ",");
        if (by_name(p, length) == transport) return 1;
        p += length;
    }
    return 0;
}

/* Returns whether t connects the two ranks. If not, appends the reason to why, which has *used bytes already. */
static int reaches(const hpc_transport *t, const struct hpc_address *self, const struct hpc_address *peer, char *why,
                   size_t *used, size_t cap) {
    const char *reason = "";
    if (t->reaches(self, peer, &reason)) return 1;
    if (*used < cap)
        *used += (size_t)snprintf(why + *used, cap - *used, "%s%s: %s", *used > 0 ? "; " : "", t->name, reason);
    return 0;
}

const hpc_transport *hpc_transport_choose(const char *names, const struct hpc_address *self,
                                          const struct hpc_address *peer, char *why, size_t cap) {
    size_t used = 0;
    why[0] = 0;
    for (int i = 0; names == NULL && i < TRANSPORTS; i++)
        if (is_in(NULL, transports[i]) && reaches(transports[i], self, peer, why, &used, cap)) return transports[i];
    for (const char *p = names; p != NULL; p = *p == ',' ? p + 1 : NULL) {
        size_t length = strcspn(p, ",");
        const hpc_transport *t = by_name(p, length);
        if (t != NULL && reaches(t, self, peer, why, &used, cap)) return t;
        p += length;
    }
    return NULL;
}

const hpc_transport *hpc_transport_find(const char *names, unsigned with, unsigned without) {
    for (int i = 0; i < TRANSPORTS; i++)
        if (has_caps(transports[i], with, without) && is_in(names, transports[i])) return transports[i];
    return NULL;
}

const hpc_transport *hpc_transport_across_hosts(const char *names, const struct hpc_address *self,
                                                const struct hpc_address *peer) {
    const char *why;
    for (int i = 0; i < TRANSPORTS; i++) {
        const hpc_transport *t = transports[i];
        if (!(t->caps & HPC_CAP_ONE_HOST) && is_in(names, t) && t->reaches(self, peer, &why)) return t;
    }
    return NULL;
}

const hpc_transport *hpc_transport_to_self(const hpc_transport *chosen) {
    if (chosen->caps & HPC_CAP_ONE_HOST) return chosen;
    for (int i = 0; i < TRANSPORTS; i++)
        if (transports[i]->caps & HPC_CAP_PEER_VIEW) return transports[i];
    return NULL;
}

int hpc_transport_rails(const hpc_address *self, const hpc_address *peer, hpc_rail rails[HPC_RAILS], const char **why) {
    int routed = hpc_transport_find(hpc_transport_names(self), 0, HPC_CAP_ONE_HOST | HPC_CAP_NICS) == NULL;
    return hpc_match_rails(&self->devices, &peer->devices, routed, rails, why);
}

static const hpc_transport *with_nics(void) {
    for (int i = 0; i < TRANSPORTS; i++)
        if (transports[i]->nics_open != NULL) return transports[i];
    return NULL;
}

void hpc_nics_open(const char *names, hpc_nics **nics, hpc_device_address *address) {
    const hpc_transport *t = with_nics();
    *nics = NULL;
    *address = (hpc_device_address){.state = HPC_VERBS_NOT_BUILT};
    if (t != NULL) t->nics_open(names, nics, address);
}

void hpc_nics_close(hpc_nics *nics) {
    if (nics != NULL) with_nics()->nics_close(nics);
}

int hpc_nics_node(const hpc_nics *nics) {
    return nics == NULL ? -1 : with_nics()->nics_node(nics);
}

hpc_reactor *hpc_transport_reactor(hpc_context *c) {
    if (c->reactor == NULL) c->reactor = hpc_reactor_open(&c->group, c->all_remote);
    return c->reactor;
}
