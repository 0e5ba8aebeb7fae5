// The operations of a search step on logits: the normalizer, and the best continuations of a beam.

#include "search.h"

#include "border.h"

#define LARGEST_LOG 69.0f  // as in nmt/ops/beam.py

// The logarithm of a sum that does not subtract the largest number first, and is as exact wherever
// it can be trusted.
static float log_sum(const float *row, int64_t vocabulary) {
    Vector sums[2] = {all(0.0f), all(0.0f)};
    int64_t place = 0;
    for (; place + 2 * LANES <= vocabulary; place += 2 * LANES) {
        sums[0] += exponential(load(row + place));
        sums[1] += exponential(load(row + place + LANES));
    }
    for (; place < vocabulary; place += LANES)
        sums[0] += exponential(load_part(row + place, (size_t)(vocabulary - place), -INFINITY));
    return logf(sum(sums[0] + sums[1]));
}

float log_normalizer(float *row, int64_t vocabulary) {
    const float plain = log_sum(row, vocabulary);
    if (fabsf(plain) < LARGEST_LOG) return plain;
    float top = -INFINITY;
    for (int64_t place = 0; place < vocabulary; place++) {
        if (!isfinite(row[place])) row[place] = -INFINITY;
        if (row[place] > top) top = row[place];
    }
    if (top == -INFINITY) return INFINITY;
    Vector total = all(0.0f);
    for (int64_t place = 0; place < vocabulary; place += LANES)
        total += exponential(load_part(row + place, (size_t)(vocabulary - place), -INFINITY) - top);
    return logf(sum(total)) + top;
}

// normalizer [rows] of logits [rows, vocabulary], in which numbers that are not finite may be
// overwritten.
int64_t normalize(float *logits, int64_t rows, int64_t vocabulary, float *normalizer,
                  int64_t threads) {
    REQUIRE(is_size(rows) && is_size(vocabulary) && are_threads(threads));
    REQUIRE(is_there(logits, rows * vocabulary) && is_there(normalizer, rows));
#pragma omp parallel for num_threads((int)threads) if (rows * vocabulary > FEW_LOGITS)
    for (int64_t row = 0; row < rows; row++)
        normalizer[row] = log_normalizer(logits + row * vocabulary, vocabulary);
    return 0;
}

void find_largest(const float *row, int64_t vocabulary, int64_t count, Logit *best) {
    for (int64_t rank = 0; rank < count; rank++) best[rank] = (Logit){-INFINITY, 0};
    for (int64_t place = 0; place < vocabulary; place += LANES) {
        Vector x = load_part(row + place, (size_t)(vocabulary - place), -INFINITY);
        if (!any(x > best[count - 1].value)) continue;
        for (int lane = 0; lane < LANES; lane++) {
            if (!(x[lane] > best[count - 1].value)) continue;
            int64_t rank = count - 1;
            for (; rank > 0 && best[rank - 1].value < x[lane]; rank--) best[rank] = best[rank - 1];
            best[rank] = (Logit){x[lane], place + lane};
        }
    }
}

static int comes_before(Candidate a, Candidate b) {
    if (a.score != b.score) return a.score > b.score;
    return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
}

void start_ranking(Candidate *best, int64_t most, int64_t width) {
    for (int64_t rank = 0; rank < most; rank++)
        best[rank] = (Candidate){-INFINITY, width, INT64_MAX};
}

void rank_continuations(const Logit *found, int64_t count, float normalizer, double score,
                        int64_t hypothesis, int64_t most, Candidate *best) {
    for (int64_t index = 0; index < count; index++) {
        const double total = score + (double)(found[index].value - normalizer);
        const Candidate candidate = {total, hypothesis, found[index].token};
        if (!comes_before(candidate, best[most - 1])) continue;
        int64_t rank = most - 1;
        for (; rank > 0 && comes_before(candidate, best[rank - 1]); rank--)
            best[rank] = best[rank - 1];
        best[rank] = candidate;
    }
}

// The candidates of a search, [batch, beam] each.
typedef struct {
    int64_t *parents, *tokens;
    double *scores;
} CandidateArrays;

EXPORT_SIZE(CandidateArrays)
int64_t most_beam(void) { return MOST_BEAM; }

static void put(const CandidateArrays *to, int64_t place, Candidate candidate, double score) {
    to->parents[place] = candidate.parent;
    to->tokens[place] = candidate.token;
    to->scores[place] = score;
}

// Beam search's choice, as nmt/ops/beam.py explains it, from logits [batch, width,
// vocabulary], their normalizer and the scores so far [batch, width].
int64_t choose_beam(const float *logits, const float *normalizer, const double *scores,
                    int64_t batch, int64_t width, int64_t vocabulary, int64_t beam, int64_t end,
                    const CandidateArrays *finished, const CandidateArrays *live, int64_t threads) {
    REQUIRE(0 < beam && beam <= MOST_BEAM && is_size(batch));
    REQUIRE(0 < width && width <= MOST_SIZE && 0 < vocabulary && vocabulary <= MOST_SIZE);
    REQUIRE(are_threads(threads));
    if (batch == 0) return 0;
    REQUIRE(logits && normalizer && scores);
    REQUIRE(finished->parents && finished->tokens && finished->scores);
    REQUIRE(live->parents && live->tokens && live->scores);
    const int64_t count = beam + 1 < vocabulary ? beam + 1 : vocabulary, most = 2 * beam;
#pragma omp parallel for num_threads((int)threads) if (batch * width * vocabulary > FEW_LOGITS)
    for (int64_t sentence = 0; sentence < batch; sentence++) {
        Candidate best[2 * MOST_BEAM];
        Logit found[MOST_BEAM + 1];
        start_ranking(best, most, width);
        for (int64_t hypothesis = 0; hypothesis < width; hypothesis++) {
            const int64_t row = sentence * width + hypothesis;
            find_largest(logits + row * vocabulary, vocabulary, count, found);
            rank_continuations(found, count, normalizer[row], scores[row], hypothesis, most, best);
        }
        int64_t alive = 0;
        for (int64_t rank = 0; rank < most; rank++) {
            Candidate candidate = best[rank];
            const int ends = candidate.token == end;
            if (candidate.parent == width) candidate.parent = candidate.token = 0;  // there is none
            if (rank < beam)
                put(finished, sentence * beam + rank, candidate,
                    ends ? candidate.score : -INFINITY);
            if (!ends && alive < beam)
                put(live, sentence * beam + alive++, candidate, candidate.score);
        }
        for (; alive < beam; alive++)
            put(live, sentence * beam + alive, (Candidate){0, 0, 0}, -INFINITY);
    }
    return 0;
}
