"""Run somebody's script as `python` would: argv, folder, standard input, `__main__`, exceptions and exit status."""

import builtins
import gc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import threading
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from weakref import WeakSet

from kperf.errors import UsageError

INTERRUPTED = 130
"""Exit status of a script that Ctrl-C ends, as shells have it."""

Executor = ThreadPoolExecutor | ProcessPoolExecutor
"""Those of which `python` sees the end, with all that they were given to do."""


@dataclass(frozen=True)
class Script:
    """A file, or a module as `python -m` takes it, and the arguments that follow."""

    name: str
    arguments: tuple[str, ...]
    is_module: bool = False

    def check(self) -> None:
        """Raise `UsageError` if there is no such script."""
        if self.is_module:
            _find_module(self.name)
        elif not Path(self.name).is_file():
            raise UsageError(f"there is no script {self.name}: give the path of a Python file, or -m and a module")

    def run(self) -> int:
        """Run it to its end, or to its exit; returns the exit status that `python` would give.

        An exception that ends it is shown as `python` shows it: without a frame of this program.
        """
        before = list(sys.argv), list(sys.path)
        try:
            return _status_of(self._ended())  # a hook's own exception has no other as its context
        finally:
            sys.argv, sys.path = before

    def _ended(self) -> BaseException | None:
        """Run it; returns what ended it before its last line."""
        threads = set(threading.enumerate())
        executors = WeakSet(_executors(threads - {threading.main_thread(), threading.current_thread()}))
        try:
            with _objects_from_now_on():
                if self.is_module:
                    _run_module(self.name, self.arguments)
                else:
                    _run_file(self.name, self.arguments)
            _wait_for_threads(threads, executors)
        except BaseException as error:
            return error
        return None


@contextmanager
def _objects_from_now_on() -> Iterator[None]:
    """Within it, a search of all objects goes past those that there are already."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _find_module(name: str) -> None:
    # What `python -m` finds first; the folder comes off again, for the script itself puts it there.
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    finally:
        del sys.path[0]
    if spec is None:
        raise UsageError(f"there is no module {name} to run: -m takes a module's name, as python -m does")


def _run_file(name: str, arguments: Sequence[str]) -> None:
    path = Path(name)
    sys.argv[:] = [name, *arguments]
    _put_first(str(path.resolve().parent))
    main = ModuleType("__main__")
    main.__file__ = os.path.abspath(name)  # noqa: PTH100 (as python does: links are kept)
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
    main.__dict__.update(__spec__=None, __package__=None, __cached__=None)
    sys.modules["__main__"] = main
    exec(_compiled(main.__file__), main.__dict__)  # noqa: S102


def _compiled(path: str) -> CodeType:
    return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)


def _run_module(name: str, arguments: Sequence[str]) -> None:
    sys.argv[:] = [name, *arguments]
    _put_first(str(Path.cwd()))
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _put_first(folder: str) -> None:
    """The script's folder stands where ours stood."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _wait_for_threads(threads: Set[threading.Thread], executors: Set[Executor]) -> None:
    """Shut down executors and join threads, as `python` does before it ends; but for those given."""
    for executor in _executors(set(threading.enumerate()) - threads):
        if executor not in executors:
            executor.shutdown()
    for thread in threading.enumerate():
        if thread not in threads and not thread.daemon:
            thread.join()


def _executors(threads: Set[threading.Thread]) -> list[Executor]:
    """All that there are, if one of these threads can be theirs: the search is through millions of objects."""
    return [object_ for object_ in gc.get_objects() if issubclass(type(object_), Executor)] if threads else []


def _status_of(end: BaseException | None) -> int:
    if end is None:
        return 0
    if not isinstance(end, SystemExit):
        return _show(end)
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    for text in (end.code, "\n"):
        _say(text)
    return 1


def _show(error: BaseException) -> int:
    """Show it as `python` does, with whose words the script's own hook is told to have failed; returns the status."""
    error.__traceback__ = _theirs(error.__traceback__)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as end:
        return _status_of(end)
    except BaseException as hooks:
        for words, shown in (("Error in sys.excepthook:\n", hooks), ("\nOriginal exception was:\n", error)):
            _say(words)
            shown.__traceback__ = _theirs(shown.__traceback__)
            sys.__excepthook__(type(shown), shown, shown.__traceback__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _say(text: object) -> None:
    """On standard error, if the script has left one; and if it is a text."""
    with suppress(Exception):
        (sys.stderr or sys.__stderr__).write(str(text))  # type: ignore[union-attr]


def _theirs(traceback: TracebackType | None) -> TracebackType | None:
    """Without the frames of this file and of `runpy`, which stand before the script's own."""
    ours = {__file__, runpy.__file__, "<frozen runpy>"}
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback
