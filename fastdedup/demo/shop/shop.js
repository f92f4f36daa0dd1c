// The countdown, the live panel and the crowd. The shop itself works without any of it.
"use strict";
const by = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");

// The countdown

const opening = document.querySelector("[data-opens-at]");
const opensAt = opening ? Number(opening.dataset.opensAt) * 1000 : 0;

function countDown() {
  const left = Math.ceil((opensAt - Date.now()) / 1000);
  const buy = by("buy");
  if (buy) buy.disabled = left > 0;
  const said = opening.querySelector("[data-countdown]");
  if (left <= 0) { said.textContent = "Open now"; return; }
  const two = (n) => String(n).padStart(2, "0");
  said.textContent = `Opens in ${two(Math.floor(left / 3600))}:${two(Math.floor(left / 60) % 60)}:${two(left % 60)}`;
  setTimeout(countDown, 200);
}
if (opening) countDown();

// The panel

function show(stats) {
  for (const figure of document.querySelectorAll("[data-figure]")) {
    const value = stats[figure.dataset.figure];
    figure.textContent = value === null ? "–" : whole.format(value) + (figure.dataset.unit || "");
  }
  document.querySelector("[data-figure=degraded]").classList.toggle("on", stats.degraded > 0);
  by("meter").max = Math.max(1, stats.sold + stats.left);
  by("meter").value = stats.sold;
  showRedis(stats.redis === "up", stats.redis);
  by("workers").replaceChildren(...stats.workers.map(worker));
  tell(stats.events);
}

function showRedis(up, state) {
  const text = up ? "Redis is up" : state === "down" ? "Redis is down" : state;
  if (by("redis-state").textContent !== text) by("redis-state").textContent = text;
  by("redis-dot").className = up ? "dot up" : "dot down";
  by("stop-redis").disabled = !up;
  by("start-redis").disabled = up;
}

function worker({number, breaker}) {
  const item = document.createElement("li");
  item.className = breaker;
  item.textContent = `Worker ${number}: breaker ${breaker.replace("_", " ")}`;
  return item;
}

// Adds what is new on top: a log that were written anew would be read out anew.
function tell(events) {
  const list = by("events");
  const known = new Set(Array.from(list.children, (item) => item.dataset.key));
  const fresh = events.map(said).filter((item) => !known.has(item.dataset.key));
  if (!fresh.length) return;
  list.querySelector(".empty")?.remove();
  list.prepend(...fresh);
  while (list.children.length > 6) list.lastChild.remove();
}

function said({at, worker, text}) {
  const item = document.createElement("li");
  const words = [["span", new Date(at * 1000).toLocaleTimeString("en-GB")], ["span", `Worker ${worker}`], ["b", text]];
  item.dataset.key = `${at} ${worker}`;
  item.append(...words.map(([tag, content]) => Object.assign(document.createElement(tag), {textContent: content})));
  return item;
}

let shown = "";
async function poll() {
  try {
    const answer = await fetch("/stats", {cache: "no-store"});
    const text = await answer.text();
    if (answer.ok && text !== shown) { show(JSON.parse(text)); shown = text; }
  } catch {
    by("redis-state").textContent = "The shop does not answer";
    by("redis-dot").className = "dot down";
    shown = "";
  }
}
async function watch() {
  await poll();
  setTimeout(watch, 500);
}
watch();

// Its buttons

const post = (url, data) => fetch(url, {method: "POST", body: new URLSearchParams(data), redirect: "manual"});

by("redis-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  event.submitter.disabled = true;
  await post("/redis", {do: event.submitter.value});
  poll();
});

const remembered = /(?:^|; )outage=(\w+)/.exec(document.cookie);
if (remembered && by(`outage-${remembered[1]}`)) by(`outage-${remembered[1]}`).checked = true;
by("outage-form").addEventListener("change", (event) => {
  document.cookie = `outage=${event.target.value}; path=/; samesite=lax`; // goes along with each purchase
});

by("crowd-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  await post("/restock", {});
  poll();
});

by("send-crowd").addEventListener("click", async () => {
  const size = Math.min(2000, Math.max(1, Number(by("crowd-size").value) || 1));
  by("send-crowd").disabled = true;
  const name = `crowd-${crypto.randomUUID().slice(0, 8)}`;
  const answers = {};
  let next = 0;
  const lane = async () => {
    while (next < size) {
      const statuses = await buyer(`${name}-${next++}`);
      for (const status of statuses) answers[status] = (answers[status] || 0) + 1;
      by("crowd-said").textContent = `${whole.format(next)} of ${whole.format(size)} buyers …`;
    }
  };
  await Promise.all(Array.from({length: 4}, lane));
  const told = Object.entries(answers).map(([status, times]) => `${whole.format(times)} × ${status}`);
  by("crowd-said").textContent = `Answers: ${told.join(", ")}`;
  by("send-crowd").disabled = false;
  poll();
});

async function buyer(name) {
  const order = {
    method: "POST",
    headers: {"Content-Type": "application/json", "Idempotency-Key": crypto.randomUUID(), "X-Buyer": name},
    body: JSON.stringify({quantity: 1}),
  };
  const click = () => fetch("/api/orders", order).then((answer) => answer.status, () => "no answer");
  return Promise.all([click(), click(), click()]);
}
