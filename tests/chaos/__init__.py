"""Chaos: several processes at work, real servers failing under them, every answer held against the promises.

`python -m tests.chaos` (see `--help`). The parts, from the ground up:

- `history` what was asked and answered, and when; `ownership` and `facts` what is sure of it; `rules`,
  `machines`, `leftovers` and `checker` find what cannot be; `brute` says the same for small histories by
  trying all orders.
- `steps`, `caller`, `workload` and `worker` make the load, `gates` what it goes through; `planted` breaks
  the client on purpose, to see it caught.
- `proxy`, `clock`, `homes`, `groups` are what they work on, and `faults` what happens to that; `pulse`
  tells whether the store was well; `plan` draws a run from a seed, `run` does one, `__main__` all of them,
  `table` tells; `outage` watches memory instead.
- `crew` and `board` are the driver's hands on the workers; `guard` ends everything should the driver die.
"""
