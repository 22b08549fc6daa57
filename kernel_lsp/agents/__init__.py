"""propose(): who decides which skills are applied where. The language-model agents join here."""
