/* Proves that a sanitizer build sees: each planted fault must end its process with the right report. Skipped in a plain
 * build. The parent runs this same program once for each fault; memory faults go through the library's own copies. */
#define _GNU_SOURCE
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

static void *volatile lost;

static void put_freed(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 64, 1, NULL, -1, &w));
    char *volatile src = malloc(64);
    memset(src, 1, 64);
    free(src);
    CHECK_OK(hpc_put(NULL, w, r->rank, src, 64, 0));
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    hpc_window_free(w);
}

static void put_past_end(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, 1 << 20, 1, NULL, -1, &w));
    char *volatile src = calloc(1, (1 << 20) - 8); /* long enough for any faster way of copying */
    CHECK_OK(hpc_put(NULL, w, r->rank, src, 1 << 20, 0));
    CHECK_OK(hpc_flush(NULL, w, -1, -1));
    free(src);
    hpc_window_free(w);
}

static void leak(rank *r) {
    (void)r;
    lost = malloc(4321);
    lost = NULL;
}

static void overflow(rank *r) {
    volatile int big = INT_MAX;
    volatile int sum = big + r->size;
    (void)sum;
}

/* The reader does not wait for the signal. */
static void race(rank *r) {
    hpc_window *w;
    CHECK_OK(hpc_window_create(r->context, (size_t)r->arg, 1, NULL, -1, &w));
    volatile char *mine = hpc_window_data(w);
    char *src = malloc((size_t)r->arg);
    unsigned sum = 0;
    for (uint64_t i = 1; i <= 200; i++) {
        if (r->rank == 0) {
            memset(src, (int)i, (size_t)r->arg);
            CHECK_OK(hpc_put_signal(NULL, w, 1, src, (size_t)r->arg, 0, 0, i));
            CHECK_OK(hpc_wait_signal(w, 0, i, 1, -1, NULL));
        } else {
            for (int j = 0; j < r->arg; j += 8) sum += (unsigned)mine[j];
            CHECK_OK(hpc_wait_signal(w, 0, i, 0, -1, NULL));
            CHECK_OK(hpc_put_signal(NULL, w, 0, NULL, 0, 0, 0, i));
        }
    }
    rank_set(r, r->rank, sum);
    free(src);
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_window_free(w);
}

static const ranks_case faults[] = {
    {.name = "put_freed", .size = 1, .run = put_freed},
    {.name = "put_past_end", .size = 1, .run = put_past_end},
    {.name = "leak", .size = 1, .run = leak},
    {.name = "overflow", .size = 1, .run = overflow},
    {.name = "race", .size = 2, .run = race, .arg = 64},
    {.name = "race_large", .size = 2, .run = race, .arg = 1 << 20},
    {0},
};

/* Runs one fault in one mode and reads all that it prints. Returns whether it failed with that report. */
static bool caught(const char *fault, const char *mode, const char *report) {
    int ends[2], status;
    static char text[1 << 20];
    size_t n = 0;
    ssize_t got;
    CHECK_EQ(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        setenv("TSAN_OPTIONS", "halt_on_error=1", 1); /* one report is enough */
        execl("/proc/self/exe", "test_sanitizer", mode, fault, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0) n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == CHECK_RED && strstr(text, report);
    printf("%-14s %-14s %s: %s\n", fault, mode, report, ok ? "caught" : "NOT CAUGHT");
    if (!ok) fprintf(stderr, "%s\n", text);
    return ok;
}

int main(int argc, char **argv) {
    if (argc > 1) return ranks_main(argc, argv, faults);
    bool ok = true;
    if (RANKS_ASAN) {
        static const char *const modes[] = {"shm-processes", "shm-threads", "loop"};
        for (int i = 0; i < 3; i++) {
            ok &= caught("put_freed", modes[i], "AddressSanitizer: heap-use-after-free");
            ok &= caught("put_past_end", modes[i], "AddressSanitizer: heap-buffer-overflow");
            ok &= caught("leak", modes[i], "LeakSanitizer: detected memory leaks");
        }
        ok &= caught("overflow", "shm-processes", "runtime error: signed integer overflow");
    } else if (RANKS_TSAN) {
        static const char *const modes[] = {"shm-threads", "loop", "loop-seed-1"};
        for (int i = 0; i < 3; i++) {
            /* With a seed, deliveries under the inbox's lock hide a race of a few bytes most of the time. */
            if (i < 2) ok &= caught("race", modes[i], "ThreadSanitizer: data race");
            ok &= caught("race_large", modes[i], "ThreadSanitizer: data race");
        }
    } else {
        puts("skipped: a plain build has no sanitizer to prove");
        return 77;
    }
    return ok ? 0 : 1;
}
