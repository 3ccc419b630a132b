"""Models of sentences trained on candidates: from references to targets, steps and learners."""
