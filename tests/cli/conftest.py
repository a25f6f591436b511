"""The fixtures of `tests/api/cli`."""

from cli.conftest import _compiled_once, compiled, epctx, model, process, resnet, site  # noqa: F401 - fixtures
