/* The letters of a rendezvous, as rank 0 reads them or as the others do, and the notices in them. The input: who reads,
 * how many bytes the parts of each round have, how what comes is cut, then letters as they travel. The bytes of parts
 * are made up here; those of a notice are the input's. */
#include "fuzz.h"

#include "control/letters.h"

enum {
    CONTROL = 6, /* bytes before the first letter */
    INPUT = 4096,
    LETTER = sizeof(hpc_letter),
    LETTERS = INPUT / LETTER + 1,
    MOST = 6000, /* bytes of a part */
    ROUNDS = 3,  /* nothing is expected after them */
    MORE = 40,   /* a notice is made longer by as many zeros, times a byte of the input */
    RANKS = 5
};

static struct {
    int from_zero;
    unsigned char bytes[INPUT + LETTERS * MOST];
    size_t nbytes, n;
    hpc_letter letters[LETTERS]; /* good ones, the last one perhaps not whole */
    size_t ends[LETTERS];        /* of them */
    int verdict;                 /* of what comes behind them: HPC_OK for nothing */
    uint32_t round;
} job;

/* A part has the first number's bytes in the first round, the second's (and more) in the second, none later. */
static size_t part_bytes(const uint8_t *sizes, uint32_t round) {
    return round < 2 ? sizes[round] * (round == 0 ? 1u : 23u) : 0;
}

/* ---- what the input says -------------------------------------------------------------------------------------------
 */

static int judge(const hpc_letter *letter, size_t awaited) {
    int is_part = letter->type == (job.from_zero ? HPC_LETTER_GATHERED : HPC_LETTER_GIVE);
    if (letter->magic != hpc_letter_make(0, 0, 0).magic) return HPC_ERR_TRANSPORT;
    if (is_part && letter->round == job.round && job.round < ROUNDS) {
        if (letter->nbytes == awaited) return HPC_OK;
        return job.from_zero ? HPC_ERR_TRANSPORT : HPC_ERR_CONFIG;
    }
    if (letter->type == HPC_LETTER_EXPIRED && !job.from_zero && letter->nbytes == 0) return HPC_OK;
    if (letter->type == HPC_LETTER_FAILED && job.from_zero && letter->nbytes <= HPC_NOTICE_BYTES) return HPC_OK;
    return HPC_ERR_TRANSPORT;
}

static void put(const void *data, size_t nbytes) {
    memcpy(job.bytes + job.nbytes, data, nbytes);
    job.nbytes += nbytes;
}

static void write_letters(const uint8_t *sizes, const uint8_t *data, size_t size) {
    while (size >= LETTER && job.verdict == HPC_OK) {
        hpc_letter *letter = &job.letters[job.n];
        memcpy(letter, data, LETTER);
        put(letter, LETTER);
        data += LETTER;
        size -= LETTER;
        job.verdict = judge(letter, part_bytes(sizes, job.round));
        if (job.verdict != HPC_OK) break;
        job.ends[job.n++] = job.nbytes + letter->nbytes;
        if (letter->type == HPC_LETTER_FAILED) {
            if (letter->nbytes > size) break;
            put(data, letter->nbytes);
            data += letter->nbytes;
            size -= letter->nbytes;
        } else if (letter->type != HPC_LETTER_EXPIRED) {
            for (uint32_t i = 0; i < letter->nbytes; i++)
                job.bytes[job.nbytes++] = (unsigned char)(i * 7 + (i >> 8) + job.round);
            job.round++;
        }
    }
    put(data, size);
}

/* ---- notices -------------------------------------------------------------------------------------------------------
 */

static void check_ranks(const int *ranks, int n) {
    REQUIRE(n >= 0 && n <= HPC_NOTICE_RANKS);
    for (int i = 0; i < n; i++) REQUIRE(ranks[i] >= 0 && ranks[i] < RANKS);
}

/* A notice that makes sense is the same when it is written and read again. */
static void read_notice(const unsigned char *bytes, size_t nbytes, size_t zeros) {
    static hpc_notice notice, again;
    static unsigned char wire[HPC_NOTICE_BYTES];
    unsigned char *whole = malloc(nbytes + zeros + 1);
    REQUIRE(whole != NULL);
    memcpy(whole + 1, bytes, nbytes); /* its end is the memory's, for ASan, and its start is at an odd address */
    memset(whole + 1 + nbytes, 0, zeros);
    memset(notice.text, 'x', sizeof notice.text);
    if (hpc_notice_read(whole + 1, nbytes + zeros, RANKS, &notice)) {
        REQUIRE(notice.status < HPC_OK && notice.status >= HPC_ERR_MEMORY);
        check_ranks(notice.ranks, notice.n_ranks);
        check_ranks(notice.waiting_for, notice.n_waiting);
        REQUIRE(memchr(notice.text, 0, sizeof notice.text) != NULL);
        size_t written = hpc_notice_write(&notice, wire);
        REQUIRE(written <= nbytes + zeros && hpc_notice_read(wire, written, RANKS, &again));
        REQUIRE(memcmp(wire, whole + 1, written) == 0 && strcmp(again.text, notice.text) == 0);
    }
    free(whole);
}

/* ---- the reader ----------------------------------------------------------------------------------------------------
 */

/* Memory of just the size that a part has. */
static char *expect(hpc_letters *in, const uint8_t *sizes, uint32_t round, char *last) {
    size_t nbytes = part_bytes(sizes, round);
    free(last);
    char *into = malloc(nbytes > 0 ? nbytes : 1);
    REQUIRE(into != NULL);
    hpc_letters_expect(in, round, into, nbytes);
    return into;
}

static void check_letter(const hpc_letters *in, size_t k, size_t taken, const char *into) {
    REQUIRE(k < job.n && taken == job.ends[k]);
    REQUIRE(memcmp(&in->letter, &job.letters[k], LETTER) == 0);
    const unsigned char *sent = job.bytes + taken - in->letter.nbytes;
    if (in->letter.type == HPC_LETTER_FAILED) {
        REQUIRE(memcmp(in->notice, sent, in->letter.nbytes) == 0);
        read_notice(in->notice, in->letter.nbytes, 0);
    } else {
        REQUIRE(memcmp(into, sent, in->letter.nbytes) == 0);
    }
}

static void read_letters(hpc_letters *in, const uint8_t *sizes, const uint8_t *cuts) {
    int status = HPC_IN_PROGRESS;
    const char *why = NULL;
    uint32_t round = 0;
    size_t taken = 0, k = 0;
    char *into = expect(in, sizes, round, NULL);
    for (size_t turn = 0; taken < job.nbytes && status >= 0; turn++) {
        void *at;
        size_t want = hpc_letters_want(in, &at), n = fuzz_cut(cuts, 3, turn);
        REQUIRE(want > 0);
        if (n > want) n = want;
        if (n > job.nbytes - taken) n = job.nbytes - taken;
        memcpy(at, job.bytes + taken, n);
        taken += n;
        status = hpc_letters_got(in, n, &why);
        if (status != HPC_OK) continue;
        check_letter(in, k++, taken, into);
        if (!in->awaited && round < ROUNDS && ++round < ROUNDS) into = expect(in, sizes, round, into);
        REQUIRE(round == job.round || k < job.n);
    }
    if (status < 0) {
        REQUIRE(why != NULL && status == job.verdict && k == job.n);
        REQUIRE(taken == (k > 0 ? job.ends[k - 1] : 0) + LETTER);
    } else {
        REQUIRE(job.verdict == HPC_OK && k + (k < job.n) == job.n);
    }
    free(into);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hpc_letters in;
    if (size < CONTROL || size > INPUT) return 0;
    read_notice(data + CONTROL, size - CONTROL, MORE * data[2]);
    job.from_zero = data[0] & 1;
    job.nbytes = job.n = job.round = 0;
    job.verdict = HPC_OK;
    write_letters(data + 1, data + CONTROL, size - CONTROL);

    unsigned char *notice = job.from_zero ? malloc(HPC_NOTICE_BYTES) : NULL;
    hpc_letters_init(&in, job.from_zero, notice);
    read_letters(&in, data + 1, data + 3);
    free(notice);
    return 0;
}
