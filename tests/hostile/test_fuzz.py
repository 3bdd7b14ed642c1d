"""A few of the mutated programs; `.ci/full` tries 50,000."""

from fuzz import fuzz


def test_whatever_the_text_only_netsor_errors() -> None:
    readable = [good for _, good in fuzz(500, seed=1)]
    assert 0 < sum(readable) < len(readable)
