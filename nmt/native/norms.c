// Norms over rows of the model's width, with what comes before or after them in the same pass.
//
// Gradients of what all rows share are sums over parts of the rows, the same parts whatever the
// number of threads, added in their order.

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define PARTS 32

typedef struct {
    int64_t first, end;
} Rows;

static Rows rows_of_part(int64_t rows, int64_t part) {
    int64_t size = (rows + PARTS - 1) / PARTS, first = part * size;
    return (Rows){first < rows ? first : rows, first + size < rows ? first + size : rows};
}

static float *make_sums(int64_t count) {
    return calloc((size_t)(PARTS * count), sizeof(float));
}

// Adds up the sums of all parts, and frees them.
static void add_parts(float *sums, int64_t stride, int64_t count, float *total) {
    memcpy(total, sums, sizeof *total * (size_t)count);
    for (int64_t part = 1; part < PARTS; part++)
        for (int64_t place = 0; place < count; place++) total[place] += sums[part * stride + place];
}

INLINE size_t part_from(int64_t place, int64_t width) { return (size_t)(width - place); }

INLINE Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// out = sigmoid(gate x) gain x / rms(x), and 1 / rms(x) of each row; the gate may be NULL.
void gated_rms_norm(const float *x, const float *gain, const float *gate, int64_t rows,
                    int64_t width, float epsilon, float *out, float *scales, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = x + row * width;
        float *to = out + row * width;
        Vector squares = all(0.0f);
        for (int64_t place = 0; place < width; place += LANES) {
            Vector z = load_part(from + place, part_from(place, width), 0.0f);
            squares += z * z;
        }
        float scale = 1.0f / sqrtf(sum(squares) / (float)width + epsilon);
        scales[row] = scale;
        for (int64_t place = 0; place < width; place += LANES) {
            size_t part = part_from(place, width);
            Vector z = load_part(from + place, part, 0.0f);
            Vector y = z * load_part(gain + place, part, 0.0f) * scale;
            if (gate) y *= sigmoid(z * load_part(gate + place, part, 0.0f));
            store_part(to + place, part, y);
        }
    }
}

typedef struct {
    const float *x, *gain, *gate, *scales, *outer;  // outer: the gradient of the output
    float *inner;                                   // that of x
    int64_t width;
} RmsBackward;

// With s = sigmoid(w z), a = dy s, b = a z, q = b (1 - s), r = 1 / rms(z): adds r b and r z q to
// the sums, and writes dz = r (a g + q g w) - z r^3 mean(b g).
static void pull_back_rms_row(const RmsBackward *n, int64_t row, float *gain_sum, float *gate_sum) {
    const float *x = n->x + row * n->width, *outer = n->outer + row * n->width;
    float *inner = n->inner + row * n->width, scale = n->scales[row];
    Vector shared = all(0.0f);
    for (int64_t place = 0; place < n->width; place += LANES) {
        size_t part = part_from(place, n->width);
        Vector z = load_part(x + place, part, 0.0f), a = load_part(outer + place, part, 0.0f);
        Vector gain = load_part(n->gain + place, part, 0.0f), slope = gain;
        if (n->gate) {
            Vector gate = load_part(n->gate + place, part, 0.0f), opening = sigmoid(z * gate);
            a *= opening;
            Vector q = z * (1.0f - opening);
            slope += q * gain * gate;
            Vector sums = load_part(gate_sum + place, part, 0.0f) + scale * z * q * a;
            store_part(gate_sum + place, part, sums);
        }
        Vector b = a * z;
        shared += b * gain;
        store_part(gain_sum + place, part, load_part(gain_sum + place, part, 0.0f) + scale * b);
        store_part(inner + place, part, a * slope * scale);
    }
    float factor = sum(shared) * scale * scale * scale / (float)n->width;
    for (int64_t place = 0; place < n->width; place += LANES) {
        size_t part = part_from(place, n->width);
        Vector z = load_part(x + place, part, 0.0f);
        store_part(inner + place, part, load_part(inner + place, part, 0.0f) - z * factor);
    }
}

// The gradients of x, gain and gate; the last may be NULL, as the gate.
void gated_rms_norm_backward(const RmsBackward *n, int64_t rows, float *gain_gradient,
                             float *gate_gradient, int threads) {
    float *sums = make_sums(2 * n->width);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t part = 0; part < PARTS; part++) {
        float *own = sums + part * 2 * n->width;
        Rows some = rows_of_part(rows, part);
        for (int64_t row = some.first; row < some.end; row++)
            pull_back_rms_row(n, row, own, own + n->width);
    }
    add_parts(sums, 2 * n->width, n->width, gain_gradient);
    if (gate_gradient) {
        add_parts(sums + n->width, 2 * n->width, n->width, gate_gradient);
        for (int64_t place = 0; place < n->width; place++) gate_gradient[place] *= n->gain[place];
    }
    free(sums);
}
