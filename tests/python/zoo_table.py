# SPDX-License-Identifier: Apache-2.0
"""The table of docs/python_zoo.md, from the rows that the tests of the zoo add."""

MIB = 1 << 20


class ZooTable:
    def __init__(self):
        self._rows = {}

    def add(self, name, plain, share, ours, note=""):
        row = self._row(name)
        row["plain"] = plain.activations
        row["peaks"].append((share, ours.activations / plain.activations))
        row["note"] = row["note"] or note

    def add_floor(self, name, least, why):
        self._row(name)["floor"] = (least, why)

    def _row(self, name):
        return self._rows.setdefault(name, {"plain": 0, "peaks": [], "floor": None, "note": ""})

    def write(self, file):
        lines = [
            "| model | activations of plain training | peak within 50 % | peak within 25 % | floor, notes |",
            "|---|---|---|---|---|",
        ]
        for name, row in self._rows.items():
            peaks = [f"{peak:.1%}" + (f" of {share:.1%}" if share not in (0.5, 0.25) else "") for share, peak in row["peaks"]]
            peaks += [""] * (2 - len(peaks))
            least, why = row["floor"] or (0, "")
            floor = "; ".join(filter(None, [f"{least:.1%}: {why}" if least else "", row["note"]]))
            lines.append(f"| {name} | {row['plain'] / MIB:.2f} MiB | {peaks[0]} | {peaks[1]} | {floor} |")
        with open(file, "w") as out:
            out.write("\n".join(lines) + "\n")
