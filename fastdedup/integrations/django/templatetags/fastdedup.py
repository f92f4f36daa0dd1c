"""`{% one_time_token %}` in a form, and `{% one_time_notice %}` above it."""

from __future__ import annotations

from typing import Any

from django import template
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.safestring import SafeString, mark_safe

from ....web.forms import hidden_input, notice
from ..tokens import form_of, token_for

register = template.Library()


@register.simple_tag(takes_context=True)
def one_time_token(context: template.Context, ttl: float | None = None) -> SafeString:
    """Render a hidden input with a token: a new token, unless the form that was sent may be sent again.

    Args:
        context: has the `request`.
        ttl: seconds in which the form can be sent; by default the `Dedup`'s `token_ttl`.
    """
    request = _request(context)
    return mark_safe(hidden_input(form_of(request).field, token_for(request, ttl)))


@register.simple_tag(takes_context=True)
def one_time_notice(context: template.Context) -> SafeString:
    """Render why the form was refused; nothing if it was not refused."""
    refused = getattr(_request(context), "form_refused", None)
    if refused is None:
        return SafeString()
    return mark_safe(notice(refused.title, refused.message))


def _request(context: Any) -> HttpRequest:
    request = context.get("request")
    if request is None:
        raise ImproperlyConfigured(
            "{% one_time_token %} needs the request: use render(request, ...), and the context processor "
            "django.template.context_processors.request"
        )
    return request
