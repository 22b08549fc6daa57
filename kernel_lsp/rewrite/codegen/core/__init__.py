"""Expression IR, lowering, launch text: what the source of every family shares."""
