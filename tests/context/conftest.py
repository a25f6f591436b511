"""Fixtures of these tests."""

from support.out_of_form import context_model  # noqa: F401 - a fixture
