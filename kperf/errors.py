"""The two ways in which a command ends badly; `cli` turns each into one sentence on stderr and an exit status."""


class UsageError(Exception):
    """Something a person did or asked for is wrong; the message is one sentence with the fix. Exit status 2."""


class MeasurementError(Exception):
    """A measurement or a check failed; the message is one sentence that says which. Exit status 1."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind, where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip() if lines else type(error).__name__


def kind_and_line(error: BaseException, most: int | None = None) -> str:
    """The kind of an error and the first line of what it says, at most `most` characters of it; or the kind alone."""
    kind = type(error).__name__
    return f"{kind}: {first_line(error)[:most]}" if str(error).strip() else kind


def root_cause(error: BaseException) -> str:
    """The kind and the first line of the error from which this one came."""
    while error.__cause__ is not None:
        error = error.__cause__
    return kind_and_line(error)
