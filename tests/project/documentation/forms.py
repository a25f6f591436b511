"""Forms of the core's dataclasses in JSON, where these differ from their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Literal

from epctx_bench.gate import JudgedRow, Judgement
from epctx_bench.partition_errors import Deviation
from epctx_cache.counters import CacheStatistics
from epctx_cli.plugin_results import PluginsInfoResult
from epctx_cli.results import ShareResult
from epctx_conformance.report import ConformanceReport
from epctx_files.difference import Difference
from epctx_files.sealing import SealReport

from epctx_core import (
    CompileReport,
    ContextNodeInfo,
    Explanation,
    ModelInfo,
    NodeExplanation,
    Placement,
    PluginRecord,
    ShareReport,
    VerifyReport,
)
from epctx_core.plugin import ProviderOption
from epctx_core.verify.findings import PayloadReport


@dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """EP that was asked.

    Attributes:
        name: the EP's name.
        distribution: package that provides it; null for an EP of the host.
        version: version of that package.
        vendor: vendor of the EP, if it names one.
        simulated: true if the EP computes on this CPU, not on a vendor's hardware.
    """

    name: str
    distribution: str | None
    version: str | None
    vendor: str | None
    simulated: bool


@dataclass(frozen=True, kw_only=True)
class NodeRefusal:
    """Refusal of a node.

    Attributes:
        ep: the EP.
        reason: its reason.
        follows: name of the node because of which it is refused.
    """

    ep: str
    reason: str
    follows: str | None


@dataclass(frozen=True, kw_only=True)
class LeftFacts:
    """Nodes left to the CPU EP that an EP refused for one reason.

    Attributes:
        ep: the EP.
        reason: its reason.
        nodes: number of nodes, those inside subgraphs and functions included.
        operators: number of nodes by operator, the most frequent first.
        weight_bytes: bytes of the weights that they read.
    """

    ep: str
    reason: str
    nodes: int
    operators: dict[str, int]
    weight_bytes: int


@dataclass(frozen=True, kw_only=True)
class PlacedFacts:
    """Nodes that an EP runs.

    Attributes:
        ep: the EP.
        provided_by: distribution and version; `engine` for the CPU EP.
        simulated: true if the EP computes on this CPU, not on a vendor's hardware.
        nodes: number of nodes, those inside subgraphs and functions included; an
            EPContext node is one.
        operators: number of nodes by operator, the most frequent first.
        weight_bytes: bytes of the weights that they read, without those in payloads.
    """

    ep: str
    provided_by: str
    simulated: bool
    nodes: int
    operators: dict[str, int]
    weight_bytes: int


@dataclass(frozen=True, kw_only=True)
class PluginOfNode:
    """Plugin that would load an EPContext node.

    Attributes:
        ep: the EP's name.
        state: state of the plugin.
        distribution: package that provides it.
        version: version of that package.
        simulated: true if the EP is simulated; null before it was imported.
    """

    ep: str
    state: str
    distribution: str | None
    version: str | None
    simulated: bool | None


@dataclass(frozen=True, kw_only=True)
class PluginDetails:
    """EP of a plugin that was loaded, beside its record. The keys from `api_version` to
    `weightless_modes` are left out if it could not be.

    Attributes:
        entry_point: module and class.
        traceback: traceback of the exception that it raised.
        api_version: version of the contract that it implements.
        binary_suffix: suffix of the names of its context binaries.
        options: its options.
        dynamic_options: options that may change while a session lives.
        hooks: hooks that it implements.
        class_methods: class methods that it overrides.
        keeps_functions: functions of models that it takes whole.
        weightless_modes: weightless modes that it has.
    """

    entry_point: str | None
    traceback: str | None
    api_version: int | None = None
    binary_suffix: str | None = None
    options: list[ProviderOption] | None = None
    dynamic_options: list[ProviderOption] | None = None
    hooks: list[str] | None = None
    class_methods: list[str] | None = None
    keeps_functions: list[str] | None = None
    weightless_modes: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckCounts:
    """Numbers of checks.

    Attributes:
        passed: number of those that passed.
        failed: number of those that failed.
        skipped: number of those that were skipped.
    """

    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class NumberOfChecks:
    """Part of the result of `epctx plugins check`.

    Attributes:
        counts: numbers of checks by outcome.
    """

    counts: CheckCounts


@dataclass(frozen=True, kw_only=True)
class SealedPayload:
    """Payload of a sealed model.

    Attributes:
        name: name of its file, or of its node if it is embedded.
        bytes: its length.
        digest: its root digest.
    """

    name: str
    bytes: int
    digest: str


FORMS: Mapping[type, Mapping[str, Any]] = MappingProxyType(
    {
        CompileReport: {
            "folder": None,
            "outputs": "files",
            "providers": list[ProviderFacts],
        },
        ShareReport: {"binaries": None, "outputs": "files"},
        ShareResult: {"providers": list[ProviderFacts]},
        VerifyReport: {
            "path": None,
            "ok": "ok",
            "verdict": Literal["ok", "not-checked", "not-ok"],
        },
        PayloadReport: {"size": "bytes", "digests": "digests_checked"},
        ModelInfo: {
            "path": None,
            "manifest": None,
            "compiled_by": dict[str, dict[str, Any]],
        },
        ContextNodeInfo: {"plugin": PluginOfNode | None},
        PluginRecord: {
            "state": str,
            "entry_point": None,
            "traceback": None,
            "passed_over": None,
        },
        ProviderOption: {
            "type": Literal["bool", "int", "float", "str"],
            "effect": None,
        },
        PluginsInfoResult: {"plugins": list[Annotated[PluginDetails, PluginRecord]]},
        ConformanceReport: {"results": "checks", "ok": "ok", "limits": "limits"},
        CacheStatistics: {"folder": "cache"},
        SealReport: {"path": "sealed", "payloads": list[SealedPayload]},
        Difference: {
            "part": Literal[
                "model",
                "opset",
                "input",
                "output",
                "node",
                "function",
                "weight",
                "payload",
                "EP",
                "metadata",
            ],
        },
        Judgement: {"failed": "failed", "undecided": "undecided"},
        JudgedRow: {"high": float | None, "peer": str | None},
        Deviation: dict.fromkeys(
            ("max_abs", "mean_abs", "max_rel", "snr_db", "cosine"), float | None
        ),
        Explanation: {"model": None, "placement": None, "types": None},
        NodeExplanation: {"follows": None, "refusals": list[NodeRefusal]},
        Placement: {"eps": list[PlacedFacts], "left": list[LeftFacts]},
    }
)
"""Keys of a class where its `as_dict` differs from its fields. By the name of a field or
a property: its key, None if it has none, or the type of its value; `Annotated[A, B]` is
an object with the keys of B and A.
"""
