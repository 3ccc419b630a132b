"""The laboratory: recipes, runs, and what an experiment needs."""
