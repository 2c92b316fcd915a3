/* The calls of _core whose cost a ping-pong of 8 bytes or a small key's push_pull sees: put, put_signal, test_signal,
 * wait_signal, the steps of an exchange; those of collectives and messages are in _fast_calls.c.
 *
 * cffi lets go of the GIL around every call, which takes longer than these calls do. Here a short put, the calls of a
 * short exchange and short collectives keep it, and a wait lets go only when its first looks find nothing. Handles come
 * as addresses: _core owns what they point to.
 *
 * The limited API of CPython 3.11, which has the buffer protocol, where setup.py defines Py_LIMITED_API; else that of
 * one version. Under Py_TARGET_ABI3T (3.15) the module is for free-threaded interpreters too. */
#include "_fast.h"

#include <stdlib.h>

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
    {"caller", (PyCFunction)(void (*)(void))hpc_fast_caller, METH_FASTCALL, NULL},
    {"collective_at", (PyCFunction)(void (*)(void))hpc_fast_collective_at, METH_FASTCALL, NULL},
    {"message_at", (PyCFunction)(void (*)(void))hpc_fast_message_at, METH_FASTCALL, NULL},
    {"request_test", (PyCFunction)(void (*)(void))hpc_fast_request_test, METH_FASTCALL, NULL},
    {"request_wait", (PyCFunction)(void (*)(void))hpc_fast_request_wait, METH_FASTCALL, NULL},
    {"request_free", (PyCFunction)(void (*)(void))hpc_fast_request_free, METH_FASTCALL, NULL},
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
