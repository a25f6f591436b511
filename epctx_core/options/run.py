"""Options of calls of `run`, with their cancellation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epctx_core.errors import InvalidArgument
from epctx_core.options.strict import CHECKED, Strict, log_without_effect


class RunOptions(Strict):
    """Options of calls of `run`; one object may serve several calls at the same time.

    Attributes:
        tag: text that EPs get with a run; `logid` in onnxruntime's Python API.
    """

    __slots__ = (
        *CHECKED["RunOptions"],
        "_entries",
        "_followers",
        "_terminate",
        "tag",
    )

    def __init__(self) -> None:
        self.tag = ""
        self._terminate = False
        self._followers: dict[object, Any] = {}
        self._entries: dict[str, str] = {}
        for name, (default, _) in CHECKED["RunOptions"].items():
            setattr(self, name, default)

    @property
    def terminate(self) -> bool:
        """True stops the calls that use this object; may be set from any thread.

        A call stops between two steps of its plan, also within subgraphs, and between
        two operators of a group that onnxruntime runs. Calls that begin afterwards stop
        at once, until it is False again.
        """
        return self._terminate

    @terminate.setter
    def terminate(self, wanted: bool) -> None:
        self._terminate = bool(wanted)
        for follower in list(self._followers.values()):
            follower.terminate = self._terminate

    def follow(self, make: Callable[[], Any]) -> Any:
        """Return an object made by `make`, one for each `make`; its `terminate` follows
        this one's.
        """
        follower = self._followers.get(make)
        if follower is None:
            follower = self._followers.setdefault(make, make())
            # In this order: another thread may have set both in between.
            if self._terminate:
                follower.terminate = True
        return follower

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; none of those accepted changes the result of a run.

        Raises:
            InvalidArgument: key or value is not text, or the entry would change
                results.
        """
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument(
                f"a run option's key and value are text, not {key!r:.80}, "
                f"{value!r:.80}."
            )
        if "lora" in key:
            raise InvalidArgument(
                f"the run option {key!r} is not supported by epctx: LoRA adapters are "
                "not applied to what an EP compiled.",
                hint="Leave it out, or compile the model with the adapter's weights.",
            )
        log_without_effect(
            f"the run option {key!r}", "only terminate and tag have an effect on a run"
        )
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry that was added.

        Raises:
            InvalidArgument: it was not.
        """
        if key not in self._entries:
            raise InvalidArgument(
                f"the run option {key!r} was never set.",
                hint="Add it with add_run_config_entry.",
            )
        return self._entries[key]

    @property
    def logid(self) -> str:
        """The tag."""
        return self.tag

    @logid.setter
    def logid(self, text: str) -> None:
        self.tag = text
