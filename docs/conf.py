"""Settings of Sphinx for the site that `make docs` builds from docs/ into build/docs."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from headers import Header  # noqa: E402
from myst_parser.mdit_to_docutils.base import default_slugify  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.util import logging  # noqa: E402

import hpcomm  # noqa: E402

REPOSITORY = "https://github.com/hpcomm/hpcomm"  # links to files outside docs/ lead there

project, author, copyright = "hpcomm", "The hpcomm authors", "the hpcomm authors"
version = release = hpcomm.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
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
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = c_maximum_signature_line_length = cpp_maximum_signature_line_length = 96
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpick_ignore_regex = [
    ("py:.*", r"(numpy|np|torch|collections|typing|os|types)\..*"),
    ("(c|cpp):.*", r"\w*size_t|u?int\d+_t|std.*"),
]

SECTION = re.compile(r"\s*(Args|Attributes|Raises|Returns|Yields):$")
LINK = re.compile(r"(?<=\]\()\.\./([^)#\s]+)(?:#([^)\s]+))?(?=\))")
log = logging.getLogger(__name__)


def add_toctrees(text: str) -> str:
    """The index with a toctree for each of its tables, in their order."""
    found = re.findall(r"^(\w[^\n]*):\n\n((?:\|.*\n)+)", text, re.MULTILINE)
    for caption, table in found:
        pages = "\n".join(re.findall(r"^\| \[[^]]*\]\(((?!\.\./)[^)#]+)\.(?:md|rst)\)", table, re.MULTILINE))
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


def kept_as_written(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Makes indented lines behind an empty one code, which they are in a docstring; not those of a section."""
    found: list[str] = []
    indent = section = None
    for line in lines:
        here = len(line) - len(line.lstrip())
        if section is not None and line and here <= section:
            section = None
        if SECTION.match(line):
            section = here
        if indent is not None and line and here < indent:
            indent = None
        before = [row for row in found if row]
        if line and indent is None and section is None and found and not found[-1] and here > 0 and before:
            indent = here
            found += [" " * (here - 4) + ".. code-block:: none", ""]
        found.append(line)
    lines[:] = found


def setup(app: Sphinx) -> None:
    app.add_directive("header", Header)
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", kept_as_written, priority=100)
