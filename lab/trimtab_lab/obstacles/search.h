/* What search.c offers and module.c, which checks what comes from Python, hands to it. */

#ifndef TRIMTAB_SEARCH_H
#define TRIMTAB_SEARCH_H

#include <stdint.h>

typedef struct {
    int64_t rounds, sweeps, stale, patience;
    double aim, first_damping, step, reach, damping, stiffening, settled, hopeless, leap;
} Effort;

typedef struct {
    int64_t waypoints, n_circles, n_boxes;
    const double *circles, *boxes; /* rows of x, y, r; rows of xmin, ymin, xmax, ymax */
} Map;

/* Search from the paths in `path`, (2, n, W), near `proposal`, (2, n, W); the best ones found are left in `path`.
   `violation` and `rounds` are (n,). W is at least 2. Returns 0, or 1 if there is no memory. */
int nearest_paths(int64_t n, const Map *map, const Effort *effort, const double *proposal, double *path,
                  double *violation, int64_t *rounds);

#endif
