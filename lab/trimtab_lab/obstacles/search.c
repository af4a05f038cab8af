/* The local search of batched.nearest_paths, one sample after another.

   The same steps in the same order as there, where each is explained; in double precision throughout. In torch a round
   is some hundreds of calls of a few microseconds each, whatever the number of samples; here it costs what its
   arithmetic costs. */

#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TINY 1e-12    /* squared length below which a segment is a point */
#define CENTRED 1e-7  /* distance from a centre below which there is no direction away from it */

/* The half-plane that the point (1 - t) a + t b of a segment must stay in: nx x + ny y >= edge. */
typedef struct {
    double gap, t, nx, ny, edge;
} Contact;

/* A linearised pair: its waypoint and the next, the coefficients at their x and y, and its multiplier. */
typedef struct {
    int64_t at, key;
    double row[4], share[4], edge, step, dual, ahead;
} Pair;

typedef struct {
    double *x, *y, *target, *low, *high, *free, *spread, *point, *gap, *dual;
    Pair *pairs;
} Work;

static double clamp(double v, double low, double high) { return v < low ? low : v > high ? high : v; }

/* Unit normal of a segment; false if it is a point and has none. */
static int normal(double ux, double uy, double *nx, double *ny) {
    double squared = ux * ux + uy * uy, inverse = 1 / sqrt(squared < TINY ? TINY : squared);
    *nx = -uy * inverse, *ny = ux * inverse;
    return squared > TINY;
}

/* Signed gaps to a box along the five directions that can part it from a segment; the largest, and its direction. */
static double box_gap(const double *box, double ax, double ay, double bx, double by, int *axis) {
    double nx, ny, best;
    double gaps[4] = {fmin(ax, bx) - box[2], box[0] - fmax(ax, bx), fmin(ay, by) - box[3], box[1] - fmax(ay, by)};
    *axis = 0, best = gaps[0];
    for (int k = 1; k < 4; k++)
        if (gaps[k] > best) best = gaps[k], *axis = k;
    if (normal(bx - ax, by - ay, &nx, &ny)) {
        double across = nx * (ax - (box[0] + box[2]) / 2) + ny * (ay - (box[1] + box[3]) / 2);
        double oblique = fabs(across) - fabs(nx) * (box[2] - box[0]) / 2 - fabs(ny) * (box[3] - box[1]) / 2;
        if (oblique > best) best = oblique, *axis = 4;
    }
    return best;
}

static Contact circle_contact(const double *circle, double ax, double ay, double bx, double by) {
    double ux = bx - ax, uy = by - ay, squared = ux * ux + uy * uy;
    double dx = ax - circle[0], dy = ay - circle[1], nx, ny;
    double t = clamp(-(dx * ux + dy * uy) / (squared < TINY ? TINY : squared), 0, 1);
    dx += t * ux, dy += t * uy;
    double distance = sqrt(dx * dx + dy * dy);
    if (distance >= CENTRED)
        nx = dx / distance, ny = dy / distance;
    else if (!normal(ux, uy, &nx, &ny)) /* through the centre: along the segment's normal, for a point the x axis */
        nx = 1, ny = 0;
    return (Contact){distance - circle[2], t, nx, ny, nx * circle[0] + ny * circle[1] + circle[2]};
}

static Contact box_contact(const double *box, double ax, double ay, double bx, double by) {
    int axis;
    double ux = bx - ax, uy = by - ay, squared = ux * ux + uy * uy, nx, ny, t;
    double gap = box_gap(box, ax, ay, bx, by, &axis);
    if (axis == 4) {
        normal(ux, uy, &nx, &ny);
        if (nx * (ax - (box[0] + box[2]) / 2) + ny * (ay - (box[1] + box[3]) / 2) < 0) nx = -nx, ny = -ny;
    } else
        nx = (axis == 0) - (axis == 1), ny = (axis == 2) - (axis == 3);
    double cx = nx > 0 ? box[2] : box[0], cy = ny > 0 ? box[3] : box[1];
    if (axis == 4) /* where the corner falls on the segment; along x or y the nearer end decides */
        t = clamp(((cx - ax) * ux + (cy - ay) * uy) / (squared < TINY ? TINY : squared), 0, 1);
    else
        t = nx * ux + ny * uy < 0;
    return (Contact){gap, t, nx, ny, nx * cx + ny * cy};
}

static Contact contact(const Map *map, int64_t which, double ax, double ay, double bx, double by) {
    if (which < map->n_circles) return circle_contact(map->circles + 3 * which, ax, ay, bx, by);
    return box_contact(map->boxes + 4 * (which - map->n_circles), ax, ay, bx, by);
}

/* Gaps of all obstacles and segments, (m, segments); returns the deepest overlap. */
static double all_gaps(const Map *map, const double *x, const double *y, Work *w) {
    int64_t segments = map->waypoints - 1;
    double least = INFINITY, *gap = w->gap, *ux = w->point, *uy = ux + segments, *inverse = w->spread;
    for (int64_t i = 0; i < segments; i++) {
        ux[i] = x[i + 1] - x[i], uy[i] = y[i + 1] - y[i];
        double squared = ux[i] * ux[i] + uy[i] * uy[i];
        inverse[i] = 1 / (squared < TINY ? TINY : squared);
    }
    for (int64_t k = 0; k < map->n_circles; k++, gap += segments) {
        double cx = map->circles[3 * k], cy = map->circles[3 * k + 1], r = map->circles[3 * k + 2];
        for (int64_t i = 0; i < segments; i++) {
            double dx = cx - x[i], dy = cy - y[i];
            double t = (dx * ux[i] + dy * uy[i]) * inverse[i];
            t = t < 0 ? 0 : t, t = t > 1 ? 1 : t;
            dx -= t * ux[i], dy -= t * uy[i];
            gap[i] = sqrt(dx * dx + dy * dy) - r;
        }
    }
    for (int64_t k = 0; k < map->n_boxes; k++, gap += segments)
        for (int64_t i = 0; i < segments; i++) {
            int axis;
            gap[i] = box_gap(map->boxes + 4 * k, x[i], y[i], x[i + 1], y[i + 1], &axis);
        }
    for (const double *g = w->gap; g < gap; g++) least = *g < least ? *g : least;
    return least < 0 ? -least : 0;
}

static void add_pair(Work *w, int64_t *count, const Contact *c, double t, int64_t at, int64_t key) {
    Pair *pair = w->pairs + (*count)++;
    *pair = (Pair){.at = at, .key = key, .edge = c->edge, .dual = w->dual[key]};
    pair->row[0] = c->nx * (1 - t), pair->row[1] = c->nx * t;
    pair->row[2] = c->ny * (1 - t), pair->row[3] = c->ny * t;
}

/* The half-planes of all pairs within reach; returns how many. */
static int64_t linearise(const Map *map, const double *x, const double *y, double reach, Work *w) {
    int64_t segments = map->waypoints - 1, all = (map->n_circles + map->n_boxes) * segments, count = 0;
    for (int64_t k = 0; k < all; k++) {
        if (w->gap[k] >= reach) continue;
        int64_t which = k / segments, i = k % segments;
        Contact side = contact(map, which, x[i], y[i], x[i + 1], y[i + 1]);
        Contact corner = contact(map, which, x[i], y[i], x[i], y[i]);
        if (side.t > 0 && side.t < 1) add_pair(w, &count, &side, side.t, i, k);
        if (corner.gap < reach) add_pair(w, &count, &corner, 0, i, k + all);
    }
    return count;
}

static void best_point(const Work *w, int64_t waypoints, int64_t count, int with_ahead) {
    double *px = w->point, *py = px + waypoints;
    memcpy(px, w->target, 2 * waypoints * sizeof(double));
    for (const Pair *c = w->pairs; c < w->pairs + count; c++) {
        double size = with_ahead ? c->ahead : c->dual;
        px[c->at] += c->share[0] * size, px[c->at + 1] += c->share[1] * size;
        py[c->at] += c->share[2] * size, py[c->at + 1] += c->share[3] * size;
    }
    for (int64_t i = 0; i < 2 * waypoints; i++) {
        double v = px[i] < w->low[i] ? w->low[i] : px[i];
        px[i] = v > w->high[i] ? w->high[i] : v;
    }
}

/* Accelerated projected gradient in the dual; leaves the path in w->point. */
static void solve_convex(Work *w, int64_t waypoints, int64_t count, int64_t sweeps) {
    const double *px = w->point, *py = px + waypoints;
    Pair *end = w->pairs + count;
    memset(w->spread, 0, waypoints * sizeof(double));
    for (Pair *c = w->pairs; c < end; c++) {
        for (int k = 0; k < 4; k++) c->share[k] = c->row[k] * w->free[c->at + k % 2];
        for (int k = 0; k < 2; k++)
            w->spread[c->at + k] += sqrt(c->row[k] * c->row[k] + c->row[k + 2] * c->row[k + 2]);
    }
    for (Pair *c = w->pairs; c < end; c++) {
        double curvature = 0;
        for (int k = 0; k < 2; k++)
            curvature += sqrt(c->row[k] * c->row[k] + c->row[k + 2] * c->row[k + 2]) * w->spread[c->at + k] *
                         w->free[c->at + k];
        c->step = 1 / (curvature < 1e-2 ? 1e-2 : curvature);
        c->ahead = c->dual;
    }
    for (int64_t sweep = 0; sweep < sweeps; sweep++) {
        double momentum = sweep / (sweep + 3.0);
        best_point(w, waypoints, count, 1);
        for (Pair *c = w->pairs; c < end; c++) {
            int64_t a = c->at, b = a + 1;
            double reached = (px[a] * c->row[0] + px[b] * c->row[1]) + (py[a] * c->row[2] + py[b] * c->row[3]);
            double new = (c->edge - reached) * c->step + c->ahead;
            new = new < 0 ? 0 : new;
            c->ahead = new + (new - c->dual) * momentum;
            c->dual = new;
        }
    }
    best_point(w, waypoints, count, 0);
}

static double distance(const double *ax, const double *ay, const double *bx, const double *by, int64_t waypoints) {
    double sum = 0;
    for (int64_t i = 0; i < waypoints; i++)
        sum += (ax[i] - bx[i]) * (ax[i] - bx[i]) + (ay[i] - by[i]) * (ay[i] - by[i]);
    return sqrt(sum);
}

/* Solve one convex problem; returns how far the path in w->x, w->y moved. */
static double one_round(const Map *map, const Effort *e, const double *qx, const double *qy, double pull, Work *w) {
    int64_t waypoints = map->waypoints, last = waypoints - 1;
    int64_t keys = 2 * (map->n_circles + map->n_boxes) * last;
    int64_t count = linearise(map, w->x, w->y, e->reach, w);
    for (int64_t i = 0; i < 2 * waypoints; i++) {
        double p = w->x[i], q = i < waypoints ? qx[i] : qy[i - waypoints]; /* y follows x */
        int is_end = i % waypoints == 0 || i % waypoints == last;
        w->low[i] = is_end ? q : fmax(p - e->step, -1), w->high[i] = is_end ? q : fmin(p + e->step, 1);
        w->target[i] = (q + pull * p) / (1 + pull);
        if (i < waypoints) w->free[i] = is_end ? 0 : 1 / (1 + pull);
    }
    solve_convex(w, waypoints, count, e->sweeps);
    memset(w->dual, 0, keys * sizeof(double));
    for (const Pair *c = w->pairs; c < w->pairs + count; c++) w->dual[c->key] = c->dual;
    double moved = distance(w->point, w->point + waypoints, w->x, w->y, waypoints);
    memcpy(w->x, w->point, 2 * waypoints * sizeof(double));
    return moved;
}

/* Whether a segment collides that is so long that no local search will find the way round. */
static int leaps(const Map *map, double leap, const Work *w) {
    int64_t segments = map->waypoints - 1, m = map->n_circles + map->n_boxes;
    for (int64_t i = 0; i < segments; i++) {
        double ux = w->x[i + 1] - w->x[i], uy = w->y[i + 1] - w->y[i];
        if (ux * ux + uy * uy > leap * leap)
            for (int64_t k = 0; k < m; k++)
                if (w->gap[k * segments + i] < 0) return 1;
    }
    return 0;
}

static void search(const Map *map, const Effort *e, const double *qx, const double *qy, double *bx, double *by,
                   double *best, int64_t *rounds, Work *w) {
    int64_t W = map->waypoints, stale = 0;
    double damping = e->first_damping, nearest = INFINITY, moved = INFINITY, before = INFINITY;
    memcpy(w->x, bx, W * sizeof(double)), memcpy(w->y, by, W * sizeof(double));
    memset(w->dual, 0, 2 * (map->n_circles + map->n_boxes) * (W - 1) * sizeof(double));
    *best = INFINITY;
    for (int64_t r = 0;; r++) {
        double violation = all_gaps(map, w->x, w->y, w), far = distance(w->x, w->y, qx, qy, W), known = *best;
        int is_free = violation <= e->aim;
        int better = known <= e->aim ? is_free && far < nearest : is_free || violation < known;
        if (better) {
            memcpy(bx, w->x, W * sizeof(double)), memcpy(by, w->y, W * sizeof(double));
            *best = violation, nearest = far;
        }
        *rounds = r;
        stale = better ? 0 : stale + 1;
        if (r == e->rounds || (is_free && (moved <= e->settled * far + 1e-5 || far == 0)) ||
            (known <= e->aim && stale >= e->stale) || (r == 0 && leaps(map, e->leap, w)) ||
            (r == e->patience && violation > e->hopeless))
            return;
        if (violation > e->aim && violation > 0.5 * before) damping = fmin(damping * e->stiffening, 100);
        before = violation;
        moved = one_round(map, e, qx, qy, damping, w);
        damping = fmax(damping, e->damping);
    }
}

int nearest_paths(int64_t n, const Map *map, const Effort *effort, const double *proposal, double *path,
                  double *violation, int64_t *rounds) {
    int64_t W = map->waypoints, m = map->n_circles + map->n_boxes, pairs = m * (W - 1);
    if (m > INT64_MAX / (int64_t)(4 * sizeof(Pair)) / W) return 1; /* the sizes below would overflow */
    double *block = malloc((12 * W + 3 * pairs) * sizeof(double));
    Work w = {.pairs = malloc((2 * pairs + 1) * sizeof(Pair))};
    int failed = block == NULL || w.pairs == NULL;
    if (!failed) {
        w.x = block, w.y = w.x + W, w.target = w.y + W, w.low = w.target + 2 * W, w.high = w.low + 2 * W;
        w.free = w.high + 2 * W, w.spread = w.free + W, w.point = w.spread + W, w.gap = w.point + 2 * W;
        w.dual = w.gap + pairs;
        for (int64_t k = 0; k < n; k++)
            search(map, effort, proposal + k * W, proposal + (n + k) * W, path + k * W, path + (n + k) * W,
                   violation + k, rounds + k, &w);
    }
    free(block), free(w.pairs);
    return failed;
}
