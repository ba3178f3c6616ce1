"""How Sphinx builds the site: `make docs` calls it with warnings as errors."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # docstrings.py

project = "pseudograd"
author = copyright = "The pseudograd developers"
release = metadata.version("pseudograd")

extensions = [
    "docstrings",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]

# Markdown as GitHub shows it: `math` blocks, links to headings, tables.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_inline"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"

# torch's inventory, as far as we name it, lies beside this file: a build needs no network.
intersphinx_mapping = {"torch": ("https://docs.pytorch.org/docs/stable/", "torch.inv")}

# `sphinx -b linkcheck` opens every address; docs.yml calls it. Not their anchors: torch's pages and GitHub's make them in the browser.
linkcheck_anchors = False
linkcheck_timeout = 20
linkcheck_retries = 2

html_theme = "furo"
html_title = "pseudograd"
html_static_path = ["_static"]
html_extra_path = ["playground.html", "kinks_table.html"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {"top_of_page_buttons": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
