"""A shop in Flask under the gate: views, a blueprint, classes, async views, streams, forms."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import flask
from flask.views import MethodView

from fastdedup.integrations.flask import (
    FastDedup,
    FormRefused,
    by_session,
    idempotent,
    json_fingerprint,
    one_time_form,
    reopen,
)
from fastdedup.sync import Dedup

DEADLINE = 20.0
PAGE = '{{ one_time_notice() }}<form method="post">{{ one_time_token() }}<input name="item"></form>'


class FlaskShop:
    """The application, how often its views ran, and a client of a signed-in user."""

    def __init__(self, dedup: Dedup, **settings: Any) -> None:
        self.runs: Counter[str] = Counter()
        self.working, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.seen: list[Any] = []
        self.app = self._made()
        settings = {"principal": by_session("user"), "docs": "/idempotency", **settings}
        FastDedup(self.app, dedup, **settings)

    def client(self, user: Any = "ann") -> Any:
        client = self.app.test_client()
        if user is not None:
            client.post("/login", json={"user": user})
        return client

    def post(self, client: Any, path: str = "/orders/1", key: str | None = "k", **more: Any) -> Any:
        headers = {**more.pop("headers", {})} | ({} if key is None else {"Idempotency-Key": key})
        return client.post(path, headers=headers, **more)

    def work(self, name: str) -> dict[str, Any]:
        self.runs[name] += 1
        self.working.set()
        assert self.go.wait(DEADLINE)
        return {"name": name, "run": self.runs[name]}

    def _made(self) -> flask.Flask:
        app = flask.Flask("shop")
        app.secret_key = "test"
        self._around(app)
        self._views(app)
        self._classes(app)
        self._forms(app)
        return app

    def _around(self, app: flask.Flask) -> None:
        @app.before_request
        def first() -> None:
            flask.g.tenant = flask.request.headers.get("X-Tenant")
            flask.request.form.get("csrf_token")  # as Flask-WTF does: it reads the body

        @app.after_request
        def after(response: flask.Response) -> flask.Response:
            response.headers.add("X-After", "yes")
            response.headers.add("Access-Control-Allow-Origin", flask.request.headers.get("Origin", "*"))
            if flask.request.args.get("after") == "fails":
                response.status_code = 500
            return response

        @app.errorhandler(LookupError)
        def missing(error: LookupError) -> Any:
            return {"error": "handled"}, 404

    def _views(self, app: flask.Flask) -> None:
        @app.post("/login")
        def login() -> Any:
            flask.session["user"] = flask.request.json["user"]  # type: ignore[index]
            return ""

        @app.post("/orders/<int:number>")
        @idempotent(key_scope="path")
        def order(number: int) -> Any:
            flask.session["orders"] = flask.session.get("orders", 0) + 1
            return self.work(f"order {number}"), 201

        @app.post("/json")
        @idempotent(fingerprint=json_fingerprint)
        def of_json() -> Any:
            return self.work("json")

        @app.post("/body")
        @idempotent(max_request=100)
        def body() -> Any:
            return {**self.work("body"), "form": flask.request.form.to_dict()}

        @app.post("/missing")
        @idempotent()
        def fails() -> Any:
            self.work("missing")
            raise LookupError

        @app.post("/broken")
        @idempotent()
        def breaks() -> Any:
            self.work("broken")
            raise RuntimeError("broken")

        @app.post("/async")
        @idempotent()
        async def awaited() -> Any:
            return self.work("async")

        @app.post("/stream")
        @idempotent()
        def stream() -> Any:
            self.work("stream")

            def lines() -> Iterator[str]:
                yield "data: 1\n\n"
                self.seen.append("ended")

            return flask.Response(lines(), mimetype="text/event-stream")

        @app.post("/file")
        @idempotent()
        def file() -> Any:
            self.work("file")
            return flask.send_file(__file__)

        blueprint = flask.Blueprint("tenant", "tenant", url_prefix="/t")

        @blueprint.post("/pay")
        @idempotent(principal=lambda request: flask.g.tenant, required=True)
        def pay() -> Any:
            return self.work("pay")

        app.register_blueprint(blueprint)

    def _classes(self, app: flask.Flask) -> None:
        shop = self

        class Listed(MethodView):
            decorators: ClassVar = [idempotent()]

            def post(self) -> Any:
                return shop.work("listed")

        class OfMethod(MethodView):
            def get(self) -> Any:
                return shop.work("read")

            @idempotent()
            def post(self) -> Any:
                return shop.work("method")

        app.add_url_rule("/listed", view_func=Listed.as_view("listed"))
        app.add_url_rule("/method", view_func=OfMethod.as_view("method"))

    def _forms(self, app: flask.Flask) -> None:
        @app.route("/form", methods=["GET", "POST"])
        @one_time_form
        def form() -> Any:
            if flask.request.method == "POST":
                made = self.work("form")
                if flask.request.form.get("item") == "declined":
                    reopen()
                    return flask.render_template_string(PAGE), 402
                return f"{flask.request.form.get('item')} {made['run']}"
            return flask.render_template_string(PAGE)

        blueprint = flask.Blueprint("own", "own")

        @blueprint.errorhandler(FormRefused)
        def own(error: FormRefused) -> Any:
            return flask.render_template_string(PAGE), error.status

        @blueprint.post("/own")
        @one_time_form
        def owned() -> Any:
            return str(self.work("own")["run"])

        app.register_blueprint(blueprint)
