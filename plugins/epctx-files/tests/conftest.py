"""Fixtures of these tests."""

from support.signatures import keys  # noqa: F401 - a fixture
