"""Whatever key of a valid config is spoilt, in whatever way, the config is refused by name."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml

from nmt.config.config import Config
from nmt.config.loading import parse_config
from nmt.config.scalars import Range, type_hints
from nmt.config.schema import item_type, section_keys
from nmt.errors import ConfigError

EXAMPLE = (Path(__file__).parent / "example.yaml").read_text(encoding="utf-8")
BASE = yaml.safe_load(EXAMPLE)
Keys = tuple[Any, ...]
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # in C: four times as fast


def keys_of(tree: Any, above: Keys = ()) -> Iterator[Keys]:
    """All keys of nested dictionaries, each as the way to it."""
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from keys_of(value, (*above, key))


ALL_KEYS = list(keys_of(BASE))
LEAVES = [keys for keys in ALL_KEYS if not any(other[:-1] == keys for other in ALL_KEYS)]


def at(keys: Keys) -> Any:
    tree = BASE
    for key in keys:
        tree = tree[key]
    return tree


def changed(keys: Keys, value: Any, *, name: Any = None) -> str:
    """The example with another value, and possibly another name, for one key."""
    tree = copy.deepcopy(BASE)
    section = tree
    for key in keys[:-1]:
        section = section[key]
    del section[keys[-1]]
    section[keys[-1] if name is None else name] = value
    return yaml.dump(tree, Dumper=DUMPER)


def annotation_of(keys: Keys) -> Any:
    annotation: Any = Config
    for key in keys:
        is_dict = get_origin(annotation) is dict
        annotation = get_args(annotation)[1] if is_dict else section_keys(annotation)[key].type
        annotation = item_type(annotation)
    return annotation


def spoilt() -> Iterator[tuple[str, str]]:
    """Names of mutations with the mutated texts."""
    for keys in ALL_KEYS:
        dotted = ".".join(map(str, keys))
        name = str(keys[-1])
        yield f"{dotted} misspelt", changed(keys, at(keys), name=name + "x")
        yield f"{dotted} cut to one letter", changed(keys, at(keys), name=name[0] + "_")
        yield f"{dotted} a list of lists", changed(keys, [[1], [2]])
    for keys in LEAVES:
        dotted = ".".join(map(str, keys))
        yield f"{dotted} a mapping", changed(keys, {"x": 1})
        value = at(keys)
        if isinstance(value, bool | int | float) or keys[-1] in ("learning_rate", "epsilon"):
            yield f"{dotted} a word", changed(keys, "word")
            yield f"{dotted} not a number", changed(keys, float("nan"))
        annotation = annotation_of(keys)
        if get_origin(annotation) is Annotated and isinstance(get_args(annotation)[1], Range):
            limits = get_args(annotation)[1]
            if limits.low is not None:
                yield f"{dotted} too low", changed(keys, limits.low - 1)
            if limits.high is not None:
                yield f"{dotted} too high", changed(keys, 2 * limits.high + 1)
        elif isinstance(value, str) and "language" not in dotted and "source" not in dotted:
            is_path = dotted in ("run_dir", "data.prepared_dir") or "target" in dotted
            if not is_path and keys[-1] not in ("name", "tag"):
                yield f"{dotted} another word", changed(keys, "nonsense")


def duplicated() -> Iterator[tuple[str, str]]:
    """Each line with a value, twice."""
    lines = EXAMPLE.strip().split("\n")
    for index, line in enumerate(lines):
        if ": " in line and not line.startswith("#"):
            text = "\n".join([*lines[: index + 1], line, *lines[index + 1 :]])
            yield f"line {index + 1} ({line.strip()}) twice", text


MUTATIONS = dict([*spoilt(), *duplicated()])


def parse(text: str) -> Config:
    return parse_config(text, name="example.yaml", directory=Path("/base"))


def test_the_example_is_valid_and_sets_every_key():
    parse(EXAMPLE)
    of_other_kinds = {"data.subword.vocabulary_size", "data.subword.model"}
    of_other_packages = {"kinds"}  # tests/behaviour/test_outside_kind.py
    # These make required keys optional, or need them: tests/integration/test_fine_tuning.py.
    of_starts = {"train.start_from", "data.extend_vocabulary"}
    named = {".".join(map(str, keys)) for keys in ALL_KEYS}
    named |= of_other_kinds | of_other_packages | of_starts

    def all_names(section: Any, above: str = "") -> Iterator[str]:
        for name, annotation in type_hints(section).items():
            if above.startswith("model.attention."):
                continue  # options differ by kind; together the three types set all of them
            yield above + name
            inner = item_type(annotation)
            if hasattr(inner, "__dataclass_fields__"):
                yield from all_names(inner, f"{above}{name}.")

    assert set(all_names(Config)) - named == set()
    set_options = {keys[-1] for keys in ALL_KEYS if keys[:2] == ("model", "attention")}
    assert set(section_keys(annotation_of(("model", "attention", "cross")))) <= set_options


@pytest.mark.clock
def test_refusing_is_fast():
    started = time.process_time()
    for text in MUTATIONS.values():
        with pytest.raises(ConfigError):
            parse(text)
    assert (time.process_time() - started) / len(MUTATIONS) < 0.5  # seconds; 0.01 were measured


def test_there_are_many_mutations():
    assert len(MUTATIONS) >= 400


@pytest.mark.parametrize("text", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert caught.value.exit_code == 2
    assert "example.yaml:" in str(caught.value)


@pytest.mark.parametrize("keys", [keys for keys in ALL_KEYS if isinstance(keys[-1], str)])
def test_a_misspelt_key_is_named_with_the_right_one(keys):
    if keys[-1] == "k":
        return  # too short to be near anything
    text = changed(keys, at(keys), name=keys[-1] + "x")
    line = next(n for n, row in enumerate(text.split("\n"), 1) if f"{keys[-1]}x:" in row)
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert f"example.yaml:{line}: " in str(caught.value)
    assert f"unknown key '{keys[-1]}x'; did you mean '{keys[-1]}'?" in str(caught.value)


def test_all_problems_are_listed_at_once():
    text = EXAMPLE
    for old, new in (
        ("seed: 3", "sede: 3"),
        ("dim: 64", "dim: 65"),
        ("beta1: 0.9", "beta1: 1.9"),
        ("metric: chrf", "metric: blue"),
        ("on_bad_line: skip", "on_bad_line: skip\n  on_bad_line: error"),
    ):
        assert text.count(f"  {old}\n") == 1 or text.count(f"{old}\n") == 1
        text = text.replace(f"{old}\n", f"{new}\n", 1)
    with pytest.raises(ConfigError) as caught:
        parse(text)
    first, *others = str(caught.value).split("\n")
    assert first == "6 problems in example.yaml:"
    expected = [
        "unknown key 'sede'; did you mean 'seed'?",
        "on_bad_line",
        "model.dim: expected an even number, got 65",
        "model.heads: model.dim 65 is not a multiple of model.heads 4",
        "train.adam.beta1: expected a number (at least 0 and below 1), got '1.9'",
        "validate.metric: expected one of bleu, chrf, loss, perplexity, got 'blue'; did you mean "
        "'bleu'?",
    ]
    assert len(others) == len(expected)
    for message, problem in zip(expected, others, strict=True):
        assert message in problem
    lines = [int(problem.split(":")[1]) for problem in others]
    assert lines == sorted(lines)
