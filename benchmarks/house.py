"""The measures of the house: how much a newcomer must open, and how often code asks an object what
it is.

    python benchmarks/house.py
        the table, beside what it was at the start of 0.2.0 and the targets
    python benchmarks/house.py --check
        fails if a measure got worse than in benchmarks/house.json (CI)
    python benchmarks/house.py --store
        writes benchmarks/house.json, after a measure got better
    python benchmarks/house.py --files         the files that one `ask` runs through

How it is counted. Files per ask: files of the package whose functions run in one `ask` of README's
problem with a journal, rounds 10 to 24, all of them together. Any: arguments without annotation, or
annotated `Any` or `object`, of all arguments (self and cls apart). Questions: calls of isinstance,
getattr and hasattr per 1,000 lines. Rooms: folders directly inside the package and, counted apart,
the single files beside them (DESIGN's own tree has 14 folders and 5 files).
Everything but the first is read off the source.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

HOME = Path(__file__).parent
ROOT = HOME.parent
STORED = HOME / "house.json"
FIRST, LAST = 10, 24  # rounds that are looked at
QUESTIONS = ("isinstance", "getattr", "hasattr")

BASE = {  # at 0e4636a, by this script
    "files per ask": 62,
    "Any, % of arguments": 23.8,
    "questions per 1,000 lines": 15.08,
    "private names imported": 8,
    "class names used twice": 13,
    "rooms that are folders": 21,
    "rooms that are one file": 10,
    "longest file": 576,
    "docstrings, % of lines": 14.9,
    "files": 178,
    "lines": 32769,
}
TARGETS = {
    "files per ask": "under 40",
    "Any, % of arguments": "under 10",
    "questions per 1,000 lines": "under 7",
    "private names imported": "0",
    "class names used twice": "0",
    "rooms that are folders": "about 15",
    "rooms that are one file": "5",
    "longest file": "at most 600",
    "docstrings, % of lines": "more is better",
}
# rounding
SLACK = {
    "questions per 1,000 lines": 0.1,
    "Any, % of arguments": 0.1,
    "docstrings, % of lines": 0.2,
}
INFORMAL = ("files", "lines")  # shown, never checked


def sources(package: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}


def arguments(tree: ast.Module) -> Iterator[ast.arg]:
    """Every argument of every function, self and cls apart."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = node.args
            yield from (
                arg
                for arg in [*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg]
                if arg is not None and arg.arg not in ("self", "cls")
            )


def says_nothing(arg: ast.arg) -> bool:
    """Whether an argument has no type that a reader, or mypy, could use."""
    return arg.annotation is None or ast.unparse(arg.annotation) in ("Any", "object", "typing.Any")


def questions(tree: ast.Module) -> int:
    return sum(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in QUESTIONS
        for node in ast.walk(tree)
    )


def private_imports(tree: ast.Module) -> int:
    """Names that begin with one underscore and come from another file of the package."""
    return sum(
        alias.name.startswith("_") and not alias.name.startswith("__")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gedppl")
        for alias in node.names
    )


def docstring_lines(tree: ast.Module) -> int:
    count = 0
    for node in ast.walk(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and ast.get_docstring(node):
            first = node.body[0]
            count += (first.end_lineno or first.lineno) - first.lineno + 1
    return count


def rooms(package: Path) -> tuple[int, int]:
    """Folders, and single files, directly inside the package; its two doors (`__init__`,
    `__main__`) are none.
    """
    inside = list(package.iterdir())
    return (
        sum(path.is_dir() and (path / "__init__.py").exists() for path in inside),
        sum(path.suffix == ".py" and not path.name.startswith("__") for path in inside),
    )


def readme_example(root: Path) -> str:
    found = re.search(r"```python\n(import.*?)```", (root / "README.md").read_text(), re.S)
    if found is None:
        raise SystemExit("README.md has no first example")
    return found.group(1)


def files_per_ask(root: Path) -> list[str]:
    """Files of the package that run inside `ask`, rounds 10 to 24 of README's first example with
    a journal.
    """
    import gedppl as ged

    package = Path(ged.__file__).parent
    seen: set[str] = set()

    class Watched(ged.GEDUCB):
        def ask(self, x, allowed=None):  # type: ignore[no-untyped-def]
            if not FIRST <= self.rounds <= LAST:
                return super().ask(x, allowed)

            def note(frame: FrameType, event: str, _: object) -> None:
                if event == "call":
                    seen.add(frame.f_code.co_filename)

            sys.setprofile(note)
            try:
                return super().ask(x, allowed)
            finally:
                sys.setprofile(None)

    with tempfile.TemporaryDirectory() as folder:
        code = (
            readme_example(root)
            .replace("ged.GEDUCB(", "watched(")
            .replace("size=(200, 1)", f"size=({LAST + 1}, 1)")
        )
        code = code[: code.rindex("print(")]

        def watched(*given, **options):  # type: ignore[no-untyped-def]
            return Watched(*given, **options, journal=Path(folder) / "journal")

        exec(compile(code, "README.md", "exec"), {"watched": watched})
    return sorted(
        str(Path(name).relative_to(package)) for name in seen if Path(name).is_relative_to(package)
    )


def measure(root: Path = ROOT) -> dict[str, float]:
    package = root / "gedppl"
    trees = sources(package)
    lengths = {path: len(path.read_text().splitlines()) for path in trees}
    lines = sum(lengths.values())
    args = [arg for tree in trees.values() for arg in arguments(tree)]
    folders, files = rooms(package)
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    return {
        "files per ask": len(files_per_ask(root)),
        "Any, % of arguments": round(100 * sum(map(says_nothing, args)) / len(args), 1),
        "questions per 1,000 lines": round(1000 * sum(map(questions, trees.values())) / lines, 2),
        "private names imported": sum(map(private_imports, trees.values())),
        "class names used twice": sum(n > 1 for n in classes.values()),
        "rooms that are folders": folders,
        "rooms that are one file": files,
        "longest file": max(lengths.values()),
        "docstrings, % of lines": round(100 * sum(map(docstring_lines, trees.values())) / lines, 1),
        "files": len(trees),
        "lines": lines,
    }


def worse(now: dict[str, float], stored: dict[str, float]) -> list[str]:
    """What got worse, in sentences: more of everything is worse, docstrings apart."""
    out = []
    for name, before in stored.items():
        if name in INFORMAL:
            continue
        sign = -1 if name.startswith("docstrings") else 1
        if name == "longest file":
            before = max(before, 600)
        if sign * (now[name] - before) > SLACK.get(name, 0):
            out.append(f"{name}: {now[name]:g}, was {before:g}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--files", action="store_true")
    parser.add_argument(
        "--root",
        type=Path,
        default=ROOT,
        help="another checkout (its package must be the one that is imported)",
    )
    options = parser.parse_args()
    if options.files:
        print(*files_per_ask(options.root), sep="\n")
        return
    now = measure(options.root)
    print(f"{'':28} {'0e4636a':>9} {'now':>9}  target")
    for name, value in now.items():
        print(f"{name:28} {BASE.get(name, float('nan')):>9g} {value:>9g}  {TARGETS.get(name, '')}")
    if options.store:
        STORED.write_text(json.dumps(now, indent=2) + "\n")
    if options.check:
        found = worse(now, json.loads(STORED.read_text()))
        if found:
            sys.exit("worse than benchmarks/house.json: " + "; ".join(found))


if __name__ == "__main__":
    main()
