import java.io.*;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.*;
import java.util.concurrent.*;
import static java.nio.charset.StandardCharsets.UTF_8;

final class Once implements AutoCloseable {
    interface Work { String run(long fence) throws Exception; }

    private final SocketChannel channel = SocketChannel.open(UnixDomainSocketAddress.of("/run/fastdedup/fastdedup.sock"));
    private final InputStream in = new BufferedInputStream(Channels.newInputStream(channel));

    private Once() throws IOException {}

    public void close() throws IOException { channel.close(); }

    static String once(String key, Work work) throws Exception {
        var claim = (Object[]) asked("FD.CLAIM", key, "WAIT", "5000");
        if (claim[0].equals("succeeded")) return (String) claim[5];
        if (!claim[0].equals("acquired")) throw new IOException("not run: " + claim[0]);
        var owner = (String) claim[1];
        String result;
        try {
            result = work.run((Long) claim[2]);
        } catch (Throwable error) {
            try { asked("FD.RELEASE", key, owner); } catch (IOException e) { error.addSuppressed(e); }
            throw error;
        }
        for (int tries = 1; ; tries++) {
            try {
                if (result == null) asked("FD.COMPLETE", key, owner);
                else asked("FD.COMPLETE", key, owner, result);
                return result;
            } catch (IOException error) { // the work is done: it must not run again
                var stopped = false;
                try {
                    var lasts = String.valueOf(error.getMessage()).matches("(CLAIMLOST|NOPERM|ERR (?!internal)).*");
                    if (tries < 3 && !lasts) { Thread.sleep(1000); continue; }
                } catch (InterruptedException e) {
                    stopped = true; // and told below, because a channel closes under an interrupted thread
                }
                var why = "\"its result was not stored\"";
                try { asked("FD.FAIL", key, owner, why, "TTL", "86400000"); } catch (IOException e) { error.addSuppressed(e); }
                if (stopped) Thread.currentThread().interrupt();
                throw error;
            }
        }
    }

    /** Each command has a connection of its own: the sidecar hangs up on one that is idle while the work goes on. */
    private static Object asked(String... words) throws IOException {
        try (var sidecar = new Once()) { return sidecar.ask(words); }
    }

    private Object ask(String... words) throws IOException {
        var command = new ByteArrayOutputStream();
        command.writeBytes(("*" + words.length + "\r\n").getBytes(UTF_8));
        for (var word : words) {
            command.writeBytes(("$" + word.getBytes(UTF_8).length + "\r\n" + word + "\r\n").getBytes(UTF_8));
        }
        var late = CompletableFuture.runAsync(this::hangUp, CompletableFuture.delayedExecutor(10, TimeUnit.SECONDS));
        try {
            Channels.newOutputStream(channel).write(command.toByteArray());
            return read();
        } finally {
            late.cancel(false);
        }
    }

    private void hangUp() {
        try { close(); } catch (IOException ignored) {}
    }

    private Object read() throws IOException {
        var line = new StringBuilder();
        for (int c; (c = in.read()) != '\n'; line.append((char) c)) if (c < 0) throw new EOFException("the sidecar hung up");
        var text = line.substring(1).trim();
        switch (line.charAt(0)) {
            case ':': return Long.valueOf(text);
            case '-': throw new IOException(text);
            case '$': if (text.equals("-1")) return null;
                var bytes = in.readNBytes(Integer.parseInt(text));
                in.skipNBytes(2);
                return new String(bytes, UTF_8);
            case '*': var parts = new Object[Integer.parseInt(text)];
                for (int i = 0; i < parts.length; i++) parts[i] = read();
                return parts;
            default: return text;
        }
    }
}
