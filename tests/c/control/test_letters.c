/* The reader of what ranks say at a rendezvous, and notices: whatever the cuts, and whatever comes. */
#include "check.h"
#include "control/letters.h"

enum { ROUND = 7, PART = 24, RANKS = 4 };

/* Feeds bytes in pieces of at most `cut`; the status that ends it, or HPC_IN_PROGRESS. *used: how many were taken. */
static int feed(hpc_letters *l, const void *bytes, size_t nbytes, size_t cut, size_t *used) {
    const char *why = NULL;
    *used = 0;
    while (*used < nbytes) {
        void *at;
        size_t n = hpc_letters_want(l, &at);
        CHECK(n > 0);
        if (n > cut) n = cut;
        if (n > nbytes - *used) n = nbytes - *used;
        memcpy(at, (const char *)bytes + *used, n);
        *used += n;
        int status = hpc_letters_got(l, n, &why);
        if (status < 0) CHECK(why != NULL && why[0] != '\0');
        if (status != HPC_IN_PROGRESS) return status;
    }
    return HPC_IN_PROGRESS;
}

static int feed_header(hpc_letters *l, hpc_letter letter) {
    size_t used;
    return feed(l, &letter, sizeof letter, sizeof letter, &used);
}

static void parts_land_whatever_the_cuts(void) {
    for (int from_zero = 0; from_zero <= 1; from_zero++) {
        for (size_t cut = 1; cut <= sizeof(hpc_letter) + PART; cut++) {
            unsigned char wire[2][sizeof(hpc_letter) + PART], into[2][PART], notice[HPC_NOTICE_BYTES];
            hpc_letters l;
            size_t used;
            hpc_letters_init(&l, from_zero, from_zero ? notice : NULL);
            for (int i = 0; i < 2; i++) {
                hpc_letter letter =
                    hpc_letter_make(from_zero ? HPC_LETTER_GATHERED : HPC_LETTER_GIVE, ROUND + (uint32_t)i, PART);
                memcpy(wire[i], &letter, sizeof letter);
                for (int b = 0; b < PART; b++) wire[i][sizeof letter + (size_t)b] = (unsigned char)(1 + i + b);
                hpc_letters_expect(&l, ROUND + (uint32_t)i, into[i], PART);
                CHECK_EQ(feed(&l, wire[i], sizeof wire[i], cut, &used), HPC_OK);
                CHECK_EQ(used, sizeof wire[i]);
                CHECK(!l.awaited);
                CHECK(memcmp(into[i], wire[i] + sizeof letter, PART) == 0);
            }
        }
    }
}

static void letters_that_do_not_go_this_way(void) {
    unsigned char part[PART], notice[HPC_NOTICE_BYTES];
    for (int from_zero = 0; from_zero <= 1; from_zero++) {
        int mine = from_zero ? HPC_LETTER_GATHERED : HPC_LETTER_GIVE;
        for (uint32_t type = 0; type < 6; type++) {
            hpc_letters l;
            hpc_letters_init(&l, from_zero, from_zero ? notice : NULL);
            hpc_letters_expect(&l, ROUND, part, 0);
            hpc_letter letter = hpc_letter_make((int)type, ROUND, 0);
            int good = (int)type == mine || type == (from_zero ? HPC_LETTER_FAILED : HPC_LETTER_EXPIRED);
            CHECK_EQ(feed_header(&l, letter), good ? HPC_OK : HPC_ERR_TRANSPORT);
        }
        const struct {
            hpc_letter letter;
            int status;
        } wrong[] = {
            {hpc_letter_make(mine, ROUND + 1, PART), HPC_ERR_TRANSPORT},
            {hpc_letter_make(mine, ROUND - 1, PART), HPC_ERR_TRANSPORT},
            {hpc_letter_make(mine, ROUND, PART + 1), from_zero ? HPC_ERR_TRANSPORT : HPC_ERR_CONFIG},
            {hpc_letter_make(mine, ROUND, UINT32_MAX), from_zero ? HPC_ERR_TRANSPORT : HPC_ERR_CONFIG},
            {hpc_letter_make(HPC_LETTER_EXPIRED, ROUND, 1), HPC_ERR_TRANSPORT},
            {hpc_letter_make(HPC_LETTER_FAILED, ROUND, HPC_NOTICE_BYTES + 1), HPC_ERR_TRANSPORT},
            {{.magic = 0x20544547, .type = (uint32_t)mine, .round = ROUND, .nbytes = PART}, HPC_ERR_TRANSPORT},
        };
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            hpc_letters l;
            hpc_letters_init(&l, from_zero, from_zero ? notice : NULL);
            hpc_letters_expect(&l, ROUND, part, PART);
            CHECK_EQ(feed_header(&l, wrong[i].letter), wrong[i].status);
        }
    }
}

static void a_part_comes_once(void) {
    hpc_letters l;
    unsigned char none[1];
    hpc_letters_init(&l, 0, NULL);
    CHECK_EQ(feed_header(&l, hpc_letter_make(HPC_LETTER_GIVE, 0, 0)), HPC_ERR_TRANSPORT); /* none is awaited yet */
    hpc_letters_init(&l, 0, NULL);
    hpc_letters_expect(&l, ROUND, none, 0);
    CHECK_EQ(feed_header(&l, hpc_letter_make(HPC_LETTER_GIVE, ROUND, 0)), HPC_OK);
    CHECK_EQ(feed_header(&l, hpc_letter_make(HPC_LETTER_EXPIRED, ROUND, 0)), HPC_OK);
    CHECK_EQ(feed_header(&l, hpc_letter_make(HPC_LETTER_GIVE, ROUND, 0)), HPC_ERR_TRANSPORT);
}

static hpc_notice a_notice(void) {
    return (hpc_notice){.status = HPC_ERR_TIMEOUT,
                        .n_ranks = 1,
                        .n_waiting = 2,
                        .ranks = {3},
                        .waiting_for = {0, 2},
                        .text = "ranks 0 and 2 never came"};
}

static void notices_travel(void) {
    hpc_notice sent = a_notice(), got;
    unsigned char wire[sizeof(hpc_letter) + HPC_NOTICE_BYTES], notice[HPC_NOTICE_BYTES];
    size_t nbytes = hpc_notice_write(&sent, wire + sizeof(hpc_letter)), used;
    hpc_letter letter = hpc_letter_make(HPC_LETTER_FAILED, ROUND, nbytes);
    memcpy(wire, &letter, sizeof letter);
    for (size_t cut = 1; cut < 40; cut++) {
        hpc_letters l;
        hpc_letters_init(&l, 1, notice);
        CHECK_EQ(feed(&l, wire, sizeof letter + nbytes, cut, &used), HPC_OK);
        memset(&got, 0x55, sizeof got);
        CHECK(hpc_notice_read(notice, l.letter.nbytes, RANKS, &got));
        CHECK_EQ(got.status, sent.status);
        CHECK(got.n_ranks == 1 && got.ranks[0] == 3);
        CHECK(got.n_waiting == 2 && got.waiting_for[0] == 0 && got.waiting_for[1] == 2);
        CHECK(strcmp(got.text, sent.text) == 0);
    }
    memset(sent.text, 'x', sizeof sent.text - 1);
    sent.text[sizeof sent.text - 1] = '\0';
    sent.n_ranks = sent.n_waiting = HPC_NOTICE_RANKS;
    memset(sent.ranks, 0, sizeof sent.ranks);
    memset(sent.waiting_for, 0, sizeof sent.waiting_for);
    nbytes = hpc_notice_write(&sent, notice);
    CHECK(nbytes <= HPC_NOTICE_BYTES);
    CHECK(hpc_notice_read(notice, nbytes, RANKS, &got));
    CHECK(strcmp(got.text, sent.text) == 0);
}

static void notices_that_make_no_sense(void) {
    hpc_notice sent = a_notice(), got;
    unsigned char wire[HPC_NOTICE_BYTES];
    size_t nbytes = hpc_notice_write(&sent, wire);
    const struct {
        size_t at;
        int32_t value;
    } wrong[] = {{0, HPC_OK},    {0, 1},  {0, HPC_ERR_MEMORY - 1}, {4, -1}, {4, HPC_NOTICE_RANKS + 1},
                 {4, INT32_MAX}, {8, -1}, {8, INT32_MAX},          {4, 40}, {12, RANKS},
                 {12, -1},       {20, 99}};
    CHECK(!hpc_notice_read(wire, 11, RANKS, &got));
    CHECK(!hpc_notice_read(wire, 12 + 3 * 4 - 1, RANKS, &got));
    CHECK(hpc_notice_read(wire, 12 + 3 * 4, RANKS, &got) && got.text[0] == '\0');
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char bytes[HPC_NOTICE_BYTES];
        memcpy(bytes, wire, nbytes);
        memcpy(bytes + wrong[i].at, &wrong[i].value, sizeof wrong[i].value);
        CHECK(!hpc_notice_read(bytes, nbytes, RANKS, &got));
    }
    CHECK(!hpc_notice_read(wire, 12 + 3 * 4 + HPC_NOTICE_TEXT, RANKS, &got));
}

int main(void) {
    parts_land_whatever_the_cuts();
    letters_that_do_not_go_this_way();
    a_part_comes_once();
    notices_travel();
    notices_that_make_no_sense();
    return 0;
}
