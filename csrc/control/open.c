/* Opens and leaves the control channel.
 *
 * A rank that leaves says so (BYE, or ABORT with a reason) and then waits for its TCP peers. If it closed while
 * bytes such as beats are unread, the kernel would send a reset, which may overtake the BYE. So it ends its sending
 * side and reads until the peers have ended theirs, which their service threads do at the end of the stream. Then it
 * closes. */
#define _GNU_SOURCE
#include "control/control.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/host.h"
#include "control/channel.h"

static const double LEAVE_SECONDS = 1; /* for all peers together */
enum { MOST_FAREWELLS = 3, CALLS = 8 /* that one rank may make at a time */ };

/* ---- opening ---- */

static uint64_t pid_namespace(void) {
    struct stat s;
    return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

static hpc_control *create(hpc_group *group, hpc_memory *bell) {
    hpc_control *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    c->links = calloc((size_t)group->size, sizeof *c->links);
    c->gave = calloc((size_t)group->size, sizeof *c->gave);
    c->edges = calloc((size_t)group->size, sizeof *c->edges);
    if (c->links == NULL || c->gave == NULL || c->edges == NULL) {
        free(c->links);
        free(c->gave);
        free(c->edges);
        free(c);
        return NULL;
    }
    c->group = group;
    c->on_handle = hpc_handles_take;
    c->on_spread = hpc_spread_take;
    c->on_unreachable = hpc_handles_fail;
    c->revoked_by = -1;
    c->next_call = c->next_edges = c->next_lost = INFINITY;
    c->bell = hpc_memory_retain(bell);
    c->listen_fd = c->tcp_fd = c->epoll_fd = c->poke_fd = -1;
    for (int i = 0; i < HPC_STRANGERS; i++) c->strangers[i].fd = -1;
    for (int r = 0; r < group->size; r++) {
        atomic_init(&c->links[r].fd, -1);
        c->links[r].pidfd = c->links[r].call_fd = c->links[r].gone_by = -1;
        pthread_mutex_init(&c->links[r].send_lock, NULL);
    }
    atomic_store(&c->links[group->rank].kind, HPC_LINK_UNIX);
    pthread_cond_init(&c->ended, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->poking, NULL);
    pthread_mutex_init(&c->collective_lock, NULL);
    pthread_mutex_init(&c->round_lock, NULL);
    return c;
}

/* Listens on the Unix socket; returns 0, or -1 with errno. */
static int listen_unix(hpc_control *c) {
    struct sockaddr_un name;
    socklen_t length = hpc_mesh_name(c->self.name, &name);
    c->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listen_fd < 0 || bind(c->listen_fd, (struct sockaddr *)&name, length) != 0 ||
        listen(c->listen_fd, 4096) != 0)
        return -1;
    return hpc_mesh_watch(c, c->listen_fd, HPC_WATCH_UNIX, 0);
}

/* Listens for TCP, or prepares to take connections from a door. */
static int open_tcp(hpc_control *c, const hpc_control_config *config) {
    if (config->door == NULL) return hpc_net_listen(config->interfaces, c->self.endpoints, &c->tcp_fd, "init");
    int status = hpc_net_announce(config->door, config->door_port, config->interfaces, c->self.endpoints, "init");
    if (status != HPC_OK) return status;
    c->self.door = 1;
    c->room_given = HPC_STRANGERS + CALLS * c->group->size;
    c->given = malloc((size_t)c->room_given * sizeof *c->given);
    return c->given != NULL ? HPC_OK : hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", c->group->size);
}

int hpc_control_open(hpc_group *group, hpc_memory *bell, const hpc_control_config *config, hpc_control **control) {
    char hint[HPC_FILES_HINT];
    int status = HPC_ERR_TRANSPORT;
    if (!(config->silence > 0)) /* also a NaN */
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: silence is %g s; it must be more than 0", config->silence);
    hpc_control *c = create(group, bell);
    if (c == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for %d ranks", group->size);
    c->silence = config->silence;
    if (config->secret_bytes > 0 && (c->secret = malloc(config->secret_bytes)) == NULL) {
        status = hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for a secret of %zu bytes", config->secret_bytes);
        goto err;
    }
    if (config->secret_bytes > 0) memcpy(c->secret, config->secret, config->secret_bytes);
    c->secret_bytes = config->secret_bytes;

    c->self.pid = getpid();
    c->self.pid_namespace = pid_namespace();
    c->self.users = (hpc_users){.own = geteuid(), .n = config->n_users};
    if (config->n_users > 0)
        memcpy(c->self.users.named, config->users, (size_t)config->n_users * sizeof *config->users);
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    c->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (getrandom(c->self.name, HPC_COOKIE_BYTES, 0) != HPC_COOKIE_BYTES ||
        getrandom(c->self.secret, HPC_COOKIE_BYTES, 0) != HPC_COOKIE_BYTES || c->epoll_fd < 0 || c->poke_fd < 0 ||
        hpc_mesh_watch(c, c->poke_fd, HPC_WATCH_POKE, 0) != 0 || listen_unix(c) != 0)
        goto err_errno;
    if (config->tcp && (status = open_tcp(c, config)) != HPC_OK) goto err;
    errno = hpc_control_serve(c);
    if (errno != 0) goto err_errno;
    c->running = 1;
    group->follow = hpc_inquiry_follow;
    group->follow_arg = c;
    *control = c;
    return HPC_OK;

err_errno:
    status = hpc_fail(HPC_ERR_TRANSPORT, "init", "init: cannot open the control channel: %s%s", strerror(errno),
                      hpc_files_hint(errno, hint));
err:
    hpc_control_free(c);
    return status;
}

/* ---- facts ---- */

void hpc_control_address_of(const hpc_control *control, hpc_control_address *address) {
    *address = control->self;
}

int hpc_control_take(hpc_control *c, int fd) {
    pthread_mutex_lock(&c->lock);
    const int status = c->deaf ? HPC_ERR_PEER : c->n_given < c->room_given ? HPC_OK : HPC_ERR_TIMEOUT;
    if (status == HPC_OK) c->given[c->n_given++] = fd;
    pthread_mutex_unlock(&c->lock);
    if (status == HPC_OK) hpc_mesh_poke(c);
    return status;
}

int hpc_control_refused(const hpc_control *c) {
    return atomic_load(&c->refused);
}

void hpc_control_on_lane(hpc_control *control, hpc_accept_lane *accept, void *arg) {
    control->accept_arg = arg;
    control->accept_lane = accept;
}

int hpc_control_link(const hpc_control *control, int rank) {
    return control->links[rank].kind;
}

const char *hpc_control_path(const hpc_control *control, int rank) {
    const hpc_link *l = &control->links[rank];
    return hpc_link_is_up(l) ? l->path : l->likely;
}

void hpc_control_derive(const hpc_control *control, const void *facts, size_t nbytes,
                        unsigned char key[HPC_DIGEST_BYTES]) {
    const hpc_bytes part = {facts, nbytes};
    hpc_hmac(control->key, sizeof control->key, &part, 1, key);
}

hpc_bell *hpc_control_bell(const hpc_control *control, int rank) {
    hpc_memory *bell = rank == control->group->rank ? control->bell : control->links[rank].bell;
    return bell == NULL ? NULL : hpc_memory_data(bell);
}

void hpc_control_show_host(hpc_control *control, int rank, const char *host) {
    snprintf(control->links[rank].host, sizeof control->links[rank].host, "%s", host);
}

void hpc_control_entitle(hpc_control *control, const char *title) {
    uint64_t words[HPC_TITLE_BYTES / sizeof(uint64_t)] = {0};
    memcpy(words, title, strnlen(title, HPC_TITLE_BYTES - 1));
    for (size_t i = 0; i < HPC_TITLE_BYTES / sizeof(uint64_t); i++)
        atomic_store_explicit(&control->title[i], words[i], memory_order_relaxed);
}

void hpc_control_show(hpc_control *control, const char *transports) {
    snprintf(control->transports, sizeof control->transports, "%s", transports);
    atomic_store_explicit(&control->group->watch.connected, 1, memory_order_release); /* and all that connect learned */
}

int hpc_control_tell(hpc_control *c, int rank, int place, uint32_t value) {
    if (hpc_link_is_up(&c->links[rank]))
        return hpc_link_tell_number(c, rank, HPC_MESH_WORD, (uint64_t)place << 32 | value);
    if (hpc_group_has_departed(c->group, rank)) return HPC_ERR_PEER;
    hpc_mesh_seek(c, rank, HPC_SEEKS);
    return HPC_ERR_TIMEOUT;
}

int hpc_control_missed(const hpc_control *c, int rank) {
    return atomic_load_explicit(&c->links[rank].missed, memory_order_relaxed);
}

void hpc_control_seek(hpc_control *c, int rank) {
    hpc_mesh_seek(c, rank, HPC_SEEKS);
}

void hpc_control_await_link(hpc_control *c, int rank, double deadline) {
    while (!hpc_link_is_up(&c->links[rank]) && !hpc_group_has_departed(c->group, rank) && hpc_now() < deadline &&
           !atomic_load(&c->group->closed))
        poll(NULL, 0, 1);
}

int hpc_control_is_linked(const hpc_control *c, int rank) {
    return hpc_link_is_up(&c->links[rank]);
}

uint32_t hpc_control_told(const hpc_control *c, int rank, int place) {
    return atomic_load_explicit(&c->links[rank].words[place], memory_order_relaxed);
}

void hpc_control_revoke(hpc_control *c) {
    hpc_mesh_poke(c);
}

/* ---- leaving ---- */

/* Says it once to each rank with a link. A peer that does not read in time sees the hang-up instead. */
static void say_goodbye(hpc_control *c, const char *why, double deadline) {
    hpc_last_word word;
    hpc_group_last_word(c->group, why, &word);
    word.said = (uint32_t)c->said;
    for (int r = 0; r < c->group->size; r++) {
        hpc_link *l = &c->links[r];
        int fd = atomic_load(&l->fd);
        if (fd < 0 || l->parted) continue;
        l->parted = 1;
        hpc_link_send(c, r, why != NULL ? HPC_MESH_ABORT : HPC_MESH_BYE, atomic_load(&c->served),
                      why != NULL ? "abort" : "close", &word, sizeof word, -1, deadline);
        if (l->kind == HPC_LINK_TCP) shutdown(fd, SHUT_WR);
    }
}

/* Reads what the peer still sends, its last word perhaps. Returns whether it has ended its sending side. */
static int has_ended(hpc_control *c, int rank) {
    if (!c->links[rank].ended && hpc_link_read(c, rank, SIZE_MAX) != NULL) c->links[rank].ended = 1;
    return c->links[rank].ended;
}

/* A peer that stays ends its side when it has read this rank's last word. One that leaves too may not read it. */
static void await_ends(hpc_control *c, double deadline) {
    const int size = c->group->size;
    struct pollfd *polls = calloc((size_t)size, sizeof *polls);
    int *ranks = calloc((size_t)size, sizeof *ranks), n = 0;
    for (int r = 0; r < size && polls != NULL && ranks != NULL; r++) {
        if (!hpc_link_is_up(&c->links[r]) || has_ended(c, r) || c->links[r].kind != HPC_LINK_TCP) continue;
        ranks[n] = r;
        polls[n++] = (struct pollfd){.fd = atomic_load(&c->links[r].fd), .events = POLLIN};
    }
    while (n > 0) {
        double left = deadline - hpc_now();
        if (left <= 0 || (poll(polls, (nfds_t)n, (int)(left * 1e3) + 1) < 0 && errno != EINTR)) break;
        for (int i = 0; i < n; i++) {
            if (polls[i].revents == 0 || !has_ended(c, ranks[i])) continue;
            ranks[i] = ranks[--n];
            polls[i--] = polls[n];
        }
    }
    free(polls);
    free(ranks);
}

/* A handle for a rank of this process holds a reference, so none may be lost in a socket. After the shutdown a peer's
 * send fails, and the peer drops the handle itself. */
static void read_last_handles(hpc_control *c, int rank) {
    hpc_link *l = &c->links[rank];
    const int fd = atomic_load(&l->fd);
    if (fd < 0 || l->kind != HPC_LINK_UNIX || rank == c->group->rank || l->address.pid != c->self.pid) return;
    shutdown(fd, SHUT_RD);
    hpc_link_read(c, rank, SIZE_MAX);
}

/* A rank that calls is refused at once, and calls another one. */
static void hear_nobody(hpc_control *c) {
    for (int i = 0; i < HPC_STRANGERS; i++) hpc_close(&c->strangers[i].fd);
    hpc_close(&c->listen_fd);
    hpc_mesh_deafen(c);
}

static void close_all(hpc_control *c) {
    for (int r = 0; r < c->group->size; r++) {
        read_last_handles(c, r);
        pthread_mutex_lock(&c->links[r].send_lock);
        int fd = atomic_exchange(&c->links[r].fd, -1);
        hpc_close(&fd);
        pthread_mutex_unlock(&c->links[r].send_lock);
        hpc_close(&c->links[r].pidfd);
    }
    hpc_close(&c->epoll_fd);
    pthread_mutex_lock(&c->poking); /* other threads may still poke */
    hpc_close(&c->poke_fd);
    pthread_mutex_unlock(&c->poking);
}

/* The rank above may leave at the same time, and hear nothing of this one: then the next one above is told. */
static void say_farewell(hpc_control *c, const char *why) {
    const double deadline = hpc_now() + LEAVE_SECONDS;
    int up, tries = 0;
    do {
        up = hpc_edges_farewell(c);
        hpc_spread_end(c, deadline);
        say_goodbye(c, why, deadline);
        await_ends(c, deadline);
    } while (up >= 0 && hpc_link_is_gone(c, up) && ++tries < MOST_FAREWELLS);
}

void hpc_control_stop(hpc_control *c, const char *why) {
    if (!hpc_group_is_mine(c->group) || !atomic_exchange(&c->running, 0)) return;
    atomic_store(&c->stopping, 1);
    hpc_service_thread_remove(&c->client);
    hpc_callers_stop(c);
    hear_nobody(c);
    say_farewell(c, why);
    close_all(c);
}

static void free_all(hpc_message *m) {
    for (hpc_message *next; m != NULL; m = next) {
        next = m->next;
        hpc_message_free(m);
    }
}

void hpc_control_free(hpc_control *c) {
    if (c == NULL) return;
    hpc_control_stop(c, NULL);
    for (int r = 0; r < c->group->size; r++) {
        free_all(c->links[r].inbox);
        free_all(c->links[r].ballots);
        hpc_message_free(c->links[r].incoming);
        hpc_message_free(c->links[r].arriving);
        hpc_message_free(c->links[r].news);
        hpc_handles_free(c, r);
        hpc_message_free(c->links[r].here);
        hpc_memory_release(c->links[r].bell);
        free(c->links[r].told);
        pthread_mutex_destroy(&c->links[r].send_lock);
    }
    hpc_close(&c->listen_fd);
    hpc_close(&c->tcp_fd);
    for (int i = 0; i < c->n_given; i++) hpc_close(&c->given[i]); /* in a forked child some may be left */
    free(c->given);
    hpc_close(&c->epoll_fd);
    hpc_close(&c->poke_fd);
    hpc_memory_release(c->bell);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->poking);
    pthread_mutex_destroy(&c->collective_lock);
    pthread_mutex_destroy(&c->round_lock);
    pthread_cond_destroy(&c->ended);
    hpc_spread_free(c);
    hpc_message_free(c->ballot);
    hpc_relay_free(atomic_load(&c->relay));
    hpc_roll_free(c);
    hpc_rank_tree_free(&c->tree);
    free(c->cast);
    free(c->gave);
    free(c->edges);
    free(c->secret);
    free(c->links);
    free(c);
}
