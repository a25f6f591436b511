"""`make zoo`: all models that today's exporters make for the zoo, on every route.

The exporters get an environment of their own. The numbers go into docs/conformance.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
sys.path[:0] = [str(TESTS), str(TESTS / "api")]

from conformance.documented_numbers import write_block  # noqa: E402 - found by the path
from zoo.scripts import header, list_scripts  # noqa: E402 - as above
from zoo.taking import take  # noqa: E402 - as above

ROOT = TESTS.parent
ENVIRONMENT = ROOT / ".venv-zoo"
MADE = ROOT / ".zoo"
EPS = {
    "qnn": "QNN, simulated",
    "openvino": "OpenVINO, simulated",
    "vitisai": "VitisAI, simulated",
    "all": "all three",
}


def make_models() -> Path:
    """Have each script whose exporters fit into one environment make its models; return
    the folder, which has the committed ones of the others, too.
    """
    scripts = list_scripts(together=True)
    needed = sorted({d for s in scripts for d in header(s)["dependencies"]})
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text("utf-8")) != needed:
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        (ENVIRONMENT / ".gitignore").write_text("*\n", "utf-8")
        install = [python, "-m", "pip", "install", "--quiet", *needed]
        subprocess.run(install, check=True)
        stamp.write_text(json.dumps(needed), "utf-8")

    folder = MADE / "models"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in (HERE / "models").iterdir():
        shutil.copy(path, folder)
    for script in scripts:
        sys.stdout.write(f"{script.name}\n")
        sys.stdout.flush()
        subprocess.run(
            [python, "-W", "ignore", script, folder],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
    return folder


def main() -> int:
    """Make the models, take them on all routes, write the numbers; return 1 if one is
    wrong.
    """
    models = make_models()
    rows = []
    wrong: list[str] = []
    for route in (
        "plain",
        *(f"{kind}:{ep}" for ep in EPS for kind in ("compile", "load")),
    ):
        kind, _, ep = route.partition(":")
        outcomes = take(route, models, MADE / (ep or "plain"))
        bad = [o for o in outcomes if o["problems"]]
        wrong += [f"{route}: {o['name']}: {p}" for o in bad for p in o["problems"]]  # type: ignore[attr-defined]
        taken = sum(bool(o.get("taken")) for o in outcomes) if kind == "compile" else ""
        what = {"plain": "CPU EP", "compile": f"{EPS.get(ep)}: session, file, embedded"}
        rows.append(
            f"| {what.get(kind, f'{EPS.get(ep)}: loaded in another process')} | "
            f"{len(outcomes) - len(bad)} | {len(bad)} | {taken} |"
        )
    table = "\n".join(
        ["| route | right | wrong | an EP took nodes |", "|---|---|---|---|", *rows]
    )
    write_block("zoo", f"{len(list(models.glob('*.onnx')))} models.\n\n{table}\n")
    sys.stdout.write("\n".join([table, *wrong, ""]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
