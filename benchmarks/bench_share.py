"""Sessions of a share group: 8 context models over 1 GiB of weights that they have in
common.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench_weights import make_matmuls
from harness import (
    DATA,
    Bar,
    measure,
    report,
    resident_memory,
    seconds,
    show,
    show_bar,
)

if TYPE_CHECKING:
    from pathlib import Path

    import epctx_core as epctx

MEMBERS = 8
WIDTH = 4096
RUNS = 3


def member(number: int) -> Path:
    """Return the source of one member: it has a row more than the one before."""
    return DATA / f"share_{number}.onnx"


def make_members() -> None:
    """Write models that differ in their rows and name the same file of weights."""
    import onnx

    model = onnx.load(make_matmuls(1024), load_external_data=False)
    for number in range(MEMBERS):
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = number + 1
        onnx.save(model, member(number))


def with_qnn(**entries: str) -> epctx.SessionOptions:
    """Return session options with the simulated QNN EP."""
    import epctx_core as epctx

    options = epctx.SessionOptions()
    options.add_provider("QNN")
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return options


def compile_group(count: str) -> None:
    """One share group of so many members; the time of one of them, and the binary's
    size.
    """
    import epctx_core as epctx

    for old in DATA.glob("share_*_ctx.onnx"):
        old.unlink()
    (DATA / "share_0_qnn.bin").unlink(missing_ok=True)
    os.sync()

    def work() -> None:
        with epctx.ShareGroup() as group:
            for number in range(int(count)):
                group.compile(member(number), with_qnn())

    s = seconds(work)
    report(
        s=s / int(count),
        total_s=s,
        binary_bytes=(DATA / "share_0_qnn.bin").stat().st_size,
    )
    # The first load on a machine checks all digests, and is not what the next children
    # measure.
    for number in range(int(count)):
        path = DATA / f"share_{number}_ctx.onnx"
        epctx.InferenceSession(path, with_qnn()).close()


def load(count: str, share: str) -> None:
    """So many sessions, each run once, which touches all weights."""
    import numpy as np

    import epctx_core as epctx
    from epctx_core.context import payload_reader as reader
    from epctx_core.graph.mapping import MappedFile

    opened: list[str] = []

    class Counted(MappedFile):
        def __init__(self, descriptor: int, path: str) -> None:
            opened.append(path)
            super().__init__(descriptor, path)

    reader.MappedFile = Counted  # type: ignore[attr-defined]
    options = with_qnn(ep__share_ep_contexts=share)
    sessions: list[epctx.InferenceSession] = []
    times = []
    for number in range(int(count)):
        path = DATA / f"share_{number}_ctx.onnx"
        times.append(
            seconds(
                lambda path=path: sessions.append(epctx.InferenceSession(path, options))  # type: ignore[misc]
            )
        )
        sessions[-1].run(None, {"v0": np.zeros((number + 1, WIDTH), np.float32)})
    later = sorted(times[1:]) or times
    report(
        s=later[len(later) // 2],
        first_s=times[0],
        resident_bytes=resident_memory(),
        opened=len(opened),
    )


CHILDREN: dict[str, Callable[..., None]] = {"compile": compile_group, "load": load}


def main() -> None:
    """Print the tables."""
    make_members()
    measurement = measure(
        __file__,
        {
            "group of 8, each": ("compile", str(MEMBERS)),
            "1 session": ("load", "1", "1"),
            "8 sessions": ("load", str(MEMBERS), "1"),
            "8 sessions without sharing": ("load", str(MEMBERS), "0"),
        },
        runs=RUNS,
    )
    show(
        "a second and later session's creation, against compiling; resident memory",
        measurement,
        [Bar(ours="8 sessions", peer="group of 8, each", at_most=0.1)],
    )
    bar = Bar(ours="8 sessions", peer="1 session", at_most=1.1)
    show_bar(measurement, bar, figure="resident_bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
