import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes transactions until its standard input ends, through any number of broker crashes, and says on its standard output
 * what it knows of each: `begun ATTEMPT SIZE`, then `ending`, `committed` or `aborted ATTEMPT`.
 *
 * Usage: Biller BOOTSTRAP TOPIC PARTITIONS GROUP SEED. The records of a transaction are `NUMBER|ATTEMPT|padding`; with them
 * it commits ATTEMPT as the group's offset in partition 0 of the topic. One in five transactions is aborted on purpose.
 */
public final class Biller {
    static final int SIZE_MAX = 40;
    static final int PADDING_MAX = 400;
    static final double ABORTED_SHARE = 0.2;

    private final String bootstrap;
    private final String topic;
    private final int partitions;
    private final String group;
    private final Random random;
    private volatile boolean finished;
    private int attempts;
    private long numbers;

    Biller(String[] arguments) {
        bootstrap = arguments[0];
        topic = arguments[1];
        partitions = Integer.parseInt(arguments[2]);
        group = arguments[3];
        random = new Random(Long.parseLong(arguments[4]));
    }

    public static void main(String[] arguments) throws Exception {
        Biller biller = new Biller(arguments);
        Thread work = new Thread(biller::work);
        work.setUncaughtExceptionHandler((thread, error) -> {
            say("broke " + error);
            Runtime.getRuntime().halt(1);
        });
        work.start();
        while (System.in.read() >= 0) {
            // Only the end counts.
        }
        biller.finished = true;
        work.join();
        say("done");
    }

    private static void say(String what) {
        System.out.println(what);
        System.out.flush();
    }

    private void work() {
        while (!finished) {
            try (Producer<byte[], byte[]> producer = new KafkaProducer<>(settings())) {
                repeated(producer::initTransactions);
                while (!finished) {
                    transaction(producer);
                }
            } catch (KafkaException error) {
                say("again " + error);
            }
        }
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", "biller");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "100");
        settings.put("retry.backoff.ms", "20");
        settings.put("retry.backoff.max.ms", "100");
        settings.put("max.block.ms", "15000");
        settings.put("request.timeout.ms", "10000");
        settings.put("delivery.timeout.ms", "30000");
        return settings;
    }

    /** One transaction, with its end. What it throws has made the producer useless. */
    private void transaction(Producer<byte[], byte[]> producer) {
        int attempt = attempts++;
        int size = 1 + random.nextInt(SIZE_MAX);
        say("begun " + attempt + " " + size);
        try {
            producer.beginTransaction();
            for (int sent = 0; sent < size; sent++) {
                String value = numbers++ + "|" + attempt + "|" + "z".repeat(random.nextInt(PADDING_MAX));
                producer.send(new ProducerRecord<>(topic, random.nextInt(partitions), null, value.getBytes()));
            }
            producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(attempt)), new ConsumerGroupMetadata(group));
            if (random.nextDouble() >= ABORTED_SHARE) {
                say("ending " + attempt);
                repeated(producer::commitTransaction);
                say("committed " + attempt);
                return;
            }
        } catch (KafkaException error) {
            say("failed " + error);
        }
        repeated(producer::abortTransaction);
        say("aborted " + attempt);
    }

    /** Repeat a call that ran out of time: the broker comes back. */
    private void repeated(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException late) {
                say("late " + late);
            }
        }
    }
}
