"""The only import of `importlib_metadata`: what discovery reads about installed distributions."""

from __future__ import annotations

from typing import Any, Protocol

from importlib_metadata import EntryPoint, PackageNotFoundError, distribution, distributions

__all__ = ["EntryPoint", "InstalledDistribution", "PackageNotFoundError", "distribution", "distributions"]


class InstalledDistribution(Protocol):
    """What the library's and the standard library's distributions have in common, as far as it is used."""

    @property
    def name(self) -> str:
        """Name as the metadata spells it; raises where there is none."""

    @property
    def version(self) -> str:
        """Version as the metadata spells it; raises where there is none."""

    @property
    def entry_points(self) -> Any:
        """All entry points; raises where their file is malformed."""

    def read_text(self, filename: str) -> str | None:
        """Return a metadata file's text, or None if there is no such file."""
