#define _GNU_SOURCE
#include "service/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/host.h"
#include "control/net.h"

static const char op_connect[] = "connect_service";

static const size_t MOST_BYTES = 64u << 20; /* of a frame from a hub: the addresses of all ranks */
static const double LOOK_SECONDS = 1;       /* for the rest of a frame that has begun */

static int fail_broken(const hpc_hub_link *link, const char *why) {
    return hpc_fail_transport(op_connect, "tcp", -1, "the connection to the hub at %s broke: %s", link->hub->text, why);
}

/* ---- bytes ---- */

static int read_all(const hpc_hub_link *link, void *into, size_t nbytes, double deadline) {
    unsigned char *at = into;
    while (nbytes > 0) {
        const ssize_t n = recv(link->fd, at, nbytes, MSG_DONTWAIT);
        if (n > 0) {
            at += n, nbytes -= (size_t)n;
            continue;
        }
        if (n == 0) return fail_broken(link, "it hung up");
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return fail_broken(link, strerror(errno));
        if (hpc_net_await(link->fd, POLLIN, deadline) != HPC_OK)
            return hpc_fail(HPC_ERR_TIMEOUT, op_connect, "the hub at %s did not answer in time", link->hub->text);
    }
    return HPC_OK;
}

/* Writes all parts; changes them. */
static int write_all(const hpc_hub_link *link, struct iovec *parts, int n, double deadline) {
    while (n > 0) {
        const struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR && errno != EAGAIN) return fail_broken(link, strerror(errno));
        if (sent < 0 && errno == EAGAIN && hpc_net_await(link->fd, POLLOUT, deadline) != HPC_OK)
            return hpc_fail(HPC_ERR_TIMEOUT, op_connect, "the hub at %s takes no bytes", link->hub->text);
        for (; n > 0 && sent >= 0 && (size_t)sent >= parts->iov_len; parts++, n--) sent -= (ssize_t)parts->iov_len;
        if (n > 0 && sent > 0) parts->iov_base = (char *)parts->iov_base + sent, parts->iov_len -= (size_t)sent;
    }
    return HPC_OK;
}

/* ---- connecting ---- */

static int fail_without_hub(const hpc_hub_place *hub, const char *why) {
    return hpc_fail_transport(op_connect, "tcp", -1, "there is no hub at %s: %s", hub->text, why);
}

static int endpoint_of(const struct sockaddr *address, int port, hpc_endpoint *e) {
    *e = (hpc_endpoint){.port = (uint16_t)port};
    if (address->sa_family == AF_INET)
        e->family = 4, memcpy(e->ip, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
    else if (address->sa_family == AF_INET6)
        e->family = 6, memcpy(e->ip, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
    return e->family != 0;
}

/* Connects to the first address of the host that answers. */
static int reach(hpc_hub_link *link, double deadline) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(link->hub->host, NULL, &hints, &found), last = EAFNOSUPPORT;
    if (error != 0) return fail_without_hub(link->hub, gai_strerror(error));
    for (const struct addrinfo *one = found; one != NULL && link->fd < 0; one = one->ai_next) {
        hpc_endpoint endpoint;
        if (endpoint_of(one->ai_addr, link->hub->port, &endpoint))
            hpc_net_connect(&endpoint, deadline, &link->fd, &last);
    }
    freeaddrinfo(found);
    return link->fd >= 0 ? HPC_OK : fail_without_hub(link->hub, strerror(last));
}

static int lead(const struct sockaddr *address, socklen_t nbytes, int port, hpc_context *context, int rank) {
    char ip[INET6_ADDRSTRLEN + IF_NAMESIZE];
    if (getnameinfo(address, nbytes, ip, sizeof ip, NULL, 0, NI_NUMERICHOST) != 0 || strchr(ip, '%') != NULL)
        return HPC_OK;
    return hpc_context_lead(context, rank, ip, port);
}

int hpc_hub_lead(const hpc_hub_link *link, const hpc_hub_place *hub, hpc_context *context, int rank) {
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct sockaddr_storage peer;
    socklen_t nbytes = sizeof peer;
    int status = HPC_OK;
    if (link != NULL) {
        if (getpeername(link->fd, (struct sockaddr *)&peer, &nbytes) != 0) return HPC_OK;
        return lead((struct sockaddr *)&peer, nbytes, hub->port, context, rank);
    }
    if (getaddrinfo(hub->host, NULL, &hints, &found) != 0) return HPC_OK;
    for (const struct addrinfo *one = found; one != NULL && status == HPC_OK; one = one->ai_next)
        status = lead(one->ai_addr, one->ai_addrlen, hub->port, context, rank);
    freeaddrinfo(found);
    return status;
}

static int prove(hpc_hub_link *link, const char *space, hpc_token token, double deadline) {
    unsigned char hello[HPC_PROOF_HELLO], claim[HPC_PROOF_CLAIM], answer[HPC_PROOF_ANSWER], nonce[HPC_PROOF_NONCE];
    int status = read_all(link, hello, sizeof hello, deadline);
    if (status != HPC_OK) return status;
    if (!hpc_proof_is_hello(hello))
        return hpc_fail(HPC_ERR_CONFIG, op_connect, "%s is no hub of this version of hpcomm, %s", link->hub->text,
                        hpc_version());
    if (getrandom(nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        return hpc_fail(HPC_ERR_UNSUPPORTED, op_connect, "the kernel gives no random bytes: %s", strerror(errno));
    hpc_proof_claim(hello, space, nonce, token, claim);
    status = write_all(link, &(struct iovec){claim, sizeof claim}, 1, deadline);
    if (status == HPC_OK) status = read_all(link, answer, sizeof answer, deadline);
    if (status != HPC_OK) return status;
    if (!hpc_proof_is_answer(hello, claim, answer, token))
        return hpc_fail(HPC_ERR_AUTH, op_connect, "the hub at %s has no namespace '%s' with this token",
                        link->hub->text, space);
    hpc_seal_make(hello, claim, token, 0, &link->seal);
    return HPC_OK;
}

int hpc_hub_link_open(hpc_hub_link *link, const hpc_hub_place *hub, const char *space, hpc_token token,
                      double deadline) {
    static const int on = 1;
    *link = (hpc_hub_link){.fd = -1, .hub = hub};
    int status = reach(link, deadline);
    if (status != HPC_OK) return status;
    setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(link->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    status = prove(link, space, token, deadline);
    if (status != HPC_OK) hpc_hub_link_close(link);
    return status;
}

void hpc_hub_link_close(hpc_hub_link *link) {
    if (link->fd >= 0) close(link->fd);
    for (int i = 0; i < link->n_notices; i++) free(link->notices[i]);
    free(link->notices);
    free(link->frame);
    *link = (hpc_hub_link){.fd = -1, .hub = link->hub};
}

/* ---- frames ---- */

int hpc_hub_link_send(hpc_hub_link *link, char kind, const void *body, size_t nbytes, double deadline) {
    hpc_envelope envelope;
    if (link->fd < 0) return fail_broken(link, "it is closed");
    hpc_seal_close(&link->seal, kind, body, nbytes, &envelope);
    struct iovec parts[] = {{envelope.before, sizeof envelope.before},
                            {(void *)(uintptr_t)body, nbytes},
                            {envelope.after, sizeof envelope.after}};
    return write_all(link, parts, 3, deadline);
}

static int take_frame(hpc_hub_link *link, double deadline) {
    unsigned char head[HPC_SEAL_HEAD];
    int status = read_all(link, head, sizeof head, deadline);
    if (status != HPC_OK) return status;
    const size_t nbytes = hpc_seal_length(head, MOST_BYTES);
    if (nbytes == 0)
        return hpc_fail(HPC_ERR_AUTH, op_connect, "the hub at %s sent bytes that fail their proof: a frame's length",
                        link->hub->text);
    if (nbytes > link->cap) {
        free(link->frame);
        link->frame = malloc(nbytes);
        link->cap = link->frame == NULL ? 0 : nbytes;
        if (link->frame == NULL)
            return hpc_fail(HPC_ERR_MEMORY, op_connect, "no memory for a frame of %zu bytes", nbytes);
    }
    status = read_all(link, link->frame, nbytes, deadline);
    if (status != HPC_OK) return status;
    if (!hpc_seal_open(&link->seal, link->frame, nbytes))
        return hpc_fail(HPC_ERR_AUTH, op_connect, "the hub at %s sent bytes that fail their proof: a frame was changed",
                        link->hub->text);
    link->nbytes = nbytes - 1 - HPC_SEAL_TAG;
    return HPC_OK;
}

/* Keeps a sentence. Without memory it is lost. */
static void note(hpc_hub_link *link, const char *text, size_t nbytes) {
    char **more = realloc(link->notices, ((size_t)link->n_notices + 1) * sizeof *more);
    if (more == NULL) return;
    link->notices = more;
    char *copy = strndup(text, nbytes);
    if (copy != NULL) link->notices[link->n_notices++] = copy;
}

static const struct {
    const char *name;
    int status;
} kinds[] = {{"InvalidArgument", HPC_ERR_INVALID},  {"ConfigError", HPC_ERR_CONFIG},
             {"NotSupported", HPC_ERR_UNSUPPORTED}, {"TransportError", HPC_ERR_TRANSPORT},
             {"PeerFailed", HPC_ERR_PEER},          {"Timeout", HPC_ERR_TIMEOUT},
             {"AuthError", HPC_ERR_AUTH},           {"OutOfMemory", HPC_ERR_MEMORY}};

enum { KINDS = sizeof kinds / sizeof *kinds };

const char *hpc_refusal_kind(int status) {
    int i = 0;
    while (i < KINDS - 1 && kinds[i].status != status) i++;
    return kinds[i].name;
}

int hpc_fail_refusal(const char *body, size_t nbytes) {
    const char *end = memchr(body, '\n', nbytes);
    const size_t n = end == NULL ? 0 : (size_t)(end - body), rest = end == NULL ? 0 : nbytes - n - 1;
    const int shown = rest < HPC_REFUSAL_TEXT ? (int)rest : HPC_REFUSAL_TEXT;
    int status = HPC_ERR_CONFIG;
    for (int i = 0; i < KINDS; i++)
        if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, body, n) == 0) status = kinds[i].status;
    if (status == HPC_ERR_TRANSPORT)
        return hpc_fail_transport(op_connect, "tcp", -1, "%.*s", shown, end == NULL ? "" : end + 1);
    return hpc_fail(status, op_connect, "%.*s", shown, end == NULL ? "the hub refused, without a reason" : end + 1);
}

/* Records the refusal in the last frame. */
static int fail_refused(const hpc_hub_link *link) {
    return hpc_fail_refusal((const char *)link->frame + 1, link->nbytes);
}

int hpc_hub_link_receive(hpc_hub_link *link, char kind, const unsigned char **body, size_t *nbytes, double deadline) {
    if (link->fd < 0) return fail_broken(link, "it is closed");
    for (;;) {
        const int status = take_frame(link, deadline);
        if (status != HPC_OK) return status;
        const char its = (char)link->frame[0];
        if (its == 'X') return fail_refused(link);
        if (its == kind) break;
        if (its != 'N')
            return hpc_fail(HPC_ERR_AUTH, op_connect, "the hub at %s sent a frame of kind %#x for %c", link->hub->text,
                            (unsigned)link->frame[0], kind);
        note(link, (const char *)link->frame + 1, link->nbytes);
    }
    *body = link->frame + 1;
    *nbytes = link->nbytes;
    return HPC_OK;
}

static int has_input(const hpc_hub_link *link) {
    struct pollfd p = {.fd = link->fd, .events = POLLIN};
    return !link->ended && link->fd >= 0 && poll(&p, 1, 0) > 0;
}

int hpc_hub_link_look(hpc_hub_link *link) {
    while (has_input(link)) {
        int status = take_frame(link, hpc_now() + LOOK_SECONDS);
        if (status == HPC_OK && link->frame[0] == 'X') status = fail_refused(link);
        if (status == HPC_OK && link->frame[0] != 'N')
            status = hpc_fail(HPC_ERR_AUTH, op_connect, "the hub at %s sent an answer to no request", link->hub->text);
        if (status != HPC_OK) {
            const char *why = hpc_last_error()->message;
            link->ended = 1;
            note(link, why, strlen(why));
            return status;
        }
        note(link, (const char *)link->frame + 1, link->nbytes);
    }
    return HPC_OK;
}
