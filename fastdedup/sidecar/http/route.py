"""One kind of request: its address, its models, its handler, and the problems that it may meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from ...web.problems import ProblemType
from . import models
from .batch import read
from .verbs import Handler


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """One kind of request.

    Attributes:
        asks: the model of its body, or of its query; a list stands for a batch of such.
        answers: the models of its good answers, by status; text where it is None.
        problems: what may go wrong beside what may with every request.
        shaped: problems that carry the members of this model, too.
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
        """Return the type of its body: of a batch at most `most` operations."""
        return Annotated[self.asks, Field(max_length=most)] if self.asks is models.Items else self.asks

    def parser(self, most: int) -> Callable[[bytes], Any] | None:
        """Return what parses and checks its body in one step; None where it has none."""
        if self.method != "POST":
            return None
        check = TypeAdapter(self.body(most)).validator.validate_json
        return partial(read, check, most) if self.asks is models.Items else check
