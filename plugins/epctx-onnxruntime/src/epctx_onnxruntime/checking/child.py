"""A campaign's cases in a process that they may end."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from epctx_onnxruntime.checking.result import Result

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case


class Catalogue:
    """Cases and routes by name, for children to find; an attribute of a module.

    Args:
        suites: functions that give cases by name; called when one of theirs, or one of
            a later suite, is first looked for. No two suites have a case of one name.
        routes: all routes, each with its EPs' name `eps`, the way `through` and
            `str`, which is both, such as "qnn.file".
        run: runs a case on a route.
    """

    def __init__(
        self,
        suites: Mapping[str, Callable[[], Mapping[str, Case]]],
        routes: Iterable[Any],
        run: Callable[[Case, Any], Result],
    ) -> None:
        self.suites = {name: cache(load) for name, load in suites.items()}
        self.routes = {str(route): route for route in routes}
        self.run = run

    def find(self, name: str) -> Case:
        """Return a case.

        Raises:
            KeyError: no suite has it.
        """
        for load in self.suites.values():
            if case := load().get(name):
                return case
        raise KeyError(name)


@cache
def load_catalogue(name: str) -> Catalogue:
    """Import a catalogue by "module:attribute"."""
    module, _, attribute = name.partition(":")
    catalogue: Catalogue = getattr(importlib.import_module(module), attribute)
    return catalogue


def run_task(catalogue: str, case: str, route: str) -> Result:
    """Run a case on a route; both are found by name in a catalogue."""
    _prepare()
    found = load_catalogue(catalogue)
    try:
        with _use_folder():
            return found.run(_find_case(catalogue, case), found.routes[route])
    except Exception as error:  # noqa: BLE001 - of a case that cannot be made
        return Result(case=case, route=route, outcome="crashed", reason=repr(error))


@lru_cache(maxsize=1)
def _find_case(catalogue: str, name: str) -> Case:
    case = load_catalogue(catalogue).find(name)
    return replace(case, model=cache(case.model), data=cache(case.data))


@cache
def _prepare() -> None:
    """Keep the process quiet, and leave it to the system when to write: no case cuts
    the power, and disks are slow.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Cases run in other folders.
    sys.path[:] = map(os.path.abspath, sys.path)
    os.fsync = lambda fd: None  # noqa: ARG005 - the system's signature
    warnings.simplefilter("ignore")
    logging.getLogger("epctx").setLevel(logging.CRITICAL)
    if find_spec("onnxruntime"):
        import onnxruntime

        onnxruntime.set_default_logger_severity(4)


@contextmanager
def _use_folder() -> Iterator[None]:
    """Work in a folder that goes with its case, as some EPs write into it; temporary
    files and receipts are there, too, as these are listed at each new one.
    """
    outer = tempfile.tempdir
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        chdir(folder),
    ):
        tempfile.tempdir = folder
        os.environ["EPCTX_RECEIPTS"] = f"{folder}/receipts"
        try:
            yield
        finally:
            tempfile.tempdir = outer
