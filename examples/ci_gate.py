"""A gate for a build: it fails if an EP loses nodes of a model, or if what the EP
compiled cannot be verified.

    python examples/ci_gate.py MODEL BASELINE [EP]

BASELINE is a JSON file beside the models, under version control. The first run writes
it; delete it to accept a loss.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def epctx(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Run a command of epctx; return its exit code and its JSON."""
    command = [sys.executable, "-m", "epctx_core", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    # 1 is a finding. Above it nothing was examined, and stderr says why.
    if done.returncode > 1:
        raise SystemExit(done.returncode)
    return done.returncode, json.loads(done.stdout)


def find_left(model: Path, ep: str) -> dict[str, str]:
    """Return the nodes that are left to the CPU EP, each with the reason."""
    _, explanation = epctx("explain", model, "--ep", ep)
    return {
        node["name"]: "; ".join(refusal["reason"] for refusal in node["refusals"])
        for node in explanation["nodes"]
        if node["ep"] == "CPUExecutionProvider"
    }


def verifies(model: Path, ep: str) -> bool:
    """Compile a model, and check every byte of what the EP wrote."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "gate_ctx.onnx"
        epctx("compile", model, "--ep", ep, "-o", output)
        code, _ = epctx("verify", output, "--strict")
    return code == 0


def main(model: Path, baseline: Path, ep: str = "QNN") -> int:
    """Compare with the baseline; return the exit code of the build."""
    left = find_left(model, ep)
    if not baseline.exists():
        baseline.write_text(json.dumps(sorted(left), indent=2) + "\n", "utf-8")
        print(f"wrote {baseline.name}: {len(left)} nodes are left to the CPU EP")

    lost = sorted(left.keys() - set(json.loads(baseline.read_text("utf-8"))))
    for name in lost:
        print(f"FAILED: {ep} does not take {name!r} any more: {left[name]}")
    if lost:
        return 1

    if not verifies(model, ep):
        print(f"FAILED: what {ep} compiled of {model.name} cannot be verified")
        return 1
    print(f"ok: {ep} takes what it took of {model.name}, and the result verifies")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
