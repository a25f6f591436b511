"""Prints the size of the core and of each package: modules, lines of code (no blank, comment or docstring), classes."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "epctx_core", *sorted(ROOT.glob("plugins/*/src/*")))


def lines_of_code(source: str) -> int:
    """Count the lines that hold more than a comment or a docstring."""
    tree = ast.parse(source)
    prose = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(text.strip()) and not text.lstrip().startswith("#") and n not in prose for n, text in lines
    )


def size(package: Path) -> tuple[int, int, int]:
    """Return modules, lines of code and classes of a package."""
    sources = [path.read_text("utf-8") for path in package.rglob("*.py")]
    classes = sum(
        isinstance(node, ast.ClassDef) for source in sources for node in ast.walk(ast.parse(source))
    )
    return len(sources), sum(map(lines_of_code, sources)), classes


if __name__ == "__main__":
    print(f"{'':20}{'modules':>9}{'code':>9}{'classes':>9}")
    total = [0, 0, 0]
    for package in PACKAGES:
        found = size(package)
        total = [a + b for a, b in zip(total, found, strict=True)]
        print(f"{package.name:20}" + "".join(f"{number:9,}" for number in found))
    print(f"{'all':20}" + "".join(f"{number:9,}" for number in total))
