"""The benchmark of fastdedup and its peers, in one run: ``python -m bench``; see README.md."""
