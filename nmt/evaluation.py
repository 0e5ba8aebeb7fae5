"""Scores that others can reproduce: SacreBLEU's metrics and multi-bleu.perl's.

`references` is always one list of lines, or several such lists for several references per line.
Every list has as many lines as the hypotheses.
"""

import difflib
import http.client
import os
import re
import socket
import string
import tarfile
import zipfile
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

METRIC_NAMES: tuple[MetricName, ...] = ("bleu", "chrf", "ter")
TOKENIZERS = ("13a", "zh", "char", "intl", "none")
DEFAULT_SAMPLES: Mapping[PairedTestName, int] = {"bs": 1000, "ar": 10000}
DEFAULT_SEED = 12345  # SacreBLEU's own
TOKENIZED_BLEU = "tokenized BLEU (multi-bleu.perl)"
DOWNLOAD_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Score:
    """A corpus score, 0 to 100 (TER can be higher), and the signature to reproduce it."""

    name: str
    value: float
    signature: str
    details: Mapping[str, float | Sequence[float]]


@dataclass(frozen=True)
class Comparison:
    """The score of one system in a paired test against the first system.

    `p_value` is None for the first system. `mean` and `interval` (half the width of the 95 %
    confidence interval) come from the bootstrap and are None for approximate randomisation.
    """

    score: Score
    p_value: float | None = None
    mean: float | None = None
    interval: float | None = None


# ---------------------------------------------------------------- SacreBLEU


class Metrics:
    """SacreBLEU metrics that read the references once, for one system or many."""

    def __init__(
        self,
        references: References,
        *,
        names: Sequence[MetricName] = METRIC_NAMES,
        tokenize: str = "13a",
        lowercase: bool = False,
    ) -> None:
        """`lowercase` applies to BLEU and chrF; SacreBLEU's TER always ignores case."""
        self._references = _reference_sets(references)
        self._metrics: dict[str, Metric] = {
            name: _make_metric(name, self._references, tokenize=tokenize, lowercase=lowercase)
            for name in names
        }

    def score(self, hypotheses: Sequence[str]) -> list[Score]:
        """One score per metric, in the order of the names."""
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

        Returns one list per system with one comparison per metric. A system with the same lines as
        the first has p = 1, for which SacreBLEU would report the smallest possible p.
        """
        from sacrebleu.significance import PairedTest, Result  # imports numpy

        assert len(systems) >= 2, "a paired test needs two systems"
        assert seed > 0, "SacreBLEU takes seed 0 for no seed"
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
    """SacreBLEU's BLEU of raw text."""
    metrics = Metrics(references, names=["bleu"], tokenize=tokenize, lowercase=lowercase)
    return metrics.score(hypotheses)[0]


def chrf(hypotheses: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """SacreBLEU's chrF2 of raw text."""
    return Metrics(references, names=["chrf"], lowercase=lowercase).score(hypotheses)[0]


def _make_metric(
    name: MetricName, references: Sequence[Sequence[str]], *, tokenize: str, lowercase: bool
) -> Metric:
    if name == "bleu":
        # force=True, because signs_of_tokenization finds tokenised text.
        return sacrebleu.BLEU(
            tokenize=tokenize, lowercase=lowercase, force=True, references=references
        )
    if name == "chrf":
        return sacrebleu.CHRF(lowercase=lowercase, references=references)
    return sacrebleu.TER(references=references)


def _details(result: object) -> dict[str, float | Sequence[float]]:
    """The parts of a score, by name."""
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
    """The references as lists of lines; a flat list of lines is one reference per line."""
    if not references:
        raise DataError("expected at least one reference, got none")
    if all(isinstance(line, str) for line in references):
        return [list(cast(Sequence[str], references))]
    return [list(lines) for lines in references]


def _check_counts(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not hypotheses:
        raise DataError("expected hypotheses to score, got no lines")
    for lines in references:
        if len(lines) != len(hypotheses):
            raise DataError(
                f"expected a reference for each hypothesis, "
                f"got {len(hypotheses)} hypotheses and {len(lines)} references"
            )


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """Set the seed of SacreBLEU's paired tests, which only an environment variable can set."""
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

# The Perl script works on bytes: only ASCII white space separates words (a no-break or ideographic
# space does not), and its option -lc changes only A to Z.
_PERL_WORD = re.compile(r"[^ \t\n\r\f\v]+")
_PERL_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


# Stanford's release of WMT14 writes "rich-text" as three words, and BLEU scores of many papers are
# those of such text. The usual Perl expression works on bytes and from left to right: of two
# hyphens around one ASCII letter ("a-b-c") it splits only the first.
_HYPHEN_MARK = b"##AT##-##AT##"
_HYPHEN = re.compile(rb"([^ \t\n\r\f\v])-([^ \t\n\r\f\v])")


def split_hyphens(line: str) -> str:
    """`rich-text` as `rich ##AT##-##AT## text`; what is split already stays as it is."""
    words = line.encode().split(b" ")
    split = (
        word if word == _HYPHEN_MARK else _HYPHEN.sub(rb"\1 " + _HYPHEN_MARK + rb" \2", word)
        for word in words
    )
    return b" ".join(split).decode()


def tokenized_bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    lowercase: bool = False,
    hyphens: Literal["as given", "split"] = "as given",
) -> Score:
    """BLEU of tokenised text, as Moses' multi-bleu.perl computes it.

    SacreBLEU computes it on the ids of the words, without tokenising or smoothing, so that it
    cannot split the text in another way. `lowercase` is the option -lc of the script. With
    `hyphens="split"` compounds are split on both sides first, as in Stanford's release of WMT14.
    """
    if hyphens == "split":
        hypotheses = [split_hyphens(line) for line in hypotheses]
        references = [
            [split_hyphens(line) for line in each] for each in _reference_sets(references)
        ]
    sets = _reference_sets(references)
    _check_counts(hypotheses, sets)
    ids: dict[str, int] = {}

    def as_ids(lines: Sequence[str]) -> list[str]:
        found = (line.translate(_PERL_LOWER) if lowercase else line for line in lines)
        words = (_PERL_WORD.findall(line) for line in found)
        return [" ".join(str(ids.setdefault(word, len(ids))) for word in line) for line in words]

    metric = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    result = metric.corpus_score(as_ids(hypotheses), [as_ids(lines) for lines in sets])
    case = "lc" if lowercase else "mixed"
    signature = (
        f"multi-bleu.perl, not SacreBLEU|nrefs:{len(sets)}|case:{case}"
        f"|tok:as given{', hyphens split' if hyphens == 'split' else ''}|smooth:none"
    )
    return Score(TOKENIZED_BLEU, float(result.score), signature, _details(result))


# ---------------------------------------------------------------- text that is not raw

# (description, pattern, least share of lines)
_SIGNS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("most lines end in a space and a full stop", re.compile(r"\S [.。]\s*$"), 0.5),
    ("it has marks such as @-@ or &apos;", re.compile(r" @[-/,.]@ |&(apos|quot|amp|#\d+);"), 0.1),
    ("its subwords are not joined", re.compile(r"\S@@( |$)|(^|\s)▁\S"), 0.1),
)  # fmt: skip


def signs_of_tokenization(lines: Sequence[str]) -> list[str]:
    """The reasons why these lines seem tokenised or segmented; empty if they seem raw."""
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

    They come from SacreBLEU's cache ($SACREBLEU or ~/.sacrebleu); only `download` needs a network.
    """
    dataset = _find_dataset(name, language_pair)
    if not isinstance(dataset, WMTXMLDataset):  # its fields are known only after unpacking
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
        SystemExit,  # how SacreBLEU reports a wrong checksum or certificate
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
    """Whether SacreBLEU has the archives, so that it can unpack them without the network."""
    archives = [
        Path(dataset._rawdir, dataset._get_tarball_filename(address))
        for address in dataset.data or []
    ]
    return all(archive.is_file() and archive.stat().st_size > 0 for archive in archives)
