"""The hand-written stub names exactly what the native module has."""

from __future__ import annotations

import ast
import enum
import inspect
from pathlib import Path

from acespec_edge import _core

STUB = Path(__file__).parents[2] / "python" / "acespec_edge" / "_core.pyi"
TREE = ast.parse(STUB.read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in TREE.body if isinstance(node, ast.ClassDef)}


def public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def stub_names(body: list[ast.stmt]) -> set[str]:
    """Classes, functions, variables and enumerators of a body; type aliases exist in the stub alone."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if not (isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"):
                names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return public(names)


def native_names(cls: type) -> set[str]:
    """Public members that the class itself adds."""
    if issubclass(cls, enum.Enum):
        return set(cls.__members__)
    return public(set(vars(cls)))


def test_module_names() -> None:
    assert stub_names(TREE.body) == public(set(vars(_core)))


def test_class_members() -> None:
    native = {
        name: cls for name, cls in inspect.getmembers(_core, inspect.isclass) if not name.startswith("_")
    }
    assert {name: stub_names(CLASSES[name].body) for name in native} == {
        name: native_names(cls) for name, cls in native.items()
    }


def test_bases() -> None:
    for name, node in CLASSES.items():
        base = node.bases[0].id if node.bases and isinstance(node.bases[0], ast.Name) else "object"
        assert base in [cls.__name__ for cls in getattr(_core, name).__mro__[1:]], name


def test_keywords_of_messages() -> None:
    """A message is built from keywords: the stub's constructor lists all fields, in the order of its repr."""
    for name in (
        *("Hello", "Welcome", "Open", "Draft", "Verdict", "Cancel", "Close", "Fault"),
        *("TokenLogprob", "SparseRow"),
    ):
        init = next(node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef))
        assert tuple(argument.arg for argument in init.args.kwonlyargs) == getattr(_core, name).__match_args__
