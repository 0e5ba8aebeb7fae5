"""Recipes and their variants by name, and the run that one of them makes with its settings."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import nmt
from nmt.errors import ConfigError

if TYPE_CHECKING:
    from nmt.recipes.corpus import RecipeFiles
    from nmt.recipes.stages import Run

PACKAGED = Path(nmt.__file__).parent / "builtin" / "recipes"  # a wheel has them, a clone has not


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
    from nmt.recipes.corpus import RecipeFiles
    from nmt.recipes.recipe import load_recipe
    from nmt.recipes.stages import Run, load_run_config

    cleaning = tuple(word for word in settings if word.startswith("clean."))
    recipe = load_recipe(directory / f"{recipe_name}.toml", cleaning)
    known = {corpus.name for corpus in recipe.train}
    if unknown := sorted(set(without) - known):
        raise ConfigError(f"--without {unknown[0]}: expected one of {', '.join(sorted(known))}")
    left = tuple(corpus for corpus in recipe.train if corpus.name not in without)
    recipe = replace(recipe, train=left)
    config_path = find_variant(configs_of(directory), variant or recipe.variant)
    task = task_name(directory, recipe_name)
    root = root_of(directory)
    data = root / "data"
    layout = RecipeFiles(data / task, data / "downloads", recipe.languages)
    overrides = [*recipe.overrides]
    if task != directory.name or root != directory.parent.parent:
        runs = root / "runs" / task
        overrides += other_paths(layout, recipe.validation.name, runs, config_path.stem)
    overrides += [word for word in settings if word not in cleaning]
    config = load_run_config(config_path, overrides, layout, recipe)
    return Run(recipe, layout, config_path, tuple(overrides), config, provided)


def task_name(directory: Path, recipe_name: str) -> str:
    """The name of the task of a recipe, which may be one of several in its directory."""
    return directory.name if recipe_name == "recipe" else f"{directory.name}-{recipe_name}"


def find_task(task: str) -> Path | None:
    """The directory of the recipe of a task, among the recipes that are known by name."""
    files = (path for folder in recipe_folders() for path in sorted(folder.glob("*/*.toml")))
    found = (path.parent for path in files if task_name(path.parent, path.stem) == task)
    return next(found, None)


def recipe_folders() -> list[Path]:
    """Where recipes are looked for by name: here, in the clone of nmt, in the installed package."""
    clone = Path(nmt.__file__).parents[1] / "recipes"
    return list(dict.fromkeys([Path.cwd() / "recipes", clone, PACKAGED]))


def root_of(directory: Path) -> Path:
    """Where a recipe has its data and runs: its clone, or here for one of the installed package."""
    return Path.cwd() if directory.parent == PACKAGED else directory.parent.parent


def list_recipes() -> list[str]:
    """The names of all recipes in the first folder that has any."""
    folders = recipe_folders()
    for folder in folders:
        if names := sorted(path.parent.name for path in folder.glob("*/recipe.toml")):
            return names
    looked = " and ".join(str(folder) for folder in folders)
    raise ConfigError(f"no recipes in {looked}; install nmt again")


def find_recipe(name: Path) -> Path:
    """The directory of a recipe, given as a path or by its name."""
    folders = recipe_folders() if len(name.parts) == 1 else []
    candidates = [Path(os.path.abspath(name)), *(folder / name for folder in folders)]
    for directory in candidates:
        if any(directory.glob("*.toml")):
            return directory
    looked = ", ".join(str(directory / "recipe.toml") for directory in candidates)
    raise ConfigError(f"no recipe {str(name)!r}: looked for {looked} (see nmt-recipe --list)")


def configs_of(directory: Path) -> Path:
    """Where the variants of a recipe are."""
    return directory.parent.parent / "configs" / directory.name


def list_variants(directory: Path) -> list[str]:
    """The names of a recipe's variants."""
    configs = configs_of(directory)
    if names := sorted(path.stem for path in variants(configs)):
        return names
    raise ConfigError(f"no variants of {directory.name}: looked for {configs / '*.yaml'}")


def other_paths(layout: "RecipeFiles", validation: str, runs: Path, variant: str) -> list[str]:
    """The settings that point a config at the text of another recipe of the same task."""
    train, valid = layout.pair("train"), layout.pair(validation)
    return [
        path_setting("run_dir", runs / variant),
        path_setting("data.prepared_dir", runs / "prepared"),
        path_setting("data.train.source", train[0]),
        path_setting("data.train.target", train[1]),
        path_setting("data.validation.source", valid[0]),
        path_setting("data.validation.target", valid[1]),
    ]


def path_setting(key: str, path: Path) -> str:
    """`key=path` as a setting of a config, whatever characters the path has."""
    text = json.dumps(str(path), ensure_ascii=False)
    for line_break in "\x85\u2028\u2029":  # as YAML sees it
        text = text.replace(line_break, f"\\u{ord(line_break):04x}")
    return f"{key}={text}"


def variants(configs: Path) -> list[Path]:
    """The configs of a task but the base that they extend."""
    return [path for path in configs.glob("*.yaml") if path.stem != "base"]


def find_variant(configs: Path, name: str) -> Path:
    """The config of a name; the number that orders the rows of a table may be left out."""
    known = sorted(path.stem for path in variants(configs))
    if (found := match_variant(known, name)) is None:
        listed = ", ".join(known)
        raise ConfigError(f"{configs}: expected one of the variants {listed}; got {name!r}")
    return configs / f"{found}.yaml"


def match_variant(known: Iterable[str], name: str) -> str | None:
    """The first of these variants that has a name, with or without its number; None without any."""
    for variant in known:
        number, _, rest = variant.partition("-")
        if variant == name or (number.isdecimal() and name in (number, number.lstrip("0"), rest)):
            return variant
    return None
