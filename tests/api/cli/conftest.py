"""Fixtures of `tests/api/cli`."""

from cli.fixtures import _compiled_once, compiled, epctx, model, process, resnet, site  # noqa: F401 - fixtures
