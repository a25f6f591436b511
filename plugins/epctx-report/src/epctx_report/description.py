"""Description of one model, as the page has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core import SessionOptions, default_registry, explain_model, inspect_model
from epctx_report.advice import Advice, list_advice
from epctx_report.columns import make_columns, to_differences
from epctx_report.cut import CPU_EP, SESSION
from epctx_report.facts import (
    describe_checks,
    list_context_facts,
    list_facts,
    list_files,
)
from epctx_report.partition_errors import read_errors
from epctx_report.reading import make_cut
from epctx_report.refusals import group_refusals
from epctx_report.results import AdviceFacts, ModelSummary, RefusalFacts, TakerFacts
from epctx_report.shares import measure_shares
from epctx_report.timings import read_timings

if TYPE_CHECKING:
    from epctx_core import EpctxError, Explanation, ModelInfo, Placement
    from epctx_report.cut import Cut
    from epctx_report.measurements import Measurements
    from epctx_report.shares import Shares

_SIMULATED = "sim-"
"""Begin of the SDK version that a simulated EP writes."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Sources of a description, besides the model.

    Attributes:
        options: EPs and session options.
        explanation: the model's; None to ask the EPs.
        measurements: files with measurements.
    """

    options: SessionOptions
    explanation: Explanation | None = None
    measurements: Measurements


def describe_model(path: Path, sources: Sources) -> dict[str, Any]:
    """Return what the page shows of a model.

    Raises:
        EpctxError: the model, or a file of `sources`, cannot be read.
    """
    options = sources.options
    explanation = sources.explanation or explain_model(path, options)
    info = inspect_model(path)
    cut = make_cut(explanation)
    refusals = group_refusals(cut)
    timings = read_timings(cut, path, sources.measurements)
    placement = explanation.placement
    shares = measure_shares(cut, placement, info)
    columns = make_columns(cut)
    columns["boxes"]["seconds"] = [
        timings.boxes.get(number) for number in range(len(cut.boxes))
    ]
    return {
        "name": path.name,
        "error": None,
        "bytes": path.stat().st_size,
        "eps": [asdict(taker) for taker in _describe_takers(cut, info, shares)],
        "share_of": shares.unit,
        "total_nodes": placement.total_nodes,
        "inside_nodes": placement.inside_nodes,
        "folded_nodes": placement.folded_nodes,
        "facts": list_facts(info, explanation.model),
        "files": list_files(info, explanation.model, cut),
        "contexts": list_context_facts(info, cut),
        **describe_checks(info, options),
        **columns,
        "refusals": [
            {
                "ep": group.ep,
                "reason": group.reason,
                "nodes": to_differences(group.nodes),
                "follows": to_differences(group.follows),
            }
            for group in refusals
        ],
        "advice": [
            {
                "title": advice.title,
                "text": advice.text,
                "nodes": to_differences(advice.nodes),
                "boxes": to_differences(advice.boxes),
            }
            for advice in (
                *_find_small_shares(placement, info),
                *list_advice(cut, refusals, timings.nodes),
            )
        ],
        "timings": timings.describe(cut),
        "errors": read_errors(cut, sources.measurements.errors),
        "crossing_bytes": sum(
            crossing.value.type.bytes or 0 for crossing in cut.crossings
        ),
        "crossing_open": sum(
            crossing.value.type.bytes is None for crossing in cut.crossings
        ),
    }


def _find_small_shares(placement: Placement, info: ModelInfo) -> Iterator[Advice]:
    # Of a context model, one node stands for many.
    if not info.ep_contexts:
        for sentence in placement.find_small_shares().values():
            yield Advice(title=sentence.rstrip("."), text="The CPU EP runs the rest.")


def describe_failure(path: Path, error: EpctxError) -> dict[str, Any]:
    """Return what the page shows of a model that cannot be read."""
    return {
        "name": path.name,
        "error": error.message,
        "bytes": path.stat().st_size if path.exists() else None,
        "verdict": None,
        "share_of": None,
        "total_nodes": 0,
        "inside_nodes": 0,
        "folded_nodes": 0,
        "boxes": {"ep": []},
        "eps": [],
        "files": [],
        "refusals": [],
        "advice": [],
    }


def summarise(model: Mapping[str, Any]) -> ModelSummary:
    """Return the summary of a description."""
    return ModelSummary(
        name=model["name"],
        error=model["error"],
        nodes=model["total_nodes"],
        inside_nodes=model["inside_nodes"],
        folded_nodes=model["folded_nodes"],
        share_of=model["share_of"],
        boxes=len(model["boxes"]["ep"]),
        eps=[TakerFacts(**taker) for taker in model["eps"]],
        refusals=[
            RefusalFacts(
                ep=group["ep"],
                reason=group["reason"],
                nodes=len(group["nodes"]["d"]),
                follows=len(group["follows"]["d"]),
            )
            for group in model["refusals"]
        ],
        advice=[
            AdviceFacts(title=advice["title"], text=advice["text"])
            for advice in model["advice"]
        ],
        verdict=model["verdict"],
    )


def _describe_takers(cut: Cut, info: ModelInfo, shares: Shares) -> list[TakerFacts]:
    partitions = Counter(box.ep for box in cut.boxes if box.is_of_ep)
    compiled = {box.ep for box in cut.boxes if box.is_context}
    return [
        TakerFacts(
            name=ep,
            kind="cpu" if ep == CPU_EP else "session" if ep == SESSION else "ep",
            nodes=shares.nodes.get(ep, 0),
            share=shares.by_taker.get(ep, 0.0) if shares.unit else None,
            partitions=partitions[ep],
            simulated=(
                _has_simulated(ep, info) if ep in compiled else _is_simulated(ep)
            ),
        )
        for ep in cut.eps
    ]


def _has_simulated(ep: str, info: ModelInfo) -> bool:
    """Return whether a simulated EP compiled the EPContext nodes of a source, as the
    model says itself.
    """
    written = [
        str(value)
        for node in info.ep_contexts
        if node.source == ep
        for value in node.attributes.values()
    ]
    maker = info.compiled_by.get(ep, {})
    written += [str(value) for value in maker.values()]
    return any(text.startswith(_SIMULATED) for text in written)


def _is_simulated(ep: str) -> bool:
    """Return whether all installed EPs of a name are simulated."""
    records = [each for each in default_registry.records() if each.name == ep]
    return bool(records) and all(record.simulated for record in records)
