"""Measuring process: one request on standard input, one result on standard output.

`python -m epctx_bench.child` does one piece of work in a fresh process, so that no
earlier work has warmed it. What libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_bench.children import Answer, Request, Rows
from epctx_bench.columns import VENDOR, is_cpu
from epctx_bench.from_start import (
    fix_dimensions,
    make_options,
    prepare_session,
    take_output,
)
from epctx_bench.inputs import has_open_batch, make_inputs
from epctx_bench.page_cache import count_read_bytes, drop_files
from epctx_bench.process_costs import list_processes, measure_costs, read_peak
from epctx_bench.settings import BenchSettings
from epctx_core.errors import EpctxError

if TYPE_CHECKING:
    from epctx_core import CompileReport
    from epctx_core.plugin import ExecutionProvider

_WARM_UP_SHARE = 0.25
"""Time of warming up, as a part of that of the steady runs."""
_FEWEST_RUNS = 3


def main() -> int:
    """Answer the request; return the exit code."""
    asked = json.load(sys.stdin)
    settings = BenchSettings(**asked.pop("settings"))
    request = Request(settings=settings, **asked)
    answer = take_output()
    try:
        result = _TASKS[request.task](request)
    except EpctxError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception:  # noqa: BLE001 - any library may raise anything; the parent reports it
        traceback.print_exc()
        return 1
    with answer:
        json.dump({**result, "modules": list(sys.modules)}, answer)
    return 0


def import_modules(names: Iterable[str]) -> None:
    """Import modules, such as those that an earlier process needed for the same work;
    one that cannot be imported by its name is left out.
    """
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)


def describe_eps(request: Request) -> Answer:
    """Return the plugins of EPs, which of their options are secret, and which EPs are
    onnxruntime's.
    """
    from epctx_core import default_registry

    distributions: list[str] = []
    secret: list[tuple[str, str]] = []
    native: list[str] = []
    for ep, _ in request.eps:
        try:
            record = default_registry.resolve(ep)
            cls = default_registry.load(record)
        except EpctxError:
            # The column itself reports the fault.
            continue
        if record.distribution:
            distributions.append(record.distribution)
        secret += [(ep, option.name) for option in cls.options if option.secret]
        if _is_native(cls):
            native.append(ep)
    return {"distributions": distributions, "secret": secret, "native": native}


def _is_native(cls: type[ExecutionProvider]) -> bool:
    """Return whether an EP is one of onnxruntime behind epctx's hooks."""
    try:
        from epctx_onnxruntime.providers import OnnxRuntimeProvider
    except ImportError:
        return False
    return issubclass(cls, OnnxRuntimeProvider)


def make_vendor_options(request: Request, *, compiles: bool = False) -> Any:
    """Return onnxruntime's own options with the vendor's EP, as epctx's EP makes
    them.
    """
    from epctx_core import default_registry, ext

    options = make_options(request)
    asked = ext.Request.from_options(
        request.model, options, default_registry, options.providers
    )
    choice: Any
    (choice,) = asked.look_up()
    cls = choice.cls
    # As a program without epctx would: EPs write their name into what they compile.
    native = cls.make_session_options(
        choice.options, compiles=compiles, name=cls.library.ep
    )
    fix_dimensions(native, request)
    return native


def compile_model(request: Request) -> Answer:
    """Compile the model; return the costs and what was written."""
    import_modules(request.modules)
    notes: list[str] = []
    uses_eps = True
    if request.engine == VENDOR:
        import onnxruntime

        native = make_vendor_options(request, compiles=True)
        with measure_costs() as costs:
            onnxruntime.ModelCompiler(native, request.model).compile_to_file(
                request.output
            )
    else:
        from epctx_core import ModelCompiler

        options = make_options(request)
        with measure_costs() as costs:
            report = ModelCompiler(options, request.model).compile_to_file(
                request.output
            )
        notes = _describe_claims(report)
        uses_eps = report.compiled

    # The folder was made for what is compiled.
    folder = Path(request.output).parent
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    costs["bytes_written"] = sum(sizes.values())
    return {
        "rows": {"compile": costs},
        "files": list(sizes),
        "notes": notes,
        "uses_eps": uses_eps,
    }


def _describe_claims(report: CompileReport) -> list[str]:
    """Return a note where the CPU EP has nodes."""
    if not report.compiled:
        return ["no EP took a node: the CPU EP runs the whole model"]

    left = sum(count for ep, count in report.assignments.items() if is_cpu(ep))
    total = sum(report.assignments.values())
    return [f"{left} of {total} nodes are left to the CPU EP"] if left else []


def load_model(request: Request) -> Answer:
    """Load the model, after its files were dropped from the page cache."""
    prepare = _prepare(request)
    kept = drop_files(map(Path, request.dropped))
    read = count_read_bytes()

    start = time.perf_counter()
    session = prepare()
    seconds = time.perf_counter() - start

    if not kept and count_read_bytes() == read:
        kept = (
            "nothing was read from a disk: the file system lies in memory, or another "
            "process uses the files, which then stay in the page cache"
        )
    notes = [f"load_cold: {kept}"] if kept else []

    del session
    return {"rows": {"load_cold": {"seconds": seconds}}, "notes": notes}


def use_model(request: Request) -> Answer:
    """Load the model, run it once, then many times."""
    prepare = _prepare(request)
    start = time.perf_counter()
    session = prepare()
    load_seconds = time.perf_counter() - start

    settings = request.settings
    arguments = session.get_inputs()
    feeds = make_inputs(arguments, seed=settings.seed, batch=settings.batch_sizes[0])
    start = time.perf_counter()
    session.run(None, feeds)
    first_run = time.perf_counter() - start

    rows: Rows = {
        "load_warm": {"seconds": load_seconds},
        "first_result": {"seconds": load_seconds + first_run},
    }
    open_batch = has_open_batch(arguments)
    for batch in settings.batch_sizes if open_batch else (1,):
        feeds = make_inputs(arguments, seed=settings.seed, batch=batch)
        for threads in settings.threads:
            run: dict[str, Any] = {"threads": threads}
            if open_batch:
                run["batch"] = batch
            # The first of them has a short name, whatever its numbers are.
            name = "_".join(f"{key}_{value}" for key, value in run.items())
            rows[f"run_{name}" if "run" in rows else "run"] = run

            times, seconds = _run_steadily(session, feeds, threads, settings)
            run["seconds"] = statistics.median(times)
            run["throughput"] = len(times) * batch / seconds
            run["times"] = times
            rows.setdefault("memory", {"bytes": _read_peaks()})

    notes = []
    if not open_batch and max(settings.batch_sizes) > 1:
        notes = ["batch sizes have no effect: the model fixes its first dimension"]
    return {"rows": rows, "notes": notes, "simulated": _list_simulated(session)}


def _prepare(request: Request) -> Callable[[], Any]:
    """Import what is needed, and return what creates the session."""
    import_modules(request.modules)
    if request.engine != VENDOR:
        return prepare_session(request)

    import onnxruntime

    native = make_vendor_options(request)
    return lambda: onnxruntime.InferenceSession(request.model, native)


def _run_steadily(
    session: Any, feeds: Mapping[str, Any], threads: int, settings: BenchSettings
) -> tuple[list[float], float]:
    """Return the seconds of each run and of all together, after a warm-up."""
    warm_up = time.perf_counter() + settings.run_seconds * _WARM_UP_SHARE
    session.run(None, feeds)
    while settings.runs is None and time.perf_counter() < warm_up:
        session.run(None, feeds)

    ready = threading.Barrier(threads)
    fewest = settings.runs or _FEWEST_RUNS
    shortest = 0.0 if settings.runs else settings.run_seconds

    def work(_: int) -> list[float]:
        ready.wait()
        deadline = time.perf_counter() + shortest
        own: list[float] = []
        while len(own) < fewest or time.perf_counter() < deadline:
            begun = time.perf_counter()
            session.run(None, feeds)
            own.append(time.perf_counter() - begun)
        return own

    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        times = [each for own in pool.map(work, range(threads)) for each in own]
        seconds = time.perf_counter() - start
    return times, seconds


def _read_peaks() -> int:
    """Return the peak memory of this process and its children."""
    children = list_processes()[1:]
    return read_peak() + sum(read_peak(child.pid) for child in children)


def _list_simulated(session: Any) -> list[str]:
    """Return the names of the session's simulated EPs; onnxruntime has none."""
    if not hasattr(session, "get_provider_records"):
        return []
    return [each.name for each in session.get_provider_records() if each.simulated]


_TASKS: dict[str, Callable[[Request], Answer]] = {
    "describe": describe_eps,
    "compile": compile_model,
    "load": load_model,
    "use": use_model,
}

if __name__ == "__main__":
    sys.exit(main())
