"""Prints what the budget counts: the same however the lines are broken.

For the core and each package: expressions, modules and classes; for the core also the
names of `epctx_core.ext` and the circles of imports within its rooms.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CORE = ROOT / "epctx_core"
PACKAGES = (CORE, *sorted(ROOT.glob("plugins/*/src/*")))


class Size(NamedTuple):
    """Counts of one package."""

    expressions: int
    modules: int
    classes: int


def size(package: Path) -> Size:
    """Count a package's expressions (`ast.expr`), modules and classes."""
    trees = [ast.parse(path.read_bytes()) for path in package.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return Size(
        expressions=sum(isinstance(node, ast.expr) for node in nodes),
        modules=len(trees),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
    )


def circles() -> set[frozenset[str]]:
    """Return the sets of the core's modules that import each other on some way.

    Imports in functions and for type checking count.
    """
    import grimp

    graph = grimp.build_graph("epctx_core", cache_dir=None)
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}

    # Two modules are in one circle where each is above the other.
    return {
        frozenset(other for other in above[module] if module in above[other]) | {module}
        for module in above
        if any(module in above[other] for other in above[module])
    }


if __name__ == "__main__":
    from epctx_core import ext

    print(f"{'':26}{'expressions':>13}{'modules':>9}{'classes':>9}")
    for package in PACKAGES:
        found = size(package)
        counts = f"{found.expressions:13,}{found.modules:9}{found.classes:9}"
        print(f"{package.name:26}{counts}")
    print(f"\nnames of epctx_core.ext: {len(ext.__all__)}")
    print(f"circles of imports within rooms: {len(circles())}")
