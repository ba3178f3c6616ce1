"""Measure what the installed torch does at a bound, and say where the table of `pseudograd.torch_facts` differs.

Run it with the Python of each torch version: python scripts/measure_torch_facts.py
"""

from __future__ import annotations

import sys

import torch

from pseudograd.torch_facts import FORMS, era_of, measure


def main() -> int:
    era = era_of(torch.__version__)
    print(f"torch {torch.__version__}, {era}")
    wrong = 0
    for name, form in FORMS.items():
        found = measure(form)
        differs = found != form.slopes[era]
        wrong += differs
        print(
            f"  {name:36} {found.x:g} {'' if found.bound is None else f'{found.bound:g}'}{'  DIFFERS' if differs else ''}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
