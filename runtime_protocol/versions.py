"""Which version of the protocol is spoken, and the oldest that still is. Within 1.x only additions are made."""

PROTOCOL_VERSION = "1.0"
MIN_PROTOCOL_VERSION = "1.0"
