/* The Python module trimtab_lab.obstacles._search: the one way into search.c.

   Everything that the search relies on is checked here: type and layout of each array, its shape against the others',
   which may be written to, and limits. Arrays are held for as long as the search runs. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "search.h"

enum { CIRCLES, BOXES, PROPOSAL, PATH, VIOLATION, ROUNDS, ARRAYS };

static const char *const NAMES[ARRAYS] = {"circles", "boxes", "proposal", "path", "violation", "rounds"};
static const int DIMENSIONS[ARRAYS] = {2, 2, 3, 3, 1, 1};

/* Whether the array holds float64 (or, for rounds, int64) in the machine's own order. */
static int has_type(const Py_buffer *view, int which) {
    const char *f = view->format == NULL ? "B" : view->format;
    if (f[0] == '\0' || f[1] != '\0' || view->itemsize != 8) return 0;
    return which == ROUNDS ? f[0] == 'l' || f[0] == 'q' : f[0] == 'd';
}

/* Borrow an array as C-contiguous memory; false with an exception set if it is not what is asked for. */
static int borrow(PyObject *array, Py_buffer *view, int which) {
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (which >= PATH ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array, view, flags) != 0) return 0; /* says itself what is wrong */
    if (view->ndim == DIMENSIONS[which] && has_type(view, which)) return 1;
    PyErr_Format(PyExc_ValueError, "%s must be a %d-dimensional %s array, got %d dimensions of format '%s'",
                 NAMES[which], DIMENSIONS[which], which == ROUNDS ? "int64" : "float64", view->ndim,
                 view->format == NULL ? "B" : view->format);
    PyBuffer_Release(view);
    return 0;
}

static int shapes_agree(const Py_buffer *view) {
    const Py_ssize_t *proposal = view[PROPOSAL].shape, *path = view[PATH].shape;
    if (view[CIRCLES].shape[1] != 3 || view[BOXES].shape[1] != 4)
        PyErr_Format(PyExc_ValueError, "circles must be (m, 3) and boxes (k, 4), got %zd and %zd columns",
                     view[CIRCLES].shape[1], view[BOXES].shape[1]);
    else if (proposal[0] != 2 || proposal[2] < 2)
        PyErr_Format(PyExc_ValueError, "proposal must be (2, n, W) with W at least 2, got (%zd, %zd, %zd)",
                     proposal[0], proposal[1], proposal[2]);
    else if (path[0] != 2 || path[1] != proposal[1] || path[2] != proposal[2])
        PyErr_Format(PyExc_ValueError, "path must have the shape of proposal, (2, %zd, %zd), got (%zd, %zd, %zd)",
                     proposal[1], proposal[2], path[0], path[1], path[2]);
    else if (view[VIOLATION].shape[0] != proposal[1] || view[ROUNDS].shape[0] != proposal[1])
        PyErr_Format(PyExc_ValueError, "violation and rounds must have one number per sample, (%zd,), got (%zd,), (%zd,)",
                     proposal[1], view[VIOLATION].shape[0], view[ROUNDS].shape[0]);
    else
        return 1;
    return 0;
}

static PyObject *call(PyObject *self, PyObject *arguments) {
    PyObject *arrays[ARRAYS];
    Py_buffer view[ARRAYS];
    Effort e;
    long long whole[4];
    int held = 0, failed = 1, checked = 0;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOO(LLLL)(ddddddddd):nearest_paths", arrays, arrays + 1, arrays + 2,
                          arrays + 3, arrays + 4, arrays + 5, whole, whole + 1, whole + 2, whole + 3, &e.aim,
                          &e.first_damping, &e.step, &e.reach, &e.damping, &e.stiffening, &e.settled, &e.hopeless,
                          &e.leap))
        return NULL;
    for (int k = 0; k < 4; k++)
        if (whole[k] < 0) {
            PyErr_Format(PyExc_ValueError, "rounds, sweeps, stale and patience must be at least 0, got %lld", whole[k]);
            return NULL;
        }
    e.rounds = whole[0], e.sweeps = whole[1], e.stale = whole[2], e.patience = whole[3];
    while (held < ARRAYS && borrow(arrays[held], view + held, held)) held++;
    if (held == ARRAYS && shapes_agree(view)) {
        Map map = {view[PROPOSAL].shape[2], view[CIRCLES].shape[0], view[BOXES].shape[0], view[CIRCLES].buf,
                   view[BOXES].buf};
        checked = 1;
        Py_BEGIN_ALLOW_THREADS
        failed = nearest_paths(view[PROPOSAL].shape[1], &map, &e, view[PROPOSAL].buf, view[PATH].buf,
                               view[VIOLATION].buf, view[ROUNDS].buf);
        Py_END_ALLOW_THREADS
    }
    while (held > 0) PyBuffer_Release(view + --held);
    if (!checked) return NULL;
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"nearest_paths", call, METH_VARARGS,
     "nearest_paths(circles, boxes, proposal, path, violation, rounds, whole, real): the search, in place in path."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "_search", .m_size = 0, .m_methods = METHODS};

PyMODINIT_FUNC PyInit__search(void) { return PyModuleDef_Init(&MODULE); }
