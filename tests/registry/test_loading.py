"""Loading: a plugin is imported once, checked, and whatever it raises becomes one typed error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from epctx_core.errors import PluginError
from epctx_core.plugin import Availability, Purpose
from epctx_core.registry import PluginState, Registry


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
        ("import library_that_is_missing", "ModuleNotFoundError: No module named 'library_that_is_missing'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit()", "SystemExit"),
        ("raise BaseException('odd')", "BaseException: odd"),
        ("raise StopIteration", "StopIteration"),
        ("def broken(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "failed to import: E"),
        ("", "AttributeError"),
    ],
)
def test_whatever_an_import_raises_is_a_plugin_error_with_its_cause(packages, code, why):
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
        ("Provider = 7", "not a subclass"),
        ("class Provider: name = 'A'", "not a subclass"),
        (
            "from epctx_core.plugin import ExecutionProvider\nclass Provider(ExecutionProvider): name = 'A'",
            "the required hook get_capability is missing; the required hook compile is missing",
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
    assert "Upgrade epctx-core" in error.hint
    assert registry.records()[0].state is PluginState.API_TOO_NEW


def test_a_plugin_is_imported_once_however_many_threads_ask(packages, tmp_path):
    log = tmp_path / "imports"
    code = f"import time\nwith open({str(log)!r}, 'a') as f: f.write('x')\ntime.sleep(0.05)\n1 / 0\n"
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


def test_a_plugin_that_asks_the_registry_from_a_thread_while_it_is_imported_does_not_hang(packages):
    registry = Registry()
    packages.install(
        "epctx-a",
        "A",
        code="import threading, epctx_a_registry as r\n"
        "t = threading.Thread(target=r.ask, daemon=True)\nt.start()\nt.join(5)\nassert r.answers\n"
        "from epctx_a_real import Provider\n",
    )
    packages.install("epctx-a-real", "A2", body='    name = "A"\n')
    packages.write_module(
        "epctx_a_registry", "answers = []\nregistry = None\ndef ask(): answers.append(registry.records())"
    )
    import epctx_a_registry

    epctx_a_registry.registry = registry

    assert registry.load(registry.resolve("A")).name == "A"


def test_a_record_that_is_not_known_any_more_can_not_be_loaded(packages):
    packages.install("epctx-a", "A")
    registry = Registry()
    record = registry.resolve("A")
    packages.uninstall("epctx-a")
    registry.refresh()

    with pytest.raises(PluginError, match="not known any more"):
        registry.load(record)


AVAILABILITY = """
    here = False
    @classmethod
    def availability(cls, purpose):
        from epctx_core.plugin import Availability
        return Availability(cls.here or purpose.value == "export", reason="no NPU driver")
"""


def test_an_ep_that_lacks_its_device_is_unavailable_with_its_reason_and_stays_usable(packages):
    packages.install("epctx-a", "A", body=AVAILABILITY)
    registry = Registry()

    answer = registry.availability(registry.resolve("A"), Purpose.RUN)

    assert answer == Availability(False, reason="no NPU driver")
    assert registry.resolve("A").state is PluginState.UNAVAILABLE
    assert registry.resolve("A").reason == "not available for run: no NPU driver"
    assert registry.availability(registry.resolve("A"), Purpose.EXPORT).available
    assert registry.resolve("A").state is PluginState.LOADED


@pytest.mark.parametrize(
    ("answer", "why"), [("True", "bool"), ("1 / 0", "ZeroDivisionError"), ("exit(1)", "SystemExit")]
)
def test_an_ep_that_answers_wrongly_about_availability_is_a_plugin_error(packages, answer, why):
    body = f"    @classmethod\n    def availability(cls, purpose):\n        return {answer}\n"
    packages.install("epctx-a", "A", body=body)
    registry = Registry()

    with pytest.raises(PluginError, match=why) as caught:
        registry.availability(registry.resolve("A"), Purpose.RUN)

    assert caught.value.hook == "availability"
