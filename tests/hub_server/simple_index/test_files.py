"""Downloads on a live hub: whole, in part, conditional, by slow clients and by ones that leave."""

import hashlib
import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.archives import make_wheel, write_wheel
from tests.support.hub import running_hub
from tests.support.hub_rows import steady

LARGE = 24 << 20


def random_bytes(count):
    """Bytes that do not shrink, the same every time."""
    return hashlib.shake_256(b"large").digest(count)


@pytest.fixture
def address(rows):
    """The address of a wheel."""
    return rows.release(rows.owner().slug, rows.name(), "1.0")


def test_a_file_is_its_bytes_for_ever(http, address):
    """Digest, length, tag and caching; no encoding of the content; HEAD says the same."""
    answer = http.get(address, headers={"Accept-Encoding": "gzip"})
    digest = hashlib.sha256(answer.content).hexdigest()
    assert digest in address
    assert answer.headers["etag"] == f'"{digest}"'
    assert answer.headers["cache-control"] == "public, max-age=365000000, immutable"
    assert answer.headers["accept-ranges"] == "bytes"
    assert "content-encoding" not in answer.headers
    head = http.head(address)
    assert head.content == b""
    assert steady(head) == steady(answer)
    assert int(head.headers["content-length"]) == len(answer.content)


def test_the_sidecar_is_the_advertised_metadata(http, rows):
    """The bytes behind `.metadata` have the digest that the page tells; a source archive has none."""
    owner, name = rows.owner().slug, rows.name()
    rows.release(owner, name, "1.0", sdist=True)
    files = {file["filename"][-3:]: file for file in http.get(f"/{owner}/simple/{name}/").json()["files"]}
    sidecar = http.get(files["whl"]["url"] + ".metadata")
    assert hashlib.sha256(sidecar.content).hexdigest() == files["whl"]["core-metadata"]["sha256"]
    assert sidecar.text.startswith("Metadata-Version:")
    assert http.head(files["whl"]["url"] + ".metadata").headers["content-length"] == str(len(sidecar.content))
    assert http.get(files[".gz"]["url"] + ".metadata").status_code == 404


def test_only_the_very_address_is_a_file(http, rows, address):
    """Another digest, file name, project or owner is not there."""
    _, _, owner, name, digest, filename = address.split("/")
    rows.release(owner, other := rows.name(), "1.0")
    for wrong in (
        f"/files/{owner}/{name}/{'0' * 64}/{filename}",
        f"/files/{owner}/{name}/{digest}/other-{filename}",
        f"/files/{owner}/{other}/{digest}/{filename}",
        f"/files/{owner}/{name}/{digest.upper()}/{filename}",
    ):
        assert http.get(wrong).status_code == 404, wrong


@pytest.mark.parametrize(
    ("asked", "part"),
    [("0-0", slice(0, 1)), ("5-", slice(5, None)), ("-9", slice(-9, None)), ("2-6", slice(2, 7))],
)
def test_one_range_is_sent_in_part(http, address, asked, part):
    """206 with the bytes and where they are, as many as uv asks for."""
    whole = http.get(address).content
    answer = http.get(address, headers={"Range": f"bytes={asked}"})
    start, stop, _ = part.indices(len(whole))
    assert (answer.status_code, answer.content) == (206, whole[part])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(whole)}"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert http.head(address, headers={"Range": f"bytes={asked}"}).status_code == 206


def test_other_ranges_get_the_whole_or_416(http, address):
    """Several ranges, and a range of another version of the file, are answered with the file."""
    whole = http.get(address)
    for headers in ({"Range": "bytes=0-1,4-5"}, {"Range": "lines=1"}, {"Range": "bytes=0-1", "If-Range": '"other"'}):
        answer = http.get(address, headers=headers)
        assert (answer.status_code, answer.content) == (200, whole.content), headers
    matching = http.get(address, headers={"Range": "bytes=0-1", "If-Range": whole.headers["etag"]})
    assert matching.status_code == 206
    beyond = http.get(address, headers={"Range": f"bytes={len(whole.content)}-"})
    assert (beyond.status_code, beyond.content) == (416, b"")
    assert beyond.headers["content-range"] == f"bytes */{len(whole.content)}"


def test_a_known_file_is_304(http, address):
    """The tag is the digest, so a client that has the file gets nothing."""
    tag = http.get(address).headers["etag"]
    for known in (tag, f"W/{tag}", f'"a", {tag}', "*"):
        again = http.get(address, headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")


@pytest.fixture
def large(rows):
    """The address of a wheel that no socket buffer holds, and its bytes."""
    name = rows.name("large")
    wheel = make_wheel(name, "1.0", {"data.bin": random_bytes(LARGE)})
    return rows.release(rows.owner().slug, name, "1.0", wheel=wheel), wheel


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, LARGE), st.integers(0, LARGE))
def test_any_part_of_a_large_file(http, large, first, length):
    """What the kernel copies is what the file holds there."""
    address, wheel = large
    answer = http.get(address, headers={"Range": f"bytes={first}-{first + length}"})
    assert answer.content == wheel[first : first + length + 1]


def ask(hub, address):
    """A connection that has asked for a file and read nothing."""
    parts = urlsplit(hub.url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=60)
    connection.sendall(f"GET {address} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return connection


def read_all(connection, size):
    """The body of an answer."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    body = bytearray(got.partition(b"\r\n\r\n")[2])
    while len(body) < size and (part := connection.recv(1 << 20)):
        body += part
    return bytes(body)


def test_clients_that_do_not_read_hold_nobody_up(hub, http, large):
    """More of them than there are threads that copy: others are served meanwhile, and they get all in the end."""
    address, wheel = large
    idle = [ask(hub, address) for _ in range(12)]
    try:
        assert http.get(address).content == wheel
        for connection in idle:
            assert read_all(connection, len(wheel)) == wheel
    finally:
        for connection in idle:
            connection.close()


def test_a_client_that_leaves_harms_nobody(hub, http, large):
    """A download that is broken off ends; the hub goes on, and says nothing of an error."""
    address, wheel = large
    for _ in range(5):
        with ask(hub, address) as connection:
            connection.recv(1000)
    assert http.get(address).content == wheel
    assert not [line for line in hub.log if "Traceback" in line or "Exception" in line]


def test_requests_sent_together_are_answered_in_order(hub, large, address):
    """A second request that is there before the first answer is out gets its own bytes after it."""
    url, wheel = large
    parts = urlsplit(hub.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        for one in (url, address):
            connection.sendall(f"GET {one} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        body = read_all(connection, len(wheel))
        rest = body[len(wheel) :]
        while b"\r\n\r\n" not in rest:
            rest += connection.recv(65536)
    assert body[: len(wheel)] == wheel
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")
    assert address.split("/")[4].encode() in rest  # the tag


@pytest.mark.slow
def test_an_object_store_gives_the_same(tmp_path, bucket, publishers):
    """Addresses without query or host, whole and in part, and a blob that is missing is said so."""
    with running_hub(tmp_path / "data", storage=bucket) as hub, httpx.Client(base_url=hub.url) as http:
        owner = hub.owner()
        wheel = write_wheel(tmp_path, "stored-env", "1.0", {"stored_env_data/data.bin": random_bytes(3 << 20)})
        assert publishers.uv_publish(hub.url, owner.token, wheel).code == 0
        page = http.get("/simple/stored-env/", params={"format": "application/vnd.pypi.simple.v1+json"}).json()
        (file,) = page["files"]
        assert file["url"] == f"/files/{owner.slug}/stored-env/{file['hashes']['sha256']}/{wheel.name}"
        content = wheel.read_bytes()
        whole = http.get(file["url"])
        assert whole.content == content
        assert int(whole.headers["content-length"]) == len(content)
        part = http.get(file["url"], headers={"Range": "bytes=1000000-2999999"})
        assert (part.status_code, part.content) == (206, content[1_000_000:3_000_000])
        sidecar = http.get(file["url"] + ".metadata")
        assert hashlib.sha256(sidecar.content).hexdigest() == file["core-metadata"]["sha256"]
        assert http.head(file["url"]).headers["content-length"] == str(len(content))


def test_missing_bytes_are_said_so(http, rows, address):
    """503 with the command for the operator, not half an answer; the next one is right if they come back."""
    digest = address.split("/")[4]
    path = rows.storage.local_path(digest)
    path.rename(aside := path.with_suffix(".aside"))
    answer = http.get(address)
    assert (answer.status_code, answer.json()["code"]) == (503, "blob-missing")
    assert "hub fsck" in answer.json()["hint"]
    aside.rename(path)
    assert http.get(address).status_code == 200


def test_the_log_counts_what_a_download_sent(hub, http, address):
    """Also the bytes that pass by Python: the line of the request has their number and the form of the address."""
    size = len(http.get(address).content)
    ends = time.monotonic() + 30
    while not (lines := [line for line in hub.log if address in line]) and time.monotonic() < ends:
        time.sleep(0.02)
    line = json.loads(lines[0])
    assert (line["route"], line["sent"]) == ("/files/{owner}/{name}/{sha256}/{filename}", size)
