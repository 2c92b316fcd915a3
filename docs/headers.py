"""The directive header of the documentation: the reference of a C or C++ header, from its comments and declarations.

    .. header:: hpcomm.h

libclang finds the declarations. The comment above a declaration, or behind it on its line, becomes its text; functions
that follow each other without a comment or an empty line between share one. A comment with dashes, as /* ---- window
---- */, becomes a heading. A comment that belongs to no declaration is left out, except the first of the file.
"""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from clang.cindex import AccessSpecifier, Cursor, CursorKind, Index
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

INCLUDE = Path(__file__).resolve().parents[1] / "csrc/include"
C, CXX = ("-std=c11",), ("-std=c++17", "-xc++")
KINDS = {
    CursorKind.STRUCT_DECL: "struct",
    CursorKind.CLASS_DECL: "class",
    CursorKind.CLASS_TEMPLATE: "class",
    CursorKind.ENUM_DECL: "enum",
    CursorKind.ENUM_CONSTANT_DECL: "enumerator",
    CursorKind.FIELD_DECL: "member",
    CursorKind.VAR_DECL: "member",
    CursorKind.TYPEDEF_DECL: "type",
    CursorKind.TYPE_ALIAS_DECL: "type",
    CursorKind.FUNCTION_DECL: "function",
    CursorKind.FUNCTION_TEMPLATE: "function",
    CursorKind.CXX_METHOD: "function",
    CursorKind.CONSTRUCTOR: "function",
    CursorKind.CONVERSION_FUNCTION: "function",
}
ROLES = {kind: kind for kind in KINDS.values()} | {"function": "func"}
SCOPES = (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL, CursorKind.NAMESPACE)
HEADING = re.compile(r"-{4,} (.*?) -{4,}")
PREFIXES = re.compile(r"^(HPC_API|static|inline(?! constexpr)|typedef) ")


# ---- text ------------------------------------------------------------------------------------------------------------


def escaped(line: str) -> str:
    """Plain text as reStructuredText; names of C in it become links."""
    line = re.sub(r"([\\*`|]|_(?!\w))", r"\\\1", line)
    names = c_names()
    return re.sub(
        r"(?<!\w)(hpc_\w*\w|HPC_\w*\w)(\(\))?",
        lambda found: f":c:{ROLES[names[found[1]]]}:`{found[1]}`\\ " if found[1] in names else found[0],
        line,
    )


def prose(comment: str) -> Iterator[str]:
    """The lines of a comment as reStructuredText: those that are indented are kept as they are."""
    literal = False
    for line in comment.splitlines():
        indented = line.startswith("  ")
        if indented and not literal:
            yield from ("", ".. code-block:: none", "")
        elif literal and not indented and line:
            yield ""
        literal = indented or (literal and not line)
        yield "   " + line if indented else escaped(line)


def bare(comment: str) -> str:
    """The text of comments, without their signs."""
    rows = (re.sub(r"\s*\*/$", "", row) for row in comment.splitlines())
    return "\n".join(re.sub(r"^\s*(/\*|\*|//)( |$)", "", row) for row in rows)


# ---- declarations ----------------------------------------------------------------------------------------------------


@cache
def parsed(start: str) -> Cursor:
    ours = subprocess.run(["cc", "-print-file-name=include"], capture_output=True, text=True, check=True).stdout.strip()
    flags = [*(CXX if start.endswith(".hpp") else C), f"-I{INCLUDE}", "-isystem", ours]
    keep_going = 0x200  # past <mpi.h>, which may be missing
    return Index.create().parse(str(INCLUDE / "hpcomm" / start), flags, options=keep_going).cursor


def top_level(name: str) -> list[Cursor]:
    """The declarations of a header. Most are read through the one that includes them all."""
    whole = "hpcomm.hpp" if name.endswith(".hpp") else name if name == "hpcomm_mpi.h" else "hpcomm.h"
    return list(declared(parsed(whole), INCLUDE / "hpcomm" / name))


@cache
def c_names() -> dict[str, str]:
    """The kind of each name of C."""
    return {
        each.spelling: KINDS[each.kind]
        for path in sorted((INCLUDE / "hpcomm").glob("*.h"))
        for top in top_level(path.name)
        for each in (top, *(top.get_children() if top.kind == CursorKind.ENUM_DECL else ()))
    }


def declared(scope: Cursor, path: Path) -> Iterator[Cursor]:
    """The declarations of a file, in its order; a typedef of a struct that has just been declared is none."""
    ends = 0
    for cursor in scope.get_children():
        if cursor.location.file is None or Path(cursor.location.file.name).resolve() != path:
            continue
        if cursor.kind in SCOPES:
            yield from declared(cursor, path)
        elif (
            cursor.kind in KINDS
            and cursor.extent.start.offset >= ends
            and cursor.semantic_parent.spelling != "std"
            and not is_forward(cursor)
        ):
            ends = cursor.extent.end.offset
            yield cursor


def is_forward(cursor: Cursor) -> bool:
    """Whether it only announces what another header, or a later line, declares."""
    if cursor.kind == CursorKind.TYPEDEF_DECL:
        found = cursor.underlying_typedef_type.get_declaration()
        return found.spelling == cursor.spelling and found.get_definition() is not None
    return cursor.kind in (CursorKind.STRUCT_DECL, CursorKind.CLASS_DECL) and not cursor.is_definition()


class Reference:
    """The lines of reStructuredText of one header."""

    def __init__(self, name: str) -> None:
        self.path = INCLUDE / "hpcomm" / name
        self.text = self.path.read_bytes()
        self.rows = self.text.decode().splitlines()
        self.domain = "cpp" if name.endswith(".hpp") else "c"
        self.name = name

    def lines(self) -> Iterator[str]:
        first = re.match(r"(?:/\* clang-format off \*/\n)?(/\*[\s\S]*?\*/|(?://.*\n)+)", self.text.decode())
        assert first, f"{self.path} does not begin with a comment"
        yield from prose(re.sub(r"^[\w.]+ - (\w)(?!\w*\.h)", lambda found: found[1].upper(), bare(first[1])))
        if self.domain == "cpp":
            yield from ("", ".. cpp:namespace:: hpcomm", "")
        shown = 0
        for group in self.groups(top_level(self.name)):
            start = group[0].extent.start.line
            for row in self.rows[shown : start - 1]:
                if heading := HEADING.search(row):
                    yield from ("", heading[1].capitalize(), "-" * len(heading[1]), "")
            shown = start
            yield from self.described(group)

    def groups(self, cursors: list[Cursor]) -> Iterator[list[Cursor]]:
        """Functions side by side without comments between them share the comment above the first one."""
        group: list[Cursor] = []
        for cursor in cursors:
            shares = (
                group
                and KINDS[cursor.kind] == KINDS[group[-1].kind] == "function"
                and cursor.extent.start.line == group[-1].extent.end.line + 1
                and not self.behind(group[-1])
                and not self.behind(cursor)
            )
            if group and not shares:
                yield group
                group = []
            group.append(cursor)
        if group:
            yield group

    def described(self, group: list[Cursor], indent: str = "") -> Iterator[str]:
        cursor = group[0]
        hidden = (AccessSpecifier.PRIVATE, AccessSpecifier.PROTECTED)
        members = [each for each in cursor.get_children() if each.kind in KINDS and each.access_specifier not in hidden]
        if cursor.kind == CursorKind.ENUM_DECL and cursor.is_anonymous():
            yield from ("", *(indent + line for line in prose(self.above(cursor))))
            for each in self.groups(members):
                yield from self.described(each, indent)
            return
        head = f"{indent}.. {self.domain}:{KINDS[cursor.kind]}:: "
        yield ""
        for each in group:
            yield head + self.signature(each)
            head = " " * len(head)
        indent += "   "
        for comment in (self.above(cursor), " ".join(self.behind(cursor).split())):
            yield ""
            yield from (indent + line for line in prose(comment))
        if KINDS[cursor.kind] in ("struct", "class", "enum"):
            for each in self.groups(members):
                yield from self.described(each, indent)

    # ---- source ------------------------------------------------------------------------------------------------------

    def signature(self, cursor: Cursor) -> str:
        kind, name = KINDS[cursor.kind], cursor.spelling
        if kind in ("struct", "enum", "class") and self.domain == "c":
            return name
        start, end = cursor.extent.start.offset, cursor.extent.end.offset
        body = [child.extent.start.offset for child in cursor.get_children() if child.kind == CursorKind.COMPOUND_STMT]
        text = self.text[start : min([end, *body])].decode()
        if kind in ("struct", "class"):
            text = re.sub(r"\b(struct|class) (?=\w+(<.*>)?\s*(:|$))", "", text.partition("{")[0].strip())
        if kind == "function" and name.partition("<")[0] == cursor.semantic_parent.spelling:  # a constructor
            ends = [child.extent.end.offset for child in cursor.get_children() if child.kind == CursorKind.PARM_DECL]
            text = text[: text.index(")", ends[-1] - start if ends else 0) + 1]
        text = " ".join(re.sub(r"/\*.*?\*/|//.*", "", text, flags=re.DOTALL).split())
        while text != (text := PREFIXES.sub("", text)):
            pass
        if kind == "member" and "," in re.sub(r"<.*?>|\(.*?\)", "", text):
            return f"{cursor.type.spelling} {name}"  # of several in one declaration
        return re.sub(r"^using |^struct (\w+) (?=\1$)", "", text.rstrip(" ;"))

    def above(self, cursor: Cursor) -> str:
        """The comment that ends in the line before a declaration."""
        last = first = cursor.extent.start.line - 1
        while first and re.match(r"\s*(//|/\*|\*|\*/)", self.rows[first - 1]):
            first -= 1
        return "" if any(map(HEADING.search, self.rows[first:last])) else bare("\n".join(self.rows[first:last]))

    def behind(self, cursor: Cursor) -> str:
        """The comment behind a declaration, in its line and those that follow."""
        rest = self.text[cursor.extent.end.offset :].decode()
        found = re.match(r"[;,]?[ \t]*(/\*[\s\S]*?\*/|//.*)", rest)
        return bare(found[1]) if found else ""


class Header(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.env.note_dependency(str(INCLUDE / "hpcomm" / name))
        text = "\n".join(Reference(name).lines())
        return self.parse_text_to_nodes(text, allow_section_headings=True)
