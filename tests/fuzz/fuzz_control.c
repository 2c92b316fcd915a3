/* A link of the control channel, used by a peer that is proven but ill; a stranger who greets or asks; a rank that
 * answers who asks. The input: what kind of link, how much of the
 * end is missing, how what comes is cut, then headers of frames as they travel; payloads are made up here. On a Unix
 * link each frame is a packet, perhaps with a descriptor. What has come is held against what the headers say. */
#define _GNU_SOURCE
#include "fuzz.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "control/channel.h"

enum {
    CONTROL = 5, /* bytes before the first header */
    INPUT = 1664,
    HEADER = sizeof(hpc_mesh_frame),
    FRAMES = INPUT / HEADER + 1,
    MAGIC = 0x68706331,
    PEER = 1,
    RANKS = 3
};

/* Of the first byte. */
enum { PACKETS = 1, GREETS = 2, HANGS_UP = 4, DESCRIPTORS = 8, ANSWERS = 16 };

typedef struct message {
    uint64_t sequence, total, got;
    const char *op;
    const unsigned char *at;
    uint32_t type;
} message;

static struct {
    hpc_mesh_frame frames[FRAMES];
    size_t ends[FRAMES], n;
    unsigned char bytes[FRAMES * (HEADER + HPC_FRAME_BYTES)];
    size_t nbytes;
    unsigned char data[FRAMES * HPC_FRAME_BYTES]; /* of the messages */
    size_t ndata;
    message messages[FRAMES], ballots[FRAMES], coming;
    size_t n_messages, n_ballots;
    message news, here;
    uint64_t over, served;
    uint32_t words[HPC_WORDS];
    int is_coming, is_wrong, has_bell, has_left, has_failed, has_dropped, has_news, has_look, has_here;
    char reason[HPC_REASON_BYTES];
} sent;

static _Atomic int states[RANKS];
static _Atomic char departing[RANKS];
static char reasons[RANKS][HPC_REASON_BYTES];
static hpc_bell bell;
static hpc_link links[RANKS];
static hpc_group group = {.size = RANKS, .states = states, .departing = departing, .reasons = reasons, .bell = &bell};
static hpc_control control = {.group = &group,
                              .links = links,
                              .lock = PTHREAD_MUTEX_INITIALIZER,
                              .on_handle = hpc_handles_take,
                              .on_spread = hpc_spread_take,
                              .poke_fd = -1};

/* ---- what the input says -------------------------------------------------------------------------------------------
 */

static void write_frames(const uint8_t *data, size_t size) {
    for (; size >= HEADER; data += HEADER, size -= HEADER) {
        hpc_mesh_frame *f = &sent.frames[sent.n];
        memcpy(f, data, HEADER);
        memcpy(sent.bytes + sent.nbytes, data, HEADER);
        sent.nbytes += HEADER;
        for (uint32_t i = 0; i < f->nbytes && i < HPC_FRAME_BYTES; i++)
            sent.bytes[sent.nbytes++] = (unsigned char)('a' + ((i + (i >> 6) + sent.n) & 15));
        /* the rank of a GONE and of a SAY, and the state of a GONE */
        const int32_t of[] = {(int32_t)(f->sequence & 3), (int32_t)(f->sequence >> 2 & 7)};
        if ((f->type == HPC_MESH_GONE || f->type == HPC_MESH_SAY) && f->nbytes >= sizeof of)
            memcpy(sent.bytes + sent.nbytes - (f->nbytes < HPC_FRAME_BYTES ? f->nbytes : HPC_FRAME_BYTES), of,
                   sizeof of);
        sent.ends[sent.n++] = sent.nbytes;
    }
}

static int is_sound(const hpc_mesh_frame *f) {
    return f->magic == MAGIC && f->rank >= 0 && f->rank < RANKS && f->nbytes <= HPC_FRAME_BYTES &&
           f->offset <= f->total && f->nbytes <= f->total - f->offset && memchr(f->op, 0, sizeof f->op) != NULL &&
           memchr(f->call, 0, sizeof f->call) != NULL;
}

/* Whether a message may go on, or begin, with this piece. */
static int is_next_piece(const hpc_mesh_frame *f) {
    message *m = &sent.coming;
    if (f->offset == 0) {
        *m = (message){f->sequence, f->total, 0, f->op, sent.data + sent.ndata, f->type};
        const uint64_t most = (uint64_t)1 << 32;
        sent.is_coming = f->total <= (f->type == HPC_MESH_BATCH ? hpc_batch_most(RANKS, most) : most);
    }
    return sent.is_coming && f->type == m->type && f->sequence == m->sequence && f->total == m->total &&
           f->offset == m->got;
}

/* Whether this rank believes what goes from neighbour to neighbour; it does not look at it if the peer is gone. */
static int may_spread(const hpc_mesh_frame *f) {
    const int rank = (int)(f->sequence & 3), state = (int)(f->sequence >> 2 & 7);
    const uint64_t caller = f->sequence >> 32, called = f->sequence & 0xffffffff;
    const int is_gone = sent.has_left || sent.has_failed;
    if (f->offset != 0 || f->nbytes != f->total) return 0;
    if (f->type == HPC_MESH_CALL)
        return f->total == 0 && (is_gone || (caller < RANKS && called < RANKS && caller != called));
    if (f->type == HPC_MESH_GONE)
        return f->total == sizeof(hpc_gone) &&
               (is_gone || (rank < RANKS && (state == HPC_PEER_LEFT || state == HPC_PEER_FAILED)));
    return f->total >= sizeof(hpc_said_head) &&
           (is_gone || (f->total >= sizeof(hpc_said_head) + 8 && f->total <= sizeof(hpc_shown_rank) && rank < RANKS));
}

static int may_come(const hpc_mesh_frame *f, int flags) {
    if (!is_sound(f)) return 0;
    if (f->type == HPC_MESH_HELLO) return (flags & PACKETS) && (flags & DESCRIPTORS) && !sent.has_bell;
    if (f->rank != PEER) return 0;
    if (f->type == HPC_MESH_GATHER || f->type == HPC_MESH_BATCH) return is_next_piece(f);
    if (f->type == HPC_MESH_HERE) return f->offset == 0 && f->nbytes == f->total && f->total % 8 == 0;
    if (f->type == HPC_MESH_BALLOT) return f->offset == 0 && f->nbytes == f->total;
    if (f->type == HPC_MESH_NEWS) return f->offset == 0 && f->nbytes == f->total && f->total == sizeof(hpc_shown_rank);
    if (f->type == HPC_MESH_GIVE) return f->offset == 0 && f->nbytes == f->total && f->total == sizeof(hpc_given);
    if (f->type == HPC_MESH_PUT) return f->offset == 0 && f->nbytes == f->total && f->total >= sizeof(hpc_put_head);
    if (f->type == HPC_MESH_WANT) return f->offset == 0 && f->nbytes == 0 && f->total == 0;
    if (f->type == HPC_MESH_ABORT || f->type == HPC_MESH_BYE) return f->nbytes == sizeof(hpc_last_word);
    if (f->type == HPC_MESH_WORD) return f->nbytes == 0 && f->sequence >> 32 < HPC_WORDS;
    if (f->type == HPC_MESH_GONE || f->type == HPC_MESH_SAY || f->type == HPC_MESH_CALL) return may_spread(f);
    if (f->type == HPC_MESH_DROPPED) return f->nbytes == 0 && f->sequence < RANKS;
    return f->nbytes == 0 && (f->type == HPC_MESH_BEAT || f->type == HPC_MESH_EDGE || f->type == HPC_MESH_DROP ||
                              f->type == HPC_MESH_REVOKE || f->type == HPC_MESH_LOOK || f->type == HPC_MESH_OVER);
}

static void take(const hpc_mesh_frame *f, const unsigned char *payload) {
    int is_first = !sent.has_left && !sent.has_failed;
    if (f->type == HPC_MESH_HELLO) sent.has_bell = 1;
    if (f->type == HPC_MESH_BYE && is_first) sent.has_left = 1;
    if (f->type == HPC_MESH_ABORT && is_first) { /* the culprits' ranks in these payloads are out of range */
        sent.has_failed = 1;
        memcpy(sent.reason, payload + offsetof(hpc_last_word, why), HPC_REASON_BYTES);
        sent.reason[HPC_REASON_BYTES - 1] = '\0';
    }
    if (f->type == HPC_MESH_DROP && is_first) {
        sent.has_failed = 1;
        strcpy(sent.reason, "it heard nothing from this rank for too long and goes on without it");
    }
    if (f->type == HPC_MESH_DROP) sent.has_dropped = 1;
    if (f->type == HPC_MESH_LOOK) sent.has_look = 1;
    if (f->type == HPC_MESH_WORD) sent.words[f->sequence >> 32] = (uint32_t)f->sequence;
    if (f->type == HPC_MESH_NEWS) sent.has_news = 1;
    if (f->type == HPC_MESH_NEWS) sent.news = (message){f->sequence, f->total, f->nbytes, f->op, payload, f->type};
    if (f->type == HPC_MESH_HERE) sent.has_here = 1;
    if (f->type == HPC_MESH_HERE) sent.here = (message){f->sequence, f->total, f->nbytes, f->op, payload, f->type};
    if (f->type == HPC_MESH_OVER) sent.over = f->sequence;
    if (f->type == HPC_MESH_BYE) sent.served = f->sequence;
    if (f->type == HPC_MESH_BALLOT)
        sent.ballots[sent.n_ballots++] = (message){f->sequence, f->total, f->nbytes, f->op, payload, f->type};
    if (f->type != HPC_MESH_GATHER && f->type != HPC_MESH_BATCH) return;
    memcpy(sent.data + sent.ndata, payload, f->nbytes);
    sent.ndata += f->nbytes;
    sent.coming.got += f->nbytes;
    if (sent.coming.got < sent.coming.total) return;
    sent.messages[sent.n_messages++] = sent.coming;
    sent.is_coming = 0;
}

/* Of what is sent, nbytes altogether. A packet that is cut short is none, a header in a stream is looked at alone. */
static void expect(size_t nbytes, int flags) {
    for (size_t k = 0, start = 0; k < sent.n && start < nbytes && !sent.is_wrong; start = sent.ends[k++]) {
        int is_whole = sent.ends[k] <= nbytes;
        if (!is_whole && ((flags & PACKETS) || start + HEADER > nbytes)) {
            sent.is_wrong = (flags & PACKETS) != 0;
            return;
        }
        sent.is_wrong = !may_come(&sent.frames[k], flags);
        if (is_whole && sent.frames[k].type == HPC_MESH_PUT) sent.is_wrong = 1; /* this rank has no window */
        if (is_whole && !sent.is_wrong) take(&sent.frames[k], sent.bytes + start + HEADER);
    }
}

/* ---- the peer ------------------------------------------------------------------------------------------------------
 */

/* A block as a bell's owner sends it. */
static int make_bell(void) {
    int fd = memfd_create("bell", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(fd >= 0 && ftruncate(fd, 1 << 16) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return fd;
}

static int passed = -1; /* the descriptor that goes along */

static void send_bytes(int fd, const void *data, size_t nbytes, int flags) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } room = {{0}};
    struct iovec part = {(void *)(uintptr_t)data, nbytes};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (flags & DESCRIPTORS) {
        m.msg_control = room.bytes;
        m.msg_controllen = sizeof room.bytes;
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        *h = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(h), &passed, sizeof passed);
    }
    REQUIRE(sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)nbytes);
}

static int has_more(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

/* Until nothing is left to read; NULL, or why the link has ended. */
static const char *read_all(int fd, size_t most) {
    const char *why = NULL;
    while (why == NULL && has_more(fd)) why = hpc_link_read(&control, PEER, most);
    return why;
}

static const char *run_link(const int *pair, const uint8_t *cuts, size_t nbytes, size_t most, int flags) {
    const char *why = NULL;
    size_t done = 0, k = 0;
    for (size_t turn = 0; done < nbytes && why == NULL; turn++) {
        size_t cut = flags & PACKETS ? sent.ends[k++] - done : fuzz_cut(cuts, 2, turn);
        if (cut > nbytes - done) cut = nbytes - done;
        send_bytes(pair[1], sent.bytes + done, cut, flags);
        done += cut;
        why = read_all(pair[0], most);
    }
    REQUIRE((why != NULL) == sent.is_wrong);
    if (why != NULL || !(flags & HANGS_UP)) return why;
    shutdown(pair[1], SHUT_WR);
    why = read_all(pair[0], most);
    REQUIRE(why != NULL && strlen(why) < HPC_REASON_BYTES);
    return why;
}

/* ---- what came -----------------------------------------------------------------------------------------------------
 */

static void check_message(const hpc_message *got, const message *m, int flags) {
    REQUIRE(got->type == m->type && got->sequence == m->sequence && got->total == m->total && got->got == m->got);
    REQUIRE(strcmp(got->op, m->op) == 0 && memcmp(got->data, m->at, m->got) == 0);
    REQUIRE((got->fd >= 0 && fcntl(got->fd, F_GETFD) >= 0) == !!(flags & DESCRIPTORS));
    REQUIRE(got->room <= 2 * got->got + HPC_FRAME_BYTES);
}

static void check_inbox(hpc_message *inbox, const message *messages, size_t n, int flags) {
    size_t k = 0;
    for (hpc_message *m = inbox, *next; m != NULL; m = next, k++) {
        next = m->next;
        REQUIRE(k < n);
        check_message(m, &messages[k], flags);
        hpc_message_free(m);
    }
    REQUIRE(k == n);
}

static void check_link(int flags) {
    hpc_link *l = &links[PEER];
    check_inbox(l->inbox, sent.messages, sent.n_messages, flags & ~DESCRIPTORS);
    check_inbox(l->ballots, sent.ballots, sent.n_ballots, flags & ~DESCRIPTORS); /* none belongs to a ballot */
    REQUIRE(l->dropped == sent.has_dropped);
    REQUIRE(l->asks == sent.has_look);
    for (int i = 0; i < HPC_WORDS; i++) REQUIRE(hpc_control_told(&control, PEER, i) == sent.words[i]);
    REQUIRE(l->over == sent.over && l->served == sent.served);
    check_inbox(l->here, &sent.here, (size_t)sent.has_here, flags & ~DESCRIPTORS);
    check_inbox(l->news, &sent.news, (size_t)sent.has_news, flags & ~DESCRIPTORS);
    if (!sent.is_wrong && sent.is_coming && l->incoming != NULL)
        check_message(l->incoming, &sent.coming, flags & ~DESCRIPTORS);
    REQUIRE(sent.is_wrong || sent.is_coming || l->incoming == NULL);
    REQUIRE((l->bell != NULL) == sent.has_bell);
    int state = sent.has_left ? HPC_PEER_LEFT : sent.has_failed ? HPC_PEER_FAILED : HPC_PEER_ALIVE;
    if (sent.has_left || sent.has_failed || sent.has_bell) REQUIRE(states[PEER] == state);
    if (sent.has_failed) REQUIRE(strcmp(reasons[PEER], sent.reason) == 0);
    hpc_handles_free(&control, PEER);
    hpc_spread_free(&control);
    control.gone = NULL;
    l->last = NULL;
    hpc_message_free(l->incoming);
    hpc_message_free(l->arriving);
    hpc_memory_release(l->bell);
}

/* The question's sender gets one answer, of this rank or the one in question; and what came as the name is only looked
 * up. */
static void check_answer(const int *pair, int rank, const unsigned char *name) {
    const hpc_mesh_frame *f = &sent.frames[0];
    hpc_job_answer answer;
    REQUIRE(rank == (f->type == HPC_MESH_ABOUT ? f->rank : -1));
    REQUIRE(f->type == HPC_MESH_ABOUT || memcmp(name, sent.bytes + HEADER, HPC_COOKIE_BYTES) == 0);
    hpc_jobs_answer(&control, pair[0], rank, name);
    REQUIRE(hpc_link_read_answer(pair[1], &answer, sizeof answer) == HPC_OK);
    REQUIRE(hpc_jobs_check(&answer) == HPC_OK && answer.asked == -1 && answer.of.size == RANKS);
    REQUIRE(answer.of.rank == (rank > 0 ? rank : 0) && answer.of.told_by == (rank > 0 ? 0 : -1));
}

/* And an asker that is answered by anything: what it keeps is bounded, and its texts end. */
static void check_asker(const int *pair, size_t nbytes) {
    hpc_job_answer answer;
    if (nbytes == 0) return;
    send_bytes(pair[1], sent.bytes, nbytes < sent.ends[0] ? nbytes : sent.ends[0], 0);
    int status = hpc_link_read_answer(pair[0], &answer, sizeof answer);
    REQUIRE(status == HPC_OK || status == HPC_ERR_AUTH);
    for (size_t i = 0; i < sizeof answer; i++) ((unsigned char *)&answer)[i] = nbytes == 0 ? 0 : sent.bytes[i % nbytes];
    if (hpc_jobs_check(&answer) != HPC_OK) return;
    const hpc_shown_rank *s = &answer.of;
    REQUIRE(s->rank >= 0 && s->rank < s->size && s->n_waits >= 0 && s->n_waits <= HPC_SHOWN_WAITS);
    REQUIRE(strlen(s->job) < sizeof s->job && strlen(s->host) < sizeof s->host && strlen(s->gone) < sizeof s->gone);
    REQUIRE(s->told_by >= -1 && s->told_by < s->size && s->age >= -1 && s->age < 1e12 && s->unheard >= 0);
    for (int i = 0; i < s->n_waits; i++) {
        REQUIRE(s->waits[i].n_ranks <= s->size && strlen(s->waits[i].op) < sizeof s->waits[i].op);
        for (int r = 0; r < HPC_SHOWN_RANKS; r++) REQUIRE(s->waits[i].ranks[r] >= 0 && s->waits[i].ranks[r] < s->size);
    }
}

static void check_hello(const int *pair, size_t nbytes, int flags) {
    unsigned char secret[HPC_COOKIE_BYTES];
    int rank = -2, got = -1;
    const hpc_mesh_frame *f = &sent.frames[0];
    size_t end = sent.n > 0 && nbytes > sent.ends[0] ? sent.ends[0] : nbytes;
    if (end > 0) send_bytes(pair[1], sent.bytes, end, flags);
    int status = hpc_link_read_hello(pair[0], RANKS, &rank, secret, &got);
    int is_hello = end > 0 && end == sent.ends[0] && is_sound(f) && f->type == HPC_MESH_HELLO &&
                   f->nbytes == HPC_COOKIE_BYTES && (flags & DESCRIPTORS);
    int asks = end > 0 && end == sent.ends[0] && is_sound(f) && !(flags & DESCRIPTORS) &&
               ((f->type == HPC_MESH_STATUS && f->nbytes == HPC_COOKIE_BYTES) ||
                (f->type == HPC_MESH_ABOUT && f->nbytes == 0));
    REQUIRE(status == (end == 0 ? HPC_IN_PROGRESS : is_hello ? HPC_OK : asks ? HPC_ERR_INVALID : HPC_ERR_AUTH));
    REQUIRE((got >= 0) == is_hello);
    if (asks) check_answer(pair, rank, secret);
    if (!is_hello) return;
    REQUIRE(rank == f->rank && memcmp(secret, sent.bytes + HEADER, sizeof secret) == 0);
    close(got);
}

/* ---- a run ---------------------------------------------------------------------------------------------------------
 */

static int next_descriptor(void) {
    int fd = dup(passed);
    REQUIRE(fd >= 0 && close(fd) == 0);
    return fd;
}

static void start(int fd, int flags) {
    if (control.tree.size == 0)
        REQUIRE(hpc_rank_tree_make(&control.tree, RANKS, (const int[RANKS]){0, 0, 0}) == HPC_OK);
    memset(departing, 0, sizeof departing);
    memset(&links[PEER], 0, sizeof links[PEER]);
    states[PEER] = HPC_PEER_JOINING;
    links[0].fd = links[PEER + 1].fd = -1;
    links[PEER].fd = fd;
    group.watch.connected = 1;
    links[PEER].kind = flags & PACKETS ? HPC_LINK_UNIX : HPC_LINK_TCP;
    sent.n = sent.nbytes = sent.ndata = sent.n_messages = sent.n_ballots = 0;
    sent.is_coming = sent.is_wrong = sent.has_bell = sent.has_left = sent.has_failed = sent.has_dropped = 0;
    sent.has_news = sent.has_look = sent.has_here = 0;
    sent.over = sent.served = 0;
    memset(sent.words, 0, sizeof sent.words);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int pair[2], flags = size > 0 ? data[0] : 0;
    if (size < CONTROL || size > INPUT) return 0;
    if (passed < 0) passed = make_bell();
    if (flags & (GREETS | ANSWERS)) flags |= PACKETS;
    if (!(flags & PACKETS)) flags &= ~DESCRIPTORS;
    REQUIRE(socketpair(AF_UNIX, flags & PACKETS ? SOCK_SEQPACKET : SOCK_STREAM, 0, pair) == 0);
    int next = next_descriptor();
    start(pair[0], flags);
    write_frames(data + CONTROL, size - CONTROL);
    size_t missing = 16u * data[1], nbytes = sent.nbytes - (missing < sent.nbytes ? missing : sent.nbytes);

    if (flags & ANSWERS) {
        check_asker(pair, nbytes);
    } else if (flags & GREETS) {
        check_hello(pair, nbytes, flags);
    } else {
        expect(nbytes, flags);
        run_link(pair, data + 3, nbytes, data[2] == 0 ? SIZE_MAX : data[2] * 16u, flags);
        check_link(flags);
    }
    REQUIRE(next_descriptor() == next); /* none is left open */
    close(pair[0]);
    close(pair[1]);
    return 0;
}
