"""Loading: a plugin is imported once, checked, and whatever it raises becomes one typed
error.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.packages import PROVIDER

from epctx_core import PluginState, Registry
from epctx_core.errors import PluginError
from epctx_core.plugin import Availability, Purpose


def failed(registry, name="A"):
    with pytest.raises(PluginError) as caught:
        registry.load(registry.resolve(name))
    return caught.value


def test_a_plugin_is_loaded_and_its_record_says_so(packages):
    packages.install("epctx-a", "A")
    registry = Registry()
    record = registry.resolve("A")

    cls = registry.load(record)

    assert cls.name == "A"
    assert record.state is PluginState.DISCOVERED
    assert registry.resolve("A").state is PluginState.LOADED


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import library_that_is_missing",
            "ModuleNotFoundError: No module named 'library_that_is_missing'",
        ),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit()", "SystemExit"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise StopIteration", "StopIteration"),
        ("def broken(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
            "failed to import: E",
        ),
        (
            "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E",
            "failed to import: E",
        ),
        ("", "AttributeError"),
    ],
)
def test_whatever_an_import_raises_is_a_plugin_error_with_its_cause(
    packages, code, why
):
    packages.install("epctx-a", "A", code=code, version="0.3")
    registry = Registry()

    error = failed(registry)

    assert why in error.message
    assert (error.ep, error.distribution, error.version) == ("A", "epctx-a", "0.3")
    assert error.__cause__ is not None
    (record,) = registry.records()
    assert record.state is PluginState.BROKEN
    assert why in record.reason
    assert "Traceback" in record.traceback


def test_an_interrupt_of_the_user_is_no_fault_of_the_plugin(packages):
    packages.install("epctx-a", "A", code="raise KeyboardInterrupt")
    registry = Registry()

    with pytest.raises(KeyboardInterrupt):
        registry.load(registry.resolve("A"))

    assert registry.resolve("A").state is PluginState.DISCOVERED


def test_one_broken_plugin_leaves_the_others_usable(packages):
    packages.install("epctx-a", "A", code="import library_that_is_missing")
    packages.install("epctx-b", "B")
    registry = Registry()
    failed(registry)

    assert registry.load(registry.resolve("B")).name == "B"
    assert registry.available() == ["B", "CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "Provider = 7",
            "not a subclass of epctx_core.plugin.ExecutionProvider",
        ),
        ("class Provider: name = 'A'", "not a subclass"),
        ("class Provider: api_version = 99", "not a subclass"),
        (
            (
                "class Odd:\n    def __getattr__(self, name): raise "
                "OSError(name)\nProvider = Odd()"
            ),
            "not a subclass of epctx_core.plugin.ExecutionProvider",
        ),
        (
            (
                "from epctx_core.plugin import ExecutionProvider\nclass "
                "Provider(ExecutionProvider): name = 'A'"
            ),
            "the required hook get_capability is missing",
        ),
    ],
)
def test_a_class_that_breaks_the_contract_is_broken(packages, code, why):
    packages.install("epctx-a", "A", code=code)
    registry = Registry()

    assert why in failed(registry).message
    assert registry.records()[0].state is PluginState.BROKEN


def test_a_class_whose_name_is_not_its_entry_points_is_broken(packages):
    packages.install("epctx-a", "A", body='    name = "B"\n')

    assert "its name is 'B', but it was found as 'A'" in failed(Registry()).message


def test_a_plugin_for_a_later_api_says_so_and_nothing_else(packages):
    packages.install("epctx-a", "A", body="    api_version = 2\n    vendor = None\n")
    registry = Registry()

    error = failed(registry)

    assert "written for plugin API 2, and this epctx-core has 1" in error.message
    assert "vendor" not in error.message
    assert "Upgrade epctx-core" in error.message
    assert registry.records()[0].state is PluginState.BROKEN


def test_a_plugin_is_imported_once_however_many_threads_ask(packages, tmp_path):
    log = tmp_path / "imports"
    code = (
        f"import time\nwith open({str(log)!r}, 'a') as f: "
        "f.write('x')\ntime.sleep(0.05)\n1 / 0\n"
    )
    packages.install("epctx-a", "A", code=code)
    registry = Registry()
    record = registry.resolve("A")
    start = threading.Barrier(8)

    def load():
        start.wait(10)
        with pytest.raises(PluginError, match="ZeroDivisionError"):
            registry.load(record)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(load) for _ in range(8)]:
            done.result(10)

    assert log.read_text() == "x"


def test_a_plugin_that_asks_the_registry_from_a_thread_while_it_is_imported_does_not_hang(
    packages,
):
    registry = Registry()
    packages.install(
        "epctx-a",
        "A",
        code=(
            "import threading, epctx_a_registry as r\nt = "
            "threading.Thread(target=r.ask, "
            "daemon=True)\nt.start()\nt.join(5)\nassert r.answers\nfrom epctx_a_real "
            "import Provider\n"
        ),
    )
    packages.install("epctx-a-real", "A2", body='    name = "A"\n')
    packages.write_module(
        "epctx_a_registry",
        "answers = []\nregistry = None\ndef ask(): answers.append(registry.records())",
    )
    import epctx_a_registry

    epctx_a_registry.registry = registry

    assert registry.load(registry.resolve("A")).name == "A"


def test_a_record_of_a_plugin_that_was_uninstalled_meanwhile_can_not_be_loaded(
    packages,
):
    packages.install("epctx-a", "A")
    registry = Registry()
    record = registry.resolve("A")
    packages.uninstall("epctx-a")
    registry.refresh()

    with pytest.raises(PluginError, match="removed"):
        registry.load(record)


def test_a_record_of_another_registry_can_not_be_loaded(packages):
    packages.install("epctx-a", "A")
    record = Registry().resolve("A")

    with pytest.raises(PluginError, match="no longer known"):
        Registry(entry_points=False).load(record)


def test_the_vendor_is_known_once_a_plugin_is_loaded_and_stays_over_a_refresh(packages):
    packages.install("epctx-a", "A", body='    vendor = "Acme"\n')
    registry = Registry()
    before = registry.resolve("A")
    registry.load(before)

    registry.refresh()

    assert before.vendor is None
    assert registry.resolve("A").vendor == "Acme"


AVAILABILITY = """
    here = False
    @classmethod
    def availability(cls, purpose):
        from epctx_core.plugin import Availability
        return Availability(cls.here or purpose.value == "export", reason="no NPU driver")
"""


def test_an_ep_that_lacks_its_device_has_the_reason_and_stays_usable(
    packages,
):
    packages.install("epctx-a", "A", body=AVAILABILITY)
    registry = Registry()

    answer = registry.availability(registry.resolve("A"), Purpose.RUN)

    record = registry.resolve("A")
    assert answer == Availability(False, reason="no NPU driver")
    assert record.state is PluginState.LOADED
    assert record.reason == "not available for run: no NPU driver"
    assert registry.available() == ["A", "CPUExecutionProvider"]


def test_an_ep_that_is_available_for_one_purpose_is_not_unavailable_and_keeps_each_answer(
    packages,
):
    packages.install("epctx-a", "A", body=AVAILABILITY)
    registry = Registry()

    for purpose in Purpose:
        registry.availability(registry.resolve("A"), purpose)

    record = registry.resolve("A")
    assert record.state is PluginState.LOADED
    assert {p: a.available for p, a in record.availability.items()} == {
        Purpose.EXPORT: True,
        Purpose.LOAD: False,
        Purpose.RUN: False,
    }
    assert record.reason == "not available for load and run: no NPU driver"
    assert record.as_dict()["availability"]["run"] == {
        "available": False,
        "reason": "no NPU driver",
        "hint": "",
    }


def test_a_device_that_comes_back_is_seen_at_the_next_question(packages):
    packages.install("epctx-a", "A", body=AVAILABILITY)
    registry = Registry()
    registry.availability(registry.resolve("A"), Purpose.RUN)
    registry.load(registry.resolve("A")).here = True

    registry.availability(registry.resolve("A"), Purpose.RUN)

    assert (registry.resolve("A").state, registry.resolve("A").reason) == (
        PluginState.LOADED,
        "",
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [("True", "bool"), ("1 / 0", "ZeroDivisionError"), ("exit(1)", "SystemExit")],
)
def test_an_ep_that_answers_wrongly_about_availability_is_a_plugin_error(
    packages, answer, why
):
    body = (
        "    @classmethod\n    def availability(cls, purpose):\n        return "
        f"{answer}\n"
    )
    packages.install("epctx-a", "A", body=body)
    registry = Registry()

    with pytest.raises(PluginError, match=why) as caught:
        registry.availability(registry.resolve("A"), Purpose.RUN)

    assert caught.value.hook == "availability"


def test_an_ep_whose_availability_raises_keeps_the_traceback_and_is_asked_anew(
    packages,
):
    packages.install("epctx-a", "A", body=AVAILABILITY)
    registry = Registry()
    cls = registry.load(registry.resolve("A"))
    cls.availability = classmethod(lambda cls, purpose: 1 / 0)

    with pytest.raises(PluginError):
        registry.availability(registry.resolve("A"), Purpose.RUN)
    failed = registry.resolve("A")
    cls.availability = classmethod(lambda cls, purpose: Availability(True))
    registry.availability(registry.resolve("A"), Purpose.RUN)
    mended = registry.resolve("A")

    assert not failed.availability[Purpose.RUN].available
    assert failed.reason == (
        "not available for run: its availability failed: ZeroDivisionError: "
        "division by zero"
    )
    assert "1 / 0" in failed.traceback
    assert (mended.state, mended.reason, mended.traceback) == (
        PluginState.LOADED,
        "",
        None,
    )


def test_a_refresh_while_a_plugin_is_imported_does_not_forget_that_it_was(packages):
    packages.write_module("asked", "registry = None")
    code = "\nimport asked\nasked.registry.refresh()\n"
    packages.install("epctx-a", "A", code=PROVIDER.format(name="A", body="") + code)
    import asked

    asked.registry = Registry()
    asked.registry.load(asked.registry.resolve("A"))

    assert asked.registry.resolve("A").state is PluginState.LOADED


def test_a_plugin_that_failed_to_import_and_left_nothing_behind_is_used_once_it_is_upgraded(
    packages,
):
    packages.install("epctx-a", "A", code="1 / 0")
    registry = Registry()
    with pytest.raises(PluginError):
        registry.load(registry.resolve("A"))
    packages.install("epctx-a", "A", version="1.0.1")

    registry.refresh()

    assert registry.load(registry.resolve("A")).name == "A"
    assert registry.resolve("A").version == "1.0.1"


def test_a_refresh_sees_what_was_installed_within_the_resolution_of_the_folders_clock(
    packages,
):
    registry = Registry()
    packages.install("epctx-a", "A")
    registry.load(registry.resolve("A"))
    before = packages.folder.stat()
    packages.install("epctx-b", "B")
    os.utime(packages.folder, ns=(before.st_atime_ns, before.st_mtime_ns))

    registry.refresh()

    assert registry.load(registry.resolve("B")).name == "B"


def test_an_answer_about_availability_does_not_bring_back_what_was_removed_meanwhile(
    packages,
):
    packages.install("epctx-a", "A")
    registry = Registry()

    @classmethod
    def availability(cls, purpose):
        packages.uninstall("epctx-a")
        registry.refresh()
        return Availability(True)

    registry.load(registry.resolve("A")).availability = availability
    answer = registry.availability(registry.resolve("A"), Purpose.RUN)

    assert answer.available
    assert [record.state for record in registry.records()] == [PluginState.REMOVED]
