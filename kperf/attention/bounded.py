"""What is made once and kept while there is room: plans of calls, descriptors."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dictionary of at most so many entries. A full one is emptied: what it lacks is made anew.

    To look up is as fast as in any. Two threads may pass the limit together; the next entry restores it.
    """

    def __init__(self, most: int) -> None:
        """Empty."""
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        """In the place of all entries where there is no room."""
        if len(self) >= self.most:
            self.clear()
        super().__setitem__(key, value)
