"""Result of `epctx report`: what `--json` prints.

The JSON Schema in `schemas` is made from these dataclasses (`make tables`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TakerFacts:
    """One that takes nodes.

    Attributes:
        name: name of the EP, or `session` for the session itself.
        kind: an EP, the CPU EP, or the session, which runs an If, Loop or Scan around
            an EP's work.
        nodes: number of its nodes, those inside subgraphs and functions included.
        share: its share of the model, from 0 to 1; null if it is unknown.
        partitions: number of its partitions and EPContext nodes.
        simulated: true if all installed EPs of that name are simulated.
    """

    name: str
    kind: Literal["ep", "cpu", "session"]
    nodes: int
    share: float | None
    partitions: int
    simulated: bool


@dataclass(frozen=True, kw_only=True)
class RefusalFacts:
    """Reason for which an EP refused nodes.

    Attributes:
        ep: name of the EP.
        reason: its words.
        nodes: number of the nodes.
        follows: number of those that were refused because a node that they serve was.
    """

    ep: str
    reason: str
    nodes: int
    follows: int


@dataclass(frozen=True, kw_only=True)
class AdviceFacts:
    """Point that is worth a look.

    Attributes:
        title: the point in one line.
        text: sentences about why, and what to do.
    """

    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ModelSummary:
    """Summary of one model of the page.

    Attributes:
        name: its file name.
        error: why it cannot be read; null if it can.
        nodes: number of its nodes, those inside subgraphs and functions included.
        inside_nodes: number of those inside subgraphs and functions.
        folded_nodes: number of those that were folded into initializers.
        share_of: unit of the shares: nodes; of a context model, the nodes of its
            source, else bytes of payloads and weights; null if they are unknown.
        boxes: number of its boxes: partitions, EPContext nodes, groups of others.
        eps: each one that takes nodes, and each EP that was asked.
        refusals: refusals by EP and reason, those of most nodes first.
        advice: points that are worth a look.
        verdict: `ok`, `not ok` or `not checked`; null for a plain model.
    """

    name: str
    error: str | None
    nodes: int
    inside_nodes: int
    folded_nodes: int
    share_of: Literal["nodes", "source nodes", "bytes"] | None
    boxes: int
    eps: list[TakerFacts]
    refusals: list[RefusalFacts]
    advice: list[AdviceFacts]
    verdict: Literal["ok", "not ok", "not checked"] | None


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """Result of `epctx report`.

    Attributes:
        output: the page.
        bytes: its length.
        models: summary of each model.
        differences: number of differences between both models; null for one model.
    """

    output: str
    bytes: int
    models: list[ModelSummary]
    differences: int | None
