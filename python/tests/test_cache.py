"""The cache in memory, and the decorator."""

import threading

import pytest

import forebay


def test_entries():
    with forebay.Cache(capacity_bytes=1 << 20) as cache:
        cache[b"a"] = b"1"
        cache[b""] = b""
        assert cache[b"a"] == b"1" and cache[b""] == b"" and cache.get(b"a") == b"1"
        assert b"a" in cache and b"b" not in cache and len(cache) == 2
        assert cache.get(b"b") is None and cache.get(b"b", 7) == 7
        cache[b"a"] = b"2"
        assert cache[b"a"] == b"2"
        del cache[b"a"]
        for use in (lambda: cache[b"a"], lambda: cache.__delitem__(b"a")):
            with pytest.raises(KeyError) as raised:
                use()
            assert raised.value.args == (b"a",)
        cache.clear()
        assert len(cache) == 0
    with pytest.raises(forebay.CacheError, match="closed"):
        cache[b"a"] = b"3"
    assert cache.get(b"a") is None


def test_arguments():
    for wrong in ({}, {"capacity_bytes": 1, "max_entries": 1}, {"max_entries": 1, "ttl": 0}):
        with pytest.raises(ValueError):
            forebay.Cache(**wrong)
    cache = forebay.Cache(max_entries=10)
    with pytest.raises(TypeError):
        cache["text"] = b"1"
    with pytest.raises(TypeError):
        cache.get_or_load(b"a", lambda key: "text")
    with pytest.raises(ValueError):
        cache.set(b"a", b"1", ttl=float("nan"))


def test_limits():
    cache = forebay.Cache(max_entries=100)
    for i in range(10_000):
        cache[b"%d" % i] = b"x"
    assert len(cache) <= 200 and cache.stats()["evictions"] >= 9_800
    with pytest.raises(forebay.CacheError, match="raise the capacity"):
        forebay.Cache(capacity_bytes=1 << 16)[b"large"] = bytes(1 << 17)


def test_expiry():
    cache = forebay.Cache(max_entries=10, ttl=3600)
    cache.set(b"short", b"1", ttl=0.001)
    cache[b"long"] = b"2"
    while b"short" in cache:
        pass
    assert cache.get(b"short") is None and cache[b"long"] == b"2"


def test_loads():
    cache = forebay.Cache(max_entries=10)
    loads = []

    def load(key):
        loads.append(key)
        return b"made of " + key

    assert cache.get_or_load(b"a", load) == b"made of a" == cache.get_or_load(b"a", load)
    assert loads == [b"a"]

    class Gone(Exception):
        pass

    gone = Gone()

    def fail(key):
        raise gone

    with pytest.raises(Gone) as raised:
        cache.get_or_load(b"b", fail)
    assert raised.value is gone and b"b" not in cache
    with pytest.raises(forebay.CacheError, match="its own loader requested it"):
        cache.get_or_load(b"c", lambda key: cache.get_or_load(key, load))


@pytest.mark.parametrize("kind", ["memory", "hybrid"])
def test_threads_that_load_one_key_run_one_loader(kind, tmp_path):
    if kind == "memory":
        cache = forebay.Cache(max_entries=10)
    else:
        cache = forebay.HybridCache(tmp_path / "cache", 16 << 20, 1 << 20)
    count = 4
    running, go_on, loads, got = threading.Event(), threading.Event(), [], []

    def load(key):
        loads.append(key)
        running.set()
        assert go_on.wait(60)
        return b"value"

    def ask():
        got.append(cache.get_or_load(b"a", load))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(count)]
    threads[0].start()
    assert running.wait(60)
    for thread in threads[1:]:
        thread.start()
    # While the loader runs and others wait for it, this thread goes on and uses the cache.
    cache[b"other"] = b"1"
    assert cache[b"other"] == b"1"
    go_on.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert got == [b"value"] * count and loads == [b"a"]
    cache.close()


def test_decorator():
    calls = []

    @forebay.cached(ttl=3600, max_bytes=1 << 20)
    def add(a, b=0, **more):
        """Adds."""
        calls.append((a, b))
        return [a + b]

    first = add(1, b=2)
    first.append("changed")
    assert add(1, b=2) == [3] and calls == [(1, 2)]
    assert add(1.0, b=2) == [3.0] and len(calls) == 2
    assert add(1, b=2, x=1, y=2) == add(1, y=2, x=1, b=2) and len(calls) == 3
    assert add.__name__ == "add" and add.__doc__ == "Adds." and add.__wrapped__(1) == [1]
    assert add.cache_info()["entries"] == 3
    add.cache_clear()
    assert add(1, b=2) == [3] and len(calls) == 5


def test_decorator_without_arguments():
    calls = []

    @forebay.cached
    def fib(n):
        calls.append(n)
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    assert fib(20) == 6765 and len(calls) == 21

    @forebay.cached
    def fail(text):
        calls.append(text)
        raise ValueError(text)

    calls.clear()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            fail("no")
    assert calls == ["no", "no"]
    # Equal arguments are equal, whether they are one object or two.
    assert forebay._key(("ab", "ab")) == forebay._key(("ab", "".join(["a", "b"])))
