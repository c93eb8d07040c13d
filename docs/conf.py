"""The site. Its root is the repository, so that links between pages work here and there alike."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]
# Kernels of notebooks import the package of this checkout too, wherever they are started.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(HERE.parent / "src"), os.environ.get("PYTHONPATH")])
)
# Pages are built side by side, so each notebook has one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from public_modules import PUBLIC  # noqa: E402

import fetchsgd  # noqa: E402

project = "fetchsgd"
author = "the authors of fetchsgd"
copyright = f"{author}, Apache-2.0"
release = version = fetchsgd.__version__

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "examples/**.md",
    "experiments/**.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
exclude_patterns = [
    ".*",
    "build",
    "dist",
    "runs",
    "src",
    "tests",
    "benchmarks",
    "results",
    "shared",
]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "plain_docstrings"]
nitpicky = True

# Notebooks run when the site is built; an exception in one ends the build.
nb_execution_mode = "force"
nb_execution_timeout = 300  # seconds for a cell, on a busy machine
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_mime_priority_overrides = [("html", "image/svg+xml", 5)]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": True}
# Types in signatures lead somewhere if a public module defines them. Other projects' cannot: the
# build reaches no network.
nitpick_ignore_regex = [("py:.*", rf"(?!({'|'.join(PUBLIC)})\.\w+$).*")]

html_theme = "furo"
html_title = f"fetchsgd {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]
html_copy_source = False
html_show_sourcelink = False
