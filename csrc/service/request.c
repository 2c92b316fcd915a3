#include "service/request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char op_connect[] = "connect_service";

enum { REQUEST_BYTES = 1024, DIGITS = 18 };

/* ---- answers ---- */

typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_blanks(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
}

static int take(cursor *c, char wanted) {
    skip_blanks(c);
    if (c->at == c->end || *c->at != wanted) return 0;
    c->at++;
    return 1;
}

/* Takes a text in quotes; *text and *n get its bytes, without the quotes. */
static int take_text(cursor *c, const char **text, size_t *n) {
    if (!take(c, '"')) return 0;
    const char *quote = memchr(c->at, '"', (size_t)(c->end - c->at));
    if (quote == NULL || memchr(c->at, '\\', (size_t)(quote - c->at)) != NULL) return 0;
    *text = c->at;
    *n = (size_t)(quote - c->at);
    c->at = quote + 1;
    return 1;
}

/* Takes a text or a number. The value of a text has its quotes. */
static int take_value(cursor *c, const char **value, size_t *n) {
    const char *text;
    size_t length;
    skip_blanks(c);
    *value = c->at;
    if (c->at < c->end && *c->at == '"') {
        if (!take_text(c, &text, &length)) return 0;
    } else {
        while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    }
    *n = (size_t)(c->at - *value);
    return *n > 0;
}

/* Reads a whole object. Returns whether it is one and has a member of this name; the first one counts. */
static int find(const void *answer, size_t nbytes, const char *name, const char **value, size_t *n) {
    cursor c = {answer, (const char *)answer + nbytes};
    int found = 0;
    if (!take(&c, '{')) return 0;
    do {
        const char *key, *its;
        size_t length, its_length;
        if (!take_text(&c, &key, &length) || !take(&c, ':') || !take_value(&c, &its, &its_length)) return 0;
        if (!found && length == strlen(name) && memcmp(key, name, length) == 0)
            found = 1, *value = its, *n = its_length;
    } while (take(&c, ','));
    if (!take(&c, '}')) return 0;
    skip_blanks(&c);
    return found && c.at == c.end;
}

int hpc_answer_number(const void *answer, size_t nbytes, const char *name, int64_t most, int64_t *value) {
    const char *digits;
    size_t n;
    int64_t number = 0;
    if (!find(answer, nbytes, name, &digits, &n) || *digits == '"' || n > DIGITS) return 0;
    for (size_t i = 0; i < n; i++) number = 10 * number + (digits[i] - '0');
    if (number > most) return 0;
    *value = number;
    return 1;
}

int hpc_answer_text(const void *answer, size_t nbytes, const char *name, char *text, size_t cap) {
    const char *quoted;
    size_t n;
    if (!find(answer, nbytes, name, &quoted, &n) || *quoted != '"' || n - 2 >= cap) return 0;
    if (memchr(quoted, 0, n) != NULL) return 0;
    memcpy(text, quoted + 1, n - 2);
    text[n - 2] = 0;
    return 1;
}

/* ---- requests ---- */

static int fail_answer(const hpc_hub_link *link, const char *request) {
    return hpc_fail(HPC_ERR_AUTH, op_connect, "the hub at %s sent no answer to %s", link->hub->text, request);
}

/* Sends a request, of length n as snprintf returned it. */
static int say(hpc_hub_link *link, const char *request, int n, double deadline) {
    if (n < 0 || n >= REQUEST_BYTES)
        return hpc_fail(HPC_ERR_INVALID, op_connect, "a request to the hub at %s has %d bytes, more than %d",
                        link->hub->text, n, REQUEST_BYTES - 1);
    return hpc_hub_link_send(link, 'J', request, (size_t)n, deadline);
}

/* "NAME", or null for a text that is empty. */
static const char *quoted(const char *name, char text[HPC_NAME_TEXT + 2]) {
    snprintf(text, HPC_NAME_TEXT + 2, name[0] == 0 ? "null" : "\"%s\"", name);
    return text;
}

int hpc_request_create(hpc_hub_link *link, int index, hpc_job_place *place, double deadline) {
    char request[REQUEST_BYTES], job[HPC_NAME_TEXT + 2], nonce[HPC_NAME_TEXT + 2];
    const unsigned char *answer;
    size_t nbytes;
    const int n = snprintf(request, sizeof request,
                           "{\"op\": \"create\", \"job\": %s, \"nonce\": %s, \"index\": %d, \"hubs\": %d, "
                           "\"version\": \"%s\"}",
                           quoted(place->job, job), quoted(place->nonce, nonce), index, place->n_hubs, hpc_version());
    int status = say(link, request, n, deadline);
    if (status == HPC_OK) status = hpc_hub_link_receive(link, 'J', &answer, &nbytes, deadline);
    if (status != HPC_OK) return status;
    if (!hpc_answer_text(answer, nbytes, "job", place->job, sizeof place->job) || !hpc_is_name(place->job) ||
        !hpc_answer_text(answer, nbytes, "nonce", place->nonce, sizeof place->nonce) || !hpc_is_nonce(place->nonce))
        return fail_answer(link, "create");
    return HPC_OK;
}

int hpc_request_keep(hpc_hub_link *link, double deadline) {
    static const char keep[] = "{\"op\": \"keep\"}";
    return say(link, keep, (int)sizeof keep - 1, deadline);
}

/* Copies the names of transports without blanks. Returns whether they are such names, and fit. */
static int copy_transports(const char *from, char into[HPC_NAME_TEXT]) {
    size_t n = 0;
    for (; from != NULL && *from != 0; from++) {
        if (*from == ' ') continue;
        if (n >= HPC_NAME_TEXT - 1 || !((*from >= 'a' && *from <= 'z') || *from == ',')) return 0;
        into[n++] = *from;
    }
    into[n] = 0;
    return 1;
}

/* Writes a number with a point: printf has the comma of some locales. */
static const char *decimal(double value, char text[HPC_NAME_TEXT]) {
    enum { PARTS = 1000000000 };
    const double most = 1e9, size = fabs(value) < most ? fabs(value) : most;
    long long whole = (long long)size, parts = llround((size - (double)whole) * PARTS);
    if (parts == PARTS) whole++, parts = 0;
    snprintf(text, HPC_NAME_TEXT, "%s%lld.%09lld", value < 0 ? "-" : "", whole, parts);
    return text;
}

int hpc_request_join(hpc_hub_link *link, const hpc_job_place *place, const hpc_joining *says, hpc_granted *granted,
                     double deadline) {
    enum { MOST_CORES = 1 << 16 };
    int64_t cores, resumes, user;
    char request[REQUEST_BYTES], transports[HPC_NAME_TEXT], texts[3][HPC_NAME_TEXT];
    const unsigned char *answer;
    size_t nbytes;
    if (!copy_transports(says->transports, transports))
        return hpc_fail(HPC_ERR_CONFIG, op_connect, "transports is \"%.200s\": must be names of transports",
                        says->transports);
    if (!isfinite(says->seconds) || !isfinite(says->timeout) || !isfinite(says->silence))
        return hpc_fail(HPC_ERR_CONFIG, op_connect,
                        "init_timeout is %g, timeout %g and silence %g: at a hub they must be finite", says->seconds,
                        says->timeout, says->silence);
    const int n = snprintf(request, sizeof request,
                           "{\"op\": \"join\", \"job\": \"%s\", \"nonce\": \"%s\", \"rank\": %d, \"size\": %d, "
                           "\"version\": \"%s\", \"seconds\": %s, \"timeout\": %s, \"transport\": \"%s\", "
                           "\"silence\": %s, \"tcp_streams\": %d, \"resumes\": 1, \"user\": %u}",
                           place->job, place->nonce, says->rank, says->size, hpc_version(),
                           decimal(says->seconds, texts[0]), decimal(says->timeout, texts[1]), transports,
                           decimal(says->silence, texts[2]), says->tcp_streams, (unsigned)geteuid());
    int status = say(link, request, n, deadline);
    if (status == HPC_OK) status = hpc_hub_link_receive(link, 'J', &answer, &nbytes, deadline);
    if (status != HPC_OK) return status;
    const int good = hpc_answer_number(answer, nbytes, "cores", MOST_CORES, &cores) && cores > 0 &&
                     hpc_answer_number(answer, nbytes, "resume", 1, &resumes) &&
                     hpc_answer_number(answer, nbytes, "user", UINT32_MAX, &user);
    if (!good) return fail_answer(link, "join");
    *granted = (hpc_granted){(int)cores, (int)resumes, (uint32_t)user};
    return HPC_OK;
}

int hpc_request_bye(hpc_hub_link *link, double deadline) {
    static const char bye[] = "{\"op\": \"bye\"}";
    return say(link, bye, (int)sizeof bye - 1, deadline);
}
