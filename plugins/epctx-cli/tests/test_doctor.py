"""`epctx doctor`: what it looks at, and what it tells to mend."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from support.cli_fixtures import PROVIDER
from support.folders import REAL
from support.install_commands import pip_install
from support.installed import install_distribution
from support.onnxruntime_wheels import MODULE, install_wheel

import epctx_core


def found(said, severity):
    return [
        (f["message"], f["hint"])
        for f in said.json["findings"]
        if f["severity"] == severity
    ]


SIMULATED = "QNN,OpenVINO,VitisAI"


@pytest.fixture
def doctor(process):
    """Call it where `pip` on the PATH is this interpreter's own.

    Where further folders are named, their plugins are looked at, and the simulated EPs
    are disabled: trying those takes most of the time.
    """
    own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def call(*arguments, path=(), **environment):
        defaults = {"EPCTX_DISABLE_PLUGINS": SIMULATED} if path else {}
        variables = {"PATH": own, **defaults, **environment}
        return process("doctor", *arguments, path=path, **variables)

    return call


def test_a_sound_environment_is_ok_and_its_libraries_are_compared_with_what_the_core_needs(
    doctor,
):
    said = doctor("--json")

    assert (said.code, said.json["ok"]) == (0, True)
    assert said.json["findings"] == []
    assert said.json["environment"]["executable"] == sys.executable
    assert said.json["environment"]["epctx-core"].startswith(epctx_core.__version__)
    check_libraries(said)


def check_libraries(said):
    by_name = {library["name"]: library for library in said.json["libraries"]}
    assert {
        "onnx",
        "numpy",
        "pluggy",
        "importlib-metadata",
        "onnxruntime",
        "epctx-cli",
    } <= set(by_name)
    assert all(library["fits"] is not False for library in by_name.values())
    assert by_name["onnxruntime"]["extra"] == "ort"
    assert "pytest" not in by_name


def test_the_report_for_people_ends_with_the_verdict(doctor):
    said = doctor()

    assert said.code == 0
    assert "QNNExecutionProvider" in said.out
    assert said.out.splitlines()[-1] == "ok: nothing to fix"


def test_a_broken_plugin_is_a_problem_with_the_reason_and_a_remedy(doctor, site):
    folder = site("epctx-bad", "BadExecutionProvider", code="import no_such_sdk\n")

    said = doctor("--json", path=[folder])

    ((message, hint),) = found(said, "problem")
    assert said.code == 1
    assert message.startswith(
        "BadExecutionProvider (epctx-bad 1.0) can't be used (broken): "
    )
    assert "no_such_sdk" in message
    assert "Fix or reinstall epctx-bad" in hint


def test_a_pip_of_another_environment_without_plugins_is_no_finding(doctor, tmp_path):
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)

    said = doctor("--json", PATH=f"{pip.parent}{os.pathsep}{os.environ['PATH']}")

    assert said.json["findings"] == []


def test_an_engine_that_the_environment_misspells_is_a_problem(doctor):
    said = doctor("--json", EPCTX_ENGINE="onxruntime")

    assert (said.code, doctor(EPCTX_ENGINE="onnx.reference").code) == (1, 0)
    assert found(said, "problem") == [
        (
            (
                "EPCTX_ENGINE names 'onxruntime', an engine that is not installed. "
                "Did you mean 'onnxruntime'?"
            ),
            "Correct the name, or unset the variable.",
        )
    ]


def test_a_package_that_has_an_engine_needs_no_ep(doctor, tmp_path):
    entries = {"epctx.engines": {"acme": "acme_engine:Acme"}}
    fields = ["Requires-Dist: epctx-core"]
    install_distribution(tmp_path, "acme-engine", entries, fields=fields)

    empty = tmp_path / "empty"
    empty.mkdir()

    assert found(doctor("--json", path=[tmp_path]), "note") == found(
        doctor("--json", path=[empty]), "note"
    )


def test_two_plugins_of_one_name_are_a_problem_until_one_is_chosen(doctor, site):
    folder = site("epctx-one", "SameExecutionProvider")
    site("epctx-two", "SameExecutionProvider")

    undecided = doctor("--json", path=[folder])
    decided = doctor("--json", path=[folder], EPCTX_PREFER="Same=epctx-two")
    third = site("epctx-three", "SameExecutionProvider")
    of_three = doctor("--json", path=[third], EPCTX_PREFER="Same=epctx-two")

    ((message, hint),) = found(undecided, "problem")
    assert undecided.code == 1
    assert message.startswith("SameExecutionProvider is ambiguous: epctx-one 1.0 and")
    assert "EPCTX_PREFER" in hint
    assert decided.code == of_three.code == 0
    (note,) = [m for m, _ in found(of_three, "note") if "SameExecutionProvider" in m]
    assert note == (
        "SameExecutionProvider (epctx-one 1.0 and epctx-three 1.0) is not used: "
        "epctx-two 1.0 was preferred."
    )


@pytest.mark.parametrize("rival", ["epctx-one", "epctx-two"])
def test_a_simulated_plugin_beside_a_real_one_is_a_note(doctor, site, rival):
    folder = site(
        "epctx-one",
        "SameExecutionProvider",
        body=f"    simulated = {rival == 'epctx-one'}",
    )
    site(
        "epctx-two",
        "SameExecutionProvider",
        body=f"    simulated = {rival == 'epctx-two'}",
    )

    said = doctor("--json", path=[folder])

    notes = [
        message
        for message, _ in found(said, "note")
        if "SameExecutionProvider" in message
    ]
    assert said.code == 0
    assert len(notes) == 1
    assert f"SameExecutionProvider ({rival} 1.0)" in notes[0]
    assert "it is simulated" in notes[0]


def test_missing_hardware_is_a_note(doctor, site):
    body = (
        "    @classmethod\n    def availability(cls, purpose):\n        return "
        "Availability(False, reason='no device found', hint='Plug one in.')\n"
    )
    folder = site("epctx-far", "FarExecutionProvider", body=body)

    said = doctor("--json", path=[folder])

    assert said.code == 0
    assert any(
        "no device found" in m and h == "Plug one in." for m, h in found(said, "note")
    )


def test_a_vendors_package_that_an_extra_installs_is_named_with_the_line_for_pip_and_is_no_finding(
    doctor, site
):
    folder = site("epctx-acme", "AcmeExecutionProvider", npu="acme-npu>=2.7")

    said, people = doctor("--json", path=[folder]), doctor(path=[folder])

    assert said.code == 0
    assert not any("acme-npu" in message for message, _ in found(said, "note"))
    assert "\n  pip install 'epctx-acme[acme-npu]'\n" in people.out
    assert re.search(r"acme-npu +- +>=2\.7 +AcmeExecutionProvider\n", people.out)


NO_DEVICE = """
    @classmethod
    def availability(cls, purpose):
        return Availability(False, reason='it lists no device here', hint='Plug one in.')
"""
NO_DEVICE_TO_RUN_ON = NO_DEVICE.replace("False", "purpose.value == 'export'")


@pytest.mark.parametrize(
    ("body", "usable"),
    [("", "yes"), (NO_DEVICE, "no"), (NO_DEVICE_TO_RUN_ON, "export")],
)
def test_a_vendors_package_that_is_installed_is_listed_and_its_ep_with_what_that_says(
    doctor, site, distribution, body, usable
):
    folder = site("epctx-acme", "AcmeExecutionProvider", npu="acme-npu>=2.7", body=body)
    distribution(folder, "acme-npu", "2.8")

    said = doctor(path=[folder])

    assert said.code == 0
    assert re.search(r"acme-npu +2\.8 +>=2\.7 +AcmeExecutionProvider\n", said.out)
    assert re.search(
        rf"AcmeExecutionProvider +epctx-acme 1\.0 +loaded +{usable} ", said.out
    )
    assert ("it lists no device here" in said.out) is (usable != "yes")


def test_a_vendors_package_that_is_too_old_is_a_problem(doctor, site, distribution):
    folder = site("epctx-acme", "AcmeExecutionProvider", npu="acme-npu>=2.7")
    distribution(folder, "acme-npu", "2.6")

    said = doctor("--json", path=[folder])

    message = (
        "acme-npu 2.6 is installed; AcmeExecutionProvider of epctx-acme needs >=2.7."
    )
    assert said.code == 1
    assert found(said, "problem") == [(message, "pip install 'epctx-acme[acme-npu]'")]


@pytest.mark.parametrize(
    ("needed", "message"),
    [
        (
            "epctx-core>=999",
            f"epctx-core {epctx_core.__version__} is installed; epctx-acme needs >=999.",
        ),
        (
            "numpy<1; python_version > '3'",
            f"numpy {version('numpy')} is installed; epctx-acme needs <1.",
        ),
    ],
)
def test_a_requirement_of_a_plugin_that_is_not_met_is_a_problem(
    doctor, site, needed, message
):
    folder = site("epctx-acme", "AcmeExecutionProvider", requires=[needed])

    said = doctor("--json", path=[folder])

    ((found_message, hint),) = found(said, "problem")
    assert (said.code, found_message) == (1, message)
    assert hint == f"pip install '{needed.partition(';')[0]}'"


def test_requirements_that_are_met_or_of_another_platform_or_extra_are_no_finding(
    doctor, site
):
    requires = [
        "numpy>=1",
        "no-such-acme-sdk; sys_platform == 'cobol'",
        "no-such-acme-npu; extra == 'acme-npu'",
    ]
    folder = site("epctx-acme", "AcmeExecutionProvider", requires=requires)

    said = doctor("--json", path=[folder])

    assert said.code == 0
    assert not any("acme" in finding["message"] for finding in said.json["findings"])


SLOW = "import time\ntime.sleep(3.1)\n"
THREAD = (
    "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(99,), name='acme-watch', daemon=True)"
    ".start()\n"
)
CHATTY = "import os\nos.write(1, b'Welcome to the Acme SDK\\n')\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (SLOW, r"takes \d+\.\d s to import\."),
        (THREAD, r"leaves 1 thread running .*: 'acme-watch'\."),
        (CHATTY, r"writes to standard output .* imported: 'Welcome to the Acme SDK'\."),
    ],
    ids=["slow", "thread", "output"],
)
def test_an_import_that_is_slow_or_has_side_effects_is_a_note(
    doctor, site, code, expected
):
    body = PROVIDER.format(name="AcmeExecutionProvider", body="")
    folder = site("epctx-acme", "AcmeExecutionProvider", code=code + body)

    said = doctor("--json", path=[folder])

    (message,) = [m for m, _ in found(said, "note") if "AcmeExecutionProvider (" in m]
    assert said.code == 0
    assert re.fullmatch(
        rf"AcmeExecutionProvider \(epctx-acme 1\.0\) {expected}", message
    )


FAILING = """
    @classmethod
    def availability(cls, purpose):
        {}
"""


def test_the_text_of_an_exception_forges_no_verdict(doctor, site):
    code = "raise ValueError('no driver.\\nok: nothing to fix.')\n"
    folder = site("epctx-bad", "BadExecutionProvider", code=code)

    said = doctor(path=[folder])

    lines = said.out.splitlines()
    (problem,) = [line for line in lines if line.startswith("problem: ")]
    assert problem.endswith(r"no driver.\nok: nothing to fix.")
    assert [line for line in lines if line.startswith("ok")] == []


def test_a_damaged_distribution_is_no_build_of_onnxruntime(doctor, tmp_path):
    (tmp_path / "damaged-1.0.dist-info").mkdir()

    said = doctor(path=[tmp_path])

    assert said.code == 0
    assert said.out.splitlines()[-1].startswith("ok: ")


@pytest.mark.parametrize("fault", ["raise ValueError('no driver')", "return 7"])
def test_the_label_of_an_ep_is_said_once_in_a_message(doctor, site, fault):
    body = FAILING.format(fault)
    folder = site("epctx-acme", "AcmeExecutionProvider", body=body)

    said = doctor("--json", path=[folder])

    ((message, _),) = found(said, "problem")
    assert message.count("AcmeExecutionProvider (epctx-acme 1.0)") == 1
    assert not message.endswith("..")
    (plugin,) = [p for p in said.json["plugins"] if p["name"].startswith("Acme")]
    assert "epctx-acme" not in plugin["availability"]["export"]["reason"]


def test_a_disabled_plugin_is_a_note_that_names_the_variable(doctor):
    said = doctor("--json", EPCTX_DISABLE_PLUGINS="QNN")

    assert said.code == 0
    assert said.json["variables"] == {"EPCTX_DISABLE_PLUGINS": "QNN"}
    assert any(
        "EPCTX_DISABLE_PLUGINS names it" in message
        for message, _ in found(said, "note")
    )


def test_a_misspelt_variable_is_a_problem_with_the_nearest_one(doctor):
    said = doctor("--json", EPCTX_DISABLED_PLUGINS="QNN")

    ((message, _),) = found(said, "problem")
    assert said.code == 1
    assert (
        "EPCTX_DISABLED_PLUGINS is unknown. Did you mean 'EPCTX_DISABLE_PLUGINS'?"
        in message
    )


def test_a_variable_that_names_no_plugin_is_a_problem(doctor):
    said = doctor("--json", EPCTX_DISABLE_PLUGINS="QNNN")

    ((message, _),) = found(said, "problem")
    assert (
        "names 'QNNN', which is neither an installed EP nor its distribution" in message
    )


def test_every_variable_that_the_core_reads_is_known(doctor):
    core = Path(epctx_core.__file__).parent
    texts = [
        path.read_text("utf-8")
        for path in core.rglob("*.py")
        if "doctor" not in path.parts
    ]

    read = {
        name
        for text in texts
        for name in re.findall(r'= "(EPCTX_[A-Z_]+)"$', text, re.MULTILINE)
    }

    assert {"EPCTX_PLUGINS", "EPCTX_PREFER"} <= read
    said = doctor("--json", **dict.fromkeys(read, "1"))
    assert not any("is unknown" in message for message, _ in found(said, "problem"))


def test_a_variable_in_effect_is_told_with_what_it_says(doctor):
    said = doctor(EPCTX_DISABLE_PLUGINS="QNN")

    assert "EPCTX_DISABLE_PLUGINS  QNN    plugins that are kept out" in said.out


def test_a_malformed_variable_is_a_problem_and_the_rest_is_told(doctor):
    said = doctor("--json", EPCTX_PREFER="QNN")

    ((message, hint),) = found(said, "problem")
    assert said.code == 1
    assert "EPCTX_PREFER" in message
    assert "Example" in hint
    assert said.json["libraries"]


def test_a_package_that_needs_the_core_and_brings_no_ep_is_a_note(
    doctor, distribution, tmp_path
):
    distribution(tmp_path, "epctx-lost", requires=["epctx-core>=0.1"])

    said = doctor("--json", path=[tmp_path])

    ((message, hint),) = [
        each for each in found(said, "note") if "epctx-lost" in each[0]
    ]
    assert said.code == 0
    assert message.startswith("epctx-lost needs epctx-core, but has no entry point")
    assert "install it again" in hint


def test_a_library_that_an_extra_of_the_core_brings_is_not_remarked_on(
    doctor, distribution, tmp_path
):
    distribution(
        tmp_path,
        "epctx-core",
        requires=["onnx>=1.23", 'epctx-kit==0.1.0; extra == "cli"'],
    )
    distribution(tmp_path, "epctx-kit", requires=["epctx-core>=0.1"])

    said = doctor("--json", path=[tmp_path])

    assert not any("epctx-kit" in message for message, _ in found(said, "note"))


def make_other_environment(tmp_path):
    """Return the pip of an environment that has the plugin epctx-acme."""
    other = tmp_path / "other"
    info = other / "lib" / "python3.12" / "site-packages" / "epctx_acme-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text("[epctx.execution_providers]\nA = a:A\n")
    pip = other / "bin" / "pip"
    pip.parent.mkdir()
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    return pip


def test_a_pip_of_another_environment_with_plugins_that_are_here_too_is_no_finding(
    doctor, site, tmp_path
):
    folder = site("epctx-acme", "AcmeExecutionProvider")
    pip = make_other_environment(tmp_path)

    said = doctor(
        "--json",
        path=[folder],
        PATH=f"{pip.parent}{os.pathsep}{os.environ['PATH']}",
    )

    assert found(said, "problem") == []


def test_a_pip_of_another_environment_that_has_a_plugin_is_the_problem(
    doctor, tmp_path
):
    pip = make_other_environment(tmp_path)

    said = doctor("--json", PATH=f"{pip.parent}{os.pathsep}{os.environ['PATH']}")

    ((message, hint),) = found(said, "problem")
    assert said.code == 1
    assert str(pip) in message
    assert "epctx-acme" in message
    assert hint == f"{sys.executable} -m pip install epctx-acme"


def test_a_wheel_of_another_convention_is_a_note_and_its_ep_is_listed(doctor, tmp_path):
    install_wheel(
        tmp_path, "onnxruntime-ep-acme", MODULE.format(ep="AcmeExecutionProvider")
    )

    people = doctor(path=[tmp_path])
    said = doctor("--json", path=[tmp_path])

    notes = [message for message, _ in found(said, "note") if "acme" in message]
    assert "epctx-onnxruntime finds it by the packaging convention" in notes[0]
    assert "does not load" in notes[1]
    assert said.code == 0
    row = r"AcmeExecutionProvider +onnxruntime-ep-acme 1\.2 +loaded +no "
    assert re.search(row, people.out)


def test_a_build_of_onnxruntime_over_another_is_a_problem_with_its_repair(
    doctor, tmp_path
):
    info = install_distribution(tmp_path, "onnxruntime-gpu", {}, version="1.31.1")
    (info / "RECORD").write_text("onnxruntime/__init__.py,,\n")

    said = doctor("--json", path=[tmp_path])

    ((message, hint),) = [p for p in found(said, "problem") if "onnxruntime" in p[0]]
    assert "installed over one another" in message
    assert re.fullmatch(
        r"pip uninstall (onnxruntime onnxruntime-gpu|onnxruntime-gpu onnxruntime), "
        "then pip install the one that you need",
        hint,
    )


# -- one model
# ------------------------------------------------------------------------------------


def test_of_a_model_it_says_where_it_would_run_as_a_session_then_says(epctx, resnet):
    asked = epctx("doctor", resnet.path, "--ep", "QNN", "--json")
    ran = epctx("run", resnet.path, "--ep", "QNN", "--placement", "--json")

    assert (asked.code, asked.json["ok"], asked.json["findings"]) == (0, True, [])
    assert asked.json["placement"] == ran.json["placement"]
    assert asked.json["placement"]["eps"][0]["nodes"] > 0


def test_an_ep_that_was_named_and_gets_no_node_is_a_problem_with_its_reason(
    epctx, model
):
    said = epctx("doctor", model("y = Det(x)"), "--ep", "VitisAI")

    assert said.code == 1
    assert "nodes: 1, on the CPU EP: 1" in said.out
    assert (
        "problem: VitisAIExecutionProvider takes no node of small.onnx. It says:"
        in (said.out)
    )


def test_without_a_named_ep_all_usable_ones_are_asked_the_real_before_the_simulated(
    process, model, site
):
    folder = site("zeta", "ZetaExecutionProvider")

    said = process("doctor", model("y = Relu(x)"), "--json", path=[folder])

    eps = [(row["ep"], row["simulated"]) for row in said.json["placement"]["eps"]]
    assert said.code == 0
    assert eps[0] == ("ZetaExecutionProvider", False)
    assert all(simulated for _, simulated in eps[1:-1])
    assert eps[-1] == ("CPUExecutionProvider", False)


def test_eps_that_cannot_be_asked_about_a_model_are_problems_with_their_reasons(
    process, model, site
):
    for distribution in ("epctx-one", "epctx-two"):
        folder = site(distribution, "SameExecutionProvider")
    site("epctx-three", "BrokenExecutionProvider", code="import no_such_module")
    source = model("y = Relu(x)")

    said = process("doctor", source, "--json", path=[folder])
    named = process("doctor", source, "--ep", "epctx-one:Same", "--json", path=[folder])

    assert said.json["placement"]["eps"][-1]["ep"] == "CPUExecutionProvider"
    problems = sorted(found(said, "problem"))
    assert [message.partition(":")[0] for message, _ in problems] == [
        "BrokenExecutionProvider (epctx-three 1.0) can't be used (broken)",
        "SameExecutionProvider is ambiguous",
    ]
    assert "EPCTX_PREFER" in problems[1][1]
    assert not any("ambiguous" in message for message, _ in found(named, "problem"))


def test_a_context_model_is_its_eps_where_that_is_installed(epctx, compiled):
    said = epctx("doctor", compiled, "--json")

    taken = {row["ep"]: row["nodes"] for row in said.json["placement"]["eps"]}
    assert taken["QNNExecutionProvider"] > 0
    assert taken["CPUExecutionProvider"] == 0


@pytest.mark.parametrize(
    ("name", "package"),
    [("qnn_ctx0", "epctx-onnxruntime[qnn]"), ("ov_ctx0", "epctx-openvino")],
)
@pytest.mark.parametrize("ep", [(), ("--ep", "QNN", "--ep", "OpenVINO")])
def test_a_vendors_model_that_only_a_simulated_ep_could_get_is_a_problem_with_the_line_to_install(
    epctx, name, package, ep
):
    model = REAL / f"{name}.onnx"

    said = epctx("doctor", model, *ep, "--json")
    ran = epctx("run", model)

    (refused, _), (unread, remedy) = found(said, "problem")[:2]
    assert (said.code, said.json["ok"], ran.code) == (1, False, 2)
    assert refused.endswith("is simulated and does not load it.")
    assert "no EP here looked into it" in unread
    assert remedy.startswith(pip_install(package))


def test_that_stays_a_problem_where_digests_are_right(epctx, tmp_path):
    sealed = tmp_path / "qnn_ctx1.onnx"
    assert epctx("seal", REAL / "qnn_ctx1.onnx", "-o", sealed).code == 0

    said = epctx("doctor", sealed, "--json")

    ((message, hint),) = found(said, "problem")
    assert said.code == 1
    assert message.endswith("is simulated and does not load it.")
    assert "vendor's own EP" in hint


def test_options_about_a_model_need_one(epctx):
    said = epctx("doctor", "--ep", "QNN")

    assert said.code == 2
    assert "epctx doctor MODEL" in said.err
