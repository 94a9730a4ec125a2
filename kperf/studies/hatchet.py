"""Proton's `.hatchet` files: a tree of frames with metrics, read and checked, printed on the console, and subtracted.

The format is Proton's (Triton 3.6): a list of the root and of the devices, [{frame: {name, type}, metrics, children},
{CUDA: {"0": {arch, num_sms, ...}}}]. `proton-viewer` reads the same files; it wants the packages llnl-hatchet and
pandas.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json
from rich.text import Text
from rich.tree import Tree as RichTree

from kperf.errors import UsageError, first_line
from kperf.record.store import first_of

Column = Callable[["Tree"], str]
"""What a column says of a frame."""
METADATA = "__proton_launch_metadata"
"""The frame under which Proton puts kernels that the metadata function itself launches."""
TIME = "time (ns)"


class _Frame(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str


class _Node(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    frame: _Frame
    metrics: dict[str, float | str]
    children: list["_Node"] = Field(default_factory=list)


@dataclass(frozen=True)
class Tree:
    """A frame: its own numbers by metric, what else is known of it (`device_id`), and the frames below."""

    name: str
    metrics: dict[str, float]
    children: list["Tree"] = field(default_factory=list)

    def child(self, name: str) -> "Tree":
        """The frame of that name right below. Raises `UsageError` if there is none."""
        for child in self.children:
            if child.name == name:
                return child
        raise UsageError(f"the profile has no {name} in {self.name}: the session saw nothing of it")

    def walk(self) -> Iterator["Tree"]:
        """This frame and all below."""
        yield self
        for child in self.children:
            yield from child.walk()

    def kernels(self) -> list["Tree"]:
        """All frames below, or this, that ran on the device."""
        return [frame for frame in self.walk() if TIME in frame.metrics and not frame.children]

    def total(self, metric: str) -> float:
        """Of this frame and all below; 0 if none has it."""
        return sum(frame.metrics.get(metric, 0.0) for frame in self.walk())


def compact(profile: bytes) -> bytes:
    """A profile without the white space that is most of it; what is no JSON stays for `read_tree` to refuse."""
    try:
        return json.dumps(json.loads(profile), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    except ValueError:
        return profile


def read_tree(path: Path) -> Tree:
    """The root of a profile. Raises `UsageError` if the file is missing or is none."""
    try:
        content = from_json(path.read_bytes())
        if not isinstance(content, list) or not content:
            raise ValueError("it is no list of a root and devices")
        return _tree(_Node.model_validate(content[0]))
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: `make proton` on a Hopper GPU records it") from None
    except ValidationError as error:
        why = first_of(error)
    except (OSError, ValueError, RecursionError) as error:
        why = first_line(error)
    raise UsageError(f"{path} is no profile of Proton's ({why}); record it again")


def _tree(node: _Node) -> Tree:
    numbers = {name: value for name, value in node.metrics.items() if not isinstance(value, str)}
    return Tree(node.frame.name, numbers, [_tree(child) for child in node.children if child.frame.name != METADATA])


def rendered(tree: Tree, columns: Sequence[Column]) -> RichTree:
    """For the console: what each column makes of a frame, and its name; a frame in which nothing ran is dim."""
    ran = tree.total(TIME) != 0
    made = RichTree(Text("  ".join([*(f"{column(tree):>9}" for column in columns), tree.name]), "" if ran else "dim"))
    for child in sorted(tree.children, key=lambda frame: -frame.total(TIME)):
        made.add(rendered(child, columns))
    return made


def subtract(left: Tree, right: Tree) -> Tree:
    """Each frame's numbers less those of the frame of the same name in the same place; what one lacks counts as 0."""
    names = dict.fromkeys([*left.metrics, *right.metrics])
    metrics = {name: left.metrics.get(name, 0.0) - right.metrics.get(name, 0.0) for name in names}
    of_left, of_right = ({child.name: child for child in tree.children} for tree in (left, right))
    none = Tree("", {})
    children = [
        subtract(of_left.get(name, none), of_right.get(name, none)) for name in dict.fromkeys([*of_left, *of_right])
    ]
    return Tree(left.name or right.name, metrics, children)
