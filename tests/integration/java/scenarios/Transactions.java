import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/** Transactions: all or nothing, in records and in offsets, and one producer at a time for each transactional id. */
final class Transactions {
    private Transactions() {}

    static void register(Map<String, Run.Scenario> scenarios) {
        scenarios.put("transaction_timeout_aborts", Transactions::timeout);
        scenarios.put("transaction_commit_and_abort", Transactions::commitAndAbort);
        scenarios.put("transaction_read_process_write", world -> readProcessWrite(world, false));
        scenarios.put("transaction_read_process_write_modern_group", world -> readProcessWrite(world, true));
        scenarios.put("transaction_fences_older_producer", Transactions::fencing);
        scenarios.put("transaction_holds_back_read_committed", Transactions::lastStable);
        scenarios.put("transaction_offsets_alone", Transactions::offsetsAlone);
        scenarios.put("transaction_many_partitions_many_rounds", Transactions::rounds);
        scenarios.put("transaction_of_many_batches_in_flight", Transactions::manyInFlight);
        scenarios.put("transaction_admin", Transactions::admin);
        scenarios.put("transaction_fence_by_admin", Transactions::fencedByAdmin);
    }

    private static void commitAndAbort(World world) throws Exception {
        String topic = world.topic("t", 2);
        KafkaProducer<String, String> producer = world.transactional(world.name("x"));
        for (int i = 0; i < 6; i++) {
            producer.beginTransaction();
            for (int p = 0; p < 2; p++) {
                producer.send(new ProducerRecord<>(topic, p, "k", (i % 2 == 0 ? "commit-" : "abort-") + i));
            }
            producer.flush();
            if (i % 2 == 0) {
                producer.commitTransaction();
            } else {
                producer.abortTransaction();
            }
        }
        for (int p = 0; p < 2; p++) {
            int partition = p;
            List<ConsumerRecord<String, String>> committed = world.read(topic, 2, "read_committed");
            world.same(List.of("commit-0", "commit-2", "commit-4"),
                    World.values(committed.stream().filter(r -> r.partition() == partition).toList()), "read_committed");
            List<ConsumerRecord<String, String>> all = world.read(topic, 2, "read_uncommitted");
            world.same(List.of("commit-0", "abort-1", "commit-2", "abort-3", "commit-4", "abort-5"),
                    World.values(all.stream().filter(r -> r.partition() == partition).toList()), "read_uncommitted");
        }
    }

    /** Each round reads, writes and commits the offsets in one transaction; every third is aborted and done again. */
    private static void readProcessWrite(World world, boolean modern) throws Exception {
        String input = world.topic("in", 2);
        String output = world.topic("out", 2);
        String group = world.name("g");
        int count = 120;
        world.fill(input, 2, 0, count);
        KafkaProducer<String, String> producer = world.transactional(world.name("x"));
        KafkaConsumer<String, String> consumer = modern
                ? world.modernMember(group, "max.poll.records", 10, "isolation.level", "read_committed")
                : world.classicMember(group, "CooperativeStickyAssignor", "max.poll.records", 10, "isolation.level", "read_committed");
        consumer.subscribe(List.of(input));
        int[] state = new int[2]; // records done, rounds
        world.until("all is processed", () -> {
            ConsumerRecords<String, String> records = consumer.poll(World.POLL);
            if (records.isEmpty()) {
                return;
            }
            producer.beginTransaction();
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (ConsumerRecord<String, String> record : records) {
                producer.send(new ProducerRecord<>(output, record.partition(), record.key(), "did " + record.value()));
                offsets.put(new TopicPartition(input, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
            if (++state[1] % 3 == 0) {
                producer.abortTransaction();
                Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
                for (TopicPartition partition : consumer.assignment()) {
                    OffsetAndMetadata at = committed.get(partition);
                    consumer.seek(partition, at == null ? 0 : at.offset());
                }
            } else {
                producer.commitTransaction();
                state[0] += records.count();
            }
        }, () -> state[0] >= count);
        world.same(count, state[0], "each input record is in one committed transaction");
        List<String> values = World.values(world.read(output, 2, "read_committed"));
        world.same(count, values.size(), "outputs");
        world.same(count, Set.copyOf(values).size(), "distinct outputs");
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(Set.copyOf(World.partitions(input, 2)));
        for (TopicPartition partition : World.partitions(input, 2)) {
            world.same((long) count / 2, committed.get(partition).offset(), "offset committed for " + partition);
        }
    }

    private static void fencing(World world) throws Exception {
        String topic = world.topic("t", 1);
        KafkaProducer<String, String> old = world.transactional(world.name("x"));
        old.beginTransaction();
        old.send(new ProducerRecord<>(topic, "of the zombie")).get(30, TimeUnit.SECONDS);
        KafkaProducer<String, String> current = world.transactional(world.name("x"));
        KafkaException refused = world.fails(KafkaException.class, () -> {
            old.send(new ProducerRecord<>(topic, "late")).get(30, TimeUnit.SECONDS);
            old.commitTransaction();
            return "committed";
        });
        Throwable root = refused;
        while (root.getCause() != null) {
            root = root.getCause();
        }
        world.holds(root instanceof ProducerFencedException || root instanceof InvalidProducerEpochException,
                "the zombie is told that it was fenced, not " + root);
        current.beginTransaction();
        current.send(new ProducerRecord<>(topic, "of the successor"));
        current.commitTransaction();
        world.same(List.of("of the successor"), World.values(world.read(topic, 1, "read_committed")), "visible records");
    }

    private static void lastStable(World world) throws Exception {
        String topic = world.topic("t", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        world.fill(topic, 1, 0, 1);
        KafkaProducer<String, String> producer = world.transactional(world.name("x"));
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, "open")).get(30, TimeUnit.SECONDS);
        world.fill(topic, 1, 1, 1);
        world.same(3L, end(world, partition, IsolationLevel.READ_UNCOMMITTED), "end of the log");
        world.same(1L, end(world, partition, IsolationLevel.READ_COMMITTED), "last stable offset");
        KafkaConsumer<String, String> waiting = world.consumer("isolation.level", "read_committed");
        waiting.assign(List.of(partition));
        List<String> seen = new ArrayList<>();
        Runnable poll = () -> waiting.poll(World.POLL).forEach(r -> seen.add(r.value()));
        world.until("what is before the transaction", poll, () -> seen.size() == 1);
        waiting.poll(Duration.ofMillis(300)).forEach(r -> seen.add(r.value()));
        world.same(List.of("0"), seen, "nothing of or after an open transaction");
        producer.commitTransaction();
        world.until("the rest, once it is committed", poll, () -> seen.size() == 3);
        world.same(List.of("0", "open", "1"), seen, "in the order of the log");
    }

    private static long end(World world, TopicPartition partition, IsolationLevel level) throws Exception {
        return World.got(world.admin().listOffsets(Map.of(partition, OffsetSpec.latest()), new ListOffsetsOptions(level))
                .partitionResult(partition)).offset();
    }

    private static void offsetsAlone(World world) throws Exception {
        String topic = world.topic("t", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaConsumer<String, String> consumer = world.consumer("group.id", world.name("g"));
        KafkaProducer<String, String> producer = world.transactional(world.name("x"));
        consumer.assign(List.of(partition));
        for (boolean commit : new boolean[] {false, true}) {
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(5)), consumer.groupMetadata());
            if (commit) {
                producer.commitTransaction();
                world.same(5L, consumer.committed(Set.of(partition)).get(partition).offset(), "committed");
            } else {
                producer.abortTransaction();
                world.same(null, consumer.committed(Set.of(partition)).get(partition), "aborted");
            }
        }
    }

    private static void rounds(World world) throws Exception {
        String topic = world.topic("t", 8);
        KafkaProducer<String, String> producer = world.transactional(world.name("x"));
        int rounds = 40;
        for (int round = 0; round < rounds; round++) {
            producer.beginTransaction();
            for (int p = 0; p < 8; p++) {
                producer.send(new ProducerRecord<>(topic, p, "k", round + "/" + p));
            }
            producer.commitTransaction();
        }
        List<String> values = World.values(world.read(topic, 8, "read_committed"));
        world.same(rounds * 8, values.size(), "records");
        world.same(rounds * 8, Set.copyOf(values).size(), "distinct records");
    }

    /** Full batches for seven partitions, five requests in flight: each partition's batches arrive in their sequence. */
    private static void manyInFlight(World world) throws Exception {
        int partitions = 7, rounds = 4, records = 20_000;
        String topic = world.topic("t", partitions);
        KafkaProducer<String, String> producer = world.transactional(world.name("x"), "linger.ms", 0);
        for (int round = 0; round < rounds; round++) {
            producer.beginTransaction();
            for (int i = 0; i < records; i++) {
                producer.send(new ProducerRecord<>(topic, i % partitions, "k", Integer.toString(round * records + i)));
            }
            producer.commitTransaction();
        }
        List<ConsumerRecord<String, String>> found = world.read(topic, partitions, "read_committed");
        world.same(rounds * records, found.size(), "records");
        int[] last = new int[partitions];
        Arrays.fill(last, -1);
        boolean ordered = true;
        for (ConsumerRecord<String, String> record : found) {
            int value = Integer.parseInt(record.value());
            ordered &= value > last[record.partition()];
            last[record.partition()] = value;
        }
        world.holds(ordered, "each partition in the order of sending");
    }

    private static void timeout(World world) throws Exception {
        String topic = world.topic("t", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        KafkaProducer<String, String> producer = world.transactional(world.name("x"), "transaction.timeout.ms", 1000);
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, "never ended")).get(30, TimeUnit.SECONDS);
        world.fill(topic, 1, 0, 1);
        world.until("the broker gives up on it", World::pause, () -> {
            try {
                return end(world, partition, IsolationLevel.READ_COMMITTED) == 3;
            } catch (Exception notYet) {
                return false;
            }
        });
        world.same(List.of("0"), World.values(world.read(topic, 1, "read_committed")), "the open record is aborted");
        world.fails(KafkaException.class, () -> {
            producer.commitTransaction();
            return "committed";
        });
    }

    private static void admin(World world) throws Exception {
        String topic = world.topic("t", 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        String id = world.name("x");
        KafkaProducer<String, String> producer = world.transactional(id);
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, "open")).get(30, TimeUnit.SECONDS);

        TransactionDescription ongoing = World.got(world.admin().describeTransactions(List.of(id)).description(id));
        world.same(TransactionState.ONGOING, ongoing.state(), "state");
        world.same(Set.of(partition), ongoing.topicPartitions(), "partitions");
        world.holds(ongoing.transactionStartTimeMs().isPresent(), "start time");
        TransactionListing listed = World.got(world.admin()
                        .listTransactions(new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING))).all()).stream()
                .filter(t -> t.transactionalId().equals(id)).findFirst().orElseThrow();
        world.same(ongoing.producerId(), listed.producerId(), "producer id in the list");
        ProducerState state = World.got(world.admin().describeProducers(List.of(partition)).partitionResult(partition))
                .activeProducers().stream().filter(p -> p.producerId() == ongoing.producerId()).findFirst().orElseThrow();
        world.same(0L, state.currentTransactionStartOffset().orElse(-1), "start offset of the open transaction");
        world.same(0, state.lastSequence(), "last sequence");

        producer.commitTransaction();
        world.until("the transaction completes", World::pause, () -> {
            try {
                return World.got(world.admin().describeTransactions(List.of(id)).description(id)).state() == TransactionState.COMPLETE_COMMIT;
            } catch (Exception notYet) {
                return false;
            }
        });
        String unknown = world.name("unknown");
        world.fails(TransactionalIdNotFoundException.class,
                () -> World.got(world.admin().describeTransactions(List.of(unknown)).description(unknown)));
    }

    private static void fencedByAdmin(World world) throws Exception {
        String topic = world.topic("t", 1);
        String id = world.name("x");
        KafkaProducer<String, String> producer = world.transactional(id);
        producer.beginTransaction();
        producer.send(new ProducerRecord<>(topic, "open")).get(30, TimeUnit.SECONDS);
        World.got(world.admin().fenceProducers(List.of(id)).all());
        world.fails(KafkaException.class, () -> {
            producer.commitTransaction();
            return "committed";
        });
        world.same(List.of(), World.values(world.read(topic, 1, "read_committed")), "visible records");
    }
}
