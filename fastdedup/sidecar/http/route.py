"""A kind of request: its address, its models, its handler, and its problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from ...web.problems import ProblemType
from . import models
from .batch import read
from .names import parse_once
from .verbs import Handler


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A kind of request.

    Attributes:
        asks: the model of its body or of its query; a list for a batch.
        answers: the models of its successful answers, by status; None stands for text.
        problems: its problems beside those that every request may have.
        shaped: the model of its problems that carry the claim's answer.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    asks: Any = None
    answers: tuple[tuple[int, Any], ...] = ()
    problems: tuple[ProblemType, ...] = ()
    shaped: type[BaseModel] = models.Problem

    def body(self, most: int) -> Any:
        """Return the type of its body; a batch has at most `most` operations."""
        return Annotated[self.asks, Field(max_length=most)] if self.asks is models.Items else self.asks

    def parser(self, most: int) -> Callable[[bytes], Any] | None:
        """Return the function that parses and checks its body, or None where it has no body."""
        if self.method != "POST":
            return None
        check = TypeAdapter(self.body(most)).validator.validate_json
        return partial(read, check, most) if self.asks is models.Items else partial(parse_once, check)
