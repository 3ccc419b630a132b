"""softq inside other libraries.

Each needs its extra, and is imported by its own name, such as `softq.integrations.transformers`.
"""
