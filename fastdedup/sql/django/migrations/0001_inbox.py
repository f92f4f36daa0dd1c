"""The inbox's table."""

from django.db import migrations

from ..operations import CreateInbox


class Migration(migrations.Migration):
    """Create it."""

    initial = True
    dependencies = ()
    operations = (CreateInbox(),)
