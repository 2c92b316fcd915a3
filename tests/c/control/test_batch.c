/* Batches of collectives: what is written is read again, and bytes that are no batch are refused. */
#include "check.h"
#include "control/batch.h"
#include "ranks.h"

enum { MOST = 40, TREE = 77 };

typedef struct parts {
    hpc_said said[MOST];
    hpc_record records[MOST];
    char data[MOST][200];
    int n;
} parts;

/* kind: bit 0: other numbers of bytes, bit 1: other names. */
static void make_parts(parts *p, int n, int kind, uint64_t *random) {
    const size_t alike = ranks_random(random) % 200;
    memset(p, 0, sizeof *p);
    p->n = n;
    for (int i = 0; i < n; i++) {
        const int other = (kind & 2) != 0 && ranks_random(random) % 3 == 0;
        snprintf(p->said[i].op, sizeof p->said[i].op, other ? "window" : "allgather");
        snprintf(p->said[i].call, sizeof p->said[i].call, other ? "a call of %d" : "a call", i);
        const size_t nbytes = kind & 1 ? ranks_random(random) % 200 : alike;
        ranks_fill(p->data[i], nbytes, (uint64_t)i);
        p->records[i] = (hpc_record){&p->said[i], p->data[i], nbytes};
    }
}

static int same(const hpc_record *a, const hpc_record *b) {
    return a->nbytes == b->nbytes && memcmp(a->data, b->data, a->nbytes) == 0 &&
           strcmp(a->said->op, b->said->op) == 0 && strcmp(a->said->call, b->said->call) == 0;
}

static void what_is_written_is_read(void) {
    uint64_t random = 1;
    hpc_record got[MOST];
    parts p;
    for (int i = 0; i < 400; i++) {
        size_t nbytes;
        make_parts(&p, 1 + (int)(ranks_random(&random) % MOST), i % 4, &random);
        char *bytes = hpc_batch_write(TREE, p.records, p.n, &nbytes);
        CHECK(bytes && nbytes <= hpc_batch_most(p.n, 200));
        CHECK(hpc_batch_read(bytes, nbytes, TREE, got, p.n));
        for (int k = 0; k < p.n; k++) {
            CHECK(same(&got[k], &p.records[k]));
            CHECK_EQ((uintptr_t)got[k].data % 16, 0);
        }
        free(bytes);
    }
}

/* A batch of ranks that give nothing, by the same name, is as long for one rank as for all. */
static void equal_ranks_cost_nothing(void) {
    uint64_t random = 2;
    size_t one, all;
    parts p;
    make_parts(&p, MOST, 0, &random);
    for (int i = 0; i < MOST; i++) p.records[i].nbytes = 0;
    char *a = hpc_batch_write(TREE, p.records, 1, &one), *b = hpc_batch_write(TREE, p.records, MOST, &all);
    CHECK_EQ(one, all);
    free(a);
    free(b);
}

/* Exactly so much memory, so that a sanitizer sees each byte that is read behind it. */
static int read_copy(const char *bytes, size_t nbytes, uint64_t tree, int n) {
    hpc_record got[MOST + 1];
    char *copy = malloc(nbytes + (nbytes == 0));
    CHECK(copy);
    memcpy(copy, bytes, nbytes);
    const int good = hpc_batch_read(copy, nbytes, tree, got, n);
    for (int i = 0; i < n && good; i++) {
        CHECK((char *)got[i].data >= copy && (char *)got[i].data + got[i].nbytes <= copy + nbytes);
        CHECK(strlen(got[i].said->op) < sizeof got[i].said->op && strlen(got[i].said->call) < sizeof got[i].said->call);
    }
    free(copy);
    return good;
}

static void what_is_no_batch(void) {
    uint64_t random = 3;
    parts p;
    for (int i = 0; i < 200; i++) {
        size_t nbytes;
        make_parts(&p, 2 + (int)(ranks_random(&random) % (MOST - 2)), i % 4, &random);
        char *bytes = hpc_batch_write(TREE, p.records, p.n, &nbytes);
        CHECK(bytes && read_copy(bytes, nbytes, TREE, p.n));
        CHECK(!read_copy(bytes, nbytes, TREE + 1, p.n));
        CHECK(!read_copy(bytes, nbytes, TREE, p.n - 1) && !read_copy(bytes, nbytes, TREE, p.n + 1));
        for (size_t cut = 0; cut < nbytes; cut += 1 + nbytes / 50) CHECK(!read_copy(bytes, cut, TREE, p.n));
        char *more = calloc(1, nbytes + 16);
        CHECK(more);
        memcpy(more, bytes, nbytes);
        CHECK(!read_copy(more, nbytes + 16, TREE, p.n));
        free(more);
        for (int k = 0; k < 50; k++) { /* whatever changes, nothing outside is read */
            const size_t at = ranks_random(&random) % (nbytes < 400 ? nbytes : 400);
            const char before = bytes[at];
            bytes[at] ^= (char)(1 << ranks_random(&random) % 8);
            read_copy(bytes, nbytes, TREE, p.n);
            bytes[at] = before;
        }
        free(bytes);
    }
}

/* Fields that lie: the header's, then those of the tables. */
static void lies(void) {
    uint64_t random = 4;
    parts p;
    for (int kind = 0; kind < 4; kind++) {
        size_t nbytes, at[] = {8, 12, 16, kind & 1 ? 88 : 16};
        make_parts(&p, 9, kind, &random);
        p.records[1].nbytes = kind & 1 ? 100 : p.records[1].nbytes;
        char *bytes = hpc_batch_write(TREE, p.records, p.n, &nbytes);
        CHECK(bytes && read_copy(bytes, nbytes, TREE, p.n));
        for (size_t i = 0; i < sizeof at / sizeof *at; i++)
            for (int k = 0; k < 3; k++) {
                static const uint64_t wrong[] = {UINT64_MAX, UINT64_MAX - 15, (uint64_t)1 << 63};
                char before[8];
                memcpy(before, bytes + at[i], 8);
                memcpy(bytes + at[i], &wrong[k], i < 2 ? 4 : 8);
                const int unused = (at[i] == 16 && (kind & 1)) || (i < 2 && k == 2); /* the low half is 0 */
                CHECK(unused || !read_copy(bytes, nbytes, TREE, p.n));
                memcpy(bytes + at[i], before, 8);
            }
        const size_t last = 88 + (kind & 1 ? 9 * 8 : 0) + 8 * sizeof(hpc_said); /* the last names, without an end */
        if (kind & 2) memset(bytes + last, 'x', HPC_OP_BYTES);
        if (kind & 2) CHECK(!read_copy(bytes, nbytes, TREE, p.n));
        if (kind & 2) memcpy(bytes + last, &p.said[8], sizeof p.said[8]);
        CHECK(read_copy(bytes, nbytes, TREE, p.n));
        memset(bytes + 24, 'x', HPC_OP_BYTES);
        CHECK(!read_copy(bytes, nbytes, TREE, p.n));
        free(bytes);
    }
}

/* A number of bytes that is 0 once it is rounded up. */
static void too_many_bytes(void) {
    static const uint64_t most = UINT64_MAX;
    uint64_t random = 5;
    size_t nbytes;
    parts p;
    make_parts(&p, 3, 0, &random);
    for (int own = 0; own <= 1; own++) {
        for (int i = 0; i < p.n; i++) p.records[i].nbytes = own && i == 0 ? 16 : 0;
        char *bytes = hpc_batch_write(TREE, p.records, p.n, &nbytes);
        CHECK(bytes && read_copy(bytes, nbytes, TREE, p.n));
        memcpy(bytes + (own ? 88 + 2 * sizeof most : 16), &most, sizeof most);
        CHECK(!read_copy(bytes, nbytes, TREE, p.n));
        free(bytes);
    }
}

int main(void) {
    what_is_written_is_read();
    equal_ranks_cost_nothing();
    what_is_no_batch();
    lies();
    too_many_bytes();
    return 0;
}
