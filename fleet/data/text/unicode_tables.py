#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_tables.inl beside itself: what word_split.cpp has to know of Unicode, from Python's unicodedata.

The committed file is of Unicode 14 (Python 3.11). `--check` only compares.
"""

import pathlib
import sys
import unicodedata

HANGUL = range(0xAC00, 0xD7A4)  # taken apart by arithmetic
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def kind(code):
    char = chr(code)
    category = unicodedata.category(char)
    if char in "\t\n\r":
        return "kSpace"
    if code == 0xFFFD or category in ("Cc", "Cf", "Co"):  # unassigned ones pass
        return "kRemoved"
    if category in ("Zs", "Zl", "Zp"):
        return "kSpace"
    if category[0] == "P" or (code < 0x80 and category[0] == "S"):
        return "kPunctuation"
    if category == "Mn":
        return "kMark"
    return None


def fold(code):
    """Lower case without accents."""
    bare = [c for c in unicodedata.normalize("NFD", chr(code)) if unicodedata.category(c) != "Mn"]
    return [ord(c) for c in "".join(c.lower() for c in bare)]


def kinds():
    ranges = []
    for code in CODES:
        k = kind(code)
        if k is None:
            continue
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == k:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, k])
    return ranges


def folds():
    """[first, last, step, delta] for those that become one code point; {code: codes} for the others."""
    ranges, longer = [], {}
    for code in CODES:
        if code in HANGUL or kind(code) in ("kSpace", "kRemoved", "kMark"):
            continue
        to = fold(code)
        if to == [code]:
            continue
        assert to and all(kind(c) not in ("kSpace", "kRemoved") for c in to), hex(code)
        if len(to) > 1:
            longer[code] = to
            continue
        delta = to[0] - code
        if ranges and ranges[-1][3] == delta:
            first, last, step, _ = ranges[-1]
            if (first == last and code - last <= 2) or (first < last and code - last == step):
                ranges[-1][1:3] = [code, code - last]
                continue
        ranges.append([code, code, 1, delta])
    return ranges, longer


def flow(items):
    lines = [""]
    for item in items:
        if len(lines[-1]) + len(item) > 118:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "  ") + item
    return "\n".join(line.rstrip() for line in lines)


def main():
    ranges, longer = folds()
    assert max(len(v) for v in longer.values()) <= 3
    text = f"""// SPDX-License-Identifier: Apache-2.0
// Made by unicode_tables.py from Unicode {unicodedata.unidata_version}; do not edit.

constexpr KindRange kKinds[] = {{
{flow(f"{{0x{a:X}, 0x{b:X}, {k}}}," for a, b, k in kinds())}
}};

constexpr FoldRange kFolds[] = {{
{flow(f"{{0x{a:X}, 0x{b:X}, {s}, {d}}}," for a, b, s, d in ranges)}
}};

constexpr LongFold kLongFolds[] = {{
{flow("{0x%X, {%s}}," % (c, ", ".join(f"0x{x:X}" for x in v)) for c, v in longer.items())}
}};
"""
    path = pathlib.Path(__file__).with_suffix(".inl")
    if "--check" in sys.argv[1:]:
        sys.exit(0 if path.read_text() == text else f"{path.name} is not what this script makes")
    path.write_text(text)


main()
