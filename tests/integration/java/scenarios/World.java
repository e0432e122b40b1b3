import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What one scenario has to itself: names nobody else uses, clients that are closed with it, and a count of its checks. */
final class World implements AutoCloseable {
    static final Duration POLL = Duration.ofMillis(100);
    static final Duration DEADLINE = Duration.ofSeconds(60);

    final String bootstrap;
    private final String prefix;
    private final AtomicInteger checks = new AtomicInteger();
    private final List<AutoCloseable> open = new ArrayList<>();
    private Admin admin;

    World(String bootstrap, String prefix) {
        this.bootstrap = bootstrap;
        this.prefix = prefix;
    }

    /** A name that no other scenario uses. */
    String name(String suffix) {
        return prefix + "." + suffix;
    }

    int checks() {
        return checks.get();
    }

    // -- checks --------------------------------------------------------------------------------------------------

    void same(Object expected, Object actual, String what) {
        checks.incrementAndGet();
        if (!Objects.deepEquals(expected, actual)) {
            throw new AssertionError(what + ": expected <" + shown(expected) + "> but was <" + shown(actual) + ">");
        }
    }

    void holds(boolean condition, String what) {
        checks.incrementAndGet();
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    /** The call must fail with exactly this kind of exception, bare or as the cause that a future wraps. */
    <E extends Throwable> E fails(Class<E> kind, Callable<?> call) {
        checks.incrementAndGet();
        try {
            Object result = call.call();
            throw new AssertionError("expected " + kind.getSimpleName() + " but got <" + shown(result) + ">");
        } catch (Exception thrown) {
            for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
                if (kind.isInstance(cause)) {
                    return kind.cast(cause);
                }
            }
            throw new AssertionError("expected " + kind.getSimpleName(), thrown);
        }
    }

    /** Repeat `step` until the condition holds. */
    void until(String what, Runnable step, BooleanSupplier condition) {
        checks.incrementAndGet();
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not within " + DEADLINE.toSeconds() + " s: " + what);
            }
            step.run();
        }
    }

    private static String shown(Object value) {
        return value instanceof byte[] bytes ? Arrays.toString(bytes) : String.valueOf(value);
    }

    static <T> T got(KafkaFuture<T> future) throws Exception {
        try {
            return future.get(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        } catch (ExecutionException wrapped) {
            throw wrapped.getCause() instanceof Exception cause ? cause : wrapped;
        }
    }

    // -- clients -------------------------------------------------------------------------------------------------

    synchronized Admin admin() {
        if (admin == null) {
            admin = keep(Admin.create(Map.of("bootstrap.servers", bootstrap, "retry.backoff.ms", 50)));
        }
        return admin;
    }

    KafkaProducer<String, String> producer(Object... settings) {
        return keep(new KafkaProducer<>(producerConfig(settings), new StringSerializer(), new StringSerializer()));
    }

    KafkaProducer<byte[], byte[]> byteProducer(Object... settings) {
        return keep(new KafkaProducer<>(producerConfig(settings), new ByteArraySerializer(), new ByteArraySerializer()));
    }

    KafkaProducer<String, String> transactional(String id, Object... settings) {
        List<Object> all = new ArrayList<>(List.of("transactional.id", id));
        all.addAll(List.of(settings));
        KafkaProducer<String, String> producer = producer(all.toArray());
        producer.initTransactions();
        return producer;
    }

    private Map<String, Object> producerConfig(Object... settings) {
        return config(Map.of("linger.ms", 2, "retry.backoff.ms", 20), settings);
    }

    KafkaConsumer<String, String> consumer(Object... settings) {
        return keep(new KafkaConsumer<>(consumerConfig(settings), new StringDeserializer(), new StringDeserializer()));
    }

    KafkaConsumer<byte[], byte[]> byteConsumer(Object... settings) {
        return keep(new KafkaConsumer<>(
                consumerConfig(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer()));
    }

    /** A member of a classic group, with the assignor named by its short class name. */
    KafkaConsumer<String, String> classicMember(String group, String assignor, Object... settings) {
        List<Object> all = new ArrayList<>(List.of(
                "group.id", group,
                "group.protocol", "classic",
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor,
                "session.timeout.ms", 10_000,
                "heartbeat.interval.ms", 200));
        all.addAll(List.of(settings));
        return consumer(all.toArray());
    }

    /** A member of a group that uses the broker-side protocol of KIP-848. */
    KafkaConsumer<String, String> modernMember(String group, Object... settings) {
        List<Object> all = new ArrayList<>(List.of("group.id", group, "group.protocol", "consumer"));
        all.addAll(List.of(settings));
        return consumer(all.toArray());
    }

    private Map<String, Object> consumerConfig(Object... settings) {
        Map<String, Object> quick = Map.of(
                "auto.offset.reset", "earliest",
                "enable.auto.commit", false,
                "fetch.max.wait.ms", 100,
                "metadata.max.age.ms", 1000,
                "retry.backoff.ms", 20);
        return config(quick, settings);
    }

    private Map<String, Object> config(Map<String, Object> defaults, Object... settings) {
        Map<String, Object> config = new HashMap<>(defaults);
        config.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < settings.length; i += 2) {
            config.put((String) settings[i], settings[i + 1]);
        }
        return config;
    }

    synchronized <C extends AutoCloseable> C keep(C client) {
        open.add(client);
        return client;
    }

    @Override
    public void close() {
        for (AutoCloseable client : open) {
            try {
                if (client instanceof KafkaProducer<?, ?> producer) {
                    producer.close(Duration.ofSeconds(1));
                } else {
                    client.close();
                }
            } catch (Exception late) {
                System.err.println("closing after a scenario: " + late);
            }
        }
    }

    // -- topics and records ----------------------------------------------------------------------------------------

    String topic(String suffix, int partitions) throws Exception {
        return topic(suffix, partitions, Map.of());
    }

    String topic(String suffix, int partitions, Map<String, String> config) throws Exception {
        String topic = name(suffix);
        got(admin().createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(config))).all());
        until("every partition of " + topic + " has a leader", World::pause, () -> {
            try {
                return got(admin().describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions().stream()
                        .allMatch(p -> p.leader() != null);
            } catch (Exception notYet) {
                return false;
            }
        });
        return topic;
    }

    static void pause() {
        try {
            TimeUnit.MILLISECONDS.sleep(20);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    /** Send `count` records round the partitions, with values `from`, `from`+1, … */
    void fill(String topic, int partitions, int from, int count) throws Exception {
        KafkaProducer<String, String> producer = producer();
        for (int i = from; i < from + count; i++) {
            producer.send(new ProducerRecord<>(topic, i % partitions, "k" + i, "" + i));
        }
        producer.flush();
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> all = new ArrayList<>();
        for (int p = 0; p < count; p++) {
            all.add(new TopicPartition(topic, p));
        }
        return all;
    }

    /** Everything in the topic from the beginning up to the end that a consumer of this isolation level sees now. */
    List<ConsumerRecord<String, String>> read(String topic, int partitions, String isolation) {
        KafkaConsumer<String, String> consumer = consumer("isolation.level", isolation);
        List<ConsumerRecord<String, String>> found = drain(consumer, partitions(topic, partitions));
        consumer.close();
        return found;
    }

    <K, V> List<ConsumerRecord<K, V>> drain(KafkaConsumer<K, V> consumer, List<TopicPartition> partitions) {
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        List<ConsumerRecord<K, V>> found = new ArrayList<>();
        until("read to " + ends, () -> consumer.poll(POLL).forEach(found::add),
                () -> partitions.stream().allMatch(p -> consumer.position(p) >= ends.get(p)));
        return found;
    }

    static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }
}
