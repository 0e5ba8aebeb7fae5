"""What `bash recipes/NAME/run.sh` runs: the stages of a recipe, in order or one alone."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.recipes.corpus import Layout
    from nmt.recipes.stages import Run, StageName

logger = logging.getLogger(__name__)

STAGES: tuple["StageName", ...] = ("prepare", "train", "average", "translate", "score", "analyze")
DESCRIPTION = """\
Run a recipe: fetch and clean its data, prepare it, train, average the last checkpoints, translate
the test set, score, analyse. A stage whose work is done is skipped, one that was cut goes on, one
whose inputs changed is done again."""
EPILOG = """\
examples:
  bash recipes/multi30k_en_de/run.sh rela-g --data DIR
  bash recipes/wmt14_en_de/run.sh softmax --stage prepare
  bash recipes/wmt16_ro_en/run.sh sparsemax train.precision=bfloat16 seed=2 run_dir=runs/second

Settings that begin with `clean.` change the recipe's cleaning, all others the config of the
variant. With NMT_MIRROR=https://HOST/PATH in the environment the file https://A/B is taken from
https://HOST/PATH/A/B. Exit codes are those of the commands; 7: a file is not what its checksum
says."""


class Parser(console.Parser):
    """Takes settings before, between and after options."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        return self.parse_intermixed_args(args, namespace)


def build_parser() -> Parser:
    """The command line of a recipe."""
    parser = Parser(
        prog="run.sh",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", type=Path, metavar="RECIPE", help="recipes/NAME")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[VARIANT] section.key=value",
        help="a config of configs/NAME, such as softmax or rela-g, and settings that change it",
    )
    parser.add_argument("--stage", choices=STAGES, help="this stage alone (default: all in order)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="take the recipe's files from here, archives or what is in them; the rest is fetched",
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="CORPUS", help="leave a corpus out"
    )
    parser.add_argument(
        "--recipe", default="recipe", metavar="NAME", help="another recipe of the same directory"
    )
    parser.add_argument("--list", action="store_true", help="show the variants, and end")
    return parser


def run_recipe(arguments: argparse.Namespace) -> int:
    """Run the stages that were asked for."""
    from nmt.recipes.stages import FailedError, run_stage

    directory = arguments.directory
    if arguments.list:
        print("\n".join(sorted(path.stem for path in variants(configs_of(directory)))))
        return 0
    named = [word for word in arguments.words if "=" not in word]
    if len(named) > 1:
        raise ConfigError(f"expected one variant, got {' and '.join(named)}")
    run = make_run(
        directory,
        named[0] if named else None,
        settings=[word for word in arguments.words if "=" in word],
        recipe_name=arguments.recipe,
        without=arguments.without,
        provided=arguments.data,
    )
    try:
        for name in STAGES:
            if arguments.stage in (None, name):
                run_stage(name, run)
    except FailedError as error:
        logger.warning("stopped; the same command goes on from here")
        return error.exit_code
    return 0


def make_run(
    directory: Path,
    variant: str | None,
    *,
    settings: Sequence[str],
    recipe_name: str = "recipe",
    without: Sequence[str] = (),
    provided: Path | None = None,
) -> "Run":
    """A variant (None: the recipe's own choice) of the recipe in a directory, with settings."""
    from nmt.recipes.corpus import Layout
    from nmt.recipes.recipe import load_recipe
    from nmt.recipes.stages import Run, load_run_config

    directory = Path(os.path.abspath(directory))
    cleaning = tuple(word for word in settings if word.startswith("clean."))
    recipe = load_recipe(directory / f"{recipe_name}.toml", cleaning)
    known = {corpus.name for corpus in recipe.train}
    if unknown := sorted(set(without) - known):
        raise ConfigError(f"--without {unknown[0]}: expected one of {', '.join(sorted(known))}")
    left = tuple(corpus for corpus in recipe.train if corpus.name not in without)
    recipe = replace(recipe, train=left)
    config_path = find_variant(configs_of(directory), variant or recipe.variant)
    task = directory.name if recipe_name == "recipe" else f"{directory.name}-{recipe_name}"
    data = directory.parent.parent / "data"
    layout = Layout(data / task, data / "downloads", recipe.languages)
    overrides = [*recipe.overrides]
    if task != directory.name:
        runs = directory.parent.parent / "runs" / task
        overrides += other_paths(layout, recipe.validation.name, runs, config_path.stem)
    overrides += [word for word in settings if word not in cleaning]
    config = load_run_config(config_path, overrides, layout, recipe)
    return Run(recipe, layout, config_path, tuple(overrides), config, provided)


def configs_of(directory: Path) -> Path:
    """Where the variants of a recipe are."""
    directory = Path(os.path.abspath(directory))
    return directory.parent.parent / "configs" / directory.name


def other_paths(layout: "Layout", validation: str, runs: Path, variant: str) -> list[str]:
    """The settings that point a config at the text of another recipe of the same task."""
    train, valid = layout.pair("train"), layout.pair(validation)
    return [
        f"run_dir={runs / variant}",
        f"data.prepared_dir={runs / 'prepared'}",
        f"data.train.source={train[0]}",
        f"data.train.target={train[1]}",
        f"data.validation.source={valid[0]}",
        f"data.validation.target={valid[1]}",
    ]


def variants(configs: Path) -> list[Path]:
    """The configs of a task but the base that they extend."""
    return [path for path in configs.glob("*.yaml") if path.stem != "base"]


def find_variant(configs: Path, name: str) -> Path:
    """The config of a name; the number that orders the rows of a table may be left out."""
    for path in sorted(variants(configs)):
        number, _, rest = path.stem.partition("-")
        if path.stem == name or (number.isdecimal() and name in (number, number.lstrip("0"), rest)):
            return path
    known = ", ".join(sorted(path.stem for path in variants(configs)))
    raise ConfigError(f"{configs}: expected one of the variants {known}; got {name!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a recipe; returns the exit code."""
    return console.run(build_parser(), run_recipe, argv)


if __name__ == "__main__":
    sys.exit(main())
