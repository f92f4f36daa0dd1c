"""fastdedup in other libraries, a file or a package for each: the paths that programs import.

What web frameworks share stands in `http`, what exports of figures share in `metrics`, what consumers of brokers
share in `fastdedup.messages`. The rules of the web, without I/O, are in `fastdedup.web`.
"""
