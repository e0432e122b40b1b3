import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/** Every administrative call of the Java client that a single-node cluster answers. */
final class Administration {
    private Administration() {}

    static void register(Map<String, Run.Scenario> scenarios) {
        scenarios.put("admin_topics", Administration::topics);
        scenarios.put("admin_topic_refusals", Administration::refusals);
        scenarios.put("admin_partitions", Administration::partitions);
        scenarios.put("admin_describe_topics_in_pages", Administration::pages);
        scenarios.put("admin_topic_configs", Administration::topicConfigs);
        scenarios.put("admin_broker_configs", Administration::brokerConfigs);
        scenarios.put("admin_groups", Administration::groups);
        scenarios.put("admin_group_offsets", Administration::groupOffsets);
        scenarios.put("admin_remove_members", Administration::removeMembers);
        scenarios.put("admin_list_offsets", Administration::listOffsets);
        scenarios.put("admin_delete_records", Administration::deleteRecords);
        scenarios.put("admin_cluster", Administration::cluster);
        scenarios.put("admin_log_dirs", Administration::logDirs);
        scenarios.put("admin_leaders_and_reassignments", Administration::leaders);
        scenarios.put("admin_acls", Administration::acls);
    }

    private static void topics(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 3, Map.of("retention.ms", "123456"));
        world.holds(World.got(admin.listTopics().names()).contains(topic), "listed");
        world.holds(!World.got(admin.listTopics().names()).contains("__consumer_offsets"), "internal topics are not listed");
        world.holds(World.got(admin.listTopics(new ListTopicsOptions().listInternal(true)).names()).contains(topic), "listed with internal");
        TopicDescription described = World.got(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
        world.same(3, described.partitions().size(), "partitions");
        world.same(1, described.partitions().get(0).replicas().size(), "replicas");
        world.same(described.partitions().get(0).replicas(), described.partitions().get(0).isr(), "in-sync replicas");
        TopicDescription byId = World.got(admin.describeTopics(TopicCollection.ofTopicIds(List.of(described.topicId()))).allTopicIds())
                .get(described.topicId());
        world.same(topic, byId.name(), "found by its id");

        World.got(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(described.topicId()))).all());
        world.until("it is gone", World::pause, () -> gone(admin, topic));
        World.got(admin.createTopics(List.of(new NewTopic(topic, Optional.of(2), Optional.empty()))).all());
        world.until("a topic of the same name may come", World::pause, () -> !gone(admin, topic));
        TopicDescription again = World.got(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
        world.holds(!again.topicId().equals(described.topicId()), "with an id of its own");
        World.got(admin.deleteTopics(List.of(topic)).all());
        world.until("deleted by name", World::pause, () -> gone(admin, topic));
        world.fails(UnknownTopicIdException.class,
                () -> World.got(admin.describeTopics(TopicCollection.ofTopicIds(List.of(described.topicId()))).allTopicIds()));
    }

    private static boolean gone(Admin admin, String topic) {
        try {
            World.got(admin.describeTopics(List.of(topic)).allTopicNames());
            return false;
        } catch (UnknownTopicOrPartitionException unknown) {
            return true;
        } catch (Exception other) {
            throw new AssertionError(other);
        }
    }

    private static void refusals(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 1);
        world.fails(TopicExistsException.class, () -> create(admin, new NewTopic(topic, 1, (short) 1)));
        world.fails(InvalidReplicationFactorException.class, () -> create(admin, new NewTopic(world.name("r"), 1, (short) 3)));
        world.fails(InvalidPartitionsException.class, () -> create(admin, new NewTopic(world.name("p"), 0, (short) 1)));
        world.fails(InvalidTopicException.class, () -> create(admin, new NewTopic("not a topic!", 1, (short) 1)));
        world.fails(InvalidTopicException.class, () -> create(admin, new NewTopic("x".repeat(250), 1, (short) 1)));
        world.fails(InvalidConfigurationException.class,
                () -> create(admin, new NewTopic(world.name("c"), 1, (short) 1).configs(Map.of("no.such.setting", "1"))));
        world.fails(InvalidConfigurationException.class,
                () -> create(admin, new NewTopic(world.name("c"), 1, (short) 1).configs(Map.of("retention.ms", "soon"))));
        String tried = world.name("tried");
        World.got(admin.createTopics(List.of(new NewTopic(tried, 1, (short) 1)), new CreateTopicsOptions().validateOnly(true)).all());
        world.holds(gone(admin, tried), "validate-only creates nothing");
        world.fails(UnknownTopicOrPartitionException.class, () -> World.got(admin.deleteTopics(List.of(tried)).all()));
    }

    private static Object create(Admin admin, NewTopic topic) throws Exception {
        World.got(admin.createTopics(List.of(topic)).all());
        return "created";
    }

    private static void partitions(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 1);
        World.got(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all());
        world.until("it grows", World::pause, () -> count(admin, topic) == 4);
        world.fails(InvalidPartitionsException.class,
                () -> World.got(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all()));
        world.fails(UnknownTopicOrPartitionException.class,
                () -> World.got(admin.createPartitions(Map.of(world.name("none"), NewPartitions.increaseTo(2))).all()));
        world.fill(topic, 4, 0, 8);
        world.same(8, world.read(topic, 4, "read_uncommitted").size(), "records in old and new partitions");
    }

    private static int count(Admin admin, String topic) {
        try {
            return World.got(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().size();
        } catch (Exception failed) {
            throw new AssertionError(failed);
        }
    }

    private static void pages(World world) throws Exception {
        String one = world.topic("one", 5);
        String two = world.topic("two", 5);
        Map<String, TopicDescription> described = World.got(world.admin()
                .describeTopics(List.of(one, two), new DescribeTopicsOptions().partitionSizeLimitPerResponse(3)).allTopicNames());
        for (String topic : List.of(one, two)) {
            List<Integer> ids = described.get(topic).partitions().stream().map(p -> p.partition()).sorted().toList();
            world.same(List.of(0, 1, 2, 3, 4), ids, "every partition of " + topic + " over several pages");
        }
    }

    private static void topicConfigs(World world) throws Exception {
        Admin admin = world.admin();
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, world.topic("t", 1, Map.of("segment.bytes", "1048576")));
        Config config = World.got(admin.describeConfigs(List.of(topic)).all()).get(topic);
        world.same("1048576", config.get("segment.bytes").value(), "set at creation");
        world.same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config.get("segment.bytes").source(), "its source");
        world.same(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.get("cleanup.policy").source(), "source of a default");
        world.same("delete", config.get("cleanup.policy").value(), "a default");

        alter(admin, topic, Map.of("retention.ms", "60000"), OpType.SET);
        alter(admin, topic, Map.of("cleanup.policy", "compact"), OpType.APPEND);
        world.until("altered", World::pause, () -> value(admin, topic, "retention.ms").equals("60000")
                && Set.of(value(admin, topic, "cleanup.policy").split(",")).equals(Set.of("delete", "compact")));
        alter(admin, topic, Map.of("cleanup.policy", "delete"), OpType.SUBTRACT);
        alter(admin, topic, Map.of("retention.ms", ""), OpType.DELETE);
        world.until("back", World::pause, () -> value(admin, topic, "retention.ms").equals("604800000")
                && value(admin, topic, "cleanup.policy").equals("compact"));
        world.fails(InvalidConfigurationException.class, () -> alter(admin, topic, Map.of("retention.ms", "x"), OpType.SET));
        ConfigResource none = new ConfigResource(ConfigResource.Type.TOPIC, world.name("none"));
        world.fails(UnknownTopicOrPartitionException.class, () -> World.got(admin.describeConfigs(List.of(none)).all()));
        Collection<ConfigResource> listed =
                World.got(admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new org.apache.kafka.clients.admin.ListConfigResourcesOptions()).all());
        world.holds(listed.contains(topic), "listed among the configured resources");
    }

    private static Object alter(Admin admin, ConfigResource resource, Map<String, String> values, OpType operation) throws Exception {
        List<AlterConfigOp> changes = values.entrySet().stream()
                .map(e -> new AlterConfigOp(new ConfigEntry(e.getKey(), e.getValue()), operation)).toList();
        World.got(admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
        return "altered";
    }

    private static String value(Admin admin, ConfigResource resource, String name) {
        try {
            return World.got(admin.describeConfigs(List.of(resource)).all()).get(resource).get(name).value();
        } catch (Exception failed) {
            throw new AssertionError(failed);
        }
    }

    private static void brokerConfigs(World world) throws Exception {
        String id = "" + World.got(world.admin().describeCluster().nodes()).iterator().next().id();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
        Config config = World.got(world.admin().describeConfigs(List.of(broker)).all()).get(broker);
        world.holds(!config.entries().isEmpty(), "a broker has settings");
        for (String name : List.of("log.retention.ms", "message.max.bytes", "auto.create.topics.enable", "num.partitions", "node.id")) {
            world.holds(config.get(name) != null, "setting " + name + " is shown");
        }
    }

    private static void groups(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 2);
        for (GroupType type : List.of(GroupType.CLASSIC, GroupType.CONSUMER)) {
            String group = world.name("g-" + type);
            KafkaConsumer<String, String> member =
                    type == GroupType.CLASSIC ? world.classicMember(group, "RangeAssignor") : world.modernMember(group);
            member.subscribe(List.of(topic));
            world.until("assigned", () -> member.poll(World.POLL), () -> member.assignment().size() == 2);
            member.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(0)));
            GroupListing listed = World.got(admin.listGroups().all()).stream()
                    .filter(g -> g.groupId().equals(group)).findFirst().orElseThrow();
            world.same(Optional.of(type), listed.type(), "type of " + group);
            world.until("the group is stable", () -> member.poll(World.POLL), () -> described(admin, group).groupState() == GroupState.STABLE);
            ConsumerGroupDescription description = described(admin, group);
            world.same(1, description.members().size(), "members");
            world.same(Set.copyOf(World.partitions(topic, 2)),
                    description.members().iterator().next().assignment().topicPartitions(), "assignment");
            world.holds(description.members().iterator().next().host().contains("127.0.0.1"), "the member's host");
            world.fails(GroupNotEmptyException.class, () -> World.got(admin.deleteConsumerGroups(List.of(group)).all()));
            world.fails(GroupSubscribedToTopicException.class, () -> World.got(
                    admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(topic, 0))).all()));
            member.close();
            world.until("empty", World::pause, () -> described(admin, group).groupState() == GroupState.EMPTY);
            World.got(admin.deleteConsumerGroups(List.of(group)).all());
            world.fails(GroupIdNotFoundException.class, () -> World.got(admin.deleteConsumerGroups(List.of(group)).all()));
            world.holds(World.got(admin.listGroups().all()).stream().noneMatch(g -> g.groupId().equals(group)), "no longer listed");
        }
    }

    private static ConsumerGroupDescription described(Admin admin, String group) {
        try {
            return World.got(admin.describeConsumerGroups(List.of(group)).all()).get(group);
        } catch (Exception failed) {
            throw new AssertionError(failed);
        }
    }

    private static void groupOffsets(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 2);
        String group = world.name("g");
        TopicPartition zero = new TopicPartition(topic, 0);
        TopicPartition one = new TopicPartition(topic, 1);
        World.got(admin.alterConsumerGroupOffsets(group, Map.of(zero, new OffsetAndMetadata(3), one, new OffsetAndMetadata(4, "m"))).all());
        Map<TopicPartition, OffsetAndMetadata> offsets = World.got(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        world.same(Set.of(zero, one), offsets.keySet(), "partitions");
        world.same(3L, offsets.get(zero).offset(), "offset");
        world.same("m", offsets.get(one).metadata(), "metadata");
        World.got(admin.deleteConsumerGroupOffsets(group, Set.of(one)).all());
        world.same(Set.of(zero), World.got(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).keySet(), "after one is deleted");
        World.got(admin.deleteTopics(List.of(topic)).all());
        world.until("a deleted topic takes its offsets along", World::pause, () -> {
            try {
                return World.got(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata()).isEmpty();
            } catch (GroupIdNotFoundException alsoRight) {
                return true;
            } catch (Exception failed) {
                throw new AssertionError(failed);
            }
        });
    }

    private static void removeMembers(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 1);
        String group = world.name("g");
        KafkaConsumer<String, String> member = world.classicMember(group, "RangeAssignor", "group.instance.id", "fixed");
        member.subscribe(List.of(topic));
        world.until("assigned", () -> member.poll(World.POLL), () -> member.assignment().size() == 1);
        member.close(); // a static member stays until its session ends
        world.same(1, described(admin, group).members().size(), "a closed static member is still there");
        World.got(admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all());
        world.until("removed", World::pause, () -> described(admin, group).members().isEmpty());
    }

    private static void listOffsets(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = world.producer();
        long[] times = {1_000_000, 3_000_000, 2_000_000};
        for (long time : times) {
            producer.send(new ProducerRecord<>(topic, 0, time, "k", "v")).get();
        }
        world.same(0L, offset(admin, partition, OffsetSpec.earliest()).offset(), "earliest");
        world.same(3L, offset(admin, partition, OffsetSpec.latest()).offset(), "latest");
        ListOffsetsResultInfo newest = offset(admin, partition, OffsetSpec.maxTimestamp());
        world.same(1L, newest.offset(), "offset of the largest timestamp");
        world.same(3_000_000L, newest.timestamp(), "the largest timestamp");
        world.same(1L, offset(admin, partition, OffsetSpec.forTimestamp(1_500_000)).offset(), "by time");
        world.same(-1L, offset(admin, partition, OffsetSpec.forTimestamp(4_000_000)).offset(), "by a time after all");
        world.same(0L, offset(admin, partition, OffsetSpec.earliestLocal()).offset(), "earliest local");
    }

    private static ListOffsetsResultInfo offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return World.got(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition));
    }

    private static void deleteRecords(World world) throws Exception {
        Admin admin = world.admin();
        String topic = world.topic("t", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        world.fill(topic, 1, 0, 20);
        world.same(7L, World.got(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(7))).lowWatermarks().get(partition)).lowWatermark(), "low watermark");
        world.same(7L, offset(admin, partition, OffsetSpec.earliest()).offset(), "earliest");
        List<String> values = World.values(world.read(topic, 1, "read_uncommitted"));
        world.same("7", values.get(0), "first record that is left");
        world.same(13, values.size(), "records that are left");
        world.fails(OffsetOutOfRangeException.class, () -> World.got(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(100))).all()));
        World.got(admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1))).all());
        world.same(20L, offset(admin, partition, OffsetSpec.earliest()).offset(), "all deleted");
    }

    private static void cluster(World world) throws Exception {
        DescribeClusterResult cluster = world.admin().describeCluster();
        world.same(1, World.got(cluster.nodes()).size(), "nodes");
        world.holds(!World.got(cluster.clusterId()).isBlank(), "cluster id");
        world.holds(World.got(cluster.controller()) != null, "controller");
        String address = World.got(cluster.nodes()).iterator().next().host() + ":" + World.got(cluster.nodes()).iterator().next().port();
        world.same(world.bootstrap.replace("localhost", "127.0.0.1"), address.replace("localhost", "127.0.0.1"), "advertised address");
        FeatureMetadata features = World.got(world.admin().describeFeatures().featureMetadata());
        world.holds(features.finalizedFeatures() != null, "features");
    }

    private static void logDirs(World world) throws Exception {
        String topic = world.topic("t", 2);
        world.fill(topic, 2, 0, 100);
        int id = World.got(world.admin().describeCluster().nodes()).iterator().next().id();
        Map<String, LogDirDescription> directories = World.got(world.admin().describeLogDirs(List.of(id)).allDescriptions()).get(id);
        Set<TopicPartition> found = new HashSet<>();
        long bytes = 0;
        for (LogDirDescription directory : directories.values()) {
            world.same(null, directory.error(), "no error");
            world.holds(directory.totalBytes().orElse(0) > 0, "size of the volume");
            for (TopicPartition partition : World.partitions(topic, 2)) {
                if (directory.replicaInfos().containsKey(partition)) {
                    found.add(partition);
                    bytes += directory.replicaInfos().get(partition).size();
                }
            }
        }
        world.same(Set.copyOf(World.partitions(topic, 2)), found, "partitions");
        world.holds(bytes > 0, "bytes");
    }

    private static void leaders(World world) throws Exception {
        String topic = world.topic("t", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<TopicPartition, Optional<Throwable>> elected =
                World.got(world.admin().electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions());
        Throwable answer = elected.get(partition).orElse(null);
        world.holds(answer instanceof ElectionNotNeededException, "the leader is the preferred one already: " + answer);
        world.same(Map.of(), World.got(world.admin().listPartitionReassignments(Set.of(partition)).reassignments()), "reassignments");
    }

    private static void acls(World world) throws Exception {
        Admin admin = world.admin();
        ResourcePattern topics = new ResourcePattern(ResourceType.TOPIC, world.name("acl"), PatternType.PREFIXED);
        AccessControlEntry reads = new AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW);
        AclBinding binding = new AclBinding(topics, reads);
        try {
            World.got(admin.createAcls(Set.of(binding)).all());
        } catch (SecurityDisabledException error) {
            return; // an Apache Kafka without an authorizer
        }
        AclBindingFilter about = new AclBindingFilter(topics.toFilter(), AccessControlEntryFilter.ANY);
        world.same(Set.of(binding), Set.copyOf(World.got(admin.describeAcls(about).values())), "the rule that was made is described");
        world.same(Set.of(binding), Set.copyOf(World.got(admin.deleteAcls(Set.of(about)).all())), "the rule that was removed is told");
        world.holds(World.got(admin.describeAcls(about).values()).isEmpty(), "a rule that was removed is gone");
    }
}
