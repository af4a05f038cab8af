/* The nearest points of a polyhedron: the dual active-set method of halfspaces.py, one sample after the other.
 *
 * Each is computed by itself, so that nothing depends on the batch.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t planes, dimension, touching, iterations;
    double parallel;      /* squared sine of the angle below which a normal lies in the span of others */
    const double *normals; /* (planes, dimension), of length 1 */
    const double *gram;    /* (planes, planes), their inner products */
} Planes;

typedef struct {
    double *beyond, *violation, *u, *inner, *rate, *inverse;
    int64_t *plane;
} Room;

/* How far the point is beyond each plane; returns the limit up to which that counts as nothing. */
static double look(const Planes *p, const double *x, const double *b, double *beyond)
{
    double largest = 0.0;
    for (int64_t i = 0; i < p->planes; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < p->dimension; j++)
            sum += p->normals[i * p->dimension + j] * x[j];
        beyond[i] = sum - b[i];
        largest = fmax(largest, fabs(beyond[i]));
    }
    return 1e-11 * (1.0 + largest);
}

/* violation = beyond - G z */
static void violations(const Planes *p, const Room *r, int64_t k)
{
    memcpy(r->violation, r->beyond, (size_t)p->planes * sizeof(double));
    for (int64_t j = 0; j < k; j++) {
        const double *row = p->gram + r->plane[j] * p->planes;
        for (int64_t i = 0; i < p->planes; i++)
            r->violation[i] -= r->u[j] * row[i];
    }
}

static int64_t worst_of(const double *violation, int64_t n)
{
    int64_t worst = 0;
    for (int64_t i = 1; i < n; i++)
        if (violation[i] > violation[worst])
            worst = i;
    return worst;
}

/* A plane joins the k touching ones: the inverse of their Gram matrix grows by a row and a column. */
static void enter(const Planes *p, Room *r, int64_t k, int64_t entering, double share, double length)
{
    const int64_t width = p->touching;
    r->rate[k] = -1.0;
    for (int64_t i = 0; i < k; i++)
        r->inverse[i * width + k] = r->inverse[k * width + i] = 0.0;
    r->inverse[k * width + k] = 0.0;
    for (int64_t i = 0; i <= k; i++)
        for (int64_t j = 0; j <= k; j++)
            r->inverse[i * width + j] += r->rate[i] * (r->rate[j] / length);
    r->plane[k] = entering;
    r->u[k] = share;
}

/* The plane in place `leaving` leaves, and the last of the k takes its place. */
static void leave(const Planes *p, Room *r, int64_t k, int64_t leaving)
{
    const int64_t width = p->touching, last = k - 1;
    const double pivot = r->inverse[leaving * width + leaving];
    double *column = r->rate; /* no longer needed */
    for (int64_t i = 0; i < k; i++)
        column[i] = r->inverse[i * width + leaving];
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < k; j++)
            r->inverse[i * width + j] -= column[i] * (column[j] / pivot);
    for (int64_t i = 0; i < k; i++)
        r->inverse[i * width + leaving] = r->inverse[i * width + last];
    for (int64_t j = 0; j < k; j++)
        r->inverse[leaving * width + j] = r->inverse[last * width + j];
    r->plane[leaving] = r->plane[last];
    r->u[leaving] = r->u[last];
}

/* Moves one point to the nearest one of the polyhedron; returns the planes added or removed. */
static int64_t nearest(const Planes *p, Room *r, const double *x, const double *b, double *y)
{
    const int64_t width = p->touching;
    const double limit = look(p, x, b, r->beyond);
    int64_t k = 0, done = 0, entering = -1;
    double share = 0.0;

    memcpy(y, x, (size_t)p->dimension * sizeof(double));
    for (; done < p->iterations; done++) {
        if (entering < 0) {
            violations(p, r, k);
            const int64_t worst = worst_of(r->violation, p->planes);
            if (!(r->violation[worst] > limit))
                break;
            entering = worst;
            share = 0.0;
        }
        /* moving along the entering plane's normal, less its part in the span of the touching ones */
        const double *row = p->gram + entering * p->planes;
        double here = r->beyond[entering] - share, length = 1.0;
        for (int64_t j = 0; j < k; j++) {
            r->inner[j] = row[r->plane[j]];
            here -= r->u[j] * r->inner[j];
        }
        for (int64_t i = 0; i < k; i++) {
            double sum = 0.0;
            for (int64_t j = 0; j < k; j++)
                sum += r->inverse[i * width + j] * r->inner[j];
            r->rate[i] = sum;
            length -= r->inner[i] * sum;
        }
        const double reach = length > p->parallel && k < width ? here / length : INFINITY;
        double block = INFINITY;
        int64_t leaving = -1;
        for (int64_t j = 0; j < k; j++) {
            if (!(r->rate[j] > 1e-13))
                continue;
            const double ratio = fmax(r->u[j], 0.0) / r->rate[j];
            if (ratio < block) {
                block = ratio;
                leaving = j;
            }
        }
        const double step = fmin(reach, block);
        if (isinf(step)) { /* neither can it move nor can a plane leave: the planes leave nothing */
            done++;
            break;
        }
        for (int64_t j = 0; j < k; j++)
            r->u[j] -= step * r->rate[j];
        share += step;
        if (reach <= block) {
            enter(p, r, k++, entering, share, length);
            entering = -1;
        } else {
            leave(p, r, k--, leaving);
        }
    }
    for (int64_t j = 0; j < k + (entering >= 0); j++) {
        const double *normal = p->normals + (j < k ? r->plane[j] : entering) * p->dimension;
        const double z = j < k ? r->u[j] : share;
        for (int64_t i = 0; i < p->dimension; i++)
            y[i] -= z * normal[i];
    }
    return done;
}

/* x and y (n, dimension), b (n or 1, planes) with `b_stride` planes or 0, iterations (n). Not 0: out of memory. */
int nearest_points(int64_t n, const Planes *p, const double *x, const double *b, int64_t b_stride, double *y,
                   int64_t *iterations)
{
    const size_t m = (size_t)p->planes, k = (size_t)p->touching + 1;
    double *memory = malloc((2 * m + 3 * k + k * k) * sizeof(double));
    int64_t *plane = malloc(k * sizeof(int64_t));
    if (memory == NULL || plane == NULL) {
        free(memory);
        free(plane);
        return 1;
    }
    Room room = {memory, memory + m, memory + 2 * m, memory + 2 * m + k, memory + 2 * m + 2 * k,
                 memory + 2 * m + 3 * k, plane};
    for (int64_t i = 0; i < n; i++)
        iterations[i] = nearest(p, &room, x + i * p->dimension, b + i * b_stride, y + i * p->dimension);
    free(memory);
    free(plane);
    return 0;
}
