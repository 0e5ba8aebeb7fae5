"""A process with little memory: a batch is halved, then one line fails, and the others go on."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from translation_models import make_codec, make_config, make_directory, make_model

# Every output is as long as allowed, so a line needs memory by its length. A limit on the address
# space, once the model is loaded, stands for a machine with that much left.
LIMITED = """
import resource, sys
from pathlib import Path
import nmt.cli.translate as command
from nmt.decoding.translator import Translator

load = Translator.load

def load_and_limit(*arguments, **options):
    translator = load(*arguments, **options)
    translator.translate(["the cat"] * 8)
    taken = 4096 * int(Path("/proc/self/statm").read_text().split(" ")[0])
    resource.setrlimit(resource.RLIMIT_AS, (taken + (96 << 20), resource.RLIM_INFINITY))
    return translator

Translator.load = load_and_limit
sys.exit(command.main())
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = make_config()
    wide = replace(config.model, dim=256, heads=4)  # fewer steps fill the memory
    config = replace(config, model=wide)
    codec = make_codec(config)
    weights = make_model(config, codec)
    return make_directory(tmp_path_factory.mktemp("model") / "best", config, codec, weights)


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_one_line_fails_and_the_others_go_on(model: Path, tmp_path: Path, backend: str) -> None:
    source, output, script = tmp_path / "source", tmp_path / "output", tmp_path / "limited.py"
    script.write_text(LIMITED)
    lines = ["the old man", "a dog", " ".join(["the cat"] * 40), "a young woman"]
    source.write_text("".join(line + "\n" for line in lines))
    given = ["--model", model, "--input", source, "--output", output, "--beam", "100"]
    given += ["--max-length-ratio", "10", "--max-length-extra", "0"]
    given += ["--min-length", "60000"]
    # Large blocks that are freed leave the address space, as they leave the memory of a machine.
    large = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NMT_BACKEND": backend, **large}
    command = [sys.executable, script, *given]
    result = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    errors = result.stderr.decode()
    assert result.returncode == 2, errors
    assert f"warning: {source}:3: not translated, there is not enough memory for it" in errors
    last = errors.strip().split("\n")[-1]
    assert "1 lines were not translated: there is not enough memory" in last
    assert "finite" not in errors
    found = output.read_text().split("\n")[:-1]
    assert [bool(line) for line in found] == [True, True, False, True]
