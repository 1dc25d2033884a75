#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vocabulary.py SOURCE_DIR [FILE...]: lists the lines of the tracked files, or of FILE, that use a banned word.

Reads identifiers, comments, strings, pages and file names; names of tests word by word. Comments and paragraphs are searched across line
breaks.
"""
import bisect
import pathlib
import re
import subprocess
import sys

# Banned words with the terms of docs/glossary.md. A short list: words that have no other use in this repository.
BANNED = {
    r"given_up|given up": "evicted; of an attempt: abandoned",
    r"made again|make again|rebuilt_alone|rebuilt alone": "recomputed; of an update: repeated",
    r"AwayMemory": "OffloadedStorage",
    r"Departures": "OffloadScheduler",
    r"kDropAtOnce": "kEvictEagerly",
    r"Comebacks": "RestartPolicy",
    r"k?Farewell\w*": "TerminationPolicy",
    r"Crew(Test)?": "WorkerGroup",
    r"set_alone": "no_sync",
    r"usual_weight": "loss_normalizer",
    r"sit_out": "contribute_zeros",
    r"the engine": "LibTorch, ATen or the autograd engine",
    r"who is to blame|which \w+ is to blame|is blamed": "which rank failed",
    r"without a say|ha(s|ve) no say": "with weight 0, or ignored",
    r"classified correctly": "accuracy",
    r"(go|goes|went) on (from|where)": "resume",
    r"taken up": "loaded",
    r"the house": "repository layout",
    r"culprits?": "the first bad gradient; the cause",
    r"of one's own": "custom; the user's own",
    r"makes? no sense": "is not valid",
    r"kept_by_need": "not_recomputable",
    r"SaveWish": "SaveObserverOrder",
    r"Disturbers?": "FaultInjector",
    r"(tokens|words|next sentence) right": "accuracy",
}
TEXT = {".h", ".cpp", ".inl", ".md", ".sh", ".py", ".cmake", ".txt", ".in", ".json", ".yaml", ".sbatch"}
TEST_NAME = re.compile(r"^TEST(?:_F|_P)?\(\w+,\s*(\w+)\)", re.MULTILINE)
BORDER = re.compile(r"[ \t]*\n[ \t]*(?:///?<?|#+|\*|>)?[ \t]*")  # a line's end with the next one's comment mark


def tracked(root):
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    return [pathlib.Path(name.decode()) for name in names.split(b"\0") if name]


def flattened(text):
    """The text on one line, and for each of its lines the offset at which it begins."""
    flat, starts, begin = [], [0], 0
    length = 0
    for border in BORDER.finditer(text):
        flat.append(text[begin:border.start()] + " ")
        length += len(flat[-1])
        starts.extend([length] * border.group().count("\n"))
        begin = border.end()
    flat.append(text[begin:])
    return "".join(flat), starts


def findings(path, text, patterns):
    for pattern, term in patterns:
        if pattern.search(path.stem):
            yield f"{path}: the file's name; the term is: {term}"
    flat, starts = flattened(text)
    for pattern, term in patterns:
        for match in pattern.finditer(flat):
            line = bisect.bisect_right(starts, match.start())
            yield f"{path}:{line}: '{match.group()}'; the term is: {term}"
    for test in TEST_NAME.finditer(text):
        words = re.sub(r"(?<!^)(?=[A-Z])", " ", test.group(1))
        for pattern, term in patterns:
            if match := pattern.search(words):
                line = text.count("\n", 0, test.start()) + 1
                yield f"{path}:{line}: '{match.group()}' in {test.group(1)}; the term is: {term}"


def main():
    root = pathlib.Path(sys.argv[1])
    own = pathlib.Path(__file__).resolve()
    try:
        files = [pathlib.Path(name) for name in sys.argv[2:]] or tracked(root)
    except (OSError, subprocess.CalledProcessError):
        print("skipped: not a git checkout, so no list of tracked files")
        return 77
    # Not inside of a longer word: a screw is no crew.
    patterns = [(re.compile(rf"(?<![A-Za-z])(?:{words})(?![a-z])", re.IGNORECASE), term) for words, term in BANNED.items()]
    found = []
    for path in files:
        file = root / path
        if path.suffix not in TEXT or file.resolve() == own:
            continue
        if file.is_file():
            found.extend(findings(path, file.read_text(errors="replace"), patterns))
    for line in sorted(found):
        print(line)
    if not found:
        return 0
    print(f"{len(found)} banned words; the terms are in docs/glossary.md")
    return 1


if __name__ == "__main__":
    sys.exit(main())
