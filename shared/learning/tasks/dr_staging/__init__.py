"""Staging of diabetic retinopathy in colour fundus photographs."""
