import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;

/** Produce and fetch: what goes in comes out, byte for byte and in order. */
final class Records {
    private Records() {}

    static void register(Map<String, Run.Scenario> scenarios) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            scenarios.put("idempotent_producer_" + codec, world -> idempotent(world, codec));
        }
        scenarios.put("record_shapes", Records::shapes);
        scenarios.put("acks_levels", Records::acks);
        scenarios.put("record_too_large", Records::tooLarge);
        scenarios.put("log_append_time", Records::logAppendTime);
        scenarios.put("seek_pause_and_times", Records::seeking);
        scenarios.put("offset_out_of_range", Records::outOfRange);
        scenarios.put("auto_created_topic", Records::autoCreated);
    }

    private static void idempotent(World world, String codec) throws Exception {
        String topic = world.topic("t", 3);
        KafkaProducer<String, String> producer =
                world.producer("enable.idempotence", true, "acks", "all", "compression.type", codec);
        int count = 600;
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            sent.add(producer.send(new ProducerRecord<>(topic, i % 3, "key-" + i, "value-" + i + "-" + "x".repeat(i % 50))));
        }
        producer.flush();
        for (int i = 0; i < count; i++) {
            world.same((long) (i / 3), sent.get(i).get(30, TimeUnit.SECONDS).offset(), "offset of record " + i);
        }
        Map<Integer, Integer> next = new HashMap<>(Map.of(0, 0, 1, 1, 2, 2));
        List<ConsumerRecord<String, String>> found = world.read(topic, 3, "read_committed");
        for (ConsumerRecord<String, String> record : found) {
            int i = next.get(record.partition());
            world.same("key-" + i, record.key(), "key in order");
            world.same("value-" + i + "-" + "x".repeat(i % 50), record.value(), "value in order");
            next.put(record.partition(), i + 3);
        }
        world.same(count, found.size(), "records read");
    }

    private static void shapes(World world) throws Exception {
        String topic = world.topic("t", 1);
        KafkaProducer<byte[], byte[]> producer = world.byteProducer();
        byte[] large = new byte[900_000];
        Arrays.fill(large, (byte) 7);
        byte[] utf8 = "ключ".getBytes(StandardCharsets.UTF_8);
        List<ProducerRecord<byte[], byte[]>> records = List.of(
                new ProducerRecord<>(topic, 0, 1_600_000_000_000L, null, new byte[] {1}),
                new ProducerRecord<>(topic, 0, 1_600_000_000_001L, utf8, (byte[]) null),
                new ProducerRecord<>(topic, 0, 1_600_000_000_002L, new byte[0], new byte[0]),
                new ProducerRecord<>(topic, 0, 1_500_000_000_000L, null, null,
                        List.<Header>of(new RecordHeader("a", null), new RecordHeader("a", utf8), new RecordHeader("é", new byte[0]))),
                new ProducerRecord<>(topic, 0, 1_600_000_000_004L, utf8, large));
        for (ProducerRecord<byte[], byte[]> record : records) {
            producer.send(record).get(30, TimeUnit.SECONDS);
        }
        List<ConsumerRecord<byte[], byte[]>> found = world.drain(world.byteConsumer(), World.partitions(topic, 1));
        world.same(records.size(), found.size(), "records read");
        for (int i = 0; i < found.size(); i++) {
            world.same(records.get(i).key(), found.get(i).key(), "key " + i);
            world.same(records.get(i).value(), found.get(i).value(), "value " + i);
            world.same(records.get(i).timestamp(), found.get(i).timestamp(), "timestamp " + i);
            world.same(TimestampType.CREATE_TIME, found.get(i).timestampType(), "timestamp type " + i);
            world.same(records.get(i).headers().toArray(), found.get(i).headers().toArray(), "headers " + i);
        }
    }

    private static void acks(World world) throws Exception {
        String topic = world.topic("t", 1);
        for (String acks : List.of("0", "1", "all")) {
            KafkaProducer<String, String> producer =
                    world.producer("acks", acks, "enable.idempotence", false, "max.in.flight.requests.per.connection", 1);
            for (int i = 0; i < 10; i++) {
                RecordMetadata metadata =
                        producer.send(new ProducerRecord<>(topic, acks + "-" + i)).get(30, TimeUnit.SECONDS);
                world.same(!acks.equals("0"), metadata.hasOffset(), "an offset is reported with acks=" + acks);
            }
            producer.close();
        }
        KafkaConsumer<String, String> reader = world.consumer();
        TopicPartition partition = new TopicPartition(topic, 0);
        world.until("records without acks arrive too", World::pause,
                () -> reader.endOffsets(List.of(partition)).get(partition) == 30);
        List<String> values = World.values(world.read(topic, 1, "read_uncommitted"));
        for (String acks : List.of("0", "1", "all")) {
            List<String> mine = values.stream().filter(v -> v.startsWith(acks + "-")).toList();
            for (int i = 0; i < 10; i++) {
                world.same(acks + "-" + i, mine.get(i), "in order with acks=" + acks);
            }
        }
    }

    private static void tooLarge(World world) throws Exception {
        String topic = world.topic("t", 1, Map.of("max.message.bytes", "2000"));
        KafkaProducer<String, String> producer = world.producer();
        world.fails(RecordTooLargeException.class,
                () -> producer.send(new ProducerRecord<>(topic, "x".repeat(5000))).get(30, TimeUnit.SECONDS));
        world.same(0L, producer.send(new ProducerRecord<>(topic, "fits")).get(30, TimeUnit.SECONDS).offset(),
                "the next record that fits is taken");
    }

    private static void logAppendTime(World world) throws Exception {
        String topic = world.topic("t", 1, Map.of("message.timestamp.type", "LogAppendTime"));
        KafkaProducer<String, String> producer = world.producer();
        long before = System.currentTimeMillis() - 5000;
        RecordMetadata metadata =
                producer.send(new ProducerRecord<>(topic, 0, 1000L, "k", "v")).get(30, TimeUnit.SECONDS);
        world.holds(metadata.timestamp() > before, "the acknowledgement carries the broker's time");
        ConsumerRecord<String, String> found = world.read(topic, 1, "read_uncommitted").get(0);
        world.same(TimestampType.LOG_APPEND_TIME, found.timestampType(), "timestamp type");
        world.same(metadata.timestamp(), found.timestamp(), "the stored time is the acknowledged one");
    }

    private static void seeking(World world) throws Exception {
        String topic = world.topic("t", 2);
        KafkaProducer<String, String> producer = world.producer();
        for (int i = 0; i < 100; i++) {
            producer.send(new ProducerRecord<>(topic, 0, 1_000_000L + i * 1000, "k", "" + i));
        }
        producer.flush();
        TopicPartition full = new TopicPartition(topic, 0);
        TopicPartition empty = new TopicPartition(topic, 1);
        KafkaConsumer<String, String> consumer = world.consumer("max.poll.records", 1);
        world.same(Map.of(full, 0L, empty, 0L), consumer.beginningOffsets(List.of(full, empty)), "beginnings");
        world.same(Map.of(full, 100L, empty, 0L), consumer.endOffsets(List.of(full, empty)), "ends");
        Map<TopicPartition, OffsetAndTimestamp> times =
                consumer.offsetsForTimes(Map.of(full, 1_050_500L, empty, 1_050_500L));
        world.same(51L, times.get(full).offset(), "first record at or after the time");
        world.same(1_051_000L, times.get(full).timestamp(), "its timestamp");
        world.same(null, times.get(empty), "no record in an empty partition");
        world.same(null, consumer.offsetsForTimes(Map.of(full, 9_000_000L)).get(full), "no record after the last");

        consumer.assign(List.of(full, empty));
        consumer.seek(full, 42);
        world.same("42", next(world, consumer).value(), "record at the offset sought");
        consumer.pause(List.of(full));
        world.holds(consumer.poll(World.POLL).isEmpty(), "nothing from a paused partition");
        consumer.resume(List.of(full));
        world.same("43", next(world, consumer).value(), "goes on where it paused");
        consumer.seekToEnd(List.of(full));
        world.same(100L, consumer.position(full), "position at the end");
        producer.send(new ProducerRecord<>(topic, 0, "k", "new")).get(30, TimeUnit.SECONDS);
        world.same("new", next(world, consumer).value(), "a waiting fetch gets the new record");
    }

    private static ConsumerRecord<String, String> next(World world, KafkaConsumer<String, String> consumer) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        world.until("one record", () -> consumer.poll(World.POLL).forEach(found::add), () -> !found.isEmpty());
        return found.get(0);
    }

    private static void outOfRange(World world) throws Exception {
        String topic = world.topic("t", 1);
        world.fill(topic, 1, 0, 3);
        KafkaConsumer<String, String> consumer = world.consumer("auto.offset.reset", "none");
        TopicPartition partition = new TopicPartition(topic, 0);
        consumer.assign(List.of(partition));
        consumer.seek(partition, 1000);
        long deadline = System.nanoTime() + World.DEADLINE.toNanos();
        world.fails(OffsetOutOfRangeException.class, () -> {
            while (System.nanoTime() < deadline) {
                consumer.poll(World.POLL);
            }
            return "no error";
        });
    }

    private static void autoCreated(World world) throws Exception {
        String topic = world.name("never-created");
        RecordMetadata metadata =
                world.producer().send(new ProducerRecord<>(topic, "v")).get(30, TimeUnit.SECONDS);
        world.same(0L, metadata.offset(), "the first record of a topic made by producing to it");
        world.same(List.of("v"), World.values(world.read(topic, 1, "read_uncommitted")), "records");
    }
}
