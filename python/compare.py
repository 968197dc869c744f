"""Measures forebay beside cachetools and diskcache: microseconds for each operation.

    pip install cachetools diskcache && python python/compare.py

The runs of the caches take turns. Each number is the median of the rounds.
"""

import random
import shutil
import statistics
import tempfile
import threading
import time

import cachetools
import diskcache

import forebay

ENTRIES, REQUESTS, ROUNDS, VALUE = 10_000, 100_000, 5, bytes(1000)
KEYS = [b"key %d" % i for i in range(2 * ENTRIES)]


class Locked:
    """An LRU cache of cachetools, with the lock that threads need."""

    def __init__(self):
        self.cache, self.lock = cachetools.LRUCache(ENTRIES), threading.Lock()

    def get(self, key):
        with self.lock:
            return self.cache.get(key)

    def __setitem__(self, key, value):
        with self.lock:
            self.cache[key] = value


def hits(cache, requests):
    for key in requests:
        cache.get(key)


def inserts(cache, requests):
    for key in requests:
        cache[key] = VALUE


def on_threads(count):
    def run(cache, requests):
        part = len(requests) // count
        parts = [requests[i * part : (i + 1) * part] for i in range(count)]
        threads = [threading.Thread(target=hits, args=(cache, part)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def measure(name, caches, run, requests):
    times = {cache: [] for cache in caches}
    for _ in range(ROUNDS):
        for cache, value in caches.items():
            start = time.perf_counter()
            run(value, requests)
            times[cache].append((time.perf_counter() - start) / len(requests) * 1e6)
    row = "  ".join(f"{cache} {statistics.median(of):.2f}" for cache, of in times.items())
    print(f"{name}: {row}")


def main():
    choose = random.Random(1)
    resident = [KEYS[choose.randrange(ENTRIES)] for _ in range(REQUESTS)]
    all_keys = [KEYS[choose.randrange(2 * ENTRIES)] for _ in range(REQUESTS)]
    memory = {"forebay": forebay.Cache(max_entries=ENTRIES), "cachetools": Locked()}
    for cache in memory.values():
        inserts(cache, KEYS[:ENTRIES])
    measure("memory, hits", memory, hits, resident)
    measure("memory, hits of 4 threads", memory, on_threads(4), resident)
    measure("memory, inserts that evict", memory, inserts, all_keys)

    folder = tempfile.mkdtemp()
    try:
        disk = {
            "forebay": forebay.HybridCache(folder + "/forebay", 256 << 20, 1 << 20),
            "diskcache": diskcache.Cache(folder + "/diskcache"),
        }
        some = KEYS[:1000]
        for cache in disk.values():
            inserts(cache, some)
        measure("1 MB of memory and a file, overwrites", disk, inserts, some)
        measure("1 MB of memory and a file, lookups", disk, hits, some)
        for cache in disk.values():
            cache.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
