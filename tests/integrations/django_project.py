"""One Django project for all tests of a process: settings can be configured only once.

Add to `INSTALLED_APPS`, `MIDDLEWARE` or `TEMPLATES` what your tests need, and name your views by ROOT_URLCONF; the
settings of one test go through `django.test.override_settings`.
"""

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        DEBUG=False,
        SECRET_KEY="only for tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.integrations.frameworks_django",
        INSTALLED_APPS=[],
        MIDDLEWARE=[],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        USE_TZ=True,
        LOGGING_CONFIG=None,
    )
    django.setup()
