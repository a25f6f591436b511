"""Options of calls of `run`, and how a wish to stop reaches what a run waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epctx_core.errors import InvalidArgument
from epctx_core.options.strict import WITHOUT_EFFECT, Strict, log_without_effect


class RunOptions(Strict):
    """Options of calls of `run`; one object may serve several calls at the same time.

    Attributes:
        tag: what EPs hear about a run; onnxruntime's Python API calls it `logid`.
    """

    __slots__ = (*WITHOUT_EFFECT["RunOptions"], "_entries", "_followers", "_terminate", "tag")

    def __init__(self) -> None:
        self.tag = ""
        self._terminate = False
        self._followers: dict[object, Any] = {}
        self._entries: dict[str, str] = {}
        for name, (default, _) in WITHOUT_EFFECT["RunOptions"].items():
            setattr(self, name, default)

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

    def follow(self, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, one object for each `make`; its `terminate` is kept as this one's is."""
        follower = self._followers.get(make)
        if follower is None:
            follower = self._followers.setdefault(make, make())
            # Only this way round: another thread may have set it in between, on both.
            if self._terminate:
                follower.terminate = True
        return follower

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry that only tunes a run; none changes what a run does.

        Raises:
            InvalidArgument: key or value is not text, or the entry would change results.
        """
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument(f"a run option's key and value are text, not {key!r:.80}, {value!r:.80}.")
        if "lora" in key:
            raise InvalidArgument(
                f"the run option {key!r} is not supported by epctx: LoRA adapters are not applied to what an EP compiled.",
                hint="Leave it out, or compile the model with the adapter's weights.",
            )
        log_without_effect(
            f"the run option {key!r}", "no run option but terminate and tag changes what a run does"
        )
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry that was added.

        Raises:
            InvalidArgument: it was not.
        """
        if key not in self._entries:
            raise InvalidArgument(
                f"the run option {key!r} was never set.", hint="Add it with add_run_config_entry."
            )
        return self._entries[key]

    @property
    def logid(self) -> str:
        """The tag."""
        return self.tag

    @logid.setter
    def logid(self, text: str) -> None:
        self.tag = text
