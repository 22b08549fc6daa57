"""What a team shares: skills and policies in releases, tuned parameters, and what they are worth.

`membership` is what every process reads (no SQL); `registry` talks to the team's PostgreSQL,
`objects` to its folder of files, `syncing` brings both to this machine and back."""
