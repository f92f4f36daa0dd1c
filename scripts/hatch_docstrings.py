"""Puts docstrings and whole signatures into the C source that mypyc has written, and mends its `throw()`.

mypyc (2.4) leaves docstrings out, and each signature with a default that is no literal. It calls a coroutine's
`throw()` with three arguments, of which Python 3.12 warns. `tests/test_compiled.py` asks the compiled package for all
this, so that test notices a mypyc that writes its source in another way.
"""

import ast
import re
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mypyc

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

TABLE = re.compile(r"static (?:PyMethodDef|PyGetSetDef) (\w+)_(?:methods|getseters)\[\] = {\n")
TYPE = re.compile(r"static PyTypeObject CPyType_(\w+)_template_ = {\n")
ENTRY = re.compile(r'\{"(\w+)",\n')
COROUTINE = re.compile(r'CPyFunction_New\(CPyImport_GetModuleCache\(&CPyModule_(\w+)\), "", "([\w.]+)"')
DOC = re.compile(r'PyDoc_STR\((?:NULL|"(?:[^"\\]|\\.)*")\)')
PLAIN = frozenset(string.ascii_letters + string.digits + " !#$%&'()*+,-./:;<=>@[]^_`{|}~")
COROUTINES = "function_wrapper.c"  # mypyc's type of coroutine functions, which a module includes
ATTRIBUTES = "static PyGetSetDef CPyFunction_getsets[] = {\n"
# That type shows no docstring, and a signature without parameters. A built-in function of the same text shows both.
SHOWN = (
    """
static PyObject *shown_by_builtin(PyObject *function, const char *module, const char *name) {
    PyObject *builtin = PyCFunction_New(((PyCFunctionObject *)function)->m_ml, NULL);
    PyObject *asked = builtin ? PyImport_ImportModule(module) : NULL;
    PyObject *shown = asked ? PyObject_CallMethod(asked, name, "O", builtin) : NULL;
    Py_XDECREF(asked);
    Py_XDECREF(builtin);
    return shown;
}

static PyObject *CPyFunction_get_doc(PyObject *function, void *context) {
    return shown_by_builtin(function, "inspect", "getdoc");
}

static PyObject *CPyFunction_get_signature(PyObject *function, void *context) {
    return shown_by_builtin(function, "inspect", "signature");
}

"""
    + ATTRIBUTES
    + """
    {"__doc__", (getter)CPyFunction_get_doc, 0, 0, 0},
    {"__signature__", (getter)CPyFunction_get_signature, 0, 0, 0},
"""
)
AWAITING = "misc_ops.c"  # mypyc's way to pass an exception on to what is awaited
THROWN = "PyObject_CallFunctionObjArgs(_m, type, value, traceback, NULL)"
THROWN_ALONE = "PyObject_CallOneArg(_m, value)"  # which carries its type and its traceback
NO_DOC = "NULL, NULL},\n"  # how the entry of a property ends


class Sources:
    """The modules of the package in `root`, as their source says; `compiled` names the files that are compiled."""

    def __init__(self, root: Path, compiled: list[str]) -> None:
        self._trees = {
            ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
                path.read_text()
            )
            for path in (root / "fastdedup").rglob("*.py")
        }
        self._definitions = {
            f"{module}.{name}": (module, node)
            for module, tree in self._trees.items()
            for name, node in definitions(tree.body)
        }
        self._classes = {
            name.replace(".", "___"): name
            for name, (module, node) in self._definitions.items()
            if isinstance(node, ast.ClassDef) and f"{module.replace('.', '/')}.py" in compiled
        }

    def class_of(self, prefix: str) -> str | None:
        """Return the class that mypyc calls `prefix`: `claim___Claim` is fastdedup.claim.Claim."""
        found = [name for c_name, name in self._classes.items() if f"___{c_name}".endswith(f"___{prefix}")]
        return found[0] if len(found) == 1 else None

    def doc(self, name: str) -> str | None:
        """Return the doc string of C for a class, function or method; None where it is not in the source."""
        module, node = self._definitions.get(name, ("", None))
        if node is None:
            return None
        text = ast.get_docstring(node) or ""
        if isinstance(node, Function):
            return f"{node.name}({self._parameters(module, node, '$')})\n--\n\n{text}"
        _, init = self._definitions.get(f"{name}.__init__", ("", None))
        parameters = self._parameters(module, init, None) if isinstance(init, Function) else ""
        return f"{node.name}({parameters})\n--\n\n{text}"

    def docstring(self, name: str) -> str:
        """Return a docstring, "" where there is none."""
        _, node = self._definitions.get(name, ("", None))
        return (ast.get_docstring(node) or "") if node is not None else ""

    def _parameters(self, module: str, function: Function, self_mark: str | None) -> str:
        """Return a function's parameters as C's doc strings have them: no types, and literal defaults."""
        given = function.args
        parameters = ast.arguments(
            [ast.arg(each.arg) for each in given.posonlyargs],
            [ast.arg(each.arg) for each in given.args],
            given.vararg and ast.arg(given.vararg.arg),
            [ast.arg(each.arg) for each in given.kwonlyargs],
            [each and self._literal(module, each) for each in given.kw_defaults],
            given.kwarg and ast.arg(given.kwarg.arg),
            [self._literal(module, each) for each in given.defaults],
        )
        text = ast.unparse(parameters)
        if not text.startswith("self"):
            return text
        return f"{self_mark}{text}" if self_mark else text.removeprefix("self").removeprefix(", ")

    def _literal(self, module: str, default: ast.expr) -> ast.Constant:
        """Return the literal that a default stands for; `...` for one that is made when the module runs."""
        try:
            return ast.Constant(self._value(module, default))
        except ValueError:
            return ast.Constant(...)

    def _value(self, module: str, node: ast.expr) -> Any:
        """Return a constant expression's value; ValueError for another expression."""
        if isinstance(node, ast.Name):
            return self._value(*self._constant(module, node.id))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self._value(module, node.left) * self._value(module, node.right)
        return ast.literal_eval(node)

    def _constant(self, module: str, name: str) -> tuple[str, ast.expr]:
        """Find a constant: its module, and the expression that gives its value."""
        tree = self._trees.get(module)
        for node in tree.body if tree else []:
            match node:
                case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                    return module, value
                case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                    return module, value
                case ast.ImportFrom(module=str() as source, names=names, level=level):
                    source = f"{module.rsplit('.', level)[0]}.{source}" if level else source
                    for alias in names:
                        if (alias.asname or alias.name) == name:
                            return self._constant(source, alias.name)
        raise ValueError(f"{module} has no constant {name}")


def definitions(body: list[ast.stmt], outer: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield classes, functions and methods with their qualified names; of overloads the last one holds."""
    for node in body:
        if isinstance(node, Definition) and not is_setter(node):
            yield outer + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body, f"{outer}{node.name}.")


def is_setter(node: Definition) -> bool:
    """Return True for a property's setter: the getter has the docstring."""
    return any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in node.decorator_list)


def keep_docstrings(root: Path, compiled: list[str]) -> None:
    """Put the docstrings of the package's `compiled` files in `root` into the C source in its folder `build`."""
    sources = Sources(root, compiled)
    for path in (root / "build").glob("__native*.c"):
        with path.open() as lines:
            documented = "".join(with_docstrings(lines, sources))
        path.write_text(documented)


def with_docstrings(lines: Iterator[str], sources: Sources) -> Iterator[str]:
    """Yield the lines of C with docstrings in the tables of methods and properties, in types and in coroutines."""
    owner: str | None = None
    entry = ""
    for line in lines:
        if line == f"#include <{COROUTINES}>\n":
            line = runtime(COROUTINES, ATTRIBUTES, SHOWN)
        elif line == f"#include <{AWAITING}>\n":
            line = runtime(AWAITING, THROWN, THROWN_ALONE)
        elif found := TABLE.search(line) or TYPE.search(line):
            owner, entry = sources.class_of(found[1]), ""
        elif line.strip() == "};":
            owner = None
        elif found := COROUTINE.search(line):
            line = with_doc(line, sources.doc(f"{found[1].replace('___', '.')}.{found[2]}"))
        elif owner and (found := ENTRY.search(line)):
            entry = f"{owner}.{found[1]}"
        elif owner and DOC.search(line):
            line = with_doc(line, sources.doc(owner if ".tp_doc" in line else entry))
        elif owner and line.endswith(NO_DOC) and (text := sources.docstring(entry)):
            line = f"{line.removesuffix(NO_DOC)}PyDoc_STR({c_text(text)}), NULL}},\n"
        yield line


def runtime(name: str, written: str, wanted: str) -> str:
    """Return a file of mypyc's C with `wanted` in the place of `written`."""
    source = (Path(mypyc.__file__).parent / "lib-rt" / name).read_text()
    return source.replace(written, wanted)


def with_doc(line: str, text: str | None) -> str:
    """Return a line of C with another doc string; as it is where `text` is None."""
    return line if text is None else DOC.sub(lambda _: f"PyDoc_STR({c_text(text)})", line, count=1)


def c_text(text: str) -> str:
    """Return a text as C writes it, in octal where a character could mean something else."""
    return '"' + "".join(chr(each) if chr(each) in PLAIN else f"\\{each:03o}" for each in text.encode()) + '"'
