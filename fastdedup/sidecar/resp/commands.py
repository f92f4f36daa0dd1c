"""The RESP commands. To add one: write a function, and name it in `COMMANDS`.

A command that has to wait returns `connection.spawn(work, dedup, verb)`: the reply is what the coroutine `work`
returns or raises.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from ... import __version__
from ...claims.call import ClaimCall
from ...errors import ConfigError
from ...gateway import Dedup
from ...model import Outcome
from ...protocol.operations import ClaimOp, ReleaseOp, RenewOp, SettleOp, Verdict
from ...protocol.owners import draw_owner, owner_text
from ..access import Access
from ..reply_memory import LARGE
from ..verbs import Asked, held, record_facts, releasing, renewing, seconds, settling
from ..verbs import forget as forget_key
from . import store_commands as store_verbs
from .connection import Command, ReplyPlace, RespConnection, Slot, error_reply
from .frames import bulk, encode, error
from .options import CommandOptions, number_of, read_options, text_of

_ACQUIRED = Outcome.ACQUIRED
_OK = b"+OK\r\n"
_ACQUIRED_HEAD = b"*7\r\n$8\r\nacquired\r\n$20\r\n"
_HEADS = {outcome: b"*7\r\n" + bulk(outcome.value.encode()) for outcome in Outcome}
_CLAIM = frozenset({"NS", "FP", "OWNER", "LEASE", "TTL", "WAIT", "EPHEMERAL"})
_REDEEM = frozenset({"NS", "SUBJECT", "LEASE", "TTL", "WAIT", "EPHEMERAL"})
_SETTLE = frozenset({"NS", "TTL", "FENCE", "TOKEN"})
_RENEW = frozenset({"NS", "FENCE", "TOKEN"})


class Claiming(Asked):
    """A claim under way, and its place in the order of replies."""

    __slots__ = ("_at", "_connection", "ephemeral", "reply")

    def __init__(self, connection: RespConnection, dedup: Dedup, op: ClaimOp, ephemeral: bool) -> None:
        super().__init__(dedup, op)
        self.reply: bytes | None = None
        self._at = connection.at
        self._connection = connection
        self.ephemeral = ephemeral

    def done(self) -> bool:
        """True once nobody waits, also where the client has gone; the engine then releases the claim."""
        return self._connection.gone or self._op is None

    def answered(self, dedup: Dedup, op: ClaimOp, verdict: Verdict) -> None:
        """Reply with the verdict."""
        connection = self._connection
        connection.judged(dedup, verdict, self._at)
        if self.ephemeral:
            connection.holdings.answered()
        if verdict.outcome is _ACQUIRED:
            if self.ephemeral:
                connection.hold((dedup, op.wire, op.owner), verdict.left_ms)
            if not connection.resp3:
                connection.answer(self, acquired_reply(verdict, op.owner))
                return
        elif verdict.payload and len(verdict.payload) > LARGE:
            _answer_at_length(self, connection, dedup, op, verdict)
            return
        connection.answer(self, verdict_reply(verdict, op.owner, connection.resp3))

    def failed(self, fault: Exception) -> None:
        """Reply with the error."""
        if self.ephemeral:
            self._connection.holdings.answered()
        reply = error_reply(fault)
        self._connection.counters.answered(self._dedup, "claim", reply, self._at)
        self._connection.answer(self, reply)


class Repeated(Asked):
    """A claim that is asked for again, as there was no room for its large reply."""

    __slots__ = ("_connection", "_place")

    def __init__(self, place: Claiming, connection: RespConnection, dedup: Dedup, op: ClaimOp) -> None:
        super().__init__(dedup, op)
        self._connection = connection
        self._place = place

    def done(self) -> bool:
        """True once nobody waits, also where the client has gone; the engine then releases the claim."""
        return self._connection.gone or self._op is None

    def answered(self, dedup: Dedup, op: ClaimOp, verdict: Verdict) -> None:
        """Reply as the first time. The record may have ended meanwhile: then the claim is won."""
        connection, place = self._connection, self._place
        if verdict.outcome is _ACQUIRED and place.ephemeral:
            connection.hold((dedup, op.wire, op.owner), verdict.left_ms)
        if len(verdict.payload) > LARGE:
            _answer_at_length(place, connection, dedup, op, verdict)
        else:
            connection.answer(place, verdict_reply(verdict, op.owner, connection.resp3))

    def failed(self, fault: Exception) -> None:
        """Reply with the error."""
        self._connection.answer(self._place, error_reply(fault))


def _answer_at_length(
    place: Claiming, connection: RespConnection, dedup: Dedup, op: ClaimOp, verdict: Verdict
) -> None:
    """Reply with a result that is large: the reply is built when the client has read those before."""
    connection.answer_at_length(
        place,
        verdict.payload,
        partial(verdict_reply, verdict, op.owner, connection.resp3),
        partial(_ask_again, place, connection, dedup, op),
    )


def _ask_again(place: Claiming, connection: RespConnection, dedup: Dedup, op: ClaimOp) -> None:
    again = ClaimOp(op.wire, op.terms, op.owner, op.fingerprint)
    Repeated(place, connection, dedup, again).begin()


def acquired_reply(verdict: Verdict, owner: bytes) -> bytes:
    """Return what `verdict_reply` returns, for a claim that a drawn owner has won, in RESP2.

    Fresh claims of a batch share a verdict, so they share its text. That saves 16 % of a claim's instructions, and
    27 % of a pipelined claim's.
    """
    tail = verdict.value
    if tail is None:
        tail = verdict.value = b"\r\n:%d\r\n:%d\r\n:%d\r\n$-1\r\n:%d\r\n" % (
            verdict.fence,
            verdict.attempt,
            verdict.left_ms,
            verdict.degraded,
        )
    return _ACQUIRED_HEAD + hexlify(owner[1:]) + tail  # type: ignore[no-any-return]


def verdict_reply(verdict: Verdict, owner: bytes, resp3: bool) -> bytes:
    """Encode `[outcome, owner, fence, attempt, lease_ms, result, degraded]`."""
    if not resp3:
        return _verdict_reply2(verdict, owner)
    return encode(
        [
            verdict.outcome.value,
            owner_text(owner),
            verdict.fence,
            verdict.attempt,
            verdict.left_ms,
            verdict.payload or None,
            verdict.degraded,
        ],
        resp3,
    )


def _verdict_reply2(verdict: Verdict, owner: bytes) -> bytes:
    """Return `verdict_reply` in RESP2 by one format: it saves a duplicate 7 % of its instructions."""
    text, payload = owner_text(owner).encode(), verdict.payload
    return b"%b$%d\r\n%b\r\n:%d\r\n:%d\r\n:%d\r\n%b:%d\r\n" % (
        _HEADS[verdict.outcome],
        len(text),
        text,
        verdict.fence,
        verdict.attempt,
        verdict.left_ms,
        bulk(payload) if payload else b"$-1\r\n",
        verdict.degraded,
    )


# Claims


def claim(connection: RespConnection, command: list[bytes]) -> bytes | ReplyPlace:
    """`FD.CLAIM key [NS n] [FP text] [OWNER id] [LEASE ms] [TTL ms] [WAIT ms] [EPHEMERAL]`. The main path."""
    if len(command) == 2:
        # The options of a bare claim are not looked for: that saves 17 % of its instructions.
        dedup, key, mark, ephemeral = connection.namespaces.root, command[1], None, False
        terms = dedup._namespace.claim_terms
    else:
        _wants(command, 2)
        options = read_options(command, 2, _CLAIM)
        dedup, key, mark, ephemeral = (
            connection.namespaces.dedup(options.ns),
            command[1],
            options.fp,
            options.ephemeral,
        )
        if options.owner is not None or options.wait:
            slowly = partial(_claim_slowly, connection, dedup, key, options)
            return connection.spawn(slowly(), dedup, "claim", slowly)
        terms = dedup._namespace.terms_ms(options.lease, options.ttl)
    if not key.isascii():
        text_of("the key", key)
    op = ClaimOp(dedup._namespace.claims.wire_of(key), terms, draw_owner(), mark)
    if ephemeral:
        connection.holdings.ask()
    claiming = Claiming(connection, dedup, op, ephemeral)
    claiming.begin()
    return claiming


async def _claim_slowly(
    connection: RespConnection, dedup: Dedup, key: bytes, options: CommandOptions
) -> bytes:
    """Return the reply to a claim that waits, or whose owner the client names."""
    name = text_of("the key", key)
    if options.owner is not None:
        again = (dedup, *held(dedup, name, options.owner, token=False))
        connection.namespaces.ephemeral.claimed_again(again)

    def call() -> ClaimCall:
        return dedup.claim(
            name,
            fingerprint=options.fp,
            owner=options.owner,
            lease=seconds(options.lease),
            ttl=seconds(options.ttl),
            wait=seconds(options.wait) or 0.0,
        )

    return await _answer(connection, dedup, call, options.ephemeral)


def redeem(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.REDEEM token [SUBJECT s] [NS n] [LEASE ms] [TTL ms] [WAIT ms] [EPHEMERAL]`."""
    _wants(command, 2)
    options = read_options(command, 2, _REDEEM)
    dedup = connection.namespaces.dedup(options.ns)

    def call() -> ClaimCall:
        return dedup.tokens.redeem(
            text_of("the token", command[1]),
            options.subject,
            lease=seconds(options.lease),
            ttl=seconds(options.ttl),
            wait=seconds(options.wait) or 0.0,
        )

    redeems = partial(_answer, connection, dedup, call, options.ephemeral)
    return connection.spawn(redeems(), dedup, "redeem", redeems)


async def _answer(
    connection: RespConnection, dedup: Dedup, call: Callable[[], ClaimCall], ephemeral: bool
) -> bytes:
    """Make a claim that takes a task; return the reply."""
    if not ephemeral:
        answer = await call()
    else:
        connection.holdings.ask()
        try:
            answer = await call()
        finally:
            connection.holdings.answered()
        if answer.acquired:
            connection.hold((dedup, *answer._hold), answer._verdict.left_ms)
    return verdict_reply(answer._verdict, answer._hold[1], connection.resp3)


# Settling


def settle(succeeded: bool, connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.COMPLETE key owner [result]`, `FD.FAIL key owner [error]`, then `[NS n] [TTL ms] [FENCE n] [TOKEN]`."""
    _wants(command, 3)
    options = read_options(command, 4, _SETTLE)
    dedup, wire, owner = _held(connection, command, options)
    payload = command[3] if len(command) > 3 else b""
    op = settling(
        dedup, wire, owner, fence=options.fence, succeeded=succeeded, ttl=options.ttl, payload=payload
    )
    return connection.spawn(_change(connection, dedup, op), dedup, "complete" if succeeded else "fail")


def release(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.RELEASE key owner [NS n] [FENCE n] [TOKEN]`."""
    _wants(command, 3)
    options = read_options(command, 3, _RENEW)
    dedup, wire, owner = _held(connection, command, options)
    op = releasing(wire, owner, options.fence)
    return connection.spawn(_change(connection, dedup, op), dedup, "release")


def renew(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.RENEW key owner [ms] [NS n] [FENCE n] [TOKEN]`: ms is the new lease, the namespace's by default."""
    _wants(command, 3)
    given = len(command) > 3 and command[3].isdigit()
    options = read_options(command, 4 if given else 3, _RENEW)
    dedup, wire, owner = _held(connection, command, options)
    lease = number_of("the lease", command[3], 1) if given else None
    op = renewing(dedup, wire, owner, options.fence, lease)
    return connection.spawn(_change(connection, dedup, op), dedup, "renew")


def _held(
    connection: RespConnection, command: list[bytes], options: CommandOptions
) -> tuple[Dedup, bytes, bytes]:
    """Return the `Dedup`, the store key and the owner field for the key and the owner that a client names."""
    dedup = connection.namespaces.passing(options.ns)
    key, owner = text_of("the key", command[1]), text_of("the owner", command[2])
    return dedup, *held(dedup, key, owner, token=options.token)


async def _change(connection: RespConnection, dedup: Dedup, op: SettleOp | ReleaseOp | RenewOp) -> bytes:
    await dedup._namespace.change(op)
    if isinstance(op, RenewOp):
        connection.holdings.renew((dedup, op.wire, op.owner), op.lease_ms)
    else:
        connection.holdings.remove((dedup, op.wire, op.owner))
    return _OK


# Tokens


def issue(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.ISSUE [SUBJECT s] [TTL ms] [NS n]`: the reply is the token."""
    options = read_options(command, 1, frozenset({"SUBJECT", "TTL", "NS"}))
    dedup = connection.namespaces.dedup(options.ns)

    async def work() -> bytes:
        return encode(await dedup.tokens.issue(options.subject, seconds(options.ttl)))

    return connection.spawn(work(), dedup, "issue")


def consume(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.CONSUME token [SUBJECT s] [NS n]`: the reply is the outcome."""
    _wants(command, 2)
    options = read_options(command, 2, frozenset({"SUBJECT", "NS"}))
    dedup = connection.namespaces.dedup(options.ns)

    async def work() -> bytes:
        return encode((await dedup.tokens.consume(text_of("the token", command[1]), options.subject)).value)

    return connection.spawn(work(), dedup, "consume")


# Administration


def get(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.GET key [NS n]`: the reply is the record as JSON, or null."""
    _wants(command, 2)
    dedup = connection.namespaces.passing(read_options(command, 2, frozenset({"NS"})).ns)

    async def work() -> bytes:
        record = await dedup.get(text_of("the key", command[1]))
        return encode(
            None if record is None else orjson.dumps(record_facts(connection.namespaces, record)),
            connection.resp3,
        )

    return connection.spawn(work(), dedup, "get", work)


def forget(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.FORGET key [NS n]`: the reply is 1 where there was a record, else 0."""
    _wants(command, 2)
    dedup = connection.namespaces.passing(read_options(command, 2, frozenset({"NS"})).ns)

    async def work() -> bytes:
        key = text_of("the key", command[1])
        return encode(int(await forget_key(connection.namespaces, dedup, key, connection.transport)))

    return connection.spawn(work(), dedup, "forget")


# Commands that real clients send before their first own command


def ping(connection: RespConnection, command: list[bytes]) -> bytes:
    """`PING [text]`."""
    return encode(command[1]) if len(command) > 1 else b"+PONG\r\n"


def hello(connection: RespConnection, command: list[bytes]) -> bytes:
    """`HELLO [2|3] [AUTH user password] [SETNAME name]`.

    A password is not checked: the socket's rights decide who may connect.
    """
    if len(command) > 1:
        if command[1] not in (b"2", b"3"):
            return error("NOPROTO", "unsupported protocol version")
        connection.resp3 = command[1] == b"3"
    facts: dict[str, Any] = {
        "server": "fastdedup",
        "version": __version__,
        "proto": 3 if connection.resp3 else 2,
        "id": id(connection) & 0x7FFFFFFF,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    return encode(facts, connection.resp3)


def info(connection: RespConnection, command: list[bytes]) -> bytes:
    """`INFO [section]`: the lines that clients read before they call a server ready."""
    lines = ["# Server", "redis_version:7.0.0", f"fastdedup_version:{__version__}", "redis_mode:standalone"]
    lines += ["# Persistence", "loading:0", "# Replication", "role:master"]
    return encode("\r\n".join(lines) + "\r\n")


def client(connection: RespConnection, command: list[bytes]) -> bytes:
    """`CLIENT SETNAME | SETINFO | ID | GETNAME | …`."""
    what = command[1].upper() if len(command) > 1 else b""
    if what == b"REPLY" and [each.upper() for each in command[2:]] != [b"ON"]:
        raise ConfigError("CLIENT REPLY takes ON only: every command is answered")
    if what == b"ID":
        return encode(id(connection) & 0x7FFFFFFF)
    if what in (b"GETNAME", b"INFO", b"LIST"):
        return encode("")
    return _OK


def select(connection: RespConnection, command: list[bytes]) -> bytes:
    """`SELECT 0`: there is one database only."""
    if command[1:] != [b"0"]:
        return error("ERR", "there is one database only, 0: name a namespace by NS instead")
    return _OK


def multi(connection: RespConnection, command: list[bytes]) -> bytes:
    """`MULTI`: refused, and so is all up to `EXEC` or `DISCARD`. Without that, what stands in it would run."""
    connection.answer_only(_IN_MULTI)
    raise ConfigError("there is no MULTI: nothing runs until EXEC or DISCARD; send a pipeline instead")


def execute(connection: RespConnection, command: list[bytes]) -> bytes:
    """`EXEC` behind a refused MULTI: nothing was run."""
    connection.answer_only(None)
    return error("EXECABORT", "Transaction discarded because of previous errors.")


def discard(connection: RespConnection, command: list[bytes]) -> bytes:
    """`DISCARD` behind a refused MULTI, or `RESET`."""
    connection.answer_only(None)
    return b"+RESET\r\n" if command[0].upper() == b"RESET" else _OK


def skip(connection: RespConnection, command: list[bytes]) -> bytes:
    """Any other command behind a refused MULTI: it is not run."""
    raise ConfigError(
        "not run, as it stands in a MULTI, which the sidecar refuses: send DISCARD, then a pipeline"
    )


def leave(connection: RespConnection, command: list[bytes]) -> bytes:
    """`QUIT`: close the connection after the replies."""
    connection.hang_up_after_replies()
    return _OK


def constant(reply: bytes, connection: RespConnection, command: list[bytes]) -> bytes:
    """Return the same reply to every call."""
    return reply


def _wants(command: list[bytes], least: int) -> None:
    if len(command) < least:
        raise ConfigError(
            f"wrong number of arguments for '{command[0][:32].decode(errors='replace').lower()}'"
        )


COMMANDS: dict[bytes, Command] = {
    b"FD.CLAIM": claim,
    b"FD.REDEEM": redeem,
    b"FD.COMPLETE": partial(settle, True),
    b"FD.FAIL": partial(settle, False),
    b"FD.RELEASE": release,
    b"FD.RENEW": renew,
    b"FD.ISSUE": issue,
    b"FD.CONSUME": consume,
    b"FD.GET": get,
    b"FD.FORGET": forget,
    b"PING": ping,
    b"HELLO": hello,
    b"AUTH": partial(constant, _OK),
    b"CLIENT": client,
    b"SELECT": select,
    b"INFO": info,
    b"COMMAND": partial(constant, b"*0\r\n"),
    b"CONFIG": partial(constant, b"*0\r\n"),
    b"MULTI": multi,
    b"QUIT": leave,
    **store_verbs.REFUSALS,
}
WITH_STORES: dict[bytes, Command] = COMMANDS | store_verbs.COMMANDS
"""The commands of a socket that also serves `sidecar://` stores."""
VERB_OF: dict[bytes, str] = {
    name: name[3:].decode().lower()
    for name in COMMANDS
    if name.startswith(b"FD.") and name not in store_verbs.COMMANDS
}
"""What each command does, in the words of `access.VERBS`. FD.RUN asks for itself."""


def commands_of(access: Access, *, stores: bool) -> dict[bytes, Command]:
    """Return the commands of a socket: a command that has rules there asks them before it runs."""
    commands = WITH_STORES if stores else COMMANDS
    ruled = {name: verb for name, verb in VERB_OF.items() if access.judges(verb)}
    return commands | {name: partial(judged, access, verb, commands[name]) for name, verb in ruled.items()}


def judged(
    access: Access, verb: str, run: Command, connection: RespConnection, command: list[bytes]
) -> bytes | ReplyPlace:
    """Run a command that the socket's rules allow."""
    connection.count_pending()
    access.admit(verb)
    return run(connection, command)


_IN_MULTI: dict[bytes, Command] = {
    **dict.fromkeys(WITH_STORES, skip),
    b"EXEC": execute,
    b"DISCARD": discard,
    b"RESET": discard,
    b"QUIT": leave,
}
