/* Sources of a put: windows, and any other memory, which is staged or registered for it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "verbs_ranks.h"

#if defined(HPC_HAVE_VERBS)

enum { PAGES = 32 << 10 };

/* Read-only, and of the program's own file. */
static const char constant[PAGES] = {"what the program's file holds, and zeros behind it"};

/* Every size around what is sent inline, signalled or paged, unaligned at both ends; not a byte beside it changes. */
static void put_sizes(rank *r, hpc_window *w, const char *src, const char *what, uint64_t round) {
    static const size_t sizes[] = {1,   7,   8,    63,   64,   65,   127,  128,  129,   255,
                                   256, 257, 1000, 4095, 4096, 4097, 8192, 9001, 20000, 30000};
    static const size_t shifts[] = {0, 1, 61};
    char *data = hpc_window_data(w);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (size_t k = 0; k < sizeof shifts / sizeof *shifts; k++) {
            size_t n = sizes[i], to = shifts[(i + k) % 3] + 64;
            round++;
            if (r->rank == 0) {
                CHECK_OK(hpc_put_signal(NULL, w, 1, src + shifts[k], n, to, 0, round));
                CHECK_OK(hpc_flush(NULL, w, 1, -1));
                CHECK_OK(hpc_wait_signal(w, 0, round, 1, -1, NULL));
                continue;
            }
            CHECK_OK(hpc_wait_signal(w, 0, round, 0, -1, NULL));
            for (size_t b = 0; b < to; b++) CHECK_EQ(data[b], 0x55);
            for (size_t b = to + n; b < to + n + 64; b++) CHECK_EQ(data[b], 0x55);
            if (memcmp(data + to, src + shifts[k], n) != 0) {
                fprintf(stderr, "%zu bytes from %s\n", n, what);
                check_fail_red("wrong bytes");
            }
            memset(data, 0x55, PAGES);
            CHECK_OK(hpc_put_signal(NULL, w, 0, NULL, 0, 0, 0, round));
        }
    }
}

static void sources(rank *r) {
    hpc_window *w, *other;
    char stack[PAGES], *heap = malloc(PAGES);
    CHECK(heap);
    CHECK_OK(hpc_window_create(r->context, 2 * PAGES, 1, NULL, -1, &w));
    CHECK_OK(hpc_window_create(r->context, PAGES, 1, NULL, -1, &other));
    char *locked = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(locked != MAP_FAILED);
    memset(hpc_window_data(w), 0x55, 2 * PAGES);
    char *own = (char *)hpc_window_data(w) + PAGES;
    ranks_fill(own, PAGES, 1);
    ranks_fill(hpc_window_data(other), PAGES, 2);
    ranks_fill(stack, PAGES, 3);
    ranks_fill(heap, PAGES, 4);
    ranks_fill(locked, PAGES, 5);
    CHECK_EQ(mprotect(locked, PAGES, PROT_READ), 0);
    CHECK_OK(hpc_barrier(r->context, -1));
    put_sizes(r, w, own, "the window itself", 0);
    put_sizes(r, w, hpc_window_data(other), "another window", 100);
    put_sizes(r, w, stack, "the stack", 200);
    put_sizes(r, w, heap, "the heap", 300);
    put_sizes(r, w, locked, "read-only memory", 400);
    put_sizes(r, w, constant, "the program", 500);
    hpc_window_free(other);
    hpc_window_free(w);
    CHECK_EQ(munmap(locked, PAGES), 0);
    free(heap);
}

enum { MANY = VERBS_IMM_WINDOWS + 16 };

/* A source in a window, whatever the window's number, needs no registration; one that ends beyond it does. */
static void regions(rank *r) {
    hpc_window *w[MANY];
    hpc_verbs *v = r->context->verbs;
    for (int i = 0; i < MANY; i++) CHECK_OK(hpc_window_create(r->context, 64, 0, NULL, -1, &w[i]));
    for (int i = 0; i < MANY; i++) {
        const verbs_window *own = w[i]->registered;
        char *data = own->memory->data;
        size_t n = own->memory->nbytes;
        for (int nic = 0; nic < v->nics->n; nic++) {
            CHECK(verbs_region_of(v, w[i], nic, data, n) == own->regions[nic]);
            CHECK(verbs_region_of(v, w[0], nic, data + 1, n - 1) == own->regions[nic]);
            CHECK(verbs_region_of(v, w[i], nic, data, n + 1) == NULL);
            CHECK(verbs_region_of(v, w[i], nic, data + n - 1, 2) == NULL);
            CHECK(verbs_region_of(v, w[i], nic, data - 1, 2) == NULL);
            CHECK(verbs_region_of(v, w[i], nic, data + 1, SIZE_MAX) == NULL);
        }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    for (int i = 0; i < MANY; i++) hpc_window_free(w[i]);
}

/* It is read in full though it goes right after the flush, or (pages of it) before. */
static void source_goes(rank *r) {
    enum { BYTES = 1 << 20 };
    hpc_window *w;
    int rounds = ranks_rounds(80);
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w));
    for (uint64_t k = 1; k <= (uint64_t)rounds; k++) {
        if (r->rank == 0) {
            char *src = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(src != MAP_FAILED);
            ranks_fill(src, BYTES, k);
            CHECK_OK(hpc_put_signal(NULL, w, 1, src, BYTES, 0, 0, k));
            if (k % 2) CHECK_OK(hpc_flush(NULL, w, 1, -1));
            CHECK_EQ(munmap(src, BYTES), 0); /* else the registration holds the pages */
            rank_await(r, 0, k);
        } else {
            CHECK_OK(hpc_wait_signal(w, 0, k, 0, -1, NULL));
            CHECK_EQ(ranks_first_wrong(hpc_window_data(w), BYTES, k), BYTES);
            rank_set(r, 0, k);
        }
    }
    if (r->rank == 0) {
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
        verbs_link *l = link_to(r, NULL, 1);
        verbs_link_go_on(l);
        pthread_mutex_lock(&l->sending);
        CHECK(l->loans == NULL || l->loans->next == NULL); /* the others have gone with their puts */
        pthread_mutex_unlock(&l->sending);
    }
    hpc_window_free(w);
}

/* Many under way at once, of every size about what is inline, staged and registered: the ring goes round many times,
 * and where it is full the next source is registered. */
static void staged(rank *r) {
    enum { BYTES = 6 << 20, MOST = 80 << 10 };
    char *src = malloc(BYTES);
    uint64_t random = 7;
    hpc_window *w;
    CHECK(src);
    CHECK_OK(hpc_window_create(r->context, BYTES, 1, NULL, -1, &w));
    for (uint64_t k = 1; k <= (uint64_t)ranks_rounds(12); k++) {
        ranks_fill(src, BYTES, k);
        for (size_t at = 0, n; r->rank == 0 && at < BYTES; at += n) {
            n = 1 + ranks_random(&random) % (ranks_random(&random) % 2 ? 1024 : MOST);
            if (n > BYTES - at) n = BYTES - at;
            CHECK_OK(hpc_put(NULL, w, 1, src + at, n, at));
        }
        if (r->rank == 0) {
            CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, k));
            CHECK_OK(hpc_flush(NULL, w, 1, -1));
        } else {
            CHECK_OK(hpc_wait_signal(w, 0, k, 0, -1, NULL));
            CHECK_EQ(ranks_first_wrong(hpc_window_data(w), BYTES, k), BYTES);
        }
        CHECK_OK(hpc_barrier(r->context, -1));
    }
    if (r->rank == 0) {
        verbs_link *l = link_to(r, NULL, 1);
        pthread_mutex_lock(&l->sending);
        verbs_source_reclaim(l, atomic_load(&l->done));
        CHECK(l->loans == NULL);
        CHECK_EQ(l->stage.head, l->stage.tail); /* all of it came back */
        CHECK(l->stage.head > BYTES / 4);
        pthread_mutex_unlock(&l->sending);
    }
    hpc_window_free(w);
    free(src);
}

/* While nobody sees that writes are done, what is staged stays within the ring; the sources behind it are registered.
 */
static void stage_full(rank *r) {
    enum { PUTS = 24, BYTES = 60000, STAGE = 1 << 20 };
    char *src = malloc(PUTS * BYTES);
    hpc_window *w;
    CHECK(src);
    CHECK_OK(hpc_window_create(r->context, PUTS * BYTES, 1, NULL, -1, &w));
    ranks_fill(src, PUTS * BYTES, 1);
    if (r->rank == 0) {
        verbs_link *l = link_to(r, NULL, 1);
        size_t n_staged = 0, n_registered = 0;
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
        while (atomic_exchange(&l->iface->reading, 1)) sched_yield();
        for (size_t i = 0; i < PUTS; i++) CHECK_OK(hpc_put(NULL, w, 1, src + i * BYTES, BYTES, i * BYTES));
        pthread_mutex_lock(&l->sending);
        for (const verbs_loan *loan = l->loans; loan != NULL; loan = loan->next) {
            n_staged += loan->region == NULL;
            n_registered += loan->region != NULL;
        }
        pthread_mutex_unlock(&l->sending);
        atomic_store(&l->iface->reading, 0);
        CHECK_EQ(n_staged + n_registered, PUTS);
        CHECK_EQ(n_staged, STAGE / BYTES);
        CHECK_OK(hpc_put_signal(NULL, w, 1, NULL, 0, 0, 0, 1));
        CHECK_OK(hpc_flush(NULL, w, 1, -1));
    } else {
        CHECK_OK(hpc_wait_signal(w, 0, 1, 0, -1, NULL));
        CHECK_EQ(ranks_first_wrong(hpc_window_data(w), PUTS * BYTES, 1), PUTS * BYTES);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
    free(src);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "sources", .size = 2, .run = sources, .where = RANKS_VERBS},
        {.name = "regions", .size = 2, .run = regions, .where = RANKS_VERBS},
        {.name = "source_goes", .size = 2, .run = source_goes, .where = RANKS_VERBS},
        {.name = "staged", .size = 2, .run = staged, .where = RANKS_VERBS},
        {.name = "staged_sleepy", .size = 2, .run = staged, .where = RANKS_VERBS, .sleepy = true},
        {.name = "stage_full", .size = 2, .run = stage_full, .where = RANKS_VERBS},
        {0},
    };
    return ranks_main(argc, argv, cases);
}

#endif
