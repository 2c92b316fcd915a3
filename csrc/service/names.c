#define _GNU_SOURCE
#include "service/names.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char op_connect[] = "connect_service";

enum { LEAST_SECRET = 16, MOST_SECRET = 4096, SHOWN = 200, MOST_PORT = 65535 };

static int is_alphanumeric(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

int hpc_is_name(const char *text) {
    size_t n = 0;
    for (; text[n] != 0; n++)
        if (n >= HPC_NAME_TEXT - 1 || !(is_alphanumeric(text[n]) || (n > 0 && strchr("._-", text[n]) != NULL)))
            return 0;
    return n > 0;
}

int hpc_is_nonce(const char *text) {
    return strlen(text) == HPC_NONCE_TEXT - 1 && strspn(text, "0123456789abcdef") == HPC_NONCE_TEXT - 1;
}

int hpc_name_check(const char *what, const char *text) {
    if (text != NULL && hpc_is_name(text)) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, op_connect, "%s is '%.*s': must be 1 to 63 letters, digits, '.', '_' or '-'", what,
                    SHOWN, text == NULL ? "" : text);
}

/* ---- addresses and handles ---- */

/* Reads "HOST:PORT" or "[IPV6]:PORT", of n bytes. Returns whether the text is an address. */
static int read_place(const char *text, size_t n, hpc_hub_place *place) {
    const char *colon = memrchr(text, ':', n);
    if (colon == NULL) return 0;
    const char *host = text;
    size_t length = (size_t)(colon - text), digits = n - length - 1;
    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') host++, length -= 2;
    if (length == 0 || length >= sizeof place->host || digits == 0 || digits > 5) return 0;
    if (memchr(host, '/', length) != NULL) return 0;
    place->port = 0;
    for (size_t i = 1; i <= digits; i++) {
        if (colon[i] < '0' || colon[i] > '9') return 0;
        place->port = 10 * place->port + (colon[i] - '0');
    }
    if (place->port > MOST_PORT) return 0;
    memcpy(place->host, host, length);
    place->host[length] = 0;
    const char *form = strchr(place->host, ':') != NULL ? "[%s]:%d" : "%s:%d";
    snprintf(place->text, sizeof place->text, form, place->host, place->port);
    return 1;
}

static int is_known(const hpc_job_place *place, const char *text) {
    for (int i = 0; i < place->n_hubs; i++)
        if (strcmp(place->hubs[i].text, text) == 0) return 1;
    return 0;
}

int hpc_hub_places_read(const char *text, size_t nbytes, hpc_job_place *place) {
    const char *end = text + nbytes;
    const int shown = nbytes < SHOWN ? (int)nbytes : SHOWN;
    place->n_hubs = 0;
    for (const char *at = text; at <= end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const size_t n = (size_t)((comma == NULL ? end : comma) - at);
        if (place->n_hubs == HPC_MOST_HUBS)
            return hpc_fail(HPC_ERR_INVALID, op_connect, "hubs is '%.*s': a job has 1 to %d hubs", shown, text,
                            HPC_MOST_HUBS);
        hpc_hub_place *next = &place->hubs[place->n_hubs];
        if (!read_place(at, n, next))
            return hpc_fail(HPC_ERR_INVALID, op_connect, "the address of a hub is '%.*s': must be HOST:PORT",
                            n < SHOWN ? (int)n : SHOWN, at);
        if (is_known(place, next->text))
            return hpc_fail(HPC_ERR_INVALID, op_connect, "hubs is '%.*s': must name each hub once", shown, text);
        place->n_hubs++;
        at += n + 1;
    }
    return HPC_OK;
}

static int take_part(const char **at, char end, char *into, size_t cap) {
    const char *stop = strchrnul(*at, '/');
    const size_t n = (size_t)(stop - *at);
    if (*stop != end || n >= cap) return 0;
    memcpy(into, *at, n);
    into[n] = 0;
    *at = stop + (end != 0);
    return 1;
}

int hpc_handle_read(const char *text, hpc_job_place *place) {
    static const char scheme[] = "hub://";
    if (text == NULL) text = getenv("HPCOMM_SERVICE");
    if (text == NULL) text = "";
    const char *hubs = text + sizeof scheme - 1, *at = NULL;
    int good = strncmp(text, scheme, sizeof scheme - 1) == 0 && (at = strchr(hubs, '/')) != NULL;
    const size_t n = good ? (size_t)(at - hubs) : 0;
    at += good;
    good = good && take_part(&at, '/', place->space, sizeof place->space) && hpc_is_name(place->space);
    good = good && take_part(&at, '/', place->job, sizeof place->job) && hpc_is_name(place->job);
    good = good && take_part(&at, 0, place->nonce, sizeof place->nonce) && hpc_is_nonce(place->nonce);
    if (!good)
        return hpc_fail(HPC_ERR_CONFIG, op_connect,
                        "the handle of a service is '%.*s': must be the text that create_service returned, or that "
                        "`hpcomm hub create` printed, hub://HOST:PORT/NAMESPACE/JOB/NONCE",
                        SHOWN, text);
    return hpc_hub_places_read(hubs, n, place);
}

int hpc_handle_write(const hpc_job_place *place, char *text, size_t cap) {
    size_t used = 0;
    int n = snprintf(text, cap, "hub://");
    for (int i = 0; i < place->n_hubs && n >= 0; i++) {
        used += (size_t)n;
        n = snprintf(used < cap ? text + used : NULL, used < cap ? cap - used : 0, "%s%s", i > 0 ? "," : "",
                     place->hubs[i].text);
    }
    used += (size_t)n;
    used += (size_t)snprintf(used < cap ? text + used : NULL, used < cap ? cap - used : 0, "/%s/%s/%s", place->space,
                             place->job, place->nonce);
    if (used < cap) return HPC_OK;
    return hpc_fail(HPC_ERR_INVALID, "create_service", "cap is %zu: the handle has %zu bytes, with its 0", cap,
                    used + 1);
}

/* ---- the token ---- */

static int refuse_file(const char *path, const char *why) {
    return hpc_fail(HPC_ERR_CONFIG, op_connect, "HPCOMM_SECRET_FILE=%s %s", path, why);
}

/* Reads the open file; takes the newline at its end away. */
static int read_token(const char *path, int fd, unsigned char *bytes, size_t *nbytes) {
    char why[SHOWN + HPC_HOST_TEXT];
    struct stat status;
    size_t n = 0;
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return refuse_file(path, "is not a regular file");
    if (status.st_mode & 077)
        return hpc_fail(HPC_ERR_CONFIG, op_connect,
                        "HPCOMM_SECRET_FILE=%s may be read or written by others (mode %04o): chmod 600 %s", path,
                        (unsigned)(status.st_mode & 0777), path);
    for (ssize_t got = 1; got > 0 && n < MOST_SECRET + 2; n += (size_t)got) {
        got = read(fd, bytes + n, MOST_SECRET + 2 - n);
        if (got >= 0) continue;
        snprintf(why, sizeof why, "cannot be read: %s", strerror(errno));
        return refuse_file(path, why);
    }
    if (n > 0 && bytes[n - 1] == '\n') n--;
    *nbytes = n;
    if (n >= LEAST_SECRET && n <= MOST_SECRET) return HPC_OK;
    return hpc_fail(HPC_ERR_CONFIG, op_connect,
                    "HPCOMM_SECRET_FILE=%s holds %zu bytes: must be %d to %d, e.g. head -c 32 /dev/urandom > %s", path,
                    n, LEAST_SECRET, MOST_SECRET, path);
}

int hpc_token_find(const void *data, size_t nbytes, hpc_token *token, unsigned char **memory) {
    const char *path = getenv("HPCOMM_SECRET_FILE");
    char why[SHOWN];
    *memory = NULL;
    *token = (hpc_token){data, nbytes};
    if (data != NULL && nbytes > 0) return HPC_OK;
    if (data != NULL) return hpc_fail(HPC_ERR_INVALID, op_connect, "token has 0 bytes: give the namespace's token");
    if (path == NULL || path[0] == 0)
        return hpc_fail(HPC_ERR_INVALID, op_connect,
                        "token is NULL, and HPCOMM_SECRET_FILE is not set: give the namespace's token");
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, sizeof why, "cannot be read: %s", strerror(errno));
        return refuse_file(path, why);
    }
    unsigned char *bytes = malloc(MOST_SECRET + 2);
    int status = bytes == NULL ? hpc_fail(HPC_ERR_MEMORY, op_connect, "no memory for the token")
                               : read_token(path, fd, bytes, &nbytes);
    close(fd);
    if (status != HPC_OK) {
        free(bytes);
        return status;
    }
    *memory = bytes;
    *token = (hpc_token){bytes, nbytes};
    return HPC_OK;
}
