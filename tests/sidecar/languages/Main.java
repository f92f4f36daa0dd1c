/** Runs `once` from examples/clients: Main KEY COMMAND. The work is the command: status 4 is the worst failure, 5 is no result, 6 one that cannot be stored. */
final class Main {
    public static void main(String[] words) throws Exception {
        System.out.println(Once.once(words[0], fence -> {
            int status = new ProcessBuilder("sh", "-c", words[1]).start().waitFor();
            if (status == 4) throw new AssertionError("the work failed");
            if (status == 5) return null;
            if (status == 6) return "x".repeat(300_000);
            if (status != 0) throw new Exception("the work failed");
            return "{\"for\": \"Zo\\u00eb\", \"fresh\": " + (fence > 0) + "}";
        }));
    }
}
