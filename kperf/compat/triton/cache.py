"""Triton's cache."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import FileCacheManager, get_cache_key, get_cache_manager


def cache_folder() -> Path:
    """Where Triton keeps what it compiled."""
    return Path(knobs.cache.dir)


def cache_key(source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> str:
    """What tells one compilation from another."""
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options) | source.parse_options())
    key: str = get_cache_key(source, backend, parsed, get_cache_invalidating_env_vars())
    return key


def cached_file(key: str, name: str) -> Path | None:
    """The file of this name that the cache keeps under a key (hexadecimal digits)."""
    found = get_cache_manager(key).get_file(name)
    return Path(found) if found else None


def keep_in_cache(key: str, name: str, text: str) -> None:
    """Put a file of this name into the cache."""
    get_cache_manager(key).put(text, name, binary=False)


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """What is compiled while this is open is kept in `folder`: no cache, dump or listener of the user's sees it.

    Nor does Triton warn of the source once more, as it did when the script compiled it.
    """
    with knobs.cache.scope(), knobs.compilation.scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        knobs.cache.dir = str(folder)
        knobs.cache.manager_class = FileCacheManager
        knobs.compilation.dump_ir = False
        knobs.compilation.listener = None
        yield
