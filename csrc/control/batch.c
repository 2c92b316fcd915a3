#include "control/batch.h"

#include <stdlib.h>
#include <string.h>

enum { OWN_BYTES = 1, OWN_NAMES = 2, UNIT = 16 };

typedef struct header {
    uint64_t tree;
    uint32_t n, flags;
    uint64_t nbytes; /* of each rank; without meaning with OWN_BYTES */
    hpc_said said;   /* likewise with OWN_NAMES */
} header;
_Static_assert(sizeof(header) % sizeof(uint64_t) == 0, "the numbers of bytes follow aligned");

static size_t round_up(size_t n) {
    return (n + UNIT - 1) / UNIT * UNIT;
}

/* Returns where the data begins; *names gets where the table of names begins. */
static size_t tables_end(uint32_t flags, size_t n, size_t *names) {
    *names = sizeof(header) + (flags & OWN_BYTES ? n * sizeof(uint64_t) : 0);
    return round_up(*names + (flags & OWN_NAMES ? n * sizeof(hpc_said) : 0));
}

static uint32_t flags_of(const hpc_record *records, int n) {
    uint32_t flags = 0;
    for (int i = 1; i < n; i++) {
        if (records[i].nbytes != records[0].nbytes) flags |= OWN_BYTES;
        if (strcmp(records[i].said->op, records[0].said->op) != 0 ||
            strcmp(records[i].said->call, records[0].said->call) != 0)
            flags |= OWN_NAMES;
    }
    return flags;
}

char *hpc_batch_write(uint64_t tree, const hpc_record *records, int n, size_t *nbytes) {
    const uint32_t flags = flags_of(records, n);
    size_t names, at = tables_end(flags, (size_t)n, &names), total = at;
    for (int i = 0; i < n; i++) total += round_up(records[i].nbytes);
    char *bytes = malloc(total);
    if (bytes == NULL) return NULL;
    memset(bytes, 0, at); /* the rest of a string leaves the process too */
    header *h = (void *)bytes;
    *h = (header){.tree = tree, .n = (uint32_t)n, .flags = flags, .nbytes = records[0].nbytes};
    h->said = *records[0].said;
    for (int i = 0; i < n; i++) {
        const hpc_record *r = &records[i];
        const uint64_t length = r->nbytes;
        if (flags & OWN_BYTES) memcpy(bytes + sizeof *h + (size_t)i * sizeof length, &length, sizeof length);
        if (flags & OWN_NAMES) memcpy(bytes + names + (size_t)i * sizeof *r->said, r->said, sizeof *r->said);
        if (r->nbytes > 0) memcpy(bytes + at, r->data, r->nbytes);
        memset(bytes + at + r->nbytes, 0, round_up(r->nbytes) - r->nbytes);
        at += round_up(r->nbytes);
    }
    *nbytes = total;
    return bytes;
}

static int is_ended(const hpc_said *said) {
    return memchr(said->op, 0, sizeof said->op) != NULL && memchr(said->call, 0, sizeof said->call) != NULL;
}

int hpc_batch_read(char *bytes, size_t nbytes, uint64_t tree, hpc_record *records, int n) {
    const header *h = (const void *)bytes;
    size_t names;
    if (nbytes < sizeof *h || h->tree != tree || h->n != (uint32_t)n || h->flags > (OWN_BYTES | OWN_NAMES) ||
        !is_ended(&h->said))
        return 0;
    size_t at = tables_end(h->flags, (size_t)n, &names);
    if (at > nbytes) return 0;
    for (int i = 0; i < n; i++) {
        hpc_record *r = &records[i];
        uint64_t length = h->nbytes;
        if (h->flags & OWN_BYTES) memcpy(&length, bytes + sizeof *h + (size_t)i * sizeof length, sizeof length);
        r->said = h->flags & OWN_NAMES ? (const hpc_said *)(const void *)(bytes + names) + i : &h->said;
        if (!is_ended(r->said) || length > nbytes - at || round_up((size_t)length) > nbytes - at) return 0;
        r->nbytes = (size_t)length;
        r->data = bytes + at; /* at the end of the batch if the last ranks give nothing */
        at += round_up(r->nbytes);
    }
    return at == nbytes;
}
