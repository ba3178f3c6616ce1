"""What a class says of itself: its parameters and what they start as, its buffers, its constants."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .terms import (
    FUNCTIONS,
    Env,
    Module,
    Parameter,
    Term,
    bind,
    bind_arguments,
    changes_in_place,
    find_keyword,
    is_constant,
    key_of,
    last_name,
    target_keys,
    words,
)
from .values import fill_value, tensor_values

_MAKERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.UninitializedParameter")
_EMPTY = ("torch.empty", "torch.empty_like", "torch.Tensor", "torch.FloatTensor")
_LOOK = words("print len isinstance repr str getattr hasattr id type list dict set super setattr")
_ALL = "*"  # parameters, in a loop over them
Start = tuple[
    int, "frozenset[float] | None"
]  # a line that sets a parameter, and the values that it writes, if they are known


class Facts(NamedTuple):
    """attributes: by "self.x", what is given to it once and in `__init__` or at the class itself."""

    parameters: dict[str, Parameter]
    buffers: frozenset[str]
    attributes: Env


def read_class(node: ast.ClassDef, env: Env, module: Module) -> Facts:
    reader = _Reader(env, module)
    for statement in node.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            (target,) = statement.targets
            if isinstance(target, ast.Name):
                reader.add_value(f"self.{target.id}", Term(statement.value, env, module), True)
        if isinstance(statement, FUNCTIONS):
            reader.read_method(statement)
    return reader.facts()


def parameter_tensor(term: Term) -> Term | None:
    """The tensor that `nn.Parameter(tensor)` is given; None for what makes no parameter, or one that does not learn."""
    node = term.node
    if not isinstance(node, ast.Call) or term.full_name() not in _MAKERS or len(node.args) > 1:
        return None
    flag = find_keyword(node, "requires_grad")
    if flag is not None and not is_constant(flag, True):
        return None
    tensor = find_keyword(node, "data") or (node.args[0] if node.args else None)
    return None if tensor is None else term.part(tensor)


class _Reader:
    """values: what each attribute is given, and whether that is a constant. starts: the lines that set it."""

    def __init__(self, env: Env, module: Module) -> None:
        self.env, self.module = env, module
        self.values: dict[str, list[tuple[Term, bool]]] = {}
        self.starts: dict[str, list[Start]] = {}
        self.buffers: set[str] = set()

    def add_value(self, name: str, value: Term, is_constant: bool) -> None:
        self.values.setdefault(name, []).append((value, is_constant))

    def add_start(self, name: str, line: int, values: frozenset[float] | None = None) -> None:
        self.starts.setdefault(name.removesuffix(".data"), []).append((line, values))

    def facts(self) -> Facts:
        parameters = {}
        for name, starts in self.starts.items():
            if any(parameter_tensor(term) is not None for term, _ in self.values.get(name, ())):
                is_set_elsewhere = _ALL in self.starts or name.removeprefix("self.") in self.module.set_elsewhere
                known = {values for _, values in starts}
                start = next(iter(known)) if len(known) == 1 and not is_set_elsewhere else None
                parameters[name] = Parameter(name, max(line for line, _ in starts), start or frozenset())
        attributes: Env = {}
        for name, ((term, is_once), *others) in self.values.items():
            attributes[name] = term if is_once and not others and name not in parameters else None
        return Facts(parameters, frozenset(self.buffers), attributes)

    def read_method(self, method: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        env: Env = {**self.env, **bind_arguments(method.args, self.env, self.module)}
        nodes = [
            node for node in ast.walk(method) if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Call))
        ]
        counts = Counter(
            key
            for node in nodes
            if isinstance(node, (ast.Assign, ast.AugAssign))
            for key in target_keys(_targets(node))
        )
        unused = _off_by_default(method, env)
        env |= dict.fromkeys(counts.keys() & env.keys())
        for node in nodes:
            if node in unused:
                continue
            if isinstance(node, ast.AugAssign):
                for name in target_keys([node.target]):
                    self.add_start(name, node.lineno)
                    self.add_value(name, bind(node.value, env, self.module), False)
            elif isinstance(node, ast.Call):
                self._visit_call_of(method.name, bind(node, env, self.module), node)
            elif node.value is not None:
                for target in _targets(node):
                    self._visit_assignment_of(target, bind(node.value, env, self.module), method.name, counts, env)

    def _visit_assignment_of(self, target: ast.expr, value: Term, method: str, counts: Counter[str], env: Env) -> None:
        key = key_of(target)
        if key is None:
            for name in target_keys([target]):
                self.add_value(name, value, False)
                self.add_start(name, target.lineno)
        elif key.startswith("self."):
            self.add_value(key, value, method == "__init__")
            tensor = parameter_tensor(value)
            values = None if tensor is None else tensor_values(tensor)
            if tensor is None or values is not None or tensor.resolved().full_name() not in _EMPTY:
                self.add_start(key, target.lineno, values)  # what fills an empty tensor says what it holds
        elif counts[key] == 1:
            env[key] = value

    def _visit_call_of(self, method: str, call: Term, node: ast.Call) -> None:
        """`nn.init.zeros_(self.x)`, `self.x.data.fill_(1)`; what another function does to `self.x` is not known."""
        sets_up = "init" in method or "reset" in method
        if key_of(node.func) in ("self.parameters", "self.named_parameters") and sets_up:
            self.add_start(_ALL, node.lineno)
        if not isinstance(node.func, ast.Attribute):
            if sets_up and last_name(node) not in _LOOK and not call.full_name().startswith("torch.nn.functional."):
                for name in _attributes(node):
                    self.add_start(name, node.lineno)
            return
        name = node.func.attr
        first = node.args[0] if node.args else None
        if name == "register_buffer" and isinstance(first, ast.Constant) and isinstance(first.value, str):
            self.buffers.add(f"self.{first.value}")
        if not changes_in_place(name) or name == "requires_grad_":
            return
        target: ast.expr = node.func.value
        arguments = node.args
        if call.full_name().startswith("torch.nn.init."):
            target, arguments = find_keyword(node, "tensor") or first or target, node.args[1:]
        key = key_of(target)
        if key is not None and key.startswith("self."):
            arguments = [*arguments, *(fill for key in ("val", "value") if (fill := find_keyword(node, key)))]
            value = fill_value(name, [call.part(argument) for argument in arguments])
            self.add_start(key, node.lineno, None if value is None else frozenset({value}))


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _attributes(node: ast.Call) -> Iterator[str]:
    """The attributes of self that a call is given."""
    for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
        if (key := key_of(argument)) is not None and key.startswith("self."):
            yield key


def _off_by_default(method: ast.FunctionDef | ast.AsyncFunctionDef, env: Env) -> set[ast.AST]:
    """The nodes behind `if flag:` where the argument `flag` is False by default: most calls do not run them."""
    nodes: set[ast.AST] = set()
    for node in ast.walk(method):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            flag = env.get(node.test.id)
            if flag is not None and isinstance(flag.node, ast.Constant) and isinstance(flag.node.value, bool):
                branch = node.orelse if flag.node.value else node.body
                nodes.update(inner for statement in branch for inner in ast.walk(statement))
    return nodes
