"""What the site is made with, besides docs/ and mkdocs.yml; `python website/build.py` builds it."""
