"""The column for the fingerprints of messages."""

from django.db import migrations

from ..operations import AddFingerprint


class Migration(migrations.Migration):
    """Add it."""

    dependencies = (("fastdedup_inbox", "0001_inbox"),)
    operations = (AddFingerprint(),)
