<?php
// Runs `once` from examples/clients: main.php KEY COMMAND. The work is the command.
require "once.php";

$result = once($argv[1], function (int $fence) use ($argv) {
    system($argv[2], $status);
    if ($status) {
        throw new RuntimeException("the work failed");
    }
    return ["for" => "Zoë", "fresh" => $fence > 0];
});
echo json_encode($result), "\n";
