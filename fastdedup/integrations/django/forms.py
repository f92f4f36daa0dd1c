"""`OneTimeFormMixin`: a Django form that carries a one-time token."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import HttpRequest

from .tokens import form_of, reopen_invalid, token_for

__all__ = ["OneTimeFormMixin"]


class OneTimeFormMixin:
    """Adds a hidden field with a one-time token to a form. Each rendering of the form gets a new token.

        class OrderForm(OneTimeFormMixin, forms.Form): ...
        form = OrderForm(request.POST or None, request=request)

    Write it first among the base classes, and decorate the view with `one_time_form`, which checks the token: the
    form does not check it, and `cleaned_data` does not have it. A form that is not valid keeps its token, unless the
    view redirects: so a page that is corrected, or gone back to, and sent again, is still one order. A form that was
    refused shows the values that the user typed.

    Args:
        request: the request that the form is rendered for, or that sent the form.
    """

    def __init__(self, *args: Any, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request = request
        self.fields: dict[str, forms.Field]
        self._one_time = form_of(request).field
        self.fields[self._one_time] = _TokenField(widget=_TokenInput(request, self._one_time))

    def full_clean(self) -> None:
        """Validate the form; with errors, its token can be used again."""
        super().full_clean()  # type: ignore[misc] # of the form that this is mixed into
        getattr(self, "cleaned_data", {}).pop(self._one_time, None)
        if self.is_bound and self.errors:  # type: ignore[attr-defined]
            reopen_invalid(self.request)

    def get_initial_for_field(self, field: forms.Field, field_name: str) -> Any:
        """Return a field's initial value: the value that was sent, if the form was refused."""
        sent = form_of(self.request).data
        name = self.add_prefix(field_name)  # type: ignore[attr-defined]
        if not sent or field.widget.value_omitted_from_data(sent, {}, name):
            return super().get_initial_for_field(field, field_name)  # type: ignore[misc]
        return field.widget.value_from_datadict(sent, {}, name)


class _TokenField(forms.CharField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False  # a person does not edit it


class _TokenInput(forms.HiddenInput):
    """A hidden input with the request's token, by the name that the view expects, without the form's prefix."""

    def __init__(self, request: HttpRequest, name: str) -> None:
        super().__init__({"autocomplete": "off"})
        self._request = request
        self._name = name

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        return super().get_context(self._name, token_for(self._request), attrs)  # type: ignore[no-any-return]

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        return data.get(self._name)
