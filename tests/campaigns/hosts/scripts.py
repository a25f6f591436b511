"""The programs' scripts, and what their first comments say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.scripts import header

FOLDER = Path(__file__).parent / "programs"


@dataclass(frozen=True, kw_only=True)
class Host:
    """A program that runs networks by onnxruntime, and a script that uses it.

    Attributes:
        script: the script. Its one argument is the file for its answers, as JSON.
        package: the program's distribution.
        dependencies: what pip installs for the script.
        does: what the program is for.
        networks: patterns of the files in the environment that are its networks.
        compiler: a simulated EP that compiles them for the way through context models.
        plugins: packages of this repository that it needs besides those of all.
        writes: what writes context models in the script's own process.
    """

    script: Path
    package: str
    dependencies: Sequence[str]
    does: str
    networks: Sequence[str] = ()
    compiler: str = ""
    plugins: Sequence[str] = ()
    writes: str = ""

    @property
    def name(self) -> str:
        """The script's name, which `make hosts HOSTS=...` takes."""
        return self.script.stem


def list_hosts() -> dict[str, Host]:
    """Return the programs by the names of their scripts."""
    hosts = {}
    for script in sorted(FOLDER.glob("*.py")):
        said = header(script)
        hosts[script.stem] = Host(
            script=script, dependencies=said["dependencies"], **said["tool"]["hosts"]
        )
    return hosts
