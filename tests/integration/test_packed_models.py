"""Packed models from the outside: they translate without torch, to the last bit as with it."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kernels import ABSENT, NAMES
from support.serving import serving
from support.small_models import content, flip_bit, reseal, truncate, write_model
from translation_models import (
    KINDS,
    make_codec,
    make_config,
    make_directory,
    make_model,
    random_lines,
)

from nmt.cli.align import main as align
from nmt.cli.export import main as export
from nmt.cli.translate import main as translate
from nmt.config.config import AttentionTypesConfig, SublayerAttentionConfig
from nmt.config.limits import MAX_PROCESSES
from nmt.decoding.packed_directory import ARRAYS
from nmt.decoding.packed_models import default_threads
from nmt.decoding.translator import Translation, Translator
from nmt.ops.environment import force_backend
from nmt.ops.native import library
from nmt.storage.arrays import ArrayFile

pytestmark = pytest.mark.skipif(not library.builds(), reason=ABSENT)

LINES = [*random_lines(8, longest=9), "", "the strange zebra"]
PREFIXES = ["THE OLD", *[""] * (len(LINES) - 1)]
# Options of search, as Translator.translate takes them.
SEARCHES: list[dict[str, Any]] = [
    {},
    {"beam": 1, "max_length": 20},
    {"beam": 6, "nbest": 3, "max_length": 20},
    {"prefixes": PREFIXES, "max_length": 20},
    {"beam": 3, "early_stop": "narrow", "max_length": 20},
    {"early_stop": "exact", "normalization": "length", "min_length": 5, "max_length": 20},
    {"max_length": 3, "batch_tokens": 20},
]
REQUIRED: dict[str, dict[str, Any]] = {"entmax": {"alpha": 1.3}, "topk": {"k": 3}}
# Options of the model beside those of its attention kind.
SHAPES = {
    "pre": ", norm: pre, tie_embeddings: none, feed_forward_activation: swish",
    "tied": ", tie_embeddings: target, output_bias: true, scale_embeddings: false",
    "positions": ", position_wavelengths: exclusive, feed_forward_activation: gelu",
    "learned": ", attention: {kind: entmax, alpha: learned}",
    "thresholds": ", attention: {kind: rela-g, threshold: learned, activation: squared_relu}",
    "mixed": ", attention: {cross: {kind: topk, k: 2}, decoder_self: rela-i}",
}

# Runs a program in a process in which only what a packed model may need can be imported.
ALONE = """
import importlib.abc, sys
class Refusal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "safetensors", "sacrebleu", "matplotlib", "triton"}:
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, Refusal())
"""
TRANSLATE = """
import json
from nmt import Translator
lines, searches, models = json.load(sys.stdin)
found = {}
for model in models:
    translator = Translator.load(model, threads=1)
    found[model] = [[
        [[one.text, one.ids, one.score.hex(), one.log_probability.hex(), one.num_dropped]
         for one in (line.nbest or [line])]
        for line in translator.translate(lines, **search)
    ] for search in searches]
json.dump(found, sys.stdout)
"""


def alone(program: str, text: str = "", *arguments: str) -> str:
    """The output of a program that cannot import torch."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE + program, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pack(model: Path, *options: str) -> Path:
    """The model packed, beside it."""
    output = model.with_name("-".join([model.name, "packed", *[one.strip("-") for one in options]]))
    arguments = ["--model", str(model), "--format", "packed", "--output", str(output)]
    assert export([*arguments, *options]) == 0
    return output


def by_torch(model: Path, *, int8: bool) -> Any:
    """The translations of the model that torch has loaded, as TRANSLATE prints them."""
    translator = Translator.load(model, int8=int8, threads=1)
    return [
        [
            [
                [one.text, list(one.ids), one.score.hex(), one.log_probability.hex(), 0]
                for one in (line.nbest or [line])
            ]
            for line in translator.translate(LINES, **search)
        ]
        for search in SEARCHES
    ]


def compare(models: list[Path]) -> None:
    """Each model packed in float32 and in 8 bits finds the same without torch."""
    expected = {
        str(pack(model, *(["--int8"] if int8 else []))): by_torch(model, int8=int8)
        for model in models
        for int8 in (False, True)
    }
    found = json.loads(alone(TRANSLATE, json.dumps([LINES, SEARCHES, list(expected)])))
    for path, translations in expected.items():
        for search, ours, theirs in zip(SEARCHES, found[path], translations, strict=True):
            assert ours == theirs, (path, search)
    outputs = {repr(translations) for translations in expected.values()}
    assert len(outputs) > len(models)  # 8 bits and kinds do change something


def test_every_kind_translates_the_same_without_torch(tmp_path: Path) -> None:
    models = []
    for kind in KINDS:
        sublayer = SublayerAttentionConfig(kind, **REQUIRED.get(kind, {}))
        config = make_config(kind)
        attention = AttentionTypesConfig(sublayer, sublayer, sublayer)
        config = replace(config, model=replace(config.model, attention=attention))
        codec = make_codec(config)
        models.append(make_directory(tmp_path / kind, config, codec, make_model(config, codec)))
    compare(models)


def test_every_option_of_a_model_translates_the_same_without_torch(tmp_path: Path) -> None:
    compare(
        [
            write_model(tmp_path / name, seed=number, model=options)
            for number, (name, options) in enumerate(SHAPES.items())
        ]
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    config = make_config("rela-g", subword="bpe")
    codec = make_codec(config)
    path = tmp_path_factory.mktemp("models") / "model"
    return make_directory(path, config, codec, make_model(config, codec))


@pytest.fixture(scope="module")
def packed(model: Path) -> Path:
    """The same model packed."""
    return pack(model)


def test_the_command_writes_the_same_bytes_without_torch(
    model: Path, packed: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (tmp_path / "prefixes").write_text("\n".join(PREFIXES) + "\n", encoding="utf-8")
    options = ["--input", str(tmp_path / "lines"), "--prefix", str(tmp_path / "prefixes")]
    options += ["--nbest", "2", "--beam", "5"]
    expected, found, by_workers = (tmp_path / name for name in ("torch", "packed", "workers"))
    assert translate(["--model", str(model), *options, "--output", str(expected)]) == 0
    program = "from nmt.cli.translate import main; sys.exit(main(sys.argv[1:]))"
    alone(program, "", "--model", str(packed), *options, "--output", str(found))
    assert found.read_bytes() == expected.read_bytes()
    assert translate(
        ["--model", str(packed), *options, "--workers", "2", "--output", str(by_workers)]
    ) == 0  # fmt: skip
    assert by_workers.read_bytes() == expected.read_bytes()


def without_torch(directory: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """A command in an environment without torch, its workers included."""
    absent = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")'
    (directory / "torch.py").write_text(absent, encoding="utf-8")
    paths = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_what_needs_torch_is_refused_in_one_line_without_it(model: Path, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    for command, path, code, expected in (
        ("translate", nowhere, 3, f"{nowhere}: expected a model or run directory, found none"),
        ("serve", nowhere, 3, f"{nowhere}: expected a model or run directory, found none"),
        ("translate", str(model), 2, "the package torch is needed for this, and is not installed"),
        ("serve", str(model), 2, "the package torch is needed for this, and is not installed"),
    ):
        done = without_torch(tmp_path, f"nmt.cli.{command}", "--model", path)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
        assert done.stderr.startswith(f"nmt-{command}: {expected}")


def test_the_kernels_are_examined_without_torch(tmp_path: Path) -> None:
    done = without_torch(tmp_path, "nmt.cli.doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [build["name"] for build in found["builds"] if build["reason"] is None] == NAMES[:1]
    assert found["problems"] == []
    done = without_torch(tmp_path, "nmt.cli.doctor")
    assert f"\n  {NAMES[0]}   used\n" in done.stdout
    assert "\nwarning: the package torch is needed" in done.stdout


def test_a_loaded_model_does_not_depend_on_its_file(packed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(packed, copy)
    expected = Translator.load(packed).translate(LINES)
    translator = Translator.load(copy)
    (copy / ARRAYS).write_bytes(b"")
    assert translator.translate(LINES) == expected


def test_threads_may_share_a_translator(packed: Path) -> None:
    """Also while its table of positions grows."""
    sizes = [600, 700, 1100, 1300] * 2

    def long_output(translator: Translator, size: int) -> list[Translation]:
        lengths = {"min_length": size, "max_length": size}
        return translator.translate(["the old man"], beam=1, **lengths)

    expected = [long_output(Translator.load(packed), size) for size in sizes]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(3):
            shared = Translator.load(packed, threads=1)
            with ThreadPoolExecutor(len(sizes)) as pool:
                assert list(pool.map(partial(long_output, shared), sizes)) == expected
    finally:
        sys.setswitchinterval(interval)


FORK = """
import os, signal
from nmt import Translator
translator = Translator.load(sys.argv[1], threads=2)
before = translator.translate(["the old man"] * 8)
child = os.fork()
if child == 0:
    signal.alarm(60)  # the end of a process that waits for ever
    os._exit(translator.translate(["the old man"] * 8) != before)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_translates(model: Path, packed: Path) -> None:
    assert alone(FORK, "", str(packed)) == "0\n"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{FORK}", str(model)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "0\n", done.stderr


def test_any_number_of_threads_in_the_environment_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    default = default_threads()
    assert 1 <= default <= MAX_PROCESSES
    for given, expected in (("3", 3), ("2000", MAX_PROCESSES), ("0", default), ("x", default)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert default_threads() == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "9" * 5000)
    assert default_threads() == default


def test_a_packed_model_is_small_and_the_same_whenever_it_is_written(
    model: Path, packed: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    assert export(["--model", str(model), "--format", "packed", "--output", str(again)]) == 0
    assert content(again) == content(packed)
    small = pack(model, "--quantization", "int8")
    sizes = [(path / ARRAYS).stat().st_size for path in (small, packed)]
    assert sizes[0] < 0.7 * sizes[1]


def test_the_process_stays_small(packed: Path) -> None:
    program = (
        "from pathlib import Path; from nmt import Translator\n"
        "Translator.load(sys.argv[1]).translate(['the old man'])\n"
        "print(Path('/proc/self/status').read_text())"
    )
    status = dict(
        line.split(":", 1) for line in alone(program, "", str(packed)).splitlines() if line
    )
    assert int(status["VmHWM"].split()[0]) < 100_000  # kB; with torch it takes 280,000


def processor_time(model: Path) -> float:
    """Seconds of the processor to translate a line in a new process, at least."""
    command = [sys.executable, "-m", "nmt.cli.translate", "--threads", "1", "--model", str(model)]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, input=b"the old man\n", capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stdout.count(b"\n") == 1
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(seconds)


@pytest.mark.clock
def test_the_first_translation_takes_a_quarter_of_the_time(model: Path, packed: Path) -> None:
    assert 4.0 * processor_time(packed) < processor_time(model)  # measured: 0.46 s and 2.9 s


def run(
    command: Callable[[list[str]], int], arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """The exit code of a command, and its one line on standard error."""
    capsys.readouterr()
    code = command(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return code, lines[0]


def test_what_needs_torch_is_refused_in_a_line(
    model: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "lines"
    text.write_text("the man\n", encoding="utf-8")
    out = str(tmp_path / "out.npz")
    for options, reason in (
        (["--sample", "1"], "has no sampling"),
        (["--alignments", out], "has no word alignments"),
        (["--attention", out], "has no attention weights"),
        (["--score-only", str(text)], "has no scores of given translations"),
        (["--device", "cuda"], "computes on the CPU, got device cuda"),
        (["--precision", "bfloat16"], "computes on the CPU, got bfloat16"),
        (["--int8"], "was packed in float32; for 8 bits, export it with"),
        (["--model", str(packed), str(model)], "a packed model translates by itself"),
    ):
        given = ["--model", str(packed), "--input", str(text), *options]
        code, line = run(translate, given, capsys)
        assert code == 2
        assert reason in line, line
        assert str(packed) in line
    code, line = run(
        align, ["--model", str(packed), "--source", str(text), "--target", str(text)], capsys
    )
    assert (code, "a packed model can only translate" in line) == (2, True), line
    again = ["--model", str(packed), "--format", "packed", "--output", str(tmp_path / "again")]
    code, line = run(export, again, capsys)
    assert (code, "use the model that it was exported from" in line) == (2, True), line


def test_without_kernels_there_is_no_slower_way(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_text("the man\n", encoding="utf-8")
    given = ["--model", str(packed), "--input", str(tmp_path / "lines")]
    with force_backend("torch"):
        code, line = run(translate, given, capsys)
    assert (code, "runs by the kernels in C only" in line) == (2, True), line


def test_kinds_that_the_engine_has_not_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("entmax", reason="the package entmax is not installed")
    slow = write_model(
        tmp_path / "slow", seed=1, model=", attention: {kind: entmax15, backend: package}"
    )
    output = tmp_path / "packed"
    given = ["--model", str(slow), "--format", "packed", "--output", str(output)]
    code, line = run(export, given, capsys)
    assert code == 2
    assert "cannot be packed for the engine in C: " in line
    assert "encoder_self of layer 0" in line
    assert not output.exists()


def edit_text(old: str, new: str) -> Callable[[Path], None]:
    """Replaces a text of the description."""

    def edit(path: Path) -> None:
        text = (path / "packed.yaml").read_text(encoding="utf-8")
        assert old in text
        (path / "packed.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


def edit_header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes the header of the arrays."""

    def edit(path: Path) -> None:
        data = (path / ARRAYS).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        made = json.dumps(header).encode()
        made += b" " * (-len(made) % 8)
        (path / ARRAYS).write_bytes(len(made).to_bytes(8, "little") + made + data[8 + length :])

    return edit


def vocabulary_of_another_size(path: Path) -> None:
    lines = (path / "target.vocabulary").read_text(encoding="utf-8")
    (path / "target.vocabulary").write_text(lines + "more\t1\n", encoding="utf-8")


NAME = "decoder.0.cross.input.weight"
HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "heads": (edit_text("heads: 4", "heads: 5"), "expected a divisor of 32, got 5"),
    "width": (edit_text("dim: 32", "dim: 64"), "holds other tensors than expected"),
    "layers": (edit_text("encoder_layers: 2", "encoder_layers: 1000"), "expected the sublayers"),
    "negative": (edit_text("dim: 32", "dim: -32"), "model.dim: expected a whole number"),
    "word": (edit_text(": rms", ": other"), "expected one of none, rms, layer, got 'other'"),
    "map": (edit_text("cross: relu", "cross: run"), "expected one of softmax"),
    "format": (edit_text("format: 1", "format: 2"), "expected format 1, got 2"),
    "no format": (edit_text("format: 1\n", ""), "'format' has no default"),
    "unknown key": (edit_text("dim:", "dims:"), "unknown key 'dims'"),
    "no norm": (edit_text("pre_norm: false", "pre_norm: true"), "encoder.norm.gain is missing"),
    "gain": (edit_header(lambda header: header.pop("decoder.0.cross.gain")), "gain is missing"),
    "8 bits": (edit_text("int8: false", "int8: true"), "holds other tensors than expected"),
    "vocabulary": (vocabulary_of_another_size, "expected 40 pieces, got 41"),
    "missing": (edit_header(lambda header: header.pop(NAME)), f"{NAME} is missing"),
    "type": (edit_header(lambda header: header[NAME].update(dtype="I64")), "an unknown dtype"),
    "shape": (edit_header(lambda header: header[NAME].update(shape=[1, 32])), "not in the file"),
    "offsets": (
        edit_header(lambda header: header[NAME].update(data_offsets=[2**62, 2**62 + 4096])),
        "not in the file",
    ),
    "before": (
        edit_header(lambda header: header[NAME].update(data_offsets=[-4096, 0])),
        "not in the file",
    ),
    "misaligned": (
        edit_header(lambda header: header[NAME].update(data_offsets=[1, 4097])),
        "not in the file",
    ),
    "entry": (edit_header(lambda header: header.update({NAME: 3})), "not in the file"),
    "cut": (lambda path: truncate(path / ARRAYS, 20_000), "not in the file"),
    "short": (lambda path: truncate(path / ARRAYS, 40), "malformed JSON"),
    "empty": (lambda path: truncate(path / ARRAYS, 0), "malformed JSON"),
    "no arrays": (lambda path: (path / ARRAYS).unlink(), "missing"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_in_a_line(
    packed: Path, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_text("the man\n", encoding="utf-8")
    harmed = shutil.copytree(packed, tmp_path / "harmed")
    change, reason = HOSTILE[case]
    change(harmed)
    reseal(harmed)
    given = ["--model", str(harmed), "--input", str(tmp_path / "lines")]
    code, line = run(translate, given, capsys)
    assert code in (2, 7)
    assert reason in line, line
    assert str(harmed) in line


@pytest.mark.parametrize("name", [ARRAYS, "packed.yaml", "target.vocabulary", "MANIFEST.json"])
def test_a_flipped_bit_is_found(
    packed: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_text("the man\n", encoding="utf-8")
    harmed = shutil.copytree(packed, tmp_path / "harmed")
    flip_bit(harmed / name, 8 * ((harmed / name).stat().st_size // 2))
    code, line = run(
        translate, ["--model", str(harmed), "--input", str(tmp_path / "lines")], capsys
    )
    assert (code, str(harmed / name) in line) == (7, True), line


def test_weights_that_are_not_finite_fail_line_by_line(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harmed = shutil.copytree(packed, tmp_path / "harmed")
    file = ArrayFile(harmed / ARRAYS)
    place = file._places["decoder.1.feed_forward.input.weight"]
    data = bytearray((harmed / ARRAYS).read_bytes())
    data[place : place + 4] = torch.tensor([float("nan")]).numpy().tobytes()
    (harmed / ARRAYS).write_bytes(data)
    reseal(harmed)
    (tmp_path / "lines").write_text("the man\n", encoding="utf-8")
    given = ["--model", str(harmed), "--input", str(tmp_path / "lines")]
    assert translate(given) == 6
    assert "not finite" in capsys.readouterr().err


def test_the_server_and_its_workers_need_no_torch(
    model: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette", reason="needs starlette: pip install 'nmt[serve]'")
    pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'nmt[serve]'")
    expected = [each.text for each in Translator.load(model, threads=1).translate(LINES)]
    (tmp_path / "torch.py").write_text("raise ImportError('torch must not be imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with serving(tmp_path, f"--model=packed={packed}", "--workers", "1") as server:
        assert server.translate(LINES) == expected
        reply = server.post("/attention", {"q": "the man"})
        assert reply.status == 400
        assert b"the model packed can only translate" in reply.body
        (facts,) = server.get("/models").json()
        assert facts["attention"]["cross"] == "rela-g"
        (worker,) = server.workers()
        status = Path(f"/proc/{worker}/status").read_text(encoding="utf-8")
    assert int(status.split("VmHWM:")[1].split()[0]) < 100_000  # kB
