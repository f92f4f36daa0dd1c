"""The table of verbs: a row has the facts that the queue, the stores, policies, counters and the sidecar need.

To add a verb: a row here and one in `stores/redis/arguments.py`, its Lua file, its operation, and the functions
that mypy then reports. These end in `assert_never`. The other modules follow the facts of a verb's row.
"""

from __future__ import annotations

from enum import Enum, Flag, StrEnum, auto
from typing import Any, Final, NamedTuple, Self


class Turn(Enum):
    """The time at which operations of a verb are sent, and the way in which a batch is taken from their queue."""

    URGENT = auto()
    """Before all others, because they free keys. They cannot starve the claims: every settling needs a claim
    before it. A release must overtake the claims that wait for its key, and a claim that a call has given up must
    be undone before the same call asks again."""
    IN_TURN = auto()
    """The verbs take turns: the verb that was served goes to the end."""
    SPREAD = auto()
    """In turn. The operations are spread over the batches that may start now."""
    CLAIMS = auto()
    """In turn. A claim whose caller was cancelled before it was sent is dropped."""


class Keys(Flag):
    """The keys that a verb may touch: a claim must not write into a ledger's bucket."""

    RECORD = auto()
    """Keys of claims, tokens, locks and machines."""
    BESIDE = auto()
    """Records beside a ledger's bucket: of claims whose success the ledger remembers."""
    BUCKET = auto()
    """Buckets, which hold a ledger's ids."""
    LEDGER = auto()
    """Ledgers, which hold their form."""
    HELD = RECORD | BESIDE
    """Keys that an owner may hold."""
    ANY = HELD | BUCKET | LEDGER


class Effect(Enum):
    """The effect of a verb on a key, and so on the holding of its owner."""

    CLAIMS = auto()
    """Gives the key to an owner: these operations lead, follow and may be orphans."""
    DECIDES = auto()
    """Lets one caller go on without holding the key: a machine moved, an id is new."""
    MAKES = auto()
    """Makes a record without an owner."""
    BRINGS = auto()
    """Writes data that is known elsewhere: a record that a policy made, a ledger's form."""
    EXTENDS = auto()
    """The owner keeps the key; its lease or its record lasts longer."""
    FREES = auto()
    """The owner's holding ends, with a result or without."""
    REMOVES = auto()
    """Removes the record of any owner: the operation names no owner."""
    READS = auto()
    """Changes nothing."""


class Resend(Enum):
    """Whether an operation that got no reply may be sent again."""

    SAFE = auto()
    """It has the same effect if it is sent twice."""
    MARKED = auto()
    """It is marked `resent`, because the first sending may have taken effect: see `mark_resent`."""
    NEVER = auto()
    """It names no owner: sent again, it might remove what the next owner has put there."""


class IdUse(Enum):
    """The use that an operation makes of a ledger's id, which follows its script's arguments for a sidecar."""

    NONE = auto()
    """It uses no id."""
    NAMES = auto()
    """It looks for the id, or removes it."""
    REMEMBERS = auto()
    """It may write the id into a bucket, and its reply says how full the bucket is."""


class VerbRow(NamedTuple):
    """The facts of a verb.

    Attributes:
        name: the name of its Lua file, and of the verb on the wire between a store and the sidecar.
        turn: when its operations are sent.
        keys: the keys that it may touch, without a ledger (`ClaimOp.unless`, `SettleOp.also`).
        effect: its effect on a key.
        resend: whether an operation may be sent again.
        ids: what its operations do with an id.
        result: its operations may record a result, whose size is bounded.
        confirmed: if replicas are asked for, they confirm it.
        users: the users' name of its operations, if it differs; a settling that fails is "fail".
    """

    name: str
    turn: Turn
    keys: Keys
    effect: Effect
    resend: Resend
    ids: IdUse = IdUse.NONE
    result: bool = False
    confirmed: bool = True
    users: str = ""

    @property
    def grants(self) -> bool:
        """True if one caller goes on because of its answer, so that the store and a policy must not both say yes."""
        return self.effect in (Effect.CLAIMS, Effect.DECIDES)

    @property
    def creates(self) -> bool:
        """True if there may be more records or ids afterwards: it counts towards a quota."""
        return self.grants or self.effect in (Effect.MAKES, Effect.BRINGS)

    @property
    def of_owner(self) -> bool:
        """True if only the key's owner may do it."""
        return self.effect in (Effect.EXTENDS, Effect.FREES)

    @property
    def of_ledger(self) -> bool:
        """True if it concerns only a ledger's form or ids, and no record."""
        return not self.keys & Keys.HELD


class Verb(StrEnum):
    """The atomic verbs: each has one Lua file, one operation class and one method of the memory store.

    Urgent verbs go in the order of their rows.
    """

    _value_: str
    row: VerbRow

    def __new__(cls, name: str, *facts: Any) -> Self:
        """Return the member of a row, which an enum passes on field by field; `Verb(name)` finds it."""
        self = str.__new__(cls, name)
        self._value_ = name
        self.row = VerbRow(name, *facts)
        return self

    __hash__ = str.__hash__  # an enum's own hash is Python code, and each batch is looked up by its verb

    ADOPT = VerbRow("adopt", Turn.URGENT, Keys.HELD, Effect.BRINGS, Resend.SAFE, result=True)
    SETTLE = VerbRow(
        "settle",
        Turn.URGENT,
        Keys.HELD,
        Effect.FREES,
        Resend.MARKED,
        result=True,
        users="complete",
    )
    RELEASE = VerbRow("release", Turn.URGENT, Keys.HELD, Effect.FREES, Resend.MARKED)
    RENEW = VerbRow("renew", Turn.URGENT, Keys.HELD, Effect.EXTENDS, Resend.SAFE)
    TOUCH = VerbRow("touch", Turn.URGENT, Keys.HELD, Effect.EXTENDS, Resend.SAFE)
    FORGET_ID = VerbRow("forget_id", Turn.URGENT, Keys.BUCKET, Effect.REMOVES, Resend.NEVER, ids=IdUse.NAMES)
    CLAIM = VerbRow("claim", Turn.CLAIMS, Keys.RECORD, Effect.CLAIMS, Resend.MARKED)
    ISSUE = VerbRow("issue", Turn.IN_TURN, Keys.RECORD, Effect.MAKES, Resend.SAFE)
    TRANSITION = VerbRow("transition", Turn.IN_TURN, Keys.RECORD, Effect.DECIDES, Resend.MARKED)
    READ = VerbRow(
        "read",
        Turn.IN_TURN,
        Keys.ANY,
        Effect.READS,
        Resend.SAFE,
        confirmed=False,
        users="get",
    )
    FORGET = VerbRow("forget", Turn.IN_TURN, Keys.ANY, Effect.REMOVES, Resend.NEVER)
    FIRST = VerbRow("first", Turn.SPREAD, Keys.BUCKET, Effect.DECIDES, Resend.MARKED, ids=IdUse.REMEMBERS)
    SEEN = VerbRow("seen", Turn.IN_TURN, Keys.BUCKET, Effect.READS, Resend.SAFE, ids=IdUse.NAMES)
    LEDGER = VerbRow("ledger", Turn.IN_TURN, Keys.LEDGER, Effect.BRINGS, Resend.SAFE)
    WEIGH = VerbRow("weigh", Turn.IN_TURN, Keys.BUCKET, Effect.READS, Resend.SAFE)


UNREPEATED: Final = tuple(verb for verb in Verb if verb.row.resend is Resend.NEVER)
"""Verbs whose operations name no owner: sent again, one might remove the next owner's record."""
