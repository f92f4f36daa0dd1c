"""Template tags: `{% load fastdedup %}`."""
