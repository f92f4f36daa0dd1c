// Runs `once` from examples/clients: main.mjs KEY COMMAND. The work is the command.
import { execSync } from "node:child_process";
import { once } from "./once.mjs";

const [key, command] = process.argv.slice(2);
const result = await once(key, (fence) => {
  execSync(command);
  return { for: "Zoë", fresh: fence > 0 };
});
console.log(JSON.stringify(result));
