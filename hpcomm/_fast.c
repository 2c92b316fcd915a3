/* The calls of _core whose cost a ping-pong of 8 bytes sees: put, put_signal, test_signal, wait_signal.
 *
 * cffi lets go of the GIL around every call, which takes longer than these calls do. Here a short put keeps it, and a
 * wait lets go only when its first looks find nothing. Handles come as addresses: _core owns what they point to.
 * Limited API of CPython 3.10. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

#include <hpcomm/hpcomm.h>

#if Py_LIMITED_API < 0x030b0000
/* The buffer protocol joined the stable ABI in 3.11 as it had been since 3.3; 3.10 exports it all the same. */
typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *view);
#define PyBUF_SIMPLE 0
#endif

enum {
    SHORT_BYTES =
        64 << 10, /* a put of so much takes a few microseconds, a thousandth of the interpreter's own switches */
    LOOKS = 200   /* at a signal before a wait lets go of the GIL: two microseconds, for an answer in one */
};

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

/* What put and put_signal have in common: lane, window, peer, src, offset. src: C-contiguous, or None for no data. */
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
    double timeout = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL;
    for (int look = 0; look < LOOKS; look++) {
        status = hpc_test_signal(window, signal, at_least, &value);
        if (status != HPC_IN_PROGRESS) break;
    }
    if (status == HPC_IN_PROGRESS) {
        Py_BEGIN_ALLOW_THREADS;
        status = hpc_wait_signal(window, signal, at_least, peer, timeout, &value);
        Py_END_ALLOW_THREADS;
    }
    return status == HPC_OK ? PyLong_FromUnsignedLongLong(value) : PyLong_FromLong(status);
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)(void (*)(void))put, METH_FASTCALL, NULL},
    {"put_signal", (PyCFunction)(void (*)(void))put_signal, METH_FASTCALL, NULL},
    {"test_signal", (PyCFunction)(void (*)(void))test_signal, METH_FASTCALL, NULL},
    {"wait_signal", (PyCFunction)(void (*)(void))wait_signal, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

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
