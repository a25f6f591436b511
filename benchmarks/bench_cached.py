"""Hosts that keep onnxruntime: a start with `load_or_compile` against a cold start of
onnxruntime with the same EP.

It needs onnxruntime-qnn: `.venv-vendors/bin/python benchmarks/bench_cached.py`, after
`make test-vendors`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import epctx_cache.request  # noqa: F401 - imported for both, before the clock runs
import onnxruntime
from epctx_onnxruntime.cached import load_or_compile
from harness import Bar, measure, report, seconds, show

ROOT = Path(__file__).resolve().parent.parent
NETWORKS = ("densenet121", "resnet50", "resnet50_int8", "shufflenet_int8", "vgg19")
OPTIONS = {"soc_model": "60", "htp_arch": "73", "enable_htp_fp16_precision": "1"}
EP = "QNNExecutionProvider"
FATAL_ONLY = 4


def start_cold(model: str, _cache: str) -> None:
    """Start as a program of onnxruntime does: the EP compiles in its process."""
    vendor = import_module("onnxruntime_qnn")
    onnxruntime.register_execution_provider_library(EP, vendor.get_library_path())
    devices = [
        device for device in onnxruntime.get_ep_devices() if device.ep_name == EP
    ]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    backend = {"backend_path": vendor.get_qnn_htp_path()}
    options.add_provider_for_devices(devices[:1], {**OPTIONS, **backend})
    onnxruntime.InferenceSession(model, options)


def start_cached(model: str, cache: str) -> None:
    """Start with `load_or_compile`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = FATAL_ONLY
    load_or_compile(
        model, options, provider=EP, provider_options=OPTIONS, cache_dir=cache
    )


STARTS: dict[str, Callable[[str, str], None]] = {
    "cold": start_cold,
    "cached": start_cached,
}


def main(folder: Path) -> None:
    """Make networks, fill the cache, measure, and print the table."""
    sys.path.insert(0, str(ROOT / "tests"))
    catalog = import_module("support.networks.catalog").Catalog(folder / "networks")
    firsts: dict[str, tuple[str, ...]] = {}
    children: dict[str, tuple[str, ...]] = {}
    bars = []
    for name in NETWORKS:
        model, cache = str(catalog.get(name).path), str(folder / "cache")
        firsts[f"{name}, first start"] = ("cached", model, cache)
        children |= {
            f"{name}, cold start": ("cold", model, cache),
            f"{name}, second start": ("cached", model, cache),
        }
        bars.append(
            Bar(ours=f"{name}, second start", peer=f"{name}, cold start", at_most=0.5)
        )
    show(
        "filling the cache, in a process of the compile's own",
        measure(__file__, firsts, runs=1),
    )
    show(
        "starts on Qualcomm's EP (bar: 0.5)", measure(__file__, children, runs=3), bars
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        how, *arguments = sys.argv[1:]
        report(s=seconds(lambda: STARTS[how](*arguments)))
    elif find_spec("onnxruntime_qnn") is None:
        print("Nothing was measured: onnxruntime-qnn is not installed.")
    else:
        with tempfile.TemporaryDirectory() as made:
            (Path(made) / "networks").mkdir()
            main(Path(made))
