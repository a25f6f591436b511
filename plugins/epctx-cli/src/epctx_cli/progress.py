"""Progress of a command; `progress_line` shows it, and imports rich."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx_core import SessionOptions


class Progress:
    """Progress that is not shown.

    Call it as `progress(stage, done, total)`; a total of 0 says that `done` are bytes,
    of a number that is not known.
    """

    def __call__(
        self,
        stage: str,
        done: int,
        total: int,
        *,
        unit: str = "",
        notes: Sequence[str] = (),
        seconds_left: float | None = None,
    ) -> None:
        """Note how far a stage is.

        Args:
            stage: its name.
            done, total: how much is done of how much; a total of 0 if it is not known.
            unit: that of both; "bytes" are shown as sizes, and with their speed.
            notes: what else there is to say, such as "3 failed".
            seconds_left: the time that is left, if you can estimate it better than
                from `done` of `total`; `math.inf` while you cannot say.
        """

    def watch(self, *options: SessionOptions) -> None:
        """Show the stages of sessions and compiles with these options.

        Runs that are not shown keep their speed: nothing is added then.
        """

    def hidden(self) -> AbstractContextManager[None]:
        """Leave the terminal to the block, which writes something else."""
        return nullcontext()
