from os import PathLike
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Protocol, Type, TypeVar, Union, overload

from typing_extensions import ParamSpec

__version__: str

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R", covariant=True)

class CacheError(Exception):
    """The cache is closed, refused a value, or a loader requested the key that it loads."""

class Cache:
    """A cache in memory. All threads may use it.

    Give exactly one of `capacity_bytes`, which counts keys, values and 128 bytes for each entry,
    and `max_entries`. `ttl` is the life of an entry in seconds, `idle` that of one that is not
    used.
    """

    def __init__(
        self,
        *,
        capacity_bytes: Optional[int] = None,
        max_entries: Optional[int] = None,
        ttl: Optional[float] = None,
        idle: Optional[float] = None,
    ) -> None: ...
    @overload
    def get(self, key: bytes) -> Optional[bytes]: ...
    @overload
    def get(self, key: bytes, default: T) -> Union[bytes, T]: ...
    def set(self, key: bytes, value: bytes, ttl: Optional[float] = None) -> None:
        """Inserts a value, which lives for `ttl` seconds, and no longer than others."""
    def get_or_load(self, key: bytes, load: Callable[[bytes], bytes]) -> bytes:
        """The value of the key. If it has none, `load(key)` makes it: once, however many threads
        ask. They all raise what it raises. It may use the cache, but not ask for its own key."""
    def clear(self) -> None: ...
    def stats(self) -> Dict[str, int]: ...
    def close(self) -> None:
        """Closes the cache, as the end of a `with` does. Not to be called by a loader."""
    def __getitem__(self, key: bytes) -> bytes: ...
    def __setitem__(self, key: bytes, value: bytes) -> None: ...
    def __delitem__(self, key: bytes) -> None: ...
    def __contains__(self, key: bytes) -> bool: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> "Cache": ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None: ...

class HybridCache:
    """A cache in memory and in a file of `bytes`, which is created if there is none.

    Values survive the program. After a change returns, no older value is found, not even after a
    crash. One process can open the file at a time.
    """

    def __init__(
        self, path: Union[str, "PathLike[str]"], bytes: int, memory_bytes: int
    ) -> None: ...
    @overload
    def get(self, key: bytes) -> Optional[bytes]: ...
    @overload
    def get(self, key: bytes, default: T) -> Union[bytes, T]: ...
    def remove(self, key: bytes) -> None:
        """Removes the value of the key, if it has one. The removal is durable."""
    def get_or_load(self, key: bytes, load: Callable[[bytes], bytes]) -> bytes:
        """As that of `Cache`, if neither memory nor the file has the value."""
    def flush(self) -> None:
        """Writes all values that only memory has to the file."""
    def wait_ready(self) -> None:
        """Waits until all values of the file can be found, a moment after the cache was opened."""
    def stats(self) -> Dict[str, int]: ...
    def close(self) -> None:
        """Writes what only memory has, and closes the file, as the end of a `with` does."""
    def __getitem__(self, key: bytes) -> bytes: ...
    def __setitem__(self, key: bytes, value: bytes) -> None: ...
    def __delitem__(self, key: bytes) -> None: ...
    def __contains__(self, key: bytes) -> bool: ...
    def __enter__(self) -> "HybridCache": ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None: ...

class Cached(Protocol[P, R]):
    __wrapped__: Callable[P, R]
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def cache_info(self) -> Dict[str, int]: ...
    def cache_clear(self) -> None: ...

@overload
def cached(function: Callable[P, R]) -> Cached[P, R]: ...
@overload
def cached(
    *, ttl: Optional[float] = None, max_bytes: int = ...
) -> Callable[[Callable[P, R]], Cached[P, R]]: ...
