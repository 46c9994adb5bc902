"""Sphinx configuration."""

import sdm_sklearn

project = "sdm_sklearn"
author = "The sdm_sklearn developers"
copyright = f"2026, {author}"
version = release = sdm_sklearn.__version__

extensions = [
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
default_role = "code"
nitpicky = False

autosummary_generate = True
autodoc_default_options = {"members": True, "inherited-members": True}
# Methods are documented on the page of their class, not on one page each.
numpydoc_show_class_members = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": "plot_",
    "abort_on_example_error": True,
    "doc_module": "sdm_sklearn",
    "backreferences_dir": "generated/backreferences",
    "show_memory": False,
    "min_reported_time": 5,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_title = f"sdm_sklearn {version}"
html_show_sourcelink = False


def skip_foreign_members(app, what, name, obj, skip, options):
    """Leave out what scikit-learn's and torch's base classes document themselves."""
    module = getattr(obj, "__module__", None) or ""
    return (
        skip
        or module.startswith(("sklearn", "torch"))
        or name.endswith("_request")
        or name in ("add_note", "with_traceback")
    )


def setup(app):
    app.connect("autodoc-skip-member", skip_foreign_members)
