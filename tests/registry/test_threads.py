"""A registry that many threads use at once while one refreshes it."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from registry.providers import ep

from epctx_core import Registry
from epctx_core.plugin import Purpose

ROUNDS = 30


def test_threads_that_ask_register_and_refresh_at_once_never_see_half_a_registry(
    packages,
):
    packages.install("epctx-a", "A", sources=["Alfa"])
    packages.install("epctx-b", "B", code="1 / 0")
    registry = Registry()
    registry.register(ep("Draft"))

    threads = [
        lambda: ask(registry),
        lambda: load(registry),
        lambda: load(registry),
        lambda: register(registry, ep("X")),
        lambda: register(registry, ep("Y")),
        registry.refresh,
    ]
    start = threading.Barrier(len(threads))

    def run(work):
        start.wait(10)
        for _ in range(ROUNDS):
            work()

    with ThreadPoolExecutor(len(threads)) as pool:
        for done in [pool.submit(run, work) for work in threads]:
            done.result(60)

    assert registry.available() == ["A", "B", "Draft", "CPUExecutionProvider"]


def ask(registry):
    assert {"A", "Draft", "CPUExecutionProvider"} <= set(registry.available())
    assert {record.name for record in registry.records()} >= {"A", "B", "Draft"}


def load(registry):
    assert registry.load(registry.resolve("Draft")).name == "Draft"
    assert registry.availability(registry.resolve("A"), Purpose.RUN).available
    assert registry.route("Alfa").name == "A"


def register(registry, cls):
    with registry.temporary(cls):
        assert registry.load(registry.resolve(cls.name)) is cls


class Finder:
    """Finder of Python whose table another thread changes while it is walked, once."""

    asked = 0

    def find_spec(self, *_):
        return None

    def invalidate_caches(self):
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError("dictionary changed size during iteration")


def test_a_refresh_outlasts_an_import_in_another_thread(monkeypatch):
    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])

    Registry().refresh()

    assert finder.asked == 2
