// The structures of the engine: a model, the sentences that it decodes, and memory to work in.
//
// They have the same fields, in the same order, as in interface.py.

#pragma once

#include "linear.h"

#define CHUNK 16  // positions whose keys and values are kept together

typedef struct {
    const float *gain, *bias;  // [D]; no gain: nothing to do
} LayerNorm;

enum HeadNormKind { NO_NORM, RMS_NORM, LAYER_NORM };

typedef struct {
    int64_t map;              // enum ScoreMap
    const float *parameters;  // [H]
    int64_t norm;             // enum HeadNormKind
    const float *gain, *gate;  // [D]; no gate: NULL
} Kind;

typedef struct {
    PackedLinear input;      // of self-attention: query, key and value; of cross-attention: query
    PackedLinear key_value;  // of cross-attention
    PackedLinear output;
    Kind kind;
    LayerNorm norm;
} AttentionLayer;

typedef struct {
    PackedLinear input, output;
    LayerNorm norm;
} FeedForwardLayer;

typedef struct {
    AttentionLayer self, cross;
    FeedForwardLayer feed_forward;
} StackLayer;

enum HiddenActivation { HIDDEN_RELU, HIDDEN_GELU, HIDDEN_SWISH };

typedef struct {
    int64_t dim, heads, hidden_dim, num_layers;
    int64_t pre_norm;    // LayerNorm before a sublayer instead of after its sum
    int64_t activation;  // enum HiddenActivation
    float epsilon;       // of LayerNorm
    const StackLayer *layers;
    LayerNorm final;
} Stack;

// What turns the tokens of one side into vectors.
typedef struct {
    int64_t vocabulary, num_positions;
    float scale;             // of embeddings
    const float *embedding;  // [vocabulary][D]
    const float *positions;  // [num_positions][D]
} TokenInput;

// The keys and values that cross-attention of a layer reads.
typedef struct {
    float *keys;        // of each sentence [H][panels][D / H][PANEL]: PANEL keys side by side
    float *key_values;  // [R][2][D], of all source tokens
} Memory;

typedef struct {
    int64_t sentences;     // that were encoded
    int64_t batch, width;  // those left, and hypotheses of each
    int64_t position;      // of the tokens that are read now
    int64_t most_width, most_positions;  // there is memory for; positions come CHUNK at a time
    int64_t *rows;           // [batch]: where a sentence is in what follows
    const int64_t *starts;   // of each sentence, and the end of the last: its source tokens
    const Memory *memories;  // of each layer
    float *const *pasts;     // [chunks][layers], each [sentences][CHUNK][most_width][2][D]
    int32_t *descent;        // [batch][width][most_positions]: of which hypothesis each is the child
} DecodingBatch;

// Memory to work in, for R rows of B sentences. Each thread has its own for attention.
typedef struct {
    int64_t rows, threads;
    int64_t attention_size;  // of one thread: attention_scratch
    float *attention;        // [threads, attention_size]
    float *projected;  // [R, 3 D]
    float *attended;   // [R, D]
    float *buffer;     // [R, D]
    float *hidden;     // [R, width of the feed-forward layers]
    float *packed;     // [R + B PANEL, D], for encoding
    float *scratch;    // of linear layers: [R, linear_scratch], for 8 bits
} WorkingMemory;

// Numbers that a thread needs for attention to at most `keys` keys; -1: beyond all memory.
int64_t attention_scratch(int64_t keys);

// Whether `decode_position` may read and write where this says, and its tokens [R] are defined.
int64_t check_decoding(const Stack *stack, const TokenInput *input, const DecodingBatch *batch,
                       const int64_t *tokens, const WorkingMemory *work);

// The decoder's output x [R, D] after one more token of each hypothesis, tokens [R].
void decode_position(const Stack *stack, const TokenInput *input, const DecodingBatch *batch,
                     const int64_t *tokens, float *x, const WorkingMemory *work);
