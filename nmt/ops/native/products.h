// Products of matrices that fit into the cache; the blocks of which all larger ones are made.

#pragma once

#include <stdbool.h>

#include "vectors.h"

#define PANEL (2 * LANES)                 // columns of a product computed together
// And its rows: as many as registers hold, of which AVX2 has 16, and AVX-512 and NEON have 32.
#ifdef WITH_AVX2
#define MOST_ROWS 6
#else
#define MOST_ROWS 12
#endif

typedef int16_t Shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

typedef struct {
    int64_t least_kept;  // the lowest value of 16 random bits that keeps its number
    float keep_scale;    // what is kept is multiplied with it
} DropoutRule;

INLINE Vector dropout_factors(DropoutRule dropout, const int16_t *bits) {
    Ints values = __builtin_convertvector(*(const Shorts *)bits, Ints);
    return choose(values >= (int32_t)dropout.least_kept, all(dropout.keep_scale), all(0.0f));
}

INLINE int64_t in_panels(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

// One step of a transposition: swaps blocks of `step` lanes between rows `step` apart.
INLINE void swap_blocks(Vector *rows, const int step) {
    Ints odd = (lane_numbers() & step) != 0;
    Ints low = lane_numbers() + (odd & (LANES - step));
    Ints high = lane_numbers() + step + (odd & (LANES - step));
#pragma GCC unroll 16
    for (int row = 0; row < LANES; row++) {
        if (row & step) continue;
        Vector a = rows[row], b = rows[row + step];
        rows[row] = __builtin_shuffle(a, b, low);
        rows[row + step] = __builtin_shuffle(a, b, high);
    }
}

INLINE void transpose(Vector *rows) {
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) swap_blocks(rows, step);
}

// The right side of a product: panels of PANEL columns, one row `row_step` after the other.
typedef struct {
    const float *numbers;
    int64_t row_step, panel_step;
} Right;

// Tokens [count, width] as [width, tokens], for products with transposed tokens.
static inline Right pack_columns(const float *x, int64_t step, int64_t count, int64_t width, float *out) {
    for (int64_t first = 0; first < count; first += LANES) {
        float *to = out + first / PANEL * PANEL * width + first % PANEL;
        for (int64_t place = 0; place < width; place += LANES) {
            Vector rows[LANES];
            size_t part = (size_t)(width - place);
#pragma GCC unroll 16
            for (int row = 0; row < LANES; row++)
                rows[row] = first + row < count
                                ? load_part(x + (first + row) * step + place, part, 0.0f)
                                : all(0.0f);
            transpose(rows);
#pragma GCC unroll 16
            for (int row = 0; row < LANES; row++)
                if (place + row < width) store(to + (place + row) * PANEL, rows[row]);
        }
    }
    return (Right){out, PANEL, PANEL * width};
}

// Tokens [count, width] as they are, but side by side: their steps are such that few of them would
// stay in the cache.
static inline Right pack_rows(const float *x, int64_t step, int64_t count, int64_t width, float *out) {
    for (int64_t place = 0; place < width; place += LANES) {
        float *to = out + place / PANEL * PANEL * count + place % PANEL;
        for (int64_t row = 0; row < count; row++)
            store(to + row * PANEL, load_part(x + row * step + place, (size_t)(width - place), 0.0f));
    }
    return (Right){out, PANEL, PANEL * count};
}

// The left side of a product: one of the two steps is 1.
typedef struct {
    const float *numbers;
    int64_t row_step, inner_step;
} Left;

// Where a product goes, and what becomes of it on the way; what is 0 or NULL leaves it alone.
typedef struct {
    float *numbers;
    int64_t step, columns;
    float scale;
    bool more;             // to be added to what is there
    bool relu;
    const float *bias;     // [columns]
    const float *where;    // where this, laid out as the result, is not above 0, the result is 0
    const int16_t *bits;  // of dropout, laid out as the result
    DropoutRule dropout;
} ProductResult;

INLINE ProductResult result_at(float *numbers, int64_t step, int64_t columns, float scale) {
    return (ProductResult){.numbers = numbers, .step = step, .columns = columns, .scale = scale};
}

static inline void put(const ProductResult *to, int64_t row, int64_t column, Vector y) {
    if (column >= to->columns) return;
    int64_t place = row * to->step + column;
    size_t count = (size_t)(to->columns - column);
    y *= to->scale;
    if (to->more) y += load_part(to->numbers + place, count, 0.0f);
    if (to->bias) y += load_part(to->bias + column, count, 0.0f);
    if (to->relu) y = at_least(y, 0.0f);
    if (to->bits) y *= dropout_factors(to->dropout, to->bits + place);
    if (to->where) y = choose(load_part(to->where + place, count, 0.0f) <= 0.0f, all(0.0f), y);
    store_part(to->numbers + place, count, y);
}

// The part of a result from a row on.
INLINE ProductResult from_row(ProductResult to, int64_t row) {
    to.numbers += row * to.step;
    if (to.where) to.where += row * to.step;
    if (to.bits) to.bits += row * to.step;
    return to;
}

// The sums of a few rows and the vectors `sides` of a panel; `rows` and `sides` are constants
// wherever this is inlined. Most results take the short way, with a bias and ReLU at most.
INLINE void put_block(const ProductResult *to, int64_t column, Vector sums[2][MOST_ROWS],
                      const int rows, const int sides) {
    if (to->more || to->where || to->bits || column + sides * LANES > to->columns) {
        for (int row = 0; row < rows; row++)
            for (int side = 0; side < sides; side++)
                put(to, row, column + side * LANES, sums[side][row]);
        return;
    }
#pragma GCC unroll 2
    for (int side = 0; side < sides; side++) {
        float *numbers = to->numbers + column + side * LANES;
        const Vector bias = to->bias ? load(to->bias + column + side * LANES) : all(0.0f);
        const float least = to->relu ? 0.0f : -INFINITY;
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++)
            store(numbers + row * to->step, at_least(sums[side][row] * to->scale + bias, least));
    }
}

// A few rows times one panel [inner, PANEL]; `rows` and `sides`, the vectors of a panel that are
// needed, are constants wherever this is inlined.
INLINE void multiply(Left left, Right right, int64_t inner, ProductResult to, int64_t column,
                     const int rows, const int sides) {
    Vector sums[2][MOST_ROWS];
    for (int row = 0; row < rows; row++) sums[0][row] = sums[1][row] = all(0.0f);
    for (int64_t place = 0; place < inner; place++) {
        Vector w0 = load(right.numbers), w1 = all(0.0f);
        if (sides == 2) w1 = load(right.numbers + LANES);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            sums[0][row] += left.numbers[row * left.row_step] * w0;
            if (sides == 2) sums[1][row] += left.numbers[row * left.row_step] * w1;
        }
        left.numbers += left.inner_step;
        right.numbers += right.row_step;
    }
    put_block(&to, column, sums, rows, sides);
}

#define CASE(n) \
    case n: multiply(left, right, inner, to, column, n, sides); break;

INLINE void multiply_rows(Left left, Right right, int64_t inner, ProductResult to, int64_t column,
                          int64_t rows, const int sides) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MOST_ROWS == 12
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

INLINE void multiply_panel(Left left, Right right, int64_t inner, ProductResult to, int64_t column,
                           int64_t rows) {
    if (to.columns - column > LANES)
        multiply_rows(left, right, inner, to, column, rows, 2);
    else
        multiply_rows(left, right, inner, to, column, rows, 1);
}

// [rows, columns] = scale left [rows, inner] right [inner, columns].
static inline void product(Left left, Right right, int64_t rows, int64_t inner, ProductResult to) {
    for (int64_t column = 0; column < to.columns; column += PANEL) {
        for (int64_t row = 0; row < rows; row += MOST_ROWS) {
            Left from = left;
            ProductResult part = from_row(to, row);
            from.numbers += row * left.row_step;
            int64_t count = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
            if (left.inner_step == 1) {
                from.inner_step = 1;  // as a constant
                multiply_panel(from, right, inner, part, column, count);
            } else {
                from.row_step = 1;
                multiply_panel(from, right, inner, part, column, count);
            }
        }
        right.numbers += right.panel_step;
    }
}
