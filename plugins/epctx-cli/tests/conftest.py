"""Fixtures of the command line's tests."""

from support.cli_fixtures import (  # noqa: F401 - fixtures
    _compiled_once,
    compiled,
    distribution,
    epctx,
    model,
    process,
    resnet,
    site,
)
