"""Training on a CUDA device that only fake tensors can be on: types, copies and waits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_device import missing_for_fake_device

pytestmark = pytest.mark.timeout(900)  # a process of its own traces and builds

SCRIPTS = Path(__file__).parents[2] / "fake_cuda"
KINDS = ["softmax", "rela-g", "sparsemax", "entmax15", "entmax-learned"]


def run_script(name: str, *arguments: str) -> dict[str, Any]:
    """The output of a script, in a process whose torch sees the device."""
    if (missing := missing_for_fake_device()) is not None:
        pytest.skip(missing)
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / name), *arguments],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_script("defaults.py", str(tmp_path_factory.mktemp("guard")))


def test_one_graph_serves_every_shape_of_every_kind(tmp_path: Path) -> None:
    """With kernels in Triton where they are installed, in bfloat16."""
    counts = run_script("graphs.py", str(tmp_path), *KINDS)
    assert counts == {kind: {"graphs": 1, "breaks": 0} for kind in KINDS}


def check_lowered(found: dict[str, Any], *, layers: int) -> None:
    """One graph per kind, forward and backward, with all attention by our kernels."""
    for kind, lowered in found.items():
        assert (lowered["graphs"], lowered["breaks"]) == (1, 0), kind
        forward, backward = lowered["passes"]
        # 4 products of an encoder layer, 6 of a decoder layer, one of the memory for all layers;
        # a product with ReLU is an operator of torch.
        assert forward["aten"] == 2 * layers, kind
        assert forward["products"] + forward["aten"] == 10 * layers + 1, kind
        assert backward["products"] == 2 * (10 * layers + 1), kind
        assert forward["nmt"] >= 3 * layers, kind  # attention
        assert min(forward["triton"], backward["triton"]) > 0, kind
        assert "aten" not in backward, kind


def test_inductor_writes_the_code_of_a_layer(tmp_path: Path) -> None:
    check_lowered(run_script("inductor.py", str(tmp_path), "1", "rela-g"), layers=1)


@pytest.mark.slow
def test_inductor_writes_the_code_of_all_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six layers. Softmax is torch's own attention there."""
    found = run_script("inductor.py", str(tmp_path), "6", *KINDS[1:], "topk")
    with capsys.disabled():
        print(json.dumps(found, indent=2))
    check_lowered(found, layers=6)


def test_training_is_in_bfloat16(facts: dict[str, Any]) -> None:
    assert facts["precision"] == "bfloat16"


def test_plain_attention_does_not_round_its_scores(facts: dict[str, Any]) -> None:
    """Scores in float32, the output in bfloat16."""
    assert facts["products"] == ["float32", "bfloat16"]


@pytest.mark.parametrize("precision", ["update", "float16"])
def test_one_copy_brings_a_batch_to_the_device(facts: dict[str, Any], precision: str) -> None:
    """Two updates of two batches each; the host waits for nothing, the scale of float16 neither."""
    assert facts[precision]["copies"] == 4
    assert facts[precision]["synchronisations"] == {}


def test_target_positions_are_taken_without_a_sort(facts: dict[str, Any]) -> None:
    assert facts["update"]["index_put"] == 0


def test_validation_computes_no_gradients_of_the_loss(facts: dict[str, Any]) -> None:
    """One product has the width of the vocabulary; gradients would take two more."""
    assert facts["update"]["validation_products"] == 1


@pytest.mark.parametrize("precision", ["update", "float16"])
def test_the_watch_waits_for_no_update_just_launched(facts: dict[str, Any], precision: str) -> None:
    """Of three updates two are looked at, each after the next was launched; a flush takes all."""
    watch = facts[precision]["watch"]
    assert watch["waits"] == [1, 1]
    assert watch["waits_of_flush"] == [0]
    assert watch["synchronisations"] == {}
