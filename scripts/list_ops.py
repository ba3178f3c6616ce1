"""Write the list of all ops, src/pseudograd/ops/__init__.py, from what each file beside it says in its `__all__`.

A type checker knows only names that are imported one by one, so they are written out; nobody has to do that by hand.

python scripts/list_ops.py           write it
python scripts/list_ops.py --check   fail if it says anything else
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "src" / "pseudograd" / "ops" / "__init__.py"
_TEXT = '''"""The public ops, one file per family. scripts/list_ops.py writes this list: each file names its ops in `__all__`."""

import torch.fx

{imports}

__all__ = [
{names}
]

# torch.fx keeps a call of these as one node, with its rule, wherever it is written pseudograd.ops.clamp. Without that it would see
# torch's own functions in them, whose gradient is another.
for _name in __all__:
    if _name.islower() and _name != "register_rule":
        torch.fx.wrap(_name)
del _name
'''


def names_in(file: Path) -> list[str]:
    """Its `__all__`, read without running it; empty where it has none."""
    for line in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__":
            return sorted(ast.literal_eval(line.value))
    return []


def text(folder: Path = LIST.parent) -> str:
    found = {file.stem: names_in(file) for file in sorted(folder.glob("[!_]*.py"))}
    imports = [f"from .{module} import {', '.join(names)}" for module, names in found.items() if names]
    names = sorted(name for several in found.values() for name in several)
    return _TEXT.format(imports="\n".join(imports), names="\n".join(f'    "{name}",' for name in names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        LIST.write_text(text(), encoding="utf-8")
    elif LIST.read_text(encoding="utf-8") != text():
        print(f"{LIST.relative_to(ROOT)}: differs from the files beside it. Run scripts/list_ops.py.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
