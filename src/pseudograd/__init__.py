from .ops import clamp, clamp_, hardtanh, lower_bound, relu, relu6, upper_bound
from . import rules
