"""EP that errors and the start page name as an example; imports no plugin."""

from __future__ import annotations

from epctx_core.ext import known_ep


def choose_example() -> str | None:
    """Return the short name of an EP for an example of a command, such as `QNN`; None
    if no usable one is installed.

    A name that onnxruntime knows goes before others, then the alphabet decides. EPs
    that are known to be broken, disabled or unavailable are left out; none is imported
    to find out.
    """
    from epctx_core import plugins

    record = min(
        (each for each in plugins() if each.usable or each.undecided),
        key=lambda each: (known_ep(each.name) is None, each.name),
        default=None,
    )
    return record.name.removesuffix("ExecutionProvider") if record else None
