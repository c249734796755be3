"""Referable diabetic retinopathy from OCTA scans of three channels."""
