"""The rules of idempotency keys over HTTP, for every framework: keys, rules, problems, stored responses. No I/O."""
