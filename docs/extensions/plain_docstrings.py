"""Docstrings of this package are plain text; this makes of them what Sphinx reads.

A paragraph that is indented or set in columns stays as it is, in a fixed font. One that explains
arguments, `name: what it is`, with or without `Args:` above, becomes a list. In all others `names`
become code, and what would be markup to Sphinx (|x|, a*, b_) is text.
"""

import builtins
import re
import textwrap
from functools import cached_property
from itertools import zip_longest
from types import FunctionType

from public_modules import home_of, module_of_page, names_table
from sphinx.addnodes import pending_xref

import fetchsgd


def paragraphs(lines):
    """Lines between blank ones, together; and what is indented, whatever blank lines it has."""
    found = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    joined = []
    for paragraph in filter(None, found):
        if joined and is_indented(joined[-1]) and is_indented(paragraph):
            joined[-1] += ["", *paragraph]
        else:
            joined.append(paragraph)
    return joined


def is_indented(paragraph):
    return paragraph[0].startswith("  ") and not re.match(ITEM, paragraph[0])


ITEM = r"\s*(- |\d+\. )"
ARGUMENT = r"([a-z]\w*(?:, [a-z]\w*)*): "  # at the start of a line
RAISED = r"([A-Z]\w*): "
SECTION = r"(Args|Returns|Raises|Yields):$"
ATTRIBUTES = (property, FunctionType, classmethod, staticmethod, cached_property)


def in_columns(paragraph):
    """Indented as a whole, or with runs of spaces inside of lines."""
    return is_indented(paragraph) or any(re.search(r"\S {3,}\S", line) for line in paragraph)


def escaped(text):
    """Text in which only code between backticks is markup."""
    parts = re.split(r"`([^`]+)`", text)  # every second one is code
    plain = [re.sub(r"([\\*|_`])", r"\\\1", part) for part in parts[::2]]
    code = [f"``{part}``" for part in parts[1::2]]
    return "".join(part for pair in zip_longest(plain, code, fillvalue="") for part in pair)


def items_of(paragraph, start):
    """The items of a list, each in one line; what does not begin one goes on with the last."""
    items = []
    for line in paragraph:
        if re.match(start, line):
            items.append(line.strip())
        else:
            items[-1] += " " + line.strip()
    return items


def as_list(paragraph):
    return [text for item in items_of(paragraph, ITEM) for text in (escaped(item), "")]


def as_arguments(paragraph, start=ARGUMENT):
    """`name: what it is` as a list, names in code."""
    written = []
    for item in items_of(paragraph, start):
        names, _, text = item.partition(": ")
        code = ", ".join(f"``{name}``" for name in names.split(", "))
        written += [f"- {code}: {escaped(text)}", ""]
    return written


def as_restructured(lines):
    """A whole docstring."""
    written = []
    for paragraph in paragraphs(lines):
        if paragraph[0].lstrip().startswith(">>>"):
            written += [*textwrap.dedent("\n".join(paragraph)).split("\n"), ""]
        elif re.match(ITEM, paragraph[0]):
            written += as_list(paragraph)
        elif heading := re.match(SECTION, paragraph[0]):
            rest = textwrap.dedent("\n".join(paragraph[1:])).split("\n")
            raised = heading[1] == "Raises"
            written += [f"**{heading[1]}**", ""]
            written += as_arguments(rest, RAISED) if raised else as_restructured(rest)
        elif re.match(ARGUMENT, paragraph[0]):
            written += as_arguments(paragraph)
        elif in_columns(paragraph):
            written += ["::", "", *("    " + line for line in paragraph), ""]
        else:
            written += [*(escaped(" ".join(map(str.strip, paragraph))).split("\n")), ""]
    return written


def rewrite(app, what, name, obj, options, lines):
    lines[:] = as_restructured(lines)


def skip(app, what, name, obj, skipped, options):
    """Each thing is described once, though several modules may have its name.

    Fields are in the signature of their class and, where they need words, in its docstring.
    """
    if what == "class" and not isinstance(obj, ATTRIBUTES):
        return True
    here = module_of_page(app.env.current_document.docname)
    home = home_of(obj)
    return True if home is not None and home.rpartition(".")[0] != here else None


def leave_builtins(app, doctree):
    """`bytes` in a signature is Python's, not a method of ours that has this name."""
    for reference in list(doctree.findall(pending_xref)):
        if hasattr(builtins, reference.get("reftarget", "")):
            reference.replace_self(reference.children)


def fill_in_names(app, docname, source):
    source[0] = source[0].replace("<!-- names of fetchsgd -->", names_table())


def setup(app):
    for name in fetchsgd.__all__:  # loaded on first use, and Sphinx looks at what is there
        setattr(fetchsgd, name, getattr(fetchsgd, name))
    app.connect("autodoc-process-docstring", rewrite)
    app.connect("autodoc-skip-member", skip)
    app.connect("doctree-read", leave_builtins)
    app.connect("source-read", fill_in_names)
    return {"parallel_read_safe": True}
