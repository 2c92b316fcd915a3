/* Collectives of arrays, and messages: the part of the module _fast for hpcomm.collective and hpcomm.torch.backend. */
#include "_fast.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

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

/* Waits for the end of a started call. Returns its status; HPC_IN_PROGRESS with an exception of Python, such as that of
 * Ctrl-C, which ends the wait. short_: the call may go on with the GIL held. */
static int wait_for(hpc_request *work, int short_, double timeout) {
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
    return status;
}

/* Waits for the end of a started call as wait_for does, and frees it. received: of a recv; NULL: none. */
static int finish(hpc_request *work, int short_, double timeout, hpc_received *received) {
    int status = wait_for(work, short_, timeout);
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
 * negative status. send, recv: addresses, 0 for none; the caller keeps their memory alive. nbytes: the longer one's,
 * and those of the calls that have started before. */
PyObject *hpc_fast_collective_at(PyObject *module, PyObject *const *args, Py_ssize_t n) {
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

/* message_at(context, receives, rank, tag, at, count, type, nbytes) -> the address of the request of a started message,
 * which request_free frees, or a negative status. at: the address of count elements of type, which the caller keeps
 * alive. nbytes: theirs, and those of the calls that have started before. rank and tag of a recv: HPC_ANY for any. */
PyObject *hpc_fast_message_at(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    hpc_request *request = NULL;
    int status;
    (void)module;
    if (!expect("message_at", n, 8)) return NULL;
    hpc_context *context = PyLong_AsVoidPtr(args[0]);
    const int receives = args[1] == Py_True, rank = as_int(args[2]), tag = as_int(args[3]), type = as_int(args[6]);
    void *at = PyLong_AsVoidPtr(args[4]);
    const uint64_t count = as_uint64(args[5]), nbytes = as_uint64(args[7]);
    if (PyErr_Occurred()) return NULL;
    if (nbytes <= SHORT_BYTES) {
        status = receives ? hpc_recv_start(context, rank, tag, at, count, type, &request)
                          : hpc_send_start(context, rank, tag, at, count, type, &request);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        status = receives ? hpc_recv_start(context, rank, tag, at, count, type, &request)
                          : hpc_send_start(context, rank, tag, at, count, type, &request);
        Py_END_ALLOW_THREADS;
    }
    return status == HPC_OK ? PyLong_FromVoidPtr(request) : PyLong_FromLong(status);
}

/* request_test(request, nbytes) -> status. nbytes: of the arrays that the test may go on with: those of every started
 * call of the context. It keeps the GIL for a few. */
PyObject *hpc_fast_request_test(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    int status;
    (void)module;
    if (!expect("request_test", n, 2)) return NULL;
    hpc_request *request = PyLong_AsVoidPtr(args[0]);
    const uint64_t nbytes = as_uint64(args[1]);
    if (PyErr_Occurred()) return NULL;
    if (nbytes <= SHORT_BYTES) return PyLong_FromLong(hpc_request_test(request));
    Py_BEGIN_ALLOW_THREADS;
    status = hpc_request_test(request);
    Py_END_ALLOW_THREADS;
    return PyLong_FromLong(status);
}

/* request_wait(request, nbytes, timeout, receives) -> the sender's rank if it is a recv, else 0; or a negative status.
 * nbytes: as of request_test. */
PyObject *hpc_fast_request_wait(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    hpc_received received = {0};
    (void)module;
    if (!expect("request_wait", n, 4)) return NULL;
    hpc_request *request = PyLong_AsVoidPtr(args[0]);
    const uint64_t nbytes = as_uint64(args[1]);
    const double timeout = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred()) return NULL;
    int status = wait_for(request, nbytes <= SHORT_BYTES, timeout);
    if (status == HPC_IN_PROGRESS) return NULL; /* Ctrl-C */
    if (status == HPC_OK && args[3] == Py_True) status = hpc_request_received(request, &received);
    return PyLong_FromLong(status == HPC_OK ? received.rank : status);
}

/* request_free(request) */
PyObject *hpc_fast_request_free(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (!expect("request_free", n, 1)) return NULL;
    hpc_request *request = PyLong_AsVoidPtr(args[0]);
    if (PyErr_Occurred()) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    hpc_request_free(request);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
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
PyObject *hpc_fast_caller(PyObject *module, PyObject *const *args, Py_ssize_t n) {
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
