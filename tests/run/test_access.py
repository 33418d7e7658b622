"""Who may come: tokens, certificates' names and roles, over real TLS."""

from __future__ import annotations

import asyncio
import json
import stat

import pytest

import splitfl
from splitfl.errors import SplitflError
from splitfl.run.access import Access, Entry, digest, make_token
from splitfl.run.tokens import issue, load_token, load_tokens
from splitfl.schedule.instruction import Kind, Value
from splitfl.transport import make_certificates, make_client_certificate
from splitfl.transport.messages import OBSERVER, PROTOCOL, TRAINER, Address, Hello, Refuse, Status

SECRETS = {name: make_token() for name in ("c0", "c1", "watcher")}
ACCESS = Access(
    tokens={name: Entry(digest(secret), OBSERVER if name == "watcher" else TRAINER) for name, secret in SECRETS.items()}
)


def hello(client="c0", token="", role=""):
    return Hello(PROTOCOL, client, "{}", 6, "test", token, role=role)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (hello("c0", SECRETS["c0"]), None),
        (hello("c0", SECRETS["c0"], TRAINER), None),
        (hello("watcher", SECRETS["watcher"], OBSERVER), None),
        (hello("c0", SECRETS["c1"]), "token"),
        (hello("c0", ""), "token"),
        (hello("c0", SECRETS["c0"] + "x"), "token"),
        (hello("stranger", SECRETS["c0"]), "token"),
        (hello("stranger", ""), "token"),
        (hello("watcher", SECRETS["watcher"]), "role"),
        (hello("c0", SECRETS["c0"], OBSERVER), "role"),
        (hello("c0", SECRETS["c0"], "root"), "role"),
    ],
)
def test_a_token_serves_its_own_name_in_its_own_role(said, code):
    refusal = ACCESS.objection(said, frozenset())
    assert (refusal and refusal.code) == code
    assert refusal is None or not any(secret in refusal.message for secret in SECRETS.values())


def test_a_certificate_serves_its_own_name():
    access = Access(certificates=True, observers=frozenset({"ops"}))
    assert access.objection(hello("c0"), frozenset({"c0"})) is None
    assert access.objection(hello("ops", role=OBSERVER), frozenset({"ops"})) is None
    refusals = {
        "identity": access.objection(hello("c0"), frozenset({"c1"})),
        "role": access.objection(hello("ops"), frozenset({"ops"})),
    }
    assert {code: refusal.code for code, refusal in refusals.items()} == {code: code for code in refusals}
    assert access.objection(hello("c0", role=OBSERVER), frozenset({"c0"})).code == "role"
    assert access.objection(hello("c0"), frozenset()).code == "identity"


def test_where_nothing_is_asked_everybody_may_train_or_look_on():
    assert Access().objection(hello(), frozenset()) is None
    assert Access().objection(hello(role=OBSERVER), frozenset()) is None


def test_a_token_is_in_no_text_about_the_hello():
    assert SECRETS["c0"] not in repr(hello("c0", SECRETS["c0"]))


def test_files_of_tokens(tmp_path):
    own = issue(tmp_path / "new", "c0", role=TRAINER)
    issue(tmp_path / "new", "ops", role=OBSERVER)
    server = tmp_path / "new" / "tokens.json"
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (own, server))
    entries, token = load_tokens(server), load_token(own)
    assert entries["c0"] == Entry(digest(token), TRAINER)
    assert entries["ops"].role == OBSERVER
    assert token not in server.read_text()
    issue(tmp_path / "new", "c0", role=TRAINER)
    assert load_token(own) != token
    assert load_tokens(server)["ops"] == entries["ops"]


@pytest.mark.parametrize("name", ["../c0", "", ".hidden", "a b", "x" * 65, "c0\n"])
def test_a_name_that_could_be_a_path_gets_no_token(tmp_path, name):
    with pytest.raises(SplitflError, match="expected 1 to 64 letters"):
        issue(tmp_path, name, role=TRAINER)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", '{"c0": {}}', '{"c0": {"digest": "x", "role": "trainer"}}', "\x80"])
def test_what_holds_no_tokens_is_refused_without_showing_it(tmp_path, content):
    path = tmp_path / "tokens.json"
    path.write_bytes(content.encode("latin1"))
    with pytest.raises(SplitflError, match="holds no tokens"):
        load_tokens(path)


@pytest.fixture
def made(bench):
    return bench.job(bench.Mlp, "fc1", splitfl.methods.pipar(micro_batches=2))


@pytest.fixture
def clients(bench):
    return {"c0": bench.dataset(6), "c1": bench.dataset(7, seed=1)}


def test_a_client_that_shows_another_clients_token_is_refused_and_the_others_train(bench, made, clients, tmp_path):
    tls = make_certificates(tmp_path, ["127.0.0.1"]), splitfl.ClientTLS(ca=tmp_path / "ca.pem")
    refusals = []

    async def impostor_first(name, data, plain, open_channel):
        with pytest.raises(SplitflError, match="shows no valid token of its own") as refused:
            await plain(name, data, token=SECRETS["c1"])
        refusals.append(str(refused.value))
        return await plain(name, data, token=SECRETS["c0"])

    async def honest(name, data, plain, open_channel):
        return await plain(name, data, token=SECRETS[name])

    ends = {"c0": impostor_first, "c1": honest}
    work = bench.over_grpc(made.blueprint(), clients, rounds=1, tls=tls, ends=ends, access=ACCESS)
    trained, words = bench.run(work)
    assert len(refusals) == 1
    assert set(words.values()) == {"training is complete after 1 rounds"}
    assert trained.rounds[0].participants == ("c0", "c1")


def test_a_client_that_shows_another_clients_certificate_is_refused(bench, made, clients, tmp_path):
    server = make_certificates(tmp_path, ["127.0.0.1"])
    server = splitfl.ServerTLS(certificate=server.certificate, key=server.key, client_ca=tmp_path / "ca.pem")
    own = make_client_certificate(tmp_path, "c0")
    access = Access(certificates=True)

    async def thief(name, data, plain, open_channel):
        with pytest.raises(SplitflError, match="'c1' shows the certificate of c0: a client speaks for itself only"):
            await plain(name, data)
        return "refused"

    made = bench.job(bench.Mlp, "fc1", splitfl.methods.pipar(), deadlines=splitfl.Deadlines(enrollment=1.0))
    work = bench.over_grpc(made.blueprint(), clients, rounds=1, tls=(server, own), ends={"c1": thief}, access=access)
    with pytest.raises(SplitflError, match=r"1 of 2 clients enrolled .* \(present: c0\)"):
        bench.run(work)


def test_an_observer_hears_every_round_and_sends_nothing(bench, made, clients):
    heard = []

    async def with_observer(name, data, plain, open_channel):
        channel = await open_channel()
        await channel.tell(Hello(PROTOCOL, "watcher", "", 0, "test", SECRETS["watcher"], role=OBSERVER))
        message = await channel.hear(timeout=10, what="the first status")
        training = asyncio.create_task(plain(name, data, token=SECRETS[name]))
        while isinstance(message, Status):
            heard.append(json.loads(message.content))
            if heard[-1]["phase"] == "finished":
                break
            message = await channel.hear(timeout=10, what="the next status")
        await channel.close()
        return await training

    async def honest(name, data, plain, open_channel):
        return await plain(name, data, token=SECRETS[name])

    ends = {"c0": with_observer, "c1": honest}
    bench.run(bench.over_grpc(made.blueprint(), clients, rounds=3, ends=ends, access=ACCESS))
    assert heard[0]["phase"] == "enrolling"
    assert heard[0]["round"] == 0
    assert heard[0]["last"] is None
    assert heard[-1]["phase"] == "finished"
    assert heard[-1]["clients"] == {"c0": "connected", "c1": "connected"}
    rounds = [standing["round"] for standing in heard]
    assert rounds == sorted(rounds)
    assert rounds[-1] == heard[-1]["rounds"] == 3
    assert heard[-1]["last"]["participants"] == ["c0", "c1"]


@pytest.mark.parametrize("before_hello", [True, False])
def test_tensors_that_nobody_asked_for_close_the_session(bench, made, clients, before_hello):
    """They are refused by their address, before anything of them is kept."""
    words = []

    async def eager(name, data, plain, open_channel):
        channel = await open_channel()
        if not before_hello:
            said = json.dumps(made.blueprint().fingerprints())
            await channel.tell(Hello(PROTOCOL, "c0", said, len(data), "test"))
            await asyncio.sleep(0.1)
        await channel.send(Address(99, 0, Value(Kind.PARAMS, 0, 0)), [b"x" * 100])
        while not (words and isinstance(words[-1], Refuse)):
            words.append(await channel.hear(timeout=10, what="the refusal"))
        await channel.close()
        return await plain(name, data)

    trained, _ = bench.run(bench.over_grpc(made.blueprint(), clients, rounds=1, ends={"c0": eager}))
    assert [(word.code, "nobody asked for" in word.message) for word in words if isinstance(word, Refuse)] == [
        ("protocol", True)
    ]
    assert trained.rounds[0].participants == ("c0", "c1")
