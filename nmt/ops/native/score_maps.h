// From a row of attention scores to its weights, for every attention kind.

#pragma once

#include <stdbool.h>

#include "vectors.h"

// The same numbers as in interface.py.
enum ScoreMap {
    SOFTMAX,
    SPARSEMAX,
    ENTMAX15,
    ENTMAX,  // its parameter: alpha - 1
    RELU,    // the parameter of this and the next four: the threshold
    GELU,
    LEAKY_RELU,
    SQUARED_RELU,
    IDENTITY,
    TOP_K,  // its parameter: k, from 1 to MOST_K
};

#define MOST_K 16777216.0f  // 2^24: float32 holds every integer up to here

// Whether there is such a map, and it is defined for this parameter.
bool is_score_map(int64_t map, float parameter);

// The state of a row: enough to compute its weights from the same scores again.
typedef struct {
    float top;    // the highest score of a normalised map
    float normalizer;  // softmax: 1 / sum; sparsemax, entmax: the threshold below the top
} RowState;

// Numbers that the functions below need as scratch memory for rows of `count` numbers.
INLINE size_t row_scratch(size_t count) { return 5 * (round_up(count) + LANES); }

// Overwrites scores [count] by weights. The row has room for round_up(count) numbers; what is
// beyond `count` is overwritten by zeros.
RowState weigh_row(enum ScoreMap map, float parameter, float *row, size_t count, float *scratch);

// The same for a row that was weighed before; not for TOP_K.
void weigh_row_again(enum ScoreMap map, float parameter, RowState state, float *row, size_t count,
                     float *scratch);

// Overwrites the gradient of weights [count] by that of the scores; both rows as above. For SOFTMAX,
// SPARSEMAX, ENTMAX15, ENTMAX, RELU. Adds the parameter's gradient to `parameter_gradient`, unless
// that is NULL.
void backward_row(enum ScoreMap map, float parameter, const float *weights, float *gradient,
                   size_t count, float *parameter_gradient, float *scratch);
