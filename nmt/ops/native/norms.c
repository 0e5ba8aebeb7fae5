// Norms over rows of the model's width, with what comes before or after them in the same pass.
//
// Gradients of what all rows share are sums over parts of the rows, the same parts whatever the
// number of threads, added in their order.

#include <string.h>

#include "border.h"
#include "products.h"

#define PARTS 32

typedef struct {
    int64_t first, end;
} Rows;

static Rows rows_of_part(int64_t rows, int64_t part) {
    int64_t size = (rows + PARTS - 1) / PARTS, first = part * size;
    return (Rows){first < rows ? first : rows, first + size < rows ? first + size : rows};
}

// Numbers, all 0, that derivatives need to add up in; -1: the width is beyond all memory.
int64_t norm_sums(int64_t width) { return is_size(width) ? PARTS * 2 * width : -1; }

static int are_sizes(int64_t rows, int64_t width, int64_t threads) {
    return is_size(rows) && is_size(width) && are_threads(threads);
}

// Adds up the sums of all parts.
static void add_parts(float *sums, int64_t stride, int64_t count, float *total) {
    memcpy(total, sums, sizeof *total * (size_t)count);
    for (int64_t part = 1; part < PARTS; part++)
        for (int64_t place = 0; place < count; place++) total[place] += sums[part * stride + place];
}

INLINE size_t part_from(int64_t place, int64_t width) { return (size_t)(width - place); }

INLINE Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// out = sigmoid(gate x) gain x / rms(x), and 1 / rms(x) of each row; the gate may be NULL.
int64_t gated_rms_norm(const float *x, const float *gain, const float *gate, int64_t rows,
                       int64_t width, float epsilon, float *out, float *scales, int64_t threads) {
    REQUIRE(are_sizes(rows, width, threads) && is_there(gain, width) && is_there(scales, rows));
    REQUIRE(is_there(x, rows * width) && is_there(out, rows * width));
#pragma omp parallel for num_threads((int)threads)
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
    return 0;
}

typedef struct {
    const float *x, *gain, *gate, *scales, *grad_output;  // grad_output: the gradient of the output
    float *grad_input;                                   // that of x
    int64_t width;
} RmsBackward;

EXPORT_SIZE(RmsBackward)

// With s = sigmoid(w z), a = dy s, b = a z, q = b (1 - s), r = 1 / rms(z): adds r b and r z q to
// the sums, and writes dz = r (a g + q g w) - z r^3 mean(b g).
static void backward_rms_row(const RmsBackward *n, int64_t row, float *gain_sum, float *gate_sum) {
    const float *x = n->x + row * n->width, *grad_output = n->grad_output + row * n->width;
    float *grad_input = n->grad_input + row * n->width, scale = n->scales[row];
    Vector shared = all(0.0f);
    for (int64_t place = 0; place < n->width; place += LANES) {
        size_t part = part_from(place, n->width);
        Vector z = load_part(x + place, part, 0.0f), a = load_part(grad_output + place, part, 0.0f);
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
        store_part(grad_input + place, part, a * slope * scale);
    }
    float factor = sum(shared) * scale * scale * scale / (float)n->width;
    for (int64_t place = 0; place < n->width; place += LANES) {
        size_t part = part_from(place, n->width);
        Vector z = load_part(x + place, part, 0.0f);
        store_part(grad_input + place, part, load_part(grad_input + place, part, 0.0f) - z * factor);
    }
}

// The gradients of x, gain and gate; the last may be NULL, as the gate. `sums` [norm_sums].
int64_t gated_rms_norm_backward(const RmsBackward *n, int64_t rows, float *gain_gradient,
                                float *gate_gradient, float *sums, int64_t threads) {
    const int64_t width = n->width;
    REQUIRE(are_sizes(rows, width, threads) && is_there(gain_gradient, width));
    REQUIRE(is_there(sums, width) && is_there(n->gain, width) && !n->gate == !gate_gradient);
    REQUIRE(is_there(n->x, rows * width) && is_there(n->scales, rows));
    REQUIRE(is_there(n->grad_output, rows * width) && is_there(n->grad_input, rows * width));
#pragma omp parallel for num_threads((int)threads) schedule(dynamic)
    for (int64_t part = 0; part < PARTS; part++) {
        float *own = sums + part * 2 * n->width;
        Rows some = rows_of_part(rows, part);
        for (int64_t row = some.first; row < some.end; row++)
            backward_rms_row(n, row, own, own + n->width);
    }
    add_parts(sums, 2 * n->width, n->width, gain_gradient);
    if (gate_gradient) {
        add_parts(sums + n->width, 2 * n->width, n->width, gate_gradient);
        for (int64_t place = 0; place < n->width; place++) gate_gradient[place] *= n->gain[place];
    }
    return 0;
}

typedef struct {
    int64_t rows, width;
    const int16_t *bits;  // [rows, width], or NULL: nothing is dropped
    DropoutRule dropout;
    const float *gain;
    float *sums;           // residual + dropout(x): what is normed
    float *means, *scales; // [rows]: of each, and 1 / its deviation
} AddNorm;

EXPORT_SIZE(AddNorm)

static int is_whole(const AddNorm *n) {
    return is_there(n->gain, n->width) && is_there(n->sums, n->rows * n->width) &&
           is_there(n->means, n->rows) && is_there(n->scales, n->rows);
}

INLINE Vector factors(const AddNorm *n, int64_t place) {
    return n->bits ? dropout_factors(n->dropout, n->bits + place) : all(1.0f);
}

static void add_norm_row(const AddNorm *n, const float *residual, const float *x, const float *bias,
                         float epsilon, int64_t row, float *out) {
    const int64_t width = n->width, first = row * width;
    float *sums = n->sums + first;
    Vector total = all(0.0f), squares = all(0.0f);
    for (int64_t place = 0; place < width; place += LANES) {
        size_t part = part_from(place, width);
        Vector y = load_part(x + first + place, part, 0.0f) * factors(n, first + place) +
                   load_part(residual + first + place, part, 0.0f);
        store_part(sums + place, part, y);
        total += y;
    }
    float mean = sum(total) / (float)width;
    for (int64_t place = 0; place < width; place += LANES) {
        Vector y = load_part(sums + place, part_from(place, width), mean) - mean;
        squares += y * y;
    }
    float scale = 1.0f / sqrtf(sum(squares) / (float)width + epsilon);
    for (int64_t place = 0; place < width; place += LANES) {
        size_t part = part_from(place, width);
        Vector y = (load_part(sums + place, part, 0.0f) - mean) * scale;
        y = y * load_part(n->gain + place, part, 0.0f) + load_part(bias + place, part, 0.0f);
        store_part(out + first + place, part, y);
    }
    n->means[row] = mean;
    n->scales[row] = scale;
}

// out = LayerNorm(residual + dropout(x)).
int64_t add_norm(const AddNorm *n, const float *residual, const float *x, const float *bias,
                 float epsilon, float *out, int64_t threads) {
    const int64_t count = n->rows * n->width;
    REQUIRE(are_sizes(n->rows, n->width, threads) && is_whole(n) && is_there(bias, n->width));
    REQUIRE(is_there(residual, count) && is_there(x, count) && is_there(out, count));
#pragma omp parallel for num_threads((int)threads)
    for (int64_t row = 0; row < n->rows; row++)
        add_norm_row(n, residual, x, bias, epsilon, row, out);
    return 0;
}

// With y the normed row and g = dy gain: the gradient of what is normed is scale (g - mean(g) -
// y mean(g y)), that of x the same after dropout.
static void backward_add_norm_row(const AddNorm *n, const float *grad_output, int64_t row,
                                   float *residual, float *x, float *gain_sum, float *bias_sum) {
    const int64_t width = n->width, first = row * width;
    const float *sums = n->sums + first, mean = n->means[row], scale = n->scales[row];
    Vector total = all(0.0f), product = all(0.0f);
    for (int64_t place = 0; place < width; place += LANES) {
        size_t part = part_from(place, width);
        Vector y = (load_part(sums + place, part, mean) - mean) * scale;
        Vector dy = load_part(grad_output + first + place, part, 0.0f);
        Vector g = dy * load_part(n->gain + place, part, 0.0f);
        total += g;
        product += g * y;
        store_part(gain_sum + place, part, load_part(gain_sum + place, part, 0.0f) + dy * y);
        store_part(bias_sum + place, part, load_part(bias_sum + place, part, 0.0f) + dy);
    }
    float mean_gradient = sum(total) / (float)width, mean_product = sum(product) / (float)width;
    for (int64_t place = 0; place < width; place += LANES) {
        size_t part = part_from(place, width);
        Vector y = (load_part(sums + place, part, mean) - mean) * scale;
        Vector g = load_part(grad_output + first + place, part, 0.0f) *
                   load_part(n->gain + place, part, 0.0f);
        Vector grad_input = (g - mean_gradient - y * mean_product) * scale;
        store_part(residual + first + place, part, grad_input);
        store_part(x + first + place, part, grad_input * factors(n, first + place));
    }
}

// The gradients of the residual, of x, gain and bias. `sums` [norm_sums].
int64_t add_norm_backward(const AddNorm *n, const float *grad_output, float *residual, float *x,
                          float *gain_gradient, float *bias_gradient, float *sums,
                          int64_t threads) {
    const int64_t count = n->rows * n->width, width = n->width;
    REQUIRE(are_sizes(n->rows, n->width, threads) && is_whole(n) && is_there(sums, width));
    REQUIRE(is_there(grad_output, count) && is_there(residual, count) && is_there(x, count));
    REQUIRE(is_there(gain_gradient, width) && is_there(bias_gradient, width));
#pragma omp parallel for num_threads((int)threads) schedule(dynamic)
    for (int64_t part = 0; part < PARTS; part++) {
        float *own = sums + part * 2 * n->width;
        Rows some = rows_of_part(n->rows, part);
        for (int64_t row = some.first; row < some.end; row++)
            backward_add_norm_row(n, grad_output, row, residual, x, own, own + n->width);
    }
    add_parts(sums, 2 * n->width, n->width, gain_gradient);
    add_parts(sums + n->width, 2 * n->width, n->width, bias_gradient);
    return 0;
}
