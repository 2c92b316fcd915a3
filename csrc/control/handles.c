/* Gives peers the handles by which they reach this rank's windows and lanes, at their first use (hpc_giver).
 *
 * A peer's WANT becomes an answer in its link's list. The service thread makes the handles and sends them in order; an
 * answer that the socket has no room for stays in the list. A question that another thread cannot send at once is in
 * the list too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control/channel.h"

enum { MOST_WAITING = 1 << 16 }; /* of a link: a sound peer asks once for each object */

static const char many[] = "it asks for more windows and lanes than there can be";
static const char no_window[] = "it put into a window that this rank does not have";
static const char short_of_memory[] = "this rank has no memory for its question";

void hpc_control_on_want(hpc_control *c, const hpc_giver *giver, void *arg) {
    c->giver_arg = arg;
    c->giver = giver;
}

/* Appends a message to the link's list; returns 0 if the list has too many. */
static int append(hpc_control *c, int rank, hpc_want *a) {
    hpc_want **at = &c->links[rank].wanted_here;
    int n = 0;
    pthread_mutex_lock(&c->lock);
    for (; *at != NULL; at = &(*at)->next) n++;
    if (n < MOST_WAITING) *at = a;
    pthread_mutex_unlock(&c->lock);
    return n < MOST_WAITING;
}

static hpc_want *make_want(uint64_t number) {
    hpc_want *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    a->number = number;
    a->fd = -1;
    return a;
}

/* Lets the service thread send a message. */
static int leave_to_service(hpc_control *c, int rank, hpc_want *a) {
    if (!append(c, rank, a)) {
        free(a);
        return HPC_ERR_MEMORY;
    }
    atomic_store(&c->answering, 1);
    hpc_mesh_poke(c);
    return HPC_OK;
}

int hpc_control_want(hpc_control *c, int rank, uint64_t number) {
    if (hpc_group_has_departed(c->group, rank)) return HPC_ERR_PEER;
    int status = HPC_ERR_TIMEOUT;
    if (hpc_link_is_up(&c->links[rank])) status = hpc_link_tell_number(c, rank, HPC_MESH_WANT, number);
    if (status != HPC_ERR_TIMEOUT) return status;
    hpc_want *a = make_want(number);
    if (a == NULL) return HPC_ERR_MEMORY;
    a->asks = a->made = 1;
    status = leave_to_service(c, rank, a);
    hpc_mesh_seek(c, rank, HPC_SEEKS); /* after the question is in the list */
    return status;
}

void hpc_control_refuse(hpc_control *c, int rank, uint64_t number, int status, const char *why) {
    hpc_want *a = make_want(number);
    if (a == NULL) return; /* the peer's wait ends at its timeout */
    a->made = 1;
    a->given.status = status;
    snprintf(a->given.why, sizeof a->given.why, "%s", why);
    leave_to_service(c, rank, a);
}

static const char *take_want(hpc_control *c, int rank, uint64_t number) {
    hpc_want *a = make_want(number);
    if (a == NULL) return short_of_memory;
    c->links[rank].wants = 1;
    if (append(c, rank, a)) return NULL;
    free(a);
    return many;
}

/* Makes the handle of an answer, or notes why it cannot. */
static void make(hpc_control *c, int rank, hpc_want *a) {
    hpc_blob blob = {.fd = -1};
    if (a->made) return;
    const int status = c->giver == NULL ? HPC_ERR_INVALID : c->giver->give(c->giver_arg, rank, a->number, &blob);
    a->made = 1;
    a->given.status = status;
    a->fd = blob.fd;
    memcpy(a->given.bytes, blob.bytes, sizeof a->given.bytes);
    if (status < 0) snprintf(a->given.why, sizeof a->given.why, "%s", hpc_last_error()->message);
}

static void take_out(hpc_control *c, int rank, hpc_want *a) {
    hpc_want **at = &c->links[rank].wanted_here;
    pthread_mutex_lock(&c->lock);
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    pthread_mutex_unlock(&c->lock);
}

static void discard(hpc_control *c, int rank, hpc_want *a) {
    hpc_blob blob = {.fd = a->fd};
    memcpy(blob.bytes, a->given.bytes, sizeof blob.bytes);
    if (a->made && !a->asks && a->given.status == HPC_OK) c->giver->drop(c->giver_arg, rank, &blob);
    hpc_close(&a->fd);
    free(a);
}

int hpc_handles_answer(hpc_control *c, int rank) {
    int status = HPC_OK;
    pthread_mutex_lock(&c->lock);
    hpc_want *a = c->links[rank].wanted_here, *next;
    pthread_mutex_unlock(&c->lock);
    for (; a != NULL; a = next) {
        make(c, rank, a);
        status = a->asks ? hpc_link_tell_number(c, rank, HPC_MESH_WANT, a->number)
                         : hpc_link_give(c, rank, a->number, &a->given, a->fd);
        pthread_mutex_lock(&c->lock);
        next = a->next; /* another thread may have appended one */
        pthread_mutex_unlock(&c->lock);
        if (status == HPC_ERR_TIMEOUT) break;
        take_out(c, rank, a);
        if (status == HPC_OK) a->made = 0; /* the peer has the handle */
        discard(c, rank, a);
    }
    return status;
}

static void take_given(hpc_control *c, int rank, hpc_message *m) {
    hpc_given *given = (hpc_given *)(void *)m->data;
    hpc_blob blob = {.fd = m->fd};
    memcpy(blob.bytes, given->bytes, sizeof blob.bytes);
    given->why[sizeof given->why - 1] = 0;
    if (c->giver == NULL) return;
    m->fd = -1;
    c->giver->take(c->giver_arg, rank, m->sequence, given->status, given->why, &blob);
}

void hpc_handles_fail(hpc_control *c, int rank, int status, const char *why) {
    pthread_mutex_lock(&c->lock);
    hpc_want *a = c->links[rank].wanted_here, *next;
    c->links[rank].wanted_here = NULL;
    pthread_mutex_unlock(&c->lock);
    for (; a != NULL; a = next) {
        hpc_blob none = {.fd = -1};
        next = a->next;
        if (a->asks && c->giver != NULL) c->giver->take(c->giver_arg, rank, a->number, status, why, &none);
        discard(c, rank, a);
    }
}

void hpc_handles_free(hpc_control *c, int rank) {
    for (hpc_want *a = c->links[rank].wanted_here, *next; a != NULL; a = next) {
        next = a->next;
        discard(c, rank, a);
    }
    c->links[rank].wanted_here = NULL;
}

/* A put of many bytes is several, of which the last one raises the signal. */
int hpc_control_put(hpc_control *c, int rank, uint64_t number, const void *data, size_t nbytes, uint64_t offset,
                    int signal, uint64_t value, double deadline) {
    char message[HPC_FRAME_BYTES];
    const size_t most = sizeof message - sizeof(hpc_put_head);
    for (size_t done = 0;; done += most) {
        const size_t n = nbytes - done < most ? nbytes - done : most;
        const hpc_put_head head = {offset + done, done + n == nbytes ? value : 0, signal};
        memcpy(message, &head, sizeof head);
        if (n > 0) memcpy(message + sizeof head, (const char *)data + done, n);
        int status = hpc_link_send(c, rank, HPC_MESH_PUT, number, "put", message, sizeof head + n, -1, deadline);
        if (status != HPC_OK || done + n == nbytes) return status;
    }
}

static const char *take_put(hpc_control *c, const hpc_message *put) {
    hpc_put_head head;
    memcpy(&head, put->data, sizeof head);
    const size_t nbytes = put->total - sizeof head;
    if (head.signal < 0 || head.signal > INT32_MAX || c->giver == NULL) return no_window;
    int status = c->giver->put(c->giver_arg, put->sequence, put->data + sizeof head, nbytes, head.offset,
                               (int)head.signal, head.value);
    return status == HPC_OK ? NULL : no_window;
}

const char *hpc_handles_take(hpc_control *c, int rank, hpc_message *m) {
    const char *fault = NULL;
    if (m->type == HPC_MESH_WANT)
        fault = take_want(c, rank, m->sequence);
    else if (m->type == HPC_MESH_GIVE)
        take_given(c, rank, m);
    else
        fault = take_put(c, m);
    hpc_message_free(m);
    return fault;
}
