"""Result of `epctx bench`: what `--json` prints.

The JSON Schema in epctx-bench is made from these dataclasses (`make tables`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

if TYPE_CHECKING:
    from epctx_bench.gate import Judgement
    from epctx_bench.noise import Noise
    from epctx_bench.settings import BenchSettings


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Machine that measured.

    Attributes:
        cpu: name of the processor.
        cores: number of processors that the process may use.
        os: name and version of the system.
        python: version of Python.
        versions: version of each package, by name.
    """

    cpu: str
    cores: int
    os: str
    python: str
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class EarlierSettings:
    """Settings of earlier versions.

    Attributes:
        check: true if an earlier version compared the outputs; else false.
    """

    check: bool


@dataclass(frozen=True, kw_only=True)
class RowFacts:
    """Samples of one measure.

    Attributes:
        unit: unit of the samples.
        samples: one for each turn, in order.
        p50: median of all steady runs, in seconds.
        p90: time within which 90 % of the steady runs end.
        p99: time within which 99 % of the steady runs end.
        throughput: results a second of all threads; a run of batch size n gives n.
        cpu_seconds: processor time of the process and its children, median of turns.
        peak_bytes: peak memory of the process and its children, median of turns.
        bytes_written: bytes of all files that were written, median of turns.
        threads: number of threads of a run.
        batch: length of the open first dimension.
    """

    unit: Literal["s", "bytes"]
    samples: list[float]
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    throughput: float | None = None
    cpu_seconds: float | None = None
    peak_bytes: float | None = None
    bytes_written: float | None = None
    threads: int | None = None
    batch: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompileRowFacts(RowFacts):
    """Samples of compiles, which have costs, too."""

    cpu_seconds: float = field()
    peak_bytes: float = field()
    bytes_written: float = field()


@dataclass(frozen=True, kw_only=True)
class RunRowFacts(RowFacts):
    """Samples of steady runs, which have percentiles, too."""

    p50: float = field()
    p90: float = field()
    p99: float = field()
    throughput: float = field()
    threads: int = field()


@dataclass(frozen=True, kw_only=True)
class RowsFacts:
    """Samples by measure; a measure that was not taken is left out.

    Attributes:
        compile: compiling the model.
        load_cold: loading from the disk.
        load_warm: loading again.
        first_result: from the start of a load to the first result, without imports.
        first_result_from_start: from the start of the process to the first result,
            with imports; its processor time is that of the process alone.
        memory: peak memory of the process.
        run: steady runs.
    """

    compile: CompileRowFacts | None = None
    load_cold: RowFacts | None = None
    load_warm: RowFacts | None = None
    first_result: RowFacts | None = None
    first_result_from_start: RowFacts | None = None
    memory: RowFacts | None = None
    run: RunRowFacts | None = None


@dataclass(frozen=True, kw_only=True)
class CheckFacts:
    """Comparison of all outputs with a reference, by an earlier version.

    Attributes:
        reference: name of the reference.
        max_abs: largest absolute difference; null for infinity.
        max_rel: largest relative difference; null for infinity.
    """

    reference: str
    max_abs: float | None
    max_rel: float | None


@dataclass(frozen=True, kw_only=True)
class ColumnFacts:
    """Results of one model with one mix of EPs.

    Attributes:
        name: its name, unique in the report.
        model: path of the model.
        eps: names of its EPs, in order of priority.
        options: options by EP; secret values are left out.
        engine: the one that compiled and ran the model.
        peer: name of the column of onnxruntime for the same model.
        error: why the column has no rows; null if it has.
        notes: sentences about how it was measured.
        simulated: names of its EPs that are simulated.
        check: comparison of all outputs with a reference, by an earlier version; else
            null.
        rows: samples by measure; more threads and lengths are in rows such as
            `run_threads_2_batch_4`.
    """

    name: str
    model: str
    eps: list[str]
    options: dict[str, dict[str, str]]
    engine: Literal["epctx", "onnxruntime", "vendor"]
    peer: str | None
    error: str | None
    notes: list[str]
    simulated: list[str]
    check: CheckFacts | None
    rows: RowsFacts


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Result of `epctx bench`.

    Attributes:
        machine: processor, system and versions.
        settings: settings of the measurement.
        noise: whether other programs used the processors meanwhile.
        columns: results of each model and mix of EPs.
        judgement: comparison with a saved report, with `--against`.
    """

    machine: MachineFacts
    settings: Annotated[EarlierSettings, BenchSettings]
    noise: Noise
    columns: list[ColumnFacts]
    judgement: Judgement | None = None
