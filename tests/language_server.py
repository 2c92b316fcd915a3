"""What a language server offers an editor, by LSP over its pipes."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class LanguageServer:
    """Of the project. It ends with the with block."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
        )
        self._asked = self._opened = 0

    def __enter__(self) -> "LanguageServer":
        root = ROOT.as_uri()
        folders = [{"uri": root, "name": ROOT.name}]
        self._ask("initialize", processId=None, rootUri=root, workspaceFolders=folders, capabilities={})
        self._send(method="initialized", params={})
        return self

    def __exit__(self, *_wrong: object) -> None:
        self._process.kill()
        self._process.communicate()

    def completions(self, text: str) -> set[str]:
        """What it offers at the end of the text of a module."""
        self._opened += 1
        document = {"uri": f"{ROOT.as_uri()}/tests/asked_{self._opened}.py"}  # which exists nowhere
        opened = {**document, "languageId": "python", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": opened})
        lines = text.split("\n")
        place = {"line": len(lines) - 1, "character": len(lines[-1])}
        found = self._ask("textDocument/completion", textDocument=document, position=place)
        return {item["label"] for item in (found["items"] if isinstance(found, dict) else found or [])}

    def _ask(self, method: str, **params: Any) -> Any:
        self._asked += 1
        self._send(id=self._asked, method=method, params=params)
        while True:
            told = self._receive()
            if "method" not in told and told.get("id") == self._asked:
                return told["result"]
            if "method" in told and "id" in told:
                self._send(id=told["id"], result=None)

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        length = 0
        assert self._process.stdout is not None
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length > 0, "the language server has ended"
        told: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return told
