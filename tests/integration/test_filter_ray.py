"""nmt-filter on a Ray cluster: the same table as without it."""

import gzip
import importlib.util
from pathlib import Path

import pytest
from translation_models import make_directory, random_lines, trained_model

from nmt.cli.filter import main


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A model and a corpus with a bad line, a blank one and one that is too long."""
    folder = tmp_path_factory.mktemp("corpus")
    model = make_directory(folder / "model", *trained_model("rela-g"))
    raw = [line.encode() for line in random_lines(1500, seed=3, longest=8)]
    target = b"".join(line.upper() + b"\n" for line in raw)
    raw[700:703] = [b"the \xff cat", b" ", b"the old cat " * 200]
    (folder / "source").write_bytes(b"".join(line + b"\n" for line in raw))
    (folder / "target").write_bytes(target)
    paths = [str(folder / name) for name in ("source", "target")]
    return ["--model", str(model), "--source", paths[0], "--target", paths[1]]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="ray is not installed (pip install 'nmt[ray]'; 500 MB of disk)",
)
def test_the_table_is_the_same(arguments: list[str], tmp_path: Path) -> None:
    tables = []
    for name, more in (("plain", []), ("ray", ["--ray", "local"])):
        output = tmp_path / name
        assert main([*arguments, "--output", str(output), *more]) == 0
        tables.append(output.read_bytes())
    assert tables[0] == tables[1]
    assert [line.split(b"\t")[-1] for line in tables[0].split(b"\n")[701:704]] == [
        b"invalid UTF-8",
        b"empty line",
        b"longer than 512 subwords",
    ]


def test_options_that_ray_does_not_take(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--ray", "local", "--device", "cuda:1"]) == 2
    assert "--device cuda:1: Ray assigns the GPUs" in capsys.readouterr().err
    assert main(["--clean", *arguments[2:], "--ray", "local"]) == 2
    assert "--clean uses no model and has no scores: leave out --ray" in capsys.readouterr().err


def test_the_job_scores_blocks(arguments: list[str], tmp_path: Path) -> None:
    """The work of a worker, in this process."""
    from nmt.analysis.ray_filtering import FilterJob
    from nmt.decoding.ray_cluster import BlockResult, BlockWorker, cut_rows

    model, source, target = (Path(path) for path in arguments[1::2])
    assert main([*arguments, "--output", str(tmp_path / "scores")]) == 0
    expected = (tmp_path / "scores").read_text().split("\n")[1:-1]
    job = FilterJob(Path("/"), (source, target), model, "auto", 2048, 512)
    worker = BlockWorker(job, "cpu")
    rows = cut_rows(job.paths, 1)
    assert len(rows) > 1
    found = []
    for row in rows:
        result: BlockResult = worker(row)["result"]
        assert result.failure is None
        found += [(f"{one.null_rate:.6f}", one.problem) for one in result.items]
    assert found == [(line.split("\t")[0], line.split("\t")[-1]) for line in expected]


def test_a_file_that_the_worker_cannot_use(arguments: list[str], tmp_path: Path) -> None:
    from nmt.decoding.ray_cluster import cut_rows
    from nmt.errors import DataError

    archive = tmp_path / "target.gz"
    archive.write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(DataError, match="decompress it first"):
        cut_rows([Path(arguments[3]), archive], 2)
