"""The pages of a live hub: what they show, to whom, and that nothing in them runs or loads."""

import itertools
import re
from html.parser import HTMLParser
from importlib.resources import files

import httpx
import pytest

from tests.hub_server.pages.test_readme import EVIL
from tests.support.archives import make_wheel, wheel_name
from tests.support.stored import stored

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """A page with its tags, which must be nested and closed."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.answer = answer
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(answer.text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def links(self) -> list[str]:
        return [str(one["href"]) for one in self.all("a") if "href" in one]

    def twin(self) -> str | None:
        return next((one["href"] for one in self.all("link") if one["rel"] == "alternate"), None)


def get(hub, path, token=None, status=200) -> Page:
    auth = ("__token__", token) if token else None
    answer = httpx.get(f"{hub.url}{path}", auth=auth)
    assert answer.status_code == status, answer.text
    return Page(answer)


def publish(hub, owner, name="demo-env", version="0.1.0", **content) -> None:
    """Upload a wheel as an installer does."""
    form = {":action": "file_upload", "protocol_version": "1", "metadata_version": "2.4", "filetype": "bdist_wheel"}
    form |= {"name": name, "version": version, "pyversion": "py3"}
    sent = {"content": (wheel_name(name, version), make_wheel(name, version, **content))}
    answer = httpx.post(f"{hub.url}/legacy/", data=form, files=sent, auth=("__token__", owner.token), timeout=60)
    assert answer.status_code == 200, answer.text


@pytest.fixture
def store(hub):
    with stored(hub) as store:
        yield store


def check_form(page: Page) -> None:
    """What holds for every page: headers, no script or style in it, and what a screen reader needs."""
    headers = page.answer.headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src" not in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["content-type"] == "text/html; charset=utf-8"
    assert not {"script", "style", "iframe", "object", "embed", "img", "base"} & {name for name, _ in page.tags}
    for _, attributes in page.tags:
        assert not [key for key in attributes if key == "style" or key.startswith("on")]
    assert page.all("html") == [{"lang": "en"}] and len(page.all("title")) == len(page.all("main")) == 1
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    referred = [one for _, attributes in page.tags for one in (attributes.get("aria-labelledby") or "").split()]
    assert {*referred, *(label["for"] for label in page.all("label"))} <= set(ids)
    labelled = {label["for"] for label in page.all("label")}
    assert {field.get("id") for field in page.all("input") + page.all("select")} <= labelled
    levels = [int(name[1]) for name, _ in page.tags if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_a_project_is_shown(hub):
    """How to install it in the safe order, its README, facts, dependencies, files with digests, versions."""
    owner = hub.owner()
    headers = {"Summary": "Adds <numbers>", "License-Expression": "MIT", "Requires-Dist": ["numpy>=2", "verifiers"]}
    publish(hub, owner, headers=headers, description="# Hello\n\nA [link](https://example.org).\n")
    page = get(hub, f"/{owner.slug}/demo-env")
    check_form(page)
    id, index = f"{owner.slug}/demo-env@0.1.0", f"{hub.url}/{owner.slug}/demo-env/simple/"
    order = [
        f"hub install {id} --hub-url {hub.url}", f"uv pip install demo-env==0.1.0 --index {index}",
        f'[[tool.uv.index]] name = "{owner.slug}-demo-env" url = "{index}"',
        f"hub lock {id} --hub-url {hub.url} pip install -r pylock.toml",
    ]  # fmt: skip
    places = [page.text.index(line) for line in order]
    assert places == sorted(places)
    assert "extra-index-url" not in page.text and "explicit = true" not in page.text
    assert "Adds <numbers>" in page.text and "MIT" in page.text and "numpy>=2" in page.text
    assert {"href": "https://example.org", "rel": "nofollow ugc noopener"} in page.all("a")
    twin = httpx.get(f"{hub.url}{page.twin()}").json()
    assert (twin["owner"], twin["latest"]) == (owner.slug, "0.1.0")
    release = get(hub, f"/{owner.slug}/demo-env/0.1.0")
    check_form(release)
    file = httpx.get(f"{hub.url}{release.twin()}").json()["files"][0]
    assert file["sha256"] in release.text and file["url"] in release.links()
    assert httpx.get(file["url"]).status_code == 200


def test_a_hostile_readme_is_harmless(sqlite_hub):
    """A published README that wants to run, load, cover and send does none of it; test_readme.py has each alone."""
    owner = sqlite_hub.owner()
    publish(sqlite_hub, owner, description="\n\n".join(EVIL.values()) + "\n")
    page = get(sqlite_hub, f"/{owner.slug}/demo-env")
    check_form(page)
    assert "alert(1)" in page.text and "verified" in page.text


def test_what_authors_write_is_text(sqlite_hub, store_of_sqlite):
    """Markup in a summary, a license, a dependency, a yank reason or a status reason is shown, not obeyed."""
    me = sqlite_hub.owner().slug
    evil = "<script>alert(1)</script><b onclick=alert(1)>"
    facts = {"license": evil, "author": evil, "keywords": [evil], "needs": {"secrets": [evil]}}
    store_of_sqlite.release(f"{me}/e", summary=evil, requires_dist=[evil], facts=facts)
    store_of_sqlite.release(f"{me}/e", "0.9")
    store_of_sqlite.yank(f"{me}/e", "0.9", evil)
    store_of_sqlite.change(f"{me}/e", status="deprecated", status_reason=evil)
    for path in (f"/{me}/e", f"/{me}/e/1.0", f"/{me}/e/0.9", f"/{me}", f"/search?q={me}", "/", "/search?q=<script>"):
        page = get(sqlite_hub, path)
        check_form(page)
        assert "<script>" in page.text


@pytest.fixture
def store_of_sqlite(sqlite_hub):
    with stored(sqlite_hub) as store:
        yield store


def test_states_are_told_in_words(hub, store):
    """Yanked with its reason and class, deprecated, quarantined, what is needed, and which one is the latest."""
    me = hub.owner().slug
    needs = {"secrets": ["SERPER_API_KEY"], "network": True, "sandbox": False, "gpu": True}
    store.release(f"{me}/e", "1.0", facts={"needs": needs})
    store.release(f"{me}/e", "1.1")
    store.yank(f"{me}/e", "1.1", "pays for nothing", "broken-reward")
    page = get(hub, f"/{me}/e")
    check_form(page)
    assert f"{me} /e 1.0" in page.text and "the secret SERPER_API_KEY, the network, a GPU" in page.text
    assert "yanked (broken-reward)" in page.text and "pays for nothing" in page.text
    assert re.search(r"1\.0 \S+ ✓ latest", page.text)
    assert "not declared" in get(hub, f"/{me}/e/1.1").text
    store.change(f"{me}/e", status="quarantined", status_reason="looked into")
    page = get(hub, f"/{me}/e")
    assert "quarantined" in page.text and "looked into" in page.text
    assert "None is offered." in page.text and "Install" not in page.text


def test_private_projects_look_absent(hub, store):
    """To those who may not see them: the same page as for one that is not there; their owner sees them, marked."""
    owner, other = hub.owner(), hub.owner()
    store.release(f"{owner.slug}/secret-one", visibility="private")
    pages = [get(hub, f"/{owner.slug}/{name}", token, 404)
             for token in (None, other.token) for name in ("secret-one", "absent-one")]  # fmt: skip
    assert len({page.answer.text.replace("absent-one", "secret-one") for page in pages}) == 1
    get(hub, f"/{owner.slug}/secret-one/1.0", status=404)
    for path in ("/", f"/{owner.slug}", "/search?q=secret-one"):
        assert f"/{owner.slug}/secret-one" not in get(hub, path).links()
        shown = get(hub, path, owner.token)
        assert f"/{owner.slug}/secret-one" in shown.links() and "private" in shown.text
    page = get(hub, f"/{owner.slug}/secret-one", owner.token)
    check_form(page)
    assert "private" in page.text
    assert page.answer.headers["cache-control"] == "private, no-cache"
    assert page.answer.headers["vary"] == "Authorization"


def test_a_search_is_paged(hub, store):
    """Every page leads to the next, and together they show each project once, as the JSON twin does."""
    me = hub.owner().slug
    for number in range(23):
        store.release(f"{me}/quagga-{number}")
    first = get(hub, "/search?q=quagga")
    check_form(first)
    (more,) = [link for link in first.links() if "after=" in link]
    second = get(hub, more)
    shown = [link for page in (first, second) for link in page.links() if link.startswith(f"/{me}/")]
    assert len(shown) == len(set(shown)) == 23
    assert [f"/{hit['id']}" for hit in httpx.get(f"{hub.url}{second.twin()}").json()["hits"]] == shown[20:]


def test_an_owner_is_shown(hub, store):
    """With its projects, as in the JSON twin; an owner that is not there is a page that says so."""
    organisation = hub.owner("organisation").slug
    store.release(f"{organisation}/one")
    page = get(hub, f"/{organisation}")
    check_form(page)
    assert "An organisation" in page.text and f"/{organisation}/one" in page.links()
    twin = httpx.get(f"{hub.url}{page.twin()}").json()
    assert [hit["id"] for hit in twin["projects"]] == [f"{organisation}/one"]
    absent = get(hub, "/nobody-here", status=404)
    check_form(absent)
    assert "there is no owner nobody-here" in absent.text


def test_two_releases_are_compared(hub):
    """Files with the lines that changed, dependencies and statements of the metadata; the newest two by default."""
    owner = hub.owner()
    evil = "<script>alert(1)</script>"
    publish(hub, owner, files={"gone.txt": "old", "demo_env_data.txt": "plain\n"})
    headers = {"Summary": evil, "Requires-Dist": ["verifiers>=0.1", "numpy>=2"]}
    publish(hub, owner, version="0.2.0", files={"demo_env_data.txt": f"{evil}\n"}, headers=headers)
    page = get(hub, f"/{owner.slug}/demo-env/diff")
    check_form(page)
    assert "+ numpy>=2" in page.text and f"+{evil}" in page.text and "gone.txt removed" in page.text
    assert get(hub, f"/{owner.slug}/demo-env/diff?a=0.1&b=v0.2.0").text == page.text
    back = get(hub, f"/{owner.slug}/demo-env/diff?a=0.2.0&b=0.1.0")
    assert "- numpy>=2" in back.text and f"-{evil}" in back.text
    twin = httpx.get(f"{hub.url}{page.twin()}").json()
    assert (twin["before"], twin["after"]) == (f"{owner.slug}/demo-env@0.1.0", f"{owner.slug}/demo-env@0.2.0")
    assert f"/{owner.slug}/demo-env/diff" in get(hub, f"/{owner.slug}/demo-env").links()
    get(hub, f"/{owner.slug}/demo-env/diff?a=7", status=404)


def test_one_release_has_nothing_to_be_compared_with(sqlite_hub, store_of_sqlite):
    """The page says so; a private project has none for others."""
    me = sqlite_hub.owner().slug
    store_of_sqlite.release(f"{me}/e")
    page = get(sqlite_hub, f"/{me}/e/diff")
    check_form(page)
    assert "no two releases" in page.text
    store_of_sqlite.change(f"{me}/e", visibility="private")
    get(sqlite_hub, f"/{me}/e/diff", status=404)


def test_the_contents_of_a_wheel_are_listed(hub):
    """Each file with its size; its link shows its text, and nothing of it runs."""
    owner = hub.owner()
    evil = "<script>alert(1)</script>"
    publish(hub, owner, files={"demo_env_data/a b#c.html": evil, "demo_env_data/&lt;i.txt": "x"})
    (link,) = [link for link in get(hub, f"/{owner.slug}/demo-env/0.1.0").links() if link.endswith("/contents")]
    page = get(hub, link)
    check_form(page)
    assert "demo_env_data/&lt;i.txt 1 B" in page.text
    (path,) = [link for link in page.links() if link.endswith(".html")]
    answer = httpx.get(f"{hub.url}{path}")
    assert (answer.text, answer.headers["content-type"]) == (evil, "text/plain; charset=utf-8")
    twin = httpx.get(f"{hub.url}{page.twin()}").json()
    assert "demo_env_data/a b#c.html" in [member["path"] for member in twin["members"]]


def test_the_newest_releases_come_first(hub, store):
    """The start page lists what was published last, without what is deleted or in quarantine."""
    me = hub.owner().slug
    for name in ("one", "two", "three", "four"):
        store.release(f"{me}/{name}")
    store.delete(f"{me}/three", "1.0")
    store.change(f"{me}/four", status="quarantined")
    store.yank(f"{me}/one", "1.0")  # a change of an old release does not make it new
    page = get(hub, "/")
    check_form(page)
    shown = [link for link in page.links() if link.startswith(f"/{me}/") and link.count("/") == 2]
    assert shown == [f"/{me}/two", f"/{me}/one"]
    assert [name for name, _ in page.tags].index("input") < [name for name, _ in page.tags].index("section")


def test_other_spellings_lead_to_the_one_address(hub, store):
    """`My.Env`, `v1.0.0` and a slash at the end are redirected; a version that is not there is a page that says so."""
    me = hub.owner().slug
    store.release(f"{me}/my-env", "1.0")
    for path, right in {"My.Env": "my-env", "my-env/v1.0.0": "my-env/1.0", "My_Env/1": "my-env/1.0"}.items():
        answer = httpx.get(f"{hub.url}/{me}/{path}")
        assert (answer.status_code, answer.headers["location"]) == (301, f"{hub.url}/{me}/{right}")
    for path in (f"{me}/", f"{me}/my-env/"):
        assert httpx.get(f"{hub.url}/{path}").headers["location"] == f"{hub.url}/{path[:-1]}"
    assert "no release 9" in get(hub, f"/{me}/my-env/9", status=404).text


def test_many_versions_are_listed_on_demand(sqlite_hub, store_of_sqlite):
    """Fifty, and all where they are asked for."""
    me = sqlite_hub.owner().slug
    for number in range(52):
        store_of_sqlite.release(f"{me}/e", f"1.{number}")
    few, every = get(sqlite_hub, f"/{me}/e"), get(sqlite_hub, f"/{me}/e?versions=all")
    counts = [len([link for link in page.links() if link.startswith(f"/{me}/e/1.")]) for page in (few, every)]
    assert counts == [50, 52] and "All 52 versions" in few.text and "All 52" not in every.text


def test_a_bad_token_is_told_on_a_page(hub):
    """Refusals of a page are pages, with the status and the hint."""
    page = get(hub, "/", "envhub_wrong", 403)
    check_form(page)
    assert "not valid" in page.text
    check_form(get(hub, "/search?q=" + "a" * 300, status=400))


def test_the_style_sheet_may_be_kept_for_ever(sqlite_hub):
    """Its address changes with it."""
    (link,) = [one for one in get(sqlite_hub, "/").all("link") if one["rel"] == "stylesheet"]
    answer = httpx.get(f"{sqlite_hub.url}{link['href']}")
    assert answer.headers["content-type"].startswith("text/css") and "immutable" in answer.headers["cache-control"]


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2) of #rrggbb."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast(scheme):
    """Text has a contrast of 4.5 or more with what is behind it (WCAG AA), on light and on dark."""
    style = (files("hub_server.pages") / "static" / "hub.css").read_text()
    blocks = re.findall(r":root \{([^}]*)\}", style)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[["light", "dark"].index(scheme)]))
    for text in ("ink", "quiet", "link", "good", "bad"):
        for behind in ("paper", "tint"):
            light, dark = sorted((luminance(colours[text]), luminance(colours[behind])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, behind)


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/nope", "/api/v2/nope/nope/nope"])
def test_an_address_of_the_api_is_no_page(sqlite_hub, path):
    """A program that asks for what the API does not have gets the one shape of errors, never a page."""
    answer = httpx.get(sqlite_hub.url + path, headers={"Accept": "*/*"})
    assert answer.status_code == 404
    assert path in answer.json()["message"] and "hub-api.md" in answer.json()["hint"]
