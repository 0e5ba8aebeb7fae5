"""nmt-recipe: the stages of a recipe, in order or one alone; `recipes/NAME/run.sh` runs it."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.arguments import add_flag, add_path
from nmt.errors import ConfigError
from nmt.recipes.variants import find_recipe, list_recipes, list_variants, make_run

if TYPE_CHECKING:
    from nmt.recipes.stages import StageName

logger = logging.getLogger(__name__)

STAGES: tuple["StageName", ...] = ("prepare", "train", "average", "translate", "score", "analyze")
DESCRIPTION = """\
Run a recipe: fetch and clean its data, prepare it, train, average the last checkpoints, translate
the test set, score, analyse. A stage whose work is done is skipped, one that was cut goes on, one
whose inputs changed is done again."""
EPILOG = """\
examples:
  nmt-recipe multi30k_en_de rela-g --data DIR
  bash recipes/wmt14_en_de/run.sh softmax --stage prepare
  bash recipes/wmt16_ro_en/run.sh sparsemax seed=2 run_dir=runs/second

Settings that begin with `clean.` change the recipe's cleaning, all others the config of the
variant. With NMT_MIRROR=https://HOST/PATH in the environment the file https://A/B is taken from
https://HOST/PATH/A/B. Exit codes are those of the commands; 7: a file is not what its checksum
says."""


def build_parser() -> console.SettingsParser:
    """The command line of a recipe."""
    parser = console.SettingsParser(prog="nmt-recipe", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "recipe_name", nargs="?", type=Path, metavar="RECIPE", help="NAME, or a folder recipes/NAME"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[VARIANT] section.key=value",
        help="a config of configs/NAME, such as softmax or rela-g, and settings that change it",
    )
    parser.add_argument("--stage", choices=STAGES, help="this stage alone (default: all in order)")
    meaning = "take the recipe's files from here, archives or what is in them; the rest is fetched"
    add_path(parser, "--data", meaning, metavar="DIR")
    parser.add_argument(
        "--without", action="append", default=[], metavar="CORPUS", help="leave a corpus out"
    )
    parser.add_argument(
        "--recipe", default="recipe", metavar="NAME", help="another recipe of the same directory"
    )
    add_flag(parser, "--list", "show the variants (without RECIPE: the recipes), and end")
    return parser


def run_recipe(arguments: argparse.Namespace) -> int:
    """Run the stages that were asked for."""
    if arguments.recipe_name is None:
        if not arguments.list:
            raise ConfigError("expected a RECIPE; nmt-recipe --list shows them")
        print("\n".join(list_recipes()))
        return 0
    directory = find_recipe(arguments.recipe_name)
    if arguments.list:
        print("\n".join(list_variants(directory)))
        return 0
    from nmt.recipes.stages import FailedError, run_stage  # imports packages: not for a list

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run a recipe; returns the exit code."""
    return console.run(build_parser(), run_recipe, argv)


if __name__ == "__main__":
    sys.exit(main())
