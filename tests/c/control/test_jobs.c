/* The view of a rank from other processes (hpc_jobs): whom it waits for and in which operation, its step, its silence.
 */
#define _GNU_SOURCE
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "context/context.h"
#include "control/channel.h"
#include "ranks.h"

enum { CAP = 2048, RANK2 = 2 };

/* ---- asking ---- */

static char *job_of(rank *r, char job[HPC_JOB_BYTES]) {
    const unsigned char *name = r->context->addresses[0].control.name;
    for (int i = 0; i < HPC_COOKIE_BYTES; i++) snprintf(job + 2 * i, 3, "%02x", name[i]);
    return job;
}

/* The ranks of this job, in their order; how many. Others run on this machine too. */
static int ask_for(rank *r, hpc_shown_rank *found, double timeout) {
    char job[HPC_JOB_BYTES];
    hpc_shown_rank *all = malloc(CAP * sizeof *all);
    int count = hpc_jobs(all, CAP, timeout), n = 0;
    CHECK(all && count >= 1 && count <= CAP);
    job_of(r, job);
    for (int i = 0; i < count; i++)
        if (strcmp(all[i].job, job) == 0) {
            CHECK(n < RANKS_MAX);
            found[n++] = all[i];
        }
    free(all);
    return n;
}

static int ask(rank *r, hpc_shown_rank *found) {
    return ask_for(r, found, ranks_patience(2)); /* others may have stopped ranks of theirs */
}

static bool waits(const hpc_shown_rank *shown, const char *op, int whom) {
    for (int i = 0; i < shown->n_waits; i++) {
        const hpc_shown_wait *w = &shown->waits[i];
        if (strcmp(w->op, op) == 0 && w->n_ranks == 1 && w->ranks[0] == whom && w->seconds >= 0) return true;
    }
    return false;
}

/* Until every other rank is seen to wait for this one alone, in op. */
static void await_waits(rank *r, const char *op) {
    hpc_shown_rank shown[RANKS_MAX];
    for (double until = ranks_now() + ranks_patience(40);;) {
        int n = ask(r, shown), waiting = 0;
        for (int i = 0; i < n; i++) waiting += shown[i].rank != r->rank && waits(&shown[i], op, r->rank);
        if (waiting == r->size - 1) return;
        CHECK(ranks_now() < until);
    }
}

/* ---- cases ---- */

/* Everybody waits for rank 2: in a barrier, for its update, and for room in its queue. */
static void whom(rank *r) {
    int peers[RANKS_MAX], n = 0;
    float update = 1;
    const void *got;
    for (int i = 0; i < r->size; i++)
        if ((i == RANK2) != (r->rank == RANK2)) peers[n++] = i;
    hpc_queue_config config;
    hpc_queue_config_init(&config);
    config.nbytes = sizeof update;
    config.in_peers = config.out_peers = peers;
    config.n_in = config.n_out = n;
    hpc_queue *q;
    CHECK_OK(hpc_queue_create(r->context, &config, -1, &q));

    if (r->rank == RANK2) await_waits(r, "barrier");
    CHECK_OK(hpc_barrier(r->context, -1));

    if (r->rank == RANK2) {
        await_waits(r, "recv");
        for (int i = 0; i < n; i++) CHECK_OK(hpc_queue_send(q, peers[i], &update, sizeof update, -1));
    } else {
        CHECK_OK(hpc_queue_recv(q, RANK2, &got, -1));
        CHECK_OK(hpc_queue_ack(q, RANK2));
        for (int i = 0; i < 2; i++) { /* the second finds the slot taken; in slices, as Python waits */
            int status;
            while ((status = hpc_queue_send(q, RANK2, &update, sizeof update, 0.02)) == HPC_ERR_TIMEOUT) {
            }
            CHECK_OK(status);
        }
    }
    if (r->rank == RANK2) {
        await_waits(r, "send");
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < n; i++) {
                CHECK_OK(hpc_queue_recv(q, peers[i], &got, -1));
                CHECK_OK(hpc_queue_ack(q, peers[i]));
            }
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        hpc_shown_rank shown[RANKS_MAX];
        int answer;
        do {
            n = ask(r, shown), answer = 0;
            for (int i = 0; i < n; i++) answer += shown[i].answers == 1;
        } while (answer < r->size);
        for (int i = 0; i < r->size; i++) {
            hpc_peer peer;
            CHECK_OK(hpc_context_peer(r->context, i, &peer));
            CHECK_EQ(shown[i].rank, i);
            CHECK_EQ(shown[i].size, r->size);
            CHECK_EQ(shown[i].pid, peer.pid);
            CHECK_EQ(shown[i].answers, 1);
            CHECK_EQ(shown[i].connected, 1);
            CHECK_EQ(shown[i].step, i == RANK2 ? 1 : 2);
            CHECK_EQ(strcmp(shown[i].host, peer.host), 0);
            CHECK(strstr(shown[i].transports, r->mode->transports));
        }
        /* Its many waits are over; that a slice of one ran out is forgotten soon. */
        for (double until = ranks_now() + ranks_patience(10); shown[0].n_waits > 0 && ranks_now() < until;)
            ask(r, shown);
        CHECK_EQ(shown[0].n_waits, 0);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    hpc_queue_free(q);
}

/* A slice that follows another goes on with its time: a wait in slices of 20 ms is seen to last for longer. */
static void slices(rank *r) {
    hpc_event event;
    hpc_shown_rank shown[RANKS_MAX];
    CHECK_OK(hpc_barrier(r->context, -1)); /* all are connected: their job is known */
    if (r->rank == 1) {
        while (atomic_load(&r->board[0]) == 0)
            CHECK_STATUS(hpc_wait_event(r->context, NULL, &event, 0.02), HPC_ERR_TIMEOUT);
    } else {
        double longest = 0;
        for (double until = ranks_now() + ranks_patience(20); longest < 0.1 && ranks_now() < until;) {
            CHECK_EQ(ask(r, shown), 2);
            longest = shown[1].n_waits > 0 ? shown[1].waits[0].seconds : 0;
        }
        CHECK(longest >= 0.1);
        rank_set(r, 0, 1);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* One that is stopped is shown by its process and, since the others know its name, by its rank; in bounded time. */
static void stopped(rank *r) {
    hpc_shown_rank shown[RANKS_MAX];
    hpc_peer peer;
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        CHECK_OK(hpc_context_peer(r->context, RANK2, &peer));
        kill((pid_t)peer.pid, SIGSTOP);
        do CHECK_EQ(ask(r, shown), 3);
        while (shown[RANK2].answers == 1); /* it takes a moment to stop */
        CHECK_EQ(shown[RANK2].answers, 0);
        CHECK_EQ(shown[RANK2].rank, RANK2);
        CHECK_EQ(shown[RANK2].size, 3);
        CHECK_EQ(shown[RANK2].pid, peer.pid);
        CHECK_EQ(shown[1].answers, 1);
        double begin = ranks_now();
        hpc_jobs(NULL, 0, 0.2);
        CHECK(ranks_now() - begin < ranks_patience(5));
        kill((pid_t)peer.pid, SIGCONT);
        do CHECK_EQ(ask(r, shown), 3);
        while (shown[RANK2].answers != 1);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* From here on nobody finds this rank in /proc/net/unix, as if it were on another host. */
static void hide(rank *r) {
    hpc_close(&r->context->control->listen_fd);
}

/* Until all are seen, and a hidden rank 2 as rank 0 tells of it: on a busy machine rank 1 may answer first. */
static void await_told(rank *r, hpc_shown_rank *shown, int answers) {
    for (double until = ranks_now() + ranks_patience(20);;) {
        int n = ask_for(r, shown, 0.3);
        if (n == r->size && shown[RANK2].answers == answers && shown[0].answers == 1 && shown[RANK2].told_by == 0)
            break;
        CHECK(ranks_now() < until);
    }
    CHECK_EQ(shown[RANK2].rank, RANK2);
    CHECK_EQ(shown[RANK2].size, r->size);
    CHECK_EQ(strcmp(shown[RANK2].host, shown[0].host), 0);
    CHECK_EQ(shown[RANK2].gone[0], 0);
    CHECK_EQ(shown[0].told_by, -1);
    CHECK_EQ(shown[0].age, 0);
}

/* Whom a rank waits for that one cannot ask is told by another one, and so is a rank that has left. */
static void told(rank *r) {
    hpc_shown_rank shown[RANKS_MAX];
    if (r->rank == RANK2) hide(r);
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        do await_told(r, shown, 1);
        while (!waits(&shown[RANK2], "barrier", 0));
        hpc_peer peer;
        CHECK_OK(hpc_context_peer(r->context, RANK2, &peer));
        CHECK_EQ(shown[RANK2].pid, peer.pid);
        CHECK_EQ(shown[RANK2].connected, 1);
        CHECK(strstr(shown[RANK2].transports, r->mode->transports));
        CHECK(shown[RANK2].age >= 0 && shown[RANK2].age < 1);

        int news = 0; /* once a second, however often one asks */
        double begin = ranks_now(), age = shown[RANK2].age;
        for (int i = 0; i < 20; i++) {
            await_told(r, shown, 1);
            news += shown[RANK2].age < age;
            age = shown[RANK2].age;
        }
        CHECK(news <= 2 + (int)(ranks_now() - begin));
    }
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank != 0) return;
    for (double until = ranks_now() + ranks_patience(20); shown[RANK2].gone[0] == 0;) {
        if (ask_for(r, shown, 0.3) < r->size) shown[RANK2].gone[0] = 0;
        CHECK(ranks_now() < until);
    }
    CHECK_EQ(strcmp(shown[RANK2].gone, "it left"), 0);
    CHECK_EQ(shown[RANK2].answers, 0);
}

/* News of a stopped rank grow old: what it was at stays to be seen, and since when nothing has come. */
static void told_of_stopped(rank *r) {
    hpc_shown_rank shown[RANKS_MAX];
    hpc_peer peer;
    r->config.silence = 30;
    CHECK_OK(hpc_init(&r->oob, &r->config, &r->context));
    if (r->rank == RANK2) hide(r);
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        CHECK_OK(hpc_context_peer(r->context, RANK2, &peer));
        do await_told(r, shown, 1);
        while (!waits(&shown[RANK2], "barrier", 0));
        kill((pid_t)peer.pid, SIGSTOP);
        await_told(r, shown, 0);
        CHECK(shown[RANK2].age >= 1);
        CHECK(waits(&shown[RANK2], "barrier", 0));
        double age = shown[RANK2].age, unheard = shown[RANK2].unheard;
        await_told(r, shown, 0);
        CHECK(shown[RANK2].age > age + 0.2);
        if (hpc_control_link(r->context->control, RANK2) == HPC_LINK_TCP) CHECK(shown[RANK2].unheard > unheard + 0.2);
        kill((pid_t)peer.pid, SIGCONT);
        await_told(r, shown, 1);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

static int call(rank *r, int who) {
    struct sockaddr_un address;
    socklen_t length = hpc_mesh_name(r->context->addresses[who].control.name, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}

/* Questions that are none, and askers that hang up or send no word, cost the rank nothing. */
static void bad_askers(rank *r) {
    hpc_shown_rank shown[RANKS_MAX];
    CHECK_OK(hpc_barrier(r->context, -1));
    if (r->rank == 0) {
        int silent[8];
        for (int i = 0; i < 8; i++) silent[i] = call(r, 1);
        unsigned char name[HPC_COOKIE_BYTES] = {0}, junk[4096];
        uint64_t state = 5;
        for (int i = 0; i < 200; i++) {
            int fd = call(r, 1);
            for (size_t k = 0; k < sizeof junk; k++) junk[k] = (unsigned char)ranks_random(&state);
            hpc_mesh_frame f = {.magic = 0x68706331, .type = HPC_MESH_STATUS, .nbytes = 16, .total = 16};
            if (i % 4 == 1) f.nbytes = 4000;
            if (i % 4 == 2) f.total = UINT64_MAX;
            if (i % 4 == 3) f.rank = -1;
            memcpy(junk, &f, sizeof f);
            size_t n = i % 4 == 0 ? sizeof f + 15 : ranks_random(&state) % sizeof junk;
            CHECK(send(fd, junk, n, MSG_NOSIGNAL) >= 0);
            if (i % 2) CHECK(recv(fd, junk, sizeof junk, 0) <= 0); /* hung up, unanswered */
            close(fd);
            fd = call(r, 1);
            CHECK_OK(hpc_link_ask(fd, name)); /* and gone before the answer */
            close(fd);
        }
        for (int i = 0; i < 8; i++) close(silent[i]);
        CHECK_EQ(ask(r, shown), 2);
        CHECK_EQ(shown[1].answers, 1);
    }
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* Askers by the side of a job that does nothing but wait. */
static void *ask_on(void *arg) {
    rank *r = arg;
    hpc_shown_rank shown[RANKS_MAX];
    while (atomic_load(&r->board[1]) == 0) {
        int n = ask(r, shown);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < shown[i].n_waits; k++)
                for (int w = 0; w < shown[i].waits[k].n_ranks && w < HPC_SHOWN_RANKS; w++)
                    CHECK(shown[i].waits[k].ranks[w] >= 0 && shown[i].waits[k].ranks[w] < r->size);
    }
    return NULL;
}

static void asked_all_the_time(rank *r) {
    pthread_t askers[2];
    for (int i = 0; i < 2 && r->rank == 0; i++) CHECK_EQ(pthread_create(&askers[i], NULL, ask_on, r), 0);
    for (int i = 0; i < ranks_rounds(500); i++) CHECK_OK(hpc_barrier(r->context, -1));
    rank_set(r, 1, 1);
    for (int i = 0; i < 2 && r->rank == 0; i++) pthread_join(askers[i], NULL);
    CHECK_OK(hpc_barrier(r->context, -1));
}

/* An answer that is too long or not printable is refused. */
static void answers_are_not_believed(rank *r) {
    (void)r;
    hpc_job_answer a, good = {.version = HPC_VERSION_MAJOR << 16 | HPC_VERSION_MINOR << 8 | HPC_VERSION_PATCH,
                              .asked = -1,
                              .of = {.rank = 1, .size = 3}};
    a = good;
    CHECK_OK(hpc_jobs_check(&a));
    a.version++;
    CHECK_STATUS(hpc_jobs_check(&a), HPC_ERR_AUTH);
    a = good;
    a.of.rank = 3;
    CHECK_STATUS(hpc_jobs_check(&a), HPC_ERR_AUTH);
    a = good;
    a.of.told_by = 3;
    CHECK_STATUS(hpc_jobs_check(&a), HPC_ERR_AUTH);
    a = good;
    a.of.n_waits = HPC_SHOWN_WAITS + 1;
    CHECK_STATUS(hpc_jobs_check(&a), HPC_ERR_AUTH);
    a = good;
    a.asked = 3;
    CHECK_STATUS(hpc_jobs_check(&a), HPC_ERR_AUTH);
    a = good;
    memset(a.of.host, '\x1b', sizeof a.of.host);
    memset(a.of.waits[0].op, 'x', sizeof a.of.waits[0].op);
    memset(a.of.gone, '\x7f', sizeof a.of.gone);
    a.of.age = -3;
    a.of.unheard = NAN;
    a.of.n_waits = 1;
    a.of.waits[0].n_ranks = 1 << 30;
    a.of.waits[0].ranks[0] = -7;
    CHECK_OK(hpc_jobs_check(&a));
    CHECK_EQ(strlen(a.of.host), sizeof a.of.host - 1);
    CHECK_EQ(strspn(a.of.host, "?"), sizeof a.of.host - 1);
    CHECK_EQ(strlen(a.of.waits[0].op), sizeof a.of.waits[0].op - 1);
    CHECK_EQ(strlen(a.of.gone), sizeof a.of.gone - 1);
    CHECK_EQ(a.of.age, -1);
    CHECK_EQ(a.of.unheard, 0);
    CHECK_EQ(a.of.waits[0].n_ranks, 0);
    CHECK_EQ(a.of.waits[0].ranks[0], 0);
    CHECK_STATUS(hpc_jobs(NULL, 1, 0), HPC_ERR_INVALID);
}

/* ---- listeners of two jobs that are none ---- */

enum { LISTENERS = 32, SILENT = LISTENERS }; /* the last one, of the first job, says nothing */

typedef struct stage {
    unsigned char names[LISTENERS + 1][HPC_COOKIE_BYTES];
    int fds[LISTENERS + 1];
    int asked; /* how often this process has asked about the silent one */
    _Atomic int over;
} stage;

static void answer_for(stage *s, int i) {
    struct {
        hpc_mesh_frame frame;
        unsigned char name[HPC_COOKIE_BYTES];
    } question;
    hpc_job_answer a;
    int fd = accept(s->fds[i], NULL, NULL), first = i % 2 == 0;
    struct ucred asker;
    socklen_t length = sizeof asker;
    CHECK(fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &asker, &length) == 0);
    if (recv(fd, &question, sizeof question, 0) == sizeof question && question.frame.type == HPC_MESH_STATUS) {
        int about = memcmp(question.name, s->names[SILENT], HPC_COOKIE_BYTES) == 0;
        s->asked += about && asker.pid == getpid();
        memset(&a, 0, sizeof a);
        a.version = HPC_VERSION_MAJOR << 16 | HPC_VERSION_MINOR << 8 | HPC_VERSION_PATCH;
        a.asked = about && first ? LISTENERS / 2 : -1;
        a.of.rank = i / 2;
        a.of.size = LISTENERS / 2 + first;
        a.of.connected = 1;
        a.of.told_by = -1;
        snprintf(a.of.job, sizeof a.of.job, "%d-%s", (int)getpid(), first ? "first" : "second");
        hpc_link_answer(fd, a.of.rank, &a, sizeof a);
    }
    close(fd);
}

static void *answer_all(void *arg) {
    stage *s = arg;
    struct pollfd polls[LISTENERS];
    for (int i = 0; i < LISTENERS; i++) polls[i] = (struct pollfd){.fd = s->fds[i], .events = POLLIN};
    while (!atomic_load(&s->over)) {
        poll(polls, LISTENERS, 10);
        for (int i = 0; i < LISTENERS; i++)
            if (polls[i].revents != 0) answer_for(s, i);
    }
    return NULL;
}

/* The kernel lists the listeners of two jobs in any order. One rank of each job is asked for the one that is silent. */
static void each_job_is_asked_once(rank *r) {
    stage s = {.asked = 0};
    pthread_t thread;
    char job[HPC_JOB_BYTES];
    uint64_t seed = (uint64_t)getpid();
    (void)r;
    for (int i = 0; i <= LISTENERS; i++) {
        struct sockaddr_un address;
        for (int k = 0; k < HPC_COOKIE_BYTES; k++) s.names[i][k] = (unsigned char)ranks_random(&seed);
        socklen_t length = hpc_mesh_name(s.names[i], &address);
        s.fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK(s.fds[i] >= 0 && bind(s.fds[i], (struct sockaddr *)&address, length) == 0);
        CHECK_EQ(listen(s.fds[i], 64), 0);
    }
    CHECK_EQ(pthread_create(&thread, NULL, answer_all, &s), 0);
    hpc_shown_rank *all = malloc(CAP * sizeof *all);
    CHECK(all);
    int count = hpc_jobs(all, CAP, ranks_patience(0.5)), shown[2] = {0, 0}, silent = 0;
    CHECK(count >= LISTENERS + 1 && count <= CAP);
    atomic_store(&s.over, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    for (int k = 0; k < 2; k++) {
        snprintf(job, sizeof job, "%d-%s", (int)getpid(), k == 0 ? "first" : "second");
        for (int i = 0; i < count; i++) {
            if (strcmp(all[i].job, job) != 0) continue;
            CHECK_EQ(all[i].rank, shown[k]++);
            silent += all[i].answers == 0;
        }
    }
    CHECK_EQ(shown[0], LISTENERS / 2 + 1);
    CHECK_EQ(shown[1], LISTENERS / 2);
    CHECK_EQ(silent, 1);
    CHECK_EQ(s.asked, 2);
    for (int i = 0; i <= LISTENERS; i++) close(s.fds[i]);
    free(all);
}

int main(int argc, char **argv) {
    static const ranks_case cases[] = {
        {.name = "whom", .size = 4, .run = whom},
        {.name = "whom_sleepy", .size = 3, .run = whom, .sleepy = true},
        {.name = "slices", .size = 2, .run = slices},
        {.name = "stopped", .size = 3, .run = stopped, .where = RANKS_PROCESSES | RANKS_SHM, .timeout = 60},
        {.name = "told", .size = 3, .run = told, .where = RANKS_PROCESSES, .apart = true},
        {.name = "told_of_stopped",
         .size = 3,
         .run = told_of_stopped,
         .where = RANKS_PROCESSES,
         .bare = true,
         .timeout = 60},
        {.name = "bad_askers", .size = 2, .run = bad_askers, .where = RANKS_SHM},
        {.name = "asked_all_the_time", .size = 3, .run = asked_all_the_time, .where = RANKS_UNSEEDED, .sleepy = true},
        {.name = "each_job_is_asked_once", .size = 1, .run = each_job_is_asked_once, .where = RANKS_SHM, .bare = true},
        {.name = "answers_are_not_believed", .size = 1, .run = answers_are_not_believed, .where = RANKS_SHM},
        {0},
    };
    return ranks_main(argc, argv, cases);
}
