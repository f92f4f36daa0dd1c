"""fastdedup beside its peers, in one run: ``python -m bench``; see README.md."""
