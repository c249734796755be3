"""Where to begin at each door: sound inputs, by the code that writes them; and, from ``corpus``, what went wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.doors import zstd_frame
from shared.exchange import names
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Abort, Consent, Reliability, Withdrawal
from shared.exchange.records.messages import Federation, Handover, Head, Invite, Manifest, SiteCard, Status
from shared.exchange.records.run import Privacy
from shared.exchange.records.surveys import (
    BINS,
    BIT_DEPTHS,
    COLOURS,
    FORMATS,
    MAKERS,
    Sheet,
    SignedSheet,
    Spread,
)
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.records.wire import FileEntry, Wire
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.tables import MetricsRow, write_metrics
from shared.exchange.weights import write_tensors
from shared.learning.schedules import round_configuration
from site_client.setup import settings_of
from tests.federation.running import run_configuration
from tests.folder.faulty import dav_error, multistatus
from tests.fuzz.doors import CLOSING, CONTENT_KEY, HOME, KEY, SURVEY, TENSORS

CORPUS = Path(__file__).parent / "corpus"
WHEN, OTHER, DIGEST = "2026-11-21T09:30:00Z", SigningKey(b"\x09" * 32), digest_of(b"")
BOTH = {"federation": "retina", "site": "north", "created": WHEN}


def inputs(door: str) -> list[bytes]:
    """All that a door begins with."""
    kept = sorted(path for path in (CORPUS / door).glob("*"))
    return [*SEEDS[door], *(path.read_bytes() for path in kept)]


def _signed_records() -> Iterator[bytes]:
    entry = FileEntry(size=3, sha256=DIGEST)
    keys = {"aggregator_key": KEY.public, "site_key": OTHER.public, "aggregator_encryption_key": None}
    yield b"f" + canonical(Federation(**BOTH, **keys, files={names.README: entry}).model_dump())
    yield b"s" + canonical(SiteCard(**BOTH, key=KEY.public, software="dropfed", enrolment=DIGEST).model_dump())
    yield b"h" + canonical(Handover(**BOTH, number=2, key=OTHER.public, after=Head(seq=1, digest=DIGEST)).model_dump())
    status = Status(
        federation="retina",
        site="north",
        time=WHEN,
        phase="waiting",
        run="octa-1",
        round=1,
        progress_percent=50,
        trouble=None,
        own_head=Head(seq=1, digest=DIGEST),
        aggregator_head=Head(),
    )
    yield b"b" + canonical(status.model_dump())
    yield b"q" + canonical(SURVEY.model_dump())
    yield b"a" + canonical(_answer().model_dump())
    yield b"c" + canonical(CLOSING.model_dump())
    yield b"r" + KEY.sign({"a": 1})


def _answer() -> SignedSheet:
    """A site's sheet of figures, some of which are withheld."""
    spread = Spread(p5=None, p25="1.0", p50="12.0", p75="30.0", p95=None)
    share = Spread(p5=None, p25=None, p50="0.5", p75=None, p95=None)
    sheet = Sheet(
        task="dr_staging",
        images="240",
        unreadable="0",
        duplicates="fewer than 10",
        patients="100",
        images_per_patient=spread,
        classes={"0": "200", "other": "40"},
        class_shares={},
        formats=dict.fromkeys(FORMATS, "0") | {"png": "240"},
        bit_depths=dict.fromkeys(BIT_DEPTHS),
        colours=dict.fromkeys(COLOURS),
        makers=dict.fromkeys(MAKERS),
        longer_side=spread,
        shorter_side=spread,
        field_of_view=share,
        intensity=["0.03"] * BINS,
        sharpness=spread,
        images_per_second="12.0",
    )
    said = {"number": 1, "in_reply_to": DIGEST, "agrees": True, "reason": "agreed", "own_head": Head()}
    return SignedSheet(**BOTH, **said, sheet=sheet)


def _manifests() -> Iterator[bytes]:
    wire = Wire(numbers="float16", difference=True, compression="zstd")
    table, model = FileEntry(size=3, sha256=DIGEST), FileEntry(size=9, sha256=DIGEST, wire=wire, encrypted="ab" * 104)
    for files in (
        {names.METRICS: table},
        {names.METRICS: table, names.SITE_MODEL: model, "state-control.safetensors": table},
    ):
        manifest = Manifest(
            **BOTH,
            kind="update",
            sender="north",
            run="octa-1",
            round=1,
            seq=2,
            previous=DIGEST,
            in_reply_to=DIGEST,
            files=files,
        )
        yield canonical(manifest.model_dump())


def _json_records() -> Iterator[bytes]:
    yield b"\x00" + canonical(Consent(run="octa-1", agrees=True, reason="yes", images={"train": "12"}).model_dump())
    yield b"\x04" + canonical(Abort(run="octa-1", reason="too few sites agreed").model_dump())
    yield b"\x01" + canonical(Withdrawal(run="octa-1", reason="a change of plans").model_dump())
    verdict = {"run": "octa-1", "round": 1, "site": "north", "status": "accepted", "score": "0.9", "tolerance": "0.3"}
    yield b"\x02" + canonical(Verdict(**verdict, theta=None, weight="1.0", reason="ok").model_dump())
    card = {
        "run": "octa-1",
        "task": "octa_segmentation",
        "method": "mean",
        "chosen_round": 1,
        "score_name": "dice_mean",
    }
    yield b"\x03" + canonical(
        FinalCard(**card, validation={"1": "0.5"}, took_part={"1": ["north"]}, reason="best").model_dump()
    )


def _yaml_records() -> Iterator[bytes]:
    run = run_configuration(
        privacy=Privacy(max_grad_norm=1.0, delta=1e-5, noise_multiplier=1.0), tolerance={"below_last": 0.1}
    )
    yield b"\x00" + dump_yaml(run)
    groups = {"control": TENSORS.tensors}
    sharing = Sharing(tensors=TENSORS.tensors, start={}, personal=["head.weight"], to_site=groups, trained=groups)
    yield b"\x01" + dump_yaml(sharing)
    yield b"\x02" + dump_yaml(round_configuration(run, 1, "north"))
    told = {"theta": 0.5, "status": "measured", "n": "40", "n_wrong": "9", "auroc": 0.7, "quantiles": None}
    yield b"\x03" + dump_yaml(Reliability.model_validate(told))


def _tensor_files() -> Iterator[bytes]:
    path = HOME / "seed"
    write_tensors(path, TENSORS, lambda name: np.full(TENSORS.tensors[name].shape, 0.5, np.float32))
    yield path.read_bytes()


def _frames() -> Iterator[bytes]:
    for content in (b"", b"hello", bytes(100_000), bytes(range(256)) * 40):
        yield len(content).to_bytes(3, "little") + zstd_frame.compress(content)


def _answers() -> Iterator[bytes]:
    document, refusal = multistatus({"": None, "f": 5}), dav_error("X", "Virus &amp; more")
    for asked, head in enumerate(
        (
            b"HTTP/1.1 207 Multi-Status\r\nContent-Length: %d\r\n\r\n" % len(document) + document,
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: x\r\n\r\nhello",
            b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-4/5\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"5\r\nhello\r\n0\r\n\r\n",
            b"HTTP/1.1 503 Busy\r\nRetry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\nDate: 5\r\nContent-Length: 0\r\n\r\n",
            b'HTTP/1.1 401 No\r\nWWW-Authenticate: Digest realm="x", nonce="y", qop="auth"\r\n\r\n',
            b"HTTP/1.1 302 Elsewhere\r\nLocation: http://127.0.0.1/\r\nSet-Cookie: a=b; path=/\r\n\r\n",
            b"HTTP/1.1 403 No\r\nContent-Length: %d\r\n\r\n" % len(refusal) + refusal,
        )
    ):
        yield bytes([asked]) + head


def _owncloud() -> Iterator[bytes]:
    share = {"id": "1", "share_type": 0, "permissions": 15, "share_with": "north", "file_target": "/drop", "state": 0}
    ok = {"status": "ok", "statuscode": 200, "message": None}
    status = {"installed": True, "maintenance": False, "versionstring": "10.16.0", "productname": "ownCloud"}
    yield b"\x00" + json.dumps(status).encode()
    for asked, data in enumerate(({"enabled": True, "quota": {"definition": "5 GB"}}, [share], share, []), 1):
        yield bytes([asked]) + json.dumps({"ocs": {"meta": ok, "data": data}}).encode()


def _certificates() -> Iterator[bytes]:
    key = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.ORGANIZATION_NAME, "hospital")])
    begins = datetime(2026, 11, 21)
    made = x509.CertificateBuilder(name, name, key.public_key(), 5, begins, begins + timedelta(days=9))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("drop.example")]), critical=False)
    yield made.sign(key, None).public_bytes(serialization.Encoding.DER)


INVITE = Invite(
    federation="retina",
    site="north",
    url="https://drop.example/north/",
    user="north",
    password=None,
    aggregator_key=KEY.public,
    enrolment_secret=DIGEST,
)
SEEDS: dict[str, list[bytes]] = {
    "name": [
        b"runs/octa-1/rounds/0001/from_site",
        b"runs/octa-1/offer",
        b"keys/0002.json",
        b"check-0123456789abcdef",
        b"state-control.safetensors",
    ],
    "manifest": list(_manifests()),
    "signed-record": list(_signed_records()),
    "json-record": list(_json_records()),
    "yaml-record": list(_yaml_records()),
    "yaml": [each[1:] for each in _yaml_records()] + [b"a: 1\nb:\n  - x: [1, 2.5, yes]\n    y: 'z'  # why\n"],
    "table": [
        write_metrics([MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5, "dice_std": 0.1})]),
        write_metrics(
            [MetricsRow(1, 0, "train", "fewer than 5", 0.1, None, {}), MetricsRow(1, 1, "test", "0", 1e-5, 2.0, {})]
        ),
    ],
    "tensor-file": list(_tensor_files()),
    "zstd-frame": list(_frames()),
    "encrypted-payload": [b"k\x00\xff\x03\x10", b"k\x03\x00", CONTENT_KEY * 4],
    "public-key": [KEY.public.encode() + KEY.sign({})[-130:-2]],
    "http-answer": list(_answers()),
    "multistatus": [b"\xff" + multistatus({"": None, "f": 5}), b"\x00" + multistatus({"": None})],
    "owncloud-json": list(_owncloud()),
    "certificate": list(_certificates()),
    "invite": [INVITE.model_dump_json(indent=2).encode()],
    "site-settings": [dump_yaml(settings_of(INVITE, data={"octa_segmentation": "images"}, url=None))],
    "pattern": [rb"(eye-[0-9]+)_(left|right)\.png", b"a{3,5}?"],
}
