"""The inbox's table in a Django project: a migration creates it, in every database that Django supports.

    INSTALLED_APPS += ["fastdedup.sql.django"]
    FASTDEDUP_INBOX_TABLE = "fastdedup_inbox"       # optional: the table's name, equal to the inbox's table=

Then `manage.py migrate fastdedup_inbox`. The app has no models: `fastdedup.sync.sql.Inbox` reads and writes the rows.
"""

try:
    import django as _django  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError("fastdedup.sql.django needs Django: pip install 'fastdedup[django]'") from _error
