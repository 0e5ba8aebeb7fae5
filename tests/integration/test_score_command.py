"""nmt-score at its edge: agreement with sacrebleu, output, warnings, errors, test sets offline."""

import gzip
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nmt.cli import score
from nmt.evaluation import TOKENIZED_BLEU, tokenized_bleu

WORDS = ["The", "a", "dog,", "cat", "man's", "sees", "old-ish", "(runs)", "Über", "3.5", "naïve"]


def write(path: Path, lines: list[str]) -> str:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Two references and three systems of forty raw lines, one of them blank."""
    generator = random.Random(11)

    def spoil(lines: list[str], rate: float) -> list[str]:
        return [
            " ".join(
                generator.choice(WORDS) if generator.random() < rate else word
                for word in line.split()
            )
            for line in lines
        ]

    reference = [
        " ".join(generator.choices(WORDS, k=generator.randint(3, 14))) + "." for _ in range(39)
    ]
    reference.insert(7, "")
    return {
        "reference": write(tmp_path / "reference", reference),
        "second": write(tmp_path / "second", spoil(reference, 0.1)),
        "good": write(tmp_path / "good", spoil(reference, 0.1)),
        "fair": write(tmp_path / "fair", spoil(reference, 0.15)),
        "bad": write(tmp_path / "bad", spoil(reference, 0.4)),
    }


def read(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")


def sacrebleu_command(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """The output of the sacrebleu command."""
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *arguments],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | (environment or {}),
    )
    return done.stdout.decode()


def sacrebleu_json(*arguments: str, environment: dict[str, str] | None = None) -> Any:
    """The same as data, with twelve digits."""
    options = ["--format", "json", "--width", "12"]
    return json.loads(sacrebleu_command(*arguments, *options, environment=environment))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error); argparse's own exits included."""
    try:
        code = score.main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command with exit code 2 says."""
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("nmt-score: ")
    assert err.count("\n") == 1
    return err


class TestAgreementWithSacrebleu:
    @pytest.mark.parametrize("references", [["reference"], ["reference", "second"]])
    def test_bleu_chrf_and_ter(
        self, files: dict[str, str], references: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        paths = [files[name] for name in references]
        ours = run_json(capsys, "--hypothesis", files["bad"], "--reference", *paths)
        theirs = sacrebleu_json(*paths, "-i", files["bad"], "-m", "bleu", "chrf", "ter")
        (system,) = ours["systems"]
        assert [entry["metric"] for entry in system["scores"]] == ["BLEU", "chrF2", "TER"]
        for entry, expected in zip(system["scores"], theirs, strict=True):
            assert entry["metric"] == expected["name"]
            assert entry["value"] == pytest.approx(expected["score"], abs=1e-10)
            assert entry["signature"] == expected["signature"]

    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (["--tokenize", "intl"], ["--tokenize", "intl"]),
            (["--tokenize", "char"], ["--tokenize", "char"]),
            (["--tokenize", "none", "--lowercase"], ["--tokenize", "none", "--lowercase"]),
            (["--language-pair", "en-zh"], ["--language-pair", "en-zh", "--tokenize", "zh"]),
        ],
    )
    def test_options(
        self,
        files: dict[str, str],
        ours: list[str],
        theirs: list[str],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        hypothesis, reference = files["good"], files["reference"]
        result = run_json(
            capsys, "--hypothesis", hypothesis, "--reference", reference, "--metrics", "bleu", *ours
        )
        expected = sacrebleu_json(reference, "-i", hypothesis, "-m", "bleu", *theirs)
        (entry,) = result["systems"][0]["scores"]
        assert entry["value"] == pytest.approx(expected["score"], abs=1e-10)
        assert entry["signature"] == expected["signature"]

    def paired(
        self, files: dict[str, str], test: str, capsys: pytest.CaptureFixture[str]
    ) -> tuple[Any, list[str], dict[str, str]]:
        """Our result, and arguments and environment of the same sacrebleu command."""
        systems = [files["good"], files["fair"], files["bad"]]
        ours = run_json(
            capsys, "--hypothesis", *systems, "--reference", files["reference"],
            "--paired", test, "--metrics", "bleu", "chrf", "--samples", "300", "--seed", "5",
        )  # fmt: skip
        assert ours["paired"] == {
            "test": test, "baseline": files["good"], "samples": 300, "seed": 5
        }  # fmt: skip
        command = [files["reference"], "-i", *systems, "-m", "bleu", "chrf"]
        command += [f"--paired-{test}", f"--paired-{test}-n", "300"]
        return ours, command, {"SACREBLEU_SEED": "5"}

    def test_approximate_randomisation(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        ours, command, environment = self.paired(files, "ar", capsys)
        theirs = sacrebleu_json(*command, environment=environment)
        for system, expected in zip(ours["systems"], theirs, strict=True):
            for entry in system["scores"]:
                result = expected[entry["metric"]]
                assert entry["value"] == pytest.approx(result["score"], abs=1e-10)
                assert entry["p_value"] == result["p_value"]

    def test_paired_bootstrap(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Read from the table: sacrebleu cannot write this test's results as JSON."""
        ours, command, environment = self.paired(files, "bs", capsys)
        theirs = sacrebleu_command(
            *command, "--width", "6", "--format", "text", environment=environment
        )
        for system in ours["systems"]:
            for entry in system["scores"]:
                mean, interval = entry["bootstrap_mean"], entry["bootstrap_interval"]
                assert f"{entry['value']:.6f} ({mean:.6f} ± {interval:.6f})" in theirs
        expected = re.findall(r"p = ([0-9.]+)", theirs)
        p_values = [
            f"{entry['p_value']:.4f}"
            for system in ours["systems"][1:]
            for entry in system["scores"]
        ]
        assert p_values == expected


class TestOutput:
    def test_identical_file_scores_100(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        reference = files["reference"]
        code, out, err = run(
            capsys, "--hypothesis", reference, "--reference", reference, "--tokenized-bleu"
        )
        assert (code, err) == (0, "")
        rows = [line.rsplit(maxsplit=2)[:-1] for line in out.split("\n")[1:4]]
        assert rows == [["BLEU", "100.00"], ["chrF2", "100.00"], ["TER", "0.00"]]
        assert f"{TOKENIZED_BLEU}  100.00  multi-bleu.perl, not SacreBLEU|" in out

    def test_a_table_for_several_systems(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--hypothesis", files["good"], files["bad"], "--reference", files["reference"]]
        data = run_json(capsys, *arguments, "--metrics", "bleu")
        values = [system["scores"][0]["value"] for system in data["systems"]]
        code, out, _ = run(capsys, *arguments, "--metrics", "bleu", "--width", "4")
        assert code == 0
        lines = out.split("\n")
        assert lines[0].split() == ["system", "BLEU"]
        assert lines[1].split() == [files["good"], f"{values[0]:.4f}"]
        assert lines[2].split() == [files["bad"], f"{values[1]:.4f}"]
        assert lines[5].split() == ["BLEU", data["systems"][0]["scores"][0]["signature"]]

    def test_paired_alone_means_the_bootstrap_and_marks_what_is_significant(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--reference", files["reference"], "--metrics", "bleu", "--samples", "99"]
        _, out, _ = run(
            capsys, "--hypothesis", files["good"], files["bad"], files["good"], *arguments,
            "--paired",
        )  # fmt: skip
        lines = out.split("\n")
        assert "p=" not in lines[1]
        assert lines[2].endswith("(p=0.0100*)")
        assert lines[3].endswith("(p=1.0000)")
        assert "bs:99|seed:12345" in out

    def test_mean_and_deviation_over_seeds(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        runs = [files["good"], files["fair"], files["bad"]]
        arguments = ["--hypothesis", *runs, "--reference", files["reference"], "--over-seeds"]
        data = run_json(capsys, *arguments, "--tokenized-bleu")
        columns = zip(*(system["scores"] for system in data["systems"]), strict=True)
        for summary, column in zip(data["over_seeds"], columns, strict=True):
            values = [entry["value"] for entry in column]
            assert {entry["metric"] for entry in column} == {summary["metric"]}
            assert summary["runs"] == 3
            assert summary["mean"] == pytest.approx(sum(values) / 3)
            assert summary["deviation"] == pytest.approx(statistics.stdev(values))
        _, out, _ = run(capsys, *arguments)
        bleu = data["over_seeds"][0]
        mean = out.split("\nmean ")[1].split("\n")[0].split()
        assert mean[0] == f"{bleu['mean']:.2f}"
        deviation = out.split("\nstandard deviation")[1].split("\n")[0].split()
        assert deviation[0] == f"{bleu['deviation']:.2f}"

    def test_json_shape(self, files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        references = [files["reference"], files["second"]]
        data = run_json(
            capsys, "--hypothesis", files["good"], "--reference", *references, "--tokenized-bleu"
        )
        assert set(data) == {"lines", "references", "test_set", "language_pair", "systems"}
        assert data["lines"] == 40
        assert data["references"] == references
        (system,) = data["systems"]
        assert system["name"] == files["good"]
        for entry in system["scores"]:
            assert set(entry) == {"metric", "value", "signature", "details"}
        expected = tokenized_bleu(read(files["good"]), [read(path) for path in references])
        last = system["scores"][-1]
        assert last["metric"] == TOKENIZED_BLEU
        assert last["value"] == expected.value
        assert last["details"] == expected.details

    def test_tokenized_bleu_alone(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = run_json(
            capsys, "--hypothesis", files["good"], "--reference", files["reference"],
            "--metrics", "--tokenized-bleu",
        )  # fmt: skip
        assert [entry["metric"] for entry in data["systems"][0]["scores"]] == [TOKENIZED_BLEU]

    def test_hyphens_can_be_split(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        one = write(tmp_path / "one", ["das alte E-Mail Konto ist da ."])
        two = write(tmp_path / "two", ["das alte E ##AT##-##AT## Mail Konto ist da ."])
        arguments = ["--hypothesis", one, "--reference", two, "--metrics", "--tokenized-bleu"]
        plain = run_json(capsys, *arguments)["systems"][0]["scores"][0]
        split = run_json(capsys, *arguments, "--split-hyphens")["systems"][0]["scores"][0]
        assert plain["value"] < 50
        assert split["value"] == pytest.approx(100)
        assert "hyphens split" in split["signature"]
        message = refused(capsys, "--hypothesis", one, "--reference", two, "--split-hyphens")
        assert "add --tokenized-bleu" in message

    def test_compressed_files(
        self, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        packed = tmp_path / "good.gz"
        packed.write_bytes(gzip.compress(Path(files["good"]).read_bytes()))
        arguments = ["--reference", files["reference"], "--metrics", "bleu"]
        one = run_json(capsys, "--hypothesis", files["good"], *arguments)
        other = run_json(capsys, "--hypothesis", str(packed), *arguments)
        assert one["systems"][0]["scores"] == other["systems"][0]["scores"]

    def test_help_shows_examples(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = run(capsys, "--help")
        assert code == 0
        assert "--test-set wmt14/full --language-pair en-de" in out


class TestWarnings:
    def test_tokenized_text(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        raw = write(tmp_path / "raw", ["A dog runs away.", "It is a cat.", "So it is."])
        tokenized = write(tmp_path / "tok", ["A dog runs away .", "It is a cat .", "So it is ."])
        code, out, err = run(capsys, "--hypothesis", tokenized, "--reference", raw)
        assert code == 0
        assert err.startswith(f"warning: {tokenized} looks tokenised")
        assert err.count("\n") == 1
        assert "warning" not in out
        _, _, err = run(
            capsys, "--hypothesis", tokenized, "--reference", tokenized,
            "--metrics", "--tokenized-bleu",
        )  # fmt: skip
        assert err == ""

    def test_lines_too_short_for_bleu(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = write(tmp_path / "short", ["a dog", "a cat"])
        code, _, err = run(capsys, "--hypothesis", path, "--reference", path, "--metrics", "bleu")
        assert code == 0
        assert err == f"warning: BLEU of {path} is 0: no 4-gram matches a reference\n"

    def test_languages_without_spaces(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--hypothesis", files["good"], "--reference", files["reference"]]
        _, out, err = run(capsys, *arguments, "--language-pair", "en-ja")
        assert "--tokenize char" in err
        assert "tok:char" in out
        _, _, err = run(capsys, *arguments, "--language-pair", "en-ja", "--tokenize", "char")
        assert err == ""


class TestErrors:
    def test_different_line_counts(
        self, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        short = write(tmp_path / "short", ["one", "two", "three"])
        reference = files["reference"]
        for arguments in (
            ["--hypothesis", short, "--reference", reference],
            ["--hypothesis", files["good"], short, "--reference", reference],
            ["--hypothesis", files["good"], "--reference", reference, short],
        ):
            message = refused(capsys, *arguments)
            assert f"3 in {short}" in message
            assert f"40 in {reference}" in message

    def test_empty_files(
        self, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        empty = write(tmp_path / "empty", [])
        for arguments in (
            ["--hypothesis", empty, "--reference", files["reference"]],
            ["--hypothesis", files["good"], "--reference", empty],
            ["--hypothesis", empty, "--reference", empty],
        ):
            assert f"empty file: {empty}" in refused(capsys, *arguments)

    def test_unreadable_files(
        self, files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        latin = tmp_path / "latin"
        latin.write_bytes(b"one\ntw\xf6\n")
        for path, place in (
            (tmp_path / "missing", str(tmp_path / "missing")),
            (tmp_path, str(tmp_path)),
            (latin, f"{latin}:2"),
        ):
            assert place in refused(
                capsys, "--hypothesis", str(path), "--reference", files["reference"]
            )

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--paired"], "--paired needs at least two"),
            (["--over-seeds"], "--over-seeds needs at least two"),
            (["--metrics"], "nothing to compute"),
            (["--metrics", "meteor"], "meteor"),
            (["--tokenize", "mecab"], "mecab"),
            (["--paired", "xx"], "xx"),
            (["--seed", "0"], "expected a whole number (at least 1"),
            (["--samples", "-3"], "expected"),
            (["--samples", "many"], "expected a whole number, got 'many'"),
            (["--samples", "100"], "--samples: expected --paired with it"),
            (["--seed", "12345"], "--seed: expected --paired with it"),
            (["--width", "99"], "99"),
            (["--language-pair", "german"], "such as en-de, got german"),
            (["--test-set", "wmt16", "--language-pair", "ro-en"], "not allowed with"),
        ],
    )
    def test_mistaken_options(
        self,
        files: dict[str, str],
        arguments: list[str],
        words: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        message = refused(
            capsys, "--hypothesis", files["good"], "--reference", files["reference"], *arguments
        )
        assert words in message

    def test_options_that_exclude_each_other(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        two = ["--hypothesis", files["good"], files["bad"], "--reference", files["reference"]]
        assert "only one" in refused(capsys, *two, "--paired", "--over-seeds")
        message = refused(capsys, *two, "--paired", "--metrics", "--tokenized-bleu")
        assert "at least one after --metrics" in message

    def test_no_reference_at_all(
        self, files: dict[str, str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "--reference" in refused(capsys, "--hypothesis", files["good"])
        message = refused(capsys, "--hypothesis", files["good"], "--test-set", "wmt14/full")
        assert "--language-pair" in message


class TestOfficialTestSets:
    """In a process of their own: SacreBLEU looks for its cache when it is imported."""

    def run(self, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # bound but not listening: a proxy that refuses
            proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
            environment = {"SACREBLEU": str(cache), "https_proxy": proxy, "http_proxy": proxy}
            return subprocess.run(
                [sys.executable, "-m", "nmt.cli.score", *arguments],
                capture_output=True,
                text=True,
                timeout=60,
                env=os.environ | environment | {"no_proxy": ""},
            )

    def test_from_a_cache_laid_out_by_hand(self, files: dict[str, str], tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        folder = cache / "wmt14" / "full"
        folder.mkdir(parents=True)
        lines = read(files["reference"])
        for field in ("src", "ref", "docid", "genre", "origlang"):
            write(folder / f"wmt14_full.en-de.{field}", lines if field == "ref" else ["x"] * 40)
        selection = ["--test-set", "wmt14/full", "--language-pair", "en-de"]
        done = self.run(cache, "--hypothesis", files["bad"], *selection, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        ours = json.loads(done.stdout)
        assert ours["references"] == [str(folder / "wmt14_full.en-de.ref")]
        assert (ours["test_set"], ours["language_pair"]) == ("wmt14/full", "en-de")
        theirs = sacrebleu_json(
            *selection, "-i", files["bad"], "-m", "bleu", "chrf", "ter",
            environment={"SACREBLEU": str(cache)},
        )  # fmt: skip
        for entry, expected in zip(ours["systems"][0]["scores"], theirs, strict=True):
            assert entry["value"] == pytest.approx(expected["score"], abs=1e-10)
            assert entry["signature"] == expected["signature"]

    def test_from_an_archive_that_is_there(self, tmp_path: Path) -> None:
        """SacreBLEU unpacked the archive but did not come to write the text."""
        raw = tmp_path / "cache" / "wmt16" / "raw"
        text = {
            "src.ro": ["Un câine aleargă în parc azi.", "Da, așa este el acum."],
            "ref.en": ["A dog runs in the park today.", "Yes, that is how he is now."],
        }
        for name, lines in text.items():
            segments = "".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(lines, 1))
            path = raw / "test" / f"newstest2016-roen-{name}.sgm"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'<doc docid="d" genre="news" origlang="ro">\n{segments}</doc>\n')
        with tarfile.open(raw / "wmt16.test.tgz", "w:gz") as archive:
            archive.add(raw / "test", "test")
        hypothesis = write(tmp_path / "out", text["ref.en"])
        done = self.run(
            tmp_path / "cache", "--hypothesis", hypothesis, "--test-set", "wmt16",
            "--language-pair", "ro-en", "--metrics", "bleu", "--json",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        (entry,) = json.loads(done.stdout)["systems"][0]["scores"]
        assert entry["value"] == pytest.approx(100)

    def test_chinese_target_chooses_the_chinese_tokenizer(self, tmp_path: Path) -> None:
        folder = tmp_path / "cache" / "wmt18"
        folder.mkdir(parents=True)
        write(folder / "wmt18.en-zh.ref", ["他看见一只狗在跑。"])
        hypothesis = write(tmp_path / "out", ["他看见一只猫在跑。"])
        done = self.run(
            tmp_path / "cache", "--hypothesis", hypothesis, "--test-set", "wmt18",
            "--language-pair", "en-zh", "--metrics", "bleu",
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert "|tok:zh|" in done.stdout

    @pytest.mark.parametrize(("name", "pair"), [("wmt14/full", "en-de"), ("wmt22", "en-de")])
    def test_missing_set_is_not_fetched_unasked(
        self, files: dict[str, str], tmp_path: Path, name: str, pair: str
    ) -> None:
        cache = tmp_path / "cache"
        selection = ["--hypothesis", files["good"], "--test-set", name, "--language-pair", pair]
        done = self.run(cache, *selection)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith(f"nmt-score: test set {name} {pair} is not in SacreBLEU's")
        assert f"{cache / name}; add --download" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not cache.exists()

    def test_failing_download_is_one_line(self, files: dict[str, str], tmp_path: Path) -> None:
        done = self.run(
            tmp_path / "cache", "--hypothesis", files["good"], "--test-set", "wmt14/full",
            "--language-pair", "en-de", "--download",
        )  # fmt: skip
        assert done.returncode == 2
        assert "test set wmt14/full en-de cannot be fetched" in done.stderr
        assert "refused" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_wrong_number_of_lines_for_the_set(self, files: dict[str, str], tmp_path: Path) -> None:
        folder = tmp_path / "cache" / "wmt16"
        folder.mkdir(parents=True)
        reference = write(folder / "wmt16.ro-en.ref", ["one", "two"])
        done = self.run(
            tmp_path / "cache", "--hypothesis", files["good"], "--test-set", "wmt16",
            "--language-pair", "ro-en",
        )  # fmt: skip
        assert done.returncode == 2
        assert f"40 in {files['good']} and 2 in {reference}" in done.stderr


def test_starts_without_torch_and_numpy() -> None:
    program = "import sys, nmt.cli.score; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"False", b"False"]
