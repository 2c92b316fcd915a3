"""Phrases that make a reader go back, counted in all that people read: pages, docstrings, comments, messages.

    python tests/words.py              the phrases of each kind of text, in 10,000 words, and how many are too many
    python tests/words.py FILE ...     each of them, with its line

Ends with 1 where pages, C or Python have more of a phrase than MOST in 10,000 words; tests and benchmarks are counted
alone.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST = 2.0  # in 10,000 words; the libraries whose style we follow have 0 to 1.6
PHRASES = {
    "what is": r"\bwhat (?:is|are|was|were|it|they|the|a|an|this|that|has|have|comes|came)\b",
    "those of": r"\bthose (?:of|that|which|who|whose|by|with)\b",
    "nobody": r"\b(?:nobody|whoever|whichever|oneself|somebody)\b",
    "or else": r"\b(?:or|and|else) else\b|(?:^|[.:;] )Else\b",
    "under way": r"\bunder way\b",
    "anew": r"\banew\b",
    "of one's own": r"\b(?:of|by) (?:one's|its|their|his) own\b|\bone's own\b",
    "of which": r"\b(?:of|by|in|to|for|with|from) (?:which|whom|it) (?:is|are|has|have|one|all|some|none|only|there)\b",
    "is none": r"\b(?:is|are|was) none\b",
    "there is": r"\b(?:that|which) there (?:is|are)\b|\bwhere there (?:is|are)\b",
}
C_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"', re.DOTALL)
CODE_BLOCK = re.compile(r"^( {4}|```.*?^```)[^\n]*$", re.DOTALL | re.MULTILINE)


def of_c(text: str) -> Iterator[tuple[int, str]]:
    """Comments and strings, with the lines where they begin."""
    for found in C_TEXT.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, found.group()


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """The same of Python."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def of_page(text: str) -> Iterator[tuple[int, str]]:
    """Lines of Markdown that are not code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith("    "):
            yield number, line


READERS = {".c": of_c, ".h": of_c, ".hpp": of_c, ".cpp": of_c, ".py": of_python, ".md": of_page}
COUNTED = "tests, bench"
KINDS = {
    "pages": ("README.md", "docs/*.md", "bench/*.md", "examples/*.md", "CONTRIBUTING.md"),
    "C": ("csrc/*",),
    "Python": ("hpcomm/*.py",),
    COUNTED: ("tests/*", "bench/*.py", "examples/*"),
}


def found_in(path: Path) -> tuple[int, list[tuple[int, str, str]]]:
    """The number of words of a file, and its phrases: line, name, the words around."""
    words, found = 0, []
    for line, text in READERS[path.suffix](path.read_text(encoding="utf-8")):
        flat = re.sub(r"[\s*/#]+", " ", text)
        words += len(flat.split())
        for name, phrase in PHRASES.items():
            for one in re.finditer(phrase, flat, re.IGNORECASE if name != "or else" else 0):
                found.append((line, name, flat[max(0, one.start() - 40) : one.end() + 40]))
    return words, found


def listed(patterns: tuple[str, ...]) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in names.stdout.split() if Path(name).suffix in READERS]


def main() -> int:
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            for line, phrase, around in found_in(Path(name))[1]:
                print(f"{name}:{line}: {phrase}: {around}")
        return 0
    too_many = 0
    for kind, patterns in KINDS.items():
        counts, words = dict.fromkeys(PHRASES, 0), 0
        for path in listed(patterns):
            more, found = found_in(path)
            words += more
            for _, phrase, _ in found:
                counts[phrase] += 1
        rates = {phrase: 1e4 * count / words for phrase, count in counts.items()}
        too_many += kind != COUNTED and sum(rate > MOST for rate in rates.values())
        print(f"{kind:13} {words:7} words  " + "  ".join(f"{phrase} {rate:.1f}" for phrase, rate in rates.items()))
    return int(too_many > 0)


if __name__ == "__main__":
    sys.exit(main())
