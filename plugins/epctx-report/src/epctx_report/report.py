"""`make_report`: what is known of a model, or of several, as one page."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epctx_core import SessionOptions, __version__
from epctx_core.errors import EpctxError, InvalidArgument, NoSuchFile
from epctx_core.ext import Publication, parse_json, read_small_file
from epctx_report.comparison import compare
from epctx_report.description import (
    Sources,
    describe_failure,
    describe_model,
    summarise,
)
from epctx_report.measurements import Measurements
from epctx_report.page import assemble

if TYPE_CHECKING:
    from os import PathLike

    from epctx_core import Explanation
    from epctx_report.results import ModelSummary

SCHEMA: Final = 1
_FRAME_HEIGHT: Final = 720
"""Pixels of the page in a notebook."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report on models, which a notebook shows as its page.

    Attributes:
        data: what the page shows, as JSON has it; see `epctx_report.columns`.
    """

    data: Mapping[str, Any] = field(repr=False)

    def summary(self) -> list[ModelSummary]:
        """Return the summary of each model."""
        return [summarise(model) for model in self.data["models"]]

    @property
    def differences(self) -> int | None:
        """Number of differences between both models; None for one model."""
        found = self.data["differences"]
        return None if found is None else len(found["rows"]) + found["left_out"]

    def html(self) -> str:
        """Return the page: HTML that needs no network and no other file."""
        return assemble(self.data)

    def write(self, path: str | PathLike[str]) -> Path:
        """Write the page to a file, which is replaced as a whole; return its path.

        Raises:
            Fail: the file cannot be written.
        """
        output = Path(path)
        with Publication(output.parent) as publication:
            publication.create(output.name).write(self.html().encode())
            publication.commit([output.name])
        return output

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, whose script sees nothing of the
        notebook.
        """
        return (
            f'<iframe srcdoc="{html.escape(self.html(), quote=True)}" '
            f'sandbox="allow-scripts" width="100%" height="{_FRAME_HEIGHT}" '
            'style="border: 0"></iframe>'
        )


def make_report(
    model: str | PathLike[str],
    other: str | PathLike[str] | None = None,
    *,
    sess_options: SessionOptions | None = None,
    explanation: Explanation | None = None,
    measurements: Measurements | None = None,
) -> Report:
    """Return a report on a model.

    Nothing is compiled or run. Without EPs no plugin is needed: an EPContext node is
    shown as the one of its source, and all other nodes as the CPU EP's.

    Args:
        model: a plain model, a context model, or a folder of such models.
        other: a second model, to show what differs.
        sess_options: EPs and options, as for a compile; None for no EP.
        explanation: the model's, if there is one already; else the EPs are asked.
        measurements: files with times and errors of the model.

    Raises:
        NoSuchFile: there is no such model, or no model in the folder.
        InvalidArgument: one of `measurements` is another file, or `other` is given for
            a folder.
        EpctxError: a model cannot be read, or a plugin is broken; see `explain_model`.
            In a folder, the page says so of that model.

    Examples:
        >>> options = SessionOptions()
        >>> options.add_provider("QNN")
        >>> make_report("model.onnx", sess_options=options).write("report.html")
    """
    options = sess_options if sess_options is not None else SessionOptions()
    path = Path(model)
    if other is not None and path.is_dir():
        raise InvalidArgument(
            f"{str(path)!r} is a folder, and a second model is given.",
            path=path,
            hint="Compare two models, or report on the folder alone.",
        )
    files = measurements if measurements is not None else Measurements()
    first = Sources(options=options, explanation=explanation, measurements=files)
    later = Sources(options=options, measurements=Measurements(bench=files.bench))

    paths = _find_models(path) if path.is_dir() else [path]
    if other is not None:
        paths.append(Path(other))
    models = [
        _describe(each, later if number else first, may_fail=path.is_dir())
        for number, each in enumerate(paths)
    ]
    _add_labels(models, paths)
    _mark_shared_files(models, paths)
    return Report(
        data={
            "schema": SCHEMA,
            "title": path.resolve().name,
            "tool": f"epctx {__version__}",
            "models": models,
            "differences": (
                None
                if other is None
                else compare((paths[0], paths[1]), (models[0], models[1]))
            ),
        }
    )


def _describe(path: Path, sources: Sources, *, may_fail: bool) -> dict[str, Any]:
    try:
        return describe_model(path, sources)
    except EpctxError as error:
        if not may_fail:
            raise
        return describe_failure(path, error)


def _find_models(folder: Path) -> list[Path]:
    """Return the models of a folder: first those that a `genai_config.json` names, in
    its order, also in folders inside, then the others by name.

    Raises:
        NoSuchFile: the folder has none.
    """
    found = sorted(folder.glob("*.onnx"))
    named: list[Path] = []
    try:
        config = parse_json(read_small_file(folder / "genai_config.json"))
        for name in _find_file_names(config):
            path = folder / name
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                named.append(path)
    except (OSError, ValueError, RecursionError):
        # The order does not matter much.
        pass

    models = list(dict.fromkeys([*named, *found]))
    if not models:
        raise NoSuchFile(f"there is no .onnx file in {str(folder)!r}.", path=folder)
    return models


def _find_file_names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        name = value.get("filename")
        if isinstance(name, str) and name.endswith(".onnx"):
            yield name
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _find_file_names(each)


def _add_labels(models: list[dict[str, Any]], paths: Sequence[Path]) -> None:
    """Give each model a text that no other one has: its name, or its path."""
    names = Counter(path.name for path in paths)
    for model, path in zip(models, paths, strict=True):
        model["label"] = path.name if names[path.name] == 1 else str(path)


def _mark_shared_files(models: list[dict[str, Any]], paths: Sequence[Path]) -> None:
    """Say of each file which other models of the page need it."""
    users: dict[Path, list[tuple[str, dict[str, Any]]]] = {}
    for model, path in zip(models, paths, strict=True):
        for file in model["files"]:
            if file["is_file"]:
                same = users.setdefault(path.parent / file["name"], [])
                same.append((model["label"], file))
    for same in users.values():
        for label, file in same:
            others = [other for other, _ in same if other != label]
            if others:
                file["holds"] += f"; shared with {', '.join(others)}"
