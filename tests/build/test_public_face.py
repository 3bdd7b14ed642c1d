"""What `import netsor` gives: names, and that they replace none of Python's own."""

import builtins

import netsor as ns
from netsor import build


def test_a_star_import_replaces_no_builtin() -> None:
    names: dict[str, object] = {}
    exec("from netsor import *", names)
    assert not [name for name in names if hasattr(builtins, name) and not name.startswith("__")]
    for name in ("abs", "max", "min", "sum"):
        assert getattr(ns, name) is not getattr(builtins, name)


def test_every_public_name_is_there() -> None:
    for module in (ns, build, ns.zoo):
        for name in module.__all__:
            assert hasattr(module, name), name
