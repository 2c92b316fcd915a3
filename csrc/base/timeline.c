#define _GNU_SOURCE
#include "base/timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

enum { EVENTS = 512, LINE_BYTES = 1536, TEXT_BYTES = 16 << 10, NAME_BYTES = 16 };

static const double FLUSH_SECONDS = 1;   /* a working thread that is killed loses at most the spans of this time */
static const double REST_SECONDS = 0.02; /* a sleeping thread that is killed loses at most the spans of this time */
static const double JOIN_SECONDS = 5e-6; /* rows of a key with gaps below this are one span */

typedef struct event {
    double start, end;
    const char *name;
    hpc_span_kind kind;
    int n_ranks, ranks[HPC_SPAN_RANKS];
    uint64_t rows, bytes;
    char label[HPC_LABEL_BYTES];
} event;

/* A track: one thread's ring of events. The producer writes put, the holder of "writing" writes written. Each acquires
 * the other's release, so an event is complete when it is read, and its place is free when the next event is written
 * there. */
typedef struct track {
    struct track *next;
    hpc_timeline *timeline;
    int number, taken; /* taken: a thread uses the track; guarded by the timeline's lock */
    char name[NAME_BYTES];
    double flushed, until; /* until: end of its last event */
    event open;            /* a span of rows that may get longer; only the producer uses it */
    int is_open;
    _Atomic uint64_t put, written;
    _Atomic int writing;
    event events[EVENTS];
} track;

struct hpc_timeline {
    _Atomic int references; /* the handle, and every thread with a track */
    int rank, file;
    pid_t process;
    pthread_key_t key;    /* of each thread's track */
    pthread_mutex_t lock; /* guards the list of tracks, and which are taken */
    track *tracks;
    int n_tracks;
    _Atomic int closed, failed; /* errno of the first write that failed, or 0 */
};

/* ---- text ---- */

/* Writes a label as a JSON string without quotes to to[cap], cut if cap is too small. */
static size_t escape(const char *from, char *to, size_t cap) {
    size_t n = 0;
    for (; *from != 0 && n + 7 < cap; from++) {
        unsigned char c = (unsigned char)*from;
        if (c == '"' || c == '\\') to[n++] = '\\';
        if (c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(to + n, cap - n, "\\u%04x", c);
        else
            to[n++] = *from;
    }
    to[n] = 0;
    return n;
}

/* "0, 3, 7" */
static void list_ranks(const event *e, char *to, size_t cap) {
    int known = e->n_ranks < HPC_SPAN_RANKS ? e->n_ranks : HPC_SPAN_RANKS;
    size_t n = 0;
    to[0] = 0;
    for (int i = 0; i < known && n < cap; i++)
        n += (size_t)snprintf(to + n, cap - n, "%s%d", i == 0 ? "" : ", ", e->ranks[i]);
}

static size_t write_event(const track *k, const event *e, char *line) {
    char label[7 * HPC_LABEL_BYTES], ranks[HPC_SPAN_RANKS * 13], name[HPC_SPAN_RANKS * 13 + 32], args[512];
    static const char *const categories[] = {"call", "wait", "fold", "trainer"};
    long long start = (long long)(e->start * 1e9), end = (long long)(e->end * 1e9);
    escape(e->label, label, sizeof label);
    snprintf(name, sizeof name, "%s", e->kind == HPC_SPAN_CALL ? e->name : "");
    args[0] = 0;
    if (e->kind == HPC_SPAN_CALL && e->label[0] != 0) snprintf(args, sizeof args, "\"key\": \"%s\"", label);
    if (e->kind == HPC_SPAN_FOLD)
        snprintf(args, sizeof args, "\"rows\": %llu, \"bytes\": %llu", (unsigned long long)e->rows,
                 (unsigned long long)e->bytes);
    if (e->kind == HPC_SPAN_WAIT) {
        list_ranks(e, ranks, sizeof ranks);
        snprintf(name, sizeof name, "wait for %s%s", ranks, e->n_ranks > HPC_SPAN_RANKS ? ", ..." : "");
        snprintf(args, sizeof args, "\"op\": \"%s\", \"ranks\": [%s], \"of\": %d", e->name, ranks, e->n_ranks);
    }
    return (size_t)snprintf(line, LINE_BYTES,
                            "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %lld.%03lld, \"dur\": "
                            "%lld.%03lld, \"pid\": %d, \"tid\": %d, \"args\": {%s}},\n",
                            e->kind == HPC_SPAN_FOLD || e->kind == HPC_SPAN_USER ? label : name, categories[e->kind],
                            start / 1000, start % 1000, (end - start) / 1000, (end - start) % 1000, k->timeline->rank,
                            k->number, args);
}

static void append(hpc_timeline *t, const char *text, size_t n) {
    while (n > 0 && atomic_load_explicit(&t->failed, memory_order_relaxed) == 0) {
        ssize_t wrote = write(t->file, text, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            atomic_store_explicit(&t->failed, errno, memory_order_relaxed);
            return;
        }
        text += wrote;
        n -= (size_t)wrote;
    }
}

static void append_metadata(hpc_timeline *t, int thread, const char *name, const char *args) {
    char line[LINE_BYTES];
    int n =
        snprintf(line, sizeof line, "{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"args\": {%s}},\n",
                 name, t->rank, thread, args);
    append(t, line, (size_t)n);
}

/* Writes the spans of a track into the file. is_last: 1 in the call by close, which writes last. Once the timeline is
 * closed, other calls write nothing. */
static void flush(track *k, int is_last) {
    hpc_timeline *t = k->timeline;
    char text[TEXT_BYTES];
    size_t n = 0;
    if (t->process != getpid()) return; /* a forked child: the parent writes the spans, and may hold the flag */
    while (atomic_exchange_explicit(&k->writing, 1, memory_order_acquire)) sched_yield();
    uint64_t from = atomic_load_explicit(&k->written, memory_order_relaxed);
    uint64_t to = atomic_load_explicit(&k->put, memory_order_acquire);
    for (; from < to && (is_last || !atomic_load(&t->closed)); from++) {
        if (n + LINE_BYTES > sizeof text) {
            append(t, text, n);
            n = 0;
        }
        n += write_event(k, &k->events[from % EVENTS], text + n);
    }
    append(t, text, n);
    atomic_store_explicit(&k->written, from, memory_order_release);
    atomic_store_explicit(&k->writing, 0, memory_order_release);
}

/* ---- tracks ---- */

static void release(hpc_timeline *t) {
    if (atomic_fetch_sub_explicit(&t->references, 1, memory_order_acq_rel) != 1) return;
    pthread_key_delete(t->key);
    pthread_mutex_destroy(&t->lock);
    for (track *k = t->tracks, *next; k != NULL; k = next) {
        next = k->next;
        free(k);
    }
    free(t);
}

static int is_full(const track *k, uint64_t put) {
    return put - atomic_load_explicit(&k->written, memory_order_acquire) == EVENTS;
}

static void push(track *k, const event *e) {
    uint64_t put = atomic_load_explicit(&k->put, memory_order_relaxed);
    if (is_full(k, put)) flush(k, 0);
    if (is_full(k, put)) return; /* the timeline was closed meanwhile */
    k->events[put % EVENTS] = *e;
    atomic_store_explicit(&k->put, put + 1, memory_order_release);
}

static void push_open(track *k) {
    if (k->is_open) push(k, &k->open);
    k->is_open = 0;
}

/* Releases the track of a thread that ends. */
static void give_track(void *arg) {
    track *k = arg;
    hpc_timeline *t = k->timeline;
    if (t->process != getpid()) return;
    push_open(k);
    flush(k, 0);
    pthread_mutex_lock(&t->lock);
    k->taken = 0;
    pthread_mutex_unlock(&t->lock);
    release(t);
}

static track *new_track(hpc_timeline *t, const char *thread) {
    char args[64 + 6 * NAME_BYTES], label[6 * NAME_BYTES];
    track *k = calloc(1, sizeof *k);
    if (k == NULL) return NULL;
    *k = (track){.next = t->tracks, .timeline = t, .number = t->n_tracks++, .flushed = hpc_now()};
    snprintf(k->name, sizeof k->name, "%s", thread);
    t->tracks = k;
    escape(thread, label, sizeof label);
    snprintf(args, sizeof args, "\"name\": \"%s\"", label);
    append_metadata(t, k->number, "thread_name", args);
    return k;
}

/* Returns the calling thread's track, for a span that began at start; NULL if the timeline is closed, or without
 * memory. The track of an ended thread is used again only if its last event ended before start. */
static track *take_track(hpc_timeline *t, double start) {
    track *k = pthread_getspecific(t->key);
    char thread[NAME_BYTES] = "";
    if (k != NULL || atomic_load_explicit(&t->closed, memory_order_relaxed)) return k;
    if (t->process != getpid()) return NULL; /* in a forked child the lock may be held forever */
    prctl(PR_GET_NAME, thread);
    pthread_mutex_lock(&t->lock);
    if (!atomic_load(&t->closed)) {
        for (k = t->tracks; k != NULL && (k->taken || k->until > start || strcmp(k->name, thread) != 0);) k = k->next;
        if (k == NULL) k = new_track(t, thread);
    }
    if (k != NULL) k->taken = pthread_setspecific(t->key, k) == 0;
    if (k != NULL && !k->taken) k = NULL;
    if (k != NULL) atomic_fetch_add_explicit(&t->references, 1, memory_order_relaxed); /* goes with taken */
    pthread_mutex_unlock(&t->lock);
    return k;
}

/* ---- recording ---- */

/* Copies as much of a UTF-8 text as fits, without half a character at its end. */
static void copy_label(char *to, const char *from) {
    size_t n = from == NULL ? 0 : strnlen(from, HPC_LABEL_BYTES);
    if (n == HPC_LABEL_BYTES) {
        n--;
        while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80) n--;
    }
    if (n > 0) memcpy(to, from, n);
    to[n] = 0;
}

double hpc_timeline_enter(hpc_timeline *t) {
    double now = hpc_now();
    track *k = take_track(t, now);
    if (k != NULL) push_open(k);
    return hpc_now();
}

void hpc_timeline_record(const hpc_span *span, double end) {
    track *k = take_track(span->timeline, span->start);
    if (k == NULL) return;
    k->until = end;
    event e = {.start = span->start,
               .end = end,
               .name = span->name,
               .kind = span->kind,
               .n_ranks = span->n_ranks,
               .rows = span->rows,
               .bytes = span->bytes};
    int known = e.n_ranks < HPC_SPAN_RANKS ? e.n_ranks : HPC_SPAN_RANKS;
    if (known > 0) memcpy(e.ranks, span->ranks, (size_t)known * sizeof *e.ranks);
    copy_label(e.label, span->label);
    if (e.kind == HPC_SPAN_FOLD && k->is_open && e.start - k->open.end < JOIN_SECONDS &&
        strcmp(e.label, k->open.label) == 0) {
        k->open.end = end;
        k->open.rows += e.rows;
        k->open.bytes += e.bytes;
        return;
    }
    push_open(k);
    if (e.kind == HPC_SPAN_FOLD) {
        k->open = e;
        k->is_open = 1;
    } else {
        push(k, &e);
    }
    if (end - k->flushed < FLUSH_SECONDS) return;
    k->flushed = end;
    flush(k, 0);
}

void hpc_timeline_rest(hpc_timeline *t, double now) {
    track *k = pthread_getspecific(t->key);
    if (k == NULL) return;
    push_open(k);
    if (now - k->flushed < REST_SECONDS) return;
    k->flushed = now;
    flush(k, 0);
}

/* ---- the file ---- */

/* File names that this process's timelines have used, so that a second timeline at the same path overwrites nothing.
 * They are never freed; a process has few. */
typedef struct used_name {
    struct used_name *next;
    int times;
    char text[];
} used_name;

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static used_name *names;

/* Returns how often this process has used a name, 1 for the first time; 0 without memory. */
static int count_name(const char *text) {
    used_name *at;
    pthread_mutex_lock(&names_lock);
    for (at = names; at != NULL && strcmp(at->text, text) != 0;) at = at->next;
    if (at == NULL && (at = calloc(1, sizeof *at + strlen(text) + 1)) != NULL) {
        memcpy(at->text, text, strlen(text) + 1);
        at->next = names;
        names = at;
    }
    int times = at == NULL ? 0 : ++at->times;
    pthread_mutex_unlock(&names_lock);
    return times;
}

/* Returns where the suffix begins, or the path's length if it has none. */
static size_t suffix_at(const char *path) {
    const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
    return dot == NULL || (slash != NULL && dot < slash + 2) || dot == path ? strlen(path) : (size_t)(dot - path);
}

/* Writes the file's name; returns whether it fits. */
static int name_file(const char *path, int rank, char name[PATH_MAX]) {
    size_t n = 0;
    int replaced = 0;
    for (const char *p = path; *p != 0 && n < PATH_MAX; p++) {
        if (p[0] == '%' && p[1] == 'r') {
            n += (size_t)snprintf(name + n, PATH_MAX - n, "%d", rank);
            replaced = 1;
            p++;
        } else {
            name[n++] = *p;
        }
    }
    if (n >= PATH_MAX) return 0;
    name[n] = 0;
    if (!replaced) {
        size_t stem = suffix_at(path);
        if (snprintf(name, PATH_MAX, "%.*s.rank%d%s", (int)stem, path, rank, path + stem) >= PATH_MAX) return 0;
    }
    int times = count_name(name);
    if (times <= 1) return times;
    char first[PATH_MAX];
    memcpy(first, name, sizeof first);
    size_t stem = suffix_at(first);
    return snprintf(name, PATH_MAX, "%.*s-%d%s", (int)stem, first, times, first + stem) < PATH_MAX;
}

/* Returns a number that all timelines of this process share. (A forked child has another pid.) */
static uint64_t process_id(void) {
    static _Atomic uint64_t id;
    uint64_t none = 0, made = 0;
    if (atomic_load(&id) == 0 && getrandom(&made, sizeof made, 0) == sizeof made)
        atomic_compare_exchange_strong(&id, &none, made);
    return atomic_load(&id);
}

/* Writes facts for programs that read several files: the clock of ts and that clock's offset from the wall clock; the
 * process, and so the job, that wrote the file; and the rank's number in the first context. */
static void append_head(hpc_timeline *t, int first, int size, const char *host) {
    char args[1024], id[64] = "", where[7 * 64];
    struct timespec wall;
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot != NULL) {
        if (fgets(id, sizeof id, boot) == NULL) id[0] = 0;
        fclose(boot);
    }
    id[strcspn(id, "\n")] = 0;
    escape(host, where, sizeof where);
    double before = hpc_now();
    clock_gettime(CLOCK_REALTIME, &wall);
    double now = (before + hpc_now()) / 2;
    append(t, "[\n", 2);
    snprintf(args, sizeof args, "\"name\": \"rank %d of %d on %s\"", t->rank, size, where);
    append_metadata(t, 0, "process_name", args);
    snprintf(args, sizeof args, "\"sort_index\": %d", t->rank);
    append_metadata(t, 0, "process_sort_index", args);
    snprintf(args, sizeof args,
             "\"size\": %d, \"first\": %d, \"host\": \"%s\", \"boot\": \"%s\", \"monotonic_us\": %.3f, "
             "\"realtime_us\": %lld.%03ld, \"process\": \"%ld-%016llx\"",
             size, first, where, id, now * 1e6, (long long)wall.tv_sec * 1000000 + wall.tv_nsec / 1000,
             wall.tv_nsec % 1000, (long)t->process, (unsigned long long)process_id());
    append_metadata(t, 0, "hpcomm_clock", args);
}

int hpc_timeline_open(const char *path, int number, int rank, int size, const char *host, hpc_timeline **timeline) {
    char name[PATH_MAX];
    hpc_timeline *t = calloc(1, sizeof *t);
    if (t == NULL) return hpc_fail(HPC_ERR_MEMORY, "init", "init: no memory for a timeline");
    *t = (hpc_timeline){.rank = rank, .file = -1, .process = getpid()};
    atomic_init(&t->references, 1);
    if (!name_file(path, number, name)) {
        free(t);
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: timeline \"%.80s...\" is too long a path", path);
    }
    t->file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    int error = t->file < 0 ? errno : pthread_key_create(&t->key, give_track);
    if (error != 0) {
        if (t->file >= 0) close(t->file);
        free(t);
        return hpc_fail(HPC_ERR_CONFIG, "init", "init: timeline \"%s\" of rank %d cannot be written: %s", name, rank,
                        strerror(error));
    }
    pthread_mutex_init(&t->lock, NULL);
    append_head(t, number, size, host);
    *timeline = t;
    return HPC_OK;
}

void hpc_timeline_name_job(hpc_timeline *t, const char *job) {
    char args[64];
    snprintf(args, sizeof args, "\"job\": \"%s\"", job);
    append_metadata(t, 0, "hpcomm_job", args);
}

int hpc_timeline_close(hpc_timeline *t) {
    static const char end[] = "{\"name\": \"hpcomm_end\", \"ph\": \"M\", \"pid\": %d, \"tid\": 0, \"args\": {}}\n]\n";
    char line[LINE_BYTES];
    if (t->process != getpid()) return 0;
    track *own = pthread_getspecific(t->key);
    if (own != NULL) push_open(own);
    pthread_mutex_lock(&t->lock);
    int was_closed = atomic_exchange(&t->closed, 1);
    for (track *k = t->tracks; k != NULL && !was_closed; k = k->next) flush(k, 1);
    pthread_mutex_unlock(&t->lock);
    if (!was_closed) {
        append(t, line, (size_t)snprintf(line, sizeof line, end, t->rank));
        close(t->file);
    }
    if (own != NULL) { /* the end of the main thread runs no destructor */
        pthread_setspecific(t->key, NULL);
        give_track(own);
    }
    return atomic_load_explicit(&t->failed, memory_order_relaxed);
}

void hpc_timeline_free(hpc_timeline *t) {
    if (t == NULL || t->process != getpid()) return;
    hpc_timeline_close(t);
    release(t);
}
