/* Answers questions about the ranks of this host: their state, and the ranks that each waits for. Any process of the
 * same user may ask the Unix listener of a control channel, whose name it finds in /proc/net/unix.
 *
 * The service thread answers with one packet of fixed size and hangs up. It reads only a name or a rank from the
 * asker, waits only for the watch's spin lock, and stores nothing. The asker trusts only the answering process's id,
 * which the kernel tells: it ends texts, makes them printable, and bounds numbers.
 *
 * Ranks whose listeners the asker does not find are on other hosts, or gone. For each of them it asks one rank of
 * the job. That rank answers with the news it has. If they are over a second old, it also sends the rank in question
 * a LOOK over their link, which is made at the first question, and that rank's service thread sends NEWS back. So only
 * the asker waits: it asks again until the news are new. Other ranks send nothing, and a look costs two frames per
 * rank. News are passed on unchecked; the asker checks them with the rest of the answer. */
#define _GNU_SOURCE
#include "control/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/host.h"

enum { BATCH = 256, MOST = 1 << 16, NAME_CHARS = 2 * HPC_COOKIE_BYTES, LISTENS = 0x10000 };

static const double NEW_SECONDS = 1; /* news up to this age are not asked for again */
static const double LEAST_PAUSE = 1e-3, MOST_PAUSE = 0.1;

static const uint32_t VERSION = HPC_VERSION_MAJOR << 16 | HPC_VERSION_MINOR << 8 | HPC_VERSION_PATCH;
static const char PREFIX[] = "@hpcomm-";

/* ---- the answer ---- */

/* Returns whether the links' addresses and hosts are filled in. */
static int is_connected(const hpc_group *g) {
    return atomic_load_explicit(&g->watch.connected, memory_order_acquire);
}

_Static_assert((int)HPC_SHOWN_RANKS <= (int)HPC_WATCHED_RANKS, "a wait keeps the ranks that are shown of it");

static void show_waits(const hpc_control *c, hpc_shown_rank *shown) {
    hpc_group *g = c->group;
    hpc_watched waits[HPC_WATCHED];
    double now = hpc_now(), ended;
    int n = hpc_watch_read(&g->watch, now, waits, &ended);
    shown->idle = ended > 0 ? now - ended : -1;
    shown->n_waits = n < HPC_SHOWN_WAITS ? n : HPC_SHOWN_WAITS;
    for (int i = 0; i < shown->n_waits; i++) {
        hpc_shown_wait *w = &shown->waits[i];
        snprintf(w->op, sizeof w->op, "%s", waits[i].doing.op);
        w->every = waits[i].doing.every;
        w->seconds = now - waits[i].since;
        w->n_ranks = waits[i].n_ranks;
        for (int r = 0; r < w->n_ranks && r < HPC_SHOWN_RANKS; r++) {
            w->ranks[r] = waits[i].ranks[r];
            if (is_connected(g) && hpc_link_is_stopped(c, w->ranks[r])) w->stopped |= (uint32_t)1 << r;
        }
    }
}

static void show_blamed(hpc_group *g, int by_wait, hpc_shown_rank *shown) {
    hpc_blamed blamed[HPC_BLAMED];
    int n = hpc_group_blamed(g, by_wait, blamed);
    shown->n_culprits = n < HPC_SHOWN_CULPRITS ? n : HPC_SHOWN_CULPRITS;
    for (int i = 0; i < shown->n_culprits; i++) shown->culprits[i] = blamed[i].culprit;
}

void hpc_jobs_show_self(const hpc_control *c, hpc_shown_rank *shown) {
    const hpc_group *g = c->group;
    memset(shown, 0, sizeof *shown); /* padding too, because it leaves the process */
    shown->answers = 1;
    shown->rank = g->rank;
    shown->size = g->size;
    shown->pid = c->self.pid;
    shown->told_by = -1;
    shown->step = atomic_load_explicit(&g->watch.step, memory_order_relaxed);
    shown->moved = hpc_watch_moved(&c->group->watch);
    for (size_t i = 0; i < HPC_TITLE_BYTES / sizeof(uint64_t); i++) {
        const uint64_t word = atomic_load_explicit(&c->title[i], memory_order_relaxed);
        memcpy(shown->title + i * sizeof word, &word, sizeof word);
    }
    if (is_connected(g)) {
        shown->connected = 1;
        hpc_control_name_job(&c->links[0].address, shown->job);
        snprintf(shown->host, sizeof shown->host, "%s", c->links[g->rank].host);
        snprintf(shown->transports, sizeof shown->transports, "%s", c->transports);
    }
    show_waits(c, shown);
    show_blamed(c->group, 1, shown);
}

void hpc_jobs_show_gone(const hpc_control *c, int rank, hpc_shown_rank *shown) {
    hpc_group *g = c->group;
    shown->state = atomic_load_explicit(&g->states[rank], memory_order_acquire);
    if (shown->state != HPC_PEER_LEFT && shown->state != HPC_PEER_FAILED) return;
    snprintf(shown->gone, sizeof shown->gone, "%s", g->reasons[rank]);
    shown->n_culprits = 0;
    if (hpc_group_left_because(g, rank)) show_blamed(g, 0, shown);
}

/* Writes rank's last news into shown, and the facts that this rank itself has about it. */
static void show_peer(const hpc_control *c, int rank, hpc_shown_rank *shown) {
    const hpc_group *g = c->group;
    const hpc_link *l = &c->links[rank];
    double now = hpc_now();
    memset(shown, 0, sizeof *shown);
    if (l->news != NULL) memcpy(shown, l->news->data, sizeof *shown);
    shown->rank = rank;
    shown->size = g->size;
    shown->pid = l->address.pid;
    hpc_control_name_job(&c->links[0].address, shown->job);
    snprintf(shown->host, sizeof shown->host, "%s", l->host);
    shown->told_by = g->rank;
    shown->age = l->news == NULL ? -1 : now - l->news_at;
    if (atomic_load(&l->kind) == HPC_LINK_TCP) /* only neighbours send beats */
        shown->unheard = atomic_load(&l->edge) ? now - l->heard : l->unanswered > l->heard ? now - l->unanswered : 0;
    shown->stopped = hpc_link_is_stopped(c, rank);
    hpc_jobs_show_gone(c, rank, shown);
}

void hpc_jobs_looked(hpc_control *c, int rank, double now) {
    hpc_link *l = &c->links[rank];
    l->looked = now;
    if (l->unanswered <= l->heard) l->unanswered = now;
}

static void look(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    double now = hpc_now();
    if (atomic_load(&c->group->states[rank]) != HPC_PEER_ALIVE || now - l->looked < NEW_SECONDS) return;
    if (!hpc_link_is_up(l)) {
        atomic_store(&l->wanted, 1);
        hpc_mesh_seek(c, rank, HPC_SEEKS);
    } else if (hpc_link_tell(c, rank, HPC_MESH_LOOK, NULL, 0) == HPC_OK) {
        hpc_jobs_looked(c, rank, now);
    }
}

void hpc_jobs_answer(hpc_control *c, int fd, int rank, const unsigned char name[HPC_COOKIE_BYTES]) {
    const hpc_group *g = c->group;
    hpc_job_answer a;
    memset(&a, 0, sizeof a);
    a.version = VERSION;
    a.asked = -1;
    if (rank >= 0 && rank != g->rank && is_connected(g)) {
        look(c, rank);
        show_peer(c, rank, &a.of);
    } else {
        hpc_jobs_show_self(c, &a.of);
        for (int r = 0; r < g->size && rank < 0 && a.of.connected && a.asked < 0; r++)
            if (memcmp(c->links[r].address.name, name, HPC_COOKIE_BYTES) == 0) a.asked = r;
    }
    hpc_link_answer(fd, g->rank, &a, sizeof a);
}

int hpc_jobs_tell(hpc_control *c, int rank) {
    hpc_shown_rank shown;
    hpc_jobs_show_self(c, &shown);
    return hpc_link_tell(c, rank, HPC_MESH_NEWS, &shown, sizeof shown);
}

/* ---- checking an answer ---- */

static void clean(char *text, size_t bytes) {
    text[bytes - 1] = 0;
    for (; *text != 0; text++)
        if (*text < 0x20 || *text > 0x7e) *text = '?';
}

int hpc_jobs_check(hpc_job_answer *a) {
    if (a->version != VERSION || a->asked < -1 || a->asked >= a->of.size) return HPC_ERR_AUTH;
    return hpc_jobs_check_rank(&a->of);
}

int hpc_jobs_check_rank(hpc_shown_rank *s) {
    if (s->size < 1 || s->rank < 0 || s->rank >= s->size || s->n_waits < 0 || s->n_waits > HPC_SHOWN_WAITS ||
        s->told_by < -1 || s->told_by >= s->size || s->n_culprits < 0 || s->n_culprits > HPC_SHOWN_CULPRITS)
        return HPC_ERR_AUTH;
    s->n_culprits = hpc_culprits_check(s->culprits, s->n_culprits, HPC_SHOWN_CULPRITS, s->size);
    s->stopped = s->stopped != 0;
    if (!(s->idle >= 0 && s->idle < 1e12)) s->idle = -1; /* also a NaN */
    s->answers = 1;
    s->connected = s->connected != 0;
    clean(s->job, sizeof s->job);
    clean(s->title, sizeof s->title);
    clean(s->host, sizeof s->host);
    clean(s->transports, sizeof s->transports);
    clean(s->gone, sizeof s->gone);
    if (!(s->age >= 0 && s->age < 1e12)) s->age = -1; /* also a NaN */
    if (!(s->unheard >= 0 && s->unheard < 1e12)) s->unheard = 0;
    for (int i = 0; i < s->n_waits; i++) {
        hpc_shown_wait *w = &s->waits[i];
        clean(w->op, sizeof w->op);
        w->every = w->every != 0;
        if (!(w->seconds >= 0 && w->seconds < 1e12)) w->seconds = 0;
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

/* One question to the listener `to`: about the rank `rank` of its job or, if rank is -1, about itself and about the
 * rank whose listener has the name `about`. */
typedef struct question {
    name to, about;
    int rank;
    int fd;      /* -1: not connected yet, or finished */
    int found;   /* a listener of this user answers to the name */
    int answers; /* as in hpc_shown_rank: 0: no answer yet; -1: an invalid one; 1: a valid one, which stays */
    int64_t pid; /* told by the kernel */
    hpc_job_answer answer;
} question;

static void end(question *q) {
    hpc_close(&q->fd);
}

/* Connects to the listener. Any process may own the name, so the listener counts only if it belongs to this user, or
 * this user is root: then this process could read its memory anyway. */
static void call(question *q) {
    struct sockaddr_un address;
    struct ucred owner = {.uid = (uid_t)-1};
    socklen_t length = hpc_mesh_name(q->to.bytes, &address), owner_bytes = sizeof owner;
    q->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (q->fd < 0) return;
    if (connect(q->fd, (struct sockaddr *)&address, length) != 0) {
        q->found = errno == EAGAIN; /* EAGAIN: its backlog is full, so it has long accepted no caller */
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
    int status = q->rank < 0 ? hpc_link_ask(q->fd, q->about.bytes) : hpc_link_ask_about(q->fd, q->rank);
    if (status != HPC_OK) end(q);
}

/* Returns whether s comes from another rank and describes the rank asked about. q->answer holds the expected job and
 * size. */
static int is_told(const question *q, const hpc_shown_rank *s) {
    const hpc_shown_rank *wanted = &q->answer.of;
    return s->told_by >= 0 && s->rank == q->rank && s->size == wanted->size && strcmp(s->job, wanted->job) == 0;
}

static void read_answer(question *q) {
    hpc_job_answer a;
    int status = hpc_link_read_answer(q->fd, &a, sizeof a);
    if (status == HPC_IN_PROGRESS) return;
    if (status == HPC_OK) status = hpc_jobs_check(&a);
    if (status == HPC_OK && q->rank >= 0 && !is_told(q, &a.of)) status = HPC_ERR_AUTH;
    if (status == HPC_OK) {
        q->answer = a;
        q->answers = 1;
    } else if (q->answers == 0) {
        q->answers = -1;
    }
    end(q);
}

/* Asks all questions, at most BATCH, at the same time. */
static void ask(question *questions, int n, double until) {
    struct pollfd polls[BATCH]; /* open ones only: poll refuses more entries than the process may have files */
    int open = 0, asked[BATCH];
    for (int i = 0; i < n; i++) call(&questions[i]);
    do {
        double left = hpc_left(until);
        open = 0;
        for (int i = 0; i < n; i++) {
            if (questions[i].fd < 0) continue;
            polls[open] = (struct pollfd){.fd = questions[i].fd, .events = POLLIN};
            asked[open++] = i;
        }
        if (open == 0 || poll(polls, (nfds_t)open, left > 1 ? 1000 : (int)(left * 1e3) + 1) <= 0) continue;
        for (int i = 0; i < open; i++)
            if (polls[i].revents != 0) read_answer(&questions[asked[i]]);
    } while (open > 0 && hpc_left(until) > 0);
    for (int i = 0; i < n; i++) end(&questions[i]);
}

/* ---- ranks of this host ---- */

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

/* Lists the names of all listeners on this host; the caller frees *names. */
static int list_names(name **names, int *n) {
    char line[512], *at;
    size_t room = 0;
    FILE *file = fopen("/proc/net/unix", "re");
    *names = NULL;
    *n = 0;
    if (file == NULL)
        return hpc_fail(HPC_ERR_UNSUPPORTED, "jobs", "jobs: /proc/net/unix cannot be read: %s", strerror(errno));
    while (fgets(line, sizeof line, file) != NULL && *n < MOST) {
        unsigned flags;
        name found;
        if (sscanf(line, "%*s %*s %*s %x", &flags) != 1 || !(flags & LISTENS)) continue;
        if ((at = strchr(line, '@')) == NULL || !read_name(at, &found)) continue;
        if ((size_t)*n == room) {
            room = room == 0 ? 64 : 2 * room;
            name *more = realloc(*names, room * sizeof *more);
            if (more == NULL) break; /* out of memory: shows fewer ranks */
            *names = more;
        }
        (*names)[(*n)++] = found;
    }
    fclose(file);
    return HPC_OK;
}

/* Completes the entry of a rank that was asked directly. Returns 0 if the rank is not shown because no listener of this
 * user was found. */
static int settle(question *q) {
    hpc_shown_rank *s = &q->answer.of;
    if (!q->found) return 0;
    if (q->answers != 1) *s = (hpc_shown_rank){.rank = -1, .size = -1, .age = -1};
    s->answers = q->answers;
    s->pid = q->pid;
    s->told_by = -1;
    s->gone[0] = 0;
    s->stopped = q->answers == 0 && hpc_host_is_stopped("", q->pid);
    return 1;
}

/* Finds out which rank has a listener that does not answer. The ranks of its job know the listener's name, so one
 * rank of each job in found is asked: a connected one that has answered. found must be sorted by job. */
static void identify(hpc_shown_rank *shown, const name *of, const question *found, int n, double until) {
    const char *last = "";
    question q[BATCH];
    for (int at = 0; at < n && !shown->connected;) {
        int k = 0;
        for (; at < n && k < BATCH; at++) {
            const hpc_shown_rank *other = &found[at].answer.of;
            if (found[at].answers != 1 || !other->connected || strcmp(other->job, last) == 0) continue;
            last = other->job;
            q[k++] = (question){.to = found[at].to, .about = *of, .rank = -1, .fd = -1};
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
}

/* ---- ranks that are not found here ---- */

/* Finds the ranks of each job that are missing from found, which is sorted by job and rank. Each missing rank becomes a
 * question to the first connected rank of its job that has answered. The first room questions go into missing; returns
 * the number of all, at most MOST. */
static int list_missing(const question *found, int n, question *missing, int room) {
    int k = 0;
    for (int begin = 0, end; begin < n; begin = end) {
        const char *job = found[begin].answer.of.job;
        const question *teller = NULL;
        for (end = begin; end < n && strcmp(found[end].answer.of.job, job) == 0; end++)
            if (teller == NULL && found[end].answers == 1 && found[end].answer.of.connected) teller = &found[end];
        if (teller == NULL) continue;
        for (int r = 0, at = begin; r < teller->answer.of.size && k < MOST; r++) {
            while (at < end && found[at].answer.of.rank < r) at++;
            if (at < end && found[at].answer.of.rank == r) continue;
            if (k < room) {
                missing[k] = (question){.to = teller->to, .rank = r, .fd = -1};
                memcpy(missing[k].answer.of.job, job, HPC_JOB_BYTES);
                missing[k].answer.of.size = teller->answer.of.size;
            }
            k++;
        }
    }
    return k;
}

static int is_new(const hpc_shown_rank *s) {
    return s->age >= 0 && s->age < NEW_SECONDS;
}

/* Returns whether no further answer can add anything. */
static int is_over(const question *q) {
    return !q->found || q->answers < 0 || (q->answers == 1 && (q->answer.of.gone[0] != 0 || is_new(&q->answer.of)));
}

/* Repeats the questions until each is over (is_over) or time runs out. Moves the finished ones to the front. */
static void ask_about(question *questions, int n, double until) {
    double pause = LEAST_PAUSE;
    for (int done = 0; done < n;) {
        for (int i = done; i < n && (i == done || hpc_left(until) > 0); i += BATCH)
            ask(questions + i, n - i < BATCH ? n - i : BATCH, until);
        for (int i = done; i < n; i++) {
            if (!is_over(&questions[i])) continue;
            const question over = questions[i];
            questions[i] = questions[done];
            questions[done++] = over;
        }
        double left = hpc_left(until);
        if (left <= 0) return;
        poll(NULL, 0, (int)((pause < left ? pause : left) * 1e3) + 1);
        pause = 2 * pause < MOST_PAUSE ? 2 * pause : MOST_PAUSE;
    }
}

/* ---- the whole list ---- */

static int by_job(const void *a, const void *b) {
    const hpc_shown_rank *x = &((const question *)a)->answer.of, *y = &((const question *)b)->answer.of;
    int jobs = strcmp(x->job, y->job);
    return jobs != 0            ? jobs
           : x->rank != y->rank ? (x->rank > y->rank) - (x->rank < y->rank)
                                : (x->pid > y->pid) - (x->pid < y->pid);
}

/* Puts the ranks whose listeners are found here into found, sorted by job, rank and pid; returns their number. */
static int find_here(const name *names, int n_names, question *found, double timeout) {
    int n = 0;
    for (int i = 0; i < n_names; i++) found[i] = (question){.to = names[i], .rank = -1, .fd = -1};
    for (int i = 0; i < n_names; i += BATCH)
        ask(found + i, n_names - i < BATCH ? n_names - i : BATCH, hpc_now() + timeout);
    double until = hpc_now() + timeout;
    for (int i = 0; i < n_names; i++)
        if (settle(&found[i])) found[n++] = found[i];
    qsort(found, (size_t)n, sizeof *found, by_job);
    for (int i = 0; i < n; i++)
        if (found[i].answers == 0) identify(&found[i].answer.of, &found[i].to, found, n, until);
    qsort(found, (size_t)n, sizeof *found, by_job);
    return n;
}

/* Adds to the n found ranks the missing ranks that another rank tells about, and sorts all; returns the new number. */
static int add_missing(question **found, int n, double until) {
    int k = list_missing(*found, n, NULL, 0);
    question *more = k == 0 ? NULL : realloc(*found, (size_t)(n + k) * sizeof *more);
    if (more == NULL) return n; /* out of memory: shows fewer ranks */
    *found = more;
    list_missing(more, n, more + n, k);
    ask_about(more + n, k, until);
    int all = n;
    for (int i = n; i < n + k; i++) {
        if (more[i].answers != 1) continue;
        more[i].answer.of.answers = more[i].answer.of.gone[0] == 0 && is_new(&more[i].answer.of);
        more[all++] = more[i];
    }
    qsort(more, (size_t)all, sizeof *more, by_job);
    return all;
}

int hpc_jobs(hpc_shown_rank *ranks, int cap, double timeout) {
    name *names;
    int n;
    if (cap < 0 || (ranks == NULL && cap > 0))
        return hpc_fail(HPC_ERR_INVALID, "jobs", "jobs: ranks is NULL, or cap is %d", cap);
    if (!(timeout >= 0 && timeout < 1e9)) timeout = 1;
    int status = list_names(&names, &n);
    if (status != HPC_OK) return status;
    question *found = calloc((size_t)n + 1, sizeof *found);
    if (found == NULL) {
        free(names);
        return hpc_fail(HPC_ERR_MEMORY, "jobs", "jobs: no memory for %d ranks", n);
    }
    n = find_here(names, n, found, timeout);
    n = add_missing(&found, n, hpc_now() + timeout);
    for (int i = 0; i < n && i < cap; i++) ranks[i] = found[i].answer.of;
    free(found);
    free(names);
    return n;
}
