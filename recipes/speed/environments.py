"""A virtual environment for each other toolkit, with versions that are known to work together."""

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    """The packages to install: first those with dependencies, then those without."""

    whole: tuple[str, ...]
    alone: tuple[str, ...]
    empty_modules: tuple[str, ...] = ()  # imported by the toolkit, never used here


# The toolkits ask for old versions of torch, or for packages that only other tasks need; so they
# are installed without what they ask for, after the torch that we use ourselves.
PEERS = {
    "fairseq": Peer(
        (
            TORCH,
            "numpy==1.26.4",
            "packaging",
            "tqdm",
            "regex",
            "sacrebleu",
            "bitarray",
            "cffi",
            "scikit-learn",
        ),
        (
            "fairseq-fixed==0.12.3.1",
            "omegaconf==2.3.0",
            "hydra-core==1.3.2",
            "antlr4-python3-runtime==4.9.3",
            "PyYAML",
        ),
    ),
    "opennmt": Peer(
        (TORCH, "numpy==1.26.4", "PyYAML", "six", "sacrebleu", "tensorboard", "pybind11"),
        (
            "OpenNMT-py==3.5.1",
            "configargparse",
            "pyonmttok",
            "rapidfuzz",
            "pyahocorasick",
            "fasttext-wheel",
        ),
        empty_modules=("spacy",),
    ),
    "eole": Peer(
        (
            TORCH,
            "numpy>=2",
            "PyYAML",
            "pydantic",
            "rich",
            "six",
            "pandas",
            "sacrebleu",
            "safetensors",
            "tensorboard",
            "huggingface-hub",
            "sentencepiece",
        ),
        (
            "eole==0.6.4",
            "configargparse",
            "pyonmttok",
            "rapidfuzz",
            "pyahocorasick",
            "subword-nmt",
            "tokenizers",
        ),
    ),
    "huggingface": Peer(
        (TORCH, "numpy", "PyYAML", "regex", "requests", "tqdm", "packaging", "safetensors"),
        ("transformers==4.57.1", "huggingface-hub<1.0", "tokenizers==0.22.1"),
    ),
    "marian": Peer(
        ("numpy", "PyYAML", "tqdm", "portalocker", "requests", "huggingface-hub", "sentencepiece"),
        ("pymarian==1.12.42",),
    ),
    "ctranslate2": Peer(("numpy", "PyYAML"), ("ctranslate2==4.8.4", "setuptools")),
}


def make_environment(name: str, directory: Path) -> Path:
    """The interpreter of a toolkit's environment, which is made (anew) when it is needed."""
    peer = PEERS[name]
    place = directory / name
    interpreter = place / "bin" / "python"
    wanted = hashlib.sha256(repr(peer).encode()).hexdigest()
    stamp = place / "installed"
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return interpreter
    print(f"setting up {place} (some minutes)", file=sys.stderr)
    run([sys.executable, "-m", "venv", "--clear", str(place)])
    install = [str(interpreter), "-m", "pip", "install", "--quiet"]
    run([*install, *peer.whole])
    run([*install, "--no-deps", *peer.alone])
    packages = next((place / "lib").glob("python*")) / "site-packages"
    for module in peer.empty_modules:
        (packages / f"{module}.py").write_text("", encoding="ascii")
    stamp.write_text(wanted, encoding="ascii")
    return interpreter


def run(command: list[str]) -> None:
    """Run a command whose output goes to standard error."""
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        raise SystemExit(f"failed: {' '.join(command)}")
