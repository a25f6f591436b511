"""Small changes of a function's source, each with a name under which it is found again
when its module has moved.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

SWAPPED = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change.

    Attributes:
        function: its name with those of the classes and functions around it.
        before, after: source text, white space aside; `after` is empty for a statement
            that is removed.
        number: which one of several equal texts in the function.
        start, end: where the text lies in the file, in bytes.
    """

    function: str
    before: str
    after: str
    number: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """Identity among all mutants."""
        again = f" ({self.number})" if self.number else ""
        return f"{self.function}: {self.before} -> {self.after or 'removed'}{again}"

    def applied(self, source: bytes) -> bytes:
        """Return the changed file."""
        return (
            source[: self.start] + (self.after or "pass").encode() + source[self.end :]
        )


def mutants_of(source: bytes) -> list[Mutant]:
    """Return all changes of the functions in a module."""
    lengths = [len(line) for line in source.splitlines(keepends=True)]
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    known: Counter[tuple[str, str, str]] = Counter()
    found = []
    for function, node, after in _changes(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(source[start:end].decode().split())
        number = known[function, before, after]
        known[function, before, after] += 1
        found.append(
            Mutant(
                function=function,
                before=before,
                after=after,
                number=number,
                start=start,
                end=end,
            )
        )
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield a function's name, what changes, and the text that stands there instead."""
    stack: list[tuple[str, bool, ast.AST]] = [("", False, tree)]
    while stack:
        scope, inside, node = stack.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            scope, inside = (
                f"{scope}.{node.name}".lstrip("."),
                inside or isinstance(node, FUNCTIONS),
            )
            children = list(
                node.body
            )  # neither decorators nor annotations nor defaults
        else:
            children = [
                each
                for each in ast.iter_child_nodes(node)
                if each is not getattr(node, "annotation", None)
            ]
        children = [each for each in children if not _is_text(each)]
        if inside:
            for changed, after in (*_in_place(node), *_negated(node)):
                yield scope, changed, after
        stack.extend((scope, inside, child) for child in reversed(children))


def _is_text(node: ast.AST) -> bool:
    """Say whether this is a docstring or a message."""
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_docstring or isinstance(node, ast.JoinedStr)


def _in_place(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Compare(left, [first, *ops], others):
            yield (
                node,
                ast.unparse(ast.Compare(left, [SWAPPED[type(first)](), *ops], others)),
            )
            for text in (left, *others):
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text, repr(text.value + "?")
        case ast.BoolOp(op, values):
            yield node, ast.unparse(ast.BoolOp(SWAPPED[type(op)](), values))
        case ast.UnaryOp(ast.Not(), operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(bool(value)):
            yield node, repr(not value)
        case ast.Constant(int(value)):
            yield node, repr(value + 1)
        case ast.Expr() | ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Break():
            yield node, ""


def _negated(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    tests = (
        [node.test]
        if isinstance(node, (ast.If, ast.While, ast.IfExp))
        else getattr(node, "ifs", [])
    )
    for test in tests:
        if not isinstance(test, (ast.Compare, ast.UnaryOp)):  # those change in place
            yield test, f"(not ({ast.unparse(test)}))"
