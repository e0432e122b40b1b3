import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;

/** Consumer groups in both protocols: partitions are shared, moved, resumed, and never held by two members. */
final class Groups {
    private static final int PARTITIONS = 4;

    private Groups() {}

    /** Makes the next member of a group. */
    private interface Membership {
        KafkaConsumer<String, String> member(World world, String group, Object... settings);
    }

    private static final Membership RANGE = (w, g, s) -> w.classicMember(g, "RangeAssignor", s);
    private static final Membership ROUND_ROBIN = (w, g, s) -> w.classicMember(g, "RoundRobinAssignor", s);
    private static final Membership COOPERATIVE = (w, g, s) -> w.classicMember(g, "CooperativeStickyAssignor", s);
    private static final Membership MODERN = World::modernMember;

    static void register(Map<String, Run.Scenario> scenarios) {
        scenarios.put("group_modern_shares_and_resumes", world -> shares(world, MODERN));
        scenarios.put("group_range_shares_and_resumes", world -> shares(world, RANGE));
        scenarios.put("group_roundrobin_shares_and_resumes", world -> shares(world, ROUND_ROBIN));
        scenarios.put("group_cooperative_shares_and_resumes", world -> shares(world, COOPERATIVE));
        scenarios.put("group_cooperative_moves_only_what_it_must", world -> incremental(world, COOPERATIVE));
        scenarios.put("group_modern_moves_only_what_it_must", world -> incremental(world, MODERN));
        scenarios.put("group_modern_range_assignor",
                world -> shares(world, (w, g, s) -> w.modernMember(g, "group.remote.assignor", "range")));
        scenarios.put("group_modern_regex", Groups::regex);
        scenarios.put("group_classic_pattern", Groups::pattern);
        scenarios.put("group_static_member_returns", Groups::staticMember);
        scenarios.put("group_static_member_fenced", Groups::staticFenced);
        scenarios.put("group_offsets_and_metadata", Groups::offsets);
        scenarios.put("group_auto_commit", Groups::autoCommit);
        scenarios.put("group_sees_new_partitions", Groups::newPartitions);
        scenarios.put("group_changes_protocol_when_empty", Groups::changesProtocol);
    }

    /** Two members divide the topic, one leaves, the other takes all; a later member goes on from the commits. */
    private static void shares(World world, Membership membership) throws Exception {
        String topic = world.topic("t", PARTITIONS);
        String group = world.name("g");
        world.fill(topic, PARTITIONS, 0, 200);
        Set<String> seen = new HashSet<>();
        KafkaConsumer<String, String> first = membership.member(world, group);
        first.subscribe(List.of(topic));
        world.until("the first member has everything", () -> take(first, seen), () -> first.assignment().size() == PARTITIONS);

        KafkaConsumer<String, String> second = membership.member(world, group);
        second.subscribe(List.of(topic));
        world.until("two members share", () -> {
            take(first, seen);
            take(second, seen);
        }, () -> first.assignment().size() == 2 && second.assignment().size() == 2);
        Set<TopicPartition> both = new HashSet<>(first.assignment());
        both.addAll(second.assignment());
        world.same(PARTITIONS, both.size(), "no partition is held by both");

        world.fill(topic, PARTITIONS, 200, 200);
        world.until("all records are seen", () -> {
            take(first, seen);
            take(second, seen);
        }, () -> seen.size() == 400);
        first.commitSync();
        second.commitSync();
        second.close();
        world.until("the one that stays takes over", () -> take(first, seen), () -> first.assignment().size() == PARTITIONS);
        first.commitSync();
        first.close();

        world.fill(topic, PARTITIONS, 400, 40);
        KafkaConsumer<String, String> later = membership.member(world, group);
        later.subscribe(List.of(topic));
        List<String> resumed = new ArrayList<>();
        world.until("the group resumes", () -> later.poll(World.POLL).forEach(r -> resumed.add(r.value())),
                () -> resumed.size() >= 40);
        world.holds(resumed.stream().allMatch(v -> Integer.parseInt(v) >= 400), "only records after the commits: " + resumed);
    }

    private static void take(KafkaConsumer<String, String> consumer, Set<String> seen) {
        for (ConsumerRecord<String, String> record : consumer.poll(World.POLL)) {
            seen.add(record.value());
        }
    }

    /** What each rebalance takes and gives, as the client's own listener hears it. */
    private static final class Moves implements ConsumerRebalanceListener {
        final List<TopicPartition> revoked = new ArrayList<>();
        final List<TopicPartition> lost = new ArrayList<>();

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.addAll(partitions);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            lost.addAll(partitions);
        }
    }

    private static void incremental(World world, Membership membership) throws Exception {
        String topic = world.topic("t", PARTITIONS);
        String group = world.name("g");
        Set<String> seen = new HashSet<>();
        Moves moves = new Moves();
        KafkaConsumer<String, String> first = membership.member(world, group);
        first.subscribe(List.of(topic), moves);
        world.until("the first member has everything", () -> take(first, seen), () -> first.assignment().size() == PARTITIONS);
        KafkaConsumer<String, String> second = membership.member(world, group);
        second.subscribe(List.of(topic));
        world.until("two members share", () -> {
            take(first, seen);
            take(second, seen);
        }, () -> first.assignment().size() == 2 && second.assignment().size() == 2);
        world.same(second.assignment(), new HashSet<>(moves.revoked), "only what moved was revoked");
        world.same(2, moves.revoked.size(), "each moved once");
        world.same(List.of(), moves.lost, "nothing was lost");
    }

    private static void regex(World world) throws Exception {
        String one = world.topic("red.1", 1);
        world.topic("blue.1", 1);
        KafkaConsumer<String, String> member = world.modernMember(world.name("g"));
        member.subscribe(new SubscriptionPattern(world.name("red") + "[.].*"));
        Set<String> seen = new HashSet<>();
        world.until("the topic that matches", () -> take(member, seen), () -> topics(member).equals(Set.of(one)));
        String two = world.topic("red.2", 1);
        world.until("a topic that comes later", () -> take(member, seen), () -> topics(member).equals(Set.of(one, two)));
    }

    private static void pattern(World world) throws Exception {
        String one = world.topic("red.1", 1);
        world.topic("blue.1", 1);
        KafkaConsumer<String, String> member = RANGE.member(world, world.name("g"));
        member.subscribe(java.util.regex.Pattern.compile(world.name("red") + "[.].*"));
        Set<String> seen = new HashSet<>();
        world.until("the topic that matches", () -> take(member, seen), () -> topics(member).equals(Set.of(one)));
        String two = world.topic("red.2", 1);
        world.until("a topic that comes later", () -> take(member, seen), () -> topics(member).equals(Set.of(one, two)));
    }

    private static Set<String> topics(KafkaConsumer<?, ?> member) {
        return member.assignment().stream().map(TopicPartition::topic).collect(Collectors.toSet());
    }

    private static void staticMember(World world) throws Exception {
        String topic = world.topic("t", PARTITIONS);
        String group = world.name("g");
        Set<String> seen = new HashSet<>();
        KafkaConsumer<String, String> stays = RANGE.member(world, group, "group.instance.id", "a", "session.timeout.ms", 30_000);
        KafkaConsumer<String, String> restarts = RANGE.member(world, group, "group.instance.id", "b", "session.timeout.ms", 30_000);
        stays.subscribe(List.of(topic));
        restarts.subscribe(List.of(topic));
        world.until("two members share", () -> {
            take(stays, seen);
            take(restarts, seen);
        }, () -> stays.assignment().size() == 2 && restarts.assignment().size() == 2);
        int generation = stays.groupMetadata().generationId();
        Set<TopicPartition> had = new HashSet<>(restarts.assignment());
        restarts.close();

        KafkaConsumer<String, String> back = RANGE.member(world, group, "group.instance.id", "b", "session.timeout.ms", 30_000);
        back.subscribe(List.of(topic));
        world.until("the member is back", () -> {
            take(stays, seen);
            take(back, seen);
        }, () -> !back.assignment().isEmpty());
        world.same(had, back.assignment(), "it has what it had");
        world.same(generation, stays.groupMetadata().generationId(), "the other saw no rebalance");
    }

    private static void staticFenced(World world) throws Exception {
        String topic = world.topic("t", 1);
        String group = world.name("g");
        Set<String> seen = new HashSet<>();
        // It must hear of it from its commit, not from a heartbeat before that: then it would know only that the group moved on.
        KafkaConsumer<String, String> old = RANGE.member(world, group, "group.instance.id", "a", "heartbeat.interval.ms", 3000);
        old.subscribe(List.of(topic));
        world.until("assigned", () -> take(old, seen), () -> old.assignment().size() == 1);
        KafkaConsumer<String, String> usurper = RANGE.member(world, group, "group.instance.id", "a");
        usurper.subscribe(List.of(topic));
        world.until("the second with the same id is in", () -> take(usurper, seen), () -> usurper.assignment().size() == 1);
        world.fails(FencedInstanceIdException.class, () -> {
            old.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(0)));
            return "committed";
        });
    }

    private static void offsets(World world) throws Exception {
        String topic = world.topic("t", 2);
        TopicPartition zero = new TopicPartition(topic, 0);
        TopicPartition one = new TopicPartition(topic, 1);
        world.fill(topic, 2, 0, 20);
        KafkaConsumer<String, String> alone = world.consumer("group.id", world.name("g"));
        alone.assign(List.of(zero, one));
        alone.commitSync(Map.of(zero, new OffsetAndMetadata(7, "half way, ½")));
        Map<TopicPartition, OffsetAndMetadata> committed = alone.committed(Set.of(zero, one));
        world.same(7L, committed.get(zero).offset(), "offset");
        world.same("half way, ½", committed.get(zero).metadata(), "metadata");
        world.same(null, committed.get(one), "nothing committed for the other");
        KafkaConsumer<String, String> other = world.consumer("group.id", world.name("another"));
        world.same(null, other.committed(Set.of(zero)).get(zero), "groups are independent");
        world.same(7L, alone.position(zero), "the group starts at its commit");
    }

    private static void autoCommit(World world) throws Exception {
        String topic = world.topic("t", 1);
        world.fill(topic, 1, 0, 50);
        KafkaConsumer<String, String> member =
                RANGE.member(world, world.name("g"), "enable.auto.commit", true, "auto.commit.interval.ms", 100);
        member.subscribe(List.of(topic));
        Set<String> seen = new HashSet<>();
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> watcher = world.consumer("group.id", world.name("g"));
        world.until("the commit follows the reading", () -> take(member, seen), () -> {
            OffsetAndMetadata committed = watcher.committed(Set.of(partition)).get(partition);
            return committed != null && committed.offset() == 50;
        });
        world.same(50, seen.size(), "every record once");
    }

    private static void newPartitions(World world) throws Exception {
        String topic = world.topic("t", 1);
        Set<String> seen = new HashSet<>();
        KafkaConsumer<String, String> classic = RANGE.member(world, world.name("classic"));
        KafkaConsumer<String, String> modern = MODERN.member(world, world.name("modern"));
        classic.subscribe(List.of(topic));
        modern.subscribe(List.of(topic));
        Runnable step = () -> {
            take(classic, seen);
            take(modern, seen);
        };
        world.until("assigned", step, () -> classic.assignment().size() == 1 && modern.assignment().size() == 1);
        World.got(world.admin().createPartitions(
                Map.of(topic, org.apache.kafka.clients.admin.NewPartitions.increaseTo(3))).all());
        world.until("both groups get them", step, () -> classic.assignment().size() == 3 && modern.assignment().size() == 3);
    }

    private static void changesProtocol(World world) throws Exception {
        String topic = world.topic("t", 1);
        String group = world.name("g");
        world.fill(topic, 1, 0, 10);
        long position = 0;
        for (Membership membership : List.of(RANGE, MODERN, COOPERATIVE)) {
            KafkaConsumer<String, String> member = membership.member(world, group, "max.poll.records", 1);
            member.subscribe(List.of(topic));
            List<Long> offsets = new ArrayList<>();
            world.until("one record", () -> member.poll(World.POLL).forEach(r -> offsets.add(r.offset())), () -> !offsets.isEmpty());
            world.same(position, offsets.get(0), "goes on from the commit of the other protocol");
            position = offsets.get(offsets.size() - 1) + 1;
            member.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(position)));
            member.close();
        }
    }
}
