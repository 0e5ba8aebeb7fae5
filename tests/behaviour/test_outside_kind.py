"""A kind from outside the package, named in the config, works in every command.

The kind is in support/outside_kinds.py.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.outside_kinds import RectifiedPower
from support.runs import die_at_call, outcome, tiny_config, train_in_child, write_run

from nmt.analysis.measures import nullable_sites, unnormalised_sites
from nmt.checkpoint.model_directory import load_model
from nmt.cli import analyze, bench, check_kind, train, translate
from nmt.config import outside_kinds
from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.config.config import AttentionConfig
from nmt.config.loading import load_config
from nmt.doctor import kind_checks
from nmt.ops import backend
from nmt.ops.native import library
from nmt.training.update import Updater

TESTS = Path(__file__).parents[1]
REFERENCE, KIND = "support.outside_kinds:rectified_power", "rectified-power"
UPDATES = 12
needs_kernels = pytest.mark.skipif(
    library.load() is None, reason="no kernels were built for this processor"
)


def forget() -> None:
    """Leave no outside kind in the tables."""
    for kind in outside_kinds.OUTSIDE_KINDS:
        ATTENTION_KINDS.pop(kind, None)
    outside_kinds.OUTSIDE_KINDS.clear()


@pytest.fixture(autouse=True)
def only_own_kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kinds are loaded for the time of a test, and other processes find them, too."""
    monkeypatch.setenv("NMT_KINDS", "")
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    forget()
    yield
    forget()


def settings(directory: Path, attention: Any) -> dict[str, Any]:
    """A run of a few updates with the kind everywhere."""
    config = tiny_config(directory, max_updates=UPDATES, save_every=4)
    config["kinds"] = [REFERENCE.replace(":", ".")]
    config["model"]["attention"] = attention
    return config


def trained(directory: Path, *, kill_at: int | None = None) -> Path:
    """The run directory of a run, which may have been killed and resumed."""
    config = settings(directory, {"kind": KIND, "power": 1.5})
    path = write_run(directory, config)
    if kill_at is not None:
        killed = train_in_child(path, lambda: die_at_call(Updater, "run", kill_at))
        assert killed == -signal.SIGKILL
    assert train.main(["--config", str(path)]) == 0
    return directory / "run"


def test_it_trains_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    run = outcome(trained(tmp_path / "once"))
    resumed = outcome(trained(tmp_path / "twice", kill_at=8))
    assert resumed["model"] == run["model"]
    assert resumed["optimizer"] == run["optimizer"]
    losses = [record["loss"] for record in run["records"] if record["event"] == "train"]
    assert losses[-1] < losses[0]
    last = [record for record in run["records"] if record["event"] == "validation"][-1]
    layer = last["attention"]["cross"]["layer_0"]
    assert layer["null_rate"] > 0.0
    assert layer["softplus_threshold_0"] != layer["softplus_threshold_1"]


def test_it_translates_by_torch_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path)
    monkeypatch.setattr(backend, "_logged", set())
    source = tmp_path / "data" / "validation.src"
    capsys.readouterr()
    arguments = ["--model", str(run), "--input", str(source), "--max-length", "6"]
    assert translate.main(arguments) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 12
    assert output.err.count("warning: ") == 1
    assert f"{RectifiedPower(1.5)} (encoder_self of layer 0) has no mapping in C" in output.err


def test_it_is_analysed_as_its_row_says(tmp_path: Path) -> None:
    run = trained(tmp_path)
    model = load_model(max((run / "checkpoints").glob("step-*"))).model
    assert unnormalised_sites(model) == nullable_sites(model) == set(model.attentions())
    data = tmp_path / "data"
    files = ["--source", str(data / "validation.src"), "--target", str(data / "validation.tgt")]
    assert analyze.main(["--model", str(run), *files, "--output", str(tmp_path / "report")]) == 0
    (found,) = json.loads((tmp_path / "report" / "analysis.json").read_text("utf-8"))["models"]
    assert "## Learned softplus_threshold" in (tmp_path / "report" / "tables.md").read_text("utf-8")
    assert (tmp_path / "report" / "softplus_threshold.png").is_file()
    assert found["nullable"] == dict.fromkeys(("encoder_self", "decoder_self", "cross"), True)
    heads = found["statistics"]["cross"]["layer_0"]["heads"]
    assert len(heads["softplus_threshold"]) == 2
    assert "shuffled_null_rate" in heads
    assert f"{KIND}, power 1.5" in json.dumps(found)


def test_it_is_measured(tmp_path: Path) -> None:
    tiny = ["--dim", "16", "--heads", "2", "--layers", "1", "--feed-forward-dim", "32"]
    path = tmp_path / "numbers.json"
    arguments = [*tiny, "--vocabulary", "40", "--length", "3", "--repeats", "1"]
    arguments += ["--batch-tokens", "60", "--updates", "1", "--kinds", "softmax", REFERENCE]
    assert bench.main(["train", *arguments, "--json", str(path)]) == 0
    rows = json.loads(path.read_text(encoding="utf-8"))["kinds"]
    assert [row["kind"] for row in rows] == ["softmax", KIND]


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (KIND, f"{KIND} needs power: a number from 1 to 4"),
        ({"kind": KIND, "power": 5.0}, "expected a number (at least 1 and at most 4), got '5.0'"),
        ({"kind": KIND, "power": 2.0, "k": 3}, "has no option 'k' (its own: power)"),
        ({"kind": "softmax", "power": 2.0}, f"it belongs to {KIND}"),
        ("rectified", "expected one of softmax"),
    ],
)
def test_its_options_are_checked(
    attention: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path, settings(tmp_path, attention))
    assert train.main(["--config", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_its_gradients_are_right() -> None:
    scores = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    threshold = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    visible = torch.arange(5) < 4
    assert torch.autograd.gradcheck(
        lambda scores, threshold: RectifiedPower(2.0).weights(scores, visible, threshold),
        (scores, threshold),
    )


def in_new_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process in which nothing has been loaded."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def offer_by_entry_point(directory: Path, reference: str) -> None:
    """Write the files that pip leaves of an installed package that offers a kind."""
    facts = directory / "outside-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[nmt.kinds]\nrectified-power = {reference}\n")


def test_a_model_names_the_package_it_needs_and_loads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path)
    next_command = f"next: nmt-translate --model {run} --kinds {REFERENCE} --input FILE"
    assert next_command in capsys.readouterr().err
    model = max((run / "checkpoints").glob("step-*"))
    assert f"\nkinds: {REFERENCE}\n" in (model / "config.yaml").read_text("utf-8")
    source = str(tmp_path / "data" / "validation.src")
    translating = ["nmt.cli.translate", "--model", str(model), "--input", source]
    monkeypatch.setenv("NMT_KINDS", "")

    refused = in_new_process(*translating)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    assert f"needs the attention kind {KIND} of {REFERENCE}" in refused.stderr
    assert f"--kinds {REFERENCE}" in refused.stderr

    # Two workers: the kind is loaded in the processes that they are, too.
    accepted = in_new_process(*translating, "--kinds", REFERENCE, "--workers", "2")
    assert accepted.returncode == 0, accepted.stderr
    assert accepted.stdout.count("\n") == 12

    offer_by_entry_point(tmp_path / "site", REFERENCE)
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{tmp_path / 'site'}")
    installed = in_new_process(*translating)
    assert installed.stdout == accepted.stdout


def test_a_config_finds_the_kinds_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_by_entry_point(tmp_path / "site", REFERENCE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    config = settings(tmp_path, {"kind": KIND, "power": 1.5})
    del config["kinds"]
    assert load_config(write_run(tmp_path, config)).kinds == (REFERENCE,)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_package:kind", "there is no module no_such_package; install its package"),
        ("support.outside_kinds:absent", "expected an AttentionKind"),
        ("support.outside_kinds:number", "got an object of type int"),
        ("support.outside_kinds:softmax", "nmt itself has an attention kind 'softmax', too"),
        ("../kind.py", "expected module:name of an attention kind, got '../kind.py'"),
    ],
)
def test_a_bad_reference_is_one_line(
    reference: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = settings(tmp_path, "softmax")
    config["kinds"] = [reference]
    assert train.main(["--config", str(write_run(tmp_path, config))]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "config.yaml:" in printed
    assert printed.count("\n") == 1


def test_an_unused_kind_is_not_recorded(tmp_path: Path) -> None:
    assert load_config(write_run(tmp_path, settings(tmp_path, "softmax"))).kinds == ()


def test_the_check_of_a_kind_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_kind.main([REFERENCE, "power=1.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"attention kind {KIND}, power 1.5"
    assert [line.split()[0] for line in lines[1:-1]] == ["passed"] * 10
    assert lines[-1] == "all checks passed"


def test_the_check_of_a_kind_finds_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind_checks, "REVERSAL_UPDATES", 1)
    assert check_kind.main(["support.outside_kinds:leaking"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = [line for line in lines if line.startswith("  FAILED")]
    assert "hidden key with content 3 has a weight that is not 0" in failed[0]
    assert any("sums_to_one is set, but sums differ from 1" in line for line in failed)
    assert lines[-1] == f"{len(failed)} checks failed"


@needs_kernels
@pytest.mark.parametrize(
    ("name", "check", "message"),
    [
        ("wrong_softmax", kind_checks.check_implementations, "C kernels: results differ"),
        ("wrong_topk", kind_checks.check_cache, "decoding by the engine in C differs"),
    ],
)
def test_the_check_of_a_kind_finds_an_implementation_of_something_else(
    name: str, check: Callable[[AttentionConfig], str], message: str
) -> None:
    attention = AttentionConfig(outside_kinds.load_kind(f"support.outside_kinds:{name}"))
    with pytest.raises(kind_checks.KindCheckError, match=message):
        check(attention)


def test_a_mapping_that_extends_ours_has_its_own_definition_only() -> None:
    kind = outside_kinds.load_kind("support.outside_kinds:sharp_softmax")
    attention = AttentionConfig(kind)
    assert kind_checks.check_implementations(attention) == "there is only the definition"
    core, projections = kind_checks.make_core(attention), kind_checks.make_projections(2, 3, 5)
    softmax = kind_checks.make_core(AttentionConfig("softmax"))
    doubled = softmax((2.0 * projections[0], projections[1]), None)
    torch.testing.assert_close(core(projections, None), doubled)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([REFERENCE], f"{KIND} needs power: a number from 1 to 4"),
        ([REFERENCE, "power=9"], "power: expected a number (at least 1 and at most 4)"),
        ([REFERENCE, "k=9"], "expected power=value, got 'k=9'"),
        (["nothing"], "nothing: expected module:name, or one of softmax"),
    ],
)
def test_the_check_of_a_kind_rejects_bad_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_kind.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_example_of_the_documentation_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (TESTS.parent / "docs" / "own_kinds.md").read_text("utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "my_package.py").write_text(example, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    attention = AttentionConfig(outside_kinds.load_kind("my_package:cubed_relu"))
    assert attention.kind == "cubed-relu"
    for check in (
        kind_checks.check_masks,
        kind_checks.check_empty_rows,
        kind_checks.check_weights,
        kind_checks.check_gradients,
        kind_checks.check_implementations,
        kind_checks.check_sizes,
        kind_checks.check_half_precision,
        kind_checks.check_cache,
    ):
        check(attention)
