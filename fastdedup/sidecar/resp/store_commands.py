"""The commands of a `sidecar://` store: FD.RUN, a batch of operations, FD.LISTEN, news of freed keys, and others.

`stores/sidecar/wire.py` describes the bytes. The sidecar executes each operation by itself, under the policy of its
key's namespace; the engine batches it with the operations of other clients.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import Any, Final, cast

from ...admin.inspection import KINDS, LISTED
from ...codec import check_size
from ...core.audit import check_reason
from ...core.counters import outcome_of
from ...declarations import BOUNDS
from ...errors import ConfigError, ForeignRecordError, ResultTooLargeError, UnavailableError
from ...gateway import Dedup
from ...kernel.codes import Code
from ...kernel.keyspace import check_wire, ledger_of, names_of, start_beside
from ...kernel.operations import ClaimOp, ForgetOp, Op, OwnerOp, ReleaseOp, Reply, SettleOp, Verdict
from ...kernel.owners import trace_of, veiled
from ...kernel.records import Stored
from ...kernel.replies import RefusedAlone
from ...kernel.verbs import Effect, IdUse, Keys, Verb
from ...ledger.operations import ForgetIdOp, LedgerTerms
from ...model import Outcome
from ...stores.base import AdminStore, Query
from ...stores.sidecar.answers import UNSURE, Fill, Present, encode
from ...stores.sidecar.wire import BY_NAME, MAX_OPERATIONS, PATIENT, PROTOCOL, RunKind, terms_of, unpack
from ..counters import outcome_found
from ..fields import MAX_NUMBER, number_of, text_of
from ..limits import MOST_PAGE, LimitError
from ..namespaces import Namespaces
from ..reply_memory import LARGE
from ..verbs import forgotten_audit, list_audit, without_addresses
from .connection import Command, RespConnection
from .errors import error_reply
from .frames import OK, error
from .frames import encode as encode_value
from .options import check_count
from .reply_places import ReplyPlace, Slot
from .task_commands import FunctionCommand, Result

_MARKS: Final = b"=#?!&%@$"
"""The marks of the keys that records have."""
_LEDGER_MARK: Final = b"~"
_KEPT_OUT: Final = Keys.BUCKET | Keys.LEDGER
_BESIDE: Final = frozenset(
    kind.name for kind in BY_NAME.values() if Keys.BESIDE in kind.keys and not kind.keys & _KEPT_OUT
)
"""Names of runs on records beside a ledger's bucket, which may not touch the bucket."""
_DEAF: Final = "its store tells it of no freed keys at present; the sidecar's log says why"
_LOOK_AGAIN: Final = 0.05
"""Seconds between two checks whether a client reads again."""


class Run(Slot):
    """An FD.RUN under way: its place in the order of replies, and its answers so far."""

    __slots__ = (
        "_answers",
        "_connection",
        "_dedups",
        "_ended",
        "_extra",
        "_fills",
        "_left",
        "_present",
        "_reserved",
        "_since",
        "_verb",
        "ephemeral",
    )

    def __init__(self, connection: RespConnection, verb: Verb, dedups: list[Dedup], admitted: int) -> None:
        super().__init__()
        size = len(dedups)
        self._connection = connection
        self._verb = verb
        self._dedups = dedups
        self.ephemeral = connection.namespaces.ephemeral
        self._since = connection.at
        self._answers: list[Reply] = [None] * size  # type: ignore[list-item] # each is set before it is read
        self._left = size
        self._reserved = 0
        self._ended = False
        # Mutable: of operations on ledgers the terms, each with the place of one of its operations.
        self._fills: dict[LedgerTerms, int] = {}
        # Mutable: whose records the claims of traced clients have met; most batches have none.
        self._present: list[Present] = []
        self._extra = admitted - 1
        connection.extra += self._extra

    def put(self, place: int, answer: Reply) -> None:
        """Take the answer to one operation; after the last answer, reply."""
        kind = type(answer)
        if kind is Verdict or kind is Stored:
            size = len(cast(Any, answer).payload)
            if size > LARGE:
                answer = self._with_room(answer, size)
        self._answers[place] = answer
        self._left -= 1
        if not self._left:
            self._count()
            fills = [Fill(at, terms.seen_fill) for terms, at in self._fills.items() if terms.seen_fill]
            present = [each for each in self._present if type(self._answers[each.place]) is Verdict]
            extras: list[Reply | Fill | Present] = [*fills, *present]
            self._end(encode([*self._answers, *extras] if extras else self._answers))

    def tell_fills(self, ops: Sequence[Op]) -> None:
        """Tell with the answers how full the buckets of these operations' ledgers are."""
        self._fills = {terms_of(op): place for place, op in enumerate(ops)}

    def tell_present(self, place: int, owner: bytes) -> None:
        """Tell with the answers the trace in which an existing record was made, if the record names its trace."""
        if trace := veiled(owner):
            self._present.append(Present(place, trace))

    def _with_room(self, answer: Reply, size: int) -> Reply:
        """Return an answer with a large result; if there is no room, let a claim be sent again, or refuse it."""
        large = self._connection.large
        if self._ended or large.reserve(size):
            self._reserved += 0 if self._ended else size
            return answer
        is_claim = type(answer) is Verdict
        if is_claim and large.held:
            return Code.AGAIN  # the client has read the other results by then
        return (RefusedAlone if is_claim else LimitError)(
            f"the results of this batch have more than {self._connection.namespaces.limits.replies} bytes "
            "(limits.replies), or all clients have too many: ask for fewer at once"
        )

    def _count(self) -> None:
        took = perf_counter() - self._since
        cell = bisect_left(BOUNDS, took)
        counters = self._connection.counters
        pairs = zip(self._dedups, self._answers, strict=True)
        for (dedup, outcome), same in groupby(pairs, lambda pair: (pair[0], outcome_of(pair[1]))):
            cells = counters.outcomes(dedup.settings.namespace, self._verb.value)[outcome]
            count = sum(1 for _ in same)
            cells[cell] += count
            cells[-1] += count * took

    def audit(self, op: ForgetOp | ForgetIdOp, reply: Reply) -> None:
        """Report a key, or an id of a ledger, that was forgotten."""
        name, key, kind = *names_of(op.wire), "claim"
        if isinstance(op, ForgetIdOp):
            name, ledger = ledger_of(op.wire)
            key, kind = f"{ledger}/{op.id.decode(errors='backslashreplace')}", "id"
        namespaces, peer = self._connection.namespaces, self._connection.peer
        heard = forgotten_audit(namespaces, name, peer, op.reason, kind=kind)
        heard(key, {Code.OK: True, Code.ABSENT: False}.get(cast(Code, reply)))

    def fail(self, fault: Exception) -> None:
        """Reply with an error for the whole batch: a fault, unlike an outage, is not one operation's."""
        self._end(error_reply(fault))

    def _end(self, reply: bytes) -> None:
        if self._ended:
            return
        self._ended = True
        connection = self._connection
        connection.extra -= self._extra
        if self._reserved:
            connection.large.free(self._reserved)
            self._reserved = 0
            connection.answer_at_length(self, reply, partial(bytes, reply), None)
        else:
            connection.answer(self, reply)


class Place:
    """One operation of an FD.RUN, in the place of the future that the engine expects.

    A future would cost 24 % more instructions for each operation.

    `done` is always False. If a client has gone, its operation is not taken back: the client may have sent it again
    over another connection. That is safe because each operation names its owner. The claim of a client that died ends
    with its lease.
    """

    __slots__ = ("_dedup", "_op", "_place", "_run")

    def __init__(self, run: Run, place: int, dedup: Dedup, op: Op) -> None:
        self._run = run
        self._place = place
        self._dedup = dedup
        self._op = op

    def done(self) -> bool:
        """Return False: the operation is never taken back."""
        return False

    def set_result(self, reply: Reply) -> None:
        """Answer."""
        self.judge(reply)

    def set_exception(self, fault: Exception) -> None:
        """Answer with the policy's reply, or with its refusal."""
        self.judge(fault)

    def judge(self, answer: Reply | BaseException) -> None:
        """Answer with the store's reply, or the policy's; what it means is judged by the client's own gate."""
        gate, op = self._dedup.gate, self._op
        reply: Reply
        try:
            reply = gate.answer(op, answer)
        except UnavailableError as refusal:
            kind = RefusedAlone if isinstance(answer, RefusedAlone) else UnavailableError
            reply = kind(without_addresses(refusal), retry_after=refusal.retry_after)
        except (ResultTooLargeError, ForeignRecordError) as refusal:
            reply = refusal
        except Exception as other:  # noqa: BLE001 -- the client gets every error as a reply
            self._run.fail(other)
            return
        if op.verb is Verb.FORGET:
            gate.forgot(op)
            self._run.audit(cast(ForgetOp, op), reply)
        elif isinstance(op, ForgetIdOp) and not op.takes_back and reply is not Code.STALE:
            self._run.audit(op, reply)
        if type(reply) is Verdict and hasattr(reply, "present") and trace_of(cast(ClaimOp, op).owner):
            self._run.tell_present(self._place, reply.present)
        ephemeral = self._run.ephemeral
        if ephemeral.holders or ephemeral.releases:
            if type(reply) is Verdict and reply.outcome is Outcome.ACQUIRED:
                ephemeral.won_again((self._dedup, op.wire, cast(ClaimOp, op).owner), None)
            elif isinstance(op, OwnerOp) and (reply is Code.OK or reply is Code.UNCONFIRMED):
                ephemeral.changed(self._dedup, op)
        unsure = reply is Code.LOST and isinstance(op, ReleaseOp | SettleOp) and op.resent
        self._run.put(self._place, UNSURE if unsure else reply)


def run(connection: RespConnection, command: list[bytes]) -> ReplyPlace:
    """`FD.RUN verb count key... args...`. See `stores/sidecar/wire.py`."""
    kind = BY_NAME.get(command[1]) if len(command) > 3 else None
    count = int(command[2]) if kind and command[2].isdigit() and len(command[2]) < 5 else 0
    if kind is None or not 0 < count <= min(MAX_OPERATIONS, len(command) - 3):
        raise ConfigError(
            f"FD.RUN takes a verb, a count of 1 to {MAX_OPERATIONS}, that many keys, and arguments"
        )
    connection.count_pending()
    access = connection.namespaces.access
    verb = kind.verb
    access.check(verb.value)
    ops = unpack(kind, command[3 : 3 + count], command[3 + count :])
    dedups = dedups_of(connection.namespaces, ops, kind)
    some, over = count, None
    reads, has_result = verb.row.effect is Effect.READS, verb.row.result
    # Any other verb would be asked of the client's policy, which would free or keep the key beside the store.
    if reads or has_result or verb.row.creates:
        some, over = access.admit_some(verb.value, count)
    batch = Run(connection, verb, dedups, some)
    batch.size = sum(map(len, command))
    if kind.ids is IdUse.REMEMBERS:
        batch.tell_fills(ops)
    if over is not None:
        # No policy of the client may decide. Reads also undo claims, and are tried until they are answered.
        refused = UnavailableError if reads else RefusedAlone
        answer = refused(str(over), retry_after=over.retry_after)
        for place in range(some, count):
            batch.put(place, answer)
    ephemeral = connection.namespaces.ephemeral
    for place, (op, dedup) in enumerate(zip(ops[:some], dedups, strict=False)):
        taker = Place(batch, place, dedup, op)
        try:
            if has_result:
                check_size(op.result, dedup.settings.max_result)
            elif verb is Verb.CLAIM and (ephemeral.holders or ephemeral.releases):
                # Before it is sent, so that no release of a client that has gone is sent behind it.
                ephemeral.won_again((dedup, op.wire, cast(ClaimOp, op).owner), None)
            dedup.gate.begin(op, taker)
        except (UnavailableError, ResultTooLargeError) as refusal:
            taker.judge(refusal)
        except Exception as fault:  # noqa: BLE001 -- those before it are under way: the batch ends in order
            batch.fail(fault)
            break
    return batch


def dedups_of(namespaces: Namespaces, ops: Sequence[Op], kind: RunKind) -> list[Dedup]:
    """Return the `Dedup` of each operation's namespace, which its key begins with.

    Args:
        namespaces: the sidecar's.
        ops: operations of one run.
        kind: their run. If its verb creates nothing, a namespace does not take a place (`Namespaces.passing`).

    Raises:
        ConfigError: a key is not fastdedup's or not of the run's kind, or its namespace is refused.
        InvalidKeyError: a key is longer than a key may be.
    """
    dedup, heads = dedup_of(namespaces, ops[0].wire, kind)
    dedups: list[Dedup] = []
    beside = kind.name in _BESIDE
    for op in ops:
        wire = op.wire
        if not wire.startswith(heads):
            dedup, heads = dedup_of(namespaces, wire, kind)
        start = len(heads[0])
        if beside and wire[start - 1 : start] == _LEDGER_MARK:
            start = start_beside(wire)
            if not start:
                raise of_another_kind(wire, kind)
        check_wire(wire, start)
        dedups.append(dedup)
    return dedups


def dedup_of(namespaces: Namespaces, wire: bytes, kind: RunKind) -> tuple[Dedup, tuple[bytes, ...]]:
    """Return the `Dedup` of a key's namespace, and the beginnings of its keys. Raises what `dedups_of` raises."""
    namespace = names_of(wire)[0]
    if not namespace:
        raise ConfigError("FD.RUN: a key must begin with a namespace")
    dedup = namespaces.dedup(namespace) if kind.verb.row.creates else namespaces.passing(namespace)
    heads = tuple(b"%b:%c" % (namespace.encode(), mark) for mark in _MARKS_OF[kind.name])
    if not wire.startswith(heads):
        raise of_another_kind(wire, kind)
    return dedup, heads


def of_another_kind(wire: bytes, kind: RunKind) -> ConfigError:
    """Return the error for a key that a run may not touch."""
    return ConfigError(
        f"FD.RUN {kind.name}: the key {names_of(wire)[1]!r} is of another kind than this verb's"
    )


def marks_of(keys: Keys) -> bytes:
    """Return the marks of keys of these kinds: a record beside a bucket has the bucket's."""
    marks = _MARKS if Keys.RECORD in keys else b""
    return marks if keys is Keys.RECORD else marks + _LEDGER_MARK


_MARKS_OF: Final = {kind.name: marks_of(kind.keys) for kind in BY_NAME.values()}


def store(connection: RespConnection, command: list[bytes]) -> bytes:
    """`FD.STORE protocol`, a store's first command.

    The reply: the protocol, a command's limit in bytes, the time of the sidecar's store in microseconds since 1970 (0
    if it is not known), and that it takes `PATIENT`.
    """
    if command[1:] != [b"%d" % PROTOCOL]:
        raise ConfigError(
            f"this sidecar speaks protocol {PROTOCOL} with stores: use the same fastdedup on both sides"
        )
    namespaces = connection.namespaces
    return encode_value(
        [PROTOCOL, namespaces.limits.frame, namespaces.root.gate.connection.store_time_us, PATIENT]
    )


def eviction(connection: RespConnection, command: list[bytes]) -> ReplyPlace:
    """`FD.EVICTION`: the reply is what the sidecar's store does when its memory is full, or null."""
    root, resp3 = connection.namespaces.root, connection.resp3

    async def work() -> Result:
        backend = root.gate.connection.store
        policy = await backend.eviction_policy() if isinstance(backend, AdminStore) else None
        return encode_value(policy, resp3), outcome_found(policy), ()

    return FunctionCommand(connection, command, root, "eviction", connection.tasks.brief, work).run()


def page(connection: RespConnection, command: list[bytes]) -> ReplyPlace:
    """`FD.PAGE namespace kinds prefix cursor count [reason]`: some records; see `AdminStore.page`.

    `kinds`: names, with commas. The reply: cursor, keys looked at, time in µs, store keys, and their records.
    """
    check_count(command, 6, "FD.PAGE namespace kinds prefix cursor count [reason]")
    name, kinds, prefix, cursor = (text_of("FD.PAGE", part) for part in command[1:5])
    why = check_reason(text_of("FD.PAGE", command[6]) if len(command) > 6 else None)
    dedup, namespaces = connection.namespaces.passing(name.encode()), connection.namespaces
    connection.count_pending()
    namespaces.access.admit("list")

    async def work() -> Result:
        backend: Any = dedup.gate.connection.store
        if not isinstance(backend, AdminStore):
            raise ConfigError("the store of this sidecar cannot list its records")
        wanted = tuple(KINDS[kind] for kind in kinds.split(",") if kind in LISTED)
        count = min(number_of("FD.PAGE", command[5], 1, MAX_NUMBER), MOST_PAGE)
        with list_audit(namespaces, name, prefix, connection.peer, why) as told:
            async with namespaces.turns.reads.turn(namespaces.access.path, connection.peer):
                found = await backend.page(Query(name, wanted, prefix), cursor, count)
            told(len(found.found))
        head = [encode_value(value) for value in (found.cursor, found.seen, found.now_us)]
        wires = encode_value([wire for wire, _ in found.found])
        return b"*5\r\n" + b"".join(head) + wires + encode([stored for _, stored in found.found]), "ok", ()

    return FunctionCommand(connection, command, dedup, "list", connection.tasks.reading, work).run()


def listen(connection: RespConnection, command: list[bytes]) -> ReplyPlace:
    """`FD.LISTEN`: after the reply, push `["freed", store key]` for each freed key, or null if news was missed."""

    async def work() -> Result:
        ear = Ear(connection.push, connection.namespaces.access.namespaces)
        try:
            own = connection.namespaces.root.gate.connection
            end = await own.wakeups.overhear(own.store, ear.hear)
        except UnavailableError as fault:
            text = f"{round(fault.retry_after * 1000)} {_DEAF}"
            return error("UNAVAILABLE", text), "ok", ()  # the store may well answer
        if connection.listens or connection.gone:
            end()
        else:
            connection.listens = True
            connection.on_gone.append(end)
        return OK, "ok", ()

    root = connection.namespaces.root
    return FunctionCommand(connection, command, root, "listen", connection.tasks.brief, work).run()


class Ear:
    """Tells a client which keys were freed, or that it missed some while it did not read.

    Args:
        push: sends the client a message; returns False if it does not read.
        namespaces: those that the client may hear of; empty for all.
    """

    __slots__ = ("_missed", "_namespaces", "_push")

    def __init__(self, push: Callable[[bytes], bool], namespaces: Sequence[str] = ()) -> None:
        self._push = push
        self._namespaces = namespaces
        # Mutable: is the next check due whether the client reads again.
        self._missed = False

    def hear(self, wire: bytes | None) -> None:
        """Tell the client of a freed key; None means that any key may have been freed."""
        if self._missed:
            return
        if wire is not None and self._namespaces and names_of(wire)[0] not in self._namespaces:
            return
        if not self._push(encode_value([b"freed", wire])):
            self._missed = True
            asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._look_again)

    def _look_again(self) -> None:
        self._missed = False
        self.hear(None)


def refuse(connection: RespConnection, command: list[bytes]) -> bytes:
    """Refuse the commands of stores, on a socket that does not serve stores."""
    raise ConfigError(
        "this sidecar serves no sidecar:// stores, which may write any record: "
        "set allow_stores = true (--allow-stores) if its clients are trusted with that"
    )


COMMANDS: dict[bytes, Command] = {
    b"FD.RUN": run,
    b"FD.STORE": store,
    b"FD.LISTEN": listen,
    b"FD.EVICTION": eviction,
    b"FD.PAGE": page,
}
REFUSALS: dict[bytes, Command] = dict.fromkeys(COMMANDS, refuse)
