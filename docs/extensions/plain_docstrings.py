"""Docstrings of this package are plain text; this makes of them what Sphinx reads.

A paragraph that is indented or set in columns stays as it is, in a fixed font. In all others
`names` become code, and what would be markup to Sphinx (|x|, a*, b_) is text.
"""

import builtins
import re
import textwrap

from sphinx.addnodes import pending_xref

import fetchsgd
from public_modules import home_of, module_of_page


def paragraphs(lines):
    """Lines between blank ones, together."""
    found = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [paragraph for paragraph in found if paragraph]


def is_list(paragraph):
    return re.match(r"\s*(- |\d+\. )", paragraph[0]) is not None


def in_columns(paragraph):
    """Indented as a whole, or with runs of spaces inside of lines."""
    return paragraph[0].startswith("  ") or any(
        re.search(r"\S {3,}\S", line) for line in paragraph
    )


def escaped(text):
    """Text in which only code between backticks is markup."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        f"``{part[1:-1]}``" if re.fullmatch(r"`[^`]+`", part) else re.sub(r"([\\*|_`])", r"\\\1", part)
        for part in parts
    )


def list_items(paragraph):
    """A list as reStructuredText wants it: items apart, what continues one indented by two."""
    items = []
    for line in paragraph:
        if re.match(r"\s*(- |\d+\. )", line):
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()
    return [text for item in items for text in (escaped(item), "")]


def as_restructured(lines):
    """A whole docstring."""
    written = []
    for paragraph in paragraphs(lines):
        if paragraph[0].lstrip().startswith(">>>"):
            written += [*textwrap.dedent("\n".join(paragraph)).split("\n"), ""]
        elif is_list(paragraph):
            written += list_items(paragraph)
        elif in_columns(paragraph):
            written += ["::", "", *("    " + line for line in paragraph), ""]
        else:
            written += [*(escaped(" ".join(map(str.strip, paragraph))).split("\n")), ""]
    return written


def rewrite(app, what, name, obj, options, lines):
    lines[:] = as_restructured(lines)


def skip(app, what, name, obj, skipped, options):
    """Each thing is described once, though several modules may have its name."""
    here = module_of_page(app.env.current_document.docname)
    home = home_of(obj)
    return True if home is not None and home.rpartition(".")[0] != here else None


def leave_builtins(app, doctree):
    """`bytes` in a signature is Python's, not a method of ours that has this name."""
    for reference in list(doctree.findall(pending_xref)):
        if hasattr(builtins, reference.get("reftarget", "")):
            reference.replace_self(reference.children)


def setup(app):
    for name in fetchsgd.__all__:  # loaded on first use, and Sphinx looks at what is there
        setattr(fetchsgd, name, getattr(fetchsgd, name))
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("autodoc-skip-member", skip)
    app.connect("doctree-read", leave_builtins)
    return {"parallel_read_safe": True}
