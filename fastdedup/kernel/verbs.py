"""Each verb once: a row says what the queue, the stores, the policies, the counters and the sidecar must know of it.

To add a verb: a row here, its Lua file, its operation, and what mypy then names: the functions that end in
`assert_never` tell how the scripts' face, the memory store, the policy and the sidecar do it.
"""

from __future__ import annotations

from enum import Enum, Flag, StrEnum, auto
from typing import Any, Final, NamedTuple, Self


class Turn(Enum):
    """When operations of a verb are sent, and how a batch of them is taken from their queue."""

    URGENT = auto()
    """Before all others, because they free keys. They cannot starve the claims: every settling needs a claim
    before it. A release must overtake the claims that wait for its key, and what a call has given up must be taken
    back before the same call asks again."""
    IN_TURN = auto()
    """The verbs take turns: the verb that was served goes to the end."""
    SPREAD = auto()
    """In turn. They are spread over the batches that may start now."""
    CLAIMS = auto()
    """In turn. A claim whose caller was cancelled before it was sent is dropped."""


class Keys(Flag):
    """The keys that a verb may touch: a claim must not write into a ledger's bucket."""

    RECORD = auto()
    """Of claims, tokens, locks and machines."""
    BESIDE = auto()
    """Records beside a ledger's bucket: of claims whose success the ledger remembers."""
    BUCKET = auto()
    """Buckets, which hold a ledger's ids."""
    LEDGER = auto()
    """Ledgers, which hold their form."""
    HELD = RECORD | BESIDE
    """What an owner may hold."""
    ANY = HELD | BUCKET | LEDGER


class Effect(Enum):
    """What a verb does to a key, and so to the holding of its owner."""

    CLAIMS = auto()
    """Gives the key to an owner."""
    DECIDES = auto()
    """Lets one caller go on, who does not hold the key: a machine moved, an id is new."""
    MAKES = auto()
    """Makes a record without an owner."""
    BRINGS = auto()
    """Writes what is known elsewhere: a record that a policy made, a ledger's form."""
    EXTENDS = auto()
    """The owner keeps the key for longer."""
    FREES = auto()
    """The owner's holding ends, with a result or without."""
    REMOVES = auto()
    """Removes the record of any owner: the operation names no owner."""
    READS = auto()
    """Changes nothing."""


class Resend(Enum):
    """Whether an operation that got no reply may be sent again."""

    SAFE = auto()
    """Sent twice it does the same as sent once."""
    MARKED = auto()
    """It says so (`resent`), because the first sending may have taken effect: see `mark_resent`."""
    NEVER = auto()
    """It names no owner: sent again, it might remove what the next owner has put there."""


class IdUse(Enum):
    """What an operation does with an id of a ledger, which stands behind its script's arguments for a sidecar."""

    NONE = auto()
    """It is about no id."""
    NAMES = auto()
    """It looks for the id, or removes it."""
    REMEMBERS = auto()
    """It may write the id into a bucket, and hears how full that is."""


class RunForm(NamedTuple):
    """The arguments of a verb's script: see the headers in `lua/`.

    Attributes:
        head: the arguments that a run of operations shares, behind their number. None if each operation stands alone.
        each: the arguments of each operation.
        ids: what its operations do with an id.
        result: one of the arguments is a result, whose size is bounded.
    """

    head: int | None
    each: int
    ids: IdUse = IdUse.NONE
    result: bool = False

    @property
    def most(self) -> int:
        """The arguments that one operation has at most: its key and its id, and those of a run."""
        shared = 0 if self.head is None else 1 + self.head
        return 1 + shared + self.each + (self.ids is not IdUse.NONE)


class VerbRow(NamedTuple):
    """What is to be known of a verb.

    Attributes:
        name: of its Lua file, and on the wire between a store and the sidecar.
        turn: when its operations are sent.
        keys: what it may touch.
        effect: what it does to a key.
        resend: whether an operation may be sent again.
        form: the arguments of its script.
        confirmed: if replicas are asked for, they confirm it.
        users: the name that users know its operations by, if it is another one; a settling that fails is "fail".
    """

    name: str
    turn: Turn
    keys: Keys
    effect: Effect
    resend: Resend
    form: RunForm
    confirmed: bool = True
    users: str = ""

    @property
    def claims(self) -> bool:
        """True if it gives a key to an owner: its operations are claims, which lead, follow and may be orphans."""
        return self.effect is Effect.CLAIMS

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
        """True if it is about a ledger's form or ids alone, and about no record."""
        return not self.keys & Keys.HELD


class Verb(StrEnum):
    """The atomic verbs: each has one Lua file, one operation class and one method of the memory store.

    Of the verbs that are urgent, the upper ones go first.
    """

    _value_: str
    row: VerbRow

    def __new__(cls, name: str, *facts: Any) -> Self:
        """Return the member of a row, which an enum passes on field by field; `Verb(name)` finds it."""
        self = str.__new__(cls, name)
        self._value_ = name
        self.row = VerbRow(name, *facts)
        return self

    __hash__ = str.__hash__  # an enum's own is written in Python, and each batch is looked up by its verb

    ADOPT = VerbRow(
        "adopt", Turn.URGENT, Keys.HELD, Effect.BRINGS, Resend.SAFE, RunForm(None, 4, result=True)
    )
    SETTLE = VerbRow(
        "settle",
        Turn.URGENT,
        Keys.HELD,
        Effect.FREES,
        Resend.MARKED,
        RunForm(2, 2, result=True),
        users="complete",
    )
    SETTLE_REMEMBERED = VerbRow(
        "settle_remembered",
        Turn.URGENT,
        Keys.BESIDE,
        Effect.FREES,
        Resend.MARKED,
        RunForm(8, 3, IdUse.REMEMBERS, result=True),
        users="complete",
    )
    RELEASE = VerbRow("release", Turn.URGENT, Keys.HELD, Effect.FREES, Resend.MARKED, RunForm(1, 1))
    RENEW = VerbRow("renew", Turn.URGENT, Keys.HELD, Effect.EXTENDS, Resend.SAFE, RunForm(2, 1))
    FORGET_ID = VerbRow(
        "forget_id", Turn.URGENT, Keys.BUCKET, Effect.REMOVES, Resend.NEVER, RunForm(3, 1, IdUse.NAMES)
    )
    CLAIM = VerbRow("claim", Turn.CLAIMS, Keys.RECORD, Effect.CLAIMS, Resend.MARKED, RunForm(4, 1))
    ISSUE = VerbRow("issue", Turn.IN_TURN, Keys.RECORD, Effect.MAKES, Resend.SAFE, RunForm(1, 1))
    TRANSITION = VerbRow(
        "transition", Turn.IN_TURN, Keys.RECORD, Effect.DECIDES, Resend.MARKED, RunForm(None, 7)
    )
    READ = VerbRow(
        "read",
        Turn.IN_TURN,
        Keys.ANY,
        Effect.READS,
        Resend.SAFE,
        RunForm(None, 0),
        confirmed=False,
        users="get",
    )
    FORGET = VerbRow("forget", Turn.IN_TURN, Keys.ANY, Effect.REMOVES, Resend.NEVER, RunForm(None, 0))
    FIRST = VerbRow(
        "first", Turn.SPREAD, Keys.BUCKET, Effect.DECIDES, Resend.SAFE, RunForm(7, 1, IdUse.REMEMBERS)
    )
    SEEN = VerbRow("seen", Turn.IN_TURN, Keys.BUCKET, Effect.READS, Resend.SAFE, RunForm(4, 1, IdUse.NAMES))
    LEDGER = VerbRow("ledger", Turn.IN_TURN, Keys.LEDGER, Effect.BRINGS, Resend.SAFE, RunForm(None, 4))
    WEIGH = VerbRow("weigh", Turn.IN_TURN, Keys.BUCKET, Effect.READS, Resend.SAFE, RunForm(None, 2))
    CLAIM_REMEMBERED = VerbRow(
        "claim_remembered",
        Turn.CLAIMS,
        Keys.BESIDE,
        Effect.CLAIMS,
        Resend.MARKED,
        RunForm(7, 2, IdUse.NAMES),
        users="claim",
    )


CLAIMS: Final = tuple(verb for verb in Verb if verb.row.claims)
"""Verbs of claims. A tuple, which is searched by identity first, costs less than a set here."""
UNREPEATED: Final = tuple(verb for verb in Verb if verb.row.resend is Resend.NEVER)
"""Verbs whose operations name no owner: sent again, one might remove what the next owner has put there."""
