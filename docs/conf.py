"""Settings of Sphinx for the site that `make docs` builds from docs/ into build/docs."""

import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from myst_parser.mdit_to_docutils.base import default_slugify
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import _MockObject
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util import logging

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from headers import Header  # noqa: E402

import hpcomm  # noqa: E402

REPOSITORY = "https://github.com/hpcomm/hpcomm"  # links to files outside docs/ lead there

project, author, copyright = "hpcomm", "The hpcomm authors", "the hpcomm authors"
version = release = hpcomm.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
exclude_patterns = ["_static"]

# ---- pages -----------------------------------------------------------------------------------------------------------

myst_heading_anchors = 4
html_theme = "furo"
html_title = f"hpcomm {version}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}

# Sphinx checks links between pages while it builds. Other addresses are asked by `make docs LINKS=1` alone.
linkcheck_ignore = [re.escape(REPOSITORY)] if os.environ.get("LINKS") else ["https?://"]

# ---- reference -------------------------------------------------------------------------------------------------------

default_role = "literal"  # `a` in a docstring is code
autodoc_mock_imports = [name for name in ("torch", "numba", "mpi4py") if find_spec(name) is None]
_MockObject.__or__ = lambda self, _: self  # Python evaluates annotations such as `Tensor | None`
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
toc_object_entries_show_parents = "hide"
smartquotes = False
python_maximum_signature_line_length = c_maximum_signature_line_length = cpp_maximum_signature_line_length = 96
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|np|torch|collections|contextlib|dataclasses|typing|os|types)\..*"),
    ("py:class", r"hpcomm\.\w+\..*"),  # types of parts that are not public
    ("py:class", "Settings|Options|Keywords|Cut|More|MoreButCodec|OneGiven"),  # TypedDicts: of init and others
    ("(c|cpp):.*", r"\w*size_t|u?int\d+_t|std.*|MPI_.*|if_floats.*"),
]

SECTION = re.compile(r"\s*(Args|Attributes|Raises|Returns|Yields):$")
SHAPE = re.compile(r"^(\s+)(\w+), (\w+ \([^)]*\)): ")  # indptr, int64 (n,): ...
NAMES = re.compile(r"^\s+\w+(, \w+)+(?=: )")  # of several attributes, which Sphinx would take for a type and a name
SIGNS = re.compile(r"\||(?<=\w)_(?!\w)|\*(?==)|\*(?=\*)")
LINK = re.compile(r"(?<=\]\()\.\./([^)#\s]+)(?:#([^)\s]+))?(?=\))")
log = logging.getLogger(__name__)


def add_toctrees(text: str) -> str:
    """The index with a toctree for each of its tables, in their order."""
    found = re.findall(r"^(\w[^\n]*):\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    for caption, table in found:
        rows = re.findall(r"^\| \[(?:\.\./)?([^]]*)\]\(([^)#]+)\)", table, re.MULTILINE)
        pages = "\n".join(f"{name} <{to}>" if to.startswith("http") else to.rpartition(".")[0] for name, to in rows)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"
    return text


def outside(docname: str, text: str) -> str:
    """A page with links into the repository in the place of those to files outside docs/, which must be there."""

    def address(found: re.Match[str]) -> str:
        path, anchor = ROOT / found[1], found[2]
        if not path.exists():
            log.warning("%s is not in the repository", found[1], location=docname)
        elif anchor and anchor not in slugs(path):
            log.warning("%s has no heading #%s", found[1], anchor, location=docname)
        return f"{REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{found[1]}" + (f"#{anchor}" if anchor else "")

    return LINK.sub(address, text)


def slugs(path: Path) -> set[str]:
    """The anchors of a page of Markdown."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {default_slugify(title) for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)}


def read(app: Sphinx, docname: str, source: list[str]) -> None:
    text = outside(docname, source[0])
    source[0] = add_toctrees(text) if docname == "index" else text


def as_written(lines: list[str]) -> Iterator[str]:
    """A docstring's lines as reStructuredText: those that are indented behind an empty one are code, except in the
    sections of Google's form; the signs of reStructuredText stand for themselves."""
    section = code = None  # the columns at which they begin
    empty = False
    for row in lines:
        line = row
        column = len(line) - len(line.lstrip())
        if line:
            section = None if section is not None and column <= section else section
            code = None if code is not None and column < code else code
        if SECTION.match(line):
            section = column
        if line and empty and column and code is None and section is None:
            code = column
            yield from (".. code-block:: default", "")
        empty = not line
        if section is not None:
            line = NAMES.sub(lambda found: found[0].replace(", ", ","), SHAPE.sub(r"\1\2: \3: ", line))
        yield line if code is not None else SIGNS.sub(r"\\\g<0>", line)


def docstring(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    # An attribute's "The ranks: ..." would become a type.
    kind = "object" if what in ("attribute", "data", "property") else what
    form = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)
    lines[:] = GoogleDocstring(list(as_written(lines)), form, app, kind, name, of).lines()


def from_c(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement) -> nodes.Element | None:
    """Names of C in declarations of C++ are links too."""
    if node.get("refdomain") != "cpp":
        return None
    found = env.get_domain("c").resolve_any_xref(env, node["refdoc"], app.builder, node["reftarget"], node, text)
    return found[0][1] if found else None


def setup(app: Sphinx) -> None:
    app.add_directive("header", Header)
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("missing-reference", from_c)
