"""Comparison of two models: their cuts in few numbers, then each difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from epctx_cli.command import byte_size
from epctx_files import diff

_MOST_DIFFERENCES: Final = 2000


def compare(
    paths: tuple[Path, Path], models: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what the page shows of the differences.

    Args:
        paths: of both models.
        models: their descriptions.

    Raises:
        EpctxError: a file of a model is missing or damaged; see `epctx_files.diff`.
    """
    found = diff(*paths)
    rows = [each.as_dict() for each in found.differences]
    return {
        "first": models[0]["label"],
        "second": models[1]["label"],
        "summary": list(_summarise(*models)),
        "rows": rows[:_MOST_DIFFERENCES],
        "left_out": max(0, len(rows) - _MOST_DIFFERENCES),
        "notes": [
            f"{note} (epctx diff --weights compares them)." for note in found.notes
        ],
    }


def _summarise(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[dict[str, str]]:
    """Yield the numbers in which two cuts may differ."""
    names = dict.fromkeys(
        ep["name"] for model in (first, second) for ep in model["eps"]
    )
    counts = [model["total_nodes"] for model in (first, second)]
    yield _compare("nodes", counts)
    for ep in names:
        for fact in ("nodes", "partitions"):
            numbers = [_find_number(model, ep, fact) for model in (first, second)]
            if any(numbers):
                yield _compare(f"{fact} of {ep}", numbers)
    across = [model["crossing_bytes"] for model in (first, second)]
    crossing = _compare("bytes that cross in a run", across, byte_size)
    for side, model in (("first", first), ("second", second)):
        if model["crossing_open"]:
            crossing |= {side: f"at least {crossing[side]}", "change": ""}
    yield crossing
    sizes = [model["bytes"] or 0 for model in (first, second)]
    yield _compare("bytes of the model", sizes, byte_size)
    needed = [_count_file_bytes(model) for model in (first, second)]
    yield _compare("bytes of the model and its files", needed, byte_size)
    refused = [len(model["refusals"]) for model in (first, second)]
    yield _compare("reasons of refusals", refused)


def _find_number(model: Mapping[str, Any], ep: str, fact: str) -> int:
    return next((int(each[fact]) for each in model["eps"] if each["name"] == ep), 0)


def _count_file_bytes(model: Mapping[str, Any]) -> int:
    """Return the bytes of a model's file and of those that it needs."""
    return sum(file["bytes"] or 0 for file in model["files"] if file["is_file"])


def _compare(
    name: str, numbers: Iterable[int], spell: Callable[[int], str] = "{:,}".format
) -> dict[str, str]:
    first, second = numbers
    change = ""
    if first != second:
        sign = "+" if second > first else "-"
        change = f"{sign}{spell(abs(second - first))}"
    return {
        "name": name,
        "first": spell(first),
        "second": spell(second),
        "change": change,
    }
