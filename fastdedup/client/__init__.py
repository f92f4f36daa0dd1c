"""Safe retries for clients of an API: an Idempotency-Key for each request, kept over its retries.

`fastdedup.client.httpx` has transports, `fastdedup.client.requests` an adapter; their rules are in `RetryRules`.
"""

from .rules import Retry, RetryRules, new_key

__all__ = ["Retry", "RetryRules", "new_key"]
