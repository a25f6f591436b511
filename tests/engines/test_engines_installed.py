"""Choice of a session's engine: by installation, by the host, and in place of one that
is broken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import onnx
import onnxruntime
import pytest
from onnx import parser
from support.install_commands import pip_install
from support.installed import install_distribution
from support.models_for_engines import WITHOUT_ONNXRUNTIME

SOURCE = """
import json, logging, sys
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
# It warns that the EP takes no node, which is right.
logging.getLogger("epctx.session").setLevel(logging.ERROR)
import numpy as np
import epctx_core as epctx
from epctx_core.plugin import ExecutionProvider, hookimpl
names = []
class Asking(ExecutionProvider):
    name = "AskingExecutionProvider"
    def __init__(self, context):
        super().__init__(context)
        names.append(context.engine.name)
    @hookimpl
    def get_capability(self, graph):
        return []
    @hookimpl
    def compile(self, partitions):
        return []
registry = epctx.Registry(entry_points=False)
registry.register(Asking)
def session(engine=""):
    options = epctx.SessionOptions()
    options.add_session_config_entry("session.engine", engine)
    return epctx.InferenceSession(sys.argv[1], options, providers=["Asking"], registry=registry)
"""
RUN = """
for engine in sys.argv[2:] or [""]:
    with session(engine) as made:
        assert made.run(None, {"x": np.array([1, -2], np.float32)})[0].tolist() == [-1.0, 2.0]
print(json.dumps(names))
"""
ENGINE = """
from onnx.reference import ReferenceEvaluator
from epctx_core.plugin import BaseEngine
class Acme(BaseEngine):
    name = "acme 7.5"
    def prepare(self, model, weights=None, *, heavy=None):
        return Prepared(ReferenceEvaluator(model))
class Prepared:
    def __init__(self, evaluator):
        self.evaluator = evaluator
    def run(self, inputs, outputs=None):
        return self.evaluator.run(None, dict(zip(self.evaluator.input_names, inputs)))
thing = 3
class Abstract(BaseEngine):
    name = "abstract 1"
class Nameless(BaseEngine):
    prepare = Acme.prepare
class Unlicensed(Acme):
    def __init__(self, policy):
        raise OSError("no licence")
class Stumbling(Acme):
    def prepare(self, model, weights=None, *, heavy=None):
        raise ValueError("not this one")
class Untyped(Acme):
    @classmethod
    def resolve_types(cls, inferred):
        raise ValueError("not this one")
class Unoptimised(Acme):
    optimizes = True
    def pays_to_optimize(self, model):
        raise ValueError("not this one")
    @classmethod
    def optimize_model(cls, model, weights, level, **how):
        raise ValueError("not this one")
"""
ALL_TAKEN = """
import sys
import numpy as np
import epctx_core as epctx
from epctx_core.plugin import CompiledPartition, ComputeCapability, ExecutionProvider, hookimpl
class Taking(ExecutionProvider):
    name = "TakingExecutionProvider"
    @hookimpl
    def get_capability(self, graph):
        return [ComputeCapability(graph.nodes)]
    @hookimpl
    def compile(self, partitions):
        return [CompiledPartition(lambda inputs, outputs=None: [-inputs[0]]) for _ in partitions]
registry = epctx.Registry(entry_points=False)
registry.register(Taking)
with epctx.InferenceSession(sys.argv[1], providers=["Taking"], registry=registry) as made:
    made.run(None, {"x": np.array([1, -2], np.float32)})
assert {"onnxruntime", "epctx_onnxruntime", "onnx.reference"}.isdisjoint(sys.modules)
"""
NEG = (
    '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = '
    "Neg(x) }"
)
ORT, REFERENCE = (
    f"onnxruntime {onnxruntime.__version__}",
    f"onnx.reference {onnx.__version__}",
)


@pytest.fixture
def packages(tmp_path):
    """A folder on the path, as pip fills one: the module of an engine and its
    distribution.
    """

    def install(distribution, **entries):
        site = tmp_path / "site"
        groups = {"epctx.engines": entries}
        install_distribution(site, distribution, groups, version="1.2")
        (site / "acme_engine.py").write_text(ENGINE)
        (site / "acme_wrong.py").write_text("import no_such_library\n")

    return install


@pytest.fixture
def asked(tmp_path):
    """Runs a program in a fresh process; gives the engines' names that EPs saw, and
    what the log says.
    """
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(NEG).SerializeToString())

    def run(*engines, begins="", **environment):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                begins + SOURCE + RUN,
                tmp_path / "m.onnx",
                *engines,
            ],
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        return (json.loads(done.stdout) if done.returncode == 0 else None), done.stderr

    return run


def warnings(log):
    return [line for line in log.splitlines() if line.startswith("WARNING")]


def test_the_engine_of_epctx_onnxruntime_is_used_where_it_is_installed(asked):
    assert asked() == ([ORT], "")


def test_another_engine_is_used_only_where_the_host_names_it(packages, asked):
    packages("acme-engine", acme="acme_engine:Acme")

    assert asked()[0] == [ORT]
    assert asked("acme")[0] == ["acme 7.5"]
    assert asked(EPCTX_ENGINE="acme")[0] == ["acme 7.5"]


def test_the_option_goes_before_the_environment(packages, asked):
    packages("acme-engine", acme="acme_engine:Acme")

    names, log = asked("", "onnxruntime", "onnx.reference", EPCTX_ENGINE="acme")

    assert names == ["acme 7.5", ORT, REFERENCE]
    assert warnings(log) == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("acme_wrong:Acme", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("acme_engine:Other", "AttributeError"),
        (
            "acme_engine:thing",
            "acme_engine:thing is not a subclass of epctx_core.plugin.BaseEngine",
        ),
        (
            "acme_engine:Abstract",
            "TypeError: Can't instantiate abstract class Abstract",
        ),
        (
            "acme_engine:Nameless",
            "AttributeError: type object 'Nameless' has no attribute 'name'",
        ),
        ("acme_engine:Unlicensed", "OSError: no licence"),
    ],
)
def test_a_broken_engine_is_named_once_with_its_distribution_and_the_reference_is_used(
    packages, asked, value, why
):
    packages("acme-engine", acme=value)

    names, log = asked("acme", "acme")

    assert names == [REFERENCE, REFERENCE]
    (broken,) = [line for line in warnings(log) if "is broken" in line]
    assert broken.startswith(
        "WARNING the engine 'acme' of acme-engine 1.2 is broken, so onnx.reference is "
        "used: "
    )
    assert why in broken


@pytest.mark.parametrize("engine", ["Stumbling", "Unoptimised", "Untyped"])
def test_an_engine_that_fails_with_a_model_is_named_as_the_fault_with_its_distribution(
    packages, asked, engine, tmp_path
):
    packages("acme-engine", acme=f"acme_engine:{engine}")
    if engine == "Untyped":
        # Only operators that onnx does not know have their types from an engine.
        gelu = NEG.replace("17]", '17, "com.microsoft": 1]').replace(
            "Neg", "com.microsoft.Gelu"
        )
        (tmp_path / "m.onnx").write_bytes(parser.parse_model(gelu).SerializeToString())

    names, log = asked("acme")

    assert names is None
    assert (
        "PluginError: the engine 'acme' of acme-engine 1.2 failed: ValueError: "
        "not this one."
    ) in log


def test_onnxruntime_that_does_not_import_is_a_broken_engine(asked):
    names, log = asked(begins="import sys; sys.modules['onnxruntime'] = None\n")

    assert names == [REFERENCE]
    assert (
        "the engine 'onnxruntime' of epctx-onnxruntime 0.1.0 is broken"
        in warnings(log)[0]
    )


@pytest.mark.parametrize("name", ["acme", "onnxruntime"])
def test_an_engine_that_is_named_and_not_installed_is_an_error_with_what_to_install(
    asked, name
):
    names, log = asked(
        name, begins=WITHOUT_ONNXRUNTIME if name == "onnxruntime" else ""
    )

    assert names is None
    said = log.splitlines()
    assert said[-2] == (
        f"epctx_core.errors.PackageMissing: the engine {name!r}, named by "
        "session.engine, is not installed."
    )
    assert (
        pip_install("epctx-onnxruntime[cpu]")
        if name == "onnxruntime"
        else "Installed are: onnxruntime"
    ) in said[-1]


def test_the_environments_engine_that_is_not_installed_is_an_error_that_names_the_variable(
    asked,
):
    names, log = asked(EPCTX_ENGINE="acme")

    assert names is None
    assert (
        "PackageMissing: the engine 'acme', named by EPCTX_ENGINE, is not installed."
        in log
    )


def test_a_misspelt_engine_is_suggested_and_an_error_also_where_no_node_needs_one(
    packages, asked, tmp_path
):
    packages("acme-engine", acme="acme_engine:Acme")

    assert (
        "named by session.engine, is not installed. Did you mean 'acme'?"
        in asked("acmee")[1]
    )
    done = subprocess.run(
        [sys.executable, "-c", ALL_TAKEN, tmp_path / "m.onnx"],
        env={**os.environ, "EPCTX_ENGINE": "onxruntime"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (
        "'onxruntime', named by EPCTX_ENGINE, is not installed. Did you mean "
        "'onnxruntime'?"
    ) in done.stderr


def test_each_session_on_the_reference_says_once_that_it_is_slow(asked):
    names, log = asked("", "", begins=WITHOUT_ONNXRUNTIME)

    assert names == [REFERENCE, REFERENCE]
    words = (
        "which is slow and does not have all operators; onnxruntime's kernels are faster: "
        f"{pip_install('epctx-onnxruntime[cpu]')}"
    )
    assert (
        warnings(log)
        == [f"WARNING nodes of this session run on {REFERENCE}, {words}"] * 2
    )


def test_a_broken_engine_is_not_advised_again(asked):
    _, log = asked(begins="import sys; sys.modules['onnxruntime'] = None\n")

    assert "epctx-onnxruntime is broken" in log.replace(" 0.1.0", "")
    assert "kernels are faster" not in log


def test_of_two_packages_with_an_engine_of_one_name_the_host_names_one(packages, asked):
    packages("acme-engine", acme="acme_engine:Acme")
    packages("other-engine", acme="acme_engine:Acme")

    names, log = asked("acme")

    assert names is None
    assert "'acme' is ambiguous: acme-engine and other-engine have it" in log
    assert asked("other-engine:acme")[0] == ["acme 7.5"]


def test_a_host_that_names_the_reference_is_told_without_a_warning(asked):
    names, log = asked("onnx.reference")

    assert names == [REFERENCE]
    assert warnings(log) == []
    assert (
        log.count(f"INFO nodes of this session run on {REFERENCE}, which is slow") == 1
    )


def test_a_session_that_runs_no_node_on_an_engine_imports_none(tmp_path):
    (tmp_path / "m.onnx").write_bytes(parser.parse_model(NEG).SerializeToString())

    subprocess.run(
        [sys.executable, "-c", ALL_TAKEN, tmp_path / "m.onnx"], check=True, timeout=100
    )


def test_an_engine_that_cannot_be_read_from_its_metadata_disturbs_no_other(
    packages, asked, tmp_path
):
    packages("acme-engine", acme="acme_engine:Acme")
    packages("broken-engine")
    (
        tmp_path / "site" / "broken_engine-1.2.dist-info" / "entry_points.txt"
    ).write_bytes(b"[epctx.engines]\n\xff")

    assert asked("acme")[0] == ["acme 7.5"]
