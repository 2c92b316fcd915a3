/* How a test fails: what it says of its conditions, and which failures are red. The parent runs this program once for
 * each fault. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

static void slow(rank *r) {
    CHECK(r->rank < 0);
}

static void wrong_bytes(rank *r) {
    unsigned char bytes[64] = {0};
    CHECK_EQ(ranks_first_wrong(bytes, sizeof bytes, (uint64_t)r->rank), sizeof bytes);
}

static void crash(rank *r) {
    (void)r;
    raise(SIGABRT);
}

static void hang(rank *r) {
    (void)r;
    pause();
}

static void leave_a_file(rank *r) {
    (void)r;
    CHECK(open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0);
}

static void pass(rank *r) {
    (void)r;
}

static const ranks_case faults[] = {
    {.name = "slow", .size = 3, .run = slow},
    {.name = "wrong_bytes", .size = 3, .run = wrong_bytes},
    {.name = "crash", .size = 3, .run = crash},
    {.name = "hang", .size = 3, .run = hang},
    {.name = "leave_a_file", .size = 3, .run = leave_a_file},
    {.name = "pass", .size = 3, .run = pass},
    {0},
};

/* Runs one fault and reads all that it prints: it must end with this status, and say this. */
static void check_fault(const char *fault, const char *mode, int expected, const char *says) {
    static char text[1 << 16];
    int ends[2], status;
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
        setenv("HPC_TEST_SEED", "4711", 1);
        if (strcmp(fault, "hang") == 0) setenv("HPC_TEST_PATIENCE", "0.01", 1);
        execl("/proc/self/exe", "test_check", mode, fault, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0) n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    bool ok = WIFEXITED(status) && WEXITSTATUS(status) == expected && strstr(text, says);
    ok &= (strstr(text, "RED: ") != NULL) == (expected == CHECK_RED);
    const char *conditions = strcmp(mode, "loop-seed") == 0 ? "seed=4711 load=" : "seed=0 load=";
    ok &= (strstr(text, conditions) && strstr(text, " ranks=3\n")) == (expected != 0);
    if (!ok) fprintf(stderr, "%s %s: status %d:\n%s", fault, mode, status, text);
    CHECK(ok);
}

int main(int argc, char **argv) {
    if (argc > 1) return ranks_main(argc, argv, faults);
    const char *processes = RANKS_TSAN ? "shm-threads" : "shm-processes";
    check_fault("pass", processes, 0, "1 passed");
    check_fault("slow", processes, CHECK_FAILED, "CHECK(r->rank < 0)");
    check_fault("slow", "loop-seed", CHECK_FAILED, "CHECK(r->rank < 0)");
    check_fault("wrong_bytes", processes, CHECK_RED, "RED: wrong bytes");
    check_fault("wrong_bytes", "loop", CHECK_RED, "RED: wrong bytes");
    check_fault("crash", processes, CHECK_RED, "killed by signal 6");
    check_fault("hang", processes, CHECK_RED, "no end in time");
    check_fault("leave_a_file", processes, CHECK_RED, "RED: something is left");
    return 0;
}
