"""What the studio refuses: strangers' pages, other hosts, folders outside its own, and files that are too large."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import run_samples as sample

from pinprompt.files import FolderLock
from tests.studio.conftest import Studio, opened


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    place = tmp_path_factory.mktemp("guarded")
    sample.classification(place / "runs" / "a")
    sample.classification(place / "outside")
    (place / "runs" / "linked").symlink_to(place / "outside")
    sample.classification(place / "runs" / "b")
    (place / "secret.txt").write_text("secret")
    (place / "runs" / "b" / "prompts.csv").unlink()
    (place / "runs" / "b" / "prompts.csv").symlink_to(place / "secret.txt")
    with opened(place / "runs", place / "home") as started:
        yield started


def ask(
    studio: Studio, path: str, method: str = "GET", body: bytes = b"", host: str | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """A request as it is, with nothing tidied up on the way."""
    connection = http.client.HTTPConnection(studio.host, timeout=900)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", studio.host if host is None else host)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if body or method == "POST":
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body or None)
    response = connection.getresponse()
    found = response.status, response.read(), {name.lower(): value for name, value in response.getheaders()}
    connection.close()
    return found


def own(studio: Studio, path: str = "") -> str:
    return f"/{studio.token}/{path}"


def post(studio: Studio, name: str, form: Any, **headers: str) -> tuple[int, Any]:
    body = form if isinstance(form, bytes) else json.dumps(form).encode()
    headers = {"Origin": f"http://{studio.host}", **headers}
    status, said, _ = ask(studio, own(studio, f"do/{name}"), "POST", body, **headers)
    return status, said.decode()


def test_the_token_is_needed(served: Studio) -> None:
    assert ask(served, own(served))[0] == 200
    for path in ("/", "/new", "/static/studio.js", f"/{served.token[:-1]}/", f"/{served.token}x/", "/../", "//"):
        status, said, _ = ask(served, path)
        assert status == 403, path
        assert served.token not in said.decode()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[fe80::1]"])
def test_another_host_is_refused(served: Studio, host: str) -> None:
    assert ask(served, own(served), host=host)[0] == 421


def test_names_of_this_machine_are_fine(served: Studio) -> None:
    port = served.host.rsplit(":", 1)[1]
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert ask(served, own(served), host=f"{name}:{port}")[0] == 200


def test_a_studio_for_other_machines_knows_numbers_but_no_names() -> None:
    from pinprompt.studio.guard import Guard, shown_host

    def known(host: str, asked: str) -> bool:
        return Guard(None, "token", host)._known(asked)  # type: ignore[arg-type]

    assert known("0.0.0.0", "192.168.1.5:8765")
    assert known("::", "[fe80::1]:8765")
    assert known("192.168.1.5", "192.168.1.5:8765")
    assert not known("192.168.1.5", "192.168.1.6:8765")
    assert not known("0.0.0.0", "evil.example:8765")
    assert [shown_host(host) for host in ("0.0.0.0", "::", "fe80::1", "box")] == [
        "127.0.0.1", "[::1]", "[fe80::1]", "box",
    ]  # fmt: skip


def test_another_page_cannot_act(served: Studio) -> None:
    form = json.dumps({"run": "a", "what": "banned", "word": "x"}).encode()
    for headers in (
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": f"https://{served.host}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": f"http://{served.host}", "Sec_Fetch_Site": "same-site"},
    ):
        assert ask(served, own(served, "do/vary"), "POST", form, **headers)[0] == 403, headers
    assert not (served.folder / "a-without-x").exists()


def test_another_page_can_link_but_not_embed(served: Studio) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(served, own(served), **link)[0] == 200
    for dest, mode in (("iframe", "navigate"), ("script", "no-cors"), ("empty", "cors")):
        headers = {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": mode, "Sec_Fetch_Dest": dest}
        assert ask(served, own(served, "matrix/a"), **headers)[0] == 403


@pytest.mark.parametrize("name", ["search", "stop", "resume", "vary", "upload", "try", "estimate"])
def test_nothing_changes_by_a_get(served: Studio, name: str) -> None:
    assert ask(served, own(served, f"do/{name}?run=a"))[0] == 405


def test_every_answer_has_the_policy(served: Studio) -> None:
    for path in (
        "/",
        own(served),
        own(served, "run/a"),
        own(served, "static/studio.css"),
        own(served, "take/report/a"),
    ):
        headers = ask(served, path)[2]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers


OUTSIDE = [
    "..", "../outside", "..%2foutside", "a/../../outside", "%2e%2e/outside", "linked", "/etc", "a%00", "a/../../",
    "..\\outside", "....//outside", "a/../a", "./a", "uploads", "a%2f..%2f..%2foutside", "b/../../secret.txt", "~",
]  # fmt: skip


@pytest.mark.parametrize("run", OUTSIDE)
@pytest.mark.parametrize("page", ["run", "live", "try", "matrix", "take/report", "take/result"])
def test_folders_outside_are_not_served(served: Studio, page: str, run: str) -> None:
    status, said, _ = ask(served, own(served, f"{page}/{run}"))
    assert status == 404
    assert b"verdict" not in said


@pytest.mark.parametrize("run", [*OUTSIDE, "", None, 3])
def test_no_action_leaves_the_folder(served: Studio, run: Any) -> None:
    for name in ("resume", "vary", "try", "stop"):
        form = {"run": run, "what": "banned", "word": "x", "do": "score", "prompts": ["x"]}
        assert post(served, name, form)[0] in (400, 404, 409), name


def test_compare_takes_runs_of_the_folder_only(served: Studio) -> None:
    outside = quote("../outside")
    assert b"Side by side" not in ask(served, own(served, f"compare?run={outside}"))[1]
    assert ask(served, own(served, f"take/compare?run={outside}"))[0] == 404
    assert ask(served, own(served, f"take/compare?folder={quote('..')}"))[0] == 404


def test_a_link_inside_a_run_is_not_followed(served: Studio) -> None:
    status, said, _ = ask(served, own(served, "take/prompts/b"))
    assert status == 400
    assert b"is a link" in said


def test_uploads_are_bounded_and_stay_where_they_belong(served: Studio) -> None:
    headers = {"Origin": f"http://{served.host}"}
    place = own(served, "do/upload?kind=table&name=" + quote("../../../evil.csv"))
    status, said, _ = ask(served, place, "POST", b"text,label\na,1\nb,0\nc,1\nd,0\n", **headers)
    assert status == 200
    name = json.loads(said)["file"]
    assert (served.folder / "uploads" / name).is_file()
    assert not (served.folder.parent / "evil.csv").exists()
    # Said to be too large, it is refused before it is read; and so it is when nothing is said.
    connection = http.client.HTTPConnection(served.host, timeout=900)
    connection.putrequest("POST", own(served, "do/upload?kind=picture&name=x.png"))
    connection.putheader("Origin", f"http://{served.host}")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert post(served, "plan", b"[" * 100_000)[0] == 400
    assert post(served, "plan", b" " * (2 << 20))[0] == 413
    assert ask(served, own(served, "do/upload?kind=everything&name=x"), "POST", b"x", **headers)[0] in (400, 413)


def test_only_uploads_are_taken_for_data(served: Studio) -> None:
    for name in ("../../secret.txt", "/etc/passwd", "..", "", None, "a/b.csv", "nothing.csv"):
        for form in ({"kind": "classify", "train": name}, {"kind": "invert", "pictures": [name]}):
            status, said = post(served, "plan", form)
            assert status == 404, said
        assert post(served, "describe", {"file": name})[0] == 404


def test_a_strangers_function_and_server_are_not_used(served: Studio) -> None:
    for name, task in (
        ("function", 'kind = "custom"\nfunction = "os:system"'),
        ("server", 'kind = "classification"\nmodel = "remote:x"'),
    ):
        folder = served.folder / name
        folder.mkdir()
        (folder / "recipe.toml").write_text(f"[task]\n{task}\n")
        for action, form in (
            ("try", {"do": "score", "prompts": ["x"]}),
            ("resume", {}),
            ("vary", {"what": "banned", "word": "x"}),
        ):
            status, said = post(served, action, {"run": name, **form})
            assert (status, action) == (400, action)
            assert "use the terminal: pinprompt evaluate" in said


def test_what_a_form_says_cannot_become_an_option(served: Studio) -> None:
    for form in (
        {"dataset": "--trust-remote-code"},
        {"dataset": "x", "model": "x\ny"},
        {"dataset": "x", "calls": "1 --x"},
    ):
        status, said = post(served, "plan", {"kind": "classify", **form})
        assert status == 400, said
    status, said = post(
        served, "plan", {"kind": "classify", "dataset": "x", "model": "--trust-remote-code", "banned": "$(x)"}
    )
    assert status == 200
    command = json.loads(said)["command"]
    assert "--task-model=--trust-remote-code" in command
    assert "'policy.constraints.banned=[\"$(x)\"]'" in command


def test_a_folder_whose_name_is_not_utf_8_is_shown_as_bad_and_the_rest_works(served: Studio) -> None:
    odd = os.fsencode(served.folder) + b"/caf\xe9"
    shutil.copytree(os.fsencode(served.folder / "a"), odd)
    try:
        status, page, _ = ask(served, own(served))
        assert status == 200
        assert "is not UTF-8. Rename it" in page.decode()
        assert "/run/a" in page.decode()
        for path in ("run/caf%E9", "run/caf?", "compare?folder=.", "take/compare?folder=.&format=csv", "run/a"):
            status, said, _ = ask(served, own(served, path))
            assert status in (200, 404), (path, said)
        assert ask(served, own(served, "compare?folder=."))[0] == 200
    finally:
        shutil.rmtree(odd)


@pytest.mark.parametrize("name", ["plan", "estimate", "search", "describe", "try"])
def test_half_a_character_in_a_form_is_refused(served: Studio, name: str) -> None:
    form = b'{"kind": "classify", "dataset": "vader-products", "name": "\\ud800", "run": "\\udfff"}'
    status, said = post(served, name, form)
    assert status == 400, said


def test_a_slow_upload_keeps_nobody_waiting_and_leaves_nothing(served: Studio) -> None:
    def files() -> set[Path]:
        return {path for path in served.folder.parent.rglob("*") if path.is_file()}

    before = files()
    slow = [socket.create_connection(served.host.split(":"), timeout=900) for _ in range(20)]
    head = f"POST {own(served, 'do/upload?kind=table&name=a.csv')} HTTP/1.1\r\nHost: {served.host}\r\n"
    head += f"Origin: http://{served.host}\r\nContent-Length: 1000000\r\n\r\ntext,label\n"
    for line in slow:
        line.sendall(head.encode())
    for place in range(40):  # a byte now and then, from all of them
        slow[place % len(slow)].sendall(b"x")
        assert ask(served, own(served))[0] == 200
    for line in slow:
        line.close()
    assert ask(served, own(served))[0] == 200
    assert files() == before


def test_two_studios_on_one_folder_see_the_same_runs(served: Studio) -> None:
    with opened(served.folder, served.folder.parent / "home") as second:
        for studio in (served, second):
            assert "/run/a" in ask(studio, own(studio))[1].decode()
            assert ask(studio, f"/{(second if studio is served else served).token}/")[0] == 403
        with closing(FolderLock(served.folder / "a")):  # as if one of them, or a terminal, ran it
            for studio in (served, second):
                status, said = post(studio, "resume", {"run": "a"})
                assert status == 409, said
                assert "already running" in said


def test_a_studio_for_other_machines_is_guarded_the_same_way(served: Studio) -> None:
    with opened(served.folder, served.folder.parent / "home", "--host", "0.0.0.0") as studio:
        port = studio.host.rpartition(":")[2]
        assert ask(studio, own(studio))[0] == 200
        assert ask(studio, "/")[0] == 403
        assert ask(studio, own(studio), host=f"192.0.2.7:{port}")[0] == 200  # an address of this machine, by its number
        assert ask(studio, own(studio), host="evil.example")[0] == 421
        assert post(studio, "search", {}, Origin="http://evil.example")[0] == 403


def test_pages_for_an_unknown_address_say_so(served: Studio) -> None:
    status, said, _ = ask(served, own(served, "run/nothing"), Accept="text/html")
    assert status == 404
    assert b"There is no such" in said
    assert str(served.folder).encode() not in said


def test_a_missing_extra_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    from typer.testing import CliRunner

    from pinprompt.cli import app

    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] in ("uvicorn", "starlette"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    said = CliRunner().invoke(app, ["studio", str(tmp_path), "--no-open"])
    assert said.exit_code == 2
    (line,) = said.output.strip().splitlines()
    assert line.startswith("pinprompt: the studio needs the extra 'studio': pip install ")
    assert "[studio]" in line


def test_a_port_that_is_taken_is_one_sentence(served: Studio, tmp_path: Path) -> None:
    from pinprompt.errors import SettingError
    from pinprompt.studio.server import serve

    port = int(served.host.rsplit(":", 1)[1])
    with pytest.raises(SettingError, match=f"port {port} of 127.0.0.1 cannot be used"):
        serve(tmp_path, port=port)
