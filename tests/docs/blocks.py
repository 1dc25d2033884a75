#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""blocks.py SOURCE_DIR BIN_DIR [PAGE...]: the code blocks of README.md, CONTRIBUTING.md and docs/ that are not C++.

python parses, and what it names of `fleet` is in the package's stub; json loads; sh and bash pass `bash -n`, the files of the repository that
they name exist, and every flag that they give to a program of ours is in its help, which BIN_DIR's programs print.
"""
import ast
import functools
import json
import pathlib
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OTHER = {"", "cpp", "cpp declarations", "cmake"}  # output; compiled by docs.blocks_compile; examples/consumer is one
# Programs of the reader's: that of docs/first_program.md, and any that takes Fleet's flags.
READERS = {"characters": "first_program", "train": "fashion_mnist", "train.py": None}


class Names(ast.NodeVisitor):
    """What a block names of fleet: fleet.a.b as ("a", "b")."""

    def __init__(self):
        self.found = []

    def visit_Attribute(self, node):
        names, value = [node.attr], node.value
        while isinstance(value, ast.Attribute):
            names.insert(0, value.attr)
            value = value.value
        if isinstance(value, ast.Name) and value.id == "fleet":
            self.found.append(tuple(names))
        else:
            self.generic_visit(node)


def defined(body):
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name, node) for alias in node.names)


class Checker:
    def __init__(self, root, programs):
        self.root, self.programs, self.problems = root, programs, []
        package = root / "python/fleet"
        self.modules = {(): package / "__init__.pyi", ("optim",): package / "optim.py"}

    @functools.cache
    def names_of(self, module):
        return dict(defined(ast.parse(self.modules[module].read_text()).body))

    def has_name(self, names):
        module = names[:1] if len(names) > 1 and names[:1] in self.modules else ()
        node = self.names_of(module).get(names[len(module)])
        rest = names[len(module) + 1:]
        if node is None or not rest or not isinstance(node, ast.ClassDef):
            return node is not None
        return rest[0] in dict(defined(node.body))

    def python(self, text):
        names = Names()
        names.visit(ast.parse(text))
        return [f"the package has no fleet.{'.'.join(found)}" for found in names.found if not self.has_name(found)]

    def json(self, text):
        json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        return []

    @functools.cache
    def help_of(self, *command):
        run = subprocess.run([self.programs / command[0], *command[1:], "--help"], capture_output=True, text=True, timeout=60)
        if run.returncode:
            raise RuntimeError(f"{' '.join(command)} --help ended with {run.returncode}: {run.stderr}")
        return set(re.findall(r"(?<![\w-])--([a-zA-Z][\w.]*)", run.stdout))

    def has_flag(self, command, flag):
        name = flag[2:].split("=")[0].replace("-", "_")
        known = self.help_of(*command) | {"help", "version"}
        return name in known or name.removeprefix("no_") in known

    def program_of(self, word):
        """The word of a command line as a program of ours: its name in BIN_DIR, "" for none."""
        name = word.removeprefix("build/bin/").removeprefix("./")
        if name in READERS and word != name or word in READERS:
            return READERS[name] or ""
        return name if (word == name or word.startswith("build/bin/")) and (self.programs / name).exists() and "/" not in name else ""

    def command(self, words):
        """One command: the flags up to the next program in it belong to the program before."""
        problems, command = [], None
        for place, word in enumerate(words):
            stands_first = place == 0 or "=" in words[place - 1] or words[place - 1].startswith("$") or command == ["fleetrun"]
            program = self.program_of(word) if stands_first or word.startswith(("./", "build/bin/")) else ""
            if program:
                command = [program]
                if program == "fleet" and place + 1 < len(words):
                    command.append(words[place + 1])
            elif word.startswith("--") and len(word) > 2 and command:
                if not self.has_flag(tuple(command), word):
                    problems.append(f"{' '.join(command)} has no flag {word}")
            elif re.match(r"(\./)?(scripts|tests|examples)/[\w/.]+$|\./(run|test)\.sh$", word) and not (self.root / word).exists():
                problems.append(f"there is no {word}")
            elif word.startswith(("./", "build/bin/")) and not word.endswith(".sh") and not word.startswith("build/bin/test_"):
                problems.append(f"{word} is not built")
        return problems

    def sh(self, text):
        run = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        if run.returncode:
            return [run.stderr.strip()]
        problems = []
        for line in text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words = []
            for word in [*lexer, ";"]:
                if re.fullmatch(r"[;&|()<>]+", word):
                    problems += self.command(words)
                    words = []
                else:
                    words.append(word)
        return problems

    def page(self, path):
        text = path.read_text()
        counts = {}
        for match in BLOCK.finditer(text):
            kind = match[1].strip()
            counts[kind] = counts.get(kind, 0) + 1
            check = {"python": self.python, "json": self.json, "sh": self.sh, "bash": self.sh}.get(kind)
            where = f"{path.relative_to(self.root) if path.is_relative_to(self.root) else path}:{text.count(chr(10), 0, match.start()) + 1}"
            if check is None and kind not in OTHER:
                self.problems.append(f"{where}: nothing checks a block of '{kind}'")
            elif check:
                try:
                    self.problems += [f"{where}: {problem}" for problem in check(match[2])]
                except (SyntaxError, ValueError, RuntimeError) as error:
                    self.problems.append(f"{where}: {error}")
        return counts


def main():
    root, programs = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    pages = [pathlib.Path(word).resolve() for word in sys.argv[3:]] or [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    checker = Checker(root, programs)
    total = {}
    for page in pages:
        for kind, count in checker.page(page).items():
            total[kind] = total.get(kind, 0) + count
    print(", ".join(f"{count} of '{kind}'" for kind, count in sorted(total.items())))
    print("\n".join(checker.problems))
    return 1 if checker.problems else 0


if __name__ == "__main__":
    sys.exit(main())
