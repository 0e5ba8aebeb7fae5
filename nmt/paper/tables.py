"""The papers' tables from the numbers of all runs, with the papers' numbers and the difference."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from nmt.analysis.alignment import STEPS
from nmt.analysis.published import ALIGNMENT_ERROR, HEAD_DIVERSITY
from nmt.analysis.results import ATTENTION_TYPES, chosen_heads
from nmt.analysis.tables import MEANS
from nmt.bench.paper import SPEEDS, flops_crossover, rela_flops, softmax_flops
from nmt.evaluation import TOKENIZED_BLEU
from nmt.paper.average import Variants, number
from nmt.paper.collect import kind_of
from nmt.paper.scores import RunScores, unflatten
from nmt.paper.speeds import Speeds
from nmt.recipes.table import BLEU, CHRF, PaperScore, Summary, summarize
from nmt.recipes.table_text import DASH, show, signed
from nmt.tables import Table

MISSING = "missing"

FLOPS_LENGTHS = (10, 25, 50, 100, 200, 400, 800, 1000, 2000)
PAPER_SIZE = (512, 8)  # width and heads of Transformer base


def score_table(variants: Variants, paper: Mapping[str, PaperScore]) -> Table:
    """Table 1, or Table 3 for the other tasks: BLEU over seeds beside the paper's."""
    rows = []
    for variant, runs in variants.items():
        published = paper.get(variant, PaperScore())
        bleu, tokenized = number(runs, f"score/{BLEU}"), number(runs, f"score/{TOKENIZED_BLEU}")
        p_value = first_p_value(runs)
        failed = sum(run.values.get("status") == "diverged" for run in runs)
        shown = show(bleu, decimals=2) or (DASH if failed else MISSING)
        rows.append(
            [
                variant,
                text_of(runs, "attention"),
                shown,
                show(tokenized, decimals=2),
                show(number(runs, f"score/{CHRF}"), decimals=1),
                f"{0 if bleu is None else bleu.count}" + (f", {failed} failed" if failed else ""),
                DASH if published.failed else plain(published.bleu, 1),
                difference(bleu, published.bleu, 1),
                "" if p_value is None else f"{p_value:.3f}",
                million(number(runs, "parameters")),
            ]
        )
    columns = ["variant", "attention", "BLEU", "tokenised BLEU", "chrF", "runs"]
    columns += ["paper", "difference", "p", "parameters"]
    signatures = {
        str(run.values[f"signature/{BLEU}"])
        for runs in variants.values()
        for run in runs
        if f"signature/{BLEU}" in run.values
    }
    note = (
        "Mean ± standard deviation over seeds. p: paired bootstrap against softmax on the first "
        f"seed of each. {DASH}: training failed. The paper's numbers are for its own data"
        + "".join(f". SacreBLEU {signature}" for signature in sorted(signatures))
    )
    return Table(columns, rows, labels=2, title="BLEU (Tables 1 and 3)", note=note)


def adaptive_table(variants: Variants, paper: Mapping[str, PaperScore]) -> Table | None:
    """Table 1 of the second paper: BLEU on tokenised text."""
    rows = []
    for variant, runs in variants.items():
        published = paper.get(variant, PaperScore()).adaptively_sparse_bleu
        if published is not None:
            ours = number(runs, f"score/{TOKENIZED_BLEU}")
            cells = [show(ours, decimals=2) or MISSING, plain(published, 2)]
            rows.append([variant, *cells, difference(ours, published, 2)])
    if not rows:
        return None
    return Table(
        ["variant", "tokenised BLEU", "paper", "difference"],
        rows,
        title="BLEU in Adaptively Sparse Transformers (its Table 1)",
        note="The second paper reports BLEU on tokenised text; its models differ from those of the "
        "first paper",
    )


def speed_table(speeds: Speeds) -> Table:
    """Table 2: parameters and speeds relative to softmax."""
    rows = []
    for kind in dict.fromkeys([*SPEEDS, *speeds.train, *speeds.decode]):
        published = SPEEDS.get(kind)
        ours = [speeds.train.get(kind), speeds.decode.get(kind)]
        theirs = (None, None) if published is None else (published.train, published.decode)
        parameters = speeds.parameters.get(kind)
        train, decode = (
            [times(own) or MISSING, times(other), signed_times(own, other)]
            for own, other in zip(ours, theirs, strict=True)
        )
        rows.append(
            [
                kind,
                MISSING if parameters is None else f"{parameters / 1e6:.2f}M",
                "" if published is None else f"{published.parameters:.2f}M",
                *train,
                "" if published is None else times(published.train_pytorch),
                *decode,
            ]
        )
    columns = ["attention", "parameters", "paper", "Δ train", "paper", "difference"]
    columns += ["paper, PyTorch", "Δ decode", "paper", "difference"]
    note = (
        "Speed relative to softmax, in training and in translation with batch size 1. "
        + (". ".join(speeds.machines) or "Not measured here: see docs/paper.md for the commands")
        + ". The paper measured on a GTX 1080 Ti; its speeds in PyTorch are with the package entmax"
    )
    return Table(columns, rows, title="Speed (Table 2)", note=note)


def flops_table(sizes: Sequence[tuple[int, int]]) -> Table:
    """Table 4 by length, for Transformer base and for models of these widths and heads."""
    rows = []
    for dim, heads in dict.fromkeys([PAPER_SIZE, *sizes]):
        crossover = flops_crossover(heads=heads, dim=dim)
        for length in sorted({*FLOPS_LENGTHS, round(crossover)}):
            counts = softmax_flops(length, heads=heads), rela_flops(length, heads=heads, dim=dim)
            mark = "crossover" if length == round(crossover) else ""
            cells = [*(f"{count:,}" for count in counts), f"{counts[1] / counts[0]:.2f}", mark]
            rows.append([f"d = {dim}, H = {heads}", f"{length:,}", *cells])
    note = (
        "Softmax 3HT² − HT, ReLA-g HT² + 10Td + T: calculated, without scores and values, which "
        "are the same for both. From the length (10d + H + 1) / 2H on ReLA-g needs fewer"
    )
    columns = ["model", "length T", "softmax", "ReLA-g", "ratio", ""]
    return Table(columns, rows, title="FLOPs of the attention function (Table 4)", note=note)


def alignment_table(variants: Variants) -> Table:
    """Table 5: alignment error rates, mean over the layers."""
    rows = []
    for variant, runs in variants.items():
        published = ALIGNMENT_ERROR.get(kind_of(variant), {})
        cells, count = [], 0
        for step in STEPS:
            theirs = published.get(step, (None, None))
            for mean, other in zip(MEANS, theirs, strict=True):
                ours = number(runs, f"analysis/aer/{step}/{mean}")
                percent = None if ours is None else scaled(ours, 100.0)
                shown = show(percent, decimals=2) or MISSING
                cells += [shown, plain(other, 2), difference(percent, other, 2)]
                count = max(count, ours.count if ours else 0)
        rows.append([variant, *cells, str(count)])
    columns = ["variant"]
    for step in STEPS:
        for mean in MEANS:
            columns += [f"{step} {mean}", "paper", "difference"]
    columns.append("runs")
    note = (
        "Percent, mean over the layers and ± deviation over seeds; lower is better. AoL: layer "
        "attention. AoH: the best head of each layer"
    )
    runs = [run for runs in variants.values() for run in runs if "text/gold" in run.values]
    if runs:
        note += f". {chosen_heads(int(runs[0].values['text/development']))}"
    return Table(columns, rows, title="Alignment error rate (Table 5)", note=note)


def diversity_table(variants: Variants) -> Table:
    """Table 6: head diversity, mean over the layers."""
    rows = []
    for variant, runs in variants.items():
        published = HEAD_DIVERSITY.get(kind_of(variant), {})
        temperatures = temperatures_of(runs) or list(published) or [MISSING]
        for temperature in temperatures:
            cells, count = [], 0
            theirs = published.get(temperature, (None, None, None))
            for type_, other in zip(ATTENTION_TYPES, theirs, strict=True):
                ours = mean_diversity(runs, type_, temperature)
                shown = show(ours, decimals=2) or MISSING
                cells += [shown, plain(other, 2), difference(ours, other, 2)]
                count = max(count, ours.count if ours else 0)
            shown = DASH if temperature == "plain" else temperature
            rows.append([variant, shown, *cells, str(count)])
    columns = ["variant", "temperature"]
    for name in ("encoder", "decoder", "cross"):
        columns += [name, "paper", "difference"]
    columns.append("runs")
    note = (
        "Generalised Jensen-Shannon divergence of the heads in nats, mean over the layers and ± "
        "deviation over seeds; higher is more diverse"
    )
    return Table(columns, rows, labels=2, title="Head diversity (Table 6)", note=note)


def temperatures_of(runs: Sequence[RunScores]) -> list[str]:
    """The temperatures at which any type of attention was measured, from high to low."""
    found = {
        name.rsplit("/", 1)[1]
        for run in runs
        for name in run.group("analysis")
        if "/diversity/" in name and "without_sinks" not in name
    }
    known = sorted(found - {"plain"}, key=float, reverse=True)
    return known or sorted(found)


def mean_diversity(runs: Sequence[RunScores], type_: str, temperature: str) -> Summary | None:
    """The mean over the layers, of which those whose weights sum to 1 have no temperature."""
    values = []
    for run in runs:
        layers: dict[str, float] = {}
        for key in ("plain", temperature):
            for name, value in run.group(f"analysis/statistics/{type_}").items():
                if name.endswith(f"/diversity/{key}"):
                    layers[name.split("/")[0]] = float(value)
        if layers:
            values.append(sum(layers.values()) / len(layers))
    return summarize(values)


def after_words_means(variants: Variants) -> Table:
    """The null rates after words of a class, as far as they were asked for.

    Head 0 of one seed has nothing to do with head 0 of another, so heads are not told apart.
    """
    rows = []
    for variant, runs in variants.items():
        found: dict[tuple[str, str, str], list[list[float]]] = {}
        for run in runs:
            for type_, layers in unflatten(run.group("analysis/statistics")).items():
                for layer, values in layers.items():
                    classes = {
                        name: one["heads"] for name, one in values.get("null_after", {}).items()
                    }
                    every = {"(all queries)": values["heads"]["null_rate"]} if classes else {}
                    for name, rates in {**every, **classes}.items():
                        place = (ATTENTION_TYPES[type_], layer.removeprefix("layer_"), name)
                        found.setdefault(place, []).append([100 * rate for rate in rates])
        for place, seeds in found.items():
            cells = [
                show(summarize([of_heads(rates) for rates in seeds]), decimals=1)
                for of_heads in (fmean, min, max)
            ]
            rows.append([variant, *place, *cells, str(len(seeds))])
    columns = ["variant", "attention", "layer", "after", "mean of the heads", "lowest head"]
    note = (
        "Percent of the queries whose weights are all 0, among those that read the last subword "
        "of a word of the class; mean and ± deviation over seeds"
    )
    title = "Null rate after a class of words"
    return Table([*columns, "highest head", "runs"], rows, labels=4, title=title, note=note)


def first_p_value(runs: Sequence[RunScores]) -> float | None:
    """The p-value of the lowest seed that has one: files of several machines have one each."""
    found = [run for run in runs if "p_value" in run.values]
    return float(min(found, key=lambda run: run.seed).values["p_value"]) if found else None


def text_of(runs: Sequence[RunScores], name: str) -> str:
    """A text that is the same for all runs."""
    return next((str(run.values[name]) for run in runs if name in run.values), "")


def scaled(summary: Summary, factor: float) -> Summary:
    """The same numbers times a factor."""
    deviation = None if summary.deviation is None else factor * summary.deviation
    return Summary(factor * summary.mean, deviation, summary.count)


def plain(value: float | None, digits: int) -> str:
    """A number of the paper, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def difference(ours: Summary | None, theirs: float | None, digits: int) -> str:
    """Our mean minus the paper's number."""
    if ours is None or theirs is None:
        return ""
    if digits == 1:
        return signed(ours.mean - theirs)
    return f"{ours.mean - theirs:+.{digits}f}".replace("-", "−")


def times(ratio: float | None) -> str:
    """A ratio of speeds."""
    return "" if ratio is None else f"{ratio:.2f}x"


def signed_times(ours: float | None, theirs: float | None) -> str:
    """A difference of ratios."""
    if ours is None or theirs is None:
        return ""
    return f"{ours - theirs:+.2f}".replace("-", "−")


def million(summary: Summary | None) -> str:
    """A number of parameters."""
    return "" if summary is None else f"{summary.mean / 1e6:.2f}M"
