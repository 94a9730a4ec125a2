"""How figures draw an implementation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """A colour, any that matplotlib knows, a bar's hatch and a line's marker, which tell apart in grey print too.

    The colours in use are Okabe and Ito's, told apart with any colour vision.
    """

    colour: str
    hatch: str = ""
    marker: str = "o"
