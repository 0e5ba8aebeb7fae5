"""nmt-translate: lines in, lines out."""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from translation_models import (
    make_codec,
    make_config,
    make_directory,
    make_model,
    random_lines,
    trained_model,
)

from nmt import Translator
from nmt.cli import export
from nmt.cli.translate import main
from nmt.data.vocabulary import UNK
from nmt.decoding.lines import Outputs, translate_stream
from nmt.decoding.streaming import LineSource
from nmt.decoding.translator import SearchOptions

LINES = random_lines(30, seed=9, longest=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("model") / "best", *trained_model())


@pytest.fixture(scope="module")
def expected(model: Path) -> list[str]:
    return [one.text for one in Translator.load(model).translate(LINES)]


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def read(path: Path) -> list[str]:
    text = path.read_bytes().decode()
    assert text == "" or text.endswith("\n")
    return text.split("\n")[:-1]


def translate(model: Path, tmp_path: Path, lines: list[str], *arguments: str) -> list[str]:
    """The output of the command for lines."""
    source, output = write(tmp_path / "source", lines), tmp_path / "output"
    output.unlink(missing_ok=True)
    options = ["--input", str(source), "--output", str(output), *arguments]
    assert main(["--model", str(model), *options]) == 0
    return read(output)


def test_a_file_is_translated_line_by_line(
    model: Path, tmp_path: Path, expected: list[str]
) -> None:
    assert len(set(expected)) > 10
    assert translate(model, tmp_path, LINES) == expected


def test_standard_input_and_output(
    model: Path,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    text = "".join(line + "\n" for line in LINES).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["--model", str(model)]) == 0
    assert capsysbinary.readouterr().out.decode() == "".join(line + "\n" for line in expected)


def check_random_files(model: Path, tmp_path: Path, expected: list[str], count: int) -> None:
    """Line counts and order of random files with up to 60 % of blank lines."""
    known = dict(zip(LINES, expected, strict=True))
    translator = Translator.load(model)
    chosen = random.Random(1)
    for number in range(count):
        blanks = chosen.random() * 0.6
        lines = [
            chosen.choice(["", " ", "\t", "\u3000"]) if chosen.random() < blanks else line
            for line in chosen.choices(LINES, k=chosen.randrange(12))
        ]
        options = SearchOptions(batch_tokens=chosen.choice([1, 32, 100, 4096]))
        output = tmp_path / f"output-{number}"
        with Outputs(output) as outputs:
            failed = translate_stream(
                translator,
                options,
                outputs,
                LineSource(iter(lines), "lines", lambda: chosen.random() < 0.8),
                buffer=chosen.choice([None, 1, 2, 5]),
            )
        failed.check()
        assert read(output) == [known.get(line, "") for line in lines]


def test_random_files_with_blank_lines_keep_count_and_order(
    model: Path, tmp_path: Path, expected: list[str]
) -> None:
    check_random_files(model, tmp_path, expected, 200)


@pytest.mark.slow
def test_many_random_files_keep_count_and_order(
    model: Path, tmp_path: Path, expected: list[str]
) -> None:
    check_random_files(model, tmp_path, expected, 1000)


def test_options_of_search_reach_it(model: Path, tmp_path: Path) -> None:
    translator = Translator.load(model)
    found = translate(
        model, tmp_path, LINES, "--beam", "2", "--length-penalty", "0", "--max-length", "4"
    )
    direct = translator.translate(LINES, beam=2, length_penalty=0.0, max_length=4)
    assert found == [one.text for one in direct]
    short = translate(
        model, tmp_path, LINES, "--max-length-ratio", "0.1", "--max-length-extra", "1"
    )
    assert all(len(line.split(" ")) <= 1 for line in short)
    long = translate(model, tmp_path, LINES, "--min-length", "9")
    assert all(len(line.split(" ")) >= 9 for line in long)


def test_scores_equal_score_only(model: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in translate(model, tmp_path, LINES, "--scores")]
    target = write(tmp_path / "target", [text for _, text in rows])
    scores = translate(model, tmp_path, LINES, "--score-only", str(target))
    assert [float(score) for score in scores] == pytest.approx(
        [float(score) for score, _ in rows], abs=2e-5
    )


def test_nbest_lists(model: Path, tmp_path: Path, expected: list[str]) -> None:
    rows = [line.split(" ||| ") for line in translate(model, tmp_path, LINES, "--nbest", "3")]
    assert [int(number) for number, *_ in rows] == [n for n in range(len(LINES)) for _ in range(3)]
    assert [text for _, text, *_ in rows[::3]] == expected
    for first, second in zip(rows[::3], rows[1::3], strict=True):
        assert float(first[3]) >= float(second[3])
        assert first[2].startswith("log_probability= -")


def test_samples(model: Path, tmp_path: Path) -> None:
    options = ("--sample", "1.5", "--top-k", "8", "--seed", "3")
    first = translate(model, tmp_path, LINES, *options)
    assert first == translate(model, tmp_path, LINES, *options, "--buffer", "4")
    assert first != translate(model, tmp_path, LINES, *options[:4], "--seed", "4")


def test_prefixes(model: Path, tmp_path: Path) -> None:
    prefixes = ["CAT CAT" if number % 2 else "" for number in range(len(LINES))]
    path = write(tmp_path / "prefixes", prefixes)
    found = translate(model, tmp_path, LINES, "--prefix", str(path))
    assert all(text.startswith(prefix) for text, prefix in zip(found, prefixes, strict=True))
    # A limit below the prefix gives the prefix, not an error.
    assert translate(model, tmp_path, LINES[1:2], "--prefix", str(write(path, ["CAT " * 60])),
                     "--max-length", "5") == [" ".join(["CAT"] * 60)]  # fmt: skip
    # Characters that the model does not know come out as they are.
    (odd,) = translate(
        model, tmp_path, LINES[1:2], "--prefix", str(write(path, ["CAT 日本 < CAT"]))
    )
    assert odd.startswith("CAT 日本 < CAT")
    write(path, prefixes[:-1])
    source = str(tmp_path / "source")
    assert main(["--model", str(model), "--input", source, "--prefix", str(path)]) == 2


def test_alignments_and_attention_files(model: Path, tmp_path: Path, expected: list[str]) -> None:
    lines = [LINES[0], "", LINES[1]]
    alignments, weights = tmp_path / "alignments", tmp_path / "weights"
    for suffix in (".npz", ".jsonl"):
        options = ["--alignments", str(alignments), "--attention", str(weights) + suffix]
        found = translate(model, tmp_path, lines, *options, "--layer", "1", "--head", "2")
        assert found == [expected[0], "", expected[1]]
    links = read(alignments)
    assert links[1] == ""
    archive = np.load(str(weights) + ".npz", allow_pickle=False)
    records = [json.loads(line) for line in read(Path(str(weights) + ".jsonl"))]
    assert [record["line"] for record in records] == [1, 2, 3]
    for number, line in enumerate(lines, start=1):
        cross = archive[f"cross/{number}"]
        record = records[number - 1]
        if not line:
            assert cross.size == 0
            continue
        words = line.split(" ")
        assert archive[f"source/{number}"].tolist() == [*words, "</s>"] == record["source"]
        assert archive[f"target/{number}"].tolist() == record["target"]
        assert cross.shape == (2, 4, len(record["target"]), len(words) + 1)
        np.testing.assert_allclose(cross, np.array(record["cross"]), atol=1e-6)
        chosen = cross[1, 2, 1:, :-1]
        assert links[number - 1] == " ".join(
            f"{row.argmax()}-{target}" for target, row in enumerate(chosen)
        )


@pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
def test_the_attention_of_given_text_is_that_of_the_same_translation(
    model: Path, tmp_path: Path, expected: list[str], suffix: str
) -> None:
    """Forced decoding of a translation sees what its own search saw, self-attention included."""
    types = ["--attention-types", "cross", "encoder_self", "decoder_self"]
    files = [tmp_path / f"{name}{suffix}" for name in ("found", "forced")]
    lines = [LINES[0], LINES[1]]
    found = translate(model, tmp_path, lines, "--attention", str(files[0]), *types)
    assert found == expected[:2]
    given = write(tmp_path / "given", found)
    plain = translate(model, tmp_path, lines, "--score-only", str(given))
    options = ["--score-only", str(given), "--attention", str(files[1]), *types]
    assert translate(model, tmp_path, lines, *options) == plain  # the scores are the same
    if suffix == ".jsonl":
        records = [[json.loads(line) for line in read(file)] for file in files]
        assert records[0] == records[1]
        return
    one, other = (np.load(file, allow_pickle=False) for file in files)
    assert sorted(one) == sorted(other)
    for name in one:
        assert (one[name] == other[name]).all()
    for number in (1, 2):
        source, target = len(one[f"source/{number}"]), len(one[f"target/{number}"])
        assert one[f"encoder_self/{number}"].shape == (2, 4, source, source)
        decoder = one[f"decoder_self/{number}"]
        assert decoder.shape == (2, 4, target, target)
        assert (decoder == np.tril(decoder)).all()
        assert one[f"cross/{number}"].shape == (2, 4, target, source)


def test_attention_types_need_a_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(model), "--attention-types", "cross"]) == 2
    assert "--attention-types: expected --attention with it" in capsys.readouterr().err


def test_ensembles(model: Path, tmp_path: Path, expected: list[str]) -> None:
    source = write(tmp_path / "source", LINES)
    output = tmp_path / "output"
    models = [str(model), str(model)]
    assert main(["--model", *models, "--input", str(source), "--output", str(output)]) == 0
    assert read(output) == expected
    config = make_config(subword="bpe")
    codec = make_codec(config)
    other = make_directory(tmp_path / "other", config, codec, make_model(config, codec))
    assert main(["--model", str(model), str(other), "--input", str(source)]) == 2


def test_a_run_directory_stands_for_its_best_model(
    model: Path, tmp_path: Path, expected: list[str]
) -> None:
    assert translate(model.parent, tmp_path, LINES) == expected


def test_int8_and_fast_translate_much_the_same(
    model: Path, tmp_path: Path, expected: list[str]
) -> None:
    for option in ("--int8", "--fast"):
        found = translate(model, tmp_path, LINES, option)
        same = sum(one == other for one, other in zip(found, expected, strict=True))
        assert same >= 0.8 * len(LINES)


def test_long_lines_are_cut_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(max_length=10)
    _, codec, weights = trained_model()
    short = make_directory(tmp_path / "short", config, codec, weights)
    lines = [LINES[0], " ".join(["cat"] * 25), LINES[1]]
    found = translate(short, tmp_path, lines)
    warnings = [line for line in capsys.readouterr().err.split("\n") if "warning" in line]
    assert warnings == [
        f"warning: {tmp_path / 'source'}:2: too long, its last 15 subwords are left out"
    ]
    assert found[1] == translate(short, tmp_path, [" ".join(["cat"] * 10)])[0]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that computes NaN for every line with a dog in it."""
    config, codec, weights = trained_model()
    number = codec.source.vocabulary.encode(["dog"])[0]
    assert number != UNK
    state = {name: tensor.clone() for name, tensor in weights.state_dict().items()}
    healthy = make_model(config, codec)
    state["own_source_embedding"][number] = float("nan")
    healthy.load_state_dict(state)
    return make_directory(tmp_path_factory.mktemp("broken") / "model", config, codec, healthy)


def test_lines_that_give_nan_fail_alone(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], expected: list[str]
) -> None:
    source, output = write(tmp_path / "source", LINES), tmp_path / "output"
    assert main(["--model", str(broken), "--input", str(source), "--output", str(output)]) == 6
    bad = ["dog" in line.split(" ") for line in LINES]
    assert any(bad)
    assert read(output) == [
        "" if failed else text for failed, text in zip(bad, expected, strict=True)
    ]
    assert f"source:{bad.index(True) + 1}: not translated" in capsys.readouterr().err


def test_scores_of_lines_that_give_nan_fail_alone(
    broken: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "source", LINES)
    target = write(tmp_path / "target", [line.upper() for line in LINES])
    output = tmp_path / "output"
    rest = ["--input", str(source), "--score-only", str(target), "--output", str(output)]
    assert main(["--model", str(model), *rest]) == 0
    healthy = read(output)
    capsys.readouterr()
    assert main(["--model", str(broken), *rest]) == 6
    bad = ["dog" in line.split(" ") for line in LINES]
    assert read(output) == [
        "" if failed else score for failed, score in zip(bad, healthy, strict=True)
    ]
    errors = capsys.readouterr().err.strip().split("\n")
    assert [line for line in errors if "not scored, the model" in line] == [
        f"warning: {source}:{number}: not scored, the model computes numbers that are not finite "
        "for it"
        for number, failed in enumerate(bad, start=1)
        if failed
    ]
    assert f"{sum(bad)} lines were not scored" in errors[-1]


BAD_LINES = {
    "invalid": (b"the \xff dog", "invalid UTF-8", 4),
    "long": (b"x" * 1_000_001, "line longer than 1000000 bytes", 0),
}


@pytest.mark.parametrize("kind", BAD_LINES)
@pytest.mark.parametrize("buffer", [(), ("--buffer", "1"), ("--buffer", "100")])
def test_lines_before_a_bad_one_are_answered(
    kind: str,
    buffer: tuple[str, ...],
    model: Path,
    tmp_path: Path,
    expected: list[str],
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    bad, reason, offset = BAD_LINES[kind]
    before = "".join(line + "\n" for line in LINES[:5]).encode()
    source = tmp_path / "source"
    source.write_bytes(before + bad + b"\n" + LINES[5].encode() + b"\n")
    given = ["--model", str(model), "--input", str(source), *buffer]
    assert main(given) == 2
    found = capsysbinary.readouterr()
    assert found.out.decode().split("\n")[:-1] == expected[:5]
    place = f"{source}:6: {reason} (byte {len(before) + offset} of the text)"
    assert place in found.err.decode()
    assert main([*given, "--on-bad-line", "skip"]) == 0
    found = capsysbinary.readouterr()
    assert found.out.decode().split("\n")[:-1] == [*expected[:5], "", expected[5]]
    assert f"warning: {place}" in found.err.decode()
    assert f"{source}: 1 bad lines are empty in the output" in found.err.decode()


def test_bad_lines_of_a_second_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "source", LINES[:3])
    other = tmp_path / "other"
    other.write_bytes(b"THE\n\xff\nTHE\n")
    output = tmp_path / "output"
    for option in ("--prefix", "--score-only"):
        given = ["--model", str(model), "--input", str(source), option, str(other)]
        assert main([*given, "--output", str(output)]) == 2
        assert f"{other}:2: invalid UTF-8" in capsys.readouterr().err
        assert not output.exists()
        assert main([*given, "--output", str(output), "--on-bad-line", "skip"]) == 0
        lines = read(output)
        assert [bool(line) for line in lines] == [True, False, True]
        output.unlink()


def test_a_failed_line_has_no_score(broken: Path, tmp_path: Path) -> None:
    source, output = write(tmp_path / "source", ["the dog", "the cat"]), tmp_path / "output"
    given = ["--model", str(broken), "--input", str(source), "--output", str(output)]
    assert main([*given, "--scores"]) == 6
    assert read(output)[0] == ""
    assert main([*given, "--nbest", "2"]) == 6
    assert read(output)[0] == "0 |||  ||| log_probability= nan ||| nan"
    assert len(read(output)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--beam", "0"],
            "--beam: expected a whole number (at least 1 and at most 1,000), got '0'",
        ),
        (["--beam", "9223372036854775808"], "--beam: expected a whole number"),
        (["--beam", "1000000"], "at most 1,000"),
        (["--sample", "1", "--nbest", "1001"], "--nbest"),
        (["--max-length", "100000"], "--max-length"),
        (["--min-length", "100000"], "--min-length"),
        (["--max-length-ratio", "1e300"], "--max-length-ratio"),
        (["--max-length-extra", "1000000000"], "--max-length-extra"),
        (["--length-penalty", "1e300"], "--length-penalty"),
        (["--length-penalty", "nan"], "--length-penalty"),
        (["--sample", "inf"], "--sample"),
        (["--sample", "1", "--top-k", "18446744073709551616"], "--top-k"),
        (["--sample", "1", "--top-p", "nan"], "--top-p"),
        (["--batch-tokens", "1e12"], "--batch-tokens"),
        (["--workers", "100000"], "--workers"),
        (["--workers", "2", "--device", "cpu,cpu"], "--workers: leave it out"),
        (["--device", "gpu"], "expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["--device", "cpu,"], "expected auto, cpu, cuda or cuda:N, got ''"),
        (["--score-only", "source", "--device", "cpu,cpu"], "expected one device, got 2"),
        (["--precision", "float16"], "--precision"),
        (["--int8", "--precision", "bfloat16"], "8-bit weights"),
        (["--threads", "100000"], "--threads"),
        (["--buffer", "0x10"], "--buffer"),
        (["--top-k", "3"], "--sample"),
        (["--seed", "4"], "--seed: expected --sample with it"),
        (["--nbest", "9"], "--nbest: expected at most the beam (4), got 9"),
        (
            ["--min-length", "20", "--max-length", "5"],
            "--min-length: expected at most the maximum length (5), got 20",
        ),
        (["--alignments", "links", "--layer", "7"], "--layer: expected 0 to 1"),
        (["--layer", "0"], "--alignments"),
        (["--attention", "weights.txt"], ".npz or .jsonl"),
        (["--input", "no-such-file"], "no-such-file"),
        (["--output", "same", "--alignments", "same"], "is also another file of this command"),
        (["--output", "x/../same", "--alignments", "same"], "is also another file"),
        (["--output", "source"], "is also another file"),
        (["--alignments", "source"], "is also another file"),
        (["--prefix", "same", "--output", "same"], "is also another file"),
        (["--score-only", "same", "--output", "same"], "is also another file"),
        (["--score-only", "x", "--scores"], "--score-only"),
        (["--score-only", "x", "--beam", "7"], "given text: leave out --beam"),
        (["--score-only", "x", "--sample", "1"], "given text: leave out --sample"),
    ],
)
def test_mistakes_are_one_line(
    model: Path,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "source", LINES[:2])
    given = ["--model", str(model), "--input", str(source), *arguments]
    try:
        code = main(given)
    except SystemExit as stop:
        code = int(str(stop.code))
    lines = capsys.readouterr().err.strip().split("\n")
    assert code == 2
    assert message in lines[-1]
    assert "Traceback" not in "".join(lines)
    assert not list(tmp_path.glob(".nmt-*"))


def test_nothing_is_written_into_a_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, link = write(tmp_path / "source", LINES[:2]), tmp_path / "link"
    link.symlink_to(model)
    before = sorted(os.listdir(model))
    given = ["--model", str(model), "--input", str(source)]
    for option, path in (("--output", model), ("--alignments", link)):
        assert main([*given, option, str(path / "file")]) == 2
        assert f"file: lies inside {model}" in capsys.readouterr().err
    for inside in ("packed", "new/packed", "/"):
        output = ["--format", "packed", "--output", str(model / inside)]
        assert export.main(["--model", str(model), *output]) == 2
    assert sorted(os.listdir(model)) == before
    copy = shutil.copytree(model, tmp_path / "copy")
    write(copy / "out.de", [])
    assert main(["--model", str(copy), "--input", str(source)]) == 7
    advice = "'out.de' is not in MANIFEST.json; remove what does not belong there"
    assert advice in capsys.readouterr().err


def test_bad_text_names_the_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"the cat\nthe \xff dog\n")
    output = tmp_path / "output"
    assert main(["--model", str(model), "--input", str(source), "--output", str(output)]) == 2
    assert f"{source}:2: invalid UTF-8" in capsys.readouterr().err
    assert not output.exists()
    assert main(["--model", str(tmp_path / "none"), "--input", str(source)]) == 3


def test_help_needs_no_torch() -> None:
    code = "import sys; from nmt.cli.translate import build_parser; build_parser().format_help(); "
    check = code + "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, check=True)
    assert result.stdout.strip() == b"[]"


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt.cli.translate", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def test_a_pipe_is_answered_line_by_line_and_ctrl_c_is_quiet(
    model: Path, expected: list[str]
) -> None:
    with running("--model", str(model)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line, text in list(zip(LINES, expected, strict=True))[:5]:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().decode() == text + "\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert rest == b""
        assert b"Traceback" not in errors


def test_a_reader_that_goes_away_ends_the_command_quietly(model: Path, expected: list[str]) -> None:
    with running("--model", str(model), "--buffer", "2") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"".join(line.encode() + b"\n" for line in LINES[:2]))
        process.stdin.flush()
        assert process.stdout.readline().decode() == expected[0] + "\n"
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            for line in LINES * 20:
                process.stdin.write(line.encode() + b"\n")
            process.stdin.close()
        assert process.wait(timeout=60) in (0, 141)
        assert b"Traceback" not in process.stderr.read()


def test_python_interface(model: Path) -> None:
    [found] = Translator.load(str(model)).translate(["the old man"], alignments=True)
    assert isinstance(found.text, str)
    assert found.score <= 0.0
    assert found.alignment is not None


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(model: Path, tmp_path: Path) -> None:
    translator = Translator.load(model)
    resident: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(1_000_000):
            if number % 100_000 == 99_999:
                pages = int(Path("/proc/self/statm").read_text().split(" ")[1])
                resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
            yield LINES[0] if number % 1000 == 0 else ""

    with Outputs(tmp_path / "output") as outputs:
        translate_stream(translator, SearchOptions(beam=1), outputs, LineSource(lines(), "lines"))
    assert max(resident) - resident[0] < 50_000_000
