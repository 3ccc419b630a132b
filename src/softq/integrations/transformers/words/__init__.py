"""What taggers and parsers on encoders of Transformers share: everything but head, labels and losses."""
