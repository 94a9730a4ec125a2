"""Read a timeline from disk, of this version or an earlier one."""

from pathlib import Path

from pydantic import ValidationError

from kperf.errors import UsageError, first_line
from kperf.record.files import from_json_once, read_regular
from kperf.record.store import first_of
from kperf.trace.analyze import version2, version3, version4, version5, version6
from kperf.trace.analyze.facts import concluded, recorded_by
from kperf.trace.analyze.models import Timeline

_UPGRADES = {2: version2.upgrade, 3: version3.upgrade, 4: version4.upgrade, 5: version5.upgrade, 6: version6.upgrade}
"""What makes the next version of a record of each."""


def read_timeline(path: Path) -> Timeline:
    """Read and validate a timeline; one of version 2 is judged anew, without sentences.

    Raises `UsageError` if it is missing, or not a timeline.
    """
    try:
        content = from_json_once(read_regular(path))
        version = content.get("schema_version") if isinstance(content, dict) else None
        upgraded = content
        for number, upgrade in _UPGRADES.items():
            if isinstance(version, int) and 2 <= version <= number:
                upgraded = upgrade(upgraded)
        timeline = Timeline.model_validate(upgraded)
        if version == 2:
            return concluded(timeline, version2.unit_cycles(content))
        return timeline.model_copy(update={"recorded_by": recorded_by(timeline)}) if version in _UPGRADES else timeline
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} is missing: a run on a Hopper GPU records it") from None
    except ValidationError as error:
        why = first_of(error)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        why = first_line(error)
    raise UsageError(f"{path} is not a timeline ({why}); record it again")
