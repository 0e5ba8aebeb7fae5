"""Prints the imports between the rooms of the package as a matrix; --write puts it in docs/.

A mark says that the room of the row imports the room of the column. Rooms are sorted so that each
comes after all that it imports, so every mark is left of the diagonal.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "nmt"
PAGE = PROJECT / "docs" / "architecture.md"
BEGIN = "<!-- written by scripts/import_graph.py -->\n```\n"
END = "```\n"
# Single modules that import nothing of the package.
EVERYWHERE = ("errors", "languages", "progress", "tables")

Graph = dict[str, set[str]]


def module_names() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PROJECT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, those inside functions and for types among them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_graph() -> Graph:
    """The modules of the package that each of them imports."""
    modules = module_names()
    graph: Graph = {}
    for name, path in modules.items():
        used = (full if full in modules else full.rpartition(".")[0] for full in imports(path))
        graph[name] = {other for other in used if other in modules} - {name}
    return graph


def room_graph() -> Graph:
    """The rooms that each room imports: folders, and modules beside them."""
    graph: Graph = {}
    for name, used in module_graph().items():
        if "." in name:
            own = name.split(".")[1]
            others = {other.split(".")[1] for other in used if "." in other}
            graph.setdefault(own, set()).update(others - {own})
    return graph


def levels(graph: Graph) -> dict[str, int]:
    """How far above the bottom each room is: one more than the highest room that it imports."""
    found: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        found[room] = max((found[other] + 1 for other in graph[room]), default=0)
    return found


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    modules = module_names()
    tree = ast.parse(modules[f"nmt.{room}"].read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").split("\n")[0].removesuffix(".")


def picture() -> str:
    """The matrix, one row per room."""
    graph = room_graph()
    heights = levels(graph)
    rooms = sorted(set(graph) - set(EVERYWHERE), key=lambda room: (heights[room], room))
    width = max(map(len, rooms))
    lines = []
    for number, room in enumerate(rooms):
        marks = "".join("● " if other in graph[room] else "· " for other in rooms[:number])
        row = f"{marks}{number + 1}"
        lines.append(
            f"{number + 1:>2} {room:<{width}}  {row:<{2 * len(rooms)}}  {purpose(room)}".rstrip()
        )
    return "\n".join(lines) + "\n"


def written_picture(text: str) -> str:
    """The matrix in the text of the page."""
    return text.partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Print the matrix, or write it to the page."""
    if sys.argv[1:] != ["--write"]:
        print(picture(), end="")
        return
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    assert begin, f"expected a line {BEGIN!r} in {PAGE}"
    PAGE.write_text(f"{before}{begin}{picture()}{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
