import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.NANOSECONDS;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.RedisException;
import org.redisson.config.Config;

/**
 * One lock of Redisson, moved by JSON lines on standard input, answered on standard output. The lines are those of
 * ../redis/peer.py; their values are strings without escapes and whole numbers, and only the first server counts. Instead of
 * "extend", which Redisson's locks do not have, there are
 *
 * {"call": "connect", "servers": [URL]}: connects, and loads what a lock needs
 * {"call": "met_another_type"}: whether the last acquire found a lock that is no hash, for which Redisson throws
 */
final class Peer {
    private static final Pattern PAIR = Pattern.compile("\"(\\w+)\":\\[?(?:\"([^\"]*)\"|(\\d+))");
    private static final Map<String, RedissonClient> CONNECTIONS = new HashMap<>();
    private static final long POLL_MS = 100;

    private RLock lock;
    private boolean metAnotherType;

    public static void main(String[] args) {
        int status = 1;
        try {
            serve();
            status = 0;
        } catch (Exception error) {
            error.printStackTrace();
        } finally {
            // The client's threads would keep the process alive.
            System.exit(status);
        }
    }

    private static void serve() throws Exception {
        // The first line promises that Redisson is there.
        new Config();
        Peer peer = new Peer();
        System.out.println("{\"ok\":true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(peer.answer(parse(line)));
        }
    }

    private String answer(Map<String, String> request) {
        try {
            return "{\"ok\":" + call(request) + "}";
        } catch (Exception error) {
            return "{\"error\":\"" + error.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"}";
        }
    }

    private boolean call(Map<String, String> request) throws Exception {
        switch (request.get("call")) {
            case "acquire":
                RedissonClient client = connect(request.get("servers"));
                String name = request.get("name");
                lock = request.get("client").equals("redisson-fair") ? client.getFairLock(name) : client.getLock(name);
                return acquire(Long.parseLong(request.get("wait")), Long.parseLong(request.get("ttl")));
            case "connect":
                RLock any = connect(request.get("servers")).getFairLock(UUID.randomUUID().toString());
                boolean acquired = any.tryLock(0, 1_000, MILLISECONDS);
                any.unlock();
                return acquired;
            case "release":
                return release();
            case "met_another_type":
                return metAnotherType;
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    /** Redisson throws for a lock that is no hash. Whoever shares names with other libraries has to ask again. */
    private boolean acquire(long waitMs, long ttlMs) throws InterruptedException {
        metAnotherType = false;
        long end = System.nanoTime() + MILLISECONDS.toNanos(waitMs);
        while (true) {
            long leftMs = Math.max(0, NANOSECONDS.toMillis(end - System.nanoTime()));
            try {
                return lock.tryLock(leftMs, ttlMs, MILLISECONDS);
            } catch (RedisException error) {
                requireAnotherType(error);
                metAnotherType = true;
                if (leftMs == 0) {
                    return false;
                }
            }
            Thread.sleep(Math.min(POLL_MS, leftMs));
        }
    }

    private boolean release() {
        try {
            lock.unlock();
            return true;
        } catch (IllegalMonitorStateException error) {
            return false;
        } catch (RedisException error) {
            requireAnotherType(error);
            return false;
        }
    }

    private static void requireAnotherType(RedisException error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (String.valueOf(cause.getMessage()).contains("WRONGTYPE")) {
                return;
            }
        }
        throw error;
    }

    private static RedissonClient connect(String url) {
        return CONNECTIONS.computeIfAbsent(url, server -> {
            Config config = new Config();
            config.useSingleServer().setAddress(server).setConnectionMinimumIdleSize(1).setConnectionPoolSize(2);
            config.setThreads(2).setNettyThreads(2);
            return Redisson.create(config);
        });
    }

    private static Map<String, String> parse(String line) {
        Map<String, String> values = new HashMap<>();
        Matcher pairs = PAIR.matcher(line);
        while (pairs.find()) {
            values.put(pairs.group(1), pairs.group(2) == null ? pairs.group(3) : pairs.group(2));
        }
        return values;
    }
}
