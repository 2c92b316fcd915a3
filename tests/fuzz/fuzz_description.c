/* The description of an exchange, which a tenant sends to a hub. The input: how many cores the hub has, then the
 * message. What is read is in range; written and read again it is the same. */
#include "fuzz.h"

#include "service/description.h"
#include "service/names.h"

enum { CORES = 8, WORKERS = 3, HUBS = 2, SMALL = 1 << 12 };

static int is_small(const hpc_description *d) {
    double n = 0;
    for (int i = 0; i < d->n_schemes; i++)
        for (int k = 0; k < d->schemes[i].hub.n_keys; k++) {
            const hpc_hub *hub = &d->schemes[i].hub;
            n += 1 + 4 * (double)hub->keys[k].count / (double)(hub->least > 0 ? hub->least : hub->chunk);
        }
    return n < SMALL;
}

static void check_ranges(const hpc_description *d, int cores) {
    REQUIRE(d->n_schemes >= 1);
    for (int i = 0; i < d->n_schemes; i++) {
        const hpc_described_scheme *s = &d->schemes[i];
        REQUIRE(s->hub.cores >= 1 && s->hub.cores <= cores && s->hub.interfaces <= s->hub.cores);
        REQUIRE(s->hub.n_keys >= 1 && s->hub.parents == NULL && s->config.graph == NULL);
        REQUIRE(s->racks.n == 0 || (s->n_hosts >= 1 && s->n_hosts <= s->racks.n && s->n_shared <= s->racks.n / 2));
        for (int w = 0; w < s->racks.n; w++)
            REQUIRE(s->racks.groups[w] >= 0 && s->racks.groups[s->racks.n + w] >= 0 &&
                    s->racks.groups[s->racks.n + w] < HPC_MOST_HUBS);
        for (int k = 0; k < s->hub.n_keys; k++) {
            REQUIRE(s->hub.keys[k].count > 0 && strlen(s->hub.keys[k].name) <= HPC_KEY_NAME_BYTES);
            REQUIRE(s->rules[k]->apply != NULL && strlen(s->rules[k]->name) < HPC_RULE_NAME_BYTES);
            REQUIRE(s->wires[k] != HPC_OWN_CODEC);
            REQUIRE(s->codecs[k] == NULL || (s->codecs[k]->filter == NULL && s->codecs[k]->encode == NULL));
        }
    }
}

/* Writes a description; returns its length. */
static size_t write_again(const hpc_description *d, unsigned char **message) {
    const size_t schemes = (size_t)d->n_schemes;
    const hpc_hub **hubs = malloc(schemes * sizeof *hubs);
    hpc_hosts *hosts = calloc(schemes, sizeof *hosts);
    const hpc_hosts **racks = calloc(schemes, sizeof *racks);
    REQUIRE(hubs != NULL && hosts != NULL && racks != NULL);
    for (int i = 0; i < d->n_schemes; i++) {
        const hpc_described_scheme *s = &d->schemes[i];
        hubs[i] = &s->hub;
        if (s->racks.n == 0) continue;
        hpc_hub_to_hosts(&s->hub, &s->racks, &hosts[i]);
        racks[i] = &hosts[i];
    }
    const int64_t n = hpc_description_write(hubs, racks, &d->schemes[0].config, NULL, 0);
    REQUIRE(n > 0);
    *message = malloc((size_t)n);
    REQUIRE(*message != NULL);
    REQUIRE(hpc_description_write(hubs, racks, &d->schemes[0].config, *message, (size_t)n) == n);
    free(racks);
    free(hosts);
    free(hubs);
    return (size_t)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hpc_description *first = NULL, *second = NULL;
    unsigned char *once, *twice;
    if (size < 1) return 0;
    const int cores = 1 + data[0] % CORES;
    unsigned char *message = malloc(size); /* exactly so many, so that ASan sees what is read behind them */
    REQUIRE(message != NULL);
    memcpy(message, data + 1, size - 1);
    if (hpc_description_read(message, size - 1, cores, &first) == HPC_OK) {
        check_ranges(first, cores);
        REQUIRE(hpc_description_memory(first, WORKERS, HUBS, 1, -1) > 0);
        if (is_small(first) && hpc_description_plan(first, WORKERS, HUBS) == HPC_OK) {
            REQUIRE(hpc_description_memory(first, WORKERS, HUBS, 1, WORKERS) > 0);
            REQUIRE(hpc_description_descriptors(first, 1, 1, WORKERS, 1) > 0);
        }
        const size_t n = write_again(first, &once);
        REQUIRE(hpc_description_read(once, n, cores, &second) == HPC_OK);
        REQUIRE(write_again(second, &twice) == n && memcmp(once, twice, n) == 0);
        free(once);
        free(twice);
        hpc_description_free(first);
        hpc_description_free(second);
    } else {
        REQUIRE(first == NULL && strncmp(hpc_last_error()->message, "the description of an exchange: ", 32) == 0);
    }
    free(message);
    return 0;
}
