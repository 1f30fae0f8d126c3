import static java.nio.charset.StandardCharsets.UTF_8;
import static java.nio.file.StandardOpenOption.APPEND;
import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryOneTime;

/**
 * One lock of Curator, moved by JSON lines on standard input, answered on standard output. The lines are those of
 * peer.py; their values are strings without escapes and whole numbers. Besides there are
 *
 * {"call": "revoke", "server": "HOST:PORT", "session": 10000, "lock": "/locks/a"}: asks the holder to give the lock up
 * {"call": "is_revoked", "wait": 1000}: whether somebody asks for the lock within that time
 */
final class Peer {
    private static final Pattern PAIR = Pattern.compile("\"(\\w+)\":(?:\"([^\"]*)\"|(\\d+))");
    private static final Map<String, CuratorFramework> CONNECTIONS = new HashMap<>();

    private CuratorFramework curator;
    private InterProcessMutex lock;
    private CountDownLatch revoked;

    public static void main(String[] args) throws Exception {
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "error");
        // The first line promises that Curator is there.
        CuratorFrameworkFactory.builder();
        Peer peer = new Peer();
        System.out.println("{\"ok\":true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(peer.answer(parse(line)));
        }
        System.exit(0);
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
                return acquire(request, request.get("recipe"));
            case "release":
                lock.release();
                return true;
            case "work":
                return work(request);
            case "revoke":
                curator = connect(request);
                InterProcessMutex any = new InterProcessMutex(curator, request.get("lock"));
                Revoker.attemptRevoke(curator, any.getParticipantNodes().iterator().next());
                return true;
            case "is_revoked":
                return revoked.await(Long.parseLong(request.get("wait")), MILLISECONDS);
            default:
                throw new IllegalArgumentException(request.toString());
        }
    }

    private boolean acquire(Map<String, String> request, String recipe) throws Exception {
        curator = connect(request);
        String path = request.get("lock");
        switch (recipe) {
            case "mutex":
                lock = new InterProcessMutex(curator, path);
                break;
            case "revocable":
                lock = new InterProcessMutex(curator, path);
                revoked = new CountDownLatch(1);
                lock.makeRevocable(asked -> revoked.countDown());
                break;
            case "read":
                lock = new InterProcessReadWriteLock(curator, path).readLock();
                break;
            case "write":
                lock = new InterProcessReadWriteLock(curator, path).writeLock();
                break;
            default:
                throw new IllegalArgumentException(recipe);
        }
        return lock.acquire(Long.parseLong(request.get("wait")), MILLISECONDS);
    }

    private boolean work(Map<String, String> request) throws Exception {
        String[] recipes = request.get("recipes").split(",");
        String about = String.format(
                "{\"process\":%s,\"client\":0,\"lock\":\"%s\",\"at_ns\":0,\"kind\":",
                request.get("process"), request.get("lock"));
        try (FileChannel history = FileChannel.open(Path.of(request.get("history")), APPEND)) {
            for (int round = 0; round < Integer.parseInt(request.get("rounds")); round++) {
                String recipe = recipes[round % recipes.length];
                record(history, about + "\"acquire_called\"}");
                if (!acquire(request, recipe)) {
                    return false;
                }
                String mode = recipe.equals("read") ? "shared" : "exclusive";
                record(history, about + "\"acquired\",\"token\":" + 16 * czxid() + ",\"mode\":\"" + mode + "\"}");
                record(history, about + "\"release_called\"}");
                lock.release();
                record(history, about + "\"released\",\"outcome\":\"released\"}");
            }
        }
        return true;
    }

    /** What is appended in one go stays in one piece. */
    private static void record(FileChannel history, String event) throws Exception {
        history.write(ByteBuffer.wrap((event + "\n").getBytes(UTF_8)));
    }

    /** Of the node that holds the lock, whose path Curator tells only to classes of its own. */
    private long czxid() throws Exception {
        Method path = InterProcessMutex.class.getDeclaredMethod("getLockPath");
        path.setAccessible(true);
        return curator.checkExists().forPath((String) path.invoke(lock)).getCzxid();
    }

    private static CuratorFramework connect(Map<String, String> request) throws Exception {
        String key = request.get("server") + " " + request.get("session");
        CuratorFramework curator = CONNECTIONS.get(key);
        if (curator == null) {
            int session = Integer.parseInt(request.get("session"));
            curator = CuratorFrameworkFactory.newClient(
                    request.get("server"), session, 30_000, new RetryOneTime(100));
            curator.start();
            curator.blockUntilConnected();
            CONNECTIONS.put(key, curator);
        }
        return curator;
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
