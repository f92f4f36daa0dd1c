"""Chaos: several processes at work, real servers failing under them, every answer held against the promises.

`python -m tests.chaos` (see `--help`). The parts, from the ground up:

- `history` what was asked and answered, and when; `ownership`, `rules`, `checker` find what cannot be;
  `brute` says the same for small histories by trying all orders.
- `steps`, `workload` and `worker` make the load; `planted` breaks the client on purpose, to see it caught.
- `proxy`, `homes`, `groups` are what they work on, and `faults` what happens to that; `plan` draws it from
  a seed, `run` does one run, `__main__` all of them, `table` tells; `outage` watches memory instead.
- `crew` and `board` are the driver's hands on the workers; `guard` ends everything should the driver die.
"""
