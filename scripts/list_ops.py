"""Write three files that type checkers read: the list of all ops, and the stubs of modules and rules.

src/pseudograd/ops/__init__.py  every op, from the `__all__` of each file of that folder
src/pseudograd/nn.pyi           every module with its arguments, from the signatures of the ops
src/pseudograd/rules.pyi        every rule with its parameters, from the table

The text around the lists is not changed.

python scripts/list_ops.py           write them
python scripts/list_ops.py --check   fail if one of them differs
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "src" / "pseudograd" / "ops" / "__init__.py"
STUBS = LIST.parent.parent / "nn.pyi"
RULES = LIST.parent.parent / "rules.pyi"
_FROM_TENSOR = """
    @classmethod
    def from_tensor(
        cls, x: Tensor, bits: int = 8, *, signed: bool = True, axis: int | None = None, **options: Any
    ) -> FakeQuantize: ..."""


def names_in(file: Path) -> list[str]:
    """The `__all__` of a file, read without running the file. Empty if it has none."""
    for line in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__all__":
            return sorted(ast.literal_eval(line.value))
    return []


def text(folder: Path = LIST.parent) -> str:
    names_by_module = {file.stem: names_in(file) for file in sorted(folder.glob("[!_]*.py"))}
    imports = [f"from .{module} import {', '.join(names)}" for module, names in names_by_module.items() if names]
    names = sorted(name for several in names_by_module.values() for name in several)
    lists = "\n".join([*imports, "", *_rows(names)])
    return _replace_between(LIST, "import torch.fx\n\n", "\n\n# torch.fx keeps", lists)


def _replace_between(file: Path, start: str, end: str, part: str) -> str:
    """The text of the file with `part` between its texts `start` and `end`."""
    before, _, rest = file.read_text(encoding="utf-8").partition(start)
    return f"{before}{start}{part}{end}{rest.partition(end)[2]}" if end else f"{before}{start}{part}\n"


def _rows(names: list[str], width: int = 120) -> list[str]:
    """Assignments to `__all__`, in as few lines as the width allows."""
    rows: list[list[str]] = [[]]
    for name in names:
        if len(f"__all__ += {json.dumps([*rows[-1], name])}") > width:
            rows.append([])
        rows[-1].append(name)
    return [f"__all__ {'+=' if number else '='} {json.dumps(row)}" for number, row in enumerate(rows)]


def stubs() -> str:
    from pseudograd import nn  # which imports the list

    classes = [_stub(name, inspect.signature(getattr(nn, name))) for name in nn.__all__]
    names = repr(nn.__all__).replace("'", '"')
    text = _replace_between(STUBS, "    def forward(self, x: Tensor) -> Any: ...\n\n", "", "\n\n".join(classes))
    return re.sub(r"^__all__ = .*$", lambda _: f"__all__ = {names}", text, count=1, flags=re.MULTILINE)


def rules() -> str:
    from pseudograd import rules

    functions = [_function(name, inspect.signature(getattr(rules, name))) for name in dir(rules)]
    return _replace_between(RULES, "import RuleObject\n\n", "\ndef __getattr__", "\n".join(functions))


def _function(name: str, signature: inspect.Signature) -> str:
    return f"def {name}({', '.join(_parameters(signature))}) -> RuleObject: ..."


def _stub(name: str, signature: inspect.Signature) -> str:
    more = _FROM_TENSOR if name == "FakeQuantize" else ""
    return f"class {name}(_Layer):\n    def __init__({', '.join(['self', *_parameters(signature)])}) -> None: ...{more}"


def _parameters(signature: inspect.Signature) -> list[str]:
    texts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        kind = parameter.annotation if parameter.annotation is not parameter.empty else type(parameter.default).__name__
        default = "" if parameter.default is parameter.empty else " = ..."
        texts.append(f"{parameter.name}: {kind.replace('Value', 'float | Tensor')}{default}")
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    is_check, status = parser.parse_args().check, 0
    for file, write in ((LIST, text), (STUBS, stubs), (RULES, rules)):
        if not is_check:
            file.write_text(write(), encoding="utf-8")
        elif file.read_text(encoding="utf-8") != write():
            print(f"{file.relative_to(ROOT)}: differs. Run scripts/list_ops.py.", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
