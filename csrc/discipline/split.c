/* BSP in two calls: fold and apply (hpc_exchange_config.split).
 *
 * fold is a push, which is answered when every worker's update is there. apply is a pull that brings the arguments of
 * the rule and a factor of the mean; when every worker has called it, the rule runs and the parameters go out. skip
 * drops the updates; squares answers with the sum of squares of each row's mean; gather sends the mean to the workers,
 * in float32: over their gradients, or beside them where updates go in another format. A worker may say that it has no
 * gradient: then no bytes come, and where no worker has one an apply changes nothing.
 *
 * A core with a thread of its own makes the mean of a row as soon as its inputs are there, and keeps it. Inline that
 * would take the time of the same CPU, and memory is passed over once more: so the updates stay where they are, and an
 * apply with factor 1 folds them as it applies them, as BSP does. The bits are the same. Rows of codecs that need no
 * sum of a whole row keep their updates in any case (engine/kept.h).
 *
 * A core works in slices, and always for the lowest key that has work: keys are given in the order in which a forward
 * pass needs them (P3, Jayarajan et al., SysML 2019). Between slices it takes events, so a key that has just come can
 * overtake. Slices are hpc_split_work.
 *
 * A fold waits for the last apply, so one update of a key is under way, whatever the depth of the plan.
 *
 * With several stages an owner hears from all workers and answers them itself. Folds come to it by forwards, and
 * parameters go by relays, which answer each pull too, be it that it brings none.
 *
 * Order, beside engine.h's: updates are read, and a mean is written and read, between the last event of a fold and the
 * answer to the apply or skip that follows; every worker waits for that before it folds again. So until then a gradient
 * is the exchange's. gather writes its places, which may be the slots of the gradients, between the last event of its
 * calls and its answer; after it the updates are not read any more, unless the mean is one of them: a single float32
 * input. */
#include "discipline/split.h"

#include "discipline/discipline.h"
#include "discipline/whole.h"

static const char op_create[] = "exchange";

static int suits(const hpc_exchange_config *f) {
    return f->split && hpc_config_is_bsp(f);
}

static int pushes(const hpc_plan *plan, int key, int rank) {
    for (int i = 0; i < plan->n_rows; i++)
        for (int e = 0; e < plan->rows[i].n_in && plan->rows[i].key == key; e++)
            if (plan->rows[i].in[e].row < 0 && plan->rows[i].in[e].rank == rank) return 1;
    return 0;
}

/* An encoder of forwards learns from its rank's own worker that a fold was skipped. */
static int check_encoders(const hpc_plan *plan) {
    int key = -1, rank = -1, pushed = 0;
    for (int i = 0; i < plan->n_rows; i++) {
        const hpc_row *row = &plan->rows[i];
        if (row->action != HPC_FORWARD || hpc_codec_of(row->codec_out)->addressable) continue;
        if (row->key != key || row->owner != rank) pushed = pushes(plan, row->key, row->owner);
        key = row->key, rank = row->owner;
        if (!pushed)
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: row %d forwards key %s as %s, and its owner, rank %d, is no worker: with split "
                            "the owner has to hear there of folds that are skipped; let servers be workers (placement "
                            "CC or CS)",
                            i, plan->keys[row->key].name, hpc_codec_of(row->codec_out)->name, row->owner);
    }
    return HPC_OK;
}

static int check(const hpc_context *c, const hpc_exchange_config *f) {
    (void)c;
    if (f->graph != NULL) return hpc_fail(HPC_ERR_CONFIG, op_create, "exchange: split is for servers; here is a graph");
    if (f->eager)
        return hpc_fail(HPC_ERR_CONFIG, op_create,
                        "exchange: split keeps the fold of all updates; eager adds each to the one before: leave one "
                        "of the two out");
    int status = check_encoders(f->plan);
    if (status != HPC_OK) return status;
    for (int i = 0; i < f->plan->n_rows; i++) {
        const hpc_row *row = &f->plan->rows[i];
        if (row->action == HPC_EMIT || row->quorum != row->n_in)
            return hpc_fail(HPC_ERR_CONFIG, op_create,
                            "exchange: row %d has action %d and a quorum of %d of %d inputs; split needs rows that "
                            "apply, forward or relay, and wait for all of them",
                            i, row->action, row->quorum, row->n_in);
    }
    return HPC_OK;
}

static void free_all(hpc_engine *en) {
    hpc_split_free_owner(en);
    hpc_split_free_worker(en);
}

static const hpc_splitting splitting = {
    .set_use = hpc_split_set_use,
    .squares = hpc_split_squares,
    .set_unit = hpc_split_set_unit,
    .unit = hpc_split_unit,
};

static const hpc_pulling pulling = {
    .ends = hpc_split_ends_pull,
    .ask = hpc_split_ask_share,
    .asked = hpc_split_asked,
    .brings_args = 1,
};

const hpc_discipline hpc_discipline_split = {
    .name = "BSP in two calls",
    .suits = suits,
    .check = check,
    .whole = 1,
    .pulling = &pulling,
    .split = &splitting,
    .answers_all = 1,
    .opening = &(const hpc_opening){.prepare = hpc_split_prepare,
                                    .part = hpc_split_part,
                                    .open_shares = hpc_split_open_shares,
                                    .open = hpc_split_open_owner,
                                    .free = free_all},
    .share_came = hpc_split_share_came,
    .row_came = hpc_split_row_came,
    .other_came = hpc_split_other_came,
    .work = hpc_split_work,
    .may_push = hpc_split_may_push,
    .wait_slot = hpc_split_wait_slot,
    .before_encode = hpc_split_begin_fold,
    .send_share = hpc_split_send_share,
    .pushed = hpc_split_pushed,
    .needs = hpc_whole_needs,
    .awaited = hpc_split_awaited,
};
