#define _GNU_SOURCE
#include "jobs.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BATCH = 256, MOST_NAMES = 1 << 16, NAME_CHARS = 2 * HPC_COOKIE_BYTES, LISTENS = 0x10000 };

static const uint32_t VERSION = HPC_VERSION_MAJOR << 16 | HPC_VERSION_MINOR << 8 | HPC_VERSION_PATCH;
static const char PREFIX[] = "@hpcomm-";

/* ---- the answer ---- */

static void write_name(const unsigned char name[HPC_COOKIE_BYTES], char text[HPC_JOB_BYTES]) {
    for (int i = 0; i < HPC_COOKIE_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", name[i]);
}

static void show_waits(const hpc_group *g, hpc_shown_rank *shown) {
    hpc_watched waits[HPC_WATCHED];
    double now = hpc_now();
    int n = hpc_watch_read((hpc_watch *)(uintptr_t)&g->watch, now, waits);
    shown->n_waits = n < HPC_SHOWN_WAITS ? n : HPC_SHOWN_WAITS;
    for (int i = 0; i < shown->n_waits; i++) {
        hpc_shown_wait *w = &shown->waits[i];
        snprintf(w->op, sizeof w->op, "%s", waits[i].op);
        w->seconds = now - waits[i].since;
        w->n_ranks = waits[i].n_ranks;
        for (int r = 0; r < w->n_ranks && r < HPC_SHOWN_RANKS && r < HPC_WATCHED_RANKS; r++)
            w->ranks[r] = waits[i].ranks[r];
    }
}

void hpc_jobs_answer(const hpc_control *c, int fd, const unsigned char name[HPC_COOKIE_BYTES]) {
    const hpc_group *g = c->group;
    hpc_job_answer a;
    memset(&a, 0, sizeof a); /* holes too: it leaves the process */
    a.version = VERSION;
    a.asked = -1;
    a.of.answers = 1;
    a.of.rank = g->rank;
    a.of.size = g->size;
    a.of.pid = c->self.pid;
    a.of.step = atomic_load_explicit(&g->watch.step, memory_order_relaxed);
    if (atomic_load_explicit(&g->watch.connected, memory_order_acquire)) { /* the links' addresses are there */
        a.of.connected = 1;
        write_name(c->links[0].address.name, a.of.job);
        snprintf(a.of.host, sizeof a.of.host, "%s", c->host);
        snprintf(a.of.transports, sizeof a.of.transports, "%s", c->transports);
        for (int r = 0; r < g->size && a.asked < 0; r++)
            if (memcmp(c->links[r].address.name, name, HPC_COOKIE_BYTES) == 0) a.asked = r;
    }
    show_waits(g, &a.of);
    hpc_link_answer(fd, g->rank, &a, sizeof a);
}

/* ---- what came as one ---- */

static void clean(char *text, size_t bytes) {
    text[bytes - 1] = 0;
    for (; *text != 0; text++)
        if (*text < 0x20 || *text > 0x7e) *text = '?';
}

int hpc_jobs_check(hpc_job_answer *a) {
    hpc_shown_rank *s = &a->of;
    if (a->version != VERSION || s->size < 1 || s->rank < 0 || s->rank >= s->size || s->n_waits < 0 ||
        s->n_waits > HPC_SHOWN_WAITS || a->asked < -1 || a->asked >= s->size)
        return HPC_ERR_AUTH;
    s->answers = 1;
    s->connected = s->connected != 0;
    clean(s->job, sizeof s->job);
    clean(s->host, sizeof s->host);
    clean(s->transports, sizeof s->transports);
    for (int i = 0; i < s->n_waits; i++) {
        hpc_shown_wait *w = &s->waits[i];
        clean(w->op, sizeof w->op);
        if (!(w->seconds >= 0 && w->seconds < 1e12)) w->seconds = 0; /* also a NaN */
        if (w->n_ranks < 0 || w->n_ranks > s->size) w->n_ranks = 0;
        for (int r = 0; r < HPC_SHOWN_RANKS; r++)
            if (r >= w->n_ranks || w->ranks[r] < 0 || w->ranks[r] >= s->size) w->ranks[r] = 0;
    }
    return HPC_OK;
}

/* ---- asking ---- */

typedef struct name {
    unsigned char bytes[HPC_COOKIE_BYTES];
} name;

/* One question: to the listener `to`, about `about`. */
typedef struct question {
    name to, about;
    int fd;      /* -1: none yet, or over */
    int found;   /* a listener of this user is there */
    int answers; /* of it: hpc_shown_rank's */
    int64_t pid; /* as the kernel says */
    hpc_job_answer answer;
} question;

static void end(question *q) {
    hpc_close(&q->fd);
}

/* The owner of the name may be anybody: it counts only if its user could be asked for its memory as well. */
static void call(question *q) {
    struct sockaddr_un address;
    struct ucred owner = {.uid = (uid_t)-1};
    socklen_t length = hpc_mesh_name(q->to.bytes, &address), owner_bytes = sizeof owner;
    q->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (q->fd < 0) return;
    if (connect(q->fd, (struct sockaddr *)&address, length) != 0) {
        q->found = errno == EAGAIN; /* it has not accepted anybody for long */
        end(q);
        return;
    }
    if (getsockopt(q->fd, SOL_SOCKET, SO_PEERCRED, &owner, &owner_bytes) != 0 ||
        (owner.uid != geteuid() && geteuid() != 0)) {
        end(q);
        return;
    }
    q->found = 1;
    q->pid = owner.pid;
    if (hpc_link_ask(q->fd, q->about.bytes) != HPC_OK) end(q);
}

static void read_answer(question *q) {
    int status = hpc_link_read_answer(q->fd, &q->answer, sizeof q->answer);
    if (status == HPC_IN_PROGRESS) return;
    if (status == HPC_OK) status = hpc_jobs_check(&q->answer);
    q->answers = status == HPC_OK ? 1 : -1;
    end(q);
}

/* All at once, BATCH of them at most. */
static void ask(question *questions, int n, double until) {
    struct pollfd polls[BATCH];
    int open = 0;
    for (int i = 0; i < n; i++) call(&questions[i]);
    do {
        double left = hpc_left(until);
        open = 0;
        for (int i = 0; i < n; i++) {
            polls[i] = (struct pollfd){.fd = questions[i].fd, .events = POLLIN};
            open += questions[i].fd >= 0;
        }
        if (open == 0 || poll(polls, (nfds_t)n, left > 1 ? 1000 : (int)(left * 1e3) + 1) <= 0) continue;
        for (int i = 0; i < n; i++)
            if (questions[i].fd >= 0 && polls[i].revents != 0) read_answer(&questions[i]);
    } while (open > 0 && hpc_left(until) > 0);
    for (int i = 0; i < n; i++) end(&questions[i]);
}

/* ---- who there is ---- */

static int read_name(const char *text, name *to) {
    if (strncmp(text, PREFIX, sizeof PREFIX - 1) != 0) return 0;
    text += sizeof PREFIX - 1;
    if (strspn(text, "0123456789abcdef") != NAME_CHARS || (text[NAME_CHARS] != '\n' && text[NAME_CHARS] != 0)) return 0;
    for (int i = 0; i < HPC_COOKIE_BYTES; i++) {
        unsigned byte;
        if (sscanf(text + 2 * i, "%2x", &byte) != 1) return 0;
        to->bytes[i] = (unsigned char)byte;
    }
    return 1;
}

/* The names of all listeners; *n of them, to be freed. */
static int list_names(name **names, int *n) {
    char line[512], *at;
    size_t room = 0;
    FILE *file = fopen("/proc/net/unix", "re");
    *names = NULL;
    *n = 0;
    if (file == NULL)
        return hpc_fail(HPC_ERR_UNSUPPORTED, "jobs", "jobs: /proc/net/unix cannot be read: %s", strerror(errno));
    while (fgets(line, sizeof line, file) != NULL && *n < MOST_NAMES) {
        unsigned flags;
        name found;
        if (sscanf(line, "%*s %*s %*s %x", &flags) != 1 || !(flags & LISTENS)) continue;
        if ((at = strchr(line, '@')) == NULL || !read_name(at, &found)) continue;
        if ((size_t)*n == room) {
            room = room == 0 ? 64 : 2 * room;
            name *more = realloc(*names, room * sizeof *more);
            if (more == NULL) break; /* fewer are shown */
            *names = more;
        }
        (*names)[(*n)++] = found;
    }
    fclose(file);
    return HPC_OK;
}

static int add(hpc_shown_rank *ranks, int n, int cap, const question *q) {
    hpc_shown_rank shown = {.rank = -1, .size = -1};
    if (!q->found) return n;
    if (q->answers == 1) shown = q->answer.of;
    shown.answers = q->answers;
    shown.pid = q->pid;
    if (n < cap) ranks[n] = shown;
    return n + 1;
}

/* Which rank it is that does not answer: others of its job know its name. */
static void identify(hpc_shown_rank *shown, const name *of, const question *others, int n, double until) {
    const char *last = "";
    question q[BATCH];
    int k = 0;
    for (int i = 0; i < n && k < BATCH; i++) {
        const hpc_shown_rank *other = &others[i].answer.of;
        if (others[i].answers != 1 || !other->connected || strcmp(other->job, last) == 0) continue;
        last = other->job;
        q[k++] = (question){.to = others[i].to, .about = *of, .fd = -1};
    }
    ask(q, k, until);
    for (int i = 0; i < k; i++) {
        if (q[i].answers != 1 || q[i].answer.asked < 0) continue;
        memcpy(shown->job, q[i].answer.of.job, sizeof shown->job);
        memcpy(shown->host, q[i].answer.of.host, sizeof shown->host);
        shown->rank = q[i].answer.asked;
        shown->size = q[i].answer.of.size;
        shown->connected = 1;
    }
}

static int by_job(const void *a, const void *b) {
    const hpc_shown_rank *x = a, *y = b;
    int jobs = strcmp(x->job, y->job);
    return jobs != 0            ? jobs
           : x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                                : (x->pid > y->pid) - (x->pid < y->pid);
}

int hpc_jobs(hpc_shown_rank *ranks, int cap, double timeout) {
    name *names;
    int n_names, n = 0;
    if (cap < 0 || (ranks == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "jobs", "jobs: ranks is NULL, or cap is %d", cap);
    if (!(timeout >= 0 && timeout < 1e9)) timeout = 1;
    int status = list_names(&names, &n_names);
    if (status != HPC_OK) return status;
    question *questions = calloc((size_t)n_names + 1, sizeof *questions);
    if (questions == NULL) {
        free(names);
        return hpc_fail(HPC_ERR_MEMORY, "jobs", "jobs: no memory for %d ranks", n_names);
    }
    for (int i = 0; i < n_names; i++) questions[i] = (question){.to = names[i], .fd = -1};
    for (int i = 0; i < n_names; i += BATCH)
        ask(questions + i, n_names - i < BATCH ? n_names - i : BATCH, hpc_now() + timeout);
    double until = hpc_now() + timeout;
    for (int i = 0; i < n_names; i++) {
        int at = n;
        n = add(ranks, n, cap, &questions[i]);
        if (n > at && at < cap && questions[i].answers == 0) identify(&ranks[at], &names[i], questions, n_names, until);
    }
    if (cap > 0) qsort(ranks, (size_t)(n < cap ? n : cap), sizeof *ranks, by_job);
    free(questions);
    free(names);
    return n;
}
