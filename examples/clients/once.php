<?php
function ask(string $verb, array $body): array
{
    $asked = curl_init("http://fastdedup/v1/claims$verb");
    curl_setopt_array($asked, [
        CURLOPT_UNIX_SOCKET_PATH => "/run/fastdedup/fastdedup.sock",
        CURLOPT_TIMEOUT => 10,
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_HTTPHEADER => ["content-type: application/json"],
        CURLOPT_POSTFIELDS => json_encode($body, JSON_THROW_ON_ERROR),
    ]);
    $text = curl_exec($asked) ?: throw new RuntimeException("the sidecar does not answer: " . curl_error($asked));
    $said = json_decode($text, true, flags: JSON_THROW_ON_ERROR);
    $status = curl_getinfo($asked, CURLINFO_RESPONSE_CODE);
    return $status < 300 ? $said : throw new RuntimeException($said["title"], $status);
}

function once(string $key, callable $work): mixed
{
    $claim = ask("", ["key" => $key, "wait" => 5000]);
    if ($claim["outcome"] === "succeeded") return $claim["result"];
    if ($claim["outcome"] !== "acquired") throw new RuntimeException("not run: $claim[outcome]");
    $mine = ["key" => $key, "owner" => $claim["owner"], "fence" => $claim["fence"]];
    try {
        $result = $work($claim["fence"]);
    } catch (Throwable $error) {
        try { ask("/release", $mine); } catch (Exception) {}
        throw $error;
    }
    for ($tries = 1; ; $tries++) {
        try {
            ask("/complete", $mine + ["result" => $result]);
            return $result;
        } catch (Throwable $error) { // the work is done: it must not run again
            $lasts = $error instanceof JsonException || (intdiv($error->getCode(), 100) === 4 && !in_array($error->getCode(), [408, 429]));
            if ($tries < 3 && !$lasts) { sleep(1); continue; }
            try { ask("/fail", $mine + ["error" => "its result was not stored", "ttl" => 86_400_000]); } catch (Exception) {}
            throw $error;
        }
    }
}
