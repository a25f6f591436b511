"""Results of commands: what `--json` prints beside the reports of the core.

The JSON Schemas in `schemas` are made from these dataclasses and those of the core
(`make tables`). A key whose field has the default None is left out where there is
nothing to say, unless the class makes its JSON itself, with `as_dict`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epctx_bench.partition_errors import PartitionErrors

    from epctx_cli.comparison import Difference, InnerDifference
    from epctx_cli.reduction import Reduction
    from epctx_core import Placement


@dataclass(frozen=True, kw_only=True)
class ErrorFacts:
    """Error of a command.

    Attributes:
        code: name of its error code, see `epctx docs errors`; INTERRUPTED if the user
            ended the command.
        message: description of the error.
        hint: advice to fix it.
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
class CheckedOutputs:
    """Comparison of the compiled model with its source.

    Attributes:
        equal: true if all outputs are equal within the tolerance.
        tolerance: largest relative difference of equal outputs.
        outputs: each output.
    """

    equal: bool
    tolerance: float
    outputs: list[Difference]


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

    providers: list[dict[str, Any]]


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
    placement: Placement | None = None


@dataclass(frozen=True, kw_only=True)
class RequiredFile:
    """File that has to lie beside a model.

    Attributes:
        name: its name in the model.
        bytes: its length; null if it cannot be opened.
        problem: reason why it cannot be opened, or empty.
    """

    name: str
    bytes: int | None
    problem: str


@dataclass(frozen=True, kw_only=True)
class InspectResult:
    """Result of `epctx inspect`, beside the description of the model and, of a plain
    one, its facts.

    Attributes:
        model: the model as it was named.
        sealed_by: tool that gave digests to a model that another one compiled.
        files: the required files with their sizes.
    """

    model: str
    sealed_by: str | None
    files: list[RequiredFile]


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """Result of `epctx verify`, beside the report.

    Attributes:
        model: the model as it was named.
    """

    model: str


@dataclass(frozen=True, kw_only=True)
class ExplainResult:
    """Result of `epctx explain`, beside the explanation.

    Attributes:
        model: the model as it was named.
        left: number of nodes that are left to the CPU EP, those inside subgraphs and
            functions included.
        total_nodes: number of all nodes, those inside subgraphs and functions included.
        inside_nodes: number of those inside subgraphs and functions.
        folded_nodes: number of those that were folded into initializers.
        written: files for viewers that were written.
    """

    model: str
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
class CompareResult:
    """Result of `epctx compare`.

    Attributes:
        equal: true if all outputs are equal within the tolerance.
        outputs: each output.
        models: both models.
        simulated: EPs that are simulated.
        made_from_seed: seed of the random inputs; null with `--input` and `--inputs`.
        atol: largest absolute difference of equal outputs.
        rtol: largest relative difference of equal outputs.
        first_inside: first value inside the models that differs; null for none, and
            with `--by-partition`.
        by_partition: errors of the partitions, with `--by-partition`.
        reduction: smallest part with the worst partition's error, with `--reduce`.
    """

    equal: bool
    outputs: list[Difference]
    models: list[ComparedModel]
    simulated: list[str]
    made_from_seed: int | None
    atol: float
    rtol: float
    first_inside: InnerDifference | None
    by_partition: PartitionErrors | None = None
    reduction: Reduction | None = None


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
