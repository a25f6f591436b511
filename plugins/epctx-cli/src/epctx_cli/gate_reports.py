"""Reports of `epctx gate` for CI: JUnit XML, SARIF, and a comment in Markdown.

Names out of models are foreign text in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from urllib.parse import quote
from xml.etree import ElementTree as ET

from epctx_cli.gate_results import PASSED, REGRESSED, UNDECIDED, GateResult
from epctx_core.errors import one_line


def list_lines(result: GateResult, *, verbose: bool = False) -> list[str]:
    """Return the result in lines: what changed, each regression with the command that
    shows more, then versions that changed, and a summary.
    """
    lines = []
    for check in result.checks:
        if verbose or check.status != PASSED:
            lines.append(f"{check.status}: {check.message}")
        if check.status == REGRESSED:
            lines.append(f"  {check.command}")
    return [*lines, *result.changes, result.summary]


def make_junit(result: GateResult) -> str:
    """Return a suite of JUnit with a test case for each check."""
    tags = {REGRESSED: "failure", UNDECIDED: "skipped"}
    suite = ET.Element("testsuite", name=one_line(f"epctx gate {result.model}"))
    for check in result.checks:
        kind, _, subject = check.name.partition(" ")
        case = ET.SubElement(
            suite,
            "testcase",
            classname=one_line(f"epctx.gate.{kind}"),
            name=one_line(subject),
        )
        inner = ET.SubElement(case, tags.get(check.status, "system-out"))
        inner.text = "\n".join([check.message, *result.changes, check.command])
        if check.status in tags:
            inner.set("message", check.message)
    suite.set("tests", f"{len(suite)}")
    suite.set("failures", f"{len(suite.findall('*/failure'))}")
    suite.set("skipped", f"{len(suite.findall('*/skipped'))}")
    ET.indent(suite)
    return f"{ET.tostring(suite, encoding='unicode')}\n"


def make_sarif(result: GateResult) -> str:
    """Return a log of SARIF 2.1.0 with a result for each regression."""
    # Readers of code show it at a line of a text file, which the model is not.
    location = {
        "artifactLocation": {"uri": quote(result.baseline)},
        "region": {"startLine": 1},
    }
    results = [
        {
            "ruleId": f"gate/{check.name.partition(' ')[0]}",
            "level": "error",
            "message": {
                "text": ". ".join([check.message, *result.changes, check.command])
            },
            "locations": [{"physicalLocation": location}],
            "partialFingerprints": {"check": check.name},
        }
        for check in result.checks
        if check.status == REGRESSED
    ]
    run = {"tool": {"driver": {"name": "epctx gate"}}, "results": results}
    return f"{json.dumps({'version': '2.1.0', 'runs': [run]}, indent=2)}\n"


def make_markdown(result: GateResult) -> str:
    """Return a comment, in which the report is code: no name out of a model has an
    effect there.
    """
    verdict = "passed" if result.passed else "failed"
    lines = [f"### epctx gate: {verdict}\n", *list_lines(result)]
    return "\n    ".join(lines) + "\n"


MAKERS: Mapping[str, Callable[[GateResult], str]] = {
    ".xml": make_junit,
    ".sarif": make_sarif,
    ".md": make_markdown,
}
"""Form of a report by the ending of its file."""
