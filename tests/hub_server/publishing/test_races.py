"""Writers at the same time: one wins, nobody gets a 5xx, and nothing is torn."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.support.archives import make_wheel, wheel_name
from tests.support.uploads import post_upload

WRITERS = 8


def at_once(calls):
    """All calls in threads of their own, at the same time; their answers in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def published(hub, owner, name="demo-env"):
    """Every file of the index, and the bytes behind each."""
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    page = httpx.get(f"{hub.url}/{owner.slug}/{name}/simple/{name}/", headers=accept)
    found = {}
    for file in page.json()["files"]:
        found[file["filename"]] = (file["hashes"]["sha256"], httpx.get(page.url.join(file["url"])).content)
    return found


def test_other_bytes_under_one_name(hub):
    """Of eight writers one gets 200, the others the 400 that tools know, and the winner's bytes are there intact."""
    owner = hub.owner()
    wheels = [make_wheel(description=f"# Number {number}\n") for number in range(WRITERS)]
    answers = at_once([lambda data=data: post_upload(hub, owner.token, wheel_name(), data) for data in wheels])
    assert sorted(answer.status_code for answer in answers) == [200] + [400] * (WRITERS - 1)
    assert all(answer.text.startswith("File already exists") for answer in answers if answer.status_code == 400)
    winner = wheels[[answer.status_code for answer in answers].index(200)]
    assert published(hub, owner) == {wheel_name(): (hashlib.sha256(winner).hexdigest(), winner)}


def test_the_same_bytes_at_once(hub):
    """Eight writers of one wheel all get 200, and there is one file."""
    owner, wheel = hub.owner(), make_wheel()
    answers = at_once([lambda: post_upload(hub, owner.token, wheel_name(), wheel)] * WRITERS)
    assert [answer.status_code for answer in answers] == [200] * WRITERS
    assert sum("already published" not in answer.text for answer in answers) == 1
    assert published(hub, owner) == {wheel_name(): (hashlib.sha256(wheel).hexdigest(), wheel)}


def test_the_first_versions_of_a_project(hub):
    """Eight versions of a project that is not there make one project with all of them."""
    owner = hub.owner()
    versions = [f"0.{number}.0" for number in range(WRITERS)]
    send = [
        lambda version=version: post_upload(
            hub, owner.token, wheel_name(version=version), make_wheel(version=version)
        )
        for version in versions
    ]
    answers = at_once(send)
    assert [answer.status_code for answer in answers] == [200] * WRITERS, [answer.text for answer in answers]
    assert len(published(hub, owner)) == WRITERS


def test_the_first_owners_of_a_plain_name(hub):
    """Eight owners publish one name at once: one of them has it in the whole hub's index, all have their own."""
    owners = [hub.owner() for _ in range(WRITERS)]
    name = f"race-{owners[0].slug}"
    wheels = [make_wheel(name, description=f"# {owner.slug}\n") for owner in owners]
    pairs = list(zip(owners, wheels, strict=True))
    answers = at_once(
        [lambda who=who, data=data: post_upload(hub, who.token, wheel_name(name), data) for who, data in pairs]
    )
    assert [answer.status_code for answer in answers] == [200] * WRITERS, [answer.text for answer in answers]
    accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
    (plain,) = httpx.get(f"{hub.url}/simple/{name}/", headers=accept).json()["files"]
    assert plain["hashes"]["sha256"] in {hashlib.sha256(data).hexdigest() for data in wheels}
    for who, data in pairs:
        assert published(hub, who, name) == {wheel_name(name): (hashlib.sha256(data).hexdigest(), data)}


def test_sessions_opened_at_once(hub):
    """Of eight sessions for one version one is opened; the others are told where it is."""
    owner, wheel = hub.owner(), make_wheel()
    file = {"name": wheel_name(), "size": len(wheel), "sha256": hashlib.sha256(wheel).hexdigest()}
    headers = {"Authorization": f"Bearer {owner.token}"}
    place = f"{hub.url}/api/v1/{owner.slug}/demo-env/releases"
    body = {"version": "0.1.0", "files": [file]}
    opened = at_once([lambda: httpx.post(place, json=body, headers=headers, timeout=60)] * WRITERS)
    assert sorted(answer.status_code for answer in opened) == [201] + [409] * (WRITERS - 1)
    (session,) = {answer.headers["Location"] for answer in opened}
    sent = at_once(
        [lambda: httpx.put(f"{hub.url}{session}/{wheel_name()}", content=wheel, headers=headers, timeout=60)] * 3
    )
    assert {answer.status_code for answer in sent} <= {204, 409}  # the newest counts
    last = httpx.put(f"{hub.url}{session}/{wheel_name()}", content=wheel, headers=headers, timeout=60)
    assert last.status_code == 204, last.text
    done = at_once([lambda: httpx.post(f"{hub.url}{session}/publish", headers=headers, timeout=60)] * WRITERS)
    assert sorted(answer.status_code for answer in done) == [200] * (WRITERS - 1) + [201]
    assert published(hub, owner) == {wheel_name(): (file["sha256"], wheel)}
