"""How figures draw an implementation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """A bar's colour, any that matplotlib knows, and its hatch, which tells bars apart in grey print too.

    The colours in use are Okabe and Ito's, told apart with any colour vision.
    """

    colour: str
    hatch: str = ""
