// The softmax of the loss, a row of logits in the cache at a time.

#include "border.h"
#include "vectors.h"

static float softmax_row(float *row, int64_t count) {
    Vector most = all(-INFINITY), total = all(0.0f);
    for (int64_t place = 0; place < count; place += LANES) {
        Vector x = load_part(row + place, (size_t)(count - place), -INFINITY);
        most = choose(x > most, x, most);
    }
    float top = largest(most);
    for (int64_t place = 0; place < count; place += LANES) {
        size_t part = (size_t)(count - place);
        Vector p = exponential(load_part(row + place, part, -INFINITY) - top);
        store_part(row + place, part, p);
        total += p;
    }
    float all_of_it = sum(total);
    for (int64_t place = 0; place < count; place += LANES) {
        size_t part = (size_t)(count - place);
        store_part(row + place, part, load_part(row + place, part, 0.0f) * (1.0f / all_of_it));
    }
    return top + logf(all_of_it);
}

// Overwrites logits [rows, count] by probabilities; the logarithms of what normalises each row.
int64_t softmax_rows(float *logits, int64_t rows, int64_t count, float *normalisers,
                     int64_t threads) {
    REQUIRE(is_size(rows) && is_size(count) && are_threads(threads));
    REQUIRE(is_there(logits, rows * count) && is_there(normalisers, rows));
#pragma omp parallel for num_threads((int)threads)
    for (int64_t row = 0; row < rows; row++)
        normalisers[row] = softmax_row(logits + row * count, count);
    return 0;
}
