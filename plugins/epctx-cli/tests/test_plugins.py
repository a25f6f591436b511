"""`epctx plugins list`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from support.onnxruntime_wheels import MODULE, install_wheel


def by_name(said):
    return {plugin["name"]: plugin for plugin in said.json["plugins"]}


def test_installed_plugins_are_listed_with_their_sources_and_state(process):
    said = process("plugins", "list", "--json")

    assert said.code == 0
    expected = {
        "name": "QNNExecutionProvider",
        "sources": ["QNNExecutionProvider", "QNN", "QnnExecutionProvider"],
        "distribution": "epctx-sim-qnn",
        "version": "0.1.0",
        "state": "discovered",
        "reason": "",
        "vendor": None,
    }
    assert {**by_name(said)["QNNExecutionProvider"], **expected} == by_name(said)[
        "QNNExecutionProvider"
    ]


def test_the_list_for_people_says_how_to_try_them(process):
    said = process("plugins", "list")

    assert said.code == 0
    assert said.err == ""
    assert "epctx-sim-qnn" in said.out
    assert "--load" in said.out


def test_listing_imports_no_plugin_nor_anything_heavy():
    heavy = {
        "onnx",
        "numpy",
        "onnxruntime",
        "ctypes",
        "epctx_sim_qnn",
        "packaging",
        "subprocess",
    }
    code = (
        "import json, sys; from importlib.metadata import entry_points;(command,) = "
        "entry_points(group='console_scripts', name='epctx'); code = "
        "command.load()(['plugins', 'list']); print(json.dumps([code, "
        "sorted(sys.modules)]))"
    )

    output = subprocess.check_output(
        [sys.executable, "-c", code], text=True, timeout=60
    )

    code, modules = json.loads(output.splitlines()[-1])
    assert code == 0
    assert heavy & set(modules) == set()


def test_load_tries_each_and_leaves_this_process_alone(process):
    said = process("plugins", "list", "--load", "--json")

    assert by_name(said)["QNNExecutionProvider"]["state"] == "loaded"
    assert "SIMULATED QNN" in by_name(said)["QNNExecutionProvider"]["vendor"]


def test_the_vendor_has_a_column_once_it_is_known(process):
    unknown = process("plugins", "list")
    known = process("plugins", "list", "--load")

    assert "vendor" not in unknown.out
    assert "vendor" in known.out.splitlines()[0]
    assert "SIMULATED QNN" in known.out


def test_source_keys_besides_the_ep_type_are_named(process):
    said = process("plugins", "list")

    assert (
        "QNNExecutionProvider also takes nodes whose source is QNN, "
        "QnnExecutionProvider."
    ) in said.out


def test_a_plugin_that_cannot_be_imported_is_listed_with_the_reason(process, site):
    folder = site("epctx-bad", "BadExecutionProvider", code="import no_such_sdk\n")

    listed = process("plugins", "list", "--json", path=[folder])
    tried = process("plugins", "list", "--load", "--json", path=[folder])

    assert by_name(listed)["BadExecutionProvider"]["state"] == "discovered"
    bad = by_name(tried)["BadExecutionProvider"]
    assert (tried.code, bad["state"], bad["distribution"]) == (0, "broken", "epctx-bad")
    assert "No module named 'no_such_sdk'" in bad["reason"]
    assert by_name(tried)["QNNExecutionProvider"]["state"] == "loaded"


def test_a_list_with_a_broken_plugin_is_done_and_other_commands_judge(process, site):
    folder = site("epctx-bad", "BadExecutionProvider", code="import no_such_sdk\n")

    codes = {
        command: process(*command.split(), path=[folder]).code
        for command in (
            "plugins list",
            "plugins list --load",
            "plugins info Bad",
            "doctor",
        )
    }
    helped = " ".join(process("plugins", "list", "--help").out.split())

    assert codes == {
        "plugins list": 0,
        "plugins list --load": 0,
        "plugins info Bad": 3,
        "doctor": 1,
    }
    assert "Exits with 0 whatever the states are; see `epctx doctor`." in helped


def test_wrong_metadata_is_a_reason_without_any_import(process, site):
    folder = site("epctx-bad", "BadExecutionProvider")
    (folder / "epctx_bad-1.0.dist-info" / "entry_points.txt").write_text(
        "[epctx.execution_providers]\nBadExecutionProvider = not a class\n"
    )

    said = process("plugins", "list", path=[folder])

    assert said.code == 0
    assert "broken" in said.out
    assert "not of the form module:Class" in said.out


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(7)", "its process ended with exit code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("raise SystemExit(0)", "SystemExit"),
    ],
)
def test_a_plugin_that_ends_its_process_only_ends_the_child(process, site, code, words):
    folder = site("epctx-bad", "BadExecutionProvider", code=code)

    said = process("plugins", "list", "--load", "--json", path=[folder])

    bad = by_name(said)["BadExecutionProvider"]
    assert said.code == 0
    assert bad["state"] == "broken"
    assert words in bad["reason"]


def test_what_a_plugin_prints_does_not_spoil_the_answer(process, site):
    body = (
        "    print('hello'); import os; os.write(1, b'native hello\\n'); "
        "os.system('echo child hello')\n"
    )
    folder = site("epctx-loud", "LoudExecutionProvider", body=body)

    said = process("plugins", "list", "--load", "--json", path=[folder])
    verbose = process("plugins", "list", "--load", "--json", "-v", path=[folder])

    assert by_name(said)["LoudExecutionProvider"]["state"] == "loaded"
    assert "hello" not in said.err
    assert "child hello" in verbose.err


def test_a_plugin_that_lacks_its_hardware_says_so(process, site):
    body = (
        "    @classmethod\n"
        "    def availability(cls, purpose):\n"
        "        return Availability(False, reason='no device found')\n"
    )
    folder = site("epctx-far", "FarExecutionProvider", body=body)

    said = process("plugins", "list", "--load", "--json", path=[folder])

    far = by_name(said)["FarExecutionProvider"]
    assert far["state"] == "loaded"
    assert far["reason"] == "not available for export and load and run: no device found"


def test_a_plugin_that_lacks_something_for_one_purpose_stays_usable_for_the_others(
    process, site
):
    body = (
        "    @classmethod\n    def availability(cls, purpose):\n        return "
        "Availability(purpose.value != 'export', reason='no compiler found')\n"
    )
    folder = site("epctx-far", "FarExecutionProvider", body=body)

    said = process("plugins", "list", "--load", "--json", path=[folder])

    far = by_name(said)["FarExecutionProvider"]
    assert (far["state"], far["reason"]) == (
        "loaded",
        "not available for export: no compiler found",
    )


def test_a_plugin_whose_availability_raises_is_broken(process, site):
    body = (
        "    @classmethod\n    def availability(cls, purpose):\n        raise "
        "OSError('driver is gone')\n"
    )
    folder = site("epctx-bad", "BadExecutionProvider", body=body)

    said = process("plugins", "list", "--load", "--json", path=[folder])

    bad = by_name(said)["BadExecutionProvider"]
    assert bad["state"] == "broken"
    assert "driver is gone" in bad["reason"]


def test_a_disabled_plugin_is_shown_and_not_tried(process):
    said = process(
        "plugins", "list", "--load", "--json", EPCTX_DISABLE_PLUGINS="epctx-sim-qnn"
    )

    plugin = by_name(said)["QNNExecutionProvider"]
    assert plugin["state"] == "disabled"
    assert "EPCTX_DISABLE_PLUGINS" in plugin["reason"]


def test_compiling_with_a_broken_plugin_says_whose_fault_it_is(process, site, model):
    folder = site("epctx-bad", "BadExecutionProvider", code="import no_such_sdk\n")

    said = process("compile", model("y = Relu(x)"), "--ep", "Bad", path=[folder])

    assert said.code == 3
    assert "epctx-bad" in said.err
    assert "no_such_sdk" in said.err
    assert "Traceback" not in said.err


def test_with_json_what_an_ep_prints_while_it_compiles_goes_to_standard_error(
    process, site, model
):
    body = (
        "    def __init__(self, context):\n"
        "        super().__init__(context)\n"
        "        import ctypes, os\n"
        "        print('from python')\n"
        "        os.system('echo from a child')\n"
        "        ctypes.CDLL(None).printf(b'from native code\\n')\n"
    )
    folder = site("epctx-loud", "LoudExecutionProvider", body=body)

    said = process(
        "compile",
        model("y = Relu(x)"),
        "--ep",
        "Loud",
        "--json",
        "--allow-uncompiled",
        path=[folder],
    )

    assert said.code == 0
    assert said.json["partitions"] == []
    assert all(
        words in said.err
        for words in ("from python", "from a child", "from native code")
    )


def test_an_ep_of_this_projects_is_known_to_be_real_or_simulated_before_it_is_loaded(
    process, distribution, tmp_path
):
    distribution(tmp_path, "epctx-openvino")
    points = (
        "[epctx.execution_providers]\nOpenVINOExecutionProvider = no_such_module:EP\n"
        "[epctx.simulated]\nOpenVINOExecutionProvider = false\n"
    )
    (tmp_path / "epctx_openvino-1.0.dist-info" / "entry_points.txt").write_text(points)

    said = process("plugins", "list", "--json", path=[tmp_path])

    states = {
        plugin["distribution"]: (plugin["state"], plugin["reason"])
        for plugin in said.json["plugins"]
    }
    assert states["epctx-openvino"] == ("discovered", "")
    assert states["epctx-sim-openvino"] == (
        "duplicate",
        "it is simulated, and epctx-openvino 1.0 is not",
    )


def test_an_ep_whose_extra_is_not_installed_is_named_below_the_list_until_it_is(
    process, site, distribution
):
    folder = site("epctx-acme", "AcmeExecutionProvider", npu="acme-npu>=2.7")
    line = "pip install 'epctx-acme[acme-npu]'"

    people, before = (
        process("plugins", "list", path=[folder]),
        process("plugins", "list", "--json", path=[folder]),
    )
    distribution(folder, "acme-npu", "2.8")
    after = process("plugins", "list", "--json", path=[folder])

    assert (
        f"a package that they need is not installed:\n  AcmeExecutionProvider:\n"
        f"    {line}\n" in people.out
    )
    assert {
        "name": "AcmeExecutionProvider",
        "distribution": "epctx-acme",
        "install": line,
    } in before.json["left_out"]
    assert "AcmeExecutionProvider" not in by_name(before)
    assert line not in [each["install"] for each in after.json["left_out"]]
    assert by_name(after)["AcmeExecutionProvider"]["state"] == "discovered"


def test_a_wheel_of_another_convention_is_listed_with_who_found_it(process, tmp_path):
    install_wheel(
        tmp_path, "onnxruntime-ep-acme", MODULE.format(ep="AcmeExecutionProvider")
    )

    people = process("plugins", "list", path=[tmp_path])
    listed = by_name(process("plugins", "list", "--json", path=[tmp_path]))
    told = process("plugins", "info", "onnxruntime-ep-acme", path=[tmp_path])

    assert (
        "AcmeExecutionProvider (onnxruntime-ep-acme 1.2) comes from a package that "
        "knows nothing of epctx: epctx-onnxruntime finds it by the packaging "
        "convention onnxruntime-ep-*, and runs it." in people.out
    )
    acme = listed["AcmeExecutionProvider"]
    assert acme["finder"] == "epctx-onnxruntime:onnxruntime-ep-*"
    assert acme["state"] == "discovered"
    assert re.search(r"found by +epctx-onnxruntime:onnxruntime-ep-\*", told.out)
