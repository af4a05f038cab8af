/* How deep trajectories are in obstacles, summed over segments and obstacles: what AvoidObstacles.defect says.

   The same formulas as obstacles_geometry.gaps, where they are explained. Segments are taken in groups of a fixed size
   with one array a quantity, and the inner loops have no branches, so that compilers turn them into vector
   instructions. A comparison with NaN is false, and all are written so that NaN then stays: a trajectory that is not
   finite has no finite depth. This file includes itself for each type of number. */

#ifndef REAL

#include <stdint.h>
#include <tgmath.h>

#define TINY 1e-12 /* squared length below which a segment is a point */

enum { GROUP = 32 };

typedef struct {
    int64_t n_circles, n_boxes;
    const void *circles, *boxes; /* rows of x, y, r; rows of xmin, ymin, xmax, ymax */
} Map;

#define REAL float
#define OF(name) name##_float
#include "obstacles_depth.c"
#undef REAL
#undef OF

#define REAL double
#define OF(name) name##_double
#include "obstacles_depth.c"

#else

/* Segments from a along u; their squared lengths, at least TINY, and the inverse; their unit normals, and -inf for
   points, which have none. */
typedef struct {
    REAL ax[GROUP + 1], ay[GROUP + 1], ux[GROUP], uy[GROUP], squared[GROUP], inverse[GROUP];
    REAL nx[GROUP], ny[GROUP], has_none[GROUP], depth[GROUP];
} OF(Segments);

/* The segments from a waypoint on, of which a group may have more than remain: those are points. */
static void OF(gather)(OF(Segments) *s, const REAL *x, const REAL *y, int64_t stride, int64_t remaining) {
    for (int64_t i = 0; i <= GROUP; i++) {
        int64_t at = (i < remaining ? i : remaining) * stride;
        s->ax[i] = x[at], s->ay[i] = y[at];
    }
    for (int i = 0; i < GROUP; i++) {
        REAL ux = s->ax[i + 1] - s->ax[i], uy = s->ay[i + 1] - s->ay[i], squared = ux * ux + uy * uy;
        s->ux[i] = ux, s->uy[i] = uy;
        s->squared[i] = (REAL)TINY > squared ? (REAL)TINY : squared;
    }
    for (int i = 0; i < GROUP; i++)
        s->inverse[i] = 1 / s->squared[i], s->depth[i] = 0;
}

static void OF(add_circle)(OF(Segments) *s, const REAL *circle) {
    const REAL cx = circle[0], cy = circle[1], r = circle[2];
    for (int i = 0; i < GROUP; i++) {
        REAL dx = cx - s->ax[i], dy = cy - s->ay[i];
        REAL along = dx * s->ux[i] + dy * s->uy[i], squared = s->squared[i];
        /* bounded before it is divided: of 0 and 1, both constants, compilers make branches */
        along = squared < along ? squared : along, along = 0 > along ? 0 : along;
        REAL t = along * s->inverse[i];
        dx -= t * s->ux[i], dy -= t * s->uy[i];
        REAL depth = r - sqrt(dx * dx + dy * dy);
        s->depth[i] += 0 > depth ? 0 : depth;
    }
}

static void OF(find_normals)(OF(Segments) *s) {
    for (int i = 0; i < GROUP; i++) {
        REAL inverse = 1 / sqrt(s->squared[i]);
        s->nx[i] = -s->uy[i] * inverse, s->ny[i] = s->ux[i] * inverse;
        s->has_none[i] = s->squared[i] <= (REAL)TINY ? -(REAL)INFINITY : 0;
    }
}

static void OF(add_box)(OF(Segments) *s, const REAL *box) {
    const REAL xmin = box[0], ymin = box[1], xmax = box[2], ymax = box[3];
    const REAL mx = (xmin + xmax) / 2, my = (ymin + ymax) / 2, hx = (xmax - xmin) / 2, hy = (ymax - ymin) / 2;
    for (int i = 0; i < GROUP; i++) {
        REAL ax = s->ax[i], ay = s->ay[i], bx = s->ax[i + 1], by = s->ay[i + 1], nx = s->nx[i], ny = s->ny[i];
        REAL across = nx * (ax - mx) + ny * (ay - my);
        REAL gap = fabs(across) - (fabs(nx) * hx + fabs(ny) * hy) + s->has_none[i]; /* NaN if an end is */
        REAL right = (ax < bx ? ax : bx) - xmax, left = xmin - (ax > bx ? ax : bx);
        REAL above = (ay < by ? ay : by) - ymax, below = ymin - (ay > by ? ay : by);
        gap = right > gap ? right : gap, gap = left > gap ? left : gap;
        gap = above > gap ? above : gap, gap = below > gap ? below : gap;
        s->depth[i] += 0 > -gap ? 0 : -gap;
    }
}

/* Of n trajectories whose x and y are at `state` and a channel further on; strides are counted in numbers. */
int OF(summed_depths)(int64_t n, int64_t waypoints, const REAL *state, int64_t sample, int64_t channel,
                      int64_t waypoint, const Map *map, REAL *depth) {
    const REAL *circles = map->circles, *boxes = map->boxes;
    OF(Segments) s;
    for (int64_t k = 0; k < n; k++) {
        double sum = 0;
        for (int64_t begin = 0; begin < waypoints - 1; begin += GROUP) {
            const REAL *x = state + k * sample + begin * waypoint;
            int64_t remaining = waypoints - 1 - begin;
            OF(gather)(&s, x, x + channel, waypoint, remaining);
            for (int64_t j = 0; j < map->n_circles; j++)
                OF(add_circle)(&s, circles + 3 * j);
            if (map->n_boxes)
                OF(find_normals)(&s);
            for (int64_t j = 0; j < map->n_boxes; j++)
                OF(add_box)(&s, boxes + 4 * j);
            for (int64_t i = 0; i < GROUP && i < remaining; i++)
                sum += s.depth[i];
        }
        depth[k] = (REAL)sum;
    }
    return 0;
}

#endif
