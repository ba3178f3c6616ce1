"""What `speed.py` measures and `report.py` shows: one table of cases, one of routes, one of promises.

cases.py: what is asked, and the tensors of a case. routes.py: the ways to compute it. promises.py: what must hold. measure.py: time and
memory of a case. results.py: a file of results, and the machine. page.py and figures.py: a results file as a page.
"""
