"""A hub on this machine: the part of its HTTP interface that reading a dataset and a tokenizer needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """Serves the repositories below ``root``: datasets/<owner>/<name> and models/<owner>/<name>, one commit of each.

    requests: every request so far, such as ``GET /api/datasets/o/d/revision/main``.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @staticmethod
    def commit(repository: str) -> str:
        return hashlib.sha1(repository.encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet: the second would wait for the first one's receipt

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) >= 6:
            self._answer_api(*parts[1:4], parts[4], parts[5], "/".join(parts[6:]), body)
        elif "resolve" in parts:
            kind = parts.pop(0) if parts[0] == "datasets" else "models"
            owner, name, _, revision, *file = parts
            self._send_file(kind, owner, name, revision, "/".join(file))
        else:
            self._send_json({})

    def _answer_api(self, kind: str, owner: str, name: str, what: str, revision: str, below: str, body: bytes) -> None:
        folder = self._folder(kind, owner, name, revision)
        if folder is None:
            return
        if what == "revision":
            self._send_json({"id": f"{owner}/{name}", "sha": Hub.commit(f"{owner}/{name}"), "siblings": []})
        elif what == "tree":
            self._send_json([self._entry(folder, path) for path in sorted((folder / below).rglob("*"))])
        elif what == "paths-info":
            wanted = json.loads(body)["paths"]
            self._send_json([self._entry(folder, folder / path) for path in wanted if (folder / path).exists()])
        else:
            self._send_error("EntryNotFound")

    def _folder(self, kind: str, owner: str, name: str, revision: str) -> Path | None:
        """The folder of a repository; None where it or its revision is not there, which is then answered."""
        folder = self.server.root / kind / owner / name
        if not folder.is_dir():
            self._send_error("RepoNotFound")
        elif revision not in ("main", Hub.commit(f"{owner}/{name}")):
            self._send_error("RevisionNotFound")
        else:
            return folder
        return None

    @staticmethod
    def _entry(folder: Path, path: Path) -> dict[str, Any]:
        name = path.relative_to(folder).as_posix()
        kind = "directory" if path.is_dir() else "file"
        return {"type": kind, "path": name, "size": path.stat().st_size, "oid": hashlib.sha1(name.encode()).hexdigest()}

    def _send_file(self, kind: str, owner: str, name: str, revision: str, file: str) -> None:
        folder = self._folder(kind, owner, name, revision)
        if folder is None:
            return
        if not (folder / file).is_file():
            self._send_error("EntryNotFound")
            return
        content = (folder / file).read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": Hub.commit(f"{owner}/{name}")}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, content, headers)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(content)) + 1, len(content))
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        self._send(206, content[begin:end], headers)

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send_error(self, code: str) -> None:
        self._send(404, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Accept-Ranges": "bytes", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    """A hub that answers while the context lasts."""
    with Hub(root) as hub:
        thread = Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()
