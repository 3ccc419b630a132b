"""Token sequences: n-gram matches, edits, hashes, and the samplers that change a reference."""
