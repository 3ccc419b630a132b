"""How Sphinx builds the site: `make docs`. The pages are the Markdown files beside this one.

Docs/_ext holds what Sphinx lacks.
"""

import sys
from pathlib import Path

import softq

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

project = "softq"
author = "The softq developers"
project_copyright = author
version = release = softq.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "docstring_markup",
    "name_links",
    "recipe_keys",
    "repository_links",
]

# --- pages ------------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence"]  # callouts whose text GitHub shows, too
root_doc = "index"
exclude_patterns = ["_ext", "_static"]
myst_heading_anchors = 4  # the anchors that GitHub gives to headings
highlight_language = "text"  # indented blocks are mathematics, tables and output
nitpicky = True
# What other packages document cannot be looked up without a network. Of softq every class in a
# signature must be documented, but for these.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!softq\b).*"),
    (r"py:.*", r"softq\.kernels\..*"),
    (r"py:.*", r"softq\.samplers\.stream\.(Batch|Made)"),  # type variables
    (
        r"py:.*",
        r"softq\.lab\.worlds\.grammar\.(Input|Symbol|Texts)",
    ),  # a type variable, and aliases
]

# --- the reference ----------------------------------------------------------------------------------------

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
    "special-members": "__call__",
    "exclude-members": "set_fit_request, set_score_request",  # scikit-learn's
}
autodoc_inherit_docstrings = False  # what a method means is written once, in its base class
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 140
python_display_short_literal_types = True
add_module_names = False
toc_object_entries_show_parents = "hide"

# --- how it looks -----------------------------------------------------------------------------------------

html_theme = "furo"
html_title = f"softq {release}"
html_static_path = ["_static"]
html_css_files = ["softq.css"]
# Priority 300: after the options of the scripts of Sphinx (200), before the search that reads them
# (500).
html_js_files = [("search_on_disk.js", {"priority": 300})]
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
