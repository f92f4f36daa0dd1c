"""Clients that share one key, in every order of their operations and with every fault.

A client follows a script of two to four operations. Each sending may go well, lose its reply, or get lost, or be held
back: then it arrives at any later point. A client without a reply asks again or gives up. It takes back what it gave
up as `fastdedup/core/orphans.py` does: it reads the record, releases it by owner and fence, and looks for a late
copy. If a `consume` or a `redeem` meets another client's use without a result, it asks again until that use is gone,
or is older than two timeouts. At any point the lease may end, and then the record. The rules at the end of this file
say what must never happen, and `ACCEPTED` says where they are broken, and why.

Schedules that lead to the same world go on alike: the rest is explored once, and each is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from . import spec
from .words import FAILED, HELD, SETTLED, SUCCEEDED, Claim, Record, Release, Renew, Reply, Settle

LEASE, KEEP = 10, 30
SURE = 4
"""Two timeouts: a use that is older stays, unless what was given up is taken back too late."""
START_US = 1_800_000_000_000_500
READY, SILENT, LOOKING, FREEING, OVER = "ready", "silent", "looking", "freeing", "over"
step = cache(spec.step)


class Script(NamedTuple):
    """What a client does. `named`: the caller chose its owner, so what is given up is left alone."""

    verbs: tuple[str, ...]
    named: bool = False


class Client(NamedTuple):
    """One client, and what it was told."""

    phase: str = READY
    at: int = 0
    """Which verb of its script is next, or under way."""
    fence: int = 0
    until: int = 0
    """It may believe until then that it holds the key; 0: it does not."""
    asked_twice: bool = False
    """Its claim was sent more than once."""
    looks: int = 2
    """How often it still looks for what it gave up."""
    did: bool = False
    """It has done the work."""
    duplicate: bool = False
    """It was told that the work is done."""
    gave_up: bool = False
    """It got no reply to its claim or its release, and was told of an error."""


class World(NamedTuple):
    """All that the rest of a schedule depends on. The last three are budgets."""

    record: Record | None
    now_us: int
    clients: tuple[Client, ...]
    top: int
    """The highest fence so far."""
    copy: tuple[int, Any] | None
    """A sending that is still under way, and whose it is."""
    came_late: int
    """Whose copy has taken the key when its client looked no more; -1: no copy has."""
    freed_late: bool
    """A use was taken back more than two timeouts after it was made."""
    losses: int
    copies: int
    leases: int


class Event(NamedTuple):
    """One move: whose it is, the operation that the store has executed, the reply, and whether the client got it."""

    who: int
    what: str
    operation: Any = None
    reply: Reply | None = None
    heard: bool = False

    def __str__(self) -> str:
        who = f"client {self.who + 1}: " if self.who >= 0 else ""
        told = f" -> {self.reply.code} (fence {self.reply.fence})" if self.reply else ""
        return f"{who}{self.what}{told}"


Move = tuple[Event, World]


def owner(who: int, script: Script) -> bytes:
    return b"\5user%d" % who if script.named else b"\0" + b"%d" % who * 10


@cache
def operation(verb: str, mine: bytes, fence: int) -> Any:
    """Return what a client sends."""
    match verb:
        case "claim" | "redeem" | "consume":
            return Claim(mine, LEASE, KEEP, mode=verb)
        case "complete":
            return Settle(mine, fence, KEEP, SUCCEEDED, b"done")
        case "fail":
            return Settle(mine, fence, KEEP, FAILED)
        case "release":
            return Release(mine, fence)
        case "renew":
            return Renew(mine, fence, LEASE, KEEP)
    raise ValueError(verb)


USING = ("redeem", "consume")
CLAIMING = ("claim", *USING)


class Play:
    """All schedules of some scripts on one key.

    Args:
        scripts: one for each client.
        record: what the key holds at first.
        losses: sendings that get no reply, at most.
        copies: sendings that come late, at most; they are among the losses.
        leases: how often a lease ends, or then the record, at most.
    """

    def __init__(
        self, scripts: Sequence[Script], record: Record | None, *, losses: int, copies: int, leases: int
    ) -> None:
        self._scripts = scripts
        self._owners = [owner(who, script) for who, script in enumerate(scripts)]
        top = record.fence if record else 0
        clients = tuple(Client() for _ in scripts)
        self._start = World(record, START_US, clients, top, None, -1, False, losses, copies, leases)
        self._schedules: dict[World, int] = {}
        self._trace: list[Event] = []
        self.accepted: Counter[str] = Counter()
        """How often a rule was broken for a reason that is accepted."""

    @property
    def worlds(self) -> int:
        """How many different worlds there are."""
        return len(self._schedules)

    def run(self) -> int:
        """Return the number of schedules; raises AssertionError with the first one that breaks a rule."""
        return self._follow(self._start)

    def _follow(self, world: World) -> int:
        known = self._schedules.get(world)
        if known is not None:
            return known
        count = 0
        for event, after in self._moves(world):
            self._trace.append(event)
            self._judge(RULES, world, event, after)
            count += self._follow(after)
            self._trace.pop()
        if not count:
            self._judge(LAST_RULES, world, Event(-1, "the end"), world)
            count = 1
        self._schedules[world] = count
        return count

    def _judge(self, rules: Sequence[Rule], before: World, event: Event, after: World) -> None:
        for rule in rules:
            if rule(self._owners, before, event, after):
                continue
            for reason, holds in ACCEPTED.items():
                if rule in holds.rules and holds.when(self._owners, after):
                    self.accepted[reason] += 1
                    break
            else:
                raise AssertionError(self._report(rule, after))

    def _report(self, rule: Rule, world: World) -> str:
        scripts = [" ".join(script.verbs) for script in self._scripts]
        lines = [f"broken: {rule.__name__.replace('_', ' ')}. The clients: {', '.join(scripts)}"]
        lines += [f"{number}. {event}" for number, event in enumerate(self._trace, 1)]
        return "\n".join([*lines, str(world)])

    # The moves

    def _moves(self, world: World) -> Iterator[Move]:
        for who, client in enumerate(world.clients):
            if client.phase == READY:
                yield from self._send(world, who, client)
            elif client.phase == SILENT:
                yield from self._send(world, who, client)
                yield self._give_up(world, who, client)
            elif client.phase == LOOKING:
                yield self._look(world, who, client)
            elif client.phase == FREEING:
                yield self._free(world, who, client)
        if world.copy is not None:
            yield self._arrive(world, *world.copy)
        if world.leases:
            yield from self._wait(world)
        record = world.record
        if record is not None and record.token and spec.is_consumed(record) and is_young(record.fence, world):
            yield Event(-1, "two timeouts pass"), world._replace(now_us=world.now_us + SURE * 1000)

    def _send(self, world: World, who: int, client: Client) -> Iterator[Move]:
        verb = self._verb(who, client)
        ask = operation(verb, self._owners[who], client.fence)
        if verb in CLAIMING:
            client = client._replace(fence=0)
        if verb in ("complete", "fail", "release"):
            client = client._replace(until=0)  # from here on the key may be another client's
        if verb in ("complete", "fail"):
            client = client._replace(did=True)
        record, reply = step(world.record, ask, world.now_us)
        done = rise(world._replace(record=record))
        heard = self._hear(who, client, reply, world)
        if heard != world.clients[who] or verb not in USING:  # else it is to ask again later
            yield Event(who, verb, ask, reply, True), set_client(done, who, heard)
        if not world.losses:
            return
        asked_twice = client.asked_twice or client.phase == SILENT
        silent = client._replace(phase=SILENT, asked_twice=asked_twice)
        lost = set_client(world._replace(losses=world.losses - 1), who, silent)
        yield (
            Event(who, f"{verb}, and the reply is lost", ask, reply),
            rise(lost._replace(record=record)),
        )
        yield Event(who, f"{verb}, and it is lost"), lost
        if world.copies and world.copy is None:
            yield (
                Event(who, f"{verb}, and it is held back"),
                lost._replace(copy=(who, ask), copies=world.copies - 1),
            )

    def _hear(self, who: int, client: Client, reply: Reply, world: World) -> Client:
        """Return the client that goes on as the reply says."""
        verb, verbs = self._verb(who, client), self._scripts[who].verbs
        asked_twice = client.asked_twice or (client.phase == SILENT and verb in CLAIMING)
        client = client._replace(phase=READY, asked_twice=asked_twice)
        used = verb in USING and reply.code == "SUCCEEDED" and not reply.result
        if used and is_young(reply.fence, world):
            return client  # it tries again
        client = client._replace(at=client.at + 1)
        if reply.code == "ACQUIRED":
            until = spec.clock(world.now_us).end + reply.left
            client = client._replace(fence=reply.fence, until=until, did=client.did or verb == "consume")
            while client.at < len(verbs) and verbs[client.at] in ("claim", verb):
                client = client._replace(at=client.at + 1)  # it needs no further try
        elif reply.code == "IN_PROGRESS" and verbs[client.at : client.at + 1] == (verb,):
            return client  # it tries again
        elif reply.code != "OK":
            told = reply.code in ("SUCCEEDED", "FAILED")
            until = 0 if reply.code == "LOST" else client.until
            return self._end(who, client._replace(duplicate=told, until=until), reply)
        if verb == "renew":
            client = client._replace(until=spec.clock(world.now_us).end + LEASE)
        return client if client.at < len(verbs) else self._end(who, client, reply)

    def _end(self, who: int, client: Client, reply: Reply) -> Client:
        """Return the client that has nothing more to do but, if its claim was sent twice, look for a late copy."""
        last = client.at - 1
        watches = looks_after(self._scripts[who].verbs[last], reply)
        if watches and client.asked_twice and not self._scripts[who].named:
            return client._replace(phase=LOOKING, at=last, looks=1)
        return client._replace(phase=OVER)

    def _give_up(self, world: World, who: int, client: Client) -> Move:
        verb = self._verb(who, client)
        taken_back = verb == "release" or (verb in CLAIMING and not self._scripts[who].named)
        after = client._replace(phase=LOOKING if taken_back else OVER, gave_up=taken_back or verb in CLAIMING)
        return Event(who, f"gives up {verb}"), set_client(world, who, after)

    def _look(self, world: World, who: int, client: Client) -> Move:
        """Read the record: if this owner holds the key, free it, else look once more."""
        record = spec.present(world.record, world.now_us)
        consumed = self._verb(who, client) == "consume"
        states = (*HELD, SUCCEEDED) if consumed else HELD
        if record and record.owner == self._owners[who] and record.state in states:
            return Event(who, "looks, and finds it"), set_client(
                world, who, client._replace(phase=FREEING, fence=record.fence)
            )
        looks = client.looks - 1
        after = client._replace(phase=LOOKING if looks else OVER, looks=looks)
        return Event(who, "looks, and finds nothing"), set_client(world, who, after)

    def _free(self, world: World, who: int, client: Client) -> Move:
        consumed = self._verb(who, client) == "consume"
        ask = Release(self._owners[who], client.fence, consumed=consumed)
        record, reply = step(world.record, ask, world.now_us)
        # A copy may still come: of a claim that was sent twice, or that has taken the key once more since the look.
        looks = client.asked_twice or reply.code != "OK"
        client = client._replace(phase=LOOKING, looks=1) if looks else client._replace(phase=OVER)
        after = world._replace(record=record)
        if consumed and reply.code == "OK" and not is_young(client.fence, world):
            after = after._replace(freed_late=True)
        return Event(who, "takes it back", ask, reply), set_client(after, who, client)

    def _arrive(self, world: World, who: int, ask: Any) -> Move:
        record, reply = step(world.record, ask, world.now_us)
        client = world.clients[who]
        unseen = client.phase == OVER and not (client.gave_up and client.looks)
        too_late = reply.code == "ACQUIRED" and unseen
        after = rise(world._replace(record=record, copy=None, came_late=who if too_late else -1))
        return Event(who, "the copy arrives", ask, reply), after

    def _wait(self, world: World) -> Iterator[Move]:
        record = spec.present(world.record, world.now_us)
        if record is None or record.state not in HELD:
            return
        now_ms = world.now_us // 1000
        ends, what = record.until, "the lease ends"
        if ends <= now_ms:
            ends, what = record.expires, "the record expires"
        later = world._replace(now_us=ends * 1000 + 500, leases=world.leases - 1)
        yield Event(-1, what), later

    def _verb(self, who: int, client: Client) -> str:
        return self._scripts[who].verbs[client.at]


def looks_after(verb: str, reply: Reply) -> bool:
    """True if a client that has sent its claim twice looks for a late copy after this reply."""
    return reply.code == "OK" if verb == "release" else verb in CLAIMING and reply.code != "ACQUIRED"


def is_young(fence: int, world: World) -> bool:
    """True if a use of this fence may still be taken back."""
    return world.now_us // 1000 - fence // 1000 < SURE


def set_client(world: World, who: int, client: Client) -> World:
    clients = (*world.clients[:who], client, *world.clients[who + 1 :])
    return world._replace(clients=clients)


def rise(world: World) -> World:
    """Take in the fence of the record."""
    record = world.record
    return world._replace(top=record.fence) if record and record.fence > world.top else world


# What must never happen

Rule = Callable[[Sequence[bytes], World, Event, World], bool]


def there_is_one_live_owner(owners: Sequence[bytes], before: World, event: Event, after: World) -> bool:
    now_ms = after.now_us // 1000
    return sum(client.until > now_ms for client in after.clients) <= 1


def fences_rise(owners: Sequence[bytes], before: World, event: Event, after: World) -> bool:
    former, record = before.record, after.record
    if record is None or (
        former is not None and (record.owner, record.fence) == (former.owner, former.fence)
    ):
        return True
    return record.fence > before.top


def settled_stays_settled(owners: Sequence[bytes], before: World, event: Event, after: World) -> bool:
    """But what was consumed may be taken back by its user, if its caller was not told of it."""
    record = spec.present(before.record, before.now_us)
    if record is None or record.state not in SETTLED or after.record == record:
        return True
    return (
        event.what == "takes it back"
        and record.owner == owners[event.who]
        and not after.clients[event.who].did
    )


def an_owner_is_never_its_own_rival(
    owners: Sequence[bytes], before: World, event: Event, after: World
) -> bool:
    reply = event.reply
    if reply is None or not event.heard or reply.code not in ("IN_PROGRESS", "SUCCEEDED", "FAILED"):
        return True
    return reply.owner != owners[event.who] or before.clients[event.who].did


def a_reply_is_true(owners: Sequence[bytes], before: World, event: Event, after: World) -> bool:
    if not event.heard or event.reply is None:
        return True
    ask, reply, record = event.operation, event.reply, after.record
    met = spec.present(before.record, before.now_us)
    mine = record is not None and record.owner == owners[event.who]
    match reply.code, ask:
        case "ACQUIRED", Claim(mode=mode):
            states = (SUCCEEDED,) if mode == "consume" else HELD
            return mine and record.fence == reply.fence and record.state in states
        case "IN_PROGRESS", _:
            return record is not None and record.until > after.now_us // 1000
        case "OK", Settle(state=state):
            return mine and record.fence == ask.fence and record.state == state
        case "OK", Release():
            return not (mine and record.state in (*HELD, *SETTLED))
        case "LOST", _:  # another acquisition came after it, or its own end
            return met is None or (met.owner, met.fence) != (ask.owner, ask.fence) or met.state not in HELD
    return True


def a_duplicate_is_of_work_that_was_done(
    owners: Sequence[bytes], before: World, event: Event, after: World
) -> bool:
    told = any(client.duplicate for client in after.clients)
    return not told or any(client.did for client in after.clients)


def nothing_is_held_for_nobody(owners: Sequence[bytes], before: World, event: Event, after: World) -> bool:
    """What a client gave up is free at the end, and a use of a token is some client's."""
    record = spec.present(after.record, after.now_us)
    if record is None or record.owner not in owners:
        return True
    client = after.clients[owners.index(record.owner)]
    if record.state == SUCCEEDED:
        return client.did
    return not (record.state in HELD and record.until > after.now_us // 1000 and client.gave_up)


def no_lease_is_longer_than_it_was_asked_for(
    owners: Sequence[bytes], before: World, event: Event, after: World
) -> bool:
    record = after.record
    return record is None or record.state not in HELD or record.until <= spec.clock(after.now_us).end + LEASE


RULES: tuple[Rule, ...] = (
    there_is_one_live_owner,
    fences_rise,
    settled_stays_settled,
    an_owner_is_never_its_own_rival,
    a_reply_is_true,
    no_lease_is_longer_than_it_was_asked_for,
)
"""They hold after each move."""
LAST_RULES: tuple[Rule, ...] = (a_duplicate_is_of_work_that_was_done, nothing_is_held_for_nobody)
"""They hold at the end of a schedule."""


class Accepted(NamedTuple):
    """Where these rules may be broken."""

    rules: tuple[Rule, ...]
    when: Callable[[Sequence[bytes], World], bool]


def a_copy_took_the_key(owners: Sequence[bytes], world: World) -> bool:
    return world.came_late >= 0 and world.record is not None and world.record.owner == owners[world.came_late]


def a_copy_came_after_the_last_look(owners: Sequence[bytes], world: World) -> bool:
    return a_copy_took_the_key(owners, world) and not world.clients[world.came_late].looks


def a_chosen_owner_is_gone(owners: Sequence[bytes], world: World) -> bool:
    """It gave up its claim, or its copy came late. Its release is another matter: that is asked for again."""
    if world.record is None or not world.record.owner[0]:
        return False
    client = world.clients[owners.index(world.record.owner)]
    return a_copy_took_the_key(owners, world) or (client.gave_up and not client.fence)


def a_use_was_taken_back_late(owners: Sequence[bytes], world: World) -> bool:
    return world.freed_late


ACCEPTED: dict[str, Accepted] = {
    "a copy comes out of the network after the gate has looked for the last time": Accepted(
        LAST_RULES, a_copy_came_after_the_last_look
    ),
    "an owner that the caller chose gets its claim back by its name, so it is not taken back": Accepted(
        LAST_RULES, a_chosen_owner_is_gone
    ),
    "a `consume` that was given up is taken back later than two timeouts after it was done": Accepted(
        (a_duplicate_is_of_work_that_was_done,), a_use_was_taken_back_late
    ),
}
"""All reasons; docs/promises.md tells the user of each."""
