"""The wheels in a fresh environment: each plugin alone beside the core, all together, and gone without a trace.

Needs what pip is configured to install from, for the libraries that epctx depends on: without it these tests fail,
with pip's own words. `make stress` gives each combination an environment of its own.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from end_to_end.share_models import example, write_model
from end_to_end.sim_eps import PACKAGES, QNN
from packaged.distributions import CACHE, COMMANDS, CORE, FOLDERS, ISOLATION, SDK, Environment

EPS = sorted(PACKAGES)
USE_OF_KIT = """
try:
    from epctx_core.testing import check_provider
except ImportError as error:
    print(type(error).__name__, error.hint)
else:
    print(check_provider.__module__)
"""
USE_OF_COMMANDS = """
import subprocess, sys
done = subprocess.run([sys.executable, "-m", "epctx_core", "plugins", "list"], capture_output=True, text=True)
print(done.returncode, done.stderr.splitlines()[-1].strip())
"""
USE_OF_ISOLATION = """
import sys
import epctx_core as epctx
options = epctx.SessionOptions()
options.add_provider("QNN")
options.add_session_config_entry("ep.isolate", "compile")
try:
    report = epctx.ModelCompiler(options, sys.argv[1]).compile_to_file()
except ImportError as error:
    print(type(error).__name__, error.hint)
else:
    print([partition.ep for partition in report.partitions])
"""


USE_OF_CACHE = """
import sys, epctx_core as epctx
try:
    epctx.load_or_compile
except ImportError as error:
    print(type(error).__name__, error.hint)
else:
    for _ in range(2):
        print(epctx.compile_cached(sys.argv[1], cache_dir="cache").name)
"""


def work(environment, folder, *eps):
    """Compile, look at, verify and run a model with what is installed; return who took nodes of it."""
    folder.mkdir()
    model = write_model(eps[0], folder / "m.onnx", rows=4)
    # Without onnxruntime, `onnx.reference` computes; it has quantised operators from this version on.
    proto = onnx.load(model)
    proto.opset_import[0].version, proto.ir_version = 21, 10
    onnx.save(proto, model)
    np.savez(folder / "in.npz", **example(4))
    asked = [part for ep in eps for part in ("--ep", ep)]
    compiled = environment.epctx("compile", model, *asked, "-o", folder / "m_ctx.onnx")
    compared = environment.epctx(
        "compare",
        folder / "m_ctx.onnx",
        model,
        "--input",
        folder / "in.npz",
        "--rtol",
        "1e-2",
        "--atol",
        "1e-2",
    )
    assert compared["equal"]
    assert environment.epctx("verify", folder / "m_ctx.onnx")["ok"]
    return {partition["ep"] for partition in compiled["partitions"]}


def check_core(environment, extra=""):
    """The core without plugins: it is there, and without the command line or the kit it says what to install."""
    if "cli" not in extra:
        assert environment.python(USE_OF_COMMANDS) == "3 pip install 'epctx-core[cli]'\n"
        environment.install(COMMANDS)
    assert environment.plugins() == {}
    assert environment.python("import epctx_core; print(epctx_core.get_available_providers())") == (
        "['CPUExecutionProvider']\n"
    )
    assert environment.python(USE_OF_KIT) == "PackageMissing pip install epctx-conformance\n"
    assert environment.python(USE_OF_CACHE) == "PackageMissing pip install epctx-cache\n"
    assert "No broken requirements found" in environment.pip("check")


def check_plugin(environment, ep, folder):
    """One plugin beside the core: found, working, and gone afterwards with every file of it."""
    before = environment.files()

    environment.install(PACKAGES[ep])
    brought = environment.plugins()
    takers = work(environment, folder, ep)
    problems = environment.pip("check")
    environment.uninstall(PACKAGES[ep], SDK)

    assert brought == {ep: PACKAGES[ep]}
    assert takers == {ep}
    assert "No broken requirements found" in problems
    assert environment.plugins() == {}
    assert without_caches(environment.files()) == without_caches(before)


def check_together(environment, folder):
    """All plugins at once."""
    environment.install(*FOLDERS)

    assert environment.plugins() == PACKAGES
    assert work(environment, folder, *EPS)
    assert "No broken requirements found" in environment.pip("check")


def without_caches(files):
    """Leave out bytecode of libraries that Python wrote meanwhile; that of plugins counts."""
    return {name for name in files if "__pycache__" not in name or "epctx_sim" in name}


@pytest.fixture(scope="module")
def environment(tmp_path_factory, wheels):
    """An environment with the core and the command line."""
    made = Environment(tmp_path_factory.mktemp("environment") / "venv", wheels[CORE].parent)
    made.install(CORE)
    check_core(made)
    return made


def test_the_core_goes_on_without_the_command_line_and_says_how_to_install_it(environment):
    before = environment.files()

    environment.uninstall(COMMANDS)

    check_core(environment)
    assert without_caches(environment.files()) == without_caches(before)


def test_isolation_is_missed_by_name_and_works_once_its_package_is_installed(environment, tmp_path):
    environment.install(PACKAGES[QNN])
    model = write_model(QNN, tmp_path / "m.onnx", rows=4)

    before = environment.python(USE_OF_ISOLATION, model)
    environment.install(ISOLATION)
    after = environment.python(USE_OF_ISOLATION, model)
    environment.uninstall(ISOLATION, PACKAGES[QNN], SDK)

    assert before == "PackageMissing pip install epctx-isolation\n"
    assert after == f"['{QNN}']\n"


def test_the_cache_installs_alone_works_and_leaves_nothing_behind(environment, tmp_path):
    model, before = write_model(EPS[0], tmp_path / "m.onnx", rows=4), environment.files()
    environment.install(CACHE)

    said = environment.python(USE_OF_CACHE, model)
    environment.uninstall(CACHE)

    assert said == "model_ctx.onnx\n" * 2
    assert environment.python(USE_OF_CACHE) == "PackageMissing pip install epctx-cache\n"
    assert [name for name in environment.files() - before if "epctx_cache" in name] == []


@pytest.mark.parametrize("ep", EPS)
def test_each_plugin_installs_alone_works_and_leaves_nothing_behind(environment, ep, tmp_path):
    check_plugin(environment, ep, tmp_path / "work")


def test_all_plugins_install_together_and_again_after_they_were_removed(environment, tmp_path):
    check_together(environment, tmp_path / "work")


def test_removing_the_core_leaves_nothing_of_it(environment):
    environment.install(*FOLDERS)

    environment.uninstall(*FOLDERS)

    assert [name for name in environment.files() if "epctx" in name] == []


@pytest.mark.stress
@pytest.mark.parametrize("extra", ["", "[ort]", "[cli]", "[ort,cli]"])
@pytest.mark.parametrize("ep", [*EPS, "together"])
def test_each_combination_in_an_environment_of_its_own(tmp_path, wheels, ep, extra):
    environment = Environment(tmp_path / "venv", wheels[CORE].parent)
    environment.install(f"{CORE}{extra}")

    check_core(environment, extra)
    if ep == "together":
        check_together(environment, tmp_path / "work")
    else:
        check_plugin(environment, ep, tmp_path / "work")
