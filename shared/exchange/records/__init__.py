"""The contents of every record, by subject, as frozen, strictly checked models.

Numbers in JSON records are integers; floats travel as their shortest round-trip text (``DecimalText``), so that
canonical bytes do not depend on anybody's float printing. YAML records hold plain floats.
"""
