"""Rewrites of installed packages as patch modules of the workspace: a library's own files are
never written.

`making` turns a library's file and its rewritten text into a patch module and back, `store` finds,
places and pins them, `runtime` is what lies in the workspace and puts them into the library."""
