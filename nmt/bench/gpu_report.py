"""The results of nmt-bench gpu as one Markdown file, with all numbers in JSON at its end."""

from collections.abc import Sequence

from nmt.bench.gpu import GPU_PARTS, Figures, GpuRow
from nmt.bench.kinds import REFERENCE_KIND
from nmt.bench.report import memory, spread
from nmt.bench.result import Result
from nmt.tables import Table

TITLES = {
    "products": "Large matrix products",
    "train": "Training: whole updates",
    "attention": "Attention core, forward and backward, by length",
    "decode": "Decoding: beam search",
    "processes": "Training with several processes, each with a batch of its own",
}
NONE = "–"


def gpu_markdown(result: Result[GpuRow]) -> str:
    """One table per part that was measured."""
    parts = [f"# {title(result)}", "", str(result.machine), "", note(result)]
    for part in GPU_PARTS:
        rows = [row for row in result.rows if row.part == part]
        if rows:
            parts += ["", f"## {TITLES[part]}", "", part_table(rows).markdown()]
    return "\n".join(parts)


def gpu_json(result: Result[GpuRow]) -> str:
    """All numbers."""
    return result.as_json("gpu", "measurements", {})


def gpu_document(result: Result[GpuRow]) -> str:
    """The file to attach to a report."""
    return f"{gpu_markdown(result)}\n\n## All numbers\n\n```json\n{gpu_json(result)}\n```\n"


def title(result: Result[GpuRow]) -> str:
    """The device that was measured."""
    if result.facts["device"] == "cpu":
        return "nmt-bench gpu on a CPU: a trial of the benchmark, not of a GPU"
    return f"nmt-bench gpu on {result.machine.gpu}"


def note(result: Result[GpuRow]) -> str:
    """Where the predictions come from, and how much failed."""
    rates = result.facts["rates"]
    source = (
        "There are no predictions for this device and these sizes."
        if rates is None
        else f"Predictions are calculated for {rates['name']} from recorded operations; read them "
        "as plus or minus 40 %."
    )
    failed = sum(row.error is not None for row in result.rows)
    return f"{source} Measurements: {len(result.rows)}, of which {failed} failed."


def part_table(rows: Sequence[GpuRow]) -> Table:
    """Measurements beside predictions; a column without any number is left out."""
    names = list(rows[0].settings)
    compared = "1 process" if rows[0].part == "processes" else REFERENCE_KIND
    header = ["", *names, rows[0].unit, "predicted", "measured/predicted"]
    header += [f"relative to {compared}", "peak memory", "predicted memory"]
    cells = [
        [row.name, *(str(row.settings[name]) for name in names), *figures(row, rows)]
        for row in rows
    ]
    kept = [n for n in range(len(header)) if any(line[n] != NONE for line in cells)]
    return Table(
        [header[n] for n in kept],
        [[line[n] for n in kept] for line in cells],
        labels=1 + len(names),
    )


def figures(row: GpuRow, rows: Sequence[GpuRow]) -> Sequence[str]:
    """The cells of a row from the measured speed on."""
    predicted = row.predicted.speed
    calculated = NONE if predicted is None else number(predicted)
    expected_memory = row.predicted.peak_memory_bytes
    last = NONE if expected_memory is None else memory(expected_memory)
    if row.measured is None:
        return f"failed: {row.error}", calculated, NONE, NONE, NONE, last
    speed = row.measured.speed
    reference = reference_of(row, rows)
    peak = row.measured.peak_memory_bytes
    return (
        spread(speed, form(speed.median)),
        calculated,
        NONE if predicted is None else f"{speed.median / predicted:.2f}",
        NONE if reference is None else f"{speed.median / reference.speed.median:.2f}x",
        NONE if peak is None else memory(peak),
        last,
    )


def reference_of(row: GpuRow, rows: Sequence[GpuRow]) -> Figures | None:
    """The figures of softmax in the settings of a row; of several processes, those of one."""
    wanted = (REFERENCE_KIND, row.settings)
    if row.part == "processes":
        wanted = (row.name, {**row.settings, "processes": 1})
    return next((other.measured for other in rows if (other.name, other.settings) == wanted), None)


def form(value: float) -> str:
    """The format of a speed: whole numbers unless it is small."""
    return "{:,.0f}" if value >= 1000 else "{:.2f}"


def number(value: float) -> str:
    """A speed."""
    return form(value).format(value)
