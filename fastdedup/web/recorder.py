"""Decides for a response under a claim: it is held back, passed on, stored or refused. No I/O.

Main path: `Recorder.start` → `body` → `end` → `marks`. ASGI, WSGI and Django drive it.
"""

from __future__ import annotations

from typing import Any, Final

from ..claim import Claim
from ..codec import Encoded
from ..errors import ClaimLostError, DedupError
from .answers import WITHOUT_BODY, Settling, is_cut_short, lost, reaches, settling_of, storable, streams
from .response import DEGRADED, REPLAYED, UNSTORED, Headers, Response
from .rules import Rule

_KIND_SIZE: Final = 12
_LENGTH_SIZE: Final = 14
"""The sizes of `content-type` and `content-length`: other headers are not put into lower case."""
_RELEASE: Final = Settling.RELEASE  # naming an enum's member through its class costs 50 ns on Python 3.11
Marks = list[tuple[bytes, bytes]]
"""Headers that mark a response: degraded, or not stored."""


def is_held(recorder: Recorder | None) -> bool:
    """Return whether a request is still under its claim, also if its handler has settled that by hand.

    False once its run is over: if a middleware further outside then runs the same request again, after an error,
    that run must claim anew. The claim cannot tell: if its lease was lost, it was neither settled nor given back.
    """
    return recorder is not None and not recorder.settled


class Recorder:
    """Decides for the response to a request that holds a claim; its driver feeds it, and acts on its decisions.

    A response is held back until it is whole and stored, so that no client sees a result that a retry would not get.
    Streams, and responses that are too large to be kept, are passed on part by part. Only their status and headers
    are stored, at their end.

    Drivers learn different things: an ASGI server tells that the client left, a WSGI server closes the response
    before its end. `counts_in_part` decides in both cases. The drivers decide the rest: only a coroutine can be
    cancelled; Django has the whole response at once, so even a large one is sent after it has settled the claim.

    `path` is the request's, and `mark` its fingerprint if the record does not have it.
    """

    def __init__(self, claim: Claim, rule: Rule, docs: str | None, path: str, mark: bytes = b"") -> None:
        self.claim = claim
        self.rule = rule
        self._docs = docs
        self._path = path
        self._mark = mark
        # Mutable, of the handler: may a client that leaves end it, unlike one in a thread; has it said that nothing
        # was done; had its form errors, so that nothing was done unless it redirects.
        self.cancels = rule.on_disconnect == "cancel"
        self.undone = False
        self.invalid = False
        # Mutable, of a transaction that commits with its response: has it committed, so that the response is sent in
        # any case; the response as its row keeps it, which is stored here too; is the response an earlier request's,
        # from its row.
        self.committed = False
        self.kept: Encoded | None = None
        self.replayed = False
        # Mutable, of the response: its head, the length that it tells, its body so far; is it passed on, is it a
        # stream; how many bytes were passed on; is it over, so that the claim is settled; the effect on the claim.
        self._status = 0
        self._headers: Headers = ()
        self._length = b""
        self._reason = ""
        self._chunks: list[Any] = []
        self._size = 0
        self.passing = False
        self._streams = False
        self._passed = 0
        self.settled = False
        self.how = _RELEASE

    def start(self, status: int, headers: Headers, reason: str = "", *, stream: bool | None = None) -> bool:
        """Take status, headers and a reason phrase of its own, and forget a response that was held back so far.

        Return whether the response is passed on: as `stream` says, by default as a stream is, by its content type.
        """
        self._status, self._headers, self._reason = status, headers, reason
        if self._chunks:
            self.taken()
        told = self._told_by(headers)
        if not self.passing:
            self._streams = told and status not in WITHOUT_BODY
            self.passing = self._streams if stream is None else stream
        return self.passing

    def _told_by(self, headers: Headers) -> bool:
        """Return whether the headers tell of a stream, and remember the length that they tell."""
        self._length, told = b"", False
        pairs: Any = headers  # pairs of any kind: some applications send lists
        for name, value in pairs:
            if len(name) == _KIND_SIZE and name.lower() == b"content-type":
                told = told or streams(value)
            elif len(name) == _LENGTH_SIZE and name.lower() == b"content-length":
                self._length = value
        return told

    def body(self, chunk: Any) -> bool:
        """Take a piece of the body, bytes or a view. Return whether the response is passed on: then send `taken`."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self.rule.max_response:
            self.passing = True
        return self.passing

    def passes(self, size: int) -> bool:
        """Count bytes that are passed on. Return whether the response ends with them, by the length that it tells.

        Then the claim is settled: some servers read no further, and the client may leave, because it has the whole.
        """
        self._passed += size
        return not self.settled and reaches(self._passed, self._length)

    @property
    def is_whole(self) -> bool:
        """True if the body that has come cannot be cut: it came at once, or has the length that the head tells."""
        at_once = self._size > 0 and len(self._chunks) == 1
        measured = self._status in WITHOUT_BODY or reaches(self._passed + self._size, self._length)
        return at_once or measured or self.committed

    def taken(self) -> bytes:
        """Return the body that has come since it was last taken."""
        body = b"".join(self._chunks)
        self._chunks = []
        self._size = 0
        return body

    def end(self) -> Response:
        """Take the response's end. Return the response to store, unless `kept` is stored; `how` tells the effect."""
        self.settled = True
        if self.invalid and not 300 <= self._status < 400:
            self.undone = True
        body = b"" if self.passing else self.taken()
        self._chunks.append(body)  # for the client, once the claim is settled
        response = Response(self._status, self._headers, body, not self.passing, self._mark, self._reason)
        # A committed response was looked at before its COMMIT, with the request's method.
        if not (self.undone or (not self.committed and self._is_broken(response))):
            self.how = settling_of(self.rule, response, self._path)
        return storable(self.rule, response) if self.kept is None else response

    def _is_broken(self, response: Response) -> bool:
        """True if the body is shorter than its Content-Length; then it warns."""
        length = self._length
        if not is_cut_short(response, length, may_be_empty="HEAD" in self.rule.methods):
            return False
        self.claim.settlement.warn(
            "responses that were cut short",
            "%s: a response ended after %d bytes, and its Content-Length is %.20s: it is not kept",
            len(response.body),
            length.decode(),
        )
        return True

    @property
    def counts_in_part(self) -> bool:
        """True if a client that leaves now still settles the claim: the part that was sent counts as the response.

        A response that is too large to be kept counts, and so does a file that a framework passes on: the work is
        done. A stream does not count: it may be endless. Its key is freed, like every key whose handler
        `on_disconnect="cancel"` may end.
        """
        return self.passing and not (self._streams or self.settled or self.cancels)

    # What the client gets

    def marks(self, *, stored: bool = True) -> Marks:
        """Return the marks of the response; `stored` is False before the end, and if it cannot be stored."""
        marks: Marks = [DEGRADED] if self.claim.degraded else []
        if self.replayed:
            marks.append(REPLAYED)
        if not self.committed and (not stored or (self.passing and not self.undone)):
            marks.append(UNSTORED)
        return marks

    def failed(self, error: DedupError) -> Marks | None:
        """Return the marks of a response that did not settle its claim, or None if the claim was lost.

        A response whose claim was lost is replaced by `refusal`, because a retry gets another response. Any other
        response is sent, because its handler has run, and so is a response that was committed.
        """
        if self.committed:
            return self.marks()
        if isinstance(error, ClaimLostError):
            return None  # the claim has told that it is lost
        self.claim.settlement.warn(
            "responses that did not settle", "%s was not settled by its response: %s", error
        )
        return self.marks(stored=self.how is _RELEASE)

    def refusal(self) -> Response:
        """Return the answer to a request whose claim was lost."""
        return lost(self.rule, self._docs, outage=self.claim.settlement.lost_in_outage)
