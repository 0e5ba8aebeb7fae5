"""Translating with real models: neighbours, caches and ensembles change nothing they should not."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from translation_models import (
    KINDS,
    make_codec,
    make_config,
    make_model,
    random_lines,
    trained_model,
)

from nmt.config.search_options import Sampling, SearchOptions
from nmt.data.codec import Codec
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.decoding.decoder import Decoder
from nmt.decoding.devices import place
from nmt.decoding.ensemble import EnsembleStep, Member, pad
from nmt.decoding.memory import SHARE, Budget
from nmt.decoding.packing import pack
from nmt.decoding.search import search
from nmt.decoding.torch_models import TorchModels
from nmt.decoding.translation import SYMBOLS
from nmt.decoding.translator import Line, Translation, Translator
from nmt.errors import UserError
from nmt.model.transformer import Transformer

LIMIT = 12
LINES = random_lines(24, seed=5, longest=20)


def translator(kind: str = "softmax", *, seed: int = 1, weights: str = "engine") -> Translator:
    """A new translator: softmax models have learned something, the others are random."""
    if kind == "softmax":
        config, codec, model = copy.deepcopy(trained_model())
    else:
        config = make_config(kind)
        codec = make_codec(config)
        model = make_model(config, codec, seed=seed)
    made = Translator.from_model(model, codec, config.decode)
    if weights.startswith("engine"):
        member = Member.of(model, codec, int8=weights == "engine int8")
    elif weights == "plain":
        member = Member(model, codec, Decoder(model.logits))
    else:
        packed = Decoder(pack(model, int8=weights == "int8"), packed=True)
        member = Member(model, codec, packed)
    made.models.members = [member]
    return made


def exact(translations: list[Translation]) -> list[tuple[tuple[int, ...], float, str]]:
    """The parts of a translation that must not change by a bit."""
    return [(one.ids, one.score, one.text) for one in translations]


def test_the_small_models_are_worth_testing() -> None:
    """Outputs differ between sentences, and most end before the maximum."""
    found = translator().translate(LINES, max_length=LIMIT)
    assert len({one.ids for one in found}) > len(LINES) / 2
    assert len({len(one.ids) for one in found}) > 4


@pytest.mark.parametrize("weights", ["packed", "engine"])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_size_and_neighbours_change_no_bit(kind: str, weights: str) -> None:
    one = translator(kind, weights=weights)
    lines = LINES[:14]
    alone = [one.translate([line], max_length=LIMIT)[0] for line in lines]
    for sentences in (2, 3, 7, 16, 64):
        order = torch.randperm(
            len(lines), generator=torch.Generator().manual_seed(sentences)
        ).tolist()
        found = one.translate(
            [lines[position] for position in order],
            max_length=LIMIT,
            batch_tokens=32 * sentences,
        )
        assert exact(found) == exact([alone[position] for position in order])


@pytest.mark.parametrize("weights", ["plain", "packed", "int8", "engine", "engine int8"])
@pytest.mark.parametrize("beam", [1, 3, 4, 5])
def test_batch_size_changes_no_bit_for_any_beam(weights: str, beam: int) -> None:
    one = translator(weights=weights)
    lines = LINES[:10]
    alone = [one.translate([line], max_length=LIMIT, beam=beam)[0] for line in lines]
    for batch_tokens in (96, 4096):
        found = one.translate(lines, max_length=LIMIT, beam=beam, batch_tokens=batch_tokens)
        assert exact(found) == exact(alone)


def test_samples_do_not_depend_on_the_batch() -> None:
    one = translator()
    chosen = Sampling(temperature=1.5, top_k=10, seed=7)
    found = one.translate(LINES, max_length=LIMIT, sampling=chosen, nbest=2)
    small = one.translate(LINES, max_length=LIMIT, sampling=chosen, nbest=2, batch_tokens=64)
    assert [exact(list(x.nbest)) for x in found] == [exact(list(x.nbest)) for x in small]
    other = one.translate(LINES, max_length=LIMIT, sampling=replace(chosen, seed=8), nbest=2)
    assert exact(found) != exact(other)


@pytest.mark.parametrize("kind", ["softmax", "rela-g"])
def test_fast_is_as_good_to_rounding(kind: str) -> None:
    one = translator(kind)
    found = one.translate(LINES, max_length=LIMIT)
    fast = one.translate(LINES, max_length=LIMIT, fast=True)
    for x, y in zip(found, fast, strict=True):
        assert x.score == pytest.approx(y.score, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_search_takes_the_best_token_of_the_uncached_model(kind: str) -> None:
    one = translator(kind)
    member = one.models.members[0]
    for line in LINES[:4]:
        [found] = one.translate([line], beam=1, max_length=LIMIT)
        source, visible = pad([member.codec.source.encode(line)], multiple=1, device="cpu")
        tokens = [BOS]
        with torch.no_grad():
            while tokens[-1] != EOS and len(tokens) <= LIMIT:
                hidden = member.model(source, visible, torch.tensor([tokens]))
                logits = member.model.logits(hidden)[0, -1]
                logits[[PAD, BOS, UNK]] = -math.inf
                tokens.append(int(logits.argmax()))
        assert found.ids == tuple(token for token in tokens[1:] if token != EOS)


class Uncached:
    """The step function that reads the whole output again for every token."""

    def __init__(self, model: Transformer, source: Tensor, visible: Tensor) -> None:
        self.model = model
        self.visible = visible
        self.memory = model.encode(source, visible)
        self.tokens = torch.empty(len(source), 1, 0, dtype=torch.int64)

    def __call__(self, tokens: Tensor) -> Tensor:
        self.tokens = torch.cat([self.tokens, tokens[:, :, None]], dim=2)
        width = tokens.shape[1]
        hidden = self.model.decode(
            self.tokens.flatten(0, 1),
            self.memory.repeat_interleave(width, 0),
            self.visible.repeat_interleave(width, 0),
        )
        return self.model.logits(hidden[:, -1]).view(*tokens.shape, -1)

    def reorder(self, parents: Tensor) -> None:
        index = parents[:, :, None].expand(-1, -1, self.tokens.shape[2])
        self.tokens = self.tokens.gather(1, index)

    def select(self, sentences: Tensor) -> None:
        self.tokens, self.memory, self.visible = (
            part[sentences] for part in (self.tokens, self.memory, self.visible)
        )


# Kernels add in another order than torch, and what random weights of the sparse kinds make of the
# last bits is as far from float64 in both.
@pytest.mark.parametrize("weights", ["plain", "engine"])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_decoding_is_uncached_decoding(kind: str, weights: str) -> None:
    member = translator(kind, weights=weights).models.members[0]
    beam = 4
    options = SearchOptions(beam=beam, nbest=2, early_stop="exact")
    sources = [member.codec.source.encode(line) for line in LINES[:6]]
    source, visible = pad(sources, multiple=1, device="cpu")
    with torch.inference_mode():
        uncached = search(
            Uncached(member.model, source, visible), options, SYMBOLS, max_lengths=[8] * 6
        )
        step = EnsembleStep([member], [sources], beam=beam, max_length=8, multiple=16, device="cpu")
        cached = search(step, options, SYMBOLS, max_lengths=[8] * 6)
    for one, other in zip(cached, uncached, strict=True):
        assert [x.tokens for x in one] == [x.tokens for x in other]
        for x, y in zip(one, other, strict=True):
            assert x.score == pytest.approx(y.score, abs=5e-5)


def rescored(one: Translator, lines: list[str], found: list[Translation]) -> list[float]:
    """Log probabilities of outputs by one teacher-forced pass."""
    return [pair.log_probability for pair in one.score_pairs(lines, [x.text for x in found])]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_search_are_those_of_the_scorer(kind: str) -> None:
    """To the rounding of float32: in float64 both agree to 1e-10, as tests of the cache show."""
    one = translator(kind)
    found = one.translate(LINES, max_length=LIMIT)
    assert rescored(one, LINES, found) == pytest.approx(
        [x.log_probability for x in found], abs=1e-4, rel=1e-5
    )
    for pair, x in zip(one.score_pairs(LINES, [x.text for x in found]), found, strict=True):
        assert pair.score(one.options) == pytest.approx(x.score, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_scores_and_translates_nearly_alike(kind: str) -> None:
    one, rounded = (translator(kind, weights="plain") for _ in range(2))
    place(rounded.models.members[0].model, torch.device("cpu"), "bfloat16")
    found = one.translate(LINES, max_length=LIMIT)
    texts = [x.text for x in found]
    exactly, nearly = one.score_pairs(LINES, texts), rounded.score_pairs(LINES, texts)
    differences = [
        abs(x.log_probability - y.log_probability) / len(x.tokens)
        for x, y in zip(exactly, nearly, strict=True)
    ]
    assert 0.0 < sum(differences) / len(differences) < 0.15
    others = rounded.translate(LINES, max_length=LIMIT)
    assert rescored(rounded, LINES, others) == pytest.approx(
        [x.log_probability for x in others], abs=1.0, rel=0.1
    )


def test_wider_beams_find_better_scores() -> None:
    one = translator()
    greedy = one.translate(LINES, beam=1, max_length=LIMIT)
    wide = one.translate(LINES, beam=6, max_length=LIMIT)
    better = sum(b.score >= a.score - 1e-6 for a, b in zip(greedy, wide, strict=True))
    assert better >= 0.9 * len(LINES)
    assert sum(b.score > a.score + 1e-6 for a, b in zip(greedy, wide, strict=True)) > 0


def ensemble(*translators: Translator) -> Translator:
    first = translators[0]
    members = [one.models.members[0] for one in translators]
    return Translator(TorchModels(members, "cpu"), first.options, max_source_length=None)


def test_an_ensemble_of_a_model_with_itself_is_the_model() -> None:
    one = translator()
    found = one.translate(LINES, max_length=LIMIT)
    twice = ensemble(one, one).translate(LINES, max_length=LIMIT)
    assert [x.ids for x in twice] == [x.ids for x in found]
    assert [x.score for x in twice] == pytest.approx([x.score for x in found], abs=1e-5)


def test_an_ensemble_of_different_kinds_averages_probabilities() -> None:
    one, other = translator("softmax"), translator("rela-g", seed=2)
    both = ensemble(one, other)
    found = both.translate(LINES, max_length=LIMIT)
    assert rescored(both, LINES, found) == pytest.approx(
        [x.log_probability for x in found], abs=1e-5, rel=1e-5
    )
    texts = [x.text for x in found]
    for line, text, pair in zip(LINES, texts, both.score_pairs(LINES, texts), strict=True):
        [first], [second] = one.score_pairs([line], [text]), other.score_pairs([line], [text])
        expected = [
            math.log((math.exp(a) + math.exp(b)) / 2)
            for a, b in zip(first.tokens, second.tokens, strict=True)
        ]
        assert pair.tokens == pytest.approx(expected, abs=1e-5)


def test_ensembles_do_not_depend_on_the_batch() -> None:
    both = ensemble(translator("softmax"), translator("sparsemax", seed=2))
    alone = [both.translate([line], max_length=LIMIT)[0] for line in LINES[:8]]
    assert exact(both.translate(LINES[:8], max_length=LIMIT)) == exact(alone)


def poison(model: Transformer, codec: Codec, word: str) -> None:
    """Make the model compute NaN for every sentence with a word."""
    number = codec.source.vocabulary.encode([word])[0]
    assert number != UNK
    with torch.no_grad():
        model.source_embedding[number] = math.nan


@pytest.mark.parametrize("kind", KINDS)
def test_nan_fails_its_line_only(kind: str) -> None:
    one = translator(kind)
    member = one.models.members[0]
    clean = [line for line in LINES if "dog" not in line.split(" ")][:4]
    expected = one.translate(clean, max_length=LIMIT)
    poison(member.model, member.codec, "dog")
    found = one.translate([clean[0], "the dog sees", *clean[1:], "dog"], max_length=LIMIT)
    assert [x.failed for x in found] == [False, True, False, False, False, True]
    assert found[1].text == ""
    assert math.isnan(found[1].score)
    assert exact([found[0], *found[2:5]]) == exact(expected)


def test_translating_leaves_a_training_model_as_it_was() -> None:
    one = translator()
    model = one.models.members[0].model.train()
    expected = translator().translate(LINES[:3], max_length=LIMIT)
    assert exact(one.translate(LINES[:3], max_length=LIMIT)) == exact(expected)
    assert all(module.training for module in model.modules())
    source, visible = pad([[5, 6, EOS]], multiple=1, device="cpu")
    model(source, visible, torch.tensor([[BOS, 5]])).sum().backward()
    assert model.target_embedding.grad is not None


def test_prefixes_are_kept_and_the_rest_is_free() -> None:
    one = translator()
    free = one.translate(LINES[:6], max_length=LIMIT)
    prefixes = ["", "THE OLD", "CAT", "", "TREE TREE TREE", "A"]
    found = one.translate(LINES[:6], max_length=LIMIT, prefixes=prefixes)
    for x, prefix in zip(found, prefixes, strict=True):
        assert x.text.startswith(prefix)
    assert exact([found[0], found[3]]) == exact([free[0], free[3]])
    assert rescored(one, LINES[:6], found) == pytest.approx(
        [x.log_probability for x in found], abs=1e-5, rel=1e-5
    )


@pytest.mark.parametrize("weights", ["plain", "packed", "engine", "engine int8"])
def test_prefixes_beyond_the_maximum_length_are_the_output(weights: str) -> None:
    """A sentence may be as long as its prefix, and its steps have memory for that."""
    one = translator(weights=weights)
    prefixes = [" ".join(["THE OLD CAT"] * number) for number in (30, 0, 7, 1)]
    for sampling in (None, Sampling(seed=3)):
        found = one.translate(LINES[:4], max_length=2, prefixes=prefixes, sampling=sampling)
        assert [x.text for x in found if x.text.startswith("THE OLD")] == [
            prefix for prefix in prefixes if prefix
        ]
        assert len(found[1].ids) <= 2


def test_nbest_lists_are_sorted_and_begin_with_the_best() -> None:
    one = translator()
    best = one.translate(LINES[:6], max_length=LIMIT, beam=5)
    found = one.translate(LINES[:6], max_length=LIMIT, beam=5, nbest=5)
    for x, y in zip(found, best, strict=True):
        assert x.nbest[0].text == x.text == y.text
        scores = [other.score for other in x.nbest]
        assert scores == sorted(scores, reverse=True)
        assert len({other.ids for other in x.nbest}) == len(x.nbest) > 1


def test_minimum_and_maximum_length() -> None:
    one = translator()
    assert all(len(x.ids) >= 5 for x in one.translate(LINES, min_length=5, max_length=9))
    found = one.translate(LINES, max_length=3)
    assert all(len(x.ids) <= 3 for x in found)
    assert rescored(one, LINES, found) == pytest.approx(
        [x.log_probability for x in found], abs=1e-5, rel=1e-5
    )


def test_blank_and_long_lines() -> None:
    config = make_config(max_length=10)
    codec = make_codec(config)
    one = Translator.from_model(
        make_model(config, codec), codec, config.decode, max_source_length=10
    )
    long = " ".join(["the"] * 13)
    found = one.translate(["", "the cat", "  \t", long, " ".join(["the"] * 10)], max_length=5)
    assert [x.num_dropped for x in found] == [0, 0, 0, 3, 0]
    assert found[0].text == found[2].text == ""
    assert not any(x.failed for x in found)
    assert found[3].ids == found[4].ids


def test_halved_batches_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    one = translator(weights="packed")
    expected = one.translate(LINES[:8], max_length=LIMIT)
    encode = Transformer.encode
    refused = []

    def small_memory(self: Transformer, source: Tensor, visible: Tensor) -> Tensor:
        if len(source) > 4:
            refused.append(len(source))
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
        return encode(self, source, visible)

    monkeypatch.setattr(Transformer, "encode", small_memory)
    found = one.translate(LINES[:8], max_length=LIMIT)
    assert refused
    assert exact(found) == exact(expected)


class FixedBudget(Budget):
    """The budget of a device with this many bytes."""

    bytes_free = 5_000_000

    def free(self) -> int:
        return self.bytes_free


def test_batches_by_memory_and_their_halves_give_the_same_result(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = translator(weights="packed")
    options = replace(one.options, max_length=LIMIT)
    lines = [Line(number, text) for number, text in enumerate(LINES)]
    expected = dict(one.translate_lines(lines, options))
    encode = Transformer.encode
    sizes = []

    def small_memory(self: Transformer, source: Tensor, visible: Tensor) -> Tensor:
        sizes.append(len(source))
        if len(source) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")
        return encode(self, source, visible)

    monkeypatch.setattr(Transformer, "encode", small_memory)
    one.models.budget = FixedBudget(torch.device("cpu"))
    found = dict(one.translate_lines(lines, replace(options, fill_memory=True)))
    assert exact([found[line.number] for line in lines]) == exact(
        [expected[line.number] for line in lines]
    )
    assert 4 < sizes[0] < len(lines)
    assert one.models.budget.share < SHARE
    assert "cpu: not enough memory for" in caplog.text
    tried, sizes[:] = max(sizes), []
    dict(one.translate_lines(lines, replace(options, fill_memory=True)))
    assert max(sizes) < tried  # the budget stays smaller


def test_alignments_and_attention_describe_the_output() -> None:
    one = translator("rela-g")
    found = one.translate([*LINES[:6], ""], max_length=LIMIT, alignments=True, attention=True)
    for line, x in zip(LINES[:6], found, strict=False):
        assert x.alignment is not None
        assert x.attention is not None
        words, outputs = len(line.split(" ")), len(x.text.split(" ")) if x.text else 0
        assert all(0 <= a < words and 0 <= b < outputs for a, b in x.alignment)
        assert x.attention.cross.shape == (2, 4, len(x.ids) + 1, words + 1)
        assert x.attention.source == (*line.split(" "), "</s>")
        assert x.attention.target[-1] == "</s>"
        # A word is aligned where the mean of the heads, one step later, is largest.
        weights = x.attention.cross[0].mean(axis=0)[1:, :-1]
        expected = [(int(row.argmax()), t) for t, row in enumerate(weights) if row.max() > 0]
        assert list(x.alignment) == expected
    assert found[6].alignment == ()


def test_one_text_and_one_type_of_attention() -> None:
    """A text is not taken for a list of characters, nor a type for a list of types."""
    one = translator("rela-g")
    for wrong in (
        lambda: one.translate("the old man"),
        lambda: one.translate(["the old man"], prefixes="THE"),
        lambda: one.score_pairs("the old man", "THE OLD MAN"),
    ):
        with pytest.raises(TypeError, match="expected a list of texts, got one text"):
            wrong()
    (given,) = one.translate(["the old man"], max_length=LIMIT, attention="encoder_self")
    (listed,) = one.translate(["the old man"], max_length=LIMIT, attention=["encoder_self"])
    assert given.attention is not None
    assert listed.attention is not None
    assert list(given.attention.weights) == list(listed.attention.weights) == ["encoder_self"]
    (pair,) = one.score_pairs(["the old man"], ["THE OLD MAN"], attention="cross")
    assert pair.attention is not None
    with pytest.raises(UserError, match=r"expected types of .*, got 'self'"):
        one.translate(["the old man"], attention="self")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "rela-g"])
def test_two_thousand_sentences_in_batches_of_any_size(kind: str) -> None:
    one = translator(kind)
    lines = random_lines(2000, seed=11, longest=40)
    first = exact(one.translate(lines, max_length=LIMIT))
    for sentences in (1, 2, 3, 7, 16, 64):
        order = torch.randperm(
            len(lines), generator=torch.Generator().manual_seed(sentences)
        ).tolist()
        found = exact(
            one.translate(
                [lines[position] for position in order],
                max_length=LIMIT,
                batch_tokens=48 * sentences,
            )
        )
        assert found == [first[position] for position in order]
