"""Computes the memory that fastdedup's records take in Redis: `redis_bytes` of claims, `web_bytes` of web requests.

`mean_bytes` asks a server what some records take. docs/sizing.md says how to plan with them.
"""

import itertools

import redis


def rounded(size: int) -> int:
    """Return the size class of jemalloc in which Redis stores a piece."""
    step = max(16, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step


def header(size: int) -> int:
    """Return the bytes of a string's header."""
    return 1 if size < 32 else 3 if size < 256 else 5


def redis_bytes(
    records: int, *, namespace: str, key: int, result: int = 0, fingerprint: bool = False, owner: int = 10
) -> int:
    """Return the growth of `used_memory`.

    `key` and `result` are in bytes. `result` is encoded, for example in JSON (a text has two quotes), and 0 for None.
    """
    name = len(namespace) + 2 + (key if key <= 40 else 16)  # a longer key is stored as a digest
    value = 18 + owner + (16 if fingerprint else 0) + result
    entries = 2 * rounded(24)
    stored = rounded(16 + 3 + value + 1) if value <= 44 else 16 + rounded(header(value) + value + 1)
    tables = 2 * 8 * (1 << (records - 1).bit_length())  # a power of two
    return records * (entries + rounded(header(name) + name + 1) + stored) + tables


def web_bytes(records: int, *, namespace: str, body: int, headers: int = 80) -> int:
    """Return the growth of `used_memory` by records of web requests. `namespace` is the `Dedup`'s.

    `headers` in bytes: 18, and for each kept header the length of its name and value and 8 more. Add 43 for a record
    that is made in a sampled trace.
    """
    return redis_bytes(
        records, namespace=f"{namespace}:http", key=41, result=body + headers, fingerprint=True
    )


def mean_bytes(url: str, namespace: str, most: int = 1_000) -> float:
    """Return the mean of MEMORY USAGE over some keys of a namespace, such as `shop:http`.

    `used_memory` grows by 40 to 70 bytes more for each.
    """
    with redis.Redis.from_url(url) as raw:
        keys = itertools.islice(raw.scan_iter(match=f"{namespace}:[=#]*", count=1_000), most)
        sizes = [raw.memory_usage(key) or 0 for key in keys]  # None: it has expired meanwhile
    return sum(sizes) / max(1, len(sizes))
