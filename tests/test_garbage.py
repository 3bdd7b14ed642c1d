"""The search for garbage, put off: nothing is lost by it, and nothing is visited that was just made."""

from __future__ import annotations

import gc
import weakref

import pytest

from netsor.garbage import search_put_off


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_garbage_that_was_made_meanwhile_is_found_later() -> None:
    with search_put_off():
        assert not gc.isenabled()
        seen = weakref.ref(Cycle())
    assert gc.isenabled()
    gc.collect()
    assert seen() is None


def test_what_was_made_is_old_at_once() -> None:
    with search_put_off():
        made = [[] for _ in range(100_000)]
    assert len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)) < len(made)


def test_who_put_it_off_before_finds_it_so() -> None:
    gc.disable()
    try:
        with search_put_off(), search_put_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="mine"), search_put_off(), search_put_off():
        raise ValueError("mine")
    assert gc.isenabled()
