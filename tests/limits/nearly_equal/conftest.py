"""The script that makes the truth needs mpmath, the tests do not."""

collect_ignore = ["truth.py"]
