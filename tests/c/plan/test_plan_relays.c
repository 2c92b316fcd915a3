/* The rules for plans with relays. */
#include "check.h"
#include "plan/plan.h"

/* Row 0 applies the pushes of ranks 0 and 1 and sends parameters to rank 0 and to row 1, which relays them to rank 1.
 */
struct relays {
    hpc_key key;
    hpc_row rows[2];
    hpc_edge push[2], down[2], came, pull;
    hpc_plan plan;
};

static void make_relays(struct relays *p) {
    *p = (struct relays){.key = {"a", 64},
                         .push = {{0, -1, 1}, {1, -1, 1}},
                         .down = {{0, -1, 1}, {1, 1, 1}},
                         .came = {0, 0, 1},
                         .pull = {1, -1, 1}};
    p->rows[0] = (hpc_row){.action = HPC_APPLY, .count = 64, .depth = 1, .quorum = 2, .n_in = 2, .n_out = 2};
    p->rows[1] =
        (hpc_row){.owner = 1, .action = HPC_RELAY, .count = 64, .depth = 1, .quorum = 1, .n_in = 1, .n_out = 1};
    p->rows[0].in = p->push, p->rows[0].out = p->down;
    p->rows[1].in = &p->came, p->rows[1].out = &p->pull;
    p->plan = (hpc_plan){.n_keys = 1, .n_rows = 2, .keys = &p->key, .rows = p->rows};
}

#define BROKEN_RELAY(text, ...)                                                                                        \
    do {                                                                                                               \
        struct relays p;                                                                                               \
        make_relays(&p);                                                                                               \
        CHECK_OK(hpc_plan_check(&p.plan, 2));                                                                          \
        __VA_ARGS__;                                                                                                   \
        CHECK_STATUS(hpc_plan_check(&p.plan, 2), HPC_ERR_INVALID);                                                     \
        CHECK_MESSAGE(text);                                                                                           \
    } while (0)

int main(void) {
    BROKEN_RELAY("row 1 relays, so it has one in-edge, from a row; it has 1, the first from a push", p.came.row = -1);
    BROKEN_RELAY("row 1 relays, so it has one in-edge, from a row; it has 2", p.rows[1].n_in = p.rows[1].quorum = 2);
    BROKEN_RELAY("row 1 relays float32 as float16; a relay cannot change the codec", p.rows[1].codec_out = HPC_F16);
    BROKEN_RELAY("row 1 has codec_in float16, but row 0 sends it float32",
                 p.rows[1].codec_in = p.rows[1].codec_out = HPC_F16);
    BROKEN_RELAY("row 1 of action 0 has an in-edge from row 0 of action 0", p.rows[1].action = HPC_APPLY);
    BROKEN_RELAY("row 1 of action 3 has an in-edge from row 0 of action 1", p.rows[0].action = HPC_FORWARD;
                 p.rows[0].n_out = 1; p.rows[0].out = &p.down[1]);
    BROKEN_RELAY("row 0 has an edge to row 1, which lacks the other end", p.came.row = 1; p.came.rank = 1);
    BROKEN_RELAY("row 1 sends rank 1 elements from 0 on of key 'a', but the rows before it end", p.down[0].rank = 1);
    BROKEN_RELAY("row 0 sends to row 1, which is of other", p.rows[1].count = 32);
    BROKEN_RELAY("row 0 of core 0 sends to row 1 of core 1", p.rows[1].core = 1);
    return 0;
}
