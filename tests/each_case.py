"""Many quick cases in one test: an item of its own costs each more time than what it checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

__all__ = ["each_case", "run_cases"]

Test = Callable[..., None]


def each_case(names: str | tuple[str, ...], cases: Iterable[Any], ids: Any = None) -> Callable[[Test], Test]:
    """Like `pytest.mark.parametrize`, in one test: all cases run, and each failure names its case.

    Fixtures are those of one test: no case may need a new folder or an undone patch.
    """
    arguments = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    table = {}
    for k, case in enumerate(cases):
        values: tuple[Any, ...] = (case,)
        if isinstance(case, ParameterSet) or len(arguments) > 1:
            values = tuple(case.values if isinstance(case, ParameterSet) else case)
        table[_name(case, values, k, ids)] = dict(zip(arguments, values, strict=True))

    def in_one_test(test: Test) -> Test:
        def run(**fixtures: Any) -> None:
            run_cases(lambda values: test(**fixtures, **values), table)

        signature = inspect.signature(test)
        others = [p for name, p in signature.parameters.items() if name not in arguments]
        assert len(others) == len(signature.parameters) - len(arguments), f"{test.__name__} lacks {names}"
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        vars(run).update({name: value for name, value in vars(test).items() if name == "pytestmark"})
        return run

    return in_one_test


def run_cases(check: Callable[[Any], None], cases: dict[str, Any]) -> None:
    """Check all cases; raise what failed, each with the name of its case, or say what was skipped."""
    failures, skipped = [], []
    for name, case in cases.items():
        try:
            check(case)
        except pytest.skip.Exception as skip:
            skipped.append(f"{name}: {skip.msg}")
        except Exception as failure:
            failure.add_note(f"in case {name}")
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(cases)} cases fail", failures)
    if skipped:
        pytest.skip(f"{len(skipped)} of {len(cases)} cases, the others passed: {'; '.join(skipped)}")


def _name(case: Any, values: tuple[Any, ...], position: int, ids: Any) -> str:
    if isinstance(case, ParameterSet) and case.id is not None:
        return f"{position}: {case.id}"
    if callable(ids):
        return f"{position}: {'-'.join(str(ids(value)) for value in values)}"
    return f"{position}: {case!r:.200}" if ids is None else f"{position}: {list(ids)[position]}"
