"""Caches whose hits take no lock: in memory, or in memory and in a file.

Keys and values are bytes. `cached` is a decorator for functions of any values.
"""

import functools
import io
import pickle

from ._forebay import Cache, CacheError, HybridCache, __version__

__all__ = ["Cache", "CacheError", "HybridCache", "cached", "__version__"]


def _key(arguments):
    """Pickles arguments so that equal ones have equal bytes, whether or not they share objects."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=5)
    pickler.fast = True
    pickler.dump(arguments)
    return buffer.getvalue()


def cached(function=None, *, ttl=None, max_bytes=64 << 20):
    """A decorator that remembers what a function returned, as functools.lru_cache does.

    `ttl` is the life of an entry in seconds, `max_bytes` the memory to use. Threads that call with
    equal arguments at the same time run the function once. An exception is raised in all of them,
    and is not remembered.

    Arguments and results are pickled. So each call returns a new object, which the caller may
    change. Arguments are equal if their pickles are: 1 and 1.0 are not, and sets of strings may not
    be. What cannot be pickled raises the error of pickle.

    The decorated function has `cache_info()`, a dict of counts, `cache_clear()`, and the function
    itself as `__wrapped__`.
    """
    if function is None:
        return functools.partial(cached, ttl=ttl, max_bytes=max_bytes)
    cache = Cache(capacity_bytes=max_bytes, ttl=ttl)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        key = _key((args, sorted(kwargs.items())))
        value = cache.get(key)
        if value is None:
            value = cache.get_or_load(
                key, lambda _: pickle.dumps(function(*args, **kwargs), protocol=5)
            )
        return pickle.loads(value)

    wrapper.cache_info = cache.stats
    wrapper.cache_clear = cache.clear
    return wrapper
