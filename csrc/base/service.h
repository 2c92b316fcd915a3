/* A service: one thread of this process that works for any number of clients. A client is a part of a context, such as
 * its control channel. So a process has one thread of each service, whatever the number of its contexts.
 *
 * The thread starts with the first client and ends with the last one. It calls the functions of one client at a time,
 * in turns: first prepare(), then a sleep, then serve(), then prepare() again. Many clients sleep together, in one
 * epoll set, each until its descriptors have input or its time has come. Only clients that woke get a turn. So a client
 * must not block, and must bound the work of a turn.
 *
 * A client that is alone sleeps in its serve() instead. So a process with one context makes the same system calls as if
 * the thread belonged to the context.
 *
 * Threads: the lock guards the list of clients and all members of a service. Only the thread uses the members of a
 * client below is_registered. The thread holds the lock except in a client's prepare and serve, and while it sleeps. A
 * thread that adds or removes a client changes the list, then wakes the service's thread: it raises wake_fd, and calls
 * wake() of a client that may sleep in its serve(). Both have an effect on a later sleep too, so it does not matter
 * whether the thread sleeps already. The thread reads the list after it woke.
 *
 * remove() waits until no function of its client runs: it unlinks the client under the lock, and the thread takes the
 * next client from the list under the lock. It does not wait for functions of other clients. If the thread gets an
 * event of a client that has been removed meanwhile, it does not find the client in the list.
 *
 * A forked child has no threads. Locks are held during a fork, and in the child each service is empty again: what the
 * parent's clients own stays as it is, and the child's first client starts a thread of the child. */
#ifndef HPC_SERVICE_H
#define HPC_SERVICE_H

#include <pthread.h>
#include <stdatomic.h>

typedef struct hpc_client {
    void *arg;
    int fd;      /* input ends the sleep, also input that came before */
    int call_fd; /* new input ends the sleep of this client among many; -1: there is none */
    /* Called before each sleep. Returns the seconds after which the sleep ends without input: 0: at once; INFINITY:
     * never. */
    double (*prepare)(void *arg);
    /* Called after the sleep, with ms 0. Handles all that has come, within a budget; perhaps nothing has. A client that
     * is alone has not slept yet: its serve sleeps first, for ms milliseconds as in poll. Returns 0; nonzero: this
     * client is never called again. */
    int (*serve)(void *arg, int ms);
    /* Ends the sleep of serve, or its next one. Called by any thread, with the lock held. */
    void (*wake)(void *arg);
    /* Returns whether fd ends the sleep among many. Called before the sleep, and by hpc_service_thread_look; with the
     * lock held. NULL: always. */
    int (*watches)(void *arg);

    /* The rest is the service's; zero. */
    struct hpc_service_thread *of; /* NULL: not added */
    struct hpc_client *next;       /* added after this one */
    int is_watched;                /* fd is in the service's set, with input as its event */
    _Atomic int is_registered;     /* fd and call_fd are in the set; set before watches() is called */
    int is_prepared, is_ready;     /* prepare was called; a descriptor has input */
    int is_over;                   /* serve has returned nonzero */
    double due;                    /* when the sleep ends */
} hpc_client;

typedef struct hpc_service_thread {
    const char *name; /* of the thread */
    int is_counted;   /* its sleeps among many count in hpc_calls */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a function of a client that is waited for has returned; or the thread has ended */
    hpc_client *first;      /* in the order in which they were added */
    int n;                  /* number of clients */
    hpc_client *at;         /* the client that may get the next turn of this round */
    hpc_client *running;    /* its functions run; NULL: none runs */
    int is_alone;           /* running may sleep in its serve */
    int waiting;            /* number of threads that wait for changed */
    int is_started, is_ending;
    pthread_t thread;
    int epoll_fd, wake_fd;            /* the set in which many clients sleep; an eventfd in the set */
    struct hpc_service_thread *after; /* of all services that had a client */
    int is_known;
} hpc_service_thread;

#define HPC_SERVICE_THREAD(thread_name, counted)                                                                       \
    {                                                                                                                  \
        .name = (thread_name), .is_counted = (counted), .lock = PTHREAD_MUTEX_INITIALIZER,                             \
        .changed = PTHREAD_COND_INITIALIZER, .epoll_fd = -1, .wake_fd = -1                                             \
    }

/* Adds a client. Returns 0, or an errno. */
int hpc_service_thread_add(hpc_service_thread *service, hpc_client *client);

/* Removes a client; when it returns, none of the client's functions runs or will run. The descriptors must still be
 * open. Does nothing if the client was not added, was removed already, or belongs to a process that forked this one.
 * Must not be called by a client's function of the same service, nor with a lock held that one takes. */
void hpc_service_thread_remove(hpc_client *client);

/* Calls watches() for the present sleep, because its result has changed. Any thread may call it, except with a lock
 * held that watches() or wake() takes.
 *
 * Order: this thread does  store what watches() loads; load is_registered.  The service's thread does  store
 * is_registered; load it in watches().  All are sequentially consistent, so one of the two sees the other's store. */
void hpc_service_thread_look(hpc_client *client);

#endif
