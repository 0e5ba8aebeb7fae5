// Rows of scores to weights. The mathematics of entmax is explained in nmt/model/entmax.py.

#include "score_maps.h"

#include <float.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STEPS 60
#define LARGEST_WEIGHT 1e12f  // as in nmt/model/activations.py

static void fill_rest(float *row, size_t count, float rest) {
    for (size_t place = count; place < round_up(count); place++) row[place] = rest;
}

static float row_largest(const float *row, size_t count) {
    Vector most = all(-INFINITY);
    for (size_t place = 0; place < count; place += LANES) {
        Vector x = load(row + place);
        most = choose(x > most, x, most);
    }
    return largest(most);
}

static void softmax(float *row, size_t count) {
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
}

// What the weights at a threshold add up to, and how fast that falls with the threshold.
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

// log2(1 + u) for u in [-1, 0]; anything at -1.
INLINE Vector logarithm2_of_1_plus(Vector u) {
    Vector s = u / (2.0f + u), square = s * s;
    Vector p = all(0.2222222222f * 1.44269504f);
    p = p * square + 0.2857142857f * 1.44269504f;
    p = p * square + 0.4f * 1.44269504f;
    p = p * square + 0.6666666667f * 1.44269504f;
    p = p * square + 2.0f * 1.44269504f;
    return choose(u > -0.29f, p * s, logarithm2(1.0f + u));
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
    switch (map) {
        case SPARSEMAX: return measure_sparsemax(row, count, shift);
        case ENTMAX15: return measure_entmax15(row, count, shift);
        default: return measure_entmax(row, count, shift, beta);
    }
}

static float newton_step(enum ScoreMap map, Measure found, float beta) {
    switch (map) {
        case SPARSEMAX: return (found.total - 1.0f) / found.slope;
        case ENTMAX15: return (found.total - 2.0f * sqrtf(found.total)) / found.slope;
        default: return -expm1f(-beta * logf(found.total)) / beta * found.total / found.slope;
    }
}

// Thresholds are shifted by 1 / beta in the two closed forms, and the sum of 1.5-entmax has a
// factor of 4.
static void entmax(enum ScoreMap map, float beta, float *row, size_t count) {
    fill_rest(row, count, -INFINITY);
    float top = row_largest(row, count);
    for (size_t place = 0; place < count; place += LANES)
        store(row + place, load(row + place) - top);
    float lowest = map == SPARSEMAX ? -1.0f : map == ENTMAX15 ? -2.0f : 0.0f;
    float limit = (map == ENTMAX15 ? 4.0f : 1.0f) * (1.0f + 16.0f * FLT_EPSILON);
    float shift = lowest + 0.5f / (beta + 0.4f);  // about what scores of unit variance need
    for (int number = 0; number < MOST_STEPS; number++) {
        Measure found = measure(map, row, count, shift, beta);
        shift += newton_step(map, found, beta);
        if (number > 0 && !(found.total > limit)) break;
        if (number == 0 && shift < lowest) shift = lowest;
    }
    float exponent = 1.0f / beta - 1.0f;
    for (size_t place = 0; place < count; place += LANES) {
        Vector x = load(row + place) - shift;
        if (map == ENTMAX) {
            Vector u = at_least(x * beta, -1.0f), slope = entmax_slope(u, exponent);
            x = slope + slope * u;
        } else {
            x = at_least(x, 0.0f);
            if (map == ENTMAX15) x = x * x * 0.25f;
        }
        store(row + place, x);
    }
}

static void pointwise(enum ScoreMap map, float threshold, float *row, size_t count) {
    fill_rest(row, count, threshold);
    for (size_t place = 0; place < count; place += LANES) {
        Vector x = load(row + place) - threshold;
        switch (map) {
            case RELU: x = at_least(x, 0.0f); break;
            case LEAKY_RELU: x = choose(x > 0.0f, x, x * 0.01f); break;
            case SQUARED_RELU: x = at_least(x, 0.0f), x = x * x; break;
            case GELU:
                for (int lane = 0; lane < LANES; lane++)
                    x[lane] = 0.5f * x[lane] * (1.0f + erff(x[lane] * (float)M_SQRT1_2));
                break;
            default: break;
        }
        store(row + place, at_most(at_least(x, -LARGEST_WEIGHT), LARGEST_WEIGHT));
    }
}

static int falling(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a < b) - (a > b);
}

// Softmax of the k highest scores; ties with the k-th stay in.
static void top_k(size_t k, float *row, size_t count) {
    if (k < count) {
        float sorted[count];
        memcpy(sorted, row, sizeof sorted);
        qsort(sorted, count, sizeof *sorted, falling);
        for (size_t place = 0; place < count; place++)
            if (row[place] < sorted[k - 1]) row[place] = -INFINITY;
    }
    softmax(row, count);
}

void weigh_row(enum ScoreMap map, float parameter, float *row, size_t count) {
    switch (map) {
        case SOFTMAX: softmax(row, count); break;
        case SPARSEMAX: entmax(map, 1.0f, row, count); break;
        case ENTMAX15: entmax(map, 0.5f, row, count); break;
        case ENTMAX: entmax(map, parameter, row, count); break;
        case TOP_K: top_k((size_t)parameter, row, count); break;
        default: pointwise(map, parameter, row, count);
    }
}
