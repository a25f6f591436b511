"""`make zoo`: all models that today's exporters make for the zoo, on every route.

The exporters get an environment of their own. The numbers go into zoo.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from conformance.documented_numbers import write_block
from zoo.making import MADE, make_models
from zoo.taking import take

EPS = {
    "qnn": "QNN, simulated",
    "openvino": "OpenVINO, simulated",
    "vitisai": "VitisAI, simulated",
    "all": "all three",
}


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
