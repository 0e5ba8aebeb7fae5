// Linear layers: every output is one sum in the order of the inputs, so that nothing but the row
// itself decides its bits.

#include "linear.h"

#include <string.h>

#include "border.h"
#include "products.h"

#define ROWS_AT_ONCE (4 * MOST_ROWS)  // of a panel that one thread works on
// Products from which on other threads are woken. Each time costs some microseconds, and on a busy
// machine perhaps much more, so few are not worth it; 8-bit ones need less time and memory.
#define MANY_PRODUCTS (1 << 19)
#define MANY_PRODUCTS8 (1 << 21)

#if defined(WITH_AVX512) && defined(__AVX512VNNI__)
#define WITH_VNNI
#define GROUP 4  // inputs that are multiplied and added by one instruction
typedef uint8_t Input8;  // with 128 added: the instruction takes unsigned numbers on one side
#define ZERO8 128
#elif defined(WITH_NEON) && defined(__ARM_FEATURE_DOTPROD)
#define WITH_DOTPROD
#define GROUP 4
typedef int8_t Input8;
#define ZERO8 0
#else
#define GROUP 2
typedef int16_t Input8;
#define ZERO8 0
typedef int8_t Pairs8 __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef int16_t Pairs16 __attribute__((vector_size(4 * LANES)));
#endif

typedef Input8 Inputs8 __attribute__((vector_size(sizeof(Input8) * LANES), aligned(1), may_alias));

EXPORT_SIZE(PackedLinear)
int64_t interface_version(void) { return INTERFACE_VERSION; }
int64_t panel_size(void) { return PANEL; }
int64_t group_size(void) { return GROUP; }
int64_t input_zero(void) { return ZERO8; }

static ProductResult output(const PackedLinear *layer, float *out, int64_t relu) {
    ProductResult to = result_at(out, layer->outputs, layer->outputs, 1.0f);
    to.bias = layer->bias;
    to.relu = relu;
    return to;
}

// `sums` plus the products of GROUP inputs, as one number, with GROUP weights of each output.
INLINE Ints add_products(Ints sums, int32_t inputs, const int8_t *weights) {
#ifdef WITH_VNNI
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(inputs),
                                     _mm512_loadu_si512(weights));
#elif defined(WITH_DOTPROD)
    return (Ints)vdotq_s32((int32x4_t)sums, vld1q_s8(weights),
                           vreinterpretq_s8_s32(vdupq_n_s32(inputs)));
#elif defined(WITH_AVX2)
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)weights));
    return sums + (Ints)_mm256_madd_epi16(_mm256_set1_epi32(inputs), wide);
#else
    Ints wide = (Ints)__builtin_convertvector(*(const Pairs8 *)weights, Pairs16);
    int32_t first = (int16_t)inputs, second = inputs >> 16;
    return sums + first * ((wide << 16) >> 16) + second * (wide >> 16);
#endif
}

typedef struct {
    const Input8 *numbers;  // [rows, groups, GROUP]
    const float *steps;     // [rows]: what a number is a multiple of
} Quantized;

// One panel of a few rows; `rows` is a constant wherever this is inlined.
INLINE void multiply8(const PackedLinear *layer, Quantized x, int64_t panel, ProductResult to, const int rows) {
    const int64_t groups = (layer->inputs + GROUP - 1) / GROUP, outputs = layer->outputs;
    const int8_t *weight = layer->weight8 + panel * groups * PANEL * GROUP;
    const int32_t *offsets = layer->offsets + panel * PANEL;
    Ints sums[2][MOST_ROWS];
    for (int row = 0; row < rows; row++) {
        sums[0][row] = *(const Ints *)offsets;
        sums[1][row] = *(const Ints *)(offsets + LANES);
    }
    for (int64_t group = 0; group < groups; group++, weight += PANEL * GROUP) {
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            int32_t inputs;
            memcpy(&inputs, x.numbers + (row * groups + group) * GROUP, sizeof inputs);
            sums[0][row] = add_products(sums[0][row], inputs, weight);
            sums[1][row] = add_products(sums[1][row], inputs, weight + LANES * GROUP);
        }
    }
    Vector found[2][MOST_ROWS];
    const int64_t column = panel * PANEL;
#pragma GCC unroll 2
    for (int side = 0; side < 2; side++) {
        const int64_t first = column + side * LANES;
        const size_t left = first < outputs ? (size_t)(outputs - first) : 0;
        const Vector scale = load_part(layer->scales + first, left, 0.0f);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++)
            found[side][row] = to_floats(sums[side][row]) * scale * x.steps[row];
    }
    put_block(&to, column, found, rows, 2);
}

static void multiply_rows8(const PackedLinear *layer, Quantized x, int64_t rows, int64_t panel,
                           ProductResult to) {
    const int64_t groups = (layer->inputs + GROUP - 1) / GROUP;
    for (int64_t row = 0; row < rows; row += MOST_ROWS) {
        Quantized from = {x.numbers + row * groups * GROUP, x.steps + row};
        ProductResult part = from_row(to, row);
        switch (rows - row) {
#define CASE8(n) \
    case n: multiply8(layer, from, panel, part, n); break;
            CASE8(1) CASE8(2) CASE8(3) CASE8(4) CASE8(5)
#if MOST_ROWS == 12
            CASE8(6) CASE8(7) CASE8(8) CASE8(9) CASE8(10) CASE8(11)
#endif
            default: multiply8(layer, from, panel, part, MOST_ROWS);
        }
    }
}

static void multiply_rows32(const PackedLinear *layer, const float *x, int64_t rows, int64_t panel,
                            ProductResult to) {
    const int64_t inputs = layer->inputs;
    Right right = {layer->weight + panel * inputs * PANEL, PANEL, 0};
    for (int64_t row = 0; row < rows; row += MOST_ROWS) {
        Left from = {x + row * inputs, inputs, 1};
        int64_t count = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
        multiply_panel(from, right, inputs, from_row(to, row), panel * PANEL, count);
    }
}

// A row as multiples of its largest number / 127; returns that step, NaN if not all are finite.
static float quantize(const float *x, int64_t count, Input8 *numbers) {
    Vector most = all(0.0f), finite = all(0.0f);
    for (int64_t place = 0; place < count; place += LANES) {
        Vector y = load_part(x + place, (size_t)(count - place), 0.0f);
        y = choose(y < 0.0f, -y, y);
        most = choose(y > most, y, most);
        finite += y * 0.0f;
    }
    float step = largest(most) / 127.0f + sum(finite);
    float factor = step > 0.0f ? 1.0f / step : 0.0f;
    for (int64_t place = 0; place < count; place += LANES) {
        size_t part = count - place < LANES ? (size_t)(count - place) : LANES;
        Ints whole = to_ints(nearest(load_part(x + place, part, 0.0f) * factor)) + ZERO8;
        Inputs8 narrow = __builtin_convertvector(whole, Inputs8);
        if (part == LANES) *(Inputs8 *)(numbers + place) = narrow;
        else for (size_t lane = 0; lane < part; lane++) numbers[place + lane] = narrow[lane];
    }
    for (int64_t place = count; place % GROUP != 0; place++) numbers[place] = ZERO8;
    return step;
}

// A layer, and the rows that it is applied to.
typedef struct {
    const PackedLinear *layer;
    const float *x;
    int64_t rows;
    Quantized quantized;  // x in 8 bits
    float *out;
    int64_t relu;
} Application;

// One panel of the outputs of some rows, `part` of ROWS_AT_ONCE.
static void apply_panel(const Application *to, int64_t panel, int64_t part) {
    const PackedLinear *layer = to->layer;
    const int64_t first = part * ROWS_AT_ONCE, inputs = layer->inputs;
    const int64_t count = to->rows - first < ROWS_AT_ONCE ? to->rows - first : ROWS_AT_ONCE;
    const ProductResult result = output(layer, to->out + first * layer->outputs, to->relu);
    if (layer->weight8) {
        const int64_t groups = (inputs + GROUP - 1) / GROUP;
        const Quantized from = {to->quantized.numbers + first * groups * GROUP,
                                to->quantized.steps + first};
        multiply_rows8(layer, from, count, panel, result);
    } else {
        multiply_rows32(layer, to->x + first * inputs, count, panel, result);
    }
}

void linear(const PackedLinear *layer, const float *x, int64_t rows, float *out, int64_t relu,
            float *scratch, int64_t threads) {
    const int64_t panels = (layer->outputs + PANEL - 1) / PANEL;
    const int64_t parts = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    const int64_t inputs = layer->inputs, groups = (inputs + GROUP - 1) / GROUP;
    const int many = (double)(rows * inputs) * (double)layer->outputs
                     > (layer->weight8 ? MANY_PRODUCTS8 : MANY_PRODUCTS);
    float *steps = scratch;
    Input8 *numbers = (Input8 *)(scratch + rows);
    const Application to = {layer, x, rows, {numbers, steps}, out, relu};
    if (threads == 1 || !many) {  // starting even one thread takes as long as a small panel
        for (int64_t row = 0; layer->weight8 && row < rows; row++)
            steps[row] = quantize(x + row * inputs, inputs, numbers + row * groups * GROUP);
        for (int64_t panel = 0; panel < panels; panel++)
            for (int64_t part = 0; part < parts; part++) apply_panel(&to, panel, part);
        return;
    }
#pragma omp parallel num_threads((int)threads)
    {
        if (layer->weight8) {
#pragma omp for
            for (int64_t row = 0; row < rows; row++)
                steps[row] = quantize(x + row * inputs, inputs, numbers + row * groups * GROUP);
        }
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t panel = 0; panel < panels; panel++)
            for (int64_t part = 0; part < parts; part++) apply_panel(&to, panel, part);
    }
}

bool is_linear(const PackedLinear *layer, int64_t inputs, int64_t outputs) {
    if (layer->inputs != inputs || layer->outputs != outputs) return false;
    if (inputs < 1 || outputs < 1 || !is_size(inputs) || !is_size(outputs)) return false;
    if (layer->weight8) return !layer->weight && layer->scales && layer->offsets;
    return layer->weight != NULL;
}

// One layer for itself; `scratch` [rows * linear_scratch(inputs)] is needed by 8-bit layers only.
int64_t apply_linear(const PackedLinear *layer, const float *x, int64_t rows, float *out, int64_t relu,
                     float *scratch, int64_t threads) {
    REQUIRE(is_linear(layer, layer->inputs, layer->outputs) && is_size(rows));
    REQUIRE(is_there(x, rows) && is_there(out, rows) && are_threads(threads));
    REQUIRE(!layer->weight8 || is_there(scratch, rows));
    linear(layer, x, rows, out, relu, scratch, threads);
    return 0;
}
