"""The page of nmt-serve in a browser: a real server, and what a person does there, and reads."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.chromium import PROGRAM, Page, open_browser
from translation_models import WORDS, make_config, make_directory, make_model, random_lines

from nmt.config.config import TokenizerConfig
from nmt.data.codec import Codec

pytest.importorskip("starlette", reason="needs starlette: pip install 'nmt[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'nmt[serve]'")
from support.serving import ServerProcess, serving

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")

MARK = "window.marker=1"
# Every word that a model can write is one of these, so all that the page shows is hostile.
HOSTILE = [
    f"</script><script>{MARK}</script>",
    f"<img/src=x/onerror={MARK}>",
    "&lt;b&gt;",
    "\"'`${1}",
    "שלום",
    "\u202eabc\u2066",
    "x\u2028y",
    "<!--",
]
LINE = "the old dog sees a tree"


@dataclass(frozen=True)
class Site:
    """A browser that shows the page, and the server behind it."""

    page: Page
    server: ServerProcess

    def open(self) -> None:
        self.page.visit(f"http://127.0.0.1:{self.server.port}/")
        self.page.wait("document.getElementById('target-name').textContent === 'German'")

    def write(self, text: str) -> None:
        """Open the page, type a text and wait for its translation and its words."""
        self.open()
        self.page.run("document.getElementById('source').focus()")
        self.page.type(text)
        expected = self.server.translate(text, model="rela-g")
        self.page.wait(f"{OUTPUT} === {json.dumps(expected)}")
        self.page.wait("document.querySelector('#output [data-word]') !== null")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is translated until the end of the context."""
        (worker,) = self.server.workers()
        os.kill(worker, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(worker, signal.SIGCONT)

    @contextmanager
    def offline(self) -> Iterator[None]:
        """The browser does not reach the server until the end of the context."""
        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.page.call("Network.enable")
        self.page.call("Network.emulateNetworkConditions", offline=True, **network)
        try:
            yield
        finally:
            self.page.call("Network.emulateNetworkConditions", offline=False, **network)
            self.page.call("Network.disable")

    def attention(self, text: str, **fields: Any) -> Any:
        reply = self.server.post("/attention", {"q": text, "model": "rela-g", **fields})
        assert reply.status == 200, reply.body
        return reply.json()


OUTPUT = "[...document.querySelectorAll('#output .line')].map((e) => e.textContent).join('\\n')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two models whose target words are hostile."""
    folder = tmp_path_factory.mktemp("page")
    options = []
    for seed, kind in enumerate(("rela-g", "softmax"), 1):
        config = make_config(kind, max_length=20)
        config = replace(
            config, data=replace(config.data, tokenizer=TokenizerConfig("none", "none"))
        )
        words = [*WORDS, *HOSTILE]
        codec = Codec.learn(config.data, [(word, target) for word in words for target in HOSTILE])
        model = make_model(config, codec, seed=seed, ending=1.0)
        options.append(f"--model={kind}={make_directory(folder / kind, config, codec, model)}")
    profile = tmp_path_factory.mktemp("profile")
    with (
        serving(
            folder, *options, "--workers=1", "--max-length-ratio=1", "--max-length-extra=1"
        ) as server,
        open_browser(profile) as page,
    ):
        yield Site(page, server)


def test_typing_gives_a_translation(site: Site) -> None:
    lines = [LINE, "", *random_lines(2, seed=3, longest=6)]
    site.write("\n".join(lines))
    assert site.page.texts("#output .line")[1] == ""
    assert site.page.texts("#spoken") == [site.server.translate("\n".join(lines), model="rela-g")]
    site.page.type(" the cat")  # at the end of the last line
    expected = site.server.translate([*lines[:-1], f"{lines[-1]} the cat"], model="rela-g")
    site.page.wait(f"{OUTPUT} === {json.dumps(chr(10).join(expected))}")
    site.page.click("#clear")
    site.page.wait(f"{OUTPUT} === ''")
    assert site.page.problems == []


def test_a_line_that_is_too_long_is_named(site: Site) -> None:
    long = " ".join(["dog"] * 25)
    site.write(f"{LINE}\n{long}")
    site.page.wait("!document.getElementById('notice').hidden")
    assert site.page.texts("#notice") == ["Line 2: too long, its last 5 subwords are left out."]
    site.page.click("#clear")
    site.page.wait("document.getElementById('notice').hidden")


def test_late_answers_are_dropped(site: Site) -> None:
    first, second = LINE, "a woman likes the house"
    before, after = site.server.translate([first, second], model="rela-g")
    assert before != after
    site.open()
    site.page.run(
        "document.getElementById('source').focus(); window.seen = []; new MutationObserver(() =>"
        f"seen.push({OUTPUT})).observe(document.getElementById('output'),"
        "{childList: true, subtree: true, characterData: true})"
    )
    with site.paused():
        site.page.type(first)
        site.page.wait("window.seen.length === 1")  # its translation has been asked for
        site.page.run("document.getElementById('source').select()")
        site.page.type(second)
        site.page.wait("window.seen.length === 2")
    site.page.wait(f"{OUTPUT} === {json.dumps(after)}")
    assert before not in site.page.run("window.seen")


def test_pointing_at_a_word_shows_its_links(site: Site) -> None:
    site.write(LINE)
    answer = site.attention(LINE)
    assert answer["links"]
    source, target = answer["links"][0]
    linked = sorted({a for a, b in answer["links"] if b == target})
    words = LINE.split()
    site.page.move(f"#output [data-word='{target}']")
    site.page.wait("document.querySelector('#mirror .linked') !== null")
    assert site.page.texts("#mirror .linked") == [words[place] for place in linked]
    probability = answer["target_words"][target]["probability"]
    assert f"{100 * probability:.0f} % sure" in site.page.texts("#readout")[0]
    # The other way round: the caret of the text field is in a word of the source.
    start = LINE.index(words[source]) + 1
    site.page.run(f"document.getElementById('source').setSelectionRange({start}, {start})")
    site.page.wait("document.querySelector('#mirror .pointed') !== null")
    assert site.page.texts("#mirror .pointed") == [words[source]]
    back = sorted({b for a, b in answer["links"] if a == source})
    texts = [answer["target_words"][place]["text"] for place in back]
    assert site.page.texts("#output .linked") == texts
    # With the keyboard.
    site.page.run("document.querySelector('#output [tabindex=\"0\"]').focus()")
    site.page.press("ArrowRight")
    assert site.page.run("document.activeElement.dataset.word") == "1"
    assert site.page.texts("#output .pointed") == [answer["target_words"][1]["text"]]


def test_another_translation_can_be_chosen(site: Site) -> None:
    site.write(LINE)
    site.page.wait("document.querySelectorAll('#nbest li').length > 1")
    nbest = [one["text"] for one in site.attention(LINE)["nbest"]]
    assert site.page.texts("#nbest button") == nbest
    site.page.click("#nbest li:nth-child(2) button")
    site.page.wait("document.querySelector('#nbest li:nth-child(2) button').ariaPressed === 'true'")
    assert site.page.texts("#output .line") == [nbest[1]]
    assert site.page.problems == []


def choose_translation(page: Page, place: int) -> None:
    page.run(f"document.querySelectorAll('#nbest button')[{place}].focus()")
    page.run("document.activeElement.click()")


def test_the_last_translation_chosen_is_shown_with_its_words(site: Site) -> None:
    site.write(LINE)
    site.page.wait("document.querySelectorAll('#nbest li').length > 2")
    nbest = [one["text"] for one in site.attention(LINE)["nbest"]]
    with site.paused():
        choose_translation(site.page, 1)
        site.page.wait("document.getElementById('output').textContent === " + json.dumps(nbest[1]))
        time.sleep(0.3)  # its words have been asked for
        choose_translation(site.page, 2)
    site.page.wait("document.querySelector('#output [data-word]') !== null")
    words = [one["text"] for one in site.attention(LINE, target_text=nbest[2])["target_words"]]
    assert site.page.texts("#output .line") == [nbest[2]]
    assert site.page.texts("#output [data-word]") == words
    assert site.page.texts("#nbest button[aria-pressed=true]") == [nbest[2]]
    assert site.page.run("document.activeElement.textContent") == nbest[2]
    assert site.page.problems == []


def test_words_that_cannot_be_asked_for_leave_the_choice(site: Site) -> None:
    site.write(LINE)
    site.page.wait("document.querySelectorAll('#nbest li').length > 1")
    nbest = [one["text"] for one in site.attention(LINE)["nbest"]]
    with site.offline():
        choose_translation(site.page, 1)
        site.page.wait("document.getElementById('readout').textContent.includes('cannot be')")
        assert site.page.texts("#nbest button") == nbest
        choose_translation(site.page, 0)
        site.page.wait("document.querySelector('#output [data-word]') !== null")  # known before
    choose_translation(site.page, 1)
    site.page.wait("document.querySelector('#output [data-word]') !== null")
    assert site.page.texts("#output .line") == [nbest[1]]


def test_words_of_a_line_that_was_left_do_not_come_back(site: Site) -> None:
    other = "a woman likes the house"
    site.write(f"{LINE}\n{other}")
    site.page.wait("document.querySelectorAll('#nbest li').length > 1")
    expected, left = (
        [one["text"] for one in site.attention(line)["nbest"]] for line in (other, LINE)
    )
    assert site.page.texts("#nbest button") == expected
    site.page.run("document.getElementById('source').setSelectionRange(0, 0)")
    site.page.wait(f"document.querySelector('#nbest button').textContent === {json.dumps(left[0])}")
    with site.paused():
        choose_translation(site.page, 1)
        time.sleep(0.3)  # its words have been asked for
        site.page.run("document.getElementById('source').focus()")
        site.page.run("document.getElementById('source').setSelectionRange(999, 999)")
        site.page.wait(
            f"document.querySelector('#nbest button').textContent === {json.dumps(expected[0])}"
        )
    site.attention(LINE, target_text=left[1])  # answered after the request of the page
    time.sleep(0.3)
    assert site.page.texts("#nbest button") == expected
    assert site.page.run("document.activeElement.id") == "source"
    assert site.page.texts("#output .line:first-child") == [left[1]]


def test_heads_of_two_models_side_by_side(site: Site) -> None:
    site.write(LINE)
    site.page.click("#inside-toggle")
    site.page.wait("document.querySelectorAll('.panel:nth-child(2) .thumbs button').length > 0")
    assert site.page.texts(".panel .measures div:first-child dd:not(.meaning)") == [
        "rela-g",
        "softmax",
    ]
    words = [*(one["text"] for one in site.attention(LINE)["target_words"]), "⟨end⟩"]
    assert site.page.texts(".panel:first-child .queries button") == words
    picture = "document.querySelector('.panel canvas').toDataURL()"
    site.page.run("document.getElementById('explorer').focus()")
    before = site.page.run(f"[document.querySelector('[data-choice=head]').value, {picture}]")
    site.page.press("ArrowRight")
    site.page.wait(f"{picture} !== {json.dumps(before[1])}")
    assert site.page.run("document.querySelector('[data-choice=head]').value") != before[0]
    # Another model above is the first one below.
    site.page.run(
        "document.getElementById('model').value = 'softmax';"
        "document.getElementById('model').dispatchEvent(new Event('change'))"
    )
    kind = "document.querySelector('.panel .measures dd').textContent"
    site.page.wait(f"{kind} === 'softmax'")
    assert site.page.problems == []


def test_an_error_of_the_server_is_shown_and_goes_away(site: Site) -> None:
    site.open()
    changed = "document.getElementById('source').dispatchEvent(new Event('input'));"
    site.page.run("document.getElementById('source').value = 'a \\ud83d';" + changed)
    site.page.wait("!document.getElementById('problem').hidden")
    assert site.page.texts("#problem") == ["Not translated: contains half a surrogate pair"]
    assert site.page.run("document.getElementById('problem').role") == "alert"
    site.page.run(f"document.getElementById('source').value = {LINE!r};" + changed)
    site.page.wait("document.getElementById('problem').hidden")
    # A server that is gone.
    with site.offline():
        site.page.run("document.getElementById('source').value = 'a cat';" + changed)
        site.page.wait("!document.getElementById('problem').hidden")
    assert "cannot be reached" in site.page.texts("#problem")[0]


def test_hostile_text_stays_text(site: Site) -> None:
    line = " ".join(HOSTILE)
    site.write(line)
    assert site.page.run("document.getElementById('source').value") == line
    assert set("".join(site.page.texts("#output .line"))) <= set("".join(HOSTILE) + " ")
    assert site.page.texts("#mirror .word") == line.split(" ")
    site.page.click("#inside-toggle")
    site.page.wait("document.querySelectorAll('.panel:nth-child(2) .thumbs button').length > 0")
    assert site.page.texts(".panel:first-child .keys > :not(.special)") == line.split(" ")
    assert site.page.run("window.marker") is None
    assert site.page.run("document.scripts.length") == 1
    assert site.page.problems == []
    # The policy of the server stops what should get in all the same.
    site.page.run(
        "(() => { const script = document.createElement('script');"
        f"script.textContent = {MARK!r}; document.body.append(script);"
        f"document.body.insertAdjacentHTML('beforeend', '<img src=x onerror={MARK}>'); }})()"
    )
    site.page.wait("performance.now() > 300")
    assert site.page.run("window.marker") is None
    assert any("Content Security Policy" in problem for problem in site.page.problems)


def test_a_file_is_translated_and_saved(site: Site, tmp_path: Path) -> None:
    lines = ["", *random_lines(69, seed=4, longest=5), "cat " * 21, " ".join(HOSTILE)]
    text = "\r\n".join(lines) + "\r\n"
    (tmp_path / "mine.txt").write_bytes(text.encode())
    site.open()
    site.page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    choose_file(site.page, tmp_path / "mine.txt")
    site.page.wait("!document.getElementById('file-save').hidden")
    assert site.page.texts("#file-state") == [
        "mine.txt: 72 of 72 lines; too long, and cut: line 71"
    ]
    site.page.click("#file-save")
    saved = tmp_path / "mine.de.txt"
    end = time.monotonic() + 30
    while not saved.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert saved.read_bytes().decode() == site.server.translate(text, model="rela-g")
    # One that is stopped before its first answer has nothing to save.
    with site.paused():
        choose_file(site.page, tmp_path / "mine.txt")
        site.page.wait("document.getElementById('file-state').textContent.includes(': 0 of')")
        site.page.click("#file-stop")
        stopped = "mine.txt: 0 of 72 lines, then it was stopped"
        site.page.wait(f"document.getElementById('file-state').textContent === {stopped!r}")
    assert site.page.run("document.getElementById('file-save').hidden")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    drop_file(site.page, tmp_path / "latin.txt")
    site.page.wait("!document.getElementById('problem').hidden")
    assert site.page.texts("#problem") == ["latin.txt is not UTF-8 text."]


def test_a_file_that_cannot_be_read_leaves_the_one_under_way(site: Site, tmp_path: Path) -> None:
    (tmp_path / "first.txt").write_text(f"{LINE}\n" * 40)
    (tmp_path / "second.txt").write_text(f"{LINE}\n" * 3)
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    state = "document.getElementById('file-state').textContent"
    problem = "document.getElementById('problem').textContent"
    site.open()
    with site.paused():
        choose_file(site.page, tmp_path / "first.txt")
        site.page.wait(f"{state} === 'first.txt: 0 of 40 lines'")
        drop_file(site.page, tmp_path / "latin.txt")
        site.page.wait(f"{problem} === 'latin.txt is not UTF-8 text.'")
        drop_file(site.page, tmp_path / "folder")
        site.page.wait(f"{problem}.startsWith('folder cannot be read: ')")
    site.page.wait(f"{state} === 'first.txt: 40 of 40 lines'")
    # One that can be read takes its place.
    with site.paused():
        choose_file(site.page, tmp_path / "first.txt")
        site.page.wait(f"{state} === 'first.txt: 0 of 40 lines'")
        drop_file(site.page, tmp_path / "second.txt")
        site.page.wait(f"{state} === 'second.txt: 0 of 3 lines'")
    site.page.wait(f"{state} === 'second.txt: 3 of 3 lines'")
    assert site.page.problems == []


def choose_file(page: Page, path: Path) -> None:
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])


def drop_file(page: Page, path: Path) -> None:
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for step in ("dragEnter", "dragOver", "drop"):
        page.call("Input.dispatchDragEvent", type=step, x=200, y=200, data=data)


def test_all_controls_have_names_and_phones_do_not_scroll_sideways(site: Site) -> None:
    site.page.call("Emulation.setDeviceMetricsOverride", width=360, height=700,
                   deviceScaleFactor=1, mobile=False)  # fmt: skip
    site.write(f"{LINE}\n{'longword' * 20}")
    site.page.click("#inside-toggle")
    site.page.wait("document.querySelectorAll('.thumbs button').length > 0")
    assert site.page.run("document.documentElement.scrollWidth <= innerWidth")
    site.page.call("Emulation.clearDeviceMetricsOverride")
    tree = site.page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "combobox", "checkbox", "progressbar", "region", "alert"}
    named = [node for node in tree if node.get("role", {}).get("value") in roles]
    assert len(named) > 20
    for node in named:
        role, name = node["role"]["value"], node.get("name", {}).get("value", "")
        assert name or role == "alert", node
