"""The wheels in a fresh environment: each plugin alone beside the core, all together,
and gone without a trace.

Needs what pip is configured to install from, for the libraries that epctx depends on:
without it these tests fail, with pip's own words. `make stress` gives each combination
an environment of its own.
"""

from __future__ import annotations

import pytest
from packaged.checks import (
    EPS,
    USES,
    check_core,
    check_missing,
    check_together,
    check_without,
    work,
)
from packaged.distributions import (
    CACHE,
    COMMANDS,
    CORE,
    FOLDERS,
    ISOLATION,
    SDK,
    Environment,
)
from support.share_models import write_model
from support.sim_eps import PACKAGES, QNN

pytestmark = pytest.mark.internal

DAILY = PACKAGES[QNN]
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


def check_plugin(environment, ep, folder):
    """One plugin beside the core: found, working, and gone afterwards with every file
    of it.
    """
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


def without_caches(files):
    """Leave out bytecode of libraries that Python wrote meanwhile; that of plugins
    counts.
    """
    return {name for name in files if "__pycache__" not in name or "epctx_sim" in name}


def packages_of(environment):
    """Return the names of the packages of epctx that are installed."""
    files = (name.partition(".dist-info/METADATA") for name in environment.files())
    return {
        info.rpartition("/")[2].rpartition("-")[0].replace("_", "-")
        for info, found, _ in files
        if found and "epctx" in info
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory, sources):
    made = Environment(tmp_path_factory.mktemp("environment") / "venv", *sources)
    made.install(CORE)
    check_core(made)
    return made, packages_of(made)


@pytest.fixture
def environment(shared):
    """An environment with the core and the command line, as which it is left."""
    made, first = shared
    yield made
    if more := packages_of(made) - first:
        made.uninstall(*more)
    if not packages_of(made) >= first:
        made.install(*first)


def test_the_core_goes_on_without_the_command_line_and_says_how_to_install_it(
    environment,
):
    before = environment.files()

    environment.uninstall(COMMANDS)

    check_missing(environment, COMMANDS)
    environment.install(COMMANDS)
    assert environment.plugins() == {}
    assert without_caches(environment.files()) == without_caches(before)


def test_isolation_is_missed_by_name_and_works_once_its_package_is_installed(
    environment, tmp_path
):
    environment.install(PACKAGES[QNN])
    model = write_model(QNN, tmp_path / "m.onnx", rows=4)

    environment.uninstall(ISOLATION)
    before = environment.python(USE_OF_ISOLATION, model)
    environment.install(ISOLATION)
    after = environment.python(USE_OF_ISOLATION, model)
    environment.uninstall(PACKAGES[QNN], SDK)

    assert before == "PackageMissing pip install epctx-isolation\n"
    assert after == f"['{QNN}']\n"


def test_the_cache_installs_alone_works_and_leaves_nothing_behind(
    environment, tmp_path
):
    model, before = (
        write_model(EPS[0], tmp_path / "m.onnx", rows=4),
        environment.files(),
    )
    environment.install(CACHE)

    said = environment.python(USE_OF_CACHE, model)
    environment.uninstall(CACHE)

    assert said == "model_ctx.onnx\n" * 2
    assert (
        environment.python(USE_OF_CACHE) == "PackageMissing pip install epctx-cache\n"
    )
    assert [
        name for name in environment.files() - before if "epctx_cache" in name
    ] == []


@pytest.mark.parametrize("ep", EPS)
def test_each_plugin_installs_alone_works_and_leaves_nothing_behind(
    environment, ep, tmp_path
):
    check_plugin(environment, ep, tmp_path / "work")


def test_one_extra_installs_every_package(environment, tmp_path):
    check_together(environment, tmp_path / "work")


@pytest.mark.parametrize(
    "package",
    [
        name if name == DAILY else pytest.param(name, marks=pytest.mark.stress)
        for name in sorted({COMMANDS, *USES})
    ],
)
def test_a_package_that_is_removed_is_named_where_it_is_missed_and_the_rest_works(
    environment, package
):
    environment.install(f"{CORE}[all]")

    check_without(environment, package)


def test_the_removal_of_every_package_is_checked():
    # Nobody misses epctx-openvino where the simulated EP of its name is installed, and
    # the container of its binaries only with OpenVINO or onnxruntime's EP for it.
    of_openvino = {"epctx-openvino", "epctx-native-formats"}
    # Nothing here asks for it: it is for programs that use onnxruntime.
    of_hosts = {"onnxruntime-ep-epctx"}
    assert {COMMANDS, *USES} == set(FOLDERS) - {CORE} - of_openvino - of_hosts


def test_removing_the_core_leaves_nothing_of_it(environment):
    environment.install(*FOLDERS)

    environment.uninstall(*FOLDERS)

    assert [name for name in environment.files() if "epctx" in name] == []


@pytest.mark.stress
@pytest.mark.parametrize("extra", ["", "[ort]", "[cli]", "[ort,cli]"])
@pytest.mark.parametrize("ep", [*EPS, "together"])
def test_each_combination_in_an_environment_of_its_own(tmp_path, sources, ep, extra):
    environment = Environment(tmp_path / "venv", *sources)
    environment.install(f"{CORE}{extra}")

    check_core(environment, extra)
    if ep == "together":
        check_together(environment, tmp_path / "work")
    else:
        check_plugin(environment, ep, tmp_path / "work")
