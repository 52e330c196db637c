"""Model classes that SGLang loads through ``SGLANG_EXTERNAL_MODEL_PACKAGE``.

Naming a package there also spares SGLang the import of its own three hundred models.
"""
