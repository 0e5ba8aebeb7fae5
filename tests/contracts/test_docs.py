"""The pages of docs/ are current, all their links lead somewhere, and MkDocs builds them."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.pages import Block, blocks
from support.project_scripts import load_script

from nmt.training.resume import CHANGEABLE

PROJECT = Path(__file__).parents[2]
PAGES = [*sorted((PROJECT / "docs").glob("*.md")), PROJECT / "README.md"]
CODE = re.compile(r"^(```+).*?^\1$|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\w+=\S+ )*(?:nmt-|pip |python|bash |torchrun|curl|docker|sbatch)", re.M)
RUN = {"bash", "python", "yaml", "toml", "json"}  # by tests/integration/test_page_blocks.py
LINK = re.compile(r"\]\(([^)\s]+)\)")

config_reference = load_script("config_reference")
attention_figures = load_script("attention_figures")


def test_the_config_reference_is_that_of_the_dataclasses() -> None:
    written = config_reference.PAGE.read_text(encoding="utf-8").partition(config_reference.BEGIN)[2]
    assert written.lstrip("\n") == config_reference.reference(), (
        "run python scripts/config_reference.py --write"
    )


def test_a_reference_has_type_default_and_meaning_of_each_key() -> None:
    lines = config_reference.reference().split("\n")
    length = "a whole number (at least 1 and at most 65,536)"
    assert f"| `k` | {length} | required |" in "\n".join(lines)
    for expected in (
        f"| `max_length` | {length} | `256` | subwords per side; longer pairs are left out",
        "| `vocabulary_size` | a whole number (at least 0 and at most 1,000,000) | `0` | sentencep",
        "| `run_dir` | a path | required | ",
        "| `beam` | a whole number (at least 1 and at most 1,000) | `4` | hypotheses kept; 1 is",
        "| `rela-g` (`ReLA-g`) | `gate` | true or false | `true` | ",
        "| `kind` | one of softmax, sparsemax, entmax15, entmax, rela-i, rela-g, topk | `softmax`",
    ):
        assert sum(line.startswith(expected) for line in lines) == 1, expected


@dataclass(frozen=True)
class Undescribed:
    """A section with a key that nobody described."""

    described: int = 1  # its meaning
    undescribed: int = 2


def test_a_key_without_a_meaning_is_rejected() -> None:
    with pytest.raises(AssertionError, match=r"Undescribed\.undescribed: write its meaning"):
        list(config_reference.section_lines(Undescribed, ["some"], Undescribed()))


def anchors(page: Path) -> set[str]:
    """The names of the headings of a page in links, as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        address = urlsplit(link)
        if address.scheme:
            continue
        target = (page.parent / unquote(address.path)).resolve() if address.path else page
        assert target.exists(), f"{page.name}: {link}"
        if page.parent == PROJECT / "docs":
            message = "the site has the files of docs/ only; write the path as code"
            assert target.is_relative_to(PROJECT / "docs"), f"{page.name}: {link}: {message}"
        if address.fragment:
            assert address.fragment in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of_code_are_run_or_say_why_not(page: Path) -> None:
    for block in blocks(page):
        known = block.language in RUN or block.not_run or block.language in {"", "text"}
        assert known, f"{block}: write `<!-- not run: REASON -->` before this block"
        assert block.not_run or block.language in RUN or not COMMAND.search(block.text), (
            f"{block}: begin it with ```bash; `<!-- not run: REASON -->` before it if it cannot run"
        )


def test_comments_say_what_becomes_of_a_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "one\n\n<!-- not run: needs a GPU -->\n```bash\nnmt-train\n```\n"
    page.write_text(f"{text}\n<!-- file: a.py -->\n\n```python\nx\n```\n\n```\nout\n```\n", "utf-8")
    assert list(blocks(page)) == [
        Block("page.md", 4, "bash", "nmt-train\n", not_run="needs a GPU"),
        Block("page.md", 10, "python", "x\n", file="a.py"),
        Block("page.md", 14, "", "out\n"),
    ]


def test_the_page_on_installation_names_all_extras() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (PROJECT / "docs" / "installation.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| (`[^|]*) \|", page.partition("## Extras")[2], flags=re.MULTILINE)
    extras = project["optional-dependencies"].keys()
    assert {name for row in named for name in re.findall(r"`([\w-]+)`", row)} == set(extras)


def test_the_page_on_commands_lists_all_of_them() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (PROJECT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(nmt-[\w-]+)` \|", page, re.MULTILINE)) == set(project["scripts"])


class Addresses(HTMLParser):
    """The names of the elements of a page, its links, and what a browser loads to show it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


def broken(site: Path) -> Iterator[str]:
    """The addresses in the pages of a site that lead nowhere, or that need the network."""
    pages = {path: Addresses(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) >= len(PAGES) - 1
    for path, page in pages.items():
        yield from (f"{path.name}: loads {each}" for each in page.loaded if urlsplit(each).netloc)
        for link in (*page.links, *page.loaded):
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            named = address.fragment == "" or target not in pages
            if not target.exists() or not (named or address.fragment in pages[target].names):
                yield f"{path.name}: {link}"


def test_the_site_is_built_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install 'nmt[docs]'")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=PROJECT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(broken(site)) == []
    assert "longer pairs are left out" in (site / "config.html").read_text(encoding="utf-8")


def test_the_table_of_weights_is_what_the_mappings_compute() -> None:
    page = (PROJECT / "docs" / "sparse_attention.md").read_text(encoding="utf-8")
    written = page.partition("<!-- written by scripts/attention_figures.py -->\n")[2]
    assert written.startswith(attention_figures.table())


def test_the_script_draws_the_figures_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["attention_figures.py", "--output", str(tmp_path)])
    attention_figures.main()
    drawn = {path.name: path.read_bytes()[:4] for path in tmp_path.iterdir()}
    page = (PROJECT / "docs" / "sparse_attention.md").read_text(encoding="utf-8")
    assert drawn == dict.fromkeys(re.findall(r"figures/(\w+\.png)", page), b"\x89PNG")
    assert all((PROJECT / "docs" / "figures" / name).is_file() for name in drawn)


def test_the_keys_that_may_change_at_resume_are_listed() -> None:
    page = (PROJECT / "docs" / "reproducibility.md").read_text(encoding="utf-8")
    written = page.partition("in nmt/training/resume.py -->\n\n")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"`(.*?)`", written)) == CHANGEABLE
