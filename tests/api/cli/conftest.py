"""Fixtures of `tests/api/cli`."""

from cli.fixtures import (  # noqa: F401 - fixtures
    _compiled_once,
    compiled,
    distribution,
    epctx,
    model,
    process,
    resnet,
    site,
)
