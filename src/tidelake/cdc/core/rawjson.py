"""JSON objects whose members stay texts, and the fields of Connect's schemas."""

import msgspec

MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
TEXT = msgspec.json.Decoder(str)
_FIELDS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def fields_of(struct: dict[str, msgspec.Raw]) -> list[tuple[str, dict[str, msgspec.Raw]]]:
    """The fields of a struct, by name."""
    fields = _FIELDS.decode(struct.get("fields", msgspec.Raw(b"[]")))
    return [(TEXT.decode(one.get("field", msgspec.Raw(b'""'))), one) for one in fields]
