"""Views of Flask that commit with their response."""

from __future__ import annotations

from typing import Any, ClassVar

import flask
from flask.views import MethodView
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from fastdedup.integrations.flask import Committed, FastDedup, by_header, commits
from fastdedup.sync import Dedup
from fastdedup.sync.sql import Inbox

from ..gated_inbox.times import WEEK
from .bank import PAID


class Shop:
    """An application over a database. `act` answers for the view, after its work."""

    def __init__(self, dedup: Dedup, engine: Engine) -> None:
        self.dedup = dedup
        self.engine = engine
        self.runs = 0
        self.act: Any = self.usual
        self.app = flask.Flask("bank")
        FastDedup(self.app, dedup, principal=by_header("x-account"))
        self.commits = commits(Inbox("flask", keep=WEEK), begin=sessionmaker(engine).begin)
        self.routes(self.commits)
        self.app.register_error_handler(LookupError, lambda error: ({"handled": 1}, 400))

    def usual(self) -> Any:
        return {"run": self.runs}, 201

    def routes(self, decorate: Any) -> None:
        shop = self

        @self.app.post("/payments/<int:number>")
        @decorate  # type: ignore[untyped-decorator]
        def pay(number: int, committed: Committed[Any]) -> Any:
            self.runs += 1
            committed.session.execute(PAID, {"note": flask.request.get_json()["note"]})
            return self.act()

        class Payments(MethodView):
            decorators: ClassVar[list[Any]] = [decorate]

            def put(self, committed: Committed[Any]) -> Any:
                shop.runs += 1
                committed.session.execute(PAID, {"note": committed.key})
                return {"run": shop.runs}

        self.app.add_url_rule("/class", view_func=Payments.as_view("class"))

        @self.app.after_request
        def sign(response: flask.Response) -> flask.Response:
            response.headers["x-signed"] = "yes"
            return response
