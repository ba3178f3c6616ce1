"""Of a module: what each node stands in, where each name is read, and where each function is called."""

from __future__ import annotations

import ast
from bisect import bisect_left
from operator import attrgetter
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_line = attrgetter("lineno")


class Places:
    """above: the node that each stands in. A name read in a function within a function is read in both, and in the module."""

    def __init__(self, tree: ast.Module) -> None:
        self.above: dict[ast.AST, ast.AST] = {}
        self.uses: dict[ast.AST, Any] = {}  # what `uses` found out, so that it does not ask twice
        self._reads: dict[tuple[ast.AST | None, str], list[ast.Name]] = {}
        self._calls: dict[str, list[ast.Call]] = {}
        stack: list[tuple[ast.AST, tuple[ast.AST | None, ...]]] = [(tree, (None,))]
        while stack:
            node, scopes = stack.pop()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                for scope in scopes:
                    self._reads.setdefault((scope, node.id), []).append(node)
            elif isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                self._calls.setdefault(name, []).append(node)
            inner = (*scopes, node) if isinstance(node, FUNCTIONS) else scopes
            for child in ast.iter_child_nodes(node):
                self.above[child] = node
                stack.append((child, inner))

        for found in self._reads.values():
            found.sort(key=_line)

    def reads(self, function: ast.AST | None, name: str, line: int, most: int) -> list[ast.Name]:
        """In this function, or the whole module for None, from this line on."""
        found = self._reads.get((function, name), [])
        start = bisect_left(found, line, key=_line)
        return found[start : start + most]

    def calls(self, name: str) -> list[ast.Call]:
        return self._calls.get(name, [])
