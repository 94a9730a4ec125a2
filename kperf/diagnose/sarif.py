"""Findings as SARIF 2.1.0 (OASIS), which editors and code hosting show at the line."""

from pathlib import Path
from typing import Any

from kperf import __version__
from kperf.arch import KNOWN
from kperf.diagnose.finding import Diagnoses
from kperf.diagnose.rule import all_rules
from kperf.trace.analyze.finding import Finding

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"high": "error", "medium": "warning", "low": "note"}


def sarif(found: Diagnoses) -> dict[str, Any]:
    """One run, with every rule and a result a finding."""
    rules = all_rules()
    places = {rule.id: place for place, rule in enumerate(rules)}
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kperf",
                        "version": __version__,
                        "rules": [
                            {"id": rule.id, "shortDescription": {"text": _title(rule.title, found)}} for rule in rules
                        ],
                    }
                },
                "results": [_result(finding, places) for one in found.kernels for finding in one.findings],
            }
        ],
    }


def _title(title: str, found: Diagnoses) -> str:
    """A rule's title in the words of the kernels' GPU; in NVIDIA's where they are of several, or none is known."""
    targets = {one.target for one in found.kernels}
    archs = [arch for arch in KNOWN if {arch.name} == targets]
    text = archs[0].in_its_words(title) if archs else title
    return text[0].upper() + text[1:] if title[0].isupper() else text


def _result(finding: Finding, places: dict[str, int]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.id,
        "ruleIndex": places[finding.id],
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}; {finding.advice}"},
        "properties": {
            "kernel": finding.kernel,
            "confidence": finding.confidence,
            "evidence": finding.evidence,
        },
    }
    if finding.estimate is not None:
        result["properties"]["estimatedSpeedup"] = finding.estimate.speedup
    if finding.witness is not None:
        result["properties"]["witness"] = finding.witness.model_dump()
    if finding.checked is not None:
        result["properties"]["checked"] = finding.checked.model_dump()
    if finding.tried:
        result["properties"]["measured"] = [
            {"change": one.change, "speedup": one.speedup, "low": one.low, "high": one.high, "write": one.write}
            for one in finding.tried
        ]
    if finding.source.file and finding.source.line:
        result["locations"] = [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.source.file)},
                    "region": {"startLine": finding.source.line},
                },
                "logicalLocations": [{"name": finding.source.function or finding.kernel, "kind": "function"}],
            }
        ]
    return result


def _uri(file: str) -> str:
    """Relative to the working folder where the file lies in it, as code hosting wants it."""
    path = Path(file)
    if not path.is_absolute():
        return path.as_posix()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.as_uri()
