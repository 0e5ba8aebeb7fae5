"""The stages of a recipe; each is a command that could be typed, skipped when its work is done."""

import json
import logging
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nmt.config.config import Config
from nmt.config.loading import load_config, parse_config
from nmt.data.text import LineWriter, read_text
from nmt.data.tokenizer import make_tokenizer
from nmt.errors import ConfigError, StorageError
from nmt.recipes.corpus import RecipeFiles, build_corpus, free_gigabytes
from nmt.recipes.estimates import preparation_estimate, training_estimate
from nmt.recipes.recipe import Recipe
from nmt.storage.hashing import bytes_sha256, file_sha256
from nmt.storage.manifest import MANIFEST

logger = logging.getLogger(__name__)

ANALYSIS_FORMAT = "format 3"  # of analysis.json
ANALYSIS_DIRECTORY = "analysis"  # in a run

REQUEUE = getattr(signal, "SIGUSR1", None)  # how SLURM asks to stop; Windows has no such signal

StageName = Literal["prepare", "train", "average", "translate", "score", "analyze"]
AVERAGED = 5


class FailedError(Exception):
    """A command did not do all of its work; it has said why, the exit code says it again."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Run:
    """One variant of one recipe."""

    recipe: Recipe
    layout: RecipeFiles
    config_path: Path
    overrides: tuple[str, ...]
    config: Config
    provided: Path | None

    @property
    def results(self) -> Path:
        """Where translations, scores and stamps go."""
        return self.config.run_dir / "results"

    @property
    def hypothesis(self) -> Path:
        """Our translation of the test set."""
        return self.results / f"{self.recipe.test.name}.{self.recipe.target_language}"

    @property
    def model(self) -> Path:
        """The averaged model."""
        return self.config.run_dir / "average"

    @property
    def config_arguments(self) -> list[str]:
        """How the commands are told of the config."""
        return ["--config", str(self.config_path), *self.overrides]


def run_stage(name: StageName, run: Run) -> None:
    """Run one stage; FailedError when a command fails."""
    functions: dict[StageName, Callable[[Run], None]] = {
        "prepare": prepare,
        "train": train,
        "average": average,
        "translate": translate,
        "score": score,
        "analyze": analyze,
    }
    logger.info("== %s: %s", name, run.config.run_dir)
    check_earlier(name, run)
    functions[name](run)


def check_earlier(name: StageName, run: Run) -> None:
    """Reject a stage that needs what an earlier one has not made yet."""
    needed: dict[StageName, tuple[Path, StageName]] = {
        "average": (run.config.run_dir / "checkpoints", "train"),
        "translate": (run.model, "average"),
        "score": (run.hypothesis, "translate"),
        "analyze": (run.model, "average"),
    }
    if name in needed:
        path, earlier = needed[name]
        if not path.exists():
            raise ConfigError(f"{path}: not found; run the stage {earlier} first")


# ---------------------------------------------------------------- the stages


def prepare(run: Run) -> None:
    """Fetch and clean the text, then learn subwords and encode it."""
    recipe, directory = run.recipe, run.layout.directory
    free = free_gigabytes(directory)
    logger.info(
        "estimate: %.3g GB to download, %.3g GB of disk (%.3g GB are free), %s",
        recipe.download_gigabytes,
        recipe.disk_gigabytes,
        free,
        preparation_estimate(recipe.paper_pairs or 0),
    )
    if free < recipe.disk_gigabytes and not (directory / "corpus.json").exists():
        logger.warning("there may be too little room on the disk of %s", directory)
    build_corpus(recipe, run.layout, provided=run.provided)
    command("prepare", run.config_arguments)


def train(run: Run) -> None:
    """Train to the end; nmt-train itself resumes, and does nothing when that is reached."""
    gpus = 0 if run.config.train.device == "cpu" else visible_gpus()
    logger.info("estimate: %s", training_estimate(run.config, gpus))
    arguments = [*run.config_arguments, *batch_overrides(run)]
    if gpus > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        execute([sys.executable, *launcher, "-m", "nmt.cli.train", *arguments])
    else:
        command("train", arguments)
    if (status := training_status(run)) != "finished":
        # After SIGUSR1, for schedulers that queue the job again: the command ended well.
        logger.warning("training is not at its end (%s)", status)
        raise FailedError(0 if status == "stopped" else StorageError.exit_code)


def average(run: Run) -> None:
    """Average the last checkpoints."""
    checkpoints = sorted((run.config.run_dir / "checkpoints").glob("step-*"))[-AVERAGED:]
    inputs = [file_digest(path / MANIFEST) for path in checkpoints]
    with_stamp(
        run,
        "average",
        inputs,
        [run.model / MANIFEST],
        lambda: command(
            "average_checkpoints", ["--run", str(run.config.run_dir), "--last", str(AVERAGED)]
        ),
    )


def translate(run: Run) -> None:
    """Translate the official test set with the averaged model."""
    source, _ = run.layout.pair(run.recipe.test.name)
    decode = run.config.decode
    settings = ["--beam", str(decode.beam), "--length-penalty", str(decode.length_penalty)]
    output = tokenized_path(run.hypothesis) if run.recipe.tokenized else run.hypothesis

    def work() -> None:
        arguments = ["--model", str(run.model), "--input", str(source), "--output", str(output)]
        command("translate", [*arguments, *settings])
        if run.recipe.tokenized:
            detokenize_file(output, run.hypothesis, run.recipe.target_language)

    inputs = [file_digest(run.model / MANIFEST), file_digest(source), *settings]
    with_stamp(run, "translate", inputs, [run.hypothesis], work)


def score(run: Run) -> None:
    """SacreBLEU on raw text, and BLEU on tokenised text as multi-bleu.perl computes it."""
    _, reference = run.layout.pair(run.recipe.test.name)
    pair = "-".join(run.recipe.languages)
    output = run.results / "scores.json"
    tokenized = tokenized_options(run)

    def work() -> None:
        raw = ["--hypothesis", str(run.hypothesis), "--reference", str(reference)]
        make_tokenized(run, reference)
        scores = [
            *json_output("score", [*raw, "--language-pair", pair, "--json"]),
            *json_output("score", [*tokenized, "--json"]),
        ]
        with LineWriter(output) as writer:
            for line in json.dumps({"pair": pair, "scores": scores}, indent=2).split("\n"):
                writer.write(line)

    given = run.layout.tokenized(run.recipe.test.name)
    inputs = [file_digest(run.hypothesis), file_digest(reference), file_digest(given), *tokenized]
    with_stamp(run, "score", inputs, [output], work)
    for entry in json.loads(output.read_bytes())["scores"]:
        print(f"{entry['metric']:<36}{entry['value']:8.2f}  {entry['signature']}")


def tokenized_options(run: Run) -> list[str]:
    """The options of nmt-score for BLEU on tokenised text."""
    ours, reference = tokenized_pair(run)
    files = ["--hypothesis", str(ours), "--reference", str(reference)]
    hyphens = ["--split-hyphens"] if run.recipe.split_hyphens else []
    return [*files, "--metrics", "--tokenized-bleu", *hyphens]


def tokenized_pair(run: Run) -> tuple[Path, Path]:
    """Our translation and the reference as tokenised text."""
    test, recipe = run.recipe.test.name, run.recipe
    ours, reference = (run.results / "tokenized" / f"{test}.{n}" for n in ("ours", "reference"))
    if recipe.test.tokenized_target:  # in the form of the text that the model was trained on
        reference = run.layout.tokenized(test)
        ours = tokenized_path(run.hypothesis) if recipe.tokenized else ours
    return ours, reference


def make_tokenized(run: Run, reference: Path) -> None:
    """Tokenise what there is only as raw text."""
    for raw, path in zip((run.hypothesis, reference), tokenized_pair(run), strict=True):
        if path.parent == run.results / "tokenized":
            path.parent.mkdir(exist_ok=True)
            tokenize_file(raw, path, run.recipe.target_language)


def analyze(run: Run, options: Sequence[str] = (), files: Sequence[Path] = ()) -> None:
    """The analysis of the paper's section 5.2 on the test set.

    `options` are more options of nmt-analyze, and `files` those that they name.
    """
    texts = [*name_test_set(run), "--names", run.config.run_dir.name]
    read = [*run.layout.pair(run.recipe.test.name), *files]
    analyze_text(run, ANALYSIS_DIRECTORY, texts, ["--pdf", *options], read)


def name_test_set(run: Run) -> list[str]:
    """The options of nmt-analyze that name the test set."""
    source, target = run.layout.pair(run.recipe.test.name)
    return ["--source", str(source), "--target", str(target)]


def analyze_text(
    run: Run, name: str, texts: Sequence[str], options: Sequence[str], files: Sequence[Path]
) -> None:
    """Analyse the averaged model on a text, into the folder `name` of the run.

    It is done again when the model, an option or the content of a file has changed.
    """
    output = run.config.run_dir / name
    inputs = [file_digest(path) for path in (run.model / MANIFEST, *files)]
    arguments = ["--model", str(run.model), *texts, *options, "--output", str(output)]
    work = partial(command, "analyze", arguments)
    with_stamp(run, name, [*inputs, *options, ANALYSIS_FORMAT], [output], work)


# ---------------------------------------------------------------- how they run


def with_stamp(
    run: Run, name: str, inputs: Sequence[str], outputs: Sequence[Path], work: Callable[[], None]
) -> None:
    """Do the work unless its outputs exist and were made of the same inputs."""
    run.results.mkdir(parents=True, exist_ok=True)
    if is_done(run, name, inputs, outputs):
        logger.info("%s: done before, nothing has changed", name)
        return
    stamp = stamp_path(run, name)
    stamp.unlink(missing_ok=True)
    work()
    with LineWriter(stamp) as writer:
        writer.write(stamp_text(inputs))


def is_done(run: Run, name: str, inputs: Sequence[str], outputs: Sequence[Path]) -> bool:
    """Whether the outputs of some work exist and were made of these inputs."""
    stamp = stamp_path(run, name)
    same = stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == stamp_text(inputs)
    return same and all(path.exists() for path in outputs)


def stamp_path(run: Run, name: str) -> Path:
    """The file that says of which inputs some work was done."""
    return run.results / f".{name}.done"


def stamp_text(inputs: Sequence[str]) -> str:
    """The content of a stamp."""
    return bytes_sha256("\n".join(inputs).encode())


def command(name: str, arguments: Sequence[str]) -> None:
    """Run one of our commands in a process of its own."""
    execute([sys.executable, "-m", f"nmt.cli.{name}", *arguments])


def execute(line: Sequence[str]) -> None:
    """Run a command line, shown as it could be typed; FailedError unless it ends with 0.

    Ctrl-C reaches the command too, which saves its work and ends in its own time; other signals
    are passed on.
    """
    logger.info("$ %s", shlex.join(["python", *line[1:]]))
    received: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: object) -> None:
        received.append(number)
        for process in started:
            process.send_signal(number)

    handlers = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    for number in filter(None, (signal.SIGTERM, REQUEUE)):
        handlers[number] = signal.signal(number, pass_on)
    try:
        with subprocess.Popen(line) as process:
            started.append(process)
            for early in received:  # before it was started
                process.send_signal(early)
            code = process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if REQUEUE is not None and REQUEUE in received and code in (0, -REQUEUE):
        raise FailedError(0)  # stopped, perhaps before it had begun, to be queued again
    if code:
        raise FailedError(exit_code(code))


def exit_code(code: int) -> int:
    """The exit code of a process as a shell gives it; processes that die of a signal have one."""
    return code if code >= 0 else 128 - code


def json_output(name: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """The scores that nmt-score prints as JSON."""
    line = [sys.executable, "-m", f"nmt.cli.{name}", *arguments]
    logger.info("$ %s", shlex.join(["python", *line[1:]]))
    done = subprocess.run(line, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise FailedError(exit_code(done.returncode))
    scores: list[dict[str, Any]] = json.loads(done.stdout)["systems"][0]["scores"]
    return scores


def training_status(run: Run) -> str:
    """`finished`, or how the run ended otherwise."""
    try:
        result = json.loads((run.config.run_dir / "result.json").read_bytes())
    except (OSError, ValueError):
        return "has no result"
    return str(result.get("status"))


def visible_gpus() -> int:
    """How many CUDA devices there are for us."""
    import torch

    return torch.cuda.device_count()


def batch_overrides(run: Run) -> list[str]:
    """The batch settings of a run that has begun, where they differ from those of its config.

    Earlier versions chose them by the number of GPUs.
    """
    begun = run.config.run_dir / "config.yaml"
    if not begun.exists():
        return []
    text = begun.read_bytes().decode(errors="replace")
    before = parse_config(text, name=str(begun), directory=begun.parent).train
    now = run.config.train
    if (before.batch_tokens, before.accumulate) == (now.batch_tokens, now.accumulate):
        return []
    return [f"train.batch_tokens={before.batch_tokens}", f"train.accumulate={before.accumulate}"]


def load_run_config(
    path: Path, overrides: Sequence[str], layout: RecipeFiles, recipe: Recipe
) -> Config:
    """The config of a variant, which has to read the text that the recipe makes."""
    config = load_config(path, overrides)
    wanted = [*layout.pair("train"), *layout.pair(recipe.validation.name)]
    sets = (*config.data.train, *config.data.validation)
    read = [file for each in sets for file in (*each.source, *each.target)]
    if [file.absolute() for file in read] != [file.absolute() for file in wanted]:
        raise ConfigError(
            f"{path}: expected data.train and data.validation to be {wanted[0]} ..., which the "
            f"recipe makes; got {read[0]} ... (train on other text with nmt-train itself)"
        )
    return config


# ---------------------------------------------------------------- text in and out of tokens


def tokenized_path(path: Path) -> Path:
    """Where the tokenised form of a text goes."""
    return path.with_name(f"{path.name}.tokenized")


def tokenize_file(source: Path, target: Path, language: str) -> None:
    """Words and punctuation marks apart, as multi-bleu.perl wants them."""
    tokenizer = make_tokenizer("moses", language)
    with LineWriter(target) as writer:
        for line in read_text(source):
            writer.write(" ".join(tokenizer.tokenize(line)))


def detokenize_file(source: Path, target: Path, language: str) -> None:
    """Raw text from text in the form of Stanford's release, with its marks for split hyphens."""
    import sacremoses

    detokenizer = sacremoses.MosesDetokenizer(lang=language)
    with LineWriter(target) as writer:
        for line in read_text(source):
            words = line.replace("##AT##-##AT##", "@-@").split(" ")
            writer.write(detokenizer.detokenize(words, unescape=True))


def file_digest(path: Path) -> str:
    """SHA-256 of a file, or a word for one that is missing."""
    return file_sha256(path) if path.is_file() else "missing"
