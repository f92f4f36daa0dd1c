"""Asks an installed fastdedup which build it is, and for a claim. Run it with `-W error`, outside of a checkout.

Usage: python -W error ask_wheel.py compiled
"""

import asyncio
import sys
from importlib.metadata import version

from fastdedup import Dedup, State
from fastdedup.compiled import build


async def ask() -> None:
    """Claim, give a waiting duplicate up, complete, and replay."""
    async with Dedup("memory://") as dedup:
        claim = await asyncio.create_task(dedup.claim("order:1"))
        assert claim.acquired
        try:
            async with asyncio.timeout(0.01):  # the exception passes through what is compiled
                await dedup.claim("order:1", wait=5.0)
        except TimeoutError:
            await claim.complete({"order": 1})
        again = await dedup.claim("order:1")
        assert (again.acquired, again.result) == (False, {"order": 1})
        record = await dedup.get("order:1")
        assert record is not None
        assert record.state is State.SUCCEEDED


def main() -> None:
    """Exit with an error where the build is another one than the argument says."""
    wanted = sys.argv[1]
    if build() != wanted:
        sys.exit(f"this fastdedup is {build()}, not {wanted}: {sys.modules['fastdedup'].__file__}")
    asyncio.run(ask())
    print(
        f"fastdedup {version('fastdedup')}, {build()}, Python {sys.version.split()[0]}: a claim is answered"
    )


main()
