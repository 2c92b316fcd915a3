/* Events that bring other bytes than are due: a short one would be folded with what its slot held before. The owner
 * ends the exchange with a sentence that says who sent how much for what. */
#include "exchange_plans.h"
#include "graph_jobs.h"

#include "engine/args.h"
#include "engine/bytes.h"
#include "inside.h"

enum { LIAR, VICTIM };

/* The lies that the liar sends. */
typedef enum lie {
    SHORT,   /* a part of each row, or of the version where there is a quorum */
    LONG,    /* more than a row */
    EMPTY,   /* the event of a share that can be read in place, where it cannot, and the other way round */
    FORWARD, /* a part of what a row forwards */
    PULL,    /* a pull with bytes */
    ARGS     /* a part of the arguments */
} lie;

/* Rows of key 0 that the victim owns, as the liar would push them. A short row has no last element. */
static void push_rows(const hpc_exchange *e, lie what) {
    int in_place = hpc_reads_in_place(inside(e), VICTIM, LIAR);
    for (int i = 0; i < inside(e)->plan->n_rows; i++) {
        const hpc_row *row = &inside(e)->plan->rows[i];
        size_t due = hpc_input_bytes(inside(e), row), nbytes = due - 4, at = inside(e)->push_slot[i];
        hpc_lane *lane = inside(e)->in_lanes[row->core];
        int s = inside(e)->layout.share_of[i];
        uint32_t imm = hpc_imm(HPC_OP_ROW, 0, i);
        if (row->key != 0 || row->owner != VICTIM || (in_place && inside(e)->layout.shares[s].rows[0] != i)) continue;
        if (what == LONG) nbytes = due + 4;
        if (in_place || what == EMPTY) nbytes = at = 0;
        if (in_place != (what == EMPTY)) imm = hpc_imm(HPC_OP_SHARE, 0, s);
        if (in_place && what != EMPTY) nbytes = 8, at = hpc_args_at(inside(e), &inside(e)->layout.shares[s], LIAR, 0);
        CHECK_OK(
            hpc_put_notify(lane, inside(e)->window, VICTIM, hpc_window_data(inside(e)->window), nbytes, at, imm, -1));
    }
}

static void forward_rows(const hpc_exchange *e) {
    for (int i = 0; i < inside(e)->n_work; i++) {
        const hpc_work *w = &inside(e)->work[i];
        for (int o = 0; w->row->key == 0 && w->row->action == HPC_FORWARD && o < w->n_outputs; o++)
            CHECK_OK(hpc_put_notify(inside(e)->out_lanes[w->row->core], inside(e)->window, VICTIM,
                                    hpc_window_data(inside(e)->window), (size_t)w->row->count * 4 - 4,
                                    w->outputs[o].offset, hpc_imm(HPC_OP_FORWARD, 0, w->row->out[o].row), -1));
    }
}

static void send_lie(const hpc_exchange *e, lie what) {
    static const uint64_t one = 1; /* read until it is flushed */
    hpc_lane *lane = inside(e)->in_lanes[0];
    int s = 0;
    while (inside(e)->layout.shares[s].owner != VICTIM) s++;
    size_t args = hpc_args_at(inside(e), &inside(e)->layout.shares[s], LIAR, 0);
    size_t number =
        inside(e)->layout.places[VICTIM].own + ((size_t)inside(e)->layout.shares[s].at * 2 + LIAR) * sizeof(uint64_t);
    if (what == ARGS || what == PULL)
        CHECK_OK(hpc_put_notify(lane, inside(e)->window, VICTIM, inside(e)->rules[0].rule.args, HPC_ARGS_BYTES - 8,
                                args, hpc_imm(what == ARGS ? HPC_OP_ARGS : HPC_OP_PULL, 0, s), -1));
    else if (what == FORWARD)
        forward_rows(e);
    else if (inside(e)->asked.quorum > 0)
        CHECK_OK(hpc_put_notify(lane, inside(e)->window, VICTIM, &one, 4, number, hpc_imm(HPC_OP_SHARE, 0, s), -1));
    else
        push_rows(e, what);
    for (int i = 0; i < inside(e)->n_lanes; i++) {
        CHECK_OK(hpc_flush(inside(e)->in_lanes[i], inside(e)->window, VICTIM, -1));
        CHECK_OK(hpc_flush(inside(e)->out_lanes[i], inside(e)->window, VICTIM, -1));
    }
}

/* The liar sends it, and the victim goes on pushing until it finds out. */
static void play(rank *r, hpc_exchange *e, lie what, const char *text) {
    int status = HPC_OK;
    if (r->rank == LIAR) {
        send_lie(e, what);
        rank_set(r, 0, 1);
        CHECK_STATUS(hpc_barrier(r->context, -1), HPC_ERR_PEER);
        CHECK(ranks_error_names(VICTIM));
    } else {
        rank_await(r, 0, 1);
        for (int i = 0; i < 100 && status == HPC_OK; i++)
            status = hpc_exchange_push_pull(e, 0, hpc_exchange_params(e, 0), -1);
        CHECK_STATUS(status, HPC_ERR_TRANSPORT);
        CHECK_MESSAGE(text);
    }
    hpc_exchange_free(e);
}

static void push(rank *r) {
    job j;
    int mapped = 0;
    job_init(&j, r);
    j.servers[0] = VICTIM, j.n_servers = 1;
    j.wire = r->arg == LONG ? HPC_F16 : HPC_F32;
    hpc_exchange *e = job_open(r, &j);
    mapped = hpc_is_mapped(inside(e), 1 - r->rank);
    play(r, e, (lie)r->arg,
         r->arg == EMPTY  ? "from rank 0 for a row or share that it does not own"
         : mapped         ? "rank 1: rank 0 sent 8 bytes for share 0 of key k0 instead of 0"
         : r->arg == LONG ? "rank 1: rank 0 sent 516 bytes for row 0 of key k0 instead of 512"
                          : "rank 1: rank 0 sent 1020 bytes for row 0 of key k0 instead of 1024");
}

static void forward(rank *r) {
    job j;
    hand_plan h;
    job_init(&j, r);
    hand_racks(&h, &j, r->size, HPC_F16, 512);
    j.plan = &h.plan, j.wire = HPC_F16;
    play(r, job_open(r, &j), FORWARD, "rank 1: rank 0 sent 2044 bytes for row 1 of key k0 instead of 2048");
}

static void with_quorum(rank *r) {
    job j;
    job_init(&j, r);
    j.servers[0] = VICTIM, j.n_servers = 1, j.quorum = 1;
    play(r, job_open(r, &j), SHORT, "rank 1: rank 0 sent 4 bytes for share 0 of key k0 instead of 8");
}

static void async(rank *r) {
    job j;
    job_init(&j, r);
    j.servers[0] = VICTIM, j.n_servers = 1, j.each = 1;
    play(r, job_open(r, &j), (lie)r->arg,
         r->arg == ARGS ? "rank 0 sent 56 bytes for the arguments of share 0 of key k0 instead of 64"
                        : "rank 0 sent 56 bytes for a pull of share 0 of key k0 instead of 0");
}

/* arg: the consistency. */
static void on_graph(rank *r) {
    graph_job g;
    graph_job_init(&g, r);
    graph_job_shape(&g, COMPLETE);
    g.consistency = r->arg;
    g.j.depth = 3;
    g.staleness = r->arg == HPC_SSP;
    hpc_exchange *e = graph_open(r, &g);
    play(r, e, SHORT,
         hpc_is_mapped(inside(e), 1 - r->rank) ? "rank 1: rank 0 sent 8 bytes for share" : "bytes for row");
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "short", .size = 2, .run = push, .arg = SHORT, .apart = true},
        {.name = "long", .size = 2, .run = push, .arg = LONG, .apart = true},
        {.name = "empty", .size = 2, .run = push, .arg = EMPTY, .apart = true},
        {.name = "forward", .size = 2, .run = forward, .apart = true},
        {.name = "quorum", .size = 2, .run = with_quorum, .apart = true},
        {.name = "pull", .size = 2, .run = async, .arg = PULL, .apart = true},
        {.name = "args", .size = 2, .run = async, .arg = ARGS, .apart = true},
        {.name = "notify_ack", .size = 2, .run = on_graph, .arg = HPC_NOTIFY_ACK, .apart = true},
        {.name = "ssp", .size = 2, .run = on_graph, .arg = HPC_SSP, .apart = true},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
