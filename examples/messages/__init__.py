"""Messages from a broker: each published twice, its consumers killed at random, the work counted at the end.

`consumer.py` is the part to copy: a consumer of RabbitMQ behind a gate and an inbox, as a process of its own.
"""
