"""Decides who may connect while connections are short. Main path: `Admission.admit`.

If the limit is reached, the connection that has sent nothing for the longest time makes room for the next one. If
each connection has sent something, a few places are left for users that have few connections, and a few for the
operator: root, and the sidecar's own user.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from ...log_throttle import LogThrottle
from ..http import problems
from ..http.request import last_answer
from ..limits import Limits
from ..resp.frames import error

_OTHERS = 56
"""Places beyond the limit, for users with fewer than `_FEW` connections while another user has the most."""
_FEW = 8
_OPERATORS = 8
"""Further places, for the operator."""
_PATIENCE = 0.25
"""Seconds that a connection may be silent before another one takes its place: many clients may connect at once."""
_LOBBY = 64
"""Refused connections that may wait for their first bytes at once, to get the refusal in their own protocol."""
_QUIET = 60.0
"""Seconds between two lines in the log that tell of refusals."""
_LOOKS = tuple(b"GET /%b" % path for path in (b"healthz", b"readyz", b"metrics"))
"""Requests that are answered even over a refused connection."""


class Silent(Protocol):
    """A connection that has sent nothing yet."""

    def cut(self) -> None:
        """Close at once."""
        ...


class Admission:
    """Counts connections, in all and of each user.

    Args:
        limits: those of the sidecar.
        clock: returns the time in seconds, from any moment on.
        room: how many connections the system's limit of open files allows; None: as many as `limits`.
    """

    def __init__(
        self, limits: Limits, clock: Callable[[], float] = monotonic, *, room: int | None = None
    ) -> None:
        self._clock = clock
        scarce = room is not None and room < limits.connections
        self._most = room if scarce and room is not None else limits.connections
        self._name = "open files: ulimit -n" if scarce else "limits.connections"
        self._most_of_uid = limits.connections_per_uid
        self._operators = {0, os.getuid()}
        # Mutable: the open connections of each user (None is an unknown user); their sum; the connections that have
        # sent nothing yet, with their user and start, the oldest first; those that were refused, the oldest first.
        self._of_uid: Counter[int | None] = Counter()
        self._open = 0
        self._silent: dict[Silent, tuple[int | None, float]] = {}
        self._lobby: dict[Silent, None] = {}
        self._refusals = LogThrottle(window=_QUIET)

    def admit(self, connection: Silent, uid: int | None) -> str:
        """Admit a connection, and return the empty text; or return why it is refused."""
        why = self._refusal(uid)
        if why:
            return why
        self._of_uid[uid] += 1
        self._open += 1
        self._silent[connection] = uid, self._clock()
        return ""

    def spoke(self, connection: Silent) -> Callable[[], None]:
        """Take note that a connection has sent something; return what to call at its end."""
        uid, _ = self._silent.pop(connection)

        def end() -> None:
            self._left(uid)

        return end

    def ended(self, connection: Silent) -> None:
        """Take note that a connection has ended without sending anything; twice is fine."""
        if connection in self._silent:
            self._left(self._silent.pop(connection)[0])
        self._lobby.pop(connection, None)

    def linger(self, connection: Silent) -> None:
        """Let a refused connection wait for its first bytes; if too many wait, close the oldest."""
        self._lobby[connection] = None
        if len(self._lobby) > _LOBBY:
            oldest = next(iter(self._lobby))
            del self._lobby[oldest]
            oldest.cut()

    def untold(self) -> int:
        """Count a refusal; return how many to log now: 0 within a minute of the last line."""
        return 1 + self._refusals.take_left_out() if self._refusals.passes(self._clock()) else 0

    def _left(self, uid: int | None) -> None:
        self._open -= 1
        self._of_uid[uid] -= 1
        if not self._of_uid[uid]:
            del self._of_uid[uid]

    def _refusal(self, uid: int | None) -> str:
        operator = _OPERATORS if uid in self._operators else 0
        most, own = self._most_of_uid, self._of_uid[uid]
        if most is not None and own >= most and not self._shed(uid) and own >= most + operator:
            return f"user {uid} has {own} connections, the limit for one user (limits.connections_per_uid)"
        if self._open < self._most or self._shed(self._crowd()) or self._shed():
            return ""
        others = _OTHERS if uid != self._crowd() and (operator or self._of_uid[uid] < _FEW) else 0
        if self._open < self._most + others + operator:
            return ""
        return f"{self._open} connections are open, the limit ({self._name})"

    def _crowd(self) -> int | None:
        """Return the user with the most connections."""
        return max(self._of_uid, key=self._of_uid.__getitem__)

    def _shed(self, *of: int | None) -> bool:
        """Close the oldest connection that has sent nothing, of this user if a user is named."""
        before = self._clock() - _PATIENCE
        for connection, (uid, since) in self._silent.items():
            if since > before:
                return False
            if not of or uid == of[0]:
                self.ended(connection)
                connection.cut()
                return True
        return False


def is_a_look(data: bytes) -> bool:
    """True if the first bytes of a connection ask for health or metrics."""
    return data.startswith(_LOOKS)


def refusal_text(data: bytes, why: str) -> bytes:
    """Return the refusal in the language of a connection, which its first bytes tell."""
    if data[:1] == b"*" or not data:
        return error("ERR", f"max number of clients reached: {why}")
    return last_answer(problems.BUSY.facts(why), b"retry-after: 1\r\n")
