"""What `speed.py` measures and `report.py` shows: one table of cases, one of routes, one of promises.

cases.py: what is asked, and the tensors of a case. routes.py: the ways to compute it. promises.py: what must hold. measure.py: time and
memory of a case. network.py: a network's memory. machine.py: where it ran. page.py and figures.py: a results file as a page.
"""
