#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/reliability.md from the rows of docs/reliability.jsonl, to which rows of scripts/fuzz.sh and
scripts/soak.sh are added by hand:

    scripts/reliability.py             writes the tables
    scripts/reliability.py --check     fails when they are not those of the rows
"""
import json
import pathlib
import sys

docs = pathlib.Path(__file__).resolve().parent.parent / "docs"
page, rows_file = docs / "reliability.md", docs / "reliability.jsonl"


def table(head, lines):
    if not lines:
        return "No rows yet."
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(map(str, line)) + " |" for line in lines])


def grouped(rows, *keys):
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return sorted(groups.items())


def total(rows, key):
    return sum(row[key] for row in rows)


def fuzz_table(rows):
    lines = []
    for (reader,), of_reader in grouped(rows, "reader"):
        seconds = total(of_reader, "seconds")
        lines.append([f"`{reader}`", f"{total(of_reader, 'inputs'):,}", f"{seconds:,.0f}", f"{total(of_reader, 'inputs') / seconds:,.0f}",
                      max(row["edges"] for row in of_reader), total(of_reader, "findings")])
    return table(["reader", "inputs", "seconds", "inputs/s", "edges", "findings"], lines)


def lost(rows):
    updates, repeated = total(rows, "updates"), total(rows, "repeated")
    unit = "averages of rank 0" if "elastic" in rows[0]["setup"] else "updates"
    return f"{repeated:,} of {updates + repeated:,} {unit} repeated"


def outcome(rows):
    if rows[0]["what"] == "damage":
        return (f"{total(rows, 'noticed_and_resumed_from_the_one_before'):,} noticed and resumed from the one before, "
                f"{total(rows, 'harmless_with_equal_digits'):,} harmless with equal digits")
    jobs, equal = total(rows, "jobs"), total(rows, "jobs_as_undisturbed")
    digits = "all ranks equal, and learned" if "elastic" in rows[0]["setup"] else "the bits of an undisturbed run"
    return f"{equal} of {jobs} jobs ended with {digits}"


def soak_table(rows):
    lines = []
    for (what, setup), same in grouped([row for row in rows if row["what"] != "goodput"], "what", "setup"):
        lines.append([what, setup, f"{total(same, 'tried'):,}", outcome(same), lost(same) if "updates" in same[0] else "nothing",
                      sum(len(row["problems"]) for row in same)])
    return table(["what", "setup", "tried", "outcome", "lost", "problems"], lines)


def kinds_table(rows):
    kinds = {}
    for row in rows:
        for kind, count in row.get("kinds", {}).items():
            kinds[kind] = kinds.get(kind, 0) + count
    return table(["fault", "tried"], sorted(kinds.items()))


def goodput_table(rows):
    lines = []
    for (setup,), same in grouped([row for row in rows if row["what"] == "goodput"], "setup"):
        useful, expected = total(same, "useful_averages"), total(same, "undisturbed_averages")
        lines.append([setup, total(same, "tried"), f"{total(same, 'minutes'):g}", f"{useful:,} of {expected:,}", f"{100 * useful / expected:.1f} %"])
    return table(["setup", "faults", "minutes", "useful averages", "goodput"], lines)


def main():
    rows = [json.loads(line) for line in rows_file.read_text().splitlines() if line]
    soaks = [row for row in rows if row["kind"] == "soak"]
    tables = {"fuzz": fuzz_table([row for row in rows if row["kind"] == "fuzz"]), "soak": soak_table(soaks), "kinds": kinds_table(soaks),
              "goodput": goodput_table(soaks)}
    before = text = page.read_text()
    for name, made in tables.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        text = text[: text.index(begin) + len(begin)] + "\n" + made + "\n" + text[text.index(end):]
    if "--check" in sys.argv[1:]:
        sys.exit(0 if text == before else "docs/reliability.md is not what docs/reliability.jsonl says\n  fix: scripts/reliability.py")
    page.write_text(text)


main()
