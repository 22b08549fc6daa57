"""Element by element: operations as values of the IR, and the templates that visit every
element."""
