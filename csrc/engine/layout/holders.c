/* Holders: the holder of a worker is the rank whose part has the parameters that the worker reads. Without
 * shared_params it is the worker itself. With shared_params all workers of a host read the part of the host's lowest
 * worker, and one write there serves all.
 *
 * Each element of a shared copy has one writer, which must be a rank of the same host: the row's owner, or a relay. The
 * writer uses plain stores, before it answers the host's workers; each answer is a release that its worker acquires. A
 * put from another host would come by one connection, the answers to the host's other workers by other connections, and
 * nothing would order them. So such a put is allowed only for a host with one worker, whose answer follows by the same
 * lane.
 *
 * No worker reads the copy while it is written: the writer writes only when all workers of the host have pushed. It
 * waits for all of them, since a rank that gets a row's result must push to the row (check_outputs in open.c). */
#include "engine/layout/holders.h"

#include <stdlib.h>

#include "engine/layout/stages.h"

static int one_host(const hpc_scheme *sc, int a, int b) {
    return hpc_same_host(&sc->context->addresses[a], &sc->context->addresses[b]);
}

/* A rank that only serves gets its host's holder too, if the host has one, since its rows may keep their masters in the
 * holder's part. */
int hpc_holders_find(hpc_scheme *sc, const char *op) {
    const int size = sc->context->group.size;
    const hpc_place *places = sc->layout.places;
    sc->layout.holders = malloc((size_t)size * sizeof *sc->layout.holders);
    if (sc->layout.holders == NULL) return hpc_fail(HPC_ERR_MEMORY, op, "%s: no memory for %d ranks", op, size);
    for (int r = 0; r < size; r++) {
        int holder = r;
        if (sc->asked.shared_params)
            for (holder = 0; holder < size; holder++)
                if (places[holder].worker && one_host(sc, r, holder)) break;
        sc->layout.holders[r] = holder < size && places[holder].worker ? holder : -1;
    }
    return HPC_OK;
}

int hpc_row_home(const hpc_scheme *sc, const hpc_row *row) {
    const int holder = sc->layout.holders[row->owner];
    return holder >= 0 && hpc_row_has_output(row, holder) ? holder : -1;
}

/* ---- checks ---- */

static int check_maps(const hpc_scheme *sc, const char *op) {
    const hpc_context *c = sc->context;
    for (int r = 0; r < c->group.size; r++)
        if (one_host(sc, r, c->group.rank) && !hpc_is_mapped(sc, r))
            return hpc_fail(HPC_ERR_UNSUPPORTED, op,
                            "%s: shared_params: rank %d cannot map the memory of rank %d of the same host, by "
                            "transport %s",
                            op, c->group.rank, r, c->transports[r]->name);
    return HPC_OK;
}

/* Returns the next worker after rank that reads the same copy, or -1. */
static int next_reader(const hpc_scheme *sc, int rank) {
    for (int r = rank + 1; r < sc->context->group.size; r++)
        if (sc->layout.places[r].worker && sc->layout.holders[r] == sc->layout.holders[rank]) return r;
    return -1;
}

/* Checks that row i sends parameters to all workers that read the holder's copy or to none, and from the same host. */
static int check_readers(const hpc_scheme *sc, int i, int holder, const char *op) {
    const hpc_row *row = &sc->plan->rows[i];
    const int gets = hpc_row_has_output(row, holder), other = next_reader(sc, holder);
    for (int r = other; r >= 0; r = next_reader(sc, r))
        if (hpc_row_has_output(row, r) != gets)
            return hpc_fail(HPC_ERR_CONFIG, op,
                            "%s: shared_params: row %d sends parameters to rank %d and not to rank %d, which reads the "
                            "same copy: a copy has one writer, which sends to all workers of its host",
                            op, i, gets ? holder : r, gets ? r : holder);
    if (!gets || other < 0 || one_host(sc, row->owner, holder)) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, op,
                    "%s: shared_params: row %d of rank %d sends parameters to ranks %d and %d, which read one copy on "
                    "another host: a rank of that host must write it, as in a Hierarchy or by topology \"auto\"",
                    op, i, row->owner, holder, other);
}

/* Returns whether some row sends a key's parameters to rank. first is the key's first row; a key's rows are adjacent.
 */
static int is_sent(const hpc_scheme *sc, int first, int rank) {
    const hpc_plan *plan = sc->plan;
    for (int i = first; i < plan->n_rows && plan->rows[i].key == plan->rows[first].key; i++)
        if (plan->rows[i].action != HPC_FORWARD && hpc_row_has_output(&plan->rows[i], rank)) return 1;
    return 0;
}

int hpc_holders_check(const hpc_scheme *sc, const char *op) {
    const hpc_plan *plan = sc->plan;
    if (!sc->asked.shared_params) return HPC_OK;
    int status = check_maps(sc, op);
    for (int i = 0; i < plan->n_rows && status == HPC_OK; i++) {
        const hpc_row *row = &plan->rows[i], *before = i > 0 ? row - 1 : NULL;
        const int first = before == NULL || before->key != row->key;
        const int known = !first && before->owner == row->owner && before->out == row->out;
        for (int h = 0; h < sc->context->group.size && status == HPC_OK; h++) {
            if (sc->layout.holders[h] != h) continue;
            if (row->action != HPC_FORWARD && !known) status = check_readers(sc, i, h, op);
            if (status != HPC_OK || !first || is_sent(sc, i, h)) continue;
            status = hpc_fail(HPC_ERR_CONFIG, op,
                              "%s: shared_params needs parameters of every key on each worker; no row sends rank %d "
                              "those of key '%.100s'",
                              op, h, plan->keys[row->key].name);
        }
    }
    return status;
}
