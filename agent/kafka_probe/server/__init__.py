"""The agent watched: metrics, health and an API over HTTP, from a thread of its own beside the capture loop.

It is fed by the events that go to the sink and owns all that it sums from them; of the agent it reads a snapshot of the
open connections and the time of the loop's last turn. It never changes anything, and the capture loop never waits for
it. The libraries behind it are imported where a server is made, so that nobody else pays for them.
"""

LOSSES = {"server_behind": "events that the HTTP server's sums lack, because its thread fell behind: see `--cpu-limit`"}
