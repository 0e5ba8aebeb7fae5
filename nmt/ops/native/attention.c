// Attention of whole batches, forward and backward, one head of one sentence at a time: its scores
// become weights, and these their sums of values, without leaving the cache.
//
// The forward pass keeps only two numbers per query; the weights are computed again. What
// one head of one sentence gets does not depend on the others, nor on the number of threads, nor on
// hidden keys at its end, for which nothing is computed.

#define _GNU_SOURCE  // memrchr

#include <omp.h>
#include <stdbool.h>
#include <string.h>

#include "border.h"
#include "products.h"
#include "score_maps.h"

#define QUERIES 96                        // worked on at once: a multiple of MOST_ROWS

// Tokens of a head are `..._step` numbers apart, since heads and projections lie side by side.
typedef struct {
    int64_t sentences, heads, queries, keys, width;
    int64_t query_step, key_step;
    const float *query, *key, *value;
    const uint8_t *visible;  // 1: the key may be seen; NULL: all may
    int64_t visible_sentence_step, visible_head_step, visible_query_step;
    int64_t map;
    const float *parameters;  // [heads]
    float scale;
    DropoutRule dropout;
    RowState *states;        // [sentences, heads, queries]
} AttentionArguments;

typedef struct {
    int64_t count;      // of keys up to the last visible one
    bool has_holes;     // some of these are hidden
    const uint8_t *visible;
} Seen;

// The work memory of one thread: a part for each thing that is laid out or computed for one head.
typedef struct {
    float *key_columns, *value_columns, *key_rows, *value_rows, *query_rows, *grad_output_rows;
    float *weights, *grad_weights, *row;
} Space;

// Cuts the memory of one thread into its parts, and says where it ends; `memory` may be NULL.
static Space cut_space(const AttentionArguments *a, float *memory, int64_t *size) {
    const int64_t keys = in_panels(a->keys), width = in_panels(a->width);
    const int64_t head = keys * width, queries = QUERIES * width, scores = QUERIES * keys;
    const int64_t row = (int64_t)row_scratch((size_t)a->keys);
    *size = in_panels(4 * head + 2 * queries + 2 * scores + row + PANEL);
    Space s = {0};
    if (!memory) return s;
    s.key_columns = memory;
    s.value_columns = s.key_columns + head;
    s.key_rows = s.value_columns + head;
    s.value_rows = s.key_rows + head;
    s.query_rows = s.value_rows + head;
    s.grad_output_rows = s.query_rows + queries;
    s.weights = s.grad_output_rows + queries;
    s.grad_weights = s.weights + scores;
    s.row = s.grad_weights + scores;
    return s;
}

// A head of a sentence, by its number.
typedef struct {
    int64_t number;
    const float *query, *key, *value;
    const uint8_t *visible;
    int64_t limit;  // keys that any of its queries may see
    enum ScoreMap map;
    float parameter;
} Head;

static Seen look(const AttentionArguments *a, const Head *head, int64_t query) {
    if (!head->visible) return (Seen){a->keys, false, NULL};
    const uint8_t *visible = head->visible + query * a->visible_query_step;
    const uint8_t *last = memrchr(visible, 1, (size_t)a->keys);
    int64_t count = last ? last - visible + 1 : 0;
    return (Seen){count, memchr(visible, 0, (size_t)count) != NULL, visible};
}

static Head find_head(const AttentionArguments *a, int64_t number) {
    const int64_t sentence = number / a->heads, head = number % a->heads;
    const int64_t keys = sentence * a->keys * a->key_step + head * a->width;
    Head found = {
        .number = number,
        .query = a->query + sentence * a->queries * a->query_step + head * a->width,
        .key = a->key + keys,
        .value = a->value + keys,
        .limit = a->keys,
        .map = (enum ScoreMap)a->map,
        .parameter = a->parameters[head],
    };
    if (a->visible) {
        found.visible = a->visible + sentence * a->visible_sentence_step +
                        head * a->visible_head_step;
        if (a->visible_query_step == 0) found.limit = look(a, &found, 0).count;
    }
    return found;
}

// Finds the keys that the queries from `first` on may see; returns the highest number of keys.
static int64_t look_at_block(const AttentionArguments *a, const Head *head, int64_t first, int64_t rows,
                             Seen *seen) {
    int64_t most = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (row > 0 && a->visible_query_step == 0)
            seen[row] = seen[0];
        else
            seen[row] = look(a, head, first + row);
        if (seen[row].count > most) most = seen[row].count;
    }
    return most;
}

static void hide(float *row, Seen seen) {
    for (int64_t key = 0; key < seen.count; key++)
        if (!seen.visible[key]) row[key] = -INFINITY;
}

static void clear(float *row, int64_t from, int64_t to) {
    if (to > from) memset(row + from, 0, sizeof *row * (size_t)(to - from));
}

// Scores of one query to weights, in the place of `most` keys.
static void weigh(const Head *head, float *row, Seen seen, int64_t most, RowState *state,
                  bool again, float *scratch) {
    if (seen.has_holes) hide(row, seen);
    size_t count = (size_t)seen.count;
    if (count > 0) {
        if (again)
            weigh_row_again(head->map, head->parameter, *state, row, count,
                            scratch);
        else
            *state = weigh_row(head->map, head->parameter, row, count, scratch);
    }
    clear(row, seen.count, most);
}

static void drop(const AttentionArguments *a, float *row, const int16_t *bits, int64_t count) {
    for (int64_t key = 0; key < count; key += LANES)
        store(row + key, load(row + key) * dropout_factors(a->dropout, bits + key));
}

static void score(const AttentionArguments *a, const Head *head, Right keys, int64_t first, int64_t rows,
                  int64_t most, float *to) {
    Left query = {head->query + first * a->query_step, a->query_step, 1};
    ProductResult scores = result_at(to, in_panels(a->keys), (int64_t)round_up((size_t)most), a->scale);
    product(query, keys, rows, a->width, scores);
}

static void attend_head(const AttentionArguments *a, Head head, Space s, const int16_t *bits, float *output,
                        float *observed) {
    const int64_t step = in_panels(a->keys), whole = a->heads * a->width;
    output += head.number / a->heads * a->queries * whole + head.number % a->heads * a->width;
    Right keys = pack_columns(head.key, a->key_step, head.limit, a->width, s.key_columns);
    Right values = pack_rows(head.value, a->key_step, head.limit, a->width, s.value_rows);
    for (int64_t first = 0; first < a->queries; first += QUERIES) {
        int64_t rows = a->queries - first < QUERIES ? a->queries - first : QUERIES;
        Seen seen[QUERIES];
        int64_t most = look_at_block(a, &head, first, rows, seen);
        score(a, &head, keys, first, rows, most, s.weights);
        for (int64_t row = 0; row < rows; row++) {
            int64_t query = head.number * a->queries + first + row;
            float *weights = s.weights + row * step;
            weigh(&head, weights, seen[row], most, a->states + query, false, s.row);
            if (observed) {
                memcpy(observed + query * a->keys, weights, sizeof *weights * (size_t)most);
                clear(observed + query * a->keys, most, a->keys);
            }
            if (bits) drop(a, weights, bits + (first + row) * a->keys, seen[row].count);
        }
        Left weights = {s.weights, step, 1};
        ProductResult sums = result_at(output + first * whole, whole, a->width, 1.0f);
        product(weights, values, rows, most, sums);
    }
}

// Adds left^T right to the gradient of keys or values, of which the first `done` have one already.
static void add_product(const float *left, int64_t step, Right right, int64_t rows, int64_t done,
                        int64_t most, ProductResult to) {
    Left columns = {left, 1, step};
    int64_t old = done < most ? done : most;
    to.more = true;
    product(columns, right, old, rows, to);
    if (most <= done) return;
    columns.numbers += done;
    to.numbers += done * to.step;
    to.more = false;
    product(columns, right, most - done, rows, to);
}

typedef struct {
    const float *grad_output;  // the gradient of the output
    float *query, *key, *value;
    float *parameters;  // [sentences, heads], or NULL
} Gradients;

static void backward_head(const AttentionArguments *a, Head head, Space s, const int16_t *bits,
                           Gradients to) {
    const int64_t step = in_panels(a->keys), whole = a->heads * a->width;
    const int64_t sentence = head.number / a->heads, column = head.number % a->heads * a->width;
    const float *grad_output = to.grad_output + sentence * a->queries * whole + column;
    float *query_gradient = to.query + sentence * a->queries * a->query_step + column;
    const int64_t place = sentence * a->keys * a->key_step + column;
    ProductResult key_gradient = result_at(to.key + place, a->key_step, a->width, a->scale);
    ProductResult value_gradient = result_at(to.value + place, a->key_step, a->width, 1.0f);
    float *parameter_gradient = to.parameters ? to.parameters + head.number : NULL;
    Right keys = pack_columns(head.key, a->key_step, head.limit, a->width, s.key_columns);
    Right values = pack_columns(head.value, a->key_step, head.limit, a->width, s.value_columns);
    Right key_rows = pack_rows(head.key, a->key_step, head.limit, a->width, s.key_rows);
    int64_t done = 0;  // keys whose gradients have been begun
    for (int64_t first = 0; first < a->queries; first += QUERIES) {
        int64_t rows = a->queries - first < QUERIES ? a->queries - first : QUERIES;
        Seen seen[QUERIES];
        int64_t most = look_at_block(a, &head, first, rows, seen);
        const float *query = head.query + first * a->query_step, *out = grad_output + first * whole;
        Right query_rows = pack_rows(query, a->query_step, rows, a->width, s.query_rows);
        Right grad_output_rows = pack_rows(out, whole, rows, a->width, s.grad_output_rows);
        score(a, &head, keys, first, rows, most, s.weights);
        ProductResult grad_weights = result_at(s.grad_weights, step, (int64_t)round_up((size_t)most), 1.0f);
        product((Left){out, whole, 1}, values, rows, a->width, grad_weights);
        for (int64_t row = 0; row < rows; row++) {
            float *weights = s.weights + row * step, *gradient = s.grad_weights + row * step;
            const int16_t *own_bits = bits ? bits + (first + row) * a->keys : NULL;
            RowState *state = a->states + head.number * a->queries + first + row;
            weigh(&head, weights, seen[row], most, state, true, s.row);
            if (own_bits) drop(a, gradient, own_bits, seen[row].count);
            if (seen[row].count > 0)
                backward_row(head.map, head.parameter, weights, gradient,
                              (size_t)seen[row].count, parameter_gradient, s.row);
            clear(gradient, seen[row].count, most);
            if (own_bits) drop(a, weights, own_bits, seen[row].count);
        }
        ProductResult queries = result_at(query_gradient + first * a->query_step, a->query_step, a->width, a->scale);
        product((Left){s.grad_weights, step, 1}, key_rows, rows, most, queries);
        add_product(s.grad_weights, step, query_rows, rows, done, most, key_gradient);
        add_product(s.weights, step, grad_output_rows, rows, done, most, value_gradient);
        if (most > done) done = most;
    }
    for (int64_t key = done; key < a->keys; key++) {
        clear(key_gradient.numbers + key * a->key_step, 0, a->width);
        clear(value_gradient.numbers + key * a->key_step, 0, a->width);
    }
}

EXPORT_SIZE(AttentionArguments)
EXPORT_SIZE(Gradients)

static int64_t check(const AttentionArguments *a, int64_t first, int64_t count, int64_t threads) {
    REQUIRE(is_size(a->sentences) && is_size(a->heads) && a->heads > 0);
    REQUIRE(is_size(a->queries) && is_size(a->keys) && is_size(a->width));
    REQUIRE(a->query_step >= a->heads * a->width && a->key_step >= a->heads * a->width);
    const int64_t queries = a->sentences * a->queries * a->width;
    const int64_t keys = a->sentences * a->keys * a->width;
    REQUIRE(is_there(a->query, queries) && is_there(a->key, keys) && is_there(a->value, keys));
    REQUIRE(is_there(a->states, a->sentences * a->queries) && a->parameters);
    REQUIRE(0 <= first && 0 <= count && count <= a->sentences * a->heads - first);
    REQUIRE(are_threads(threads));
    for (int64_t head = 0; head < a->heads; head++)
        REQUIRE(is_score_map(a->map, a->parameters[head]));
    return 0;
}

// Numbers that each thread needs to work in; -1: the sizes are beyond all memory.
int64_t attention_space(const AttentionArguments *a) {
    int64_t size;
    if (!is_size(a->keys) || !is_size(a->width)) return -1;
    cut_space(a, NULL, &size);
    return size;
}

// output [sentences, queries, heads, width], of some of the heads of sentences; bits [count,
// queries, keys] are of these only. `observed` [sentences, heads, queries, keys] may be NULL, as
// may `bits`: then nothing is dropped. `space` [threads, attention_space].
int64_t attend(const AttentionArguments *a, int64_t first, int64_t count, const int16_t *bits, float *output,
               float *observed, float *space, int64_t threads) {
    const int64_t refused = check(a, first, count, threads);
    if (refused) return refused;
    REQUIRE(is_there(output, a->sentences * a->queries * a->width) && space);
#pragma omp parallel num_threads((int)threads)
    {
        int64_t size = attention_space(a);
        Space own = cut_space(a, space + omp_get_thread_num() * size, &size);
#pragma omp for schedule(dynamic)
        for (int64_t index = 0; index < count; index++) {
            const int16_t *own_bits = bits ? bits + index * a->queries * a->keys : NULL;
            attend_head(a, find_head(a, first + index), own, own_bits, output, observed);
        }
    }
    return 0;
}

// The gradients of all that `attend` has taken.
int64_t attend_backward(const AttentionArguments *a, int64_t first, int64_t count, const int16_t *bits,
                        const Gradients *gradients, float *space, int64_t threads) {
    const int64_t refused = check(a, first, count, threads);
    if (refused) return refused;
    REQUIRE(a->map <= RELU && space);
    const int64_t queries = a->sentences * a->queries * a->width;
    const int64_t keys = a->sentences * a->keys * a->width;
    REQUIRE(is_there(gradients->grad_output, queries) && is_there(gradients->query, queries));
    REQUIRE(is_there(gradients->key, keys) && is_there(gradients->value, keys));
#pragma omp parallel num_threads((int)threads)
    {
        int64_t size = attention_space(a);
        Space own = cut_space(a, space + omp_get_thread_num() * size, &size);
#pragma omp for schedule(dynamic)
        for (int64_t index = 0; index < count; index++) {
            const int16_t *own_bits = bits ? bits + index * a->queries * a->keys : NULL;
            backward_head(a, find_head(a, first + index), own, own_bits, *gradients);
        }
    }
    return 0;
}
