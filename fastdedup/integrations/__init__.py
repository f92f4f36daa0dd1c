"""The gate in web frameworks, one file each; what they share and does no I/O is in `fastdedup.web`."""
