"""Work on files: two models with 2 GiB of weights each merged, and 100,000 nodes merged
and extracted.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness import DATA, Bar, measure, peak_memory, report, seconds, show, show_bar

if TYPE_CHECKING:
    from pathlib import Path

RUNS = 5
LARGE = 2 << 30
SMALL = 1 << 20
NODES = 50_000
FEW = 50


def pair(name: str) -> tuple[Path, Path]:
    """Return the paths of two models of which the second goes on from the first."""
    return DATA / f"files_{name}_1.onnx", DATA / f"files_{name}_2.onnx"


def make_weights(name: str, size: int) -> None:
    """Write a pair of models with one weight of so many bytes each, in a file."""
    from onnx import TensorProto, helper, save

    for number, path in enumerate(pair(name)):
        x, y = "xhy"[number], "xhy"[number + 1]
        weight = TensorProto(
            name=f"{y}_w",
            data_type=TensorProto.FLOAT,
            dims=[1, size // 4],
            data_location=TensorProto.EXTERNAL,
        )
        file = path.with_suffix(".weights")
        for key, value in (("location", file.name), ("length", str(size))):
            weight.external_data.add(key=key, value=value)
        if not file.exists() or file.stat().st_size != size:
            block = os.urandom(SMALL)
            with file.open("wb") as stream:
                for _ in range(size // SMALL):
                    stream.write(block)
        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size // 4])
            for name in (x, y)
        ]
        graph = helper.make_graph(
            [helper.make_node("Add", [x, weight.name], [y])],
            "add",
            values[:1],
            values[1:],
            [weight],
        )
        save(helper.make_model(graph), path)


def make_chains(name: str, count: int) -> None:
    """Write a pair of chains of so many nodes each."""
    from onnx import TensorProto, helper, save

    for number, path in enumerate(pair(name)):
        x, y = "xhy"[number], "xhy"[number + 1]
        names = [x, *(f"{y}{index}" for index in range(1, count)), y]
        nodes = [
            helper.make_node("Relu", [names[i]], [names[i + 1]], name=f"{y}_n{i}")
            for i in range(count)
        ]
        values = [
            helper.make_tensor_value_info(each, TensorProto.FLOAT, [2])
            for each in (x, y)
        ]
        graph = helper.make_graph(nodes, "chain", values[:1], values[1:])
        save(helper.make_model(graph), path)


def start_clean() -> Path:
    """Remove what an earlier child wrote; return the folder for what is written."""
    folder = DATA / "files_written"
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()
    return folder


def merge_pair(name: str) -> None:
    """One merge of a pair."""
    from epctx_files import merge

    folder = start_clean()
    s = seconds(lambda: merge(pair(name), folder / "whole.onnx"))
    report(s=s, peak_bytes=peak_memory())


def extract_half(name: str) -> None:
    """Extract the second model of a pair from the merged one."""
    from epctx_files import extract, merge

    folder = start_clean()
    whole = merge(pair(name), folder / "whole.onnx").model
    s = seconds(lambda: extract(whole, folder / "part.onnx", inputs=["h"]))
    report(s=s, peak_bytes=peak_memory())


CHILDREN: dict[str, Callable[..., None]] = {
    "merge": merge_pair,
    "extract": extract_half,
}


def main() -> None:
    """Print the tables."""
    DATA.mkdir(exist_ok=True)
    make_weights("large", LARGE)
    make_weights("small", SMALL)
    make_chains("many", NODES)
    make_chains("few", FEW)
    measurement = measure(
        __file__,
        {
            "4 GiB in two files": ("merge", "large"),
            "2 MiB in two files": ("merge", "small"),
            "100,000 nodes": ("merge", "many"),
            "100 nodes": ("merge", "few"),
            "100,000 nodes, a half extracted": ("extract", "many"),
        },
        runs=RUNS,
    )
    bar = Bar(ours="4 GiB in two files", peer="2 MiB in two files", at_most=1.1)
    show("merged and extracted", measurement)
    show_bar(measurement, bar, figure="peak_bytes")
    beyond = measurement.median(bar.ours) - measurement.median(bar.peer)
    print(f"\n4 GiB beyond 2 MiB: {beyond:.3f} s (bar 1 s)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
