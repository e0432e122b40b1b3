import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Runs every scenario against one broker and prints one JSON line for each.
 *
 * Usage: Run BOOTSTRAP NAME-PREFIX THREADS [SCENARIO...]. `Run --list` prints the names alone. Scenarios share nothing
 * but the broker: each takes its topic, group and transactional names from its own {@link World}, so several run at the
 * same time and the time that one spends waiting for a rebalance is not lost to the others.
 */
public final class Run {
    /** One promise of the broker, as the Java client sees it; it throws when the promise is broken. */
    interface Scenario {
        void run(World world) throws Exception;
    }

    static final int THREADS_MAX = 8;

    static Map<String, Scenario> all() {
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        // The slowest go first: they mostly wait.
        Sharing.register(scenarios);
        Transactions.register(scenarios);
        Groups.register(scenarios);
        Records.register(scenarios);
        Administration.register(scenarios);
        return scenarios;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Scenario> scenarios = all();
        if (arguments[0].equals("--list")) {
            scenarios.keySet().forEach(System.out::println);
            return;
        }
        String bootstrap = arguments[0];
        String prefix = arguments[1];
        int threads = Math.min(THREADS_MAX, Integer.parseInt(arguments[2]));
        List<String> wanted = new ArrayList<>(List.of(arguments).subList(3, arguments.length));
        if (wanted.isEmpty()) {
            wanted.addAll(scenarios.keySet());
        }
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        for (String name : wanted) {
            pool.submit(() -> report(name, scenarios.get(name), new World(bootstrap, prefix + "." + name)));
        }
        pool.shutdown();
        pool.awaitTermination(10, TimeUnit.MINUTES);
        // A client thread that will not end must not keep the JVM: what is not reported counts as failed.
        Runtime.getRuntime().halt(0);
    }

    private static void report(String name, Scenario scenario, World world) {
        long begun = System.nanoTime();
        String failure = "";
        try (world) {
            scenario.run(world);
        } catch (Throwable thrown) {
            StringWriter trace = new StringWriter();
            thrown.printStackTrace(new PrintWriter(trace));
            failure = trace.toString();
        }
        double seconds = (System.nanoTime() - begun) / 1e9;
        String line = String.format(
                "{\"scenario\": %s, \"ok\": %b, \"checks\": %d, \"seconds\": %.2f, \"failure\": %s}",
                quoted(name), failure.isEmpty(), world.checks(), seconds, quoted(failure));
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
