"""fastdedup in web frameworks, a file for each. The rules that they share, without I/O, are in `fastdedup.web`."""
