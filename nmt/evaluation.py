"""Scores of translations that others can reproduce: SacreBLEU's metrics, and old multi-bleu.perl's.

Throughout, `references` is one list of lines, or several such lists (several references a line);
every list has as many lines as the hypotheses.
"""

import difflib
import http.client
import math
import os
import re
import socket
import string
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import portalocker.exceptions
import sacrebleu
from sacrebleu.dataset.wmt_xml import WMTXMLDataset
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEUScore
from sacrebleu.metrics.ter import TERScore

from nmt.errors import DataError

MetricName = Literal["bleu", "chrf", "ter"]
PairedTestName = Literal["bs", "ar"]
References = Sequence[str] | Sequence[Sequence[str]]

METRICS: tuple[MetricName, ...] = ("bleu", "chrf", "ter")
TOKENIZERS = ("13a", "zh", "char", "intl", "none")
DEFAULT_SAMPLES: Mapping[PairedTestName, int] = {"bs": 1000, "ar": 10000}
DEFAULT_SEED = 12345  # SacreBLEU's own
TOKENIZED_BLEU = "tokenized BLEU (multi-bleu.perl)"
MAX_ORDER = 4
DOWNLOAD_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Score:
    """A corpus score (0 to 100 or, for TER, more) and the signature that lets others repeat it."""

    name: str
    value: float
    signature: str
    details: Mapping[str, float | Sequence[float]]


@dataclass(frozen=True)
class Comparison:
    """One system's score in a paired test against the first system.

    `p_value` is None for the first system itself. `mean` and `interval` (half the width of the 95 %
    confidence interval) come from the bootstrap and are None for approximate randomisation.
    """

    score: Score
    p_value: float | None
    mean: float | None
    interval: float | None


# ---------------------------------------------------------------- SacreBLEU


class Metrics:
    """SacreBLEU metrics that have digested the references once, for one system or many."""

    def __init__(
        self,
        references: References,
        *,
        names: Sequence[MetricName] = METRICS,
        tokenize: str = "13a",
        lowercase: bool = False,
    ) -> None:
        """`lowercase` concerns BLEU and chrF: SacreBLEU's TER ignores case anyway."""
        self._references = _reference_sets(references)
        self._metrics: dict[str, Metric] = {
            name: _make_metric(name, self._references, tokenize=tokenize, lowercase=lowercase)
            for name in names
        }

    def score(self, hypotheses: Sequence[str]) -> list[Score]:
        """A score for each metric, in the order of the names."""
        _check_counts(hypotheses, self._references)
        scores = []
        for metric in self._metrics.values():
            result = metric.corpus_score(hypotheses, references=None)
            signature = str(metric.get_signature())
            scores.append(Score(result.name, float(result.score), signature, _details(result)))
        return scores

    def compare(
        self,
        systems: Sequence[Sequence[str]],
        *,
        test: PairedTestName = "bs",
        samples: int | None = None,
        seed: int = DEFAULT_SEED,
    ) -> list[list[Comparison]]:
        """Paired bootstrap ("bs") or approximate randomisation ("ar") against the first system.

        Returns, for each system, a comparison for each metric. A system whose lines are those of
        the first has p = 1; SacreBLEU itself would report the smallest p possible.
        """
        from sacrebleu.significance import PairedTest, Result  # imports numpy

        assert len(systems) >= 2, "a paired test needs two systems"
        assert seed > 0, "SacreBLEU takes the seed 0 for no seed at all"
        scores = [self.score(hypotheses) for hypotheses in systems]
        named = [(str(position), hypotheses) for position, hypotheses in enumerate(systems)]
        with _sacrebleu_seed(seed):
            signatures, results = PairedTest(
                named,
                self._metrics,
                references=None,
                test_type=test,
                n_samples=samples or DEFAULT_SAMPLES[test],
            )()
        first = list(systems[0])
        comparisons = []
        for position, hypotheses in enumerate(systems):
            row = []
            for score in scores[position]:
                result = cast(Result, results[score.name][position])
                same = position > 0 and list(hypotheses) == first
                signed = Score(score.name, score.value, str(signatures[score.name]), score.details)
                row.append(
                    Comparison(
                        signed,
                        p_value=1.0 if same else result.p_value,
                        mean=None if result.mean is None else float(result.mean),
                        interval=None if result.ci is None else float(result.ci),
                    )
                )
            comparisons.append(row)
        return comparisons


def bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Score:
    """SacreBLEU's BLEU of raw (detokenised) text."""
    metrics = Metrics(references, names=["bleu"], tokenize=tokenize, lowercase=lowercase)
    return metrics.score(hypotheses)[0]


def chrf(hypotheses: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """SacreBLEU's chrF2 of raw text."""
    return Metrics(references, names=["chrf"], lowercase=lowercase).score(hypotheses)[0]


def ter(hypotheses: Sequence[str], references: References) -> Score:
    """SacreBLEU's translation edit rate of raw text: lower is better, case is ignored."""
    return Metrics(references, names=["ter"]).score(hypotheses)[0]


def _make_metric(
    name: MetricName, references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool
) -> Metric:
    if name == "bleu":
        # force=True: the warning about tokenised text is ours (see signs_of_tokenization).
        return sacrebleu.BLEU(
            tokenize=tokenize, lowercase=lowercase, force=True, references=references
        )
    if name == "chrf":
        return sacrebleu.CHRF(lowercase=lowercase, references=references)
    return sacrebleu.TER(references=references)


def _details(result: object) -> dict[str, float | Sequence[float]]:
    """What a metric knows beside its score."""
    if isinstance(result, BLEUScore):
        return {
            "precisions": [float(precision) for precision in result.precisions],
            "brevity_penalty": float(result.bp),
            "hypothesis_length": int(result.sys_len),
            "reference_length": int(result.ref_len),
        }
    if isinstance(result, TERScore):
        return {"edits": int(result.num_edits), "reference_length": float(result.ref_length)}
    return {}


def _reference_sets(references: References) -> list[list[str]]:
    """The references as a list of lists of lines; a flat list of lines is one reference a line."""
    if not references:
        raise DataError("expected at least one reference, got none")
    if all(isinstance(line, str) for line in references):
        return [list(cast(Sequence[str], references))]
    return [list(lines) for lines in references]


def _check_counts(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not hypotheses:
        raise DataError("expected hypotheses to score, got no line at all")
    for lines in references:
        if len(lines) != len(hypotheses):
            raise DataError(
                f"expected a reference for each hypothesis, "
                f"got {len(hypotheses)} hypotheses and {len(lines)} references"
            )


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """SacreBLEU takes the seed of its tests from the environment alone."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


# ---------------------------------------------------------------- multi-bleu.perl

# The Perl script works on bytes: only ASCII white space parts words (a no-break or ideographic
# space does not) and its option -lc lowers only A to Z.
_PERL_WORD = re.compile(r"[^ \t\n\r\f\v]+")
_PERL_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def tokenized_bleu(
    hypotheses: Sequence[str], references: References, *, lowercase: bool = False
) -> Score:
    """BLEU of text as it is tokenised, as Moses' multi-bleu.perl computes it.

    Words are what white space parts, nothing is smoothed, and the reference length of a line is the
    closest one, the shorter of two equally close. `lowercase` is the script's option -lc.
    """
    sets = _reference_sets(references)
    _check_counts(hypotheses, sets)
    matches, totals = [0] * MAX_ORDER, [0] * MAX_ORDER
    hypothesis_length = reference_length = 0
    for line, *alternatives in zip(hypotheses, *sets, strict=True):
        words = _perl_words(line, lowercase)
        references_words = [_perl_words(alternative, lowercase) for alternative in alternatives]
        hypothesis_length += len(words)
        reference_length += min(
            (len(reference) for reference in references_words),
            key=lambda length: (abs(length - len(words)), length),
        )
        for order in range(1, MAX_ORDER + 1):
            counts = _ngrams(words, order)
            allowed: Counter[tuple[str, ...]] = Counter()
            for reference in references_words:
                allowed |= _ngrams(reference, order)
            matches[order - 1] += (counts & allowed).total()
            totals[order - 1] += counts.total()
    precisions = [
        matched / total if total else 0.0 for matched, total in zip(matches, totals, strict=True)
    ]
    penalty = 1.0
    if hypothesis_length < reference_length:
        penalty = math.exp(1 - reference_length / hypothesis_length) if hypothesis_length else 0.0
    value = 0.0
    if all(precisions):
        value = 100 * penalty * math.exp(sum(map(math.log, precisions)) / MAX_ORDER)
    case = "lc" if lowercase else "mixed"
    return Score(
        TOKENIZED_BLEU,
        value,
        f"multi-bleu.perl, not SacreBLEU|nrefs:{len(sets)}|case:{case}|tok:as given|smooth:none",
        {
            "precisions": [100 * precision for precision in precisions],
            "brevity_penalty": penalty,
            "hypothesis_length": hypothesis_length,
            "reference_length": reference_length,
        },
    )


def _perl_words(line: str, lowercase: bool) -> list[str]:
    return _PERL_WORD.findall(line.translate(_PERL_LOWER) if lowercase else line)


def _ngrams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))


# ---------------------------------------------------------------- text that is not raw

# (what it means, what shows it, the share of lines from which on we believe it)
_SIGNS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("most lines end in a space and a full stop", re.compile(r"\S [.。]\s*$"), 0.5),
    ("it has marks such as @-@ or &apos;", re.compile(r" @[-/,.]@ |&(apos|quot|amp|#\d+);"), 0.1),
    ("its subwords are not joined", re.compile(r"\S@@( |$)|(^|\s)▁\S"), 0.1),
)  # fmt: skip


def signs_of_tokenization(lines: Sequence[str]) -> list[str]:
    """Why these lines seem to be tokenised or segmented text; an empty list when they seem raw."""
    filled = [line for line in lines if line.strip()]
    signs = []
    for meaning, pattern, share in _SIGNS:
        hits = sum(1 for line in filled if pattern.search(line))
        if hits and hits >= share * len(filled):
            signs.append(meaning)
    return signs


# ---------------------------------------------------------------- official test sets


def official_references(name: str, language_pair: str, *, download: bool = False) -> list[Path]:
    """The reference files of one of SacreBLEU's test sets, e.g. ("wmt14/full", "en-de").

    They come from SacreBLEU's cache ($SACREBLEU, or ~/.sacrebleu); the network is touched only with
    `download`.
    """
    dataset = _find_dataset(name, language_pair)
    if not isinstance(dataset, WMTXMLDataset):  # that kind knows its fields only after unpacking
        fields = [field for field in dataset.fieldnames(language_pair) if field.startswith("ref")]
        files = [Path(dataset._get_txt_file_path(language_pair, field)) for field in fields]
        if all(file.is_file() for file in files):
            return files
    folder = Path(sacrebleu.SACREBLEU_DIR) / name
    if not download and not _archives_present(dataset):
        raise DataError(
            f"test set {name} {language_pair} is not in SacreBLEU's cache {folder}; add --download "
            f"to fetch it from {', '.join(dataset.data or [])}, or give the files with --reference"
        )
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_SECONDS)  # SacreBLEU sets none and could hang
    try:
        files = [Path(file) for file in dataset.get_reference_files(language_pair)]
    except (
        OSError,
        EOFError,
        SystemExit,  # SacreBLEU's way to report a wrong checksum or certificate
        http.client.HTTPException,
        tarfile.TarError,
        zipfile.BadZipFile,
        portalocker.exceptions.BaseLockException,
    ) as error:
        reason = "SacreBLEU gave up" if isinstance(error, SystemExit) else str(error)
        raise DataError(
            f"test set {name} {language_pair} cannot be fetched or unpacked ({reason}); check the "
            f"network, remove {folder} if it is damaged, or give the files with --reference"
        ) from error
    finally:
        socket.setdefaulttimeout(timeout)
    if not files:
        raise DataError(f"test set {name} {language_pair} has no reference")
    return files


def _find_dataset(name: str, language_pair: str) -> Any:  # SacreBLEU leaves its Dataset untyped
    if name not in sacrebleu.DATASETS:
        near = difflib.get_close_matches(name, sacrebleu.DATASETS, n=3, cutoff=0.5)
        raise DataError(
            f"expected the name of a SacreBLEU test set, got {name}"
            + (f"; near it: {', '.join(near)}" if near else "; `sacrebleu --list` shows them")
        )
    dataset = sacrebleu.DATASETS[name]
    if language_pair not in dataset.langpairs:
        raise DataError(
            f"test set {name} has no language pair {language_pair}; "
            f"expected one of {', '.join(sorted(dataset.langpairs))}"
        )
    return dataset


def _archives_present(dataset: Any) -> bool:
    """Whether SacreBLEU has the archives already, so that it unpacks without the network."""
    archives = [
        Path(dataset._rawdir, dataset._get_tarball_filename(address))
        for address in dataset.data or []
    ]
    return all(archive.is_file() and archive.stat().st_size > 0 for archive in archives)
