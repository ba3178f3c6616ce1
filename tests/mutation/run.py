"""Are the tests good? Change the package in hundreds of small ways; the tests must fail for each.

    python tests/mutation/run.py --sample 300                                 300 changes over all files, the same for one --seed
    python tests/mutation/run.py --files optim.py ops/codebook.py --sample 30   thirty of these files
    python tests/mutation/run.py --sample 300 --minutes 60                    what can be tried in an hour; called again, it goes on

First the suite runs once, slowly, and notes which test enters which functions (reach.py). Then each mutant is a copy of the package in
a temporary directory, tested in a forked child of this process, which has imported torch and pytest but not pseudograd: the tests that
enter the changed function run, the likely and fast ones first, until one fails. That one must pass on the package as it is.

Notes and verdicts are kept under --keep, by the content of package and tests: a run that was broken off goes on, only changed files of
tests are noted again, and the test that killed a mutant last time is the first to meet it. Exit status 1 if fewer than 95 % are killed,
not counting those that explained.py shows to change no value.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import reach  # noqa: E402
from explained import EXPLAINED  # noqa: E402
from files import files_beginning_with, place_of  # noqa: E402
from mutants import Mutant, drawn, mutants_of  # noqa: E402
from workplace import TIME_LIMIT, Workplace  # noqa: E402

THRESHOLD = 0.95
VERDICTS = "verdicts"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pseudograd" / "mutants"


class Verdict(NamedTuple):
    """What became of a mutant: the test that killed it, or None, how many tests ran, and what names the content of the killer's file."""

    mutant: Mutant
    killed_by: str | None
    tests: int
    seconds: float
    content: str = ""


class Court:
    """Judges mutants, and keeps what it found."""

    def __init__(self, place: Workplace, notes: Path, kept: Path, most_seconds: float) -> None:
        self.place = place
        self.files = place.files_of_tests()
        self.tests = reach.read(notes, self.files)
        self.kept = kept
        self.most_seconds = most_seconds
        self.passes_as_it_is: dict[str, bool] = {}
        self.lock = threading.Lock()
        self.killed_before = self._killed_before()

    def check(self) -> None:
        """What fails on the package as it is would kill every mutant."""
        found = self.place.first_failure(self.place.source, sorted(self.tests, key=lambda test: test.seconds)[:3], 300)
        if found is not None:
            raise SystemExit(f"run.py: the tests must pass on the package as it is, got {found!r}. Mend that first.")

    def already(self) -> dict[Mutant, Verdict]:
        """What was found of this package with these tests, or by a test whose file has not changed since."""
        found = {}
        for file in [*self.kept.parent.glob(f"{VERDICTS}.*.jsonl"), self.kept]:
            for one in _verdicts_in(file):
                if file == self.kept or (one.content and one.content == self._content(one.killed_by)):
                    found[one.mutant] = one
        return found

    def _content(self, test: str | None) -> str:
        """What names the content of its file."""
        return self.files.get((test or "").split("::")[0], "")

    def _killed_before(self) -> dict[tuple[str, str, str], list[str]]:
        """The tests that killed a mutant with other tests beside them, or in another state of the package."""
        killers = defaultdict(list)
        for file in sorted(self.kept.parent.parent.glob(f"*/{VERDICTS}.*.jsonl")):
            for verdict in _verdicts_in(file):
                if verdict.killed_by:
                    killers[verdict.mutant.key].append(verdict.killed_by)
        return killers

    def judge(self, mutant: Mutant) -> Verdict:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            source = self.place.with_change(mutant, Path(directory))
            killer, tests = self._killer(source, mutant)
        verdict = Verdict(mutant, killer, tests, round(time.monotonic() - start, 1), self._content(killer))
        with self.lock, self.kept.open("a") as file:
            print(json.dumps(verdict._asdict()), file=file)
        return verdict

    def _killer(self, source: Path, mutant: Mutant) -> tuple[str | None, int]:
        """The test that fails, and how many were to run."""
        importing = {file for file in self.files if reach.imports((self.place.root / file).read_text(), mutant.file)}
        tests = reach.in_order(self.tests, (mutant.file, mutant.function), importing)
        count = 0
        before = self.killed_before.get(mutant.key, ())
        for part in reach.in_parts(tests, self.most_seconds, [test for test in self.tests if test.name in before]):
            count += len(part)
            while part:
                failed = self.place.first_failure(source, part, 60 + 5 * sum(test.seconds for test in part))
                if failed is None:
                    break
                if self._counts(failed):
                    return failed, count
                part = [test for test in part if test.name != failed]
        return None, count

    def _counts(self, failed: str) -> bool:
        """Not if it fails on the package as it is; what is no test's name, as a file that cannot be collected, does."""
        test = next((test for test in self.tests if test.name == failed), None)
        if test is None:
            return True
        if failed not in self.passes_as_it_is:
            found = self.place.first_failure(self.place.source, [test], 120 + 5 * test.seconds)
            self.passes_as_it_is[failed] = found is None
        return self.passes_as_it_is[failed]


def _verdicts_in(file: Path) -> list[Verdict]:
    found = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [Verdict(Mutant(*one.pop("mutant")), **one) for one in found]


def chosen(place: Workplace, only: list[str], texts: list[str]) -> list[Mutant]:
    """Of the files whose names begin with one of `only`; all if there is none."""
    files = files_beginning_with(only, place.source)
    found = [mutant for file in files for mutant in mutants_of(file, place_of(file, place.source).read_text())]
    return [mutant for mutant in found if any(text in str(mutant) for text in texts)]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", nargs="*", default=[], help="as in ops/bounds.py, or rewrite/; default: all")
    parser.add_argument("--only", nargs="*", default=[""], help="only mutants whose text holds one of these")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--seconds", type=float, default=300.0, help="of tests for one mutant; default: 300")
    parser.add_argument("--keep", type=Path, default=CACHE, help=f"where notes and verdicts are; default: {CACHE}")
    parser.add_argument("--notes", type=Path, help="notes of another state of the package, if it is much the same")
    parser.add_argument("--again", action="store_true", help="judge survivors again")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--explained", action="store_true", help="also those in explained.py, else survivors untried")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as directory:
        place = Workplace(Path(directory))
        mutants = chosen(place, arguments.files, arguments.only)
        if arguments.sample is not None and arguments.sample < len(mutants):
            mutants = drawn(mutants, arguments.sample, arguments.seed)
        if arguments.list:
            print(*mutants, sep="\n")
            return 0
        folder = arguments.keep / place.state_of_source()
        folder.mkdir(parents=True, exist_ok=True)
        notes = arguments.notes or folder / "notes"
        place.record(notes, arguments.jobs)
        court = Court(place, notes, folder / f"{VERDICTS}.{place.state_of_tests()}.jsonl", arguments.seconds)
        court.check()
        verdicts = verdicts_of(court, mutants, arguments, end)
    return report(verdicts, len(mutants))


def verdicts_of(court: Court, mutants: list[Mutant], arguments: argparse.Namespace, end: float) -> list[Verdict]:
    already = court.already()
    if arguments.again:
        already = {mutant: verdict for mutant, verdict in already.items() if verdict.killed_by}

    def verdict_of(mutant: Mutant) -> Verdict | None:
        if mutant.key in EXPLAINED and not arguments.explained:
            return Verdict(mutant, None, 0, 0.0)
        if mutant in already:
            return already[mutant]
        if time.monotonic() > end:
            return None
        verdict = court.judge(mutant)
        print("." if verdict.killed_by else f"\nsurvived {verdict.tests} tests: {mutant}\n", end="", flush=True)
        return verdict

    with ThreadPoolExecutor(arguments.jobs) as pool:
        return [verdict for verdict in pool.map(verdict_of, mutants) if verdict is not None]


def report(verdicts: list[Verdict], asked: int) -> int:
    killed = [verdict for verdict in verdicts if verdict.killed_by]
    survivors = [verdict.mutant for verdict in verdicts if not verdict.killed_by]
    explained = [mutant for mutant in survivors if mutant.key in EXPLAINED]
    unexplained = [mutant for mutant in survivors if mutant.key not in EXPLAINED]
    print(f"\n\n{len(explained)} survivors are explained:")
    for mutant in explained:
        print(f"  {mutant}\n      {EXPLAINED[mutant.key]}")
    print(f"{len(unexplained)} survivors are not:", *unexplained, sep="\n  ")
    slow = [str(verdict.mutant) for verdict in killed if verdict.killed_by == TIME_LIMIT]
    print(f"{len(slow)} were killed by the time limit:", *slow, sep="\n  ")
    if len(verdicts) < asked:
        print(f"{asked - len(verdicts)} of {asked} were not tried: the time was over")
    change_a_value = len(verdicts) - len(explained)
    rate = len(killed) / max(1, change_a_value)
    print(f"{len(killed)} of {change_a_value} mutants that change a value killed: {rate:.1%}")
    print(f"at least {THRESHOLD:.0%} must be")
    return 0 if rate >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(main())
