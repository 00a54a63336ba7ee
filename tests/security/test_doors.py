"""Who may ask: pages answer on this machine, under its own name, to whoever has the token."""

import inspect
from pathlib import Path

import pytest

from caploc.cli.looking import view

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from caploc.playground.app import Playgrounds
from caploc.playground.runs import RunIndex
from caploc.playground.serving import address, listen
from caploc.playground.view import application

TOKEN = "a-token"
PATHS = [
    "/", "/runs", "/run/x/", "/run/x/report.html", "/play/model/", "/play/model/board",
    "/page/main.js", "/shades.css", "/nothing",
]  # fmt: skip


@pytest.fixture
def site(tmp_path):
    app = application(Playgrounds(RunIndex(tmp_path), "cpu"), TOKEN)
    with TestClient(app, base_url="http://127.0.0.1:8750") as client:
        yield client


def test_pages_are_on_loopback_and_no_option_opens_them():
    with listen(0) as found:
        assert found.getsockname()[0] == "127.0.0.1"
        assert address(found).startswith("http://127.0.0.1:")
    assert "host" not in inspect.signature(view).parameters


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", [{}, {"token": "another"}, {"token": ""}])
def test_whoever_lacks_the_token_gets_a_sentence(site, path, given):
    reply = site.get(path, params=given)
    assert reply.status_code == 403 and not reply.cookies
    assert reply.text == "Open the address that caploc printed, with its token."
    assert site.post("/play/model/load", json={}).status_code == 403


def test_the_token_of_the_printed_address_is_kept_for_this_host_alone(site):
    reply = site.get("/", params={"token": TOKEN})
    assert reply.status_code == 200
    assert reply.headers["set-cookie"] == (
        f"caploc-8750={TOKEN}; HttpOnly; SameSite=Strict; Path=/"
    )
    assert site.get("/runs").json()["runs"] == []
    site.cookies.clear()
    assert site.get("/runs").status_code == 403
    wrong = {"cookie": f"caploc-8751={TOKEN}"}  # of another server on this machine
    assert site.get("/runs", headers=wrong).status_code == 403


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8750", "127.0.0.1.evil.example", "evil@127.0.0.1", "0.0.0.0",
     "127.0.0.1:80@evil.example", "localhost.evil.example", "192.168.0.7:8750", "", "[::1]:8750",
     "127.0.0.1:8750x", "127.0.0.1:8750; Path=/"],
)  # fmt: skip
def test_other_names_for_this_machine_are_refused_token_or_not(site, host):
    reply = site.get("/", params={"token": TOKEN}, headers={"host": host})
    assert (reply.status_code, reply.text) == (403, "Open this page at 127.0.0.1 or localhost.")
    assert not reply.cookies


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST", "localhost:9000"])
def test_a_tunnel_from_another_port_is_let_in(site, host):
    assert site.get("/", params={"token": TOKEN}, headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", TOKEN])
def test_every_answer_carries_the_policy(site, path, token):
    headers = site.get(path, params={"token": token}).headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_ray_starts_without_a_dashboard():
    import caploc.workers.ray_backend as connection

    text = Path(connection.__file__).read_text()
    assert '"include_dashboard": False' in text
