"""A small stand-in for the Hugging Face Hub on this machine: repositories from folders, as its HTTP interface shows them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Serves repositories.

    Args:
        models: folders by id.
        datasets: likewise.

    Attributes:
        asked: method and path of every request.
        cut_after: a body is broken off after so many bytes; None for never.
    """

    def __init__(self, models: dict[str, Path], datasets: dict[str, Path]) -> None:
        self.repos = {"models": models, "datasets": datasets}
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.cut_after: int | None = None
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        self.asked.append(f"{request.command} {path}")
        for kind, repos in self.repos.items():
            for name, folder in repos.items():
                files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
                if re.fullmatch(rf"/api/{kind}/{name}(/revision/[^/]+)?", path):
                    siblings = [{"rfilename": f, "size": p.stat().st_size} for f, p in files.items()]
                    return self._json(request, {"id": name, "sha": SHA, "siblings": siblings}, body)
                if re.fullmatch(rf"/api/{kind}/{name}/tree/[^/]+/?", path):
                    tree = [
                        {"type": "file", "path": f, "size": p.stat().st_size, "oid": _oid(p)}
                        for f, p in files.items()
                    ]
                    return self._json(request, tree, body)
                prefix = "/datasets" if kind == "datasets" else ""
                found = re.fullmatch(rf"{prefix}/{name}/resolve/[^/]+/(.+)", path)
                if found and found[1] in files:
                    return self._file(request, files[found[1]], body)
        self._json(request, {"error": "Repository not found"}, body, 404, {"X-Error-Code": "RepoNotFound"})
        return None

    def _json(
        self,
        request: BaseHTTPRequestHandler,
        document: object,
        body: bool,
        code: int = 200,
        headers: dict | None = None,
    ) -> None:
        data = json.dumps(document).encode()
        request.send_response(code)
        for key, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            request.wfile.write(data)

    def _file(self, request: BaseHTTPRequestHandler, path: Path, body: bool) -> None:
        data = path.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        begin = int(wanted[1]) if wanted else 0
        if wanted:
            self.ranges.append(request.headers["Range"])
        request.send_response(206 if wanted else 200)
        request.send_header("X-Repo-Commit", SHA)
        request.send_header("ETag", f'"{_oid(path)}"')
        request.send_header("Accept-Ranges", "bytes")
        request.send_header("Content-Length", str(len(data) - begin))
        if wanted:
            request.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        request.end_headers()
        if not body:
            return
        part = data[begin:]
        if self.cut_after is not None and len(part) > self.cut_after:
            request.wfile.write(part[: self.cut_after])
            request.wfile.flush()
            request.close_connection = True
            request.connection.close()
            return
        request.wfile.write(part)


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
