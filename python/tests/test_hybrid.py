"""The cache in memory and in a file."""

import subprocess
import sys

import pytest

import forebay

FILE, MEMORY = 16 << 20, 1 << 20


def test_values_survive_a_restart(tmp_path):
    path = tmp_path / "cache"
    long_key = b"/a/path/that/is/longer/than/the/key/of/a/record" * 10
    with forebay.HybridCache(path, FILE, MEMORY) as cache:
        cache[b"a"] = b"1"
        cache[b"b"] = b"2"
        cache[long_key] = bytes(100_000)
        assert cache.get_or_load(b"c", lambda key: b"made of " + key) == b"made of c"
        assert b"a" in cache and cache.get(b"none") is None
        del cache[b"b"]
        with pytest.raises(KeyError):
            del cache[b"b"]
        cache.remove(b"b")
        cache.wait_ready()
    with pytest.raises(forebay.CacheError, match="closed"):
        cache[b"a"] = b"3"
    with forebay.HybridCache(str(path), bytes=FILE, memory_bytes=MEMORY) as cache:
        cache.wait_ready()
        assert cache[b"a"] == b"1" and cache[long_key] == bytes(100_000)
        assert cache[b"c"] == b"made of c" and cache.get(b"b", "gone") == "gone"
        assert cache.stats()["device_entries"] >= 3


def test_a_kill_loses_no_removal(tmp_path):
    path = str(tmp_path / "cache")
    program = """
import forebay, os, signal, sys
cache = forebay.HybridCache(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
cache.wait_ready()
cache[b"kept"] = b"1"
cache[b"removed"] = b"1"
cache[b"changed"] = b"old"
cache.flush()
del cache[b"removed"]
cache[b"changed"] = b"new"
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", program, path, str(FILE), str(MEMORY)])
    assert run.returncode == -9
    with forebay.HybridCache(path, FILE, MEMORY) as cache:
        cache.wait_ready()
        assert cache[b"kept"] == b"1"
        assert b"removed" not in cache and cache.get(b"changed") in (None, b"new")


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="there is no folder"):
        forebay.HybridCache(tmp_path / "none" / "cache", FILE, MEMORY)
    with pytest.raises(ValueError, match="at least"):
        forebay.HybridCache(tmp_path / "cache", 1, MEMORY)
    with forebay.HybridCache(tmp_path / "cache", FILE, MEMORY):
        with pytest.raises(OSError):
            forebay.HybridCache(tmp_path / "cache", FILE, MEMORY)
