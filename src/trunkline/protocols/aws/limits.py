"""The named limits of SQS and SNS, with their defaults: Amazon's, unless a comment says otherwise."""

from __future__ import annotations

from typing import Final, NamedTuple

MIB: Final = 1 << 20


class AwsLimits(NamedTuple):
    max_message_bytes: int = MIB  # body and attributes; what a queue may set at most, and has unless it sets less
    max_batch_entries: int = 10
    max_receive_messages: int = 10
    max_message_attributes: int = 10
    max_in_flight: int = 120_000  # of a queue; beyond it receives are refused
    max_visibility_s: int = 43_200
    max_wait_s: int = 20
    max_delay_s: int = 900
    max_tags: int = 50
    max_list_results: int = 1_000
    max_form_fields: int = 4_096  # ours: of a request in the Query protocol
    max_nesting: int = 32  # ours: of JSON in requests and policies
    max_attempts: int = 10_000  # ours: receive attempts of a queue that can be repeated by their id
    max_move_rate: int = 500  # messages a second
    max_move_tasks: int = 100  # at once, all queues together
    max_topics: int = 100_000
    max_subscriptions: int = 200_000  # of all topics; Amazon allows more of each
    max_filter_combinations: int = 150
    max_filter_bytes: int = 256 << 10
    max_http_deliveries: int = 64  # at once
    max_waiting_deliveries: int = 100_000  # to HTTP endpoints; beyond it publications are refused
