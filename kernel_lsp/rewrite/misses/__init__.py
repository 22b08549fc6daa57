"""Why skills decline: collected where they match, told where nothing can be offered."""
