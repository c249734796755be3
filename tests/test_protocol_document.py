"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from shared.exchange import names
from shared.exchange.names import Place, place_at
from shared.exchange.records import Consent, FinalCard, Manifest, Status, Verdict
from shared.exchange.signing import SigningKey, digest_of, enrolment_code, open_signed
from shared.exchange.trust import Correspondent

DOCUMENT = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text()
KEY = SigningKey(b"\x01" * 32)


def example() -> bytes:
    found = re.search(r"```json\n(.*?)\n```", DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1].encode()


def test_the_example_manifest_is_accepted_and_is_what_the_code_writes() -> None:
    content = example()
    body, key = open_signed(content)
    assert key == KEY.public
    assert KEY.sign(body) == content
    message = Correspondent("retina", "north", "north", KEY.public).open_out_of_order(
        content, Place("consent", "octa-1")
    )
    assert digest_of(content) == message.digest
    assert message.digest in DOCUMENT
    assert enrolment_code("cd" * 32, "retina", "north", KEY.public) in DOCUMENT


def test_the_tree_names_every_message_with_its_files() -> None:
    tree = DOCUMENT.split("## The tree")[1].split("\n\n")[1]
    described = {}
    for line in tree.splitlines():
        path, sender, *files = line.split()
        place = place_at(path.rstrip("/").replace("RUN", "run"))
        if place is None:
            assert path in names.ROOT_FILES
            continue
        assert sender == ("site" if place.is_from_site else "aggregator")
        described[place.kind] = {name.strip("[]") for name in files}
    assert described == {kind: files | names.OPTIONAL.get(kind, frozenset()) for kind, files in names.REQUIRED.items()}


def test_every_field_is_described() -> None:
    for record in (Manifest, Status, Consent, Verdict, FinalCard):
        for field in record.model_fields:
            assert f"`{field}`" in DOCUMENT, (record.__name__, field)
