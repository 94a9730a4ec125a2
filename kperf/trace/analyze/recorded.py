"""Read a timeline from disk, of this version or an earlier one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kperf.errors import UsageError
from kperf.record.store import first_of
from kperf.trace.analyze import version2
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.verdict import concluded

Upgrade = Callable[[dict[str, Any], Path], dict[str, Any]]
"""Makes of a record of version 1, from a file, one of version 2. Raises what reading a wrong file raises."""


def read_timeline(path: Path, upgrade: Upgrade | None = None) -> Timeline:
    """Read and validate a timeline, of version 1 by `upgrade`; it is judged anew.

    Raises `UsageError` if it is missing, or not a timeline.
    """
    try:
        found = json.loads(path.read_text())
        version = found.get("schema_version") if isinstance(found, dict) else None
        if upgrade is not None and version == 1:
            found, version = upgrade(found, path), 2
        if version == 2:
            return concluded(Timeline.model_validate(version2.upgrade(found)), version2.unit_cycles(found))
        return Timeline.model_validate(found)
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} is missing: a run on a Hopper GPU records it") from None
    except ValidationError as error:
        why = first_of(error)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
    raise UsageError(f"{path} is not a timeline ({why}); record it again")
