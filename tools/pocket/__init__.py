"""The pocket checkpoint: a small model in the MiMo-V2.5 schema, for laptops and tests."""
