"""The numbers of the scripts' answers."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """A script's answer for one key. `lua/_record.lua` has the same numbers; a test compares the two."""

    OK = 0
    REENTERED = 1
    TAKEN = 2
    IN_PROGRESS = 3
    SUCCEEDED = 4
    FAILED = 5
    MISMATCH = 6
    UNKNOWN = 7
    LOST = 8
    FOREIGN = 9
    ALREADY = 10
    ILLEGAL = 11
    STALE = 12
    ABSENT = 13
    THEIRS_STANDS = 14
    OURS_STANDS = 15
    UNCONFIRMED = 16
    UNSURE = 17
    TOO_LARGE = 18
    ELSEWHERE = 19
    REFUSED = 20
    AGAIN = 21
    FULL = 22
    PENDING = 23
