"""Results keep their types: a duplicate gets the type that the first call returned, or an error that says why not.

The bytes of a result are JSON, and say nothing of types. The reader has the type: a decorated function declares it,
and `claim.replay(Receipt)` names it. A declared type of plain JSON needs nothing else. Any other type is read by
pydantic (`fastdedup[types]`).

No declared type is trusted. Each result is compared with what a duplicate will read, before it is stored: a subclass
of the declared type, a validator that changes its value and a union whose members look alike are all found there.
"""
