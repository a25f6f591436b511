"""The compile cache: a hit against a compile and against loading the context model, and
what a hit reads.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench_share import with_qnn
from bench_weights import make_matmuls
from harness import DATA, Bar, measure, report, resident_memory, seconds, show

CACHE = DATA / "cache"
LOADS = 20


def bytes_read() -> int:
    """Return the bytes that this process has asked the system for, from memory or
    disk.
    """
    line = next(
        li
        for li in Path("/proc/self/io").read_text().splitlines()
        if li.startswith("rchar")
    )
    return int(line.split()[1])


def rested(mib: int) -> Path:
    """Return a model whose files were not touched within the last two seconds, so that
    the index trusts them.
    """
    path = make_matmuls(mib)
    changed = max(file.stat().st_ctime for file in (path, path.with_suffix(".weights")))
    time.sleep(max(0.0, changed + 2.1 - time.time()))
    return path


def warm_up() -> None:
    """Import what both ways import: compile and load the smallest network, without the
    index.
    """
    import epctx_core as epctx

    for _ in range(2):
        epctx.load_or_compile(make_matmuls(1), with_qnn(), CACHE / "small").close()


def compiling(mib: str) -> None:
    """Fill an empty cache."""
    import epctx_core as epctx

    model = rested(int(mib))
    warm_up()
    shutil.rmtree(CACHE / mib, ignore_errors=True)
    os.sync()
    report(s=seconds(lambda: epctx.compile_cached(model, with_qnn(), CACHE / mib)))


def hitting(mib: str, trust: str = "1") -> None:
    """Load from a full cache."""
    import epctx_core as epctx

    model, options = rested(int(mib)), with_qnn()
    epctx.compile_cached(model, options, CACHE / mib)
    warm_up()
    _measure(
        lambda: epctx.load_or_compile(
            model, options, CACHE / mib, trust_stat=trust == "1"
        ).close()
    )


def loading(mib: str) -> None:
    """Load the same context model by its path."""
    import epctx_core as epctx

    model, options = rested(int(mib)), with_qnn()
    path = epctx.compile_cached(model, options, CACHE / mib)
    warm_up()
    _measure(lambda: epctx.InferenceSession(path, options).close())


def _measure(load: Callable[[], None]) -> None:
    load()
    read, faults, resident = (
        bytes_read(),
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        resident_memory(),
    )
    start = time.perf_counter()
    for _ in range(LOADS):
        load()
    report(
        s=(time.perf_counter() - start) / LOADS,
        read_bytes=(bytes_read() - read) / LOADS,
        faults=(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults) / LOADS,
        more_resident_bytes=resident_memory() - resident,
    )


def main() -> None:
    """Compare the ways to a session."""
    big = measure(
        __file__,
        {
            "compile into the cache": ["compiling", "1024"],
            "hit": ["hitting", "1024"],
            "context model by its path": ["loading", "1024"],
        },
    )
    show(
        "1 GiB of external weights",
        big,
        [
            Bar(ours="hit", peer="context model by its path", at_most=1.5),
            Bar(ours="hit", peer="compile into the cache", at_most=0.05),
        ],
    )
    show(
        "the same, reading everything again",
        measure(__file__, {"hit": ["hitting", "1024", "0"]}, runs=1),
    )
    small = measure(
        __file__,
        {"hit": ["hitting", "1"], "context model by its path": ["loading", "1"]},
    )
    show(
        "1 MiB", small, [Bar(ours="hit", peer="context model by its path", at_most=1.5)]
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"compiling": compiling, "hitting": hitting, "loading": loading}[sys.argv[1]](
            *sys.argv[2:]
        )
    else:
        main()
