"""Results of commands: the dataclasses that describe what `--json` prints.

Most are those that the core and the packages work with.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from documentation.bench_results import BenchResult
from documentation.forms import NumberOfChecks
from epctx_batch import results as batch
from epctx_cache import results as cache
from epctx_cache.counters import CacheStatistics
from epctx_cli import gate_results, pages, plugin_results
from epctx_cli import results as cli
from epctx_cli.model_facts import ModelFacts
from epctx_conformance.report import ConformanceReport
from epctx_files.bundle import FilesReport
from epctx_files.difference import DiffReport
from epctx_files.folders import FolderReport, SealedFolder
from epctx_files.sealing import SealReport
from epctx_native_formats import commands as native
from epctx_report import results as report

from epctx_core import (
    CompileReport,
    Explanation,
    ModelInfo,
    ShareReport,
    VerifyReport,
)

PACKAGES: Mapping[str, Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "epctx-cli": {
            "error": (cli.ErrorResult,),
            "compile": (CompileReport, cli.CompileResult),
            "share": (ShareReport, cli.ShareResult),
            "run": (cli.RunResult,),
            "inspect": (
                ModelInfo,
                cli.InspectResult,
                ModelFacts | None,
                native.PayloadsResult | None,
            ),
            "verify": (VerifyReport, cli.VerifyResult),
            "explain": (Explanation, cli.ExplainResult),
            "compare": (cli.CompareResult,),
            "gate": (gate_results.GateResult,),
            "convert": (cli.ConvertResult,),
            "plugins list": (plugin_results.PluginsListResult,),
            "plugins info": (plugin_results.PluginsInfoResult,),
            "plugins new": (plugin_results.PluginsNewResult,),
            "doctor": (plugin_results.DoctorResult,),
            "docs": (pages.DocsResult,),
            "completion": (cli.CompletionResult,),
            "schema": (cli.SchemaResult,),
        },
        "epctx-files": {
            "merge": (FilesReport,),
            "extract": (FilesReport,),
            "embed": (FilesReport,),
            "externalize": (FilesReport,),
            "diff": (DiffReport,),
            "seal": (SealReport,),
            "seal folder": (SealedFolder,),
            "verify folder": (FolderReport,),
        },
        "epctx-native-formats": {
            "inspect binary": (native.BinaryResult,),
            "wrap": (FilesReport,),
        },
        "epctx-cache": {
            "cache ls": (cache.ListResult,),
            "cache stats": (CacheStatistics,),
            "cache lookup": (cache.LookupResult,),
            "cache why": (cache.WhyResult,),
            "cache verify": (cache.VerifyResult,),
            "cache gc": (cache.CollectionResult,),
            "cache clear": (cache.CollectionResult,),
        },
        "epctx-conformance": {"plugins check": (ConformanceReport, NumberOfChecks)},
        "epctx-report": {"report": (report.ReportResult,)},
        "epctx-bench": {"bench": (BenchResult,)},
        "epctx-batch": {
            "batch": (batch.BatchResult,),
            "batch show": (batch.ShowResult,),
        },
    }
)
"""By package and command the parts of a result, whose keys are side by side;
`error` is the result of any command that fails. `Class | None` is a part that may be
missing.
"""
