#define _GNU_SOURCE
#include "check.h"

check_conditions check_now = {0, 1, false};

/* A sanitizer's report has an exit status of its own, whatever else the process would have said. */
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__tsan_default_options(void);

const char *__asan_default_options(void) {
    return "exitcode=66";
}

const char *__ubsan_default_options(void) {
    return "exitcode=66";
}

/* intercept_send=0: csrc/transport/tcp/orders.c notes the reads of its sends itself, before the peer can answer. */
const char *__tsan_default_options(void) {
    return "exitcode=66:intercept_send=0";
}

void check_tell_conditions(const check_conditions *c) {
    double load[3] = {0};
    getloadavg(load, 3);
    fprintf(stderr, "seed=%llu load=%.2f,%.2f,%.2f ranks=%d\n", c->seed, load[0], load[1], load[2], c->ranks);
}

static void end(int status) {
    if (!check_now.told) check_tell_conditions(&check_now);
    exit(status);
}

void check_fail_red(const char *why) {
    fprintf(stderr, "RED: %s\n", why);
    end(CHECK_RED);
    abort();
}

void check_fail(const char *text) {
    static const char *const compare_bytes[] = {"memcmp(", "ranks_first_wrong(", "same_floats("};
    for (size_t i = 0; i < sizeof compare_bytes / sizeof *compare_bytes; i++) {
        if (strstr(text, compare_bytes[i])) check_fail_red("wrong bytes");
    }
    end(CHECK_FAILED);
    abort();
}
