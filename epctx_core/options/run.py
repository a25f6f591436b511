"""Options of calls of `run`, and how a wish to stop reaches what a run waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from epctx_core.options.unsupported import Strict


class Stoppable(Protocol):
    """What a run waits for, such as `onnxruntime.RunOptions`."""

    terminate: bool


S = TypeVar("S", bound=Stoppable)


class RunOptions(Strict):
    """Options of calls of `run`; one object may serve several calls at the same time.

    Attributes:
        tag: what EPs hear about a run; onnxruntime's Python API calls it `logid`.
    """

    __slots__ = ("_followers", "_terminate", "tag")

    def __init__(self) -> None:
        self.tag = ""
        self._terminate = False
        self._followers: dict[object, Any] = {}

    @property
    def terminate(self) -> bool:
        """Set it from any thread to stop the calls that use this object.

        Each stops between two steps of its plan, also within bodies, and inside a piece that onnxruntime runs
        between two operators. Calls that begin afterwards stop at once, until it is taken back.
        """
        return self._terminate

    @terminate.setter
    def terminate(self, wanted: bool) -> None:
        self._terminate = bool(wanted)
        for follower in list(self._followers.values()):
            follower.terminate = self._terminate

    def follow(self, make: Callable[[], S]) -> S:
        """Return what `make` gives, one object for each `make`; its `terminate` is kept as this one's is."""
        follower: S | None = self._followers.get(make)
        if follower is None:
            follower = self._followers.setdefault(make, make())
            # Only this way round: another thread may have set it in between, on both.
            if self._terminate:
                follower.terminate = True
        return follower

    @property
    def logid(self) -> str:
        """The tag."""
        return self.tag

    @logid.setter
    def logid(self, text: str) -> None:
        self.tag = text
