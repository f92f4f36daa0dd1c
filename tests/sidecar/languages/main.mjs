// Runs `once` from examples/clients: main.mjs KEY COMMAND. The work is the command: status 4 is the worst failure, 5 is no result, 6 one that cannot be stored.
import { spawnSync } from "node:child_process";
import { once } from "./once.mjs";

const [key, command] = process.argv.slice(2);
const result = await once(key, (fence) => {
  const { status } = spawnSync("sh", ["-c", command]);
  if (status === 5) return null;
  if (status === 6) return 10n;
  if (status !== 0) throw status === 4 ? "the work failed" : new Error("the work failed");
  return { for: "Zoë", fresh: fence > 0 };
});
console.log(JSON.stringify(result));
