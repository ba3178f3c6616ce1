"""The parameters of a model, as the lines of its class make them, and the values that they start with."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from .names import FUNCTIONS, Module, changes_in_place, find_keyword, is_constant, key_of, last_name, unparse, words
from .values import filled_values, strip_views, tensor_values

_MAKERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.UninitializedParameter")
_EMPTY = ("torch.empty", "torch.empty_like", "torch.Tensor", "torch.FloatTensor")
# Calls that leave the values of a parameter as they are.
_HARMLESS = words("print len isinstance repr str getattr hasattr id type list dict set super setattr requires_grad_")
_FREEZES = (
    r"{}\b.*\brequires_grad(?:_\(| = )False|self(?:\.\w+\(\))*\.requires_grad_\(False"
    r"|for (?:\w+, )?(\w+) in self\.(?:named_)?parameters\(\):\s+\1\.requires_grad(?:_\(| = )False"
)
Write = tuple[int, "frozenset[float] | None"]  # a line that sets a parameter, and the values that it writes, if known


class Parameter(NamedTuple):
    """A parameter. values: the values that its entries start with; empty if the lines that set them do not agree."""

    name: str
    line: int
    values: frozenset[float]


def find_parameter(module: Module, node: ast.expr) -> Parameter | None:
    """The parameter that an expression stands for, also through names, views and slices; None if none, or for a leaf of unknown values."""
    resolved = module.resolve(node)
    node = strip_views(module, node)
    if isinstance(node, ast.Attribute):
        return _attribute_parameter(module, node)
    is_leaf = isinstance(resolved, ast.Call) and last_name(resolved) == "requires_grad_"
    is_leaf = is_leaf or (isinstance(node, ast.Call) and is_constant(find_keyword(node, "requires_grad"), True))
    tensor = parameter_tensor(module, node) or (node if is_leaf else None)
    values = None if tensor is None else tensor_values(module, tensor)
    return None if values is None else Parameter("this leaf", node.lineno, values)


def parameter_tensor(module: Module, node: ast.expr | None) -> ast.expr | None:
    """The tensor in `nn.Parameter(tensor)`; None for another expression, and for a parameter that does not learn."""
    if not isinstance(node, ast.Call) or module.called_name(node) not in _MAKERS or len(node.args) > 1:
        return None
    flag = find_keyword(node, "requires_grad")
    if flag is not None and is_constant(module.resolve(flag), False):
        return None
    return find_keyword(node, "data") or (node.args[0] if node.args else None)


def _attribute_parameter(module: Module, node: ast.Attribute) -> Parameter | None:
    """`self.x`, if a line of the class makes it a parameter."""
    owner, key = module.owner(node), key_of(node) or ""
    if owner is None or not key.startswith("self.") or _is_frozen(owner, key):
        return None
    writes = list(_writes_by_calls(module, owner, key))
    is_parameter, bindings = False, module.attribute_bindings(owner, key)
    for _, binding in (*bindings, *module.attribute_bindings(owner, f"{key}.data")):
        value = binding.value
        tensor = parameter_tensor(module, None if value is None else module.resolve(value))
        if tensor is not None:
            is_parameter, values = True, tensor_values(module, tensor)
        else:
            values = filled_values(module, value) if isinstance(value, ast.Call) else None
        is_empty = tensor is not None and module.called_name(module.resolve(tensor)) in _EMPTY
        is_off = value is not None and _is_off_by_default(module, value)
        if not is_off and (values is not None or not is_empty):  # another line fills an empty tensor
            writes.append((binding.end[0], values))
    known = {values for _, values in writes}
    start = known.pop() if len(known) == 1 else None
    line = max((line for line, _ in writes), default=node.lineno)
    return Parameter(key, line, start or frozenset()) if is_parameter else None


def _is_frozen(owner: ast.ClassDef, key: str) -> bool:
    text = unparse(owner)
    return "requires_grad" in text and re.search(_FREEZES.format(re.escape(key)), text) is not None


def _writes_by_calls(module: Module, owner: ast.ClassDef, key: str) -> Iterator[Write]:
    """The calls that may set a parameter, such as `nn.init.zeros_(self.x)`. `init.zeros_(m.x)` and `fill(self.x)` have unknown values."""
    names = (key.removeprefix("self."), "parameters", "named_parameters")
    for load in [load for name in names for load in module.loads[name]]:
        part: ast.AST = load
        call = module.parent[load]
        while isinstance(call, (ast.keyword, ast.Attribute)):  # `.data`, `.fill_`
            part, call = call, module.parent[call]
        name, load_key = last_name(call), key_of(load)
        if not isinstance(call, ast.Call) or name in _HARMLESS:
            continue
        is_own = module.owner(load) is owner and load_key in (key, "self.parameters", "self.named_parameters")
        method = next((up.name for up in module.parents(call) if isinstance(up, FUNCTIONS)), "")
        may_set = isinstance(call.func, ast.Name) or load_key != key  # `fill(self.x)`, `f(self.parameters())`
        if changes_in_place(name):
            if part is not call.func and is_own:  # `self.x.fill_(0)` is a binding
                yield call.lineno, filled_values(module, call)
            elif load_key is not None and not load_key.startswith("self."):
                yield call.lineno, None
        elif is_own and may_set and ("init" in method or "reset" in method):
            yield call.lineno, None


def _is_off_by_default(module: Module, node: ast.expr) -> bool:
    """Is the line inside `if flag:`, where the argument `flag` is False by default? Then most calls do not run the line."""
    child: ast.AST = node
    for parent in module.parents(node):
        if isinstance(parent, ast.If) and isinstance(parent.test, ast.Name):
            flag = module.resolve(parent.test)
            branch = parent.orelse if is_constant(flag, True) else parent.body if is_constant(flag, False) else []
            if child in branch:
                return True
        child = parent
    return False
