/** Runs `once` from examples/clients: Main KEY COMMAND. The work is the command. */
final class Main {
    public static void main(String[] words) throws Exception {
        System.out.println(Once.once(words[0], fence -> {
            if (new ProcessBuilder("sh", "-c", words[1]).start().waitFor() != 0) throw new Exception("the work failed");
            return "{\"for\": \"Zo\\u00eb\", \"fresh\": " + (fence > 0) + "}";
        }));
    }
}
