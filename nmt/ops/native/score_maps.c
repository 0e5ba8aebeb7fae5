// Rows of scores to weights. The mathematics of entmax is explained in nmt/ops/entmax.py.

#include "score_maps.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "border.h"

#define MOST_STEPS 60
#define LARGEST_WEIGHT 1e12f  // as in nmt/ops/score_mappings.py
#define SERIES_BELOW 0.02f    // as in nmt/ops/entmax.py

static void fill_rest(float *row, size_t count, float rest) {
    const size_t part = count % LANES;
    if (part == 0) return;
    float *last = row + count - part;  // as one vector: smaller parts would delay the next load
    store(last, choose(lane_numbers() < (int32_t)part, load(last), all(rest)));
}

static float row_largest(const float *row, size_t count) {
    Vector most = all(-INFINITY);
    for (size_t place = 0; place < count; place += LANES) {
        Vector x = load(row + place);
        most = choose(x > most, x, most);
    }
    return largest(most);
}

static RowState softmax(float *row, size_t count) {
    fill_rest(row, count, -INFINITY);
    float top = row_largest(row, count);
    Vector total = all(0.0f);
    for (size_t place = 0; place < count; place += LANES) {
        Vector p = exponential(load(row + place) - top);
        store(row + place, p);
        total += p;
    }
    float factor = 1.0f / sum(total);
    for (size_t place = 0; place < count; place += LANES)
        store(row + place, load(row + place) * factor);
    return (RowState){top, factor};
}

static void softmax_again(RowState state, float *row, size_t count) {
    fill_rest(row, count, -INFINITY);
    for (size_t place = 0; place < count; place += LANES)
        store(row + place, exponential(load(row + place) - state.top) * state.normalizer);
}

// The sum of the weights at a threshold, and how fast it falls with the threshold.
typedef struct {
    float total, slope;
} Measure;

static Measure measure_sparsemax(const float *row, size_t count, float shift) {
    Vector total = all(0.0f), slope = all(0.0f);
    for (size_t place = 0; place < count; place += LANES) {
        Vector u = at_least(load(row + place) - shift, 0.0f);
        total += u;
        slope += choose(u > 0.0f, all(1.0f), all(0.0f));
    }
    return (Measure){sum(total), sum(slope)};
}

static Measure measure_entmax15(const float *row, size_t count, float shift) {
    Vector total = all(0.0f), slope = all(0.0f);
    for (size_t place = 0; place < count; place += LANES) {
        Vector u = at_least(load(row + place) - shift, 0.0f);
        total += u * u;
        slope += u;
    }
    return (Measure){sum(total), sum(slope)};
}

// The slope (1 + u)^(1 / beta - 1) of each weight, u = beta (x - t) >= -1; the weight is 1 + u of it.
INLINE Vector entmax_slope(Vector u, float exponent) {
    return choose(u > -1.0f, power2(logarithm2_of_1_plus(u) * exponent), all(0.0f));
}

static Measure measure_entmax(const float *row, size_t count, float shift, float beta) {
    float exponent = 1.0f / beta - 1.0f;
    Vector total = all(0.0f), slope = all(0.0f);
    for (size_t place = 0; place < count; place += LANES) {
        Vector u = at_least((load(row + place) - shift) * beta, -1.0f);
        Vector part = entmax_slope(u, exponent);
        slope += part;
        total += part + part * u;
    }
    return (Measure){sum(total), sum(slope)};
}

static Measure measure(enum ScoreMap map, const float *row, size_t count, float shift, float beta) {
    if (map == SPARSEMAX) return measure_sparsemax(row, count, shift);
    if (map == ENTMAX15) return measure_entmax15(row, count, shift);
    return measure_entmax(row, count, shift, beta);
}

static float newton_step(enum ScoreMap map, Measure found, float beta) {
    if (map == SPARSEMAX) return (found.total - 1.0f) / found.slope;
    if (map == ENTMAX15) return (found.total - 2.0f * sqrtf(found.total)) / found.slope;
    return -expm1f(-beta * logf(found.total)) / beta * found.total / found.slope;
}

// The numbers of a row above a bound (and NaN), with their places; returns how many there are.
static size_t gather(const float *row, size_t count, float bound, float *found, int32_t *places) {
    size_t number = 0;
#ifdef WITH_AVX512
    for (size_t place = 0; place < count; place += LANES) {
        __m512 x = (__m512)load(row + place);
        __mmask16 above = _mm512_cmp_ps_mask(x, (__m512)all(bound), _CMP_NLE_UQ);
        if (count - place < LANES) above &= (__mmask16)((1u << (count - place)) - 1);
        __m512i at = (__m512i)(lane_numbers() + (int32_t)place);
        _mm512_storeu_ps(found + number, _mm512_maskz_compress_ps(above, x));
        _mm512_storeu_si512(places + number, _mm512_maskz_compress_epi32(above, at));
        number += (size_t)__builtin_popcount(above);
    }
#else
    for (size_t place = 0; place < count; place++) {
        found[number] = row[place];
        places[number] = (int32_t)place;
        number += !(row[place] <= bound);
    }
#endif
    return number;
}

static void scatter(const float *found, const int32_t *places, size_t number, float *row,
                    size_t count) {
    memset(row, 0, sizeof *row * round_up(count));
    for (size_t index = 0; index < number; index++) row[places[index]] = found[index];
}

INLINE Vector entmax_weight(enum ScoreMap map, Vector x, float beta, float exponent) {
    if (map == ENTMAX) {
        Vector u = at_least(x * beta, -1.0f), slope = entmax_slope(u, exponent);
        return slope + slope * u;
    }
    x = at_least(x, 0.0f);
    if (map == ENTMAX15) x *= x * 0.25f;
    return x;
}

static void entmax_weights(enum ScoreMap map, float beta, RowState state, float *row,
                           size_t count) {
    float exponent = 1.0f / beta - 1.0f;
    for (size_t place = 0; place < count; place += LANES) {
        Vector x = load(row + place) - state.top - state.normalizer;
        store(row + place, entmax_weight(map, x, beta, exponent));
    }
}

// Overwrites scores less the highest by weights; returns the threshold. Thresholds are shifted by
// 1 / beta in the two closed forms, and the sum of 1.5-entmax has a factor of 4.
static float solve(enum ScoreMap map, float beta, float *row, size_t count) {
    float lowest = map == SPARSEMAX ? -1.0f : map == ENTMAX15 ? -2.0f : 0.0f;
    float limit = (map == ENTMAX15 ? 4.0f : 1.0f) * (1.0f + 16.0f * FLT_EPSILON);
    float shift = lowest + 0.5f / (beta + 0.4f);  // about what scores of unit variance need
    for (int number = 0; number < MOST_STEPS; number++) {
        Measure found = measure(map, row, count, shift, beta);
        shift += newton_step(map, found, beta);
        if (number > 0 && !(found.total > limit)) break;
        if (number == 0 && shift < lowest) shift = lowest;
    }
    entmax_weights(map, beta, (RowState){0.0f, shift}, row, count);
    return shift;
}

static void subtract(float *row, size_t count, float x) {
    for (size_t place = 0; place < count; place += LANES)
        store(row + place, load(row + place) - x);
}

// The scratch memory of a row: room for some of its numbers, their places and what is made of them.
typedef struct {
    float *few, *slopes, *directs, *grad;
    int32_t *places;
} Few;

static Few cut_scratch(float *scratch, size_t count) {
    const size_t part = row_scratch(count) / 5;
    return (Few){scratch, scratch + part, scratch + 2 * part, scratch + 3 * part,
                 (int32_t *)(scratch + 4 * part)};
}

// What scores with a weight are above: 1 / beta below the largest, or a little below it where
// floats are too coarse for that.
static float lowest_support(float top, float beta) {
    return top - fmaxf(1.0f / beta, fabsf(top) * FLT_EPSILON);
}

// Powers are dear: of any beta only the scores that can have a weight are looked at.
static RowState entmax_of_few(float beta, float *row, size_t count, float *scratch) {
    fill_rest(row, count, -INFINITY);
    float top = row_largest(row, count), *few = scratch;
    int32_t *places = cut_scratch(scratch, count).places;
    size_t number = gather(row, count, lowest_support(top, beta), few, places);
    fill_rest(few, number, -INFINITY);
    subtract(few, number, top);
    float shift = solve(ENTMAX, beta, few, number);
    scatter(few, places, number, row, count);
    return (RowState){top, shift};
}

static void entmax_of_few_again(float beta, RowState state, float *row, size_t count,
                                float *scratch) {
    float *few = scratch;
    int32_t *places = cut_scratch(scratch, count).places;
    size_t number = gather(row, count, lowest_support(state.top, beta), few, places);
    fill_rest(few, number, -INFINITY);
    entmax_weights(ENTMAX, beta, state, few, number);
    scatter(few, places, number, row, count);
}

static RowState entmax(enum ScoreMap map, float beta, float *row, size_t count) {
    fill_rest(row, count, -INFINITY);
    float top = row_largest(row, count);
    subtract(row, count, top);
    return (RowState){top, solve(map, beta, row, count)};
}

static void pointwise(enum ScoreMap map, float threshold, float *row, size_t count) {
    fill_rest(row, count, threshold);
    for (size_t place = 0; place < count; place += LANES) {
        Vector x = load(row + place) - threshold;
        switch (map) {
            case SOFTMAX:
            case SPARSEMAX:
            case ENTMAX15:
            case ENTMAX:
            case TOP_K:  // these are not pointwise
            case IDENTITY: break;
            case RELU: x = at_least(x, 0.0f); break;
            case LEAKY_RELU: x = choose(x > 0.0f, x, x * 0.01f); break;
            case SQUARED_RELU: x = at_least(x, 0.0f), x = x * x; break;
            case GELU: x = gelu(x); break;
        }
        store(row + place, at_most(at_least(x, -LARGEST_WEIGHT), LARGEST_WEIGHT));
    }
}

static int falling(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a < b) - (a > b);
}

// Softmax of the k highest scores; ties with the k-th stay in.
static RowState top_k(size_t k, float *row, size_t count, float *sorted) {
    if (0 < k && k < count) {
        memcpy(sorted, row, sizeof *sorted * count);
        qsort(sorted, count, sizeof *sorted, falling);
        for (size_t place = 0; place < count; place++)
            if (row[place] < sorted[k - 1]) row[place] = -INFINITY;
    }
    return softmax(row, count);
}

bool is_score_map(int64_t map, float parameter) {
    if (map == TOP_K) return 1.0f <= parameter && parameter <= MOST_K;
    return SOFTMAX <= map && map < TOP_K;
}

RowState weigh_row(enum ScoreMap map, float parameter, float *row, size_t count, float *scratch) {
    switch (map) {
        case SOFTMAX: return softmax(row, count);
        case SPARSEMAX: return entmax(map, 1.0f, row, count);
        case ENTMAX15: return entmax(map, 0.5f, row, count);
        case ENTMAX: return entmax_of_few(parameter, row, count, scratch);
        case TOP_K: return top_k((size_t)parameter, row, count, scratch);
        case RELU:
        case GELU:
        case LEAKY_RELU:
        case SQUARED_RELU:
        case IDENTITY: pointwise(map, parameter, row, count);
    }
    return (RowState){0.0f, 0.0f};
}

void weigh_row_again(enum ScoreMap map, float parameter, RowState state, float *row, size_t count,
                     float *scratch) {
    switch (map) {
        case SOFTMAX: softmax_again(state, row, count); break;
        case SPARSEMAX:
        case ENTMAX15:
            fill_rest(row, count, -INFINITY);
            entmax_weights(map, 0.0f, state, row, count);  // these know their beta
            break;
        case ENTMAX: entmax_of_few_again(parameter, state, row, count, scratch); break;
        case TOP_K: break;
        case RELU:
        case GELU:
        case LEAKY_RELU:
        case SQUARED_RELU:
        case IDENTITY: pointwise(map, parameter, row, count);
    }
}

// One row for itself: scores [count] with room for a vector more, and row_scratch(count) numbers.
int64_t weigh_scores(int64_t map, float parameter, float *scores, int64_t count, float *scratch) {
    REQUIRE(is_score_map(map, parameter) && is_size(count) && scores && scratch);
    if (count > 0) weigh_row((enum ScoreMap)map, parameter, scores, (size_t)count, scratch);
    return 0;
}

int64_t scores_scratch(int64_t count) {
    return is_size(count) ? (int64_t)row_scratch((size_t)count) : -1;
}

static void backward_softmax(const float *weights, float *gradient, size_t count) {
    Vector total = all(0.0f);
    for (size_t place = 0; place < count; place += LANES)
        total += load(weights + place) * load(gradient + place);
    float mean = sum(total);
    for (size_t place = 0; place < count; place += LANES)
        store(gradient + place, load(weights + place) * (load(gradient + place) - mean));
}

// p^(1 - beta): how fast a weight falls with the threshold; 0 where the weight is.
INLINE Vector slope_of_weight(enum ScoreMap map, Vector p) {
    return map == SPARSEMAX ? choose(p > 0.0f, all(1.0f), p) : root(p);
}

static void backward_entmax(enum ScoreMap map, const float *weights, float *gradient,
                             size_t count) {
    Vector slopes = all(0.0f), products = all(0.0f);
    for (size_t place = 0; place < count; place += LANES) {
        Vector slope = slope_of_weight(map, load(weights + place));
        slopes += slope;
        products += slope * load(gradient + place);
    }
    float total = sum(slopes);
    float mean = sum(products) / (total < FLT_MIN ? FLT_MIN : total);
    for (size_t place = 0; place < count; place += LANES) {
        Vector slope = slope_of_weight(map, load(weights + place));
        store(gradient + place, slope * (load(gradient + place) - mean));
    }
}

// dp / dbeta at a fixed threshold; in entmax.py it is `direct_gradient`.
INLINE Vector gradient_of_beta(Vector p, Vector slope, Vector log, float beta) {
    if (beta < SERIES_BELOW) {
        Vector z = log * -beta;
        Vector series = ((z / 120.0f + 1.0f / 24.0f) * z + 1.0f / 6.0f) * z + 0.5f;
        return -series * log * log * p;
    }
    return ((p - slope) / beta - log * p) / beta;
}

static void backward_few(float beta, const float *weights, float *gradient, size_t count,
                          float *beta_gradient, float *scratch) {
    const Few room = cut_scratch(scratch, count);
    float *few = room.few, *slopes = room.slopes, *directs = room.directs, *grad = room.grad;
    int32_t *places = room.places;
    size_t number = gather(weights, count, 0.0f, few, places);
    fill_rest(few, number, 0.0f);
    Vector total = all(0.0f), product = all(0.0f), direct = all(0.0f);
    for (size_t index = 0; index < number; index++) grad[index] = gradient[places[index]];
    fill_rest(grad, number, 0.0f);
    for (size_t place = 0; place < number; place += LANES) {
        Vector p = load(few + place), log = logarithm2(at_least(p, FLT_MIN));
        Vector slope = p * power2(log * -beta);
        total += slope;
        product += slope * load(grad + place);
        store(slopes + place, slope);
        store(directs + place, gradient_of_beta(p, slope, log * 0.69314718f, beta));
    }
    float divisor = sum(total), mean = sum(product) / (divisor < FLT_MIN ? FLT_MIN : divisor);
    for (size_t place = 0; place < number; place += LANES) {
        Vector rest = load(grad + place) - mean;
        direct += load(directs + place) * rest;
        store(grad + place, load(slopes + place) * rest);
    }
    if (beta_gradient) *beta_gradient += sum(direct);
    scatter(grad, places, number, gradient, count);
}

static void backward_relu(const float *weights, float *gradient, size_t count,
                           float *threshold_gradient) {
    Vector total = all(0.0f);
    for (size_t place = 0; place < count; place += LANES) {
        Vector p = load(weights + place);
        Ints ends = (p <= 0.0f) | (p >= LARGEST_WEIGHT);
        Vector g = choose(ends, all(0.0f), load(gradient + place));
        total += g;
        store(gradient + place, g);
    }
    if (threshold_gradient) *threshold_gradient -= sum(total);
}

void backward_row(enum ScoreMap map, float parameter, const float *weights, float *gradient,
                   size_t count, float *parameter_gradient, float *scratch) {
    fill_rest(gradient, count, 0.0f);
    switch (map) {
        case SOFTMAX: backward_softmax(weights, gradient, count); break;
        case RELU: backward_relu(weights, gradient, count, parameter_gradient); break;
        case ENTMAX:
            backward_few(parameter, weights, gradient, count, parameter_gradient, scratch);
            break;
        // The map as a constant: only its own arithmetic stays in the loops.
        case SPARSEMAX: backward_entmax(SPARSEMAX, weights, gradient, count); break;
        case ENTMAX15: backward_entmax(ENTMAX15, weights, gradient, count); break;
        case GELU:
        case LEAKY_RELU:
        case SQUARED_RELU:
        case IDENTITY:
        case TOP_K: break;  // refused by attend_backward
    }
}
