/* MassBalance.project, one sample after another: the same steps as in projection.py, where they are explained. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t moments, cells, most_iterations;
    double tolerance, least_curvature;
    const double *rule; /* (moments, moments) */
} Balance;

typedef struct {
    double *new, *mean, *square, *product, *weight, *first, *second, *multiplier, *pull, *gram;
} Work;

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* The multipliers times the rule: one sum a column. */
static void times_rule(const Balance *b, const double *multiplier, double *out) {
    memset(out, 0, b->moments * sizeof(double));
    for (int64_t i = 0; i < b->moments; i++)
        for (int64_t j = 0; j < b->moments; j++) out[j] += multiplier[i] * b->rule[i * b->moments + j];
}

static void means(const Balance *b, const double *u, const double *target, Work *w) {
    for (int64_t i = 0; i < b->moments; i++) {
        const double *row = u + i * b->cells, *aim = target + i * b->cells;
        double sum = 0;
        for (int64_t k = 0; k < b->cells; k++) sum += row[k];
        w->mean[i] = sum / b->cells;
        w->square[i] = dot(row, row, b->cells) / b->cells;
        w->product[i] = dot(row, aim, b->cells) / b->cells;
    }
}

static double violation(const Balance *b, const double *given, const Work *w, int64_t i) {
    double reaction = 0;
    for (int64_t j = 0; j < b->moments; j++) reaction += (w->mean[j] - w->square[j]) * b->rule[i * b->moments + j];
    return w->mean[i] - reaction - given[i];
}

/* Solve gram x = x in place by Cholesky's factors; false if the matrix is not positive definite. */
static int solve(double *gram, double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double left = gram[i * n + j] - dot(gram + i * n, gram + j * n, j);
            if (i > j)
                gram[i * n + j] = left / gram[j * n + j];
            else if (!(left > 0))
                return 0;
            else
                gram[i * n + i] = sqrt(left);
        }
    for (int64_t i = 0; i < n; i++) x[i] = (x[i] - dot(gram + i * n, x, i)) / gram[i * n + i];
    for (int64_t i = n - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < n; k++) x[i] -= gram[k * n + i] * x[k];
        x[i] /= gram[i * n + i];
    }
    return 1;
}

/* One iteration; returns whether the sample has converged. */
static int iterate(const Balance *b, double *u, const double *target, const double *given, const double *aim, Work *w) {
    int64_t m = b->moments, size = m * b->cells;
    times_rule(b, w->multiplier, w->pull);
    for (int64_t j = 0; j < m; j++) {
        double curvature = 1 + 2 * w->pull[j], back = aim[j] - w->mean[j];
        w->weight[j] = 1 / (curvature < b->least_curvature ? b->least_curvature : curvature);
        w->first[j] = w->weight[j] * (1 - 2 * w->mean[j]);
        w->second[j] = w->weight[j] * (1 - 4 * (w->mean[j] - w->square[j]));
        w->pull[j] = w->weight[j] * (back - 2 * (w->product[j] - w->square[j]));
    }
    for (int64_t i = 0; i < m; i++) {
        const double *row = b->rule + i * m;
        w->multiplier[i] =
            violation(b, given, w, i) + w->weight[i] * (aim[i] - w->mean[i]) - dot(row, w->pull, m);
        for (int64_t k = 0; k <= i; k++) {
            const double *other = b->rule + k * m;
            double sum = 0;
            for (int64_t j = 0; j < m; j++) sum += row[j] * w->second[j] * other[j];
            w->gram[i * m + k] = sum - row[k] * w->first[k] - other[i] * w->first[i] + (i == k ? w->weight[i] : 0);
        }
    }
    int usable = solve(w->gram, w->multiplier, m);
    double moved = 0, left = 0;
    times_rule(b, w->multiplier, w->pull);
    for (int64_t i = 0; i < m; i++) {
        double keep = 1 - w->weight[i] * (1 + 2 * w->pull[i]), shift = w->weight[i] * (w->pull[i] - w->multiplier[i]);
        for (int64_t k = i * b->cells; k < (i + 1) * b->cells; k++) {
            w->new[k] = shift + target[k] * w->weight[i] + u[k] * keep;
            moved += (w->new[k] - u[k]) * (w->new[k] - u[k]);
        }
    }
    if (!usable || !isfinite(moved)) { /* stays where it is, and fails in the end */
        memset(w->multiplier, 0, m * sizeof(double));
        return 0;
    }
    memcpy(u, w->new, size * sizeof(double));
    means(b, u, target, w);
    for (int64_t i = 0; i < m; i++) left += violation(b, given, w, i) * violation(b, given, w, i);
    return fmax(left / (m + 1), moved / size) <= b->tolerance * b->tolerance;
}

/* Project the fields u, (n, moments, cells), in place; given and aim are (n, moments), converged and iterations (n,).
   Returns 0, or 1 if there is no memory. */
int project(int64_t n, const Balance *b, double *u, const double *given, const double *aim, uint8_t *converged,
            int64_t *iterations) {
    int64_t m = b->moments, size = m * b->cells;
    double *block = malloc((2 * size + 8 * m + m * m) * sizeof(double)), *target = block;
    if (block == NULL) return 1;
    Work w = {.new = target + size};
    w.mean = w.new + size, w.square = w.mean + m, w.product = w.square + m, w.weight = w.product + m;
    w.first = w.weight + m, w.second = w.first + m, w.multiplier = w.second + m, w.pull = w.multiplier + m;
    w.gram = w.pull + m;
    for (int64_t k = 0; k < n; k++, u += size, given += m, aim += m) {
        memcpy(target, u, size * sizeof(double));
        memset(w.multiplier, 0, m * sizeof(double));
        means(b, u, target, &w);
        converged[k] = 0;
        for (iterations[k] = 0; iterations[k] < b->most_iterations && !converged[k]; iterations[k]++)
            converged[k] = (uint8_t)iterate(b, u, target, given, aim, &w);
    }
    free(block);
    return 0;
}
