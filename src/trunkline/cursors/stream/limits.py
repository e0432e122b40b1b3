"""Every bound of the group coordinator, with Kafka's name for it where Kafka has one."""

from __future__ import annotations

from typing import NamedTuple

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class GroupLimits(NamedTuple):
    max_groups: int = 100_000
    max_id_chars: int = 8_000  # of group, member, client, instance ids and names: with a suffix, still a Kafka string
    max_members_per_group: int = 10_000  # group.max.size and group.consumer.max.size
    max_member_metadata_bytes: int = 1 << 20  # all the protocols of one classic member together
    max_group_metadata_bytes: int = 16 << 20  # … and of all members of a classic group
    max_assignment_bytes: int = 8 << 20  # all assignments of one classic generation together
    max_journal_backlog_records: int = 1_000_000  # waiting to be written; more are refused, and clients try again
    max_batch_bytes: int = 16 << 20  # max.message.bytes of __consumer_offsets: one classic group must fit

    # classic protocol
    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 30 * MINUTE_MS  # group.max.session.timeout.ms
    # group.initial.rebalance.delay.ms. Kafka waits 3 s for a group to fill up; a lone consumer then waits for nothing.
    # With 0, members that start together cost one short rebalance each instead.
    initial_rebalance_delay_ms: int = 0
    new_member_join_timeout_ms: int = 5 * MINUTE_MS  # a joined member whose group never gets ready is let go

    # consumer protocol (KIP-848)
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_metadata_refresh_ms: int = 5_000  # how late a group may notice topics when nobody calls topics_changed()
    max_rebalance_timeout_ms: int = 24 * 60 * MINUTE_MS
    max_subscribed_topics: int = 10_000
    max_pattern_chars: int = 1_000

    # share groups (KIP-932); their other defaults are those of their settings
    max_share_group_members: int = 200  # group.share.max.size
    share_session_timeout_ms: int = 45_000  # group.share.session.timeout.ms
    share_heartbeat_interval_ms: int = 5_000  # group.share.heartbeat.interval.ms

    # offsets
    max_offset_metadata_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * DAY_MS  # offsets.retention.minutes
    offsets_retention_check_ms: int = 10 * MINUTE_MS  # offsets.retention.check.interval.ms
    expiry_groups_per_turn: int = 500  # a sweep over many groups yields to the event loop in between
