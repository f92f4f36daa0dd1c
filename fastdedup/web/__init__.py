"""What HTTP asks of an idempotency key, whatever carries it: keys, rules, problems, stored responses. No I/O."""
