"""The tests; what several of them need stands in modules of its own beside them."""

SOME_KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
"""A public key that Ed25519 makes; nobody here has the private one at hand."""
