"""Certificates: what is made, and what is said of files that do not fit."""

import stat

import pytest
from cryptography import x509

from splitfl.transport import TransportError
from splitfl.transport.tls import load_authority, load_pair, make_certificates, make_client_certificate


def test_certificates_name_their_hosts_and_keys_are_private(tmp_path):
    tls = make_certificates(tmp_path / "new", ["training.example.org", "192.168.0.7", "::1"])
    leaf = x509.load_pem_x509_certificate(tls.certificate.read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["training.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["192.168.0.7", "::1"]
    authority = x509.load_pem_x509_certificate((tmp_path / "new" / "ca.pem").read_bytes())
    leaf.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for key in (tmp_path / "new").glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "ca.key",
        "ca.pem",
        "server.key",
        "server.pem",
    ]


def test_the_authority_is_kept(tmp_path):
    make_certificates(tmp_path, ["localhost"])
    before = (tmp_path / "ca.pem").read_bytes()
    old = (tmp_path / "server.pem").read_bytes()
    make_certificates(tmp_path, ["example.org"])
    client = make_client_certificate(tmp_path, "phone-1")
    assert (tmp_path / "ca.pem").read_bytes() == before
    assert (tmp_path / "server.pem").read_bytes() != old
    load_pair(client.certificate, client.key)


def test_what_does_not_fit_is_named(tmp_path):
    tls = make_certificates(tmp_path / "one", ["localhost"])
    other = make_certificates(tmp_path / "two", ["localhost"])
    noise = tmp_path / "noise.pem"
    noise.write_text("no certificate")
    with pytest.raises(TransportError, match=r"cannot read the certificate .*missing.pem: No such file"):
        load_pair(tmp_path / "missing.pem", tls.key)
    with pytest.raises(TransportError, match=r"two/server.key does not belong to certificate .*one/server.pem"):
        load_pair(tls.certificate, other.key)
    with pytest.raises(TransportError, match=r"noise.pem holds no certificate"):
        load_authority(noise)
    with pytest.raises(TransportError, match=r"noise.pem holds no private key"):
        load_pair(tls.certificate, noise)
    with pytest.raises(TransportError, match=r"cannot read the authority's certificate"):
        load_authority(tmp_path)


def test_an_expired_certificate_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("splitfl.transport.tls.LEAF_DAYS", -0.5)
    tls = make_certificates(tmp_path, ["localhost"])
    with pytest.raises(TransportError, match=r"server.pem expired on 20"):
        load_pair(tls.certificate, tls.key)


@pytest.mark.parametrize("host", ["", "https://example.org", "example.org:8443", "a b", "-a", "a..b"])
def test_hosts_that_are_none_are_refused(tmp_path, host):
    with pytest.raises(TransportError, match="expected a DNS name or an IP address"):
        make_certificates(tmp_path, [host])
    with pytest.raises(TransportError, match="hosts is empty"):
        make_certificates(tmp_path, [])


@pytest.mark.parametrize("name", ["", "a/b", "../x", "ca", "server", "a b"])
def test_client_names_that_are_none_are_refused(tmp_path, name):
    make_certificates(tmp_path, ["localhost"])
    with pytest.raises(TransportError, match="expected letters"):
        make_client_certificate(tmp_path, name)
