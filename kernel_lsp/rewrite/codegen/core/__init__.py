"""Expression IR, iteration spaces, memory layouts, kernel and launch text: what the source of
every family shares."""
