/* The table of prices.quantile from the sorted pool: at each step the values of ranks n, 2n, ... from the top among
   those left. What is left is kept as bits, 64 places to a word, and how many there are as a count a word. */

#include <stdint.h>
#include <stdlib.h>

/* pool: all T n values, ascending; order: where each stands in the (T, n) defects; table: (T, budget + 1).
   Returns 0, or 1 if there is no memory. */
int quantile_table(int64_t T, int64_t n, int64_t budget, const double *pool, const int64_t *order, double *table) {
    int64_t values = T * n, words = (values + 63) / 64;
    int64_t *place = malloc(values * sizeof(int64_t));
    uint64_t *present = calloc(words, sizeof(uint64_t));
    uint8_t *count = calloc(words, sizeof(uint8_t));
    int failed = place == NULL || present == NULL || count == NULL;
    for (int64_t k = 0; k < values && !failed; k++) {
        place[order[k]] = k;
        present[k / 64] |= (uint64_t)1 << (k % 64), count[k / 64]++;
    }
    for (int64_t t = 0; t < T && !failed; t++) {
        double *row = table + t * (budget + 1);
        int64_t b = budget < T - t - 1 ? budget : T - t - 1; /* the largest budget has the smallest value */
        int64_t rank = (T - t - b) * n, before = 0;
        for (int64_t w = 0; b > 0; before += count[w++])
            for (; b > 0 && rank < before + count[w]; b--, rank += n) {
                uint64_t bits = present[w];
                for (int64_t k = rank - before; k > 0; k--) bits &= bits - 1; /* drops the lowest bit */
                row[b] = pool[64 * w + __builtin_ctzll(bits)];
            }
        for (int64_t k = t * n; k < (t + 1) * n; k++)
            present[place[k] / 64] &= ~((uint64_t)1 << (place[k] % 64)), count[place[k] / 64]--;
    }
    free(place), free(present), free(count);
    return failed;
}
