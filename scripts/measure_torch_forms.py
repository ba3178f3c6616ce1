"""Measure what the installed torch does at a bound, and say where the table of `pseudograd.torch_table.forms` differs.

Run it with the Python of each torch version: python scripts/measure_torch_forms.py
"""

from __future__ import annotations

import sys

import torch

from pseudograd.torch_table.eras import era_of, measure
from pseudograd.torch_table.forms import at_the_bound


def main() -> int:
    era = era_of(torch.__version__)
    print(f"torch {torch.__version__}, {era}")
    wrong = 0
    for way in at_the_bound():
        found = measure(way.f)
        differs = found != way.slopes_in(era)
        wrong += differs
        print(
            f"  {way.text:36} {found.x:g} {'' if found.bound is None else f'{found.bound:g}'}{'  DIFFERS' if differs else ''}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
