"""Checks of an environment that has only installed packages, for its tests and for
`make release`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from packaged.distributions import (
    BATCH,
    BENCH,
    BLOBS,
    CACHE,
    COMMANDS,
    CORE,
    ENGINE,
    FILES,
    GENAI,
    ISOLATION,
    KERNELS,
    KIT,
    REPORT,
    SDK,
    Environment,
)
from support.share_models import example, write_model
from support.sim_eps import OPENVINO, PACKAGES, QNN

EPS: Final = sorted(PACKAGES)
FLOAT_EPS: Final = (OPENVINO, QNN)
"""EPs that take the program's model, which is not quantised."""

_SMOKE: Final = Path(__file__).with_name("smoke.py").read_text("utf-8")
_USE: Final = """
import sys, onnx
import epctx_core as epctx
model = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }'
).SerializeToString()
options = epctx.SessionOptions()
try:
    exec(sys.argv[1])
except epctx.EpctxError as error:
    print(type(error).__name__, error.message, error.hint)
"""


def _use_of_command(module: str) -> str:
    """Import a command as `epctx` does."""
    return (
        "from epctx_core.ext import import_installed; "
        f"import_installed({module!r}, needed_by='a command')"
    )


def _use_of_ep(ep: str) -> str:
    return f"options.add_provider({ep!r}); epctx.InferenceSession(model, options)"


USES: Final[Mapping[str, tuple[str, str]]] = {
    KIT: (
        "from epctx_core.testing import check_provider",
        "pip install epctx-conformance",
    ),
    BLOBS: (
        "from epctx_core.plugin import Blobs, write_blobs",
        "pip install epctx-blobs",
    ),
    KERNELS: (
        "from epctx_core.plugin import KernelRegistry",
        "pip install epctx-kernels",
    ),
    CACHE: ("epctx.load_or_compile", "pip install epctx-cache"),
    FILES: ("epctx.seal_model", "pip install epctx-files"),
    GENAI: (_use_of_command("epctx_genai.configuration"), "pip install epctx-genai"),
    REPORT: (_use_of_command("epctx_report.report"), "pip install epctx-report"),
    BATCH: (_use_of_command("epctx_batch.batch"), "pip install epctx-batch"),
    BENCH: (
        "options.enable_profiling = True; epctx.InferenceSession(model, options)",
        "pip install epctx-bench",
    ),
    ENGINE: (
        (
            "import logging; logging.basicConfig(stream=sys.stdout); "
            "epctx.InferenceSession(model)"
        ),
        "pip install 'epctx-core[ort]'",
    ),
    ISOLATION: (
        f"options.add_session_config_entry('ep.isolate', 'all'); {_use_of_ep(QNN)}",
        "pip install epctx-isolation",
    ),
    SDK: (_use_of_ep(QNN), "No module named 'epctx_sim_sdk'"),
    **{
        package: (_use_of_ep(ep), f"pip install {package}")
        for ep, package in PACKAGES.items()
    },
}
"""By package other than the commands, a use of it and what is said where it is
missing.
"""


def said_without(environment: Environment, package: str) -> str:
    """Use what a package brings; return what is said."""
    if package == COMMANDS:
        return environment.run("epctx", "--help", code=3)
    return environment.python(_USE, USES[package][0])


def check_missing(environment: Environment, package: str) -> None:
    """A package that is not installed is named where it is used, with the way to have
    it.
    """
    sentence = (
        "pip install 'epctx-core[cli]'" if package == COMMANDS else USES[package][1]
    )
    assert sentence in said_without(environment, package)


def check_smoke(environment: Environment, *without: str) -> None:
    """A small model is compiled, loaded and run by an EP of the program's own and by
    those that are installed.

    Args:
        environment: with the core.
        without: packages that are missing; where none is named, all are there.
    """
    eps = [ep for ep in FLOAT_EPS if SDK not in without and PACKAGES[ep] not in without]
    assert environment.python(_SMOKE, *eps) == "smoke passed\n"


def check_core(environment: Environment, extra: str = "") -> None:
    """The core without plugins: it works, and says of each missing package how to
    install it.
    """
    brought = {COMMANDS} if "cli" in extra else set()
    brought |= {BLOBS} if "ort" in extra else set()
    missing = {BLOBS, COMMANDS, KIT, CACHE, *PACKAGES.values()} - brought
    for package in missing:
        check_missing(environment, package)
    check_smoke(environment, SDK)
    environment.install(COMMANDS)
    assert environment.plugins() == {}
    assert environment.run("epctx", "docs", "errors").startswith("# Errors\n")
    assert environment.python(
        "import epctx_core; print(epctx_core.get_available_providers())"
    ) == ("['CPUExecutionProvider']\n")
    assert "No broken requirements found" in environment.pip("check")


def check_together(environment: Environment, folder: Path) -> None:
    """All packages at once."""
    environment.install(f"{CORE}[all]")

    assert environment.plugins() == PACKAGES
    assert "compile" in environment.run("epctx", "--help")
    for package in USES:
        assert said_without(environment, package) == ""
    check_smoke(environment)
    assert work(environment, folder, *EPS)
    assert "No broken requirements found" in environment.pip("check")


def check_without(environment: Environment, package: str) -> None:
    """All packages but one: what is missing is named, the rest works."""
    environment.uninstall(package)

    check_missing(environment, package)
    check_smoke(environment, package)
    if package != COMMANDS:
        left = {ep: name for ep, name in PACKAGES.items() if name != package}
        assert environment.plugins() == left
    needs_qnn = {ISOLATION} if package in {SDK, PACKAGES[QNN]} else set()
    for other in {BLOBS, CACHE, ISOLATION, KIT} - {package} - needs_qnn:
        assert said_without(environment, other) == ""
    environment.install(package)


def work(environment: Environment, folder: Path, *eps: str) -> set[str]:
    """Compile, look at, verify and run a model with what is installed; return who took
    nodes of it.
    """
    folder.mkdir()
    model = write_model(eps[0], folder / "m.onnx", rows=4)
    # Without onnxruntime, `onnx.reference` computes; it has quantised operators from
    # this version on.
    proto = onnx.load(model)
    proto.opset_import[0].version, proto.ir_version = 21, 10
    onnx.save(proto, model)
    np.savez(folder / "in.npz", **example(4))
    asked = [part for ep in eps for part in ("--ep", ep)]
    compiled = environment.epctx("compile", model, *asked, "-o", folder / "m_ctx.onnx")
    near = ("--rtol", "1e-2", "--atol", "1e-2")
    compared = environment.epctx(
        "compare", folder / "m_ctx.onnx", model, "--input", folder / "in.npz", *near
    )
    assert compared["equal"]
    assert environment.epctx("verify", folder / "m_ctx.onnx")["ok"]
    return {partition["ep"] for partition in compiled["partitions"]}
