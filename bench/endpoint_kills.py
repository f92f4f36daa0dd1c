"""Kill web applications under load; count the requests lost or done twice: `python -m bench.endpoint_kills`.

Each request is sent three times, with one Idempotency-Key, and again until it is answered 201. Three processes
serve them; one after the other is killed by SIGKILL. In the end each request must have left its effect once. The
broker, the database and the counts are those of `bench.inbox_kills`, whose messages are requests here.
"""

# No `from __future__ import annotations` here: FastAPI reads the annotations of handlers made in a function.

from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI

from bench.inbox_kills import Begin, Handle, Way, do_work, print_tallies
from fastdedup import Claim, Dedup, InProgressError
from fastdedup.integrations.fastapi import Claimed, Commits, Committed, Idempotency, everyone
from fastdedup.sql import Inbox

COPIES = 3


def committing(begin: Begin, gate: Dedup | None) -> Handle:
    """Row, effect and response commit together, behind a gate."""
    app = application(gate)
    inbox = Inbox("kills", keep=3600.0, table="inbox_of_kills")
    commits = Commits(inbox, begin=begin, principal=everyone)

    @app.post("/effects/{message}", status_code=201)
    async def effect(message: str, request: Annotated[Committed[Any], commits]) -> str:
        await do_work(request.session, message)
        return message

    return requests_to(app)


def gate_alone(begin: Begin, gate: Dedup | None) -> Handle:
    """The response is recorded at the gate after the COMMIT."""
    app = application(gate)

    async def transaction() -> Any:
        async with begin() as connection:
            yield connection

    @app.post("/effects/{message}", status_code=201)
    async def effect(
        message: str,
        connection: Annotated[Any, Depends(transaction, scope="function")],
        claim: Annotated[Claim | None, Claimed(principal=everyone)],
    ) -> str:
        await do_work(connection, message)
        return message

    return requests_to(app)


def application(gate: Dedup | None) -> FastAPI:
    """Return an application behind a gate."""
    assert gate is not None
    app = FastAPI(openapi_url=None)
    Idempotency(app, gate)
    return app


def requests_to(app: FastAPI) -> Handle:
    """Return a function that sends a request for a message; an answer other than 201 refuses it."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bench")

    async def handle(message: str) -> None:
        answer = await client.post(f"/effects/{message}", headers={"idempotency-key": message})
        if answer.status_code != 201 or answer.json() != message:
            raise InProgressError(answer.text)

    return handle


WAYS = {
    "committing endpoint": Way(committing, gated=True),
    "gate alone": Way(gate_alone, gated=True),
}


def main() -> None:
    print_tallies("python -m bench.endpoint_kills", __doc__, WAYS, COPIES)


if __name__ == "__main__":
    main()
