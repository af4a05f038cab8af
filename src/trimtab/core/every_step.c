/* What every step of a rollout does on the host beside the sampler's and the constraint's own work: the twin of `Ledger`
 * in ledger.py. The numbers are few, so that a call costs more than the work, and one call does as much as it can. */

#include <math.h>
#include <stdint.h>

/* The books of a run of n samples; `doubles` tells double from float defects. Shapes as in ledger.py. */
typedef struct {
    int64_t n, doubles, numbers; /* numbers: in the states of the batch */
    void *defects, *residuals;
    uint8_t *projected;
    int64_t *left, *last;
    const double *prices; /* (T, columns) */
    int64_t columns;
    const double *typical; /* (T, last), or none */
    int64_t kinds;
    double prior, *totals;
} Books;

static int finite_doubles(const double *x, int64_t count) {
    int64_t bad = 0;
    for (int64_t i = 0; i < count; i++) bad |= x[i] - x[i] != 0 ? 1 : 0; /* NaN or inf less itself is NaN */
    return !bad;
}

static int finite_floats(const float *x, int64_t count) {
    int32_t bad = 0;
    for (int64_t i = 0; i < count; i++) bad |= x[i] - x[i] != 0 ? 1 : 0;
    return !bad;
}

/* Whether `count` numbers are all finite. */
int all_finite(const void *numbers, int64_t count, int64_t doubles) {
    return doubles ? finite_doubles(numbers, count) : finite_floats(numbers, count);
}

/* Book the defects of step t, which are the residuals of all that is not projected: whether they are all finite and at
 * least 0, and all states finite (of the same type). */
int look(const Books *books, int64_t t, const void *states, const void *defects) {
    int64_t n = books->n;
    int bad = 0;
    if (books->doubles) {
        const double *from = defects;
        double *to = (double *)books->defects + t * n, *kept = (double *)books->residuals + t * n;
        for (int64_t i = 0; i < n; i++) {
            to[i] = kept[i] = from[i];
            bad |= !(from[i] >= 0 && from[i] < INFINITY);
        }
    } else {
        const float *from = defects;
        float *to = (float *)books->defects + t * n, *kept = (float *)books->residuals + t * n;
        for (int64_t i = 0; i < n; i++) {
            to[i] = kept[i] = from[i];
            bad |= !(from[i] >= 0 && from[i] < INFINITY);
        }
    }
    return !bad && all_finite(states, books->numbers, books->doubles);
}

/* Spend one correction of each sample chosen for step t that has one left: how many were spent. */
int spend(const Books *books, int64_t t) {
    uint8_t *chosen = books->projected + t * books->n;
    int spent = 0;
    for (int64_t i = 0; i < books->n; i++) {
        chosen[i] = chosen[i] && books->left[i] > 0;
        books->left[i] -= chosen[i];
        books->last[i] = chosen[i] ? t + 1 : books->last[i];
        spent += chosen[i];
    }
    return spent;
}

/* Choose the samples whose defect reaches the price of a correction, in their own scale if there is one, and spend. */
int decide(const Books *books, int64_t t) {
    uint8_t *chosen = books->projected + t * books->n;
    for (int64_t i = 0; i < books->n; i++) {
        int64_t at = t * books->n + i;
        double defect = books->doubles ? ((double *)books->defects)[at] : ((float *)books->defects)[at];
        double price = books->prices[t * books->columns + books->left[i]];
        if (books->typical) {
            double before = t ? books->totals[i] : books->prior;
            books->totals[i] = before + defect / books->typical[t * books->kinds + books->last[i]];
            price *= books->totals[i] / (books->prior + (double)t + 1);
        }
        chosen[i] = defect >= price;
    }
    return spend(books, t);
}

/* Book the residuals of k rows that were projected after step t, or of all n where no rows are given: whether they are
 * all finite and at least 0. */
int keep(const Books *books, int64_t t, const void *residuals, const int64_t *rows, int64_t k) {
    int bad = 0;
    for (int64_t i = 0; i < k; i++) {
        int64_t at = t * books->n + (rows ? rows[i] : i);
        if (books->doubles) {
            double residual = ((double *)books->residuals)[at] = ((const double *)residuals)[i];
            bad |= !(residual >= 0 && residual < INFINITY);
        } else {
            float residual = ((float *)books->residuals)[at] = ((const float *)residuals)[i];
            bad |= !(residual >= 0 && residual < INFINITY);
        }
    }
    return !bad;
}
