/* The calls of _core whose cost a ping-pong of 8 bytes or a small key's push_pull sees: put, put_signal, test_signal,
 * wait_signal, the steps of an exchange, and collectives of arrays.
 *
 * cffi lets go of the GIL around every call, which takes longer than these calls do. Here a short put, the calls of a
 * short exchange and short collectives keep it, and a wait lets go only when its first looks find nothing. Handles come
 * as addresses: _core owns what they point to.
 *
 * The limited API of CPython 3.11, which has the buffer protocol, where setup.py defines Py_LIMITED_API; else that of
 * one version. Under Py_TARGET_ABI3T (3.15) the module is for free-threaded interpreters too. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hpcomm/hpcomm.h>

enum {
    SHORT_BYTES =
        64 << 10, /* a put of so much takes a few microseconds, a thousandth of the interpreter's own switches */
    LOOKS = 200,  /* at a signal or a ticket before a wait lets go of the GIL: microseconds, for an answer in one */
    LOOKS_PER_CLOCK = 8
};

static const double LOOKS_END = 15e-6; /* at sockets a look takes a hundred times as long as at memory */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whether there may be another look after so many; begin is for this function. */
static int looks_on(int looks, double *begin) {
    if (looks % LOOKS_PER_CLOCK != 0) return 1;
    if (looks == 0) return *begin = 0, 1;
    double t = now();
    if (*begin == 0) *begin = t;
    return looks < LOOKS && t - *begin < LOOKS_END;
}

static int expect(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return 0;
}

static int as_int(PyObject *value) {
    long n = PyLong_AsLong(value);
    if ((n > INT_MAX || n < INT_MIN) && !PyErr_Occurred())
        PyErr_SetString(PyExc_OverflowError, "number does not fit 32 bits");
    return (int)n;
}

/* Any integer, NumPy's too. */
static uint64_t as_uint64(PyObject *value) {
    if (PyLong_Check(value)) return PyLong_AsUnsignedLongLong(value);
    PyObject *whole = PyNumber_Index(value);
    uint64_t n = whole == NULL ? 0 : PyLong_AsUnsignedLongLong(whole);
    Py_XDECREF(whole);
    return n;
}

/* The arguments that put and put_signal have in common: lane, window, peer, src, offset. src: C-contiguous, or None for
 * no data. */
typedef struct put_args {
    hpc_lane *lane;
    hpc_window *window;
    int peer;
    size_t offset;
    Py_buffer src;
} put_args;

static int parse_put(put_args *put, PyObject *const *args) {
    *put = (put_args){PyLong_AsVoidPtr(args[0]), PyLong_AsVoidPtr(args[1]), as_int(args[2]), as_uint64(args[4]), {0}};
    if (PyErr_Occurred()) return 0;
    return args[3] == Py_None || PyObject_GetBuffer(args[3], &put->src, PyBUF_SIMPLE) == 0;
}

static PyObject *end_put(put_args *put, int status) {
    if (put->src.obj != NULL) PyBuffer_Release(&put->src);
    return PyLong_FromLong(status);
}

/* put(lane, window, peer, src, offset) -> status */
static PyObject *put(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    put_args p;
    int status;
    (void)module;
    if (!expect("put", n, 5) || !parse_put(&p, args)) return NULL;
    if (p.src.len <= SHORT_BYTES) {
        status = hpc_put(p.lane, p.window, p.peer, p.src.buf, (size_t)p.src.len, p.offset);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_put(p.lane, p.window, p.peer, p.src.buf, (size_t)p.src.len, p.offset);
        Py_END_ALLOW_THREADS;
    }
    return end_put(&p, status);
}

/* put_signal(lane, window, peer, src, offset, signal, value) -> status */
static PyObject *put_signal(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    put_args p;
    int status;
    (void)module;
    if (!expect("put_signal", n, 7)) return NULL;
    int signal = as_int(args[5]);
    uint64_t value = as_uint64(args[6]);
    if (!parse_put(&p, args)) return NULL;
    if (p.src.len <= SHORT_BYTES) {
        status = hpc_put_signal(p.lane, p.window, p.peer, p.src.buf, (size_t)p.src.len, p.offset, signal, value);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_put_signal(p.lane, p.window, p.peer, p.src.buf, (size_t)p.src.len, p.offset, signal, value);
        Py_END_ALLOW_THREADS;
    }
    return end_put(&p, status);
}

/* test_signal(window, signal, at_least) -> status */
static PyObject *test_signal(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!expect("test_signal", n, 3)) return NULL;
    hpc_window *window = PyLong_AsVoidPtr(args[0]);
    int signal = as_int(args[1]);
    uint64_t at_least = as_uint64(args[2]);
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromLong(hpc_test_signal(window, signal, at_least, NULL));
}

/* wait_signal(window, signal, at_least, peer, timeout) -> the word, or a negative status */
static PyObject *wait_signal(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!expect("wait_signal", n, 5)) return NULL;
    hpc_window *window = PyLong_AsVoidPtr(args[0]);
    int signal = as_int(args[1]), peer = as_int(args[3]), status = HPC_IN_PROGRESS;
    uint64_t at_least = as_uint64(args[2]), value = 0;
    double timeout = PyFloat_AsDouble(args[4]), begin;
    if (PyErr_Occurred()) return NULL;
    for (int looks = 0; status == HPC_IN_PROGRESS && looks_on(looks, &begin); looks++)
        status = hpc_test_signal(window, signal, at_least, &value);
    if (status == HPC_IN_PROGRESS) {
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_wait_signal(window, signal, at_least, peer, timeout, &value);
        Py_END_ALLOW_THREADS;
    }
    return status == HPC_OK ? PyLong_FromUnsignedLongLong(value) : PyLong_FromLong(status);
}

/* ---- exchange ------------------------------------------------------------------------------------------------- */

/* Every look at an exchange may fold, apply and write whatever has come, of any key, where progress is inline. keep
 * says that the whole exchange is short, so that even this may be done with the GIL held.
 */

/* The arguments of a call on one key: exchange, key, flags, src, nbytes, keep, timeout. src: nbytes of float32,
 * C-contiguous, or None when the gradient is in place. */
typedef struct key_args {
    hpc_exchange *exchange;
    int key, flags, keep;
    size_t nbytes;
    double timeout;
    Py_buffer src;
    int started;
    uint64_t ticket;
} key_args;

static int parse_key(key_args *k, PyObject *const *args) {
    *k = (key_args){.exchange = PyLong_AsVoidPtr(args[0]),
                    .key = as_int(args[1]),
                    .flags = as_int(args[2]),
                    .keep = args[5] == Py_True,
                    .nbytes = as_uint64(args[4]),
                    .timeout = PyFloat_AsDouble(args[6])};
    if (PyErr_Occurred()) return 0;
    if (args[3] == Py_None) return 1;
    if (PyObject_GetBuffer(args[3], &k->src, PyBUF_SIMPLE) != 0) return 0;
    if ((size_t)k->src.len == k->nbytes) return 1;
    PyErr_Format(PyExc_ValueError, "it has %zd bytes instead of %zu", k->src.len, k->nbytes);
    PyBuffer_Release(&k->src);
    return 0;
}

static double left_until(double deadline) {
    double left = deadline - now();
    return left > 0 ? left : 0;
}

static int look(hpc_exchange *exchange, int key, uint64_t ticket) {
    int status = HPC_IN_PROGRESS;
    double begin;
    for (int looks = 0; status == HPC_IN_PROGRESS && looks_on(looks, &begin); looks++)
        status = hpc_exchange_test(exchange, key, ticket);
    return status;
}

/* patient: waits, within k->timeout, for what is not there at the first looks. */
static int start(key_args *k, int patient) {
    if (k->started) return HPC_OK;
    int status = hpc_exchange_start(k->exchange, k->key, k->flags, k->src.buf, 0, &k->ticket);
    if (status == HPC_ERR_TIMEOUT && patient && k->timeout > 0) {
        double deadline = now() + k->timeout;
        status = hpc_exchange_start(k->exchange, k->key, k->flags, k->src.buf, k->timeout, &k->ticket);
        k->timeout = left_until(deadline);
    }
    k->started = status == HPC_OK;
    return status;
}

static int start_and_wait(key_args *k, int patient) {
    int status = start(k, patient);
    if (status != HPC_OK) return status;
    return patient ? hpc_exchange_wait(k->exchange, k->key, k->ticket, k->timeout)
                   : look(k->exchange, k->key, k->ticket);
}

static int run(key_args *k, int (*call)(key_args *k, int patient)) {
    int status = k->keep ? call(k, 0) : HPC_IN_PROGRESS;
    if (status == HPC_IN_PROGRESS || status == HPC_ERR_TIMEOUT) {
        Py_BEGIN_ALLOW_THREADS;
        status = call(k, 1);
        Py_END_ALLOW_THREADS;
    }
    if (k->src.obj != NULL) PyBuffer_Release(&k->src);
    return status;
}

/* exchange_gradient(exchange, key, keep, timeout) -> the address of the key's next gradient, or a negative status */
static PyObject *exchange_gradient(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!expect("exchange_gradient", n, 4)) return NULL;
    hpc_exchange *exchange = PyLong_AsVoidPtr(args[0]);
    int key = as_int(args[1]), keep = args[2] == Py_True;
    double timeout = PyFloat_AsDouble(args[3]);
    void *gradient = NULL;
    if (PyErr_Occurred()) return NULL;
    int status = keep ? hpc_exchange_gradient(exchange, key, 0, &gradient) : HPC_ERR_TIMEOUT;
    if (status == HPC_ERR_TIMEOUT && (!keep || timeout > 0)) {
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_exchange_gradient(exchange, key, timeout, &gradient);
        Py_END_ALLOW_THREADS;
    }
    return status == HPC_OK ? PyLong_FromVoidPtr(gradient) : PyLong_FromLong(status);
}

/* exchange_start(exchange, key, flags, src, nbytes, keep, timeout) -> the ticket, or a negative status */
static PyObject *exchange_start(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    key_args k;
    (void)module;
    if (!expect("exchange_start", n, 7) || !parse_key(&k, args)) return NULL;
    int status = run(&k, start);
    return status == HPC_OK ? PyLong_FromUnsignedLongLong(k.ticket) : PyLong_FromLong(status);
}

/* exchange_call(exchange, key, flags, src, nbytes, keep, timeout) -> start, then wait: 0, a negative status, or
 * ticket + 1 when the wait ran out of time */
static PyObject *exchange_call(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    key_args k;
    (void)module;
    if (!expect("exchange_call", n, 7) || !parse_key(&k, args)) return NULL;
    int status = run(&k, start_and_wait);
    return status == HPC_ERR_TIMEOUT && k.started ? PyLong_FromUnsignedLongLong(k.ticket + 1) : PyLong_FromLong(status);
}

/* exchange_test(exchange, key, ticket, keep) -> status */
static PyObject *exchange_test(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!expect("exchange_test", n, 4)) return NULL;
    hpc_exchange *exchange = PyLong_AsVoidPtr(args[0]);
    int key = as_int(args[1]), status;
    uint64_t ticket = as_uint64(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (args[3] == Py_True) {
        status = hpc_exchange_test(exchange, key, ticket);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_exchange_test(exchange, key, ticket);
        Py_END_ALLOW_THREADS;
    }
    return PyLong_FromLong(status);
}

/* exchange_wait(exchange, key, ticket, keep, timeout) -> status */
static PyObject *exchange_wait(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!expect("exchange_wait", n, 5)) return NULL;
    hpc_exchange *exchange = PyLong_AsVoidPtr(args[0]);
    int key = as_int(args[1]);
    uint64_t ticket = as_uint64(args[2]);
    double timeout = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    int status = args[3] == Py_True ? look(exchange, key, ticket) : HPC_IN_PROGRESS;
    if (status == HPC_IN_PROGRESS) {
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_exchange_wait(exchange, key, ticket, timeout);
        Py_END_ALLOW_THREADS;
    }
    return PyLong_FromLong(status);
}

/* exchange_ready(exchange, keys) -> 0 when a push of each of these would be taken, else 1 + the place of the first that
 * would not, or a negative status. keys: of int32. */
static PyObject *exchange_ready(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    Py_buffer keys;
    (void)module;
    if (!expect("exchange_ready", n, 2)) return NULL;
    hpc_exchange *exchange = PyLong_AsVoidPtr(args[0]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[1], &keys, PyBUF_SIMPLE) != 0) return NULL;
    const int32_t *key = keys.buf;
    long i = 0, count = (long)((size_t)keys.len / sizeof *key);
    int status = HPC_OK;
    while (i < count && (status = hpc_exchange_ready(exchange, key[i])) == HPC_OK) i++;
    PyBuffer_Release(&keys);
    return PyLong_FromLong(status == HPC_IN_PROGRESS ? 1 + i : status);
}

/* A step over n keys: their numbers, their sources, then in words their tickets, how many have started and how many
 * have come. */
typedef struct step_args {
    hpc_exchange *exchange;
    const int32_t *keys;
    Py_buffer *sources; /* buf NULL: in place */
    uint64_t *tickets, *started, *came;
    size_t n;
    double deadline; /* of the monotonic clock, in seconds */
} step_args;

/* Goes on where the last call of the same step ended. patient: waits for what is not there at the first looks. */
static int go_on(step_args *s, int patient) {
    const int both = HPC_PUSH | HPC_PULL;
    int started = hpc_exchange_together(s->exchange, 1);
    for (; started == HPC_OK && *s->started < s->n; ++*s->started) {
        int key = s->keys[*s->started];
        uint64_t *ticket = &s->tickets[*s->started];
        const float *src = s->sources == NULL ? NULL : s->sources[*s->started].buf;
        started = hpc_exchange_start(s->exchange, key, both, src, 0, ticket);
        if (started == HPC_ERR_TIMEOUT && patient)
            started = hpc_exchange_start(s->exchange, key, both, src, left_until(s->deadline), ticket);
        if (started != HPC_OK) break;
    }
    hpc_exchange_together(s->exchange, 0);
    if (started != HPC_OK) return started;
    for (; *s->came < s->n; ++*s->came) {
        int key = s->keys[*s->came];
        uint64_t ticket = s->tickets[*s->came];
        int status = patient ? hpc_exchange_test(s->exchange, key, ticket) : look(s->exchange, key, ticket);
        if (status == HPC_IN_PROGRESS && patient)
            status = hpc_exchange_wait(s->exchange, key, ticket, left_until(s->deadline));
        if (status != HPC_OK) return status;
    }
    return HPC_OK;
}

static void close_sources(step_args *s) {
    for (size_t i = 0; s->sources != NULL && i < s->n; i++)
        if (s->sources[i].obj != NULL) PyBuffer_Release(&s->sources[i]);
    free(s->sources);
}

/* Opens the sources of the keys that have not started. Each source is held and measured before the first goes out. */
static int open_sources(step_args *s, PyObject *list, const uint64_t *sizes) {
    if (list == Py_None) return 1;
    if (PyList_Size(list) != (Py_ssize_t)s->n) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "sources must be as many as keys");
        return 0;
    }
    s->sources = calloc(s->n + 1, sizeof *s->sources);
    if (s->sources == NULL) return PyErr_NoMemory() != NULL;
    for (size_t i = (size_t)*s->started; i < s->n; i++) {
        PyObject *source = PyList_GetItem(list, (Py_ssize_t)i);
        Py_buffer *into = &s->sources[i];
        if (source == Py_None) continue;
        if (PyObject_GetBuffer(source, into, PyBUF_SIMPLE) != 0) return 0;
        if ((uint64_t)into->len != sizes[i]) {
            PyErr_Format(PyExc_ValueError, "gradient %zu of the step has %zd bytes instead of %llu", i, into->len,
                         (unsigned long long)sizes[i]);
            return 0;
        }
    }
    return 1;
}

/* exchange_step(exchange, keys, words, sources, sizes, keep, timeout) -> status. keys: n of int32; words: n + 2 of
 * uint64, zero at first; sources: None, or a list of what exchange_start takes; sizes: n of uint64, their bytes.
 * After HPC_ERR_TIMEOUT the same call goes on. */
static PyObject *exchange_step(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    Py_buffer keys, words, sizes = {0};
    (void)module;
    if (!expect("exchange_step", n, 7)) return NULL;
    step_args s = {.exchange = PyLong_AsVoidPtr(args[0])};
    int keep = args[5] == Py_True, status = HPC_IN_PROGRESS;
    double timeout = PyFloat_AsDouble(args[6]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[1], &keys, PyBUF_SIMPLE) != 0) return NULL;
    if (PyObject_GetBuffer(args[2], &words, PyBUF_WRITABLE) != 0) {
        PyBuffer_Release(&keys);
        return NULL;
    }
    s.n = (size_t)keys.len / sizeof(int32_t);
    s.keys = keys.buf;
    s.tickets = words.buf;
    s.started = s.tickets + s.n;
    s.came = s.started + 1;
    int sound = PyObject_GetBuffer(args[4], &sizes, PyBUF_SIMPLE) == 0;
    if (sound && ((size_t)words.len != (s.n + 2) * sizeof(uint64_t) || (size_t)sizes.len != s.n * sizeof(uint64_t))) {
        PyErr_SetString(PyExc_ValueError, "words must be two more than keys, sizes as many");
        sound = 0;
    }
    if (sound && open_sources(&s, args[3], sizes.buf)) {
        if (keep) status = go_on(&s, 0);
        if (status == HPC_IN_PROGRESS || status == HPC_ERR_TIMEOUT) {
            s.deadline = now() + timeout;
            Py_BEGIN_ALLOW_THREADS;
            status = go_on(&s, 1);
            Py_END_ALLOW_THREADS;
        }
    }
    close_sources(&s);
    if (sizes.obj != NULL) PyBuffer_Release(&sizes);
    PyBuffer_Release(&words);
    PyBuffer_Release(&keys);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(status);
}

/* ---- collectives of arrays, and messages ----------------------------------------------------------------------- */

static const double SLICE = 0.1; /* seconds of a wait between two looks for signals such as Ctrl-C, as in _core */
static const double MOST_SECONDS = 1e9;

/* A context whose calls the functions below make. They do nothing, and say so, if an argument is not plainly right, or
 * there are started calls; hpcomm.collective then takes its longer way, which finds the error if there is one. */
typedef struct caller {
    hpc_context *context;
    int rank, size;
    double timeout;               /* the default */
    PyObject *ndarray, *error;    /* numpy.ndarray; makes the exception of a status */
    PyObject *started, *messages; /* a deque and a set: calls that may not be over */
    PyObject *cuts;               /* a list: (what, exception) of a collective that an exception has cut short */
    PyObject *ops;                /* a tuple: the name of each hpc_op */
} caller;

static caller *caller_of(PyObject *capsule) {
    return PyCapsule_GetPointer(capsule, NULL);
}

static int is_plain(const caller *s) {
    return PyObject_Size(s->started) == 0 && PySet_Size(s->messages) == 0 && PyList_Size(s->cuts) == 0;
}

/* Raises the exception of a failure. */
static PyObject *fail(const caller *s, int status) {
    PyObject *error = PyObject_CallFunction(s->error, "i", status);
    if (error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

/* Waits for the end of a started call, and frees it. Returns its status; HPC_IN_PROGRESS with an exception of Python,
 * such as that of Ctrl-C, which ends the wait. short_: the call may go on with the GIL held. received: of a recv. */
static int finish(hpc_request *work, int short_, double timeout, hpc_received *received) {
    double begin, deadline = 0, before = 0, left = timeout;
    int status = HPC_IN_PROGRESS, sliced = 0, cut = 0;
    for (int looks = 0; short_ && status == HPC_IN_PROGRESS && looks_on(looks, &begin); looks++) {
        status = hpc_request_test(work);
        if (status == HPC_IN_PROGRESS && looks % LOOKS_PER_CLOCK == LOOKS_PER_CLOCK - 1)
            sched_yield(); /* the awaited rank may share this core */
    }
    while (status == HPC_IN_PROGRESS && !cut) {
        if (!sliced) deadline = now() + timeout, before = hpc_slices_limit(timeout), sliced = 1;
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_request_wait(work, left < SLICE ? left : SLICE);
        if (status == HPC_ERR_TIMEOUT && hpc_last_error()->detail != HPC_DETAIL_HELD_UP) {
            left = left_until(deadline);
            status = left > 0 ? HPC_IN_PROGRESS : hpc_follow_timeout(timeout);
        }
        Py_END_ALLOW_THREADS;
        cut = status == HPC_IN_PROGRESS && PyErr_CheckSignals() != 0;
    }
    if (sliced) hpc_slices_limit(before);
    if (status == HPC_OK && received != NULL) status = hpc_request_received(work, received);
    hpc_request_free(work);
    return status;
}

/* The hpc_dtype or hpc_element of an array by its format in struct's letters; -1 if there is none. */
static int element_of(const Py_buffer *array) {
    static const char letters[] = "?efd";
    static const int types[] = {HPC_BOOL, HPC_F16, HPC_F32, HPC_F64};
    static const int whole[][2] = {
        [1] = {HPC_I8, HPC_U8}, [2] = {HPC_I16, HPC_U16}, [4] = {HPC_I32, HPC_U32}, [8] = {HPC_I64, HPC_U64}};
    const char *format = array->format;
    if (format == NULL || format[0] == 0) return -1;
    if (format[0] == 'Z' && format[1] != 0 && format[2] == 0)
        return format[1] == 'f' ? HPC_C64 : format[1] == 'd' ? HPC_C128 : -1;
    if (format[1] != 0) return -1;
    const char *at = strchr(letters, format[0]);
    if (at != NULL) return types[at - letters];
    return strchr("bhilqBHILQ", format[0]) == NULL ? -1 : whole[array->itemsize][format[0] < 'a'];
}

static int rests_are_equal(const Py_buffer *a, int from_a, const Py_buffer *b, int from_b) {
    if (a->ndim - from_a != b->ndim - from_b) return 0;
    for (int i = from_a; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i - from_a + from_b]) return 0;
    return 1;
}

/* Returns whether whole has the rows of n blocks, one behind the other. */
static int joins(const Py_buffer *whole, const Py_buffer *block, int n) {
    return whole->ndim > 0 && block->ndim > 0 && whole->shape[0] == n * block->shape[0] &&
           rests_are_equal(whole, 1, block, 1);
}

/* Returns whether element i of whole is a block, of n. */
static int stacks(const Py_buffer *whole, const Py_buffer *block, int n) {
    return whole->ndim > 0 && whole->shape[0] == n && rests_are_equal(whole, 1, block, 0);
}

/* Returns whether send and recv of a call that uses both have shapes that fit. */
static int shapes_fit(int what, const Py_buffer *send, const Py_buffer *recv, int n) {
    switch (what) {
    case HPC_ALLREDUCE:
    case HPC_REDUCE:
        return rests_are_equal(send, 0, recv, 0);
    case HPC_ALLTOALL:
        return send->ndim > 0 && send->shape[0] % n == 0 && rests_are_equal(send, 0, recv, 0);
    case HPC_ALLGATHER:
    case HPC_GATHER:
        return joins(recv, send, n) || stacks(recv, send, n);
    case HPC_REDUCE_SCATTER:
        return joins(send, recv, n);
    default:
        return joins(send, recv, n) || stacks(send, recv, n);
    }
}

/* The arrays of a call. obj NULL: none. */
typedef struct arrays {
    Py_buffer send, recv;
} arrays;

static int open_array(Py_buffer *into, PyObject *array, PyObject *ndarray, int flags) {
    if (Py_TYPE(array) == (PyTypeObject *)ndarray &&
        PyObject_GetBuffer(array, into, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) == 0)
        return 1;
    into->obj = NULL;
    PyErr_Clear();
    return 0;
}

static void close_arrays(arrays *a) {
    if (a->send.obj != NULL) PyBuffer_Release(&a->send);
    if (a->recv.obj != NULL) PyBuffer_Release(&a->recv);
}

/* Opens the arrays that a call uses on this rank, and writes them, their type and their length into the call. Returns 0
 * if something is not as it must be. */
static int fill_call(hpc_collective_call *c, arrays *a, const caller *by, PyObject *send, PyObject *recv) {
    PyObject *ndarray = by->ndarray;
    const int is_root = by->rank == c->root, what = c->what, n = by->size;
    const int gives = what != HPC_BROADCAST && (what != HPC_SCATTER || is_root);
    const int takes = (what != HPC_REDUCE && what != HPC_GATHER) || is_root || (what == HPC_REDUCE && recv != Py_None);
    const int in_place = gives && takes && send == recv;
    if (gives && !open_array(&a->send, send, ndarray, in_place ? PyBUF_WRITABLE : 0)) return 0;
    if (takes && !in_place &&
        !open_array(&a->recv, recv, ndarray, what == HPC_BROADCAST && is_root ? 0 : PyBUF_WRITABLE))
        return 0;
    const Py_buffer *s = &a->send, *r = in_place ? s : &a->recv;
    c->type = element_of(gives ? s : r);
    if (c->type < 0 || (r != s && gives && takes && element_of(r) != c->type)) return 0;
    if (gives && takes && !shapes_fit(what, s, r, n)) return 0;
    const int by_recv = what == HPC_REDUCE_SCATTER || what == HPC_SCATTER || what == HPC_BROADCAST;
    const Py_buffer *block = by_recv ? r : s;
    c->count = (uint64_t)(block->len / block->itemsize) / (what == HPC_ALLTOALL ? (unsigned)n : 1);
    c->send = s->buf;
    c->recv = r->buf;
    return 1;
}

/* The rank or tag that an int names; -1 if it is no plain int, or too large. */
static int as_number(PyObject *value) {
    int beyond = 0;
    const long n = PyLong_CheckExact(value) ? PyLong_AsLongAndOverflow(value, &beyond) : -1;
    return beyond || n < 0 || n > INT_MAX ? -1 : (int)n;
}

/* Reads the lengths of blocks, an object whose buffer has n numbers of 64 bits; None: NULL. Returns 0 with an
 * exception. */
static int open_counts(Py_buffer *into, PyObject *counts, int n) {
    into->obj = NULL;
    into->buf = NULL;
    if (counts == Py_None) return 1;
    if (PyObject_GetBuffer(counts, into, PyBUF_SIMPLE) != 0) return 0;
    if ((size_t)into->len == (size_t)n * sizeof(uint64_t)) return 1;
    PyErr_Format(PyExc_ValueError, "counts has %zd bytes: must have 8 for each of %d ranks", into->len, n);
    return 0;
}

/* collective_at(context, what, type, op, root, send, recv, count, send_counts, recv_counts, nbytes, timeout) -> 0, or a
 * negative status. send, recv: addresses, 0 for none; the caller keeps their memory alive. nbytes: the longer one's. */
static PyObject *collective_at(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    hpc_collective_call c = {.size = sizeof c};
    Py_buffer sends = {0}, recvs = {0};
    hpc_request *work = NULL;
    (void)module;
    if (!expect("collective_at", n, 12)) return NULL;
    hpc_context *context = PyLong_AsVoidPtr(args[0]);
    c.what = as_int(args[1]);
    c.type = as_int(args[2]);
    c.op = as_int(args[3]);
    c.root = as_int(args[4]);
    c.send = PyLong_AsVoidPtr(args[5]);
    c.recv = PyLong_AsVoidPtr(args[6]);
    c.count = as_uint64(args[7]);
    const uint64_t nbytes = as_uint64(args[10]);
    const double timeout = PyFloat_AsDouble(args[11]);
    if (PyErr_Occurred()) return NULL;
    const int size = hpc_context_size(context);
    int status = HPC_IN_PROGRESS;
    if (open_counts(&sends, args[8], size) && open_counts(&recvs, args[9], size)) {
        const int short_ = nbytes * (c.what == HPC_BROADCAST ? (unsigned)size : 1) <= SHORT_BYTES;
        c.send_counts = sends.buf;
        c.recv_counts = recvs.buf;
        if (short_) {
            status = hpc_collective_start(context, &c, &work);
        } else {
            Py_BEGIN_ALLOW_THREADS;
            status = hpc_collective_start(context, &c, &work);
            Py_END_ALLOW_THREADS;
        }
        if (status == HPC_OK) status = finish(work, short_, timeout, NULL);
    }
    if (sends.obj != NULL) PyBuffer_Release(&sends);
    if (recvs.obj != NULL) PyBuffer_Release(&recvs);
    return status == HPC_IN_PROGRESS ? NULL : PyLong_FromLong(status);
}

/* Reads a message's other rank, or its tag. None is any, if any is 1. Returns 0 if the object is no plain number. */
static int as_part(PyObject *value, int any, int *part) {
    if (any && value == Py_None) return *part = HPC_ANY, 1;
    return (*part = as_number(value)) >= 0;
}

static int as_timeout(const caller *by, PyObject *value, double *timeout) {
    *timeout = value == Py_None ? by->timeout : PyFloat_AsDouble(value);
    if (*timeout >= 0 && *timeout <= MOST_SECONDS) return 1;
    PyErr_Clear();
    return 0;
}

/* Returns the hpc_op of a name; -1 if there is none. */
static int as_op(const caller *by, PyObject *name) {
    const int n = (int)PyTuple_Size(by->ops);
    for (int i = 0; i < n; i++)
        if (name == PyTuple_GetItem(by->ops, i)) return i;
    for (int i = 0; i < n && PyUnicode_Check(name); i++)
        if (PyUnicode_Compare(name, PyTuple_GetItem(by->ops, i)) == 0) return i;
    return -1;
}

static void keep_cut(const caller *by, int what) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *cut = Py_BuildValue("(iO)", what, type);
    if (cut == NULL || PyList_Append(by->cuts, cut) != 0) PyErr_Clear();
    Py_XDECREF(cut);
    PyErr_Restore(type, value, trace);
}

/* collective(what, op, root, send, recv, timeout) -> True, or False if it has done nothing. op: its name. send, recv:
 * numpy.ndarrays, or None. */
static PyObject *collective(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    const caller *by = caller_of(self);
    hpc_collective_call c = {.size = sizeof c};
    arrays a = {{0}, {0}};
    hpc_request *work = NULL;
    double timeout;
    int status = HPC_ERR_INVALID, short_ = 0;
    if (!expect("collective", n, 6)) return NULL;
    c.what = as_int(args[0]);
    c.op = as_op(by, args[1]);
    c.root = as_number(args[2]);
    if (is_plain(by) && c.op >= 0 && as_timeout(by, args[5], &timeout) && fill_call(&c, &a, by, args[3], args[4])) {
        const Py_ssize_t most = a.send.len > a.recv.len ? a.send.len : a.recv.len;
        short_ = most * (c.what == HPC_BROADCAST ? by->size : 1) <= SHORT_BYTES;
        if (short_) {
            status = hpc_collective_start(by->context, &c, &work);
        } else {
            Py_BEGIN_ALLOW_THREADS;
            status = hpc_collective_start(by->context, &c, &work);
            Py_END_ALLOW_THREADS;
        }
    }
    const int refused = status == HPC_ERR_INVALID;
    if (status == HPC_OK) status = finish(work, short_, timeout, NULL);
    close_arrays(&a);
    if (refused) Py_RETURN_FALSE;
    if (status == HPC_OK) Py_RETURN_TRUE;
    if (status < 0) return fail(by, status);
    keep_cut(by, c.what);
    return NULL;
}

static int start_message(const caller *by, int rank, int tag, const Py_buffer *array, int type, int receives,
                         hpc_request **work) {
    const uint64_t count = (uint64_t)(array->len / array->itemsize);
    return receives ? hpc_recv_start(by->context, rank, tag, array->buf, count, type, work)
                    : hpc_send_start(by->context, rank, tag, array->buf, count, type, work);
}

enum { REFUSED = 2 }; /* a status: the message was not started */

/* args: array, rank, tag, timeout. received: of a recv; NULL: a send. */
static int pass_message(const caller *by, PyObject *const *args, hpc_received *received) {
    const int receives = received != NULL;
    hpc_request *work = NULL;
    Py_buffer array;
    double timeout;
    int rank, tag, status = HPC_ERR_INVALID;
    if (!is_plain(by) || !as_part(args[1], receives, &rank) || !as_part(args[2], receives, &tag) ||
        !as_timeout(by, args[3], &timeout) || !open_array(&array, args[0], by->ndarray, receives ? PyBUF_WRITABLE : 0))
        return REFUSED;
    const int type = element_of(&array), short_ = array.len <= SHORT_BYTES;
    if (type >= 0 && short_) {
        status = start_message(by, rank, tag, &array, type, receives, &work);
    } else if (type >= 0) {
        Py_BEGIN_ALLOW_THREADS;
        status = start_message(by, rank, tag, &array, type, receives, &work);
        Py_END_ALLOW_THREADS;
    }
    if (status == HPC_ERR_INVALID) status = REFUSED;
    if (status == HPC_OK) status = finish(work, short_, timeout, received);
    PyBuffer_Release(&array);
    return status;
}

/* send(array, to, tag, timeout) -> True, or False if it has done nothing */
static PyObject *send_(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    const caller *by = caller_of(self);
    if (!expect("send", n, 4)) return NULL;
    const int status = pass_message(by, args, NULL);
    if (status == HPC_OK) Py_RETURN_TRUE;
    if (status == REFUSED) Py_RETURN_FALSE;
    return status < 0 ? fail(by, status) : NULL;
}

/* recv(array, from, tag, timeout) -> the sender, or None if it has done nothing. from, tag: None for any. */
static PyObject *recv_(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    const caller *by = caller_of(self);
    hpc_received received = {0};
    if (!expect("recv", n, 4)) return NULL;
    const int status = pass_message(by, args, &received);
    if (status == HPC_OK) return PyLong_FromLong(received.rank);
    if (status == REFUSED) Py_RETURN_NONE;
    return status < 0 ? fail(by, status) : NULL;
}

static void free_caller(PyObject *capsule) {
    caller *s = caller_of(capsule);
    PyObject *held[] = {s->ndarray, s->error, s->started, s->messages, s->cuts, s->ops};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_DECREF(held[i]);
    free(s);
}

/* caller(context, timeout, numpy.ndarray, error, started, messages, cuts, ops) -> its functions collective, send and
 * recv. They may be called while the context lives. */
static PyObject *make_caller(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    static PyMethodDef methods[] = {
        {"collective", (PyCFunction)(void (*)(void))collective, METH_FASTCALL, NULL},
        {"send", (PyCFunction)(void (*)(void))send_, METH_FASTCALL, NULL},
        {"recv", (PyCFunction)(void (*)(void))recv_, METH_FASTCALL, NULL},
    };
    (void)module;
    if (!expect("caller", n, 8)) return NULL;
    caller *s = malloc(sizeof *s);
    if (s == NULL) return PyErr_NoMemory();
    *s = (caller){.context = PyLong_AsVoidPtr(args[0]),
                  .timeout = PyFloat_AsDouble(args[1]),
                  .ndarray = args[2],
                  .error = args[3],
                  .started = args[4],
                  .messages = args[5],
                  .cuts = args[6],
                  .ops = args[7]};
    PyObject *capsule = PyErr_Occurred() ? NULL : PyCapsule_New(s, NULL, free_caller);
    if (capsule == NULL) {
        free(s);
        return NULL;
    }
    for (int i = 2; i < 8; i++) Py_INCREF(args[i]);
    s->rank = hpc_context_rank(s->context);
    s->size = hpc_context_size(s->context);
    PyObject *made = Py_BuildValue("(NNN)", PyCFunction_New(&methods[0], capsule),
                                   PyCFunction_New(&methods[1], capsule), PyCFunction_New(&methods[2], capsule));
    Py_DECREF(capsule);
    return made;
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, NULL},
    {"put_signal", (PyCFunction)(void (*)(void))put_signal, METH_FASTCALL, NULL},
    {"test_signal", (PyCFunction)(void (*)(void))test_signal, METH_FASTCALL, NULL},
    {"wait_signal", (PyCFunction)(void (*)(void))wait_signal, METH_FASTCALL, NULL},
    {"exchange_gradient", (PyCFunction)(void (*)(void))exchange_gradient, METH_FASTCALL, NULL},
    {"exchange_start", (PyCFunction)(void (*)(void))exchange_start, METH_FASTCALL, NULL},
    {"exchange_call", (PyCFunction)(void (*)(void))exchange_call, METH_FASTCALL, NULL},
    {"exchange_test", (PyCFunction)(void (*)(void))exchange_test, METH_FASTCALL, NULL},
    {"exchange_wait", (PyCFunction)(void (*)(void))exchange_wait, METH_FASTCALL, NULL},
    {"exchange_ready", (PyCFunction)(void (*)(void))exchange_ready, METH_FASTCALL, NULL},
    {"exchange_step", (PyCFunction)(void (*)(void))exchange_step, METH_FASTCALL, NULL},
    {"caller", (PyCFunction)(void (*)(void))make_caller, METH_FASTCALL, NULL},
    {"collective_at", (PyCFunction)(void (*)(void))collective_at, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

#ifdef Py_TARGET_ABI3T

/* PEP 793. No Py_mod_gil: the calls that keep the GIL rely on it, so an interpreter without one turns it on. */
PyABIInfo_VAR(abi_info);

static PySlot slots[] = {
    PySlot_STATIC_DATA(Py_mod_abi, &abi_info),
    PySlot_STATIC_DATA(Py_mod_name, "hpcomm._fast"),
    PySlot_STATIC_DATA(Py_mod_methods, methods),
    PySlot_END,
};

PyMODEXPORT_FUNC PyModExport__fast(void) {
    return slots;
}

#else

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "hpcomm._fast",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__fast(void) {
    return PyModuleDef_Init(&definition);
}

#endif
