"""Fixtures for every test: real networks with inputs and reference results; and an eye
on all that is written.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Protocol

import pytest
from hypothesis import HealthCheck, settings
from support.networks.catalog import Catalog, Network
from support.networks.matrix import Compile, Matrix
from support.written_models import Observer, paths_of_this_machine

from epctx_core.context import digests
from epctx_core.verify import subject

FOLDER_VARIABLE = "EPCTX_RECEIPTS"
UNRESOLVED, UNOBSERVED = "not_for_onnxruntime", "unobserved"
_restore = pytest.MonkeyPatch()
_running: list[pytest.Item] = []

# No test goes by how fast the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that draws a sample of the suite."""
    parser.addoption(
        "--drawn", type=int, metavar="N", help="run N tests only, always the same ones"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave the tests that `--drawn` asks for; each worker draws the same."""
    count = config.getoption("drawn", None)
    if count is not None and count < len(items):
        drawn = set(random.Random(count).sample(range(len(items)), count))  # noqa: S311
        left_out = [item for at, item in enumerate(items) if at not in drawn]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for at, item in enumerate(items) if at in drawn]


def pytest_configure(config: pytest.Config) -> None:
    """Hold whatever the suite writes against `written_models`, tests of plugins and
    wider fixtures included.
    """
    # Children and workers have it from here.
    if FOLDER_VARIABLE not in os.environ:
        _restore.setenv(FOLDER_VARIABLE, tempfile.mkdtemp(prefix="receipts-"))
        config.add_cleanup(
            partial(shutil.rmtree, os.environ[FOLDER_VARIABLE], ignore_errors=True)
        )
    # `epctx bench` refuses to measure without byte code.
    _restore.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    _restore.setattr(sys, "dont_write_bytecode", False)
    has_onnxruntime = find_spec("onnxruntime") is not None

    def is_marked(mark: str) -> bool:
        return any(item.get_closest_marker(mark) for item in _running)

    Observer(
        paths_of_this_machine(config.option.basetemp),
        looks=lambda: not is_marked(UNOBSERVED),
        resolves=lambda: has_onnxruntime and not is_marked(UNRESOLVED),
    ).watch(_restore)
    # A verification starts a process for each model that this machine meets first, and
    # the suite makes thousands. The tests of epctx-isolation have real ones.
    _restore.setattr(subject, "_require_survival", lambda *_: None)
    # No test cuts the power, and tests of the order of calls put theirs around this
    # one; a slow disk costs nothing.
    _restore.setattr(os, "fsync", lambda descriptor: os.fstat(descriptor) and None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test runs; fixtures count as the first test that uses them."""
    _running[:] = [item]


def pytest_unconfigure() -> None:
    """Leave the core as it was."""
    _restore.undo()


class NetworkFactory(Protocol):
    """`network("bert")` gives a fresh copy; `seed=1` gives it with other inputs."""

    def __call__(self, name: str, *, seed: int = 0) -> Network:
        """Return a network as a test's own copy."""


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> NetworkFactory:
    """Make networks: bert, lstm, resnet as exported, or any light network of the onnx
    package, filled.
    """
    return Catalog(tmp_path_factory.mktemp("networks")).get


@pytest.fixture(scope="session")
def compiled(
    network: NetworkFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compile]:
    """Give networks that EPs compiled, each combination compiled once: see
    `networks.matrix`.
    """
    matrix = Matrix(network, tmp_path_factory.mktemp("matrix"))
    yield matrix.compiled
    matrix.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let Ctrl-C reach this process and those it starts: a shell has what it runs in
    the background ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def settle_after(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[float | None], float]:
    """Set the seconds without a change after which a load leaves a receipt of a file;
    None is the core's own time. Return the seconds.
    """
    real = digests.SETTLED_NS / 1e9

    def settle(seconds: float | None) -> float:
        chosen = real if seconds is None else seconds
        monkeypatch.setattr(digests, "SETTLED_NS", int(chosen * 1e9))
        return chosen

    return settle


@pytest.fixture
def no_temporary_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Count as left behind whatever a failure leaves in the system's temporary
    folder.
    """
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []
