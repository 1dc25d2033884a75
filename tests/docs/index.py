#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""index.py SOURCE_DIR: every page of docs/, or its folder, is in docs/index.md, and every relative link of a page leads to a file."""
import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")


def links(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [(target, (page.parent / target).resolve()) for target in LINK.findall(text) if "://" not in target]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    index = root / "docs/index.md"
    pages = sorted((root / "docs").rglob("*.md"))
    listed = {path for _, path in links(index)}
    problems = [f"{page.relative_to(root)} is not in docs/index.md" for page in pages if page != index and page not in listed and page.parent not in listed]
    for page in [root / "README.md", root / "CONTRIBUTING.md", *pages]:
        problems += [f"{page.relative_to(root)}: no such file: {target}" for target, path in links(page) if not path.exists()]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
