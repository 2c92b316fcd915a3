/* An exchange makes, leaves and calls its schemes together. */
#include "exchange/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "discipline/config.h"
#include "discipline/discipline.h"
#include "engine/open.h"

static const char op_create[] = "exchange";

void hpc_exchange_config_init(hpc_exchange_config *config) {
    *config = (hpc_exchange_config){.size = sizeof *config, .grace = -1};
}

/* ---- create ---- */

static int check_configs(const hpc_context *c, const hpc_exchange_config *f) {
    int status = hpc_scheme_check_config(c, f);
    for (const hpc_exchange_config *g = f == NULL ? NULL : f->next; g != NULL && status == HPC_OK; g = g->next)
        status = hpc_scheme_check_config(c, g);
    return status;
}

static int check_names(const hpc_exchange *ex) {
    for (int a = 0; a < ex->n_keys; a++)
        for (int b = ex->keys[a].scheme->first_key + ex->keys[a].scheme->plan->n_keys; b < ex->n_keys; b++) {
            const char *name = ex->keys[a].scheme->plan->keys[ex->keys[a].key].name;
            if (strcmp(name, ex->keys[b].scheme->plan->keys[ex->keys[b].key].name) == 0)
                return hpc_fail(HPC_ERR_INVALID, op_create, "exchange: key %s is in two configurations", name);
        }
    return HPC_OK;
}

static hpc_exchange *no_memory(hpc_exchange *ex) {
    hpc_fail(HPC_ERR_MEMORY, op_create, "exchange: no memory for a handle");
    hpc_exchange_free(ex);
    return NULL;
}

/* Makes the schemes, in a ring; each has only a copy of its plan. */
static hpc_exchange *new_exchange(hpc_context *c, const hpc_exchange_config *f) {
    hpc_exchange *ex = calloc(1, sizeof *ex);
    int n = 0;
    if (ex != NULL) hpc_calls_read(ex->calls);
    for (const hpc_exchange_config *g = f; g != NULL; g = g->next) n++;
    if (ex == NULL || (ex->schemes = calloc((size_t)n, sizeof(hpc_scheme *))) == NULL) return no_memory(ex);
    for (const hpc_exchange_config *g = f; g != NULL; g = g->next) {
        hpc_scheme *sc = hpc_scheme_new(c, g, hpc_discipline_of(g), op_create);
        if (sc == NULL) return no_memory(ex);
        sc->facts = hpc_config_facts(g);
        sc->first_key = ex->n_keys;
        ex->n_keys += sc->plan->n_keys;
        ex->n_rows += sc->plan->n_rows;
        ex->schemes[ex->n_schemes++] = sc;
    }
    if ((ex->keys = calloc((size_t)ex->n_keys, sizeof *ex->keys)) == NULL) return no_memory(ex);
    for (int i = 0; i < n; i++) {
        ex->schemes[i]->next = ex->schemes[(i + 1) % n];
        for (int k = 0; k < ex->schemes[i]->plan->n_keys; k++)
            ex->keys[ex->schemes[i]->first_key + k] = (hpc_key_at){ex->schemes[i], k};
    }
    return ex;
}

static int open_scheme(hpc_scheme *sc, const hpc_exchange_config *f, const hpc_exchange *ex, double deadline) {
    int status = hpc_scheme_prepare(sc, f);
    if (status == HPC_OK) status = hpc_held_open(sc, op_create);
    status = hpc_context_agree(sc->context, op_create, status, deadline);
    if (status == HPC_OK) status = hpc_scheme_agree(sc, f, ex, deadline);
    return status == HPC_OK ? hpc_scheme_open(sc, f, deadline) : status;
}

int hpc_exchange_create(hpc_context *c, const hpc_exchange_config *f, double timeout, hpc_exchange **exchange) {
    int status = hpc_context_ready(c, op_create);
    if (status != HPC_OK) return status;
    double deadline = hpc_deadline(&c->group, timeout);
    if (f == NULL && exchange == NULL) return hpc_context_agree(c, op_create, HPC_OK, deadline);
    status =
        exchange == NULL ? hpc_fail(HPC_ERR_INVALID, op_create, "exchange: exchange is NULL") : check_configs(c, f);
    hpc_exchange *ex = NULL;
    if (exchange != NULL) *exchange = NULL;
    if (status == HPC_OK && (ex = new_exchange(c, f)) == NULL) status = HPC_ERR_MEMORY;
    if (status == HPC_OK) status = check_names(ex);
    status = hpc_context_agree(c, op_create, status, deadline);
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++, f = f->next)
        status = open_scheme(ex->schemes[i], f, ex, deadline);
    if (status == HPC_OK && hpc_follows(ex))
        status = hpc_context_agree(c, op_create, hpc_follow_open(ex, op_create), deadline);
    if (status != HPC_OK) {
        hpc_exchange_free(ex);
        return status;
    }
    *exchange = ex;
    return HPC_OK;
}

/* ---- the whole exchange ---- */

static hpc_timeline *timeline_of(const hpc_exchange *ex) {
    return ex == NULL ? NULL : ex->schemes[0]->context->group.timeline;
}

static double deadline_of(const hpc_exchange *ex, double timeout) {
    return hpc_deadline(&ex->schemes[0]->context->group, timeout);
}

int hpc_exchange_settle(hpc_exchange *ex, double timeout) {
    static const char op[] = "settle";
    int status = ex == NULL ? hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op) : HPC_OK;
    double deadline = status == HPC_OK ? deadline_of(ex, timeout) : 0;
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++)
        status = hpc_worker_settle(ex->schemes[i], deadline, op);
    return status;
}

int hpc_exchange_together(hpc_exchange *ex, int together) {
    static const char op[] = "together";
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    if (!together) hpc_worker_uncork(ex->schemes[0]);
    for (int i = 0; together && i < ex->n_schemes; i++) {
        hpc_scheme *sc = ex->schemes[i];
        int status = hpc_scheme_check(sc, op);
        if (status != HPC_OK) return status;
        for (int lane = 0; lane < sc->n_lanes; lane++) hpc_lane_cork(sc->in_lanes[lane]);
        sc->corked = 1;
    }
    return HPC_OK;
}

int hpc_exchange_progress(hpc_exchange *ex) {
    static const char op[] = "progress";
    int status = ex == NULL ? hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op) : HPC_OK;
    if (status == HPC_OK) hpc_worker_uncork(ex->schemes[0]);
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++) {
        hpc_scheme *sc = ex->schemes[i];
        status = hpc_scheme_check(sc, op);
        if (status == HPC_OK && i == 0) hpc_group_progress(&sc->context->group);
        if (status == HPC_OK) status = hpc_note(sc, -1, HPC_ON_LOOK, NULL, op);
        if (status == HPC_OK) status = hpc_scheme_check(sc, op);
    }
    return status;
}

int hpc_exchange_publish(hpc_exchange *ex, double timeout) {
    static const char op[] = "publish";
    int status = ex == NULL ? hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op) : HPC_OK;
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++) status = hpc_scheme_check(ex->schemes[i], op);
    if (status != HPC_OK) return status;
    double deadline = deadline_of(ex, timeout);
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++) status = hpc_worker_check_idle(ex->schemes[i], op);
    status = hpc_context_agree(ex->schemes[0]->context, op, status, deadline);
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++)
        status = hpc_scheme_send_params(ex->schemes[i], op, deadline);
    return status;
}

int hpc_exchange_under_way(hpc_exchange *ex) {
    for (int i = 0; ex != NULL && i < ex->n_schemes; i++) {
        int key = hpc_scheme_under_way(ex->schemes[i]);
        if (key >= 0) return ex->schemes[i]->first_key + key;
    }
    return -1;
}

int hpc_exchange_get_folded(hpc_exchange *ex, int rank, uint64_t *pushes) {
    static const char op[] = "get_folded";
    if (ex == NULL || pushes == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange or pushes is NULL", op);
    *pushes = 0;
    int status = HPC_OK;
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++)
        status = hpc_scheme_folded(ex->schemes[i], rank, pushes);
    return status;
}

/* ---- close ---- */

int hpc_exchange_serve(hpc_exchange *ex, double timeout) {
    static const char op[] = "serve";
    HPC_SPAN(timeline_of(ex), op, NULL);
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    double deadline = deadline_of(ex, timeout);
    int status = HPC_OK;
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++) {
        const hpc_scheme *sc = ex->schemes[i];
        status = hpc_scheme_check(ex->schemes[i], op);
        if (status == HPC_OK && hpc_scheme_works(sc) && !sc->life.closed)
            status =
                hpc_fail(HPC_ERR_INVALID, op,
                         "%s: rank %d is a worker, which serves the others in its own calls and in close; serve is "
                         "for ranks that only serve",
                         op, sc->context->group.rank);
    }
    for (int i = 0; status == HPC_OK && i < ex->n_schemes; i++)
        status = hpc_scheme_serve(ex->schemes[i], op, hpc_left(deadline));
    return status;
}

/* Closes all schemes (hpc_scheme_leave) before it serves rows for any, since other ranks may wait for each scheme's
 * close. Returns the first failure. After a timeout the next call continues. */
int hpc_exchange_close(hpc_exchange *ex, double timeout) {
    static const char op[] = "close";
    HPC_SPAN(timeline_of(ex), op, NULL);
    if (ex == NULL) return hpc_fail(HPC_ERR_INVALID, op, "%s: exchange is NULL", op);
    double deadline = deadline_of(ex, timeout);
    int status = HPC_OK;
    hpc_follow_stop(ex);
    for (int i = 0; i < ex->n_schemes; i++) {
        int left = ex->schemes[i]->life.served ? HPC_OK : hpc_scheme_leave(ex->schemes[i], op, deadline);
        if (left == HPC_ERR_TIMEOUT) return left;
        if (status == HPC_OK) status = left;
    }
    for (int i = 0; i < ex->n_schemes; i++) {
        hpc_scheme *sc = ex->schemes[i];
        if (status == HPC_OK && sc->life.serves && !sc->life.served)
            status = hpc_scheme_serve(sc, op, hpc_left(deadline));
        sc->life.served |= status != HPC_ERR_TIMEOUT;
    }
    return status;
}

/* Stops the cores of all schemes first, because a task of one may read another's keys. */
void hpc_exchange_free(hpc_exchange *ex) {
    if (ex == NULL) return;
    if (ex->n_schemes > 0 && !hpc_group_is_mine(&ex->schemes[0]->context->group)) return;
    int muted = hpc_mute_errors(1);
    hpc_follow_stop(ex);
    if (ex->n_schemes > 0) hpc_cores_stop(ex->schemes[0]);
    for (int i = 0; i < ex->n_schemes; i++) hpc_scheme_free(ex->schemes[i]);
    hpc_mute_errors(muted);
    free(ex->schemes);
    free(ex->keys);
    free(ex);
}
