"""Wheels by onnxruntime's packaging convention of plugin EPs, installed into a folder
as pip would leave them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MODULE = """
def get_library_path():
    return __file__

def get_ep_names():
    return ["{ep}"]
"""


def install_wheel(
    folder: Path, name: str, code: str, *, version: str = "1.2", listed: bool = True
) -> str:
    """Install the distribution `name` with one module of that name.

    Args:
        folder: the folder for packages.
        name: of the distribution.
        code: of the module.
        version: of the distribution.
        listed: whether `top_level.txt` names the module; RECORD does always.

    Returns:
        The import name of the module.
    """
    module = name.replace("-", "_")
    (folder / module).mkdir(parents=True, exist_ok=True)
    (folder / module / "__init__.py").write_text(code, encoding="utf-8")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "RECORD": f"{module}/__init__.py,,\n{info.name}/METADATA,,\n",
    }
    if listed:
        files["top_level.txt"] = f"{module}\n"
    for file, text in files.items():
        (info / file).write_text(text, encoding="utf-8")
    return module
