"""`make_report`: what is known of a model, or of several, as one page."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epctx_core import (
    SessionOptions,
    __version__,
    default_registry,
    explain_model,
    inspect_model,
)
from epctx_core.errors import InvalidArgument, NoSuchFile
from epctx_core.ext import Publication
from epctx_report.advice import list_advice
from epctx_report.columns import make_columns, to_differences
from epctx_report.cut import CPU_EP, SESSION, make_cut
from epctx_report.facts import describe_checks, list_facts, list_files
from epctx_report.page import assemble
from epctx_report.refusals import group_refusals
from epctx_report.timings import read_timings

if TYPE_CHECKING:
    from os import PathLike

    from epctx_core import Explanation
    from epctx_report.cut import Cut

SCHEMA: Final = 1
_MOST_DIFFERENCES: Final = 2000
_FRAME_HEIGHT: Final = 720
"""Pixels of the page in a notebook."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report on models, which a notebook shows as its page.

    Attributes:
        data: what the page shows, as JSON has it; see `epctx_report.columns`.
    """

    data: Mapping[str, Any] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary that `epctx report --json` prints."""
        differences = self.data["differences"]
        return {
            "models": [_summarise(model) for model in self.data["models"]],
            "differences": (
                None
                if differences is None
                else len(differences["rows"]) + differences["left_out"]
            ),
        }

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
    trace: str | PathLike[str] | None = None,
    bench: str | PathLike[str] | None = None,
) -> Report:
    """Return a report on a model.

    Nothing is compiled or run. Without EPs no plugin is needed: an EPContext node is
    shown as the one of its source, and all other nodes as the CPU EP's.

    Args:
        model: a plain model, a context model, or a folder of such models.
        other: a second model, to show what differs.
        sess_options: EPs and options, as for a compile; None for no EP.
        explanation: the model's, if there is one already; else the EPs are asked.
        trace: a profile of `epctx run --profile` or `epctx compile --profile`, of the
            model, or of the first one in a folder.
        bench: a file with the JSON of `epctx bench`.

    Raises:
        NoSuchFile: there is no such model, or no model in the folder.
        InvalidArgument: `trace` or `bench` is another file, or `other` is given for a
            folder.
        EpctxError: a model cannot be read, or a plugin is broken; see `explain_model`.

    Example:
        >>> options = SessionOptions()
        >>> options.add_provider("QNN")
        >>> make_report("model.onnx", sess_options=options).write("report.html")
    """
    options = sess_options if sess_options is not None else SessionOptions()
    path = Path(model)
    paths = list(_find_models(path))
    differences = None
    if other is not None:
        if path.is_dir():
            raise InvalidArgument(
                f"{str(path)!r} is a folder, and a second model is given.",
                path=path,
                hint="Compare two models, or report on the folder alone.",
            )
        paths.append(Path(other))
        differences = _compare(path, Path(other))

    models = []
    for each in paths:
        is_first = each is paths[0]
        own = explanation if is_first else None
        models.append(
            _describe(
                each,
                options,
                own or explain_model(each, options),
                trace if is_first else None,
                bench,
            )
        )
    return Report(
        data={
            "schema": SCHEMA,
            "title": path.name,
            "tool": f"epctx {__version__}",
            "models": models,
            "differences": differences,
        }
    )


def _find_models(path: Path) -> Iterator[Path]:
    """Yield the models of a folder, first those that a `genai_config.json` names, in
    its order; a file itself.

    Raises:
        NoSuchFile: the folder has none.
    """
    if not path.is_dir():
        yield path
        return
    found = sorted(path.glob("*.onnx"))
    if not found:
        raise NoSuchFile(f"there is no .onnx file in {str(path)!r}.", path=path)
    names: list[str] = []
    try:
        config = json.loads((path / "genai_config.json").read_bytes())
        names = [*_find_file_names(config)]
    except (OSError, ValueError, RecursionError):
        # The order does not matter much.
        pass
    order = {name: index for index, name in enumerate(reversed(names))}
    yield from sorted(found, key=lambda each: -order.get(each.name, -1))


def _find_file_names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        name = value.get("filename")
        if isinstance(name, str):
            yield name
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _find_file_names(each)


def _describe(
    path: Path,
    options: SessionOptions,
    explanation: Explanation,
    trace: str | PathLike[str] | None,
    bench: str | PathLike[str] | None,
) -> dict[str, Any]:
    """Return what the page shows of one model."""
    info = inspect_model(path)
    cut = make_cut(explanation)
    refusals = group_refusals(cut)
    timings = read_timings(cut, path.name, trace, bench)
    columns = make_columns(cut)
    columns["boxes"]["seconds"] = [
        timings.boxes.get(number) for number in range(len(cut.boxes))
    ]
    return {
        "name": path.name,
        "bytes": path.stat().st_size,
        "eps": _describe_eps(cut),
        "facts": list_facts(info, explanation.model),
        "files": list_files(info, explanation.model, cut),
        **describe_checks(info, options),
        **columns,
        "refusals": [
            {
                "ep": refusal.ep,
                "reason": refusal.reason,
                "nodes": to_differences(refusal.nodes),
                "follows": to_differences(refusal.follows),
            }
            for refusal in refusals
        ],
        "advice": [
            {
                "title": advice.title,
                "text": advice.text,
                "nodes": to_differences(advice.nodes),
                "boxes": to_differences(advice.boxes),
            }
            for advice in list_advice(cut, refusals, timings.nodes)
        ],
        "timings": timings.as_dict(),
    }


def _summarise(model: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": model["name"],
        "nodes": len(model["nodes"]["name"]),
        "boxes": len(model["boxes"]["name"]),
        "eps": model["eps"],
        "refusals": [
            {
                **refusal,
                "nodes": len(refusal["nodes"]["d"]),
                "follows": len(refusal["follows"]["d"]),
            }
            for refusal in model["refusals"]
        ],
        "advice": [
            {"title": advice["title"], "text": advice["text"]}
            for advice in model["advice"]
        ],
        "verdict": model["verdict"],
    }


def _describe_eps(cut: Cut) -> list[dict[str, Any]]:
    nodes = Counter(node.ep for node in cut.nodes)
    partitions = Counter(box.ep for box in cut.boxes if box.is_of_ep)
    kinds = {CPU_EP: "cpu", SESSION: "session"}
    return [
        {
            "name": ep,
            "nodes": nodes[ep],
            "partitions": partitions[ep],
            "simulated": _is_simulated(ep),
            "kind": kinds.get(ep, "ep"),
        }
        for ep in cut.eps
    ]


def _is_simulated(ep: str) -> bool:
    """Return whether all installed EPs of a name are simulated."""
    records = [each for each in default_registry.records() if each.name == ep]
    return bool(records) and all(record.simulated for record in records)


def _compare(first: Path, second: Path) -> dict[str, Any]:
    from epctx_files import diff

    found = diff(first, second)
    rows = [each.as_dict() for each in found.differences]
    return {
        "first": first.name,
        "second": second.name,
        "rows": rows[:_MOST_DIFFERENCES],
        "left_out": max(0, len(rows) - _MOST_DIFFERENCES),
    }
