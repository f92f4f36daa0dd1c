<?php
// Runs `once` from examples/clients: main.php KEY COMMAND. The work is the command: status 4 is the worst failure, 5 is no result, 6 one that cannot be stored.
require "once.php";

$result = once($argv[1], function (int $fence) use ($argv) {
    system($argv[2], $status);
    if ($status === 5) {
        return null;
    }
    if ($status === 6) {
        return "\xff";
    }
    if ($status) {
        throw $status === 4 ? new Error("the work failed") : new RuntimeException("the work failed");
    }
    return ["for" => "Zoë", "fresh" => $fence > 0];
});
echo json_encode($result), "\n";
