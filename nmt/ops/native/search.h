// The parts of a search step on logits that the operations of search.c and whole searches share.

#pragma once

#include "vectors.h"

#define MOST_BEAM 1024  // for more torch is as fast, and a thread's stack would not do
#define FEW_LOGITS 65536  // for which other threads are not worth waking

typedef struct {
    float value;
    int64_t token;
} Logit;

typedef struct {
    double score;
    int64_t parent, token;
} Candidate;

// The logarithm of the sum of the exponentials of a row; +inf where nothing finite is left. A row
// with numbers that are not finite, which are overwritten by -inf, counts those that are.
float log_normalizer(float *row, int64_t vocabulary);

// The `count` largest of a row, NaN never among them, best first, and by token where equal; what is
// missing is -inf.
void find_largest(const float *row, int64_t vocabulary, int64_t count, Logit *best);

// The best continuations of a sentence, `most` of them in falling order: none yet. Missing ones have
// the parent `width`.
void start_ranking(Candidate *best, int64_t most, int64_t width);

// Adds the continuations of a hypothesis with this score by its `count` largest logits.
void rank_continuations(const Logit *found, int64_t count, float normalizer, double score,
                        int64_t hypothesis, int64_t most, Candidate *best);
