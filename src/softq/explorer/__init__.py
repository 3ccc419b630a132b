"""What a temperature does, to be looked at: the numbers of `softq explore`, and the page that shows them.

`sentences` and `classes` compute, from what the rest of the library computes; `drawing` turns numbers into HTML, SVG and charts;
`sentence_tab`, `class_tab`, `page`, `gate` and `server` need NiceGUI (the extra ``explore``) and are imported when the page starts.
"""
