import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What a client of any age does: produce in every compression that all ages know, in a transaction too, and consume in a group.
 *
 * Usage: Era BOOTSTRAP NAME. Written for the API of kafka-clients 2.8, so that one source serves every release since.
 * Prints the values consumed, one to a line, in the order of the log.
 */
public final class Era {
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    private static final int PER_CODEC = 20;
    private static final long DEADLINE_MS = 45_000;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String name = arguments[1];
        int sent = 0;
        for (String codec : CODECS) {
            Properties config = new Properties();
            config.put("bootstrap.servers", bootstrap);
            config.put("compression.type", codec);
            config.put("linger.ms", "20");
            config.put("enable.idempotence", "true");
            try (KafkaProducer<String, String> producer =
                    new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
                for (int i = 0; i < PER_CODEC; i++) {
                    producer.send(new ProducerRecord<>(name, "k" + i, codec + "-" + i));
                    sent++;
                }
            }
        }
        sent += transaction(bootstrap, name);
        for (String value : consume(bootstrap, name, sent)) {
            System.out.println("VALUE " + value);
        }
    }

    private static int transaction(String bootstrap, String name) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", name);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "k", "aborted"));
            producer.flush();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "k", "committed"));
            producer.commitTransaction();
        }
        return 1;
    }

    private static List<String> consume(String bootstrap, String name, int count) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", name);
        config.put("auto.offset.reset", "earliest");
        config.put("isolation.level", "read_committed");
        config.put("enable.auto.commit", "false");
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(name));
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (values.size() < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
            consumer.commitSync();
        }
        return values;
    }
}
