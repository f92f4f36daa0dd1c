"""The URLs of `django_project`: each test module's views under a prefix of their own, and those of `frameworks`."""

from django.urls import path

from . import frameworks_django

urlpatterns = [*frameworks_django.urlpatterns]
"""Others' come before these, with paths of their own: `path("mine/", include("tests.integrations.my_urls"))`."""

__all__ = ["path", "urlpatterns"]
