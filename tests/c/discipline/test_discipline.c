/* A discipline of one's own: this program has a table with one more row, "every other step", and hpc_discipline_of
 * is its own. docs/architecture.md shows this file. */
#include "discipline/discipline.h"
#include "engine/owner/signals.h"
#include "engine/owner/row.h"
#include "engine/worker/send.h"
#include "exchange_plans.h"

enum { EVERY_OTHER = 100, STEPS = 6 };

/* ---- the discipline: owners fold the updates of two steps at once, and workers go on in between ---- */

static int check(const hpc_context *context, const hpc_exchange_config *config) {
    (void)context;
    if (config->plan->rows[0].depth == 2) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, "exchange", "exchange: every other step needs a plan of depth 2");
}

/* The inputs of both slots. */
static hpc_inputs both(hpc_core *core, const hpc_work *w) {
    hpc_inputs inputs = hpc_row_inputs(core, w, 0, -1);
    for (int e = 0; e < w->row->n_in; e++) {
        core->bases[inputs.n] = w->inputs[e].slots + w->inputs[e].stride;
        core->base_weights[inputs.n++] = w->weights[e];
    }
    return inputs;
}

static int row_came(hpc_core *core, hpc_work *w, int input, int slot) {
    hpc_share *share = w->share;
    const hpc_scheme *sc = core->scheme;
    if (!hpc_row_count(core, w, slot, input)) return 1;
    const hpc_inputs inputs = both(core, w);
    if (slot == 1 && hpc_row_work(core, w, &inputs) != 0) return 1;
    hpc_row_took(w, slot);
    if (--share->left > 0) return 1;
    share->left = share->n_rows;
    share->version++;
    for (int i = 0; i < share->n_members; i++)
        hpc_share_answer(core, share->members[i], hpc_signal_applied(sc, (int)(share - sc->layout.shares)),
                         share->version);
    return 1;
}

static int may_push(hpc_scheme *sc, int key, const char *op) {
    return hpc_push_after(sc, key, 2 * sc->keys[key].pushes, op);
}

static const hpc_discipline every_other = {
    .name = "every other step",
    .check = check,
    .gate = &(const hpc_gate){.row_came = row_came},
    .pace = &(const hpc_pace){.may_push = may_push},
};

const hpc_discipline *hpc_discipline_of(const hpc_exchange_config *config) {
    static const hpc_discipline *const disciplines[] = {[HPC_BSP] = &hpc_discipline_bsp, [EVERY_OTHER] = &every_other};
    const int known = config->consistency >= 0 && config->consistency <= EVERY_OTHER;
    return known ? disciplines[config->consistency] : NULL;
}

/* ---- tests ---- */

/* Parameters change with every second push, by what two steps of BSP would do. */
static void trains(rank *r) {
    job j;
    reference ref;
    hpc_exchange_config config;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    j.depth = 2;
    hpc_exchange_config_init(&config);
    config.consistency = EVERY_OTHER;
    config.progress = r->arg;
    CHECK_OK(job_create_with(r, &j, &config, -1, &e));
    reference_init(&ref, &j);
    for (int step = 0; step < STEPS; step++)
        for (int k = 0; k < j.n_keys; k++) {
            job_push_pull(r, &j, e, k, step);
            if (step % 2 == 1) reference_step(&ref, k), reference_step(&ref, k);
            reference_check(&ref, r, e, k);
        }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

/* Every rank refuses a configuration for which there is no discipline, or that its discipline's check refuses. */
static void refuses(rank *r) {
    job j;
    hpc_exchange_config config;
    hpc_exchange *e = NULL;
    job_init(&j, r);
    hpc_exchange_config_init(&config);
    config.consistency = EVERY_OTHER;
    CHECK_EQ(job_create_with(r, &j, &config, -1, &e), HPC_ERR_CONFIG);
    CHECK(strstr(hpc_last_error()->message, "depth 2") != NULL);
    config.consistency = EVERY_OTHER + 1;
    CHECK_EQ(job_create_with(r, &j, &config, -1, &e), HPC_ERR_INVALID);
    config.consistency = HPC_BSP; /* this table has none with a quorum: BSP must not wait for all in its place */
    config.quorum = 1;
    CHECK_EQ(job_create_with(r, &j, &config, -1, &e), HPC_ERR_UNSUPPORTED);
    CHECK(strstr(hpc_last_error()->message, "no discipline with a quorum") != NULL);
}

/* The others are as they were. */
static void others(rank *r) {
    job j;
    reference ref;
    hpc_exchange *e;
    job_init(&j, r);
    e = job_open(r, &j);
    reference_init(&ref, &j);
    for (int k = 0; k < j.n_keys; k++) {
        job_push_pull(r, &j, e, k, 0);
        reference_step(&ref, k);
        reference_check(&ref, r, e, k);
    }
    reference_free(&ref);
    CHECK_OK(hpc_exchange_close(e, -1));
    hpc_exchange_free(e);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "trains", .size = 3, .run = trains, .arg = HPC_PROGRESS_INLINE},
        {.name = "trains_thread", .size = 2, .run = trains, .arg = HPC_PROGRESS_THREAD},
        {.name = "refuses", .size = 2, .run = refuses, .where = RANKS_UNSEEDED},
        {.name = "others", .size = 2, .run = others, .where = RANKS_UNSEEDED},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
