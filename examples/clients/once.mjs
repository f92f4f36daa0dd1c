import { request } from "node:http";
import { json } from "node:stream/consumers";
import { setTimeout as pause } from "node:timers/promises";

const socketPath = "/run/fastdedup/fastdedup.sock";

function ask(verb, body) {
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json" };
    const asked = request({ socketPath, method: "POST", path: `/v1/claims${verb}`, headers, timeout: 10_000 });
    asked.on("timeout", () => asked.destroy(new Error("the sidecar does not answer"))).on("error", reject);
    asked.on("response", (answer) => json(answer).then((said) =>
      answer.statusCode < 300 ? resolve(said) : reject(Object.assign(new Error(said.title), said)), reject));
    asked.end(JSON.stringify(body));
  });
}

export async function once(key, work) {
  const claim = await ask("", { key, wait: 5000 });
  if (claim.outcome === "succeeded") return claim.result;
  if (claim.outcome !== "acquired") throw new Error(`not run: ${claim.outcome}`);
  const mine = { key, owner: claim.owner, fence: claim.fence };
  let result;
  try {
    result = await work(claim.fence);
  } catch (error) {
    await ask("/release", mine).catch(() => {});
    throw error;
  }
  for (let tries = 1; ; tries++) {
    try {
      await ask("/complete", { ...mine, result });
      return result;
    } catch (error) { // the work is done: it must not run again
      const lasts = error instanceof TypeError || (error.status < 500 && ![408, 429].includes(error.status));
      if (tries < 3 && !lasts) { await pause(1000); continue; }
      await ask("/fail", { ...mine, error: "its result was not stored", ttl: 86_400_000 }).catch(() => {});
      throw error;
    }
  }
}
