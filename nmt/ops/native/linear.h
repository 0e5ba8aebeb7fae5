// Linear layers whose weights have been laid out once, in float32 or in 8 bits.

#pragma once

#include <stdbool.h>

#include "vectors.h"

// Exactly one of `weight` and `weight8` is there. Both are panels of PANEL outputs.
typedef struct {
    int64_t inputs, outputs;
    const float *weight;     // [panels][inputs][PANEL]
    const int8_t *weight8;   // [panels][inputs / GROUP][PANEL][GROUP]
    const float *scales;     // [outputs] of the 8-bit weights
    const int32_t *offsets;  // [panels][PANEL]: what the sums of 8-bit products start from
    const float *bias;       // [outputs], or NULL
} PackedLinear;

// Whether all is there for a layer of this shape.
bool is_linear(const PackedLinear *layer, int64_t inputs, int64_t outputs);

// Numbers of scratch memory that 8-bit layers need for a row.
INLINE int64_t linear_scratch(int64_t inputs) { return inputs + 2; }

// out [rows, outputs] = x [rows, inputs] weight^T + bias, and ReLU of it if asked for. A row has the
// same bits whatever the number of rows and threads. 8-bit layers need scratch memory of
// rows * linear_scratch(inputs) numbers.
void linear(const PackedLinear *layer, const float *x, int64_t rows, float *out, int64_t relu,
            float *scratch, int64_t threads);
