"""How far annotators agree, and how reliable each of them is."""
