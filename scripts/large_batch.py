#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the large-batch table, one build/bin/large_batch per cell, trial and seed, and prints it.

Every cell (update rule x batch) has the same number of tuning trials. A trial is a peak learning rate: first the one that
`centre` gives, then always a neighbour of the best so far: twice it, half of it, and in finer steps once both are known.
Held-out training images choose the rate, on the first seed; the other seeds repeat it; the table shows test accuracy.

Each finished run is a line of the results file, and what is there is not run again: stop it at any time, and start it again.

  scripts/large_batch.py --results results.jsonl --dry_run
  scripts/large_batch.py --results results.jsonl --jobs 2 --cpus 0,1
  scripts/large_batch.py --results results.jsonl --table
"""

import argparse
import concurrent.futures
import json
import os
import queue
import statistics
import subprocess
import sys
import threading

RULES = {"momentum": "Momentum", "lars": "LARS", "lamb": "LAMB"}
BATCHES = [256, 1024, 4096, 8192, 16384, 32768]
# The cells that the question is about come first, for those who stop early.
ORDER = [256, 8192, 16384, 32768, 4096, 1024]
FLAGS = {
    "momentum": ["--weight_decay=0.0005"],
    "lars": ["--weight_decay=0.0005"],
    "lamb": ["--weight_decay=0.01"],
}


def centre(rule, batch):
    """Where the search begins: the usual scaling with the batch, up to where it breaks down."""
    growth = batch / 256
    if rule == "momentum":
        return 0.05 * min(growth, 4)
    if rule == "lars":
        return min(0.07 * growth**0.5, 0.5)
    return min(0.009 * growth**0.5, 0.06)


def rounded(rate):
    return float(f"{rate:.3g}")


def chosen(tried):
    """The best rate; of equals the smallest."""
    return max(tried, key=lambda rate: (tried[rate], -rate))


def next_rate(rule, batch, tried):
    """The next trial, from {rate: held-out accuracy} of those that were made."""
    if not tried:
        return rounded(centre(rule, batch))
    best = chosen(tried)
    step = 2
    while True:
        for rate in (rounded(best * step), rounded(best / step)):
            if not any(abs(rate / other - 1) < 0.02 for other in tried):
                return rate
        step **= 0.5


class Results:
    """The results file, as {(rule, batch, seed): {rate: line}}."""

    def __init__(self, path, epochs):
        self.path, self.epochs, self.runs, self.seconds = path, epochs, {}, []
        self.read()

    def read(self):
        self.runs, self.seconds = {}, []
        if not os.path.exists(self.path):
            return
        with open(self.path) as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                except ValueError:
                    sys.exit(f"error: {self.path}:{number} is not JSON\n  fix: delete that line; its run is repeated")
                if line["epochs"] == self.epochs:
                    key = line["rule"], line["batch"], line["seed"]
                    self.runs.setdefault(key, {})[line["lr"]] = line
                    self.seconds.append(line["seconds"])

    def tried(self, rule, batch):
        """{rate: held-out accuracy} on the first seed."""
        return {rate: line["held_out"] for rate, line in self.runs.get((rule, batch, 1), {}).items()}

    def of(self, rule, batch, seed, rate):
        return self.runs.get((rule, batch, seed), {}).get(rate)


def next_run(results, options, rule, batch):
    """(seed, rate) of the cell's next run; None when it has all."""
    tried = results.tried(rule, batch)
    if len(tried) < options.trials:
        return 1, next_rate(rule, batch, tried)
    rate = chosen(tried)
    for seed in range(2, options.seeds + 1):
        if not results.of(rule, batch, seed, rate):
            return seed, rate
    return None


def missing(results, options, rule, batch):
    tried = results.tried(rule, batch)
    trials = max(options.trials - len(tried), 0)
    if trials:
        return trials + options.seeds - 1
    return sum(not results.of(rule, batch, seed, chosen(tried)) for seed in range(2, options.seeds + 1))


def run_cell(results, options, cpus, lock, rule, batch):
    while True:
        with lock:
            results.read()
            run = next_run(results, options, rule, batch)
        if not run:
            return
        seed, rate = run
        command = [options.program, f"--rule={rule}", f"--batch_size={batch}", f"--lr={rate}", f"--seed={seed}",
                   f"--epochs={options.epochs}", f"--results={options.results}", *FLAGS[rule]]
        cpu = cpus.get()
        if cpu is not None:
            command = ["taskset", "-c", str(cpu), *command]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        finally:
            cpus.put(cpu)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr or done.stdout}")
        with lock:
            results.read()
            line = results.of(rule, batch, seed, rate)
            cells = [(r, b) for b in options.batches for r in options.rules]
            left = sum(missing(results, options, *cell) for cell in cells)
        print(f"[{rule} {batch}] rate {rate} seed {seed}: held out {line['held_out']:.2f} %, test {line['test']:.2f} %, "
              f"{line['seconds']:.0f} s; {left} runs left", flush=True)


def table(results, options):
    """As Markdown, with what its figures mean."""
    lines = ["| batch | updates |" + "".join(f" {RULES[rule]} | rate |" for rule in options.rules),
             "|---:|---:|" + "---:|---:|" * len(options.rules)]
    whole = True
    for batch in options.batches:
        updates, cells = "", ""
        for rule in options.rules:
            tried = results.tried(rule, batch)
            if len(tried) < options.trials:
                cells += f" {len(tried)} of {options.trials} trials | |"
                whole = False
                continue
            rate = chosen(tried)
            runs = [results.of(rule, batch, seed, rate) for seed in range(1, options.seeds + 1)]
            runs = [run for run in runs if run]
            test = [run["test"] for run in runs]
            text = f"{statistics.mean(test):.2f} ({max(test) - min(test):.2f})"
            if len(runs) < options.seeds:
                text += f", {len(runs)} of {options.seeds} seeds"
                whole = False
            edge = rate in (min(tried), max(tried))
            cells += f" {text} | {rate:g}{' *' if edge else ''} |"
            updates = str(runs[0]["updates"])
        lines.append(f"| {batch} | {updates} |{cells}")
    lines.append(f"\nTest accuracy in %: mean of {options.seeds} seeds (best less worst). Rate: the best of {options.trials}; "
                 "with *, the largest or smallest that was tried.")
    if not whole:
        lines.append("Not finished.")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bin/large_batch", help="default: %(default)s")
    parser.add_argument("--results", default="large_batch.jsonl", help="results file (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=16, help="of every run (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=5, help="learning rates per cell (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="runs with the chosen rate (default: %(default)s)")
    parser.add_argument("--batches", type=lambda text: [int(x) for x in text.split(",")], default=BATCHES,
                        help="default: all")
    parser.add_argument("--rules", type=lambda text: text.split(","), default=list(RULES), help="default: all")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each with one thread (default: %(default)s)")
    parser.add_argument("--cpus", type=lambda text: [int(x) for x in text.split(",")],
                        help="cores to pin the jobs to, one each (default: not pinned)")
    parser.add_argument("--dry_run", "--dry-run", action="store_true", help="say what is left to run, and for how long")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    unknown = [rule for rule in options.rules if rule not in RULES]
    if unknown or options.trials < 1 or options.seeds < 1 or options.jobs < 1:
        parser.error(f"unknown rules: {', '.join(unknown)}" if unknown else "counts must be at least 1")
    if options.cpus and len(options.cpus) < options.jobs:
        parser.error(f"{options.jobs} jobs but {len(options.cpus)} cores to pin them to")

    results = Results(options.results, options.epochs)
    order = sorted(options.batches, key=lambda batch: ORDER.index(batch) if batch in ORDER else len(ORDER))
    cells = [(rule, batch) for batch in order for rule in options.rules]
    if options.dry_run:
        left = [(cell, missing(results, options, *cell)) for cell in cells]
        runs = sum(count for _, count in left)
        for (rule, batch), count in left:
            print(f"{rule} {batch}: {count} runs")
        each = statistics.median(results.seconds) if results.seconds else 2 * options.epochs
        guess = "" if results.seconds else " (a guess: nothing has been run yet)"
        print(f"{runs} runs, about {each:.0f} s each{guess}: {runs * each / options.jobs / 60:.0f} minutes")
        return
    if not options.table:
        cpus, lock = queue.Queue(), threading.Lock()
        for job in range(options.jobs):
            cpus.put(options.cpus[job] if options.cpus else None)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            jobs = [pool.submit(run_cell, results, options, cpus, lock, *cell) for cell in cells]
            try:
                for job in concurrent.futures.as_completed(jobs):
                    job.result()
            except (RuntimeError, KeyboardInterrupt) as error:
                pool.shutdown(wait=False, cancel_futures=True)
                sys.exit(f"error: {error}" if str(error) else "stopped; the same command resumes from here")
    print(table(results, options))


if __name__ == "__main__":
    main()
