"""Where a provider call may go: what a base_url may look like and which addresses its host may have.

The address is checked where the connection is made (transport.py), so that what was checked is what is connected to: a name that
resolves to a public address for the check and to a private one for the call (DNS rebinding) finds no gap.
"""

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_MAX_URL_CHARACTERS = 500
# What the registries give out to the internet. Python's is_global also says yes to multicast, 6to4, site-local and ::/96.
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.88.99.0/24",  # relays of 6to4
        "2002::/16",  # 6to4: an IPv4 address of anybody's choice
        "2001::/23",  # Teredo and other protocol assignments
        "3fff::/20",  # documentation
    )
)
_PRIVATE = tuple(
    ipaddress.ip_network(network) for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressRefused(ValueError):
    """A base_url, or an address of its host, is not allowed. The message holds nothing of the URL but its host's address."""


@dataclass(frozen=True)
class BaseUrl:
    """A base_url that has the right form. `path` has no slash at its end."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def plain(self) -> bool:
        return self.scheme == "http"


@dataclass(frozen=True)
class AddressPolicy:
    """What is allowed beyond https to the public internet. The default is what a user's own base_url gets.

    Link-local addresses (cloud metadata), multicast, unspecified and reserved ones are refused whatever the flags say.
    """

    # Development: loopback, over http too.
    allow_loopback_http: bool = False
    # For a base_url that an administrator set: private networks, over https.
    allow_private: bool = False
    # The same over http, as a model server in a private network is often run. Means nothing without allow_private.
    allow_private_http: bool = False

    def parse(self, base_url: str) -> BaseUrl:
        """The parts of a base_url; raises AddressRefused. Resolves nothing: the addresses are judged when a call is made.

        For checking a base_url when it is entered; an address instead of a name is judged here already.
        """
        parsed = _split(base_url)
        if parsed.scheme == "http" and not (self.allow_loopback_http or (self.allow_private and self.allow_private_http)):
            raise AddressRefused("the base_url must begin with https://")
        try:
            literal = ipaddress.ip_address(parsed.host)
        except ValueError:
            return parsed
        self.judge([literal], plain=parsed.plain)
        return parsed

    def judge(self, addresses: list[IpAddress], *, plain: bool) -> None:
        """Raises AddressRefused if any of a host's addresses is not allowed; `plain` says that the scheme is http.

        Any, not all: else a name with one public and one private address would get in by chance.
        """
        for address in addresses:
            if not self._allows(_unwrapped(address), plain):
                raise AddressRefused(f"the base_url's host has the address {address}, which is not allowed")

    def _allows(self, address: IpAddress, plain: bool) -> bool:
        if address.is_loopback:
            return self.allow_loopback_http
        if any(address in network for network in _PRIVATE if network.version == address.version):
            return self.allow_private and (self.allow_private_http or not plain)
        return not plain and _is_public(address)


def _split(base_url: str) -> BaseUrl:
    # urlsplit drops tabs and newlines silently; what is left could be another URL than the one that a person read.
    if len(base_url) > _MAX_URL_CHARACTERS or not all("!" <= character <= "~" for character in base_url):
        raise AddressRefused("the base_url is too long or holds white space or other than ASCII characters")
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        raise AddressRefused("the base_url is malformed") from None
    if parts.scheme not in ("https", "http") or not parts.hostname or port == 0:
        raise AddressRefused("the base_url must be https:// and a host")
    if "@" in parts.netloc or "\\" in base_url:
        raise AddressRefused("the base_url must not hold a user name or password")
    if "?" in base_url or "#" in base_url:
        raise AddressRefused("the base_url must not hold a query or a fragment")
    return BaseUrl(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/"))


def _unwrapped(address: IpAddress) -> IpAddress:
    """The IPv4 address inside an IPv6 one that stands for it: that is where the packets go."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_public(address: IpAddress) -> bool:
    if any(address in network for network in _NOT_PUBLIC if network.version == address.version):
        return False
    if isinstance(address, ipaddress.IPv6Address):
        return address in _PUBLIC_V6 and address.is_global
    return address.is_global and not address.is_multicast
