"""A child of a campaign: `python -m epctx_onnxruntime.checking.child` runs the tasks on
stdin, a line of JSON for each result.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from epctx_onnxruntime.checking.campaign import load_catalogue
from epctx_onnxruntime.checking.result import Result

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case


def main() -> None:
    """Run what is asked for."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    asked = json.load(sys.stdin)
    sys.path[:] = asked["path"]
    _silence()
    catalogue = load_catalogue(asked["catalogue"])
    find: Callable[[str], Case] = lru_cache(maxsize=1)(
        lambda name: _cache_data(catalogue.find(name))
    )
    os.fsync = _do_not_sync
    direct = Result(case="", route="", outcome="")
    print("ready", file=lines, flush=True)
    for name, name_of_route in asked["tasks"]:
        case = find(name)
        route = catalogue.routes[name_of_route]
        faulthandler.dump_traceback_later(asked["seconds"], exit=True)
        with _use_folder():
            result = _skip_route(route, direct, name) or catalogue.run(case, route)
        direct = result if route.through == "direct" else direct
        print(json.dumps(result.as_dict()), file=lines, flush=True)
    faulthandler.cancel_dump_traceback_later()


def _do_not_sync(fd: object) -> None:
    """Leave it to the system when to write: no case cuts the power, and disks are
    slow.
    """


@contextmanager
def _use_folder() -> Iterator[None]:
    """Have temporary files and receipts in a folder that goes with its case: receipts
    are listed at each new one.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outer = tempfile.tempdir
        tempfile.tempdir = folder
        os.environ["EPCTX_RECEIPTS"] = f"{folder}/receipts"
        try:
            yield
        finally:
            tempfile.tempdir = outer


def _silence() -> None:
    logging.getLogger("epctx").setLevel(logging.CRITICAL)
    if find_spec("onnxruntime"):
        import onnxruntime

        onnxruntime.set_default_logger_severity(4)


def _cache_data(case: Case) -> Case:
    return replace(case, model=cache(case.model), data=cache(case.data))


def _skip_route(route: Any, direct: Result, name: str) -> Result | None:
    """Return the result of a route over a context model that would have no payload."""
    ran = direct.outcome in {"passed", "wrong", "unclaimed"} and not direct.claimed
    if (
        ran
        and route.through != "direct"
        and (direct.case, direct.route) == (name, f"{route.eps}.direct")
    ):
        return Result(case=name, route=str(route), outcome="unclaimed")
    return None


if __name__ == "__main__":
    main()
