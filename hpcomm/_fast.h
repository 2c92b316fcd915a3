/* What the files of the module _fast share. */
#ifndef HPC_FAST_H
#define HPC_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <time.h>

#include <hpcomm/hpcomm.h>

enum {
    SHORT_BYTES =
        64 << 10, /* a put of so much takes a few microseconds, a thousandth of the interpreter's own switches */
    LOOKS = 200,  /* at a signal or a ticket before a wait lets go of the GIL: microseconds, for an answer in one */
    LOOKS_PER_CLOCK = 8
};

static const double LOOKS_END = 15e-6; /* at sockets a look takes a hundred times as long as at memory */

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Whether there may be another look after so many; begin is for this function. */
static inline int looks_on(int looks, double *begin) {
    if (looks % LOOKS_PER_CLOCK != 0) return 1;
    if (looks == 0) return *begin = 0, 1;
    double t = now();
    if (*begin == 0) *begin = t;
    return looks < LOOKS && t - *begin < LOOKS_END;
}

static inline int expect(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return 0;
}

static inline int as_int(PyObject *value) {
    long n = PyLong_AsLong(value);
    if ((n > INT_MAX || n < INT_MIN) && !PyErr_Occurred())
        PyErr_SetString(PyExc_OverflowError, "number does not fit 32 bits");
    return (int)n;
}

/* Any integer, NumPy's too. */
static inline uint64_t as_uint64(PyObject *value) {
    if (PyLong_Check(value)) return PyLong_AsUnsignedLongLong(value);
    PyObject *whole = PyNumber_Index(value);
    uint64_t n = whole == NULL ? 0 : PyLong_AsUnsignedLongLong(whole);
    Py_XDECREF(whole);
    return n;
}

static inline double left_until(double deadline) {
    double left = deadline - now();
    return left > 0 ? left : 0;
}

/* Collectives of arrays, and messages: _fast_calls.c. */
PyObject *hpc_fast_caller(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *hpc_fast_collective_at(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *hpc_fast_message_at(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *hpc_fast_request_test(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *hpc_fast_request_wait(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *hpc_fast_request_free(PyObject *module, PyObject *const *args, Py_ssize_t n);

#endif
