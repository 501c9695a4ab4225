"""What is published and looked after through the hub's routes is found, resolved and read at once."""

import pytest

from tests.support.publish import publish
from verifiers.errors import HubRefusedError
from verifiers.hub.schema import ProjectInfo, ReleaseInfo, ResolveAnswer, ResolveRequest, SearchAnswer


def found(client, text):
    return [hit.id for hit in client.get("/api/v1/search", SearchAnswer, q=text).hits]


def resolved(client, *requirements, **more):
    answer = client.post("/api/v1/resolve", ResolveRequest(requirements=list(requirements), **more), ResolveAnswer)
    return [release.id for release in answer.releases], answer


def test_a_published_release_is_found_resolved_and_shown(hub):
    """With its words, its file, its facts; a second version takes over."""
    owner = hub.owner()
    name = "quiz-of-rivers"
    with hub.client(owner.token) as client:
        headers = {"Summary": "Asks for tributaries", "Keywords": "geography,waters"}
        files = publish(client, owner.slug, name, "0.1.0", headers=headers)
        for text in (f"{owner.slug} quiz", f"{owner.slug} tribut", f"{owner.slug} waters"):
            assert found(client, text) == [f"{owner.slug}/{name}"]
        ids, answer = resolved(client, f"{owner.slug}/{name}")
        assert ids == [f"{owner.slug}/{name}@0.1.0"]
        (file,) = answer.releases[0].files
        assert client.request("GET", file.url).content == files[file.filename]
        publish(client, owner.slug, name, "0.2.0", headers={"Summary": "Asks for mouths"})
        assert found(client, f"{owner.slug} tribut") == []
        assert found(client, f"{owner.slug} mouths") == [f"{owner.slug}/{name}"]
        shown = client.get(f"/api/v1/{owner.slug}/{name}/0.2.0", ReleaseInfo)
        assert shown.facts["import_names"] == ["quiz_of_rivers"]
        assert resolved(client, f"{owner.slug}/{name}", serial=answer.serial)[1] == answer


def test_a_yank_through_the_hub_is_seen_everywhere_and_can_be_taken_back(hub):
    """Latest, search and resolution pass the release over, a pin gets it marked, the past keeps it."""
    owner = hub.owner()
    project = f"{owner.slug}/capitals"
    with hub.client(owner.token) as client:
        publish(client, owner.slug, "capitals", "1.0", headers={"Summary": "Old capitals"})
        publish(client, owner.slug, "capitals", "1.1", headers={"Summary": "Young capitals"})
        before = resolved(client, project)[1].serial
        reason = {"reason": "counts twice", "cause": "broken-reward"}
        client.request("POST", f"/api/v1/{project}/1.1/yank", json=reason)
        assert client.get(f"/api/v1/{project}", ProjectInfo).latest == "1.0"
        assert found(client, f"{owner.slug} young") == []
        assert resolved(client, project)[0] == [f"{project}@1.0"]
        ids, answer = resolved(client, f"{project}@1.1")
        assert (ids, answer.releases[0].yanked.cause) == ([f"{project}@1.1"], "broken-reward")
        assert resolved(client, project, serial=before)[0] == [f"{project}@1.1"]
        with pytest.raises(HubRefusedError, match="is yanked"):
            resolved(client, f"{project}>1.0")
        client.request("DELETE", f"/api/v1/{project}/1.1/yank")
        assert resolved(client, project)[0] == [f"{project}@1.1"]
        assert found(client, f"{owner.slug} young") == [project]


def test_declared_hub_dependencies_come_with_the_answer(hub):
    """From `[tool.verifiers.hub]` of the source archive; the answer says who needs them."""
    owner = hub.owner()
    declared = f'\n[tool.verifiers.hub]\ndependencies = ["{owner.slug}/rivers-base>=1"]\n'
    with hub.client(owner.token) as client:
        for version in ("0.9", "1.0", "1.2"):
            publish(client, owner.slug, "rivers-base", version)
        wheel = {"headers": {"Requires-Dist": ["verifiers>=0.1", "rivers-base>=1"]}}
        _publish_pair(client, owner.slug, "rivers-quiz", "0.1", declared, wheel)
        ids, answer = resolved(client, f"{owner.slug}/rivers-quiz")
        assert ids == [f"{owner.slug}/rivers-base@1.2", f"{owner.slug}/rivers-quiz@0.1"]
        assert answer.releases[0].required_by == [f"{owner.slug}/rivers-quiz@0.1"]
        assert resolved(client, f"{owner.slug}/rivers-quiz", f"{owner.slug}/rivers-base<1.2")[0][0].endswith("@1.0")
        with pytest.raises(HubRefusedError, match=r"rivers-quiz@0\.1 needs .*rivers-base>=1, which excludes .*@0\.9"):
            resolved(client, f"{owner.slug}/rivers-quiz", f"{owner.slug}/rivers-base<1")


def _publish_pair(client, owner, name, version, tool, content):
    """A wheel and a source archive whose pyproject.toml says more."""
    import hashlib

    from tests.support.archives import make_sdist, make_wheel, sdist_name, wheel_name

    files = {
        wheel_name(name, version): make_wheel(name, version, **content),
        sdist_name(name, version): make_sdist(name, version, tool=tool, **content),
    }
    listed = [
        {"name": key, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for key, data in files.items()
    ]
    root = f"/api/v1/{owner}/{name}/releases"
    session = client.request("POST", root, json={"version": version, "files": listed}).json()["id"]
    for key, data in files.items():
        client.request("PUT", f"{root}/{session}/{key}", content=data)
    client.request("POST", f"{root}/{session}/publish")
