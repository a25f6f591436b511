"""Results of commands: what `--json` prints beside the reports of the core.

The JSON Schemas in `schemas` are made from these dataclasses and those of the core
(`make docs`). A key whose field has the default None is left out where there is nothing
to say, unless the class makes its JSON itself, with `as_dict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from epctx_cli.plugin_results import PlacementFacts


@dataclass(frozen=True, kw_only=True)
class ErrorFacts:
    """Error of a command.

    Attributes:
        code: name of its error code, see `epctx docs errors`; INTERRUPTED if the user
            ended the command.
        message: what happened.
        hint: what to do about it.
        node: node of the model that it is about.
        ep: EP that it is about.
        path: file that it is about.
    """

    code: str
    message: str
    hint: str | None
    node: str | None = None
    ep: str | None = None
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class ErrorResult:
    """Result of any command that ends with an error.

    Attributes:
        error: the error.
    """

    error: ErrorFacts


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
class FirstDifference:
    """First element beyond the tolerance.

    Attributes:
        index: its index in each dimension.
        a: its value in the first model; null for infinity and NaN.
        b: its value in the second model.
    """

    index: list[int]
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """Comparison of one output of two models.

    Attributes:
        name: name of the output.
        max_abs: largest absolute difference; null for infinity, and for outputs that
            cannot be subtracted.
        max_rel: that difference relative to the largest element of the second model.
        equal: true within the tolerance.
        reason: why the two cannot be subtracted, or empty.
        first: the first element beyond the tolerance.
    """

    name: str
    max_abs: float | None
    max_rel: float | None
    equal: bool
    reason: str
    first: FirstDifference | None


@dataclass(frozen=True, kw_only=True)
class CheckedOutputs:
    """Comparison of the compiled model with its source.

    Attributes:
        equal: true if all outputs are equal within the tolerance.
        tolerance: largest relative difference of equal outputs.
        outputs: each output.
    """

    equal: bool
    tolerance: float
    outputs: list[OutputDifference]


@dataclass(frozen=True, kw_only=True)
class CompileResult:
    """Result of `epctx compile`, beside the report.

    Attributes:
        folder: folder of the files.
        check: comparison with the source, with `--check`.
    """

    folder: str
    check: CheckedOutputs | None = None


@dataclass(frozen=True, kw_only=True)
class ShareResult:
    """Result of `epctx share`, beside the report.

    Attributes:
        providers: EPs that were asked.
    """

    providers: list[ProviderFacts]


@dataclass(frozen=True, kw_only=True)
class InputFacts:
    """Input of a run.

    Attributes:
        name: name of the input.
        type: element type, as numpy names it.
        shape: its lengths.
    """

    name: str
    type: str
    shape: list[int]


@dataclass(frozen=True, kw_only=True)
class OutputFacts:
    """Output of a run.

    Attributes:
        name: name of the output.
        type: its type, as the model declares it.
        shape: its lengths; null for a sequence, a map or an absent optional.
        min: smallest element; null without numbers.
        max: largest element.
        mean: mean of the elements.
    """

    name: str
    type: str
    shape: list[int] | None
    min: float | None
    max: float | None
    mean: float | None


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Seconds of a load and a run.

    Attributes:
        load: seconds to load the model.
        run: seconds of the run.
    """

    load: float
    run: float


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Result of `epctx run`.

    Attributes:
        model: the model as it was named.
        providers: EPs of the session, in order of priority.
        nodes: by EP the number of nodes that it runs, those inside subgraphs and
            functions included; an EPContext node is one.
        simulated: those of the EPs that are simulated and run a node.
        inputs: inputs of the run.
        made_from_seed: seed of the random inputs; null with `--input`.
        outputs: outputs of the run.
        output_file: file of the outputs, with `--output`.
        seconds: durations.
        placement: nodes and weights of each EP, with `--placement`.
    """

    model: str
    providers: list[str]
    nodes: dict[str, int]
    simulated: list[str]
    inputs: list[InputFacts]
    made_from_seed: int | None
    outputs: list[OutputFacts]
    output_file: str | None
    seconds: Durations
    placement: PlacementFacts | None = None


@dataclass(frozen=True, kw_only=True)
class FindingFacts:
    """Finding of a verification.

    Attributes:
        severity: errors are what a load refuses.
        code: type of the finding, see `epctx docs verify`.
        message: the problem.
        node: node concerned.
        hint: the remedy; may be empty.
    """

    severity: Literal["error", "warning", "info"]
    code: str
    message: str
    node: str | None
    hint: str


@dataclass(frozen=True, kw_only=True)
class PayloadFacts:
    """Payload that was verified.

    Attributes:
        name: name of its file, or of its node if it is embedded.
        embedded: true if it is in the model.
        bytes: its length.
        digests_checked: true if all its bytes were checked against the manifest.
        looked_into_by: EP that checked it; null if none could.
    """

    name: str
    embedded: bool
    bytes: int
    digests_checked: bool
    looked_into_by: str | None


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """Result of `epctx verify`.

    Attributes:
        model: the model as it was named.
        ok: true if there is no error.
        verdict: `not-checked` where nobody here could check a payload.
        findings: errors first.
        nodes: number of EPContext nodes.
        payloads: those that could be read.
    """

    model: str
    ok: bool
    verdict: Literal["ok", "not-checked", "not-ok"]
    findings: list[FindingFacts]
    nodes: int
    payloads: list[PayloadFacts]


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
class NodeFacts:
    """Node that was explained.

    Attributes:
        name: its name, or operator and index.
        operator: its operator; with the domain, if that is not ONNX's own.
        graph: path from the main graph: index and attribute of each node around it.
        index: its index in its graph.
        ep: the EP that takes it.
        partition: number of the partition; null for a node in none.
        kernel: true if a kernel of `ep` runs it on its own.
        compiled: true for an EPContext node.
        session: true for an If, Loop or Scan around an EP's work, which the session
            itself runs.
        refusals: EPs that were asked before `ep`, and their reasons.
        inside: number of the nodes inside its subgraphs, and the function that it
            calls.
    """

    name: str
    operator: str
    graph: list[tuple[int, str]]
    index: int
    ep: str
    partition: int | None
    kernel: bool
    compiled: bool
    session: bool
    refusals: list[NodeRefusal]
    inside: int


@dataclass(frozen=True, kw_only=True)
class ExplainResult:
    """Result of `epctx explain`.

    Attributes:
        model: the model as it was named.
        eps: EPs that were asked, in order of priority.
        nodes: nodes of the main graph, then of subgraphs that a session runs itself.
        left: number of nodes that are left to the CPU EP, those inside subgraphs and
            functions included.
        total_nodes: number of all nodes, those inside subgraphs and functions included.
        inside_nodes: number of those inside subgraphs and functions.
        folded_nodes: number of those that were folded into initializers.
        written: files for viewers that were written.
    """

    model: str
    eps: list[str]
    nodes: list[NodeFacts]
    left: int
    total_nodes: int
    inside_nodes: int
    folded_nodes: int
    written: list[str]


@dataclass(frozen=True, kw_only=True)
class ComparedModel:
    """Model of a comparison.

    Attributes:
        path: the model as it was named.
        providers: EPs of its session.
        nodes: by EP the number of nodes that it runs, those inside subgraphs and
            functions included; an EPContext node is one.
    """

    path: str
    providers: list[str]
    nodes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class InnerDifference(OutputDifference):
    """First value inside two models that differs.

    Attributes:
        compared: number of values of one name that were compared.
        from_a: node of the first model that produces it.
        from_b: node of the second model that produces it.
    """

    compared: int
    from_a: str
    from_b: str


@dataclass(frozen=True, kw_only=True)
class CompareResult:
    """Result of `epctx compare`.

    Attributes:
        equal: true if all outputs are equal within the tolerance.
        outputs: each output.
        models: both models.
        simulated: EPs that are simulated.
        made_from_seed: seed of the random inputs; null with `--input`.
        atol: largest absolute difference of equal outputs.
        rtol: largest relative difference of equal outputs.
        first_inside: first value inside the models that differs; null for none.
    """

    equal: bool
    outputs: list[OutputDifference]
    models: list[ComparedModel]
    simulated: list[str]
    made_from_seed: int | None
    atol: float
    rtol: float
    first_inside: InnerDifference | None


@dataclass(frozen=True, kw_only=True)
class ConvertResult:
    """Result of `epctx convert`.

    Attributes:
        model: the model as it was named.
        output: file that was written.
        bytes: its length.
    """

    model: str
    output: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CompletionResult:
    """Result of `epctx completion`.

    Attributes:
        shell: the shell.
        script: the script.
    """

    shell: str
    script: str


@dataclass(frozen=True, kw_only=True)
class SchemaResult:
    """Result of `epctx schema`.

    Attributes:
        commands: commands whose results have a schema; the one that was named.
        definition: JSON Schema of that one.
    """

    commands: list[str]
    definition: dict[str, Any] | None = None
