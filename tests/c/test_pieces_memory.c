/* The memory of an exchange whose updates go as pieces: what a codec needs, and no more. Every number is counted from
 * the codecs' wire forms (codec/piece.h), and held against what the exchange has taken. */
#include "codec/piece.h"
#include "engine/pieces.h"
#include "piece_jobs.h"

enum { HEAD = sizeof(hpc_piece_head), UNIT = 16 };

static size_t line(size_t nbytes) {
    return (nbytes + 63) / 64 * 64;
}

/* The longest piece of n elements: dense values, or two means and the bits of each unit. */
static size_t longest(codec_kind kind, size_t n) {
    const size_t units = (n + UNIT - 1) / UNIT;
    return HEAD + (kind == BITS ? units * 8 + n / UNIT * (UNIT / 8) + (n % UNIT + 7) / 8 : n * (kind == HALF ? 2 : 4));
}

/* Receive slots, and the slot of a push, have room for the longest piece of the codec as it is configured. */
static void slots(rank *r) {
    static const setup s = {.name = "slots", .plan = HUB, .kinds = {BITS, HALF, LARGE}};
    play *p = play_new(r, &s);
    const hpc_exchange *e = p->e;
    size_t all = 0;
    for (int i = 0; i < e->plan->n_rows; i++) {
        const hpc_row *row = &e->plan->rows[i];
        const size_t due = line(longest(s.kinds[row->key], row->count));
        CHECK_EQ(hpc_slot_stride(e, row), due + e->discipline->head + e->discipline->tail);
        all += due;
    }
    CHECK_EQ(e->layout.gradient_bytes, all);
    CHECK_OK(hpc_exchange_close(p->e, -1));
    play_free(p);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "slots", .size = 3, .run = slots},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
