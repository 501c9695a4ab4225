import datetime as dt
import hashlib
import http.server
import threading

import pytest

from verifiers.errors import HubDigestError, HubNotFoundError, HubUnavailableError
from verifiers.hub.client import HubClient
from verifiers.hub.fetch import cached_path, fetch, fetch_all
from verifiers.hub.schema import FileInfo

CONTENT = b"the bytes of a wheel" * 1000


class Server:
    """A server that sends `content` under every path, and notes who asked."""

    def __init__(self):
        self.content, self.status, self.logins, self.location = CONTENT, 200, [], None
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.logins.append(self.headers.get("Authorization"))
                moved = server.location is not None
                self.send_response(302 if moved else server.status)
                if moved:
                    self.send_header("Location", server.location)
                self.send_header("Content-Length", "0" if moved else str(len(server.content)))
                self.end_headers()
                self.wfile.write(b"" if moved else server.content)

            def log_message(self, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server():
    with Server() as running:
        yield running


@pytest.fixture
def hub(server):
    with HubClient(server.url, "secret") as client:
        yield client


def info(url, content=CONTENT, filename="demo-1.0-py3-none-any.whl", size=None):
    digest = hashlib.sha256(content).hexdigest()
    return FileInfo(
        filename=filename, kind="wheel", url=f"{url}/files/a/demo/{digest}/{filename}",
        size=len(content) if size is None else size, sha256=digest, uploaded_at=dt.datetime.now(dt.UTC),
    )  # fmt: skip


def test_a_file_is_fetched_once(hub, server, tmp_path):
    """It lies under its digest, and the second call asks nobody."""
    first = fetch(hub, info(server.url), tmp_path)
    assert first.read_bytes() == CONTENT
    assert fetch(hub, info(server.url), tmp_path) == first == cached_path(info("").sha256, first.name, tmp_path)
    assert server.logins == ["Bearer secret"]


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x", b""])
def test_other_bytes_than_promised_are_refused_and_not_kept(hub, server, tmp_path, content):
    """Shorter, longer, or with one byte changed."""
    server.content = content
    with pytest.raises(HubDigestError, match="is not what 127"):
        fetch(hub, info(server.url), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_damaged_file_of_the_cache_is_fetched_again(hub, server, tmp_path):
    """The cache is no better than what is in it."""
    path = fetch(hub, info(server.url), tmp_path)
    path.write_bytes(b"something else")
    assert fetch(hub, info(server.url), tmp_path).read_bytes() == CONTENT
    assert len(server.logins) == 2


def test_the_token_goes_to_the_hub_only(hub, server, tmp_path):
    """Neither a file's own address nor a redirect takes it to another server."""
    with Server() as store:
        fetch(hub, info(store.url), tmp_path / "one")
        server.location = f"{store.url}/elsewhere"
        fetch(hub, info(server.url), tmp_path / "two")
        assert store.logins == [None, None]
    assert server.logins == ["Bearer secret"]


def test_what_the_hub_answers_is_told(hub, server, tmp_path):
    """A missing file and a server that is gone are errors of their own."""
    promised = info(server.url)
    server.status, server.content = 404, b'{"code": "not-found", "message": "there is no such file"}'
    with pytest.raises(HubNotFoundError, match="no such file"):
        fetch(hub, promised, tmp_path)
    with pytest.raises(HubUnavailableError), HubClient("http://127.0.0.1:9", "") as gone:
        fetch(gone, info("http://127.0.0.1:9"), tmp_path)


@pytest.mark.parametrize("filename", ["../x.whl", "a/b.whl", ".hidden", "a\\b.whl"])
def test_a_name_that_is_no_file_name_is_refused(filename, tmp_path):
    """The hub does not choose where files are written."""
    with pytest.raises(HubDigestError, match="no file name"):
        cached_path("0" * 64, filename, tmp_path)
    with pytest.raises(HubDigestError, match="as the sha256"):
        cached_path("../" + "0" * 61, "x.whl", tmp_path)


def test_several_come_in_their_order(hub, server, tmp_path):
    """A few at a time, and the list is that of the files."""
    files = [info(server.url, filename=f"demo{n}-1.0-py3-none-any.whl") for n in range(6)]
    assert [path.name for path in fetch_all(hub, files, tmp_path)] == [file.filename for file in files]
