"""nmt-prepare: learn subwords and vocabularies from raw text, and encode it."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.arguments import add_config, add_flag

if TYPE_CHECKING:
    from nmt.data.prepare import Prepared

DESCRIPTION = """\
Prepare the raw text of a config for training: learn the subword model and the vocabularies, encode
the training and validation sets, and write a manifest. The output directory is data.prepared_dir
(default: `prepared` in the run directory). If it is up to date, nothing is done. nmt-train prepares
the data by itself if necessary."""
EPILOG = "exit codes: 0 done, 2 bad input or config, 4 storage, 7 damaged data, 130 interrupted"


def build_parser() -> console.SettingsParser:
    """The command line of nmt-prepare."""
    parser = console.SettingsParser(prog="nmt-prepare", description=DESCRIPTION, epilog=EPILOG)
    add_config(parser, example="data.subword.merges=8000")
    add_flag(
        parser,
        "--verify",
        "prepare nothing; read the prepared data and compare each file with its hash (exit 7 if "
        "one is damaged)",
    )
    return parser


def run_prepare(arguments: argparse.Namespace) -> None:
    """Prepare or verify the data, and print a summary."""
    from nmt.config.config import resolved_prepared_dir
    from nmt.config.loading import load_config
    from nmt.data.mixture import Mixture, describe_mixture
    from nmt.data.prepare import open_prepared, prepare

    config = load_config(arguments.config, arguments.overrides)
    if arguments.verify:
        prepared = open_prepared(resolved_prepared_dir(config))
        prepared.verify()
    else:
        start = None
        if config.train.start_from is not None:
            from nmt.checkpoint.start import start_codec  # which imports torch

            start = start_codec(config)
        prepared = prepare(config, start=start)
    lines = summary(prepared)
    if not arguments.verify:
        mixture = Mixture.of(config.data.train, prepared.sizes)
        lines += [f"  {line}" for line in describe_mixture(mixture)]
    print("\n".join(lines), file=sys.stderr)
    if not arguments.verify:
        console.suggest("nmt-train", "--config", str(arguments.config), *arguments.overrides)


def summary(prepared: "Prepared") -> list[str]:
    """The lines of the summary: pairs, vocabularies and tokens."""
    lines = [f"prepared data in {prepared.directory}"]
    for name, corpus in prepared.about["corpora"].items():
        pairs, read, left_out = corpus["pairs"], corpus["read"], corpus["left_out"]
        lines.append(f"  {name + ' pairs':<18}{pairs:>14,}  of {read:,} read")
        lines += [
            f"    {'left out':<16}{count:>14,}  {reason}" for reason, count in left_out.items()
        ]
        for part in corpus.get("parts", []):
            skipped = sum(part["left_out"].values())
            means = [part[side]["tokens"] / part["pairs"] for side in ("source", "target")]
            lines.append(
                f"    {part['name']:<16}{part['pairs']:>14,}  of {part['read']:,} read, "
                f"{skipped:,} left out; {means[0]:.1f} and {means[1]:.1f} tokens per sentence"
            )
    train = prepared.about["corpora"]["train"]
    for side, size in prepared.about["vocabulary"].items():
        tokens = train[side]["tokens"]
        mean = f"{tokens / train['pairs']:.1f} per sentence"
        lines.append(f"  {side + ' vocabulary':<18}{size:>14,}")
        lines.append(f"  {side + ' tokens':<18}{tokens:>14,}  for training, {mean}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return console.run(build_parser(), run_prepare, argv)


if __name__ == "__main__":
    sys.exit(main())
