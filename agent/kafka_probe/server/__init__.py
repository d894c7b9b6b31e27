"""The HTTP server of the agent: metrics, health and an API, in threads beside the capture loop.

The server gets the same events as the sink and owns the sums of them. Of the agent it reads only a snapshot of the open
connections and the time of the loop's last turn. It never changes the agent, and the capture loop never waits for it.
Its libraries are imported only where a server is created, so that an agent without a server does not load them.
"""

LOSSES = {"server_behind": "events missing in the HTTP server's sums, because its data thread fell behind"}
