/* Chains of waits, followed by what ranks have said: whom they end with. */
#include "base/blame.h"
#include "check.h"

enum { SIZE = 40 };

static hpc_shown_rank shown[SIZE];
static int n_shown;

static hpc_shown_rank *rank_of(int rank) {
    hpc_shown_rank *s = &shown[n_shown++];
    *s = (hpc_shown_rank){.rank = rank, .size = SIZE, .answers = 1, .idle = -1, .told_by = -1};
    return s;
}

static hpc_shown_rank *waits(int rank, int other, double seconds) {
    hpc_shown_rank *s = rank_of(rank);
    s->n_waits = 1;
    s->waits[0] = (hpc_shown_wait){.op = "recv", .seconds = seconds, .n_ranks = 1, .ranks = {other}};
    return s;
}

static hpc_culprit ends[SIZE];

static int find_ends(int start, double seconds) {
    const hpc_chain chain = {shown, n_shown, SIZE, &start, 1, seconds};
    int n = hpc_chain_ends(&chain, ends, SIZE);
    n_shown = 0;
    return n;
}

static void ends_of_every_kind(void) {
    waits(0, 1, 5);
    waits(1, 2, 4.8);
    rank_of(2)->answers = 0;
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK(ends[0].rank == 2 && ends[0].state == HPC_CULPRIT_SILENT && ends[0].seconds == 4.8);

    waits(1, 2, 4.8);
    rank_of(2)->stopped = 1;
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK(ends[0].rank == 2 && ends[0].state == HPC_CULPRIT_STOPPED);

    waits(1, 2, 4.8)->waits[0].stopped = 1; /* a rank of the other one's host has seen it */
    rank_of(2)->answers = 0;
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK(ends[0].rank == 2 && ends[0].state == HPC_CULPRIT_STOPPED);

    waits(1, 2, 4.8);
    hpc_shown_rank *busy = rank_of(2);
    busy->idle = 4;
    busy->step = 17;
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK(ends[0].state == HPC_CULPRIT_COMPUTING && ends[0].seconds == 4 && ends[0].step == 17);

    for (int state = HPC_PEER_LEFT; state <= HPC_PEER_FAILED; state++) {
        hpc_shown_rank *gone = rank_of(3);
        gone->state = state;
        strcpy(gone->gone, "it went");
        CHECK_EQ(find_ends(3, 5), 1);
        CHECK_EQ(ends[0].state, state == HPC_PEER_LEFT ? HPC_CULPRIT_LEFT : HPC_CULPRIT_DIED);
    }
}

/* A chain ends at a rank that has found its own culprits: these count. */
static void culprits_that_others_name(void) {
    hpc_shown_rank *told = waits(1, 2, 4.8);
    told->n_culprits = 1;
    told->culprits[0] = (hpc_culprit){.rank = 7, .state = HPC_CULPRIT_STOPPED};
    rank_of(2)->idle = 4.8;
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK_EQ(ends[0].rank, 7);
    told = waits(1, 2, 4.8);
    told->n_culprits = 2; /* this rank itself did not answer in time then, and has now */
    told->culprits[0] = (hpc_culprit){.rank = 7, .state = HPC_CULPRIT_STOPPED};
    told->culprits[1] = (hpc_culprit){.rank = 1, .state = HPC_CULPRIT_SILENT, .seconds = 0.1};
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK_EQ(ends[0].rank, 7);
}

/* A rank that was seen between two waits is an end only where there is no other one. */
static void between_two_waits(void) {
    hpc_shown_rank *s = waits(1, 2, 5);
    s->waits[0].n_ranks = 2;
    s->waits[0].ranks[1] = 3;
    rank_of(2)->idle = 0.01;
    rank_of(3)->answers = 0;
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK_EQ(ends[0].rank, 3);
    waits(1, 2, 5);
    rank_of(2)->idle = 0.01;
    CHECK_EQ(find_ends(1, 5), 1);
    CHECK(ends[0].rank == 2 && ends[0].state == HPC_CULPRIT_COMPUTING && ends[0].seconds == 0.01);
}

static void circles(void) {
    char text[256];
    waits(0, 1, 5); /* leads to the circle and is none of it */
    waits(1, 2, 5);
    waits(2, 3, 5);
    hpc_shown_rank *last = waits(3, 1, 5);
    strcpy(last->waits[0].op, "barrier");
    last->waits[0].every = 1;
    CHECK_EQ(find_ends(1, 5), 3);
    for (int i = 0; i < 3; i++) CHECK(ends[i].rank == i + 1 && ends[i].state == HPC_CULPRIT_CIRCLE);
    CHECK(strcmp(ends[0].op, "recv") == 0 && strcmp(ends[2].op, "barrier") == 0);
    CHECK(ends[0].every == 0 && ends[2].every == 1);
    hpc_culprits_text(ends, 3, text, sizeof text);
    CHECK(strcmp(text, "ranks 1, 2 and 3 wait for each other: ranks 1 and 2 are in recv; rank 3 is in barrier, which "
                       "every rank must call (a deadlock of the program)") == 0);
    ends[2].every = 0;
    hpc_culprits_text(ends, 3, text, sizeof text);
    CHECK(strcmp(text, "ranks 1, 2 and 3 wait for each other: ranks 1 and 2 in recv, rank 3 in barrier (a deadlock of "
                       "the program)") == 0);
    /* With an end in reach nobody is accused of a deadlock: neighbours always wait for each other. */
    hpc_shown_rank *s = waits(1, 2, 5);
    s->waits[0].n_ranks = 2;
    s->waits[0].ranks[1] = 4;
    waits(2, 1, 5);
    rank_of(4)->stopped = 1;
    CHECK_EQ(find_ends(2, 5), 1);
    CHECK_EQ(ends[0].rank, 4);
}

/* A wait for more ranks than are listed may be for any rank. */
static void lists_cut_short(void) {
    hpc_shown_rank *s = rank_of(0);
    s->n_waits = 1;
    s->waits[0] = (hpc_shown_wait){.op = "serve", .seconds = 5, .n_ranks = SIZE - 1};
    for (int i = 0; i < HPC_SHOWN_RANKS; i++) s->waits[0].ranks[i] = i + 1;
    for (int r = 1; r < SIZE - 1; r++) waits(r, 0, 5);
    rank_of(SIZE - 1)->stopped = 1;
    CHECK_EQ(find_ends(0, 5), 1);
    CHECK_EQ(ends[0].rank, SIZE - 1);
}

static void ways(void) {
    char text[128];
    const int start = 1;
    waits(1, 2, 5);
    waits(2, 3, 5);
    rank_of(3)->stopped = 1;
    const hpc_chain chain = {shown, n_shown, SIZE, &start, 1, 5};
    CHECK(strcmp(hpc_chain_way(&chain, 3, text, sizeof text), "rank 1 waits for rank 2, rank 2 waits for rank 3") == 0);
    CHECK(strcmp(hpc_chain_way(&chain, 1, text, sizeof text), "") == 0);
    CHECK(strcmp(hpc_chain_way(&chain, 9, text, sizeof text), "") == 0);
    char tiny[12];
    CHECK_EQ(strlen(hpc_chain_way(&chain, 3, tiny, sizeof tiny)), sizeof tiny - 1);
    n_shown = 0;
}

static void jobs(void) {
    hpc_culprit found[2];
    waits(0, 1, 3);
    waits(1, 2, 3);
    rank_of(2)->answers = 0;
    CHECK_EQ(hpc_job_culprits(shown, n_shown, found, 2, NULL, 0), 1);
    CHECK(found[0].rank == 2 && found[0].state == HPC_CULPRIT_SILENT && found[0].seconds == 3);
    n_shown = 0;
    rank_of(0);
    CHECK_EQ(hpc_job_culprits(shown, n_shown, found, 2, NULL, 0), 0);
    CHECK_EQ(hpc_job_culprits(NULL, 3, found, 2, NULL, 0), 0);
    n_shown = 0;
}

static void lists_and_words(void) {
    char text[512];
    hpc_culprit list[3];
    int n = 0;
    for (int r = 5; r > 0; r--) n = hpc_culprits_add(list, n, 3, &(hpc_culprit){.rank = r, .state = HPC_CULPRIT_DIED});
    CHECK(n == 3 && list[0].rank == 1 && list[2].rank == 3); /* the lowest are kept, each once */
    CHECK_EQ(hpc_culprits_add(list, n, 3, &list[1]), 3);
    CHECK(strcmp(hpc_culprits_text(list, 3, text, sizeof text), "ranks 1, 2 and 3 died") == 0);
    list[1] = (hpc_culprit){.rank = 2, .state = HPC_CULPRIT_COMPUTING, .seconds = 4.8, .step = 17};
    hpc_culprits_text(list, 3, text, sizeof text);
    CHECK(strcmp(text, "ranks 1 and 3 died; rank 2 has computed for 4.8 s, at step 17") == 0);
    for (size_t cap = 1; cap < 64; cap++) CHECK(strlen(hpc_culprits_text(list, 3, text, cap)) < cap);
    list[0] = (hpc_culprit){.rank = -1, .state = HPC_CULPRIT_DIED};
    list[1].seconds = -1;
    list[2].state = 99;
    CHECK_EQ(hpc_culprits_check(list, 3, 3, SIZE), 1);
    CHECK(list[0].rank == 2 && list[0].seconds == 0);
}

int main(void) {
    ends_of_every_kind();
    culprits_that_others_name();
    between_two_waits();
    circles();
    lists_cut_short();
    ways();
    jobs();
    lists_and_words();
    return 0;
}
