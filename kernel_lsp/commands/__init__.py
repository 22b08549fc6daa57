"""One file per command: read the arguments, call a stage or the pipeline, print. No logic of their
own."""
