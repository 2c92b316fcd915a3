/* The immediate of a signal: what it says of window, signal and value, and how a value is found again by its last bits.
 */
#include "check.h"
#include "transport/verbs/parts.h"

#if defined(HPC_HAVE_VERBS)

enum { FAR = (1 << VERBS_VALUE_BITS) - 1, SIGNALS = 1 << VERBS_SIGNAL_BITS };

static const uint64_t nows[] = {
    0,          1,           511,        512,        513,        1023,           1024,
    1025,       123456,      UINT32_MAX, 1ull << 32, 1ull << 40, INT64_MAX,      1ull << 63,
    UINT64_MAX, -1023ull,    -1024ull,   -512ull,    -511ull,    UINT64_MAX - 1, 0x123456789abcdef0u,
    1ull << 10, 1000ull - 1, 1ull << 53,
};

/* Every value that follows the last one closely, also over 2^64, is found. */
static void near_values(void) {
    for (size_t i = 0; i < sizeof nows / sizeof *nows; i++) {
        for (uint64_t far = 0; far <= FAR; far++) {
            uint64_t now = nows[i], value = now + far;
            CHECK(verbs_imm_value(verbs_imm_signal(1, 0, value), now) == value);
            CHECK(verbs_imm_value(verbs_imm_signal(VERBS_IMM_WINDOWS - 1, SIGNALS - 1, value), now) == value);
        }
    }
}

/* Values that are further away, or older, would be taken for others: these are sent whole. */
static void far_values(void) {
    for (size_t i = 0; i < sizeof nows / sizeof *nows; i++) {
        uint64_t now = nows[i];
        CHECK(verbs_imm_value(verbs_imm_signal(1, 0, now + FAR + 1), now) == now);
        CHECK(verbs_imm_value(verbs_imm_signal(1, 0, now + FAR + 2), now) == now + 1);
        CHECK(verbs_imm_value(verbs_imm_signal(1, 0, now - 1), now) == now + FAR);
    }
}

/* Window, signal and value leave each other alone, and it is never taken for an event of the caller's. */
static void parts(void) {
    static const int signals[] = {0, 1, 2, 1023, 1024, 4095, 4096, SIGNALS - 2, SIGNALS - 1};
    static const uint64_t values[] = {0, 1, 511, 512, 1023, 1024, UINT32_MAX, UINT64_MAX};
    for (uint32_t window = 0; window < VERBS_IMM_WINDOWS; window++) {
        for (size_t s = 0; s < sizeof signals / sizeof *signals; s++) {
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                uint32_t imm = verbs_imm_signal(window, signals[s], values[v]);
                CHECK(verbs_imm_is_signal(imm));
                CHECK_EQ(verbs_imm_window(imm), window);
                CHECK_EQ(verbs_imm_signal_of(imm), signals[s]);
                CHECK(verbs_imm_value(imm, values[v]) == values[v]);
            }
        }
    }
}

static void events(void) {
    static const uint32_t plain[] = {0, 1, 1u << 29, 3u << 29, 6u << 29, (7u << 29) - 1, 0x7fffffff};
    static const uint32_t taken[] = {7u << 29, (7u << 29) + 1, UINT32_MAX - 1, UINT32_MAX};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) CHECK(!verbs_imm_is_signal(plain[i]));
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) CHECK(verbs_imm_is_signal(taken[i]));
}

int main(void) {
    near_values();
    far_values();
    parts();
    events();
    return 0;
}

#else

int main(void) {
    fprintf(stderr, "skipped: built without rdma-core's headers\n");
    return 77;
}

#endif
