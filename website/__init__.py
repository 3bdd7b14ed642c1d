"""The code that builds the site from docs/ and mkdocs.yml; `python website/build.py` runs it."""
