"""The page of nmt-analyze in a browser: what a person does there, and reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attention import observe_pairs
from support.chromium import PROGRAM, Page, open_browser
from translation_models import make_codec, make_config, make_directory, make_model, random_lines

from nmt.analysis.pairs import PairAttention
from nmt.checkpoint.model_directory import load_model
from nmt.cli import analyze
from nmt.decoding.translator import Translator
from nmt.model.observe import Site

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")

MARK = "window.marker=1"
ODD = [
    f"</script><script>{MARK}</script>",
    f"<img/src=x/onerror={MARK}>",
    "&lt;b&gt;",
    "\"'`${1}",
    "שלום",
    "‮abc",
    "<!--",
]
SOURCE = ["the old dog sees a tree", *random_lines(5, seed=1, longest=9), " ".join(ODD)]
TARGET = ["A TREE SEES THE DOG", *(line.upper() for line in random_lines(5, seed=2, longest=9))]
TARGET.append(" ".join(reversed(ODD)))
NAMES = [f"<script>{MARK}</script>", "plain"]
ODD_SENTENCE = len(SOURCE) - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two models, and all that it was made from."""
    folder = tmp_path_factory.mktemp("browser")
    for kind in ("rela-g", "softmax"):
        config = make_config(kind)
        codec = make_codec(config)
        make_directory(folder / kind, config, codec, make_model(config, codec))
    gold = ["0-0"] * len(SOURCE)
    for name, lines in (("source", SOURCE), ("target", TARGET), ("gold", gold)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    inputs = [f"--{name}={folder / name}" for name in ("source", "target", "gold")]
    models = [str(folder / "rela-g"), str(folder / "softmax")]
    output = ["--output", str(folder / "out"), "--names", *NAMES]
    assert analyze.main(["--model", *models, *inputs, *output]) == 0
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def open_report(browser: Page, folder: Path, fragment: str = "") -> None:
    browser.open(folder / "out" / "report.html", fragment)
    browser.wait("!document.getElementById('look').hidden")
    wait_for_words(browser)


def wait_for_words(browser: Page) -> None:
    browser.wait("document.querySelectorAll('.thumbs button').length > 0")


def measures(browser: Page, panel: int = 1) -> dict[str, str]:
    """The numbers beside their names, as shown in a panel."""
    place = f".panel:nth-child({panel}) .measures"
    numbers = browser.texts(f"{place} dd:not(.meaning)")
    return dict(zip(browser.texts(f"{place} dt"), numbers, strict=True))


def choose(browser: Page, choice: str, value: str) -> None:
    """Pick an entry of a list in the first panel."""
    browser.run(
        f"(() => {{ const list = document.querySelector('[data-choice={choice}]');"
        f"list.value = {json.dumps(value)}; list.dispatchEvent(new Event('change')); }})()"
    )


def numbers(folder: Path, model: int, type_: str, layer: int) -> dict[str, Any]:
    analysis = json.loads((folder / "out" / "analysis.json").read_text(encoding="utf-8"))
    return analysis["models"][model]["statistics"][type_][f"layer_{layer}"]["heads"]


def attention(folder: Path, kind: str, place: int) -> PairAttention:
    loaded = load_model(folder / kind)
    (seen,) = observe_pairs(loaded, [(SOURCE[place], TARGET[place])])
    return seen


def test_another_head_shows_other_numbers(browser: Page, folder: Path) -> None:
    open_report(browser, folder, "#layer=1&head=2")
    heads = numbers(folder, 0, "cross", 1)
    shown = measures(browser)
    assert shown["kind"] == "rela-g"
    assert shown["null rate"] == f"{100 * heads['null_rate'][2]:.1f} %"
    assert shown["sparsity"] == f"{100 * heads['sparsity'][2]:.1f} %"
    assert shown["AER shifted"].endswith("%")
    browser.press("ArrowRight")
    after = measures(browser)
    assert after["sparsity"] == f"{100 * heads['sparsity'][3]:.1f} %"
    assert after["entropy"] == f"{heads['entropy'][3]:.2f}" != shown["entropy"]
    browser.press("ArrowUp")
    choose(browser, "head", "1")
    choose(browser, "type", "encoder_self")
    heads = numbers(folder, 0, "encoder_self", 0)
    assert measures(browser)["entropy"] == f"{heads['entropy'][1]:.2f}"
    assert "layer=0&head=1" in browser.run("location.hash")
    assert browser.problems == []


def test_every_measure_is_explained_and_none_is_empty(browser: Page, folder: Path) -> None:
    open_report(browser, folder)
    browser.wait("document.querySelectorAll('.panel:nth-child(2) .thumbs button').length > 0")
    for panel in (1, 2):
        meanings = browser.texts(f".panel:nth-child({panel}) .meaning")
        assert len(meanings) == len(measures(browser, panel))
        assert all(meaning.endswith(".") for meaning in meanings)
        assert all(measures(browser, panel).values())
    assert "null rate" in measures(browser, 1)
    assert "null rate" not in measures(browser, 2)  # softmax
    legend = "[...document.querySelectorAll('[data-legend]')].filter((e) => e.checkVisibility())"
    shown = browser.run(f"{legend}.map((e) => e.dataset.legend)")
    assert shown == ["weight", "zero", "null"]
    choose(browser, "model", "1")
    assert browser.run(f"{legend}.map((e) => e.dataset.legend)") == ["weight", "zero"]
    browser.run("document.querySelector('[data-view=heads]').click()")
    assert browser.texts("#meanings dt") == browser.texts("#overview th")[1:]


def test_the_models_own_translation_is_beside_the_reference(browser: Page, folder: Path) -> None:
    open_report(browser, folder)
    (own,) = Translator.load(folder / "rela-g").translate([SOURCE[0]])
    assert browser.texts(".panel:first-child .side") == ["source", "reference", "translation"]
    assert browser.texts(".panel:first-child .own") == [own.text]


def test_words_show_what_they_attend_to(browser: Page, folder: Path) -> None:
    weights = attention(folder, "rela-g", 0).weights[Site("cross", 0)][1]
    attending = [row for row in range(5) if weights[row].any()]
    row = attending[0]
    open_report(browser, folder, "#layer=0&head=1")
    assert browser.texts(".panel:first-child .keys > *") == [*SOURCE[0].split(), "⟨end⟩"]
    browser.move(f".panel:first-child .queries [data-row='{row}']")
    browser.wait("document.querySelector('.keys [data-weight]') !== null")
    shown = browser.run(
        "[...document.querySelectorAll('.panel:first-child .keys > *')]"
        ".map((word) => word.dataset.weight || '')"
    )
    for text, weight in zip(shown, weights[row], strict=True):
        assert bool(text) == bool(weight)
        if text and text != "<0.01":
            assert float(text) == pytest.approx(weight, abs=0.006 + float(weights.max()) / 127)
    readout = browser.texts(".readout")[0]
    assert readout.startswith(f"{TARGET[0].split()[row]} → ")
    browser.press("j")
    assert browser.texts(".readout")[0].startswith(f"{[*TARGET[0].split(), '⟨end⟩'][row + 1]} → ")
    assert browser.problems == []


def test_null_words_are_marked(browser: Page, folder: Path) -> None:
    found = None
    for place in range(6):
        cross = attention(folder, "rela-g", place).weights[Site("cross", 1)]
        null = ~cross.any(axis=-1)[:, :-1]  # [heads, words]
        if null.any() and found is None:
            found = place, *(int(number) for number in null.nonzero()[0][:1]), null
    assert found is not None
    place, head, null = found
    open_report(browser, folder, f"#sentence={place}&layer=1&head={head}")
    marked = browser.run(
        "[...document.querySelectorAll('.panel:first-child .queries button:not(.special)')]"
        ".map((word) => word.classList.contains('null'))"
    )
    assert marked == null[head].tolist()
    browser.move(f".panel:first-child .queries [data-row='{marked.index(True)}']")
    browser.wait("document.querySelector('.readout .nothing') !== null")
    assert browser.texts(".readout .nothing")[0] == "attends to nothing"


def test_two_models_side_by_side(browser: Page, folder: Path) -> None:
    open_report(browser, folder)
    browser.wait("document.querySelectorAll('.panel:nth-child(2) .thumbs button').length > 0")
    kinds = [measures(browser, panel)["kind"] for panel in (1, 2)]
    assert kinds == ["rela-g", "softmax"]
    browser.move(".panel:first-child .queries [data-row='1']")
    browser.wait("document.querySelectorAll('.queries .chosen').length === 2")
    assert browser.texts(".queries .chosen") == ["TREE", "TREE"]
    browser.press("2")  # the other side
    browser.press("n")
    browser.wait(f"document.querySelector('.keys').textContent.startsWith({SOURCE[1][:5]!r})")
    browser.press("ArrowRight")
    choices = browser.run("[...document.querySelectorAll('[data-choice=head]')].map(e => e.value)")
    assert choices == ["0", "1"]
    assert browser.problems == []


def test_heads_are_sorted_and_lead_to_their_picture(browser: Page, folder: Path) -> None:
    open_report(browser, folder)
    browser.run("document.querySelector('[data-view=heads]').click()")
    for title, order in (("null rate", -1), ("sparsity", -1), ("AER shifted", 1)):
        browser.run(
            "[...document.querySelectorAll('#overview th button')]"
            f".find((button) => button.textContent === {title!r}).click()"
        )
        column = browser.texts("#overview th").index(title) + 1
        cells = browser.texts(f"#overview td:nth-child({column})")
        values = [float(cell.removesuffix(" %")) for cell in cells if cell]
        assert len(set(values)) > 2
        assert values == sorted(values, key=lambda value: order * value)
    first = browser.texts("#overview tbody td")[0]
    browser.run("document.querySelector('#overview tbody tr').click()")
    wait_for_words(browser)
    layer, head = (browser.run(f"document.querySelector('[data-choice={name}]').value")
                   for name in ("layer", "head"))  # fmt: skip
    assert first.endswith(f"cross-attention {layer}, head {head}")
    # AltGr on Windows is Ctrl and Alt.
    alt_gr = "ctrlKey: true, altKey: true, modifierAltGraph: true"
    for modifiers, moves in (("ctrlKey: true", False), (alt_gr, True)):
        before = browser.run("location.hash")
        browser.run(
            "document.dispatchEvent(new KeyboardEvent('keydown', {key: ']', " + modifiers + "}))"
        )
        assert (browser.run("location.hash") != before) is moves
    browser.press("]")
    assert "sort=aer_shifted" in browser.run("location.hash")
    browser.run("document.querySelector('[data-view=numbers]').click()")
    assert "Head diversity (Table 6)" in browser.texts("#numbers h2")
    browser.wait("[...document.images].every((image) => image.naturalWidth > 500)")
    assert browser.problems == []


def test_text_never_becomes_markup(browser: Page, folder: Path) -> None:
    open_report(browser, folder, f"#sentence={ODD_SENTENCE}")
    assert browser.texts(".panel:first-child .keys > :not(.special)") == ODD
    assert browser.texts("[data-choice=model] option")[:2] == NAMES
    for view in ("heads", "numbers", "look"):
        browser.run(f"document.querySelector('[data-view={view}]').click()")
    assert browser.run("window.marker") is None
    assert browser.run("document.title") == "Attention analysis"
    assert browser.run("document.scripts.length") == 2
    loaded = browser.run("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []
    assert browser.problems == []


def test_a_script_that_got_in_would_not_run(browser: Page, folder: Path) -> None:
    open_report(browser, folder)
    browser.run(
        "(() => { const script = document.createElement('script');"
        f"script.textContent = {MARK!r}; document.body.append(script);"
        f"document.body.insertAdjacentHTML('beforeend', '<img src=x onerror={MARK}>');"
        "const frame = document.createElement('iframe'); frame.src = 'https://example.invalid';"
        "document.body.append(frame); })()"
    )
    browser.wait("performance.now() > 300")
    assert browser.run("window.marker") is None
    refused = [problem for problem in browser.problems if "Content Security Policy" in problem]
    for directive in ("script-src", "img-src", "default-src"):
        assert any(directive in problem for problem in refused)
    assert len(refused) == len(browser.problems) >= 3


def test_narrow_screens_do_not_scroll_sideways(browser: Page, folder: Path) -> None:
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=700,
        deviceScaleFactor=1,
        mobile=False,
    )
    for place in (0, ODD_SENTENCE):
        open_report(browser, folder, f"#sentence={place}")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.call("Emulation.clearDeviceMetricsOverride")
