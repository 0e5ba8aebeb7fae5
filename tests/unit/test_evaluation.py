"""The scores are SacreBLEU's and multi-bleu.perl's, to the last digit that matters."""

import math
import os
import random
import shutil
import subprocess

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.significance import PairedTest

from nmt.errors import DataError
from nmt.evaluation import (
    METRIC_NAMES,
    Metrics,
    References,
    Score,
    bleu,
    chrf,
    official_references,
    signs_of_tokenization,
    split_hyphens,
    tokenized_bleu,
)


def ter(hypotheses: list[str], references: References) -> Score:
    """The one score of TER."""
    (score,) = Metrics(references, names=["ter"]).score(hypotheses)
    return score


REFERENCE = ["the cat sat on the mat .", "a dog, seen by the old man, runs away."]
HYPOTHESIS = ["the cat sat on a mat .", "A dog seen by the old man runs home."]


def corpus(seed: int, *, lines: int = 60) -> tuple[list[str], list[str], list[str]]:
    """References and the output of two systems, the second worse than the first."""
    generator = random.Random(seed)
    words = ["the", "a", "dog", "cat", "man", "sees", "old", "runs", "Über", "away", ",", "."]
    references = [
        " ".join(generator.choices(words, k=generator.randint(4, 15))) for _ in range(lines)
    ]

    def spoil(rate: float) -> list[str]:
        return [
            " ".join(
                generator.choice(words) if generator.random() < rate else word
                for word in line.split()
            )
            for line in references
        ]

    return references, spoil(0.1), spoil(0.2)


class TestSacrebleu:
    def test_identical_text_is_perfect(self) -> None:
        for text in (REFERENCE, [*REFERENCE, ""]):
            assert bleu(text, text).value == pytest.approx(100)
            assert chrf(text, text).value == pytest.approx(100)
            assert ter(text, text).value == 0
            assert tokenized_bleu(text, text).value == pytest.approx(100)

    def test_ter_of_one_edit_in_five_words(self) -> None:
        score = ter(["the cat sat here now"], ["The cat sat there now"])
        assert score.value == pytest.approx(100 / 5)
        assert score.details == {"edits": 1, "reference_length": 5}

    def test_signature_tells_the_options(self) -> None:
        assert bleu(HYPOTHESIS, REFERENCE).signature == (
            f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
        )
        signature = bleu(
            HYPOTHESIS, [REFERENCE, HYPOTHESIS], tokenize="zh", lowercase=True
        ).signature
        assert signature.startswith("nrefs:2|case:lc|eff:no|tok:zh|")
        assert "case:lc" in chrf(HYPOTHESIS, REFERENCE, lowercase=True).signature

    def test_lowercase_ignores_case(self) -> None:
        shouted = [line.upper() for line in REFERENCE]
        assert bleu(shouted, REFERENCE).value < 50
        assert bleu(shouted, REFERENCE, lowercase=True).value == pytest.approx(100)
        assert chrf(shouted, REFERENCE, lowercase=True).value == pytest.approx(100)

    def test_tokenizer_matters(self) -> None:
        hypothesis, reference = ["他看见一只狗在跑。"], ["他看见一只猫在跑。"]
        assert bleu(hypothesis, reference, tokenize="13a").value == 0
        expected = sacrebleu.corpus_bleu(hypothesis, [reference], tokenize="zh").score
        assert bleu(hypothesis, reference, tokenize="zh").value == expected > 30

    def test_a_flat_list_is_one_reference_a_line(self) -> None:
        for metric in (bleu, chrf, ter, tokenized_bleu):
            assert metric(HYPOTHESIS, REFERENCE) == metric(HYPOTHESIS, [REFERENCE])
            assert metric(HYPOTHESIS, tuple(REFERENCE)) == metric(HYPOTHESIS, [REFERENCE])

    def test_a_second_reference_can_only_help(self) -> None:
        references, good, bad = corpus(1)
        assert bleu(bad, [references, good]).value > bleu(bad, references).value
        assert bleu(bad, [references, bad]).value == pytest.approx(100)

    @pytest.mark.parametrize("metric", [bleu, chrf, ter, tokenized_bleu])
    def test_what_cannot_be_scored(self, metric) -> None:
        with pytest.raises(DataError, match="2 hypotheses and 1 references"):
            metric(HYPOTHESIS, REFERENCE[:1])
        with pytest.raises(DataError, match="2 hypotheses and 3 references"):
            metric(HYPOTHESIS, [REFERENCE, [*REFERENCE, "more"]])
        with pytest.raises(DataError, match="no line"):
            metric([], [[]])
        with pytest.raises(DataError, match="at least one reference"):
            metric(HYPOTHESIS, [])


class TestTokenizedBleu:
    def test_worked_example(self) -> None:
        hypothesis = "the cat sat on the mat today"  # 7 words
        reference = "the cat sat on the mat yesterday evening"  # 8 words
        # In the hypothesis 6 of 7 words, 5 of 6 pairs, 4 of 5 triples, 3 of 4 quadruples are right:
        # the product of the precisions is 3/7.
        expected = 100 * math.exp(1 - 8 / 7) * (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** (1 / 4)
        score = tokenized_bleu([hypothesis], [reference])
        assert score.value == pytest.approx(expected, rel=1e-12)
        assert score.value == pytest.approx(70.1397, abs=1e-4)
        assert score.details["precisions"] == pytest.approx([600 / 7, 500 / 6, 80, 75])
        assert score.details["brevity_penalty"] == pytest.approx(math.exp(-1 / 7))

    def test_counts_are_summed_over_the_corpus(self) -> None:
        hypotheses = ["a b c d e", "a b x"]
        references = ["a b c d e", "a b c"]
        # 5 + 2 of 8 words, 4 + 1 of 6 pairs, 3 + 0 of 4 triples, 2 of 2 quadruples.
        expected = 100 * (7 / 8 * 5 / 6 * 3 / 4 * 2 / 2) ** (1 / 4)
        assert tokenized_bleu(hypotheses, references).value == pytest.approx(expected, rel=1e-12)

    def test_precisions_of_the_paper_that_introduced_bleu(self) -> None:
        """Papineni et al. (2002), section 2.1: example 1 (18 and 14 words) and example 2."""
        references = [
            ["It is a guide to action that ensures that the military will forever heed Party "
             "commands"],
            ["It is the guiding principle which guarantees the military forces always being under "
             "the command of the Party"],
            ["It is the practical guide for the army always to heed the directions of the party"],
        ]  # fmt: skip
        first = (
            "It is a guide to action which ensures that the military always obeys the commands of "
            "the party"
        )
        second = (
            "It is to insure the troops forever hearing the activity guidebook that party direct"
        )
        assert tokenized_bleu([first], references).details["precisions"][:2] == pytest.approx(
            [100 * 17 / 18, 100 * 10 / 17]
        )
        assert tokenized_bleu([second], references).details["precisions"][:2] == pytest.approx(
            [100 * 8 / 14, 100 * 1 / 13]
        )
        clipped = tokenized_bleu(
            ["the the the the the the the"],
            [["the cat is on the mat"], ["there is a cat on the mat"]],
        )
        assert clipped.details["precisions"][0] == pytest.approx(100 * 2 / 7)

    @pytest.mark.parametrize(
        ("lengths", "chosen"), [((5, 7), 5), ((7, 5), 5), ((4, 7), 7), ((9, 2), 9), ((6, 5), 6)]
    )
    def test_the_closest_reference_length_and_of_two_the_shorter(
        self, lengths: tuple[int, int], chosen: int
    ) -> None:
        references = [[" ".join(["w"] * length)] for length in lengths]
        score = tokenized_bleu(["w w w w w w"], references)  # 6 words
        assert score.details["reference_length"] == chosen
        expected = 1.0 if chosen <= 6 else math.exp(1 - chosen / 6)
        assert score.details["brevity_penalty"] == pytest.approx(expected)

    def test_nothing_is_smoothed(self) -> None:
        hypothesis, reference = ["a b c x d e f"], ["a b c y d e f"]  # no four in a row
        assert tokenized_bleu(hypothesis, reference).value == 0
        assert bleu(hypothesis, reference).value > 0

    def test_nothing_is_tokenized(self) -> None:
        reference = ["a b c d e."]
        assert tokenized_bleu(["a b c d e ."], reference).value < 100
        assert bleu(["a b c d e ."], reference).value == pytest.approx(100)

    def test_only_ascii_white_space_parts_words(self) -> None:
        """The Perl script reads bytes."""
        score = tokenized_bleu(["a\u00a0b c\u3000d  e\tf \x1c g\u2028h "], ["a b c d e f"])
        assert score.details["hypothesis_length"] == 6

    def test_lowercase_is_that_of_ascii(self) -> None:
        """`multi-bleu.perl -lc` leaves the letters beyond ASCII as they are."""
        same = tokenized_bleu(["A B C D É"], ["a b c d É"], lowercase=True)
        assert same.value == pytest.approx(100)
        assert "case:lc" in same.signature
        other = tokenized_bleu(["A B C D É"], ["a b c d é"], lowercase=True)
        assert other.details["precisions"][0] == pytest.approx(80)

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("a rich-text format", "a rich ##AT##-##AT## text format"),
            ("E-Mail-Konto", "E ##AT##-##AT## Mail ##AT##-##AT## Konto"),
            ("a-b-c", "a ##AT##-##AT## b-c"),  # the Perl expression takes the b only once
            ("a-ü-c", "a ##AT##-##AT## ü ##AT##-##AT## c"),  # but a letter of two bytes twice
            ("- a - b -", "- a - b -"),
            ("Ost- und", "Ost- und"),
            ("E ##AT##-##AT## Mail", "E ##AT##-##AT## Mail"),  # Stanford's own text
            ("", ""),
        ],
    )
    def test_hyphens_are_split_as_in_the_release_of_stanford(
        self, line: str, expected: str
    ) -> None:
        assert split_hyphens(line) == expected

    @pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
    def test_hyphens_are_split_like_the_usual_perl_expression(self) -> None:
        generator = random.Random(7)
        text = "".join(generator.choices("ab-ü –\u00a0\u2011.", k=5000))
        lines = [line for line in text.split(" ") if line] + [text]
        expression = "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g"
        done = subprocess.run(
            ["perl", "-ple", expression], input="\n".join(lines).encode(), capture_output=True
        )
        assert [split_hyphens(line) for line in lines] == done.stdout.decode().split("\n")[:-1]

    def test_split_hyphens_count_as_words(self) -> None:
        hypothesis, reference = ["das alte E-Mail Konto"], ["das alte E-Post Konto"]
        whole = tokenized_bleu(hypothesis, reference)
        split = tokenized_bleu(hypothesis, reference, hyphens="split")
        assert (whole.details["reference_length"], split.details["reference_length"]) == (4, 6)
        by_hand = [split_hyphens(line) for line in (*hypothesis, *reference)]
        assert split.value == tokenized_bleu(by_hand[:1], by_hand[1:]).value > 0 == whole.value
        assert "hyphens split" in split.signature
        assert "hyphens" not in whole.signature

    def test_cannot_be_mistaken_for_sacrebleu(self) -> None:
        score = tokenized_bleu(HYPOTHESIS, REFERENCE)
        assert "multi-bleu.perl" in score.name
        assert "not SacreBLEU" in score.signature
        assert "version" not in score.signature

    def test_silence_scores_nothing(self) -> None:
        assert tokenized_bleu(["", ""], REFERENCE).value == 0
        assert tokenized_bleu(["", ""], ["", ""]).value == 0

    @given(
        st.lists(
            st.tuples(*[st.lists(st.sampled_from("abcd"), max_size=9).map(" ".join)] * 3),
            min_size=1,
            max_size=6,
        )
    )
    def test_equals_sacrebleu_without_tokenizer_and_smoothing(
        self, rows: list[tuple[str, str, str]]
    ) -> None:
        hypotheses, *references = (list(column) for column in zip(*rows, strict=True))
        theirs = sacrebleu.corpus_bleu(
            hypotheses, references, tokenize="none", smooth_method="none", force=True
        )
        ours = tokenized_bleu(hypotheses, references)
        assert ours.value == pytest.approx(theirs.score, abs=1e-9)
        assert ours.details["hypothesis_length"] == theirs.sys_len
        assert ours.details["reference_length"] == theirs.ref_len


class TestPairedTests:
    @pytest.mark.parametrize("test", ["bs", "ar"])
    def test_results_are_sacrebleus(self, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
        references, good, bad = corpus(2)
        ours = Metrics(references, names=["bleu", "chrf"]).compare(
            [good, bad], test=test, samples=200, seed=7
        )
        monkeypatch.setenv("SACREBLEU_SEED", "7")
        metrics = {"BLEU": sacrebleu.BLEU(), "CHRF": sacrebleu.CHRF()}
        signatures, theirs = PairedTest(
            [("good", good), ("bad", bad)], metrics, [references], test_type=test, n_samples=200
        )()
        for position, row in enumerate(ours):
            for entry in row:
                expected = theirs[entry.score.name][position]
                assert entry.score.value == pytest.approx(expected.score)
                assert entry.p_value == expected.p_value
                assert entry.mean == expected.mean
                assert entry.interval == expected.ci
                assert entry.score.signature == str(signatures[entry.score.name])

    def test_scores_are_those_without_a_test(self) -> None:
        references, good, bad = corpus(3)
        metrics = Metrics(references)
        rows = metrics.compare([good, bad], samples=10)
        for system, row in zip([good, bad], rows, strict=True):
            plain = metrics.score(system)
            assert [(entry.score.name, entry.score.value) for entry in row] == [
                (score.name, score.value) for score in plain
            ]
            assert len(row) == len(METRIC_NAMES)

    def test_the_seed_decides(self) -> None:
        references, good, bad = corpus(4, lines=12)
        metrics = Metrics(references, names=["bleu"])

        def p_value(seed: int) -> float | None:
            return metrics.compare([good, bad], samples=100, seed=seed)[1][0].p_value

        assert p_value(1) == p_value(1)
        assert len({p_value(seed) for seed in range(1, 9)}) > 1

    def test_the_environment_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        references, good, bad = corpus(5, lines=5)
        metrics = Metrics(references, names=["bleu"])
        monkeypatch.setenv("SACREBLEU_SEED", "99")
        metrics.compare([good, bad], samples=5, seed=3)
        assert os.environ["SACREBLEU_SEED"] == "99"
        monkeypatch.delenv("SACREBLEU_SEED")
        metrics.compare([good, bad], samples=5, seed=3)
        assert "SACREBLEU_SEED" not in os.environ

    @pytest.mark.parametrize("test", ["bs", "ar"])
    def test_a_large_difference_is_significant_and_none_is_not(self, test: str) -> None:
        references, good, _ = corpus(6)
        awful = [" ".join(reversed(line.split())) for line in references]
        rows = Metrics(references, names=["bleu"]).compare(
            [good, awful, list(good)], test=test, samples=200
        )
        assert rows[0][0].p_value is None
        assert rows[1][0].p_value == pytest.approx(1 / 201)
        assert rows[2][0].p_value == 1


class TestSignsOfTokenization:
    def test_raw_text_has_none(self) -> None:
        raw = ["It's a dog.", "Ça va ?", "Oui !", "Well-known e-mail: me@x.org", "", "他在跑。"]
        assert signs_of_tokenization(raw) == []
        assert signs_of_tokenization([]) == []
        assert signs_of_tokenization(["", ""]) == []

    @pytest.mark.parametrize(
        ("line", "sign"),
        [
            ("a dog runs .", "full stop"),
            ("他 在 跑 。", "full stop"),
            ("a well @-@ known dog", "marks"),
            ("it &apos;s a dog", "marks"),
            ("a wol@@ f runs", "subwords"),
            ("▁a ▁wol f ▁runs", "subwords"),
        ],
    )
    def test_tokenized_text_has_some(self, line: str, sign: str) -> None:
        (found,) = signs_of_tokenization([line, line, "", "A raw line"])
        assert sign in found

    def test_a_few_lines_are_no_sign(self) -> None:
        assert signs_of_tokenization(["a dog runs ."] * 4 + ["A dog runs."] * 6) == []
        assert signs_of_tokenization(["a wol@@ f"] + ["A wolf."] * 19) == []


class TestOfficialReferences:
    def test_unknown_names(self) -> None:
        with pytest.raises(DataError, match=r"got wmt14full; near it: wmt14/full"):
            official_references("wmt14full", "en-de")
        with pytest.raises(DataError, match="sacrebleu --list"):
            official_references("zzzz", "en-de")
        with pytest.raises(
            DataError, match=r"no language pair en-xx; expected one of cs-en, de-en"
        ):
            official_references("wmt14/full", "en-xx")
