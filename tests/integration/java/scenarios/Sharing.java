import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Share groups: records are worked off together, given back, renewed and set aside. */
final class Sharing {
    private static final int PARTITIONS = 3;
    private static final long LOCK_MS = 15_000;

    private Sharing() {}

    static void register(Map<String, Run.Scenario> scenarios) {
        scenarios.put("share_renewed_records_stay_with_their_member", Sharing::renews);
        scenarios.put("share_members_work_off_a_topic", Sharing::worksOff);
        scenarios.put("share_release_and_reject", Sharing::releases);
        scenarios.put("share_record_limit_is_kept", Sharing::strictlyLimited);
        scenarios.put("share_read_committed", Sharing::committed);
        scenarios.put("share_group_is_described_moved_and_deleted", Sharing::administered);
    }

    private static String group(World world, String... settings) throws Exception {
        String group = world.name("g");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        List<AlterConfigOp> edits = new ArrayList<>();
        edits.add(new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET));
        for (int i = 0; i < settings.length; i += 2) {
            edits.add(new AlterConfigOp(new ConfigEntry(settings[i], settings[i + 1]), AlterConfigOp.OpType.SET));
        }
        World.got(world.admin().incrementalAlterConfigs(Map.of(resource, edits)).all());
        return group;
    }

    private static KafkaShareConsumer<String, String> member(World world, String group, String topic, String... settings) {
        Map<String, Object> config = new HashMap<>(Map.of(
                "bootstrap.servers", world.bootstrap, "group.id", group, "fetch.max.wait.ms", 100, "retry.backoff.ms", 20));
        for (int i = 0; i < settings.length; i += 2) {
            config.put(settings[i], settings[i + 1]);
        }
        KafkaShareConsumer<String, String> member =
                world.keep(new KafkaShareConsumer<>(config, new StringDeserializer(), new StringDeserializer()));
        member.subscribe(List.of(topic));
        return member;
    }

    private static KafkaShareConsumer<String, String> explicit(World world, String group, String topic) {
        return member(world, group, topic, "share.acknowledgement.mode", "explicit");
    }

    private static List<Integer> numbers(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(r -> Integer.parseInt(r.value())).sorted().toList();
    }

    private static void settled(World world, Map<TopicIdPartition, Optional<KafkaException>> results) {
        world.holds(results.values().stream().allMatch(Optional::isEmpty), "acknowledged without errors: " + results);
    }

    private static void worksOff(World world) throws Exception {
        String topic = world.topic("t", PARTITIONS);
        String group = group(world);
        world.fill(topic, PARTITIONS, 0, 600);
        List<KafkaShareConsumer<String, String>> members = List.of(member(world, group, topic), member(world, group, topic));
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        world.until("all records are seen", () -> {
            for (KafkaShareConsumer<String, String> each : members) {
                each.poll(World.POLL).forEach(found::add);
            }
        }, () -> found.size() >= 600);
        for (KafkaShareConsumer<String, String> each : members) {
            settled(world, each.commitSync(World.DEADLINE));
        }
        world.same(java.util.stream.IntStream.range(0, 600).boxed().toList(), numbers(found), "each record once");
        world.holds(found.stream().allMatch(r -> r.deliveryCount().orElse((short) 0) == 1), "delivered once");
    }

    private static void releases(World world) throws Exception {
        String topic = world.topic("t", 1);
        String group = group(world);
        world.fill(topic, 1, 0, 30);
        KafkaShareConsumer<String, String> member = explicit(world, group, topic);
        Map<Integer, Integer> deliveries = new TreeMap<>();
        Set<Integer> accepted = new HashSet<>();
        world.until("what was released comes again until it is accepted", () -> {
            for (ConsumerRecord<String, String> record : member.poll(World.POLL)) {
                int number = Integer.parseInt(record.value());
                deliveries.merge(number, 1, Integer::sum);
                world.same((short) (int) deliveries.get(number), record.deliveryCount().orElse((short) 0), "the count of " + number);
                if (number % 3 == 0) {
                    member.acknowledge(record, AcknowledgeType.REJECT);
                } else if (number % 3 == 1 && deliveries.get(number) == 1) {
                    member.acknowledge(record, AcknowledgeType.RELEASE);
                } else {
                    member.acknowledge(record, AcknowledgeType.ACCEPT);
                    accepted.add(number);
                }
            }
            settled(world, member.commitSync(World.DEADLINE));
        }, () -> accepted.size() == 20);
        world.holds(deliveries.entrySet().stream().allMatch(e -> e.getValue() == (e.getKey() % 3 == 1 ? 2 : 1)),
                "each as often as it was asked for: " + deliveries);
    }

    private static void strictlyLimited(World world) throws Exception {
        String topic = world.topic("t", 1);
        String group = group(world);
        KafkaProducer<String, String> producer = world.producer("linger.ms", 200);
        for (int i = 0; i < 100; i++) {
            producer.send(new ProducerRecord<>(topic, "" + i));
        }
        producer.flush();
        KafkaShareConsumer<String, String> member =
                member(world, group, topic, "max.poll.records", "7", "share.acquire.mode", "record_limit");
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        world.until("all records are seen", () -> {
            int before = found.size();
            member.poll(World.POLL).forEach(found::add);
            world.holds(found.size() - before <= 7, "at most seven at once");
        }, () -> found.size() >= 100);
        world.same(java.util.stream.IntStream.range(0, 100).boxed().toList(), numbers(found), "each record once");
    }

    /** A record whose lock is renewed is not given to others, however long it takes. */
    private static void renews(World world) throws Exception {
        String topic = world.topic("t", 1);
        String group = group(world, "share.record.lock.duration.ms", "" + LOCK_MS);
        world.fill(topic, 1, 0, 2);
        KafkaShareConsumer<String, String> member = explicit(world, group, topic);
        List<ConsumerRecord<String, String>> held = new ArrayList<>();
        world.until("two records", () -> member.poll(World.POLL).forEach(held::add), () -> held.size() == 2);
        world.same(Optional.of((int) LOCK_MS), member.acquisitionLockTimeoutMs(), "how long a lock lasts");
        long begun = System.nanoTime();
        List<Long> renewedAt = new ArrayList<>();
        KafkaShareConsumer<String, String> other = member(world, group, topic);
        List<ConsumerRecord<String, String>> lost = new ArrayList<>();
        world.until("the lock would have ended", () -> {
            long ms = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
            if (ms / 5000 > renewedAt.size()) {
                renewedAt.add(ms);
                held.forEach(record -> member.acknowledge(record, AcknowledgeType.RENEW));
                settled(world, member.commitSync(World.DEADLINE));
                member.poll(World.POLL);
            }
            other.poll(World.POLL).forEach(lost::add);
        }, () -> System.nanoTime() - begun > Duration.ofMillis(LOCK_MS + 4000).toNanos());
        world.same(List.of(), lost, "nobody else gets what is renewed");
        held.forEach(record -> member.acknowledge(record, AcknowledgeType.ACCEPT));
        settled(world, member.commitSync(World.DEADLINE));
    }

    private static void committed(World world) throws Exception {
        String topic = world.topic("t", 1);
        String group = group(world, "share.isolation.level", "read_committed");
        KafkaProducer<String, String> producer = world.transactional(world.name("id"));
        for (int i = 0; i < 6; i++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "" + i));
            producer.send(new ProducerRecord<>(topic, "" + i));
            producer.flush();
            if (i % 2 == 1) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
            }
        }
        KafkaShareConsumer<String, String> member = member(world, group, topic);
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        world.until("what was committed", () -> member.poll(World.POLL).forEach(found::add), () -> found.size() >= 6);
        member.poll(World.POLL).forEach(found::add);
        world.same(List.of(0, 0, 2, 2, 4, 4), numbers(found), "only that");
    }

    private static void administered(World world) throws Exception {
        String topic = world.topic("t", 2);
        String group = group(world);
        world.fill(topic, 2, 0, 20);
        KafkaShareConsumer<String, String> member = member(world, group, topic);
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        world.until("all records are seen", () -> member.poll(World.POLL).forEach(found::add), () -> found.size() >= 20);
        settled(world, member.commitSync(World.DEADLINE));

        ShareGroupDescription described =
                World.got(world.admin().describeShareGroups(List.of(group)).describedGroups().get(group));
        world.same(GroupState.STABLE, described.groupState(), "its state");
        world.same(1, described.members().size(), "its members");
        world.same(2, described.members().iterator().next().assignment().topicPartitions().size(), "their partitions");
        List<GroupListing> listed = World.got(world.admin().listGroups().all()).stream()
                .filter(each -> each.groupId().equals(group)).toList();
        world.same(Optional.of(GroupType.SHARE), listed.get(0).type(), "its type in the list");
        // Apache Kafka moves the start that it keeps, and tells, some time later.
        world.same(List.of(0L, 0L), standing(world, group).values().stream().map(info -> info.lag().orElse(-1L)).toList(), "nothing is left");
        world.fails(GroupNotEmptyException.class, () -> World.got(
                world.admin().alterShareGroupOffsets(group, Map.of(new TopicPartition(topic, 0), 0L)).all()));
        world.fails(GroupNotEmptyException.class, () -> World.got(world.admin().deleteShareGroups(List.of(group)).all()));

        member.close();
        world.until("it is empty", World::pause, () -> {
            try {
                return World.got(world.admin().describeShareGroups(List.of(group)).describedGroups().get(group)).groupState() == GroupState.EMPTY;
            } catch (Exception notYet) {
                return false;
            }
        });
        World.got(world.admin().alterShareGroupOffsets(group, Map.of(new TopicPartition(topic, 0), 3L)).all());
        world.same(3L, standing(world, group).get(new TopicPartition(topic, 0)).startOffset(), "where it stands now");
        World.got(world.admin().deleteShareGroupOffsets(group, Set.of(topic)).all());
        world.same(Map.of(), standing(world, group), "it has nothing of the topic any more");
        World.got(world.admin().deleteShareGroups(List.of(group)).all());
        world.holds(World.got(world.admin().listGroups().all()).stream().noneMatch(each -> each.groupId().equals(group)), "it is gone");
    }

    private static Map<TopicPartition, SharePartitionOffsetInfo> standing(World world, String group) throws Exception {
        Map<TopicPartition, SharePartitionOffsetInfo> found = new HashMap<>(World.got(world.admin()
                .listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group)));
        found.values().removeIf(info -> info == null);
        return found;
    }
}
