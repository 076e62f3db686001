"""Where a call may go, and that the connection goes to the address that was checked."""

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runtime_jobs.gateway import AddressPolicy, AddressRefused, AiGatewayService
from runtime_jobs.gateway.addresses import BaseUrl
from runtime_jobs.model_call import Dispatch
from runtime_jobs.states import ApiKeyMode
from tests.gateway.conftest import LOOPBACK, a_target, call

STRICT = AddressPolicy()
ADMIN = AddressPolicy(allow_private=True)
ADMIN_HTTP = AddressPolicy(allow_private=True, allow_private_http=True)
EVERYTHING = AddressPolicy(allow_loopback_http=True, allow_private=True, allow_private_http=True)

PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
PRIVATE = [
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "fc00::1",
    "fd12::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
]
LOOP = ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
NEVER = [
    "169.254.169.254", "fe80::1", "fe80::1%2", "0.0.0.0", "::", "224.0.0.1", "239.1.1.1", "ff02::1", "ff0e::1", "240.0.0.1",  # noqa: S104
    "255.255.255.255", "198.18.0.1", "192.0.2.1", "203.0.113.5", "2001:db8::1", "fec0::1", "2002:7f00:1::", "2001:0:1::1",
    "::7f00:1", "64:ff9b:1::1", "3fff::1", "5f00::1", "192.88.99.1", "::ffff:169.254.169.254", "100:0:0:1::1",
]  # fmt: skip


def allows(policy: AddressPolicy, address: str, *, plain: bool = False) -> bool:
    try:
        policy.judge([ipaddress.ip_address(address)], plain=plain)
    except AddressRefused:
        return False
    return True


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed_over_https_only(address):
    assert allows(STRICT, address)
    assert not allows(EVERYTHING, address, plain=True)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_the_flag_of_an_administrator(address):
    assert not allows(STRICT, address)
    assert not allows(LOOPBACK, address)
    assert allows(ADMIN, address)
    assert not allows(ADMIN, address, plain=True)
    assert allows(ADMIN_HTTP, address, plain=True)


@pytest.mark.parametrize("address", LOOP)
def test_loopback_needs_the_flag_of_development(address):
    assert not allows(STRICT, address)
    assert not allows(ADMIN, address)
    assert allows(LOOPBACK, address, plain=True)


@pytest.mark.parametrize("address", NEVER)
def test_no_flag_allows_metadata_multicast_and_reserved_addresses(address):
    assert not allows(EVERYTHING, address)
    assert not allows(EVERYTHING, address, plain=True)


def test_one_bad_address_among_good_ones_is_enough():
    addresses = [ipaddress.ip_address(address) for address in ("8.8.8.8", "10.0.0.1")]
    with pytest.raises(AddressRefused):
        STRICT.judge(addresses, plain=False)


@pytest.mark.parametrize(
    ("base_url", "parsed"),
    [
        ("https://api.openai.com/v1", BaseUrl("https", "api.openai.com", 443, "/v1")),
        ("https://api.openai.com/v1/", BaseUrl("https", "api.openai.com", 443, "/v1")),
        ("https://API.example.com:8443", BaseUrl("https", "api.example.com", 8443, "")),
        ("https://[2606:4700::1]/v1", BaseUrl("https", "2606:4700::1", 443, "/v1")),
    ],
)
def test_a_base_url_is_taken_apart(base_url, parsed):
    assert STRICT.parse(base_url) == parsed


@pytest.mark.parametrize(
    "base_url",
    [
        "", "api.openai.com", "//api.openai.com", "http://api.openai.com/v1", "ftp://x.test", "file:///etc/passwd", "https://",
        "https://user:pass@x.test", "https://user@x.test", "https://x.test/?key=1", "https://x.test/#a", "https://x.test/?",
        "https://x.test\n", " https://x.test", "https://x.te\tst", "https://x.test\\@y.test", "https://x.test:99999", "https://x.test:0",
        "https://[::1", "https://éxample.test", "https://127.0.0.1/v1", "https://[::1]/v1", "https://10.0.0.1", "https://169.254.169.254/latest",
        "https://x.test/" + "a" * 600, "javascript:alert(1)", "http://localhost:8001/v1",
    ],
)  # fmt: skip
def test_a_base_url_that_is_anything_else_is_refused(base_url):
    with pytest.raises(AddressRefused):
        STRICT.parse(base_url)


def test_http_is_for_loopback_or_private_networks_where_a_flag_says_so():
    assert LOOPBACK.parse("http://127.0.0.1:8001/v1").port == 8001
    assert LOOPBACK.parse("http://localhost/v1").port == 80
    assert ADMIN_HTTP.parse("http://10.0.0.5:8000/v1").plain
    with pytest.raises(AddressRefused):
        ADMIN.parse("http://10.0.0.5:8000/v1")
    with pytest.raises(AddressRefused):
        LOOPBACK.parse("http://10.0.0.5:8000/v1")


@pytest.fixture
def resolver(monkeypatch):
    """resolver["name"] = [addresses]; counts the look-ups."""
    table: dict[str, list[str]] = {}
    asked: list[str] = []
    real = socket.getaddrinfo

    def fake(host, port, *args, **kwargs):
        if host in table:
            asked.append(host)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in table[host]]
        if str(host).endswith(".test"):
            raise socket.gaierror(-2, "Name or service not known")
        return real(host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", fake)
    return table, asked


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["169.254.169.254"], ["0.0.0.0"]])  # noqa: S104
def test_a_name_with_a_forbidden_address_is_never_connected_to(addresses, resolver):
    resolver[0]["inner.test"] = addresses
    outcome = call(AiGatewayService(), a_target("https://inner.test/v1"))
    assert outcome.judged == ("provider_rejected_request", False, None)
    assert outcome.report.dispatch is Dispatch.NOT_SENT


def test_plain_http_goes_to_loopback_only_even_by_name(resolver):
    resolver[0]["outside.test"] = ["8.8.8.8"]
    service = AiGatewayService(user_addresses=LOOPBACK)
    assert call(service, a_target("http://outside.test/v1")).judged == ("provider_rejected_request", False, None)


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "2130706433", "localhost"])
def test_other_spellings_of_loopback_are_found_out_when_they_are_resolved(host):
    outcome = call(AiGatewayService(), a_target(f"https://{host}:9/v1"))
    assert outcome.code in ("provider_rejected_request", "provider_unavailable")  # the latter where the resolver does not know it
    assert outcome.report.dispatch is Dispatch.NOT_SENT


def test_a_users_policy_and_an_administrators_are_kept_apart(simulator):
    service = AiGatewayService(platform_addresses=LOOPBACK)
    assert call(service, a_target(simulator.url)).judged == ("provider_rejected_request", False, None)
    assert call(service, a_target(simulator.url, credential_mode=ApiKeyMode.PLATFORM)).answer
    assert len(simulator.requests) == 1


def test_a_name_that_does_not_resolve_is_an_outage_and_was_not_sent(resolver):
    outcome = call(AiGatewayService(), a_target("https://nowhere.test/v1"))
    assert outcome.judged == ("provider_unavailable", True, None)
    assert outcome.report.dispatch is Dispatch.NOT_SENT


def test_the_name_is_looked_up_once_so_that_no_second_answer_can_differ(resolver, simulator, service):
    resolver[0]["once.test"] = ["127.0.0.1"]
    assert call(service, a_target(f"http://once.test:{simulator.port}/v1")).answer
    assert resolver[1] == ["once.test"]
    assert simulator.requests[0].headers["host"] == f"once.test:{simulator.port}"


def test_the_second_address_is_tried_when_the_first_refuses(resolver, simulator, service):
    resolver[0]["two.test"] = ["127.0.0.2", "127.0.0.1"]
    assert call(service, a_target(f"http://two.test:{simulator.port}/v1")).answer
    assert len(simulator.requests) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for secure.test that signs itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "secure.test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("secure.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


@contextmanager
def tls_server(certificate: Path) -> Iterator[tuple[int, list[str]]]:
    """Accepts connections until the end; answers each with a completion. Gives its port and the names that clients asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    names: list[str] = []
    context.sni_callback = lambda _connection, name, _context: names.append(str(name))
    body = b'{"choices":[{"finish_reason":"stop","message":{"content":"hello"}}]}'

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    while b"\r\n\r\n" not in secure.recv(65536):
                        pass
                    secure.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                    secure.recv(65536)
            except OSError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], names
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_tls_names_the_host_while_the_connection_goes_to_the_checked_address(resolver, certificate):
    resolver[0]["secure.test"] = ["127.0.0.1"]
    trusting = ssl.create_default_context(cafile=str(certificate))
    service = AiGatewayService(user_addresses=LOOPBACK, ssl_context=trusting)
    with tls_server(certificate) as (port, names):
        outcome = call(service, a_target(f"https://secure.test:{port}/v1"))
    assert outcome.answer
    assert outcome.answer.text == "hello"
    assert names == ["secure.test"]
    assert resolver[1] == ["secure.test"]


def test_a_certificate_that_is_not_valid_is_permanent_and_nothing_was_sent(resolver, certificate):
    resolver[0]["secure.test"] = ["127.0.0.1"]
    service = AiGatewayService(user_addresses=LOOPBACK)
    with tls_server(certificate) as (port, _):
        outcome = call(service, a_target(f"https://secure.test:{port}/v1"))
    assert outcome.judged == ("provider_rejected_request", False, None)
    assert outcome.report.dispatch is Dispatch.NOT_SENT


def test_a_certificate_for_another_name_is_not_valid(resolver, certificate):
    resolver[0]["other.test"] = ["127.0.0.1"]
    trusting = ssl.create_default_context(cafile=str(certificate))
    service = AiGatewayService(user_addresses=LOOPBACK, ssl_context=trusting)
    with tls_server(certificate) as (port, _):
        assert call(service, a_target(f"https://other.test:{port}/v1")).judged == ("provider_rejected_request", False, None)


def test_a_peer_that_speaks_no_tls_is_an_outage(service):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        outcome = call(service, a_target(f"https://127.0.0.1:{listener.getsockname()[1]}/v1"))
        thread.join(5)
    assert outcome.judged == ("provider_unavailable", True, None)
    assert outcome.report.dispatch is Dispatch.NOT_SENT
