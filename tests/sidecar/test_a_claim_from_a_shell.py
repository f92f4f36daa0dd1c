"""docs/sidecar.md: its commands of redis-cli and curl acquire keys and complete them."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import redis

from ..sql_pages.pages import Page
from .conftest import Running


def test_the_pages_commands_acquire_a_key_and_complete_it(sidecar: Running) -> None:
    (block,) = Page("sidecar.md").blocks("A claim from a shell", "sh")
    claim, complete, post, post_complete = (shlex.split(line) for line in block.splitlines())
    assert {each[2] for each in (claim, complete, post, post_complete)} == {"/run/fastdedup/fastdedup.sock"}
    assert [*claim[:2], *post[:2]] == ["redis-cli", "-s", "curl", "--unix-socket"]
    shell: Any = redis.Redis(unix_socket_path=sidecar.path, decode_responses=True, protocol=2)
    with closing(shell) as ask, sidecar.http() as http:
        acquired = ask.execute_command(*claim[3:])
        assert (acquired[0], acquired[3], acquired[5:]) == ("acquired", 1, [None, 0])
        assert 0 < acquired[4] <= 60_000
        words = [acquired[1] if each == "OWNER" else each for each in complete[3:]]
        assert ask.execute_command(*words) == "OK"
        done = ask.execute_command(*claim[3:])
        assert (done[0], done[2], done[5]) == ("succeeded", acquired[2], '"sold"')

        first = http.post(urlsplit(post[3]).path, json=json.loads(post[5])).json()
        assert first["outcome"] == "acquired"
        settled = json.loads(post_complete[5].replace("OWNER", first["owner"]))
        assert http.post(urlsplit(post_complete[3]).path, json=settled).status_code == 200
        assert http.post(urlsplit(post[3]).path, json=json.loads(post[5])).json()["result"] == "sold"
        assert "/v1/claims/complete" in http.get("/openapi.json").json()["paths"]
