"""Programs of many producers of one library in one process, which take commands from standard input.

    program CLIENT_ID COUNT TOPIC [NAME=VALUE ...]      the library's own settings, under its own names

Orders, a line each: `send BYTES`, every producer sends a record of that size and waits until it was delivered or given
up; `stop`, all are closed in order and the program ends; `leave`, the program ends without closing anything. It answers
`done` when the producers are made and after each `send`. Each error of a producer is a line on standard error.
"""
