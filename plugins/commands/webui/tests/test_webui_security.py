"""Who is let in, and what is refused before a page is asked."""

import pytest
from erniecore_webui.pages import all_routes

PATHS = sorted(
    route.path.replace("{id}", "first").replace("{part}", "log").replace("{name}", "x").replace("{action}", "stop")
    for route in all_routes()
    if route.path != "/login"
)


@pytest.mark.parametrize("path", PATHS)
def test_every_page_asks_for_the_token(stranger, path):
    assert stranger.get(path).status_code == 401
    assert stranger.post(path).status_code == 401
    shown = stranger.get(path, headers={"accept": "text/html"})
    assert shown.status_code == 303
    assert shown.headers["location"].startswith("/login?to=")


def test_the_token_becomes_a_cookie_that_scripts_and_other_pages_do_not_get(stranger, site):
    answer = stranger.get(f"/runs?q=a&token={site.token}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs?q=a"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert site.token not in cookie


def test_a_wrong_token_opens_nothing(stranger):
    assert stranger.get("/runs?token=wrong").status_code == 401
    assert stranger.post("/login", data={"token": "wrong"}).status_code == 403


def test_the_token_outlives_the_server(site):
    from erniecore_webui.site import Site

    assert Site(site.root).token == site.token
    assert (site.state / "token").stat().st_mode & 0o077 == 0


def test_another_origin_is_refused(browser):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:8765"):
        assert browser.get("/runs", headers={"origin": origin}).status_code == 403
        assert browser.post("/runs/delete", headers={"origin": origin}).status_code == 403


def test_a_proxy_says_that_the_browser_came_by_tls(site):
    from erniecore_webui.app import create_app
    from starlette.testclient import TestClient

    site.admit(["web.example"])
    headers = {"x-forwarded-proto": "https", "origin": "https://web.example"}
    behind = TestClient(create_app(site), base_url="http://web.example", headers=headers, follow_redirects=False)
    answer = behind.post("/login", data={"token": site.token})
    assert answer.status_code == 303
    assert "Secure" in answer.headers["set-cookie"]
    for other in ({"x-forwarded-proto": "http"}, {"origin": "http://web.example"}, {"origin": "https://evil.example"}):
        assert behind.post("/login", data={"token": site.token}, headers=other).status_code == 403


def test_another_host_name_is_refused(browser):
    for host in ("evil.example", "evil.example:8765", "127.0.0.1", ""):
        assert browser.get("/runs", headers={"host": host}).status_code == 403


def test_a_form_without_its_secret_is_refused(browser, site):
    del browser.headers["x-csrf-token"]
    assert browser.post("/runs/delete", data={"run": "first"}).status_code == 403
    assert browser.post("/runs/delete", data={"run": "first", "csrf": "0" * 64}).status_code == 403
    assert (site.root / "first").is_dir()


def test_a_form_of_10_mb_is_refused(browser):
    assert browser.post("/choose", data={"to": "a" * 10_000_000}).status_code == 413

    def parts():  # no content-length
        for _ in range(100):
            yield b"a" * 100_000

    assert browser.post("/choose", content=parts()).status_code == 413


@pytest.mark.parametrize("id_", ["..", "..~1outside", "~1etc", ".", ".web", "link", "first~1..~1..~1outside", "no"])
def test_no_path_outside_of_the_root(browser, site, id_):
    outside = site.root.parent / "outside"
    outside.mkdir()
    (outside / "events.jsonl").write_text("{}\n")
    (site.root / "link").symlink_to(outside)
    for part in ("", "/log", "/curves", "/resolved.yaml"):
        answer = browser.get(f"/run/{id_}{part}")
        assert answer.status_code in (400, 404) or answer.url.path == "/runs"
        assert "no such run" in answer.text or answer.status_code == 404 or answer.url.path == "/runs"


def test_a_log_is_only_a_log_of_the_run(browser, site):
    (site.root / "first" / "logs").mkdir()
    assert browser.get("/run/first/logs/..%2Fevents.jsonl").status_code == 404
    assert browser.get("/run/first/log", params={"file": "../events.jsonl"}).text.count("run_start") == 0


def test_a_page_can_only_run_what_is_in_the_package(browser):
    answer = browser.get("/run/first")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<style" not in answer.text
    assert " style=" not in answer.text
    assert " on" + "click=" not in answer.text
    assert "<script>" not in answer.text
    assert "http://" not in answer.text.replace("http://www.w3.org", "")


def test_login_leads_to_own_pages_only(stranger, site):
    for to in ("//evil.example", "https://evil.example", "/\\evil.example"):
        assert stranger.post("/login", params={"to": to}, data={"token": site.token}).headers["location"] == "/"
