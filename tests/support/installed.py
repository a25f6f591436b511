"""Distributions in a folder, as pip would leave them there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def install_distribution(
    folder: Path,
    name: str,
    entries: Mapping[str, Mapping[str, str]],
    *,
    version: str = "1.0",
    fields: Iterable[str] = (),
) -> Path:
    """Write the metadata of a distribution; return their folder.

    Args:
        folder: made, if it is missing.
        name: of the distribution.
        entries: group of entry points to their names and values.
        version: of the distribution.
        fields: further lines of its METADATA.
    """
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    head = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}")
    (info / "METADATA").write_text("\n".join([*head, *fields, ""]))
    if entries:
        (info / "entry_points.txt").write_text(
            "".join(
                f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items())
                for group, names in entries.items()
            )
        )
    return info
