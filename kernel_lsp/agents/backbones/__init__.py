"""Language models behind one protocol (`records.Backbone`): what answers a prompt."""
