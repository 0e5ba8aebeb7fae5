// Products of matrices in bfloat16, as training has them: sums are in float32, and a number is
// always one sum in the same order, whatever the blocks and threads.
//
// An instruction of AVX512_BF16 multiplies pairs of neighbours along the inner side and adds both
// products to a sum, so the right side is laid out in panels of pairs. The build is for processors
// without it, too: the caller asks for it.

#include <omp.h>
#include <string.h>

#include "border.h"
#include "products.h"

typedef uint16_t Bfloat16;

// Where a product goes, and what becomes of it on the way; what is 0 or NULL leaves it alone.
typedef struct {
    float *numbers;    // [rows, columns], or NULL
    Bfloat16 *rounded;  // the same in bfloat16, or NULL
    int64_t columns;
    float scale;
    bool more;  // to be added to the numbers that are there
    bool relu;
    const float *bias;      // [columns]
    const Bfloat16 *where;  // where this, laid out as the result, is not above 0, the result is 0
    const int16_t *bits;    // of dropout, laid out as the result
    DropoutRule dropout;
} RoundedResult;

EXPORT_SIZE(RoundedResult)

#ifdef WITH_AVX512
#pragma GCC target("avx512bf16")

#define ROWS 96     // of a block: a multiple of MOST_ROWS
#define GROUP 48    // columns of a transposed left side that are laid out together
#define INNER 1024  // added up at once; even

typedef int32_t Pair __attribute__((aligned(2), may_alias));

// Whether this build has the functions below.
int64_t has_bfloat16_products(void) { return 1; }

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t even(int64_t count) { return count + (count & 1); }
INLINE __mmask32 first_of_32(int64_t count) { return count >= 32 ? ~0u : (1u << count) - 1; }
INLINE __mmask16 first_of_16(int64_t count) { return (__mmask16)(count >= 16 ? 0xffff : (1u << count) - 1); }

INLINE Vector to_float32(__m256i x) { return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }
INLINE __m256i to_bfloat16(Vector x) { return (__m256i)_mm512_cvtneps_pbh((__m512)x); }
INLINE Vector dot_pairs(Vector sums, __m512i left, __m512i right) {
    return (Vector)_mm512_dpbf16_ps((__m512)sums, (__m512bh)left, (__m512bh)right);
}

static RoundedResult result_from_row(RoundedResult to, int64_t row) {
    int64_t places = row * to.columns;
    if (to.numbers) to.numbers += places;
    if (to.rounded) to.rounded += places;
    if (to.where) to.where += places;
    if (to.bits) to.bits += places;
    return to;
}

INLINE void put_result(const RoundedResult *to, int64_t row, int64_t column, Vector y) {
    if (column >= to->columns) return;
    const int64_t place = row * to->columns + column;
    const __mmask16 part = first_of_16(to->columns - column);
    y *= to->scale;
    if (to->more) y += (Vector)_mm512_maskz_loadu_ps(part, to->numbers + place);
    if (to->bias) y += (Vector)_mm512_maskz_loadu_ps(part, to->bias + column);
    if (to->relu) y = at_least(y, 0.0f);
    if (to->bits) y *= dropout_factors(to->dropout, to->bits + place);
    if (to->where) {
        Vector kept = to_float32(_mm256_maskz_loadu_epi16(part, to->where + place));
        y = choose(kept <= 0.0f, all(0.0f), y);
    }
    if (to->numbers) _mm512_mask_storeu_ps(to->numbers + place, part, (__m512)y);
    if (to->rounded) _mm256_mask_storeu_epi16(to->rounded + place, part, to_bfloat16(y));
}

INLINE bool is_linear(const RoundedResult *to) {
    return !(to->rounded || to->relu || to->where || to->bits);
}

// The same for whole panels and what a plain layer needs, without a branch per row.
INLINE void put_linear(const RoundedResult *to, int64_t column, Vector sums[2][MOST_ROWS],
                       const int rows) {
    Vector b0 = all(0.0f), b1 = all(0.0f);
    if (to->bias) b0 = load(to->bias + column), b1 = load(to->bias + column + LANES);
    float *numbers = to->numbers + column;
#pragma GCC unroll 12
    for (int row = 0; row < rows; row++, numbers += to->columns) {
        Vector y0 = sums[0][row] * to->scale, y1 = sums[1][row] * to->scale;
        if (to->more) y0 += load(numbers), y1 += load(numbers + LANES);
        store(numbers, y0 + b0);
        store(numbers + LANES, y1 + b1);
    }
}

// The left side of a product: the steps from a row, and from a pair, to the next.
typedef struct {
    const Bfloat16 *numbers;
    int64_t row_step, pair_step;
} PairedLeft;

// A few rows times one panel [inner / 2, PANEL] of pairs; `rows` is a constant wherever this is
// inlined. Of an odd inner side the last number has 0 as its neighbour.
INLINE void multiply_pairs(PairedLeft left, const Bfloat16 *right, int64_t inner,
                           const RoundedResult *to, int64_t column, const int rows) {
    Vector sums[2][MOST_ROWS];
    for (int row = 0; row < rows; row++) sums[0][row] = sums[1][row] = all(0.0f);
    for (int64_t pair = 0; pair < inner / 2; pair++) {
        __m512i w0 = _mm512_loadu_si512(right), w1 = _mm512_loadu_si512(right + PANEL);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            __m512i x = _mm512_set1_epi32(*(const Pair *)(left.numbers + row * left.row_step));
            sums[0][row] = dot_pairs(sums[0][row], x, w0);
            sums[1][row] = dot_pairs(sums[1][row], x, w1);
        }
        left.numbers += left.pair_step;
        right += 2 * PANEL;
    }
    if (inner & 1) {
        __m512i w0 = _mm512_loadu_si512(right), w1 = _mm512_loadu_si512(right + PANEL);
        for (int row = 0; row < rows; row++) {
            __m512i x = _mm512_set1_epi32(left.numbers[row * left.row_step]);
            sums[0][row] = dot_pairs(sums[0][row], x, w0);
            sums[1][row] = dot_pairs(sums[1][row], x, w1);
        }
    }
    if (is_linear(to) && column + PANEL <= to->columns) {
        put_linear(to, column, sums, rows);
        return;
    }
    for (int row = 0; row < rows; row++)
        for (int side = 0; side < 2; side++)
            put_result(to, row, column + side * LANES, sums[side][row]);
}

#define PAIRS_CASE(n) \
    case n: multiply_pairs(left, right, inner, to, column, n); break;

INLINE void multiply_rows_of_pairs(PairedLeft left, const Bfloat16 *right, int64_t inner,
                                   const RoundedResult *to, int64_t column, int64_t rows) {
    switch (rows) {
        PAIRS_CASE(1) PAIRS_CASE(2) PAIRS_CASE(3) PAIRS_CASE(4) PAIRS_CASE(5) PAIRS_CASE(6)
        PAIRS_CASE(7) PAIRS_CASE(8) PAIRS_CASE(9) PAIRS_CASE(10) PAIRS_CASE(11) PAIRS_CASE(12)
    }
}

// A block of rows times all panels, which are `panel_step` apart.
static void product_of_pairs(PairedLeft left, const Bfloat16 *right, int64_t panel_step,
                             int64_t rows, int64_t inner, RoundedResult to) {
    for (int64_t column = 0; column < to.columns; column += PANEL, right += panel_step)
        for (int64_t row = 0; row < rows; row += MOST_ROWS) {
            RoundedResult part = result_from_row(to, row);
            PairedLeft from = left;
            from.numbers += row * left.row_step;
            int64_t count = smaller(MOST_ROWS, rows - row);
            if (left.pair_step == 2) {
                from.pair_step = 2;  // as a constant
                multiply_rows_of_pairs(from, right, inner, &part, column, count);
            } else {
                from.row_step = 2;
                from.pair_step = 2 * GROUP;
                multiply_rows_of_pairs(from, right, inner, &part, column, count);
            }
        }
}

// Bias, ReLU and the like are applied, and the result is rounded, after the last part of a sum.
static RoundedResult part_of_rounded_sum(RoundedResult to, bool first, bool last) {
    if (!first) to.more = true;
    if (!last) {
        to.relu = false;
        to.bias = NULL;
        to.where = to.rounded = NULL;
        to.bits = NULL;
    }
    return to;
}

// Two rows as pairs of what stands in the same column, for up to 32 columns; the rest is 0.
INLINE void join_rows(const Bfloat16 *above, const Bfloat16 *below, int64_t columns, __m512i pairs[2]) {
    __mmask32 part = first_of_32(columns);
    __m512i a = _mm512_maskz_loadu_epi16(part, above);
    __m512i b = below ? _mm512_maskz_loadu_epi16(part, below) : _mm512_setzero_si512();
    __m512i low = _mm512_add_epi16(
        _mm512_set1_epi32(32 << 16),
        _mm512_mullo_epi32(_mm512_set1_epi32(0x00010001), (__m512i)lane_numbers()));
    pairs[0] = _mm512_permutex2var_epi16(a, low, b);
    pairs[1] = _mm512_permutex2var_epi16(a, _mm512_add_epi16(low, _mm512_set1_epi16(16)), b);
}

// The panel from a column on of a right side [inner, columns].
static void pack_panel(const Bfloat16 *right, int64_t step, int64_t inner, int64_t columns, Bfloat16 *to) {
    for (int64_t row = 0; row < inner; row += 2, to += 2 * PANEL) {
        __m512i pairs[2];
        const Bfloat16 *above = right + row * step;
        join_rows(above, row + 1 < inner ? above + step : NULL, columns, pairs);
        _mm512_storeu_si512(to, pairs[0]);
        _mm512_storeu_si512(to + PANEL, pairs[1]);
    }
}

// The same of a right side that is given as [columns, inner].
static void pack_transposed_panel(const Bfloat16 *right, int64_t inner, int64_t columns, Bfloat16 *to) {
    for (int64_t first = 0; first < PANEL; first += LANES)
        for (int64_t place = 0; place < inner; place += 2 * LANES) {
            Vector rows[LANES];
            __mmask32 part = first_of_32(inner - place);
#pragma GCC unroll 16
            for (int row = 0; row < LANES; row++)
                rows[row] = first + row < columns
                                ? (Vector)_mm512_maskz_loadu_epi16(part, right + (first + row) * inner + place)
                                : all(0.0f);
            transpose(rows);
            Bfloat16 *out = to + place * PANEL + 2 * first;
#pragma GCC unroll 16
            for (int row = 0; row < LANES; row++)
                if (place + 2 * row < inner) _mm512_storeu_si512(out + 2 * row * PANEL, (__m512i)rows[row]);
        }
}

// Up to GROUP columns of a left side that is given as [inner, rows]; adds each column to `sums`.
static void pack_group(const Bfloat16 *left, int64_t step, int64_t inner, int64_t columns,
                       Bfloat16 *to, float *sums) {
    for (int64_t first = 0; first < GROUP; first += 2 * LANES) {
        Vector totals[2] = {load(sums + first), load(sums + first + LANES)};
        for (int64_t row = 0; row < inner; row += 2) {
            __m512i pairs[2];
            const Bfloat16 *above = left + row * step + first;
            int64_t count = columns > first ? columns - first : 0;
            join_rows(above, row + 1 < inner ? above + step : NULL, count, pairs);
            Bfloat16 *out = to + row * GROUP + 2 * first;
            for (int side = 0; side < 2 && first + side * LANES < GROUP; side++) {
                _mm512_storeu_si512(out + side * 2 * LANES, pairs[side]);
                Ints both = (Ints)pairs[side];
                totals[side] += (Vector)(both << 16) + (Vector)(both & (int32_t)0xffff0000);
            }
        }
        store(sums + first, totals[0]);
        store(sums + first + LANES, totals[1]);
    }
}

// Rows of a left side closer together: their steps are such that few of them would stay in the cache.
static PairedLeft pack_block(PairedLeft left, int64_t rows, int64_t inner, Bfloat16 *to) {
    const int64_t step = INNER + 2 * LANES;
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + row * step, left.numbers + row * left.row_step, sizeof *to * (size_t)inner);
    return (PairedLeft){to, step, 2};
}

#define BLOCK (ROWS * (INNER + 2 * LANES))  // room for a block of the left side, and for a group
#define GROUP_SUMS (2 * PANEL)  // room for the columns of a group, in whole panels

// Numbers of bfloat16 that a product needs to work in; -1: the sizes are beyond all memory.
int64_t pairs_size(int64_t inner, int64_t columns, int64_t threads) {
    if (!is_size(inner) || !is_size(columns) || !are_threads(threads)) return -1;
    return in_panels(columns) * even(inner) + threads * BLOCK;
}

static int is_complete(const RoundedResult *to, int64_t rows) {
    return is_there(to->numbers ? (void *)to->numbers : (void *)to->rounded, rows * to->columns) &&
           (to->numbers || !to->more);
}

// result [rows, columns] = left [rows, inner] right [inner, columns]; `transposed`: the right side
// is given as [columns, inner]. `packed` [pairs_size] is memory to work in.
int64_t multiply_bfloat16(const Bfloat16 *left, const Bfloat16 *right, int64_t transposed,
                          int64_t rows, int64_t inner, const RoundedResult *to, Bfloat16 *packed,
                          int64_t threads) {
    const int64_t columns = to->columns, panels = in_panels(columns) / PANEL;
    // Parts of a sum are kept in the result, for which bfloat16 will not do.
    const int64_t at_once = to->numbers ? INNER : even(inner);
    Bfloat16 *blocks = packed + in_panels(columns) * even(inner);
    REQUIRE(is_size(rows) && is_size(inner) && is_size(columns) && are_threads(threads));
    REQUIRE(is_there(left, rows * inner) && is_there(right, inner * columns));
    REQUIRE(is_there(packed, columns) && is_complete(to, rows));
#pragma omp parallel num_threads((int)threads)
    {
#pragma omp for
        for (int64_t panel = 0; panel < panels; panel++) {
            int64_t first = panel * PANEL, count = smaller(PANEL, columns - first);
            Bfloat16 *own = packed + first * even(inner);
            if (transposed)
                pack_transposed_panel(right + first * inner, inner, count, own);
            else
                pack_panel(right + first, columns, inner, count, own);
        }
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < rows; row += ROWS)
            for (int64_t first = 0; first == 0 || first < inner; first += at_once) {
                int64_t count = smaller(at_once, inner - first);
                PairedLeft from = {left + row * inner + first, inner, 2};
                if (at_once < inner) from = pack_block(from, smaller(ROWS, rows - row), count, blocks + omp_get_thread_num() * BLOCK);
                RoundedResult part = part_of_rounded_sum(*to, first == 0, first + count == inner);
                product_of_pairs(from, packed + first * PANEL, PANEL * even(inner),
                                 smaller(ROWS, rows - row), count, result_from_row(part, row));
            }
    }
    return 0;
}

// result [rows, columns] = left^T right for left [inner, rows] and right [inner, columns], and the
// sums of the columns of the left side, [rows]: the gradients of a layer's weight and bias.
int64_t multiply_transposed_bfloat16(const Bfloat16 *left, const Bfloat16 *right, int64_t rows,
                                     int64_t inner, const RoundedResult *to, float *sums,
                                     Bfloat16 *packed, int64_t threads) {
    const int64_t columns = to->columns, panels = in_panels(columns) / PANEL;
    REQUIRE(is_size(rows) && is_size(inner) && is_size(columns) && are_threads(threads));
    REQUIRE(is_there(left, rows * inner) && is_there(right, inner * columns));
    REQUIRE(is_there(packed, columns) && is_there(to->numbers, rows * columns));
    Bfloat16 *blocks = packed + in_panels(columns) * even(inner);
#pragma omp parallel num_threads((int)threads)
    {
#pragma omp for
        for (int64_t panel = 0; panel < panels; panel++) {
            int64_t first = panel * PANEL;
            pack_panel(right + first, columns, inner, smaller(PANEL, columns - first),
                       packed + first * even(inner));
        }
#pragma omp for schedule(dynamic)
        for (int64_t row = 0; row < rows; row += GROUP) {
            Bfloat16 *own = blocks + omp_get_thread_num() * BLOCK;
            int64_t count = smaller(GROUP, rows - row);
            float totals[GROUP_SUMS] = {0};
            for (int64_t first = 0; first == 0 || first < inner; first += INNER) {
                int64_t some = smaller(INNER, inner - first);
                pack_group(left + first * rows + row, rows, some, count, own, totals);
                RoundedResult part = part_of_rounded_sum(*to, first == 0, first + some == inner);
                product_of_pairs((PairedLeft){own, 2, 2 * GROUP}, packed + first * PANEL,
                                 PANEL * even(inner), count, even(some), result_from_row(part, row));
            }
            if (sums)
                for (int64_t place = 0; place < count; place++) sums[row + place] = totals[place];
        }
    }
    return 0;
}

// The nearest numbers in bfloat16.
int64_t round_to_bfloat16(const float *from, int64_t count, Bfloat16 *to, int64_t threads) {
    REQUIRE(0 <= count && are_threads(threads) && is_there(from, count) && is_there(to, count));
#pragma omp parallel for num_threads((int)threads)
    for (int64_t first = 0; first < count; first += 4096)
        for (int64_t place = first; place < smaller(count, first + 4096); place += LANES) {
            __mmask16 part = first_of_16(count - place);
            Vector x = (Vector)_mm512_maskz_loadu_ps(part, from + place);
            _mm256_mask_storeu_epi16(to + place, part, to_bfloat16(x));
        }
    return 0;
}
#else
int64_t has_bfloat16_products(void) { return 0; }
int64_t pairs_size(int64_t inner, int64_t columns, int64_t threads) {
    (void)inner, (void)columns, (void)threads;
    return -1;
}
int64_t multiply_bfloat16(void) { return __LINE__; }
int64_t multiply_transposed_bfloat16(void) { return __LINE__; }
int64_t round_to_bfloat16(void) { return __LINE__; }
#endif
