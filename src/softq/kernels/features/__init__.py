"""Features of words and arcs, and the linear chain over them."""
