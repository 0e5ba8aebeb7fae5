// Whole searches: decodes positions, ranks the continuations, and records what was chosen, until
// no sentence is left. nmt/decoding/search.py and search_record.py are the reference.

#include <omp.h>
#include <string.h>

#include "border.h"
#include "engine.h"
#include "search.h"

// As in nmt/decoding/search.py and search_record.py.
#define FORCED_ZERO -1e4f
#define LIKELY_SHARE 0.25
#define LIKELY_TOKENS 2

#define MANY_CANDIDATES 16384  // from which on other threads are woken
#define LOGIT_ROWS 24          // of a thread: with 8,000 words they stay in a cache of 1 MB

enum EarlyStop { LIKELY, EXACT, NARROW, CURRENT, FULL };  // as in search_options.py

// What a search has to obey; S sentences were encoded.
typedef struct {
    int64_t beam;
    int64_t kept;  // the best finished hypotheses of a sentence
    int64_t min_length;
    int64_t early_stop;  // enum EarlyStop
    int64_t negative_penalty;  // whether longer outputs have smaller divisors
    int64_t end;               // the token that ends an output
    int64_t num_never, num_divisors;
    const int64_t *never;    // [num_never] tokens that are not chosen
    const double *divisors;  // [num_divisors] of log probabilities, by length with the end token
    const int64_t *limits;   // [S] the most tokens before the end token
    const int64_t *prefix_starts;  // [S + 1] of each prefix in `prefixes`
    const int64_t *prefixes;       // tokens that outputs begin with
} SearchRules;

// A finished hypothesis: where its last live one was after `length` tokens.
typedef struct {
    double score, log_probability;
    int64_t length, parent;
} Ending;

// What one hypothesis continued, and how.
typedef struct {
    int32_t parent, token;
} Link;

// The hypotheses of a search, and memory for a step. B sentences are left, K is the beam.
typedef struct {
    int64_t *tokens;  // [B, width], later [B, K]: the last of each hypothesis
    double *scores;   // as tokens: log probabilities; -inf: no hypothesis
    double *live_scores;  // [B, K] of those that go on
    int64_t *over;        // [B] whether the sentence is
    int64_t *places;  // [S] of the beam that `narrow` has left
    int64_t *num_finished;  // [S] hypotheses
    Ending *endings;        // [S, kept] the best of the finished, in falling order
    Link *const *links;     // [chunks], each [S, CHUNK, K]
    float *hidden;          // [B K, D]
    float *logits;          // [search_rows(B K, threads), V]
    float *normalizer;      // [B K]
    Logit *found;           // [B K, K + 1]
    int32_t *descent;       // [K, most_positions], for one sentence
} SearchState;

EXPORT_SIZE(SearchRules)
EXPORT_SIZE(Ending)
EXPORT_SIZE(Link)
EXPORT_SIZE(Logit)
EXPORT_SIZE(SearchState)

// The choices of a step for one sentence, best first; a score of -inf: none.
typedef struct {
    Candidate finished[MOST_BEAM], live[MOST_BEAM];
} Choice;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// ------------------------------------------------------------------------------- constraints

// The token that has to come after `length` tokens, by the prefix or the limit; -1: any.
static int64_t forced_token(const SearchRules *rules, int64_t sentence, int64_t length) {
    const int64_t place = rules->prefix_starts[sentence] + length;
    if (place < rules->prefix_starts[sentence + 1]) return rules->prefixes[place];
    return length >= rules->limits[sentence] ? rules->end : -1;
}

// The only continuation of a hypothesis, with probability 1 if it is `free`. One whose probability
// is 0 costs much instead of all.
static void force(const float *row, float normalizer, int64_t token, bool free, int64_t count,
                  Logit *found) {
    float value = free && isfinite(normalizer) ? normalizer : row[token];
    if (isinf(value) && isfinite(normalizer)) value = normalizer + FORCED_ZERO;
    for (int64_t rank = 0; rank < count; rank++) found[rank] = (Logit){-INFINITY, 0};
    if (value > -INFINITY) found[0] = (Logit){value, token};
}

// The largest logits of one hypothesis that may be chosen, and the normalizer.
static void find_continuations(const SearchRules *rules, const DecodingBatch *batch,
                               const SearchState *state, int64_t index, int64_t vocabulary,
                               int64_t count, float *row) {
    const int64_t length = batch->position;
    Logit *found = state->found + index * count;
    const int64_t token = forced_token(rules, batch->rows[index / batch->width], length);
    state->normalizer[index] = log_normalizer(row, vocabulary);
    if (token >= 0) {
        const bool free = rules->early_stop >= CURRENT && token == rules->end;
        force(row, state->normalizer[index], token, free, count, found);
        return;
    }
    for (int64_t place = 0; place < rules->num_never; place++)
        row[rules->never[place]] = -INFINITY;
    if (length < rules->min_length) row[rules->end] = -INFINITY;
    find_largest(row, vocabulary, count, found);
}

// Rows of logits that steps of at most `rows` rows need memory for.
int64_t search_rows(int64_t rows, int64_t threads) {
    return rows <= LOGIT_ROWS ? rows : threads * LOGIT_ROWS;
}

// The continuations of all hypotheses. Each thread has few rows of logits at a time, which are still
// in its cache when they are searched; threads share the rows if there are not enough for all.
static void continue_all(const PackedLinear *output, const SearchRules *rules,
                         const DecodingBatch *batch, const SearchState *state, int64_t count,
                         const WorkingMemory *work) {
    const int64_t rows = batch->batch * batch->width, threads = work->threads;
    const int64_t vocabulary = output->outputs, inputs = output->inputs;
    if (threads > 1 && rows <= LOGIT_ROWS) {
        linear(output, state->hidden, rows, state->logits, false, work->scratch, threads);
#pragma omp parallel for num_threads((int)threads) if (rows * vocabulary > FEW_LOGITS)
        for (int64_t index = 0; index < rows; index++)
            find_continuations(rules, batch, state, index, vocabulary, count,
                               state->logits + index * vocabulary);
        return;
    }
    // As many blocks for each thread, of about the same size.
    const int64_t blocks = (rows + threads * LOGIT_ROWS - 1) / (threads * LOGIT_ROWS) * threads;
    const int64_t size = (rows + blocks - 1) / blocks;
#pragma omp parallel for num_threads((int)threads) schedule(dynamic)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = block * size, end = least(first + size, rows);
        float *logits = state->logits + omp_get_thread_num() * LOGIT_ROWS * vocabulary;
        if (first >= end) continue;
        linear(output, state->hidden + first * inputs, end - first, logits, false,
               work->scratch + first * linear_scratch(inputs), 1);
        for (int64_t index = first; index < end; index++)
            find_continuations(rules, batch, state, index, vocabulary, count,
                               logits + (index - first) * vocabulary);
    }
}

// ------------------------------------------------------------------------------------ choice

// Keeps the candidates that have a place: the best of both kinds; those that end take theirs.
static void narrow(Choice *choice, int64_t beam, int64_t *places) {
    Candidate *const kinds[2] = {choice->finished, choice->live};
    double scores[2 * MOST_BEAM];
    for (int64_t one = 0; one < 2 * beam; one++) scores[one] = kinds[one / beam][one % beam].score;
    const int64_t left = *places;
    for (int64_t one = 0; one < 2 * beam; one++) {
        int64_t rank = 0;
        for (int64_t other = 0; other < 2 * beam; other++)
            rank += scores[other] > scores[one] || (scores[other] == scores[one] && other < one);
        if (rank >= left) kinds[one / beam][one % beam].score = -INFINITY;
        if (one < beam && isfinite(choice->finished[one].score)) *places -= 1;
    }
}

// What is chosen for the sentence at `index`: candidates among the best K that end are finished,
// the best K that do not end live on.
static void choose_sentence(const SearchRules *rules, const DecodingBatch *batch,
                            const SearchState *state, int64_t index, int64_t count,
                            Choice *choice) {
    const int64_t beam = rules->beam, width = batch->width, most = 2 * beam;
    Candidate best[2 * MOST_BEAM];
    start_ranking(best, most, width);
    for (int64_t hypothesis = 0; hypothesis < width; hypothesis++) {
        const int64_t row = index * width + hypothesis;
        rank_continuations(state->found + row * count, count, state->normalizer[row],
                           state->scores[row], hypothesis, most, best);
    }
    int64_t alive = 0;
    for (int64_t rank = 0; rank < most; rank++) {
        Candidate candidate = best[rank];
        const int ends = candidate.token == rules->end;
        if (candidate.parent == width) candidate.parent = candidate.token = 0;  // there is none
        if (!ends && alive < beam) choice->live[alive++] = candidate;
        if (!ends) candidate.score = -INFINITY;
        if (rank < beam) choice->finished[rank] = candidate;
    }
    for (; alive < beam; alive++) choice->live[alive] = (Candidate){-INFINITY, 0, 0};
    if (rules->early_stop == NARROW) narrow(choice, beam, state->places + batch->rows[index]);
}

// ------------------------------------------------------------------------------------ record

// Where the choices of this step for the sentence at `index` are recorded.
static Link *links_of(const SearchRules *rules, const DecodingBatch *batch,
                      const SearchState *state, int64_t index) {
    const int64_t slot = batch->rows[index] * CHUNK + batch->position % CHUNK;
    return state->links[batch->position / CHUNK] + slot * rules->beam;
}

// Adds a finished hypothesis behind those that are at least as good.
static void add_ending(const SearchRules *rules, const SearchState *state, int64_t sentence,
                       Ending ending) {
    Ending *endings = state->endings + sentence * rules->kept;
    int64_t rank = least(state->num_finished[sentence]++, rules->kept);
    for (; rank > 0 && ending.score > endings[rank - 1].score; rank--)
        if (rank < rules->kept) endings[rank] = endings[rank - 1];
    if (rank < rules->kept) endings[rank] = ending;
}

// Whether nothing better can come of a sentence whose best live hypothesis has `live` as its score
// after `length` + 1 tokens.
static int is_over(const SearchRules *rules, const SearchState *state, int64_t sentence,
                   double live, int64_t length) {
    if (live == -INFINITY) return 1;
    if (rules->beam == 1) return state->num_finished[sentence] >= 1;
    if (rules->early_stop == NARROW || state->num_finished[sentence] < rules->kept) return 0;
    if (rules->early_stop == FULL) return 1;
    int64_t soonest = length + 2;  // with the end token
    if (soonest < rules->min_length + 1) soonest = rules->min_length + 1;
    const int64_t longest = rules->limits[sentence] + 1;
    double divisor = rules->divisors[longest];
    if (rules->early_stop == CURRENT) {
        divisor = rules->divisors[length + 1];
    } else if (rules->negative_penalty) {
        divisor = rules->divisors[soonest];
    } else if (rules->early_stop == LIKELY) {
        const int64_t share = (int64_t)(LIKELY_SHARE * (double)soonest);
        const int64_t ahead = soonest + (share > LIKELY_TOKENS ? share : LIKELY_TOKENS);
        if (longest > ahead) divisor = rules->divisors[ahead];
    }
    const double reached = (live < 0.0 ? live : 0.0) / divisor;
    return state->endings[(sentence + 1) * rules->kept - 1].score >= reached;
}

// Records the choice for the sentence at `index`, and whether the sentence is over.
static void record(const SearchRules *rules, const DecodingBatch *batch, const SearchState *state,
                   int64_t index, const Choice *choice) {
    const int64_t sentence = batch->rows[index], length = batch->position, beam = rules->beam;
    double best = -INFINITY;
    Link *links = links_of(rules, batch, state, index);
    for (int64_t rank = 0; rank < beam; rank++) {
        const Candidate ended = choice->finished[rank], live = choice->live[rank];
        links[rank] = (Link){(int32_t)live.parent, (int32_t)live.token};
        state->live_scores[index * beam + rank] = live.score;
        if (live.score > best) best = live.score;
        if (!(ended.score > -INFINITY)) continue;
        const double score = ended.score / rules->divisors[length + 1];
        add_ending(rules, state, sentence, (Ending){score, ended.score, length, ended.parent});
    }
    state->over[index] = is_over(rules, state, sentence, best, length);
}

// Ranks and records the continuations of all sentences.
static void choose_all(const SearchRules *rules, const DecodingBatch *batch,
                       const SearchState *state, int64_t count, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) \
    if (batch->batch * batch->width * count > MANY_CANDIDATES)
    for (int64_t index = 0; index < batch->batch; index++) {
        Choice choice;
        choose_sentence(rules, batch, state, index, count, &choice);
        record(rules, batch, state, index, &choice);
    }
}

// ----------------------------------------------------------------------------------- advance

// Lets the live hypotheses of the sentence at `index` go on at `place`, which is not behind it.
static void keep(const SearchRules *rules, const DecodingBatch *batch, const SearchState *state,
                 int64_t index, int64_t place) {
    const int64_t beam = rules->beam, positions = batch->most_positions;
    const size_t known = sizeof(int32_t) * (size_t)(batch->position + 1);
    const Link *links = links_of(rules, batch, state, index);
    const int32_t *from = batch->descent + index * batch->width * positions;
    for (int64_t rank = 0; rank < beam; rank++) {
        int32_t *descent = state->descent + rank * positions;
        // The first hypothesis is the only one, and its descent may have been overwritten.
        if (batch->position == 0 && batch->width == 1) descent[0] = 0;
        else memcpy(descent, from + links[rank].parent * positions, known);
    }
    for (int64_t rank = 0; rank < beam; rank++) {
        const int64_t row = place * beam + rank;
        memcpy(batch->descent + row * positions, state->descent + rank * positions, known);
        state->tokens[row] = links[rank].token;
        state->scores[row] = state->live_scores[index * beam + rank];
    }
    batch->rows[place] = batch->rows[index];
}

// Makes the chosen continuations the live hypotheses, and removes the sentences that are over.
static void advance(const SearchRules *rules, DecodingBatch *batch, const SearchState *state) {
    int64_t left = 0;
    for (int64_t index = 0; index < batch->batch; index++)
        if (!state->over[index]) keep(rules, batch, state, index, left++);
    batch->batch = left;
    batch->width = rules->beam;
    batch->position += 1;
}

// ------------------------------------------------------------------------------------- checks

static bool are_tokens(const int64_t *tokens, int64_t count, int64_t vocabulary) {
    for (int64_t place = 0; place < count; place++)
        if (tokens[place] < 0 || tokens[place] >= vocabulary) return false;
    return true;
}

static int64_t check_rules(const SearchRules *rules, const DecodingBatch *batch,
                           int64_t vocabulary) {
    const int64_t sentences = batch->sentences;
    REQUIRE(0 < rules->beam && rules->beam <= MOST_BEAM && rules->beam <= batch->most_width);
    REQUIRE(0 < rules->kept && rules->kept <= rules->beam && is_size(rules->min_length));
    REQUIRE(LIKELY <= rules->early_stop && rules->early_stop <= FULL);
    REQUIRE(0 <= rules->end && rules->end < vocabulary && vocabulary <= INT32_MAX);
    REQUIRE(is_size(rules->num_never) && is_there(rules->never, rules->num_never));
    REQUIRE(are_tokens(rules->never, rules->num_never, vocabulary));
    REQUIRE(rules->divisors && rules->limits && rules->prefix_starts);
    REQUIRE(rules->num_divisors > rules->min_length + 1 && rules->prefix_starts[0] == 0);
    for (int64_t sentence = 0; sentence < sentences; sentence++) {
        const int64_t limit = rules->limits[sentence];
        const int64_t prefix =
            rules->prefix_starts[sentence + 1] - rules->prefix_starts[sentence];
        REQUIRE(is_size(limit) && limit + 2 < rules->num_divisors);
        REQUIRE(0 <= prefix && prefix <= limit);
    }
    const int64_t tokens = rules->prefix_starts[sentences];
    REQUIRE(is_there(rules->prefixes, tokens));
    REQUIRE(are_tokens(rules->prefixes, tokens, vocabulary));
    return 0;
}

static int64_t check_state(const DecodingBatch *batch, const SearchState *state) {
    REQUIRE(state->tokens && state->scores && state->live_scores && state->over);
    REQUIRE(state->places && state->num_finished && state->endings && state->links);
    REQUIRE(state->hidden && state->logits && state->normalizer && state->found);
    REQUIRE(state->descent);
    for (int64_t chunk = 0; chunk * CHUNK < batch->most_positions; chunk++)
        REQUIRE(state->links[chunk]);
    return 0;
}

// ------------------------------------------------------------------------------------- search

// At most `steps` steps of the search for outputs of a batch, or until no sentence is left
// (batch->batch is 0), or memory for positions is used up.
int64_t search_steps(const Stack *stack, const TokenInput *input, const PackedLinear *output,
                     DecodingBatch *batch, const SearchRules *rules, const SearchState *state,
                     const WorkingMemory *work, int64_t steps) {
    const int64_t vocabulary = output->outputs, threads = work->threads;
    REQUIRE(is_linear(output, stack->dim, vocabulary) && input->vocabulary == vocabulary);
    REQUIRE(batch->batch <= batch->sentences);
    int64_t refused = check_rules(rules, batch, vocabulary);
    if (!refused) refused = check_state(batch, state);
    if (!refused) refused = check_decoding(stack, input, batch, state->tokens, work);
    if (refused) return refused;
    REQUIRE(batch->width == rules->beam || batch->position == 0);
    REQUIRE(batch->most_positions <= input->num_positions);
    REQUIRE(attention_scratch(batch->most_positions) <= work->attention_size);
    const int64_t count = rules->beam + 1 < vocabulary ? rules->beam + 1 : vocabulary;
    for (; steps > 0 && batch->batch > 0 && batch->position < batch->most_positions; steps--) {
        decode_position(stack, input, batch, state->tokens, state->hidden, work);
        continue_all(output, rules, batch, state, count, work);
        choose_all(rules, batch, state, count, threads);
        advance(rules, batch, state);
    }
    return 0;
}

// tokens [S, kept, most]: those of all finished hypotheses, whose lengths are in `endings`.
int64_t read_hypotheses(const DecodingBatch *batch, const SearchRules *rules,
                        const SearchState *state, int64_t most, int64_t *tokens) {
    REQUIRE(is_size(batch->sentences) && is_size(most) && rules->kept > 0);
    REQUIRE(is_there(tokens, batch->sentences * most));
    REQUIRE(is_there(state->endings, batch->sentences) && is_there(state->links, most));
    REQUIRE(is_there(state->num_finished, batch->sentences));
    for (int64_t index = 0; index < batch->sentences * rules->kept; index++) {
        if (index % rules->kept >= state->num_finished[index / rules->kept]) continue;
        const Ending *ending = state->endings + index;
        REQUIRE(0 <= ending->length && ending->length <= most);
        REQUIRE(ending->length <= batch->most_positions);
        int64_t parent = ending->parent;
        for (int64_t place = ending->length - 1; place >= 0; place--) {
            REQUIRE(0 <= parent && parent < rules->beam);
            const int64_t slot = index / rules->kept * CHUNK + place % CHUNK;
            const Link link = state->links[place / CHUNK][slot * rules->beam + parent];
            tokens[index * most + place] = link.token;
            parent = link.parent;
        }
    }
    return 0;
}
