"""Processors that SGLang loads through ``SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE``."""
