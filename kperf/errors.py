"""The two ways in which a command ends badly; `cli` turns each into one sentence on stderr and an exit status."""


class UsageError(Exception):
    """Something a person did or asked for is wrong; the message is one sentence with the mend. Exit status 2."""


class MeasurementError(Exception):
    """A measurement or a check failed; the message is one sentence that says which. Exit status 1."""
