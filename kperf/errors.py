"""The two ways in which a command ends badly; `cli` turns each into one sentence on stderr and an exit status."""


class UsageError(Exception):
    """Something a person did or asked for is wrong; the message is one sentence with the mend. Exit status 2."""


class MeasurementError(Exception):
    """A measurement or a check failed; the message is one sentence that says which. Exit status 1."""


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind, where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip() if lines else type(error).__name__


def root_cause(error: BaseException) -> str:
    """The kind and the first line of the error from which this one came."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
