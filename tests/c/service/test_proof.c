/* The proof of a token, frames, handles and answers: the bytes of hpcomm/service/proof.py, and what is refused. */
#define _GNU_SOURCE
#include "check.h"
#include "service/proof.h"
#include "service/request.h"

#include <unistd.h>

static const char token_text[] = "a token of the tests", nonce_text[] = "0123456789abcdef0123456789abcdef";
static const hpc_token token = {token_text, sizeof token_text - 1};

static unsigned char hello[HPC_PROOF_HELLO] = "hpchub03", claim[HPC_PROOF_CLAIM];

static void make_claim(void) {
    unsigned char nonce[HPC_PROOF_NONCE];
    for (int i = 0; i < HPC_PROOF_NONCE; i++) {
        hello[HPC_PROTOCOL_BYTES + i] = (unsigned char)i;
        nonce[i] = (unsigned char)(100 + i);
    }
    hpc_proof_claim(hello, "vision", nonce, token, claim);
}

static void from_hex(const char *hex, unsigned char *bytes) {
    unsigned value;
    for (size_t i = 0; hex[2 * i] != 0; i++) {
        CHECK_EQ(sscanf(hex + 2 * i, "%2x", &value), 1);
        bytes[i] = (unsigned char)value;
    }
}

static void check_bytes(const void *found, const char *hex) {
    unsigned char expected[256];
    from_hex(hex, expected);
    CHECK(memcmp(found, expected, strlen(hex) / 2) == 0);
}

static void test_proofs(void) {
    unsigned char answer[HPC_PROOF_ANSWER], secret[HPC_DIGEST_BYTES];
    make_claim();
    CHECK(hpc_proof_is_hello(hello));
    CHECK(!hpc_proof_is_hello((const unsigned char *)"hpchub01 and sixteen bytes"));
    check_bytes(claim + HPC_PROOF_CLAIM - HPC_DIGEST_BYTES,
                "952caa4478579c6e3e4c0b554d426772ea11c6ef7b142ec758a351a06bb02396");
    from_hex("01021937920e968348706a487ed44863eb11ddba920cc2dfd7085bff8189da5939", answer);
    CHECK(hpc_proof_is_answer(hello, claim, answer, token));
    CHECK(!hpc_proof_is_answer(hello, claim, answer, (hpc_token){token_text, sizeof token_text - 2}));
    answer[0] = 2;
    CHECK(!hpc_proof_is_answer(hello, claim, answer, token));
    memset(answer, 0, sizeof answer); /* a refusal */
    CHECK(!hpc_proof_is_answer(hello, claim, answer, token));
    hpc_proof_secret(token, nonce_text, secret);
    check_bytes(secret, "035ed73676725b07f87e3fd1353e46030b3abcd6a9d8990554c9f55f42add7f6");
}

static void test_frames(void) {
    hpc_seal own, hub;
    hpc_envelope e;
    unsigned char frame[64];
    make_claim();
    hpc_seal_make(hello, claim, token, 0, &own);
    hpc_seal_close(&own, 'J', "first", 5, &e);
    check_bytes(e.before, "000000164a");
    check_bytes(e.after, "bf1141d318faae095eef4c8c140913b4");
    hpc_seal_close(&own, 'D', NULL, 0, &e);
    check_bytes(e.before, "0000001144");
    check_bytes(e.after, "3a815426299f05da9f04bb14decb76c3");

    from_hex("000000174e647261696e73662bac531d2a677a93bea4f061b5541b", frame);
    const size_t n = hpc_seal_length(frame, 6);
    CHECK_EQ(n, 23);
    CHECK_EQ(hpc_seal_length(frame, 5), 0);
    CHECK_EQ(hpc_seal_length((const unsigned char *)"\0\0\0\x10", 100), 0); /* shorter than a tag */
    CHECK_EQ(hpc_seal_length((const unsigned char *)"\xff\xff\xff\xff", 1 << 20), 0);
    hpc_seal_make(hello, claim, token, 1, &hub);
    CHECK(!hpc_seal_open(&hub, frame + HPC_SEAL_HEAD, n)); /* of the other role */
    for (size_t i = 0; i < n; i++) {
        frame[HPC_SEAL_HEAD + i] ^= 1;
        CHECK(!hpc_seal_open(&own, frame + HPC_SEAL_HEAD, n));
        frame[HPC_SEAL_HEAD + i] ^= 1;
    }
    CHECK(hpc_seal_open(&own, frame + HPC_SEAL_HEAD, n));
    CHECK(!hpc_seal_open(&own, frame + HPC_SEAL_HEAD, n)); /* once more */
}

static void test_handles(void) {
    static hpc_job_place place;
    char text[HPC_HANDLE_BYTES];
    static const char handle[] = "hub://hub7:7700,[fd00::2]:1/vision/res.net-1/0123456789abcdef0123456789abcdef";
    CHECK_OK(hpc_handle_read(handle, &place));
    CHECK_EQ(place.n_hubs, 2);
    CHECK(strcmp(place.hubs[1].host, "fd00::2") == 0 && place.hubs[1].port == 1 && place.hubs[0].port == 7700);
    CHECK(strcmp(place.space, "vision") == 0 && strcmp(place.job, "res.net-1") == 0);
    CHECK_OK(hpc_handle_write(&place, text, sizeof text));
    CHECK(strcmp(text, handle) == 0);
    for (size_t cap = 0; cap < sizeof handle; cap++) CHECK_STATUS(hpc_handle_write(&place, text, cap), HPC_ERR_INVALID);
    CHECK_OK(hpc_handle_write(&place, text, sizeof handle));
    static const char *const wrong[] = {
        "",
        "hub://h:1",
        "http://h:1/a/b/0123456789abcdef0123456789abcdef",
        "hub://h:1/a/b/0123456789abcdef0123456789abcdeg",
        "hub://h:1/a/b/0123456789abcdef0123456789abcdef0",
        "hub://h:1/a/b/0123456789abcdef0123456789abcdef/",
        "hub://h:1/a b/c/0123456789abcdef0123456789abcdef",
        "hub://h:1//c/0123456789abcdef0123456789abcdef",
        "hub://h:1/-a/c/0123456789abcdef0123456789abcdef",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(hpc_handle_read(wrong[i], &place), HPC_ERR_CONFIG);
        CHECK_MESSAGE("the handle of a service is '");
    }
    static const char *const places[] = {"h", "h:", ":1", "h:1x", "h:65536", "h:123456", "a/b:1", "h:1,", ""};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        CHECK_STATUS(hpc_hub_places_read(places[i], strlen(places[i]), &place), HPC_ERR_INVALID);
        CHECK_MESSAGE("the address of a hub is '");
    }
    CHECK_STATUS(hpc_hub_places_read("h:1,h:01", 8, &place), HPC_ERR_INVALID);
    CHECK_MESSAGE("hubs is 'h:1,h:01': must name each hub once");
}

static void test_answers(void) {
    static const char answer[] = "{\"cores\": 16, \"job\": \"job-1\"}";
    char text[8];
    int64_t number = 0;
    CHECK(hpc_answer_number(answer, sizeof answer - 1, "cores", 16, &number) && number == 16);
    CHECK(!hpc_answer_number(answer, sizeof answer - 1, "cores", 15, &number));
    CHECK(!hpc_answer_number(answer, sizeof answer - 1, "job", 99, &number));
    CHECK(!hpc_answer_number(answer, sizeof answer - 2, "cores", 16, &number));
    CHECK(hpc_answer_text(answer, sizeof answer - 1, "job", text, sizeof text) && strcmp(text, "job-1") == 0);
    CHECK(!hpc_answer_text(answer, sizeof answer - 1, "job", text, 5));
    CHECK(!hpc_answer_text(answer, sizeof answer - 1, "cores", text, sizeof text));
    CHECK(!hpc_answer_text(answer, sizeof answer - 1, "nonce", text, sizeof text));
}

/* A service that nobody has made. */
static void test_arguments(void) {
    hpc_service *service = NULL;
    hpc_exchange *exchange = NULL;
    char handle[8];
    unsetenv("HPCOMM_SECRET_FILE");
    CHECK_STATUS(hpc_service_create("h:1", "a", NULL, NULL, 0, 1, handle, sizeof handle), HPC_ERR_INVALID);
    CHECK_MESSAGE("token is NULL, and HPCOMM_SECRET_FILE is not set: give the namespace's token");
    CHECK_STATUS(hpc_service_create("h:1", "a", NULL, "", 0, 1, handle, sizeof handle), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_service_create("h", "a", NULL, "t", 1, 1, handle, sizeof handle), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_service_create("h:1", "a b", NULL, "t", 1, 1, handle, sizeof handle), HPC_ERR_INVALID);
    CHECK_MESSAGE("namespace is 'a b': must be 1 to 63 letters, digits, '.', '_' or '-'");
    CHECK_STATUS(hpc_service_create("h:1", "a", "", "t", 1, 1, handle, sizeof handle), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_service_create(NULL, "a", NULL, "t", 1, 1, handle, sizeof handle), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_service_connect("", "t", 1, 0, 1, NULL, &service), HPC_ERR_CONFIG);
    CHECK(service == NULL);
    hpc_config config = {.size = 1};
    CHECK_STATUS(hpc_service_connect("hub://h:1/a/b/0123456789abcdef0123456789abcdef", "t", 1, 0, 1, &config, &service),
                 HPC_ERR_INVALID);
    CHECK_STATUS(hpc_service_exchange(NULL, NULL, NULL, NULL, 1, &exchange), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_service_close(NULL), HPC_ERR_INVALID);
    CHECK_STATUS(hpc_service_abort(NULL, "why"), HPC_ERR_INVALID);
    CHECK(hpc_service_context(NULL) == NULL && hpc_service_cores(NULL) == 0 && hpc_service_notice(NULL, 0) == NULL);
    hpc_service_free(NULL);
}

int main(void) {
    test_proofs();
    test_frames();
    test_handles();
    test_answers();
    test_arguments();
    return 0;
}
