"""The kit needs the core alone; only its command needs epctx-cli."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys

import epctx_conformance
import pytest

pytestmark = pytest.mark.internal

COMMAND = "epctx_conformance.command"
"""Module that epctx-cli imports."""
MISSING = ("epctx_onnxruntime", "epctx_cli")
CHECK = """
from epctx_conformance import check_provider
from epctx_sim_qnn import QnnProvider

# The last two are checks in other processes.
chosen = [
    "signatures",
    "contexts",
    "it_refuses_a_truncated_payload",
    "importing_the_ep_does_not_change_the_process",
]
report = check_provider(QnnProvider, only=chosen)
print(report.text())
assert report.ok
"""


@pytest.fixture
def alone(tmp_path):
    """Run a program where the command line and onnxruntime's EPs are missing, in the
    processes that it starts, too.
    """
    for name in MISSING:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            f"raise ModuleNotFoundError('No module named {name}', name={name!r})"
        )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])

    def run(program):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.folder = tmp_path
    return run


def test_every_module_but_the_command_is_imported_without_the_command_line(alone):
    found = pkgutil.walk_packages(epctx_conformance.__path__, "epctx_conformance.")
    modules = sorted({module.name for module in found} - {COMMAND})

    said = alone(
        "from importlib import import_module\n"
        f"for name in {modules}:\n    import_module(name)\nprint('imported')"
    )

    assert len(modules) > 25
    assert said == "imported\n"


def test_an_ep_is_checked_without_the_command_line(alone):
    assert ", 0 failed, " in alone(CHECK)
