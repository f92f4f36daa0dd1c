"""The fields of requests, a row each: how a field is read in the Redis protocol, and its type over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from ..admin.inspection import LISTED
from ..checks import MAX_SECONDS, MOST_REASON, NAME
from ..errors import ConfigError
from ..kernel.keyspace import MAX_KEY_BYTES
from ..kernel.owners import MAX_OWNER_BYTES
from ..keys import fingerprint as digest
from ..ledger.ids import MAX_ID
from ..model import RecordKind, State
from ..stores.redis.argument_types import number
from .ledgers import MAX_IDS
from .limits import MOST_LISTED, MOST_LISTING_MS

_MAX_MS: Final = round(MAX_SECONDS * 1000)
MAX_NUMBER: Final = 2**53 - 1
"""The largest number of both wires: every reader of JSON keeps it exactly."""

# Values in the Redis protocol


def number_of(name: str, data: bytes, least: int = 0, most: int = _MAX_MS) -> int:
    """Return a whole number: milliseconds, a fence, or a count.

    Raises:
        ConfigError: it is not a whole number, or is out of bounds.
    """
    try:
        return number(data, least, most)
    except ValueError:
        bounds = (
            f"of milliseconds from {least} to ten years" if most == _MAX_MS else f"from {least} to {most}"
        )
        raise ConfigError(f"{name} must be a whole number {bounds}, got {_shown(data)}") from None


def text_of(name: str, data: bytes) -> str:
    """Return text from UTF-8.

    Raises:
        ConfigError: it is not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} must be UTF-8 text, got {_shown(data)}") from None


def key_of(name: str, data: bytes) -> str:
    """Return a key. As over HTTP, its bounds hold for a token too: any other text is a token that is unknown.

    Raises:
        ConfigError: it is empty, too long, or not UTF-8.
    """
    text = text_of(name, data)
    if not 0 < len(text) <= MAX_KEY_BYTES:
        raise ConfigError(f"{name} must have 1 to {MAX_KEY_BYTES} bytes of UTF-8, got {len(data)}")
    return text


def choice_of(choices: Sequence[str], name: str, data: bytes) -> str:
    """Return one of a few words.

    Raises:
        ConfigError: it is not one of them.
    """
    text = data.decode(errors="replace")
    if text not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {_shown(data)}")
    return text


def fingerprint_of(data: bytes) -> bytes:
    """Digest what a client sent. UTF-8 is digested as text, so that HTTP and RESP agree; else the bytes are."""
    try:
        return digest(data.decode())
    except UnicodeDecodeError:
        return digest(data)


def _shown(data: bytes) -> str:
    return repr(data[:32].decode(errors="replace"))


# Types over HTTP


def _typed(kind: Any, about: str, **bounds: Any) -> Any:
    return Annotated[kind, Field(description=about, **bounds)]


def _number(least: int, most: int, about: str) -> Any:
    whole = _whole_ms if most == _MAX_MS else _whole
    return Annotated[int, Field(ge=least, le=most, description=about), BeforeValidator(whole)]


def _text(most: int, about: str) -> Any:
    return _typed(str, about, min_length=1, max_length=most)


def _whole(value: object, what: str = "a whole number") -> object:
    """Return a float without fraction as an int: JSON has one kind of number, in which 5.0 is 5.

    Raises:
        PydanticCustomError: it is a fraction, or text that is no number in the Redis protocol either, such as "+1" or
            "1_0" in a query.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, float) or (isinstance(value, str) and not (value.isascii() and value.isdigit())):
        raise PydanticCustomError("digits", "must be {what}", {"what": what})
    return value


# The error names the unit: "30s" and 0.5 are meant in seconds.
_whole_ms: Final = partial(_whole, what="a whole number of milliseconds")


def _without_most(schema: dict[str, Any]) -> None:
    """Leave the bound out of the document: a body of more ids may be too large as well, which is another problem."""
    del schema["maxItems"]


_NAME: Final = f"^{NAME}$"
Namespace = Annotated[str, Field(pattern=_NAME, description="The sidecar's default one if missing.")]
Milliseconds = Annotated[int, Field(ge=1, le=_MAX_MS), BeforeValidator(_whole_ms)]
Wait = Annotated[
    int,
    Field(ge=0, le=_MAX_MS, description="Milliseconds to wait for a present owner to settle."),
    BeforeValidator(_whole_ms),
]
_FENCE: Final = "The claim's fence, to be sure that it is that very claim."
_VALUE: Final = _typed(Any, "Any JSON; every duplicate gets it.")
_CALLER: Final = f"Who claims: 1 to {MAX_OWNER_BYTES} bytes of UTF-8. The same owner gets its own claim back."
_CALL: Final = "Your own name for this call: if its answer was lost, the same name gets it again."
_FINGERPRINT: Final = (
    "The request under this key: any JSON. It is always digested, text as text. "
    "Another value under the same key is a mismatch."
)
_REMEMBER: Final = (
    "The ledger, of the sidecar's settings, that remembers the success. The requests that settle or "
    "renew the claim name it too."
)
_KIND: Final = 'What the key is of; a machine\'s key is its name, "/" and the id.'
_DIGEST: Final = "The key is # and 32 hexadecimal digits: a list shows a token or a long key so."
_ID: Final = f"1 to {MAX_ID} bytes of UTF-8; a whole number is the same id as its decimal text."
_Id = Annotated[Annotated[str, Field(min_length=1, max_length=MAX_ID)] | int, Field(description=_ID)]
_Ids = Annotated[
    list[_Id],
    Field(max_length=MAX_IDS, description=f"At most {MAX_IDS} ids.", json_schema_extra=_without_most),
]

# The table


class WireField(NamedTuple):
    """A field of requests.

    Attributes:
        name: its name over HTTP.
        read: reads its value in the Redis protocol; None for a flag, which has no value.
        type: its type over HTTP; None if it is no member of a body or query.
        default: its value over HTTP if it is missing; `...` if it may not be missing. If that is None, the field may
            be null as well.
    """

    name: str
    read: Callable[[str, bytes], object] | None
    type: Any = None
    default: Any = ...

    @property
    def member(self) -> tuple[Any, Any]:
        """The type and the default value, for a model."""
        as_it_is = self.default is not None or getattr(self.type, "__origin__", None) is Any
        return self.type if as_it_is else self.type | None, self.default


def _raw(name: str, data: bytes) -> bytes:
    return data


_milliseconds = partial(number_of, least=1)

FIELDS: Final[dict[str, WireField]] = {
    "key": WireField("key", key_of, _text(MAX_KEY_BYTES, f"1 to {MAX_KEY_BYTES} bytes of UTF-8.")),
    "owner": WireField("owner", text_of, _text(MAX_OWNER_BYTES, "As the claim said.")),
    "token": WireField("token", text_of, _typed(str, "As `POST /v1/tokens` gave it.")),
    "result": WireField("result", _raw, _VALUE, None),
    "error": WireField("error", _raw, _VALUE, None),
    "lease": WireField("lease", _milliseconds, Milliseconds, None),
    "ledger": WireField("ledger", _raw),
    "id": WireField("ids", _raw, _Ids),
    "NS": WireField("namespace", _raw, Namespace, None),
    "FP": WireField("fingerprint", lambda name, data: fingerprint_of(data), _typed(Any, _FINGERPRINT), None),
    "OWNER": WireField("owner", text_of, _text(MAX_OWNER_BYTES, _CALLER), None),
    "first OWNER": WireField("owner", text_of, _text(MAX_OWNER_BYTES, _CALL), None),
    "LEASE": WireField("lease", _milliseconds, Milliseconds, None),
    "TTL": WireField("ttl", _milliseconds, Milliseconds, None),
    "WAIT": WireField("wait", number_of, Wait, 0),
    "EPHEMERAL": WireField("ephemeral", None),
    "REMEMBER": WireField("remember", text_of, _typed(str, _REMEMBER, pattern=_NAME), None),
    "FENCE": WireField("fence", partial(number_of, most=MAX_NUMBER), _number(0, MAX_NUMBER, _FENCE), 0),
    "TOKEN": WireField("token", None, _typed(bool, "The key is a token that was redeemed."), False),
    "SUBJECT": WireField(
        "subject", text_of, _typed(Any, "The user or thing that the token is for: any JSON."), None
    ),
    "KIND": WireField("kind", partial(choice_of, get_args(RecordKind)), _typed(RecordKind, _KIND), "claim"),
    "list KIND": WireField("kind", partial(choice_of, LISTED), Literal["claim", "lock", "token"], None),
    "DIGEST": WireField("digest", None, _typed(bool, _DIGEST), False),
    "REASON": WireField(
        "reason",
        text_of,
        _typed(str, "Why, for the audit's line in the log.", max_length=MOST_REASON),
        None,
    ),
    "PREFIX": WireField("prefix", text_of, _typed(str, "How the keys begin.", max_length=MAX_KEY_BYTES), ""),
    "STATE": WireField("state", partial(choice_of, tuple(State)), State, None),
    "OLDER": WireField(
        "older", number_of, _number(0, _MAX_MS, "Milliseconds since the key was acquired, at least."), 0
    ),
    # A larger number than the list's own is no mistake: the command line asks for 5 seconds.
    "LIMIT": WireField(
        "limit",
        partial(number_of, least=1, most=MAX_NUMBER),
        _number(1, MAX_NUMBER, f"Stop at so many, or {MOST_LISTED}; the last step may bring some more."),
        100,
    ),
    "WITHIN": WireField(
        "within",
        _milliseconds,
        _number(1, _MAX_MS, f"Milliseconds, or {MOST_LISTING_MS}, after which it stops."),
        MOST_LISTING_MS,
    ),
    # Of an earlier list, to go on from there; without text, from the beginning.
    "CURSOR": WireField("cursor", text_of, str, None),
}
"""The fields by their words in a command's usage: a positional argument in small letters, an option in capitals.

A verb's own field of that word stands behind the verb's name.
"""
