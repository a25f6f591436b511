"""Prints what the budget counts: the same however the lines are broken.

For the core and each package: expressions, modules and classes, and what is left to the
limit; the names of `epctx_core.ext`; and the circles of imports within each.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CORE = ROOT / "epctx_core"
_NO_CODE = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
PACKAGES = (CORE, *sorted(ROOT.glob("plugins/*/src/*")))
LIMITS = {
    ("epctx_core",): 78_500,
    ("epctx_cli",): 24_500,
    ("epctx_conformance",): 22_000,
    ("epctx_onnxruntime",): 30_000,
    ("epctx_kernels", "epctx_blobs", "epctx_native_formats"): 8_500,
    ("epctx_isolation",): 10_500,
    ("epctx_cache",): 11_000,
    ("epctx_files",): 11_500,
    ("epctx_bench",): 9_500,
    ("epctx_report",): 8_500,
    ("epctx_batch",): 5_300,
    ("epctx_genai",): 7_000,
    (
        "epctx_sim_sdk",
        "epctx_sim_qnn",
        "epctx_sim_openvino",
        "epctx_sim_vitisai",
    ): 18_500,
    ("epctx_openvino",): 4_500,
    ("onnxruntime_ep_epctx",): 6_000,
}
"""Most expressions that packages have, some of them together."""


class Size(NamedTuple):
    """Counts of one package.

    Attributes:
        expressions: nodes of the class `ast.expr`.
        modules: files.
        classes: also those in functions.
        lines: of code, without blank lines, comments and docstrings.
    """

    expressions: int
    modules: int
    classes: int
    lines: int

    @property
    def density(self) -> float:
        """Expressions in a line of code."""
        return self.expressions / self.lines


def size(package: Path) -> Size:
    """Count a package's expressions, modules, classes and lines of code."""
    expressions = modules = classes = lines = 0
    for path in package.rglob("*.py"):
        source = path.read_text("utf-8")
        nodes = list(ast.walk(ast.parse(source)))
        expressions += sum(isinstance(node, ast.expr) for node in nodes)
        modules += 1
        classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        lines += _count_lines(source, nodes)
    return Size(expressions, modules, classes, lines)


def _count_lines(source: str, nodes: list[ast.AST]) -> int:
    """Count the lines of code of a module with these nodes."""
    docstrings = {
        line
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


def circles(package: str) -> set[frozenset[str]]:
    """Return the sets of a package's modules that import each other on some way.

    Imports in functions and for type checking count.
    """
    import grimp

    # One of them is in no environment of the others.
    folders = [str(each.parent) for each in PACKAGES]
    sys.path += [folder for folder in folders if folder not in sys.path]
    graph = grimp.build_graph(package, cache_dir=None)
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}

    # Two modules are in one circle where each is above the other.
    return {
        frozenset(other for other in above[module] if module in above[other]) | {module}
        for module in above
        if any(module in above[other] for other in above[module])
    }


if __name__ == "__main__":
    from epctx_core import ext

    print(f"{'':26}{'expressions':>13}{'modules':>9}{'classes':>9}{'a line':>9}")
    sizes = {package.name: size(package) for package in PACKAGES}
    for name, counts in sizes.items():
        columns = f"{counts.expressions:13,}{counts.modules:9}{counts.classes:9}"
        print(f"{name:26}{columns}{counts.density:9.2f}")

    print(f"\n{'expressions to the limit':78}")
    for names, limit in LIMITS.items():
        total = sum(sizes[name].expressions for name in names)
        print(f"{limit - total:8,} of {limit:6,}  {', '.join(names)}")

    print(f"\nnames of epctx_core.ext: {len(ext.__all__)}")
    for package in PACKAGES:
        for circle in circles(package.name):
            print(f"circle of imports: {', '.join(sorted(circle))}")
