"""Cost in weight bytes: compiling and loading a MatMul network with 1 GiB (and 4 GiB)
of external weights.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from harness import DATA, Bar, measure, peak_memory, report, seconds, show

if TYPE_CHECKING:
    import epctx_core as epctx

GIB = 1 << 30
LAYER = 4096
BLOCK = 16 << 20
SMALL = DATA / "matmul_1.onnx"
"""What both libraries compile first, untimed: neither has to import or start anything
after that.
"""


def make_matmuls(mib: int) -> Path:
    """Write a chain of 4096 x 4096 MatMuls (64 MiB each; one small one for 1 MiB),
    weights in one file.
    """
    import numpy as np
    from onnx import TensorProto, helper, save

    path = DATA / f"matmul_{mib}.onnx"
    if path.exists():
        return path
    DATA.mkdir(exist_ok=True)
    size = LAYER if mib >= 64 else 512
    layers = max(1, (mib << 20) // (size * size * 4))
    weights = DATA / f"matmul_{mib}.weights"
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"m{i}")
            for i in range(layers)
        ],
        "matmuls",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info(f"v{layers}", TensorProto.FLOAT, [1, size])],
    )
    random = np.random.default_rng(0)
    with weights.open("wb") as file:
        for i in range(layers):
            tensor = graph.initializer.add(
                name=f"w{i}", data_type=TensorProto.FLOAT, dims=[size, size]
            )
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", weights.name),
                ("offset", file.tell()),
                ("length", size * size * 4),
            ):
                tensor.external_data.add(key=key, value=str(value))
            random.standard_normal((size, size), np.float32).__itruediv__(
                size**0.5
            ).tofile(file)
    save(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ),
        path,
    )
    return path


def start_clean(*names: str) -> None:
    """Remove what an earlier run wrote and wait for the disk: neither is a part of what
    is measured.
    """
    for name in names:
        (DATA / name).unlink(missing_ok=True)
    os.sync()


def compile_weights(mib: str) -> None:
    """`compile_to_file` with the simulated QNN EP."""
    import epctx_core as epctx

    start_clean(
        "small_ctx.onnx",
        "small_qnn.bin",
        f"matmul_{mib}_ctx.onnx",
        f"matmul_{mib}_qnn.bin",
    )
    so = epctx.SessionOptions()
    so.add_provider("QNN")
    first = seconds(
        lambda: epctx.ModelCompiler(so, SMALL).compile_to_file(DATA / "small_ctx.onnx")
    )
    compiler = epctx.ModelCompiler(so, DATA / f"matmul_{mib}.onnx")
    report(
        s=seconds(compiler.compile_to_file),
        peak_bytes=peak_memory(),
        small_first_s=first,
    )


def resave(mib: str) -> None:
    """Onnxruntime's ModelCompiler, which writes the weights again into a file of its
    own.
    """
    import onnxruntime

    def resaved(model: Path) -> None:
        onnxruntime.ModelCompiler(
            onnxruntime.SessionOptions(),
            str(model),
            external_initializers_file_path="resaved.weights",
        ).compile_to_file(str(DATA / "resaved.onnx"))

    start_clean("resaved.onnx", "resaved.weights")
    first = seconds(lambda: resaved(SMALL))
    start_clean("resaved.onnx", "resaved.weights")
    model = DATA / f"matmul_{mib}.onnx"
    report(
        s=seconds(lambda: resaved(model)), peak_bytes=peak_memory(), small_first_s=first
    )


def plain_loop(mib: str) -> None:
    """readinto, SHA-256, write, fsync."""
    start_clean("copy.bin")

    def work() -> None:
        buffer = memoryview(bytearray(BLOCK))
        sha = hashlib.sha256()
        with (
            (DATA / f"matmul_{mib}.weights").open("rb", buffering=0) as source,
            (DATA / "copy.bin").open("wb") as target,
        ):
            while count := source.readinto(buffer):
                sha.update(buffer[:count])
                target.write(buffer[:count])
            target.flush()
            os.fsync(target.fileno())

    report(s=seconds(work), peak_bytes=peak_memory())


def load(mib: str) -> None:
    """A session from the context model, after one small session."""
    import numpy as np

    import epctx_core as epctx

    epctx.InferenceSession(DATA / "matmul_1_ctx.onnx").close()
    sessions = []
    path = DATA / f"matmul_{mib}_ctx.onnx"
    before = _bytes_read()
    created = seconds(lambda: sessions.append(epctx.InferenceSession(path)))
    read = _bytes_read() - before
    x = np.ones([1, 512 if mib == "1" else LAYER], np.float32)
    first = seconds(lambda: sessions[0].run(None, {"v0": x}))
    report(s=created, first_run_s=first, read_bytes=read, peak_bytes=peak_memory())


def load_first(mib: str) -> None:
    """The first session from a context model that this machine sees: all digests are
    checked beside it.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EPCTX_RECEIPTS"] = folder
        load(mib)


def digest_threads(mib: str) -> None:
    """SHA-256 over all threads of as many bytes, in the pieces that the model's weights
    are.
    """
    path = DATA / f"matmul_{mib}.weights"
    piece = LAYER * LAYER * 4

    def digest_piece(start: int) -> None:
        sha, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            for _ in range(piece // len(buffer)):
                file.readinto(buffer)
                sha.update(buffer)

    def work() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(digest_piece, range(0, path.stat().st_size, piece)))

    report(s=seconds(work), peak_bytes=peak_memory())


def session_of_ort(who: str) -> None:
    """A session over an `.ort` file with 960 MiB of weights in it."""
    import onnxruntime

    import epctx_core as epctx

    path = DATA / "matmul_960.ort"
    make = (
        onnxruntime.InferenceSession if who == "onnxruntime" else epctx.InferenceSession
    )
    report(
        s=seconds(lambda: make(str(path), providers=["CPUExecutionProvider"])),
        peak_bytes=peak_memory(),
    )


def compile_ort(_mib: str) -> None:
    """`compile_to_file` of that file with the simulated QNN EP."""
    import epctx_core as epctx

    so = epctx.SessionOptions()
    so.add_provider("QNN")
    compiler = epctx.ModelCompiler(so, DATA / "matmul_960.ort")
    report(
        s=seconds(lambda: compiler.compile_to_file(DATA / "ort_ctx.onnx")),
        peak_bytes=peak_memory(),
    )


def make_ort() -> None:
    """Write the `.ort` file, unoptimised."""
    import epctx_core as epctx

    if not (DATA / "matmul_960.ort").exists():
        level = epctx.GraphOptimizationLevel.ORT_DISABLE_ALL
        epctx.convert_model(
            make_matmuls(960), DATA / "matmul_960.ort", graph_optimization_level=level
        )


def weightless_options() -> epctx.SessionOptions:
    """The simulated OpenVINO EP, weights left in the source."""
    import epctx_core as epctx

    so = epctx.SessionOptions()
    so.add_provider("OpenVINO")
    so.add_session_config_entry("ep.enable_weightless_mode", "2")
    return so


def compile_weightless(mib: str) -> None:
    """`compile_to_file` in weightless mode."""
    import epctx_core as epctx

    so = weightless_options()
    epctx.ModelCompiler(so, SMALL).compile_to_file(DATA / "small_weightless.onnx")
    compiler = epctx.ModelCompiler(so, DATA / f"matmul_{mib}.onnx")
    report(
        s=seconds(lambda: compiler.compile_to_file(DATA / f"weightless_{mib}.onnx")),
        peak_bytes=peak_memory(),
    )


def load_weightless(mib: str) -> None:
    """A session whose weights lie in the source's file, after one small session."""
    import epctx_core as epctx

    epctx.InferenceSession(DATA / "small_weightless.onnx").close()
    sessions = []
    path = DATA / f"weightless_{mib}.onnx"
    used = time.process_time()
    created = seconds(lambda: sessions.append(epctx.InferenceSession(path)))
    report(s=created, cpu_s=time.process_time() - used, peak_bytes=peak_memory())


def digest(mib: str) -> None:
    """SHA-256 of the weights in one thread."""
    with (DATA / f"matmul_{mib}.weights").open("rb") as file:
        report(
            s=seconds(lambda: hashlib.file_digest(file, "sha256")),
            peak_bytes=peak_memory(),
        )


def run(who: str) -> None:
    """One run of the 1 GiB network by the default rules."""
    import numpy as np
    import onnxruntime

    import epctx_core as epctx

    path = DATA / "matmul_1024.onnx"
    session = (
        onnxruntime.InferenceSession(str(path))
        if who == "onnxruntime"
        else epctx.InferenceSession(path.with_name("matmul_1024_ctx.onnx"))
    )
    x = np.ones([1, LAYER], np.float32)
    for _ in range(3):
        session.run(None, {"v0": x})
    report(s=seconds(lambda: [session.run(None, {"v0": x}) for _ in range(20)]) / 20)


def _bytes_read() -> int:
    """Return what this process asked the kernel to read so far; page faults of a
    mapping do not count.
    """
    line = next(
        li
        for li in Path("/proc/self/io").read_text().splitlines()
        if li.startswith("rchar")
    )
    return int(line.split()[1])


CHILDREN = {
    "compile": compile_weights,
    "compile_ort": compile_ort,
    "compile_weightless": compile_weightless,
    "digest": digest,
    "digest_threads": digest_threads,
    "load": load,
    "load_first": load_first,
    "load_weightless": load_weightless,
    "loop": plain_loop,
    "resave": resave,
    "run": run,
    "session_of_ort": session_of_ort,
}


def main() -> None:
    """Measure everything and print the tables."""
    for mib in (1, 1024, 4096):
        make_matmuls(mib)
    import epctx_core as epctx

    so = epctx.SessionOptions()
    so.add_provider("QNN")
    epctx.ModelCompiler(so, DATA / "matmul_1.onnx").compile_to_file()
    compiled = measure(
        __file__,
        {
            "epctx": ("compile", "1024"),
            "onnxruntime's ModelCompiler": ("resave", "1024"),
            "plain loop": ("loop", "1024"),
        },
    )
    show(
        "1 GiB of external weights compiled (peak under 150 MiB)",
        compiled,
        [
            Bar(ours="epctx", peer="onnxruntime's ModelCompiler", at_most=0.4),
            Bar(ours="epctx", peer="plain loop", at_most=1.2),
        ],
    )
    show(
        "4 GiB the same",
        measure(
            __file__,
            {"epctx": ("compile", "4096"), "plain loop": ("loop", "4096")},
            runs=3,
        ),
    )
    show(
        "session from a context model (at most 10 ms beyond 1 MiB)",
        measure(
            __file__, {f"{mib} MiB": ("load", mib) for mib in ("1", "1024", "4096")}
        ),
    )
    show(
        "first session on a machine from a context model of 1 GiB, all digests checked",
        measure(
            __file__,
            {
                "epctx": ("load_first", "1024"),
                "SHA-256, all threads": ("digest_threads", "1024"),
            },
        ),
        [Bar(ours="epctx", peer="SHA-256, all threads", at_most=1.1)],
    )
    show(
        "weightless: 1 GiB compiled; a session from it, its weights digested",
        measure(
            __file__,
            {
                "compile": ("compile_weightless", "1024"),
                "load": ("load_weightless", "1024"),
                "SHA-256 alone": ("digest", "1024"),
            },
        ),
        [Bar(ours="load", peer="SHA-256 alone", at_most=1.0)],
    )
    make_ort()
    show(
        "an .ort file with 960 MiB of weights (one copy in memory)",
        measure(
            __file__,
            {
                "epctx, session": ("session_of_ort", "epctx"),
                "epctx, compile": ("compile_ort", "960"),
                "onnxruntime, session": ("session_of_ort", "onnxruntime"),
            },
            runs=3,
        ),
        [Bar(ours="epctx, session", peer="onnxruntime, session", at_most=1.2)],
    )
    start_clean(
        "resaved.onnx", "resaved.weights", "copy.bin", "ort_ctx.onnx", "ort_qnn.bin"
    )
    runs = measure(
        __file__, {"epctx": ("run", "epctx"), "onnxruntime": ("run", "onnxruntime")}
    )
    show(
        "run of the 1 GiB network",
        runs,
        [Bar(ours="epctx", peer="onnxruntime", at_most=1.3)],
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
