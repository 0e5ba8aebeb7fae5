// The operations of a search step on logits: the normalizer, and the best continuations of a beam.

#include "border.h"
#include "vectors.h"

#define MOST_BEAM 1024  // for more torch is as fast, and a thread's stack would not do
#define FEW_LOGITS 65536  // for which other threads are not worth waking
#define LARGEST_LOG 69.0f  // as in nmt/ops/beam.py

// normalizer [rows]: the logarithms of the sums of the exponentials of logits [rows, vocabulary].
// Counts in `untrusted` how many of them are beyond what such a sum can be trusted with.
int64_t normalize(const float *logits, int64_t rows, int64_t vocabulary, float *normalizer,
                  int64_t *untrusted, int64_t threads) {
    REQUIRE(is_size(rows) && is_size(vocabulary) && are_threads(threads) && untrusted);
    REQUIRE(is_there(logits, rows * vocabulary) && is_there(normalizer, rows));
    int64_t beyond = 0;
#pragma omp parallel for num_threads((int)threads) reduction(+ : beyond) \
    if (rows * vocabulary > FEW_LOGITS)
    for (int64_t row = 0; row < rows; row++) {
        const float *from = logits + row * vocabulary;
        Vector sums[2] = {all(0.0f), all(0.0f)};
        int64_t place = 0;
        for (; place + 2 * LANES <= vocabulary; place += 2 * LANES) {
            sums[0] += exponential(load(from + place));
            sums[1] += exponential(load(from + place + LANES));
        }
        for (; place < vocabulary; place += LANES)
            sums[0] += exponential(load_part(from + place, (size_t)(vocabulary - place), -INFINITY));
        normalizer[row] = logf(sum(sums[0] + sums[1]));
        beyond += !(fabsf(normalizer[row]) < LARGEST_LOG);
    }
    *untrusted = beyond;
    return 0;
}

typedef struct {
    float value;
    int64_t token;
} Logit;

// The `count` largest of a row, NaN never among them, best first and equal ones by token; what is
// missing is -inf.
static void find_largest(const float *row, int64_t vocabulary, int64_t count, Logit *best) {
    for (int64_t rank = 0; rank < count; rank++) best[rank] = (Logit){-INFINITY, 0};
    for (int64_t place = 0; place < vocabulary; place += LANES) {
        Vector x = load_part(row + place, (size_t)(vocabulary - place), -INFINITY);
        Ints above = x > best[count - 1].value;
        int found = 0;
        for (int lane = 0; lane < LANES; lane++) found |= above[lane];
        if (!found) continue;
        for (int lane = 0; lane < LANES; lane++) {
            if (!(x[lane] > best[count - 1].value)) continue;
            int64_t rank = count - 1;
            for (; rank > 0 && best[rank - 1].value < x[lane]; rank--) best[rank] = best[rank - 1];
            best[rank] = (Logit){x[lane], place + lane};
        }
    }
}

typedef struct {
    double score;
    int64_t parent, token;
} Candidate;

static int comes_before(Candidate a, Candidate b) {
    if (a.score != b.score) return a.score > b.score;
    return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
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
        Candidate best[2 * MOST_BEAM + 1];
        for (int64_t rank = 0; rank < most; rank++)
            best[rank] = (Candidate){-INFINITY, width, vocabulary};
        for (int64_t hypothesis = 0; hypothesis < width; hypothesis++) {
            const int64_t row = sentence * width + hypothesis;
            Logit found[MOST_BEAM + 1];
            find_largest(logits + row * vocabulary, vocabulary, count, found);
            for (int64_t index = 0; index < count; index++) {
                double score = scores[row] + (double)(found[index].value - normalizer[row]);
                Candidate candidate = {score, hypothesis, found[index].token};
                int64_t rank = most;
                for (; rank > 0 && comes_before(candidate, best[rank - 1]); rank--)
                    best[rank] = best[rank - 1];
                best[rank] = candidate;
            }
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
