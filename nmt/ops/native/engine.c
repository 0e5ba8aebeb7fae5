// The Transformer without gradients: encodes sentences, and decodes one position of all hypotheses.
//
// Sentences lie one behind the other without padding, and a hypothesis attends to just its own past,
// so no number depends on what else is in the batch. Rows are the tokens that are computed together:
// R of them, D wide.

#include <omp.h>
#include <stdbool.h>
#include <string.h>

#include "border.h"
#include "engine.h"
#include "products.h"
#include "score_maps.h"

#define FEW_NUMBERS 8192  // in rows for which other threads are not worth waking
#define HEAD_NORM_EPSILON 1e-8f  // as in nmt/ops/head_norm.py

EXPORT_SIZE(LayerNorm)
EXPORT_SIZE(Kind)
EXPORT_SIZE(AttentionLayer)
EXPORT_SIZE(FeedForwardLayer)
EXPORT_SIZE(StackLayer)
EXPORT_SIZE(Stack)
EXPORT_SIZE(TokenInput)
EXPORT_SIZE(Memory)
EXPORT_SIZE(DecodingBatch)
EXPORT_SIZE(WorkingMemory)

// ------------------------------------------------------------------------------------- input

// Whether tokens [count] are in the vocabulary, and there are positions for all.
static int64_t check_input(const TokenInput *input, const int64_t *tokens, int64_t count,
                           int64_t positions) {
    REQUIRE(is_size(input->vocabulary) && is_size(input->num_positions));
    REQUIRE(is_there(input->embedding, count) && is_there(input->positions, count));
    REQUIRE(is_there(tokens, count) && positions <= input->num_positions);
    uint64_t most = 0;
    for (int64_t place = 0; place < count; place++)
        most = (uint64_t)tokens[place] > most ? (uint64_t)tokens[place] : most;
    REQUIRE(count == 0 || most < (uint64_t)input->vocabulary);
    return 0;
}

// x [D] = the embedding of a token, scaled, plus its position; rounded once, as torch does.
static void embed(const TokenInput *input, int64_t token, int64_t position, int64_t dim, float *x) {
    const float *from = input->embedding + token * dim, *where = input->positions + position * dim;
    for (int64_t place = 0; place < dim; place++)
        x[place] = __builtin_fmaf(from[place], input->scale, where[place]);
}

// ------------------------------------------------------------------------------------- norms

static float mean_of(const float *x, int64_t dim, float around) {
    Vector total = all(0.0f);
    for (int64_t place = 0; place < dim; place += LANES)
        total += load_part(x + place, (size_t)(dim - place), around) - around;
    return sum(total) / (float)dim + around;
}

static float mean_square(const float *x, int64_t dim, float around) {
    Vector total = all(0.0f);
    for (int64_t place = 0; place < dim; place += LANES) {
        Vector part = load_part(x + place, (size_t)(dim - place), around) - around;
        total += part * part;
    }
    return sum(total) / (float)dim;
}

static void normalize_row(const float *x, int64_t dim, LayerNorm norm, float epsilon, float *out) {
    float mean = mean_of(x, dim, 0.0f);
    float factor = 1.0f / sqrtf(mean_square(x, dim, mean) + epsilon);
    for (int64_t place = 0; place < dim; place += LANES) {
        size_t part = (size_t)(dim - place);
        Vector y = (load_part(x + place, part, 0.0f) - mean) * factor;
        y *= load_part(norm.gain + place, part, 0.0f);
        if (norm.bias) y += load_part(norm.bias + place, part, 0.0f);
        store_part(out + place, part, y);
    }
}

// The norm that an attention kind applies to the concatenated heads.
static void finish_heads(const Kind *kind, float *x, int64_t dim) {
    if (kind->norm == NO_NORM && !kind->gate) return;
    float mean = kind->norm == LAYER_NORM ? mean_of(x, dim, 0.0f) : 0.0f;
    float factor = 1.0f;
    if (kind->norm != NO_NORM)
        factor = 1.0f / sqrtf(mean_square(x, dim, mean) + HEAD_NORM_EPSILON);
    for (int64_t place = 0; place < dim; place += LANES) {
        size_t part = (size_t)(dim - place);
        Vector z = load_part(x + place, part, 0.0f), y = (z - mean) * factor;
        if (kind->gain) y *= load_part(kind->gain + place, part, 0.0f);
        if (kind->gate)
            y /= 1.0f + exponential(-load_part(kind->gate + place, part, 0.0f) * z);
        store_part(x + place, part, y);
    }
}

// --------------------------------------------------------------------------------- residuals

// The input of a sublayer: x, or its norm in `buffer`.
static const float *enter(const Stack *stack, const LayerNorm *norm, const float *x, int64_t rows,
                          float *buffer, int64_t threads) {
    if (!stack->pre_norm) return x;
    const int64_t dim = stack->dim;
#pragma omp parallel for num_threads((int)threads) if (rows * dim > FEW_NUMBERS)
    for (int64_t row = 0; row < rows; row++)
        normalize_row(x + row * dim, dim, *norm, stack->epsilon, buffer + row * dim);
    return buffer;
}

// x becomes x plus the output y of a sublayer, normed unless that was done before.
static void leave(const Stack *stack, const LayerNorm *norm, float *x, const float *y, int64_t rows,
                  int64_t threads) {
    const int64_t dim = stack->dim;
#pragma omp parallel for num_threads((int)threads) if (rows * dim > FEW_NUMBERS)
    for (int64_t row = 0; row < rows; row++) {
        float *to = x + row * dim;
        for (int64_t place = 0; place < dim; place++) to[place] += y[row * dim + place];
        if (!stack->pre_norm) normalize_row(to, dim, *norm, stack->epsilon, to);
    }
}

// GELU or swish of hidden units; ReLU is done by the linear layer before.
static void activate(int64_t activation, float *x, int64_t count, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) if (count > FEW_NUMBERS)
    for (int64_t place = 0; place < count; place += LANES) {
        const size_t part = (size_t)(count - place);
        Vector y = load_part(x + place, part, 0.0f);
        if (activation == HIDDEN_GELU)
            y = gelu(y);
        else
            y /= 1.0f + exponential(-y);
        store_part(x + place, part, y);
    }
}

static void feed_forward(const Stack *stack, const FeedForwardLayer *layer, float *x, int64_t rows,
                         const WorkingMemory *work, int64_t threads) {
    const float *input = enter(stack, &layer->norm, x, rows, work->buffer, threads);
    const bool relu = stack->activation == HIDDEN_RELU;
    linear(&layer->input, input, rows, work->hidden, relu, work->scratch, threads);
    if (!relu) activate(stack->activation, work->hidden, rows * stack->hidden_dim, threads);
    linear(&layer->output, work->hidden, rows, work->buffer, false, work->scratch, threads);
    leave(stack, &layer->norm, x, work->buffer, rows, threads);
}

// --------------------------------------------------------------------------------- attention

// Where the packed keys of one head of a sentence are: it has less than PANEL keys of padding.
static float *packed_keys(float *keys, const int64_t *starts, int64_t sentence, int64_t head,
                          int64_t dim, int64_t head_dim) {
    const int64_t start = starts[sentence], length = starts[sentence + 1] - start;
    return keys + (start + sentence * PANEL) * dim + in_panels(length) * head * head_dim;
}

// Where the values of some keys are: at a distance from each other, or, if there are `rows`, in each
// of them from `distance` on.
typedef struct {
    const float *numbers;
    float *const *rows;
    int64_t distance, count;
} Values;

// out [width] = the sum of the values from `place` on, weighted; weights of 0 cost nothing. `vectors`,
// those that hold the width, is a constant wherever this is inlined.
INLINE void add_values(const float *weights, Values values, int64_t place, size_t width, float *out,
                       const int vectors) {
    Vector sums[4] = {all(0.0f), all(0.0f), all(0.0f), all(0.0f)};
    for (int64_t key = 0; key < values.count; key++) {
        if (weights[key] == 0.0f) continue;
        const float *value = values.rows ? values.rows[key] + values.distance
                                         : values.numbers + key * values.distance;
#pragma GCC unroll 4
        for (int part = 0; part < vectors; part++)
            sums[part] += weights[key] * load_part(value + place + part * LANES,
                                                   width - (size_t)part * LANES, 0.0f);
    }
#pragma GCC unroll 4
    for (int part = 0; part < vectors; part++)
        store_part(out + place + part * LANES, width - (size_t)part * LANES, sums[part]);
}

// The same for out [head_dim], in as many registers as there are whole vectors.
INLINE void add_all_values(const float *weights, Values values, int64_t head_dim, float *out) {
    int64_t place = 0;
    for (; head_dim - place >= 4 * LANES; place += 4 * LANES)
        add_values(weights, values, place, 4 * LANES, out, 4);
    for (; head_dim - place >= 2 * LANES; place += 2 * LANES)
        add_values(weights, values, place, 2 * LANES, out, 2);
    for (; place < head_dim; place += LANES)
        add_values(weights, values, place, (size_t)(head_dim - place), out, 1);
}

// Scores of a block of queries, scratch memory of a row, and pointers to the keys of a past.
typedef struct {
    float *scores, *row;
    float **past;
} Scratch;

int64_t attention_scratch(int64_t keys) {
    if (!is_size(keys)) return -1;
    const int64_t pointers = 2 * keys, scores = MOST_ROWS * (int64_t)round_up((size_t)keys);
    return in_panels(pointers) + in_panels(scores + (int64_t)row_scratch((size_t)keys));
}

static Scratch scratch_of_thread(const WorkingMemory *work, int64_t keys) {
    float *own = work->attention + omp_get_thread_num() * work->attention_size;
    float *scores = own + in_panels(2 * keys);
    return (Scratch){scores, scores + MOST_ROWS * round_up((size_t)keys), (float **)own};
}

// One head of some queries of a sentence to its packed keys. Rows of queries and of out lie at
// `distance` and dim, values at value_distance.
static void attend_head(const Kind *kind, int64_t head, const float *query, int64_t distance,
                        int64_t num_queries, const float *packed, const float *values,
                        int64_t value_distance, int64_t keys, int64_t head_dim, float *out,
                        int64_t dim, Scratch scratch) {
    const int64_t length = (int64_t)round_up((size_t)keys);
    const Right right = {packed, PANEL, PANEL * head_dim};
    float *scores = scratch.scores;
    for (int64_t first = 0; first < num_queries; first += MOST_ROWS) {
        const Left left = {query + first * distance, distance, 1};
        const int64_t count = num_queries - first < MOST_ROWS ? num_queries - first : MOST_ROWS;
        product(left, right, count, head_dim,
                result_at(scores, length, length, 1.0f / sqrtf((float)head_dim)));
        for (int64_t row = 0; row < count; row++) {
            float *weights = scores + row * length;
            weigh_row((enum ScoreMap)kind->map, kind->parameters[head], weights, (size_t)keys,
                      scratch.row);
            add_all_values(weights, (Values){values, NULL, value_distance, keys}, head_dim,
                           out + (first + row) * dim);
        }
    }
}

// Self-attention of whole sentences: attended [R, D] of projected [R, 3, D].
static void attend_sentences(const Stack *stack, const Kind *kind, const int64_t *starts,
                             int64_t batch, const WorkingMemory *work) {
    const int64_t dim = stack->dim, heads = stack->heads, head_dim = dim / heads;
#pragma omp parallel for num_threads((int)work->threads) schedule(dynamic) collapse(2) \
    if (starts[batch] * dim > FEW_NUMBERS)
    for (int64_t sentence = 0; sentence < batch; sentence++) {
        for (int64_t head = 0; head < heads; head++) {
            const int64_t start = starts[sentence], length = starts[sentence + 1] - start;
            const float *query = work->projected + start * 3 * dim + head * head_dim;
            float *packed = packed_keys(work->packed, starts, sentence, head, dim, head_dim);
            pack_columns(query + dim, 3 * dim, length, head_dim, packed);
            attend_head(kind, head, query, 3 * dim, length, packed, query + 2 * dim, 3 * dim,
                        length, head_dim, work->attended + start * dim + head * head_dim, dim,
                        scratch_of_thread(work, length));
        }
    }
}

// Attention of all hypotheses to their sources: out [R, D] of queries [R, D].
static void attend_memory(const Stack *stack, const Kind *kind, const Memory *memory,
                          const DecodingBatch *batch, const float *query, float *out,
                          const WorkingMemory *work) {
    const int64_t dim = stack->dim, heads = stack->heads, head_dim = dim / heads;
    const int64_t width = batch->width;
#pragma omp parallel for num_threads((int)work->threads) schedule(dynamic) collapse(2) \
    if (batch->batch * width * dim > FEW_NUMBERS)
    for (int64_t index = 0; index < batch->batch; index++) {
        for (int64_t head = 0; head < heads; head++) {
            const int64_t sentence = batch->rows[index], start = batch->starts[sentence];
            const int64_t length = batch->starts[sentence + 1] - start;
            const int64_t place = index * width * dim + head * head_dim;
            attend_head(kind, head, query + place, dim, width,
                        packed_keys(memory->keys, batch->starts, sentence, head, dim, head_dim),
                        memory->key_values + (2 * start + 1) * dim + head * head_dim, 2 * dim,
                        length, head_dim, out + place, dim, scratch_of_thread(work, length));
        }
    }
}

// scores [count, rounded up] of one head: a query with what lies in each row from `first` on.
static void score_past(const float *query, float *const *rows, int64_t first, int64_t count,
                       int64_t head_dim, float *scores) {
    const Vector scale = all(1.0f / sqrtf((float)head_dim));
    for (int64_t key = 0; key < count; key += LANES) {
        Vector totals[LANES];
#pragma GCC unroll 16
        for (int row = 0; row < LANES; row++) {
            totals[row] = all(0.0f);
            if (key + row >= count) continue;
            const float *to = rows[key + row] + first;
            for (int64_t place = 0; place < head_dim; place += LANES) {
                const size_t part = (size_t)(head_dim - place);
                totals[row] += load_part(query + place, part, 0.0f) * load_part(to + place, part, 0.0f);
            }
        }
        store(scores + key, sums_of(totals) * scale);
    }
}

// Key and value [2][D] that a hypothesis of a sentence has at a position.
INLINE float *slot(const Stack *stack, const DecodingBatch *batch, int64_t layer, int64_t sentence,
                   int64_t position, int64_t hypothesis) {
    int64_t place = (sentence * CHUNK + position % CHUNK) * batch->most_width + hypothesis;
    return batch->pasts[position / CHUNK * stack->num_layers + layer] + place * 2 * stack->dim;
}

// Attention of one hypothesis to its own past, all heads: out [D] of its query [D].
static void attend_past(const Stack *stack, const Kind *kind, Scratch scratch, int64_t length,
                        const float *query, float *out) {
    const int64_t dim = stack->dim, heads = stack->heads, head_dim = dim / heads;
    float *const *past = scratch.past, *scores = scratch.scores;
    for (int64_t head = 0; head < heads; head++) {
        const int64_t first = head * head_dim;
        score_past(query + first, past, first, length, head_dim, scores);
        weigh_row((enum ScoreMap)kind->map, kind->parameters[head], scores, (size_t)length,
                  scratch.row);
        add_all_values(scores, (Values){NULL, past, dim + first, length}, head_dim, out + first);
    }
}

// Appends the keys and values of this position, and attends: out [R, D] of [R, 3, D].
static void attend_pasts(const Stack *stack, const DecodingBatch *batch, int64_t layer,
                         const float *projected, float *out, const WorkingMemory *work) {
    const Kind *kind = &stack->layers[layer].self.kind;
    const int64_t dim = stack->dim, width = batch->width, length = batch->position + 1;
#pragma omp parallel for num_threads((int)work->threads) \
    if (batch->batch * width * dim > FEW_NUMBERS)
    for (int64_t row = 0; row < batch->batch * width; row++) {
        const int64_t sentence = batch->rows[row / width];
        const float *query = projected + row * 3 * dim;
        int32_t *descent = batch->descent + row * batch->most_positions;
        descent[batch->position] = (int32_t)(row % width);
        const Scratch scratch = scratch_of_thread(work, length);
        for (int64_t key = 0; key < length; key++)
            scratch.past[key] = slot(stack, batch, layer, sentence, key, descent[key]);
        memcpy(scratch.past[length - 1], query + dim, sizeof(float) * 2 * (size_t)dim);
        attend_past(stack, kind, scratch, length, query, out + row * dim);
    }
}

static void finish_rows(const Kind *kind, float *x, int64_t rows, int64_t dim, int64_t threads) {
    if (kind->norm == NO_NORM && !kind->gate) return;
#pragma omp parallel for num_threads((int)threads) if (rows * dim > FEW_NUMBERS)
    for (int64_t row = 0; row < rows; row++) finish_heads(kind, x + row * dim, dim);
}

// ------------------------------------------------------------------------------------ stacks

static void finish_stack(const Stack *stack, float *x, int64_t rows, int64_t threads) {
    if (!stack->final.gain) return;
    const int64_t dim = stack->dim;
#pragma omp parallel for num_threads((int)threads) if (rows * dim > FEW_NUMBERS)
    for (int64_t row = 0; row < rows; row++)
        normalize_row(x + row * dim, dim, stack->final, stack->epsilon, x + row * dim);
}

static bool is_kind(const Kind *kind, int64_t heads) {
    if (kind->norm < NO_NORM || kind->norm > LAYER_NORM || !kind->parameters) return false;
    for (int64_t head = 0; head < heads; head++)
        if (!is_score_map(kind->map, kind->parameters[head])) return false;
    return true;
}

// Whether a stack is one that the functions below can run; `cross`: a decoder.
int64_t check_stack(const Stack *stack, int64_t cross) {
    const int64_t dim = stack->dim, heads = stack->heads, hidden = stack->hidden_dim;
    REQUIRE(is_size(dim) && is_size(hidden) && is_size(stack->num_layers));
    REQUIRE(0 < heads && heads <= dim && dim % heads == 0);
    REQUIRE(HIDDEN_RELU <= stack->activation && stack->activation <= HIDDEN_SWISH);
    REQUIRE(stack->layers || stack->num_layers == 0);
    for (int64_t index = 0; index < stack->num_layers; index++) {
        const StackLayer *layer = stack->layers + index;
        REQUIRE(is_linear(&layer->self.input, dim, 3 * dim));
        REQUIRE(is_linear(&layer->self.output, dim, dim));
        REQUIRE(is_linear(&layer->feed_forward.input, dim, hidden));
        REQUIRE(is_linear(&layer->feed_forward.output, hidden, dim));
        REQUIRE(is_kind(&layer->self.kind, heads));
        REQUIRE(layer->self.norm.gain && layer->feed_forward.norm.gain);
        if (!cross) continue;
        REQUIRE(is_linear(&layer->cross.input, dim, dim));
        REQUIRE(is_linear(&layer->cross.key_value, dim, 2 * dim));
        REQUIRE(is_linear(&layer->cross.output, dim, dim));
        REQUIRE(is_kind(&layer->cross.kind, heads));
        REQUIRE(layer->cross.norm.gain);
    }
    return 0;
}

// Whether the workspace has room for `rows` rows, and for attention to `keys` keys.
static int64_t check_workspace(const Stack *stack, const WorkingMemory *work, int64_t rows,
                               int64_t keys) {
    REQUIRE(is_size(rows) && rows <= work->rows && are_threads(work->threads) && is_size(keys));
    REQUIRE(work->attention && attention_scratch(keys) <= work->attention_size);
    REQUIRE(is_there(work->projected, rows) && is_there(work->attended, rows));
    REQUIRE(is_there(work->buffer, rows) && is_there(work->hidden, rows));
    const bool needs_scratch = stack->num_layers > 0 && stack->layers[0].self.input.weight8;
    REQUIRE(!needs_scratch || is_there(work->scratch, rows));
    return 0;
}

// Whether the workspace has room for whole sentences, which lie one behind the other; and the
// length of the longest.
static int64_t check_sentences(const Stack *stack, const int64_t *starts, int64_t batch,
                               const WorkingMemory *work, int64_t *longest) {
    REQUIRE(is_size(batch) && starts && starts[0] == 0);
    for (int64_t sentence = 0; sentence < batch; sentence++) {
        const int64_t length = starts[sentence + 1] - starts[sentence];
        REQUIRE(starts[sentence + 1] <= work->rows && length >= 0);
        if (length > *longest) *longest = length;
    }
    return check_workspace(stack, work, starts[batch], *longest);
}

// Encodes sentences to x [R, D]: tokens [R] holds those of one after the other's.
int64_t encode(const Stack *stack, const TokenInput *input, const int64_t *starts, int64_t batch,
               const int64_t *tokens, float *x, const WorkingMemory *work) {
    int64_t longest = 0, refused = check_sentences(stack, starts, batch, work, &longest);
    if (!refused) refused = check_input(input, tokens, starts[batch], longest);
    if (refused) return refused;
    REQUIRE(is_there(x, starts[batch]) && is_there(work->packed, starts[batch]));
    for (int64_t sentence = 0; sentence < batch; sentence++)
        for (int64_t row = starts[sentence]; row < starts[sentence + 1]; row++)
            embed(input, tokens[row], row - starts[sentence], stack->dim, x + row * stack->dim);
    const int64_t dim = stack->dim, rows = starts[batch], threads = work->threads;
    for (int64_t index = 0; index < stack->num_layers; index++) {
        const StackLayer *layer = stack->layers + index;
        const AttentionLayer *self = &layer->self;
        const float *normed = enter(stack, &self->norm, x, rows, work->buffer, threads);
        linear(&self->input, normed, rows, work->projected, false, work->scratch, threads);
        attend_sentences(stack, &self->kind, starts, batch, work);
        finish_rows(&self->kind, work->attended, rows, dim, threads);
        linear(&self->output, work->attended, rows, work->buffer, false, work->scratch, threads);
        leave(stack, &self->norm, x, work->buffer, rows, threads);
        feed_forward(stack, &layer->feed_forward, x, rows, work, threads);
    }
    finish_stack(stack, x, rows, threads);
    return 0;
}

// Projects encoded sentences [R, D] to what the layers of a decoder attend to.
int64_t remember(const Stack *stack, const int64_t *starts, int64_t batch, const float *encoded,
                 const Memory *memories, const WorkingMemory *work) {
    int64_t longest = 0;
    const int64_t refused = check_sentences(stack, starts, batch, work, &longest);
    if (refused) return refused;
    REQUIRE(is_there(encoded, starts[batch]) && is_there(memories, stack->num_layers));
    const int64_t dim = stack->dim, heads = stack->heads, head_dim = dim / heads;
    const int64_t threads = work->threads;
    for (int64_t index = 0; index < stack->num_layers; index++) {
        const Memory *memory = memories + index;
        REQUIRE(is_there(memory->keys, batch) && is_there(memory->key_values, starts[batch]));
        linear(&stack->layers[index].cross.key_value, encoded, starts[batch], memory->key_values,
               false, work->scratch, threads);
#pragma omp parallel for num_threads((int)threads) collapse(2) \
    if (starts[batch] * dim > FEW_NUMBERS)
        for (int64_t sentence = 0; sentence < batch; sentence++) {
            for (int64_t head = 0; head < heads; head++) {
                const int64_t start = starts[sentence], length = starts[sentence + 1] - start;
                pack_columns(memory->key_values + 2 * start * dim + head * head_dim, 2 * dim,
                             length, head_dim,
                             packed_keys(memory->keys, starts, sentence, head, dim, head_dim));
            }
        }
    }
    return 0;
}

int64_t chunk_size(void) { return CHUNK; }

// Whether every place that `decode` will read or write is in the memory that there is.
static int64_t check_batch(const Stack *stack, const DecodingBatch *batch, const WorkingMemory *work) {
    int64_t longest = batch->position + 1;
    REQUIRE(is_size(batch->sentences) && is_size(batch->batch));
    REQUIRE(0 < batch->width && batch->width <= batch->most_width && is_size(batch->most_width));
    REQUIRE(0 <= batch->position && batch->position < batch->most_positions);
    if (batch->batch == 0) return 0;
    REQUIRE(batch->rows && batch->starts && batch->descent);
    REQUIRE(is_there(batch->memories, stack->num_layers));
    REQUIRE(is_there(batch->pasts, stack->num_layers));
    for (int64_t index = 0; index < batch->batch; index++) {
        const int64_t sentence = batch->rows[index];
        REQUIRE(0 <= sentence && sentence < batch->sentences);
        const int64_t length = batch->starts[sentence + 1] - batch->starts[sentence];
        if (length > longest) longest = length;
    }
    const int64_t refused = check_workspace(stack, work, batch->batch * batch->width, longest);
    if (refused) return refused;
    uint32_t most = 0;
    for (int64_t row = 0; row < batch->batch * batch->width; row++) {
        const int32_t *descent = batch->descent + row * batch->most_positions;
        for (int64_t key = 0; key < batch->position; key++)
            most = (uint32_t)descent[key] > most ? (uint32_t)descent[key] : most;
    }
    REQUIRE(most < batch->most_width);
    return 0;
}

int64_t check_decoding(const Stack *stack, const TokenInput *input, const DecodingBatch *batch,
                       const int64_t *tokens, const WorkingMemory *work) {
    const int64_t refused = check_batch(stack, batch, work);
    if (refused) return refused;
    return check_input(input, tokens, batch->batch * batch->width, batch->position + 1);
}

void decode_position(const Stack *stack, const TokenInput *input, const DecodingBatch *batch,
                     const int64_t *tokens, float *x, const WorkingMemory *work) {
    const int64_t dim = stack->dim, rows = batch->batch * batch->width, threads = work->threads;
    for (int64_t row = 0; row < rows; row++)
        embed(input, tokens[row], batch->position, dim, x + row * dim);
    for (int64_t index = 0; index < stack->num_layers; index++) {
        const StackLayer *layer = stack->layers + index;
        const AttentionLayer *self = &layer->self, *cross = &layer->cross;
        const float *normed = enter(stack, &self->norm, x, rows, work->buffer, threads);
        linear(&self->input, normed, rows, work->projected, false, work->scratch, threads);
        attend_pasts(stack, batch, index, work->projected, work->attended, work);
        finish_rows(&self->kind, work->attended, rows, dim, threads);
        linear(&self->output, work->attended, rows, work->buffer, false, work->scratch, threads);
        leave(stack, &self->norm, x, work->buffer, rows, threads);
        normed = enter(stack, &cross->norm, x, rows, work->buffer, threads);
        linear(&cross->input, normed, rows, work->projected, false, work->scratch, threads);
        attend_memory(stack, &cross->kind, batch->memories + index, batch, work->projected,
                      work->attended, work);
        finish_rows(&cross->kind, work->attended, rows, dim, threads);
        linear(&cross->output, work->attended, rows, work->buffer, false, work->scratch, threads);
        leave(stack, &cross->norm, x, work->buffer, rows, threads);
        feed_forward(stack, &layer->feed_forward, x, rows, work, threads);
    }
    finish_stack(stack, x, rows, threads);
}

// The same for Python, after a check.
int64_t decode(const Stack *stack, const TokenInput *input, const DecodingBatch *batch,
               const int64_t *tokens, float *x, const WorkingMemory *work) {
    const int64_t refused = check_decoding(stack, input, batch, tokens, work);
    if (refused) return refused;
    REQUIRE(is_there(x, batch->batch * batch->width));
    decode_position(stack, input, batch, tokens, x, work);
    return 0;
}
