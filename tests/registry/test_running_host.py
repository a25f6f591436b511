"""A host that runs on while packages are installed, upgraded and removed under it: real
wheels, a real process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import pytest

CODE = """
import numpy as np
from epctx_core.plugin import CompiledPartition, ExecutionProvider, hookimpl, supported_partitions

class Provider(ExecutionProvider):
    name = "LateExecutionProvider"
    vendor = "Late {version}"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        return [CompiledPartition(lambda inputs, outputs=None: [np.maximum(inputs[0], 0)]) for _ in partitions]
"""
HOST = """
import json, shutil, sys, zipfile
import epctx_core as epctx
import numpy as np
from onnx import parser

site, *wheels = sys.argv[1:]
model = parser.parse_model('<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Relu(x) }')
said, sessions = {}, []

def look(when):
    epctx.refresh_plugins()
    record = next((r for r in epctx.plugins() if r.name == "LateExecutionProvider"), None)
    said[when] = record and {"state": record.state.value, "version": record.version, "vendor": record.vendor,
                             "reason": record.reason, "available": record.name in epctx.get_available_providers()}

def use():
    session = epctx.InferenceSession(model.SerializeToString(), providers=["Late"])
    sessions.append(session)
    return run()

def run():
    return [s.run(None, {"x": np.array([-1, 2], np.float32)})[0].tolist() for s in sessions]

def install(wheel):
    for old in (f for f in __import__("pathlib").Path(site).glob("epctx_late*")):
        shutil.rmtree(old)
    if wheel:
        zipfile.ZipFile(wheel).extractall(site)

look("before")
install(wheels[0]); look("installed"); said["used"] = use(); look("loaded")
install(wheels[1]); look("upgraded"); said["used after upgrade"] = use()
install(None); look("removed"); said["old sessions"] = run()
try:
    use()
except epctx.PluginError as error:
    said["error"] = str(error)
install(wheels[0]); look("back"); said["used when back"] = use()
print(json.dumps(said))
"""


def wheel(folder, version):
    path = folder / f"epctx_late-{version}-py3-none-any.whl"
    info = f"epctx_late-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("epctx_late/__init__.py", CODE.replace("{version}", version))
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: epctx-late\nVersion: {version}\n",
        )
        archive.writestr(
            f"{info}/entry_points.txt",
            (
                "[epctx.execution_providers]\nLateExecutionProvider = "
                "epctx_late:Provider\n"
            ),
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
    return str(path)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Providers seen by a host that refreshed after each step."""
    folder = tmp_path_factory.mktemp("host")
    site = folder / "site"
    site.mkdir()
    wheels = [wheel(folder, version) for version in ("1.0", "1.1")]
    script = f"import sys; sys.path.append({str(site)!r})\n{HOST}"
    command = [sys.executable, "-c", script, str(site), *wheels]
    return json.loads(
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=120
        ).stdout
    )


def test_a_package_installed_while_the_host_runs_is_found_and_used_at_once(said):
    assert said["before"] is None
    assert (said["installed"]["state"], said["installed"]["available"]) == (
        "discovered",
        True,
    )
    assert said["used"] == [[0.0, 2.0]]
    assert (said["loaded"]["state"], said["loaded"]["vendor"]) == ("loaded", "Late 1.0")


def test_a_package_upgraded_after_its_import_needs_a_restart_and_the_loaded_code_goes_on(
    said,
):
    upgraded = said["upgraded"]

    assert (upgraded["state"], upgraded["version"], upgraded["vendor"]) == (
        "restart-needed",
        "1.0",
        "Late 1.0",
    )
    assert (
        upgraded["reason"]
        == "epctx-late 1.1 is installed, but this process has imported epctx-late 1.0"
    )
    assert upgraded["available"]
    assert said["used after upgrade"] == [[0.0, 2.0]] * 2


def test_a_package_removed_while_the_host_runs_is_removed_and_old_sessions_go_on(said):
    assert (said["removed"]["state"], said["removed"]["available"]) == (
        "removed",
        False,
    )
    assert said["old sessions"] == [[0.0, 2.0]] * 2
    assert "epctx-late 1.0 is not installed any more" in said["error"]


def test_a_package_that_is_back_in_the_version_that_was_imported_is_used_again(said):
    assert said["back"]["state"] == "loaded"
    assert said["used when back"] == [[0.0, 2.0]] * 3
