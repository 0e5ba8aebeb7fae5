// Attention of whole batches, forward and backward, a head of a sentence at a time: its scores
// become weights, and these their sums of values, without leaving the cache.
//
// Of the forward pass nothing is kept but two numbers a query; the weights are computed again. What
// one head of one sentence gets does not depend on the others, nor on the number of threads, nor on
// hidden keys at its end, for which nothing is computed.

#define _GNU_SOURCE  // memrchr

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "score_maps.h"

#define PANEL (2 * LANES)                 // columns of a product computed together
#define MOST_ROWS (LANES == 16 ? 12 : 6)  // and its rows: as many as registers hold
#define QUERIES 96                        // worked on at once: a multiple of MOST_ROWS

typedef int16_t Shorts __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

// Tokens of a head are `..._step` numbers apart, since heads and projections lie side by side.
typedef struct {
    int64_t heads, queries, keys, width;
    int64_t query_step, key_step;
    const float *query, *key, *value;
    const uint8_t *visible;  // 1: the key may be seen; NULL: all may
    int64_t visible_sentence_step, visible_head_step, visible_query_step;
    int64_t map;
    const float *parameters;  // [heads]
    float scale;
    float keep_scale;        // of dropout: what is kept is multiplied with it
    int64_t least_kept;      // the lowest draw that keeps its weight
    RowState *states;        // [sentences, heads, queries]
} Attention;

typedef struct {
    int64_t count;      // of keys up to the last visible one
    bool has_holes;     // some of these are hidden
    const uint8_t *visible;
} Seen;

static int64_t in_panels(int64_t count) { return (count + PANEL - 1) / PANEL * PANEL; }

// One step of a transposition: swaps blocks of `step` lanes between rows `step` apart.
INLINE void swap_blocks(Vector *rows, const int step) {
    Ints odd = (lane_numbers() & step) != 0;
    Ints low = lane_numbers() + (odd & (LANES - step));
    Ints high = lane_numbers() + step + (odd & (LANES - step));
#pragma GCC unroll 16
    for (int row = 0; row < LANES; row++) {
        if (row & step) continue;
        Vector a = rows[row], b = rows[row + step];
        rows[row] = __builtin_shuffle(a, b, low);
        rows[row + step] = __builtin_shuffle(a, b, high);
    }
}

INLINE void transpose(Vector *rows) {
    swap_blocks(rows, 1);
    swap_blocks(rows, 2);
    swap_blocks(rows, 4);
    if (LANES == 16) swap_blocks(rows, 8);
}

// The right side of a product: panels of PANEL columns, one row `row_step` after the other.
typedef struct {
    const float *numbers;
    int64_t row_step, panel_step;
} Right;

// Tokens [count, width] as [width, tokens], for products with transposed tokens.
static Right pack_columns(const float *x, int64_t step, int64_t count, int64_t width, float *out) {
    for (int64_t first = 0; first < count; first += LANES) {
        float *to = out + first / PANEL * PANEL * width + first % PANEL;
        for (int64_t place = 0; place < width; place += LANES) {
            Vector rows[LANES];
            size_t part = (size_t)(width - place);
#pragma GCC unroll 16
            for (int row = 0; row < LANES; row++)
                rows[row] = first + row < count
                                ? load_part(x + (first + row) * step + place, part, 0.0f)
                                : all(0.0f);
            transpose(rows);
#pragma GCC unroll 16
            for (int row = 0; row < LANES; row++)
                if (place + row < width) store(to + (place + row) * PANEL, rows[row]);
        }
    }
    return (Right){out, PANEL, PANEL * width};
}

// Tokens [count, width] as they are, but side by side: their steps are such that few of them would
// stay in the cache.
static Right pack_rows(const float *x, int64_t step, int64_t count, int64_t width, float *out) {
    for (int64_t place = 0; place < width; place += LANES) {
        float *to = out + place / PANEL * PANEL * count + place % PANEL;
        for (int64_t row = 0; row < count; row++)
            store(to + row * PANEL, load_part(x + row * step + place, (size_t)(width - place), 0.0f));
    }
    return (Right){out, PANEL, PANEL * count};
}

// The left side of a product: one of the two steps is 1.
typedef struct {
    const float *numbers;
    int64_t row_step, inner_step;
} Left;

typedef struct {
    float *numbers;
    int64_t step, columns;
    float scale;
    bool more;  // to be added to what is there
} Result;

INLINE void put(Result to, int64_t row, int64_t column, Vector y) {
    if (column >= to.columns) return;
    float *place = to.numbers + row * to.step + column;
    size_t count = (size_t)(to.columns - column);
    y *= to.scale;
    if (to.more) y += load_part(place, count, 0.0f);
    store_part(place, count, y);
}

// A few rows times one panel [inner, PANEL]; `rows` and `sides`, the vectors of a panel that are
// needed, are constants wherever this is inlined.
INLINE void multiply(Left left, Right right, int64_t inner, Result to, int64_t column,
                     const int rows, const int sides) {
    Vector sums[2][MOST_ROWS];
    for (int row = 0; row < rows; row++) sums[0][row] = sums[1][row] = all(0.0f);
    for (int64_t place = 0; place < inner; place++) {
        Vector w0 = load(right.numbers), w1 = all(0.0f);
        if (sides == 2) w1 = load(right.numbers + LANES);
#pragma GCC unroll 12
        for (int row = 0; row < rows; row++) {
            sums[0][row] += left.numbers[row * left.row_step] * w0;
            if (sides == 2) sums[1][row] += left.numbers[row * left.row_step] * w1;
        }
        left.numbers += left.inner_step;
        right.numbers += right.row_step;
    }
    for (int row = 0; row < rows; row++)
        for (int side = 0; side < sides; side++)
            put(to, row, column + side * LANES, sums[side][row]);
}

#define CASE(n) \
    case n: multiply(left, right, inner, to, column, n, sides); break;

INLINE void multiply_rows(Left left, Right right, int64_t inner, Result to, int64_t column,
                          int64_t rows, const int sides) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if LANES == 16
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

INLINE void multiply_panel(Left left, Right right, int64_t inner, Result to, int64_t column,
                           int64_t rows) {
    if (to.columns - column > LANES)
        multiply_rows(left, right, inner, to, column, rows, 2);
    else
        multiply_rows(left, right, inner, to, column, rows, 1);
}

// [rows, columns] = scale left [rows, inner] right [inner, columns].
static void product(Left left, Right right, int64_t rows, int64_t inner, Result to) {
    for (int64_t column = 0; column < to.columns; column += PANEL) {
        for (int64_t row = 0; row < rows; row += MOST_ROWS) {
            Left from = left;
            Result part = to;
            from.numbers += row * left.row_step;
            part.numbers += row * to.step;
            int64_t count = rows - row < MOST_ROWS ? rows - row : MOST_ROWS;
            if (left.inner_step == 1) {
                from.inner_step = 1;  // as a constant
                multiply_panel(from, right, inner, part, column, count);
            } else {
                from.row_step = 1;
                multiply_panel(from, right, inner, part, column, count);
            }
        }
        right.numbers += right.panel_step;
    }
}

// What one thread works in: a part for each thing that is laid out or computed for a head.
typedef struct {
    float *key_columns, *value_columns, *key_rows, *value_rows, *query_rows, *outer_rows;
    float *weights, *inner;
} Space;

static Space make_space(const Attention *a) {
    const int64_t keys = in_panels(a->keys), width = in_panels(a->width);
    const int64_t head = keys * width, queries = QUERIES * width, scores = QUERIES * keys;
    float *all_of_it = aligned_alloc(64, sizeof(float) * (size_t)(4 * head + 2 * queries +
                                                                  2 * scores + PANEL));
    Space s;
    s.key_columns = all_of_it;
    s.value_columns = s.key_columns + head;
    s.key_rows = s.value_columns + head;
    s.value_rows = s.key_rows + head;
    s.query_rows = s.value_rows + head;
    s.outer_rows = s.query_rows + queries;
    s.weights = s.outer_rows + queries;
    s.inner = s.weights + scores;
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

static Seen look(const Attention *a, const Head *head, int64_t query) {
    if (!head->visible) return (Seen){a->keys, false, NULL};
    const uint8_t *visible = head->visible + query * a->visible_query_step;
    const uint8_t *last = memrchr(visible, 1, (size_t)a->keys);
    int64_t count = last ? last - visible + 1 : 0;
    return (Seen){count, memchr(visible, 0, (size_t)count) != NULL, visible};
}

static Head find_head(const Attention *a, int64_t number) {
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

// What the queries from `first` on may see; returns the highest number of keys.
static int64_t look_at_block(const Attention *a, const Head *head, int64_t first, int64_t rows,
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
                  bool again) {
    if (seen.has_holes) hide(row, seen);
    size_t count = (size_t)seen.count;
    if (count > 0) {
        if (again)
            weigh_row_again(head->map, head->parameter, *state, row, count);
        else
            *state = weigh_row(head->map, head->parameter, row, count);
    }
    clear(row, seen.count, most);
}

static void drop(const Attention *a, float *row, const int16_t *draws, int64_t count) {
    for (int64_t key = 0; key < count; key += LANES) {
        Ints drawn = __builtin_convertvector(*(const Shorts *)(draws + key), Ints);
        Vector factor = choose(drawn >= (int32_t)a->least_kept, all(a->keep_scale), all(0.0f));
        store(row + key, load(row + key) * factor);
    }
}

static void score(const Attention *a, const Head *head, Right keys, int64_t first, int64_t rows,
                  int64_t most, float *to) {
    Left query = {head->query + first * a->query_step, a->query_step, 1};
    Result scores = {to, in_panels(a->keys), (int64_t)round_up((size_t)most), a->scale, false};
    product(query, keys, rows, a->width, scores);
}

static void attend_head(const Attention *a, Head head, Space s, const int16_t *draws, float *output,
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
            weigh(&head, weights, seen[row], most, a->states + query, false);
            if (observed) {
                memcpy(observed + query * a->keys, weights, sizeof *weights * (size_t)most);
                clear(observed + query * a->keys, most, a->keys);
            }
            if (draws) drop(a, weights, draws + (first + row) * a->keys, seen[row].count);
        }
        Left weights = {s.weights, step, 1};
        Result sums = {output + first * whole, whole, a->width, 1.0f, false};
        product(weights, values, rows, most, sums);
    }
}

// Adds left^T right to the gradient of keys or values, of which the first `done` have one already.
static void add_product(const float *left, int64_t step, Right right, int64_t rows, int64_t done,
                        int64_t most, Result to) {
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
    const float *outer;  // the gradient of the output
    float *query, *key, *value;
    float *parameters;  // [sentences, heads], or NULL
} Gradients;

static void pull_back_head(const Attention *a, Head head, Space s, const int16_t *draws,
                           Gradients to) {
    const int64_t step = in_panels(a->keys), whole = a->heads * a->width;
    const int64_t sentence = head.number / a->heads, column = head.number % a->heads * a->width;
    const float *outer = to.outer + sentence * a->queries * whole + column;
    float *query_gradient = to.query + sentence * a->queries * a->query_step + column;
    const int64_t place = sentence * a->keys * a->key_step + column;
    Result key_gradient = {to.key + place, a->key_step, a->width, a->scale, false};
    Result value_gradient = {to.value + place, a->key_step, a->width, 1.0f, false};
    float *parameter_gradient = to.parameters ? to.parameters + head.number : NULL;
    Right keys = pack_columns(head.key, a->key_step, head.limit, a->width, s.key_columns);
    Right values = pack_columns(head.value, a->key_step, head.limit, a->width, s.value_columns);
    Right key_rows = pack_rows(head.key, a->key_step, head.limit, a->width, s.key_rows);
    int64_t done = 0;  // keys whose gradients have been begun
    for (int64_t first = 0; first < a->queries; first += QUERIES) {
        int64_t rows = a->queries - first < QUERIES ? a->queries - first : QUERIES;
        Seen seen[QUERIES];
        int64_t most = look_at_block(a, &head, first, rows, seen);
        const float *query = head.query + first * a->query_step, *out = outer + first * whole;
        Right query_rows = pack_rows(query, a->query_step, rows, a->width, s.query_rows);
        Right outer_rows = pack_rows(out, whole, rows, a->width, s.outer_rows);
        score(a, &head, keys, first, rows, most, s.weights);
        Result inner = {s.inner, step, (int64_t)round_up((size_t)most), 1.0f, false};
        product((Left){out, whole, 1}, values, rows, a->width, inner);
        for (int64_t row = 0; row < rows; row++) {
            float *weights = s.weights + row * step, *gradient = s.inner + row * step;
            const int16_t *drawn = draws ? draws + (first + row) * a->keys : NULL;
            RowState *state = a->states + head.number * a->queries + first + row;
            weigh(&head, weights, seen[row], most, state, true);
            if (drawn) drop(a, gradient, drawn, seen[row].count);
            if (seen[row].count > 0)
                pull_back_row(head.map, head.parameter, weights, gradient,
                              (size_t)seen[row].count, parameter_gradient);
            clear(gradient, seen[row].count, most);
            if (drawn) drop(a, weights, drawn, seen[row].count);
        }
        Result queries = {query_gradient + first * a->query_step, a->query_step, a->width, a->scale,
                          false};
        product((Left){s.inner, step, 1}, key_rows, rows, most, queries);
        add_product(s.inner, step, query_rows, rows, done, most, key_gradient);
        add_product(s.weights, step, outer_rows, rows, done, most, value_gradient);
        if (most > done) done = most;
    }
    for (int64_t key = done; key < a->keys; key++) {
        clear(key_gradient.numbers + key * a->key_step, 0, a->width);
        clear(value_gradient.numbers + key * a->key_step, 0, a->width);
    }
}

// output [sentences, queries, heads, width], of some of the heads of sentences; draws [count,
// queries, keys] are of these only. `observed` [sentences, heads, queries, keys] may be NULL, as
// may `draws`: then nothing is dropped.
void attend(const Attention *a, int64_t first, int64_t count, const int16_t *draws, float *output,
            float *observed, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Space space = make_space(a);
#pragma omp for schedule(dynamic)
        for (int64_t index = 0; index < count; index++) {
            const int16_t *drawn = draws ? draws + index * a->queries * a->keys : NULL;
            attend_head(a, find_head(a, first + index), space, drawn, output, observed);
        }
        free(space.key_columns);
    }
}

// The gradients of all that `attend` has taken.
void attend_backward(const Attention *a, int64_t first, int64_t count, const int16_t *draws,
                     const Gradients *gradients, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Space space = make_space(a);
#pragma omp for schedule(dynamic)
        for (int64_t index = 0; index < count; index++) {
            const int16_t *drawn = draws ? draws + index * a->queries * a->keys : NULL;
            pull_back_head(a, find_head(a, first + index), space, drawn, *gradients);
        }
        free(space.key_columns);
    }
}
