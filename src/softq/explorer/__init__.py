"""The page of `softq explore`: what a temperature does to targets on sentences and on classes.

`sentences` and `classes` compute, `charts` and ``templates/`` draw. `fields`, `page`, `gate`
and `server` need NiceGUI (the extra ``explore``) and are imported when the page starts.
"""
