// From a row of attention scores to its weights, for every attention kind.

#pragma once

#include "vectors.h"

// The same numbers as in library.py.
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
    TOP_K,  // its parameter: k
};

// Overwrites scores [count] by weights. The row has room for round_up(count) numbers; what is
// beyond `count` is overwritten by zeros.
void weigh_row(enum ScoreMap map, float parameter, float *row, size_t count);
