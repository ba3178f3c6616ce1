"""The checks that every built-in rule passes, for your own rule.

from pseudograd.testing import check_rule

check_rule("my_rule", op="clamp")    # after register_rule; raises AssertionError with the first difference
"""

from .contract.rule import check_rule

__all__ = ["check_rule"]
