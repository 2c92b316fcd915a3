/* A batch of a collective. The input: how many ranks it should be of, then the batch. Whatever is read lies within it,
 * and means the same when it is written and read again. */
#include "fuzz.h"

#include "control/batch.h"

enum { RANKS = 64, TREE = 7 };

static int is_same(const hpc_record *a, const hpc_record *b) {
    return a->nbytes == b->nbytes && memcmp(a->data, b->data, a->nbytes) == 0 &&
           strcmp(a->said->op, b->said->op) == 0 && strcmp(a->said->call, b->said->call) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hpc_record records[RANKS], again[RANKS];
    if (size < 1) return 0;
    const int n = 1 + data[0] % RANKS;
    size_t nbytes = size - 1, length;
    char *bytes = malloc(nbytes + (nbytes == 0)); /* exactly so many, so that ASan sees what is read behind them */
    REQUIRE(bytes != NULL);
    memcpy(bytes, data + 1, nbytes);
    if (hpc_batch_read(bytes, nbytes, TREE, records, n)) {
        for (int i = 0; i < n; i++) {
            const char *at = records[i].data;
            REQUIRE(at >= bytes && records[i].nbytes <= nbytes && at <= bytes + nbytes - records[i].nbytes);
            REQUIRE(strlen(records[i].said->op) < sizeof records[i].said->op);
            REQUIRE(strlen(records[i].said->call) < sizeof records[i].said->call);
        }
        char *written = hpc_batch_write(TREE, records, n, &length);
        REQUIRE(written != NULL && length <= nbytes); /* tables that say the same for all ranks are left out */
        REQUIRE(hpc_batch_read(written, length, TREE, again, n));
        for (int i = 0; i < n; i++) REQUIRE(is_same(&records[i], &again[i]));
        free(written);
    }
    free(bytes);
    return 0;
}
